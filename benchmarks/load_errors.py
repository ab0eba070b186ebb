"""How far the mean field of load is from an exact, event-driven replay of the same fleet.

    python benchmarks/load_errors.py [--replicas N] [--load 0.3 --load 0.6 ...] [--policy NAME ...]

Traffic is such that `fair_carbon` fills the fullest deployment, in its fullest quarter of an hour,
about to each load: a whole number of copies of the sessions, as in a part of them the few that
carry most of the carbon would be missing or not. Both then replay the bundled trace at it, the
judge (`event_replay.py`) a day of copies of its sessions, each from a moment of its own in the
quarter of an hour that the session began in.
"""

import argparse
import dataclasses
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks import event_replay
from benchmarks.baselines.python_loop import world_of
from jaxroute.load.files import package_file
from jaxroute.load_tables import columns
from jaxroute.loading import capacity_at, copies_of, settle
from jaxroute.numerics import stack
from jaxroute.replays import replay
from jaxroute.stats import bills
from jaxroute.study import Study, load_study
from jaxroute.timeline import DAY_S, HOUR_S
from jaxroute.world import Retention

LOADS = (0.3, 0.6, 0.85)
POLICIES = ("fair_carbon", "carbon_router", "sticky", "nearest")
BASE_RATE, SHARES = 1000.0, tuple(np.geomspace(0.1, 2.0, 14).tolist())
"""Sessions an hour and replica, and shares of it among which traffic of each load is looked for."""


def rates(study: Study, replicas: NDArray[np.float64], loads: tuple[float, ...]) -> list[float]:
    """Sessions an hour at which `fair_carbon` loads its fullest deployment so much."""
    capacity = capacity_at(study, replicas)
    alone = stack([study.preset("fair_carbon")])
    found = settle(study, study.datasets[0], alone, capacity, share=SHARES)
    peaks = columns(found)["peak_utilisation"][:, 0]
    base = copies_of(study, study.datasets[0])[0]
    copies = [max(round(base * np.interp(load, peaks, SHARES)), 1) for load in loads]
    return [float(study.config.load.arrival_rate * each / base) for each in copies]


def mean_field(study: Study, names: tuple[str, ...], shares: list[float]) -> list[dict]:
    """Figures of each level and policy, `[N]` of `[P]`."""
    keep = dict.fromkeys(map(str, shares), Retention.of())
    levels = dataclasses.replace(study, retentions=keep)
    params = stack(study.policies[name] for name in names)
    began = time.perf_counter()
    outcome = replay(levels, study.datasets[0], params, share=shares)
    took_s = time.perf_counter() - began
    told, totals = columns(outcome.loading), outcome.totals
    turns = totals["turns"].sum(-1, dtype=np.float64)
    turns_at = outcome.deployment_turns.sum(axis=2)
    figures = {
        "carbon_mg": 1e3 * bills(totals).sum(-1) / turns,
        "wait_s": told["mean_wait_s"],
        "hit_pct": told["hit_ratio_pct"],
        "batch": told["mean_batch"],
        "peak": told["peak_utilisation"],
        "settled": told["settled"],
        "shares": turns_at / turns_at.sum(-1, keepdims=True),
    }
    print(f"mean field: {took_s:.0f} s for {len(shares)} levels x {len(names)} policies")
    return [{key: value[n] for key, value in figures.items()} for n in range(len(shares))]


def judged(study: Study, capacity: event_replay.Capacity, name: str, traffic) -> dict:
    """The same figures by the judge."""
    outcome = event_replay.simulate(
        world_of(study.world), capacity, vars(study.policies[name]), traffic
    )
    found = event_replay.summary(outcome, capacity)
    served = outcome.decision[outcome.decision >= 0]
    return {
        "carbon_mg": found["carbon mg"],
        "wait_s": found["wait s"],
        "hit_pct": 100 * found["hit"],
        "batch": found["batch"],
        "peak": found["peak load"],
        "shares": np.bincount(served, minlength=len(capacity.replicas)) / len(served),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--replicas", type=int, default=2, help="of each deployment")
    parser.add_argument("--load", type=float, action="append", help="of the fullest, below 1")
    parser.add_argument("--policy", action="append", help="a preset; may be repeated")
    parser.add_argument("--warm-up", type=float, default=2.0, help="hours of the judge's before")
    options = parser.parse_args()
    names, loads = tuple(options.policy or POLICIES), tuple(options.load or LOADS)
    load = {"arrival_rate": BASE_RATE * options.replicas, "replicas": float(options.replicas)}
    study = load_study(load=load)
    replicas = np.full(len(study.deployments), float(options.replicas))
    arrival = rates(study, replicas, loads)
    fields = mean_field(study, names, [each / load["arrival_rate"] for each in arrival])
    by_batch = package_file("profiles_by_batch.csv")
    capacity = event_replay.capacity_of(study, options.replicas, by_batch)
    rows = []
    for rate, field in zip(arrival, fields, strict=True):
        traffic = event_replay.population(
            study.datasets[0],
            rate,
            study.config.seed,
            0.0,
            DAY_S,
            options.warm_up * HOUR_S,
            shift_s=0.0,
        )
        for n, name in enumerate(names):
            exact = judged(study, capacity, name, traffic)
            own = {key: value[n] for key, value in field.items()}
            rows.append(
                {
                    "load %": 100 * own["peak"],
                    "sessions/h": rate,
                    "policy": name,
                    "exact %": 100 * exact["peak"],
                    "carbon mg/turn": exact["carbon_mg"],
                    "error %": 100 * (own["carbon_mg"] / exact["carbon_mg"] - 1),
                    "wait ms": 1e3 * exact["wait_s"],
                    "wait error %": 100 * (own["wait_s"] / exact["wait_s"] - 1),
                    "hit %": exact["hit_pct"],
                    "hit error points": own["hit_pct"] - exact["hit_pct"],
                    "batch": exact["batch"],
                    "batch error %": 100 * (own["batch"] / exact["batch"] - 1),
                    "turns elsewhere %": 50 * np.abs(own["shares"] - exact["shares"]).sum(),
                    "settled": own["settled"],
                }
            )
            print(pd.DataFrame(rows[-1:]).to_string(index=False, header=len(rows) == 1), flush=True)
    lines = [[f"{x:.3g}" if isinstance(x, float) else str(x) for x in row.values()] for row in rows]
    for line in (list(rows[0]), ["---"] * len(rows[0]), *lines):
        print(f"| {' | '.join(line)} |")


if __name__ == "__main__":
    main()
