"""What the README shows is what the commands print."""

import re
import sys
from pathlib import Path

import pytest

from jaxroute import cli

README = (Path(__file__).parents[1] / "README.md").read_text()
NUMBER = re.compile(r"-?\d[\d,]*\.?\d*")


def _blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_the_table_is_the_commands(monkeypatch, capsys):
    """Word for word but for the seconds; figures within 0.1 %, as machines differ in a last bit."""
    monkeypatch.setattr(sys, "argv", ["jaxroute", "compare"])
    with pytest.raises(SystemExit):
        cli.main()
    printed = [line.rstrip() for line in capsys.readouterr().out.rstrip().splitlines()]
    shown = _blocks("text")[0].rstrip().splitlines()
    assert len(printed) == len(shown)
    for ours, theirs in zip(printed[:-1], shown[:-1], strict=True):
        assert NUMBER.sub("", ours).split() == NUMBER.sub("", theirs).split()
        figures = [[float(n.replace(",", "")) for n in NUMBER.findall(x)] for x in (ours, theirs)]
        assert figures[0] == pytest.approx(figures[1], rel=1e-3, abs=0.1)


def test_the_examples_run(capsys):
    for code, printed in zip(_blocks("python"), (1, 2), strict=True):
        assert len([line for line in code.splitlines() if line.strip()]) <= 10
        exec(compile(code, "README.md", "exec"), {})
        assert len(capsys.readouterr().out.splitlines()) == printed
