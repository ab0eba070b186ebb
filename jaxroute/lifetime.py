"""How long a cache lives where room for KV is limited: Che's approximation, for each quarter hour.

Under LRU a conversation's tokens are evicted when those of others touched since fill the room. Che,
Tung and Wang (2002, IEEE JSAC 20(7)) take the time T that this takes for a constant: a cache is
there iff it was used within T, and T is such that what was touched within it just fits. Here that
is solved for every deployment and time bin, from the tokens left by turns and how soon they are
used again:

`room = integral from 0 to T of A(t - age) S(age)`, A the tokens a second that turns leave behind,
S the share of them that no later turn has taken up by that age (they are then younger again).
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from jaxroute.world import TIME_BINS

BIN_S = 86_400 / TIME_BINS

HALF_S = BIN_S / 2

FINE = 28
"""Intervals of age up to half a bin: by equal steps of the logarithm, from a second on."""

EDGES_S = np.r_[0, np.geomspace(1, HALF_S, FINE), HALF_S + BIN_S * np.arange(1, TIME_BINS)]
"""Ends of all intervals, s. Seen from the middle of a bin, each of the others is one bin before."""

AGES = len(EDGES_S) - 1

LAGS = np.maximum(np.arange(AGES) - FINE + 1, 0).astype(np.int32)
"""How many time bins ago what is so old was left."""

_STEP = math.log(HALF_S) / (FINE - 1)


def age_of(idle_s: jax.Array) -> jax.Array:
    """The interval that an age lies in, int32; those over a day count as of the last."""
    fine = jnp.floor(jnp.log(jnp.maximum(idle_s, 1e-3)) / _STEP) + 1
    place = jnp.where(idle_s < HALF_S, fine, FINE + jnp.floor((idle_s - HALF_S) / BIN_S))
    return jnp.clip(place, 0, AGES - 1).astype(jnp.int32)


def lifetime_s(left_per_s: jax.Array, again: jax.Array, room_tokens: jax.Array) -> jax.Array:
    """T of each time bin and deployment, s; infinite where a day's tokens do not fill the room.

    Args:
      left_per_s: `[TIME_BINS, D]`, tokens a second that turns leave behind.
      again: `[AGES, D]`, share of a day's that turns take up again, by their age then.
      room_tokens: `[TIME_BINS, D]`, of all replicas together.
    """
    dtype = left_per_s.dtype
    taken = jnp.cumsum(again, axis=0)
    surviving = jnp.clip(1 - (taken - again / 2), 0, 1)
    bins = jnp.arange(TIME_BINS, dtype=jnp.int32)

    def older(carry: tuple, age: tuple) -> tuple:
        held, life_s, full = carry
        survive, lag, begin_s, width_s = age
        a_second = left_per_s[(bins - lag) % TIME_BINS] * survive[None]
        added = a_second * width_s
        fills = ~full & (held + added >= room_tokens)
        part = (room_tokens - held) / jnp.where(added > 0, added, 1)
        life_s = jnp.where(fills, begin_s + part * width_s, life_s)
        return (held + added, life_s, full | fills), None

    ages = surviving, jnp.asarray(LAGS), jnp.asarray(EDGES_S[:-1], dtype)
    widths = jnp.asarray(np.diff(EDGES_S), dtype)
    begin = jnp.zeros_like(left_per_s), jnp.full_like(left_per_s, jnp.inf), left_per_s < 0
    (_, life_s, _), _ = jax.lax.scan(older, begin, (*ages, widths))
    return life_s
