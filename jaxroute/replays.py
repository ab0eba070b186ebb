"""A dataset replayed under many settings and every retention of a study."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxroute import bounds, latency, served, simulate, stats
from jaxroute.dataset import Dataset
from jaxroute.loading import congestion, joined, loading_of
from jaxroute.numerics import stack
from jaxroute.policies import RouterParams
from jaxroute.study import Study

Within = Callable[[str, float], None]
"""Told what is being done, and how many turns of one dataset are done."""


def replay(
    study: Study,
    dataset: Dataset,
    params: RouterParams,
    report: Within = lambda step, done: None,
    *,
    filters: RouterParams | None = None,
    share: Sequence[float] = (1.0,),
) -> stats.Outcome:
    """Replays a dataset under P settings and each of the study's N retentions.

    One compiled program, which another call with as many settings and retentions finds compiled.

    Args:
      study: its world and its retentions.
      dataset: its sessions.
      params: P settings, `[P, ...]` leaves.
      report: told of each step.
      filters: with them the hindsight plan comes as one setting more, the last, and the bound.
      share: of the study's traffic, with each of its retentions, where it is under load.
    """
    retentions = stack(study.retentions.values())
    bounded = filters is not None
    program = bounds.evaluate_grid if bounded else simulate.evaluate_grid
    given = (params, filters) if bounded else (params,)
    crowds, loading, began = {}, None, time.perf_counter()
    if study.config.load is not None:
        report("settle", 0)
        loading = loading_of(study, dataset, params, share)
        crowds["congestion"] = congestion(loading, study)
    settle_s = time.perf_counter() - began
    deployments = len(study.deployments)
    shape = (len(study.retentions), len(params.carbon_weight) + bounded, len(dataset.lengths))
    totals = {name: np.zeros(shape, np.float32) for name in simulate.FIELDS}
    bound_g = np.zeros(shape[-1])
    counts = {name: np.zeros((*shape[:2], latency.BINS)) for name in latency.FIELDS}
    turns = np.zeros((*shape[:2], served.HOURS, deployments), np.int64)
    carbon_g = np.zeros(turns.shape)
    compiled, compile_s, replay_s = None, 0.0, settle_s
    for part, sessions in dataset.blocks():
        began = time.perf_counter()
        arguments = *given, sessions, study.world, retentions
        if compiled is None:
            report("compile", 0)
            compiled = program.lower(*arguments, latency=True, **crowds).compile()
            compile_s = time.perf_counter() - began
            report("replay", 0)
            began = time.perf_counter()
        sums, trace, times, *least_g = jax.block_until_ready(compiled(*arguments, **crowds))
        replay_s += time.perf_counter() - began
        count = part.stop - part.start
        for name, values in totals.items():
            values[..., part] = np.asarray(getattr(sums, name))[..., :count]
        for name, histogram in counts.items():
            histogram += np.asarray(getattr(times, name))
        for each in least_g:
            bound_g[part] = np.asarray(each)[:count]
        counted = served.tally(
            np.asarray(trace.decision),
            np.asarray(trace.carbon_g),
            np.asarray(sessions.turns.time_bin),
            deployments,
        )
        report("replay", int(dataset.lengths[: part.stop].sum()))
        turns += counted[0]
        carbon_g += counted[1]
    return stats.Outcome(
        totals=totals,
        latency=counts,
        deployment_turns=turns,
        deployment_carbon_g=carbon_g,
        bound_carbon_g=bound_g if bounded else None,
        fixed={},
        loading=loading,
        compile_s=compile_s,
        replay_s=replay_s,
    )


def only(outcome: stats.Outcome, rows: Sequence[int]) -> stats.Outcome:
    """The outcome of some of its settings."""
    return dataclasses.replace(
        outcome,
        totals={name: values[:, rows] for name, values in outcome.totals.items()},
        latency={name: histogram[:, rows] for name, histogram in outcome.latency.items()},
        deployment_turns=outcome.deployment_turns[:, rows],
        deployment_carbon_g=outcome.deployment_carbon_g[:, rows],
        loading=None if outcome.loading is None else outcome.loading.only(rows),
    )


def by_rule(settings: Sequence[RouterParams]) -> list[list[int]]:
    """Indices of the settings, those of one rule (`RouterParams.policy`) together.

    They are one class, so that they can be stacked, and one compiled program replays them.
    """
    groups: dict[type[RouterParams], list[int]] = {}
    for n, params in enumerate(settings):
        groups.setdefault(type(params), []).append(n)
    return list(groups.values())


def replay_each(
    study: Study,
    dataset: Dataset,
    settings: Sequence[RouterParams],
    report: Within = lambda step, done: None,
    *,
    filters: RouterParams | None = None,
    share: Sequence[float] = (1.0,),
) -> stats.Outcome:
    """As `replay`, of settings of any rules, in their order: a call for those of each rule.

    The first call also tells the hindsight plan, the last of the outcome's settings, and the bound.
    """
    groups, outcomes, order = by_rule(settings), [], []
    for n, group in enumerate(groups):

        def told(step: str, done: float, before: int = n * int(dataset.lengths.sum())) -> None:
            report(step, (before + done) / len(groups))

        wanted = filters if n == 0 else None
        params = stack(settings[index] for index in group)
        outcomes.append(replay(study, dataset, params, told, filters=wanted, share=share))
        order += [*group, *([len(settings)] if wanted is not None else [])]
    return outcomes[0] if len(groups) == 1 else only(_joined(outcomes), np.argsort(order).tolist())


def _joined(outcomes: Sequence[stats.Outcome]) -> stats.Outcome:
    """One outcome of the settings of several, the bound being the first one's."""

    def beside(field: str) -> Any:
        parts = [getattr(each, field) for each in outcomes]
        if isinstance(parts[0], Mapping):
            return {name: np.concatenate([p[name] for p in parts], axis=1) for name in parts[0]}
        return np.concatenate(parts, axis=1)

    by_setting = ("totals", "latency", "deployment_turns", "deployment_carbon_g")
    return dataclasses.replace(
        outcomes[0],
        **{field: beside(field) for field in by_setting},
        loading=joined([each.loading for each in outcomes if each.loading is not None]),
        compile_s=sum(each.compile_s for each in outcomes),
        replay_s=sum(each.replay_s for each in outcomes),
    )
