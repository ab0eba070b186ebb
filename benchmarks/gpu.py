"""An accelerator: first whether it computes what it should, then how fast.

    python benchmarks/gpu.py [--seconds 240] [--largest 1e9] [--settings P]

Made-up conversations of 32 turns over 60 deployments, caches kept, under settings of
`carbon_router` that share their prices and settings that all differ: the slot path and the dense
scan on a batch of sessions that lies on the device, again and again for the larger sizes. What
would not fit into the seconds left is skipped and said. A decision is one turn under one setting.
"""

# ruff: noqa: E402

import argparse
import functools
import itertools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[0] = str(Path(__file__).parents[1])

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import checks, compiled, program, synthetic
from benchmarks.compare import print_heading
from benchmarks.compiled import Program
from jaxroute import batch
from jaxroute.numerics import stack
from jaxroute.study import Study, load_study
from jaxroute.world import Retention

PATHS = {"slot": compiled.by_slots, "dense": compiled.dense}
TURNS = 32
SMALLEST = 1e6
"""Sessions x settings: where the decades begin."""

BATCH, BATCH_SESSIONS = 1e7, 40_000
"""Of the largest batch, sessions x settings and sessions; these take 10 kB each."""

DENSE_ROWS = 4_096
"""Sessions that the dense scan replays side by side on an accelerator, at most."""

REPEATS, ENOUGH_S = 3, 2.0
CHECKED = ("carbon_router", "fair_carbon", "sticky", "random")
COPY_MIB = {"cpu": 128}
HEADS = (
    *("sessions", "compile s", "best s", "M/s", "kernels", "state B", "GB/s", "of copy", "MiB"),
    *("  batch's g", "inexact %"),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--largest", type=float, default=1e9, help="sessions x settings")
    parser.add_argument("--settings", type=int, default=256)
    options = parser.parse_args()
    ends = time.perf_counter() + options.seconds
    study, device = load_study(), jax.devices()[0]
    sizes = f"{len(study.deployments)} deployments, {TURNS} turns, {options.settings} settings"
    print_heading(f"{device.device_kind} ({device.platform})", sizes, os.getloadavg()[0])
    check(study)
    copied = copy_bytes_per_s(COPY_MIB.get(device.platform, 1024))
    print(f"a device copy reads and writes {copied / 1e9:,.0f} GB/s")
    print(
        "kernels are of a step; state is what a step reads and writes of it at least, a decision;"
    )
    print("GB/s is of state, MiB what the program takes; inexact sessions need more slots and are")
    print("replayed with them by replay_settings alone\n")
    measure(study, options.settings, options.largest, copied, lambda: ends - time.perf_counter())
    print(f"most memory in use at a time: {most_in_use()}")
    print(f"{options.seconds - (ends - time.perf_counter()):.0f} s")


def check(study: Study) -> None:
    """Ends the process unless the engine is right on this device."""
    began = time.perf_counter()
    everything = study.preset("carbon_router").replace(
        latency_price_g_per_s=1e-4,
        quality_price_g=0.02,
        switch_price_g=1e-4,
        cache_knowledge=0.7,
        assumed_hit=0.4,
        gate_weights=[1.0, 0.5, -0.5, 20.0, 0.3, -0.2, 1.0, 2.0],
    )
    settings = stack([*map(study.preset, CHECKED), everything])
    fading = study.world.replace(retention=Retention.of(300.0, 600.0))
    sessions = synthetic.sessions(study.world, 48, TURNS)
    excused = checks.against_oracle(settings, sessions, [study.world, fading])
    print(f"reference.py: the same decisions and sums, {excused} sessions excused", flush=True)
    excused = checks.compiled_against_eager(study.preset("carbon_router"), study.world)
    count = f"{checks.BEYOND:,} sessions, {excused} excused"
    print(f"compiled and op by op: the same decisions and sums on {count}")
    print(f"checks took {time.perf_counter() - began:.0f} s", flush=True)


def measure(
    study: Study, count: int, largest: float, copied: float, left: Callable[[], float]
) -> None:
    """Prints a row for each size, path and kind of settings, as long as there are seconds left."""
    print(f"{'path, settings':17}" + "".join(f"{head:>10}" for head in HEADS))
    decades = itertools.takewhile(lambda x: x < largest, (SMALLEST * 10**n for n in range(9)))
    kinds = {
        kind: program.settings(study, count, distinct=kind == "distinct")
        for kind in ("shared", "distinct")
    }
    speed: dict[Any, float] = {}
    programs: dict[Any, Program] = {}
    sessions, slowest_s = None, 0.0
    for lanes in [*decades, largest]:
        each = max(1, min(round(min(lanes, BATCH) / count), BATCH_SESSIONS))
        times = max(1, round(lanes / count / each))
        if sessions is None or sessions.count != each:
            sessions = synthetic.sessions(study.world, each, TURNS, rows=rows_for(each))
            programs = {}
        decisions = each * times * TURNS * count
        for key in itertools.product(PATHS, kinds):
            name, (path, kind) = ", ".join(key), key
            runs_s = (decisions + decisions / times) / speed.get(key, np.inf)  # one to warm up
            wanted_s = slowest_s * (key not in programs) + runs_s
            if left() < wanted_s or left() < 0:
                needs = f"about {wanted_s:,.0f} s" if wanted_s else "some time"
                print(f"{name:17}{each * times:>10,}  skipped: {needs}, {left():,.0f} s left")
                continue
            try:
                if key not in programs:
                    programs[key] = compiled.compile_path(
                        PATHS[path], kinds[kind], sessions, study.world
                    )
                one = programs[key]
                best_s = best(one.run, times)
            except jax.errors.JaxRuntimeError as error:
                print(f"{name:17}{each * times:>10,}  skipped: {str(error).splitlines()[0]}")
                continue
            slowest_s, speed[key] = max(slowest_s, one.compile_s), decisions / best_s
            print(row(name, each * times, one, best_s, speed[key], copied), flush=True)
    print(f"\nreplay_settings, from host to host, {sessions.count:,} sessions:", end="")
    for kind, params in kinds.items():
        # It may replay some sessions with more slots and some densely, and compiles for that.
        decisions = sessions.count * TURNS * count
        wanted_s = 3 * slowest_s + 6 * decisions / speed.get(("slot", kind), 1.0)
        if left() > wanted_s:
            run = functools.partial(batch.replay_settings, params, sessions, study.world)
            print(f" {kind} {decisions / best(run, 1) / 1e6:,.1f} M/s", end="", flush=True)
        else:
            print(f" {kind} skipped, {left():,.0f} s left", end="")
    print()


def row(name: str, sessions: int, one: Program, best_s: float, speed: float, copied: float) -> str:
    moved = speed * one.state_bytes
    return (
        f"{name:17}{sessions:>10,}{one.compile_s:>10.1f}{best_s:>10.3f}{speed / 1e6:>10,.1f}"
        f"{one.kernels:>10}{one.state_bytes:>10,.0f}{moved / 1e9:>10,.1f}{moved / copied:>10.3f}"
        f"{one.memory_mib:>10,.0f}{one.carbon_g:>12,.1f}{one.inexact_pct:>10.3f}"
    )


def rows_for(sessions: int) -> int | None:
    """Rows of equal depth for the dense scan; as the library packs them on a CPU."""
    if jax.default_backend() == "cpu":
        return None
    return -(-sessions // -(-sessions // DENSE_ROWS))


def best(run: Callable[[], Any], times: int) -> float:
    """Seconds of so many runs, warm: the best of a few."""
    run()
    spent = []
    while len(spent) < REPEATS and sum(spent) < ENOUGH_S:
        began = time.perf_counter()
        for _ in range(times):
            run()
        spent.append(time.perf_counter() - began)
    return min(spent)


def most_in_use() -> str:
    """By the device's own count, where it has one."""
    peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
    return "unknown on this device" if peak is None else f"{peak / 2**20:,.0f} MiB"


def copy_bytes_per_s(mib: int) -> float:
    """Bytes that a copy on the device reads and writes in a second."""
    x = jnp.zeros(mib * 2**18, jnp.float32)
    copy = jax.jit(jnp.copy)
    return 2 * x.nbytes / best(lambda: copy(x).block_until_ready(), 1)


if __name__ == "__main__":
    main()
