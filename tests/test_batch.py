"""Many settings at once: the slot path against `evaluate`, session by session."""

import dataclasses

import jax
import numpy as np
import pytest
import worlds
from bridge import engine_sessions, engine_world
from oracle_check import RETENTIONS, presets, stratified, study_of, subset

from jaxroute import batch, simulate
from jaxroute.catalogue import preset, presets as unmasked
from jaxroute.numerics import stack
from jaxroute.policies import RouterParams
from jaxroute.world import Retention

STUDY = study_of("builtin:sharegpt")
DATASET = subset(STUDY.datasets[0], stratified(STUDY.datasets[0], 60))
DENSE = jax.jit(batch.dense, static_argnames="latency")


def assert_same(found, expected):
    for name in simulate.FIELDS:
        np.testing.assert_allclose(
            getattr(found, name), getattr(expected, name), rtol=1e-5, atol=1e-12, err_msg=name
        )


@pytest.mark.parametrize("label", RETENTIONS)
def test_presets_on_the_bundled_trace(label):
    world = STUDY.world.replace(retention=RETENTIONS[label])
    params = stack(presets(STUDY).values())
    expected, _ = DENSE(params, DATASET.sessions, world)
    found, _ = batch.replay_settings(params, DATASET.sessions, world)
    assert_same(found, expected)
    assert expected.moves.sum() > 100
