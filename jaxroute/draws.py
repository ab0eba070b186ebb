"""Random draws keyed by what they are for and whose they are, never by position.

A draw depends on (seed, purpose, 64-bit hash of the session id, turn) alone, so that the order of
sessions, a batch split or a chunk size changes nothing.
"""

import functools
import hashlib
import zlib
from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri, pdtr

Floats = NDArray[np.float64]
Hashes = NDArray[np.uint64]


def name_hashes(names: Iterable[str]) -> Hashes:
    """64-bit hashes of names, `[N]` (BLAKE2b).

    >>> name_hashes(["a"])
    array([3405396810240292928], dtype=uint64)
    """
    digests = [hashlib.blake2b(name.encode(), digest_size=8).digest() for name in names]
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)


def _purpose_key(seed: int, purpose: str) -> jax.Array:
    key = jax.random.key(seed, impl="threefry2x32")
    return jax.random.fold_in(key, zlib.crc32(purpose.encode()))


def _fold(key: jax.Array, words: jax.Array) -> jax.Array:
    for n in range(words.shape[0]):
        key = jax.random.fold_in(key, words[n])
    return key


@functools.partial(jax.jit, static_argnames="count")
def _bits(key: jax.Array, words: jax.Array, count: int) -> jax.Array:
    return jax.vmap(lambda w: jax.random.bits(_fold(key, w), (count,), jnp.uint32))(words)


def _words(hashes: Hashes, turns: NDArray[np.integer] | None) -> NDArray[np.uint32]:
    columns = [hashes >> np.uint64(32), hashes & np.uint64(0xFFFFFFFF)]
    if turns is not None:
        columns.append(turns.astype(np.uint64))
    return np.stack(columns, axis=-1).astype(np.uint32)


def _padded(words: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Words with rows appended up to a round number, so that few shapes are compiled."""
    count = len(words)
    size = -(-count // 4096) * 4096 if count > 4096 else 1 << max(count - 1, 0).bit_length()
    return np.pad(words, ((0, size - count), (0, 0)))


def uniform(
    seed: int, purpose: str, hashes: Hashes, turns: NDArray[np.integer] | None = None
) -> Floats:
    """Uniform on the open unit interval, one draw a session or a turn, `[N]` float64.

    Args:
      seed: of the study, below 2**32.
      purpose: what the draw is for; different purposes are independent.
      hashes: `[N]`, `name_hashes` of the session ids.
      turns: `[N]`, index of the turn, where each turn has a draw of its own.
    """
    words = _padded(_words(hashes, turns))
    bits = np.asarray(_bits(_purpose_key(seed, purpose), words, 2), np.uint64)[: len(hashes)]
    return ((bits[:, 0] << np.uint64(20) | bits[:, 1] >> np.uint64(12)) + 0.5) * 2.0**-52


def normal(
    seed: int, purpose: str, hashes: Hashes, turns: NDArray[np.integer] | None = None
) -> Floats:
    """Standard normal, as `uniform`."""
    return ndtri(uniform(seed, purpose, hashes, turns))


@jax.jit
def _noise(key: jax.Array, words: jax.Array, names: jax.Array) -> jax.Array:
    def one(turn_words):
        turn_key = _fold(key, turn_words)
        keys = jax.vmap(lambda name: jax.random.fold_in(turn_key, name))(names)
        return jax.vmap(lambda k: jax.random.uniform(k, dtype=jnp.float32))(keys)

    return jax.vmap(one)(words)


def noise(
    seed: int,
    hashes: Hashes,
    turns: NDArray[np.integer],
    deployments: Iterable[str],
    purpose: str = "noise",
) -> NDArray[np.float32]:
    """A uniform of each turn and deployment on [0, 1), `[N, D]`, keyed by the deployment's name."""
    names = name_hashes(deployments).astype(np.uint32)
    words = _padded(_words(hashes, turns))
    with jax.ensure_compile_time_eval():  # also where a caller's trace first asks for sessions
        return np.asarray(_noise(_purpose_key(seed, purpose), words, names))[: len(hashes)]


_POISSON_CDF = pdtr(np.arange(12), 1.0)


def bootstrap_weights(seed: int, hashes: Hashes, replicates: int) -> NDArray[np.int64]:
    """How often each session enters each replicate: Poisson(1), `[N, replicates]`."""
    key = _purpose_key(seed, "bootstrap")
    bits = np.asarray(_bits(key, _padded(_words(hashes, None)), replicates))
    uniforms = bits[: len(hashes)] * 2.0**-32
    return np.searchsorted(_POISSON_CDF, uniforms, side="right")
