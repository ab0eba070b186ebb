"""Small numerical helpers, each with what fails without it."""

import jax
import jax.numpy as jnp


def where_tree(condition: jax.Array, on_true, on_false):
    """`jnp.where` leaf by leaf; `condition` is a scalar.

    Masking by multiplication would turn an infinity or NaN of a padded turn into NaN.
    """
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), on_true, on_false)


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


def take(tree, index: jax.Array):
    """Entry `index` of every leaf `[D]` of `tree`, as a tree of scalars.

    The leaves are gathered as one row of a `[D, leaves]` table: a gather for each leaf is slower
    by their number. Integer leaves travel as floats, exact below 2**24.
    """
    leaves, structure = jax.tree.flatten(tree)
    dtype = jnp.result_type(*(x.dtype for x in leaves if jnp.issubdtype(x.dtype, jnp.floating)))
    row = jnp.stack([x.astype(dtype) for x in leaves], axis=-1)[index]
    picked = [row[n].astype(x.dtype) for n, x in enumerate(leaves)]
    return jax.tree.unflatten(structure, picked)
