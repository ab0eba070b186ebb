"""A trace with everything drawn that it does not say, ready to be packed."""

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

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

    def packed(
        self, pieces: Pieces, numbers: Iterable[int], *, noise: bool = True
    ) -> Iterator[Sessions]:
        """Some of its pieces, in ascending order, packed to their one shape.

        Args:
          pieces: of this trace.
          numbers: which.
          noise: without it zeros stand for the noise, which takes most of the time.
        """
        for number in numbers:
            yield self._pack(pieces[number], noise=noise, **pieces.shape)

    def alone(self, session: int) -> Sessions:
        """One session, packed alone, in a row as wide as the next power of two: few shapes."""
        width = 1 << max(int(self.lengths[session]) - 1, 0).bit_length()
        return self._pack(slice(session, session + 1), rows=1, width=width)

    def _pack(self, part: slice, *, noise: bool = True, **shape: int) -> Sessions:
        lengths = self.lengths[part]
        begin = int(self.lengths[: part.start].sum())
        at = slice(begin, begin + int(lengths.sum()))
        columns = {name: values[at] for name, values in self.columns.items()}
        return pack(self, columns, lengths, self.hashes[part], noise=noise, **shape)


class Keys(Protocol):
    """What the noise of a trace is keyed by, as `Dataset` documents it."""

    @property
    def seed(self) -> int: ...
    @property
    def deployments(self) -> tuple[str, ...]: ...
    @property
    def report_draws(self) -> bool: ...
    @property
    def dtype(self) -> DTypeLike: ...


def pack(
    trace: Keys,
    columns: Mapping[str, NDArray],
    lengths: NDArray[np.int64],
    hashes: draws.Hashes,
    *,
    noise: bool,
    **shape: int,
) -> Sessions:
    """Some of a trace's sessions, packed, with their draws of each turn and deployment.

    Args:
      trace: what these are keyed by.
      columns: of the sessions' turns, but for noise and draws.
      lengths, hashes: of the sessions.
      noise: whether to draw it; zeros stand for it otherwise.
      shape: as `jaxroute.sessions.pack` takes it.
    """
    total, count = int(lengths.sum()), len(trace.deployments)
    turn = np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    keys = trace.seed, np.repeat(hashes, lengths), turn, trace.deployments
    drawn = {"noise": draws.noise(*keys) if noise else np.zeros((total, 0))}
    if trace.report_draws:
        drawn["report_draw"] = draws.noise(*keys, purpose="report")
    packed = sessions.pack({**columns, **drawn}, lengths, dtype=trace.dtype, **shape)
    if noise:
        return packed
    zeros: Any = np.zeros((*packed.turns.valid.shape, count), trace.dtype)
    return dataclasses.replace(packed, turns=dataclasses.replace(packed.turns, noise=zeros))
