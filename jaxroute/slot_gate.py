"""`jaxroute.gate` for every setting at once, at the deployments of their slots."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxroute import residency
from jaxroute.moments import Moment, Uses
from jaxroute.policies import RouterParams
from jaxroute.tables import Tables
from jaxroute.world import World


class Caches(NamedTuple):
    """What the K slots hold on arrival, `[C, P]` each.

    Attributes:
      alive, cached: tokens, and those usable for this prompt.
      idle_s: since the last use; empty where no cache ages.
    """

    alive: list[jax.Array]
    cached: list[jax.Array]
    idle_s: list[jax.Array]


def rebuild_price_g(
    params: RouterParams,
    world: World,
    uses: Uses,
    tables: Tables,
    last: jax.Array,
    now: Moment,
    caches: Caches,
) -> jax.Array:
    """`gate.rebuild_price_g` at the last deployment, `[C, P]`."""
    gap_s, here, left = params.expected_gap_s, tables.sites(last), caches.alive[0]
    if uses.blind:
        assumed = params.assumed_hit * jnp.minimum(now.prefix_tokens, now.before_tokens)
        left = params.cache_knowledge * left + (1 - params.cache_knowledge) * assumed
    left = jnp.minimum(left, now.prefix_tokens)
    stay = now.prompt_tokens + jnp.maximum(now.predicted_output_tokens - 1, 0)
    if uses.ageing:
        left = residency.decayed(left, gap_s, here.decay_s)
        left = jnp.where(caches.idle_s[0] + gap_s > here.ttl_s, 0, left)
        stay = residency.decayed(jnp.broadcast_to(stay, last.shape), gap_s, here.decay_s)
        stay = jnp.where(gap_s > here.ttl_s, 0, stay)
    else:
        left = jnp.floor(left + residency.EDGE_TOKENS)
    left = jnp.where(world.retention.drop_on_leave > 0, 0, left)
    history = now.prompt_tokens + now.predicted_output_tokens
    from_tokens = residency.blocks(jnp.minimum(left, history), world.block_tokens)
    to_tokens = residency.blocks(jnp.minimum(stay, history), world.block_tokens)
    return tables.prefill_price_g(params, uses, last, from_tokens, to_tokens, floored=False)


def weighed_features(
    params: RouterParams,
    tables: Tables,
    now: Moment,
    last: jax.Array,
    wished: jax.Array,
    gain_g: jax.Array,
    whole_g: jax.Array,
    returned: jax.Array,
) -> jax.Array:
    """`gate.features` of a move to `wished`, weighed, `[C, P]`."""
    dtype = gain_g.dtype

    scored, here, there = whole_g > 0, tables.sites(last), tables.sites(wished)
    here_at, there_at = tables.rates(last), tables.rates(wished)
    features = (
        jnp.where(scored, gain_g / jnp.where(scored, whole_g, 1), 0),
        (here_at.model != there_at.model).astype(dtype),
        (here_at.region != there_at.region).astype(dtype),
        here.trend - there.trend,
        jnp.log1p(now.turn),
        jnp.log1p(now.prefix_tokens / now.new_tokens),
        returned,
        here.quality - there.quality,
    )
    weighed = zip(params.gate_weights, features, strict=True)
    return sum((weight * feature for weight, feature in weighed), jnp.zeros_like(gain_g))
