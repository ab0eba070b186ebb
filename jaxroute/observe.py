"""A turn as a policy sees it: the tables of the moment, the caches, the filtered scores."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxroute import footprint, policies, residency
from jaxroute.numerics import as_table, where_tree
from jaxroute.policies import Observation, Policy, RouterParams, Site
from jaxroute.sessions import Turn
from jaxroute.world import TIME_BINS, Array, World

LEAST_INTENSITY = 1e-9
"""g/kWh; keeps the logarithm of a carbon-free hour finite."""


class State(NamedTuple):
    """What a session carries from turn to turn; `last_used_s` counts from the last arrival."""

    resident_tokens: Array
    last_used_s: Array
    last: Array
    before: Array
    context_tokens: Array
    moves: Array
    returns: Array
    policy: Any


def opening(params: RouterParams, policy: Policy, deployments: int, dtype) -> State:
    """The state of a session before its first turn."""
    zero = jnp.zeros((), dtype)
    return State(
        resident_tokens=jnp.zeros(deployments, dtype),
        last_used_s=jnp.zeros(deployments, dtype),
        last=jnp.int32(-1),
        before=jnp.int32(-1),
        context_tokens=zero,
        moves=zero,
        returns=zero,
        policy=policy.init(params),
    )


def settled(turn: Turn) -> Turn:
    """A turn as it counts: without the junk of padding, and of one new token at least."""
    turn = where_tree(turn.valid, turn, jax.tree.map(jnp.zeros_like, turn))
    return dataclasses.replace(turn, new_tokens=jnp.maximum(turn.new_tokens, 1))


def site_at(world: World, turn: Turn) -> Site:
    """The rows of the world's tables that hold at a turn, spread over the deployments `[D]`."""
    region = world.fleet.region
    last_hour = world.intensity_g_per_kwh.shape[0] - 1

    def at_bin(table: Array) -> jax.Array:
        row = table[turn.time_bin * table.shape[0] // TIME_BINS]
        return jnp.broadcast_to(row, region.shape)

    now = world.intensity_g_per_kwh[turn.hour]
    following = world.intensity_g_per_kwh[jnp.minimum(turn.hour + 1, last_hour)]
    ratio = jnp.maximum(following, LEAST_INTENSITY) / jnp.maximum(now, LEAST_INTENSITY)
    return Site(
        fleet=world.fleet,
        pue=world.pue[region],
        water_l_per_kwh=footprint.water_l_per_kwh(world)[region],
        price_usd_per_kwh=world.price_usd_per_kwh[region],
        kappa_g_per_kwh=(world.pue * now)[region],
        log_intensity_change=jnp.log(ratio)[region],
        rtt_s=world.rtt_s[turn.home][region],
        wait_s=at_bin(world.wait_s),
        ttl_s=at_bin(world.retention.ttl_s),
        decay_s=at_bin(world.retention.decay_s),
        quality=turn.quality[world.fleet.model],
    )


class Truth(NamedTuple):
    """What the bill needs of a turn and no policy is told."""

    cached_tokens: Array
    full_tokens: Array
    mask_fallback: Array
    quality_fallback: Array
    ttft_fallback: Array


def observe(
    params: RouterParams, world: World, allowed: jax.Array, state: State, turn: Turn
) -> tuple[Observation, Truth]:
    """A turn as the policy believes it, and the truth beside it."""
    site = site_at(world, turn)
    fleet, drop_on_leave = world.fleet, world.retention.drop_on_leave
    prompt = turn.prefix_tokens + turn.new_tokens
    is_last = jnp.arange(fleet.model.shape[0], dtype=jnp.int32) == state.last

    alive, idle_s = residency.alive(
        state.resident_tokens,
        turn.gap_s,
        state.last_used_s,
        is_last,
        ttl_s=site.ttl_s,
        decay_s=site.decay_s,
        drop_on_leave=drop_on_leave,
    )
    cached = residency.cached(alive, turn.prefix_tokens, prompt, world.block_tokens)
    full = residency.cached(state.context_tokens, turn.prefix_tokens, prompt, world.block_tokens)
    knowledge = params.cache_knowledge
    believed = knowledge * cached + (1 - knowledge) * (params.assumed_hit * full)

    prefill_j, prefill_s = footprint.prefill(fleet, believed, prompt)
    decode_j, decode_s = footprint.decode(fleet, prompt, turn.predicted_output_tokens)
    busy_s = prefill_s + decode_s / fleet.batch
    gpu_j = prefill_j + decode_j
    operational_g = footprint.operational_g(fleet, gpu_j, busy_s, site.kappa_g_per_kwh)
    embodied_g = footprint.embodied_g(fleet, busy_s)
    ttft_s = site.rtt_s + site.wait_s + jnp.maximum(fleet.ttft_floor_s, prefill_s)
    e2e_s = ttft_s + decode_s

    hard = prompt + turn.predicted_output_tokens <= fleet.max_context_tokens
    eligible, mask_fails, quality_fails = policies.eligible(params, hard, allowed, site.quality)
    feasible, ttft_fails = policies.within_slo(params, eligible, ttft_s)
    score_g, offset_g = policies.score(
        params,
        eligible,
        site,
        moves_away=(state.last >= 0) & ~is_last,
        operational_g=operational_g,
        embodied_g=embodied_g,
        e2e_s=e2e_s,
        noise=turn.noise,
    )
    observation = Observation(
        turn=turn.turn,
        prompt_tokens=prompt,
        prefix_tokens=turn.prefix_tokens,
        new_tokens=turn.new_tokens,
        predicted_output_tokens=turn.predicted_output_tokens,
        context_tokens=state.context_tokens,
        last=state.last,
        before=state.before,
        moves=state.moves,
        returns=state.returns,
        drop_on_leave=drop_on_leave,
        block_tokens=world.block_tokens,
        site=site,
        site_table=as_table(site),
        alive_tokens=alive,
        cached_tokens=believed,
        idle_s=idle_s,
        ttft_s=ttft_s,
        e2e_s=e2e_s,
        operational_g=operational_g,
        embodied_g=embodied_g,
        feasible=feasible,
        score_g=jnp.where(feasible, score_g, jnp.inf),
        score_offset_g=offset_g,
    )
    return observation, Truth(cached, full, mask_fails, quality_fails, ttft_fails)
