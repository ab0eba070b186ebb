"""Sessions held out: every session in one part, wherever it stands in the trace."""

import dataclasses

import numpy as np
import pytest

from jaxroute import InputError, evaluate, load_study, presets
from jaxroute.split import some, split


@pytest.fixture(scope="module")
def study():
    return load_study()


def test_every_session_is_in_one_part(study):
    learn, judge = (part.datasets[0] for part in split(study))
    whole = study.datasets[0]
    assert not set(learn.session_ids) & set(judge.session_ids)
    assert sorted([*learn.session_ids, *judge.session_ids]) == sorted(whole.session_ids)
    assert learn.turns + judge.turns == whole.turns
    assert abs(judge.count / whole.count - 0.5) < 0.02


def test_a_session_stays_in_its_part_whatever_else_is_there(study):
    _, judge = split(study, 0.3)
    few = some(study.datasets[0], np.arange(study.datasets[0].count) % 7 == 0)
    _, judged = split(dataclasses.replace(study, datasets=(few,)), 0.3)
    held = set(judge.datasets[0].session_ids)
    assert set(judged.datasets[0].session_ids) == held & set(few.session_ids)


def test_a_session_is_replayed_as_in_the_whole(study):
    whole = study.datasets[0]
    chosen = np.flatnonzero(whole.lengths > 20)[:5]
    part = some(whole, np.isin(np.arange(whole.count), chosen))
    for n, session in enumerate(chosen):
        one = evaluate(presets["carbon_router"], whole.alone(session), study.world)
        other = evaluate(presets["carbon_router"], part.alone(n), study.world)
        np.testing.assert_array_equal(one.carbon_g, other.carbon_g)


def test_too_few_sessions_are_refused(study):
    alone = some(study.datasets[0], np.arange(study.datasets[0].count) == 3)
    with pytest.raises(InputError, match="found 1 sessions, expected enough"):
        split(dataclasses.replace(study, datasets=(alone,)))
