"""Studies as files: what a grid consists of, what is kept of it, and what it says."""

import json
import sys

import pandas as pd
import pytest

import jaxroute as jr
from jaxroute import cli, comparison, grid
from jaxroute.config import COLUMNS
from jaxroute.load.files import package_file
from jaxroute.report.parts import Parts

TRACE = "session_id,turn,arrival_s,input_tokens,output_tokens\n" + "".join(
    f"{s},{t},{100 * t},{50 + 37 * s % 400},{20 + 11 * t}\n"
    for s in range(30)
    for t in range(1 + s % 7)
)
STUDY = """
name = "small"
policies = ["carbon_router"]
[[datasets]]
path = "trace.csv"
[[datasets]]
path = "elsewhere.csv"
[[retention]]
label = "drop"
drop_on_leave = true
[vary.filter]
"floor 0.6" = { quality_floor = 0.6 }
"slack 0.1" = { quality_floor = 0.0, quality_slack = 0.1 }
[vary.difficulty]
"0" = { quality.autocorrelation = 0.0 }
"0.8" = { quality.autocorrelation = 0.8 }
"""


@pytest.fixture
def study(tmp_path):
    (tmp_path / "trace.csv").write_text(TRACE)

    def write(text=STUDY):
        path = tmp_path / "study.toml"
        path.write_text(text)
        return path

    return write


def test_cells_are_all_combinations_on_every_trace_that_is_there(study):
    cells, left_out = grid.plan(study(), seeds=2)
    labels = [tuple(cell.labels.values()) for cell in cells]
    assert labels == [
        (f, d, n) for f in ("floor 0.6", "slack 0.1") for d in ("0", "0.8") for n in (0, 1)
    ]
    assert {cell.dataset for cell in cells} == {"trace"}
    one = cells[-1].config
    assert (one.quality_floor, one.quality_slack) == (0.0, 0.1)
    assert (one.quality.autocorrelation, one.seed) == (0.8, 1)
    assert len(left_out) == 1
    assert "elsewhere.csv is not on this machine: elsewhere left out" in left_out[0]


def test_traces_follow_one_another_and_every_seed_counts_up(study, tmp_path):
    (tmp_path / "elsewhere.csv").write_text(TRACE)
    cells, left_out = grid.plan(study(), seed=7)
    assert [cell.dataset for cell in cells] == ["trace"] * 4 + ["elsewhere"] * 4
    assert not left_out
    assert {cell.config.seed for cell in cells} == {7}
    assert list(cells[0].labels) == ["filter", "difficulty"]


def test_a_case_whose_intensity_is_not_there_is_named_and_left_out(study):
    text = STUDY + '"marginal" = { intensity.path = "marginal.csv" }\n'
    cells, left_out = grid.plan(study(text))
    assert "marginal" not in {cell.labels["difficulty"] for cell in cells}
    assert any("marginal.csv is not on this machine" in line for line in left_out)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (STUDY + '"x" = { quality.autocorrelation = 2.0 }', ["vary.difficulty.x", "found 2.0"]),
        (STUDY + '"x" = { qality = 1 }', ["vary.difficulty.x", "qality", "did you mean"]),
        (STUDY + '"x" = 3', ["vary.difficulty.x", "found 3", "a table"]),
        ('[vary.a]\n', ["vary.a", "an empty table"]),
        ('[[datasets]]\npath = "no.csv"', ["no.csv", "--trace"]),
        ('[vary.a]\n"x" = { retention = [] }', ["vary.a.x", "retention", "an empty list"]),
        ('[vary.dataset]\n"x" = {}', ["vary.dataset", "a name of its own"]),
        ('[vary.length_bucket]\n"x" = {}', ["vary.length_bucket", "a name of its own"]),
        ('[vary.a]\n"x" = { baseline = "sticky" }', ["vary.a.x.baseline", "in common"]),
        ('[vary.a]\n"x" = { vary.b.c.seed = 2 }', ["vary.a.x.vary", "in common"]),
    ],
)  # fmt: skip
def test_faults_of_a_cell_are_told_before_anything_runs(study, text, words, tmp_path):
    with pytest.raises(jr.InputError) as caught:
        grid.plan(study(text))
    assert len(str(caught.value).splitlines()) == 1
    for word in words:
        assert word in str(caught.value)


@pytest.mark.slow  # commands in processes of their own
def test_a_killed_run_goes_on_where_it_was(study, tmp_path, monkeypatch):
    cells, left_out = grid.plan(study())
    whole = grid.run(cells, left_out, tmp_path / "whole")
    compared = []

    def run(loaded, report):
        compared.append(loaded.config.quality.autocorrelation)
        if len(compared) == 3:
            raise KeyboardInterrupt
        return original(loaded, report)

    original = comparison.run
    monkeypatch.setattr(comparison, "run", run)
    with pytest.raises(KeyboardInterrupt):
        grid.run(cells, left_out, tmp_path / "killed")
    (tmp_path / "killed" / "parts" / ".00002").mkdir()
    again = grid.run(cells, left_out, tmp_path / "killed")
    assert len(compared) == 3 + 2
    pd.testing.assert_frame_equal(again.summary, whole.summary)
    pd.testing.assert_frame_equal(again.by_length, whole.by_length)
    assert whole.summary["difficulty"].unique().tolist() == ["0", "0.8"]
    with pytest.raises(jr.InputError, match=r"plan.json: found another study"):
        grid.run(cells[:2], left_out, tmp_path / "killed")


def test_no_axis_can_take_the_name_of_a_column(study, tmp_path):
    cells, left_out = grid.plan(study(STUDY.split("[vary")[0]))
    whole = grid.run(cells, left_out, tmp_path / "out")
    for table in (whole.summary, whole.by_length, whole.shares):
        assert set(table.columns) <= set(COLUMNS)


def test_a_changed_input_is_noticed(study, tmp_path):
    mix = tmp_path / "mix.csv"
    regions = ("US-CISO", "US-PJM", "DE", "SG")
    header = "region,technology,share\n"
    mix.write_text(header + "".join(f"{region},gas,1\n" for region in regions))
    text = STUDY.split("[vary")[0] + '[water]\nmix = "mix.csv"\n'
    cells, left_out = grid.plan(study(text))
    Parts.open(tmp_path / "run", grid.record(cells))
    Parts.open(tmp_path / "run", grid.record(cells))
    mix.write_text(mix.read_text().replace("gas", "coal"))
    with pytest.raises(jr.InputError, match="inputs that changed"):
        grid.run(cells, left_out, tmp_path / "run")
    mix.unlink()
    with pytest.raises(jr.InputError, match="files that are there"):
        grid.plan(study(text))


def test_a_damaged_part_is_named(tmp_path):
    parts = Parts.open(tmp_path / "run", {"a": 1})
    for number in range(2):
        parts.add(number, {"one": pd.DataFrame({"x": [1.5]})}, [])
    (tmp_path / "run" / "parts" / "00000" / "one.parquet").write_bytes(b"PAR1")
    (tmp_path / "run" / "parts" / "00001" / "one.parquet").unlink()
    for number in range(2):
        with pytest.raises(jr.InputError, match=f"0000{number}: found a damaged part"):
            parts.read(number)


def test_a_part_is_there_whole_or_not_at_all(tmp_path):
    parts = Parts.open(tmp_path / "run", {"a": 1})
    table = pd.DataFrame({"x": [1.5, None]})
    parts.add(0, {"one": table}, ["a note"])
    assert 0 in parts
    assert 1 not in parts
    tables, notes = parts.read(0)
    pd.testing.assert_frame_equal(tables["one"], table)
    assert notes == ["a note"]
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    (tmp_path / "file").write_text("x")
    for taken in ("mine", "file"):
        with pytest.raises(jr.InputError, match=taken):
            Parts.open(tmp_path / taken, {"a": 1})
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / ".plan.json").write_text('{"a')
    assert 0 not in Parts.open(tmp_path / "begun", {"a": 1})
    empty = Parts.open(tmp_path / "empty", {})
    empty.discard_if_empty()
    assert not (tmp_path / "empty").exists()


def test_what_is_settled_is_settled_once_and_what_changed_is_told(tmp_path):
    plan = {"study": {"seed": 0, "cells": [1, 2]}}
    first = Parts.open(tmp_path / "run", plan, lambda: {"size": 3})
    again = Parts.open(tmp_path / "run", plan, lambda: {"size": 4})
    assert first.settled == again.settled == {"size": 3}
    for other, told in (
        ({"seed": 1, "cells": [1, 3]}, r"study.seed was 0 and is now 1 \(and 1 more\)"),
        ({"seed": 0, "cells": [1]}, "study.cells was 2 entries and is now 1 entries"),
        ({"cells": [1, 2]}, "study.seed was 0 and is now absent"),
    ):
        with pytest.raises(jr.InputError, match=told):
            Parts.open(tmp_path / "run", {"study": other})
    (tmp_path / "run" / "plan.json").write_text("{")
    with pytest.raises(jr.InputError, match=r"plan\.json: found Expecting"):
        Parts.open(tmp_path / "run", plan)


def test_the_command_shows_savings_and_their_spread_over_seeds(
    study, tmp_path, monkeypatch, capsys
):
    small = STUDY.replace('"0.8" = { quality.autocorrelation = 0.8 }\n', "")
    out = tmp_path / "out"
    argv = ["jaxroute", "study", str(study(small)), "--out", str(out), "--seeds", "2"]
    monkeypatch.setattr(sys, "argv", argv)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert not caught.value.code
    printed = capsys.readouterr().out
    assert "trace, 0.00 % unserved: carbon that carbon_router saves against" in printed
    assert "[a, b]: least and greatest over the seeds" in printed
    assert "elsewhere.csv is not on this machine" in printed
    assert "nan" not in printed
    assert {file.name for file in out.iterdir()} == {
        "plan.json", "parts", "run.json", "summary.csv", "by_length.csv", "shares.csv",
    }  # fmt: skip
    summary = pd.read_csv(out / "summary.csv")
    rows = summary[(summary["policy"] == "carbon_router") & (summary["filter"] == "slack 0.1")]
    low, high = rows["saving_pct"].min(), rows["saving_pct"].max()
    assert f"[{low:.1f}, {high:.1f}]" in printed
    record = json.loads((out / "run.json").read_text())
    assert len(record["cells"]) == 4
    assert all(cell["notes"] for cell in record["cells"])


@pytest.mark.parametrize("name", ["paper", "robustness"])
def test_the_bundled_studies_are_sound(name):
    folder = package_file("default.toml").parents[2] / "configs"
    cells, _ = grid.plan(folder / f"{name}.toml")
    assert {cell.dataset for cell in cells} >= {"sharegpt"}
    assert len({tuple(cell.labels.values()) for cell in cells}) >= 8
