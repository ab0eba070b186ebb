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
    parts = {**vars(world.fleet), **vars(world.retention), **vars(world)}
    plain_world = {n: v for n, v in parts.items() if n not in ("fleet", "retention", "belief")}
    turns = [session_of(sessions, number) for number in picked]
    found = []
    for p in range(len(params.carbon_weight)):
        setting = {name: np.asarray(values)[p] for name, values in vars(params).items()}
        found.append([reference.replay(plain_world, one, setting).totals for one in turns])
    return {name: np.array([[s[name] for s in row] for row in found]) for name in FIELDS}


def session_of(sessions: Sessions, number: int) -> dict[str, Any]:
    """The turns of one session as `jaxroute.reference.replay` takes them."""
    at = np.nonzero(np.asarray(sessions.turns.session) == number)
    columns = {n: np.asarray(v)[at] for n, v in vars(sessions.turns).items() if v is not None}
    arrival_s = np.cumsum(columns["gap_s"], dtype=np.float64)
    return {n: v for n, v in columns.items() if n not in BOOKKEEPING} | {"arrival_s": arrival_s}
