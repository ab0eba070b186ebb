"""What each decision cost in hindsight, held to the plan and to every other way on."""

import dataclasses
import itertools

import jax
import numpy as np
import pytest
import worlds
from bridge import engine_params, engine_sessions, engine_world, places_of
from oracle_check import subset

import jaxroute as jr
from jaxroute import reference
from jaxroute.numerics import stack
from jaxroute.regret import hindsight_regret
from jaxroute.simulate import evaluate_grid


@pytest.fixture(scope="module")
def dropped():
    study = jr.load_study()
    data = study.datasets[0]
    some = subset(data, np.flatnonzero(data.lengths <= 60)[::10])
    study = dataclasses.replace(study, datasets=(some,))
    return study, study.world.replace(retention=study.retentions["drop"])


@pytest.mark.slow  # compiles three replays
def test_losses_add_up_to_the_excess_over_the_plan(dropped):
    study, world = dropped
    names = ("carbon_router", "fair_carbon", "sticky")
    params = stack(study.preset(name) for name in names)
    retention = jax.tree.map(lambda x: np.asarray(x)[None], world.retention)
    totals, trace = evaluate_grid(params, study.sessions, world, retention)
    plan_g = np.asarray(jr.hindsight_plan(study.preset(names[0]), study.sessions, world).carbon_g)
    turns = study.sessions.turns
    for n, name in enumerate(names):
        decision = trace.decision[0, n]
        lost_g, best = hindsight_regret(study.preset(name), study.sessions, world, decision)
        lost_g = np.asarray(lost_g, np.float64)
        sums_g = np.bincount(turns.session[turns.valid], lost_g[turns.valid], len(plan_g))
        excess_g = np.asarray(totals.carbon_g)[0, n] - plan_g
        np.testing.assert_allclose(sums_g, excess_g, atol=3e-6 * plan_g.max())
        assert sums_g.sum() == pytest.approx(excess_g.sum(dtype=np.float64), rel=1e-3)
        assert (lost_g >= 0).all() and (lost_g[~turns.valid] == 0).all()
        same = np.asarray(best == decision)
        np.testing.assert_array_equal(same, lost_g == 0)


def test_the_plan_itself_loses_nothing(dropped):
    study, world = dropped
    router = study.preset("carbon_router")
    plan = jr.hindsight_plan(router, study.sessions, world)
    lost_g = np.asarray(hindsight_regret(router, study.sessions, world, plan.decision).lost_g)
    assert lost_g.sum(dtype=np.float64) < 1e-6 * np.asarray(plan.carbon_g).sum(dtype=np.float64)


@pytest.mark.parametrize("seed", range(8))
def test_a_loss_is_that_of_the_best_way_on(seed):
    """From each turn of a random walk, every way on billed by the oracle."""
    rng = np.random.default_rng(seed)
    world = worlds.world(rng, models=2, gpus=1, regions=2) | {"drop_on_leave": 1.0}
    session = worlds.session(rng, world, turns=4)
    session["new_tokens"] = np.minimum(session["new_tokens"], 500)
    grown = np.maximum(session["new_tokens"], 1) + session["output_tokens"]
    session["prefix_tokens"] = np.cumsum(grown) - grown
    walk = rng.integers(0, 4, 4)
    params = worlds.params()

    def bill_g(ways: list[int]) -> float:
        cached = []
        for t, d in enumerate(ways):
            stays = t and ways[t - 1] == d
            left = (
                session["prefix_tokens"][t - 1]
                + max(session["new_tokens"][t - 1], 1)
                + max(session["output_tokens"][t - 1] - 1, 0)
            )
            prompt = session["prefix_tokens"][t] + max(session["new_tokens"][t], 1)
            tokens = min(left, session["prefix_tokens"][t], prompt - 1) if stays else 0
            cached.append(reference.blocks(tokens, 16.0))
        totals = reference.replay(world, session, params, forced=(ways, cached)).totals
        return sum(totals[f"carbon_{part}_g"] for part in ("prefill", "decode", "embodied"))

    expected_g = []
    for t in range(4):
        kept = list(walk[: t + 1])
        ways = [kept + list(rest) for rest in itertools.product(range(4), repeat=3 - t)]
        others = [kept[:-1] + list(rest) for rest in itertools.product(range(4), repeat=4 - t)]
        expected_g.append(min(map(bill_g, ways)) - min(map(bill_g, others)))
    sessions = engine_sessions([session])
    decision = np.full(sessions.turns.valid.shape, -1, np.int32)
    place = places_of(sessions)[0]
    decision[place] = walk
    found = hindsight_regret(engine_params(params), sessions, engine_world(world), decision)
    np.testing.assert_allclose(np.asarray(found.lost_g)[place], expected_g, rtol=1e-3, atol=1e-7)
