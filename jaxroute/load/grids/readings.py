"""What a file of intensity holds, before hours are made of it."""

import dataclasses
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from jaxroute.errors import InputError
from jaxroute.load.repairs import Repairs

HOUR_S = 3600

MOST_G_PER_KWH = 1e5
"""No grid reaches a fiftieth of it: more is another unit."""

AVERAGE, MARGINAL = "average", "marginal"

REPEATED = "samples that are there again, with the same value, left out"

Fault = Callable[[int, str, str, str], InputError]
"""An error about a row: its index, what was found, what was expected, how to mend it."""


class Asked(NamedTuple):
    """What is to be read.

    Attributes:
      name: the file as the user named it.
      file: it.
      zones: names of the zones; others may hold anything. None: every zone.
      basis: `lifecycle` or `direct`, where a source has both.
      repairs: where to count what was mended.
    """

    name: str
    file: Path
    zones: Collection[str] | None
    basis: str
    repairs: Repairs

    def wants(self, zone: str) -> bool:
        """Whether a zone is to be read."""
        return self.zones is None or zone in self.zones


class Samples(NamedTuple):
    """Means over stretches of time of at most an hour, one after another.

    Attributes:
      begin_s: `[N]`, epoch seconds, ascending.
      length_s: `[N]`.
      value: `[N]`, finite.
    """

    begin_s: NDArray[np.int64]
    length_s: NDArray[np.int64]
    value: NDArray[np.float64]


def described(format: str, signal: str, basis: str) -> str:
    """What a file's numbers are, in words, as `Reading` has them.

    >>> described("tidy table", "", "as its author says")
    'tidy table, average or marginal: as its author says'
    """
    return f"{format}, {signal}, {basis}" if signal else f"{format}, average or marginal: {basis}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """A file of intensity, or of generation by fuel type.

    Attributes:
      name: the file as the user named it.
      format: in words.
      signal: `AVERAGE` or `MARGINAL`; empty where the file does not tell.
      basis: in words, which emissions are counted.
      found: every zone in it.
      samples: of each zone wanted, by fuel type; under "" if they are the intensity itself, g/kWh.
      scheme: of the fuel types, in `emission_factors.csv`.
      notes: what holds for all of it, in words.
    """

    name: str
    format: str
    signal: str
    basis: str
    found: tuple[str, ...]
    samples: Mapping[str, Mapping[str, Samples]]
    scheme: str = ""
    notes: tuple[str, ...] = ()


def samples(
    begin_s: NDArray[np.int64],
    value: NDArray[np.float64],
    fault: Fault,
    repairs: Repairs,
    length_s: NDArray[np.int64] | None = None,
) -> Samples:
    """Puts the samples of a zone in order; what is NaN is left out, as a gap.

    A sample that is there again, with the same value, counts once.

    Args:
      begin_s, value: `[N]`.
      fault: makes an error about a row, of those given.
      repairs: where to count what was there again.
      length_s: `[N]`; by default the step that is most frequent between them, at most an hour.

    Raises:
      InputError: at a time that is there with two values, or not on the grid of the others, or an
        overlap.
    """
    order = np.argsort(begin_s, kind="stable")
    columns = (begin_s, value) if length_s is None else (begin_s, value, length_s)
    same = repeated(*(each[order] for each in columns))
    if same.any():
        repairs.note(REPEATED, utc(begin_s[order][same][0]), int(same.sum()))
    order = order[~same]
    begin_s, value = begin_s[order], value[order]
    step = np.diff(begin_s)
    again = np.flatnonzero(step == 0)
    if len(again):
        found, expected = f"{utc(begin_s[again[0]])} once more", "each time of a zone once"
        mend = "leave a row out; write an offset with local times, where a clock is put back"
        raise fault(int(order[again[0] + 1]), found, expected, mend)
    if length_s is None:
        width = min(int(_most_frequent(step)), HOUR_S) if len(step) else HOUR_S
        phase = begin_s % width
        odd = np.flatnonzero(phase != _most_frequent(phase)) if len(phase) else phase
        uneven = odd if len(odd) else np.flatnonzero(begin_s % 60)
        if len(uneven):
            found = f"{utc(begin_s[uneven[0]])} among samples every {width // 60} min"
            raise fault(int(order[uneven[0]]), found, "times at even distances", "")
        length = np.full(len(begin_s), width, np.int64)
    else:
        length = length_s[order]
        into = np.flatnonzero(step < length[:-1])
        if len(into):
            found = f"a beginning at {utc(begin_s[into[0] + 1])}, inside the time before"
            raise fault(int(order[into[0] + 1]), found, "one time after another", "")
    there = np.isfinite(value)
    return Samples(begin_s[there], length[there], value[there])


def repeated(*columns: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each row is the one before it once more, where NaN is NaN.

    >>> repeated(np.array([1, 1, 2]), np.array([5.0, 5.0, 5.0]))
    array([False,  True, False])
    """
    same = np.ones(len(columns[0]), bool)
    same[:1] = False
    for each in columns:
        same[1:] &= (each[1:] == each[:-1]) | ((each[1:] != each[1:]) & (each[:-1] != each[:-1]))
    return same


def utc(seconds: int | np.integer) -> str:
    """A moment in words.

    >>> utc(1_700_000_000)
    '2023-11-14T22:13Z'
    """
    return f"{pd.Timestamp(int(seconds), unit='s'):%Y-%m-%dT%H:%MZ}"


def _most_frequent(values: NDArray[np.int64]) -> np.int64:
    """The least of the most frequent."""
    each, count = np.unique(values, return_counts=True)
    return each[np.argmax(count)]
