"""From per-session sums to tables: means, savings, and how sure they are."""

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from jaxroute import draws
from jaxroute.dataset import Dataset
from jaxroute.simulate import FIELDS
from jaxroute.study import Study

Floats = NDArray[np.float64]

REPLICATES = 1000
"""Of the bootstrap."""

INTERVAL = (2.5, 97.5)
"""Percentiles of the replicates: a 95 % interval."""

LENGTHS = {"1": (1, 1), "2-5": (2, 5), "6-10": (6, 10), "11-30": (11, 30), ">30": (31, np.inf)}
"""Buckets of session length, turns, both ends included."""

PARTS = ("carbon_prefill_g", "carbon_rebuild_g", "carbon_decode_g", "carbon_embodied_g")
SAVINGS = ("saving_pct", "saving_lo_pct", "saving_hi_pct")

_SESSIONS_A_CHUNK = 4096


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """What a replay of N retentions and P policies left of S sessions on D deployments.

    Attributes:
      totals: by the names of `jaxroute.simulate.Totals`, `[N, P, S]` each.
      deployment_turns, deployment_carbon_g: `[N, P, D]`.
      fixed: the name that each policy with a fixed axis was masked to.
      compile_s, replay_s: seconds spent compiling and replaying.
    """

    totals: Mapping[str, NDArray[np.floating]]
    deployment_turns: NDArray[np.int64]
    deployment_carbon_g: Floats
    fixed: Mapping[str, str]
    compile_s: float
    replay_s: float


def bills(totals: Mapping[str, NDArray[np.floating]]) -> Floats:
    """gCO2e of each session, in float64: prefill + decode + embodied."""
    parts = [totals[f"carbon_{part}_g"] for part in ("prefill", "decode", "embodied")]
    return np.sum(parts, axis=0, dtype=np.float64)


def by_deployment(
    decision: NDArray[np.int32], carbon_g: NDArray[np.floating], deployments: int
) -> tuple[NDArray[np.int64], Floats]:
    """Turns served and gCO2e of each deployment, `[N, P, D]`, of a trace `[N, P, R, T]`."""
    groups = decision.shape[0] * decision.shape[1]
    flat = decision.reshape(groups, -1) + 1
    flat += np.arange(groups, dtype=np.int32)[:, None] * (deployments + 1)
    size = groups * (deployments + 1)
    shape = (*decision.shape[:2], deployments + 1)
    turns = np.bincount(flat.ravel(), minlength=size)
    grams = np.bincount(flat.ravel(), carbon_g.ravel(), minlength=size)
    return turns.reshape(shape)[..., 1:], grams.reshape(shape)[..., 1:]


def saving_pct(carbon_g: Floats, baseline_g: Floats) -> Floats:
    """`100 (1 - carbon / baseline)`; NaN where the baseline emitted nothing."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(baseline_g > 0, 100 * (1 - carbon_g / baseline_g), np.nan)


def resampled(carbon_g: Floats, hashes: draws.Hashes, seed: int) -> Floats:
    """Bootstrap totals over sessions, `[..., replicates]`, of bills `[..., S]`.

    A Poisson bootstrap: each session enters each replicate Poisson(1) times, the same number for
    every policy and retention, so that differences are paired. Weights are keyed by session: the
    order of sessions does not matter.
    """
    totals = np.zeros((*carbon_g.shape[:-1], REPLICATES))
    for at in range(0, len(hashes), _SESSIONS_A_CHUNK):
        part = slice(at, at + _SESSIONS_A_CHUNK)
        weights = draws.bootstrap_weights(seed, hashes[part], REPLICATES)
        totals += carbon_g[..., part] @ weights.astype(np.float64)
    return totals


def interval(totals_g: Floats, baseline_g: Floats) -> Floats:
    """Lower and upper end of the saving in %, `[..., 2]`, of bootstrap totals `[..., B]`."""
    return percentiles(saving_pct(totals_g, baseline_g))


def percentiles(replicates: Floats) -> Floats:
    """Lower and upper end, `[..., 2]`, of bootstrap replicates `[..., B]` of any figure."""
    if np.isnan(replicates).all():
        return np.full((*replicates.shape[:-1], 2), np.nan)
    return np.moveaxis(np.nanpercentile(replicates, INTERVAL, axis=-1), 0, -1)


def tables(study: Study, dataset: Dataset, outcome: Outcome) -> dict[str, pd.DataFrame]:
    """The four tables of a dataset, by name: summary, by_length, shares, sessions."""
    names = list(study.policies)
    base = names.index(study.config.baseline)
    carbon = bills(outcome.totals)
    bucket = np.select(
        [dataset.lengths <= high for _, high in LENGTHS.values()], range(len(LENGTHS))
    )
    replicates = np.stack(
        [
            resampled(carbon[..., bucket == n], dataset.hashes[bucket == n], study.config.seed)
            for n in range(len(LENGTHS))
        ]
    )
    parts = {
        "summary": _summary(outcome, carbon, replicates.sum(0), base),
        "by_length": _by_length(outcome, carbon, replicates, base, bucket),
        "shares": _shares(outcome, study.deployments),
        "sessions": _sessions(outcome, carbon, dataset.session_ids),
    }
    return {name: _labelled(study, dataset, names, table) for name, table in parts.items()}


def summary(
    study: Study,
    dataset: Dataset,
    outcome: Outcome,
    replicates: Floats,
    names: Sequence[str],
    baseline: str,
) -> pd.DataFrame:
    """The summary of P settings of any names, as `tables` gives that of the study's policies.

    Args:
      study, dataset, outcome: what was replayed.
      replicates: `[N, P, B]`, `resampled` bills.
      names: of the P settings, in order.
      baseline: the one of them that savings are against.
    """
    base = list(names).index(baseline)
    table = _summary(outcome, bills(outcome.totals), replicates, base)
    return _labelled(study, dataset, names, table)


def _labelled(
    study: Study, dataset: Dataset, names: Sequence[str], table: pd.DataFrame
) -> pd.DataFrame:
    """A table of rows `[N, P, ...]` with columns dataset, retention and policy before its own."""
    index = pd.MultiIndex.from_product(
        [[dataset.label], list(study.retentions), names], names=["dataset", "retention", "policy"]
    ).to_frame(index=False)
    index = index.loc[index.index.repeat(len(table) // len(index))].reset_index(drop=True)
    return pd.concat([index, table], axis=1)


def _flat(columns: Mapping[str, NDArray]) -> pd.DataFrame:
    """Columns `[N, P, ...]` as rows in that order."""
    return pd.DataFrame({name: np.asarray(values).ravel() for name, values in columns.items()})


def _summary(outcome: Outcome, carbon: Floats, replicates: Floats, base: int) -> pd.DataFrame:
    """One row a retention and policy. Sums, but for means per served turn and savings in %."""
    sums = {name: outcome.totals[name].sum(-1, dtype=np.float64) for name in FIELDS}
    total = carbon.sum(-1)
    ends = interval(replicates, replicates[:, base : base + 1])
    with np.errstate(invalid="ignore"):
        mean = {name: sums[name] / sums["turns"] for name in ("ttft_s", "e2e_s", "quality")}
    return _flat(
        {"sessions": np.full(total.shape, carbon.shape[-1])}
        | {name: _counts(sums[name]) for name in ("turns", "unserved")}
        | {"carbon_g": total}
        | {name: sums[name] for name in PARTS}
        | {"energy_kwh": sums["energy_kwh"]}
        | {f"mean_{name}": values for name, values in mean.items()}
        | {
            name: _counts(sums[name])
            for name in ("moves", "returns", "rebuilt_tokens")
            + ("mask_fallbacks", "quality_fallbacks", "ttft_fallbacks")
        }
        | dict(
            zip(
                SAVINGS,
                (saving_pct(total, total[:, base : base + 1]), ends[..., 0], ends[..., 1]),
                strict=True,
            )
        )
    )


def _by_length(
    outcome: Outcome, carbon: Floats, replicates: Floats, base: int, bucket: NDArray
) -> pd.DataFrame:
    """One row a retention, policy and bucket of session length, as many as `LENGTHS`.

    `median_session_saving_pct` is the median over sessions of each one's own saving: carbon is so
    heavy-tailed that a total may move while the typical session does not.
    """
    rows = []
    for n, label in enumerate(LENGTHS):
        inside = bucket == n
        sums = {
            name: outcome.totals[name][..., inside].sum(-1, dtype=np.float64)
            for name in ("turns", "unserved", *PARTS)
        }
        inside_g = carbon[..., inside]
        total = inside_g.sum(-1)
        ends = interval(replicates[n], replicates[n][:, base : base + 1])
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
                "carbon_g": total,
                **{name: sums[name] for name in PARTS},
                "saving_pct": saving_pct(total, total[:, base : base + 1]),
                "saving_lo_pct": ends[..., 0],
                "saving_hi_pct": ends[..., 1],
                "median_session_saving_pct": median,
            }
        )
    return _flat({name: np.stack([row[name] for row in rows], axis=-1) for name in rows[0]})


def _shares(outcome: Outcome, deployments: pd.DataFrame) -> pd.DataFrame:
    """One row a retention, policy and deployment: turns served there and their gCO2e."""
    shape = outcome.deployment_turns.shape
    names = {
        column: np.broadcast_to(deployments[column].to_numpy(object), shape)
        for column in ("model", "gpu", "region")
    }
    return _flat(
        names | {"turns": outcome.deployment_turns, "carbon_g": outcome.deployment_carbon_g}
    )


def _sessions(outcome: Outcome, carbon: Floats, session_ids: NDArray) -> pd.DataFrame:
    """One row a retention, policy and session: the sums of `jaxroute.simulate.Totals`."""
    ids = np.broadcast_to(session_ids, carbon.shape)
    return _flat({"session_id": ids, "carbon_g": carbon} | dict(outcome.totals))


def _counts(values: Floats) -> NDArray[np.int64]:
    return np.rint(values).astype(np.int64)
