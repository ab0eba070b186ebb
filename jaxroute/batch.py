"""Many settings of a router replayed at once, for sweeps: per-session sums and nothing by turn."""

import functools
from typing import Any

import jax
import numpy as np

from jaxroute import policies, simulate
from jaxroute.latency import BINS, Latency
from jaxroute.policies import RouterParams
from jaxroute.sessions import Sessions
from jaxroute.simulate import FIELDS, Totals
from jaxroute.world import Belief, Fleet, Retention, World

MOST_SETTINGS = 256
"""Of one call: more are no faster, and are what a killed sweep has to do again."""

_FLEET = Fleet(**dict.fromkeys(Fleet.__dataclass_fields__, 1))  # type: ignore[arg-type]
_ALONE: dict[str, Any] = {
    "fleet": _FLEET,
    "block_tokens": 0,
    **dict.fromkeys(("pue", "wue_l_per_kwh", "ewif_l_per_kwh", "price_usd_per_kwh"), 1),
    **dict.fromkeys(("intensity_g_per_kwh", "rtt_s", "wait_s"), 2),
    "retention": Retention(ttl_s=2, decay_s=2, drop_on_leave=0),  # type: ignore[arg-type]
}
_BELIEF: dict[str, Any] = {
    "fleet": _FLEET,
    "intensity_g_per_kwh": 2,
    **dict.fromkeys(("delayed", "rounded_to_tokens", "missing"), 0),
}
"""Dimensions of each leaf of a world and of a belief that are the same for every setting."""


def replay_settings(
    params: RouterParams, sessions: Sessions, world: World, *, latency: bool = False
) -> tuple[Totals, Latency | None]:
    """Replays every session under P settings.

    One program for each shape; everything that is on the device stays there.

    Args:
      params: `[P, ...]` leaves.
      sessions: S sessions, packed.
      world: leaves with a dimension more than `World` says are `[P, ...]`, one of each setting.
      latency: whether to count the turns by how long they took.

    Returns:
      Sums of each session, `[P, S]` leaves, and histograms, `[P, BINS]` leaves, or None.
    """
    return _replayed(params, sessions, world, latency)


@functools.partial(jax.jit, static_argnames="latency")
def _replayed(
    params: RouterParams, sessions: Sessions, world: World, latency: bool
) -> tuple[Totals, Latency | None]:
    leaves, structure = jax.tree.flatten(world)
    belief = None if world.belief is None else Belief(**_BELIEF)
    alone = jax.tree.leaves(World(**_ALONE, belief=belief))
    axes = [0 if leaf.ndim > rank else None for leaf, rank in zip(leaves, alone, strict=True)]

    def one(setting: RouterParams, own: list[jax.Array]) -> tuple[Totals, Latency | None]:
        totals, _, times = simulate.replay(
            setting,
            sessions,
            jax.tree.unflatten(structure, own),
            policy=policies.router,
            keep=lambda params, record: (),
            latency=latency,
        )
        return totals, times

    return jax.vmap(one, in_axes=(0, axes))(params, leaves)


def bytes_a_setting(sessions: Sessions, world: World, *, latency: bool = False) -> int:
    """Memory that one setting more takes in `replay_settings`, device and host together.

    Its totals, as the scan carries them and as they are returned, and the state of the rows.
    """
    rows, deployments = sessions.turns.valid.shape[0], world.fleet.model.shape[0]
    size = np.dtype(world.fleet.pre_j.dtype).itemsize
    floats = 3 * len(FIELDS) * sessions.count + 8 * rows * deployments + 4 * BINS * latency
    return size * floats
