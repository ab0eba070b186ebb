"""The replay of many settings at once, each of which knows only where it has been.

A deployment without resident tokens costs every setting of a group the same, so `jaxroute.cold`
prices all D of them once a turn; a setting prices only the K deployments that hold tokens of the
session, its slots, and takes the least of these and of the cold ones. A resident deployment is
never dearer than itself cold, so that this is the least of all. Slot 0 is the last deployment.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxroute import residency
from jaxroute.cold import Cold, Moment, Rates, prefill_price_g, prefilled, weigh
from jaxroute.policies import RouterParams
from jaxroute.sessions import Turn
from jaxroute.world import World

SUMS = (
    *("carbon_prefill_g", "carbon_rebuild_g", "carbon_decode_g", "carbon_embodied_g"),
    *("energy_kwh", "water_l", "cost_usd", "ttft_s", "e2e_s", "quality", "rebuilt_tokens"),
    *("moves", "returns"),
)
"""What a setting adds up by session; the rest of `Totals` is the same for a group of settings."""


class Slots(NamedTuple):
    """What P settings carry from turn to turn of C sessions, `[K, C, P]` or `[C, P]`.

    Attributes:
      deployment: `[K, C, P]` int32, -1 for none; the first is the last deployment.
      resident_tokens: `[K, C, P]`, 0 in a slot that is free.
      last_used_s: `[K, C, P]`, from the last arrival; None where no cache ages.
      before: `[C, P]` int32, the deployment before the last move, -1 for none.
      moves, returns: `[C, P]`, of the session so far.
      overflow: `[C, P]`, 1 once tokens had to be forgotten for want of a slot.
    """

    deployment: jax.Array
    resident_tokens: jax.Array
    last_used_s: jax.Array | None
    before: jax.Array
    moves: jax.Array
    returns: jax.Array
    overflow: jax.Array


class Uses(NamedTuple):
    """What some setting makes use of; static, so that the rest costs nothing.

    Attributes:
      ageing: a finite time to live or decay.
      features: gate weights.
    """

    ageing: bool
    features: bool


def opening(slots: int, shape: tuple[int, int], dtype: jnp.dtype, uses: Uses) -> Slots:
    """No tokens anywhere; `shape` is `(C, P)`."""
    nothing, nowhere = jnp.zeros(shape, dtype), jnp.full(shape, -1, jnp.int32)
    empty = jnp.zeros((slots, *shape), dtype)
    return Slots(
        deployment=jnp.full((slots, *shape), -1, jnp.int32),
        resident_tokens=empty,
        last_used_s=empty if uses.ageing else None,
        before=nowhere,
        moves=nothing,
        returns=nothing,
        overflow=nothing,
    )


class Fetch(NamedTuple):
    """Looks up the tables of a turn, `[C, D]`, `[C, D, G]` and `[C, G]`, for every setting.

    Attributes:
      group: `[P]` int32, the group of each setting; None for one group, or one each, in order.
    """

    group: jax.Array | None

    def rate(self, table: jax.Array, deployment: jax.Array) -> jax.Array:
        """`table[c, deployment[..., c, p]]`."""
        sessions, deployments = table.shape
        begin = jnp.arange(sessions, dtype=jnp.int32)[:, None] * deployments
        return _at(table, deployment, begin)

    def score(self, table: jax.Array, deployment: jax.Array) -> jax.Array:
        """`table[c, deployment[..., c, p], group[p]]`."""
        sessions, deployments, groups = table.shape
        begin = jnp.arange(sessions, dtype=jnp.int32)[:, None] * (deployments * groups)
        group = jnp.arange(groups, dtype=jnp.int32) if self.group is None else self.group
        return _at(table, deployment * groups, begin + group[None, :])

    def spread(self, values: jax.Array, settings: int) -> jax.Array:
        """`values[c, group[p]]`."""
        if self.group is not None:
            return values[:, self.group]
        return jnp.broadcast_to(values, (values.shape[0], settings))


def _at(table: jax.Array, index: jax.Array, begin: jax.Array) -> jax.Array:
    begin = begin.reshape(*(1,) * (index.ndim - 2), *begin.shape)
    at = jnp.maximum(index, 0) + begin
    return table.reshape(-1).at[at].get(mode="promise_in_bounds")


def step(
    params: RouterParams,
    world: World,
    fetch: Fetch,
    uses: Uses,
    state: Slots,
    now: Moment,
    by: Rates,
    cold: Cold,
) -> tuple[Slots, dict[str, jax.Array], jax.Array]:
    """One turn of C sessions under P settings.

    Args:
      params: scalars as `[1, P]` leaves, `gate_weights` `[8, 1, P]`.
      world, fetch, uses: of the whole replay.
      state: what the last turn left.
      now, by, cold: of this turn, `[C, 1]`, `[C, D]`, and `[C, D, G]` or `[C, G]` leaves.

    Returns:
      The state it leaves, what it adds to `SUMS`, `[C, P]` each, and decisions `[C, P]` int32,
      -1 where unserved.
    """
    slots, _, settings = state.resident_tokens.shape
    deployments, dtype = by.quality.shape[-1], by.quality.dtype
    is_last = jnp.arange(slots, dtype=jnp.int32)[:, None, None] == 0
    drops = world.retention.drop_on_leave > 0
    last, before = state.deployment[0], state.before
    exists = last >= 0

    def of(names: tuple[str, ...], deployment: jax.Array) -> Rates:
        found = {name: fetch.rate(getattr(by, name), deployment) for name in names}
        return _NO_RATES._replace(**found)

    if uses.ageing:
        ages = of(("ttl_s", "decay_s"), state.deployment)
        alive, idle_s = residency.alive(
            state.resident_tokens,
            now.gap_s[None],
            state.last_used_s,
            is_last,
            ttl_s=ages.ttl_s,
            decay_s=ages.decay_s,
            drop_on_leave=world.retention.drop_on_leave,
        )
    else:
        alive = jnp.where(drops & ~is_last, 0, state.resident_tokens)
    cached = residency.cached(
        alive, now.prefix_tokens[None], now.prompt_tokens[None], world.block_tokens
    )
    ignorance = 1 - params.cache_knowledge
    unknown = ignorance * (params.assumed_hit * now.full_tokens)
    believed = params.cache_knowledge[None] * cached + unknown[None]

    slot_rates = of(_SCORED, state.deployment)
    price_g = prefill_price_g(
        jax.tree.map(lambda x: x[None], params), slot_rates, believed, now.prompt_tokens[None]
    )
    score_g = fetch.score(cold.base_g, state.deployment) + price_g
    score_g += jnp.where(is_last, 0, params.switch_price_g[None])
    score_g = jnp.where(jnp.where(is_last, exists[None], alive > 0), score_g, jnp.inf)
    leave_g = fetch.spread(cold.best_g, settings) + jnp.where(exists, params.switch_price_g, 0)
    best_g = jnp.minimum(score_g.min(axis=0), leave_g)
    warm = jnp.where(score_g <= best_g[None], state.deployment.astype(dtype), deployments).min(0)
    other = jnp.where(leave_g <= best_g, fetch.spread(cold.best, settings).astype(dtype), deployments)
    wished = jnp.minimum(jnp.minimum(warm, other), deployments - 1).astype(jnp.int32)

    # The gate.
    could_stay = exists & (last != wished) & ~jnp.isinf(score_g[0])
    gap_s = params.expected_gap_s
    assumed = params.assumed_hit * jnp.minimum(now.prefix_tokens, now.before_tokens)
    left = params.cache_knowledge * alive[0] + ignorance * assumed
    left = jnp.minimum(left, now.prefix_tokens)
    stay = jnp.broadcast_to(
        now.prompt_tokens + jnp.maximum(now.predicted_output_tokens - 1, 0), left.shape
    )
    if uses.ageing:
        ttl_s, decay_s = ages.ttl_s[0], ages.decay_s[0]
        left = residency.decayed(left, gap_s, decay_s)
        left = jnp.where(idle_s[0] + gap_s > ttl_s, 0, left)
        stay = jnp.where(gap_s > ttl_s, 0, residency.decayed(stay, gap_s, decay_s))
    else:
        left = jnp.floor(left + residency.EDGE_TOKENS)
    left = jnp.where(drops, 0, left)
    history = now.prompt_tokens + now.predicted_output_tokens
    from_tokens = residency.blocks(jnp.minimum(left, history), world.block_tokens)
    to_tokens = residency.blocks(jnp.minimum(stay, history), world.block_tokens)
    here = jax.tree.map(lambda x: x[0], slot_rates)
    return_g = prefill_price_g(params, here, from_tokens, to_tokens, floored=False)
    gain_g = score_g[0] - best_g
    whole_g = score_g[0] + fetch.spread(cold.offset_g, settings)
    logit = params.gate_bias
    if uses.features:
        logit = logit + _weighed(params, fetch, now, by, state, wished, gain_g, whole_g)
    stays = could_stay & (
        (gain_g < params.gate_strength * jax.nn.sigmoid(logit) * return_g)
        | (gain_g < params.hysteresis * whole_g)
        | (params.always_stay > 0)
    )
    chosen = jnp.where(stays, last, wished)

    # The bill.
    holds = state.deployment == chosen[None]
    found = jnp.where(holds, cached, 0).max(axis=0)
    site = of(_BILLED, chosen)
    served = now.served
    u, x = prefilled(found, now.prompt_tokens)
    again_u, again_x = prefilled(found, now.full_tokens)
    prefill_s = site.prefill_s_u * u + site.prefill_s_x * x
    energy_kwh = (site.energy_kwh_u * u + site.energy_kwh_x * x) + site.decode_kwh
    ttft_s = site.start_s + jnp.maximum(site.ttft_floor_s, prefill_s)
    e2e_s = ttft_s + site.decode_s
    moved = served & exists & (chosen != last)
    returned = moved & (chosen == before)
    bill = {
        "carbon_prefill_g": site.prefill_g_u * u + site.prefill_g_x * x,
        "carbon_rebuild_g": (site.prefill_g_u * again_u + site.prefill_g_x * again_x)
        + (site.embodied_g_u * again_u + site.embodied_g_x * again_x),
        "carbon_decode_g": site.decode_g,
        "carbon_embodied_g": (site.embodied_g_u * u + site.embodied_g_x * x)
        + site.decode_embodied_g,
        "energy_kwh": energy_kwh,
        "water_l": energy_kwh * site.water_l_per_kwh,
        "cost_usd": energy_kwh * site.price_usd_per_kwh,
        "ttft_s": ttft_s,
        "e2e_s": e2e_s,
        "quality": site.quality,
        "rebuilt_tokens": now.full_tokens - found,
    }
    added = {name: jnp.where(served, value, 0) for name, value in bill.items()}
    added |= {"moves": moved.astype(dtype), "returns": returned.astype(dtype)}

    # What is left.
    kept = jnp.minimum(alive, now.prefix_tokens[None])
    others = jnp.arange(1, slots, dtype=dtype)[:, None, None]
    rank = jnp.where(holds[1:], 0, jnp.where(kept[1:] > 0, slots, others))
    least = rank.min(axis=0, initial=slots)
    to = moved[None] & (rank == least[None]) & (rank < slots)
    lost = moved & (least == slots) & (kept[0] > 0) & ~drops

    def settled_in(old: jax.Array, own: jax.Array) -> jax.Array:
        """A slot's values, with the last deployment's put where there is room for them."""
        rest = jnp.where(to, old[:1], old[1:])
        return jnp.concatenate([jnp.where(served, own, old[0])[None], rest])

    return (
        Slots(
            deployment=settled_in(state.deployment, chosen),
            resident_tokens=settled_in(kept, jnp.broadcast_to(now.context_tokens, chosen.shape)),
            last_used_s=(
                settled_in(state.last_used_s - now.gap_s[None], e2e_s) if uses.ageing else None
            ),
            before=jnp.where(moved, last, before),
            moves=state.moves + added["moves"],
            returns=state.returns + added["returns"],
            overflow=jnp.maximum(state.overflow, lost.astype(dtype)),
        ),
        added,
        jnp.where(served, chosen, -1),
    )


_NO_RATES = Rates(*([None] * len(Rates._fields)))

_SCORED = (
    *("prefill_g_u", "prefill_g_x", "embodied_g_u", "embodied_g_x"),
    *("prefill_s_u", "prefill_s_x", "ttft_floor_s"),
)

_BILLED = (
    *_SCORED,
    *("energy_kwh_u", "energy_kwh_x", "decode_g", "decode_embodied_g", "decode_kwh", "decode_s"),
    *("start_s", "water_l_per_kwh", "price_usd_per_kwh", "quality"),
)


def _weighed(
    params: RouterParams,
    fetch: Fetch,
    now: Moment,
    by: Rates,
    state: Slots,
    wished: jax.Array,
    gain_g: jax.Array,
    whole_g: jax.Array,
) -> jax.Array:
    """`gate.features` of a move to `wished`, weighed, `[C, P]`."""
    last, dtype = state.deployment[0], gain_g.dtype

    def both(name: str) -> tuple[jax.Array, jax.Array]:
        table = getattr(by, name)
        return fetch.rate(table, last), fetch.rate(table, wished)

    scored = whole_g > 0
    (model, model_there), (region, region_there) = both("model"), both("region")
    (trend, trend_there), (quality, quality_there) = both("log_intensity_change"), both("quality")
    features = (
        jnp.where(scored, gain_g / jnp.where(scored, whole_g, 1), 0),
        (model != model_there).astype(dtype),
        (region != region_there).astype(dtype),
        trend - trend_there,
        jnp.log1p(now.turn),
        jnp.log1p(now.prefix_tokens / now.new_tokens),
        state.returns / jnp.maximum(state.moves, 1),
        quality - quality_there,
    )
    weighed = zip(params.gate_weights, features, strict=True)
    return sum((weight * feature for weight, feature in weighed), jnp.zeros_like(gain_g))
