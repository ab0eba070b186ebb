"""The examples run, and tell what the command tells."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
NUMBER = re.compile(r"\d[\d,]*\.\d+")


def _figures(text):
    return [float(figure.replace(",", "")) for figure in NUMBER.findall(text)]


@pytest.mark.slow  # each compiles for the whole bundled trace
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs(path, capsys):
    """Where it tells the carbon of `carbon_router` under `drop`, it is the README's."""
    runpy.run_path(str(path), run_name="__main__")
    out = capsys.readouterr().out
    printed = _figures(out)
    assert printed
    if path.stem == "custom_policy":
        shown = (ROOT / "docs" / "policies.md").read_text().split("```text\n")[1].split("```")[0]
        assert printed == pytest.approx(_figures(shown), rel=1e-3, abs=0.11)
    if path.stem in ("custom_policy", "intensity_years"):
        table = (ROOT / "README.md").read_text().split("caches: drop")[1]
        for policy in ("carbon_router", "fair_carbon"):
            shown = _figures(re.search(rf"^ {policy} .*$", table, re.M)[0])[0]
            assert any(figure == pytest.approx(shown, rel=1e-3) for figure in printed)
