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
from typing import NamedTuple, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from jaxroute import bootstrap, cluster, devices, draws, stats
from jaxroute import latency as histograms
from jaxroute.batch import Part, Round, bytes_a_setting, placed, replay
from jaxroute.dataset import Dataset
from jaxroute.shards import Shards
from jaxroute.simulate import FIELDS, Totals
from jaxroute.world import World

Floats = NDArray[np.float64]
Trace = Dataset | Shards
Value = TypeVar("Value")

REPLICATES = 200
"""Of the bootstrap, which here is drawn for every piece."""

_END = object()


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """A trace as it is replayed chunk after chunk of settings.

    Attributes:
      trace: what is replayed.
      mesh: the devices of this process.
      rounds: for a number of settings, the pieces of this process on its devices, round by round,
        None in one without any: the same ones at every call, if they have room there.
      drawn: bootstrap weights `[n, REPLICATES]` of the sessions of a piece.
    """

    trace: Trace
    mesh: Mesh
    rounds: Callable[[int], Iterable[Round | None]]
    drawn: Callable[[int], NDArray[np.uint8]]


class Sums(NamedTuple):
    """Sums over sessions, of P settings of which the last W are baselines of the others.

    Attributes:
      totals: by the names of `jaxroute.simulate.Totals`, `[P]` each.
      carbon_g: `[P]`.
      own, base: what the bootstrap needs (`jaxroute.bootstrap.own_sums`, `base_sums`).
      times: histograms by the names of `jaxroute.latency.Latency`, `[P, BINS]`, if asked for.
    """

    totals: Mapping[str, Floats]
    carbon_g: Floats
    own: Floats
    base: Floats
    times: Mapping[str, Floats]


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
        return draws.bootstrap_weights(trace.seed, hashes, REPLICATES).astype(np.uint8)

    def rounds(settings: int) -> Iterator[Round | None]:
        own = cluster.own(len(pieces), mesh.size)
        packed = trace.packed(pieces, itertools.chain.from_iterable(own), noise=noise)
        for numbers in own:
            here = list(itertools.islice(packed, len(numbers)))
            yield placed(here, settings, mesh) if here else None

    if bytes_of(trace, world) > room:
        return Source(
            trace=trace, mesh=mesh, rounds=lambda count: ahead(rounds(count)), drawn=drawn
        )
    return Source(
        trace=trace,
        mesh=mesh,
        rounds=functools.cache(lambda count: list(rounds(count))),
        drawn=functools.cache(drawn),
    )


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
    baseline: NDArray[np.int64],
    report: Callable[[int], None] = lambda turns: None,
) -> Sums:
    """Replays P settings on a trace, piece by piece, and adds up the pieces in their order.

    Where there are several processes, each replays some of the pieces and has the sums of all.

    Args:
      source: the trace.
      parts: of P settings, those beyond the length of `baseline` are baselines.
      baseline: `[P - W]`, which of the W baselines each setting is compared with.
      report: told how many turns are done more.
    """
    pieces, size = source.trace.pieces, sum(len(part.rows) for part in parts)
    total = _nothing(size, len(baseline), latency=parts[0].latency)
    own = cluster.own(len(pieces), source.mesh.size)
    reached = 0
    for numbers, there in zip(own, source.rounds(size), strict=True):
        found = [] if there is None else replay(parts, there)
        sums = [
            _of_piece(*each, pieces[number], source.drawn(number), baseline)
            for number, each in zip(numbers, found, strict=True)
        ]
        everyone = cluster.gathered(sums, source.mesh.size, total)
        for each in everyone:
            total = jax.tree.map(np.add, total, each)
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


def _of_piece(
    found: Totals,
    counted: histograms.Latency | None,
    part: slice,
    drawn: NDArray[np.uint8],
    baseline: NDArray[np.int64],
) -> Sums:
    """The sums of one piece, in float64."""
    kept = part.stop - part.start
    totals = {name: np.ascontiguousarray(getattr(found, name)[:, :kept]) for name in FIELDS}
    bills_g, weights = stats.bills(totals), bootstrap.with_original(drawn)
    base_g, count = bills_g[len(baseline) :], len(baseline)
    return Sums(
        totals={name: values.sum(-1, dtype=np.float64) for name, values in totals.items()},
        carbon_g=bills_g.sum(-1),
        own=bootstrap.own_sums(bills_g[:count], base_g[baseline], weights),
        base=bootstrap.base_sums(base_g, weights),
        times={}
        if counted is None
        else {name: getattr(counted, name).astype(np.float64) for name in histograms.FIELDS},
    )
