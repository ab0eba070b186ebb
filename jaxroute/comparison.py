"""The main job: every policy of a study on every dataset, under every retention."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import jax
import numpy as np
import pandas as pd

from jaxroute import catalogue, simulate, stats
from jaxroute.dataset import Dataset
from jaxroute.numerics import stack
from jaxroute.policies import RouterParams
from jaxroute.study import Study
from jaxroute.world import Fleet

Report = Callable[[str, float], None]
"""Told what is being done, and the share of all turns that is done."""

Within = Callable[[str, float], None]
"""Told what is being done, and how many turns of one dataset are done."""

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
    for dataset, within in each_dataset(study, report):
        outcome = _compared(study, dataset, within)
        within("bootstrap", int(dataset.lengths.sum()))
        for name, table in stats.tables(study, dataset, outcome).items():
            tables[name].append(table)
        fixed[dataset.label] = outcome.fixed
        compile_s += outcome.compile_s
        replay_s += outcome.replay_s
    joined = {name: pd.concat(parts, ignore_index=True) for name, parts in tables.items()}
    return Comparison(**joined, fixed=fixed, compile_s=compile_s, replay_s=replay_s)


def each_dataset(study: Study, report: Report) -> Iterator[tuple[Dataset, Within]]:
    """The datasets, each with a `Within` that passes on to `report`."""
    turns = [int(dataset.lengths.sum()) for dataset in study.datasets]
    for n, dataset in enumerate(study.datasets):

        def within(step: str, done: float, before: int = sum(turns[:n]), name: str = dataset.label):
            report(f"{name}: {step}", (before + done) / max(sum(turns), 1))

        yield dataset, within


def settings(study: Study) -> list[Setting]:
    """The policies; for each axis that one of them fixes, `fair_carbon` and it at every index."""
    axes = dict.fromkeys(study.fixed.values())
    rows = [row for axis in axes for row in reference_rows(study, axis)]
    for name, params in study.policies.items():
        if name in study.fixed:
            rows += _at_each(study, name, study.fixed[name], params)
        else:
            rows.append(Setting(name, None, None, params))
    return rows


def masked(fleet: Fleet, params: RouterParams, axis: str, index: int) -> RouterParams:
    """The setting with every index of an axis (model, gpu or region) masked but one."""
    mask = f"{axis}_allowed"
    only = catalogue.only(index, _size(fleet, axis))
    return params.replace(**{mask: getattr(params, mask) * only})


def reference_rows(study: Study, axis: str) -> list[Setting]:
    """`fair_carbon` at every index of an axis: what `cheapest` chooses among."""
    floor = study.config.quality_floor
    fair = catalogue.preset("fair_carbon", study.world.fleet, quality_floor=floor)
    return _at_each(study, _REFERENCE, axis, fair)


def cheapest(rows: list[Setting], axis: str, carbon_g: np.ndarray) -> int:
    """The index of an axis with the least carbon among its `reference_rows`.

    Args:
      rows: P settings, of which others than those of the axis are passed over.
      axis: model, gpu or region.
      carbon_g: `[P]`, of each row.
    """
    candidates = {
        row.index: carbon_g[n]
        for n, row in enumerate(rows)
        if row.policy == _REFERENCE and row.axis == axis and row.index is not None
    }
    return min(candidates, key=candidates.__getitem__)


def replay(
    study: Study, dataset: Dataset, settings: Sequence[RouterParams], report: Within
) -> stats.Outcome:
    """Replays a dataset under P settings and each of the study's N retentions.

    One compiled program, which another call with as many settings finds compiled.
    """
    params = stack(settings)
    retentions = stack(study.retentions.values())
    deployments = len(study.deployments)
    shape = (len(study.retentions), len(settings), len(dataset.lengths))
    totals = {name: np.zeros(shape, np.float32) for name in simulate.FIELDS}
    turns = np.zeros((*shape[:2], deployments), np.int64)
    carbon_g = np.zeros((*shape[:2], deployments))
    compiled, compile_s, replay_s = None, 0.0, 0.0
    for part, sessions in dataset.blocks():
        began = time.perf_counter()
        if compiled is None:
            report("compile", 0)
            compiled = simulate.evaluate_grid.lower(
                params, sessions, study.world, retentions
            ).compile()
            compile_s = time.perf_counter() - began
            report("replay", 0)
            began = time.perf_counter()
        sums, trace = jax.block_until_ready(compiled(params, sessions, study.world, retentions))
        replay_s += time.perf_counter() - began
        for name, values in totals.items():
            values[..., part] = np.asarray(getattr(sums, name))[..., : part.stop - part.start]
        counted = stats.by_deployment(
            np.asarray(trace.decision), np.asarray(trace.carbon_g), deployments
        )
        report("replay", int(dataset.lengths[: part.stop].sum()))
        turns += counted[0]
        carbon_g += counted[1]
    return stats.Outcome(
        totals=totals,
        deployment_turns=turns,
        deployment_carbon_g=carbon_g,
        fixed={},
        compile_s=compile_s,
        replay_s=replay_s,
    )


def _compared(study: Study, dataset: Dataset, report: Within) -> stats.Outcome:
    """The outcome of the study's policies, in order."""
    rows = settings(study)
    outcome = replay(study, dataset, [row.params for row in rows], report)
    grams = stats.bills(outcome.totals).sum((0, 2))
    chosen = {axis: cheapest(rows, axis, grams) for axis in study.fixed.values()}
    kept = [
        n
        for name in study.policies
        for n, row in enumerate(rows)
        if row.policy == name and (row.axis is None or row.index == chosen[row.axis])
    ]
    return dataclasses.replace(
        outcome,
        totals={name: values[:, kept] for name, values in outcome.totals.items()},
        deployment_turns=outcome.deployment_turns[:, kept],
        deployment_carbon_g=outcome.deployment_carbon_g[:, kept],
        fixed={
            name: list(getattr(study.config.fleet, f"{axis}s"))[chosen[axis]]
            for name, axis in study.fixed.items()
        },
    )


def _size(fleet: Fleet, axis: str) -> int:
    return int(np.asarray(getattr(fleet, axis)).max()) + 1


def _at_each(study: Study, name: str, axis: str, params: RouterParams) -> list[Setting]:
    fleet = study.world.fleet
    return [
        Setting(name, axis, index, masked(fleet, params, axis, index))
        for index in range(_size(fleet, axis))
    ]
