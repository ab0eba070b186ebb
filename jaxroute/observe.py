"""A turn as a policy sees it: the tables of the moment, the caches, the filtered scores."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxroute import footprint, policies, residency
from jaxroute.numerics import as_table, row_as, where_tree
from jaxroute.policies import Observation, Policy, RouterParams, Site
from jaxroute.sessions import Turn
from jaxroute.world import TIME_BINS, Array, Congestion, Fleet, World

LEAST_INTENSITY = 1e-9
"""g/kWh; keeps the logarithm of a carbon-free hour finite."""

DECODING = tuple(
    field.name for field in dataclasses.fields(Congestion) if field.name in Fleet.__annotations__
)
"""Fields of a fleet that load changes."""


class State(NamedTuple):
    """What a session carries from turn to turn; `last_used_s` counts from the last arrival.

    `alive_tokens` are those that the last turn found on arrival, None where no belief needs them.
    """

    resident_tokens: Array
    alive_tokens: Array | None
    last_used_s: Array
    last: Array
    before: Array
    context_tokens: Array
    moves: Array
    returns: Array
    policy: Any


def opening(params: RouterParams, policy: Policy, world: World) -> State:
    """The state of a session before its first turn."""
    nowhere = jnp.zeros_like(world.fleet.pre_j)
    zero = jnp.zeros((), nowhere.dtype)
    return State(
        resident_tokens=nowhere,
        alive_tokens=None if world.belief is None else nowhere,
        last_used_s=nowhere,
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


def _at_bin(world: World, table: Array, turn: Turn) -> jax.Array:
    """The row of a table `[B, D]`, or broadcastable, that holds at a turn, `[D]`."""
    row = table[turn.time_bin * table.shape[0] // TIME_BINS]
    return jnp.broadcast_to(row, world.fleet.region.shape)


def site_at(world: World, turn: Turn) -> Site:
    """The rows of the world's tables that hold at a turn, spread over the deployments `[D]`."""
    region, at_bin = world.fleet.region, functools.partial(_at_bin, world, turn=turn)
    kappa, trend = _grid(world, world.intensity_g_per_kwh, turn)
    return Site(
        fleet=world.fleet,
        pue=world.pue[region],
        water_l_per_kwh=footprint.water_l_per_kwh(world)[region],
        price_usd_per_kwh=world.price_usd_per_kwh[region],
        kappa_g_per_kwh=kappa,
        log_intensity_change=trend,
        rtt_s=world.rtt_s[turn.home][region],
        wait_s=at_bin(world.wait_s),
        ttl_s=at_bin(world.retention.ttl_s),
        decay_s=at_bin(world.retention.decay_s),
        quality=turn.quality[world.fleet.model],
    )


def _grid(world: World, g_per_kwh: Array, turn: Turn) -> tuple[jax.Array, jax.Array]:
    """PUE x intensity of a turn's hour, and the log of the next hour's over this one's: `[D]`."""
    now = g_per_kwh[turn.hour]
    following = g_per_kwh[jnp.minimum(turn.hour + 1, g_per_kwh.shape[0] - 1)]
    ratio = jnp.maximum(following, LEAST_INTENSITY) / jnp.maximum(now, LEAST_INTENSITY)
    region = world.fleet.region
    return (world.pue * now)[region], jnp.log(ratio)[region]


def believed_site(world: World, site: Site, turn: Turn) -> Site:
    """The deployments at a turn as the router takes them to be; `site` is what they are."""
    if world.belief is None:
        return site
    kappa, trend = _grid(world, world.belief.intensity_g_per_kwh, turn)
    return site._replace(
        fleet=world.belief.fleet, kappa_g_per_kwh=kappa, log_intensity_change=trend
    )


def crowded(params: RouterParams, world: World, site: Site, turn: Turn) -> Site:
    """The deployments with the waits that the router sees of them, and their caches' lifetimes."""
    if world.congestion is None:
        return site
    seen_s, ttl_s = (
        _at_bin(world, table, turn)
        for table in (world.congestion.seen_wait_s, world.congestion.ttl_s)
    )
    return site._replace(
        wait_s=params.wait_knowledge * seen_s, ttl_s=jnp.minimum(site.ttl_s, ttl_s)
    )


def site_served(world: World, truth: "Truth", turn: Turn, deployment: jax.Array) -> Site:
    """The deployment that serves a turn, as load has it, `[]` leaves."""
    site = row_as(truth.site, truth.site_table[deployment])
    if world.congestion is None:
        return site

    def at(table: Array) -> jax.Array:
        return table[turn.time_bin * table.shape[0] // TIME_BINS, deployment]

    decoding = {name: at(getattr(world.congestion, name)) for name in DECODING}
    fleet = dataclasses.replace(site.fleet, **decoding)
    return site._replace(fleet=fleet, wait_s=at(world.congestion.wait_s))


class Report(NamedTuple):
    """What the router is told of the caches, `[D]` each; the names are those of `Observation`.

    `usable_tokens` are those of the alive that would serve the prompt.
    """

    knowledge: Array
    alive_tokens: Array
    usable_tokens: Array


def reported(
    params: RouterParams, world: World, state: State, turn: Turn, alive: Array, cached: Array
) -> Report:
    """The report on caches that hold `alive` tokens, of which `cached` are usable, `[D]` each."""
    knowledge, belief = jnp.broadcast_to(params.cache_knowledge, alive.shape), world.belief
    if belief is None:
        return Report(knowledge, alive, cached)
    earlier, draw = state.alive_tokens, turn.report_draw
    assert earlier is not None and draw is not None  # a replay refuses a belief without them
    told = jnp.where(belief.delayed > 0, earlier, alive)
    prompt = turn.prefix_tokens + turn.new_tokens
    usable = residency.cached(told, turn.prefix_tokens, prompt, world.block_tokens)
    return Report(
        knowledge=jnp.where(draw < belief.missing, 0, knowledge),
        alive_tokens=residency.blocks(told, belief.rounded_to_tokens),
        usable_tokens=residency.blocks(usable, belief.rounded_to_tokens),
    )


class Serving(NamedTuple):
    """What serving a turn takes at each deployment, `[D]`; named as in `Observation`."""

    ttft_s: Array
    e2e_s: Array
    operational_g: Array
    embodied_g: Array


def serving(site: Site, cached: jax.Array, prompt: jax.Array, output: jax.Array) -> Serving:
    """What a prompt with so many tokens cached and such an output take, as `site` has it."""
    fleet = site.fleet
    prefill_j, prefill_s = footprint.prefill(fleet, cached, prompt)
    decode_j, decode_s = footprint.decode(fleet, prompt, output)
    busy_s = prefill_s + decode_s / fleet.batch
    ttft_s = site.rtt_s + site.wait_s + jnp.maximum(fleet.ttft_floor_s, prefill_s)
    gpu_j = prefill_j + decode_j
    return Serving(
        ttft_s=ttft_s,
        e2e_s=ttft_s + decode_s,
        operational_g=footprint.operational_g(fleet, gpu_j, busy_s, site.kappa_g_per_kwh),
        embodied_g=footprint.embodied_g(fleet, busy_s),
    )


class Truth(NamedTuple):
    """What the bill needs of a turn and no policy is told.

    `site_table` holds the rows of `site`; the rest is `[D]`, the flags `[]`.
    """

    site: Site
    site_table: Array
    alive_tokens: Array
    cached_tokens: Array
    full_tokens: Array
    mask_fallback: Array
    quality_fallback: Array
    ttft_fallback: Array


def observe(
    params: RouterParams, world: World, allowed: jax.Array, state: State, turn: Turn
) -> tuple[Observation, Truth]:
    """A turn as the policy believes it, and the truth beside it."""
    true_site = site_at(world, turn)
    taken = believed_site(world, true_site, turn)
    site = crowded(params, world, taken, turn)
    drop_on_leave = world.retention.drop_on_leave
    prompt = turn.prefix_tokens + turn.new_tokens
    is_last = jnp.arange(allowed.shape[0], dtype=jnp.int32) == state.last

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
    report = reported(params, world, state, turn, alive, cached)
    unknown = (1 - report.knowledge) * (params.assumed_hit * full)
    believed = report.knowledge * report.usable_tokens + unknown

    expected = serving(site, believed, prompt, turn.predicted_output_tokens)

    hard = prompt + turn.predicted_output_tokens <= world.fleet.max_context_tokens
    eligible, mask_fails, quality_fails = policies.eligible(params, hard, allowed, site.quality)
    feasible, ttft_fails = policies.within_slo(params, eligible, expected.ttft_s)
    score_g, offset_g = policies.score(
        params,
        eligible,
        site,
        moves_away=(state.last >= 0) & ~is_last,
        operational_g=expected.operational_g,
        embodied_g=expected.embodied_g,
        e2e_s=expected.e2e_s,
        noise=turn.noise,
    )
    table = as_table(taken)  # without what load makes of each setting: one for all of them
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
        site_table=table,
        knowledge=report.knowledge,
        alive_tokens=report.alive_tokens,
        cached_tokens=believed,
        idle_s=idle_s,
        **expected._asdict(),
        feasible=feasible,
        score_g=jnp.where(feasible, score_g, jnp.inf),
        score_offset_g=offset_g,
    )
    true_table = table if world.belief is None else as_table(true_site)
    flags = mask_fails, quality_fails, ttft_fails
    return observation, Truth(true_site, true_table, alive, cached, full, *flags)
