"""Whether the engine computes what it should on a device, before any time is measured there."""

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from benchmarks import synthetic
from benchmarks.baselines import python_loop
from jaxroute import batch, reference, simulate
from jaxroute.numerics import stack
from jaxroute.policies import RouterParams
from jaxroute.sessions import Sessions
from jaxroute.simulate import FIELDS
from jaxroute.world import World

TOTALS = 1e-5
"""Relative, of every sum of a session."""

MARGIN, EDGE_TOKENS = 1e-5, 1e-3
"""Relative distance of two scores, and tokens from a jump, within which float32 may differ."""

EXCUSED = 0.01
"""Largest share of the sessions that may stand so near to another outcome and differ."""

BEYOND = 32_769
"""Sessions at which a compiler has been seen to miscompute what was right up to 32,768."""


def against_oracle(params: RouterParams, sessions: Sessions, worlds: Sequence[World]) -> int:
    """Holds decisions and sums of the dense scan, and the sums of the slot path, to the oracle.

    The dense scan is compared turn by turn up to the first difference, which must stand near
    another outcome, and its sums under its own decisions. Ends the process where they do not agree.

    Args:
      params: P settings, `[P, ...]` leaves.
      sessions, worlds: on the host; worlds without a belief.

    Returns:
      How many sessions were excused.
    """
    excused, session = 0, np.asarray(sessions.turns.session)
    places = [np.nonzero(session == number) for number in range(sessions.count)]
    turns = [python_loop.session_of(sessions, number) for number in range(sessions.count)]
    for world in worlds:
        found = simulate.evaluate_grid(params, sessions, world, stack([world.retention]))
        totals, trace = jax.tree.map(lambda x: np.asarray(x, np.float64)[0], found)
        slots = jax.tree.map(np.asarray, batch.replay_settings(params, sessions, world)[0])
        plain_world = python_loop.world_of(world)
        for p, s in np.ndindex(totals.turns.shape):
            setting = python_loop.setting_of(params, p)
            replay = functools.partial(reference.replay, plain_world, turns[s], setting)
            decisions = trace.decision[p][places[s]], trace.cached_tokens[p][places[s]]
            free = replay()
            oracle, differs = followed(replay, free, decisions, f"setting {p}, session {s}")
            expected = np.array([oracle.totals[name] for name in FIELDS])
            if not agree(sums_of(totals, (p, s)), expected):
                sys.exit(f"the dense scan's sums of setting {p}, session {s} are not the oracle's")
            if not agree(sums_of(slots, (p, s)), expected):
                if not near(free):
                    sys.exit(f"the slot path's sums of setting {p}, session {s} are wrong")
                differs = True
            excused += differs
    return within_share(excused, len(worlds) * totals.turns.size)


def followed(
    replay: Callable[..., reference.Replay],
    free: reference.Replay,
    decisions: tuple[NDArray, NDArray],
    where: str,
) -> tuple[reference.Replay, bool]:
    """The oracle with decisions and cached tokens of the engine, and whether they differ at all."""
    differs = (free.decision != decisions[0]) | (free.cached_tokens != decisions[1])
    if not differs.any():
        return free, False
    t = int(np.argmax(differs))
    if not near(free, t):
        sys.exit(f"{where}: at turn {t} {decisions[0][t]}, the oracle takes {free.decision[t]}")
    return replay(forced=decisions), True


def near(free: reference.Replay, turn: int | None = None) -> bool:
    """Whether the oracle came near another outcome at a turn (or any), or near a token's edge."""
    score, edge = np.minimum(free.margin, free.gate_margin), free.edge_tokens
    if turn is not None:  # a token lost earlier may be missed only now
        score, edge = score[turn], edge[: turn + 1]
    return bool(score.min() < MARGIN or edge.min() < EDGE_TOKENS)


def compiled_against_eager(setting: RouterParams, world: World, *, count: int = BEYOND) -> int:
    """Holds the compiled replay of many short sessions side by side to itself run op by op.

    Ends the process where decisions or sums differ but for sessions near another outcome.

    Returns:
      How many sessions were excused.
    """
    sessions = synthetic.sessions(world, count, 2, rows=count)
    run = functools.partial(simulate.evaluate, setting, sessions, world, trace=True)
    compiled = jax.tree.map(np.asarray, run())
    with jax.disable_jit():
        eager = jax.tree.map(np.asarray, run())
    slots = batch.replay_settings(stack([setting] * 2), sessions, world)[0]
    at = np.argsort(sessions.turns.session[:, 0])  # a row each
    same = (compiled[1].decision == eager[1].decision)[at].all(axis=1)
    expected = sums_of(eager[0], slice(None))
    same &= agree(sums_of(compiled[0], slice(None)), expected)
    for p in range(2):
        same &= agree(sums_of(slots, p), expected)
    plain_world, plain_setting = python_loop.world_of(world), vars(setting)
    for number in np.flatnonzero(~same)[: int(EXCUSED * count) + 1]:
        turns = python_loop.session_of(sessions, number)
        if not near(reference.replay(plain_world, turns, plain_setting)):
            sys.exit(f"compiled and op by op, session {number} of {count:,} differs")
    return within_share(int((~same).sum()), count)


def sums_of(totals: Any, at: Any) -> NDArray[np.float64]:
    """Every sum at an index, on the last axis in the order of `FIELDS`."""
    return np.stack([np.asarray(getattr(totals, name), np.float64)[at] for name in FIELDS], axis=-1)


def agree(found: NDArray[np.float64], expected: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether all sums on the last axis do."""
    return np.isclose(found, expected, rtol=TOTALS, atol=1e-15).all(axis=-1)


def within_share(excused: int, sessions: int) -> int:
    if excused > EXCUSED * sessions:
        sys.exit(f"{excused:,} of {sessions:,} sessions differ")
    return excused
