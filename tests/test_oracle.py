"""Engine against oracle: every preset, every retention, every trace at hand."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from oracle_check import BUNDLED, RETENTIONS, check, stratified, study_of, subset, traces

SAMPLE, LONG_TURNS = 100, 500
"""Sessions of a trace in the plain run, and beyond how many turns all are among them."""


@pytest.mark.parametrize(
    ("trace", "retention"),
    [(BUNDLED, each) for each in RETENTIONS]
    + [pytest.param(*each.values, "drop", marks=each.marks, id=each.id) for each in traces()[1:]],
)
def test_engine_agrees_with_the_oracle(trace, retention):
    """On some sessions; under every retention on those of every trace in the slow one below."""
    study = study_of(trace)
    dataset = study.datasets[0]
    sample = subset(dataset, stratified(dataset, SAMPLE, longer_than=LONG_TURNS))
    check(study, sample, RETENTIONS[retention])


@pytest.mark.slow
@pytest.mark.parametrize("retention", RETENTIONS)
@pytest.mark.parametrize("trace", traces())
def test_engine_agrees_with_the_oracle_on_every_session(trace, retention):
    study = study_of(trace)
    check(study, study.datasets[0], RETENTIONS[retention])


@pytest.mark.parametrize("retention", ["ttl", "drop"])
def test_in_x64_engine_and_oracle_agree_to_1e_9(retention):
    _agree_in_x64(BUNDLED, retention, 60)


@pytest.mark.slow
@pytest.mark.parametrize("retention", RETENTIONS)
@pytest.mark.parametrize("trace", traces())
def test_in_x64_engine_and_oracle_agree_to_1e_9_on_more(trace, retention):
    _agree_in_x64(trace, retention, SAMPLE)


def _agree_in_x64(trace: str, retention: str, count: int) -> None:
    script = Path(__file__).parent / "x64_oracle.py"
    done = subprocess.run(
        [sys.executable, script, trace, retention, str(count), str(LONG_TURNS)],
        env=os.environ | {"JAX_ENABLE_X64": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "agree" in done.stdout
