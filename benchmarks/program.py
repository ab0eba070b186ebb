"""What the compiled slot path does in a step: kernels, state, arithmetic and memory a decision.

    python benchmarks/program.py [--settings P]

Counted in the program that XLA made for the default study, where the settings share their prices
and where all of them differ. A decision is one turn under one setting.
"""

import argparse
import re

import jax
import numpy as np

from jaxroute import abreast, batch, slots
from jaxroute.numerics import stack
from jaxroute.policies import RouterParams
from jaxroute.slot_scan import replay_slots
from jaxroute.study import Study, load_study

FREE = {"parameter", "get-tuple-element", "tuple", "constant", "bitcast"}
"""Instructions that are no kernel."""

ARITHMETIC = {
    *("add", "subtract", "multiply", "divide", "maximum", "minimum", "floor", "abs"),
    *("compare", "select", "and", "or", "not", "convert", "exponential", "log", "logistic"),
}
"""Instructions that compute an element each."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", type=int, default=256)
    count = parser.parse_args().settings
    study = load_study()
    for name in ("shared", "distinct"):
        print(f"{name:<9} {report(study, settings(study, count, distinct=name == 'distinct'))}")


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


def report(study: Study, params: RouterParams) -> str:
    """The counts of one program, in words."""
    sessions, world = study.datasets[0].sessions, study.world
    layout, uses = abreast.lay_out(sessions), batch.uses_of(params, world)
    compiled = replay_slots.lower(
        batch.settled(params), sessions, layout, world, slot_count=batch.SLOTS, uses=uses
    ).compile()
    shape = abreast.WIDTH, len(params.carbon_weight)
    decisions = shape[0] * shape[1]
    state = jax.eval_shape(lambda: slots.opening(batch.SLOTS, shape, np.dtype("float32"), uses))
    state_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(state))
    sums_bytes = 4 * len(slots.SUMS) * decisions
    kernels, operations = counts(compiled.as_text())
    return (
        f"{kernels} kernels a step of {decisions:,} decisions; "
        f"{operations / decisions:.0f} operations, {state_bytes / decisions:.0f} B of state and "
        f"{sums_bytes / decisions:.0f} B of sums a decision"
    )


def counts(program: str) -> tuple[int, int]:
    """Kernels of a step, and the elements they compute, of the innermost loop with most kernels.

    >>> step = "%b (p: f32[8]) -> f32[8] {\\n  %f = f32[8] fusion(%p), calls=%g\\n}\\n"
    >>> fused = "%g (p: f32[8]) -> f32[8] {\\n  %x = f32[8]{0} add(%p, %p)\\n}\\n"
    >>> counts(step + fused + "body=%b\\n")
    (1, 8)
    """
    heads = re.findall(r"^%?(\S+) \(.*\{\n((?s:.*?))^\}", program, re.MULTILINE)
    parts = {name: [_parsed(line) for line in text.splitlines()] for name, text in heads}
    steps = [parts[name] for name in set(re.findall(r"body=%([^, )\n]+)", program))]
    steps = [step for step in steps if all(kind != "while" for kind, _, _ in step)]
    step = max(steps, key=lambda step: sum(kind not in FREE for kind, _, _ in step))
    inside = [each for _, _, name in step for each in parts.get(name, [])]
    operations = sum(size for kind, size, _ in (*step, *inside) if kind in ARITHMETIC)
    return sum(kind not in FREE for kind, _, _ in step), operations


def _parsed(line: str) -> tuple[str, int, str]:
    """An instruction's kind, the elements of its result, and the computation that it calls."""
    text = line.partition(" = ")[2]
    kind, shape = re.search(r" ([a-z-]+)\(", text), re.match(r"\w+\[([\d,]*)\]", text)
    sizes = [int(size) for size in shape.group(1).split(",") if size] if shape else []
    called = re.search(r"calls=%([^, \n]+)", text)
    return kind.group(1) if kind else "", int(np.prod(sizes)), called.group(1) if called else ""


if __name__ == "__main__":
    main()
