"""Many settings at once: every engine there is, on one work, in one run.

    python benchmarks/sweep.py [--settings P] [--sessions N]

The bundled trace under P settings, on all cores: settings that share their prices and differ in the
gate, and settings that all differ in price and floor. Each engine runs in a process of its own with
empty caches, and they take turns, case by case; the slow ones replay the first of the settings and
sessions, and decisions/s compare them. A decision is one turn under one setting; seconds are the
best of three, compiling apart. Growth is on made-up conversations under settings that share prices.
Progress goes to stderr.
"""

# ruff: noqa: E402

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path[0] = str(Path(__file__).parents[1])  # numba would take coverage.py here for the library's

import jax
import numpy as np

from benchmarks import engines, growth
from benchmarks.compare import first, no_caches, peak_mib, print_heading
from benchmarks.engines import Engine
from benchmarks.program import settings
from jaxroute.devices import use_every_core
from jaxroute.study import load_study

REPEATS, ENOUGH_S = 3, 3.0
FEW_SESSIONS, FEW_SETTINGS = 100, 4
LARGEST_DIFFERENCE = 1e-4
CASES = (("shared", "keep"), ("distinct", "keep"), ("shared", "drop"), ("distinct", "drop"))


class Entry(NamedTuple):
    """An engine, the settings and sessions it replays at most, and what else is asked of it."""

    run: Engine
    settings: int | None = None
    sessions: int | None = None
    side_by_side: bool = False
    growth: bool = False


RIVAL = "numba_tuned"
"""Whose speed and answers the others' are compared with."""

ENTRIES = {
    "python_loop": Entry(engines.loop, settings=FEW_SETTINGS, sessions=FEW_SESSIONS),
    "numpy_sessions": Entry(engines.numpy, settings=FEW_SETTINGS),
    "numba_plain": Entry(engines.plain, settings=32),
    RIVAL: Entry(engines.tuned, growth=True),
    "slot": Entry(engines.by_slots, side_by_side=True, growth=True),
    "dense": Entry(engines.dense, settings=64, side_by_side=True, growth=True),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", type=int, default=256)
    parser.add_argument("--sessions", type=int, help="only the first N, without growth")
    parser.add_argument("--only", choices=ENTRIES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        serve(options.only, options.settings, options.sessions)
    else:
        report(options.settings, options.sessions)


def report(count: int, sessions: int | None) -> None:
    """Runs everything and prints it."""
    load = os.getloadavg()[0]
    given = ["--settings", str(count), *(["--sessions", str(sessions)] if sessions else [])]
    found = measured(given, ["sizes", *map(", ".join, CASES), "memory"])
    rival = found[RIVAL]
    print_heading(rival["sizes"]["device"], rival["sizes"]["work"], load)
    heads = (
        "settings",
        "sessions",
        "compile s",
        "best s",
        "M/s",
        "of tuned",
        "carbon g",
        "differs",
    )
    print(f"{'':16}" + "".join(f"{head:>10}" for head in heads))
    worst = 0.0
    for case in map(", ".join, CASES):
        print(case)
        for name, each in found.items():
            row = each[case]
            carbon_g = np.array(row["carbon_g"])
            few = ENTRIES[name].sessions is not None
            same_g = np.array(rival[case]["few_g" if few else "carbon_g"])[: len(carbon_g)]
            differs = np.abs(carbon_g / same_g - 1).max()
            worst = max(worst, differs)
            print(
                f"  {name:14}{len(carbon_g):>10,}{each['sizes']['sessions']:>10,}"
                f"{row['compile_s']:>10.1f}{row['best_s']:>10.3f}{row['speed'] / 1e6:>10.3f}"
                f"{ratio(found, name, case):>10.4f}{carbon_g.sum():>10,.1f}{differs:>10.1e}"
            )
    print("\npeak MiB: " + ", ".join(f"{name} {memory(each)}" for name, each in found.items()))
    if not sessions:
        grown = {name: each["growth"] for name, each in found.items() if ENTRIES[name].growth}
        print("", *growth.table(grown), "", sep="\n")
    if worst > LARGEST_DIFFERENCE:
        sys.exit(f"the engines disagree by {worst:.1e}: their times mean nothing")
    print(f"drop: slot/{RIVAL} {told(found, 'drop')}")
    print(f"slot/{RIVAL} {told(found, 'keep')}")


def ratio(found: dict[str, Any], name: str, case: str) -> float:
    return found[name][case]["speed"] / found[RIVAL][case]["speed"]


def told(found: dict[str, Any], label: str) -> str:
    """The slot path's share of the rival's speed, by kind of settings."""
    kinds = [kind for kind, each in CASES if each == label]
    return " ".join(f"{kind}={ratio(found, 'slot', f'{kind}, {label}'):.2f}" for kind in kinds)


def memory(found: dict[str, Any]) -> str:
    return f"{found['memory']:,.0f} (loaded {found['sizes']['loaded_mib']:,.0f})"


def measured(options: list[str], wanted: list[str]) -> dict[str, dict[str, Any]]:
    """What each engine answers to each request, the engines one after another; growth last."""
    found: dict[str, dict[str, Any]] = {name: {} for name in ENTRIES}
    with no_caches() as environment, contextlib.ExitStack() as stack:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        processes = {}
        for name in ENTRIES:
            command = [sys.executable, __file__, "--only", name, *options]
            process = subprocess.Popen(command, env=environment, **pipes)
            processes[name] = stack.enter_context(process)
        growing = [] if "--sessions" in options else ["growth"]
        for request in [*wanted, *growing]:
            for name, process in processes.items():
                if request != "growth" or ENTRIES[name].growth:
                    print(f"{request}: {name}", file=sys.stderr)
                    process.stdin.write(f"{request}\n")
                    process.stdin.flush()
                    if not (answer := process.stdout.readline()):
                        sys.exit(f"{name} ended")
                    found[name][request] = json.loads(answer)
    return found


def serve(name: str, count: int, sessions: int | None) -> None:
    """Answers the requests that come in, a line of JSON each."""
    use_every_core()
    entry, study = ENTRIES[name], load_study()
    dataset = first(study.datasets[0], sessions or len(study.datasets[0].lengths))
    cores = len(os.sched_getaffinity(0)) if entry.side_by_side else 1
    mine = first(dataset, entry.sessions or len(dataset.lengths))
    turns = int(mine.lengths.sum())
    parts = [part for _, part in mine.blocks(-(-turns // cores))]
    few = first(dataset, FEW_SESSIONS).sessions
    asked = min(count, entry.settings or count)
    work = f"{len(dataset.lengths):,} sessions, {dataset.lengths.sum():,} turns"

    def replayed(kind: str, label: str) -> dict[str, Any]:
        params = settings(study, asked, distinct=kind == "distinct")
        world = study.world.replace(retention=study.retentions[label])
        carbon_g, first_s, best_s = timed(entry.run(params, parts, world))
        row = {
            "carbon_g": carbon_g.tolist(),
            "compile_s": max(first_s - best_s, 0),
            "best_s": best_s,
            "speed": turns * asked / best_s,
        }
        if name == RIVAL:
            some = jax.tree.map(lambda x: x[:FEW_SETTINGS], params)
            row["few_g"] = entry.run(some, [few], world)().tolist()
        return row

    answers = {
        "sizes": lambda: {
            "device": jax.devices()[0].device_kind,
            "work": f"{work}, {len(study.deployments)} deployments, {count:,} settings",
            "sessions": len(mine.lengths),
            "loaded_mib": peak_mib(resource.RUSAGE_SELF),
        },
        "memory": lambda: peak_mib(resource.RUSAGE_SELF),
        "growth": lambda: growth.measure(
            lambda *work: timed(entry.run(*work))[2], study, parts=cores
        ),
    }
    for request in map(str.strip, sys.stdin):
        answer = answers.get(request, lambda case=request: replayed(*case.split(", ")))
        print(json.dumps(answer()), flush=True)


def timed(run: Callable[[], np.ndarray]) -> tuple[np.ndarray, float, float]:
    """What a run returns, the seconds of the first, and of the best of some more."""
    began = time.perf_counter()
    result = run()
    first_s, run_s = time.perf_counter() - began, []
    while len(run_s) < REPEATS and sum(run_s) < ENOUGH_S:
        began = time.perf_counter()
        run()
        run_s.append(time.perf_counter() - began)
    return result, first_s, min(run_s)


if __name__ == "__main__":
    main()
