"""Small numerical helpers, each with what fails without it."""

from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def where_tree(condition: jax.Array, on_true, on_false):
    """`jnp.where` leaf by leaf; `condition` is a scalar.

    Masking by multiplication would turn an infinity or NaN of a padded turn into NaN.
    """
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), on_true, on_false)


def stack(trees: Iterable[Any]) -> Any:
    """Several pytrees of one structure as a batch `[P, ...]` for `jax.vmap`; leaves broadcast.

    >>> stack([{"a": np.zeros(1), "b": np.ones(2)}, {"a": np.ones(1), "b": np.zeros(1)}])["b"]
    array([[1., 1.],
           [0., 0.]])
    """
    rows = list(trees)
    leaves = zip(*(jax.tree.leaves(row) for row in rows), strict=True)
    stacked = [np.stack(np.broadcast_arrays(*leaf)) for leaf in leaves]
    return jax.tree.unflatten(jax.tree.structure(rows[0]), stacked)


def compensated(
    total: jax.Array, excess: jax.Array, added: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """A sum and what rounding made it exceed the true one, after one more term (Kahan, 1965).

    Thousands of small terms, added plainly to a large one, are each rounded the same way.

    >>> one = total, excess = jnp.float32(1), jnp.float32(0)
    >>> for _ in range(1000):
    ...     total, excess = compensated(total, excess, jnp.float32(1e-8))
    >>> float(total - 1), float(sum([jnp.float32(1e-8)] * 1000, one[0]) - 1)
    (1.0013580322265625e-05, 0.0)
    """
    term = added - excess
    grown = total + term
    return grown, (grown - total) - term


def masked_min(values: jax.Array, mask: jax.Array) -> jax.Array:
    """Least of `values` `[D]` where `mask`; `inf` where the mask is empty."""
    return jnp.where(mask, values, jnp.inf).min()


def first_min(masked: jax.Array) -> jax.Array:
    """Index of the least of `masked` `[D]`, the lowest on a tie, as int32.

    Two plain reductions are several times faster than the variadic one behind `jnp.argmin`, and
    float reductions several times faster than integer ones, which XLA's CPU back end does not
    vectorise. Should XLA compute `masked` twice in two ways (fused and not), no element might equal
    the minimum; the last index is returned then, and the tests assert that it never happens.
    """
    size = masked.shape[-1]
    index = jnp.arange(size, dtype=masked.dtype)
    least = masked.min()
    return jnp.where((masked <= least) | (masked == least), index, size - 1).min().astype(jnp.int32)


def as_table(tree: Any) -> jax.Array:
    """The leaves `[D]` of a tree as columns of one table `[D, leaves]`, for `row_as`.

    Gathering one row is faster than gathering from each leaf, by their number. Integer leaves
    travel as floats, exact below 2**24.
    """
    leaves = jax.tree.leaves(tree)
    dtype = jnp.result_type(*(x.dtype for x in leaves if jnp.issubdtype(x.dtype, jnp.floating)))
    return jnp.stack([x.astype(dtype) for x in leaves], axis=-1)


def row_as(tree: Any, row: jax.Array) -> Any:
    """A row `[leaves]` of `as_table(tree)` as a tree of scalars like `tree`."""
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, [row[n].astype(x.dtype) for n, x in enumerate(leaves)])


def floor_exp(amount: jax.Array, x: jax.Array, x_rest: jax.Array, nudge: float) -> jax.Array:
    """`floor(amount * exp(-(x + x_rest)) + nudge)` with float32 operands, as float64 would give it.

    A float32 product of 100,000 tokens is good to 0.008 tokens, so that a floor of it may fall on
    the wrong side. Here the factor is `2^-n (hi + lo)`, its argument reduced as Cody and Waite
    (1980) do, and the product is summed from exact parts. The error is below `1e-8 amount`; the
    result is exact where `x` is 0. No step depends on whether the compiler contracts a product and
    a sum into one operation.

    Args:
      amount: whole numbers in [0, 2**24).
      x: `>= 0`, finite; beyond 80 the result is that of 80.
      x_rest: what rounding left out of `x`, a few units in its last place.
      nudge: in [0, 1).
    """
    if amount.dtype == jnp.float64:
        return jnp.floor(amount * jnp.exp(-(x + x_rest)) + nudge)
    x = jnp.minimum(x, 80)
    n = jnp.round(x * 1.4426950408889634)
    w = n * LN2_HI - x
    tail = 1 / 40320 + w / 362880
    for factorial in (5040, 720, 120, 24, 6, 2):
        tail = 1 / factorial + w * tail
    hi = 1 + w
    curve = w * w * tail
    lo = ((1 - hi) + w) + curve + (hi + curve) * (n * LN2_LO - x_rest)
    scale = jax.lax.bitcast_convert_type((127 - n.astype(jnp.int32)) << 23, jnp.float32)
    amount_high, amount_low = halves(amount)
    hi_high, hi_low = halves(hi)
    most = amount_high * hi_high * scale
    rest = (amount_high * hi_low + amount_low * hi_high + amount_low * hi_low) + amount * lo
    whole = jnp.floor(most)
    return whole + jnp.floor((most - whole) + (rest * scale + nudge))


LN2_HI = 0.693145751953125
LN2_LO = 1.4286068203094173e-06
"""ln 2 in two parts, the first short enough that its multiples up to 255 are exact in float32."""


def division_rest(a: jax.Array, b: jax.Array, quotient: jax.Array) -> jax.Array:
    """`a / b - quotient`, what rounding left out of the float32 `quotient` of `a` and `b`."""
    if a.dtype == jnp.float64:
        return (a - quotient * b) / b
    q_high, q_low = halves(quotient)
    b_high, b_low = halves(b)
    return ((((a - q_high * b_high) - q_high * b_low) - q_low * b_high) - q_low * b_low) / b


def halves(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """A float32 as the sum of its leading 12 bits and the rest: products of halves are exact.

    Split by bits: a split by multiplication (Veltkamp's) fails where the compiler contracts it.
    """
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32) & jnp.uint32(0xFFFFF000)
    high = jax.lax.bitcast_convert_type(bits, jnp.float32)
    return high, x - high
