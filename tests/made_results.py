"""Made-up results as the commands leave them, small: for the tests of the report."""

import json

import numpy as np
import pandas as pd

import jaxroute as jr
from jaxroute.ablation import IN_ORDER, OFF_ALONE, REST, ROUTER, START, STEPS, TOTAL
from jaxroute.config import BOUND_ROW, PLAN_ROW
from jaxroute.report import kinds

POLICIES = ("carbon_router", "carbon_router_no_gate", "fair_carbon", "smallest_model")
BUCKETS = ("1", "2-5", ">30")


def summary(policies=POLICIES, retentions=("keep", "drop"), dataset="trace", bounded=True):
    """One row a retention and policy; the plan and the bound last."""
    names = [*policies, *([PLAN_ROW, BOUND_ROW] if bounded else [])]
    index = pd.MultiIndex.from_product([[dataset], retentions, names], names=kinds.KEYS)
    table = index.to_frame(index=False)
    at = np.arange(len(table), dtype=float)
    parts = {"prefill": 20 + at, "rebuild": 21.0 + 0 * at, "decode": 60 + 2 * at, "embodied": 5.0}
    for name, values in parts.items():
        table[f"carbon_{name}_g"] = values
    table["carbon_g"] = table[list(kinds.PARTS)].sum(axis=1)
    table = table.assign(
        turns=1000, unserved=0, unserved_pct=0.1, mean_quality=0.5 + 0.01 * (at % 3),
        mean_ttft_s=0.2, mean_e2e_s=4 + at, moves=100 + at.astype(int), returns=40,
    )  # fmt: skip
    table["moves"] = table["moves"].astype("Int64")
    table["returns"] = table["returns"].astype("Int64")
    base = table[table["policy"] == "fair_carbon"].set_index("retention")["carbon_g"]
    table["saving_pct"] = 100 * (1 - table["carbon_g"] / table["retention"].map(base))
    table["saving_lo_pct"], table["saving_hi_pct"] = (table["saving_pct"] + d for d in (-3, 3))
    table.loc[table["policy"] == "smallest_model", "mean_quality"] = 0.3
    bound = table["policy"] == BOUND_ROW
    unknown = [*(f"carbon_{name}_g" for name in parts), "mean_quality", "mean_e2e_s", "mean_ttft_s"]
    table.loc[bound, [*unknown, "moves", "returns"]] = pd.NA
    return table


def by_length(rows):
    """Every row of a summary in each bucket of session length."""
    return pd.concat(
        rows.assign(length_bucket=name, sessions=9 * (n + 1)) for n, name in enumerate(BUCKETS)
    )


def served(rows, regions=("DE", "SG")):
    """Turns by region and hour of every row of a summary but the bound."""
    real = rows[rows["policy"] != BOUND_ROW][list(kinds.KEYS)]
    hours = pd.DataFrame(
        [(r, h, (n + 1) * (h % 23), 0.5 * h) for n, r in enumerate(regions) for h in range(24)],
        columns=["region", "hour_utc", "turns", "carbon_g"],
    )
    return real.merge(hours, how="cross")


def record(**more):
    """What every `run.json` has."""
    return {
        "results_version": jr.RESULTS_VERSION,
        "versions": {"jax": "0.10.1"},
        "device": {"platform": "cpu", "count": 1},
        "seed": 7,
        "study": {"name": "made up", "baseline": "fair_carbon"},
        "inputs_sha256": {"trace.csv": "ab" * 32},
        "notes": ["trace: 27 sessions"],
        "wall_s": 1.5,
    } | more


def write(directory, tables, told):
    """The tables as CSV, and the record."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        table.to_csv(directory / f"{name}.csv", index=False, float_format="%.9g")
    (directory / "run.json").write_text(json.dumps(told))
    return directory


def compared(directory, rows=None, *, hours=True, **more):
    """As `compare` leaves it; without the hours, as an earlier version did."""
    rows = summary() if rows is None else rows
    tables = {"summary": rows, "by_length": by_length(rows)}
    tables |= {"served": served(rows)} if hours else {}
    return write(directory, tables, record(policies={"carbon_router": {}}, **more))


def varied(directory, seeds=2):
    """As `study` leaves it."""
    labels = [(f, s) for f in ("floor 0.6", "slack <0.1>") for s in range(seeds)]
    rows = pd.concat(summary(bounded=False).assign(filter=f, seed=s) for f, s in labels)
    cells = [
        {"filter": f, "seed": s, "dataset": "trace", "notes": ["of every cell"]} for f, s in labels
    ]
    told = record(cells=cells, left_out=["other.csv is not on this machine"])
    study = told.pop("study")
    told.pop("inputs_sha256")
    write(directory, {"summary": rows, "by_length": by_length(rows)}, told)
    plan = {"cells": [{"study": study}] * len(cells), "inputs_sha256": {"trace.csv": "cd" * 32}}
    (directory / "plan.json").write_text(json.dumps(plan))
    return directory


def swept(directory, count=40):
    """As `sweep` leaves it."""
    at = np.arange(count, dtype=float)
    table = pd.DataFrame({name: at for name in kinds.SWEPT if name not in ("dataset", "retention")})
    table = table.assign(
        dataset="trace", retention="keep", setting=at.astype(int), gate_strength=at / 10,
        mean_quality=0.5 + 0.001 * at, carbon_g=100 + (at - 10) ** 2, baseline_carbon_g=120.0,
        baseline_mean_quality=0.52, turns=1000, pareto=at % 4 == 0,
    )  # fmt: skip
    told = record(objectives=["carbon_g", "mean_quality"], decisions=40_000)
    told["study"] |= {"sweep": {"space": {"gate_strength": {"low": 0, "high": 4}}}}
    write(directory, {}, told)
    table.to_parquet(directory / "sweep.parquet", index=False)
    return directory


def tuned(directory):
    """As `tune` leaves it; one start does not reach the quality asked for."""
    rows = summary(("carbon_router", "fair_carbon", "tuned"))
    gain = {"gain_pct": 1.0, "gain_lo_pct": -0.5, "gain_hi_pct": 2.5}
    tables = {
        "summary": rows,
        "starts": pd.DataFrame(
            {
                "start": [0, 1],
                "gate_strength": [1.0, 0.4],
                "soft": 1.0,
                "learned": [0.9, np.inf],
                "held_out": [0.95, np.inf],
            }
        ),
        "gains": pd.DataFrame(
            [{"dataset": "trace", "retention": "keep", "policy": "tuned", "rival": "sobol"} | gain]
        ),
        "loss": pd.DataFrame(
            [(step, start, 1 / (step + 1), 0.1) for step in range(4) for start in (0, 1)],
            columns=["step", "start", "loss", "temperature"],
        ),
    }
    return write(directory, tables, record(tuned={"gate_strength": 1.0}))


def fitted(directory):
    """As `fit-gate` leaves it."""
    rows = summary(("learned_gate", "carbon_router_no_gate", "fair_carbon"))
    chances = {"count": 5, "mean_chance": 0.3, "observed_share": 0.4}
    tables = {
        "gates": rows,
        "weights": pd.DataFrame({"feature": ["a", "b"], "weight": [1.0, -2], "mean": 0.0, "sd": 1}),
        "reliability": pd.DataFrame([{"dataset": "trace", "rule": "learned"} | chances]),
    }
    return write(directory, tables, record(policy={"preset": "carbon_router"}))


def split(directory):
    """As `ablate` leaves it."""
    names = [START, *(name for name, *_ in STEPS), REST, TOTAL]
    keys = [["trace"], ["keep"], [IN_ORDER, OFF_ALONE], names]
    index = pd.MultiIndex.from_product(keys, names=["dataset", "retention", "way", "component"])
    table = index.to_frame(index=False).assign(share_pct=2.0, share_lo_pct=1.0, share_hi_pct=3.0)
    rows = summary((ROUTER, "fair_carbon"), ("keep",), bounded=False)
    return write(directory, {"summary": rows, "ablation": table}, record())


def loaded(levels=(10, 60, 120)):
    """A table of `capacity`: one policy is not settled, and overflows, at the highest level."""
    rows = pd.concat(summary(retentions=(level,), bounded=False) for level in levels)
    table = rows.rename(columns={"retention": "traffic_pct"}).reset_index(drop=True)
    busy, router = table["traffic_pct"] / 100, table["policy"] == "carbon_router"
    full = router & (table["traffic_pct"] == max(levels))
    return table.assign(
        traffic_pct=table["traffic_pct"].astype(int), arrival_rate=2_000 * busy,
        mean_quality=np.where(table["policy"] == "smallest_model", 0.3, 0.5),
        carbon_idle_g=40 / busy, mean_wait_s=np.where(busy < 0.5, 0, 0.3 * busy),
        hit_ratio_pct=80 - 10 * busy, mean_batch=20 * busy, peak_utilisation=busy,
        overflow_pct=np.where(full, 4.5, 0.0), rounds=np.where(full, 24, 6), settled=~full,
    )  # fmt: skip


def at_capacity(directory):
    """As `capacity` leaves it."""
    told = record(traffic_pct=[10, 60, 120], policies={"carbon_router": {}})
    return write(directory, {"capacity": loaded().astype({"settled": int})}, told)


MADE = {
    "compare": compared,
    "study": varied,
    "sweep": swept,
    "tune": tuned,
    "fit-gate": fitted,
    "ablate": split,
    "capacity": at_capacity,
}
