"""Small worlds for the relaxed replay, and its slope held against finite differences."""

import dataclasses

import bridge
import jax
import jax.numpy as jnp
import numpy as np
import worlds

from jaxroute.policies import RouterParams
from jaxroute.relaxed import NOT_RELAXED, soft_totals
from jaxroute.sessions import Sessions
from jaxroute.world import Retention, World

RETENTIONS = {
    "keep": Retention.of(),
    "ttl": Retention.of(ttl_s=100.0),
    "decay": Retention.of(decay_s=300.0),
    "drop": Retention.of(drop_on_leave=True),
}

SETTINGS = {
    "ungated": {},
    "gated": {
        "gate_strength": 1.3, "gate_bias": -0.4,
        "gate_weights": [0.3, -1.0, 0.5, 2.0, 0.2, 0.1, 1.0, 2.0],
    },
    "hysteresis": {"hysteresis": 0.1, "switch_price_g": 1e-3, "quality_floor": 0.5},
    "blind": {"cache_knowledge": 0.3, "assumed_hit": 0.6, "embodied_weight": 0.5},
    "priced": {
        "latency_price_g_per_s": 0.01, "quality_price_g": 0.2, "intensity_price": 1e-4,
        "rtt_price_g_per_s": 0.05, "size_price_g_per_b": 1e-4, "noise_price_g": 0.02,
    },
    "hurried": {"ttft_slo_s": 0.3, "gate_strength": 0.7, "quality_slack": 0.3},
    "sticky": {"always_stay": 1.0, "quality_floor": 0.3},
}  # fmt: skip


def setting(name: str) -> RouterParams:
    return RouterParams().replace(**SETTINGS[name])


def case(seed: int, dtype: type, sessions: int = 6, turns: int = 7) -> tuple[Sessions, World]:
    """Sessions in a made-up world, those of two rows one after another."""
    rng = np.random.default_rng(seed)
    world = worlds.world(rng)
    drawn = [worlds.session(rng, world, turns) for _ in range(sessions)]
    return bridge.engine_sessions(drawn, dtype, rows=2), bridge.engine_world(world, dtype)


def under(world: World, retention: str, dtype: type) -> World:
    kept = jax.tree.map(lambda x: np.asarray(x, dtype), RETENTIONS[retention])
    return world.replace(retention=kept)


def loss(params: RouterParams, sessions: Sessions, world: World, heat: float) -> jax.Array:
    """Something of every sum: carbon, quality, latency, moves and returns."""
    sums = jax.tree.map(jnp.sum, soft_totals(params, sessions, world, heat))
    amounts = sums.carbon_g, sums.quality, sums.ttft_s, sums.e2e_s, sums.moves, sums.returns
    return sum(w * x for w, x in zip((1, 0.1, 0.01, 0.001, 0.1, 0.1), amounts, strict=True))


slope = jax.jit(jax.grad(loss))
value = jax.jit(loss)


def smooth_fields() -> list[str]:
    return [f.name for f in dataclasses.fields(RouterParams) if f.name not in NOT_RELAXED]
