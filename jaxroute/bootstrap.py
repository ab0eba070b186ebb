"""How sure a ratio of two sums over sessions is: a paired bootstrap for heavy tails."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from jaxroute import draws

Floats = NDArray[np.float64]

REPLICATES = 1000

COVERAGE = 0.95

NOISE = 1e-6
"""Relative differences that float32 bills may have without meaning any."""

_SESSIONS_A_CHUNK = 4096

_SESSIONS_A_BLOCK = 64


def sums(
    numerator: Floats,
    denominator: Floats,
    hashes: draws.Hashes,
    seed: int,
    *,
    group: NDArray[np.integer] | None = None,
    groups: int = 1,
    replicates: int = REPLICATES,
) -> Floats:
    """Sums over sessions of a, b, a², ab and b², as they are and in every replicate.

    A Poisson bootstrap: each session enters each replicate Poisson(1) times, the same number for
    whatever else is bootstrapped with the seed, so that differences are paired. Weights are keyed
    by session: the order of sessions does not matter.

    Args:
      numerator, denominator: a and b of each session, broadcastable to `[..., S]`.
      hashes: `[S]`, of the session ids.
      seed: of the weights.
      group: `[S]`, to which of the `groups` each session belongs; sums add over groups.
      groups: how many.
      replicates: how many.

    Returns:
      `[groups, ..., 5, 1 + replicates]`.
    """
    shape = np.broadcast_shapes(numerator.shape, denominator.shape)
    a, b = np.broadcast_to(numerator, shape), np.broadcast_to(denominator, shape)
    group = np.zeros(len(hashes), np.int64) if group is None else group
    out = np.zeros((groups, *shape[:-1], 5, 1 + replicates))
    for at in range(0, len(hashes), _SESSIONS_A_CHUNK):
        part = slice(at, at + _SESSIONS_A_CHUNK)
        weights = with_original(draws.bootstrap_weights(seed, hashes[part], replicates))
        for n in np.unique(group[part]):
            inside = np.flatnonzero(group[part] == n) + at
            x, y = a[..., inside], b[..., inside]
            moments = np.stack([x, y, x * x, x * y, y * y], axis=-2)
            out[n] += moments @ weights[inside - at]
    return out


def with_original(drawn: NDArray[np.integer]) -> Floats:
    """Weights `[S, B]` of the replicates after those of the sessions as they are, `[S, 1 + B]`."""
    return np.concatenate([np.ones((len(drawn), 1)), drawn], axis=1)


def own_sums(a: jax.Array, b: jax.Array, weights: jax.Array) -> jax.Array:
    """Sums of a, a² and ab, `[P, 3, 1 + B]`, of `[S, P]` and weights `[S, 1 + B]`."""
    return _products((a, a * a, a * b), weights)


def base_sums(b: jax.Array, weights: jax.Array) -> jax.Array:
    """Sums of b and b², `[P, 2, 1 + B]`, which all that share a baseline have in common."""
    return _products((b, b * b), weights)


def _products(moments: Sequence[jax.Array], weights: jax.Array) -> jax.Array:
    """`[P, M, 1 + B]`, of M moments `[S, P]`, a few sessions at a time.

    A CPU's threads may share the sessions of a long matrix product, and so add up in an order that
    depends on how many threads there are; those of a short one they do not.
    """
    sessions = jnp.concatenate(moments, axis=1)
    blocks = -(-len(sessions) // _SESSIONS_A_BLOCK)

    def cut(values: jax.Array) -> jax.Array:
        padded = jnp.pad(values, ((0, blocks * _SESSIONS_A_BLOCK - len(values)), (0, 0)))
        return padded.reshape(blocks, _SESSIONS_A_BLOCK, -1)

    def add(total: jax.Array, block: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        return total + block[0].T @ block[1], None

    nothing = jnp.zeros((sessions.shape[1], weights.shape[1]), weights.dtype)
    total, _ = jax.lax.scan(add, nothing, (cut(sessions), cut(weights)))
    return jnp.moveaxis(total.reshape(len(moments), moments[0].shape[1], weights.shape[1]), 0, 1)


def joined(own: Floats, base: Floats) -> Floats:
    """`sums` `[P, 5, 1 + B]` of `own_sums` and `base_sums`."""
    (a, aa, ab), (b, bb) = np.moveaxis(own, 1, 0), np.moveaxis(base, 1, 0)
    return np.stack([a, b, aa, ab, bb], axis=1)


def half_width(totals: Floats) -> Floats:
    """Half the 95 % interval of `Σa / Σb`, `[...]`, of `sums` `[..., 5, 1 + B]`.

    The symmetric bootstrap-t interval (Hall, 1988, Annals of Statistics 16, 927): with the standard
    error of the linearised ratio, `se² = Σ(a - R b)² / (Σb)²`, the 95th percentile of
    `|R* - R| / se*` over the replicates, times `se`. A total that few sessions carry is less sure
    than a percentile interval says. A replicate that happens to lack them is not that much surer:
    its `se*²` counts as `se²/2` at least, without which one heavy session can make an interval
    several times as wide. `benchmarks/coverage.py` prints how often it holds the truth.

    NaN where so few sessions have any b that a twentieth of the replicates have one or none.
    """
    a, b, aa, ab, bb = np.moveaxis(totals, -2, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = a / b
        variance = np.maximum(aa - 2 * ratio * ab + ratio**2 * bb, 0) / b**2
        least = np.maximum(variance[..., 1:], variance[..., :1] / 2)
        distance = np.abs(ratio[..., 1:] - ratio[..., :1])
        exact = distance <= NOISE * (np.abs(ratio[..., :1]) + NOISE)
        alone = ~(variance[..., 1:] > (NOISE * (np.abs(ratio[..., 1:]) + NOISE)) ** 2)
        t = np.where(exact, 0, np.where(alone, np.inf, distance / np.sqrt(least)))
    place = int(np.ceil(COVERAGE * t.shape[-1])) - 1
    quantile = np.partition(t, place, axis=-1)[..., place]
    return np.where(np.isfinite(quantile), quantile, np.nan) * np.sqrt(variance[..., 0])
