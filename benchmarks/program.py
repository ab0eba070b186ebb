"""How far the compiled slot path is from what the machine could do, and what stops it.

    python benchmarks/program.py [--settings P] [--sessions N]

Counted in the program that XLA made for the default study, where the settings share their prices
and where all of them differ, and timed in this process. A decision is one turn under one setting.
Times are of a core, whatever else runs. The limits are XLA's own on one core: the fixed cost of a
kernel, gathers from a small table, arithmetic on numbers in the nearest cache, and copies within
the cache.
"""

import argparse
import datetime
import os
import platform
import re
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.compare import first
from jaxroute import abreast, batch, sharing, slots
from jaxroute.numerics import stack
from jaxroute.policies import RouterParams
from jaxroute.sessions import Sessions
from jaxroute.slot_scan import replay_slots
from jaxroute.study import Study, load_study

FREE = {"parameter", "get-tuple-element", "tuple", "constant", "bitcast"}
"""Instructions that are no kernel."""

ARITHMETIC = {
    *("add", "subtract", "multiply", "divide", "maximum", "minimum", "floor", "abs"),
    *("compare", "select", "and", "or", "not", "convert", "exponential", "log", "logistic"),
}
"""Instructions that compute an element each."""


MOVES = {"fusion", "copy"}
"""Kernels whose bytes are counted; the sums of a session are written once a session."""

REPEATS, LOOPS = 5, 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", type=int, default=256)
    parser.add_argument("--sessions", type=int, help="only the first N")
    options = parser.parse_args()
    study, load = load_study(), os.getloadavg()[0]
    dataset = study.datasets[0]
    dataset = first(dataset, options.sessions or len(dataset.lengths))
    cores = len(os.sched_getaffinity(0))
    print(f"device    {jax.devices()[0].device_kind}, {cores} cores, load {load:.1f} before")
    print(f"versions  python {platform.python_version()}, jax {jax.__version__}")
    print(f"date      {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC")
    limits = measured()
    print(
        f"limits    {limits['kernel_s'] * 1e6:.2f} us a kernel, {1e-9 / limits['gather_s']:.2f} G "
        f"gathers/s, {1e-9 / limits['operation_s']:.0f} G operations/s, "
        f"{1e-9 / limits['byte_s']:.0f} GB/s"
    )
    for name in ("shared", "distinct"):
        params = settings(study, options.settings, distinct=name == "distinct")
        print(f"\n{name}\n{report(study, params, dataset.sessions, limits)}", flush=True)


def settings(study: Study, count: int, *, distinct: bool) -> RouterParams:
    """Settings of `carbon_router` that differ in the gate; if `distinct`, in prices and floor."""
    rng, base = np.random.default_rng(0), study.preset("carbon_router")
    rows = []
    for _ in range(count):
        row = base.replace(gate_strength=np.float32(rng.uniform(0, 2)))
        if distinct:
            row = row.replace(
                embodied_weight=np.float32(rng.uniform(0, 2)),
                latency_price_g_per_s=np.float32(rng.uniform(0, 0.02)),
                quality_floor=np.float32(rng.uniform(0.4, 0.8)),
            )
        rows.append(row)
    return stack(rows)


def report(study: Study, params: RouterParams, sessions: Sessions, limits: dict[str, float]) -> str:
    """The counts and the time of one program, in words."""
    world, layout = study.world, abreast.lay_out(abreast.extents(sessions))
    uses, settled = sharing.uses_of(params, world), sharing.settled(params)
    given = jax.device_put((sessions, layout))
    lowered = replay_slots.lower(settled, *given, world, slot_count=batch.SLOTS, uses=uses)
    compiled = lowered.compile(batch.CPU_OPTIONS)
    shape = abreast.WIDTH, len(params.carbon_weight)
    decisions = shape[0] * shape[1]
    state = jax.eval_shape(lambda: slots.opening(batch.SLOTS, shape, np.dtype("float32"), uses))
    state_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    sums_bytes = 4 * len(slots.SUMS) * decisions
    kernels, gathers, operations, moved = counts(compiled.as_text(), decisions)
    step_s = best_s(compiled, settled, *given, world) / (int(layout.blocks) * abreast.STEPS)
    least_s = {
        "kernels": kernels * limits["kernel_s"],
        "gathers": gathers * limits["gather_s"],
        "operations": operations * limits["operation_s"],
        "bytes": moved * limits["byte_s"],
    }
    parts = ", ".join(f"{name} {1e6 * each:.1f}" for name, each in least_s.items())
    return (
        f"  {kernels} kernels a step of {decisions:,} decisions; a decision: "
        f"{gathers / decisions:.0f} gathers, {operations / decisions:.0f} operations, "
        f"{moved / decisions:.0f} B moved, {state_bytes / decisions:.0f} B of state, "
        f"{sums_bytes / decisions:.0f} B of sums\n"
        f"  {1e6 * step_s:.1f} us of a core a step, {1e-6 * decisions / step_s:.0f} M decisions/s "
        f"a core; at the limits: {parts} us\n"
        f"  {least_s['operations'] / step_s:.0%} of the arithmetic, "
        f"{least_s['bytes'] / step_s:.0%} of the bytes that the machine could do in that time"
    )


def measured() -> dict[str, float]:
    """Seconds of a kernel that does next to nothing, a gather, an operation and a byte moved."""
    many, chains, links = 64, 8, 16
    small = jnp.zeros(256)
    index = jnp.arange(1024) * 7 % 240

    def kernels(_: Any, carry: Any) -> Any:
        return tuple(x + 1 for x in carry)

    def chain(_: Any, x: jax.Array) -> jax.Array:
        rows = [x + n for n in range(chains)]
        for _ in range(links):
            rows = [row * 0.99 + x for row in rows]
        return sum(rows) * 1e-3

    def gather(_: Any, carry: Any) -> Any:
        table, at = carry
        return table, (at + table[at]) % 240

    def looped(step: Callable, start: Any) -> float:
        loop = jax.jit(lambda x: jax.lax.fori_loop(0, LOOPS, step, x))
        compiled = loop.lower(start).compile(compiler_options=batch.CPU_OPTIONS)
        return best_s(compiled, start) / LOOPS

    none_s = looped(lambda _, x: x + 1, small)
    row = jnp.zeros(2**12)
    wide = jnp.zeros(2**16)
    return {
        "kernel_s": looped(kernels, tuple(small + n for n in range(many))) / many,
        "gather_s": (looped(gather, (jnp.ones(240, jnp.int32), index)) - none_s) / index.size,
        "operation_s": (looped(chain, row) - none_s) / (2 * chains * links * row.size),
        "byte_s": (looped(lambda _, x: x + 1, wide) - none_s) / (2 * wide.nbytes),
    }


def best_s(run: Callable, *given: Any) -> float:
    """Seconds of a core that a call takes, over all cores, the best of a few after one."""
    jax.block_until_ready(run(*given))
    best = np.inf
    for _ in range(REPEATS):
        began = time.process_time()
        jax.block_until_ready(run(*given))
        best = min(best, time.process_time() - began)
    return best


def counts(program: str, decisions: int) -> tuple[int, int, int, int]:
    """Kernels of a step, what they gather and compute, elements, and the bytes they move.

    Of the innermost loop with most kernels. An operand counts with four bytes a decision at most,
    as a kernel reads of a table only what it looks up.

    >>> step = "%b (p: f32[8]) -> f32[8] {\\n  %f = f32[8] fusion(%p), calls=%g\\n}\\n"
    >>> fused = "%g (p: f32[8]) -> f32[8] {\\n  %x = f32[8]{0} add(%p, %p)\\n}\\n"
    >>> counts(step + fused + "body=%b\\n", 8)
    (1, 0, 8, 64)
    """
    heads = re.findall(r"^%?(\S+) \(.*\{\n((?s:.*?))^\}", program, re.MULTILINE)
    parts = {name: [_parsed(line) for line in text.splitlines()] for name, text in heads}
    steps = [parts[name] for name in set(re.findall(r"body=%([^, )\n]+)", program))]
    steps = [step for step in steps if all(each[0] != "while" for each in step)]
    step = max(steps, key=lambda step: sum(each[0] not in FREE for each in step))
    kernels = [each for each in step if each[0] not in FREE]
    inside = [each for _, _, name, _ in step for each in parts.get(name, [])]
    operations = sum(size for kind, size, *_ in (*step, *inside) if kind in ARITHMETIC)
    gathers = sum(size for kind, size, *_ in (*step, *inside) if kind == "gather")
    moved = sum(
        4 * (size + operands * decisions) for kind, size, _, operands in kernels if kind in MOVES
    )
    return len(kernels), gathers, operations, moved


def _parsed(line: str) -> tuple[str, int, str, int]:
    """An instruction's kind, the elements of its result, what it calls, and its operands."""
    text = line.partition(" = ")[2]
    kind, shape = re.search(r" ([a-z-]+)\(([^)]*)", text), re.match(r"\w+\[([\d,]*)\]", text)
    sizes = [int(size) for size in shape.group(1).split(",") if size] if shape else []
    called = re.search(r"calls=%([^, \n]+)", text)
    operands = kind.group(2).count("%") if kind else 0
    size = int(np.prod(sizes)) if shape else 0
    return kind.group(1) if kind else "", size, called.group(1) if called else "", operands


if __name__ == "__main__":
    main()
