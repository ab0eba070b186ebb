"""Several processes, on one machine or on many, that do the work of one.

Each replays other pieces of a trace on the devices of its own; what they tell one another is sums.
"""

import os
import pickle
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import jax
import numpy as np
from jax.experimental import multihost_utils

from jaxroute.errors import InputError
from jaxroute.load.messages import input_error, shown

AUTO = "auto"
"""Coordinator that JAX finds by itself."""

_TASKS = ("SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE")
"""Variables that tell how many processes a launcher started together."""

Done = TypeVar("Done")


def join(coordinator: str | None, processes: int | None, process_id: int | None) -> None:
    """Makes this process one of several, before any use of a device.

    Without arguments, if a launcher that JAX knows (Slurm, Open MPI) started several.

    Args:
      coordinator: `host:port` of process 0, or `AUTO`.
      processes: how many.
      process_id: which of them this one is, from 0.

    Raises:
      InputError: if the arguments are not all there, or the others cannot be reached.
    """
    given = {"--processes": processes, "--process-id": process_id}
    if coordinator in (None, AUTO) and any(value is not None for value in given.values()):
        raise input_error("--coordinator", "", "none", "host:port of process 0")
    if coordinator is None and not any(int(os.environ.get(name) or 1) > 1 for name in _TASKS):
        return
    if coordinator not in (None, AUTO):
        port = (coordinator or "").rpartition(":")[2]
        if ":" not in (coordinator or "") or not (port.isdigit() and 0 < int(port) < 2**16):
            raise input_error("--coordinator", "", shown(coordinator), "host:port of process 0")
        for name, value in given.items():
            if value is None:
                raise input_error(name, "", "none", "a number, with --coordinator")
        assert processes is not None
        assert process_id is not None
        if process_id >= processes:
            raise input_error("--process-id", "", str(process_id), f"less than {processes}")
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)  # it waits where Python is not asked
    print("jaxroute: waiting for the other processes, five minutes at most", file=sys.stderr)
    try:
        jax.distributed.initialize(
            None if coordinator == AUTO else coordinator, processes, process_id
        )
    except (ValueError, RuntimeError) as error:
        expected = "the other processes, started with the same --coordinator and --processes"
        raise input_error("--coordinator", "", str(error), expected) from error
    finally:
        signal.signal(signal.SIGINT, before)
    if jax.local_device_count() * jax.process_count() != jax.device_count():
        found = f"{jax.local_device_count()} devices of {jax.device_count()} in all"
        raise input_error("--processes", "", found, "as many devices in every process")


def several() -> bool:
    """Whether this process is one of several."""
    return jax.distributed.is_initialized()


@contextmanager
def _together() -> Iterator[None]:
    """Says in one line that another process is gone."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        expected = "all of them: start all again, what is done is kept"
        raise input_error("sweep", "", "that another process is gone", expected) from error


def leads() -> bool:
    """Whether this process is the one that reads and writes results."""
    return jax.process_index() == 0


def led(work: Callable[[], Done]) -> Done:
    """What `work` returns in the leading process, in every process; so with an `InputError`."""
    if jax.process_count() == 1:
        return work()
    text = b""
    if leads():
        try:
            text = pickle.dumps(work())
        except InputError as error:
            text = pickle.dumps(error)
    with _together():
        size = int(multihost_utils.broadcast_one_to_all(np.int32(len(text))))
        words = np.zeros(size, np.uint8)
        words[: len(text)] = np.frombuffer(text, np.uint8)
        found = pickle.loads(np.asarray(multihost_utils.broadcast_one_to_all(words)).tobytes())
    if isinstance(found, InputError):
        raise found
    return found


def where(holds: bool) -> list[int]:
    """In which processes something holds."""
    with _together():
        everyone = multihost_utils.process_allgather(np.array([holds]))
    return [int(n) for n in np.flatnonzero(np.asarray(everyone))]


def gathered(values: Sequence[Any], most: int, like: Any) -> list[Any]:
    """What every process has, those of process 0 first.

    Args:
      values: trees of float64 arrays, `most` of them or less.
      most: of any process.
      like: a tree of their shapes.
    """
    if jax.process_count() == 1:
        return list(values)
    leaves, structure = jax.tree.flatten(like)
    rows = np.zeros((most, 1 + sum(leaf.size for leaf in leaves)))
    for row, value in zip(rows, values, strict=False):
        row[0] = 1
        row[1:] = np.concatenate([leaf.ravel() for leaf in jax.tree.leaves(value)])
    # As words: without x64 JAX would make float32 of them.
    with _together():
        found = np.asarray(multihost_utils.process_allgather(rows.view(np.uint32)))
    everyone = np.ascontiguousarray(found).view(np.float64).reshape(-1, rows.shape[1])
    cuts = np.cumsum([leaf.size for leaf in leaves])[:-1]
    return [
        jax.tree.unflatten(
            structure,
            [
                part.reshape(leaf.shape)
                for part, leaf in zip(np.split(row[1:], cuts), leaves, strict=True)
            ],
        )
        for row in everyone
        if row[0]
    ]


def own(count: int, devices: int) -> list[list[int]]:
    """The numbers of the pieces of this process, round by round; none where it has nothing to do.

    In a round the n devices of process 0 take the next n pieces, then those of process 1, and so
    on, so that the pieces of a round are in order.

    Args:
      count: of the pieces.
      devices: of each process, n.
    """
    everyone = jax.process_count() * devices
    begin = jax.process_index() * devices
    return [
        list(range(at + begin, min(at + begin + devices, count)))
        for at in range(0, count, everyone)
    ]
