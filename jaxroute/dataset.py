"""A trace with everything drawn that it does not say, ready to be packed."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import DTypeLike, NDArray

from jaxroute import draws, sessions
from jaxroute.sessions import Sessions

BLOCK_TURNS = 65_536
"""Turns replayed by one compiled call; a longer trace takes several calls of one shape."""


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

    @functools.cached_property
    def sessions(self) -> Sessions:
        """Every session, packed."""
        return self._pack(slice(0, len(self.lengths)))

    def blocks(self, turns: int = BLOCK_TURNS) -> Iterator[tuple[slice, Sessions]]:
        """Runs of whole sessions of about `turns` turns at most, packed to one shape.

        Yields each run's slice of `[S]` and its sessions, whose `count` is that of the largest run:
        results beyond the slice's length are of padding.
        """
        ends = np.cumsum(self.lengths)
        cuts = [0]
        while cuts[-1] < len(ends):
            done = ends[cuts[-1] - 1] if cuts[-1] else 0
            cuts.append(max(int(np.searchsorted(ends, done + turns, side="right")), cuts[-1] + 1))
        parts = [slice(a, b) for a, b in itertools.pairwise(cuts)]
        if len(parts) <= 1:
            yield slice(0, len(ends)), self.sessions
            return
        rows = max(1, min(sessions.ROWS, turns // int(self.lengths.max(initial=1))))
        width = 0
        for part in parts:
            _, start = sessions.lay_out(self.lengths[part], rows)
            width = max(width, int((start + self.lengths[part]).max()))
        count = max(part.stop - part.start for part in parts)
        for part in parts:
            yield part, self._pack(part, rows=rows, width=width, count=count)

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
