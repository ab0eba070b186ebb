"""The live router: seconds a decision takes, and memory of open sessions.

    python benchmarks/online.py [--queries N] [--sessions N]

Many conversations of the sizes of `synthetic.sessions` are open at once, their turns interleaved,
each routed and then observed, in one thread. Memory is what the process has grown by since the
imports. Beside seconds by the clock stand those of the processor, which other processes on the
machine do not lengthen.
"""

import argparse
import datetime
import json
import os
import platform
import sys
import time
from pathlib import Path

import jax
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks import synthetic
from jaxroute import OnlineRouter, RouterParams, World, preset
from jaxroute.load.fleet import client_regions
from jaxroute.study import YEAR_2023
from jaxroute.world import Retention

POLICIES = ("carbon_router", "fair_carbon", "sticky", "random")
P99_US, MEMORY_MB = 1000.0, 200.0
"""Targets, for 60 deployments and 10,000 sessions."""

SIDE_BY_SIDE = 200

START_S = 1_700_000_000.0


def router_of(params: RouterParams, world: World) -> OnlineRouter:
    """A router on a made-up fleet, with drop on leave, that forgets nothing."""
    fleet = world.fleet
    parts = zip(fleet.model.tolist(), fleet.gpu.tolist(), fleet.region.tolist(), strict=True)
    return OnlineRouter(
        params,
        world.replace(retention=Retention.of(drop_on_leave=True)),
        [(f"m{m}", f"g{g}", f"r{r}") for m, g, r in parts],
        homes=client_regions(),
        intensity_from=YEAR_2023[0],
        max_sessions=1_000_000,
    )


def talk(
    router: OnlineRouter, models: int, queries: int, sessions: int
) -> tuple[np.ndarray, float, int]:
    """Seconds of each `route` and `observe` `[queries, 2 calls, 2 clocks]`, gCO2e, and moves.

    Args:
      router: of `router_of`, with this number of models.
      queries: turns in all.
      sessions: open at a time, turn by turn one after another.
    """
    rng = np.random.default_rng(0)
    homes, names = client_regions(), [f"m{m}" for m in range(models)]
    new, output = rng.integers(1, 401, queries).tolist(), rng.integers(0, 601, queries).tolist()
    quality = rng.random((queries, models)).tolist()
    took, context, last = np.zeros((queries, 2, 2)), [0] * sessions, [None] * sessions
    carbon_g, moves = 0.0, 0
    for q in range(queries):
        s, now = q % sessions, START_S + 60.0 * q / sessions
        query = {
            "home_region": homes[s % len(homes)],
            "quality": dict(zip(names, quality[q], strict=True)),
            "now": now,
        }
        begun = clocks()
        decision = router.route(f"session-{s}", new[q], **query)
        took[q, 0] = clocks() - begun
        prompt = context[s] + new[q]
        usage = {"prompt_tokens": prompt, "completion_tokens": output[q]}
        begun = clocks()
        router.observe(f"session-{s}", decision.deployment, usage, finished_at=now + 5)
        took[q, 1] = clocks() - begun
        context[s] = prompt + output[q]
        carbon_g += decision.expected_carbon_g
        moves += last[s] not in (None, decision.deployment)
        last[s] = decision.deployment
    return took, carbon_g, moves


def clocks() -> np.ndarray:
    """Seconds by the clock, and of the processor in this thread."""
    return np.array([time.perf_counter(), time.thread_time()])


def resident_mb() -> float:
    """Memory that the process occupies, of Linux's account."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--queries", type=int, default=20_000, help="of each policy and fleet")
    parser.add_argument("--sessions", type=int, default=10_000, help="open in the memory test")
    options = parser.parse_args()
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    print(f"device    {jax.devices()[0].device_kind}, {cores} cores, load {load:.1f} before")
    print(f"versions  python {platform.python_version()}, numpy {np.__version__}")
    print(f"date      {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC")
    print(f"sizes     {options.queries:,} queries a row, of {SIDE_BY_SIDE} sessions side by side")

    missed = [] if memory(options.sessions) <= MEMORY_MB else ["memory"]
    print("\nmicroseconds                        route              of the processor   observe")
    print("                deployments    p50     p99    max      p50     p99       p50     p99"
          "    carbon g   moves")  # fmt: skip
    for deployments, (models, *_) in synthetic.FLEETS.items():
        world = synthetic.world(deployments)
        for name in POLICIES if deployments == 60 else POLICIES[:1]:
            talk(router_of(preset(name), world), models, 500, SIDE_BY_SIDE)
            router = router_of(preset(name), world)
            took, carbon_g, moves = talk(router, models, options.queries, SIDE_BY_SIDE)
            route, observe = np.moveaxis(1e6 * np.percentile(took, [50, 99, 100], axis=0), 1, 0)
            cells = *route[:, 0], *route[:2, 1], *observe[:2, 0]
            row = "{:>9.0f}{:>8.0f}{:>7.0f}{:>9.0f}{:>8.0f}{:>10.0f}{:>8.0f}".format(*cells)
            print(f"{name:<16}{deployments:>9}{row}{carbon_g:>12.2f}{moves:>8,}", flush=True)
            if deployments == 60 and route[1, 0] > P99_US:
                missed.append(f"{name}: {route[1, 0]:.0f} us")
    print(f"targets: 60 deployments p99 <= {P99_US:g} us, memory <= {MEMORY_MB:g} MB:", end=" ")
    print(f"missed ({'; '.join(missed)})" if missed else "met")


def memory(sessions: int) -> float:
    """MB of so many open sessions beyond the imports, and what a snapshot of them takes."""
    imported_mb = resident_mb()
    router = router_of(preset("carbon_router"), synthetic.world(60))
    talk(router, synthetic.FLEETS[60][0], 4 * sessions, sessions)
    grown_mb = resident_mb() - imported_mb
    print(
        f"memory    {len(router):,} open sessions of 4 turns on 60 deployments: {grown_mb:.1f} MB"
    )
    begun = time.perf_counter()
    text = json.dumps(router.snapshot())
    written_s = time.perf_counter() - begun
    router.restore(text)
    read_s = time.perf_counter() - begun - written_s
    print(f"snapshot  {len(text) / 1e6:.1f} MB of JSON, {written_s:.2f} s, restored {read_s:.2f} s")
    return grown_mb


if __name__ == "__main__":
    main()
