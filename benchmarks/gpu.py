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
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

sys.path[0] = str(Path(__file__).parents[1])

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import checks, program, synthetic
from benchmarks.compare import print_heading
from jaxroute import batch
from jaxroute.abreast import lay_out, width_for
from jaxroute.numerics import stack
from jaxroute.policies import RouterParams
from jaxroute.sessions import Sessions
from jaxroute.slot_scan import replay_slots
from jaxroute.study import Study, load_study
from jaxroute.world import Retention, World

TURNS = 32
SMALLEST, BATCH = 1e6, 1e7
"""Sessions x settings: where the decades begin, and of the largest batch."""

DENSE_ROWS = 4_096
"""Sessions that the dense scan replays side by side on an accelerator, at most."""

REPEATS, ENOUGH_S = 3, 2.0
CHECKED = ("carbon_router", "fair_carbon", "sticky", "random")
COPY_MIB = {"cpu": 128}


class Program(NamedTuple):
    """A compiled path on a batch: `run` replays it once and waits."""

    run: Callable[[], Any]
    compile_s: float
    kernels: int
    state_bytes: float
    memory_mib: float


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
    print(f"a device copy reads and writes {copied / 1e9:,.0f} GB/s\n")
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
    sessions = synthetic.sessions(study.world, 16, TURNS)
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
    heads = (
        "sessions",
        "compile s",
        "best s",
        "M/s",
        "kernels",
        "state B",
        "GB/s",
        "of copy",
        "MiB",
    )
    print(f"{'path, settings':17}" + "".join(f"{head:>10}" for head in heads))
    decades = itertools.takewhile(lambda x: x < largest, (SMALLEST * 10**n for n in range(9)))
    kinds = {
        kind: program.settings(study, count, distinct=kind == "distinct")
        for kind in ("shared", "distinct")
    }
    speed: dict[Any, float] = {}
    compiled: dict[Any, Program] = {}
    sessions, slowest_s = None, 0.0
    for lanes in [*decades, largest]:
        each = max(1, round(min(lanes, BATCH) / count))
        times = max(1, round(lanes / count / each))
        if sessions is None or sessions.count != each:
            sessions = synthetic.sessions(study.world, each, TURNS, rows=rows_for(each))
            compiled = {}
        decisions = each * times * TURNS * count
        for key in itertools.product(PATHS, kinds):
            name, (path, kind) = ", ".join(key), key
            wanted_s = slowest_s * (key not in compiled) + decisions / speed.get(key, np.inf)
            if left() < wanted_s or left() < 0:
                needs = f"about {wanted_s:,.0f} s" if wanted_s else "some time"
                print(f"{name:17}{each * times:>10,}  skipped: {needs}, {left():,.0f} s left")
                continue
            try:
                if key not in compiled:
                    compiled[key] = compile_path(PATHS[path], kinds[kind], sessions, study.world)
                one = compiled[key]
                best_s = best(one.run, times)
            except jax.errors.JaxRuntimeError as error:
                print(f"{name:17}{each * times:>10,}  skipped: {str(error).splitlines()[0]}")
                continue
            slowest_s, speed[key] = max(slowest_s, one.compile_s), decisions / best_s
            moved = speed[key] * one.state_bytes
            print(
                f"{name:17}{each * times:>10,}{one.compile_s:>10.1f}{best_s:>10.3f}"
                f"{speed[key] / 1e6:>10,.1f}{one.kernels:>10}{one.state_bytes:>10,.0f}"
                f"{moved / 1e9:>10,.1f}{moved / copied:>10.3f}{one.memory_mib:>10,.0f}",
                flush=True,
            )
    if left() > 0:
        print(f"\n{whole_calls(study, kinds, sessions)}")


def rows_for(sessions: int) -> int | None:
    """Rows of equal depth for the dense scan; as the library packs them on a CPU."""
    if jax.default_backend() == "cpu":
        return None
    return -(-sessions // -(-sessions // DENSE_ROWS))


def by_slots(params: RouterParams, sessions: Sessions, world: World) -> tuple[Any, ...]:
    """The program behind `batch.replay_settings`, its inputs on the device, and what is static."""
    layout = lay_out(sessions, width=width_for(len(params.carbon_weight)))
    inputs = jax.device_put((batch.settled(params), sessions, layout, world))
    return replay_slots, inputs, {"slot_count": batch.SLOTS, "uses": batch.uses_of(params, world)}


def dense(params: RouterParams, sessions: Sessions, world: World) -> tuple[Any, ...]:
    """The scan of `evaluate` under `vmap`, likewise."""
    return batch.dense, jax.device_put((params, sessions, world)), {}


PATHS = {"slot": by_slots, "dense": dense}


def compile_path(
    path: Callable[..., Any], params: RouterParams, sessions: Sessions, world: World
) -> Program:
    """Compiles a path for a batch, and counts in the program what a step does."""
    function, inputs, static = path(params, sessions, world)
    began = time.perf_counter()
    traced = function.trace(*inputs, **static)
    compiled = traced.lower().compile()
    compile_s = time.perf_counter() - began
    carried_bytes, abreast = carried(traced.jaxpr)
    sizes = compiled.memory_analysis()
    parts = ("argument", "output", "temp")
    memory = sum(getattr(sizes, f"{part}_size_in_bytes") for part in parts)
    return Program(
        run=lambda: jax.block_until_ready(compiled(*inputs)),
        compile_s=compile_s,
        kernels=program.counts(inlined(compiled.as_text()))[0],
        state_bytes=2 * carried_bytes / abreast,
        memory_mib=memory / 2**20,
    )


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


def carried(jaxpr: Any) -> tuple[int, int]:
    """Bytes that the innermost scan carries from step to step, and its decisions a step.

    Of the carry only what a step computes with: arrays that it merely adds or writes rows to are
    left out. Most of the rest have an element for each decision.

    >>> step = lambda c, _: (c * 2, None)
    >>> scan = lambda x: jax.lax.scan(step, x, None, length=3)
    >>> carried(jax.make_jaxpr(scan)(np.zeros((4, 8), np.float32)))
    (128, 32)
    """
    body = max(_scans(jaxpr.jaxpr), key=lambda step: len(step["jaxpr"].jaxpr.eqns))
    step, first = body["jaxpr"].jaxpr, body["num_consts"]
    used = {
        id(atom)
        for eqn in step.eqns
        if eqn.primitive.name not in ("cond", "scatter-add", "dynamic_update_slice")
        for atom in eqn.invars
    }
    leaves = [
        leaf.aval for leaf in step.invars[first : first + body["num_carry"]] if id(leaf) in used
    ]
    carried_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    return carried_bytes, statistics.mode(leaf.size for leaf in leaves)


def _scans(jaxpr: Any) -> list[dict[str, Any]]:
    """Parameters of the scans of a jaxpr that hold no other."""
    found = []
    for eqn in jaxpr.eqns:
        inner = []
        for value in jax.tree.leaves(eqn.params, is_leaf=lambda x: hasattr(x, "jaxpr")):
            if hasattr(value, "jaxpr"):
                inner += _scans(value.jaxpr)
        found += inner or ([eqn.params] if eqn.primitive.name == "scan" else [])
    return found


def inlined(text: str) -> str:
    """A program's text with the computations that it calls, such as command buffers, in place.

    >>> graph = "  %f = f32[8] fusion(%p), calls=%g\\n  ROOT %h = f32[8] fusion(%f), calls=%g\\n"
    >>> called = "%graph (p: f32[8]) -> f32[8] {\\n" + graph + "}\\n"
    >>> step = "%b (p: f32[8]) -> f32[8] {\\n  %c = f32[8] call(%p), to_apply=%graph\\n}\\n"
    >>> program.counts(inlined(called + step + "body=%b\\n"))[0]
    2
    """
    bodies = dict(re.findall(r"^%?(\S+) \(.*\{\n((?s:.*?))^\}", text, re.MULTILINE))
    call = re.compile(r"^.* call\(.*to_apply=%?([^, \n]+).*\n", re.MULTILINE)
    return call.sub(lambda found: bodies.get(found[1], found[0]), text)


def whole_calls(study: Study, kinds: dict[str, RouterParams], sessions: Sessions) -> str:
    """Decisions/s of `batch.replay_settings`, from the host and back, more slots where needed."""
    found = []
    for kind, params in kinds.items():
        run = functools.partial(batch.replay_settings, params, sessions, study.world)
        decisions = sessions.count * TURNS * len(params.carbon_weight)
        found.append(f"{kind} {decisions / best(run, 1) / 1e6:,.1f} M/s")
    return f"replay_settings, host to host, {sessions.count:,} sessions: {', '.join(found)}"


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
