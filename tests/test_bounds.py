"""LB0 <= exact <= the plan's bill <= the plan's value, and where they are equal."""

import itertools

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
)
from oracle_check import BUNDLED, RETENTIONS, study_of, traces

import jaxroute as jr
from jaxroute import bounds, reference
from jaxroute.exact import exact_plan
from jaxroute.numerics import stack
from jaxroute.simulate import evaluate_grid
from jaxroute.world import Retention

WORLDS, SESSIONS, TURNS, DEPLOYMENTS = 125, 4, 8, 4
UNREACHABLE = -1.0
SMALL = {
    "keep": Retention.of(),
    "drop": Retention.of(drop_on_leave=True),
    "ttl": Retention.of(100.0),
    "decay": Retention.of(decay_s=300.0),
    "all": Retention.of(150.0, 600.0, drop_on_leave=True),
}
EXACT = ("drop", "recosted")
UP = 1 + tolerances.TOTALS["float32"]


def _world(rng):
    """One to four deployments, some perhaps alike in model and region but not in cost."""
    fits = rng.choice([4096.0, 131_072.0], DEPLOYMENTS)
    count = rng.integers(1, DEPLOYMENTS + 1)
    return worlds.world(rng, models=2, gpus=1, regions=2) | {
        "model": rng.integers(0, 2, DEPLOYMENTS),
        "region": rng.integers(0, 2, DEPLOYMENTS),
        "max_context_tokens": np.where(np.arange(DEPLOYMENTS) < count, fits, UNREACHABLE),
    }


def _session(rng, world, turns):
    """Half of them are compacted now and then, so that a turn after an unserved one may fit."""
    session = worlds.session(rng, world, turns)
    session["quality"] = rng.uniform(0, 1, (turns, 2))
    if rng.random() < 0.5:
        kept = rng.choice([1.0, 0.5, 0.001], turns)
        session["prefix_tokens"] = np.floor(session["prefix_tokens"] * kept)
    return session


def _params(rng):
    masks = {f"{axis}_allowed": rng.integers(0, 2, 2).astype(float) for axis in ("model", "region")}
    masks = masks if rng.random() < 0.3 else dict.fromkeys(masks, np.ones(2))
    floor, slack = rng.uniform(0, 0.8), rng.choice([np.inf, 0.2])
    return worlds.params(quality_floor=floor, quality_slack=slack, **masks)


@pytest.fixture(scope="module")
def cases():
    """Carbon `[W, S]` of 500 sessions, by kind and, but for bound and value, retention."""
    rng = np.random.default_rng(31)
    plain = [_world(rng) for _ in range(WORLDS)]
    made = [engine_world(world) for world in plain]
    params = [engine_params(_params(rng)) for _ in plain]
    packed = [
        engine_sessions(
            [_session(rng, world, rng.integers(1, TURNS + 1)) for _ in range(SESSIONS)],
            rows=1,
            width=SESSIONS * TURNS,
        )
        for world in plain
    ]
    run = jax.vmap(
        lambda p, s, w: bounds.evaluate_grid(
            jax.tree.map(lambda x: x[None], p), p, s, w, stack(SMALL.values())
        )
    )
    totals, trace, bound_g = run(stack(params), stack(packed), stack(made))
    plan = jax.vmap(jr.hindsight_plan)(stack(params), stack(packed), stack(made))
    out = {"bound": np.asarray(bound_g), "value": np.asarray(plan.carbon_g)}
    out["turns"] = np.asarray(totals.turns)[:, 0, 1]
    out["unserved"] = np.asarray(totals.unserved)[:, 0, 1]
    out["plans"] = [
        (np.asarray(plan.decision[n]), np.asarray(trace.decision[n, :, 1])) for n in range(WORLDS)
    ]
    settings = [oracle_params(one) for one in params]
    sessions = [oracle_sessions(one) for one in packed]
    for r, (label, retention) in enumerate(SMALL.items()):
        bent = [oracle_world(world.replace(retention=retention)) for world in made]
        out[label] = {
            "router": np.asarray(totals.carbon_g)[:, r, 0],
            "recosted": np.asarray(totals.carbon_g)[:, r, 1],
            "exact": np.array(
                [
                    [exact_plan(world, one, setting).carbon_g for one in batch]
                    for world, batch, setting in zip(bent, sessions, settings, strict=True)
                ]
            ),
        }
    return out


@pytest.mark.parametrize("retention", SMALL)
def test_the_order_of_bound_exact_and_plan(cases, retention):
    bound, at = cases["bound"], cases[retention]
    assert bound.size == 500
    assert (bound <= at["exact"] * UP).all()
    assert (bound < at["exact"] / UP).any()
    for feasible in ("recosted", "router"):
        assert (at["exact"] <= at[feasible] * UP).all()
        assert (at["exact"] < at[feasible] / UP).any() or (retention, feasible) == EXACT


def test_where_caches_never_age_the_plan_costs_no_more_than_its_value(cases):
    value = cases["value"]
    for retention in ("keep", "drop"):
        assert (cases[retention]["recosted"] <= value * UP).all()
    assert (cases["keep"]["recosted"] < value / UP).any()
    assert (cases["ttl"]["recosted"] > value * UP).any()


def test_where_leaving_drops_the_cache_the_plan_is_exact(cases):
    for other in ("exact", "recosted"):
        np.testing.assert_allclose(
            cases["drop"][other], cases["value"], rtol=tolerances.TOTALS["float32"]
        )


def test_the_engine_serves_where_the_plan_says(cases):
    for plan, served in cases["plans"]:
        for decision in served:
            np.testing.assert_array_equal(decision, plan)
    unserved, turns = cases["unserved"], cases["turns"]
    assert ((unserved > 0) & (turns > 2)).sum() > 20


@pytest.mark.parametrize("retention", SMALL)
def test_exact_is_the_least_of_all_plans(retention):
    rng = np.random.default_rng(32)
    kept = {name: np.asarray(value) for name, value in vars(SMALL[retention]).items()}
    for turns in (2, 3, 4, 4, 4, 5, 5):
        limits = np.array([*rng.choice([4096.0, 131_072.0], 3), UNREACHABLE])
        world = _world(rng) | kept | {"max_context_tokens": limits}
        session, setting = _session(rng, world, turns), _params(rng)
        follow = setting | {"carbon_weight": 0.0, "noise_price_g": 1.0}

        def cost_g(plan, world=world, session=session, follow=follow):
            noise = 1 - np.eye(DEPLOYMENTS)[np.asarray(plan)]
            totals = reference.replay(world, session | {"noise": noise}, follow).totals
            return sum(totals[f"carbon_{part}_g"] for part in ("prefill", "decode", "embodied"))

        exact = exact_plan(world, session, setting)
        every = [cost_g(plan) for plan in itertools.product(range(3), repeat=turns)]
        assert exact.carbon_g == pytest.approx(min(every), rel=1e-12)
        assert exact.carbon_g == pytest.approx(cost_g(exact.decision), rel=1e-12)


def test_a_session_that_starts_elsewhere_may_keep_its_cache_longer():
    """More tokens cached do not dominate where caches age: a cold turn ends later than a warm one.

    Only deployment 0 may serve after the first turn, at 100 tokens a second, and its caches live
    100 s. The turn at 50 s ends at 55.1 s if it finds 992 tokens there and at 65.0 s if it does
    not, so that at 160 s only the latter's 1,501 tokens are left. Deployment 1 forgets at once.
    """
    alike = {"pre_j": 0.1, "pre_s": 0.01, "ttft_floor_s": 0.0, "max_context_tokens": 1e6}
    zero = ("pre_j_ctx", "pre_s_ctx", "dec_j_ctx", "dec_s_ctx", "host_w", "embodied_g_per_s")
    world = worlds.world(np.random.default_rng(0), models=2, gpus=1, regions=1)
    world |= {name: np.full(2, value) for name, value in (alike | dict.fromkeys(zero, 0)).items()}
    world |= {"ttl_s": np.array([[100.0, 1.0]]), "rtt_s": np.zeros((2, 1))}
    session = worlds.session(np.random.default_rng(0), world, 3) | {
        "arrival_s": np.array([0.0, 50.0, 160.0]),
        "hour": np.zeros(3, int),
        "prefix_tokens": np.array([0, 1001, 1501]),
        "new_tokens": np.array([1001, 500, 10]),
        "output_tokens": np.ones(3),
        "quality": np.array([[1.0, 1.0], [1.0, 0.0], [1.0, 0.0]]),
    }
    exact = exact_plan(world, session, worlds.params(quality_floor=0.5))
    assert exact.decision.tolist() == [1, 0, 0]
    g_per_token = 0.1 * world["pue"][0] * world["intensity_g_per_kwh"][0, 0] / 3.6e6
    assert exact.carbon_g == pytest.approx(g_per_token * (1001 + 1501 + 1511 - 1488))


@pytest.mark.parametrize("retention", ["keep", "drop"])
@pytest.mark.parametrize("seed", range(33, 38))
def test_with_one_model_one_gpu_and_equal_kappa_sticky_is_optimal(retention, seed):
    rng = np.random.default_rng(seed)
    plain = worlds.world(rng, models=1, gpus=1, regions=3)
    shared = [name for name, value in plain.items() if np.shape(value) == (3,) and name != "region"]
    plain |= {name: np.full(3, plain[name][0]) for name in shared}
    plain["intensity_g_per_kwh"] = np.repeat(plain["intensity_g_per_kwh"][:, :1], 3, axis=1)
    world = engine_world(plain).replace(retention=SMALL[retention])
    packed = engine_sessions([worlds.session(rng, plain, turns) for turns in (1, 4, 6, 8, 8, 8)])
    sticky = engine_params(worlds.params(cache_knowledge=0.0, always_stay=1.0))
    carbon_g = jr.evaluate(sticky, packed, world).carbon_g
    exact_g = [
        exact_plan(oracle_world(world), one, oracle_params(sticky)).carbon_g
        for one in oracle_sessions(packed)
    ]
    np.testing.assert_allclose(carbon_g, exact_g, rtol=tolerances.TOTALS["float32"])
    plan = jr.hindsight_plan(sticky, packed, world)
    np.testing.assert_allclose(plan.carbon_g, exact_g, rtol=tolerances.TOTALS["float32"])
    restless_g = jr.evaluate(jr.presets["random"], packed, world).carbon_g
    assert carbon_g.sum() * UP < restless_g.sum()


@pytest.mark.parametrize(
    "trace",
    [BUNDLED]
    + [
        pytest.param(*each.values, marks=[*each.marks, pytest.mark.slow], id=each.id)
        for each in traces()[1:]
    ],
)
def test_no_preset_with_the_same_filters_emits_less_than_the_bound(trace):
    study = study_of(trace)
    sessions = study.datasets[0].sessions
    totals, _ = evaluate_grid(
        stack(jr.presets.values()), sessions, study.world, stack(RETENTIONS.values())
    )
    bound_g = np.asarray(jr.free_context_bound(jr.preset("fair_carbon"), sessions, study.world))
    carbon_g = np.asarray(totals.carbon_g)
    assert (bound_g <= carbon_g * UP).all()
    plan = jr.hindsight_plan(jr.preset("fair_carbon"), sessions, study.world)
    single = study.datasets[0].lengths == 1
    np.testing.assert_allclose(
        plan.carbon_g[single], bound_g[single], rtol=tolerances.TOTALS["float32"]
    )
    assert plan.carbon_g.sum() > 1.01 * bound_g.sum()
