"""Conversations as device arrays: whole sessions laid end to end in rows of equal length."""

import dataclasses
import heapq
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from jaxroute.world import Array

ROWS = 64
"""Sessions replayed side by side: enough to amortise the steps, few enough for the caches."""

DTYPES = dict.fromkeys(("valid", "first"), np.bool_) | dict.fromkeys(
    ("session", "hour", "time_bin", "home"), np.int32
)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Turn:
    """What a replay reads of a turn; `[R, T]` each as packed, `[]` inside the scan.

    Attributes:
      valid: bool, false on padding.
      first: bool, the first turn of its session.
      session: int32, index of the session, the number of sessions on padding.
      turn: index of the turn in its session.
      gap_s: s since the previous turn's arrival, 0 at the first.
      hour: int32, row of the intensity table.
      time_bin: int32, quarter-hour of the UTC day.
      home: int32, client region.
      prefix_tokens: k, leading tokens of the prompt that the previous turn's context holds.
      new_tokens, output_tokens, predicted_output_tokens: tokens.
      quality: `[..., M]`, predicted quality of each model's answer.
      noise: `[..., D]`, uniform on [0, 1).
      report_draw: `[..., D]`, uniform on [0, 1): a cache report is missing where it is less than
        `Belief.missing`. None where the world has no belief.
    """

    valid: Array
    first: Array
    session: Array
    turn: Array
    gap_s: Array
    hour: Array
    time_bin: Array
    home: Array
    prefix_tokens: Array
    new_tokens: Array
    output_tokens: Array
    predicted_output_tokens: Array
    quality: Array
    noise: Array
    report_draw: Array | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Sessions:
    """A batch of sessions, packed.

    Attributes:
      turns: `[R, T]` leaves; a row holds whole sessions one after another, then padding.
      count: number of sessions S, static: results are `[S]`.
    """

    turns: Turn
    count: int = dataclasses.field(metadata={"static": True})


def row_count(lengths: np.ndarray) -> int:
    """Rows for a batch: `ROWS`, or as many as its longest session fills."""
    return max(1, min(ROWS, -(-int(lengths.sum()) // int(lengths.max(initial=1)))))


def lay_out(lengths: np.ndarray, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each session goes: `(row [S], start [S])`, longest first into the emptiest row.

    The longest row exceeds the mean by less than the longest session (Graham, 1969).

    >>> lay_out(np.array([2, 3, 1]), rows=2)
    (array([1, 0, 1]), array([0, 0, 2]))
    """
    row, start = np.zeros((2, len(lengths)), np.int64)
    load = [(0, r) for r in range(rows)]
    for session in np.argsort(-lengths, kind="stable"):
        filled, r = load[0]
        row[session], start[session] = r, filled
        heapq.heapreplace(load, (filled + int(lengths[session]), r))
    return row, start


def pack(
    columns: Mapping[str, ArrayLike],
    lengths: np.ndarray,
    *,
    rows: int | None = None,
    width: int = 0,
    count: int | None = None,
    dtype: DTypeLike = np.float32,
) -> Sessions:
    """Lays sessions end to end in rows.

    Results depend on neither the layout nor the padding; `width` and `count` let several batches
    share one shape and so one compilation.

    Args:
      columns: every field of `Turn` from `gap_s` on, `[N, ...]`, one entry a turn, sessions one
        after another; `report_draw` may be left out.
      lengths: `[S]`, turns of each session, summing to N.
      rows: number of rows; by default as `row_count` says.
      width: least length of a row, turns.
      count: number of sessions to report, S or more; those beyond S have no turns.
      dtype: of the floating leaves.

    Returns:
      Sessions with NumPy leaves `[R, T, ...]`.
    """
    total = int(lengths.sum())
    count = len(lengths) if count is None else count
    rows = row_count(lengths) if rows is None else rows
    row, start = lay_out(lengths, rows)
    width = max(width, int((start + lengths).max(initial=1)))
    turn = np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    at = np.repeat(row * width + start, lengths) + turn

    def scatter(name: str, values: ArrayLike, fill: int = 0) -> np.ndarray:
        flat = np.asarray(values).astype(DTYPES.get(name, dtype))
        out = np.full((rows * width, *flat.shape[1:]), fill, flat.dtype)
        out[at] = flat
        return out.reshape(rows, width, *flat.shape[1:])

    placed: dict[str, Any] = {
        "valid": scatter("valid", np.ones(total)),
        "first": scatter("first", turn == 0),
        "session": scatter("session", np.repeat(np.arange(len(lengths)), lengths), fill=count),
        "turn": scatter("turn", turn),
    }
    placed |= {name: scatter(name, values) for name, values in columns.items()}
    return Sessions(turns=Turn(**placed), count=count)
