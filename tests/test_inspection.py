"""What a trace holds, in numbers and on a terminal."""

import io

import numpy as np
import pytest
from logs import HOUR, LOGS, lines, openai
from rich.console import Console

from jaxroute.inspection import inspect_trace
from jaxroute.report.inspection import inspection_notes, show_trace_inspection


@pytest.fixture
def told(tmp_path):
    def inspected(content, **options):
        path = tmp_path / "log"
        path.write_text(content)
        return inspect_trace(path, **options)

    return inspected


LONG = "".join(
    lines(openai(name, f"{HOUR}{turn:02d}Z", 100 * turn + 50, 50))
    for name, turns in (("a", 12), ("b", 31), ("c", 1))
    for turn in range(turns)
)


def test_the_figures_of_a_trace(told):
    found = told(LONG)
    assert (found.format, found.sessions, found.turns, found.times) == ("requests", 3, 44, "dates")
    np.testing.assert_allclose(found.beyond["sessions_pct"], [200 / 3, 100 / 3])
    np.testing.assert_allclose(found.beyond["turns_pct"], [100 * 43 / 44, 100 * 31 / 44])
    assert found.span_s == 30 and (found.last - found.first).total_seconds() == 30
    figures = found.figures
    assert figures.loc["turns per session", ["p50", "max"]].tolist() == [12, 31]
    assert figures.loc["input tokens", ["p50", "max"]].tolist() == [50, 50]
    assert figures.loc["context tokens", "max"] == 3050
    assert figures.loc["gap s", ["mean", "p5", "max"]].tolist() == [1, 1, 1]


def test_a_context_that_shrinks_is_that_of_the_log(told):
    found = told(lines(*(openai("s", n, prompt, 10) for n, prompt in enumerate((100, 30, 50)))))
    assert found.figures.loc["context tokens", ["mean", "max"]].tolist() == [60, 100]


def test_a_header_alone(told):
    found = told(LOGS["tidy"].splitlines()[0])
    assert (found.sessions, found.turns, found.times) == (0, 0, "none")
    assert found.figures.isna().all(axis=None) and (found.beyond == 0).all(axis=None)
    assert list(inspection_notes(found)) == ["no turns: the file has nothing but its header"]


@pytest.mark.parametrize("width", [50, 200])
@pytest.mark.parametrize(
    "log, expected",
    [
        (LONG, "from 2024-05-01 10:00:00 to 2024-05-01 10:00:30 UTC, 30 s"),
        (LOGS["mooncake"], "27 s from the earliest to the latest time, which have no dates"),
        (LOGS["tidy"].replace(",9,", ",,").replace(",0,10", ",,10"), "no times: a study draws"),
        (LOGS["requests"] + "{", "mended or left out: the file breaks off"),
    ],
)
def test_what_is_shown(told, log, expected, width):
    out = io.StringIO()
    show_trace_inspection(told(log), Console(file=out, width=width))
    text = out.getvalue()
    assert expected in text and "sessions of more than 30 turns" in text
    assert "context tokens" in text and ("p25" in text) == (width == 200)
    assert ("nothing had to be mended" in text) == ("mended or left out: the" not in text)
