"""Savings at equal quality, or at an equal time to the first token."""

from collections.abc import Callable, Mapping
from typing import Literal, get_args

import jax
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from jaxroute import comparison, simulate, stats
from jaxroute.comparison import Report, Within, each_dataset
from jaxroute.dataset import Dataset
from jaxroute.numerics import stack
from jaxroute.policies import RouterParams
from jaxroute.sessions import Sessions
from jaxroute.stats import Floats
from jaxroute.study import Study
from jaxroute.world import Retention, World

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

MEANS = ("quality", "ttft_s", "e2e_s")
"""Totals shown as means over served turns."""


def match(study: Study, on: On = "quality") -> pd.DataFrame:
    """The saving of every policy once its mean quality, or mean TTFT, is the baseline's.

    A policy that saves carbon by lowering quality has not won. Each policy is moved along its own
    knob until its mean over served turns is within `TOLERANCE` of the baseline's under the same
    retention. For `quality`, the knob is the price of a policy that has one, down to 0 or up, and
    then, or without a price, the floor: the instrument that the study gives to every policy, the
    baseline included. For `ttft` it is the latency price. A policy that is within the tolerance
    stays as it is. The interval is at the setting found: it does not hold the search's own error.

    Returns:
      One row a dataset, retention and policy: `status`; `knob`, the names of those turned, and
      the values of all; `baseline_<mean>`; `carbon_g`, `mean_quality`, `mean_ttft_s`, `mean_e2e_s`
      and the saving in % with its paired bootstrap 95 % interval. `status` is `matched`, or
      `better` or `worse` where no setting reaches the baseline's mean: then the row is the nearest
      one, whose mean is better or worse. A saving with a worse mean is none: it is NaN.

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
    return run(study, comparison.run(study).fixed, on)


def run(
    study: Study,
    fixed: Mapping[str, Mapping[str, str]],
    on: On,
    report: Report = lambda step, share: None,
) -> pd.DataFrame:
    """As `match`, once a comparison told what its policies are masked to (`Comparison.fixed`)."""
    tables = [
        _matched(study, dataset, fixed[dataset.label], on, within)
        for dataset, within in each_dataset(study, report)
    ]
    return pd.concat(tables, ignore_index=True)


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
    found: Callable[[NDArray[np.bool_]], None],
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
      found: told after each round which curves, `[K]`, were never so near before.

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
        found(nearer)
    return x, gap


@jax.jit
def _replay(
    params: RouterParams, sessions: Sessions, world: World, retentions: Retention
) -> simulate.Totals:
    """Totals `[N, P, S]` of settings `[N, P, ...]`, each row under its own of N retentions."""

    def one(setting: RouterParams, retention: Retention) -> simulate.Totals:
        return simulate.evaluate(setting, sessions, world.replace(retention=retention))

    return jax.vmap(jax.vmap(one, in_axes=(0, None)))(params, retentions)


def _replayed(
    study: Study, dataset: Dataset, params: RouterParams
) -> tuple[Floats, dict[str, Floats]]:
    """gCO2e `[K, S]` and means over served turns, `[K]` each, of K = N P settings `[K, ...]`."""
    retentions = stack(study.retentions.values())
    grid = (len(study.retentions), -1)
    params = jax.tree.map(lambda leaf: leaf.reshape(*grid, *leaf.shape[1:]), params)
    count = len(study.retentions) * len(study.policies)
    carbon = np.zeros((count, len(dataset.lengths)))
    sums = dict.fromkeys(("turns", *MEANS), np.zeros(count))
    for part, sessions in dataset.blocks():
        totals = vars(_replay(params, sessions, study.world, retentions))
        arrays = {
            name: np.asarray(values).reshape(count, -1)[:, : part.stop - part.start]
            for name, values in totals.items()
        }
        carbon[:, part] = stats.bills(arrays)
        sums = {k: v + arrays[k].sum(-1, dtype=np.float64) for k, v in sums.items()}
    with np.errstate(invalid="ignore"):
        return carbon, {name: sums[name] / sums["turns"] for name in MEANS}


def _matched(
    study: Study, dataset: Dataset, fixed: Mapping[str, str], on: On, report: Within
) -> pd.DataFrame:
    """The rows of one dataset, on which policies were masked to the names in `fixed`."""
    names = list(study.policies)
    shape = (len(study.retentions), len(names))
    own = stack([_as_compared(study, name, fixed) for name in names] * shape[0])
    turns = int(dataset.lengths.sum())

    report("match", 0)
    carbon, means = tried = _replayed(study, dataset, own)
    base = names.index(study.config.baseline)
    target = np.repeat(means[MEAN[on]].reshape(shape)[:, base], shape[1])
    # Signed so that a gap above 0 is better than the baseline.
    sign = 1.0 if on == "quality" else -1.0
    first = sign * (means[MEAN[on]] - target)

    def gap_at(x: Floats, rounds: int) -> Floats:
        nonlocal tried
        report(f"match, round {rounds + 1}", turns * rounds / MOST_ROUNDS)
        tried = _replayed(study, dataset, along(own, on, first < 0, x))
        return sign * (tried[1][MEAN[on]] - target)

    def keep(nearer: NDArray[np.bool_]) -> None:
        carbon[nearer] = tried[0][nearer]
        for name, values in means.items():
            values[nearer] = tried[1][name][nearer]

    x, gap = bisect(gap_at, first, TOLERANCE[on], keep)
    report("bootstrap", turns)
    settings = along(own, on, first < 0, x)
    within = np.abs(gap) <= TOLERANCE[on]
    status = np.where(within, "matched", np.where(gap > 0, "better", "worse"))
    index = pd.MultiIndex.from_product(
        [[dataset.label], list(study.retentions), names], names=["dataset", "retention", "policy"]
    )
    return index.to_frame(index=False).assign(
        status=status,
        knob=_turned(own, settings, on),
        **{name: np.asarray(getattr(settings, name), np.float64) for name in KNOBS[on]},
        **{f"baseline_{MEAN[on]}": target},
        carbon_g=carbon.sum(-1),
        **{f"mean_{name}": values for name, values in means.items()},
        **_savings(study, dataset, carbon.reshape(*shape, -1), base, status),
    )


def _savings(
    study: Study, dataset: Dataset, carbon: Floats, base: int, status: NDArray[np.str_]
) -> dict[str, Floats]:
    """The columns of the saving of bills `[N, P, S]`, NaN where the mean is worse."""
    replicates = stats.resampled(carbon, dataset.hashes, study.config.seed)
    total = carbon.sum(-1)
    ends = stats.interval(replicates, replicates[:, base : base + 1])
    saving = stats.saving_pct(total, total[:, base : base + 1])
    columns = dict(zip(stats.SAVINGS, (saving, ends[..., 0], ends[..., 1]), strict=True))
    return {k: np.where(status == "worse", np.nan, v.ravel()) for k, v in columns.items()}


def _turned(own: RouterParams, settings: RouterParams, on: On) -> list[str]:
    """The names of the knobs that were turned, with commas, `[K]`."""
    turned = {name: getattr(own, name) != getattr(settings, name) for name in KNOBS[on]}
    return [
        ", ".join(name for name in turned if turned[name][n]) for n in range(len(own.carbon_weight))
    ]


def _as_compared(study: Study, name: str, fixed: Mapping[str, str]) -> RouterParams:
    """A policy of the study, masked as it was on a dataset if it fixes an axis."""
    params = study.policies[name]
    if name not in study.fixed:
        return params
    axis = study.fixed[name]
    index = list(getattr(study.config.fleet, f"{axis}s")).index(fixed[name])
    return comparison.masked(study.world.fleet, params, axis, index)
