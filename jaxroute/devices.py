"""Pieces of a trace side by side: an axis of pieces, sharded over the devices of this process."""

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "pieces"

_NUMBER = "jax_num_cpu_devices"
_FORCED = "xla_force_host_platform_device_count"

Shared = TypeVar("Shared")
Piece = TypeVar("Piece")
Found = TypeVar("Found")


def use_every_core() -> None:
    """Makes a device of every core that this process may use, where JAX has none but the CPU.

    A number of CPU devices that the user chose stays, and after the first use of a device, all do.
    """
    chosen = getattr(jax.config, _NUMBER) > 0 or _FORCED in os.environ.get("XLA_FLAGS", "")
    if not chosen and hasattr(os, "sched_getaffinity"):
        with contextlib.suppress(RuntimeError):  # too late
            jax.config.update(_NUMBER, len(os.sched_getaffinity(0)))


def mesh(count: int | None = None) -> Mesh:
    """The devices of this process, or the first `count`, in a row."""
    return Mesh(np.array(jax.local_devices()[:count]), (AXIS,))


def spread(pieces: Sequence[Any], over: Mesh) -> Any:
    """Pieces of one shape as `[n, ...]` leaves, one on each of n devices.

    Where there are fewer, the last is there again on the others.

    Args:
      pieces: trees of arrays, n at most.
      over: n devices.
    """
    padded = [*pieces, *[pieces[-1]] * (over.size - len(pieces))]
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *padded)
    return jax.device_put(stacked, NamedSharding(over, PartitionSpec(AXIS)))


def everywhere(tree: Any, over: Mesh) -> Any:
    """A tree of arrays, whole on every device."""
    return jax.device_put(tree, NamedSharding(over, PartitionSpec()))


def gather(tree: Any, number: int) -> Any:
    """One of the pieces that `spread` laid out, or of what `each` returned, on the host."""
    return jax.tree.map(lambda leaf: np.asarray(leaf.addressable_shards[number].data)[0], tree)


def each(
    program: Callable[[Shared, Piece], Found], shared: Shared, pieces: Piece, over: Mesh
) -> Found:
    """`program(shared, piece)` of every piece, `[n, ...]` leaves, each on its device.

    The devices exchange nothing.
    """

    def one(shared: Shared, piece: Piece) -> Found:
        found = program(shared, jax.tree.map(lambda leaf: leaf[0], piece))
        return jax.tree.map(lambda leaf: leaf[None], found)

    whole, apart = PartitionSpec(), PartitionSpec(AXIS)
    return jax.shard_map(one, mesh=over, in_specs=(whole, apart), out_specs=apart, check_vma=False)(
        shared, pieces
    )
