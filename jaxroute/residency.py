"""What is left of a conversation's KV cache: pure elementwise functions of tokens and seconds."""

import jax
import jax.numpy as jnp

EDGE_TOKENS = 0.01
"""Added before every floor, so that a whole number that lost an ulp is not rounded down."""


def blocks(tokens: jax.Array, block_tokens: jax.Array) -> jax.Array:
    """Tokens of the full blocks in `tokens`: `B * floor((tokens + 0.01) / B)`.

    Only full blocks of a prefix are shared (vLLM's rule).

    >>> float(blocks(47.0, 16.0))
    32.0
    """
    return block_tokens * jnp.floor((tokens + EDGE_TOKENS) / block_tokens)


def decayed(tokens: jax.Array, age_s: jax.Array, decay_s: jax.Array) -> jax.Array:
    """Whole tokens left after `age_s`: `floor(tokens * exp(-age_s / decay_s) + 0.01)`.

    The factor is exactly 1 where `decay_s` is infinite.
    """
    return jnp.floor(tokens * jnp.exp(-age_s / decay_s) + EDGE_TOKENS)


def alive(
    resident_tokens: jax.Array,
    age_s: jax.Array,
    idle_s: jax.Array,
    is_last: jax.Array,
    *,
    ttl_s: jax.Array,
    decay_s: jax.Array,
    drop_on_leave: jax.Array,
) -> jax.Array:
    """Resident tokens that survive until a turn arrives, `[D]`.

    Args:
      resident_tokens: `[D]`, tokens held as of the previous turn.
      age_s: `[D]`, s since `resident_tokens` was settled: what decay counts.
      idle_s: `[D]`, s since the deployment last finished a turn: what the time to live counts.
      is_last: `[D]` bool, the deployment that served the session last.
      ttl_s, decay_s: `[D]`, s; infinite keeps for ever.
      drop_on_leave: `[]`, non-zero drops every cache but the last deployment's.
    """
    kept = decayed(resident_tokens, age_s, decay_s)
    gone = (idle_s > ttl_s) | ((drop_on_leave > 0) & ~is_last)
    return jnp.where(gone, 0, kept)


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
