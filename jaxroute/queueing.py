"""A replica as a queue: how many sequences it decodes together, and how long a turn waits.

A replica prefills one turn at a time, which stops its decoding, and decodes up to `slots` sequences
together, each step giving one token to each. Turns arrive at random, at a rate that is constant
within a quarter of an hour.

With n sequences decoded together in a step of `s(n)` seconds, tokens come at `n / s(n)`, so that n
is a birth-death process with death rates `phi(n) = (1 - rho_p) r / (s(r) v)`, `r = min(n, slots)`,
v the mean output and rho_p the share of time spent on prefills. Below the limit that is processor
sharing, whose distribution depends on outputs by their mean alone (Kelly, 1979, Reversibility and
Stochastic Networks, ch. 3); above it the tail is geometric.

A turn waits for those ahead of it in prefill, as Pollaczek and Khinchine have it for M/G/1,
`lambda E[p^2] / (2 (1 - rho_p))`, and, where all slots are taken, for one of them: the wait of
M/M/c times `(1 + cv^2) / 2`, cv that of outputs (Lee and Longton, 1959, Operational Research
Quarterly 10), as M/G/c is approximated. What overloaded quarter hours leave undone it waits for as
well (`backlog_s`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

MOST_UTILISATION = 0.99
"""At which a replica's steady state is told where there is none."""

MOST_WAIT_S = 3600.0
"""The longest wait that is told: who comes then is gone, and counted as overflow."""

TINY = 1e-9
"""Turns a second, or tokens, that stand for none."""


class Arrivals(NamedTuple):
    """What reaches a replica, `[D]` each.

    Attributes:
      per_s: turns a second.
      prefill_s, prefill_s2: mean of a turn's seconds of prefill, and of their square.
      generated, generated2: mean of its tokens to decode, and of their square.
      context: mean tokens of context behind a decoded token.
    """

    per_s: jax.Array
    prefill_s: jax.Array
    prefill_s2: jax.Array
    generated: jax.Array
    generated2: jax.Array
    context: jax.Array


class Replica(NamedTuple):
    """A replica in the steady state, `[D]` each.

    Attributes:
      wait_s: mean, from arrival to prefill.
      utilisation: share of the time that prefills and decoding at full batches would take.
      running: mean number of turns being prefilled or decoded.
      batch: sequences decoded together, mean over tokens.
      dec_j, dec_s, dec_s_ctx: means over tokens: J of a token at context 0, s from one to the next
        at context 0, and for each token of context more.
      sharers: what to divide these seconds by for the replica's that a token takes up, its share of
        each step, at the mean context.
    """

    wait_s: jax.Array
    utilisation: jax.Array
    running: jax.Array
    batch: jax.Array
    dec_j: jax.Array
    dec_s: jax.Array
    dec_s_ctx: jax.Array
    sharers: jax.Array


def steady(
    arrivals: Arrivals,
    slots: jax.Array,
    dec_j: jax.Array,
    dec_s: jax.Array,
    dec_s_ctx1: jax.Array,
) -> Replica:
    """The steady state of replicas of D deployments.

    Averages over states are carried upwards, as Erlang's B formula is computed: with
    `z(n) = sum of weights up to n / weight of n`, `z(n) = 1 + z(n - 1) phi(n) / lambda`, and a mean
    over the states so far takes in the next at a weight of `1 / z(n)`. No weight overflows.

    Args:
      arrivals: `[D]` leaves.
      slots: `[D]`, sequences decoded together at most, at least 1, perhaps not whole.
      dec_j, dec_s: `[N, D]`, as `jaxroute.provision.Capacity` has them.
      dec_s_ctx1: `[D]`, s of a step for a token of context of all its sequences together.
    """
    a, top = arrivals, dec_j.shape[0]
    busy_prefill = a.per_s * a.prefill_s
    prefills = jnp.minimum(busy_prefill, MOST_UTILISATION)
    per_s, generated = jnp.maximum(a.per_s, TINY), jnp.maximum(a.generated, TINY)
    batches = jnp.arange(1, top + 1, dtype=dec_j.dtype)[:, None]
    steps = jnp.stack([jnp.broadcast_to(batches, dec_j.shape), batches * dec_j, dec_s], axis=1)
    most = jnp.minimum(slots, top)
    fullest = _between(steps, most)

    def step(n: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
        """Sequences decoded together where n are there; J and s of their step; with contexts."""
        fits = (n.astype(most.dtype) <= most)[None]
        row = jnp.where(fits, steps[jnp.minimum(n, top) - 1], fullest)
        together, step_j, step_s = row
        return together, step_j, step_s, step_s + dec_s_ctx1 * a.context * together

    def seen(n: jax.Array) -> jax.Array:
        """What a token sees of a step where n are there, `[5, D]`."""
        together, step_j, step_s, whole_s = step(n)
        a_token = step_j / together, step_s, dec_s_ctx1 * together, whole_s / together
        return jnp.stack([together, *a_token])

    def pace(n: jax.Array) -> jax.Array:
        """phi(n) over lambda: how many leave for one that comes."""
        together, _, _, whole_s = step(n)
        return (1 - prefills) * together / (whole_s * generated) / per_s

    def climb(n: jax.Array, carry: tuple) -> tuple:
        z, means, waiting, present = carry
        z = 1 + z * pace(n)
        weight, level = 1 / z, n.astype(z.dtype)
        means = means + weight[None] * (seen(n + 1) - means)
        waiting = waiting + weight * (level - jnp.minimum(level, most) - waiting)
        return z, means, waiting, present + weight * (level - present)

    one, zero = jnp.int32(1), jnp.zeros_like(a.per_s)
    begin = zero + 1, seen(one), zero, zero
    z, means, waiting, present = jax.lax.fori_loop(1, top + 1, climb, begin)
    ratio = jnp.minimum(1 / pace(one * top), MOST_UTILISATION)
    tail = ratio / (1 - ratio) / z
    share = tail / (1 + tail)  # of the time that more than N are there
    level = top + 1 / (1 - ratio)  # how many then, in the mean
    full = seen(one * top)
    means = means + share[None] * (full - means)
    waiting = waiting + share * (level - most - waiting)
    present = present + share * (level - present)

    spread = a.generated2 / (2 * generated**2)  # (1 + cv^2) / 2
    for_slot_s = spread * waiting / per_s
    for_prefill_s = a.per_s * a.prefill_s2 / (2 * (1 - prefills))
    wait_s = for_slot_s + for_prefill_s
    batch, token_j, token_s, token_s_ctx, share_s = means
    token_s, token_s_ctx = token_s / (1 - prefills), token_s_ctx / (1 - prefills)
    return Replica(
        wait_s=jnp.where(a.per_s > TINY, wait_s, 0),
        utilisation=busy_prefill + a.per_s * a.generated * full[4],
        running=present - waiting + busy_prefill,
        batch=batch,
        dec_j=token_j,
        dec_s=token_s,
        dec_s_ctx=token_s_ctx,
        sharers=(token_s + token_s_ctx * a.context) / share_s,
    )


def backlog_s(utilisation: jax.Array, bin_s: float) -> jax.Array:
    """What is left undone of time bins before, in s of each replica's time, `[B, D]`.

    Where more comes than can be served the rest is left to the next bins: as of a fluid,
    `b(t + 1) = max(b(t) + (utilisation - 1) bin_s, 0)` (Newell, 1971, Applications of Queueing
    Theory), here the mean over each bin. The day before is taken to have been the same.
    """

    def onward(before_s: jax.Array, busy: jax.Array) -> tuple[jax.Array, jax.Array]:
        after_s = jnp.clip(before_s + (busy - 1) * bin_s, 0, MOST_WAIT_S)
        return after_s, (before_s + after_s) / 2

    evening_s, _ = jax.lax.scan(onward, jnp.zeros_like(utilisation[0]), utilisation)
    return jax.lax.scan(onward, evening_s, utilisation)[1]


def _between(steps: jax.Array, n: jax.Array) -> jax.Array:
    """Rows of `[N, F, D]` at numbers from 1 to N, `[D]`, linear in between: `[F, D]`."""
    whole = jnp.clip(jnp.floor(n), 1, steps.shape[0])
    low, deployment = whole.astype(jnp.int32), jnp.arange(n.shape[-1], dtype=jnp.int32)
    high = jnp.minimum(low + 1, steps.shape[0])
    below, above = (steps[x - 1, :, deployment].T for x in (low, high))
    return below + (n - whole)[None] * (above - below)
