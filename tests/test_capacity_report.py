"""What more and more traffic does, as it is told: on a terminal, in files and in a figure."""

import io
import json
import sys

import made_results
import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import jaxroute as jr
from jaxroute.capacities import Capacities
from jaxroute.figures import capacity, series, style
from jaxroute.report.capacity import (
    CAPACITY_FILES,
    capacity_notes,
    figure,
    show_capacity,
    write_capacity,
)
from jaxroute.report.results import read_results
from jaxroute.report.verdicts import verdicts

LEVELS = tuple(range(10, 121, 10))


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    path = tmp_path_factory.mktemp("traces") / "mine.csv"
    path.write_text("session_id,turn,arrival_s,input_tokens,output_tokens\na,0,0,1200,300\n")
    return jr.load_study(traces=[path])


def outcome(table):
    fleet = pd.DataFrame({"model": "m", "gpu": "g", "region": ["DE", "SG"]})
    return Capacities(
        table=table,
        replicas=fleet.assign(replicas=[3.0, 40.0], dataset="trace"),
        notes=("a note of the study",),
        compile_s=1.0,
        replay_s=2.0,
    )


def printed(study, table, width):
    out = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    show_capacity(study, outcome(table), out)
    return out.file.getvalue().splitlines()


@pytest.mark.parametrize(
    ("width", "shown"), [(80, LEVELS[1::2]), (100, LEVELS[1::2]), (140, LEVELS), (60, LEVELS[2::3])]
)
def test_tables_fit_the_terminal(study, width, shown):
    lines = printed(study, made_results.loaded(LEVELS), width)
    assert max(map(len, lines)) <= width
    headers = [line.split()[1:] for line in lines if line.startswith(" policy")]
    assert headers == 6 * [list(map(str, shown))]
    assert sum(line.startswith(" carbon_router ") for line in lines) == 6
    assert sum(line.startswith(" fair_carbon ") for line in lines) == 5  # it saves nothing
    assert not any(word in " ".join(lines) for word in ("nan", "None", "…"))


def test_figures_and_their_marks(study):
    table = made_results.loaded(LEVELS)
    lines = printed(study, table, 200)
    rows = [line.split() for line in lines if line.startswith((" carbon_router ", " smallest"))]
    carbon, _, saving, worse, idle, _, wait, _, hits, _, beyond, _ = rows
    own = table[table["policy"] == "carbon_router"]
    for told, values in (
        (carbon, own["carbon_g"]),  # of 1,000 turns: mg a turn
        (saving, own["saving_pct"]),
        (idle, own["carbon_g"] + own["carbon_idle_g"]),
        (wait, own["mean_wait_s"] * 1e3),
        (hits, own["hit_ratio_pct"]),
        (beyond, own["unserved_pct"] + own["overflow_pct"]),
    ):
        assert [float(each.rstrip("~!").replace(",", "")) for each in told[1:]] == pytest.approx(
            values.tolist(), rel=6e-3, abs=0.051
        )
        assert told[-1].endswith("~!") and not any("~" in each for each in told[:-1])
    assert all(each.endswith("*") for each in worse[1:])


def test_what_stands_below_them(study):
    notes = list(capacity_notes(study, outcome(made_results.loaded(LEVELS))))
    assert notes[0].startswith("traffic: 100 % is 2,000 sessions an hour")
    assert notes[1] == "trace: 43 replicas, 3 to 40 a deployment"
    ends = {note[0]: note.rpartition("(")[2] for note in notes if note[0] in "~!*"}
    whom = "carbon_router from 120 %)"
    assert ends == {"~": whom, "!": whom, "*": "smallest_model)"}
    assert "a note of the study" in notes
    calm = made_results.loaded((10, 20)).assign(settled=True, overflow_pct=0.0, carbon_idle_g=0.0)
    calm = calm[calm["policy"] != "smallest_model"]
    assert not any(note[0] in "~!*" for note in capacity_notes(study, outcome(calm)))
    lines = printed(study, calm, 100)
    assert not any("idle" in line for line in lines if line.startswith("trace: carbon"))
    nothing = made_results.loaded((10, 20)).assign(turns=0, saving_pct=np.nan)
    assert not any("mg a turn" in line for line in printed(study, nothing, 100))


def test_what_is_written_is_a_result(study, tmp_path):
    table = made_results.loaded()
    write_capacity(tmp_path, study, outcome(table), 4.0)
    assert {file.name for file in tmp_path.iterdir()} == set(CAPACITY_FILES)
    again = pd.read_csv(tmp_path / "capacity.csv")
    assert list(again) == list(table) and again["settled"].tolist() == list(table["settled"])
    assert pd.read_csv(tmp_path / "replicas.csv")["replicas"].tolist() == [3, 40]
    record = json.loads((tmp_path / "run.json").read_text())
    assert record["traffic_pct"] == [10, 60, 120] and record["inputs_sha256"]
    assert set(record["policies"]) == set(made_results.POLICIES)
    assert "carbon (mg a turn)" in (tmp_path / "capacity.svg").read_text()
    found = read_results(tmp_path)
    assert (found.command, found.baseline) == ("capacity", "fair_carbon")
    words = "\n".join(verdicts(found))
    assert "trace, 10 % of traffic: of 2 with no less quality than fair_carbon's" in words
    assert "carbon_router sends deployments more than they can serve from 120 % of traffic" in words
    assert "load did not settle in 1 of 12 rows" in words


def test_a_figure_needs_matplotlib(study, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(jr.InputError, match=r"capacity.svg: found no matplotlib.*jaxroute\[repor"):
        write_capacity(tmp_path, study, outcome(made_results.loaded()), 1.0)
    assert not list(tmp_path.iterdir())


def test_the_figure_names_the_baseline_the_router_and_few_others():
    more = [f"other_{n}" for n in range(9)]
    rows = pd.concat(
        made_results.loaded().assign(policy=lambda t, to=to: t["policy"].replace(*to))
        for to in [("", ""), *(("carbon_router_no_gate", name) for name in more)]
    )
    lines = capacity.looks(rows, "fair_carbon")
    assert list(lines)[:3] == ["fair_carbon", "carbon_router", series.UNGATED]
    assert len(lines) == capacity.MOST_LINES and "smallest_model" not in lines
    assert len({(line.colour, line.dashes) for line in lines.values()}) == len(lines)
    two = pd.concat([made_results.loaded(), made_results.loaded().assign(dataset="other")])
    with style.styled():
        drawn = figure(two, "fair_carbon", "capacity").draw(style.DOUBLE_MM)
    assert [axes.get_title(loc="left") for axes in drawn.axes] == ["trace"] * 4 + ["other"] * 4
    waits = drawn.axes[1]
    assert waits.get_yscale() == "log"
    hollow = [line for line in waits.lines if line.get_markerfacecolor() == "white"]
    assert sum(len(line.get_xdata()) for line in hollow) == 1
    assert min(line.get_ydata().min() for line in waits.lines if len(line.get_xdata())) == 1e-3
