"""Many settings at once: the slot path against `evaluate`, session by session."""

import jax
import numpy as np
import pytest
import worlds
from bridge import engine_sessions, engine_world, oracle_params, oracle_sessions, oracle_world
from oracle_check import (
    RETENTIONS,
    near_another_outcome,
    presets,
    stratified,
    study_of,
    subset,
    traces,
)

from jaxroute import batch, reference, simulate
from jaxroute.abreast import extents, lay_out
from jaxroute.catalogue import preset
from jaxroute.numerics import stack
from jaxroute.policies import RouterParams

STUDY = study_of("builtin:sharegpt")
DATASET = subset(STUDY.datasets[0], stratified(STUDY.datasets[0], 60))


def assert_same(found, expected, excused=()):
    """Sums alike, but for a few pairs of a setting and a session."""
    for name in simulate.FIELDS:
        a, b = (np.array(getattr(each, name)) for each in (found, expected))
        for pair in excused:
            a[pair] = b[pair]
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-12, err_msg=name)


def near_ties(found, expected, named, world, sessions):
    """The pairs whose sums differ, in each of which the oracle stands near another outcome."""
    alike = [
        np.isclose(getattr(found, name), getattr(expected, name), rtol=1e-5, atol=1e-12)
        for name in simulate.FIELDS
    ]
    pairs = np.argwhere(~np.all(alike, axis=0))
    plain, settings = oracle_sessions(sessions), list(named.values())
    for setting, session in pairs:
        params = oracle_params(settings[setting])
        free = reference.replay(oracle_world(world), plain[session], params)
        near = [near_another_outcome(free, t, "float32") for t in range(len(free.decision))]
        assert any(near), (list(named)[setting], session)
    assert len(pairs) <= 2
    return list(map(tuple, pairs))


def check_presets(study, dataset, label):
    world = study.world.replace(retention=RETENTIONS[label])
    named = presets(study)
    if label in ("ttl", "decay"):  # in one retention `random` overflows all slots; enough
        named["random"] = named["hysteresis"]
    params = stack(named.values())
    expected, _ = batch.dense(params, dataset.sessions, world)
    found, _ = batch.replay_settings(params, dataset.sessions, world)
    assert_same(found, expected, near_ties(found, expected, named, world, dataset.sessions))
    assert expected.moves.sum() > 100


@pytest.mark.parametrize(
    "label",
    [
        label if label == "drop" else pytest.param(label, marks=pytest.mark.slow)
        for label in RETENTIONS
    ],
)
def test_presets_on_the_bundled_trace(label):
    check_presets(STUDY, DATASET, label)


@pytest.mark.slow
@pytest.mark.parametrize("trace", traces()[1:])
def test_presets_on_every_trace(trace):
    study = study_of(trace)
    (whole,) = study.datasets
    few = subset(whole, stratified(whole, 40, longer_than=2000))
    for label in RETENTIONS:
        check_presets(study, few, label)


def drawn(rng, world, count):
    """Settings that make use of everything, each with other numbers."""

    def price(scale):
        return np.float32(rng.choice([0.0, scale * rng.exponential()]))

    def mask(axis):
        size = int(getattr(world.fleet, axis).max()) + 1
        return (rng.random(size) < 0.7).astype(np.float32)

    return stack(
        RouterParams().replace(
            embodied_weight=price(1),
            latency_price_g_per_s=price(1e-2),
            quality_price_g=price(0.1),
            switch_price_g=price(0.1),
            intensity_price=price(1e-4),
            rtt_price_g_per_s=price(0.1),
            size_price_g_per_b=price(1e-3),
            noise_price_g=price(0.1),
            cache_knowledge=np.float32(rng.choice([0.0, 0.5, 1.0])),
            assumed_hit=np.float32(rng.random()),
            quality_floor=np.float32(rng.random()),
            quality_slack=np.float32(rng.choice([0.1, np.inf])),
            model_allowed=mask("model"),
            gpu_allowed=mask("gpu"),
            region_allowed=mask("region"),
            gate_strength=price(1),
            gate_weights=rng.normal(0, 1, 8).astype(np.float32),
            hysteresis=price(0.1),
            always_stay=np.float32(rng.random() < 0.1),
            expected_gap_s=np.float32(rng.uniform(1, 600)),
        )
        for _ in range(count)
    )


@pytest.mark.parametrize(
    ("groups", "ageing"), [(4, True), pytest.param(32, False, marks=pytest.mark.slow)]
)
def test_random_settings_in_a_random_world(groups, ageing):
    rng = np.random.default_rng(groups)
    plain = worlds.world(rng)
    if ageing:
        shape = 4, len(plain["model"])
        plain |= {"ttl_s": rng.uniform(60, 900, shape), "decay_s": rng.uniform(100, 2000, shape)}
    world = engine_world(plain)
    turns = rng.integers(1, 20, 40)
    sessions = engine_sessions([worlds.session(rng, plain, n) for n in turns])
    kinds = drawn(rng, world, groups)
    params = jax.tree.map(lambda x: np.resize(x, (32, *x.shape[1:])), kinds)
    params = params.replace(gate_strength=rng.uniform(0, 2, 32).astype(np.float32))
    expected, _ = batch.dense(params, sessions, world)
    found, _ = batch.replay_settings(params, sessions, world)
    assert_same(found, expected)
    assert expected.moves.sum() > 100 and expected.quality_fallbacks.sum() > 0
    assert groups == 4 or expected.mask_fallbacks.sum() > 0


def test_settings_with_a_ttft_limit_and_worlds_of_their_own():
    plain = worlds.world(np.random.default_rng(1))
    rng, world = np.random.default_rng(2), engine_world(plain)
    sessions = engine_sessions([worlds.session(rng, plain, 6) for _ in range(8)])
    limits = np.float32([np.inf, 0.1, np.inf, 0.3])
    params = stack([preset("carbon_router").replace(ttft_slo_s=limit) for limit in limits])
    expected, times = batch.replay_settings(params, sessions, world, latency=True)
    assert_same(batch.replay_settings(params, sessions, world)[0], expected)
    np.testing.assert_array_equal(times.ttft.sum(-1), expected.turns.sum(-1))
    retentions = stack([*RETENTIONS.values()])
    found, _ = batch.replay_settings(params, sessions, world.replace(retention=retentions))
    for n, retention in enumerate(RETENTIONS.values()):
        alone = simulate.evaluate(
            jax.tree.map(lambda x, n=n: x[n], params), sessions, world.replace(retention=retention)
        )
        assert_same(jax.tree.map(lambda x, n=n: x[n], found), alone)


def test_one_program_for_every_number():
    params = stack([preset("carbon_router").replace(gate_strength=0.1 * n) for n in range(4)])
    plain = worlds.world(np.random.default_rng(3))
    rng = np.random.default_rng(4)
    lengths = [[3, 5, 1, 9], [4, 4, 4, 5]]
    packed = [
        engine_sessions([worlds.session(rng, plain, n) for n in turns], rows=2, width=9)
        for turns in lengths
    ]
    before = batch.slots_on("cpu")._cache_size()
    for sessions in packed:
        for strength in (0.5, 2.0):
            world = engine_world(plain | {"pue": plain["pue"] * strength})
            batch.replay_settings(
                params.replace(hysteresis=params.hysteresis + 0.1), sessions, world
            )
            batch.replay_settings(params, sessions, world)
    assert batch.slots_on("cpu")._cache_size() == before + 1
    there = jax.device_put((params, packed[0], engine_world(plain)))
    with jax.transfer_guard_host_to_device("disallow"):
        batch.replay_settings(*there)


@pytest.mark.parametrize("width", [1, 3, 8])
def test_a_layout_holds_every_turn_once(width):
    plain = worlds.world(np.random.default_rng(5))
    rng = np.random.default_rng(6)
    lengths = np.array([7, 1, 1, 30, 2, 3])
    sessions = engine_sessions([worlds.session(rng, plain, n) for n in lengths])
    layout = lay_out(extents(sessions), width=width, steps=4)
    turn = layout.turn[layout.valid]
    session = sessions.turns.session.ravel()[turn]
    np.testing.assert_array_equal(np.bincount(session, minlength=6), lengths)
    assert len(np.unique(turn)) == lengths.sum()
    assert not layout.valid[layout.blocks :].any()
    steps = layout.valid.any(-1).sum()
    assert steps <= -(-lengths.sum() // width) + lengths.max()


def test_steps_waste_a_tenth_of_the_turns_at_most():
    layout, turns = lay_out(extents(STUDY.sessions)), int(STUDY.datasets[0].lengths.sum())
    assert layout.blocks * layout.turn[0].size < 1.1 * turns
