"""Smooth stand-ins of the replay's jumps; each becomes its jump as the temperature goes to 0."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxroute.residency import EDGE_TOKENS, LEAST_DECAY_S

NEVER = -1e30
"""Logit of what cannot be chosen: finite, so that no difference of two is NaN."""


def floor(x: jax.Array, temperature: jax.Array) -> jax.Array:
    """`floor(x) + max(0, 1 - (1 - frac(x)) / T)`: `x` itself at `T = 1`, the floor at `T = 0`.

    >>> [round(float(floor(2.9, t)), 3) for t in (1.0, 0.5, 0.1, 0.01)]
    [2.9, 2.8, 2.0, 2.0]
    """
    whole = jnp.floor(x)
    return whole + jnp.maximum(1 - (1 - (x - whole)) / jnp.minimum(temperature, 1), 0)


def blocks(tokens: jax.Array, block_tokens: jax.Array, temperature: jax.Array) -> jax.Array:
    """`jaxroute.residency.blocks`, relaxed."""
    return block_tokens * floor((tokens + EDGE_TOKENS) / block_tokens, temperature)


def decayed(
    tokens: jax.Array, age_s: jax.Array, decay_s: jax.Array, temperature: jax.Array
) -> jax.Array:
    """`jaxroute.residency.decayed`, relaxed; tokens that never decay stay as they are."""
    decays = ~jnp.isinf(decay_s)
    rate = age_s / jnp.where(decays, jnp.maximum(decay_s, LEAST_DECAY_S), 1)
    left = floor(tokens * jnp.exp(-jnp.where(decays, rate, 0)) + EDGE_TOKENS, temperature)
    return jnp.where(decays, left, tokens)


def survives(idle_s: jax.Array, ttl_s: jax.Array, temperature: jax.Array) -> jax.Array:
    """How surely a cache idle for so long is still there: `sigmoid((1 - idle / ttl) / T)`."""
    ends = ~jnp.isinf(ttl_s)
    spare = 1 - idle_s / jnp.where(ends, ttl_s, 1)
    return jnp.where(ends, jax.nn.sigmoid(spare / temperature), 1)


class Others(NamedTuple):
    """The softmax over all of D candidates but one, for each one left out, in O(D).

    `weights` are relative to the top one's; `runners_up` are those that hold where the top one is
    the one left out, for which the difference `sum - weight` would leave nothing but rounding.
    """

    is_top: jax.Array
    weights: jax.Array
    runners_up: jax.Array
    left: jax.Array
    log_sum: jax.Array

    def means(self, values: jax.Array) -> jax.Array:
        """The mean of `values` `[D, F]` over the others of each candidate, `[D, F]`."""
        e, r = self.weights[:, None], self.runners_up[:, None]
        every = (e * values).sum(0, keepdims=True) - e * values
        but_top = (r * values).sum(0, keepdims=True)
        return jnp.where(self.is_top[:, None], but_top, every) / self.left[:, None]

    def share(self, kind: jax.Array) -> jax.Array:
        """The weight of the others of one's own kind, `[D]`; `kind` is one-hot, `[D, K]`."""
        of_kind = jnp.stack([self.weights, self.runners_up]) @ kind @ kind.T
        alike = jnp.where(self.is_top, of_kind[1], of_kind[0] - self.weights)
        return alike / self.left

    def received(self, flow: jax.Array) -> jax.Array:
        """Where flows `[D]` arrive that leave each candidate for its others, `[D]`."""
        share = flow / self.left
        from_top = jnp.where(self.is_top, share, 0).sum()
        from_rest = jnp.where(self.is_top, 0, share)
        spread = jnp.maximum(from_rest.sum() - from_rest, 0)
        return self.weights * spread + self.runners_up * from_top


def others(logits: jax.Array) -> Others:
    """The softmax of `logits` `[D]` over all candidates but one, for each.

    >>> found = others(jnp.array([0.0, 1.0, 2.0]))
    >>> [round(float(x), 3) for x in found.log_sum]  # of e and e^2, 1 and e^2, 1 and e
    [2.313, 2.127, 1.313]
    """
    top = jax.lax.stop_gradient(logits.max())
    is_top = jnp.arange(logits.shape[0]) == logits.argmax()
    rest = jnp.where(is_top, NEVER, logits)
    second = jax.lax.stop_gradient(rest.max())
    weights = jnp.exp(logits - top)
    runners_up = jnp.where(is_top, 0, jnp.exp(rest - second))
    # Each one but the top still has the top's weight of 1 among its others.
    left = jnp.where(is_top, runners_up.sum(), jnp.maximum(weights.sum() - weights, 0.5))
    log_sum = jnp.where(is_top, second, top) + jnp.log(left)
    return Others(is_top, weights, runners_up, left, log_sum)
