"""Traces larger than memory: read and prepared a few pieces at a time, as if they were in it."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import DTypeLike, NDArray

from jaxroute import draws, prepare
from jaxroute.config import DatasetConfig, StudyConfig
from jaxroute.dataset import pack
from jaxroute.load import parquet
from jaxroute.load.files import parts, sha256
from jaxroute.load.shards import Index, frames, index
from jaxroute.load.traces import TIDY
from jaxroute.load.unreadable import UNREADABLE
from jaxroute.pieces import MOST_TURNS, Pieces, cut, even
from jaxroute.prepare import Counts, Undated
from jaxroute.sessions import Sessions
from jaxroute.timeline import Extent, Span

BYTES_A_TURN, BYTES_A_QUALITY = 400, 16
"""What a trace takes at most while it is loaded into memory: 250 to 480 a turn were measured, of 12
and of 1 million turns with the predicted quality of five models."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Scanned:
    """A trace on disk that was checked from end to end, before its sessions have dates.

    Attributes:
      config: the trace.
      index: where its sessions lie.
      pieces: what it was read by.
      first: some sessions: what holds of them holds of all.
      extent, counts: of the whole trace.
    """

    config: DatasetConfig
    index: Index
    pieces: Pieces
    first: Undated
    extent: Extent
    counts: Counts


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Shards:
    """A trace on disk, which a sweep replays as it does a `Dataset`.

    Attributes:
      label, path, sha256, synthetic_times, truncated, notes, seed, deployments, report_draws,
        dtype: as of `jaxroute.dataset.Dataset`.
      index: where its S sessions lie.
      pieces: what a sweep replays at a time.
      config: the trace.
      study, span, dates, context_limit: as for `jaxroute.prepare.lay_on_calendar`.
    """

    label: str
    path: str
    sha256: str
    synthetic_times: bool
    truncated: int
    notes: tuple[str, ...]
    seed: int
    deployments: tuple[str, ...]
    report_draws: bool
    dtype: DTypeLike
    index: Index
    pieces: Pieces
    config: DatasetConfig
    study: StudyConfig
    span: Span
    dates: Span
    context_limit: NDArray[np.float64]

    @property
    def hashes(self) -> draws.Hashes:
        """Of each session's id, `[S]`, on disk."""
        return self.index.hashes

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Turns of each session, `[S]`, on disk."""
        return self.index.lengths

    @property
    def count(self) -> int:
        """Number of sessions."""
        return len(self.index.lengths)

    @functools.cached_property
    def turns(self) -> int:
        """Number of turns."""
        return int(self.pieces.turns.sum())

    def blocks(self, turns: int = MOST_TURNS) -> Iterator[tuple[slice, Sessions]]:
        """As `jaxroute.dataset.Dataset.blocks`."""
        pieces = cut(self.lengths, turns=turns)
        yield from zip(pieces, self.packed(pieces, range(len(pieces))), strict=True)

    def packed(
        self, pieces: Pieces, numbers: Iterable[int], *, noise: bool = True
    ) -> Iterator[Sessions]:
        """As `jaxroute.dataset.Dataset.packed`; rows of other pieces are read, and no more.

        Raises:
          InputError: if the files are not what they were.
        """
        for raw in _read(self.index, self.config, self.seed, pieces, list(numbers)):
            columns, _ = prepare.contents(raw, self.study, self.context_limit)
            columns |= prepare.times(raw, self.study, self.span, self.dates)
            yield pack(self, columns, raw.lengths, raw.hashes, noise=noise, **pieces.shape)


def larger(config: DatasetConfig, models: int, memory_bytes: int | None) -> bool:
    """Whether a trace is a tidy table in Parquet and would take more memory than that.

    Raises:
      InputError: if there is no such file.
    """
    if memory_bytes is None or config.format not in (None, TIDY):
        return False
    try:
        files = parts(config.path)
        rows = parquet.rows(files) if parquet.is_parquet(files[0]) else 0
    except UNREADABLE:
        return False  # who reads it says why
    return rows * (BYTES_A_TURN + BYTES_A_QUALITY * models) > memory_bytes


def scan(
    config: DatasetConfig,
    study: StudyConfig,
    *,
    span: Span | None,
    dates: Span,
    context_limit: NDArray[np.float64],
) -> Scanned:
    """Reads a trace from end to end, a piece at a time, and checks it as if it were read whole.

    Args:
      config: the trace.
      study, dates, context_limit: as for `jaxroute.prepare.lay_on_calendar`.
      span: likewise, or None if it will be such that no turn lies outside.

    Raises:
      InputError: as `jaxroute.load.traces.read_trace`; at a session that comes back after another.
    """
    trace = index(config.path)
    pieces = even(trace.lengths)
    first, extent, counts = None, None, Counts()
    for raw in _read(trace, config, study.seed, pieces, range(len(pieces))):
        if span is None:
            prepare.check_fits(raw, dates)
        else:
            prepare.times(raw, study, span, dates)
        counts = counts.plus(prepare.contents(raw, study, context_limit)[1])
        extent = raw.extent if extent is None else extent.joined(raw.extent)
        first = first or raw
    assert first is not None and extent is not None
    return Scanned(
        config=config, index=trace, pieces=pieces, first=first, extent=extent, counts=counts
    )


def lay_on_calendar(
    raw: Scanned,
    study: StudyConfig,
    span: Span,
    *,
    dates: Span,
    context_limit: NDArray[np.float64],
    deployments: tuple[str, ...],
    dtype: DTypeLike,
) -> Shards:
    """As `jaxroute.prepare.lay_on_calendar`, of a trace on disk."""
    return Shards(
        label=raw.config.label,
        path=raw.config.path,
        sha256=sha256(raw.config.path),
        synthetic_times=raw.first.timeline.synthetic,
        truncated=raw.counts.truncated,
        notes=prepare.notes(raw.first, study, raw.counts),
        seed=study.seed,
        deployments=deployments,
        report_draws=study.router_errs,
        dtype=dtype,
        index=raw.index,
        pieces=raw.pieces,
        config=raw.config,
        study=study,
        span=span,
        dates=dates,
        context_limit=context_limit,
    )


def _read(
    trace: Index, config: DatasetConfig, seed: int, pieces: Pieces, numbers: Sequence[int]
) -> Iterator[Undated]:
    """Some pieces of a trace, in ascending order."""
    ends = np.cumsum(pieces.turns)
    bounds = [(int(ends[n] - pieces.turns[n]), int(ends[n])) for n in numbers]
    for number, frame in zip(numbers, frames(trace, bounds), strict=True):
        hashes = np.array(trace.hashes[pieces[number]])
        yield prepare.undated(config, frame, hashes, seed)
