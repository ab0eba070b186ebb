"""Savings at equal quality, or at an equal time to the first token."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Literal, get_args

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from jaxroute import comparison, stats
from jaxroute.comparison import Report
from jaxroute.dataset import Dataset
from jaxroute.loading import refuse
from jaxroute.numerics import stack
from jaxroute.policies import RouterParams
from jaxroute.replays import Within, replay_each
from jaxroute.stats import Floats
from jaxroute.study import Study

On = Literal["quality", "ttft"]

TOLERANCE = {"quality": 0.002, "ttft": 0.002}
"""How near a mean has to come to the baseline's: of predicted quality, and in s."""

AIM = 0.25
"""Of the tolerance: a search goes on to it, as what is left of a gap biases the saving."""

MEAN = {"quality": "quality", "ttft": "ttft_s"}
"""The total whose mean over served turns is matched."""

PRICE = {"quality": "quality_price_g", "ttft": "latency_price_g_per_s"}
KNOBS = {"quality": ("quality_price_g", "quality_floor"), "ttft": ("latency_price_g_per_s",)}
"""The price, and everything that may be turned."""

LEAST_PRICE, LARGEST_PRICE = 1e-6, 1e6
"""Between them a price moves geometrically: below one it decides nothing, above the other all."""

HALVINGS = 16
"""Of a bracket; what is left of it is a jump that no setting meets."""

PROBES = (0.5, 0.25, 0.75, 0.125, 0.625, 0.375, 0.875)
"""Inner points tried where the extreme lies on the side of the start: van der Corput, base 2."""

MOST_ROUNDS = 1 + len(PROBES) + HALVINGS
"""Of a search, were the last probe to find a bracket."""


def match(study: Study, on: On = "quality") -> pd.DataFrame:
    """The saving of every policy once its mean quality, or mean TTFT, is the baseline's.

    A policy that saves carbon by lowering quality has not won. Each policy is moved along its own
    knob until its mean over served turns is within `TOLERANCE` of the baseline's under the same
    retention. For `quality`, the knob is the price of a policy that has one, down to 0 or up, and
    then, or without a price, the floor: the instrument that the study gives to every policy, the
    baseline included. For `ttft` it is the latency price. A policy that is within the tolerance
    stays as it is. The interval is at the setting found: it does not hold the search's own error.

    Returns:
      One row a dataset, retention and policy: the columns of `compare` at the setting found, but
      for those of the bounds; then `status`; `knob`, the names of those turned, and the values of
      all; `baseline_<mean>`. `status` is `matched`, or `better` or `worse` where no setting reaches
      the baseline's mean: then the row is the nearest one, whose mean is better or worse. A saving
      with a worse mean is none: it is NaN.

    Raises:
      ValueError: if `on` is neither quality nor ttft.

    >>> import dataclasses
    >>> import jaxroute as jr
    >>> study = jr.load_study()
    >>> two = {name: study.policies[name] for name in ("carbon_router", "fair_carbon")}
    >>> table = jr.match(dataclasses.replace(study, policies=two, fixed={}), on="quality")
    >>> bool(((table.mean_quality - table.baseline_quality).abs() <= 0.002).all())
    True
    """
    if on not in get_args(On):
        raise ValueError(f"on must be one of {', '.join(get_args(On))}, got {on!r}")
    fixed = {each.label: comparison.fixed(study, each) for each in study.datasets}
    return run(study, fixed, on)


def run(
    study: Study,
    fixed: Mapping[str, Mapping[str, str]],
    on: On,
    report: Report = lambda step, share: None,
) -> pd.DataFrame:
    """As `match`, once a comparison told what its policies are masked to (`Comparison.fixed`)."""
    refuse(study, "--match")
    tables = []
    for dataset, within in comparison.each_dataset(study, report):
        policies = comparison.masked(study, fixed[dataset.label])
        turns = float(dataset.lengths.sum()) / len(study.retentions)
        for n, (label, retention) in enumerate(study.retentions.items()):
            alone = dataclasses.replace(
                study, policies=policies, fixed={}, retentions={label: retention}
            )
            told = functools.partial(_report_within, within, label, n * turns, turns)
            tables.append(_matched(alone, dataset, on, told))
    return pd.concat(tables, ignore_index=True)


def _report_within(
    within: Within, label: str, before: float, turns: float, step: str, share: float
) -> None:
    within(f"match under {label}, {step}", before + share * turns)


def along(own: RouterParams, on: On, better: NDArray[np.bool_], x: Floats) -> RouterParams:
    """The settings at `x` on each policy's way from its own setting (0) to an extreme (1).

    Args:
      own: K settings, `[K, ...]` leaves.
      on: what the way improves or worsens.
      better: `[K]`, towards the better extreme: the largest price, a quality floor of 1; else
        towards the worse: a price and a floor of 0.
      x: `[K]` in [0, 1]. Where quality has a price, it is moved over the first half of the way and
        the floor over the second.
    """
    price = np.asarray(getattr(own, PRICE[on]), np.float64)
    if on == "ttft":
        priced, price_x = better | (price > 0), x
        floor = {}
    else:
        priced, price_x = price > 0, np.minimum(2 * x, 1)
        floor_x = np.where(priced, np.maximum(2 * x - 1, 0), x)
        start = np.asarray(own.quality_floor, np.float64)
        floor = {"quality_floor": start + (np.where(better, 1.0, 0.0) - start) * floor_x}
    begin = np.where(price > 0, price, LEAST_PRICE)
    end = np.where(better, np.maximum(price, LARGEST_PRICE), np.minimum(price, LEAST_PRICE))
    moved = begin * (end / begin) ** price_x
    moved = np.where(price_x == 0, price, np.where((price_x == 1) & ~better, 0, moved))
    moved = np.where(priced, moved, price)
    changes = {PRICE[on]: moved} | floor
    return own.replace(**{name: values.astype(np.float32) for name, values in changes.items()})


def bisect(
    gap_at: Callable[[Floats, int], Floats],
    first: Floats,
    tolerance: float,
) -> tuple[Floats, Floats]:
    """Finds on K curves at once where a gap is 0, by bisection of [0, 1].

    The curves need not be monotone: a bracket is two points with gaps of opposite sign, and
    halving keeps one. Where both ends have one sign, `PROBES` look for the other inside. The
    nearest point seen counts, not the last. A curve within the tolerance at 0 is left there; others
    are searched until the gap is `AIM` of the tolerance, the bracket was halved `HALVINGS` times,
    or no probe found one.

    Args:
      gap_at: gaps `[K]` at points `[K]`, given how many rounds were before.
      first: `[K]`, the gaps at 0; NaN is not searched.
      tolerance: how near 0 is near enough.

    Returns:
      The nearest points and their gaps, `[K]` each.
    """
    x, gap = np.zeros_like(first), first.copy()
    low, high = np.zeros_like(first), np.ones_like(first)
    bracketed, halved = np.zeros(first.shape, bool), np.zeros(first.shape, int)
    wanted = np.abs(first) > tolerance
    for rounds in range(MOST_ROUNDS):
        probing = ~bracketed & (rounds <= len(PROBES))
        searching = wanted & (np.abs(gap) > AIM * tolerance)
        searching &= probing | bracketed & (halved < HALVINGS)
        if not searching.any():
            break
        probe = (1.0, *PROBES)[min(rounds, len(PROBES))]
        point = np.where(searching, np.where(bracketed, (low + high) / 2, probe), x)
        now = gap_at(point, rounds)
        halved += searching & bracketed
        crossed = np.sign(now) != np.sign(first)
        low = np.where(searching & bracketed & ~crossed, point, low)
        high = np.where(searching & crossed, point, high)
        bracketed |= searching & crossed
        nearer = searching & (np.abs(now) < np.abs(gap))
        x, gap = np.where(nearer, point, x), np.where(nearer, now, gap)
    return x, gap


def _matched(study: Study, dataset: Dataset, on: On, report: Report) -> pd.DataFrame:
    """The rows of one dataset under the only retention of a study whose policies are masked."""
    names, own = list(study.policies), stack(map(_knobs, study.policies.values()))
    sign = 1 if on == "quality" else -1

    def at(x: Floats) -> list[RouterParams]:
        """The policies on their way."""
        moved = along(own, on, better, x)
        return [
            params.replace(**{name: getattr(moved, name)[n] for name in KNOBS[on]})
            for n, params in enumerate(study.policies.values())
        ]

    def mean(settings: list[RouterParams]) -> Floats:
        """Of what is matched, over served turns, `[P]`."""
        totals = replay_each(study, dataset, settings).totals
        sums = (totals[name][0].sum(-1, dtype=np.float64) for name in (MEAN[on], "turns"))
        with np.errstate(invalid="ignore"):
            return np.divide(*sums)

    report("as it is", 0.0)
    own_mean = mean(list(study.policies.values()))
    target = own_mean[names.index(study.config.baseline)]
    first = sign * (own_mean - target)
    better = first < 0

    def gap_at(x: Floats, rounds: int) -> Floats:
        report(f"round {rounds + 1}", rounds / MOST_ROUNDS)
        return sign * (mean(at(x)) - target)

    x, gap = bisect(gap_at, first, TOLERANCE[on])
    settings = along(own, on, better, x)
    outcome = replay_each(study, dataset, at(x))
    report("bootstrap", 1.0)
    table = stats.summary(study, dataset, outcome, names, study.config.baseline)
    within = np.abs(gap) <= TOLERANCE[on]
    status = np.where(within, "matched", np.where(gap > 0, "better", "worse"))
    table.loc[status == "worse", list(stats.SAVINGS)] = np.nan
    return table.assign(
        status=status,
        knob=_turned(own, settings, on),
        **{name: np.asarray(getattr(settings, name), np.float64) for name in KNOBS[on]},
        **{f"baseline_{MEAN[on]}": np.full(len(names), target)},
    )


def _knobs(params: RouterParams) -> RouterParams:
    """What every policy has to be turned, whatever its rule."""
    return RouterParams(**{name: getattr(params, name) for on in KNOBS for name in KNOBS[on]})


def _turned(own: RouterParams, settings: RouterParams, on: On) -> list[str]:
    """The names of the knobs that were turned, with commas, `[P]`."""
    turned = {name: getattr(own, name) != getattr(settings, name) for name in KNOBS[on]}
    return [
        ", ".join(name for name in turned if turned[name][n]) for n in range(len(own.carbon_weight))
    ]
