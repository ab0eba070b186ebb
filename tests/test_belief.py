"""A router that takes for true what is not so: what it sees and does, and what it is billed."""

import dataclasses

import jax
import numpy as np
import pytest
import worlds
from bridge import engine_params, engine_sessions, engine_world, places_of

from jaxroute import bounds
from jaxroute.simulate import evaluate

RNG = np.random.default_rng(30)
PLAIN = worlds.world(RNG) | {"belief": {"delayed": 0.0, "rounded_to_tokens": 1.0, "missing": 0.0}}
SESSIONS = engine_sessions([worlds.session(RNG, PLAIN, turns) for turns in (12, 9, 5, 1) * 5])
WORLD = engine_world(PLAIN)
WRONG = engine_world(PLAIN | {"belief": worlds.belief(RNG, PLAIN)}).belief
PARAMS = engine_params(
    worlds.params(
        gate_strength=1.0,
        gate_bias=-0.5,
        gate_weights=RNG.normal(0, 0.5, 8),
        assumed_hit=0.6,
        latency_price_g_per_s=1e-4,
        quality_price_g=0.05,
        noise_price_g=0.03,
    )
)
RETENTIONS = {
    "keep": {},
    "ttl": {"ttl_s": np.full((1, 1), 100.0)},
    "decay": {"decay_s": np.full((1, 1), 200.0)},
    "drop": {"drop_on_leave": 1.0},
}


def _world(**changes):
    """The world, its router knowing the truth but for some fields of the belief."""
    numbers = {
        name: np.float32(value) if isinstance(value, int | float) else value
        for name, value in changes.items()
    }
    return WORLD.replace(belief=dataclasses.replace(WORLD.belief, **numbers))


def _replay(world, params=PARAMS, sessions=SESSIONS):
    totals, trace = evaluate(params, sessions, world, trace=True)
    return jax.tree.map(np.asarray, totals), np.asarray(trace.decision)


def _same(ours, theirs):
    jax.tree.map(np.testing.assert_array_equal, ours, theirs)


@pytest.mark.slow  # programs of its own
def test_to_believe_the_truth_is_to_have_no_belief():
    believing, decision = _replay(WORLD)
    knowing, known_decision = _replay(WORLD.replace(belief=None))
    np.testing.assert_array_equal(decision, known_decision)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), believing, knowing)
    assert believing.moves.sum() > 20


def test_no_report_at_all_is_no_knowledge():
    blind = _replay(WORLD, PARAMS.replace(cache_knowledge=0.0))
    _same(_replay(_world(missing=1.0)), blind)
    assert (_replay(WORLD)[1] != blind[1]).any()


def test_whoever_believes_a_world_decides_as_in_it():
    """The gate too, its trend and the price of a return; caches that never age keep no time."""
    believed = dataclasses.replace(WORLD.belief, missing=np.float32(0.3))
    believed = dataclasses.replace(
        believed, fleet=WRONG.fleet, intensity_g_per_kwh=WRONG.intensity_g_per_kwh
    )
    true = WORLD.replace(
        belief=believed, fleet=believed.fleet, intensity_g_per_kwh=believed.intensity_g_per_kwh
    )
    (billed, decision), (told, decided) = _replay(WORLD.replace(belief=believed)), _replay(true)
    np.testing.assert_array_equal(decision, decided)
    assert (billed.carbon_g != told.carbon_g).any()
    assert (decision != _replay(WORLD)[1]).any()


@pytest.mark.parametrize("wrong", ["fleet", "intensity_g_per_kwh"])
def test_a_belief_changes_decisions_and_never_the_bill_of_one(wrong):
    erring = _world(**{wrong: getattr(WRONG, wrong)})
    decision = _replay(WORLD)[1]
    assert (_replay(erring)[1] != decision).any()
    follower, following = bounds.planned(PARAMS, SESSIONS, decision)
    _same(_replay(erring, follower, following), _replay(WORLD, follower, following))
    assert (_replay(erring, follower, following)[1] == decision).all()


def _seen(params, record):
    return record.turn, record.observation, record.truth


def _looked(retention, **changes):
    """What the router sees of each session's turns, and the truth, session by session."""
    world = engine_world(PLAIN | RETENTIONS[retention])
    world = _world(**changes).replace(retention=world.retention)
    _, seen = evaluate(PARAMS, SESSIONS, world, trace=_seen)
    seen = jax.tree.map(np.asarray, seen)
    return [jax.tree.map(lambda x, at=place: x[at], seen) for place in places_of(SESSIONS)]


def _blocks(tokens, size):
    return size * np.floor((tokens + 0.01) / size)


@pytest.mark.parametrize("retention", RETENTIONS)
def test_a_delayed_report_is_of_the_previous_turn(retention):
    late = 0
    for turn, seen, truth in _looked(retention, delayed=1.0):
        before = np.zeros_like(truth.alive_tokens)
        before[1:] = truth.alive_tokens[:-1]
        np.testing.assert_array_equal(seen.alive_tokens, before)
        prompt = turn.prefix_tokens + turn.new_tokens
        usable = np.minimum(before, np.minimum(turn.prefix_tokens, prompt - 1)[:, None])
        np.testing.assert_array_equal(seen.cached_tokens, _blocks(usable, 16))
        assert (seen.alive_tokens[:2] == 0).all()
        late += (truth.cached_tokens != seen.cached_tokens).sum()
    assert late > 20


@pytest.mark.parametrize("size", [100.0, 5000.0])
def test_a_rounded_report_is_of_whole_multiples(size):
    rounded = 0
    for _, seen, truth in _looked("keep", rounded_to_tokens=size):
        np.testing.assert_array_equal(seen.alive_tokens, _blocks(truth.alive_tokens, size))
        np.testing.assert_array_equal(seen.cached_tokens, _blocks(truth.cached_tokens, size))
        rounded += (truth.cached_tokens != seen.cached_tokens).sum()
    assert rounded > 20


def test_a_report_is_missing_where_the_draw_is_low():
    missing = []
    for turn, seen, truth in _looked("keep", missing=0.3):
        absent = turn.report_draw < np.float32(0.3)
        np.testing.assert_array_equal(seen.knowledge, np.where(absent, 0, 1))
        assumed = np.float32(0.6) * truth.full_tokens[:, None]
        believed = np.where(absent, assumed, truth.cached_tokens)
        np.testing.assert_allclose(seen.cached_tokens, believed, rtol=1e-6)
        missing.append(absent)
    assert 0.25 < np.concatenate(missing).mean() < 0.35


def test_what_is_idle_and_what_fits_is_known():
    """Context limits and idle times are the truth's, whatever is believed of the fleet."""
    limits = dataclasses.replace(WRONG.fleet, max_context_tokens=np.ones(12, np.float32))
    _same(_replay(_world(fleet=limits)), _replay(_world(fleet=WRONG.fleet)))


def test_a_belief_needs_draws():
    bare = dataclasses.replace(
        SESSIONS, turns=dataclasses.replace(SESSIONS.turns, report_draw=None)
    )
    with pytest.raises(ValueError, match="report_draw"):
        evaluate(PARAMS, bare, WORLD)
    short = dataclasses.replace(SESSIONS.turns, report_draw=SESSIONS.turns.report_draw[..., :1])
    with pytest.raises(AssertionError):
        evaluate(PARAMS, dataclasses.replace(SESSIONS, turns=short), WORLD)
