"""What the compiled slot path does in a step: kernels, state, arithmetic and memory a decision.

    python benchmarks/program.py [--settings P]

Counted in the program that XLA made for the default study, where the settings share their prices
and where all of them differ. A decision is one turn under one setting; the arithmetic and the bytes
are XLA's own count for a block, whose share of a step is in them.
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

FREE = ("parameter", "get-tuple-element", "tuple", "constant", "bitcast")
"""Instructions that are no kernel."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--settings", type=int, default=256)
    count = parser.parse_args().settings
    study = load_study()
    for name in ("shared", "distinct"):
        print(f"{name:<9} {report(study, settings(study, count, distinct=name == 'distinct'))}")


def settings(study: Study, count: int, *, distinct: bool) -> RouterParams:
    """Settings of `carbon_router` that differ in the gate, and if `distinct` in prices and floor."""
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
    cost = compiled.cost_analysis()
    block = decisions * abreast.STEPS
    return (
        f"{kernels(compiled.as_text())} kernels a step of {decisions:,} decisions; "
        f"{state_bytes / decisions:.0f} B of state and {sums_bytes / decisions:.0f} B of sums; "
        f"{cost['flops'] / block:.0f} flops and {cost['bytes accessed'] / block:.0f} B of operands "
        "a decision"
    )


def kernels(program: str) -> int:
    """Kernels in the body of the innermost loop that has the most of them.

    >>> kernels("%b (p: f32[]) -> f32[] {\\n  %f = f32[] fusion(%p), calls=%g\\n}\\nbody=%b\\n")
    1
    """
    bodies = set(re.findall(r"body=%?([\w.\-]+)", program))
    counts = []
    for name, text in re.findall(r"^%?([\w.\-]+) \(.*?\{\\n(.*?)^\}", program, re.M | re.S):
        if name in bodies and " while(" not in text:
            operations = re.findall(r"^ +(?:ROOT )?%?[\w.\-]+ = .*? ([a-z\-]+)\(", text, re.M)
            counts.append(sum(each not in FREE for each in operations))
    return max(counts)


if __name__ == "__main__":
    main()
