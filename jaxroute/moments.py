"""What a turn is to every setting alike: its numbers, its sites, and what scores are made of.

N turns, D deployments, A sets of masks.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxroute import footprint, residency
from jaxroute.observe import LEAST_INTENSITY, settled
from jaxroute.sessions import Turn
from jaxroute.world import TIME_BINS, World


class Uses(NamedTuple):
    """What some setting makes use of; static, so that the rest costs nothing.

    Attributes:
      ageing: a finite time to live or decay.
      features: gate weights.
      latency, quality, intensity, rtt, size, noise: a price of it.
      blind: a `cache_knowledge` below 1.
    """

    ageing: bool
    features: bool
    latency: bool
    quality: bool
    intensity: bool
    rtt: bool
    size: bool
    noise: bool
    blind: bool


class Moment(NamedTuple):
    """A turn's numbers that no setting changes, `[N]` each.

    Attributes:
      valid, served: bool; of padding neither, of a turn that no deployment can hold only the first.
      turn, gap_s, prefix_tokens, new_tokens: of the turn.
      prompt_tokens, output_tokens, predicted_output_tokens: L, o and the predicted o.
      before_tokens, context_tokens: tokens with KV that the last turn left, and that this one does.
      full_tokens: what would be cached had every turn been served at the same deployment.
    """

    valid: jax.Array
    served: jax.Array
    turn: jax.Array
    gap_s: jax.Array
    prefix_tokens: jax.Array
    new_tokens: jax.Array
    prompt_tokens: jax.Array
    output_tokens: jax.Array
    predicted_output_tokens: jax.Array
    before_tokens: jax.Array
    context_tokens: jax.Array
    full_tokens: jax.Array


class Rates(NamedTuple):
    """Coefficients of each deployment that no turn changes, `[D]` each.

    Of u tokens to prefill and x of attention (`prefilled`) the energy is
    `prefill_kwh_u u + prefill_kwh_x x`, and so on.

    Attributes:
      prefill_kwh_u, prefill_kwh_x: at the meter.
      embodied_g_u, embodied_g_x, embodied_g_per_s: of prefill, and of a second of decode.
      prefill_s_u, prefill_s_x, ttft_floor_s: seconds.
      water_l_per_kwh, price_usd_per_kwh: of the region.
      model, region: their indices, as floats.
    """

    prefill_kwh_u: jax.Array
    prefill_kwh_x: jax.Array
    embodied_g_u: jax.Array
    embodied_g_x: jax.Array
    embodied_g_per_s: jax.Array
    prefill_s_u: jax.Array
    prefill_s_x: jax.Array
    ttft_floor_s: jax.Array
    water_l_per_kwh: jax.Array
    price_usd_per_kwh: jax.Array
    model: jax.Array
    region: jax.Array


class Grids(NamedTuple):
    """The world's tables by deployment, `[H, D]`, `[C, D]`, `[B, D]`; trends only for features."""

    g_per_kwh: jax.Array
    trend: Any
    rtt_s: jax.Array
    wait_s: jax.Array
    ttl_s: jax.Array
    decay_s: jax.Array


class Site(NamedTuple):
    """What of the deployments changes from turn to turn, `[N, D]` each.

    Attributes:
      g_per_kwh, trend: intensity, and the log of the next hour's over this one's.
      decode_kwh, decode_s: of the true output.
      start_s: round trip and wait.
      quality: predicted.
      ttl_s, decay_s: of a cache; None where none ages.
    """

    g_per_kwh: jax.Array
    trend: Any
    decode_kwh: jax.Array
    decode_s: jax.Array
    start_s: jax.Array
    quality: jax.Array
    ttl_s: Any
    decay_s: Any


class Offers(NamedTuple):
    """What the scores of a turn are made of; `[N, D]`, `[N, D, A]`, `[N, A]`.

    Attributes:
      usable_quality: `[N, D, A]`, minus infinity where neither context nor masks allow.
      best_quality: `[N, A]`, of the usable.
      mask_fails: `[N, A]` bool, whether the masks had to give way.
      decode_g, embodied_g, e2e_s: `[N, D]`, of a turn without its prefill, of the predicted output.
      kappa_g_per_kwh, rtt_s, noise: `[N, D]`, what else has a price; None where it has none.
    """

    usable_quality: jax.Array
    best_quality: jax.Array
    mask_fails: jax.Array
    decode_g: jax.Array
    embodied_g: jax.Array
    e2e_s: jax.Array
    kappa_g_per_kwh: Any
    rtt_s: Any
    noise: Any


def rates(world: World) -> Rates:
    """The coefficients that no turn changes."""
    fleet, region = world.fleet, world.fleet.region
    pue, dtype = world.pue[region], world.pue.dtype
    return Rates(
        prefill_kwh_u=footprint.energy_kwh(fleet, fleet.pre_j, fleet.pre_s, pue),
        prefill_kwh_x=footprint.energy_kwh(fleet, fleet.pre_j_ctx, fleet.pre_s_ctx, pue),
        embodied_g_u=footprint.embodied_g(fleet, fleet.pre_s),
        embodied_g_x=footprint.embodied_g(fleet, fleet.pre_s_ctx),
        embodied_g_per_s=footprint.embodied_g(fleet, 1 / fleet.batch),
        prefill_s_u=fleet.pre_s,
        prefill_s_x=fleet.pre_s_ctx,
        ttft_floor_s=fleet.ttft_floor_s,
        water_l_per_kwh=footprint.water_l_per_kwh(world)[region],
        price_usd_per_kwh=world.price_usd_per_kwh[region],
        model=fleet.model.astype(dtype),
        region=region.astype(dtype),
    )


def grids(world: World, uses: Uses) -> Grids:
    """The world's tables, spread over the deployments."""
    region, now = world.fleet.region, world.intensity_g_per_kwh
    trend = None
    if uses.features:
        log = jnp.log(jnp.maximum(now, LEAST_INTENSITY))
        trend = (jnp.concatenate([log[1:], log[-1:]]) - log)[:, region]

    def over(table: jax.Array) -> jax.Array:
        return jnp.broadcast_to(table, (table.shape[0], region.shape[0]))

    return Grids(
        g_per_kwh=now[:, region],
        trend=trend,
        rtt_s=world.rtt_s[:, region],
        wait_s=over(world.wait_s),
        ttl_s=over(world.retention.ttl_s),
        decay_s=over(world.retention.decay_s),
    )


def moment(world: World, turn: Turn, before: Turn) -> Moment:
    """The numbers of turns; `before` is the previous turn of the session, but for the first."""
    prompt = turn.prefix_tokens + turn.new_tokens
    left = before.prefix_tokens + before.new_tokens + jnp.maximum(before.output_tokens - 1, 0)
    left = jnp.where(turn.first, 0, left)
    longest = world.fleet.max_context_tokens.max()
    return Moment(
        valid=turn.valid,
        served=turn.valid & (prompt + turn.predicted_output_tokens <= longest),
        turn=turn.turn,
        gap_s=turn.gap_s,
        prefix_tokens=turn.prefix_tokens,
        new_tokens=turn.new_tokens,
        prompt_tokens=prompt,
        output_tokens=turn.output_tokens,
        predicted_output_tokens=turn.predicted_output_tokens,
        before_tokens=left,
        context_tokens=prompt + jnp.maximum(turn.output_tokens - 1, 0),
        full_tokens=residency.cached(left, turn.prefix_tokens, prompt, world.block_tokens),
    )


def look(
    world: World, uses: Uses, grid: Grids, allowed: jax.Array, turn: Turn, before: Turn
) -> tuple[Moment, Site, Offers]:
    """Everything of N turns that no setting changes.

    Args:
      world: without a belief.
      uses: of the settings.
      grid: of the world.
      allowed: `[A, D]` bool, the sets of masks.
      turn, before: `[N]`, turns and those before them in their sessions.
    """
    turn, before = jax.vmap(settled)(turn), jax.vmap(settled)(before)
    now, fleet = moment(world, turn, before), world.fleet
    pue = world.pue[fleet.region][None]

    def at_bin(table: jax.Array) -> jax.Array:
        return table[turn.time_bin * table.shape[0] // TIME_BINS]

    def decode(output_tokens: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        each = jax.tree.map(lambda x: x[None], fleet)
        energy_j, time_s = footprint.decode(
            each, now.prompt_tokens[:, None], output_tokens[:, None]
        )
        shared_s = time_s / each.batch
        energy_kwh = footprint.energy_kwh(each, energy_j, shared_s, pue)
        return energy_kwh, time_s, footprint.embodied_g(each, shared_s)

    decode_kwh, decode_s, _ = decode(turn.output_tokens)
    told_kwh, told_s, told_embodied_g = decode(turn.predicted_output_tokens)
    g_per_kwh, rtt_s = grid.g_per_kwh[turn.hour], grid.rtt_s[turn.home]
    start_s = rtt_s + at_bin(grid.wait_s)
    quality = turn.quality[:, fleet.model]
    hard = (now.prompt_tokens + now.predicted_output_tokens)[:, None] <= (
        fleet.max_context_tokens[None]
    )
    possible = jnp.where(hard, quality, -jnp.inf)
    masked = jnp.where(allowed.T[None], possible[..., None], -jnp.inf)
    fails = jnp.isinf(masked.max(axis=1))
    usable = jnp.where(fails[:, None], possible[..., None], masked)
    site = Site(
        g_per_kwh=g_per_kwh,
        trend=None if grid.trend is None else grid.trend[turn.hour],
        decode_kwh=decode_kwh,
        decode_s=decode_s,
        start_s=start_s,
        quality=quality,
        ttl_s=at_bin(grid.ttl_s) if uses.ageing else None,
        decay_s=at_bin(grid.decay_s) if uses.ageing else None,
    )
    offers = Offers(
        usable_quality=usable,
        best_quality=usable.max(axis=1),
        mask_fails=fails,
        decode_g=told_kwh * g_per_kwh,
        embodied_g=told_embodied_g,
        e2e_s=start_s + told_s,
        kappa_g_per_kwh=pue * g_per_kwh if uses.intensity else None,
        rtt_s=rtt_s if uses.rtt else None,
        noise=turn.noise if uses.noise else None,
    )
    return now, site, offers
