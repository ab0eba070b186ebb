"""`explain` tells what the engine did, and nothing else."""

import dataclasses
import io
import math

import jax
import numpy as np
import pandas as pd
import pytest
from bridge import oracle_params, oracle_sessions, oracle_world, places_of
from oracle_check import subset
from rich.console import Console
from test_cli import HEADER, TRACE, jaxroute

import jaxroute as jr
from jaxroute import gate, reference, simulate
from jaxroute.explanation import AXES, BEST, ScoreTerms
from jaxroute.numerics import stack
from jaxroute.report import turns
from jaxroute.report.turns import TERMS

NAMES = ("carbon_router", "fair_carbon", "sticky", "hysteresis", "everything")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """The default study, with a policy in which every term of the score counts."""
    path = tmp_path_factory.mktemp("study") / "study.toml"
    path.write_text(
        '[policy.everything]\npreset = "carbon_router"\nlatency_price_g_per_s = 1e-3\n'
        "quality_price_g = 0.02\nswitch_price_g = 1e-3\nintensity_price = 1e-5\n"
        "rtt_price_g_per_s = 0.01\nsize_price_g_per_b = 1e-4\nnoise_price_g = 2e-3\n"
        "gate_weights = [0.1, 0.2, -0.1, 0.5, 0.1, -0.2, 0.3, 1]\n"
    )
    return jr.load_study(path).with_policies(NAMES)


@pytest.fixture(scope="module")
def told(study):
    """Sessions of 9 to 16 turns, one shape, under each retention: index, label, explanation."""
    data = study.datasets[0]
    some = np.flatnonzero((data.lengths > 8) & (data.lengths <= 16))[::120]
    return [
        (at, label, jr.explain(study, data.session_ids[at], retention=label, policies=NAMES))
        for at in some
        for label in study.retentions
    ]


def test_a_session_sums_to_the_engines_bill(study, told):
    """In float32 a sum of 300 turns is itself good to 1e-6 only: its turns are added in float64."""
    longest = int(study.datasets[0].lengths.argmax())
    chosen = sorted({at for at, _, _ in told} | {longest})
    params = stack(study.policies[name] for name in NAMES)
    batch, labels = subset(study.datasets[0], chosen).sessions, list(study.retentions)
    retentions = stack(study.retentions.values())
    totals, trace = simulate.evaluate_grid(params, batch, study.world, retentions)
    for at, label, each in told:
        n, s = labels.index(label), chosen.index(at)
        sums = each.turns.groupby("policy", sort=False).sum(numeric_only=True)
        assert list(sums.index) == list(NAMES)
        assert (sums["turns"] + sums["unserved"] == study.datasets[0].lengths[at]).all()
        for column in (*simulate.FIELDS, "carbon_g"):
            bill = np.asarray(getattr(totals, column))[n, :, s]
            np.testing.assert_allclose(sums[column], bill, rtol=1e-6, err_msg=column)

    name, place = study.datasets[0].session_ids[longest], places_of(batch)[chosen.index(longest)]
    each = jr.explain(study, name, retention="drop", policies=NAMES).turns
    assert len(each) == 300 * len(NAMES)
    turns_g = np.asarray(trace.carbon_g, np.float64)[labels.index("drop")][:, *place]
    np.testing.assert_allclose(each["carbon_g"], turns_g.ravel(), rtol=2e-6)
    sums_g = each.groupby("policy", sort=False)["carbon_g"].sum()
    np.testing.assert_allclose(sums_g, turns_g.sum(-1), rtol=1e-6)


def test_the_terms_sum_to_the_score_and_the_best_come_first(told):
    for _, _, each in told:
        rows = each.candidates
        total = rows[list(ScoreTerms._fields)].sum(axis=1)
        np.testing.assert_allclose(total, rows["score_g"], rtol=2e-6)
        every = rows[rows["policy"] == "everything"]
        assert (every[["operational_g", "embodied_g", "noise_g"]] > 0).all(axis=None)
        for _, turn in rows.groupby(["policy", "turn"]):
            assert turn["rank"].is_monotonic_increasing
            assert turn["score_g"].is_monotonic_increasing
            assert turn["chosen"].sum() == 1
            assert (turn["chosen"] | (turn["rank"] <= BEST)).all()
    terms = pd.concat(each.candidates for _, _, each in told).query("policy == 'everything'")
    assert (terms[list(ScoreTerms._fields)] > 0).any().all()


def test_a_verdict_is_what_the_decision_shows(told):
    seen = set()
    for _, _, each in told:
        for policy, rows in each.turns.groupby("policy"):
            place = rows[list(AXES)].agg("|".join, axis=1).to_numpy()
            verdict, wished = rows["verdict"].to_numpy(), rows["wished"].to_numpy()
            asked = rows["gain_g"].notna().to_numpy()
            assert verdict[0] == "no gate: first turn"
            for t in range(1, len(rows)):
                kind, row = verdict[t].split(":")[0], rows.iloc[t]
                seen.add((policy, verdict[t]))
                assert asked[t] == (kind in ("stays", "moves"))
                if kind == "stays":
                    assert place[t] == place[t - 1] != wished[t]
                    assert ("gate" in verdict[t]) == (row["gain_g"] < row["threshold_g"])
                    assert ("hysteresis" in verdict[t]) == (row["gain_g"] < row["hysteresis_g"])
                else:
                    assert place[t] == wished[t]
                    assert (place[t] == place[t - 1]) == verdict[t].endswith("best is here")
                if kind == "moves":
                    assert row["gain_g"] >= max(row["threshold_g"], row["hysteresis_g"])
                    assert verdict[t].endswith("no gate") == (policy == "fair_carbon")
    verdicts = {verdict for _, verdict in seen}
    assert verdicts >= {"no gate: best is here", "no gate: here is filtered out", "stays: gate"}
    assert ("carbon_router", "moves: no clause holds") in seen
    assert ("fair_carbon", "moves: no gate") in seen
    assert ("sticky", "stays: always_stay") in seen
    assert ("hysteresis", "stays: hysteresis") in seen


def test_the_gates_terms_are_the_oracles(study, told, monkeypatch):
    asked, compared = [], 0
    monkeypatch.setattr(reference, "gate", _spy(asked, reference.gate))
    rows = [row for row in told if row[1] == "drop"][:6]
    for at, label, each in rows:
        world = oracle_world(study.world.replace(retention=study.retentions[label]))
        (session,) = oracle_sessions(study.datasets[0].alone(at))
        for policy in ("carbon_router", "everything"):
            asked.clear()
            free = reference.replay(world, session, oracle_params(study.policies[policy]))
            mine = each.turns[each.turns["policy"] == policy]
            np.testing.assert_allclose(mine["carbon_g"].sum(), _carbon(free), rtol=1e-5)
            found = mine.dropna()[["gain_g", "p_back", "return_g"]].to_numpy()
            assert len(found) == len(asked)
            for row, (score, *expected) in zip(found, asked, strict=True):
                np.testing.assert_allclose((row - expected) / [score, 1, score], 0, atol=5e-6)
            compared += len(found)
    assert compared > 20


def _carbon(free):
    return sum(free.totals[f"carbon_{part}_g"] for part in ("prefill", "decode", "embodied"))


def _spy(asked, gate_of):
    """The oracle's gate, noting J_i, dJ, p_back and R_i."""

    def spy(p, score_i, score_j, return_g, features):
        gain = score_i - score_j
        x = p.gate_bias + np.dot(p.gate_weights, [gain / score_i, *features])
        asked.append((score_i, gain, 1 / (1 + math.exp(-x)), return_g))
        return gate_of(p, score_i, score_j, return_g, features)

    return spy


def test_a_turns_record_may_be_had_of_any_batch(study):
    """The function given to `trace` is told the parameters, and what it returns comes back."""

    def missed(params, record):
        waste = record.truth.full_tokens - record.truth.cached_tokens.max()
        return {"waste": params.cache_knowledge * waste, "totals": record.totals}

    sessions = subset(study.datasets[0], [3, 8, 13]).sessions
    totals, kept = jr.evaluate(jr.presets["sticky"], sessions, study.world, trace=missed)
    shape = sessions.turns.valid.shape
    assert {x.shape for x in jax.tree.leaves(kept)} == {shape}
    assert (np.asarray(kept["waste"]) == 0).all()
    np.testing.assert_allclose(kept["totals"].carbon_g.sum(), totals.carbon_g.sum(), rtol=1e-6)


@pytest.mark.parametrize("names", [("carbon_router", "fair_carbon"), ("everything",), NAMES])
def test_it_fits_a_hundred_columns(told, names):
    each = told[0][2]
    mine = dataclasses.replace(
        each,
        turns=each.turns[each.turns["policy"].isin(names)],
        candidates=each.candidates[each.candidates["policy"].isin(names)],
    )
    out = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
    turns.show(mine, out)
    printed = out.file.getvalue()
    assert "…" not in printed
    assert max(map(len, printed.splitlines())) <= 100
    for t in range(len(mine.turns) // len(names)):
        assert f"\nturn {t}: " in printed
    for name in names:
        assert f"best for {name}" in printed
    for term in ("oper.", "embod.", *(TERMS.values() if "everything" in names else ())):
        assert term in printed
    assert ("reconstruction" in printed) == ("fair_carbon" in names)


@pytest.mark.slow  # compiles for the bundled trace
def test_as_a_command(monkeypatch, capsys, tmp_path):
    mine, other = tmp_path / "mine.csv", tmp_path / "other.csv"
    mine.write_text(TRACE)
    other.write_text(f"{HEADER}\nabcd,0,,100,50\nabce,0,,20,60\n")
    both = ("--trace", mine, "--trace", other)

    def run(*arguments):
        return jaxroute(monkeypatch, capsys, "explain", *both, *arguments)

    status, printed, warned = run("--dataset", "mine", "--session", "c", "--retention", "drop")
    assert (status, warned) == (0, "")
    assert "session c of mine, caches: drop" in printed
    assert "turn 1: 900,005 prefix + 10 new tokens, 5 out (256 predicted), 9.0 s" in printed
    assert printed.count("unserved") == 2 * 2 + 1
    assert "carbon_router" in printed
    for arguments, words in {
        ("--session", "a"): ["dataset", "nothing", "mine, other"],
        ("--session", "a", "--dataset", "mien"): ["'mien'", "did you mean 'mine'"],
        ("--session", "abcf", "--dataset", "other"): ["other.csv", "'abcf'", "'abce', 'abcd'"],
        ("--session", "a", "--dataset", "mine", "--retention", "kep"): ["'kep'", "'keep'"],
        ("--session", "a", "--dataset", "mine", "--policy", "fair"): ["'fair'", "fair_carbon"],
    }.items():
        status, printed, error = run(*arguments)
        assert (status, printed, len(error.splitlines())) == (2, "", 1)
        assert all(word in error for word in words), error


def test_the_clauses_are_named():
    zero = np.float32(0)
    terms = gate.Terms(zero, zero, zero, zero + 1, zero, zero)
    assert dict(zip(gate.CLAUSES, map(bool, terms.clauses()), strict=True)) == {
        "gate": True,
        "hysteresis": False,
        "always_stay": False,
    }
