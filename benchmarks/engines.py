"""The engines that the sweep benchmark compares: each replays sessions under many settings.

All take the same: P settings (`[P, ...]` leaves), packed sessions in parts, and a world; and give a
function that returns gCO2e of each setting, `[P]`. What a sweep has on its devices before, sessions
and settings, the slot path has as well. It and the dense scan replay a part on each core; the
compiled loops spread the sessions over the cores themselves, the other two use one.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np

from benchmarks.baselines import numba_plain, numba_tuned, numpy_sessions, python_loop
from jaxroute import batch, devices
from jaxroute.abreast import width_for
from jaxroute.policies import RouterParams
from jaxroute.sessions import Sessions
from jaxroute.simulate import FIELDS, Totals
from jaxroute.world import World

PARTS = [f"carbon_{part}_g" for part in ("prefill", "decode", "embodied")]
PART_AT = [FIELDS.index(name) for name in PARTS]

Replay = Callable[[], np.ndarray]
Engine = Callable[[RouterParams, Sequence[Sessions], World], Replay]


def by_slots(params: RouterParams, parts: Sequence[Sessions], world: World) -> Replay:
    """The slot path, as `jaxroute sweep` has it: a round of pieces, a device each."""
    mesh = devices.mesh(len(parts))
    chunks = [(batch.parted(each, world, mesh), len(each.carbon_weight)) for each in cut(params)]
    there = {size: batch.placed(parts, width_for(size), mesh) for _, size in chunks}

    def run() -> np.ndarray:
        found = [batch.replay(chunk, there[size])[0].carbon_g for chunk, size in chunks]
        return np.concatenate([np.asarray(each, np.float64).sum((0, 1)) for each in found])

    return run


def dense(params: RouterParams, parts: Sequence[Sessions], world: World) -> Replay:
    """The scan of `evaluate` under `vmap`, a part on each core."""

    def whole(part: Sessions) -> np.ndarray:
        return np.concatenate([carbon_g(batch.dense(c, part, world)[0]) for c in cut(params)])

    def run() -> np.ndarray:
        with ThreadPoolExecutor(len(parts)) as pool:
            return sum(pool.map(whole, parts))

    return run


def cut(params: RouterParams) -> list[RouterParams]:
    """At most `batch.MOST_SETTINGS` at a time, as `jaxroute sweep` has it."""
    starts = range(0, len(params.carbon_weight), batch.MOST_SETTINGS)
    return [
        jax.tree.map(lambda x, at=at: x[at : at + batch.MOST_SETTINGS], params) for at in starts
    ]


def carbon_g(totals: Totals) -> np.ndarray:
    return np.asarray(totals.carbon_g, np.float64).sum(-1)


def tuned(params: RouterParams, parts: Sequence[Sessions], world: World) -> Replay:
    """The numba loop with settings in the SIMD lanes."""
    return _summed(params, parts, lambda part: numba_tuned.run(params, part, world))


def plain(params: RouterParams, parts: Sequence[Sessions], world: World) -> Replay:
    """The numba loop over candidates, a setting at a time."""

    def run() -> np.ndarray:
        found_g = np.zeros(len(params.carbon_weight))
        for part in parts:
            turns = numba_plain.flatten(part)
            for p in range(len(found_g)):
                setting = jax.tree.map(lambda x, p=p: x[p], params)
                totals, _ = numba_plain.replay(setting, turns, world, world.retention)
                found_g[p] += totals[:, PART_AT].sum()
        return found_g

    return run


def numpy(params: RouterParams, parts: Sequence[Sessions], world: World) -> Replay:
    """NumPy over sessions, a setting at a time."""
    return _summed(params, parts, lambda part: numpy_sessions.run(params, part, world))


def loop(params: RouterParams, parts: Sequence[Sessions], world: World) -> Replay:
    """The oracle, a Python loop."""
    return _summed(
        params, parts, lambda part: python_loop.run(params, part, world, range(part.count))
    )


def _summed(
    params: RouterParams,
    parts: Sequence[Sessions],
    replay: Callable[[Sessions], dict[str, np.ndarray]],
) -> Replay:
    """The carbon of an engine that returns its sums by name, `[P]` or `[P, S]`."""
    count = len(params.carbon_weight)

    def run() -> np.ndarray:
        found = [replay(part) for part in parts]
        return sum(each[name].reshape(count, -1).sum(axis=1) for each in found for name in PARTS)

    return run
