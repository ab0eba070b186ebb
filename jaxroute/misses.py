"""Where a router still loses to the hindsight plan: which decisions, at which turns, and why."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from jaxroute import bounds, comparison, wishes
from jaxroute.config import PLAN_ROW
from jaxroute.foresight import foreseeing_gate
from jaxroute.gate import FEATURES
from jaxroute.study import Study

KINDS = (
    *("stayed, the wish was right", "stayed, a third was right"),
    *("left, staying was right", "left, a third was right"),
    *("did not wish to leave", "first turn"),
)
"""What was done, and what hindsight would have done from there."""

LATE_TURN, LONG_TOKENS = 10, 4096
"""From which on a turn is late and a prefix long."""

GROUP = ("kind", "late", "long_prefix")


def table(study: Study, policy: str, summary: pd.DataFrame) -> pd.DataFrame:
    """What the wrong decisions of a policy cost, where the hindsight plan is an optimum.

    Each decision is charged what it cost more than the best one from where the session was
    (`jaxroute.regret`): the losses add up to the policy's carbon less the plan's.

    Args:
      study: with the policy.
      policy: its name.
      summary: of a comparison of the study, with the plan.

    Returns:
      One row a dataset, retention, kind (`KINDS`), late or early turn, long or short prefix, those
      that cost most first: `decisions`, `lost_g`, `lost_pct` of the policy's excess over the plan,
      `captured_points`, the loss in % of what the plan saves, and weighted by the loss the means of
      `turn`, `prefix_tokens`, `p_back` and the features.
    """
    rows = [pd.DataFrame(columns=["dataset", "retention", *GROUP])]
    for dataset, label, params, world, (baseline_g, plan_g) in _dropping(study, policy, summary):
        told = wishes.turns(params, dataset, world, regret=True)
        lost = grouped(told, baseline_g - plan_g)
        rows.append(lost.assign(dataset=dataset.label, retention=label))
    joined = pd.concat(rows, ignore_index=True)
    return joined[["dataset", "retention", *joined.columns.drop(["dataset", "retention"])]]


def ceilings(study: Study, policy: str, summary: pd.DataFrame) -> pd.DataFrame:
    """What the best gate on a policy's scores captures, where the hindsight plan is an optimum.

    Args:
      study, policy, summary: as for `table`.

    Returns:
      One row a dataset and retention: `captured_of_plan_pct` of a gate that knows the future
      (`jaxroute.foresight`), in its place.
    """
    rows = []
    for dataset, label, params, world, (baseline_g, plan_g) in _dropping(study, policy, summary):
        grams = [
            np.asarray(foreseeing_gate(params, sessions, world), np.float64)[
                : part.stop - part.start
            ]
            for part, sessions in dataset.blocks()
        ]
        captured = 100 * (baseline_g - np.concatenate(grams).sum()) / (baseline_g - plan_g)
        rows.append((dataset.label, label, captured))
    return pd.DataFrame(rows, columns=["dataset", "retention", "captured_of_plan_pct"])


def _dropping(study: Study, policy: str, summary: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    """Dataset, retention, policy, world, carbon of baseline and plan, where the plan is best."""
    for dataset in study.datasets if study.bounded else ():
        params = comparison.resolved(study.with_policies([policy]), dataset)[policy]
        for label, retention in study.retentions.items():
            if not bounds.drops_only(retention):
                continue
            grams = summary[(summary["dataset"] == dataset.label) & (summary["retention"] == label)]
            carbon_g = grams.set_index("policy")["carbon_g"]
            ends_g = carbon_g[study.config.baseline], carbon_g[PLAN_ROW]
            yield dataset, label, params, study.world.replace(retention=retention), ends_g


def kinds(told: pd.DataFrame) -> pd.Series:
    """Of each turn of `wishes.turns(regret=True)`, what was done amiss, one of `KINDS`."""
    stayed, asked = told["decision"] == told["last"], told["asked"]
    cases = [
        told["last"] < 0,
        stayed & ~asked,
        stayed & (told["best"] == told["wished"]),
        stayed,
        told["best"] == told["last"],
    ]
    names = [KINDS[n] for n in (5, 4, 0, 1, 2)]
    return pd.Series(np.select(cases, names, KINDS[3]), told.index)


def grouped(told: pd.DataFrame, attainable_g: float) -> pd.DataFrame:
    """The rows of `table` of one replay, of which the plan saves `attainable_g`."""
    wrong = told[told["lost_g"] > 0].copy()
    wrong["kind"] = kinds(wrong)
    wrong["late"] = wrong["turn"] >= LATE_TURN
    wrong["long_prefix"] = wrong["prefix_tokens"] >= LONG_TOKENS
    wrong["lost_g"] = wrong["lost_g"].astype(np.float64)
    means = ["turn", "prefix_tokens", "p_back", *FEATURES]
    wrong[means] = wrong[means].astype(np.float64).mul(wrong["lost_g"], axis=0)
    groups = wrong.groupby(list(GROUP))
    table = groups["lost_g"].agg(decisions="count", lost_g="sum")
    table["lost_pct"] = 100 * table["lost_g"] / table["lost_g"].sum()
    table["captured_points"] = 100 * table["lost_g"] / attainable_g
    table = table.join(groups[means].sum().div(table["lost_g"], axis=0))
    return table.sort_values("lost_g", ascending=False).reset_index()
