"""The gate that learns which wishes lead straight back."""

import dataclasses
import io
import json
import tomllib

import jax
import numpy as np
import pandas as pd
import pytest
from bridge import oracle_params, oracle_sessions, oracle_world
from oracle_check import subset
from rich.console import Console
from scipy.optimize import minimize
from scipy.special import expit

import jaxroute as jr
from jaxroute import learned_gate, logistic, misses, reference, wishes
from jaxroute.catalogue import logit
from jaxroute.config import PLAN_ROW
from jaxroute.gate import FEATURES
from jaxroute.learned_gate import BY_LABELS, CONSTANTS, LEARNED, fit_gate
from jaxroute.numerics import stack
from jaxroute.report import learned_gate as shown
from jaxroute.split import split
from jaxroute.wishes import UNGATED

WEIGHTS = np.array([2, -1, 0.5, 3, -0.3, 0.2, 1, -4.0])
SCALES = np.array([0.1, 1, 1, 0.2, 2, 3, 0.5, 0.1])


@pytest.fixture(scope="module")
def study():
    whole = jr.load_study()
    data = whole.datasets[0]
    some = subset(data, np.flatnonzero(data.lengths <= 60)[::10])
    kept = {label: whole.retentions[label] for label in ("keep", "drop")}
    return dataclasses.replace(whole, datasets=(some,), retentions=kept)


@pytest.fixture(scope="module")
def found(study):
    """Learned with every NaN an error, and every key used twice."""
    with jax.debug_nans(True), jax.debug_key_reuse(True):
        return fit_gate(study)


def drawn(count):
    rng = np.random.default_rng(0)
    features = 1 + SCALES * rng.normal(size=(count, len(SCALES)))
    return features, rng.random(count) < expit(-0.5 + features @ WEIGHTS)


def test_the_fit_is_the_minimum_and_recovers_what_drew_the_labels():
    features, yes = drawn(20_000)
    got = logistic.fit(features, yes)
    np.testing.assert_allclose(got.weights * SCALES, WEIGHTS * SCALES, atol=0.08)

    standard = (features - features.mean(0)) / features.std(0)

    def loss(x):
        z = x[0] + standard @ x[1:]
        return np.mean(np.logaddexp(0, z) - yes * z) + logistic.L2 * (x[1:] ** 2).sum()

    best = minimize(loss, np.zeros(9), tol=1e-10)
    np.testing.assert_allclose(got.weights, best.x[1:] / features.std(0), rtol=2e-3, atol=2e-3)
    assert got.losses[-1] == pytest.approx(best.fun, rel=1e-5)
    chances = logistic.chance(got.bias, got.weights, features)
    assert chances.mean() == pytest.approx(yes.mean(), abs=1e-4)


def test_features_that_say_nothing_leave_the_constant_gate():
    yes = np.arange(1000) % 10 < 3
    got = logistic.fit(np.ones((1000, 8)), yes)
    assert (got.weights == 0).all()
    assert got.bias == pytest.approx(logit(0.3), abs=1e-4)


def test_auc_and_reliability_are_those_of_plain_counts():
    features, yes = drawn(700)
    chances = np.round(logistic.chance(0.2, WEIGHTS / 2, features), 2)  # with ties
    pairs = chances[yes][:, None] - chances[~yes]
    expected = np.mean(np.where(pairs == 0, 0.5, pairs > 0))
    assert logistic.auc(chances, yes) == pytest.approx(expected, abs=1e-12)
    assert np.isnan(logistic.auc(chances, np.ones(700, bool)))

    table = logistic.reliability(chances, yes)
    assert table["count"].sum() == 700
    for row in table.itertuples():
        inside = (chances * 10 >= 10 * row.low) & (chances * 10 < 10 * row.high)
        inside |= (row.high == 1) & (chances == 1)
        assert row.count == inside.sum()
        assert row.observed_share == pytest.approx(yes[inside].mean())
        assert row.mean_chance == pytest.approx(chances[inside].mean())


@pytest.fixture(scope="module")
def some(study):
    data = study.datasets[0]
    return subset(data, np.flatnonzero((data.lengths > 5) & (data.lengths < 40))[::2])


@pytest.mark.parametrize("retention", ["keep", "drop"])
def test_labels_are_those_of_a_plain_loop_over_the_oracle(study, some, retention):
    router = study.preset(UNGATED)
    world = study.world.replace(retention=study.retentions[retention])
    told = wishes.labelled(wishes.turns(router, some, world))
    found = set(zip(told["session"], told["turn"], told["moved_back"], strict=True))

    expected = set()
    plain = oracle_world(world), oracle_params(router)
    for s, session in enumerate(oracle_sessions(some.sessions)):
        replay = reference.replay(plain[0], session, plain[1])
        assert (replay.decision >= 0).all()
        for t, decision in enumerate(replay.decision):
            if replay.gate_margin[t] < reference.NEVER:  # the gate was asked
                left, ends = replay.decision[t - 1], t + 1 == len(replay.decision)
                assert decision != left
                expected.add((s, t, not ends and replay.decision[t + 1] == left))
    assert len(expected) > 50 and len({back for *_, back in expected}) == 2
    assert found == expected


def test_what_is_at_stake_is_what_a_sure_gate_stops(study, some):
    sure = study.preset("carbon_router").replace(gate_bias=40.0)
    world = study.world.replace(retention=study.retentions["drop"])
    asked = wishes.turns(sure, some, world).query("asked")
    stopped = asked[asked["decision"] == asked["last"]]
    assert 0 < len(stopped) < len(asked)
    pd.testing.assert_frame_equal(wishes.at_stake(asked), stopped)


def the_gate_of_the_table_is_the_gate_that_was_judged(found, tmp_path):
    """The table written, read back as a study file, and replayed by the batch engine."""
    shown.write_gate(tmp_path, found, 1.0)
    assert {path.name for path in tmp_path.iterdir()} == set(shown.GATE_FILES)
    path = tmp_path / shown.STUDY
    assert tomllib.loads(path.read_text())["policy"][LEARNED] == found.policy
    params = jr.load_study(path).policies[LEARNED]
    np.testing.assert_array_equal(params.gate_weights, np.float32(found.logistic.weights))
    data, world = found.judged.datasets[0], found.judged.world
    totals = jr.evaluate(params, data.sessions, world)
    row = found.comparison.summary.query("policy == @LEARNED").iloc[0]
    assert np.asarray(totals.carbon_g).sum(dtype=np.float64) == pytest.approx(row["carbon_g"])
    assert json.loads((tmp_path / "run.json").read_text())["policy"] == found.policy


def test_moves_of_one_kind_are_nothing_to_learn_from(study):
    data = study.datasets[0]
    short = subset(data, np.flatnonzero(data.lengths == 1)[:40])
    with pytest.raises(jr.InputError, match="0 of 0 moves at stake lead straight back"):
        fit_gate(dataclasses.replace(study, datasets=(short,)))


def it_learns_from_one_half_and_judges_the_other(study, found):
    learn, judge = split(study)
    assert set(found.judged.datasets[0].session_ids) == set(judge.datasets[0].session_ids)
    moves = learned_gate._wishes(learn)
    stake = moves[moves["gain_g"] < moves["return_g"]]
    again = logistic.fit(stake[list(FEATURES)].to_numpy(float), stake["moved_back"].to_numpy())
    assert again.bias == found.logistic.bias
    np.testing.assert_array_equal(again.weights, found.logistic.weights)

    gates = {name: found.judged.policies[name] for name in (*CONSTANTS, BY_LABELS, LEARNED)}
    for name, p_back in CONSTANTS.items():
        assert expit(gates[name].gate_bias) == pytest.approx(p_back)
        assert (gates[name].gate_weights == 0).all()
    assert gates[BY_LABELS].gate_strength == 1
    rows = found.strengths.query("gate == @LEARNED").set_index("strength")["relative_carbon"]
    assert gates[LEARNED].gate_strength == pytest.approx(rows.idxmin())
    chosen = [study.preset(UNGATED), gates[found.best_constant], gates[LEARNED]]
    relative = []
    for retention in study.retentions.values():
        world = study.world.replace(retention=retention)
        totals, _ = jax.vmap(lambda p, w=world: jr.evaluate(p, learn.sessions, w, trace=True))(
            stack(chosen)
        )
        grams = np.asarray(totals.carbon_g).sum(-1, dtype=np.float64)
        relative.append(grams[1:] / grams[0])
    least = found.strengths.groupby("gate")["relative_carbon"].min()
    expected = np.mean(relative, axis=0)
    np.testing.assert_allclose(expected, [least[found.best_constant], least[LEARNED]], rtol=1e-6)


def gains_are_differences_of_what_compare_shows(found):
    summary = found.comparison.summary.set_index(["retention", "policy"])["saving_pct"]
    assert len(found.against) == 2 * 2 * 4
    for row in found.against.itertuples():
        gain = summary[row.retention, row.policy] - summary[row.retention, row.rival]
        assert row.gain_pct == pytest.approx(gain, abs=1e-9)
        if not np.isnan(row.gain_lo_pct):  # too few sessions differ
            assert row.gain_lo_pct <= row.gain_pct <= row.gain_hi_pct
    assert found.against["gain_lo_pct"].notna().any()


def misses_add_up_to_what_the_plan_saves_more(found):
    assert set(found.misses["retention"]) == {"drop"}
    assert set(found.misses["kind"]) <= set(misses.KINDS)
    rows = found.comparison.summary.query("retention == 'drop'").set_index("policy")
    excess_g = rows.loc[LEARNED, "carbon_g"] - rows.loc[PLAN_ROW, "carbon_g"]
    assert found.misses["lost_g"].sum() == pytest.approx(excess_g, rel=1e-3)
    assert found.misses["lost_pct"].sum() == pytest.approx(100)
    captured = rows.loc[LEARNED, "captured_of_plan_pct"]
    assert found.misses["captured_points"].sum() == pytest.approx(100 - captured, rel=1e-3)
    assert found.misses["lost_g"].is_monotonic_decreasing


def test_kinds_of_misses():
    told = pd.DataFrame(
        [
            (-1, 2, 2, False, 1, "first turn"),
            (1, 1, 1, False, 3, "did not wish to leave"),
            (1, 2, 1, True, 2, "stayed, the wish was right"),
            (1, 2, 1, True, 3, "stayed, a third was right"),
            (1, 2, 2, True, 1, "left, staying was right"),
            (1, 2, 2, False, 3, "left, a third was right"),
        ],
        columns=["last", "wished", "decision", "asked", "best", "kind"],
    )
    pd.testing.assert_series_equal(misses.kinds(told), told["kind"], check_names=False)


def it_is_reproducible(study, found):
    again = fit_gate(study)
    assert again.policy == found.policy
    for name in ("weights", "strengths", "scores", "reliability", "against", "misses"):
        pd.testing.assert_frame_equal(getattr(again, name), getattr(found, name))


def the_report_says_of_each_line_whether_it_beats_the_constant(found):
    lines = list(shown.verdicts(found))
    for retention in found.judged.retentions:
        row = found.against.query(
            "retention == @retention and policy == @LEARNED and rival == @found.best_constant"
        ).iloc[0]
        told = "beats" if row["gain_lo_pct"] > 0 else "does not beat"
        told = "is worse than" if row["gain_hi_pct"] < 0 else told
        assert any(f"{retention}: {LEARNED} {told} {found.best_constant}" in x for x in lines)
    captured = found.comparison.summary.query("policy == @LEARNED and retention == 'drop'")
    missed = captured["captured_of_plan_pct"].iloc[0] < shown.TARGET_PCT
    assert missed == any("is missed" in x for x in lines)

    out = Console(file=io.StringIO(), width=200, force_terminal=True, color_system=None)
    shown.show_gate(found, out)
    printed = out.file.getvalue()
    for text in (*lines, *FEATURES, *found.judged.policies, PLAN_ROW):
        assert text in printed.replace("\n", " ")
    assert not any(word in printed for word in ("nan", "<NA>", "None"))


@pytest.mark.slow  # fits and judges a gate, once for all that is to be seen of it
def test_a_gate_fitted_and_judged(study, found, tmp_path):
    the_gate_of_the_table_is_the_gate_that_was_judged(found, tmp_path)
    gains_are_differences_of_what_compare_shows(found)
    misses_add_up_to_what_the_plan_saves_more(found)
    the_report_says_of_each_line_whether_it_beats_the_constant(found)
    it_learns_from_one_half_and_judges_the_other(study, found)
    it_is_reproducible(study, found)
