"""Sums over a dataset's sessions of a chunk of settings, of which nothing by session is kept."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping

import jax
import numpy as np
from numpy.typing import NDArray

from jaxroute import bootstrap, draws, stats
from jaxroute import latency as histograms
from jaxroute.batch import bytes_a_setting, replay_settings
from jaxroute.dataset import Dataset
from jaxroute.policies import RouterParams
from jaxroute.sessions import Sessions
from jaxroute.simulate import FIELDS
from jaxroute.world import World

Floats = NDArray[np.float64]
Totals = Mapping[str, NDArray[np.floating]]

BLOCK = 4096
"""Sessions whose totals are summed together, in the order of the trace and in float64, so that no
result depends on how many of them one call replays."""

REPLICATES = 200
"""Of the bootstrap, which here is drawn for every block of sessions."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Source:
    """A dataset as it is replayed chunk after chunk.

    Attributes:
      dataset: what is replayed.
      batches: its sessions, packed to one shape, each with its slice of `[S]`: on the device and
        the same ones at every call, if they have room there.
      drawn: bootstrap weights `[n, REPLICATES]` of the sessions from one number up to another.
    """

    dataset: Dataset
    batches: Callable[[], Iterable[tuple[slice, Sessions]]]
    drawn: Callable[[int, int], NDArray[np.uint8]]

    @property
    def turns(self) -> int:
        """Turns of the dataset."""
        return int(self.dataset.lengths.sum())


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Sums:
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


def batches(dataset: Dataset) -> Iterator[tuple[slice, Sessions]]:
    """The dataset piece by piece."""
    pieces = dataset.pieces
    return zip(pieces, dataset.packed(pieces, range(len(pieces))), strict=True)


def source(dataset: Dataset, world: World, room: float) -> Source:
    """A dataset, on the device if it takes no more than `room` bytes there."""

    def drawn(start: int, stop: int) -> NDArray[np.uint8]:
        hashes = dataset.hashes[start:stop]
        return draws.bootstrap_weights(dataset.seed, hashes, REPLICATES).astype(np.uint8)

    if bytes_of(dataset, world) > room:
        return Source(dataset=dataset, batches=lambda: batches(dataset), drawn=drawn)
    held = [(part, jax.device_put(sessions)) for part, sessions in batches(dataset)]
    return Source(dataset=dataset, batches=lambda: held, drawn=functools.cache(drawn))


def bytes_of(dataset: Dataset, world: World) -> int:
    """What the packed sessions and the bootstrap weights of a dataset take."""
    deployments, models = len(dataset.deployments), int(np.max(world.fleet.model)) + 1
    floats = deployments * (2 if dataset.report_draws else 1) + models + 11
    size = np.dtype(dataset.dtype).itemsize
    return int(dataset.lengths.sum()) * size * floats + len(dataset.lengths) * REPLICATES


def bytes_of_setting(source: Source, world: World, *, latency: bool) -> int:
    """What a setting more in a chunk takes: its replay, its block of totals, its sums."""
    _, first = next(iter(source.batches()))
    replicated = 5 * (1 + REPLICATES) + histograms.BINS * 2 * latency
    block = min(BLOCK, len(source.dataset.lengths)) * (4 * len(FIELDS) + 8 * 7)
    return bytes_a_setting(first, world, latency=latency) + block + 8 * replicated


def summed(
    source: Source,
    params: RouterParams,
    world: World,
    baseline: NDArray[np.int64],
    *,
    latency: bool = False,
    report: Callable[[int], None] = lambda turns: None,
) -> Sums:
    """Replays P settings on a dataset, block by block.

    Args:
      source: the dataset.
      params: `[P, ...]` leaves; those beyond the length of `baseline` are baselines.
      world: as `replay_settings` takes it.
      baseline: `[P - W]`, which of the W baselines each setting is compared with.
      latency: whether to count turns by their latency.
      report: told how many turns are done more.
    """
    count, size = len(baseline), len(params.carbon_weight)
    totals = {name: np.zeros(size) for name in FIELDS}
    carbon_g, times = np.zeros(size), {name: np.zeros((size, 1)) for name in histograms.FIELDS}
    own = np.zeros((count, 3, 1 + REPLICATES))
    base = np.zeros((size - count, 2, 1 + REPLICATES))

    def replayed() -> Iterator[Totals]:
        for part, sessions in source.batches():
            found, counted = jax.device_get(
                replay_settings(params, sessions, world, latency=latency)
            )
            for name in times if latency else ():
                times[name] = times[name] + getattr(counted, name).astype(np.float64)
            kept = part.stop - part.start
            yield {name: getattr(found, name)[:, :kept] for name in FIELDS}
            report(int(source.dataset.lengths[part].sum()))

    start = 0
    for block in in_blocks(replayed()):
        bills_g = stats.bills(block)
        stop = start + bills_g.shape[-1]
        weights = bootstrap.with_original(source.drawn(start, stop))
        for name in FIELDS:
            totals[name] += block[name].sum(-1, dtype=np.float64)
        carbon_g += bills_g.sum(-1)
        base_g = bills_g[count:]
        own += bootstrap.own_sums(bills_g[:count], base_g[baseline], weights)
        base += bootstrap.base_sums(base_g, weights)
        start = stop
    return Sums(
        totals=totals, carbon_g=carbon_g, own=own, base=base, times=times if latency else {}
    )


def in_blocks(parts: Iterable[Totals], size: int = BLOCK) -> Iterator[Totals]:
    """Totals `[P, n]` of runs of sessions, n whatever it is, as totals `[P, size]`, the last less.

    What is yielded is written over by the next.

    >>> runs = [{"x": np.array([[1.0, 2.0, 3.0]])}, {"x": np.array([[4.0, 5.0]])}]
    >>> [block["x"].tolist() for block in in_blocks(runs, 2)]
    [[[1.0, 2.0]], [[3.0, 4.0]], [[5.0]]]
    """
    block: dict[str, NDArray[np.floating]] = {}
    filled = 0
    for part in parts:
        at, count = 0, next(iter(part.values())).shape[-1]
        if not block:
            block = {n: np.empty((len(each), size), each.dtype) for n, each in part.items()}
        while at < count:
            taken = min(size - filled, count - at)
            for name, values in part.items():
                block[name][:, filled : filled + taken] = values[:, at : at + taken]
            at, filled = at + taken, filled + taken
            if filled == size:
                yield block
                filled = 0
    if filled:
        yield {name: np.ascontiguousarray(values[:, :filled]) for name, values in block.items()}
