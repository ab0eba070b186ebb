"""The command as a user types it."""

import json
import re
import sys

import numpy as np
import pandas as pd
import pytest

from jaxroute import RESULTS_VERSION, cli

SUMMARY = [
    *("dataset", "retention", "policy", "sessions", "turns", "unserved", "unserved_pct"),
    *("truncated", "carbon_g", "carbon_prefill_g", "carbon_rebuild_g", "carbon_decode_g"),
    *("carbon_embodied_g", "energy_kwh", "water_l", "cost_usd", "mean_ttft_s", "mean_e2e_s"),
    *("mean_quality", "ttft_p50_s", "ttft_p95_s", "ttft_p99_s", "e2e_p50_s", "e2e_p95_s"),
    *("e2e_p99_s", "ttft_slo_violations_pct", "e2e_slo_violations_pct", "moves", "returns"),
    *("rebuilt_tokens", "mask_fallbacks", "quality_fallbacks", "ttft_fallbacks"),
    *("saving_pct", "saving_lo_pct", "saving_hi_pct"),
    *("captured_of_plan_pct", "captured_of_bound_pct"),
]
HEADER = "session_id,turn,arrival_s,input_tokens,output_tokens"
TRACE = f"""{HEADER}
a,0,0,1200,300
a,1,40,30,200
a,2,900,50,100
b,0,5,10,20
c,0,0,900000,5
c,1,9,10,5
"""
HOURS = pd.date_range("2023-03-01", periods=48, freq="h", tz="UTC")
REGIONS = ("US-CISO", "US-PJM", "DE", "SG")


@pytest.fixture
def trace(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(TRACE)
    return path


@pytest.fixture
def carbon(tmp_path):
    path = tmp_path / "grid.csv"
    rows = pd.DataFrame(
        [(hour, region, 100.0 + n) for hour in HOURS for n, region in enumerate(REGIONS)],
        columns=["timestamp", "region", "gco2_per_kwh"],
    )
    rows.to_csv(path, index=False)
    return path


def jaxroute(monkeypatch, capsys, *arguments):
    """Runs the command in this process: status, stdout, stderr."""
    monkeypatch.setattr(sys, "argv", ["jaxroute", *map(str, arguments)])
    with pytest.raises(SystemExit) as stop:
        cli.main()
    captured = capsys.readouterr()
    return stop.value.code or 0, captured.out, captured.err


def test_every_output_of_a_comparison(monkeypatch, capsys, tmp_path, trace, carbon):
    other = tmp_path / "other.csv"
    other.write_text(f"{HEADER}\nz,0,,100,50\nz,1,,20,60\n")
    out = tmp_path / "results"
    status, printed, warned = jaxroute(
        monkeypatch, capsys, "compare", "--trace", trace, "--trace", other, "--carbon", carbon,
        "--out", out, "--seed", 3,
    )  # fmt: skip
    assert (status, warned) == (0, "")
    assert "mine, caches: keep" in printed
    assert "other (synthetic times), caches: drop" in printed
    assert {path.name for path in out.iterdir()} == {
        "summary.csv", "by_length.csv", "shares.csv", "served.csv", "sessions.parquet", "run.json",
    }  # fmt: skip

    summary = pd.read_csv(out / "summary.csv")
    assert list(summary) == SUMMARY
    assert len(summary) == 2 * 3 * (16 + 2)
    assert summary["retention"].unique().tolist() == ["keep", "ttl_300s", "drop"]
    assert (summary.query("policy == 'fair_carbon'")["saving_pct"] == 0).all()
    mine = summary[summary["dataset"] == "mine"]
    assert (mine["turns"] == 4).all()
    assert (mine["unserved"] == 2).all()
    bound, plan = (summary.query(f"policy == '{n}'") for n in ("lower_bound", "hindsight_plan"))
    known = ["turns", "unserved", "carbon_g", "saving_pct", "captured_of_bound_pct"]
    assert bound[known].notna().all(axis=None)
    assert bound[["energy_kwh", "mean_quality", "moves", "rebuilt_tokens"]].isna().all(axis=None)
    assert (bound["carbon_g"].to_numpy() <= plan["carbon_g"].to_numpy()).all()
    for row, column in ((plan, "captured_of_plan_pct"), (bound, "captured_of_bound_pct")):
        assert row[column].dropna().to_numpy() == pytest.approx(100)
    attainable = bound.set_index(["dataset", "retention"])["saving_pct"]
    per_row = pd.MultiIndex.from_frame(summary[["dataset", "retention"]])
    np.testing.assert_allclose(
        summary["captured_of_bound_pct"],
        100 * summary["saving_pct"] / attainable[per_row].to_numpy(),
        rtol=1e-6,
        atol=1e-9,
    )
    served = summary[summary["policy"] != "lower_bound"]
    parts = served["carbon_prefill_g"] + served["carbon_decode_g"] + served["carbon_embodied_g"]
    np.testing.assert_allclose(served["carbon_g"], parts, rtol=1e-6)
    assert (served["carbon_rebuild_g"] <= served["carbon_g"]).all()

    buckets = pd.read_csv(out / "by_length.csv")
    assert buckets["length_bucket"].unique().tolist() == ["1", "2-5", "6-10", "11-30", ">30"]
    keys = ["dataset", "retention", "policy"]
    total = buckets.groupby(keys, sort=False)["carbon_g"].sum().to_numpy()
    np.testing.assert_allclose(total, summary["carbon_g"], rtol=1e-6)
    bills = buckets.query("policy != 'lower_bound'").groupby(keys, sort=False)
    for name in ("water_l", "cost_usd"):
        np.testing.assert_allclose(bills[name].sum(), served[name], rtol=1e-6)
        assert (served[name] > 0).all()
    few = buckets.query("length_bucket == '2-5' and dataset == 'mine'")
    np.testing.assert_allclose(few["unserved_pct"], 100 * few["unserved"] / 5)

    shares = pd.read_csv(out / "shares.csv")
    assert list(shares) == [*keys, "model", "gpu", "region", "turns", "carbon_g"]
    grouped = shares.groupby(keys, sort=False)[["turns", "carbon_g"]].sum()
    np.testing.assert_array_equal(grouped["turns"], served["turns"])
    np.testing.assert_allclose(grouped["carbon_g"], served["carbon_g"], rtol=1e-5)

    hours = pd.read_csv(out / "served.csv")
    assert list(hours) == [*keys, "region", "hour_utc", "turns", "carbon_g"]
    regions = shares["region"].nunique()
    assert len(hours) == 2 * 3 * (16 + 1) * regions * 24
    there = [
        each.groupby([*keys, "region"], sort=False)[["turns", "carbon_g"]].sum()
        for each in (shares, hours)
    ]
    pd.testing.assert_frame_equal(*there, rtol=1e-6)

    sessions = pd.read_parquet(out / "sessions.parquet")
    assert len(sessions) == 3 * (16 + 2) * (3 + 1)
    by_session = sessions.groupby(keys, sort=False)["carbon_g"].sum().to_numpy()
    np.testing.assert_allclose(by_session, summary["carbon_g"], rtol=1e-6)

    record = json.loads((out / "run.json").read_text())
    assert record["results_version"] == RESULTS_VERSION
    assert record["seed"] == record["study"]["seed"] == 3
    assert {str(trace), str(other), str(carbon), "profiles.csv"} <= set(record["inputs_sha256"])
    assert record["policies"]["sticky"]["always_stay"] == 1
    assert record["policies"]["sticky"]["quality_slack"] == "inf"
    assert all(re.fullmatch("[0-9a-f]{64}", each) for each in record["inputs_sha256"].values())
    assert record["compile_s"] <= record["wall_s"]
    assert any("synthetic times" in note for note in record["notes"])


def test_a_study_with_a_policy_of_ones_own(monkeypatch, capsys, tmp_path, trace):
    study = tmp_path / "study.toml"
    study.write_text(
        'policies = ["mine", "carbon_router_fixed_gpu"]\n'
        '[[datasets]]\npath = "mine.csv"\nlabel = "chat"\n'
        '[[retention]]\nlabel = "an hour"\nttl_s = 3600\n'
        '[policy.mine]\npreset = "carbon_router"\nhysteresis = 0.2\nregions = ["DE"]\n'
    )
    out = tmp_path / "out"
    status, printed, _ = jaxroute(monkeypatch, capsys, "compare", study, "--out", out)
    assert status == 0
    summary = pd.read_csv(out / "summary.csv")
    named = ["mine", "carbon_router_fixed_gpu", "fair_carbon", "hindsight_plan", "lower_bound"]
    assert summary["policy"].tolist() == named
    assert "an hour: feasible plan, not an optimum" in printed
    assert "drop: optimum" not in printed
    assert summary["dataset"].unique().tolist() == ["chat"]
    shares = pd.read_csv(out / "shares.csv").query("policy == 'mine' and turns > 0")
    assert shares["region"].unique().tolist() == ["DE"]
    fixed = pd.read_csv(out / "shares.csv").query("policy.str.contains('fixed') and turns > 0")
    assert fixed["gpu"].nunique() == 1
    assert f"carbon_router_fixed_gpu = {fixed['gpu'].iloc[0]}" in printed


def test_with_a_ttft_limit_there_is_no_bound(monkeypatch, capsys, tmp_path, trace):
    study = tmp_path / "study.toml"
    study.write_text(
        'policies = ["swift", "carbon_router"]\n[[datasets]]\npath = "mine.csv"\n'
        '[policy.swift]\npreset = "carbon_router"\nttft_slo_s = 0.2\n'
    )
    out = tmp_path / "out"
    status, printed, _ = jaxroute(monkeypatch, capsys, "compare", study, "--out", out)
    assert status == 0
    assert "no hindsight_plan and no lower_bound: the TTFT limit of swift depends on" in printed
    assert "of bound %" not in printed
    summary = pd.read_csv(out / "summary.csv")
    assert list(summary) == SUMMARY
    assert set(summary["policy"]) == {"swift", "carbon_router", "fair_carbon"}
    assert summary[["captured_of_plan_pct", "captured_of_bound_pct"]].isna().all(axis=None)


def test_results_depend_on_the_seed_and_on_nothing_else(monkeypatch, capsys, tmp_path, trace):
    tables = []
    for name, seed in (("one", 0), ("two", 0), ("three", 1)):
        out = tmp_path / name
        jaxroute(monkeypatch, capsys, "compare", "--trace", trace, "--out", out, "--seed", seed)
        tables.append((out / "summary.csv").read_text())
    assert tables[0] == tables[1] != tables[2]


def test_an_earlier_result_is_replaced_and_nothing_else(monkeypatch, capsys, tmp_path, trace):
    out = tmp_path / "out"
    for _ in range(2):
        assert jaxroute(monkeypatch, capsys, "compare", "--trace", trace, "--out", out)[0] == 0
    foreign = tmp_path / "home"
    foreign.mkdir()
    (foreign / "thesis.tex").write_text("x")
    status, _, error = jaxroute(monkeypatch, capsys, "compare", "--trace", trace, "--out", foreign)
    assert status == 2
    assert "home: found 'thesis.tex' in it" in error
    assert [path.name for path in foreign.iterdir()] == ["thesis.tex"]
    (foreign / "thesis.tex").rename(foreign / "run.json")
    (foreign / "run.json").write_text('{"wandb": 1}')
    status, _, error = jaxroute(monkeypatch, capsys, "compare", "--trace", trace, "--out", foreign)
    assert status == 2
    assert (foreign / "run.json").read_text() == '{"wandb": 1}'
    (out / "notes.md").write_text("mine")
    status, _, error = jaxroute(monkeypatch, capsys, "compare", "--trace", trace, "--out", out)
    assert status == 2
    assert (out / "notes.md").exists()
    assert not list(tmp_path.rglob(".*"))


BAD_TRACES = {
    "negative tokens": (f"{HEADER}\na,0,0,-5,3\n", ["mine.csv", "row 2", "input_tokens", "-5"]),
    "wrong column": ("session,turn\na,0\n", ["mine.csv", "session_id"]),
    "a turn twice": (f"{HEADER}\na,0,0,5,3\na,0,1,5,3\n", ["mine.csv", "row 3", "turn"]),
    "unknown region": (
        f"{HEADER},home_region\na,0,0,5,3,Mars\n",
        ["mine.csv", "session a", "home_region", "Mars"],
    ),
    "outside the span": (
        f"{HEADER},start_time\na,0,0,5,3,2024-01-01T00:00:00Z\n",
        ["mine.csv", "session a", "2024-01-01T00:00:00Z", "grid.csv", "2023-03-01"],
    ),
}


@pytest.mark.parametrize(("text", "named"), BAD_TRACES.values(), ids=BAD_TRACES)
def test_a_bad_trace(monkeypatch, capsys, tmp_path, trace, carbon, text, named):
    trace.write_text(text)
    _refuses(monkeypatch, capsys, tmp_path, ["--trace", trace, "--carbon", carbon], named)


def test_a_missing_trace(monkeypatch, capsys, tmp_path):
    _refuses(monkeypatch, capsys, tmp_path, ["--trace", tmp_path / "no.csv"], ["no.csv", "no file"])


def test_an_intensity_that_is_no_number(monkeypatch, capsys, tmp_path, trace, carbon):
    carbon.write_text(carbon.read_text().replace("101.0", "nan", 1))
    arguments = ["--trace", trace, "--carbon", carbon]
    _refuses(monkeypatch, capsys, tmp_path, arguments, ["grid.csv", "row 3", "gco2_per_kwh", "nan"])


BAD_STUDIES = {
    "unknown key": ("qualty_floor = 0.5\n", ["study.toml", "qualty_floor", "quality_floor"]),
    "unknown preset": ('policies = ["carbn_router"]\n', ["study.toml", "policies[0]", "carbn"]),
    "unknown model": ('[fleet]\nmodels = ["gpt-9"]\n', ["gpt-9"]),
    "unknown region": ('[fleet]\nregions = ["Mars"]\n', ["Mars"]),
    "negative time to live": (
        '[[retention]]\nlabel = "x"\nttl_s = -1\n',
        ["study.toml", "retention[0].ttl_s", "-1"],
    ),
    "no TOML": ("name = \n", ["study.toml", "line 1"]),
}


@pytest.mark.parametrize(("text", "named"), BAD_STUDIES.values(), ids=BAD_STUDIES)
def test_a_bad_study(monkeypatch, capsys, tmp_path, text, named):
    study = tmp_path / "study.toml"
    study.write_text(text)
    _refuses(monkeypatch, capsys, tmp_path, [study], named)


def _refuses(monkeypatch, capsys, tmp_path, arguments, named):
    out = tmp_path / "out"
    status, printed, error = jaxroute(monkeypatch, capsys, "compare", *arguments, "--out", out)
    assert status == 2
    assert printed == ""
    assert len(error.splitlines()) == 1
    assert "Traceback" not in error
    for word in named:
        assert word in error
    assert not out.exists()
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]


def test_an_empty_trace_and_a_single_turn(monkeypatch, capsys, tmp_path, trace):
    trace.write_text(f"{HEADER}\n")
    out = tmp_path / "out"
    status, printed, _ = jaxroute(monkeypatch, capsys, "compare", "--trace", trace, "--out", out)
    assert status == 0
    assert "0 sessions, 0 turns" in printed
    summary = pd.read_csv(out / "summary.csv")
    assert (summary[["sessions", "turns", "carbon_g"]] == 0).all(axis=None)
    assert "lower_bound" in set(summary["policy"])

    trace.write_text(f"{HEADER}\na,0,0,10,1\n")
    status, _, _ = jaxroute(monkeypatch, capsys, "compare", "--trace", trace, "--out", out)
    assert status == 0
    summary = pd.read_csv(out / "summary.csv")
    assert (summary["turns"] == 1).all()
    assert (summary["carbon_g"] > 0).all()


def test_the_version(monkeypatch, capsys):
    status, printed, _ = jaxroute(monkeypatch, capsys, "--version")
    assert status == 0
    assert re.fullmatch(r"jaxroute \d+\.\d+\.\d+\n", printed)


@pytest.mark.parametrize(
    ("arguments", "lines"), [((), 0), (("compare", "--seed", "-1"), 1), (("compare", "--trase"), 1)]
)
def test_wrong_options_are_one_line(monkeypatch, capsys, arguments, lines):
    status, _, error = jaxroute(monkeypatch, capsys, *arguments)
    assert status == 2
    assert len(error.splitlines()) == lines
