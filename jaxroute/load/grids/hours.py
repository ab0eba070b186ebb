"""Whole hours from samples, and short gaps in them closed."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxroute.load.grids.readings import HOUR_S, Samples

LONGEST_GAP = 3
"""Hours that may be missing in a row, between two that are there."""

PARTLY = "hours of which only a part is there"

_WHOLE = 1 - 1e-6


class Hourly(NamedTuple):
    """Means of some hours.

    Attributes:
      hour: `[K]`, hours since 1970, ascending.
      value: `[K]`.
    """

    hour: NDArray[np.int64]
    value: NDArray[np.float64]


def hourly(samples: Samples) -> tuple[Hourly, int]:
    """Mean of each hour over the time of it that is covered, and how many hours are not wholly so.

    A sample that reaches into the next hour counts in both by the time it takes there.
    """
    hour, offset = np.divmod(samples.begin_s, HOUR_S)
    inside = np.minimum(samples.length_s, HOUR_S - offset)
    beyond = samples.length_s - inside
    over = beyond > 0
    every = np.concatenate([hour, hour[over] + 1])
    share = np.concatenate([inside, beyond[over]]) / HOUR_S
    value = np.concatenate([samples.value, samples.value[over]])
    hours, at = np.unique(every, return_inverse=True)
    covered = np.bincount(at, share, len(hours))
    mean = np.bincount(at, share * value, len(hours)) / covered
    return Hourly(hours, mean), int((covered < _WHOLE).sum())


def at_hours(known: Hourly, hour: NDArray[np.int64]) -> NDArray[np.float64]:
    """Values at some hours, linear between known ones across at most `LONGEST_GAP`.

    NaN in longer gaps, and before the first and after the last known hour.

    >>> at_hours(Hourly(np.array([0, 2, 9]), np.array([1.0, 3.0, 9.0])), np.array([0, 1, 5, 10]))
    array([ 1.,  2., nan, nan])
    """
    value = np.full(len(hour), np.nan)
    if not len(known.hour):
        return value
    after = np.searchsorted(known.hour, hour)
    last = len(known.hour) - 1
    exact = known.hour[np.minimum(after, last)] == hour
    before = np.maximum(after - 1, 0)
    missing = known.hour[np.minimum(after, last)] - known.hour[before] - 1
    between = (after > 0) & (after <= last) & (missing <= LONGEST_GAP)
    some = exact | between
    value[some] = np.interp(hour[some], known.hour, known.value)
    return value


def gaps(known: Hourly) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The first missing hour of each gap between known hours, and how many are missing."""
    missing = np.diff(known.hour) - 1
    at = np.flatnonzero(missing)
    return known.hour[at] + 1, missing[at]
