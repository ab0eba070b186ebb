"""The main job: every policy of a study on every dataset, under every retention."""

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping

import jax
import numpy as np
import pandas as pd

from jaxroute import bounds, catalogue, latency, simulate, stats
from jaxroute.dataset import Dataset
from jaxroute.numerics import stack
from jaxroute.policies import RouterParams
from jaxroute.study import Study

Report = Callable[[str, float], None]
"""Told what is being done, and the share of all turns that is done."""

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
      summary, by_length, shares, sessions: as `jaxroute.stats` documents them.
      fixed: by dataset, the name that each `*_fixed_*` policy was masked to.
      compile_s, replay_s: seconds spent compiling and replaying.
    """

    summary: pd.DataFrame
    by_length: pd.DataFrame
    shares: pd.DataFrame
    sessions: pd.DataFrame
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
    tables: dict[str, list[pd.DataFrame]] = {
        name: [] for name in ("summary", "by_length", "shares", "sessions")
    }
    fixed, compile_s, replay_s = {}, 0.0, 0.0
    before, turns = 0, sum(int(dataset.lengths.sum()) for dataset in study.datasets)
    for dataset in study.datasets:
        within = functools.partial(_report_within, report, dataset.label, before, turns)
        outcome = _replay(study, dataset, within)
        before += int(dataset.lengths.sum())
        report(f"{dataset.label}: bootstrap", before / max(turns, 1))
        for name, table in stats.tables(study, dataset, outcome).items():
            tables[name].append(table)
        fixed[dataset.label] = outcome.fixed
        compile_s += outcome.compile_s
        replay_s += outcome.replay_s
    joined = {name: pd.concat(parts, ignore_index=True) for name, parts in tables.items()}
    return Comparison(**joined, fixed=fixed, compile_s=compile_s, replay_s=replay_s)


def _report_within(
    report: Report, label: str, before: int, turns: int, step: str, done: int
) -> None:
    report(f"{label}: {step}", (before + done) / max(turns, 1))


def settings(study: Study) -> list[Setting]:
    """The policies; for each axis that one of them fixes, `fair_carbon` and it at every index."""
    fair = catalogue.preset(
        "fair_carbon", study.world.fleet, quality_floor=study.config.quality_floor
    )
    sizes = {
        axis: int(np.asarray(getattr(study.world.fleet, axis)).max()) + 1
        for axis in study.fixed.values()
    }

    def at_each(name: str, axis: str, params: RouterParams) -> list[Setting]:
        size = sizes[axis]
        return [Setting(name, axis, n, _fix(params, axis, n, size)) for n in range(size)]

    rows = [row for axis in sizes for row in at_each(_REFERENCE, axis, fair)]
    for name, params in study.policies.items():
        if name in study.fixed:
            rows += at_each(name, study.fixed[name], params)
        else:
            rows.append(Setting(name, None, None, params))
    return rows


def resolved(study: Study, dataset: Dataset) -> dict[str, RouterParams]:
    """The policies of a study, those with a fixed axis masked as `compare` masks them."""
    named = dict(study.policies)
    if not study.fixed:
        return named
    fixed = dataclasses.replace(study, policies={name: named[name] for name in study.fixed})
    for name, entry in _replay(fixed, dataset, lambda step, done: None).fixed.items():
        entries = list(getattr(study.config.fleet, f"{study.fixed[name]}s"))
        named[name] = _fix(named[name], study.fixed[name], entries.index(entry), len(entries))
    return named


def _fix(params: RouterParams, axis: str, index: int, size: int) -> RouterParams:
    """The policy with all but one index of an axis masked."""
    mask = f"{axis}_allowed"
    return params.replace(**{mask: getattr(params, mask) * catalogue.only(index, size)})


def _replay(study: Study, dataset: Dataset, report: Callable[[str, int], None]) -> stats.Outcome:
    rows = settings(study)
    params = stack(row.params for row in rows)
    retentions = stack(study.retentions.values())
    filters = catalogue.preset("fair_carbon", quality_floor=study.config.quality_floor)
    deployments = len(study.deployments)
    plan = len(rows)
    shape = (len(study.retentions), plan + 1, len(dataset.lengths))
    totals = {name: np.zeros(shape, np.float32) for name in simulate.FIELDS}
    bound_g = np.zeros(shape[-1])
    counts = {name: np.zeros((*shape[:2], latency.BINS)) for name in latency.FIELDS}
    turns = np.zeros((*shape[:2], deployments), np.int64)
    carbon_g = np.zeros((*shape[:2], deployments))
    compiled, compile_s, replay_s = None, 0.0, 0.0
    for part, sessions in dataset.blocks():
        began = time.perf_counter()
        arguments = params, filters, sessions, study.world, retentions
        if compiled is None:
            report("compile", 0)
            compiled = bounds.evaluate_grid.lower(*arguments, latency=True).compile()
            compile_s = time.perf_counter() - began
            report("replay", 0)
            began = time.perf_counter()
        sums, trace, times, least_g = jax.block_until_ready(compiled(*arguments))
        replay_s += time.perf_counter() - began
        bound_g[part] = np.asarray(least_g)[: part.stop - part.start]
        for name, values in totals.items():
            values[..., part] = np.asarray(getattr(sums, name))[..., : part.stop - part.start]
        for name, histogram in counts.items():
            histogram += np.asarray(getattr(times, name))
        counted = stats.by_deployment(
            np.asarray(trace.decision), np.asarray(trace.carbon_g), deployments
        )
        report("replay", int(dataset.lengths[: part.stop].sum()))
        turns += counted[0]
        carbon_g += counted[1]

    grams = stats.bills(totals).sum((0, 2))
    chosen = {
        name: _cheapest(rows, axis, grams, study.policies[name])
        for name, axis in study.fixed.items()
    }
    kept = [
        n
        for name in study.policies
        for n, row in enumerate(rows)
        if row.policy == name and (row.axis is None or row.index == chosen[name])
    ]
    if study.bounded:
        kept.append(plan)
    return stats.Outcome(
        totals={name: values[:, kept] for name, values in totals.items()},
        latency={name: histogram[:, kept] for name, histogram in counts.items()},
        deployment_turns=turns[:, kept],
        deployment_carbon_g=carbon_g[:, kept],
        bound_carbon_g=bound_g if study.bounded else None,
        fixed={
            name: list(getattr(study.config.fleet, f"{axis}s"))[chosen[name]]
            for name, axis in study.fixed.items()
        },
        compile_s=compile_s,
        replay_s=replay_s,
    )


def _cheapest(rows: list[Setting], axis: str, carbon_g: np.ndarray, params: RouterParams) -> int:
    """The index of an axis with the least `fair_carbon` carbon, of those that a policy allows."""
    candidates = {
        row.index: carbon_g[n]
        for n, row in enumerate(rows)
        if row.policy == _REFERENCE and row.axis == axis and row.index is not None
    }
    mask = np.broadcast_to(getattr(params, f"{axis}_allowed"), len(candidates))
    allowed = [index for index in candidates if mask[index] > 0]
    return min(allowed, key=candidates.__getitem__)
