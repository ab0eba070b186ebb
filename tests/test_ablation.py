"""The saving of the router split into its parts."""

import json

import chex
import numpy as np
import pandas as pd
import pytest
from test_cli import jaxroute
from traces import LONG, write_trace

import jaxroute as jr
from jaxroute import ablation, comparison, simulate

PARTS = [name for name, *_ in ablation.STEPS]


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    path = write_trace(tmp_path_factory.mktemp("traces") / "mine.csv", **LONG)
    return jr.load_study(traces=[path])


@pytest.fixture(scope="module")
def found(study):
    return ablation.run(study)


def _cell(found, retention, way, component):
    rows = found.table.query("retention == @retention and way == @way and component == @component")
    assert len(rows) == 1
    return rows.iloc[0]


def test_one_compiled_program_a_dataset(tmp_path, monkeypatch):
    """The choice of what to fix, and everything that depends on it, run the same program."""
    path = write_trace(tmp_path / "other.csv", sessions=5, turns=3)
    traced = chex.assert_max_traces(simulate.replay, n=1)
    monkeypatch.setattr(simulate, "replay", traced)
    jr.ablate(jr.load_study(traces=[path]))


def test_both_ways_add_up_to_the_saving(study, found):
    for retention in study.retentions:
        shares = found.table[found.table["retention"] == retention].set_index("component")
        saving = shares.loc[ablation.TOTAL, "share_pct"]
        assert saving.nunique() == 1
        for way, beside in (("off_alone", "rest"), ("in_order", ablation.START)):
            rows = shares[shares["way"] == way]
            assert set(rows.index) == {*PARTS, beside, ablation.TOTAL}
            parts = rows["share_pct"].drop(ablation.TOTAL).sum()
            assert parts == pytest.approx(saving.iloc[0], abs=1e-9)
        assert (shares["share_lo_pct"] <= shares["share_pct"] + 1e-9).all()
        assert (shares["share_pct"] <= shares["share_hi_pct"] + 1e-9).all()


def test_the_parts_are_differences_of_what_compare_shows(study, found):
    """The router, its presets with one thing less, and the intervals, from `compare` itself."""
    compared = comparison.run(study)
    summary = compared.summary.set_index(["retention", "policy"])
    assert {f"carbon_router_fixed_{k}": v for k, v in found.fixed["mine"].items()} == (
        compared.fixed["mine"]
    )
    for retention in study.retentions:
        rows = summary.loc[retention]
        whole = _cell(found, retention, "off_alone", ablation.TOTAL)
        router, fair = rows.loc["carbon_router"], rows.loc["fair_carbon"]
        for mine, theirs in (("share_pct", "saving_pct"), ("share_lo_pct", "saving_lo_pct")):
            assert whole[mine] == pytest.approx(router[theirs], rel=1e-5, abs=1e-5)
        assert whole["carbon_without_g"] == pytest.approx(fair["carbon_g"], rel=1e-6)
        for part, preset in (
            ("gate", "carbon_router_no_gate"),
            ("model choice", "carbon_router_fixed_model"),
            ("GPU choice", "carbon_router_fixed_gpu"),
            ("region choice", "carbon_router_fixed_region"),
        ):
            cell, other = _cell(found, retention, "off_alone", part), rows.loc[preset]
            share = 100 * (other["carbon_g"] - router["carbon_g"]) / fair["carbon_g"]
            assert cell["share_pct"] == pytest.approx(share, rel=1e-4, abs=1e-4)
            assert cell["quality_without"] == pytest.approx(other["mean_quality"], rel=1e-6)
        cache = _cell(found, retention, "in_order", "cache-aware cost")
        assert cache["carbon_with_g"] == pytest.approx(
            rows.loc["carbon_router_no_gate", "carbon_g"], rel=1e-6
        )
        assert cache["carbon_without_g"] == pytest.approx(fair["carbon_g"], rel=1e-6)


def test_the_order_goes_from_one_deployment_to_the_router(study, found):
    indices = {
        axis: list(getattr(study.config.fleet, f"{axis}s")).index(found.fixed["mine"][axis])
        for axis in ablation.AXES
    }
    settings = ablation.variants(study, indices)
    start = jr.evaluate(settings[ablation.START], study.sessions, study.world)
    assert float(start.moves.sum() + start.mask_fallbacks.sum()) == 0
    in_order = found.table.query("way == 'in_order' and retention == 'keep'")
    steps = in_order[in_order["component"].isin(PARTS)]
    assert steps["component"].tolist() == PARTS
    np.testing.assert_array_equal(steps["carbon_without_g"][1:], steps["carbon_with_g"][:-1])
    np.testing.assert_array_equal(steps["quality_without"][1:], steps["quality_with"][:-1])
    assert steps["carbon_without_g"].iloc[0] == pytest.approx(float(start.carbon_g.sum()), rel=1e-5)


def test_a_blind_router_differs_from_the_baseline_by_its_gate_alone(study):
    settings = ablation.variants(study, dict.fromkeys(ablation.AXES, 0))
    ungated = settings["blind router"].replace(gate_strength=0.0)
    totals = [
        jr.evaluate(params, study.sessions, study.world).carbon_g
        for params in (ungated, settings["fair_carbon"])
    ]
    np.testing.assert_array_equal(*totals)


def test_the_command(monkeypatch, capsys, tmp_path):
    trace = write_trace(tmp_path / "mine.csv", **LONG)
    out = tmp_path / "out"
    status, printed, warned = jaxroute(
        monkeypatch, capsys, "ablate", "--trace", trace, "--out", out, "--seed", 1
    )
    assert (status, warned) == (0, "")
    for part in (*PARTS, "rest", ablation.START):
        assert sum(line.startswith(f" {part} ") for line in printed.splitlines()) == 3
    assert "the two differ because" in printed
    assert "0 (0.00%) unserved" in printed
    assert {path.name for path in out.iterdir()} == {"ablation.csv", "summary.csv", "run.json"}
    table = pd.read_csv(out / "ablation.csv")
    assert len(table) == 3 * (7 + 7)
    record = json.loads((out / "run.json").read_text())
    assert record["seed"] == 1
    assert any("the two differ because" in note for note in record["notes"])

    missing = tmp_path / "no.csv"
    status, printed, warned = jaxroute(monkeypatch, capsys, "ablate", "--trace", missing)
    assert (status, printed, len(warned.splitlines())) == (2, "", 1)
    assert "no.csv" in warned


def test_an_empty_trace(monkeypatch, capsys, tmp_path):
    trace = tmp_path / "mine.csv"
    trace.write_text("session_id,turn,arrival_s,input_tokens,output_tokens\n")
    status, printed, warned = jaxroute(monkeypatch, capsys, "ablate", "--trace", trace)
    assert (status, warned) == (0, "")
    assert "0 sessions, 0 turns" in printed
