"""What must not change a result, and what must."""

import dataclasses

import jax
import numpy as np
import pytest
import worlds
from bridge import engine_params, engine_sessions, engine_world, places_of
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxroute import free_context_bound, hindsight_plan, simulate
from jaxroute.catalogue import logit
from jaxroute.numerics import stack
from jaxroute.simulate import FIELDS, evaluate
from jaxroute.world import Retention

WORLD = worlds.world(np.random.default_rng(7))
ENGINE_WORLD = engine_world(WORLD)
GATED = engine_params(
    worlds.params(gate_strength=1.0, gate_bias=logit(0.35), quality_floor=0.6, noise_price_g=1e-4)
)
SHAPE = {"rows": 3, "width": 64, "count": 8}
"""Room for every drawn batch, so that all share one compilation."""

RETENTIONS = [Retention.of(), Retention.of(100.0, 500.0), Retention.of(drop_on_leave=True)]

drawn = st.builds(
    lambda seed, lengths: [
        worlds.session(np.random.default_rng([seed, n]), WORLD, turns)
        for n, turns in enumerate(lengths)
    ],
    st.integers(0, 2**20),
    st.lists(st.integers(1, 12), min_size=1, max_size=8),
)
quick = settings(max_examples=25)


def _totals(sessions, params=GATED, world=ENGINE_WORLD, **shape):
    packed = engine_sessions(sessions, **(SHAPE | shape))
    return np.stack(jax.tree.leaves(evaluate(params, packed, world)), axis=-1)[: len(sessions)]


@quick
@given(drawn, st.sampled_from(RETENTIONS))
def test_padding_with_nan_changes_nothing(sessions, retention):
    world = ENGINE_WORLD.replace(retention=retention)
    packed = engine_sessions(sessions, **SHAPE)

    def spoil(leaf):
        floats = np.issubdtype(leaf.dtype, np.floating)
        junk = np.nan if floats else np.iinfo(np.int32).max
        mask = packed.turns.valid.reshape(packed.turns.valid.shape + (1,) * (leaf.ndim - 2))
        return np.where(mask, leaf, np.array(junk, leaf.dtype))

    turns = packed.turns
    kept = {name: getattr(turns, name) for name in ("valid", "first", "session")}
    spoiled = dataclasses.replace(jax.tree.map(spoil, turns), **kept)
    clean = evaluate(GATED, packed, world)
    dirty = evaluate(GATED, dataclasses.replace(packed, turns=spoiled), world)
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(clean, name), getattr(dirty, name), err_msg=name)
    assert np.isfinite(np.stack(jax.tree.leaves(clean))).all()
    plans = [
        (hindsight_plan(GATED, each, world), free_context_bound(GATED, each, world))
        for each in (packed, dataclasses.replace(packed, turns=spoiled))
    ]
    jax.tree.map(np.testing.assert_array_equal, *plans)


@quick
@given(drawn, st.randoms(use_true_random=False))
def test_order_of_sessions_changes_nothing(sessions, random):
    order = list(range(len(sessions)))
    random.shuffle(order)
    shuffled = _totals([sessions[n] for n in order])
    np.testing.assert_array_equal(shuffled, _totals(sessions)[order])


@quick
@given(drawn, st.integers(0, 8))
def test_splitting_a_batch_changes_nothing(sessions, cut):
    cut = min(cut, len(sessions) - 1)
    parts = [part for part in (sessions[:cut], sessions[cut:]) if part]
    np.testing.assert_array_equal(np.concatenate([_totals(p) for p in parts]), _totals(sessions))


@pytest.mark.parametrize("rows", [1, 2, 7])
def test_the_layout_of_rows_changes_nothing(rows):
    rng = np.random.default_rng(3)
    sessions = [worlds.session(rng, WORLD, turns) for turns in (1, 5, 12, 2, 9)]
    laid = _totals(sessions, rows=rows, width=0, count=None)
    np.testing.assert_allclose(laid, _totals(sessions), rtol=1e-6)


@quick
@given(drawn)
def test_every_turn_is_served_or_counted(sessions):
    totals = dict(zip(FIELDS, _totals(sessions).T, strict=True))
    lengths = [len(session["hour"]) for session in sessions]
    np.testing.assert_array_equal(totals["turns"] + totals["unserved"], lengths)
    huge = [(s["prefix_tokens"] + s["new_tokens"] > 131_072 - 256).sum() for s in sessions]
    np.testing.assert_array_equal(totals["unserved"], huge)


@quick
@given(drawn, st.sampled_from(RETENTIONS))
def test_single_turn_sessions_rebuild_nothing(sessions, retention):
    single = [{name: values[:1] for name, values in session.items()} for session in sessions]
    totals = _totals(single, world=ENGINE_WORLD.replace(retention=retention))
    assert (totals[:, FIELDS.index("carbon_rebuild_g")] == 0).all()


@quick
@given(drawn)
def test_who_never_moves_and_keeps_its_cache_rebuilds_nothing(sessions):
    totals = _totals(sessions, engine_params(worlds.params(always_stay=1.0)))
    totals = dict(zip(FIELDS, totals.T, strict=True))
    settled = (totals["moves"] == 0) & (totals["unserved"] == 0)
    assert (totals["carbon_rebuild_g"][settled] == 0).all()
    assert (totals["rebuilt_tokens"][settled] == 0).all()


@quick
@given(drawn)
def test_rebuild_is_a_part_of_carbon(sessions):
    totals = dict(zip(FIELDS, _totals(sessions).T, strict=True))
    prefill = totals["carbon_prefill_g"] + totals["carbon_embodied_g"]
    assert (totals["carbon_rebuild_g"] <= prefill * (1 + 1e-6)).all()


def test_a_decision_on_every_turn_with_a_feasible_deployment():
    rng = np.random.default_rng(11)
    sessions = [worlds.session(rng, WORLD, 12) for _ in range(8)]
    packed = engine_sessions(sessions)
    rows = [
        engine_params(worlds.params(**{name: 1.0}))
        for name in ("noise_price_g", "rtt_price_g_per_s", "intensity_price", "quality_price_g")
    ]
    rows += [engine_params(worlds.params(quality_slack=0.0)), GATED]
    grid = stack(rows)
    _, trace = simulate.evaluate_grid(grid, packed, ENGINE_WORLD, stack(RETENTIONS))
    decision = np.asarray(trace.decision)
    for place, session in zip(places_of(packed), sessions, strict=True):
        prompt = session["prefix_tokens"] + np.maximum(session["new_tokens"], 1)
        fits = (prompt + 256)[:, None] <= WORLD["max_context_tokens"]
        chosen = decision[:, :, place[0], place[1]]
        assert ((chosen >= 0) == fits.any(1)).all()
        assert fits[np.arange(len(fits)), chosen][:, :, fits.any(1)].all()
