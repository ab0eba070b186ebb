"""Engine against oracle where no preset goes: every parameter, belief, mask and table at once."""

import functools

import jax
import numpy as np
import pytest
import tolerances
import worlds
from bridge import (
    engine_params,
    engine_sessions,
    engine_world,
    oracle_params,
    oracle_sessions,
    oracle_world,
    places_of,
)
from oracle_check import compare_totals, followed

from jaxroute import reference
from jaxroute.numerics import stack
from jaxroute.simulate import evaluate

CASES, SESSIONS, TURNS, BINS = 120, 4, 10, 4


def _params(rng: np.random.Generator) -> dict:
    def sometimes(value, neutral=0.0, chance=0.5):
        return value if rng.random() < chance else neutral

    return worlds.params(
        embodied_weight=rng.choice([0.0, 0.5, 1.0]),
        latency_price_g_per_s=sometimes(rng.exponential(1e-3)),
        quality_price_g=sometimes(rng.exponential(0.05)),
        switch_price_g=sometimes(rng.exponential(0.01)),
        intensity_price=sometimes(rng.exponential(1e-4)),
        rtt_price_g_per_s=sometimes(rng.exponential(0.1)),
        size_price_g_per_b=sometimes(rng.exponential(1e-3)),
        noise_price_g=sometimes(rng.exponential(0.02)),
        cache_knowledge=rng.choice([0.0, 0.3, 1.0]),
        assumed_hit=rng.choice([0.0, 0.6, 1.0]),
        quality_floor=sometimes(rng.uniform()),
        quality_slack=sometimes(rng.uniform(0, 0.5), np.inf),
        ttft_slo_s=sometimes(rng.uniform(0.1, 1.0), np.inf),
        model_allowed=rng.integers(0, 2, 2).astype(float),
        gpu_allowed=rng.integers(0, 2, 2).astype(float),
        region_allowed=rng.integers(0, 2, 3).astype(float),
        gate_strength=sometimes(rng.exponential(1.0), chance=0.8),
        gate_bias=rng.normal(),
        gate_weights=rng.normal(0, 0.5, 8),
        hysteresis=sometimes(rng.uniform(0, 0.3), chance=0.3),
        always_stay=sometimes(1.0, chance=0.1),
        expected_gap_s=rng.exponential(100.0) + 1,
    )


def _world(rng: np.random.Generator) -> dict:
    world = worlds.world(rng)
    by_bin = (BINS, len(world["model"]))
    finite = rng.random() < 0.6
    return world | {
        "ttl_s": rng.exponential(400, by_bin) + 1 if finite else np.full(by_bin, np.inf),
        "decay_s": rng.exponential(900, by_bin) + 1 if finite else np.full(by_bin, np.inf),
        "wait_s": rng.exponential(0.2, by_bin),
        "drop_on_leave": float(rng.random() < 0.3),
    }


def _believing(rng: np.random.Generator) -> dict:
    """A world whose router errs in everything it may err in."""
    world = _world(rng)
    return world | {"belief": worlds.belief(rng, world)}


def _session(rng: np.random.Generator, world: dict) -> dict:
    """A conversation whose history is cut now and then."""
    session = worlds.session(rng, world, TURNS)
    cut = np.where(rng.random(TURNS) < 0.2, rng.random(TURNS), 1.0)
    return session | {"prefix_tokens": np.floor(session["prefix_tokens"] * cut)}


@pytest.mark.parametrize("kind", [_world, _believing])
def test_random_settings_agree_with_the_oracle(kind):
    rng = np.random.default_rng(20)
    params = [engine_params(_params(rng)) for _ in range(CASES)]
    plain = [kind(rng) for _ in range(CASES)]
    made = [engine_world(world) for world in plain]
    packed = [
        engine_sessions([_session(rng, world) for _ in range(SESSIONS)], rows=2) for world in plain
    ]
    run = jax.vmap(lambda p, s, w: evaluate(p, s, w, trace=True))
    totals, trace = run(stack(params), stack(packed), stack(made))
    totals, trace = jax.tree.map(lambda x: np.asarray(x, np.float64), (totals, trace))
    excused = seen = moves = 0
    for n in range(CASES):
        world, setting = oracle_world(made[n]), oracle_params(params[n])
        sessions = oracle_sessions(packed[n])
        for s, (place, session) in enumerate(zip(places_of(packed[n]), sessions, strict=True)):
            decision = trace.decision[n][place].astype(int)
            cached = trace.cached_tokens[n][place]
            replay = functools.partial(reference.replay, world, session, setting)
            oracle, left = followed(replay, decision, cached, "float32", (n, s))
            compare_totals(totals, (n, s), oracle.totals, "float32", (n, s))
            excused += left
            seen += len(decision)
            moves += oracle.totals["moves"]
    assert excused <= tolerances.EXCUSED * seen
    assert moves > 0.1 * seen
