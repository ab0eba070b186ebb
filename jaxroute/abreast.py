"""Sessions side by side: those of about one length, a few at a time, one such chunk after another.

So few that what they carry stays in a processor's nearest cache, and of one length so that none
waits for the others.
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from jaxroute.sessions import Sessions
from jaxroute.world import Array

WIDTH = 4
"""Sessions abreast on a CPU: with 256 settings what 4 carry stays in its nearest caches; 1 pay a
step's fixed cost four times as often, and 8 are no faster."""

LANES = 2**18
"""Sessions by settings abreast on an accelerator, to fill it; not yet measured on one."""

STEPS = 32
"""Steps in a block, of which everything that no setting changes is computed at once."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Where the turns of each step are; B blocks of T steps of C sessions abreast.

    Attributes:
      blocks: `[]` int32, how many of the B are used.
      turn: `[B, T, C]` int32, of each turn, in the flattened rows of the packed sessions.
      valid: `[B, T, C]` bool.
      first, last: `[B, T]` bool, the first and the last step of a chunk.
      chunk: `[B, T]` int32.
      place: `[S]` int32, of each session among the `chunks C`.
      chunks: how many there is room for, static.
    """

    blocks: Array
    turn: Array
    valid: Array
    first: Array
    last: Array
    chunk: Array
    place: Array
    chunks: int = dataclasses.field(metadata={"static": True})


class Extents(NamedTuple):
    """Where packed sessions lie in the flattened rows.

    Attributes:
      begin, lengths: `[S]`, the first turn of each session, and its turns.
      rows, row_turns: the shape of the rows.
    """

    begin: NDArray[np.int64]
    lengths: NDArray[np.int64]
    rows: int
    row_turns: int


def lay_out(
    extents: Extents,
    chosen: NDArray[np.bool_] | None = None,
    *,
    width: int = WIDTH,
    steps: int = STEPS,
) -> Layout:
    """Lays packed sessions, or the chosen `[S]` of them, abreast, the longest first.

    Steps in excess of `turns / width` are at most the longest session's turns. The shape depends
    only on that of the packed sessions, whichever are chosen.
    """
    begin, room = extents.begin, extents.rows * extents.row_turns
    lengths = extents.lengths if chosen is None else np.where(chosen, extents.lengths, 0)
    count = len(lengths)
    order = np.argsort(-lengths, kind="stable")
    chunks = -(-count // width)
    ranked = np.full((chunks, width), -1)
    ranked.ravel()[:count] = order
    each = np.where(ranked >= 0, lengths[ranked], 0)
    longest = each.max(axis=1)
    chunk = np.repeat(np.arange(chunks), longest)
    t = np.arange(len(chunk)) - np.repeat(np.cumsum(longest) - longest, longest)
    valid = t[:, None] < each[chunk]
    turn = np.where(valid, begin[ranked[chunk]] + t[:, None], 0)
    blocks = -(-(-(-room // width) + extents.row_turns) // steps)
    place = np.empty(count, np.int32)
    place[order] = np.arange(count)

    def blocked(values: NDArray, fill: Any = 0) -> NDArray:
        out = np.full((blocks * steps, *values.shape[1:]), fill, values.dtype)
        out[: len(values)] = values
        return out.reshape(blocks, steps, *values.shape[1:])

    arrays: dict[str, Any] = {
        "blocks": np.int32(-(-len(chunk) // steps)),
        "turn": blocked(turn.astype(np.int32)),
        "valid": blocked(valid),
        "first": blocked(t == 0),
        "last": blocked(t == longest[chunk] - 1),
        "chunk": blocked(chunk.astype(np.int32), chunks - 1),
        "place": place,
    }
    return Layout(**arrays, chunks=chunks)


def width_for(settings: int) -> int:
    """Sessions abreast for so many settings on the default device."""
    return WIDTH if jax.default_backend() == "cpu" else max(WIDTH, LANES // settings)


def extents(sessions: Sessions) -> Extents:
    """Where the sessions of a batch on the host lie."""
    session = np.asarray(sessions.turns.session)
    rows, row_turns = session.shape
    there = np.flatnonzero(session.ravel() < sessions.count)
    starts = there[np.asarray(sessions.turns.first).ravel()[there]]
    begin = np.zeros(sessions.count, np.int64)
    begin[session.ravel()[starts]] = starts
    lengths = np.bincount(session.ravel()[there], minlength=sessions.count)
    return Extents(begin, lengths, rows, row_turns)


def only(sessions: Sessions, chosen: NDArray[np.int64]) -> Sessions:
    """Some of packed sessions, a row each, in the nearest power of two above their number.

    >>> from jaxroute.sessions import pack
    >>> columns = {name: np.zeros(3) for name in ("gap_s", "hour", "time_bin", "home")}
    >>> tokens = ("prefix_tokens", "new_tokens", "output_tokens", "predicted_output_tokens")
    >>> columns |= {name: np.arange(3) for name in tokens}
    >>> columns |= {"quality": np.zeros((3, 1)), "noise": np.zeros((3, 1))}
    >>> only(pack(columns, np.array([1, 2])), np.array([1])).turns.new_tokens
    array([[1., 2.]], dtype=float32)
    """
    found = extents(sessions)
    begin, lengths = found.begin[chosen], found.lengths[chosen]
    count = power_above(len(chosen))
    rows = np.arange(count) % len(chosen)
    t = np.arange(power_above(int(lengths.max())))
    valid = (t < lengths[rows, None]) & (np.arange(count) < len(chosen))[:, None]
    at = np.where(valid, begin[rows, None] + t, 0)
    turns = jax.tree.map(lambda x: np.asarray(x).reshape(-1, *x.shape[2:])[at], sessions.turns)
    session = np.where(valid, np.arange(count)[:, None], count).astype(np.int32)
    return Sessions(turns=dataclasses.replace(turns, valid=valid, session=session), count=count)


def power_above(number: int) -> int:
    """The least power of two that is not less.

    >>> power_above(5)
    8
    """
    return 1 << max(number - 1, 0).bit_length()
