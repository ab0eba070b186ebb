"""From per-session sums to tables: means, savings, and how sure they are."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from jaxroute import bootstrap, latency, served
from jaxroute.config import BOUND_ROW, PLAN_ROW
from jaxroute.dataset import Dataset
from jaxroute.load_tables import by_bin, columns, swings
from jaxroute.loading import Loading
from jaxroute.simulate import FIELDS
from jaxroute.study import Study

Floats = NDArray[np.float64]

LENGTHS = {"1": (1, 1), "2-5": (2, 5), "6-10": (6, 10), "11-30": (11, 30), ">30": (31, np.inf)}
"""Buckets of session length, turns, both ends included."""

PARTS = ("carbon_prefill_g", "carbon_rebuild_g", "carbon_decode_g", "carbon_embodied_g")
BILL = ("water_l", "cost_usd")
SAVINGS = ("saving_pct", "saving_lo_pct", "saving_hi_pct")
CAPTURED = ("captured_of_plan_pct", "captured_of_bound_pct")
COUNTS = (
    *("moves", "returns", "rebuilt_tokens"),
    *("mask_fallbacks", "quality_fallbacks", "ttft_fallbacks"),
)
"""Whole numbers that the bound has none of: nullable integers in the tables."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """What a replay of N retentions and P policies left of S sessions on D deployments.

    The last of the policies is the hindsight plan if there is a bound.

    Attributes:
      totals: by the names of `jaxroute.simulate.Totals`, `[N, P, S]` each.
      latency: histograms by the names of `jaxroute.latency.Latency`, `[N, P, BINS]` each.
      deployment_turns, deployment_carbon_g: `[N, P, HOURS, D]`, by the hour of the UTC day.
      bound_carbon_g: `[S]`, which no policy under the study's floor goes below, or None.
      fixed: the name that each policy with a fixed axis was masked to.
      loading: the loads that the policies settled on, or None where sessions never meet.
      compile_s, replay_s: seconds spent compiling and replaying.
    """

    totals: Mapping[str, NDArray[np.floating]]
    latency: Mapping[str, Floats]
    deployment_turns: NDArray[np.int64]
    deployment_carbon_g: Floats
    bound_carbon_g: Floats | None
    fixed: Mapping[str, str]
    loading: Loading | None
    compile_s: float
    replay_s: float


def bills(totals: Mapping[str, NDArray[np.floating]]) -> Floats:
    """gCO2e of each session, in float64: prefill + decode + embodied."""
    parts = [totals[f"carbon_{part}_g"] for part in ("prefill", "decode", "embodied")]
    return np.sum(parts, axis=0, dtype=np.float64)


def saving_pct(carbon_g: Floats, baseline_g: Floats) -> Floats:
    """`100 (1 - carbon / baseline)`; NaN where the baseline emitted nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(baseline_g > 0, 100 * (1 - carbon_g / baseline_g), np.nan)


def unserved_pct(sums: Mapping[str, Floats]) -> Floats:
    """Turns unserved, % of all; NaN where there are none."""
    with np.errstate(invalid="ignore"):
        return 100 * sums["unserved"] / (sums["turns"] + sums["unserved"])


def captured_pct(saving_pct: Floats, attainable_pct: Floats) -> Floats:
    """`100 saving / attainable`; NaN where nothing can be saved.

    >>> captured_pct(np.array([6.0, 1.0]), np.array([8.0, -2.0])).tolist()
    [75.0, nan]
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(attainable_pct > 0, 100 * saving_pct / attainable_pct, np.nan)


def tables(study: Study, dataset: Dataset, outcome: Outcome) -> dict[str, pd.DataFrame]:
    """The tables of a dataset, by the names of `jaxroute.comparison.TABLES`."""
    bounded = outcome.bound_carbon_g is not None
    replayed = [*study.policies, *([PLAN_ROW] if bounded else [])]
    listed = [*replayed, *([BOUND_ROW] if bounded else [])]
    base = replayed.index(study.config.baseline)
    totals, carbon = _with_bound(outcome)
    limits_s = study.config.slo.model_dump()
    times = {
        name: np.pad(values, ((0, 0), (0, int(bounded))), constant_values=np.nan)
        for name, values in latency.columns(outcome.latency, limits_s).items()
    }
    bucket = np.select(
        [dataset.lengths <= high for _, high in LENGTHS.values()], range(len(LENGTHS))
    )
    sums = bootstrap.sums(
        carbon,
        carbon[:, base : base + 1],
        dataset.hashes,
        study.config.seed,
        group=bucket,
        groups=len(LENGTHS),
    )
    half_pct = 100 * bootstrap.half_width(np.concatenate([sums, sums.sum(0, keepdims=True)]))

    counts = outcome.deployment_turns, outcome.deployment_carbon_g
    labelled = functools.partial(_labelled, study, dataset)
    summary = _summary(totals, carbon, half_pct[-1], base, bounded, times, dataset.truncated)
    return {
        "summary": labelled(listed, _with_load(summary, outcome)),
        "by_length": labelled(listed, _by_length(totals, carbon, half_pct, base, bucket)),
        "shares": labelled(replayed, _flat(served.by_deployment(*counts, study.deployments))),
        "served": labelled(replayed, _flat(served.by_hour(*counts, study.deployments))),
        "sessions": labelled(listed, _sessions(totals, carbon, dataset.session_ids)),
        **_load(study, dataset, outcome),
    }


def summary(
    study: Study,
    dataset: Dataset,
    outcome: Outcome,
    names: Sequence[str],
    baseline: str,
) -> pd.DataFrame:
    """The summary of P settings without bounds, of these names: savings against one of them."""
    base, carbon = list(names).index(baseline), bills(outcome.totals)
    sums = bootstrap.sums(carbon, carbon[:, base : base + 1], dataset.hashes, study.config.seed)
    half_pct = 100 * bootstrap.half_width(sums[0])
    times = latency.columns(outcome.latency, study.config.slo.model_dump())
    table = _summary(outcome.totals, carbon, half_pct, base, False, times, dataset.truncated)
    table = _with_load(table.drop(columns=list(CAPTURED)), outcome)
    return _labelled(study, dataset, names, table)


def _with_load(summary: pd.DataFrame, outcome: Outcome) -> pd.DataFrame:
    """A summary with the columns of `jaxroute.load_tables.columns`, if there is load."""
    if outcome.loading is None:
        return summary
    return pd.concat([summary, _flat(columns(outcome.loading))], axis=1)


def _labelled(
    study: Study, dataset: Dataset, names: Sequence[str], table: pd.DataFrame
) -> pd.DataFrame:
    """A table of rows `[N, P, ...]` with columns dataset, retention and policy before its own."""
    index = pd.MultiIndex.from_product(
        [[dataset.label], list(study.retentions), names], names=["dataset", "retention", "policy"]
    ).to_frame(index=False)
    rows = index.loc[index.index.repeat(len(table) // len(index))].reset_index(drop=True)
    return pd.concat([rows, table], axis=1)


def _with_bound(outcome: Outcome) -> tuple[Mapping[str, NDArray[np.floating]], Floats]:
    """Totals and bills with the bound, if there is one, as the last row.

    Its carbon is no plan's: of the totals it has the turns alone, and NaN for the rest.
    """
    totals, carbon = outcome.totals, bills(outcome.totals)
    if outcome.bound_carbon_g is None:
        return totals, carbon
    turns = {name: totals[name][:, -1:] for name in ("turns", "unserved")}
    unknown = np.full_like(totals["turns"][:, -1:], np.nan)
    extended = {
        name: np.concatenate([values, turns.get(name, unknown)], axis=1)
        for name, values in totals.items()
    }
    bound = np.broadcast_to(outcome.bound_carbon_g, unknown.shape)
    return extended, np.concatenate([carbon, bound], axis=1)


def _load(study: Study, dataset: Dataset, outcome: Outcome) -> dict[str, pd.DataFrame]:
    """`load`, a row a policy, deployment and quarter of an hour that serves turns, and `swings`."""
    found = {"load": [pd.DataFrame()], "swings": [pd.DataFrame()]}
    for n, policy in enumerate(study.policies):
        if outcome.loading is None:
            break
        at = outcome.loading, study.deployments, 0, n
        for name, rows in (("load", pd.DataFrame(by_bin(*at))), ("swings", swings(*at))):
            keys = pd.DataFrame({"dataset": dataset.label, "policy": policy}, index=rows.index)
            found[name].append(pd.concat([keys, rows], axis=1))
    return {name: pd.concat(parts, ignore_index=True) for name, parts in found.items()}


def _flat(columns: Mapping[str, NDArray]) -> pd.DataFrame:
    """Columns `[N, P, ...]` as rows in that order."""
    return pd.DataFrame({name: np.asarray(values).ravel() for name, values in columns.items()})


def _summary(
    totals: Mapping[str, NDArray],
    carbon: Floats,
    half_pct: Floats,
    base: int,
    bounded: bool,
    times: Mapping[str, Floats],
    truncated: int,
) -> pd.DataFrame:
    """One row a retention and policy: `measures`, savings in %, their shares of plan and bound."""
    sums = {name: totals[name].sum(-1, dtype=np.float64) for name in FIELDS}
    total = carbon.sum(-1)
    saving = saving_pct(total, total[:, base : base + 1])
    attainable = saving[:, -2:] if bounded else np.full((len(saving), 2), np.nan)
    table = _flat(
        measures(sums, total, times, sessions=carbon.shape[-1], truncated=truncated)
        | dict(zip(SAVINGS, (saving, saving - half_pct, saving + half_pct), strict=True))
        | {name: captured_pct(saving, attainable[:, n : n + 1]) for n, name in enumerate(CAPTURED)}
    )
    return table.astype(dict.fromkeys(COUNTS, "Int64"))


def measures(
    sums: Mapping[str, Floats],
    carbon_g: Floats,
    times: Mapping[str, Floats],
    *,
    sessions: int,
    truncated: int,
) -> dict[str, NDArray]:
    """Sums over sessions, `[...]` each by the names of `Totals`, as the columns of a summary.

    Those of `times` (`jaxroute.latency.columns`) among them; means are per served turn. `cost_usd`
    is NaN where a turn was served in a region without a price. `truncated` turns were cut for every
    policy alike.
    """
    with np.errstate(invalid="ignore"):
        mean = {name: sums[name] / sums["turns"] for name in ("ttft_s", "e2e_s", "quality")}
    return (
        {"sessions": np.full(carbon_g.shape, sessions)}
        | {name: _counts(sums[name]) for name in ("turns", "unserved")}
        | {"unserved_pct": unserved_pct(sums), "truncated": np.full(carbon_g.shape, truncated)}
        | {"carbon_g": carbon_g}
        | {name: sums[name] for name in (*PARTS, "energy_kwh", *BILL)}
        | {f"mean_{name}": values for name, values in mean.items()}
        | dict(times)
        | {name: np.rint(sums[name]) for name in COUNTS}
    )


def _by_length(
    totals: Mapping[str, NDArray], carbon: Floats, half_pct: Floats, base: int, bucket: NDArray
) -> pd.DataFrame:
    """One row a retention, policy and bucket of session length, as many as `LENGTHS`.

    `median_session_saving_pct` is the median over sessions of each one's own saving: carbon is so
    heavy-tailed that a total may move while the typical session does not.
    """
    rows = []
    for n, label in enumerate(LENGTHS):
        inside = bucket == n
        sums = {
            name: totals[name][..., inside].sum(-1, dtype=np.float64)
            for name in ("turns", "unserved", *PARTS, *BILL)
        }
        inside_g = carbon[..., inside]
        total = inside_g.sum(-1)
        saving = saving_pct(total, total[:, base : base + 1])
        own = saving_pct(inside_g, inside_g[:, base : base + 1])
        known = ~np.isnan(own).all(-1)
        median = np.full(total.shape, np.nan)
        if inside.any():
            median[known] = np.nanmedian(own[known], axis=-1)
        rows.append(
            {
                "length_bucket": np.full(total.shape, label, object),
                "sessions": np.full(total.shape, inside.sum()),
                "turns": _counts(sums["turns"]),
                "unserved": _counts(sums["unserved"]),
                "unserved_pct": unserved_pct(sums),
                "carbon_g": total,
                **{name: sums[name] for name in (*PARTS, *BILL)},
                "saving_pct": saving,
                "saving_lo_pct": saving - half_pct[n],
                "saving_hi_pct": saving + half_pct[n],
                "median_session_saving_pct": median,
            }
        )
    return _flat({name: np.stack([row[name] for row in rows], axis=-1) for name in rows[0]})


def _sessions(totals: Mapping[str, NDArray], carbon: Floats, session_ids: NDArray) -> pd.DataFrame:
    """One row a retention, policy and session: the sums of `jaxroute.simulate.Totals`."""
    ids = np.broadcast_to(session_ids, carbon.shape)
    return _flat({"session_id": ids, "carbon_g": carbon} | dict(totals))


def _counts(values: Floats) -> NDArray[np.int64]:
    return np.rint(values).astype(np.int64)
