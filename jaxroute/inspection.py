"""What a trace holds, before anything is computed of it."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from jaxroute.load.traces import Trace, read_trace

__all__ = ["LONG", "PERCENTILES", "TraceInspection", "inspect_trace"]

LONG = (10, 30)
"""Turns beyond which sessions are counted."""

PERCENTILES = (5, 25, 50, 75, 95, 99)


class TraceInspection(NamedTuple):
    """A trace in numbers.

    Attributes:
      path: of the trace, as given.
      format: that it was read in.
      sessions, turns: how many.
      times: `dates`, `seconds` (without dates) or `none`.
      first, last: when the first and the last turn arrive, if they have dates (UTC).
      span_s: seconds from the first turn to the last; NaN without times.
      beyond: percent of sessions that have more turns than each of `LONG`, and percent of turns
        that are in those; index `more_than_turns`.
      figures: a row for turns a session, input, output and context tokens of a turn (the context is
        its whole prompt), and seconds between turns (none without times); columns `mean`,
        `p5`, … as `PERCENTILES`, `max`.
      notes, repairs: as of `jaxroute.load.traces.Trace`.
    """

    path: str
    format: str
    sessions: int
    turns: int
    times: str
    first: pd.Timestamp | None
    last: pd.Timestamp | None
    span_s: float
    beyond: pd.DataFrame
    figures: pd.DataFrame
    notes: tuple[str, ...]
    repairs: tuple[str, ...]


def inspect_trace(
    path: str | Path,
    *,
    format: str | None = None,
    tokenizer: str | None = None,
    strict: bool = False,
) -> TraceInspection:
    """Reads a trace and tells what it holds.

    Args:
      path, format, tokenizer, strict: as for `jaxroute.load.traces.read_trace`.

    Raises:
      InputError: as `read_trace`.

    >>> told = inspect_trace("builtin:sharegpt")
    >>> told.sessions, told.turns, told.times
    (7349, 45715, 'none')
    """
    return _inspection(
        str(path), read_trace(path, format=format, tokenizer=tokenizer, strict=strict)
    )


def _inspection(path: str, trace: Trace) -> TraceInspection:
    frame = trace.frame
    first = frame["turn"].to_numpy() == 0
    starts = np.flatnonzero(first)
    lengths = np.diff(np.append(starts, len(frame)))
    arrival = frame["arrival_s"].to_numpy(np.float64)
    timed = len(frame) > 0 and not np.isnan(arrival).any()
    moments = None
    if timed and "start_time" in frame:
        since = pd.to_timedelta(arrival - np.repeat(arrival[starts], lengths), unit="s")
        moments = frame["start_time"] + since
    figures = {
        "turns per session": lengths,
        "input tokens": frame["input_tokens"].to_numpy(),
        "output tokens": frame["output_tokens"].to_numpy(),
        "context tokens": _context(frame, first, lengths),
        "gap s": np.diff(arrival)[~first[1:]] if timed else np.zeros(0),
    }
    beyond = {
        most: (
            _percent(int((lengths > most).sum()), len(lengths)),
            _percent(int(lengths[lengths > most].sum()), len(frame)),
        )
        for most in LONG
    }
    span_s = float(np.ptp(arrival)) if timed else np.nan
    if moments is not None:
        span_s = (moments.max() - moments.min()).total_seconds()
    return TraceInspection(
        path=path,
        format=trace.format,
        sessions=len(starts),
        turns=len(frame),
        times="none" if not timed else "seconds" if moments is None else "dates",
        first=None if moments is None else moments.min(),
        last=None if moments is None else moments.max(),
        span_s=span_s,
        beyond=pd.DataFrame.from_dict(
            beyond, orient="index", columns=["sessions_pct", "turns_pct"]
        ).rename_axis("more_than_turns"),
        figures=pd.DataFrame({name: _figures(values) for name, values in figures.items()}).T,
        notes=trace.notes,
        repairs=trace.repairs,
    )


def _context(
    frame: pd.DataFrame, first: NDArray[np.bool_], lengths: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Tokens of each turn's whole prompt."""
    new = frame["input_tokens"].to_numpy(np.int64)
    if "prefix_tokens" in frame:
        return frame["prefix_tokens"].to_numpy(np.int64) + new
    both = new + frame["output_tokens"].to_numpy(np.int64)
    before = np.cumsum(both) - both
    return before - np.repeat(before[first], lengths) + new


def _figures(values: NDArray) -> dict[str, float]:
    names = ("mean", *(f"p{p}" for p in PERCENTILES), "max")
    if not len(values):
        return dict.fromkeys(names, np.nan)
    found = (values.mean(), *np.percentile(values, PERCENTILES), values.max())
    return {name: float(value) for name, value in zip(names, found, strict=True)}


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
