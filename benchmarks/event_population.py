"""Traffic of a typical day: a sample of sessions, copied until it makes the load it stands for."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxroute import draws
from jaxroute.dataset import Dataset
from jaxroute.timeline import DAY_S, QUARTER_S

HOURS_PER_DAY = 24
SHIFT_S = 1800.0
"""A copy starts at most this much earlier or later than its session."""


class Population(NamedTuple):
    """Turns in order of arrival, A of them; sessions of the sample are copied, each on its own.

    Attributes:
      columns: of the sample's N turns, as `jaxroute.reference.replay` takes those of one session,
        and `turn`, its index in its session.
      arrival_s: `[A]`, s of the folded day; negative on the day before.
      row: `[A]`, which of the N turns.
      copy: `[A]`, number of the copy of a session that it belongs to.
      begin_s, end_s: turns that arrive from the one to before the other are measured.
    """

    columns: Mapping[str, Any]
    arrival_s: NDArray[np.float64]
    row: NDArray[np.int64]
    copy: NDArray[np.int64]
    begin_s: float
    end_s: float


def population(
    dataset: Dataset,
    arrival_rate: float,
    seed: int,
    begin_s: float,
    end_s: float,
    warm_up_s: float,
    shift_s: float = SHIFT_S,
) -> Population:
    """Lays copies of a dataset's S sessions on one day, k = 24 arrival_rate/S of each.

    There are floor(k) copies of every session and, for the rest, one of each of a random choice.
    A copy starts at a uniform moment of its session's quarter hour (the exact one is not kept),
    shifted by up to `shift_s`; later turns follow at their gaps. The day repeats: what runs past
    its end comes in at its beginning as a copy of the day before. A copy that began before the
    warm-up has lost its earlier turns: it finds nothing cached.

    Args:
      dataset: on any calendar; each turn keeps its own `hour` of the intensity.
      arrival_rate: sessions an hour.
      seed: of the choice and the moments.
      begin_s, end_s: what is measured, s of the day.
      warm_up_s: how long before `begin_s` turns are laid as well.
      shift_s: how much earlier or later than its session a copy may begin, beside that quarter.
    """
    if not 0 <= begin_s < end_s <= DAY_S:
        raise ValueError(f"0 <= begin_s < end_s <= {DAY_S:g}, got {begin_s:g} and {end_s:g}")
    rng = np.random.default_rng(seed)
    lengths, count = dataset.lengths, dataset.count
    first = np.cumsum(lengths) - lengths
    clock_s = np.cumsum(dataset.columns["gap_s"], dtype=np.float64)
    offset_s = clock_s - np.repeat(clock_s[first], lengths)

    copies = HOURS_PER_DAY * arrival_rate / count
    rest = rng.choice(count, round((copies % 1) * count), replace=False)
    picked = np.concatenate((np.repeat(np.arange(count), int(copies)), rest))
    moment = dataset.columns["time_bin"][first[picked]] + rng.random(len(picked))
    start_s = (QUARTER_S * moment + rng.uniform(-shift_s, shift_s, len(picked))) % DAY_S

    row = _ranges(first[picked], lengths[picked])
    copy = np.repeat(np.arange(len(picked)), lengths[picked])
    at_s = start_s[copy] + offset_s[row]
    from_s = begin_s - warm_up_s
    parts = []
    for day in range(int((at_s.max(initial=0.0) - from_s) // DAY_S) + 1):
        inside = np.flatnonzero((at_s - day * DAY_S >= from_s) & (at_s - day * DAY_S < end_s))
        parts.append((at_s[inside] - day * DAY_S, row[inside], copy[inside] + day * len(picked)))
    arrival_s, row, copy = map(np.concatenate, zip(*parts, strict=True))
    order = np.argsort(arrival_s, kind="stable")

    turn = _ranges(np.zeros(count, np.int64), lengths)
    noise = draws.noise(dataset.seed, np.repeat(dataset.hashes, lengths), turn, dataset.deployments)
    columns = {**dataset.columns, "turn": turn, "noise": noise}
    return Population(columns, arrival_s[order], row[order], copy[order], begin_s, end_s)


def _ranges(begin: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The whole numbers from each of `begin` on, as many as its length, one after another."""
    within = np.arange(int(lengths.sum())) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    return np.repeat(begin, lengths) + within
