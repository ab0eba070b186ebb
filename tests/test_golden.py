"""The engine gives the answers of the worked cases: all of them in one vmapped call."""

import golden_cases
import jax
import numpy as np
import pytest
from bridge import engine_params, engine_sessions, engine_world, places_of

from jaxroute.numerics import stack
from jaxroute.simulate import evaluate

CASES = golden_cases.load()
NAMES = {"ttft": "ttft_s", "e2e": "e2e_s", "embodied_g": "carbon_embodied_g"}
UNREACHABLE = -1.0


def _widen(array, shape, fill=0):
    out = np.full(shape, fill, np.asarray(array).dtype)
    out[tuple(slice(n) for n in np.shape(array))] = array
    return out


def _alike(trees, fills=None):
    """The trees with every leaf padded to the largest of its place, stacked."""
    paths = [jax.tree_util.tree_leaves_with_path(tree) for tree in trees]
    places = zip(*paths, strict=True)
    shapes = [tuple(np.max([np.shape(leaf) for _, leaf in at], axis=0)) for at in places]
    padded = []
    for leaves in paths:
        names = [path[-1].name for path, _ in leaves]
        padded.append(
            [
                _widen(leaf, shape, (fills or {}).get(name, 0))
                for name, (_, leaf), shape in zip(names, leaves, shapes, strict=True)
            ]
        )
    structure = jax.tree.structure(trees[0])
    return stack(jax.tree.unflatten(structure, leaves) for leaves in padded)


@pytest.fixture(scope="module")
def answers():
    """Totals and decisions of every case, padded with deployments that can hold no prompt."""
    width = max(sum(len(s["hour"]) for s in case.sessions) for case in CASES)
    count = max(len(case.sessions) for case in CASES)
    worlds = _alike(
        [engine_world(case.world) for case in CASES],
        {"max_context_tokens": UNREACHABLE, "batch": 1, "pue": 1, "block_tokens": 1},
    )
    sessions = [engine_sessions(case.sessions, rows=1, width=width, count=count) for case in CASES]
    run = jax.vmap(lambda p, s, w: evaluate(p, s, w, trace=True))
    params = _alike([engine_params(case.params) for case in CASES])
    totals, trace = run(params, _alike(sessions), worlds)
    return sessions, jax.tree.map(np.asarray, totals), np.asarray(trace.decision)


@pytest.mark.parametrize("n", range(len(CASES)))
def test_engine_gives_the_golden_answers(answers, n):
    sessions, totals, decisions = answers
    expect = CASES[n].expect
    for place, expected in zip(places_of(sessions[n]), expect["decisions"]):  # noqa: B905
        assert decisions[n][place].tolist() == expected
    for name, expected in expect.items():
        if name in ("decisions", "min_margin", "gate_margin"):
            continue
        got = getattr(totals, NAMES.get(name, name))[n][: len(expected)]
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-12, err_msg=name)
