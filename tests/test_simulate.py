"""`evaluate` as a function: traces, dtypes, composition, and worked numbers."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import worlds
from bridge import engine_params, engine_sessions, engine_world

from jaxroute import observe, policies, simulate
from jaxroute.catalogue import logit, preset, presets
from jaxroute.simulate import evaluate

RNG = np.random.default_rng(5)
PLAIN = worlds.world(RNG)
WORLD = engine_world(PLAIN)
SESSIONS = engine_sessions([worlds.session(RNG, PLAIN, turns) for turns in (1, 4, 9, 2)])
PARAMS = preset("carbon_router")


def test_one_trace_however_many_values_are_tried():
    traced = chex.assert_max_traces(simulate.replay, n=1)
    run = jax.jit(functools.partial(traced, policy=policies.router))
    worlds_tried = [WORLD, WORLD.replace(block_tokens=np.float32(1), pue=WORLD.pue * 2)]
    for world in worlds_tried:
        for name in presets:
            run(presets[name], SESSIONS, world)
        for strength in (0.0, 0.5, 2.0):
            run(PARAMS.replace(gate_strength=strength, quality_floor=0.3), SESSIONS, world)


def test_evaluate_compiles_once_for_every_preset():
    before = evaluate._cache_size()
    for name in presets:
        evaluate(presets[name], SESSIONS, WORLD)
    assert evaluate._cache_size() <= before + 1


def test_nothing_is_weakly_typed():
    assert not any(jnp.asarray(leaf).weak_type for leaf in jax.tree.leaves(PARAMS))
    opened = jax.eval_shape(lambda: observe.opening(PARAMS, policies.router, WORLD))
    assert not any(leaf.weak_type for leaf in jax.tree.leaves(opened))
    jaxpr = jax.make_jaxpr(lambda p: simulate.replay(p, SESSIONS, WORLD, policy=policies.router))
    scans = [eqn for eqn in jaxpr(PARAMS).eqns if eqn.primitive.name == "scan"]
    assert len(scans) == 1
    assert not any(v.aval.weak_type for v in scans[0].outvars)


def test_dtypes_in_are_dtypes_out_under_x64():
    script = """
import sys; sys.path.insert(0, sys.argv[1])
import conftest, jax, numpy as np
from test_simulate import PLAIN, PARAMS, RNG, engine_world, engine_sessions, worlds
from jaxroute.simulate import evaluate
from jaxroute.world import cast
for dtype in (np.float32, np.float64):
    world = engine_world(PLAIN, dtype)
    sessions = engine_sessions([worlds.session(RNG, PLAIN, 3)], dtype)
    totals, trace = evaluate(cast(PARAMS, dtype), sessions, world, trace=True)
    found = {x.dtype for x in jax.tree.leaves((totals, trace.cached_tokens, trace.carbon_g))}
    assert found == {np.dtype(dtype)}, (dtype, found)
    assert trace.decision.dtype == np.int32
print("same")
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(Path(__file__).parent)],
        env=os.environ | {"JAX_ENABLE_X64": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "same", done.stderr


def test_composes_with_vmap_over_params_and_over_worlds():
    strengths = np.linspace(0, 2, 3, dtype=np.float32)
    by_strength = jax.vmap(
        lambda s: evaluate(PARAMS.replace(gate_strength=s), SESSIONS, WORLD).carbon_g
    )(strengths)
    for n, strength in enumerate(strengths):
        alone = evaluate(PARAMS.replace(gate_strength=strength), SESSIONS, WORLD).carbon_g
        np.testing.assert_allclose(by_strength[n], alone, rtol=1e-6)

    years = np.stack([WORLD.intensity_g_per_kwh, WORLD.intensity_g_per_kwh[::-1]])

    @jax.jit
    @jax.vmap
    def by_year(intensity):
        world = WORLD.replace(intensity_g_per_kwh=intensity)
        return evaluate(PARAMS, SESSIONS, world).carbon_g

    for n, year in enumerate(years):
        alone = evaluate(PARAMS, SESSIONS, WORLD.replace(intensity_g_per_kwh=year)).carbon_g
        np.testing.assert_allclose(by_year(years)[n], alone, rtol=1e-6)


def test_gradients_are_finite_and_those_of_finite_differences():
    def carbon(pue):
        return evaluate(PARAMS, SESSIONS, WORLD.replace(pue=pue)).carbon_g.sum()

    gradient = jax.grad(carbon)(WORLD.pue)
    step = 1e-3
    for n in range(len(WORLD.pue)):
        moved = [
            WORLD.pue + sign * step * np.eye(len(WORLD.pue), dtype="f4")[n] for sign in (1, -1)
        ]
        difference = (float(carbon(moved[0])) - float(carbon(moved[1]))) / (2 * step)
        assert float(gradient[n]) == pytest.approx(difference, rel=0.02, abs=1e-4)

    @jax.grad
    def by_params(params):
        totals = evaluate(params, SESSIONS, WORLD)
        return totals.carbon_g.sum() + totals.e2e_s.sum()

    chex.assert_tree_all_finite(by_params(PARAMS))
    by_world = jax.grad(lambda w: evaluate(PARAMS, SESSIONS, w).carbon_g.sum(), allow_int=True)
    gradients = by_world(WORLD)
    chex.assert_tree_all_finite([x for x in jax.tree.leaves(gradients) if x.dtype == np.float32])


@pytest.mark.parametrize(
    ("prompt", "published"), [(500, 1.26), (2000, 2.04), (6000, 4.11), (20_000, 11.4)]
)
def test_moving_pays_beyond_the_published_ratio_of_intensities(prompt, published):
    """kappa_i / kappa_j > 1 + L / (q + 6.1 o), with q = 100 new and o = 300 tokens."""
    new, decoded, ratio = 100, 300, 6.1
    exact = 1 + prompt / (new + ratio * decoded)
    assert exact == pytest.approx(published, abs=0.005 * published)
    plain = worlds.world(np.random.default_rng(0), models=1, gpus=1, regions=2)
    zeros = dict.fromkeys(
        ("pre_j_ctx", "dec_j_ctx", "pre_s_ctx", "dec_s_ctx", "host_w", "embodied_g_per_s"),
        np.zeros(2),
    )
    plain |= zeros | {"pre_j": np.full(2, 0.01), "dec_j": np.full(2, 0.01 * ratio)}
    plain |= {"pue": np.ones(2), "block_tokens": 1.0, "max_context_tokens": np.full(2, 1e6)}

    def moves(intensity_ratio):
        """Served at region 0 for a first turn that leaves L tokens there; then 1 is cleaner."""
        plain["intensity_g_per_kwh"] = np.array([[1.0, 100.0], [100 * intensity_ratio, 100.0]])
        session = {
            "arrival_s": np.array([0.0, 60.0]),
            "hour": np.array([0, 1]),
            "time_bin": np.zeros(2, int),
            "home": np.zeros(2, int),
            "prefix_tokens": np.array([0, prompt]),
            "new_tokens": np.array([prompt, new]),
            "output_tokens": np.array([1, decoded + 1]),
            "predicted_output_tokens": np.array([1, decoded + 1]),
            "quality": np.ones((2, 1)),
            "noise": np.zeros((2, 2)),
        }
        packed = engine_sessions([session])
        totals = evaluate(engine_params(worlds.params()), packed, engine_world(plain))
        return bool(totals.moves[0])

    assert not moves(exact * 0.999)
    assert moves(exact * 1.001)


def test_sessions_of_another_fleet_are_refused():
    other = engine_world(worlds.world(RNG, regions=2))
    with pytest.raises(AssertionError, match="shape"):
        evaluate(PARAMS, SESSIONS, other)


def test_a_long_session_and_one_too_large_to_serve():
    rng = np.random.default_rng(2)
    long = worlds.session(rng, PLAIN, 300)
    long["new_tokens"][:] = 20
    long["output_tokens"][:] = 30
    long["prefix_tokens"] = np.arange(300) * 50
    huge = worlds.session(rng, PLAIN, 1) | {"new_tokens": np.array([900_000])}
    totals = evaluate(PARAMS, engine_sessions([long, huge]), WORLD)
    np.testing.assert_array_equal(totals.turns, [300, 0])
    np.testing.assert_array_equal(totals.unserved, [0, 1])
    assert float(totals.carbon_g[1]) == 0


def test_sums_of_a_long_session_stay_near_those_of_float64():
    rng = np.random.default_rng(3)
    long = worlds.session(rng, PLAIN, 1500)
    long["new_tokens"] = rng.lognormal(3, 1.5, 1500).astype(int)
    long["output_tokens"][:] = 5
    long["prefix_tokens"] = np.minimum(np.arange(1500) * 60, 60_000)
    totals, trace = evaluate(PARAMS, engine_sessions([long]), WORLD, trace=True)
    exact = np.asarray(trace.carbon_g, np.float64).sum()
    assert float(totals.carbon_g[0]) == pytest.approx(exact, rel=1e-5)


def test_the_gate_of_a_constant_probability():
    assert float(jax.nn.sigmoid(np.float32(logit(0.35)))) == pytest.approx(0.35)
