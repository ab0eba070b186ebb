"""What is left of a conversation's KV cache: pure elementwise functions of tokens and seconds."""

import jax
import jax.numpy as jnp

from jaxroute.numerics import division_rest, floor_exp

EDGE_TOKENS = 0.01
"""Added before every floor, so that a whole number that lost an ulp is not rounded down."""


LEAST_DECAY_S = 1e-3
"""A shorter decay leaves as little, and its quotients would overflow."""


def blocks(tokens: jax.Array, block_tokens: jax.Array) -> jax.Array:
    """Tokens of the full blocks in `tokens`: `B * floor((tokens + 0.01) / B)`.

    Only full blocks of a prefix are shared (vLLM's rule).

    >>> float(blocks(47.0, 16.0))
    32.0
    """
    return block_tokens * jnp.floor((tokens + EDGE_TOKENS) / block_tokens)


def decayed(
    tokens: jax.Array, age_s: jax.Array, decay_s: jax.Array, age_rest_s: jax.Array | float = 0.0
) -> jax.Array:
    """Whole tokens left after `age_s`: `floor(tokens * exp(-age_s / decay_s) + 0.01)`.

    The factor is exactly 1 where `decay_s` is infinite. `age_rest_s` is what rounding left out of
    `age_s`.
    """
    decays = ~jnp.isinf(decay_s)
    divisor = jnp.where(decays, jnp.maximum(decay_s, LEAST_DECAY_S), 1)
    x = age_s / divisor
    x_rest = division_rest(age_s, divisor, x) + age_rest_s / divisor
    return floor_exp(tokens, jnp.where(decays, x, 0), jnp.where(decays, x_rest, 0), EDGE_TOKENS)


def alive(
    resident_tokens: jax.Array,
    gap_s: jax.Array,
    last_used_s: jax.Array,
    is_last: jax.Array,
    *,
    ttl_s: jax.Array,
    decay_s: jax.Array,
    drop_on_leave: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Resident tokens that survive until a turn arrives, and the seconds idle, `[D]` each.

    Decay counts from the previous turn, or from the last use where that ended later; the time to
    live counts from the last use.

    Args:
      resident_tokens: `[D]`, tokens held as of the previous turn.
      gap_s: `[]`, s since the previous turn's arrival.
      last_used_s: `[D]`, when the deployment finished its last turn, s after that arrival.
      is_last: `[D]` bool, the deployment that served the session last.
      ttl_s, decay_s: `[D]`, s; infinite keeps for ever.
      drop_on_leave: `[]`, non-zero drops every cache but the last deployment's.
    """
    busy_s = jnp.clip(last_used_s, 0, gap_s)
    age_s = gap_s - busy_s
    age_rest_s = (gap_s - age_s) - busy_s
    idle_s = jnp.maximum(gap_s - last_used_s, 0)
    kept = decayed(resident_tokens, age_s, decay_s, age_rest_s)
    gone = (idle_s > ttl_s) | ((drop_on_leave > 0) & ~is_last)
    return jnp.where(gone, 0, kept), idle_s


def cached(
    alive_tokens: jax.Array,
    prefix_tokens: jax.Array,
    prompt_tokens: jax.Array,
    block_tokens: jax.Array,
) -> jax.Array:
    """Tokens of a prompt that need no prefill: `blocks(min(alive, k, L - 1))`.

    The prompt's last token is always computed: it yields the first logits.
    """
    usable = jnp.minimum(alive_tokens, jnp.minimum(prefix_tokens, prompt_tokens - 1))
    return blocks(usable, block_tokens)
