"""The engine gives the answers of the worked cases."""

import golden_cases
import numpy as np
import pytest
from bridge import engine_params, engine_sessions, engine_world, places_of

from jaxroute.simulate import evaluate

CASES = golden_cases.load()
NAMES = {
    "ttft": "ttft_s",
    "e2e": "e2e_s",
    "embodied_g": "carbon_embodied_g",
}


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_engine_gives_the_golden_answers(case):
    sessions = engine_sessions(case.sessions, rows=1)
    totals, trace = evaluate(
        engine_params(case.params), sessions, engine_world(case.world), trace=True
    )
    for place, decisions in zip(places_of(sessions), case.expect["decisions"], strict=True):
        assert np.asarray(trace.decision)[place].tolist() == decisions
    for name, expected in case.expect.items():
        if name in ("decisions", "min_margin", "gate_margin"):
            continue
        got = np.asarray(getattr(totals, NAMES.get(name, name)))
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-12, err_msg=name)
