"""The slowest baseline: `jaxroute.reference`, a Python loop over sessions and turns."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxroute import reference
from jaxroute.policies import RouterParams
from jaxroute.sessions import Sessions
from jaxroute.simulate import FIELDS
from jaxroute.world import World

BOOKKEEPING = ("valid", "first", "session", "turn", "gap_s")


def run(
    params: RouterParams, sessions: Sessions, world: World, picked: Sequence[int]
) -> dict[str, NDArray[np.float64]]:
    """Replays a few sessions under every setting, one after another.

    Args:
      params: P settings, `[P, ...]` leaves (`jaxroute.stack`), on the host.
      sessions: packed, on the host.
      world: fleet, grids and retention; without a belief.
      picked: indices of the sessions.

    Returns:
      The sums of `jaxroute.simulate.FIELDS`, `[P, len(picked)]` each.
    """
    plain_world, count = world_of(world), len(params.carbon_weight)
    turns = [session_of(sessions, number) for number in picked]
    found = [
        [reference.replay(plain_world, one, setting_of(params, p)).totals for one in turns]
        for p in range(count)
    ]
    return {name: np.array([[s[name] for s in row] for row in found]) for name in FIELDS}


def world_of(world: World) -> dict[str, Any]:
    """A world without a belief as `jaxroute.reference.replay` takes it."""
    parts = {**vars(world.fleet), **vars(world.retention), **vars(world)}
    return {n: v for n, v in parts.items() if n not in ("fleet", "retention", "belief")}


def setting_of(params: RouterParams, number: int) -> dict[str, Any]:
    """One of P settings, likewise."""
    return {name: np.asarray(values)[number] for name, values in vars(params).items()}


def session_of(sessions: Sessions, number: int) -> dict[str, Any]:
    """The turns of one session, likewise."""
    at = np.nonzero(np.asarray(sessions.turns.session) == number)
    columns = {n: np.asarray(v)[at] for n, v in vars(sessions.turns).items() if v is not None}
    arrival_s = np.cumsum(columns["gap_s"], dtype=np.float64)
    return {n: v for n, v in columns.items() if n not in BOOKKEEPING} | {"arrival_s": arrival_s}
