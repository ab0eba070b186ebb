"""The replay of many settings at once, each of which knows only where it has been.

A deployment without resident tokens costs every setting of a group the same, so `jaxroute.cold`
prices all D of them once a turn; a setting prices only the K deployments that hold tokens of the
session, its slots, and takes the least of these and of the cold ones. A resident deployment is
never dearer than itself cold, so that this is the least of all. Slot 0 is the last deployment.
"""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxroute import residency
from jaxroute.cold import Cold, Moment, Rates, Site, Uses, prefill_g, prefilled, wait_g
from jaxroute.policies import RouterParams
from jaxroute.world import World

SUMS = (
    *("carbon_prefill_g", "carbon_rebuild_g", "carbon_decode_g", "carbon_embodied_g"),
    *("energy_kwh", "water_l", "cost_usd", "ttft_s", "e2e_s", "quality", "rebuilt_tokens"),
    *("moves", "returns"),
)
"""What a setting adds up by session; the rest of `Totals` is the same for a group of settings."""


class Slots(NamedTuple):
    """What P settings carry from turn to turn of C sessions; every array is `[C, P]`.

    Deployments are numbered `c D + d`, so that the C sessions share their tables, and as floats,
    exact below 2**24.

    Attributes:
      deployment: of each of the K slots; the first is the last deployment.
      resident_tokens: of each slot, 0 in one that is free.
      last_used_s: of each slot, from the last arrival; empty where no cache ages.
      before: the deployment before the last move, -1 for none.
      moves, returns: of the session so far.
      overflow: 1 once tokens had to be forgotten for want of a slot.
      exists: `[C, 1]` bool, whether a turn of the session was served.
    """

    deployment: tuple[jax.Array, ...]
    resident_tokens: tuple[jax.Array, ...]
    last_used_s: tuple[jax.Array, ...]
    before: jax.Array
    moves: jax.Array
    returns: jax.Array
    overflow: jax.Array
    exists: jax.Array


def opening(slots: int, shape: tuple[int, int], dtype: jnp.dtype, uses: Uses) -> Slots:
    """No tokens anywhere; `shape` is `(C, P)`."""
    nothing = jnp.zeros(shape, dtype)
    return Slots(
        deployment=(nothing,) * slots,
        resident_tokens=(nothing,) * slots,
        last_used_s=(nothing,) * (slots if uses.ageing else 0),
        before=nothing - 1,
        moves=nothing,
        returns=nothing,
        overflow=nothing,
        exists=jnp.zeros((shape[0], 1), bool),
    )


class Tables(NamedTuple):
    """A turn's tables, `[C D]` and `[C D G]`, looked up by deployment for every setting.

    Attributes:
      by, site: leaves `[C D]`.
      cold: its leaves by deployment `[C D G]`.
      group: `[1, P]`, of each setting, as a float.
      groups: G.
      one: 1, but XLA does not know it.
    """

    by: Rates
    site: Site
    cold: Cold
    group: jax.Array
    groups: int
    one: jax.Array

    def held(self, values: jax.Array) -> jax.Array:
        """`values`, computed once.

        XLA's CPU back end repeats what it takes for cheap in every kernel that reads it, but never
        a division.
        """
        return values / self.one

    def rates(self, deployment: jax.Array) -> Rates:
        """The rates at each setting's deployment; those that are not read cost nothing."""
        return jax.tree.map(lambda table: _at(table, deployment), self.by)

    def sites(self, deployment: jax.Array) -> Site:
        """The site at each setting's deployment; what is not read costs nothing."""
        return jax.tree.map(lambda table: _at(table, deployment), self.site)

    def scores(self, name: str, deployment: jax.Array) -> jax.Array:
        """A table of `cold` at each setting's deployment and for its group."""
        at = deployment if self.groups == 1 else deployment * self.groups + self.group
        return _at(getattr(self.cold, name), at)

    def prefill_price_g(
        self,
        params: RouterParams,
        uses: Uses,
        deployment: jax.Array,
        cached: jax.Array,
        upto: jax.Array,
        *,
        floored: bool,
    ) -> jax.Array:
        """What a score charges for a prefill at each setting's deployment, g."""
        u, x = prefilled(cached, upto)
        rate = self.rates(deployment)
        if self.cold.u_g is None:
            u_g, x_g = prefill_g(params, rate, self.sites(deployment).g_per_kwh)
        else:
            u_g, x_g = self.scores("u_g", deployment), self.scores("x_g", deployment)
        price_g = u_g * u + x_g * x
        return price_g + wait_g(params, rate, u, x, floored=floored) if uses.latency else price_g


def _at(table: jax.Array, deployment: jax.Array) -> jax.Array:
    index = deployment.astype(jnp.int32)
    return table.at[index].get(mode="promise_in_bounds", wrap_negative_indices=False)


def step(
    params: RouterParams,
    world: World,
    uses: Uses,
    tables: Tables,
    state: Slots,
    now: Moment,
    cold: Cold,
) -> tuple[Slots, dict[str, jax.Array]]:
    """One turn of C sessions under P settings.

    Args:
      params: scalars as `[1, P]` leaves, `gate_weights` `[8, 1, P]`.
      world, uses: of the whole replay.
      tables: of this turn.
      state: what the last turn left.
      now: of this turn, `[C, 1]` leaves.
      cold: of this turn, `[C, P]` leaves, or `[C, 1]` for one group.

    Returns:
      The state it leaves, and what it adds to `SUMS`, `[C, P]` each, but for the moves and returns,
      which the state counts.
    """
    slots, held = len(state.deployment), tables.held
    drops = world.retention.drop_on_leave > 0
    last, before, exists = state.deployment[0], state.before, state.exists
    dtype = last.dtype

    # What is left of the caches, and what it is worth.
    alive, idle_s = [], []
    for k, tokens in enumerate(state.resident_tokens):
        if uses.ageing:
            tokens, idle = residency.alive(
                tokens,
                now.gap_s,
                state.last_used_s[k],
                jnp.bool_(k == 0),
                ttl_s=tables.sites(state.deployment[k]).ttl_s,
                decay_s=tables.sites(state.deployment[k]).decay_s,
                drop_on_leave=world.retention.drop_on_leave,
            )
            tokens = held(tokens)
            idle_s.append(idle)
        elif k > 0:
            tokens = jnp.where(drops, 0, tokens)
        alive.append(tokens)
    cached = [
        residency.cached(tokens, now.prefix_tokens, now.prompt_tokens, world.block_tokens)
        for tokens in alive
    ]
    ignorance = 1 - params.cache_knowledge
    scores_g = []
    for k, deployment in enumerate(state.deployment):
        believed = cached[k]
        if uses.blind:
            unknown = ignorance * (params.assumed_hit * now.full_tokens)
            believed = params.cache_knowledge * believed + unknown
        score_g = tables.scores("base_g", deployment) + tables.prefill_price_g(
            params, uses, deployment, believed, now.prompt_tokens, floored=True
        )
        score_g = score_g if k == 0 else score_g + params.switch_price_g
        scores_g.append(jnp.where(exists if k == 0 else alive[k] > 0, score_g, jnp.inf))
    stay_g, leave_g = scores_g[0], cold.best_g + jnp.where(exists, params.switch_price_g, 0)
    best_g, wished = leave_g, jnp.broadcast_to(cold.best, last.shape)
    for score_g, deployment in zip(scores_g, state.deployment, strict=True):
        wins = (score_g < best_g) | ((score_g == best_g) & (deployment < wished))
        best_g, wished = jnp.where(wins, score_g, best_g), jnp.where(wins, deployment, wished)

    # The gate.
    gap_s = params.expected_gap_s
    here, left = tables.sites(last), alive[0]
    if uses.blind:
        assumed = params.assumed_hit * jnp.minimum(now.prefix_tokens, now.before_tokens)
        left = params.cache_knowledge * left + ignorance * assumed
    left = jnp.minimum(left, now.prefix_tokens)
    stay = now.prompt_tokens + jnp.maximum(now.predicted_output_tokens - 1, 0)
    if uses.ageing:
        left = residency.decayed(left, gap_s, here.decay_s)
        left = jnp.where(idle_s[0] + gap_s > here.ttl_s, 0, left)
        stay = residency.decayed(jnp.broadcast_to(stay, last.shape), gap_s, here.decay_s)
        stay = jnp.where(gap_s > here.ttl_s, 0, stay)
    else:
        left = jnp.floor(left + residency.EDGE_TOKENS)
    left = jnp.where(drops, 0, left)
    history = now.prompt_tokens + now.predicted_output_tokens
    from_tokens = residency.blocks(jnp.minimum(left, history), world.block_tokens)
    to_tokens = residency.blocks(jnp.minimum(stay, history), world.block_tokens)
    return_g = tables.prefill_price_g(params, uses, last, from_tokens, to_tokens, floored=False)
    gain_g = stay_g - best_g
    whole_g = stay_g + cold.offset_g
    logit = params.gate_bias
    if uses.features:
        logit = logit + _weighed(params, tables, now, state, wished, gain_g, whole_g)
    could_stay = exists & (last != wished) & ~jnp.isinf(stay_g)
    stays = could_stay & (
        (gain_g < params.gate_strength * jax.nn.sigmoid(logit) * return_g)
        | (gain_g < params.hysteresis * whole_g)
        | (params.always_stay > 0)
    )
    chosen = held(jnp.where(stays, last, wished))

    # The bill.
    holds = [
        (deployment == chosen) & (tokens > 0)
        for deployment, tokens in zip(state.deployment, alive, strict=True)
    ]
    found = functools.reduce(
        lambda a, b: jnp.where(b[0], b[1], a), zip(holds, cached, strict=True), 0
    )
    found, served = held(found), now.served
    u, x = prefilled(found, now.prompt_tokens)
    again_u, again_x = prefilled(found, now.full_tokens)
    rate, site = tables.rates(chosen), tables.sites(chosen)
    prefill_s = rate.prefill_s_u * u + rate.prefill_s_x * x
    prefill_kwh = held(rate.prefill_kwh_u * u + rate.prefill_kwh_x * x)
    energy_kwh = prefill_kwh + site.decode_kwh
    ttft_s = held(site.start_s + jnp.maximum(rate.ttft_floor_s, prefill_s))
    e2e_s = ttft_s + site.decode_s
    moved = served & exists & (chosen != last)
    returned = moved & (chosen == before)
    bill = {
        "carbon_prefill_g": prefill_kwh * site.g_per_kwh,
        "carbon_rebuild_g": (rate.prefill_kwh_u * again_u + rate.prefill_kwh_x * again_x)
        * site.g_per_kwh
        + (rate.embodied_g_u * again_u + rate.embodied_g_x * again_x),
        "carbon_decode_g": site.decode_kwh * site.g_per_kwh,
        "carbon_embodied_g": (rate.embodied_g_u * u + rate.embodied_g_x * x)
        + rate.embodied_g_per_s * site.decode_s,
        "energy_kwh": energy_kwh,
        "water_l": energy_kwh * rate.water_l_per_kwh,
        "cost_usd": energy_kwh * rate.price_usd_per_kwh,
        "ttft_s": ttft_s,
        "e2e_s": e2e_s,
        "quality": site.quality,
        "rebuilt_tokens": now.full_tokens - found,
    }
    added = {name: jnp.where(served, value, 0) for name, value in bill.items()}

    # What is left: the slot of the chosen, or a free one, takes the last deployment in.
    kept = [jnp.minimum(tokens, now.prefix_tokens) for tokens in alive]
    place = jnp.full_like(last, slots)
    for k in range(slots - 1, 0, -1):
        place = jnp.where(kept[k] > 0, place, k)
    for k in range(1, slots):
        place = jnp.where(holds[k], k, place)
    place = held(jnp.where(moved, place, 0))
    lost = (place == slots) & (kept[0] > 0) & ~drops

    def moved_in(values: Sequence[jax.Array], own: jax.Array) -> tuple[jax.Array, ...]:
        rest = [jnp.where(place == k, values[0], values[k]) for k in range(1, slots)]
        return (jnp.where(served, own, values[0]), *rest)

    used_s = [used - now.gap_s for used in state.last_used_s]
    left_state = Slots(
        deployment=moved_in(state.deployment, chosen),
        resident_tokens=moved_in(kept, now.context_tokens),
        last_used_s=moved_in(used_s, e2e_s) if uses.ageing else (),
        before=jnp.where(moved, last, before),
        moves=state.moves + moved.astype(dtype),
        returns=state.returns + returned.astype(dtype),
        overflow=jnp.maximum(state.overflow, lost.astype(dtype)),
        exists=exists | served,
    )
    return left_state, added


def _weighed(
    params: RouterParams,
    tables: Tables,
    now: Moment,
    state: Slots,
    wished: jax.Array,
    gain_g: jax.Array,
    whole_g: jax.Array,
) -> jax.Array:
    """`gate.features` of a move to `wished`, weighed, `[C, P]`."""
    last, dtype = state.deployment[0], gain_g.dtype

    scored, here, there = whole_g > 0, tables.sites(last), tables.sites(wished)
    here_at, there_at = tables.rates(last), tables.rates(wished)
    features = (
        jnp.where(scored, gain_g / jnp.where(scored, whole_g, 1), 0),
        (here_at.model != there_at.model).astype(dtype),
        (here_at.region != there_at.region).astype(dtype),
        here.trend - there.trend,
        jnp.log1p(now.turn),
        jnp.log1p(now.prefix_tokens / now.new_tokens),
        state.returns / jnp.maximum(state.moves, 1),
        here.quality - there.quality,
    )
    weighed = zip(params.gate_weights, features, strict=True)
    return sum((weight * feature for weight, feature in weighed), jnp.zeros_like(gain_g))
