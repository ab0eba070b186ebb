"""The main job: every policy of a study on every dataset, under every retention."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping

import numpy as np
import pandas as pd

from jaxroute import catalogue, stats
from jaxroute.dataset import Dataset
from jaxroute.numerics import stack
from jaxroute.policies import RouterParams
from jaxroute.replays import Within, only, replay, replay_each
from jaxroute.study import Study

Report = Callable[[str, float], None]
"""Told what is being done, and the share of all turns that is done."""

TABLES = ("summary", "by_length", "shares", "served", "sessions", "load", "swings")
"""What a comparison consists of."""

_REFERENCE = "fair_carbon, masked"
"""Rows that only serve to choose the index of an axis."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """A policy, perhaps with all but one index of an axis masked."""

    policy: str
    axis: str | None
    index: int | None
    params: RouterParams


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Comparison:
    """The outcome of a study, and how it was obtained.

    Attributes:
      summary, by_length, shares, served, sessions: as `jaxroute.stats` documents them.
      load, swings: likewise; empty where sessions never meet.
      fixed: by dataset, the name that each `*_fixed_*` policy was masked to.
      compile_s, replay_s: seconds spent compiling and replaying.
    """

    summary: pd.DataFrame
    by_length: pd.DataFrame
    shares: pd.DataFrame
    served: pd.DataFrame
    sessions: pd.DataFrame
    load: pd.DataFrame
    swings: pd.DataFrame
    fixed: Mapping[str, Mapping[str, str]]
    compile_s: float
    replay_s: float


def compare(study: Study) -> pd.DataFrame:
    """One row for each dataset, retention and policy: carbon, latency, quality and saving.

    The columns are those of `summary.csv` (`jaxroute.stats.summary`). Savings are against the
    study's baseline under the same retention, with a paired bootstrap 95 % interval over sessions.
    After the policies stand the rows `hindsight_plan` and `lower_bound` (`jaxroute.bounds`), under
    the study's quality floor, unless a policy has a TTFT limit, which neither can respect.

    >>> import jaxroute as jr
    >>> table = jr.compare(jr.load_study())
    >>> bool((table.query("policy == 'fair_carbon'").saving_pct == 0).all())
    True
    """
    return run(study).summary


def run(study: Study, report: Report = lambda step, share: None) -> Comparison:
    """As `compare`, with every table."""
    tables: dict[str, list[pd.DataFrame]] = {name: [] for name in TABLES}
    names, compile_s, replay_s = {}, 0.0, 0.0
    for dataset, within in each_dataset(study, report):
        outcome = _compared(study, dataset, within)
        within("bootstrap", int(dataset.lengths.sum()))
        for name, table in stats.tables(study, dataset, outcome).items():
            tables[name].append(table)
        names[dataset.label] = outcome.fixed
        compile_s += outcome.compile_s
        replay_s += outcome.replay_s
    joined = {name: pd.concat(parts, ignore_index=True) for name, parts in tables.items()}
    return Comparison(**joined, fixed=names, compile_s=compile_s, replay_s=replay_s)


def each_dataset(study: Study, report: Report) -> Iterator[tuple[Dataset, Within]]:
    """The datasets, each with a `Within` that passes on to `report`."""
    turns = [int(dataset.lengths.sum()) for dataset in study.datasets]
    for n, dataset in enumerate(study.datasets):

        def within(step: str, done: float, before: int = sum(turns[:n]), name: str = dataset.label):
            report(f"{name}: {step}", (before + done) / max(sum(turns), 1))

        yield dataset, within


def settings(study: Study) -> list[Setting]:
    """The policies; for each axis that one of them fixes, `fair_carbon` and it at every index."""
    rows = reference_rows(study, dict.fromkeys(study.fixed.values()))
    for name, params in study.policies.items():
        if name in study.fixed:
            rows += _at_each(study, name, study.fixed[name], params)
        else:
            rows.append(Setting(name, None, None, params))
    return rows


def reference_rows(study: Study, axes: Iterable[str]) -> list[Setting]:
    """`fair_carbon` at every index of each axis: what `cheapest` chooses among."""
    fair = study.preset("fair_carbon")
    return [row for axis in axes for row in _at_each(study, _REFERENCE, axis, fair)]


def cheapest(rows: list[Setting], axis: str, carbon_g: np.ndarray, params: RouterParams) -> int:
    """The index of an axis with the least `fair_carbon` carbon, of those that a policy allows.

    Args:
      rows: P settings; of these, the `reference_rows` of the axis count.
      axis: model, gpu or region.
      carbon_g: `[P]`, of each setting.
      params: the policy.
    """
    candidates = {
        row.index: carbon_g[n]
        for n, row in enumerate(rows)
        if row.policy == _REFERENCE and row.axis == axis and row.index is not None
    }
    mask = np.broadcast_to(getattr(params, f"{axis}_allowed"), len(candidates))
    allowed = [index for index in candidates if mask[index] > 0]
    return min(allowed, key=candidates.__getitem__)


def fix(study: Study, params: RouterParams, axis: str, index: int) -> RouterParams:
    """The policy with all but one index of an axis masked."""
    mask = f"{axis}_allowed"
    only = catalogue.only(index, _size(study, axis))
    return params.replace(**{mask: getattr(params, mask) * only})


def entries(study: Study, axis: str) -> list[str]:
    """The names of the indices of an axis."""
    return list(getattr(study.config.fleet, f"{axis}s"))


def resolved(study: Study, dataset: Dataset) -> dict[str, RouterParams]:
    """The policies of a study, those with a fixed axis masked as `compare` masks them."""
    return masked(study, fixed(study, dataset))


def fixed(study: Study, dataset: Dataset) -> dict[str, str]:
    """The name that `compare` masks each policy with a fixed axis to (`Comparison.fixed`)."""
    rows = reference_rows(study, dict.fromkeys(study.fixed.values()))
    if not rows:
        return {}
    outcome = replay(study, dataset, stack(row.params for row in rows))
    return fixed_by(study, rows, stats.bills(outcome.totals).sum((0, 2)))


def masked(study: Study, names: Mapping[str, str]) -> dict[str, RouterParams]:
    """The policies of a study, those with a fixed axis masked to the name that `fixed` gives."""
    named = dict(study.policies)
    for policy, axis in study.fixed.items():
        named[policy] = fix(study, named[policy], axis, entries(study, axis).index(names[policy]))
    return named


def _compared(study: Study, dataset: Dataset, report: Within) -> stats.Outcome:
    """The outcome of the study's policies, in order, then the hindsight plan if it is bounded."""
    rows = settings(study)
    filters = study.preset("fair_carbon") if study.bounded else None
    outcome = replay_each(study, dataset, [row.params for row in rows], report, filters=filters)
    names = fixed_by(study, rows, stats.bills(outcome.totals).sum((0, 2)))
    kept = []
    for policy in study.policies:
        own = [n for n, row in enumerate(rows) if row.policy == policy]
        axis = study.fixed.get(policy)
        kept.append(own[entries(study, axis).index(names[policy]) if axis else 0])
    if study.bounded:
        kept.append(len(rows))
    return dataclasses.replace(only(outcome, kept), fixed=names)


def fixed_by(study: Study, rows: list[Setting], carbon_g: np.ndarray) -> dict[str, str]:
    """The name that each policy with a fixed axis is masked to, by the carbon `[P]` of settings."""
    return {
        name: entries(study, axis)[cheapest(rows, axis, carbon_g, study.policies[name])]
        for name, axis in study.fixed.items()
    }


def _size(study: Study, axis: str) -> int:
    return int(np.asarray(getattr(study.world.fleet, axis)).max()) + 1


def _at_each(study: Study, name: str, axis: str, params: RouterParams) -> list[Setting]:
    return [
        Setting(name, axis, index, fix(study, params, axis, index))
        for index in range(_size(study, axis))
    ]
