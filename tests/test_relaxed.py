"""The relaxed replay: the hard one at temperature 0, and slopes that are finite and right."""

import dataclasses
import itertools
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from soft_check import RETENTIONS, SETTINGS, case, loss, setting, slope, under

from jaxroute import evaluate, soft, soft_carbon, soft_totals
from jaxroute.numerics import stack
from jaxroute.relaxed import FIELDS

cold = jax.jit(jax.vmap(lambda p, s, w: soft_totals(p, s, w, 1e-6), in_axes=(0, None, None)))
hard = jax.jit(jax.vmap(evaluate, in_axes=(0, None, None)))


def test_it_is_the_replay_as_the_temperature_goes_to_0():
    params = stack(setting(name) for name in SETTINGS)
    for seed, retention in itertools.product(range(4), RETENTIONS):
        sessions, world = case(seed, np.float32, sessions=20, turns=9)
        world = under(world, retention, np.float32)
        soft_sums, sums = cold(params, sessions, world), hard(params, sessions, world)
        near = np.isclose(soft_sums.carbon_g, sums.carbon_g, rtol=1e-4)
        for n, name in enumerate(SETTINGS):
            assert near[n].mean() >= 0.95, (seed, name, near[n].mean())
        for field in FIELDS:
            ours, theirs = getattr(soft_sums, field)[near], getattr(sums, field)[near]
            np.testing.assert_allclose(ours, theirs, rtol=1e-3, atol=1e-3, err_msg=field)


@pytest.mark.slow  # compiles in a process of its own
def test_slopes_are_those_of_finite_differences_in_float64():
    script = Path(__file__).parent / "x64_soft.py"
    found = subprocess.run(
        [sys.executable, "-W", "error", script],
        env={**os.environ, "JAX_ENABLE_X64": "1"},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    assert int(found.stdout.split()[0]) > 500


def edges():
    sessions, world = case(5, np.float32)
    turns = sessions.turns
    none = np.zeros_like(turns.new_tokens)

    def changed(**changes):
        return dataclasses.replace(sessions, turns=dataclasses.replace(turns, **changes))

    yield "no tokens", changed(new_tokens=none, output_tokens=none, prefix_tokens=none), world
    yield "fully masked sessions", changed(valid=np.zeros_like(turns.valid)), world
    yield "all cached", changed(prefix_tokens=none + 4096, new_tokens=none), world
    yield "beyond every context", changed(new_tokens=none + 1e6), world
    junk = np.where(turns.valid, turns.new_tokens, np.nan)
    yield "junk in the padding", changed(new_tokens=junk), world
    yield "no carbon", sessions, world.replace(intensity_g_per_kwh=world.intensity_g_per_kwh * 0)
    yield "nobody allowed", sessions, world


@pytest.mark.slow  # compiles the gradient
def test_slopes_are_finite_at_the_edges():
    with jax.debug_nans(True):
        for retention, (label, sessions, world) in itertools.product(RETENTIONS, edges()):
            for name in ("ungated", "gated", "hurried", "priced"):
                params = setting(name)
                if label == "no carbon":
                    params = params.replace(embodied_weight=0.0)
                nobody = label == "nobody allowed"
                params = params.replace(model_allowed=[0.0 if nobody else 1.0] * 2)
                for heat in (1.0, 1e-4):
                    there = under(world, retention, np.float32)
                    found = slope(params, sessions, there, heat)
                    for leaf in jax.tree.leaves(found):
                        assert np.isfinite(leaf).all(), (label, name, heat)


@pytest.mark.slow  # compiles the relaxed replay, or its gradient
def test_sums_do_not_depend_on_the_layout():
    sessions, world = case(2, np.float32, sessions=7, turns=5)
    wide = jax.tree.map(
        lambda x: np.pad(x, ((0, 1), (0, 4), *((0, 0),) * (x.ndim - 2))), sessions.turns
    )
    padded = dataclasses.replace(
        sessions, turns=dataclasses.replace(wide, session=np.where(wide.valid, wide.session, 7))
    )
    one, other = (soft_totals(setting("gated"), each, world, 0.1) for each in (sessions, padded))
    for field in FIELDS:
        np.testing.assert_allclose(getattr(one, field), getattr(other, field), rtol=1e-5)


@pytest.mark.slow  # compiles the relaxed replay, or its gradient
def test_it_is_the_callers_to_transform():
    sessions, world = case(3, np.float32)
    two = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), world.intensity_g_per_kwh)

    def carbon(intensity, strength):
        changed = setting("gated").replace(gate_strength=strength)
        return soft_carbon(changed, sessions, world.replace(intensity_g_per_kwh=intensity), 0.1)

    one, other = jax.vmap(carbon, in_axes=(0, None))(two, jnp.float32(1.3))
    assert one < other < 2 * one
    np.testing.assert_allclose(one, carbon(two[0], jnp.float32(1.3)), rtol=1e-5)


def test_a_softmax_without_one_in_linear_time():
    logits = jnp.array([3.0, -1.0, soft.NEVER, 2.5, 3.0, 80.0])
    values = jnp.arange(12.0).reshape(6, 2)
    kind = jax.nn.one_hot(jnp.array([0, 1, 0, 1, 0, 1]), 2)
    flow = jnp.array([0.1, 0.2, 0.0, 0.3, 0.0, 0.4])
    rest = soft.others(logits)
    received = np.zeros(6)
    for i in range(6):
        left = np.delete(np.arange(6), i)
        p = np.array(jax.nn.softmax(logits[left]))
        np.testing.assert_allclose(rest.log_sum[i], jax.nn.logsumexp(logits[left]), rtol=1e-6)
        np.testing.assert_allclose(rest.means(values)[i], p @ values[left], rtol=1e-5)
        same = np.array(kind.argmax(1))[left] == int(kind[i].argmax())
        np.testing.assert_allclose(rest.share(kind)[i], p @ same, atol=1e-6)
        received[left] += flow[i] * p
    np.testing.assert_allclose(rest.received(flow), received, atol=1e-6)


@pytest.mark.slow  # compiles the relaxed replay, or its gradient
def test_its_program_is_the_same_for_other_numbers():
    sessions, world = case(4, np.float32)
    traced = jax.jit(loss)
    with jax.log_compiles(False):
        traced(setting("gated"), sessions, world, 0.1)
        before = traced._cache_size()
        traced(setting("priced"), sessions, world, 0.01)
    assert traced._cache_size() == before
