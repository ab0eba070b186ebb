"""Quantiles from histograms against those of the turns themselves."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import worlds
from bridge import engine_params, engine_sessions, engine_world

from jaxroute import latency
from jaxroute.latency import BINS, HIGH_S, LOW_S, RATIO, quantile, share_above
from jaxroute.numerics import stack
from jaxroute.simulate import evaluate

RNG = np.random.default_rng(11)
PLAIN = worlds.world(RNG)
SESSIONS = [worlds.session(RNG, PLAIN, turns) for turns in RNG.integers(1, 40, 24)]
POLICIES = [
    engine_params(worlds.params(**changes))
    for changes in ({}, {"carbon_weight": 0.0, "noise_price_g": 1.0})
]
STATED = RATIO - 1 + 1e-5
"""Relative error of a quantile, and that of a float32 logarithm."""


@jax.jit
def replay(sessions):
    return jax.vmap(
        lambda params: evaluate(
            params,
            sessions,
            engine_world(PLAIN),
            trace=lambda params, record: record.totals,
            latency=True,
        )
    )(stack(POLICIES))


@pytest.fixture(scope="module")
def replayed():
    """Totals, the parts of them by turn and the histograms, all of them `[P, ...]`."""
    return jax.tree.map(np.asarray, replay(engine_sessions(SESSIONS)))


def test_quantiles_are_those_of_the_turns(replayed):
    _, turns, times = replayed
    for n in range(len(POLICIES)):
        served = turns.turns[n] > 0
        for histogram, seconds in ((times.ttft, turns.ttft_s), (times.e2e, turns.e2e_s)):
            assert histogram[n].sum() == served.sum() > 400
            for q in (0.01, 0.5, 0.95, 0.99, 1.0):
                exact = np.quantile(seconds[n][served], q, method="inverted_cdf")
                assert quantile(histogram[n], q) == pytest.approx(exact, rel=STATED)
            for limit_s in np.quantile(seconds[n][served], (0.2, 0.9)):
                wide = [(seconds[n][served] > limit_s * by).mean() for by in (RATIO, 1 / RATIO)]
                assert wide[0] <= share_above(histogram[n], limit_s) <= wide[1]
    assert (quantile(times.e2e, 0.5) == [quantile(each, 0.5) for each in times.e2e]).all()


def test_padding_and_blocks_change_nothing(replayed):
    whole = replayed[2]
    width = 2 * sum(len(each["hour"]) for each in SESSIONS)
    parts = [
        replay(engine_sessions(part, rows=3, width=width, count=99))[2]
        for part in (SESSIONS[:5], SESSIONS[5:])
    ]
    for ours, theirs in zip(
        jax.tree.leaves(jax.tree.map(lambda a, b: a + b, *parts)),
        jax.tree.leaves(whole),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.slow  # programs of its own
def test_it_is_returned_last_and_only_if_asked_for(replayed):
    arguments = POLICIES[0], engine_sessions(SESSIONS), engine_world(PLAIN)
    totals, times = evaluate(*arguments, latency=True)
    np.testing.assert_array_equal(times.ttft, replayed[2].ttft[0])
    np.testing.assert_array_equal(evaluate(*arguments).moves, totals.moves)


def test_every_time_has_its_bin_and_what_is_not_served_none():
    seconds = np.array([0.0, 0.9 * LOW_S, 1.001 * LOW_S, 1.0, 0.999 * HIGH_S, 2e5, np.inf, np.nan])
    served = np.ones(8, bool)
    empty = jnp.zeros(2 * BINS)
    ttft, e2e = np.split(np.asarray(latency.tallied(empty, served, seconds, seconds)), 2)
    assert (ttft == e2e).all() and ttft.sum() == 7
    assert ttft[0] == 2 and ttft[1] == 1 and ttft[-1] == 2
    assert ttft[-3:-1].sum() == 1
    assert float(latency.tallied(empty, ~served, seconds, seconds).sum()) == 0
    assert quantile(ttft, 0.1) == LOW_S and quantile(ttft, 1.0) == np.inf
    assert share_above(ttft, 500.0) == pytest.approx(3 / 7)
    assert share_above(ttft, 0.0) == 1
    assert np.isnan(quantile(empty[:BINS], 0.5)) and np.isnan(share_above(empty[:BINS], 1.0))


def test_columns_of_a_table():
    histogram = np.eye(BINS)[[5, 9]]
    columns = latency.columns({"ttft": histogram}, {"ttft_s": LOW_S * RATIO**6})
    assert list(columns) == [
        *("ttft_p50_s", "ttft_p95_s", "ttft_p99_s"),
        "ttft_slo_violations_pct",
    ]
    np.testing.assert_allclose(columns["ttft_slo_violations_pct"], [0, 100])
    unlimited = latency.columns({"ttft": histogram}, {"ttft_s": np.inf})
    assert np.isnan(unlimited["ttft_slo_violations_pct"]).all()
