"""Caches in the relaxed replay: the chance that one is held, and what it holds then."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxroute import soft
from jaxroute.policies import Site
from jaxroute.sessions import Turn
from jaxroute.world import Array

UNSEEN = 1e-12
"""Weight of what was there before in a mean over an event of no probability."""


class Cache(NamedTuple):
    """Caches of a session, `[D]` each: the chance that one is held, its tokens and last use if so.

    `last_used_s` counts from the last arrival.
    """

    held: Array
    tokens: Array
    last_used_s: Array


def aged(cache: Cache, gap_s: jax.Array, site: Site, heat: jax.Array) -> Cache:
    """Caches when the next turn arrives, as `jaxroute.residency.alive` ages them."""
    busy_s = jnp.clip(cache.last_used_s, 0, gap_s)
    idle_s = jnp.maximum(gap_s - cache.last_used_s, 0)
    return Cache(
        held=cache.held * soft.survives(idle_s, site.ttl_s, heat),
        tokens=soft.decayed(cache.tokens, gap_s - busy_s, site.decay_s, heat),
        last_used_s=cache.last_used_s - gap_s,
    )


def kept(cache: Cache, turn: Turn) -> Cache:
    return cache._replace(tokens=jnp.minimum(cache.tokens, turn.prefix_tokens))


def left_behind(leaves: jax.Array, other: jax.Array, here: Cache, there: Cache) -> Cache:
    """The caches of deployments that did not serve: left at this turn, or not last before it."""
    left, other = leaves * here.held, jnp.maximum(other, 0) * there.held
    held = mean(leaves, here.held, jnp.maximum(other, 0), there.held)
    return Cache(
        held=held,
        tokens=mean(left, here.tokens, other, there.tokens),
        last_used_s=mean(left, here.last_used_s, other, there.last_used_s),
    )


def mean(p: jax.Array, x: jax.Array, q: jax.Array, y: jax.Array) -> jax.Array:
    """The mean of `x` and `y` with weights `p` and `q`; `y` where both are 0."""
    return (p * x + (q + UNSEEN) * y) / (p + q + UNSEEN)
