"""A path of the engine, compiled for a batch that lies on the device, and what is counted in it."""

import re
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from benchmarks import program
from jaxroute import batch, sharing
from jaxroute.abreast import extents, lay_out, width_for
from jaxroute.policies import RouterParams
from jaxroute.sessions import Sessions
from jaxroute.slot_scan import replay_slots
from jaxroute.world import World


class Program(NamedTuple):
    """A compiled path on a batch.

    Attributes:
      run: replays the batch once and waits.
      compile_s: of the program.
      kernels: of a step.
      state_bytes: what a step reads and writes of its state, a decision.
      memory_mib: inputs, results and what is between.
      carbon_g: of the batch.
      inexact_pct: sessions by settings that needed more slots and are to be replayed.
    """

    run: Callable[[], Any]
    compile_s: float
    kernels: int
    state_bytes: float
    memory_mib: float
    carbon_g: float
    inexact_pct: float


def by_slots(params: RouterParams, sessions: Sessions, world: World) -> tuple[Any, ...]:
    """The program behind `batch.replay_settings`, its inputs on the device, and what is static."""
    layout = lay_out(extents(sessions), width=width_for(len(params.carbon_weight)))
    inputs = jax.device_put((sharing.settled(params), sessions, layout, world))
    return replay_slots, inputs, {"slot_count": batch.SLOTS, "uses": sharing.uses_of(params, world)}


def dense(params: RouterParams, sessions: Sessions, world: World) -> tuple[Any, ...]:
    """The scan of `evaluate` under `vmap`, likewise."""
    return batch.dense, jax.device_put((params, sessions, world)), {}


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
    totals, inexact = compiled(*inputs)
    return Program(
        run=lambda: jax.block_until_ready(compiled(*inputs)),
        compile_s=compile_s,
        kernels=program.counts(inlined(compiled.as_text()), abreast)[0],
        state_bytes=2 * carried_bytes / abreast,
        memory_mib=memory / 2**20,
        carbon_g=float(totals.carbon_g.sum()),
        inexact_pct=0.0 if inexact is None else 100 * float(inexact.mean()),
    )


def carried(jaxpr: Any) -> tuple[int, int]:
    """Bytes that the innermost scan carries from step to step, and its decisions a step.

    Of the carry only what a step computes with: arrays that it merely adds or writes rows to are
    left out. Most of the rest have an element for each decision.

    >>> def run(k, x, xs):
    ...     return jax.lax.scan(lambda c, y: (c * k[None] + y, c), x, xs)
    >>> k, x, xs = jax.numpy.zeros(8), jax.numpy.zeros((4, 8)), jax.numpy.zeros((3, 1, 8))
    >>> carried(jax.make_jaxpr(run)(k, x, xs))
    (128, 32)
    """
    scan = max(_scans(jaxpr.jaxpr), key=lambda scan: len(scan.params["jaxpr"].jaxpr.eqns))
    step = scan.params["jaxpr"].jaxpr
    used = {
        id(atom)
        for eqn in step.eqns
        if eqn.primitive.name not in ("cond", "scatter-add", "dynamic_update_slice")
        for atom in eqn.invars
    }
    # What is scanned over has a dimension less inside; before it stand constants and the carry.
    count = sum(a.aval.ndim == b.aval.ndim for a, b in zip(scan.outvars, step.outvars, strict=True))
    ends = sum(a.aval.ndim == b.aval.ndim for a, b in zip(scan.invars, step.invars, strict=True))
    leaves = [leaf.aval for leaf in step.invars[ends - count : ends] if id(leaf) in used]
    carried_bytes = sum(leaf.size * leaf.dtype.itemsize for leaf in leaves)
    return carried_bytes, statistics.mode(leaf.size for leaf in leaves)


def _scans(jaxpr: Any) -> list[Any]:
    """The scans of a jaxpr that hold no other."""
    found = []
    for eqn in jaxpr.eqns:
        inner = []
        for value in jax.tree.leaves(eqn.params, is_leaf=lambda x: hasattr(x, "jaxpr")):
            if hasattr(value, "jaxpr"):
                inner += _scans(value.jaxpr)
        found += inner or ([eqn] if eqn.primitive.name == "scan" else [])
    return found


def inlined(text: str) -> str:
    """A program's text with the computations that it calls, such as command buffers, in place.

    >>> graph = "  %f = f32[8] fusion(%p), calls=%g\\n  ROOT %h = f32[8] fusion(%f), calls=%g\\n"
    >>> called = "%graph (p: f32[8]) -> f32[8] {\\n" + graph + "}\\n"
    >>> step = "%b (p: f32[8]) -> f32[8] {\\n  %c = f32[8] call(%p), to_apply=%graph\\n}\\n"
    >>> program.counts(inlined(called + step + "body=%b\\n"), 8)[0]
    2
    """
    bodies = dict(re.findall(r"^%?(\S+) \(.*\{\n((?s:.*?))^\}", text, re.MULTILINE))
    call = re.compile(r"^.* call\(.*to_apply=%?([^, \n]+).*\n", re.MULTILINE)
    return call.sub(lambda found: bodies.get(found[1], found[0]), text)
