"""The engine held to the oracle: first free, then with the engine's decisions forced on it."""

import dataclasses
import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
import tolerances
from bridge import oracle_params, oracle_sessions, oracle_world, places_of

from jaxroute import catalogue, reference, simulate
from jaxroute.dataset import Dataset
from jaxroute.numerics import stack
from jaxroute.policies import RouterParams
from jaxroute.study import Study, load_study
from jaxroute.world import Retention, cast

RETENTIONS = {
    "keep": Retention.of(),
    "ttl": Retention.of(300.0),
    "decay": Retention.of(decay_s=600.0),
    "drop": Retention.of(drop_on_leave=True),
}

TRACES = os.environ.get("JAXROUTE_TRACES")
BUNDLED = "builtin:sharegpt"

FIXED_AT = {"model": 3, "gpu": 1, "region": 2}


def traces() -> list:
    """The traces at hand, for `pytest.mark.parametrize`; skipped ones say why."""
    found = sorted(Path(TRACES).glob("*.csv*")) if TRACES else []
    others = [path for path in found if not path.name.startswith("sharegpt")]
    if not others:
        reason = f"no traces in JAXROUTE_TRACES={TRACES}" if TRACES else "JAXROUTE_TRACES is unset"
        return [BUNDLED, pytest.param("more traces", marks=pytest.mark.skip(reason=reason))]
    return [BUNDLED, *(pytest.param(str(path), id=path.stem) for path in others)]


def study_of(trace: str) -> Study:
    """The default study on one of `traces`."""
    return load_study() if trace == BUNDLED else load_study(traces=[trace])


def presets(study: Study) -> dict[str, RouterParams]:
    """Every preset of a study, those with a fixed axis at an index of it."""
    out = {}
    for name, params in study.policies.items():
        if (axis := study.fixed.get(name)) is not None:
            size = int(getattr(study.world.fleet, axis).max()) + 1
            params = params.replace(**{f"{axis}_allowed": catalogue.only(FIXED_AT[axis], size)})
        out[name] = params
    return out


def subset(dataset: Dataset, sessions: Sequence[int]) -> Dataset:
    """A dataset of some of its sessions."""
    picked = np.asarray(sessions)
    ends = np.cumsum(dataset.lengths)
    turns = [np.arange(ends[s] - dataset.lengths[s], ends[s]) for s in picked]
    at = np.concatenate(turns) if turns else np.zeros(0, int)
    return dataclasses.replace(
        dataset,
        session_ids=dataset.session_ids[picked],
        hashes=dataset.hashes[picked],
        lengths=dataset.lengths[picked],
        columns={name: values[at] for name, values in dataset.columns.items()},
    )


def stratified(dataset: Dataset, count: int, *, longer_than: int = 100) -> list[int]:
    """About `count` sessions, as many of each length bucket, and all longer than that."""
    rng = np.random.default_rng(0)
    edges = np.array([0, 1, 5, 10, 30, np.inf])
    bucket = np.searchsorted(edges, dataset.lengths, side="left")
    chosen = set(np.flatnonzero(dataset.lengths > longer_than).tolist())
    for n in range(1, len(edges)):
        inside = np.flatnonzero(bucket == n)
        size = min(len(inside), -(-count // (len(edges) - 1)))
        chosen |= set(rng.choice(inside, size, replace=False).tolist())
    return sorted(chosen)


def check(study: Study, dataset: Dataset, retention: Retention) -> dict[str, float]:
    """Holds every preset to the oracle on a dataset; returns the share of turns excused.

    Each session is compared turn by turn up to the first difference in decision or cached tokens,
    which must stand near another outcome; it and the turns after it are excused. Then the totals
    are compared under the engine's decisions and cached tokens.
    """
    world = study.world.replace(retention=cast(retention, study.world.fleet.pre_j.dtype))
    kind = str(np.dtype(world.fleet.pre_j.dtype))
    named = presets(study)
    sessions = dataset.sessions
    totals, trace = simulate.evaluate_grid(
        stack(named.values()), sessions, world, stack([world.retention])
    )
    totals, trace = jax.tree.map(lambda x: np.asarray(x, np.float64)[0], (totals, trace))
    places, plain_world = places_of(sessions), oracle_world(world)
    plain_sessions = oracle_sessions(sessions)
    shares = {}
    for n, (name, params) in enumerate(named.items()):
        plain_params = oracle_params(cast(params, world.fleet.pre_j.dtype))
        excused = 0
        for s, (place, session) in enumerate(zip(places, plain_sessions, strict=True)):
            decision = trace.decision[n][place].astype(int)
            cached = trace.cached_tokens[n][place]
            replay = functools.partial(reference.replay, plain_world, session, plain_params)
            oracle, left = followed(replay, decision, cached, kind, (name, s))
            excused += left
            compare_totals(totals, (n, s), oracle.totals, kind, (name, s))
        shares[name] = excused / max(len(dataset.columns["hour"]), 1)
        assert shares[name] <= tolerances.EXCUSED, (name, shares[name])
    return shares


def followed(
    replay: Callable[..., reference.Replay],
    decision: np.ndarray,
    cached: np.ndarray,
    kind: str,
    where: Any,
) -> tuple[reference.Replay, int]:
    """The oracle's replay of a session with the engine's decisions, and the turns excused.

    It runs free first; at the first difference it must stand near another outcome, and is then
    forced. `replay` is `reference.replay` of the session, `where` names it in a failure.
    """
    oracle = replay()
    differs = (oracle.decision != decision) | (oracle.cached_tokens != cached)
    if not differs.any():
        return oracle, 0
    t = int(np.argmax(differs))
    near = near_another_outcome(oracle, t, kind)
    assert near, (where, t, decision[t], oracle.decision[t], oracle.margin[t])
    return replay(forced=(decision, cached)), len(differs) - t


def near_another_outcome(free: reference.Replay, t: int, kind: str) -> bool:
    """Whether float32 may rightly differ at turn t.

    A token that decays to the other side of a whole number stays in the residency unseen until a
    block boundary passes it, so the edge may have been met at an earlier turn.
    """
    near_score = min(free.margin[t], free.gate_margin[t]) < tolerances.MARGIN[kind]
    return near_score or free.edge_tokens[: t + 1].min() < tolerances.EDGE_TOKENS[kind]


def compare_totals(totals: Any, at: tuple[int, int], expected: dict, kind: str, where: Any) -> None:
    """Every total of a session (its index `at`) within the tolerance of the oracle's."""
    for name in simulate.FIELDS:
        got = getattr(totals, name)[at]
        close = np.isclose(got, expected[name], rtol=tolerances.TOTALS[kind], atol=1e-15)
        assert close, (*where, name, got, expected[name])
