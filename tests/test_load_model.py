"""The mean field: exact where load is nothing, sums that add up, one fixed point, real herding."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import worlds
from bridge import engine_params, engine_sessions, engine_world

from jaxroute import load_model, reference, simulate
from jaxroute.loads import CELLS, nothing
from jaxroute.numerics import stack
from jaxroute.provision import Capacity
from jaxroute.queueing import Replica
from jaxroute.world import TIME_BINS

COPIES = np.array([400.0])
POLICIES = ({}, {"cache_knowledge": 0.0, "assumed_hit": 0.0}, {"latency_price_g_per_s": 0.01})


@pytest.fixture(scope="module")
def drawn():
    rng = np.random.default_rng(3)
    world = worlds.world(rng, models=2, gpus=1, regions=2)
    sessions = []
    for n in range(60):
        session = worlds.session(rng, world, int(rng.integers(1, 9)))
        session["time_bin"] = np.full(len(session["time_bin"]), n % TIME_BINS // 4)
        sessions.append(session)
    return world, sessions


@pytest.fixture(scope="module")
def params():
    return stack([engine_params(worlds.params(**changes)) for changes in POLICIES])


def capacity(world: dict, replicas: float = 2.0, **changes: object) -> Capacity:
    """Steps that take longer and more in larger batches, as the profile has them at its own."""
    n = np.arange(1.0, 33.0)[:, None]
    values = {
        "replicas": np.full(len(world["model"]), replicas),
        "slots": world["batch"],
        "kv_capacity_tokens": np.full(len(world["model"]), 40_000.0),
        "idle_w": np.full(len(world["model"]), 60.0),
        "dec_j": world["dec_j"] * (0.2 + 0.8 * 32 / n),
        "dec_s": world["dec_s"] * (0.5 + 0.5 * n / 32),
    }
    return Capacity(**{k: jnp.asarray(v, jnp.float32) for k, v in (values | changes).items()})


@pytest.fixture(scope="module")
def replayed(drawn, params):
    """The engine's forms, and `settle` compiled once."""
    world, sessions = engine_world(drawn[0]), engine_sessions(drawn[1], rows=4)
    pieces = jax.tree.map(lambda x: np.asarray(x)[None], sessions)

    def settle(capacity: Capacity, copies: np.ndarray = COPIES, start=None, **options):
        begin = nothing(jax.tree.map(jnp.asarray, world)) if start is None else start
        options = {"by_batch": True, "damping": 0.7, "most_rounds": 24} | options
        return load_model.settle(params, pieces, world, capacity, copies, begin, **options)

    return world, sessions, settle


def test_an_endless_fleet_without_batches_is_the_replay_of_sessions_that_never_meet(
    drawn, params, replayed
):
    world, sessions, settle = replayed
    endless = capacity(drawn[0], np.inf)
    found = settle(endless, by_batch=False)
    assert (np.asarray(found.rounds) == 2).all()
    assert np.isinf(np.asarray(found.conditions.ttl_s)).all()
    for n in range(len(POLICIES)):
        given = jax.tree.map(lambda x, n=n: x[0, n], found.conditions)
        one = jax.tree.map(lambda x, n=n: x[n], params)
        crowded = load_model.under(world, given, by_batch=False)
        alone = simulate.evaluate(one, sessions, world)
        for name, value in vars(simulate.evaluate(one, sessions, crowded)).items():
            np.testing.assert_array_equal(value, getattr(alone, name), err_msg=name)


def test_loads_over_bins_are_the_sums_over_turns(drawn, params, replayed):
    world, sessions, settle = replayed
    found = settle(capacity(drawn[0]), most_rounds=1)
    alone = jax.tree.map(lambda x: x[1], params)
    empty = jax.tree.map(lambda x: x[0, 1] * 0, found.loads)
    begun = load_model.conditions(empty, world, capacity(drawn[0]), COPIES[0])
    totals, trace = simulate.evaluate(alone, sessions, load_model.under(world, begun), trace=True)
    turns, d = sessions.turns, np.asarray(trace.decision)
    served = d >= 0
    new, output = np.maximum(turns.new_tokens, 1), turns.output_tokens
    prompt, v = turns.prefix_tokens + new, np.maximum(output - 1, 0)
    expected = {
        "turns": np.ones_like(prompt),
        "generated": v,
        "generated2": v**2,
        "attended": v * (prompt + v / 2),
        "left": prompt + v,
        "prefix": turns.prefix_tokens,
        "cached": np.asarray(trace.cached_tokens),
    }
    place = turns.time_bin * len(drawn[0]["model"]) + d
    for name, amounts in expected.items():
        cells = np.bincount(place[served], amounts[served], TIME_BINS * len(drawn[0]["model"]))
        own = np.asarray(getattr(found.response, name))[0, 1]
        np.testing.assert_allclose(own.ravel(), cells, rtol=1e-6, err_msg=name)
    assert float(found.response.turns[0, 1].sum()) == float(totals.turns.sum())
    assert set(expected) | {"prefill_s", "prefill_s2"} == set(CELLS)


def test_twice_the_replicas_for_twice_the_traffic_change_nothing_and_nothing_waits_longer(
    drawn, replayed
):
    *_, settle = replayed
    one, two = settle(capacity(drawn[0])), settle(capacity(drawn[0], 4.0), 2 * COPIES)
    for name in CELLS:
        np.testing.assert_array_equal(getattr(one.loads, name), getattr(two.loads, name))
    assert (two.conditions.replica.wait_s <= one.conditions.replica.wait_s).all()
    np.testing.assert_array_equal(one.conditions.replica.batch, two.conditions.replica.batch)
    np.testing.assert_array_equal(one.conditions.replica.dec_j, two.conditions.replica.dec_j)
    np.testing.assert_array_equal(one.conditions.ttl_s, two.conditions.ttl_s)


def test_one_fixed_point_from_an_empty_and_from_a_full_fleet(drawn, replayed):
    world, _, settle = replayed
    empty = settle(capacity(drawn[0]))
    full = jax.tree.map(lambda x: 30 * x[0, 1], empty.loads)
    other = settle(capacity(drawn[0]), start=full)
    both = (np.asarray(empty.change) < 0.01) & (np.asarray(other.change) < 0.01)
    assert both[0, :2].all()  # those that look at no wait
    for n in np.flatnonzero(both[0]):
        one, two = (jax.tree.map(lambda x, n=n: x[0, n], each.loads) for each in (empty, other))
        assert float(load_model.distance(one, two, world)) < 0.02


def test_crowded_turns_are_billed_as_the_oracle_bills_them(drawn, params):
    """The oracle knows no load: its truth is the crowded fleet, its belief the profiles."""
    world, sessions = drawn
    rng = np.random.default_rng(5)
    shape = TIME_BINS, len(world["model"])
    names = ("dec_j", "dec_s", "dec_s_ctx")
    factors = {name: np.exp(rng.normal(0, 0.4, shape)) for name in names}
    replica = {name: world[name] * factor for name, factor in factors.items()}
    replica |= {"sharers": rng.uniform(1, 32, shape), "wait_s": rng.uniform(0, 3, shape)}
    rest = dict.fromkeys(Replica._fields, np.zeros(shape)) | replica
    ttl_s = rng.uniform(50, 500, shape)
    given = load_model.Conditions(Replica(**rest), ttl_s)
    given = jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), given)
    crowded = load_model.under(engine_world(world), given)
    seen = dataclasses.replace(crowded.congestion, seen_wait_s=crowded.congestion.wait_s)
    crowded = crowded.replace(congestion=seen)
    for number in range(0, 30, 3):
        session = sessions[number]
        bin_ = int(session["time_bin"][0])
        truth = world | {name: table[bin_] for name, table in replica.items() if name in names}
        truth |= {"batch": replica["sharers"][bin_], "belief": {**world, **reference.PERFECT}}
        truth |= {"wait_s": replica["wait_s"][bin_][None], "ttl_s": ttl_s[bin_][None]}
        told = session | {"report_draw": np.ones_like(session["noise"])}
        rule = worlds.params(**POLICIES[number % 3], gate_strength=1.0)
        exact = reference.replay(truth, told, rule)
        totals, trace = simulate.evaluate(
            engine_params(rule), engine_sessions([session], rows=1, width=16), crowded, trace=True
        )
        turns = len(session["arrival_s"])
        assert (np.asarray(trace.decision)[0, :turns] == exact.decision).all()
        for name, value in exact.totals.items():
            own = float(getattr(totals, name)[0])
            assert own == pytest.approx(value, rel=1e-4, abs=1e-6), name


def test_a_router_that_sees_waits_leaves_and_one_that_does_not_stays(drawn):
    world, sessions = drawn
    shape = TIME_BINS, len(world["model"])
    rule = worlds.params(carbon_weight=1e-3, latency_price_g_per_s=1.0)
    packed, plain = engine_sessions(sessions, rows=4), engine_world(world)
    _, trace = simulate.evaluate(engine_params(rule), packed, plain, trace=True)
    liked = int(np.bincount(np.asarray(trace.decision)[np.asarray(trace.decision) >= 0]).argmax())
    quiet = load_model.conditions(
        nothing(jax.tree.map(jnp.asarray, plain)), plain, capacity(world), np.float32(1)
    )
    wait_s = jnp.zeros(shape).at[:, liked].set(100.0)
    crowded = load_model.under(plain, quiet._replace(replica=quiet.replica._replace(wait_s=wait_s)))
    for knowledge, goes in ((0.0, True), (1.0, False)):
        knows = engine_params(rule).replace(wait_knowledge=knowledge)
        _, trace = simulate.evaluate(knows, packed, crowded, trace=True)
        share = (np.asarray(trace.decision) == liked).mean()
        assert (share > 0.2) == goes


def test_without_damping_a_herd_swings_and_the_two_states_are_told(drawn, replayed):
    """Two of them: what all see empty fills, and what all see full empties."""
    *_, settle = replayed
    tight = capacity(drawn[0], 1.0)
    found = settle(tight, 30 * COPIES, damping=1.0, most_rounds=12)
    change, swing = np.asarray(found.change)[0], np.asarray(found.swing)[0]
    assert change[2] > 0.1  # the one that sees waits
    assert swing[2] > 0.1
    assert (np.asarray(found.rounds)[0, 2]) == 12
    one, other = (np.asarray(x.turns)[0, 2].sum(0) for x in (found.response, found.before))
    assert np.abs(one - other).sum() > 0.1 * one.sum()
