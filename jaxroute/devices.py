"""Pieces of a trace side by side: an axis of pieces, sharded over the devices of this process."""

import contextlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "pieces"

_NUMBER = "jax_num_cpu_devices"
_FORCED = "xla_force_host_platform_device_count"


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


def each(program: Callable[..., Any], shared: Any, pieces: Any, over: Mesh, **static: Any) -> Any:
    """`program(shared, piece)` of every piece, `[n, ...]` leaves, each on its device.

    A device runs the program that one alone would run, so that no result depends on how many there
    are: partitioned over a mesh, the same function is other code for one device than for several,
    and its float32 sums differ in their last bits (seen with JAX 0.12). In threads, so that it is
    compiled for all devices at once.

    Args:
      program: of `alone`, jitted.
      shared: whole on every device (`everywhere`).
      pieces: one on each device (`spread`).
      over: the devices.
      static: further arguments.
    """

    def on(number: int) -> Any:
        def there(leaf: jax.Array) -> jax.Array:
            return leaf.addressable_shards[number].data

        return program(jax.tree.map(there, shared), jax.tree.map(there, pieces), **static)

    if over.size == 1:
        found = [on(0)]
    else:
        with ThreadPoolExecutor(over.size) as pool:
            found = list(pool.map(on, range(over.size)))
    sharding = NamedSharding(over, PartitionSpec(AXIS))

    def whole(*leaves: jax.Array) -> jax.Array:
        shape = over.size, *leaves[0].shape[1:]
        return jax.make_array_from_single_device_arrays(shape, sharding, list(leaves))

    return jax.tree.map(whole, *found)


def alone(program: Callable[..., Any]) -> Callable[..., Any]:
    """`program(shared, piece)` of a piece as it lies on its device, with `[1, ...]` leaves."""

    def one(shared: Any, piece: Any, **static: Any) -> Any:
        found = program(shared, jax.tree.map(lambda leaf: leaf[0], piece), **static)
        return jax.tree.map(lambda leaf: leaf[None], found)

    return one
