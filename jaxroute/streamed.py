"""Sums over a trace's sessions of a chunk of settings, of which nothing by session is kept.

A trace is replayed in pieces that depend on it alone, each of them by the same compiled program on
whatever device, and their float64 sums are added in the order of the trace: the result does not
depend on how many devices and processes there are, to the last bit.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from jaxroute import bootstrap, cluster, devices, draws
from jaxroute import latency as histograms
from jaxroute.abreast import width_for
from jaxroute.batch import Part, Round, bytes_a_setting, placed, replay
from jaxroute.dataset import Dataset
from jaxroute.shards import Shards
from jaxroute.simulate import FIELDS, Totals
from jaxroute.world import World

Trace = Dataset | Shards
Value = TypeVar("Value")

REPLICATES = 200
"""Of the bootstrap, which here is drawn for every piece."""

_END = object()


class Weighted(NamedTuple):
    """A round of n pieces of S sessions, and how often each is in each replicate, `[n, S, B]`."""

    pieces: Round
    weights: jax.Array


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """A trace as it is replayed chunk after chunk of settings.

    Attributes:
      trace: what is replayed.
      mesh: the devices of this process.
      rounds: for a number of sessions abreast, the pieces of this process on its devices, round by
        round, None in one without any: the same ones at every call, if they have room there.
    """

    trace: Trace
    mesh: Mesh
    rounds: Callable[[int], Iterable[Weighted | None]]


class Sums(NamedTuple):
    """Sums over sessions, of P settings of which the last W are baselines of the others.

    Attributes:
      totals: by the names of `jaxroute.simulate.Totals`, `[P]` each.
      carbon_g: `[P]`.
      own, base: what the bootstrap needs (`jaxroute.bootstrap.own_sums`, `base_sums`).
      times: histograms by the names of `jaxroute.latency.Latency`, `[P, BINS]`, if asked for.
    """

    totals: Mapping[str, Any]
    carbon_g: Any
    own: Any
    base: Any
    times: Mapping[str, Any]


def source(trace: Trace, world: World, room: float, *, noise: bool = True) -> Source:
    """A trace as a sweep replays it.

    Args:
      trace: what is replayed.
      world: its fleet.
      room: bytes on the devices that it may take, to be kept there.
      noise: whether some setting has a price of noise.
    """
    mesh, pieces = devices.mesh(), trace.pieces

    def drawn(number: int) -> NDArray[np.uint8]:
        hashes = np.asarray(trace.hashes[pieces[number]])
        out = np.zeros((pieces.count, REPLICATES), np.uint8)
        out[: len(hashes)] = draws.bootstrap_weights(trace.seed, hashes, REPLICATES)
        return out

    def rounds(width: int) -> Iterator[Weighted | None]:
        own = cluster.own(len(pieces), mesh.size)
        packed = trace.packed(pieces, itertools.chain.from_iterable(own), noise=noise)
        for numbers in own:
            here = list(itertools.islice(packed, len(numbers)))
            weights = [drawn(number) for number in numbers]
            yield (
                Weighted(placed(here, width, mesh), devices.spread(weights, mesh)) if here else None
            )

    if bytes_of(trace, world) > room:
        return Source(trace=trace, mesh=mesh, rounds=lambda width: ahead(rounds(width)))
    held = functools.cache(lambda width: list(rounds(width)))
    return Source(trace=trace, mesh=mesh, rounds=held)


def ahead(values: Iterator[Value]) -> Iterator[Value]:
    """The same values, each made while the one before is used.

    >>> list(ahead(iter("abc")))
    ['a', 'b', 'c']
    """
    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(next, values, _END)
        while (value := coming.result()) is not _END:
            coming = pool.submit(next, values, _END)
            yield value  # type: ignore[misc]


def bytes_of(trace: Trace, world: World) -> int:
    """What the packed sessions and the bootstrap weights of a trace take."""
    pieces = trace.pieces
    return len(pieces) * _bytes_of_piece(trace, world) + trace.count * REPLICATES


def _bytes_of_piece(trace: Trace, world: World) -> int:
    pieces, models = trace.pieces, int(np.max(world.fleet.model)) + 1
    floats = len(trace.deployments) * (2 if trace.report_draws else 1) + models + 11
    return pieces.rows * pieces.width * np.dtype(trace.dtype).itemsize * floats


def bytes_of_setting(source: Source, world: World, *, latency: bool) -> int:
    """What a setting more in a chunk takes: its replay, its totals, its sums."""
    pieces = source.trace.pieces
    replicated = 5 * (1 + REPLICATES) + histograms.BINS * 2 * latency
    totals = pieces.count * (4 * len(FIELDS) + 8 * 7) + 8 * replicated
    replayed = bytes_a_setting(pieces.rows, pieces.count, world, latency=latency)
    return source.mesh.size * (replayed + totals)


def summed(
    source: Source,
    parts: Sequence[Part],
    baseline: jax.Array,
    report: Callable[[int], None] = lambda turns: None,
) -> Sums:
    """Replays P settings on a trace, piece by piece, and adds up the pieces in their order.

    Where there are several processes, each replays some of the pieces and has the sums of all.

    Args:
      source: the trace.
      parts: of P settings, those beyond the length of `baseline` are baselines.
      baseline: `[P - W]` int32 on every device, which of the W baselines each setting has.
      report: told how many turns are done more.
    """
    pieces, size = source.trace.pieces, sum(len(part.rows) for part in parts)
    total = _nothing(size, len(baseline), latency=parts[0].latency)
    if not source.trace.count:
        return total
    own = cluster.own(len(pieces), source.mesh.size)
    reached = 0
    for numbers, there in zip(own, source.rounds(width_for(size)), strict=True):
        sums = []
        if there is not None:
            found = *replay(parts, there.pieces), there.weights
            each = devices.each(_in_float64, baseline, found, source.mesh, size=size)
            sums = [devices.gather(each, n) for n in range(len(numbers))]
        everyone = cluster.gathered(sums, source.mesh.size, total)
        for one in everyone:
            total = jax.tree.map(np.add, total, one)
        report(int(pieces.turns[reached : reached + len(everyone)].sum()))
        reached += len(everyone)
    return total


def _nothing(size: int, count: int, *, latency: bool) -> Sums:
    return Sums(
        totals={name: np.zeros(size) for name in FIELDS},
        carbon_g=np.zeros(size),
        own=np.zeros((count, 3, 1 + REPLICATES)),
        base=np.zeros((size - count, 2, 1 + REPLICATES)),
        times={name: np.zeros((size, histograms.BINS)) for name in histograms.FIELDS if latency},
    )


def _in_float64(baseline: jax.Array, found: Any, *, size: int) -> Any:
    with jax.enable_x64(True):
        return _of_piece(baseline, found, size=size)


@functools.partial(jax.jit, static_argnames="size")
@devices.alone
def _of_piece(
    baseline: jax.Array,
    found: tuple[Totals, histograms.Latency | None, jax.Array],
    *,
    size: int,
) -> Sums:
    """The sums of a piece, in float64, where it was replayed."""
    totals, counted, weights = jax.tree.map(lambda x: x.astype(np.float64), found)
    bills_g = jnp.broadcast_to(totals.carbon_g, (len(weights), size))
    count = len(baseline)
    base_g = bills_g[:, count:]
    drawn = jnp.concatenate([jnp.ones_like(weights[:, :1]), weights], axis=1)
    return Sums(
        totals={name: jnp.broadcast_to(getattr(totals, name).sum(axis=0), size) for name in FIELDS},
        carbon_g=bills_g.sum(axis=0),
        own=bootstrap.own_sums(bills_g[:, :count], base_g[:, baseline], drawn),
        base=bootstrap.base_sums(base_g, drawn),
        times={} if counted is None else vars(counted),
    )
