"""The engines that the sweep benchmark compares: each replays sessions under many settings.

All take the same: P settings (`[P, ...]` leaves), packed sessions in parts, and a world; and return
gCO2e of each setting, `[P]`. The slot path and the dense scan replay a part on each core; the
compiled loops spread the sessions over the cores themselves, the other two use one.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np

from benchmarks.baselines import numba_plain, numba_tuned, numpy_sessions, python_loop
from jaxroute import batch
from jaxroute.policies import RouterParams
from jaxroute.sessions import Sessions
from jaxroute.simulate import FIELDS, Totals
from jaxroute.world import World

PARTS = [f"carbon_{part}_g" for part in ("prefill", "decode", "embodied")]
PART_AT = [FIELDS.index(name) for name in PARTS]

Engine = Callable[[RouterParams, Sequence[Sessions], World], np.ndarray]


def by_slots(params: RouterParams, parts: Sequence[Sessions], world: World) -> np.ndarray:
    """The slot path."""
    return _side_by_side(
        params, parts, lambda some, part: batch.replay_settings(some, part, world)[0]
    )


def dense(params: RouterParams, parts: Sequence[Sessions], world: World) -> np.ndarray:
    """The scan of `evaluate` under `vmap`."""
    return _side_by_side(
        params,
        parts,
        lambda some, part: jax.block_until_ready(batch.dense(some, part, world)[0]),
    )


def tuned(params: RouterParams, parts: Sequence[Sessions], world: World) -> np.ndarray:
    """The numba loop with settings in the SIMD lanes."""
    return _summed(params, parts, lambda part: numba_tuned.run(params, part, world))


def plain(params: RouterParams, parts: Sequence[Sessions], world: World) -> np.ndarray:
    """The numba loop over candidates, a setting at a time."""
    carbon_g = np.zeros(len(params.carbon_weight))
    for part in parts:
        turns = numba_plain.flatten(part)
        for p in range(len(carbon_g)):
            setting = jax.tree.map(lambda x, p=p: x[p], params)
            totals, _ = numba_plain.replay(setting, turns, world, world.retention)
            carbon_g[p] += totals[:, PART_AT].sum()
    return carbon_g


def numpy(params: RouterParams, parts: Sequence[Sessions], world: World) -> np.ndarray:
    """NumPy over sessions, a setting at a time."""
    return _summed(params, parts, lambda part: numpy_sessions.run(params, part, world))


def loop(params: RouterParams, parts: Sequence[Sessions], world: World) -> np.ndarray:
    """The oracle, a Python loop."""
    return _summed(
        params, parts, lambda part: python_loop.run(params, part, world, range(part.count))
    )


def _side_by_side(
    params: RouterParams,
    parts: Sequence[Sessions],
    replay: Callable[[RouterParams, Sessions], Totals],
) -> np.ndarray:
    """At most `batch.MOST_SETTINGS` at a time, as `jaxroute sweep` has it, a part on each core."""
    starts = range(0, len(params.carbon_weight), batch.MOST_SETTINGS)
    chunks = [
        jax.tree.map(lambda x, at=at: x[at : at + batch.MOST_SETTINGS], params) for at in starts
    ]

    def whole(part: Sessions) -> np.ndarray:
        found = [replay(chunk, part).carbon_g for chunk in chunks]
        return np.concatenate([np.asarray(each, np.float64).sum(-1) for each in found])

    with ThreadPoolExecutor(len(parts)) as pool:
        return sum(pool.map(whole, parts))


def _summed(
    params: RouterParams,
    parts: Sequence[Sessions],
    replay: Callable[[Sessions], dict[str, np.ndarray]],
) -> np.ndarray:
    """The carbon of an engine that returns its sums by name, `[P]` or `[P, S]`."""
    carbon_g = np.zeros(len(params.carbon_weight))
    for part in parts:
        found = replay(part)
        carbon_g += sum(found[name].reshape(len(carbon_g), -1).sum(axis=1) for name in PARTS)
    return carbon_g
