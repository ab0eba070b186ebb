"""The report: what each result's page holds, and that bad results are refused in one line."""

import functools
import itertools
import json
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET

import hypothesis
import hypothesis.strategies as st
import made_results
import numpy as np
import pandas as pd
import pytest

import jaxroute as jr
from jaxroute import comparison, served
from jaxroute.config import BOUND_ROW
from jaxroute.figures import carbon, descent, heatmap, places, series, style, tradeoffs
from jaxroute.report import page
from jaxroute.report.files import FILES, write
from jaxroute.report.page import write_report
from jaxroute.report.results import read_results
from jaxroute.report.sections import sections
from jaxroute.report.target import whole_directory
from jaxroute.report.verdicts import verdicts

FIGURES = {
    "compare": ["carbon", "savings", "tradeoffs", "moves", "gates", "places"],
    "study": ["study", "carbon", "savings", "tradeoffs", "moves", "gates"],
    "sweep": ["tradeoffs", "map-gate-strength"],
    "tune": ["loss", "parameters", "carbon", "tradeoffs", "moves"],
    "fit-gate": ["weights", "reliability", "carbon", "tradeoffs", "moves"],
    "ablate": ["parts"],
    "capacity": ["capacity"],
}
WHOLE = {"loss", "parameters", "weights", "reliability"}
"""Figures of every dataset at once."""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return functools.cache(
        lambda command: made_results.MADE[command](tmp_path_factory.mktemp("made") / command)
    )


@pytest.fixture(scope="module")
def written(made, tmp_path_factory):
    return functools.cache(
        lambda command: write_report(made(command), tmp_path_factory.mktemp("written"))
    )


@pytest.mark.parametrize("command", FIGURES)
def test_every_result_is_read_and_has_its_figures_and_words(made, command):
    found = read_results(made(command))
    assert (found.command, found.baseline) == (command, "fair_carbon")
    names = [f"{name}{'' if name in WHOLE else '-trace'}" for name in FIGURES[command]]
    shown = [each for section in sections(found) for each in section.shown]
    assert [each.name for each in shown] == names
    assert all(len(each.caption) > 60 and len(each.numbers) for each in shown)
    words = verdicts(found)
    assert any("trace" in line for line in words)
    assert not any(bad in line for line in words for bad in ("nan", "None", "{"))
    with style.styled():
        for each in shown:
            panels = [axes for axes in each.draw(style.SINGLE_MM).axes if axes.has_data()]
            assert panels and all(axes.get_xlabel() or axes.get_ylabel() for axes in panels)


def test_a_page_needs_nothing_else(written):
    found = written("sweep")
    text = found.page.read_text()
    assert len(text) < 3e6
    assert re.search(r"<(script|link(?! rel=\"icon\"))|@import|url\((?!#)", text) is None
    assert set(re.findall(r'(?:src|href)="([a-z]+:)', text)) <= {"data:"}
    ids = re.findall(r'\bid="([^"]*)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="|url\()#([^")]*)', text)) <= set(ids)
    for file in found.figures:
        root = ET.parse(file).getroot()
        assert root.get("role") == "img" and root[0].text
        assert f'href="figures/{file.name}"' in text


def test_a_figure_is_the_same_at_every_run(tmp_path):
    (section,) = sections(read_results(made_results.swept(tmp_path / "made", 300)))
    first, again = (page._drawn(section.shown[0]) for _ in range(2))
    assert first == again
    assert "<image" in first.wide and "data:image/png;base64" in first.wide


def test_figures_have_the_width_of_one_and_of_two_columns(written):
    widths = {
        "_narrow" in file.stem: float(ET.parse(file).getroot().get("width").removesuffix("pt"))
        for file in written("sweep").figures
    }
    assert widths[False] == pytest.approx(style.DOUBLE_MM / 25.4 * 72, abs=0.01)
    assert widths[True] == pytest.approx(style.SINGLE_MM / 25.4 * 72, abs=0.01)


def test_parts_add_up_to_the_carbon_of_every_row():
    rows = made_results.summary()
    split = carbon.parts(rows)
    known = rows["policy"] != BOUND_ROW
    np.testing.assert_allclose(split.sum(axis=1)[known], rows["carbon_g"][known], rtol=1e-12)
    assert (split[known] >= 0).all(axis=None)
    assert (rows["carbon_rebuild_g"] > rows["carbon_prefill_g"])[known].any()
    assert split[~known].isna().any(axis=1).all()


def test_names_from_files_are_text_and_nothing_else(tmp_path):
    name = '<b onload="x()">&amp; $\\frac{1}$ 中\x07 id="y'
    rows = made_results.summary(("carbon_router", "fair_carbon", name), (name,), bounded=False)
    rows["dataset"] = name
    directory = made_results.compared(tmp_path / "made", rows, hours=False, notes=[name])
    found = read_results(directory)
    (section,) = sections(found)
    assert all(re.fullmatch(r"[a-z0-9-]+", each.name) for each in section.shown)
    first = section.shown[0]
    drawn = page._drawn(first)
    read = "".join(ET.fromstring(drawn.wide).itertext())
    assert style.short(name.replace("\x07", "\ufffd")) in read
    text = page.rendered(found, [section._replace(shown=[first])], {first.name: drawn})
    assert "<b onload" not in text and "\x07" not in text
    assert text.count("&lt;b onload=&#34;x()&#34;&gt;&amp;amp; $") > 3
    assert "has no served.csv" in text


def test_two_data_sets_share_their_colours_and_have_files_of_their_own(tmp_path):
    rows = pd.concat(made_results.summary(retentions=("keep",), dataset=d) for d in ("a b", "a/b"))
    found = read_results(made_results.compared(tmp_path / "made", rows.reset_index(drop=True)))
    first, second = (
        [each.name for each in section.shown if each.name.startswith("carbon")]
        for section in sections(found)
    )
    assert (first, second) == (["carbon-a-b"], ["carbon-a-b-2"])
    lines = series.leading(found.summary, "fair_carbon")
    assert list(lines) == ["carbon_router", "carbon_router_no_gate", "hindsight_plan"]


def _damage(file, old, new):
    def change(directory):
        path = directory / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    return change


BAD = {
    "no record": (lambda d: (d / "run.json").unlink(), "no run.json in it"),
    "no JSON": (_damage("run.json", "{", "["), "run.json: found no JSON"),
    "deep JSON": (lambda d: (d / "run.json").write_text("[" * 99_999), "found no JSON"),
    "a list": (lambda d: (d / "run.json").write_text("[]"), "run.json: found []"),
    "another record": (_damage("run.json", "results_version", "x"), "no results_version"),
    "older": (
        _damage("run.json", f'"results_version": {jr.RESULTS_VERSION}', '"results_version": 1'),
        f"results_version: found 1, expected {jr.RESULTS_VERSION}, this version's; run",
    ),
    "odd notes": (_damage("run.json", '"notes": [', '"notes": 3, "x": ['), "notes: found 3"),
    "no baseline": (_damage("run.json", '"baseline"', '"b"'), "baseline: found nothing"),
    "no table": (lambda d: (d / "by_length.csv").unlink(), "by_length.csv: found no such file"),
    "no column": (_damage("summary.csv", "carbon_g", "c"), "found no column 'carbon_g'"),
    "no rows": (lambda d: _head(d / "summary.csv"), "summary.csv: found no rows"),
    "empty": (lambda d: (d / "served.csv").write_text(""), "found no column 'dataset'"),
    "binary": (lambda d: (d / "served.csv").write_bytes(b"\x80\xff" * 99), "served.csv: found"),
    "ragged": (_damage("served.csv", "DE,0,", "DE,0,1,2,3,4,"), "row 2: found 11 values"),
    "a word": (_damage("served.csv", ",DE,0,0,", ",DE,0,many,"), "column turns: found 'many'"),
    "other rows": (_damage("served.csv", "drop,fair", "drop,f"), "not the rows of summary.csv"),
    "another sum": (lambda d: _scale(d / "summary.csv"), "summary.csv: line 2: found parts of"),
    "no such policy": (_damage("run.json", '"baseline": "fair_carbon"', '"baseline": "me"'),
                       "no row of the baseline 'me'"),
}  # fmt: skip


def _head(file):
    file.write_text(file.read_text().splitlines()[0])


def _scale(file):
    table = pd.read_csv(file)
    table.assign(carbon_g=table["carbon_g"] * 1.01).to_csv(file, index=False)


@pytest.mark.parametrize("case", BAD)
def test_what_is_no_whole_result_is_refused(tmp_path, case):
    change, words = BAD[case]
    directory = made_results.compared(tmp_path / "made")
    change(directory)
    before = {file.name for file in directory.iterdir()}
    with pytest.raises(jr.InputError) as caught:
        write_report(directory)
    told = str(caught.value)
    assert words in told and len(told.splitlines()) == 1
    assert {file.name for file in directory.iterdir()} == before


@pytest.mark.parametrize("place", ["nowhere", "file", "empty"])
def test_what_is_no_directory_of_results_is_refused(tmp_path, place):
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    with pytest.raises(jr.InputError, match=r"expected (a directory|what compare)"):
        write_report(tmp_path / place)


@hypothesis.settings(max_examples=60, suppress_health_check=[hypothesis.HealthCheck.too_slow])
@hypothesis.given(
    st.sampled_from(sorted(FIGURES)), st.integers(0), st.integers(0), st.integers(0, 9), st.binary()
)
def test_damage_anywhere_is_told_in_one_line(made, command, which, at, gone, put):
    """A few bytes of a file are others: it is read all the same, or refused."""
    directory = made(command)
    files = sorted(file for file in directory.iterdir() if file.is_file())
    file = files[which % len(files)]
    whole = file.read_bytes()
    at %= len(whole)
    file.write_bytes(whole[:at] + put + whole[at + gone :])
    try:
        found = read_results(directory)
        assert all(map(str, verdicts(found)))
        assert sections(found)
    except jr.InputError as error:
        assert len(str(error).splitlines()) == 1
    finally:
        file.write_bytes(whole)


@pytest.mark.parametrize("bad", ["truncated", "column"])
def test_a_damaged_sweep_is_refused(tmp_path, bad):
    directory = made_results.swept(tmp_path / "made")
    file = directory / "sweep.parquet"
    if bad == "column":
        pd.read_parquet(file).drop(columns="gate_strength").to_parquet(file)
    else:
        file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(jr.InputError, match=r"sweep\.parquet: found"):
        write_report(directory)


def test_nothing_but_a_report_is_replaced(tmp_path, monkeypatch):
    directory, out = made_results.split(tmp_path / "made"), tmp_path / "out"
    monkeypatch.setattr(page, "_drawn", lambda shown: page.Drawn("<svg/>", "<svg/>"))
    first = write_report(directory, out)
    assert write_report(directory, out) == first
    assert {each.name for each in out.iterdir()} == {"report.html", "figures"}
    (out / "figures" / "mine.txt").write_text("mine")
    with pytest.raises(jr.InputError, match="figures: found something else"):
        write_report(directory, out)
    (out / "figures" / "mine.txt").unlink()
    first.page.write_text("<html>mine")
    with pytest.raises(jr.InputError, match=r"report\.html: found another page"):
        write_report(directory, out)
    assert first.page.read_text() == "<html>mine"


def test_a_result_that_is_replaced_takes_its_report_with_it(tmp_path, monkeypatch):
    directory = made_results.split(tmp_path / "made")
    monkeypatch.setattr(page, "_drawn", lambda shown: page.Drawn("<svg/>", "<svg/>"))
    write_report(directory)
    names = ("summary.csv", "ablation.csv", "run.json")
    with whole_directory(directory, names) as fresh:
        for name in names:
            (fresh / name).write_text("{}")
    assert {each.name for each in directory.iterdir()} == set(names)
    (directory / "figures").mkdir()
    (directory / "figures" / "mine.txt").write_text("mine")
    with pytest.raises(jr.InputError, match="'figures' in it"), whole_directory(directory, names):
        raise AssertionError("work was begun")


@pytest.mark.parametrize("missing", ["jinja2", "matplotlib"])
def test_what_is_not_installed_is_named_with_its_extra(tmp_path, monkeypatch, missing):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(jr.InputError, match=rf"no {missing}.*pip install 'jaxroute\[report\]'"):
        write_report(made_results.split(tmp_path / "made"))


def test_turns_are_counted_by_hour_and_deployment():
    """Two settings on two rows of turns: against a loop."""
    rng = np.random.default_rng(3)
    decision = rng.integers(-1, 3, (2, 2, 2, 50)).astype(np.int32)
    grams, time_bin = rng.random(decision.shape, np.float32), rng.integers(0, 96, (2, 50))
    turns, carbon_g = served.tally(decision, grams, time_bin.astype(np.int32), 3)
    expected = np.zeros((2, 2, 24, 3, 2))
    for n, p, r, t in np.ndindex(decision.shape):
        if (d := decision[n, p, r, t]) >= 0:
            expected[n, p, time_bin[r, t] // 4, d] += 1, grams[n, p, r, t]
    np.testing.assert_array_equal(turns, expected[..., 0])
    np.testing.assert_allclose(carbon_g, expected[..., 1], rtol=1e-12)
    fleet = pd.DataFrame({"model": list("abc"), "gpu": "g", "region": ["SG", "DE", "SG"]})
    hours = served.by_hour(turns, carbon_g, fleet)
    assert hours["region"][0, 0, :, 0].tolist() == ["SG", "DE"]
    np.testing.assert_array_equal(hours["turns"][1, 0, 0], turns[1, 0, :, [0, 2]].sum(0))
    np.testing.assert_array_equal(hours["turns"][1, 0, 1], turns[1, 0, :, 1])
    whole = served.by_deployment(turns, carbon_g, fleet)
    np.testing.assert_allclose(whole["carbon_g"].sum(-1), hours["carbon_g"].sum((-1, -2)))


def test_shares_of_an_hour_add_up_and_small_regions_are_one():
    regions = tuple(f"r{n:02d}" for n in range(places.MOST_REGIONS + 3))
    rows = made_results.served(made_results.summary(retentions=("keep",)), regions)
    grouped = places.grouped(rows)
    assert grouped["region"].nunique() == places.MOST_REGIONS
    assert grouped["turns"].sum() == rows["turns"].sum()
    found = places.shares(grouped[grouped["policy"] == "fair_carbon"])
    busy = found.columns[found.notna().all()]
    assert list(found.columns.difference(busy)) == [0, 23]
    np.testing.assert_allclose(found[busy].sum(), 100)


def test_a_map_of_settings_shows_the_best_of_each_bin_at_no_less_quality():
    rows = pd.DataFrame(
        {
            "dataset": "t", "retention": "keep", "gate_strength": np.arange(32.0),
            "carbon_g": 100.0 - np.arange(32) % 4, "mean_quality": [0.5, 0.5, 0.5, 0.3] * 8,
            "baseline_mean_quality": 0.505, "saving_pct": np.arange(32) % 4,
        }
    )  # fmt: skip
    best = heatmap.of_settings(rows, "gate_strength")
    assert len(best) == heatmap.MOST_BINS
    assert (best["saving_pct"] == 2).all()
    assert best["gate_strength"].is_monotonic_increasing
    few = heatmap.of_settings(rows.assign(gate_strength=rows["gate_strength"] % 3), "gate_strength")
    assert few["column"].tolist() == ["0", "1", "2"]


def test_labels_lie_off_each_other_and_off_points():
    points = [(0.0, 0.0), (3.0, 1.0), (3.0, 1.0), (1.0, 4.0)]
    found = style.apart(points, ["1", "2", "3", "14"], [(6.0, 3.0)])
    boxes = [
        (x + dx, y + dy, x + dx + style.LETTER_PT * n, y + dy + style.LINE_PT)
        for (x, y), (dx, dy), n in zip(points, found, (1, 1, 1, 2), strict=True)
    ]
    assert not any(style._overlap(*pair) for pair in itertools.combinations(boxes, 2))
    assert style.apart([(0, 0)], ["1"], []) == [style.OFFSETS_PT[0]]


def test_a_front_of_one_point_has_a_line():
    rows = pd.DataFrame({"carbon_g": [2.0, 1.0, 3.0], "mean_quality": [0.4, 0.5, 0.3]})
    _, (panel,) = style.panels(1, style.SINGLE_MM, 50)
    tradeoffs._steps(panel, rows, "mean_quality")
    assert panel.lines[0].get_xydata().tolist() == [[1, 0.5], [3, 0.5]]


def test_panels_that_share_an_axis_all_have_its_numbers():
    _, axes = style.panels(3, style.SINGLE_MM, 30, sharex=True)
    assert all(panel.xaxis.get_tick_params()["labelbottom"] for panel in axes)


def test_a_study_shows_the_policy_that_it_varies(tmp_path):
    place = made_results.varied(tmp_path / "made")
    plan = json.loads((place / "plan.json").read_text())
    plan["cells"] = [
        {"study": each["study"] | {"policy": {"smallest_model": {"hysteresis": n}}}}
        for n, each in enumerate(plan["cells"])
    ]
    (place / "plan.json").write_text(json.dumps(plan))
    found = read_results(place)
    assert found.varied == ("smallest_model",)
    assert sections(found)[0].shown[0].title == "What smallest_model saves in every combination"


def test_the_front_is_of_what_none_beats_in_both():
    rows = pd.DataFrame({"carbon_g": [3.0, 1, 2, 2], "mean_quality": [0.9, 0.5, 0.4, 0.6]})
    assert tradeoffs.front(rows, "mean_quality").index.tolist() == [1, 3, 0]
    assert not tradeoffs.flags(made_results.summary())[-2:].any()


def test_the_start_taken_is_the_best_learned_from():
    starts = pd.DataFrame({"learned": [np.inf, 0.9, np.nan, 0.8], "held_out": [0.1, 1, 2, 3]})
    assert descent.best(starts) == 3


def _luminance(colour):
    from matplotlib.colors import to_rgb

    return np.array(to_rgb(colour)) @ [0.2126, 0.7152, 0.0722]


def test_neighbours_in_a_bar_differ_in_grey_or_by_hatching():
    looks = list(carbon.LOOKS.values())
    for (_, one, hatch), (_, other, other_hatch) in itertools.pairwise(looks):
        assert hatch != other_hatch or abs(_luminance(one) - _luminance(other)) > 0.15
    assert len({marker for _, marker, _ in style.SERIES}) == len(style.SERIES)


BROWSERS = ("chromium", "chromium-browser", "google-chrome")

PROBE = """<script>onload = () => {
  const all = [...document.querySelectorAll("body *")].filter(e => !e.closest(".scroll, svg"));
  const over = all.filter(e => e.getBoundingClientRect().right > innerWidth + 0.5).length;
  const seen = [...document.querySelectorAll("svg")].filter(e => e.clientWidth > 0).length;
  const asked = performance.getEntriesByType("resource").length;
  const fits = document.documentElement.scrollWidth <= innerWidth;
  parent.postMessage([innerWidth, fits, over, seen, asked].join(" "), "*");
}</script>"""


def test_a_browser_shows_it_whole_at_every_width(tmp_path, written):
    """No word on the console, no request, and nothing wider than the window, tables opened."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is on the PATH")
    found = written("sweep")
    text = found.page.read_text()
    assert "default-src 'none'" in text
    probed = text.replace("default-src 'none'", "default-src 'none'; script-src 'unsafe-inline'")
    probed = probed.replace("<details>", "<details open>").replace("</head>", f"{PROBE}</head>")
    (tmp_path / "probed.html").write_text(probed)
    frames = "".join(  # a window is never narrower than 500 px: a frame can be
        f'<iframe src="{page}" style="width:{width}px;height:900px;border:0"></iframe>'
        for page, width in (("probed.html", 1280), ("probed.html", 390), (found.page.as_uri(), 800))
    )
    told = "<script>onmessage = e => document.title += e.data + ';'</script><title></title>"
    (tmp_path / "frames.html").write_text(f"<!DOCTYPE html>{told}{frames}")
    done = subprocess.run(
        [browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr",
         f"--user-data-dir={tmp_path / 'profile'}", "--window-size=1400,900",
         "--virtual-time-budget=9000", "--dump-dom", (tmp_path / "frames.html").as_uri()],
        capture_output=True, text=True, timeout=180,
    )  # fmt: skip
    title = re.search(r"<title>(.*?)</title>", done.stdout)
    assert title, done.stderr[-2000:]
    count = len(found.figures) // 2
    assert set(title[1].strip(";").split(";")) == {
        f"1280 true 0 {count} 0",
        f"390 true 0 {count} 0",
    }
    assert "CONSOLE" not in done.stderr


@pytest.mark.slow  # draws all there is, in both widths
def test_every_figure_is_drawn(written):
    for command in FIGURES:
        found = written(command)
        assert len(found.figures) == 2 * len(FIGURES[command])
        assert len(found.page.read_text()) < 3e6


@pytest.mark.slow  # the default study, replayed
def test_the_report_of_a_real_comparison(tmp_path):
    study, out = jr.load_study(), tmp_path / "out"
    outcome = comparison.run(study)
    with whole_directory(out, FILES) as fresh:
        write(fresh, study, outcome, 1.0)
    found = write_report(out)
    assert found.page.stat().st_size < 3e6
    text = found.page.read_text()
    assert "sharegpt, caches drop: of" in text and "places-sharegpt" in text
    hours = outcome.served.groupby(["retention", "policy", "region"], sort=False)
    shares = outcome.shares.groupby(["retention", "policy", "region"], sort=False)
    pd.testing.assert_series_equal(hours["turns"].sum(), shares["turns"].sum())
    pd.testing.assert_series_equal(hours["carbon_g"].sum(), shares["carbon_g"].sum())
