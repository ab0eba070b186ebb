"""A trace with everything drawn that it does not say, ready to be packed."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
from numpy.typing import DTypeLike, NDArray

from jaxroute import draws, sessions
from jaxroute.pieces import MOST_TURNS, Pieces, cut, even
from jaxroute.sessions import Sessions


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Dataset:
    """A trace as flat columns, sessions one after another.

    Attributes:
      label: its name in every output.
      path, sha256: of the file.
      session_ids, hashes, lengths: `[S]`, with the turns of each session.
      columns: of the N turns, as `jaxroute.sessions.pack` takes them, but for noise and draws.
      synthetic_times: whether the gaps between turns were drawn.
      truncated: turns whose prompt was cut.
      notes: what was drawn or assumed, in words, for every output.
      seed, deployments: what the noise is keyed by.
      report_draws: whether to draw as well which cache reports are missing.
      dtype: of the packed floats.
    """

    label: str
    path: str
    sha256: str
    session_ids: NDArray[np.object_]
    hashes: draws.Hashes
    lengths: NDArray[np.int64]
    columns: Mapping[str, NDArray]
    synthetic_times: bool
    truncated: int
    notes: tuple[str, ...]
    seed: int
    deployments: tuple[str, ...]
    report_draws: bool
    dtype: DTypeLike

    @property
    def count(self) -> int:
        """Number of sessions."""
        return len(self.lengths)

    @property
    def turns(self) -> int:
        """Number of turns."""
        return int(self.lengths.sum())

    @functools.cached_property
    def sessions(self) -> Sessions:
        """Every session, packed."""
        return self._pack(slice(0, len(self.lengths)))

    def blocks(self, turns: int = MOST_TURNS) -> Iterator[tuple[slice, Sessions]]:
        """Runs of whole sessions of about `turns` turns at most, packed to one shape.

        Yields each run's slice of `[S]` and its sessions, whose `count` is that of the largest run:
        results beyond the slice's length are of padding.
        """
        pieces = cut(self.lengths, turns=turns)
        if len(pieces) == 1:
            yield pieces[0], self.sessions
            return
        yield from zip(pieces, self.packed(pieces, range(len(pieces))), strict=True)

    @functools.cached_property
    def pieces(self) -> Pieces:
        """What a sweep replays at a time."""
        return even(self.lengths)

    def packed(self, pieces: Pieces, numbers: Iterable[int]) -> Iterator[Sessions]:
        """Some of its pieces, in ascending order, packed to their one shape."""
        shape = {"rows": pieces.rows, "width": pieces.width, "count": pieces.count}
        for number in numbers:
            yield self._pack(pieces[number], **shape)

    def alone(self, session: int) -> Sessions:
        """One session, packed alone, in a row as wide as the next power of two: few shapes."""
        width = 1 << max(int(self.lengths[session]) - 1, 0).bit_length()
        return self._pack(slice(session, session + 1), rows=1, width=width)

    def _pack(self, part: slice, **shape: int) -> Sessions:
        lengths = self.lengths[part]
        begin = int(self.lengths[: part.start].sum())
        at = slice(begin, begin + int(lengths.sum()))
        columns = {name: values[at] for name, values in self.columns.items()}
        turn = np.arange(at.stop - at.start) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        each = np.repeat(self.hashes[part], lengths)
        keys = self.seed, each, turn, self.deployments
        columns["noise"] = draws.noise(*keys)
        if self.report_draws:
            columns["report_draw"] = draws.noise(*keys, purpose="report")
        return sessions.pack(columns, lengths, dtype=self.dtype, **shape)
