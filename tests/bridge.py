"""Between the engine's pytrees and the oracle's plain mappings."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from jaxroute.policies import RouterParams
from jaxroute.sessions import Sessions, pack
from jaxroute.world import Belief, Fleet, Retention, World


def _fields(cls: type, values: Mapping[str, Any]) -> dict[str, Any]:
    return {f.name: np.asarray(values[f.name]) for f in dataclasses.fields(cls) if f.name in values}


def _numbers(tree: Any, dtype: Any) -> Any:
    """Counts that the cases give as integers are floats to the engine; indices stay."""
    indices = ("model", "gpu", "region")
    return jax.tree_util.tree_map_with_path(
        lambda path, x: x.astype(np.int32 if path[-1].name in indices else dtype), tree
    )


def engine_world(world: Mapping[str, Any], dtype: Any = np.float32) -> World:
    """The engine's form of an oracle's world."""
    plain, belief = dict(world), None
    if given := plain.pop("belief", None):
        believed = plain | given
        belief = Belief(fleet=Fleet(**_fields(Fleet, believed)), **_fields(Belief, believed))
    built = World(
        fleet=Fleet(**_fields(Fleet, plain)),
        retention=Retention(**_fields(Retention, plain)),
        belief=belief,
        **_fields(World, plain),
    )
    return _numbers(built, dtype)


def engine_params(params: Mapping[str, Any], dtype: Any = np.float32) -> RouterParams:
    """The engine's form of an oracle's parameters."""
    return _numbers(RouterParams(**_fields(RouterParams, params)), dtype)


def engine_sessions(
    sessions: Sequence[Mapping[str, Any]], dtype: Any = np.float32, **layout: Any
) -> Sessions:
    """The engine's form of an oracle's sessions."""
    lengths = np.array([len(s["arrival_s"]) for s in sessions], int)
    columns = {
        name: np.concatenate([np.asarray(s[name]) for s in sessions])
        for name in sessions[0]
        if name != "arrival_s"
    }
    gaps = [np.diff(s["arrival_s"], prepend=s["arrival_s"][0]) for s in sessions]
    return pack(columns | {"gap_s": np.concatenate(gaps)}, lengths, dtype=dtype, **layout)


def oracle_world(world: World) -> dict[str, Any]:
    """The oracle's form of the engine's world: the same numbers, in float64."""
    parts = {**vars(world.fleet), **vars(world.retention), **vars(world)}
    del parts["fleet"], parts["retention"], parts["belief"]
    plain = {name: _wide(value) for name, value in parts.items()}
    if world.belief is None:
        return plain
    parts = {**vars(world.belief.fleet), **vars(world.belief)}
    del parts["fleet"]
    return plain | {"belief": {name: _wide(value) for name, value in parts.items()}}


def oracle_params(params: RouterParams) -> dict[str, Any]:
    """The oracle's form of the engine's parameters: the same numbers, in float64."""
    return {name: _wide(value) for name, value in vars(params).items()}


def oracle_sessions(sessions: Sessions) -> list[dict[str, Any]]:
    """The oracle's sessions, in order: the packed numbers, in float64."""
    turns = sessions.turns
    places = places_of(sessions)
    out = []
    for place in places:
        one = jax.tree.map(lambda x, at=place: _wide(np.asarray(x)[at]), turns)
        columns = vars(one) | {"arrival_s": np.cumsum(one.gap_s)}
        for name in ("valid", "first", "session", "turn", "gap_s"):
            del columns[name]
        out.append({name: values for name, values in columns.items() if values is not None})
    return out


def places_of(sessions: Sessions) -> list[tuple[Any, Any]]:
    """Where each session's turns lie in the packed rows: an index for every `[R, T]` leaf."""
    session = np.asarray(sessions.turns.session)
    row, at = np.nonzero(session < sessions.count)
    order = np.lexsort((at, session[row, at]))
    row, at = row[order], at[order]
    splits = np.cumsum(np.bincount(session[row, at], minlength=sessions.count))[:-1]
    return list(zip(np.split(row, splits), np.split(at, splits), strict=True))


def _wide(value: Any) -> np.ndarray:
    array = np.asarray(value)
    return array.astype(np.float64) if np.issubdtype(array.dtype, np.floating) else array
