"""The gate that knows the future, held to every way to stay or to follow the wish."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import worlds
from bridge import engine_params, engine_sessions, engine_world

import jaxroute as jr
from jaxroute import policies
from jaxroute.foresight import foreseeing_gate

TURNS = 7


def _decide(params, state, obs):
    here, wished, asked = policies.wish(obs)
    return jnp.where(asked & params.stays[obs.turn.astype(jnp.int32)], here, wished), state


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Told(jr.RouterParams):
    """Stays on the turns that it is told to."""

    policy = jr.Policy(lambda params: (), _decide)
    stays: jax.Array


@jax.jit
def of_all_ways(params, sessions, world):
    """Carbon of each session, `[2^T, S]`."""
    bits = jnp.asarray(np.arange(2**TURNS)[:, None] >> np.arange(TURNS) & 1 > 0)
    return jax.vmap(
        lambda stays: jr.evaluate(Told(**vars(params), stays=stays), sessions, world).carbon_g
    )(bits)


@pytest.mark.slow  # compiles 128 ways at once
def test_no_way_to_stay_or_to_follow_the_wish_is_better():
    differ = 0
    for seed in range(8):
        rng = np.random.default_rng(seed)
        world = worlds.world(rng) | {"drop_on_leave": 1.0}
        sessions = engine_sessions([worlds.session(rng, world, TURNS) for _ in range(8)], rows=4)
        params = engine_params(worlds.params(quality_floor=0.4, switch_price_g=5e-4 * (seed % 2)))
        there = engine_world(world)
        found = of_all_ways(params, sessions, there)
        least_g = foreseeing_gate(params, sessions, there)
        np.testing.assert_allclose(least_g, found.min(axis=0), rtol=1e-5)
        differ += int((np.ptp(found, axis=0) > 1e-4 * found.min(axis=0)).sum())
    assert differ > 5
