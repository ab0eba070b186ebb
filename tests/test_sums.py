"""Sums of very long sessions whose turns cost very unlike amounts."""

import jax
import numpy as np
import pytest
import worlds
from bridge import engine_sessions, engine_world, oracle_params, oracle_sessions, oracle_world
from oracle_check import compare_totals

from jaxroute import batch, reference, simulate
from jaxroute.catalogue import preset
from jaxroute.numerics import stack

TURNS = 5000


def skewed(rng, plain):
    """A turn of 190,000 tokens, then thousands of one token, each a millionth of it."""
    out = worlds.session(rng, plain, TURNS)
    out["new_tokens"] = np.r_[190_000, np.ones(TURNS - 1)]
    out["output_tokens"] = out["predicted_output_tokens"] = np.zeros(TURNS)
    out["prefix_tokens"] = np.zeros(TURNS)
    out["hour"] = np.zeros(TURNS, int)
    return out


def heavy(rng, plain):
    """Tokens from 1 to thousands."""
    out = worlds.session(rng, plain, TURNS)
    for name in ("new_tokens", "output_tokens", "predicted_output_tokens"):
        out[name] = np.ceil(np.exp(rng.normal(2, 2, TURNS))).clip(1, 4000)
    out["prefix_tokens"] = np.zeros(TURNS)
    return out


@pytest.mark.parametrize("kind", [skewed, heavy])
def test_long_sessions_add_up_as_in_float64(kind):
    rng = np.random.default_rng(0)
    plain = worlds.world(rng)
    plain["max_context_tokens"][:] = 200_000
    sessions, world = engine_sessions([kind(rng, plain)]), engine_world(plain)
    params = preset("sticky").replace(quality_floor=0.0)
    totals, trace = jax.device_get(simulate.evaluate(params, sessions, world, trace=True))
    by_slots, _ = batch.replay_settings(stack([params]), sessions, world)
    assert totals.turns[0] == TURNS
    forced = trace.decision[0, :TURNS], trace.cached_tokens[0, :TURNS].astype(np.float64)
    (session,) = oracle_sessions(sessions)
    exact = reference.replay(oracle_world(world), session, oracle_params(params), forced=forced)
    for found in (totals, jax.tree.map(lambda x: x[0], by_slots)):
        compare_totals(found, (0,), exact.totals, "float32", (kind.__name__,))
    one_by_one_g = np.cumsum(trace.carbon_g[0, :TURNS], dtype=np.float32)[-1]
    error = abs(one_by_one_g / trace.carbon_g[0, :TURNS].sum(dtype=np.float64) - 1)
    assert kind is heavy or error > 3e-5  # what the skewed session is for
