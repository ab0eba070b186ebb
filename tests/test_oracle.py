"""Engine against oracle: every preset, every retention, every trace at hand."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from oracle_check import RETENTIONS, check, stratified, subset

from jaxroute.study import load_study

TRACES = os.environ.get("JAXROUTE_TRACES")
BUNDLED = "builtin:sharegpt"
SESSIONS = 300


def _traces() -> list:
    found = sorted(Path(TRACES).glob("*.csv*")) if TRACES else []
    others = [path for path in found if not path.name.startswith("sharegpt")]
    if not others:
        reason = f"no traces in JAXROUTE_TRACES={TRACES}" if TRACES else "JAXROUTE_TRACES is unset"
        return [BUNDLED, pytest.param("more traces", marks=pytest.mark.skip(reason=reason))]
    return [BUNDLED, *(pytest.param(str(path), id=path.stem) for path in others)]


def _study(trace: str):
    return load_study() if trace == BUNDLED else load_study(traces=[trace])


@pytest.mark.parametrize("retention", RETENTIONS)
@pytest.mark.parametrize("trace", _traces())
def test_engine_agrees_with_the_oracle(trace, retention):
    study = _study(trace)
    dataset = study.datasets[0]
    sample = subset(dataset, stratified(dataset, SESSIONS))
    check(study, sample, RETENTIONS[retention])


@pytest.mark.slow
@pytest.mark.parametrize("retention", RETENTIONS)
@pytest.mark.parametrize("trace", _traces())
def test_engine_agrees_with_the_oracle_on_every_session(trace, retention):
    study = _study(trace)
    check(study, study.datasets[0], RETENTIONS[retention])


@pytest.mark.parametrize("retention", RETENTIONS)
def test_in_x64_engine_and_oracle_agree_to_1e_9(retention):
    _agree_in_x64(BUNDLED, retention, 60)


@pytest.mark.slow
@pytest.mark.parametrize("retention", RETENTIONS)
@pytest.mark.parametrize("trace", _traces())
def test_in_x64_engine_and_oracle_agree_to_1e_9_on_more(trace, retention):
    _agree_in_x64(trace, retention, SESSIONS)


def _agree_in_x64(trace: str, retention: str, count: int) -> None:
    script = Path(__file__).parent / "x64_oracle.py"
    done = subprocess.run(
        [sys.executable, script, trace, retention, str(count)],
        env=os.environ | {"JAX_ENABLE_X64": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "agree" in done.stdout
