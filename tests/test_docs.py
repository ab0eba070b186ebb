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
    assert len(printed) == len(lines)
    for ours, theirs in zip(printed[:-1], lines[:-1], strict=True):
        assert NUMBER.sub("", ours).split() == NUMBER.sub("", theirs).split()
        figures = [[float(n.replace(",", "")) for n in NUMBER.findall(x)] for x in (ours, theirs)]
        assert figures[0] == pytest.approx(figures[1], abs=0.11)
    assert printed[-1].startswith(lines[-1])
