"""What a turn costs at every deployment before anything is known of its caches.

A deployment without resident tokens costs the same under every setting that shares the scoring
prices, so what is here is computed once a turn and group of such settings (`jaxroute.slots`).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxroute import footprint, policies, residency
from jaxroute.numerics import masked_min
from jaxroute.observe import settled, site_at
from jaxroute.policies import RouterParams, Site
from jaxroute.sessions import Turn
from jaxroute.world import World

SHARED = (
    *("carbon_weight", "embodied_weight", "latency_price_g_per_s", "quality_price_g"),
    *("intensity_price", "rtt_price_g_per_s", "size_price_g_per_b", "noise_price_g"),
    *("cache_knowledge", "assumed_hit", "quality_floor", "quality_slack"),
    *("model_allowed", "gpu_allowed", "region_allowed"),
)
"""The fields of `RouterParams` that the settings of a group have in common."""


class Moment(NamedTuple):
    """A turn's numbers that no setting changes, `[]` each.

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
    """Coefficients of a turn's price and bill at each deployment, `[D]` each.

    With u tokens to prefill and x of attention (`footprint.prefill`), grams are
    `prefill_g_u u + prefill_g_x x`, and so on; what does not depend on the cache is a number.

    Attributes:
      prefill_g_u, prefill_g_x: operational grams.
      embodied_g_u, embodied_g_x: embodied grams.
      prefill_s_u, prefill_s_x: seconds.
      energy_kwh_u, energy_kwh_x: at the meter.
      decode_g, decode_embodied_g, decode_kwh, decode_s: of the true output.
      start_s, ttft_floor_s: round trip and wait; the least prefill time that counts.
      water_l_per_kwh, price_usd_per_kwh, quality: of the site.
      ttl_s, decay_s, log_intensity_change, model, region: of the site.
    """

    prefill_g_u: jax.Array
    prefill_g_x: jax.Array
    embodied_g_u: jax.Array
    embodied_g_x: jax.Array
    prefill_s_u: jax.Array
    prefill_s_x: jax.Array
    energy_kwh_u: jax.Array
    energy_kwh_x: jax.Array
    decode_g: jax.Array
    decode_embodied_g: jax.Array
    decode_kwh: jax.Array
    decode_s: jax.Array
    start_s: jax.Array
    ttft_floor_s: jax.Array
    water_l_per_kwh: jax.Array
    price_usd_per_kwh: jax.Array
    quality: jax.Array
    ttl_s: jax.Array
    decay_s: jax.Array
    log_intensity_change: jax.Array
    model: jax.Array
    region: jax.Array


class Cold(NamedTuple):
    """Scores of a group of settings at a turn.

    Attributes:
      base_g: `[D]`, J less its offset, the price of prefill and of switching; infinite where not
        feasible.
      offset_g: `[]`, what J has in common everywhere.
      best_g: `[]`, the least score of a deployment without resident tokens, switching left out.
      best: `[]` int32, that deployment, the lowest on a tie.
      mask_fallback, quality_fallback: `[]`, 0 or 1.
    """

    base_g: jax.Array
    offset_g: jax.Array
    best_g: jax.Array
    best: jax.Array
    mask_fallback: jax.Array
    quality_fallback: jax.Array


def moment(world: World, turn: Turn, before: Turn) -> Moment:
    """The numbers of a turn; `before` is the previous turn of the session, if it is not the first.

    Of padding every number is 0.
    """
    turn, before = settled(turn), settled(before)
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


def rates(site: Site, now: Moment) -> Rates:
    """The coefficients of a turn at each deployment."""
    fleet, kappa = site.fleet, site.kappa_g_per_kwh
    decode_j, decode_s = footprint.decode(fleet, now.prompt_tokens, now.output_tokens)
    shared_s = decode_s / fleet.batch
    per_u, per_x = (fleet.pre_j, fleet.pre_s), (fleet.pre_j_ctx, fleet.pre_s_ctx)
    return Rates(
        prefill_g_u=footprint.operational_g(fleet, *per_u, kappa),
        prefill_g_x=footprint.operational_g(fleet, *per_x, kappa),
        embodied_g_u=footprint.embodied_g(fleet, fleet.pre_s),
        embodied_g_x=footprint.embodied_g(fleet, fleet.pre_s_ctx),
        prefill_s_u=fleet.pre_s,
        prefill_s_x=fleet.pre_s_ctx,
        energy_kwh_u=footprint.energy_kwh(fleet, *per_u, site.pue),
        energy_kwh_x=footprint.energy_kwh(fleet, *per_x, site.pue),
        decode_g=footprint.operational_g(fleet, decode_j, shared_s, kappa),
        decode_embodied_g=footprint.embodied_g(fleet, shared_s),
        decode_kwh=footprint.energy_kwh(fleet, decode_j, shared_s, site.pue),
        decode_s=decode_s,
        start_s=site.rtt_s + site.wait_s,
        ttft_floor_s=fleet.ttft_floor_s,
        water_l_per_kwh=site.water_l_per_kwh,
        price_usd_per_kwh=site.price_usd_per_kwh,
        quality=site.quality,
        ttl_s=site.ttl_s,
        decay_s=site.decay_s,
        log_intensity_change=site.log_intensity_change,
        model=fleet.model.astype(kappa.dtype),
        region=fleet.region.astype(kappa.dtype),
    )


def prefilled(cached: jax.Array, upto: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`(u, x)` of a prefill from `cached` tokens up to others, as `footprint.prefill` has them."""
    u = upto - cached
    return u, u * (upto + cached) / 2


def prefill_price_g(
    params: RouterParams,
    by: Rates,
    cached: jax.Array,
    upto: jax.Array,
    *,
    floored: bool = True,
) -> jax.Array:
    """What a score charges for a prefill, g; `floored`, its time is at least the TTFT's floor."""
    u, x = prefilled(cached, upto)
    carbon_g = (by.prefill_g_u * u + by.prefill_g_x * x) + params.embodied_weight * (
        by.embodied_g_u * u + by.embodied_g_x * x
    )
    time_s = by.prefill_s_u * u + by.prefill_s_x * x
    if floored:
        time_s = jnp.maximum(by.ttft_floor_s, time_s)
    return params.carbon_weight * carbon_g + params.latency_price_g_per_s * time_s


def scored(
    params: RouterParams, allowed: jax.Array, world: World, site: Site, by: Rates, now: Moment,
    noise: jax.Array,
) -> Cold:
    """The scores of one group of settings at a turn; `allowed` `[D]` is its masks."""
    fleet, prompt = world.fleet, now.prompt_tokens
    hard = prompt + now.predicted_output_tokens <= fleet.max_context_tokens
    eligible, mask_fails, quality_fails = policies.eligible(params, hard, allowed, site.quality)
    decode_j, decode_s = footprint.decode(fleet, prompt, now.predicted_output_tokens)
    shared_s = decode_s / fleet.batch
    base_g, offset_g = policies.score(
        params,
        eligible,
        site,
        moves_away=jnp.zeros_like(eligible),
        operational_g=footprint.operational_g(fleet, decode_j, shared_s, site.kappa_g_per_kwh),
        embodied_g=footprint.embodied_g(fleet, shared_s),
        e2e_s=by.start_s + decode_s,
        noise=noise,
    )
    base_g = jnp.where(eligible, base_g, jnp.inf)
    assumed = (1 - params.cache_knowledge) * (params.assumed_hit * now.full_tokens)
    cold_g = base_g + prefill_price_g(params, by, assumed, prompt)
    best_g = cold_g.min()
    size, index = cold_g.shape[0], jnp.arange(cold_g.shape[0], dtype=cold_g.dtype)
    best = jnp.where((cold_g <= best_g) | (cold_g == best_g), index, size - 1).min()
    served = now.served
    return Cold(
        base_g=base_g,
        offset_g=offset_g,
        best_g=best_g,
        best=best.astype(jnp.int32),
        mask_fallback=(served & mask_fails).astype(cold_g.dtype),
        quality_fallback=(served & quality_fails).astype(cold_g.dtype),
    )


def weigh(
    groups: RouterParams, allowed: jax.Array, world: World, turn: Turn, before: Turn
) -> tuple[Moment, Rates, Cold]:
    """Everything of a turn that the settings of G groups share: `Cold` leaves are `[..., G]`.

    Args:
      groups: `[G, ...]` leaves.
      allowed: `[G, D]` bool (`policies.allowed`).
      world: without a belief.
      turn, before: a turn and the one before it in its session.
    """
    now = moment(world, turn, before)
    counted = settled(turn)
    site = site_at(world, counted)
    by = rates(site, now)
    cold = jax.vmap(scored, in_axes=(0, 0, None, None, None, None, None), out_axes=-1)(
        groups, allowed, world, site, by, now, counted.noise
    )
    return now, by, cold
