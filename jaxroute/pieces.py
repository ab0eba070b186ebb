"""A trace in pieces: runs of whole sessions, packed to one shape and replayed one by one."""

import dataclasses
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from jaxroute import sessions

MOST_TURNS = 65_536
"""Turns of a piece, unless one session is longer: what a compiled call takes at a time."""

MOST_SESSIONS = 4096
"""Sessions of a piece of a sweep."""

LEAST_PIECES, LEAST_SESSIONS = 8, 512
"""A sweep's trace is cut into so many pieces, for as many devices, as long as they have so many
sessions each."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Pieces:
    """n runs of a trace's sessions, in order, and the shape that all of them fit.

    Attributes:
      bounds: `[n + 1]`, the session that each begins with, and the number of sessions.
      turns: `[n]`.
      rows, width, count: of the packed sessions (`jaxroute.sessions.pack`).
    """

    bounds: NDArray[np.int64]
    turns: NDArray[np.int64]
    rows: int
    width: int
    count: int

    def __len__(self) -> int:
        return len(self.turns)

    @property
    def shape(self) -> dict[str, int]:
        """That of each, as `jaxroute.sessions.pack` takes it."""
        return {"rows": self.rows, "width": self.width, "count": self.count}

    def __getitem__(self, number: int) -> slice:
        """The sessions of a piece."""
        return slice(int(self.bounds[number]), int(self.bounds[number + 1]))

    def __iter__(self) -> Iterator[slice]:
        return (self[number] for number in range(len(self)))


def cut(lengths: NDArray[np.integer], *, turns: int, most: int | None = None) -> Pieces:
    """Pieces of at most `turns` turns, or one session, and at most `most` sessions.

    Only lengths of one piece at a time are looked at, so that they may lie on disk.

    Args:
      lengths: `[S]`, turns of each session.
      turns, most: of a piece.

    >>> pieces = cut(np.array([3, 1, 2, 9, 1]), turns=6)
    >>> pieces.bounds.tolist(), pieces.turns.tolist()
    ([0, 3, 4, 5], [6, 9, 1])
    """
    most = turns if most is None else most
    longest = int(lengths.max(initial=1))
    rows = max(1, min(sessions.ROWS, turns // longest))
    bounds: list[int] = [0]
    sizes: list[int] = []
    width = 0
    while bounds[-1] < len(lengths) or not sizes:
        window = np.asarray(lengths[bounds[-1] : bounds[-1] + most], np.int64)
        held = int(np.searchsorted(np.cumsum(window), turns, side="right"))
        part = window[: max(held, 1)]
        _, start = sessions.lay_out(part, rows)
        width = max(width, int((start + part).max(initial=1)))
        bounds.append(bounds[-1] + len(part))
        sizes.append(int(part.sum()))
    return Pieces(
        bounds=np.array(bounds),
        turns=np.array(sizes),
        rows=rows,
        width=width,
        count=int(np.diff(bounds).max()),
    )


def even(lengths: NDArray[np.integer]) -> Pieces:
    """Pieces of about as many turns, as a sweep replays and sums them.

    They depend on the trace alone: on neither memory, nor devices, nor settings.
    """
    turns, longest, count = int(lengths.sum()), int(lengths.max(initial=1)), len(lengths)
    parts = max(
        -(-turns // MOST_TURNS),
        -(-count // MOST_SESSIONS),
        min(LEAST_PIECES, count // LEAST_SESSIONS),
        1,
    )
    size = -(-turns // parts) + longest * (parts > 1)
    return cut(lengths, turns=max(size, 1), most=MOST_SESSIONS)
