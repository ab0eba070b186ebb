"""Many settings at once: the slot path beside the dense scan and a tuned numba loop.

    python benchmarks/sweep.py [--settings P] [--sessions N]

The bundled trace under P settings, by every engine in one process on all cores: settings that share
their prices and differ in the gate, and settings that all differ in price and floor. A decision is
one turn under one setting; seconds are the best of three, compiling apart.
"""

# ruff: noqa: E402

import argparse
import datetime
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path[0] = str(Path(__file__).parents[1])  # numba would take coverage.py here for the library's

import jax
import numpy as np

from benchmarks.baselines import numba_tuned
from benchmarks.compare import first
from benchmarks.program import settings
from jaxroute import batch
from jaxroute.policies import RouterParams
from jaxroute.sessions import Sessions
from jaxroute.simulate import Totals
from jaxroute.study import load_study
from jaxroute.world import World

REPEATS = 3
CASES = (("shared", "keep"), ("distinct", "keep"), ("shared", "drop"), ("distinct", "drop"))

Engine = Callable[[RouterParams, Sequence[Sessions], World], np.ndarray]
"""gCO2e of each setting, `[P]`, of the sessions in as many parts as there are cores."""


def by_slots(params: RouterParams, parts: Sequence[Sessions], world: World) -> np.ndarray:
    """The slot path, a part on each core."""
    return _apart(parts, lambda part: batch.replay_settings(params, part, world)[0])


def dense(params: RouterParams, parts: Sequence[Sessions], world: World) -> np.ndarray:
    """The scan of `evaluate` under `vmap`."""
    return _apart(parts, lambda part: jax.block_until_ready(batch.dense(params, part, world)[0]))


def tuned(params: RouterParams, parts: Sequence[Sessions], world: World) -> np.ndarray:
    """The numba loop, which spreads the sessions of a part over the cores itself."""
    carbon_g = np.zeros(len(params.carbon_weight))
    for part in parts:
        found = numba_tuned.run(params, part, world)
        carbon_g += sum(found[f"carbon_{name}_g"] for name in ("prefill", "decode", "embodied"))
    return carbon_g


ENGINES: dict[str, Engine] = {"numba_tuned": tuned, "slot": by_slots, "dense": dense}


def _apart(parts: Sequence[Sessions], replay: Callable[[Sessions], Totals]) -> np.ndarray:
    with ThreadPoolExecutor(len(parts)) as pool:
        found = list(pool.map(replay, parts))
    return sum(np.asarray(each.carbon_g, np.float64).sum(-1) for each in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", type=int, default=256)
    parser.add_argument("--sessions", type=int, help="only the first N")
    options = parser.parse_args()
    load = os.getloadavg()[0]
    study = load_study()
    dataset = study.datasets[0]
    dataset = first(dataset, options.sessions or len(dataset.lengths))
    cores = len(os.sched_getaffinity(0))
    whole = [dataset.sessions]
    shares = [part for _, part in dataset.blocks(-(-int(dataset.lengths.sum()) // cores))]
    decisions = int(dataset.lengths.sum()) * options.settings
    print(
        f"device    {jax.devices()[0].device_kind}, {os.cpu_count()} cores, load {load:.1f} before"
    )
    print(f"versions  python {platform.python_version()}, jax {jax.__version__}")
    print(f"date      {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC")
    sizes = f"{len(dataset.lengths):,} sessions, {len(study.deployments)} deployments"
    print(f"sizes     {sizes}, {options.settings} settings, {decisions:,} decisions")
    print("\nsettings, caches  engine       compile s  best s     M/s  of tuned")
    ratios = {}
    for kind, label in CASES:
        params = settings(study, options.settings, distinct=kind == "distinct")
        world = study.world.replace(retention=study.retentions[label])
        speed, carbon_g = {}, {}
        for name, engine in ENGINES.items():
            parts = whole if engine is tuned else shares
            began = time.perf_counter()
            carbon_g[name] = engine(params, parts, world)
            first_s, best_s = time.perf_counter() - began, np.inf
            for _ in range(REPEATS if name != "dense" else 1):
                began = time.perf_counter()
                engine(params, parts, world)
                best_s = min(best_s, time.perf_counter() - began)
            speed[name] = decisions / best_s / 1e6
            row = f"{kind}, {label}"
            print(
                f"{row:17} {name:12} {max(first_s - best_s, 0):9.1f} {best_s:7.3f} "
                f"{speed[name]:7.1f}  {speed[name] / speed['numba_tuned']:.3f}",
                flush=True,
            )
        ratios[kind, label] = speed["slot"] / speed["numba_tuned"]
        worst = max(np.abs(each / carbon_g["dense"] - 1).max() for each in carbon_g.values())
        print(f"{'':17} largest difference of a setting's carbon: {worst:.1e}")
        if worst > 1e-4:
            sys.exit("the engines do not agree")
    print(f"drop: slot/numba_tuned {', '.join(_told(ratios, 'drop'))}")
    print(f"slot/numba_tuned {' '.join(_told(ratios, 'keep'))}")


def _told(ratios: dict[tuple[str, str], float], label: str) -> list[str]:
    return [f"{kind}={ratio:.2f}" for (kind, each), ratio in ratios.items() if each == label]


if __name__ == "__main__":
    main()
