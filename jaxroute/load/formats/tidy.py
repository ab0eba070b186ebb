"""The tidy format: one row a turn, checked as a whole before any of it is used."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from jaxroute.errors import InputError
from jaxroute.load.messages import input_error, nearest
from jaxroute.load.table import Table, read_table, require

__all__ = ["OPTIONAL", "QUALITY", "REQUIRED", "columns", "no_time", "parsed", "read"]

REQUIRED = ("session_id", "turn", "arrival_s", "input_tokens", "output_tokens")
OPTIONAL = ("prefix_tokens", "start_time", "home_region", "predicted_output_tokens")
QUALITY = "quality_"
"""Prefix of the columns of predicted quality, one a model."""

_MAX = 2**31 - 1  # of a token count: they are int32 in the replay
_ALIKE = 0.8  # of an unknown column's name to an optional one's: taken for a slip of the pen

Index = NDArray[np.int64]


def read(path: str | Path) -> pd.DataFrame:
    """Reads a trace of conversations from CSV, gzipped CSV or Parquet, and checks it whole.

    Of Parquet also a directory of files, which are read one after another.

    Required columns: `session_id`; `turn`, from 0 without gaps, in any order; `arrival_s` (s),
    complete or empty throughout; `input_tokens`, those new at this turn; `output_tokens`.
    Optional, each complete or empty throughout (then as if absent): `prefix_tokens`, at most the
    context that the previous turn left; `start_time` (ISO-8601, UTC unless it has an offset, or
    epoch seconds) and `home_region`, both read at the session's turn 0;
    `predicted_output_tokens`; `quality_<model>` in [0, 1], never empty. Other columns are ignored,
    unless their name is so near an optional one's that it must be meant.

    Args:
      path: a file, a directory of Parquet files, or `builtin:sharegpt`.

    Returns:
      Sessions in order of first appearance, their turns ascending: `session_id` (text), `turn`
      (int64), `arrival_s` (float64, s as in the file, or all NaN), `input_tokens`, `output_tokens`
      (int64), and of the optional columns those present: `prefix_tokens` (int64), `start_time`
      (UTC, microseconds) and `home_region` (text), the same for all turns of a session,
      `predicted_output_tokens` and `quality_*` (float64). A file with a header only has no rows.

    Raises:
      InputError: naming file, row (the header of a CSV file is row 1) and column.
    """
    table = read_table(path, lambda header: columns(str(path), header))
    blank = [name for name in OPTIONAL if name in table and table.is_blank(name)]
    return parsed(dataclasses.replace(table, data=table.data.drop_columns(blank)))


def parsed(table: Table) -> pd.DataFrame:
    """As `read`, of a table of whole sessions that has only columns with values."""
    session, names = table.codes("session_id")
    turn = table.numbers("turn", 0, _MAX, whole=True).astype(np.int64)
    order = np.lexsort((turn, session))
    session, turn = session[order], turn[order]
    is_first = np.ones(len(order), bool)
    is_first[1:] = session[1:] != session[:-1]
    _check_turns(table, order, session, turn, is_first)

    def count(column: str) -> Index:
        return table.numbers(column, 0, _MAX, whole=True)[order].astype(np.int64)

    frame: dict[str, object] = {
        "session_id": names.take(pa.array(session)).to_pandas(),
        "turn": turn,
        "arrival_s": _arrival(table, order, is_first),
        "input_tokens": count("input_tokens"),
        "output_tokens": count("output_tokens"),
    }
    if "prefix_tokens" in table:
        prefix = frame["prefix_tokens"] = count("prefix_tokens")
        left = prefix + frame["input_tokens"] + frame["output_tokens"]  # type: ignore[operator]
        _check_prefix(table, order, prefix, left, is_first)
    starts = order[is_first]
    if "start_time" in table:
        frame["start_time"] = table.times("start_time", starts)[session]
    if "home_region" in table:
        frame["home_region"] = _home_regions(table, starts).take(pa.array(session)).to_pandas()
    if "predicted_output_tokens" in table:
        column = "predicted_output_tokens"
        frame[column] = table.numbers(column, 0, _MAX)[order]
    for name in table.data.column_names:
        if name.startswith(QUALITY):
            frame[name] = table.numbers(name, 0, 1)[order]
    return pd.DataFrame(frame)


def columns(path: str, header: Sequence[str]) -> list[str]:
    """The columns of a trace to read; an error if one is missing, doubled or misspelt."""
    quality = [name for name in header if name.startswith(QUALITY) and name != QUALITY]
    known = (*REQUIRED, *OPTIONAL, *quality)
    require(path, header, REQUIRED, known)
    for name in header:
        if name in known:
            continue
        meant = nearest(name.lower(), OPTIONAL, _ALIKE)
        head, _, model = name.partition("_")
        if nearest(head.lower(), [QUALITY[:-1]], _ALIKE):
            meant = f"{QUALITY}{model or '<model>'}"
        if meant:
            mend = "rename it, or to something quite different if it is not that"
            raise input_error(path, "row 1", f"a column {name!r}", repr(meant), mend)
    return [name for name in header if name in known]


def _check_turns(
    table: Table, order: Index, session: Index, turn: Index, is_first: NDArray[np.bool_]
) -> None:
    due = np.arange(len(turn)) - np.flatnonzero(is_first)[session]
    wrong = turn != due
    if not wrong.any():
        return
    at = int(np.argmax(wrong))
    who = table.text("session_id")[int(order[at])].as_py()
    doubled = turn[at] == due[at] - 1
    found = f"turn {turn[at]} of session {who!r}" + (" once more" if doubled else "")
    mend = "number the turns of a session 0, 1, 2, ... without gaps"
    raise table.fault(int(order[at]), "turn", f"turn {due[at]}", mend, found)


def _arrival(table: Table, order: Index, is_first: NDArray[np.bool_]) -> NDArray[np.float64]:
    arrival = table.numbers("arrival_s", missing_ok=True)
    missing = np.isnan(arrival)
    if missing.any() and not missing.all():
        raise no_time(table, int(np.argmax(missing)))
    arrival = arrival[order]
    back = np.zeros(len(order), bool)
    back[1:] = (arrival[1:] < arrival[:-1]) & ~is_first[1:]
    if back.any():
        at = int(np.argmax(back))
        expected = f"at least {arrival[at - 1]:.12g}, the previous turn's"
        raise table.fault(int(order[at]), "arrival_s", expected, "renumber the turns by time")
    return arrival


def no_time(table: Table, index: int) -> InputError:
    """An error about a row without `arrival_s`, where others have it."""
    mend = "fill every row, or none if the times are unknown"
    return table.fault(index, "arrival_s", "a number, as in other rows", mend)


def _check_prefix(
    table: Table, order: Index, prefix: Index, left: Index, is_first: NDArray[np.bool_]
) -> None:
    limit = np.zeros(len(order), np.int64)
    limit[1:] = np.where(is_first[1:], 0, left[:-1])
    over = prefix > limit
    if over.any():
        at = int(np.argmax(over))
        source = "a first turn has no history" if is_first[at] else "the context left before it"
        mend = "count only leading tokens that the previous turn left"
        expected = f"at most {limit[at]}, {source}"
        raise table.fault(int(order[at]), "prefix_tokens", expected, mend)


def _home_regions(table: Table, starts: Index) -> pa.Array:
    homes = table.text("home_region").take(pa.array(starts))
    if homes.null_count:
        at = int(np.argmax(homes.is_null().to_numpy(zero_copy_only=False)))
        mend = "fill it at turn 0 of every session, or in no row"
        raise table.fault(int(starts[at]), "home_region", "a region", mend)
    return homes
