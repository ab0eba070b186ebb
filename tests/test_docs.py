"""What the documents show is what the commands print."""

import re
import shlex
import sys
from pathlib import Path

import pytest

from jaxroute import cli

ROOT = Path(__file__).parents[1]
NUMBER = re.compile(r"-?\d[\d,]*\.?\d*")


def _shown(name):
    """Each command of a document that prints what stands in the block below it."""
    text = (ROOT / "docs" / f"{name}.md").read_text()
    return re.findall(r"```sh\n(jaxroute .*?)\n```\n\n```text\n(.*?)```", text, re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["paper", "robustness"])
def test_the_tables_are_the_commands(name, tmp_path, monkeypatch, capsys):
    """Word for word; figures within a tenth, as machines differ in a last bit."""
    ((command, shown),) = _shown(name)
    *words, out = shlex.split(command)
    assert words[-1] == "--out"
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [*words, str(tmp_path / out)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert not caught.value.code
    printed = [line.rstrip() for line in capsys.readouterr().out.strip().splitlines()]
    lines = shown.strip().splitlines()
    _alike(printed[:-1], lines[:-1])
    assert printed[-1].startswith(lines[-1])


def _alike(printed, shown):
    assert len(printed) == len(shown)
    for ours, theirs in zip(printed, shown, strict=True):
        assert NUMBER.sub("", ours).split() == NUMBER.sub("", theirs).split()
        figures = [[float(n.replace(",", "")) for n in NUMBER.findall(x)] for x in (ours, theirs)]
        assert figures[0] == pytest.approx(figures[1], abs=0.11, rel=1e-3)


@pytest.mark.slow
def test_the_walk_through_prints_what_it_shows(tmp_path, monkeypatch, capsys):
    text = (ROOT / "docs" / "research.md").read_text()
    (study,) = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    (tmp_path / "study.toml").write_text(study)
    monkeypatch.chdir(tmp_path)
    names = {}
    for code, shown in re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", text, re.DOTALL):
        exec(compile(code, "research.md", "exec"), names)
        _alike(capsys.readouterr().out.strip().splitlines(), shown.strip().splitlines())
    assert text.count("```python") == text.count("```\n\n```text") - 1  # the command's


@pytest.mark.slow  # twelve levels of traffic on the bundled trace: two minutes
def test_what_load_does_to_the_ranking_is_what_the_command_prints(tmp_path, monkeypatch, capsys):
    """Block by block; what did not settle differs in its last digits between machines."""
    text = (ROOT / "docs" / "load.md").read_text()
    pattern = r"```sh\n(jaxroute capacity [^`]*?)\n```\n\nOf what it prints:\n\n```text\n(.*?)```"
    ((command, shown),) = re.findall(pattern, text, re.DOTALL)
    *words, out = shlex.split(command)
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", [*words, str(tmp_path / out)])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert not caught.value.code
    printed, lines = (
        [line.rstrip() for line in told.splitlines() if line.strip()]
        for told in (capsys.readouterr().out, shown)
    )
    starts = [n for n, line in enumerate(lines) if line.startswith("sharegpt: ")]
    assert len(starts) == 3
    for start, stop in zip(starts, [*starts[1:], len(lines)], strict=True):
        begin = printed.index(lines[start])
        for ours, theirs in zip(printed[begin:], lines[start:stop], strict=False):
            assert ours.split()[:1] == theirs.split()[:1]
            figures = [
                [float(n.replace(",", "")) for n in NUMBER.findall(x)] for x in (ours, theirs)
            ]
            assert figures[0] == pytest.approx(figures[1], rel=0.03, abs=0.3)
