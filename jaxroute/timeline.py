"""When turns arrive: from the trace where it says, drawn where it does not."""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from jaxroute import draws
from jaxroute.config import SyntheticTimes
from jaxroute.load.messages import input_error

HOUR_S, QUARTER_S, DAY_S = 3600.0, 900.0, 86400.0

Floats = NDArray[np.float64]
Span = tuple[float, float]

_FEW = 8  # sessions: so few are summed one by one


class Extent(NamedTuple):
    """When the sessions of a trace are.

    Attributes:
      undated: whether some have no date.
      start_s, end_s: epoch seconds of the others' first and last turn; none: inf and -inf.
    """

    undated: bool
    start_s: float
    end_s: float

    def joined(self, other: "Extent") -> "Extent":
        """That of two parts of a trace together."""
        return Extent(
            self.undated or other.undated,
            min(self.start_s, other.start_s),
            max(self.end_s, other.end_s),
        )


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """Arrivals of the N turns of S sessions.

    Attributes:
      arrival_s: `[N]`, s since the session's first turn.
      start_s: `[S]`, epoch seconds of that turn; NaN where it has to be drawn.
      rules: how each was obtained, in words, for every output.
      synthetic: whether arrivals were drawn.
    """

    arrival_s: Floats
    start_s: Floats
    rules: tuple[str, ...]
    synthetic: bool


def arrivals(
    frame: pd.DataFrame,
    hashes: draws.Hashes,
    lengths: NDArray[np.int64],
    *,
    seed: int,
    synthetic: SyntheticTimes,
    trace_start: datetime | None,
) -> Timeline:
    """Arrivals within each session, and its start where the trace tells it.

    A trace without times gets log-normal gaps, arrival to arrival. A start is `start_time`, or
    `trace_start + arrival_s` at turn 0, or left to `starts`.

    Args:
      frame: as `jaxroute.load.traces.read_trace` returns it, N rows.
      hashes, lengths: `[S]`, of the session ids, and turns of each session.
      seed: of the study.
      synthetic: the distribution of drawn gaps.
      trace_start: when `arrival_s` was 0, if it counts from the trace's start.
    """
    first = np.cumsum(lengths) - lengths
    turn = frame["turn"].to_numpy()
    given = frame["arrival_s"].to_numpy(np.float64)
    timed = not np.isnan(given).any()
    rules = []
    if timed:
        arrival = given - np.repeat(given[first], lengths)
    else:
        each = np.repeat(hashes, lengths)
        gap = synthetic.median_gap_s * np.exp(
            synthetic.sigma * draws.normal(seed, "gap", each, turn)
        )
        arrival = sums_along(np.where(turn == 0, 0.0, gap), lengths)
        rules.append(
            f"synthetic times (log-normal gaps, median {synthetic.median_gap_s:g} s, "
            f"sigma {synthetic.sigma:g})"
        )
    if "start_time" in frame:
        moments = frame["start_time"].iloc[first]
        start = np.array((moments - pd.Timestamp(0, tz="UTC")).dt.total_seconds(), np.float64)
        rules.append("dates of start_time")
    elif timed and trace_start is not None:
        start = np.asarray(trace_start.timestamp() + given[first], np.float64)
        rules.append(f"dates of arrival_s after {trace_start:%Y-%m-%dT%H:%M:%SZ}")
    else:
        start = np.full(len(lengths), np.nan)
        rules.append("synthetic dates")
    return Timeline(arrival_s=arrival, start_s=start, rules=tuple(rules), synthetic=not timed)


def sums_along(values: Floats, lengths: NDArray[np.int64]) -> Floats:
    """Cumulative sums along each session, `[N]`, from its first turn on and one after another.

    A session's sums depend on no other session, to the last bit.

    Args:
      values: `[N]`, sessions one after another.
      lengths: `[S]`, turns of each.

    >>> sums_along(np.array([1.0, 2.0, 3.0, 4.0]), np.array([1, 3]))
    array([1., 2., 5., 9.])
    """
    total = values.copy()
    order = np.argsort(-lengths, kind="stable")
    first, sizes = (np.cumsum(lengths) - lengths)[order], lengths[order]
    for turn in range(1, int(lengths.max(initial=0))):
        longer = int(np.searchsorted(-sizes, -turn))
        if longer < _FEW:
            for begin, size in zip(first[:longer], sizes[:longer], strict=True):
                rest = slice(begin + turn - 1, begin + size)
                total[rest] = np.cumsum(total[rest])
            break
        at = first[:longer] + turn
        total[at] += total[at - 1]
    return total


def last_arrivals(timeline: Timeline, lengths: NDArray[np.int64]) -> Floats:
    """Seconds from each session's first arrival to its last, `[S]`."""
    return timeline.arrival_s[np.cumsum(lengths) - 1]


def extent(timeline: Timeline, lengths: NDArray[np.int64]) -> Extent:
    """When sessions of these lengths are, `[S]`."""
    undated = np.isnan(timeline.start_s)
    end_s = timeline.start_s + last_arrivals(timeline, lengths)
    start, end = timeline.start_s[~undated], end_s[~undated]
    return Extent(
        bool(undated.any()), float(start.min(initial=np.inf)), float(end.max(initial=-np.inf))
    )


def starts(
    timeline: Timeline, hashes: draws.Hashes, lengths: NDArray[np.int64], *, seed: int, span: Span
) -> Floats:
    """Epoch seconds of each session's first turn, `[S]`; the missing are drawn uniformly.

    A drawn session ends inside `span` (epoch seconds, from and to).
    """
    room = (span[1] - span[0]) - last_arrivals(timeline, lengths)
    drawn = span[0] + draws.uniform(seed, "start", hashes) * room
    return np.where(np.isnan(timeline.start_s), drawn, timeline.start_s)


def hour_index(
    moment_s: Floats, span: Span, *, trace: str, session_ids: pd.Series, intensity: str
) -> NDArray[np.int64]:
    """Row of the intensity table of each turn, `[N]`.

    Raises:
      InputError: for the first turn that lies outside the table.
    """
    outside = ~((moment_s >= span[0]) & (moment_s < span[1]))
    if outside.any():
        at = int(np.argmax(outside))
        when = pd.Timestamp(moment_s[at], unit="s")
        begin, end = (pd.Timestamp(s, unit="s") for s in span)
        raise input_error(
            trace,
            f"session {session_ids.iloc[at]}",
            f"a turn at {when:%Y-%m-%dT%H:%M:%SZ}",
            f"a time that {intensity} covers, {begin:%Y-%m-%dT%H:%MZ} to {end:%Y-%m-%dT%H:%MZ}",
            "give an intensity file that spans the trace",
        )
    return ((moment_s - span[0]) // HOUR_S).astype(np.int64)


def time_bin(moment_s: Floats) -> NDArray[np.int64]:
    """Quarter-hour of the UTC day, `[N]` in 0..95."""
    return (moment_s % DAY_S // QUARTER_S).astype(np.int64)
