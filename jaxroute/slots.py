"""The replay of many settings at once, each of which knows only where it has been.

A deployment without resident tokens costs every setting of a group the same, so `jaxroute.cold`
prices all D of them once a turn; a setting prices only the K deployments that hold tokens of the
session, its slots, and takes the least of these and of the cold ones. A resident deployment is
never dearer than itself cold, so that this is the least of all. Slot 0 is the last deployment.
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxroute import residency
from jaxroute.cold import Cold, prefilled
from jaxroute.moments import Moment, Uses
from jaxroute.policies import RouterParams
from jaxroute.slot_gate import Caches, rebuild_price_g, weighed_features
from jaxroute.tables import Tables
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
    caches = _caches(world, uses, tables, state, now)
    chosen = _chosen(params, world, uses, tables, state, now, cold, caches)
    holds = [
        (deployment == chosen) & (tokens > 0)
        for deployment, tokens in zip(state.deployment, caches.alive, strict=True)
    ]
    found = jnp.zeros_like(chosen)
    for here, tokens in zip(holds, caches.cached, strict=True):
        found = jnp.where(here, tokens, found)
    added = _bill(tables, now, chosen, tables.held(found))
    return _left(world, tables, state, now, caches, chosen, holds, added["e2e_s"]), added


def _caches(world: World, uses: Uses, tables: Tables, state: Slots, now: Moment) -> Caches:
    """As `residency.alive` and `residency.cached`, slot by slot."""
    drops, alive, idle_s = world.retention.drop_on_leave, [], []
    for k, tokens in enumerate(state.resident_tokens):
        if uses.ageing:
            site = tables.sites(state.deployment[k])
            tokens, idle = residency.alive(
                tokens,
                now.gap_s,
                state.last_used_s[k],
                jnp.bool_(k == 0),
                ttl_s=site.ttl_s,
                decay_s=site.decay_s,
                drop_on_leave=drops,
            )
            tokens = tables.held(tokens)
            idle_s.append(idle)
        elif k > 0:
            tokens = jnp.where(drops > 0, 0, tokens)
        alive.append(tokens)
    cached = [
        residency.cached(tokens, now.prefix_tokens, now.prompt_tokens, world.block_tokens)
        for tokens in alive
    ]
    return Caches(alive, cached, idle_s)


def _chosen(
    params: RouterParams,
    world: World,
    uses: Uses,
    tables: Tables,
    state: Slots,
    now: Moment,
    cold: Cold,
    caches: Caches,
) -> jax.Array:
    """The deployment of the least score, or the last one if the gate keeps it, `[C, P]`."""
    last, exists = state.deployment[0], state.exists
    scores_g = []
    for k, deployment in enumerate(state.deployment):
        believed = caches.cached[k]
        if uses.blind:
            unknown = (1 - params.cache_knowledge) * (params.assumed_hit * now.full_tokens)
            believed = params.cache_knowledge * believed + unknown
        score_g = tables.score_g(params, uses, deployment, believed, now.prompt_tokens)
        score_g = score_g if k == 0 else score_g + params.switch_price_g
        scores_g.append(jnp.where(exists if k == 0 else caches.alive[k] > 0, score_g, jnp.inf))
    best_g = cold.best_g + jnp.where(exists, params.switch_price_g, 0)
    wished = jnp.broadcast_to(cold.best, last.shape)
    for score_g, deployment in zip(scores_g, state.deployment, strict=True):
        wins = (score_g < best_g) | ((score_g == best_g) & (deployment < wished))
        best_g, wished = jnp.where(wins, score_g, best_g), jnp.where(wins, deployment, wished)

    gain_g, whole_g = scores_g[0] - best_g, scores_g[0] + cold.offset_g
    logit = params.gate_bias
    if uses.features:
        returned = state.returns / jnp.maximum(state.moves, 1)
        logit = logit + weighed_features(
            params, tables, now, last, wished, gain_g, whole_g, returned
        )
    return_g = rebuild_price_g(params, world, uses, tables, last, now, caches)
    could_stay = exists & (last != wished) & ~jnp.isinf(scores_g[0])
    stays = could_stay & (
        (gain_g < params.gate_strength * jax.nn.sigmoid(logit) * return_g)
        | (gain_g < params.hysteresis * whole_g)
        | (params.always_stay > 0)
    )
    return tables.held(jnp.where(stays, last, wished))


def _bill(tables: Tables, now: Moment, chosen: jax.Array, found: jax.Array) -> dict[str, jax.Array]:
    """`footprint.bill` at the chosen deployments, with `found` tokens cached there."""
    rate, site = tables.rates(chosen), tables.sites(chosen)
    u, x = prefilled(found, now.prompt_tokens)
    again_u, again_x = prefilled(found, now.full_tokens)
    prefill_s = rate.prefill_s_u * u + rate.prefill_s_x * x
    prefill_kwh = tables.held(rate.prefill_kwh_u * u + rate.prefill_kwh_x * x)
    energy_kwh = prefill_kwh + site.decode_kwh
    ttft_s = tables.held(site.start_s + jnp.maximum(rate.ttft_floor_s, prefill_s))
    again_kwh = rate.prefill_kwh_u * again_u + rate.prefill_kwh_x * again_x
    bill = {
        "carbon_prefill_g": prefill_kwh * site.g_per_kwh,
        "carbon_rebuild_g": again_kwh * site.g_per_kwh
        + (rate.embodied_g_u * again_u + rate.embodied_g_x * again_x),
        "carbon_decode_g": site.decode_kwh * site.g_per_kwh,
        "carbon_embodied_g": (rate.embodied_g_u * u + rate.embodied_g_x * x)
        + rate.embodied_g_per_s * site.decode_s,
        "energy_kwh": energy_kwh,
        "water_l": energy_kwh * rate.water_l_per_kwh,
        "cost_usd": energy_kwh * rate.price_usd_per_kwh,
        "ttft_s": ttft_s,
        "e2e_s": ttft_s + site.decode_s,
        "quality": site.quality,
        "rebuilt_tokens": now.full_tokens - found,
    }
    return {name: jnp.where(now.served, value, 0) for name, value in bill.items()}


def _left(
    world: World,
    tables: Tables,
    state: Slots,
    now: Moment,
    caches: Caches,
    chosen: jax.Array,
    holds: list[jax.Array],
    e2e_s: jax.Array,
) -> Slots:
    """The state after a turn: the slot of the chosen, or a free one, takes the last deployment."""
    slots, last, dtype = len(state.deployment), state.deployment[0], chosen.dtype
    moved = now.served & state.exists & (chosen != last)
    kept = [jnp.minimum(tokens, now.prefix_tokens) for tokens in caches.alive]
    place = jnp.full_like(last, slots)
    for k in range(slots - 1, 0, -1):
        place = jnp.where(kept[k] > 0, place, k)
    for k in range(1, slots):
        place = jnp.where(holds[k], k, place)
    place = tables.held(jnp.where(moved, place, 0))
    lost = (place == slots) & (kept[0] > 0) & (world.retention.drop_on_leave <= 0)

    def moved_in(values: Sequence[jax.Array], own: jax.Array) -> tuple[jax.Array, ...]:
        rest = [jnp.where(place == k, values[0], values[k]) for k in range(1, slots)]
        return (jnp.where(now.served, own, values[0]), *rest)

    used_s = [used - now.gap_s for used in state.last_used_s]
    return Slots(
        deployment=moved_in(state.deployment, chosen),
        resident_tokens=moved_in(kept, now.context_tokens),
        last_used_s=moved_in(used_s, e2e_s) if used_s else (),
        before=jnp.where(moved, last, state.before),
        moves=state.moves + moved.astype(dtype),
        returns=state.returns + (moved & (chosen == state.before)).astype(dtype),
        overflow=jnp.maximum(state.overflow, lost.astype(dtype)),
        exists=state.exists | now.served,
    )
