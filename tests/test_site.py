"""The site builds, and what its pages show is what the commands print."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from test_cli import HEADER, jaxroute

import jaxroute as jr
from jaxroute.load.traces import FORMATS

ROOT = Path(__file__).parents[1]
NUMBER = re.compile(r"-?\d[\d,]*\.?\d*(?:e-?\d+)?")
PYTHON = re.compile(
    r"^```python\n(.*?)^```$(?:\n\n^```text\n(.*?)^```$)?", re.DOTALL | re.MULTILINE
)
TELLING = re.compile(r"\d[\d,]*\.\d+|\d+,\d{3}")  # a number that is no count of something


def _page(name):
    return (ROOT / "docs" / f"{name}.md").read_text()


def _blocks(text, language):
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def _files(text):
    """The files that a page gives: name by name, what is in them."""
    titled = re.findall(r'^```\w* title="(.*?)"\n(.*?)^```$', text, re.DOTALL | re.MULTILINE)
    return dict(titled)


def _alike(printed, shown):
    """Word for word; figures within 0.1 % or a last digit, as machines differ in a last bit."""
    assert len(printed) == len(shown)
    for ours, theirs in zip(printed, shown, strict=True):
        assert NUMBER.sub("", ours).split() == NUMBER.sub("", theirs).split()
        figures = [[float(n.replace(",", "")) for n in NUMBER.findall(x)] for x in (ours, theirs)]
        assert figures[0] == pytest.approx(figures[1], rel=1e-3, abs=1e-3)


def _folder(page, tmp_path, monkeypatch):
    """A folder with the files that a page gives."""
    for name, text in _files(page).items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", ["formats", "worked"])
def test_the_python_of_a_page_prints_what_it_shows(name, tmp_path, monkeypatch, capsys):
    page, names = _page(name), {}
    _folder(page, tmp_path, monkeypatch)
    told = 0
    for code, shown in PYTHON.findall(page):
        exec(compile(code, f"{name}.md", "exec"), names)
        _alike(capsys.readouterr().out.rstrip().splitlines(), shown.rstrip().splitlines())
        told += bool(shown)
    assert told > 1


def test_every_format_of_a_trace_has_an_example():
    told = [block.splitlines()[0] for block in _blocks(_page("formats"), "text")]
    assert set(FORMATS) <= set(told)


def test_the_arithmetic_comes_to_what_explain_weighed():
    explained, _, by_hand, *_ = _blocks(_page("worked"), "text")
    figures = set(re.findall(r"\d+\.\d{3}", by_hand))
    assert len(figures) == 10
    assert figures <= set(re.findall(r"\d+\.\d{3}", explained))


@pytest.mark.slow  # the commands compile
def test_the_worked_session_is_what_the_commands_print(tmp_path, monkeypatch, capsys):
    page = _page("worked")
    _folder(page, tmp_path, monkeypatch)
    blocks, everything = _blocks(page, "text"), "".join(_files(page).values())
    everything += blocks[1] + blocks[2]  # of the arithmetic
    shown = {"explain": [blocks[0], blocks[3]], "compare": [blocks[4]]}
    for command in _blocks(page, "sh"):
        words = shlex.split(command)[1:]
        status, out, _ = jaxroute(monkeypatch, capsys, *words)
        assert status == 0
        printed = [line.rstrip() for line in out.splitlines()]
        for block in shown.pop(words[0]):
            lines = block.rstrip().splitlines()
            at = printed.index(lines[0])
            _alike(printed[at : at + len(lines)], lines)
        everything += out
    assert not shown
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)
    told = set(TELLING.findall(prose)) - {"0.6"}  # the default study's floor
    assert len(told) > 8
    assert {n for n in told if n not in everything} == set()


def test_the_quick_start_shows_rows_of_the_readmes_table():
    readme = (ROOT / "README.md").read_text()
    table = readme[readme.index("caches: drop") :].splitlines()
    (block,) = _blocks(_page("index"), "text")
    heading, _, *rows = block.rstrip().splitlines()
    assert heading.endswith(table[0])
    assert len(rows) > 5
    assert [row for row in rows if row not in table] == []
    said = re.findall(r"(\S+) %\s\(`(.*?)`\)", _page("index"))
    assert [retention for _, retention in said] == ["keep", "ttl_300s"]
    for saving, retention in said:
        row = re.search(rf"caches: {retention}.*?\n carbon_router +\S+ +(\S+)", readme, re.DOTALL)
        assert row[1] == saving


def test_the_rule_of_ones_own_is_the_examples():
    example = (ROOT / "examples" / "custom_policy.py").read_text()
    blocks = _blocks(_page("policies"), "python")
    assert len(blocks) == 3
    assert [block for block in blocks if block not in example] == []


def test_a_policy_in_a_study_file_is_read(tmp_path):
    files = _files(_page("policies")) | {"trace.csv": f"{HEADER}\na,0,,100,50\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    policies = jr.load_study(tmp_path / "study.toml", traces=tmp_path / "trace.csv").policies
    assert list(policies["in_europe"].region_allowed) == [0, 0, 1, 0]


def test_every_export_is_in_the_reference():
    told = re.findall(r"^::: jaxroute(?:\.\w+)?\.(\w+)$", _page("api"), re.MULTILINE)
    assert sorted([*told, "linspace"]) == sorted(jr.__all__)


@pytest.mark.slow  # reads every module, and writes the site
def test_the_site_builds_and_fetches_nothing(tmp_path):
    if importlib.util.find_spec("mkdocs") is None:
        pytest.skip("mkdocs is not installed; pip install 'jaxroute[docs]'")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-f", ".mkdocs.yml"]
    made = subprocess.run(
        [*build, "--site-dir", tmp_path], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert {path.stem for path in (ROOT / "docs").glob("*.md")} <= {path.stem for path in pages}
    for page in pages:
        loaded = re.findall(r"<(?:script|img|iframe|link)\b[^>]*>", page.read_text())
        assert [tag for tag in loaded if "//" in tag and 'rel="canonical"' not in tag] == []
    assert "jaxroute compare" in (tmp_path / "cli.html").read_text()
    assert "load_study" in (tmp_path / "api.html").read_text()
    assert "ODbL" in (tmp_path / "data.html").read_text()
