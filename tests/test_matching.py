"""Savings at equal quality, and at equal TTFT."""

import json

import chex
import numpy as np
import pandas as pd
import pytest
from test_cli import jaxroute
from traces import LONG, write_trace

import jaxroute as jr
from jaxroute import comparison, matching, simulate
from jaxroute.report.matched import COLUMNS, matched_notes

STUDY = """
policies = [
  "carbon_router", "carbon_router_fixed_region", "smallest_model", "best_quality", "random",
  "low", "priced",
]
[[datasets]]
path = "mine.csv"
[[retention]]
label = "keep"
[[retention]]
label = "drop"
drop_on_leave = true
[policy.low]
preset = "carbon_router"
quality_floor = 0.3
[policy.priced]
preset = "carbon_router"
quality_floor = 0.0
quality_price_g = 1e-3
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    made = tmp_path_factory.mktemp("study")
    write_trace(made / "mine.csv", **LONG)
    (made / "study.toml").write_text(STUDY)
    return made


@pytest.fixture(scope="module")
def study(folder):
    return jr.load_study(folder / "study.toml")


@pytest.fixture(scope="module")
def quality(study):
    return jr.match(study).set_index(["retention", "policy"])


def test_means_are_equal_at_the_knobs_told(study, quality):
    """Replayed one by one at the values in the table: the same mean, carbon and saving."""
    policies = comparison.resolved(study, study.datasets[0])
    told = quality.reset_index().query("status == 'matched'")
    assert set(told["policy"]) == {*study.policies} - {"smallest_model"}
    base = {}
    for _, row in told.sort_values("policy", key=lambda names: names != "fair_carbon").iterrows():
        params = policies[row["policy"]].replace(
            quality_price_g=row["quality_price_g"], quality_floor=row["quality_floor"]
        )
        world = study.world.replace(retention=study.retentions[row["retention"]])
        totals = jr.evaluate(params, study.sessions, world)
        mean = float(totals.quality.sum() / totals.turns.sum())
        carbon = float(totals.carbon_g.sum())
        base.setdefault(row["retention"], (mean, carbon))
        assert abs(mean - base[row["retention"]][0]) <= 0.002 + 1e-5
        assert mean == pytest.approx(row["mean_quality"], abs=1e-5)
        saving = 100 * (1 - carbon / base[row["retention"]][1])
        assert saving == pytest.approx(row["saving_pct"], abs=1e-3)
        assert row["saving_lo_pct"] <= row["saving_pct"] <= row["saving_hi_pct"]


def test_each_policy_turns_the_knob_that_it_has(study, quality):
    for retention in study.retentions:
        rows = quality.loc[retention]
        assert rows.loc["fair_carbon", "knob"] == ""
        assert rows.loc["random", "knob"] == "quality_floor"
        assert rows.loc["random", "quality_floor"] < 0.6
        assert rows.loc["low", "quality_floor"] > 0.3
        assert rows.loc["priced", "knob"] == "quality_price_g"
        assert rows.loc["priced", "quality_price_g"] > 1e-3
        assert rows.loc["best_quality", "knob"].startswith("quality_price_g")
        assert rows.loc["best_quality", "quality_price_g"] < 1


def test_what_cannot_be_matched_has_no_saving(quality):
    row = quality.loc[("keep", "smallest_model")]
    assert row["status"] == "worse"
    assert row["mean_quality"] < row["baseline_quality"] - 0.1
    assert np.isnan(row[["saving_pct", "saving_lo_pct", "saving_hi_pct"]].astype(float)).all()


def test_ttft_is_matched_by_the_latency_price(study):
    table = jr.match(study, "ttft").set_index(["retention", "policy"])
    for retention in study.retentions:
        rows = table.loc[retention]
        row = rows.loc["random"]
        assert (row["status"], row["knob"]) == ("matched", "latency_price_g_per_s")
        assert row["latency_price_g_per_s"] > 0
        better = rows[rows["status"] == "better"]
        assert (better["mean_ttft_s"] < better["baseline_ttft_s"] - 0.002).all()
        assert (better["latency_price_g_per_s"] == 0).all()
        assert better["saving_pct"].notna().all()
    assert (table["status"] == "better").any()


def test_the_rounds_share_one_compiled_program(tmp_path, monkeypatch):
    write_trace(tmp_path / "mine.csv", sessions=6, turns=4)
    (tmp_path / "study.toml").write_text(STUDY)
    study = jr.load_study(tmp_path / "study.toml").with_policies(["random", "smallest_model"])
    monkeypatch.setattr(simulate, "replay", chex.assert_max_traces(simulate.replay, n=1))
    told = []
    matching.run(study, {"mine": {}}, "quality", lambda step, share: told.append((step, share)))
    assert sum("round" in step for step, _ in told) > 5
    assert [share for _, share in told] == sorted(share for _, share in told)


def test_the_ways_begin_at_the_policy_and_end_at_the_extremes():
    own = jr.stack(
        jr.RouterParams().replace(
            quality_price_g=price, latency_price_g_per_s=price, quality_floor=0.4
        )
        for price in (0.0, 0.01, 1e-9)
        for _ in range(2)
    )
    better = np.array([True, False] * 3)
    x = np.linspace(0, 1, 41)
    for on, price in matching.PRICE.items():
        ways = [matching.along(own, on, better, np.full(6, each)) for each in x]
        chex.assert_trees_all_equal(ways[0], own)
        for name in matching.KNOBS[on]:
            values = np.stack([getattr(way, name) for way in ways])
            assert values.dtype == np.float32
            assert (np.diff(values[:, better], axis=0) >= 0).all()
            assert (np.diff(values[:, ~better], axis=0) <= 0).all()
        last = ways[-1]
        moved = np.array([on == "ttft", False, True, True, True, True])
        np.testing.assert_array_equal(getattr(last, price)[moved & better], 1e6)
        np.testing.assert_array_equal(getattr(last, price)[~better], 0)
        if on == "quality":
            np.testing.assert_array_equal(last.quality_floor, better)


CURVES = {
    "rising": (lambda x: x - 0.3, True),
    "falling": (lambda x: 0.3 - x, True),
    "crosses thrice": (lambda x: np.sin(9.5 * x + 0.3) - 0.1, True),
    "dips inside": (lambda x: (x - 0.5) ** 2 - 0.05, True),
    "never": (lambda x: 0.2 + 0.1 * x, False),
    "jumps": (lambda x: np.where(x < 0.7, -0.1, 0.2), False),
    "near from the start": (lambda x: 0.001 + x, True),
    "nothing": (lambda x: x * np.nan, False),
}


def test_bisection_of_curves_of_every_kind():
    functions = [function for function, _ in CURVES.values()]

    def gaps(x):
        return np.array([function(at) for function, at in zip(functions, x, strict=True)])

    zero = np.zeros(len(CURVES))
    tried, rounds = [gaps(zero)], []

    def gap_at(x, done):
        assert ((x >= 0) & (x <= 1)).all()
        rounds.append(done)
        tried.append(gaps(x))
        return tried[-1]

    x, gap = matching.bisect(gap_at, gaps(zero), 0.002)
    np.testing.assert_array_equal(np.abs(gap), np.abs(tried).min(0))
    np.testing.assert_array_equal(gap, gaps(x))
    for (name, (_, crosses)), reached in zip(CURVES.items(), np.abs(gap) <= 0.002, strict=True):
        assert reached == crosses, name
    by_name = dict(zip(CURVES, gap, strict=True))
    assert by_name["never"] == 0.2
    assert by_name["jumps"] == -0.1
    assert by_name["near from the start"] == 0.001
    assert rounds == list(range(len(rounds)))
    assert len(rounds) <= matching.MOST_ROUNDS


def test_another_thing_to_match_is_refused(study):
    with pytest.raises(ValueError, match="quality, ttft, got 'carbon'"):
        jr.match(study, on="carbon")


@pytest.mark.slow  # compiles for shapes of its own
def test_a_trace_too_short_to_be_matched(tmp_path):
    """Two turns have few means: the nearest is told, as is that nothing was served."""
    for name, rows in (("two", "a,0,0,50,20\na,1,9,50,20\n"), ("none", "")):
        path = tmp_path / f"{name}.csv"
        path.write_text(f"session_id,turn,arrival_s,input_tokens,output_tokens\n{rows}")
    (tmp_path / "study.toml").write_text('policies = ["smallest_model", "best_quality"]')
    traces = [tmp_path / "two.csv", tmp_path / "none.csv"]
    study = jr.load_study(tmp_path / "study.toml", traces=traces)
    table = matching.run(study, {"two": {}, "none": {}}, "quality")
    rows = table[table["dataset"] == "two"].set_index("policy")
    assert (rows.loc["smallest_model", "status"] == "worse").all()
    assert (rows.loc["fair_carbon", "saving_pct"] == 0).all()
    assert (table.loc[table["dataset"] == "none", "carbon_g"] == 0).all()
    assert table.loc[table["dataset"] == "none", "saving_pct"].isna().all()
    assert not any("fair_carbon)" in line for line in matched_notes(study, table))


@pytest.mark.slow  # compiles for shapes of its own
def test_the_command(monkeypatch, capsys, folder, tmp_path):
    out = tmp_path / "out"
    status, printed, warned = jaxroute(
        monkeypatch, capsys, "compare", folder / "study.toml", "--match", "quality", "--out", out
    )
    assert (status, warned) == (0, "")
    assert "mine, caches: drop, 0.00 % unserved, at equal quality" in printed
    assert all(name in printed for name in COLUMNS)
    assert sum("cannot be matched  " in line for line in printed.splitlines()) == 2
    table = pd.read_csv(out / "matched.csv")
    assert len(table) == 2 * 8
    assert {"status", "knob", "quality_price_g", "quality_floor", "saving_lo_pct"} < set(table)
    assert not {"hindsight_plan", "lower_bound"} & set(table["policy"])
    record = json.loads((out / "run.json").read_text())
    assert any("cannot be matched" in note for note in record["notes"])
    assert any("unserved" in note for note in record["notes"])

    arguments = (folder / "study.toml", "--out", out)
    status, printed, warned = jaxroute(monkeypatch, capsys, "ablate", *arguments)
    assert (status, printed, len(warned.splitlines())) == (2, "", 1)
    assert (out / "matched.csv").exists()
    status, printed, _ = jaxroute(monkeypatch, capsys, "compare", *arguments)
    assert (status, "at equal" in printed) == (0, False)
    assert not (out / "matched.csv").exists()

    status, _, warned = jaxroute(monkeypatch, capsys, "compare", "--match", "carbon")
    assert status == 2
    assert "'quality'" in warned
    assert len(warned.splitlines()) == 1
