"""Water, money, limits and cut prompts, from a study file to its tables."""

import io
import re

import jax
import numpy as np
import pytest
import worlds
from bridge import engine_params, engine_sessions, engine_world, places_of
from rich.console import Console

import jaxroute as jr
from jaxroute import comparison
from jaxroute.load import fleet
from jaxroute.load.mix import read_mix
from jaxroute.overflow import truncate
from jaxroute.report import tables, turns

TRACE = """session_id,turn,arrival_s,input_tokens,output_tokens,prefix_tokens
a,0,0,1000,100,0
a,1,60,200000,50,1100
a,2,120,10,300,1000
a,3,180,20,30,1310
b,0,0,400,200,0
"""
MIX = """region,technology,share
US-CISO,gas,0.4
US-CISO,solar-pv,0.6005
SE,hydro,1
SG,gas,1
"""
EWIF = {"US-CISO": 0.4 * 1.086 + 0.6005 * 0.004, "SE": 17.0}
STUDY = """
on_overflow = "{}"
policies = ["sticky", "west", "north"]
baseline = "sticky"
[[datasets]]
path = "mine.csv"
[fleet]
regions = ["US-CISO", "SE"]
[water]
mix = "mix.csv"
[slo]
ttft_s = 1e4
e2e_s = 2e-3
[[retention]]
label = "keep"
[policy.west]
preset = "sticky"
models = ["llama-3.1-8b-instruct"]
gpus = ["B200-180GB-SXM"]
regions = ["US-CISO"]
[policy.north]
preset = "sticky"
regions = ["SE"]
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("bill")
    (path / "mine.csv").write_text(TRACE)
    (path / "mix.csv").write_text(MIX)
    for word in ("truncate", "unserved"):
        (path / f"{word}.toml").write_text(STUDY.format(word))
    return path


@pytest.fixture(scope="module")
def study(folder):
    return jr.load_study(folder / "truncate.toml")


@pytest.fixture(scope="module")
def outcome(study):
    return comparison.run(study)


@pytest.fixture(scope="module")
def rows(outcome):
    return outcome.summary.set_index("policy")


def test_water_and_cost_are_those_of_the_region(rows):
    energy = rows["energy_kwh"]
    water = energy["west"] * (0.51 / 1.18 + EWIF["US-CISO"])
    assert rows.loc["west", "water_l"] == pytest.approx(water, rel=1e-6)
    water = energy["north"] * (0.02 / 1.1 + EWIF["SE"])
    assert rows.loc["north", "water_l"] == pytest.approx(water, rel=1e-6)
    assert rows.loc["west", "cost_usd"] == pytest.approx(energy["west"] * 0.04067, rel=1e-6)


@pytest.mark.slow  # programs of its own
def test_there_is_no_cost_where_no_price_is_known(study, outcome, rows):
    assert np.isnan(rows.loc["north", "cost_usd"])
    assert rows.loc["north", "carbon_g"] > 0
    assert any("none known of SE: blank if served there" in note for note in study.notes)
    out = Console(file=io.StringIO(), width=200)
    tables.show(study, outcome, out)
    turns.show(jr.explain(study, "a", policies=["north", "west"]), out)
    printed = out.file.getvalue()
    assert "nan" not in printed
    assert re.search(r"water mL, cost 1e-6 USD +\d+\.\d+, - +\d+\.\d+, \d+\.\d+ ", printed)


@pytest.mark.slow  # programs of its own
def test_an_unknown_price_stays_with_its_sessions_and_out_of_the_gradients():
    rng = np.random.default_rng(3)
    plain = worlds.world(rng) | {"price_usd_per_kwh": np.array([0.1, np.nan, 0.2])}
    world = engine_world(plain)
    sessions = engine_sessions([worlds.session(rng, plain, 2) for _ in range(12)])
    params = engine_params(worlds.params(carbon_weight=0.0, noise_price_g=1.0))

    def carbon_g(pue):
        totals, trace = jr.evaluate(params, sessions, world.replace(pue=pue), trace=True)
        return totals.carbon_g.sum(), (totals, trace)

    slope, (totals, trace) = jax.grad(carbon_g, has_aux=True)(world.pue)
    assert np.isfinite(slope).all() and (np.asarray(slope) > 0).all()
    decision, session = np.asarray(trace.decision), np.asarray(sessions.turns.session)
    there = (decision >= 0) & (plain["region"][decision] == 1)
    unpriced = np.bincount(session[there], minlength=12) > 0
    np.testing.assert_array_equal(np.isnan(totals.cost_usd), unpriced)
    assert 0 < unpriced.sum() < 12


def test_wue_is_of_the_first_provider_that_reports_it():
    found = {name: fleet.wue_of(name) for name in ("AU-NSW", "IT", "US-ERCO", "KR")}
    assert found == {"AU-NSW": 0.12, "IT": 0.023, "US-ERCO": 0.3, "KR": 0.3}


def test_the_price_is_of_the_newest_year():
    assert fleet.price_of("DE") == (pytest.approx(0.08458), 2024)
    assert fleet.price_of("GB")[1] == 0 and np.isnan(fleet.price_of("GB")[0])


MIXES = {
    "a technology": (
        "DE,fusion,1",
        "row 2, column technology: found 'fusion', expected a known technology; known: coal, gas",
    ),
    "a region": ("Mars,wind,1", "row 2, column region: found 'Mars', expected a known region"),
    "a share": ("DE,wind,1.2", "row 2, column share: found '1.2', expected a number from 0 to 1"),
    "no share": ("DE,wind,", "row 2, column share: found nothing, expected a number from 0 to 1"),
    "a sum": ("DE,wind,0.6\nDE,gas,0.3", "region DE: found shares that sum to 0.9, expected 1"),
    "twice": ("DE,gas,0.5\nDE,gas,0.5", "row 3, column technology: found 'gas' of DE once more"),
    "none of a region": ("SG,wind,1", "column region: found no DE, expected the mix of every"),
}


@pytest.mark.parametrize("name", MIXES)
def test_a_mix_that_is_wrong(tmp_path, name):
    path, (text, expected) = tmp_path / "mix.csv", MIXES[name]
    path.write_text(f"region,technology,share\n{text}\n")
    with pytest.raises(jr.InputError) as caught:
        read_mix(path, ["DE"])
    assert str(caught.value).startswith(f"{path}: {expected}")
    assert len(str(caught.value).splitlines()) == 1


def test_without_a_mix_generation_is_left_out():
    bundled = jr.load_study()
    assert (bundled.world.ewif_l_per_kwh == 0).all()
    assert any("generation's left out (no mix)" in note for note in bundled.notes)


def test_violations_of_a_limit_are_counted(outcome, rows):
    served = rows.drop("lower_bound")
    assert (served["ttft_slo_violations_pct"] == 0).all()
    assert (served["e2e_slo_violations_pct"] == 100).all()
    assert (served["ttft_p50_s"] <= served["ttft_p99_s"]).all()
    assert (served["e2e_p50_s"] <= served["e2e_p99_s"]).all()
    bound = rows.loc["lower_bound"]
    assert bound[["ttft_p50_s", "e2e_p99_s", "water_l", "cost_usd"]].isna().all()


def test_a_prompt_too_long_is_cut_and_the_next_finds_no_prefix(folder, study, rows):
    columns = study.datasets[0].columns
    assert columns["prefix_tokens"].tolist() == [0, 0, 0, 1310, 0]
    assert columns["new_tokens"].tolist() == [1000, 131_072 - 256, 1010, 20, 400]
    assert study.datasets[0].truncated == 1
    assert any("1 turns cut" in n and "not modelled" in n for n in study.datasets[0].notes)
    served = rows.drop("lower_bound")
    assert (served["turns"] == 5).all() and (rows["truncated"] == 1).all()
    assert (rows["unserved_pct"] == 0).all()

    _, trace = jr.evaluate(study.policies["west"], study.sessions, study.world, trace=True)
    first, second = places_of(study.sessions)
    cached = np.asarray(trace.cached_tokens)
    assert cached[first].tolist() == [0, 0, 0, 1296] and cached[second].tolist() == [0]

    whole = jr.load_study(folder / "unserved.toml").datasets[0]
    assert whole.columns["new_tokens"].tolist() == [1000, 200_000, 10, 20, 400]
    assert whole.truncated == 0 and not any("cut" in note for note in whole.notes)


def test_a_session_that_grows_beyond_the_limit_is_cut_turn_by_turn():
    first = np.array([True, False, False, False, True])
    prefix, new = np.array([0, 50, 90, 120, 0]), np.array([40, 30, 20, 10, 100])
    predicted = np.array([10.0, 10.0, 10.5, 10.0, 130.0])
    assert [x.tolist() for x in truncate(prefix, new, predicted, first, 100.0)] == [
        [0, 50, 0, 0, 0],
        [40, 30, 89, 90, 100],
        [False, False, True, True, False],
    ]
