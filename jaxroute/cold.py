"""What a turn costs at every deployment before anything is known of its caches.

A deployment without resident tokens costs the same under every setting that shares the scoring
prices, so what is here is computed once a turn and group of such settings (`jaxroute.slots`).
N turns, D deployments, G groups, A sets of masks.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxroute import footprint, residency
from jaxroute.observe import LEAST_INTENSITY, settled
from jaxroute.policies import RouterParams
from jaxroute.sessions import Turn
from jaxroute.world import TIME_BINS, World

SHARED = (
    *("carbon_weight", "embodied_weight", "latency_price_g_per_s", "quality_price_g"),
    *("intensity_price", "rtt_price_g_per_s", "size_price_g_per_b", "noise_price_g"),
    *("cache_knowledge", "assumed_hit", "quality_floor", "quality_slack"),
    *("model_allowed", "gpu_allowed", "region_allowed"),
)
"""The fields of `RouterParams` that the settings of a group have in common."""


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
    trend: jax.Array | None
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
    trend: jax.Array | None
    decode_kwh: jax.Array
    decode_s: jax.Array
    start_s: jax.Array
    quality: jax.Array
    ttl_s: jax.Array | None
    decay_s: jax.Array | None


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
    kappa_g_per_kwh: jax.Array | None
    rtt_s: jax.Array | None
    noise: jax.Array | None


class Cold(NamedTuple):
    """Scores of G groups at N turns.

    Attributes:
      base_g: `[N, D, G]`, J less its offset, the price of prefill and of switching; infinite where
        not feasible.
      u_g, x_g: `[N, D, G]`, the price of carbon of a token to prefill and of its attention; None
        where the groups are many.
      offset_g: `[N, G]`, what J has in common everywhere.
      best_g: `[N, G]`, the least score of a deployment without resident tokens, but for switching.
      best: `[N, G]`, that deployment, the lowest on a tie, as a float.
    """

    base_g: jax.Array
    u_g: jax.Array | None
    x_g: jax.Array | None
    offset_g: jax.Array
    best_g: jax.Array
    best: jax.Array


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


def prefilled(cached: jax.Array, upto: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`(u, x)` of a prefill from `cached` tokens up to others, as `footprint.prefill` has them."""
    u = upto - cached
    return u, u * (upto + cached) / 2


def prefill_g(params: RouterParams, by: Rates, g_per_kwh: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What a score charges for the carbon of a token to prefill, and of its attention, g."""
    weight, embodied = params.carbon_weight, params.embodied_weight
    u_g = weight * (by.prefill_kwh_u * g_per_kwh + embodied * by.embodied_g_u)
    return u_g, weight * (by.prefill_kwh_x * g_per_kwh + embodied * by.embodied_g_x)


def wait_g(
    params: RouterParams, by: Rates, u: jax.Array, x: jax.Array, *, floored: bool
) -> jax.Array:
    """What a score charges for the time of a prefill, g; `floored`, at least the TTFT's floor."""
    time_s = by.prefill_s_u * u + by.prefill_s_x * x
    if floored:
        time_s = jnp.maximum(by.ttft_floor_s, time_s)
    return params.latency_price_g_per_s * time_s


def weigh(
    groups: RouterParams,
    mask: jax.Array | None,
    uses: Uses,
    world: World,
    by: Rates,
    now: Moment,
    site: Site,
    offers: Offers,
    one: jax.Array | None,
) -> tuple[Cold, jax.Array]:
    """The scores of G groups at N turns, and whether quality had to give way, `[N, G]` bool.

    Args:
      groups: `[G]` leaves.
      mask: `[G]`, which of the A sets of masks is each group's; None for one set.
      uses, world, by: of the whole replay.
      now, site, offers: of the turns.
      one: 1, where there are many groups (`slots.Tables.held`).
    """

    def spread(values: jax.Array) -> jax.Array:
        return values if mask is None else values[..., mask]

    def each(values: jax.Array) -> jax.Array:
        return values[..., None]

    def least(values: jax.Array) -> tuple[jax.Array, jax.Array]:
        if one is None:
            return first_least(values)
        lowest, index = folded_least(values)
        return lowest / one, index / one

    flat = jax.tree.map(lambda x: x[None], groups)
    deep = jax.tree.map(lambda x: x[None, None], groups)
    best = spread(offers.best_quality)
    threshold = jnp.maximum(flat.quality_floor, best - flat.quality_slack)
    eligible = spread(offers.usable_quality) >= jnp.minimum(threshold, best)[:, None]
    carbon_g = deep.carbon_weight * (
        each(offers.decode_g) + deep.embodied_weight * each(offers.embodied_g)
    )
    base_g, offset_g = carbon_g, jnp.zeros_like(threshold)
    if uses.latency:
        base_g += deep.latency_price_g_per_s * each(offers.e2e_s)
    if uses.noise:
        base_g += deep.noise_price_g * each(offers.noise)
    if uses.quality:
        base_g += deep.quality_price_g * (best[:, None] - each(site.quality))
        offset_g += flat.quality_price_g * (1 - best)
    for used, price, amount in (
        (uses.intensity, "intensity_price", offers.kappa_g_per_kwh),
        (uses.rtt, "rtt_price_g_per_s", offers.rtt_s),
        (uses.size, "size_price_g_per_b", world.fleet.params_b[None]),
    ):
        if used:
            lowest, _ = least(jnp.where(eligible, each(amount), jnp.inf))
            lowest = jnp.where(jnp.isinf(lowest), 0, lowest)
            base_g += getattr(deep, price) * (each(amount) - lowest[:, None])
            offset_g += getattr(flat, price) * lowest
    base_g = jnp.where(eligible, base_g, jnp.inf)
    if one is not None:
        base_g = base_g / one
    assumed = jnp.zeros((1, 1, 1), base_g.dtype)
    if uses.blind:
        full = now.full_tokens[:, None, None]
        assumed = (1 - deep.cache_knowledge) * (deep.assumed_hit * full)
    rates_deep = jax.tree.map(lambda x: x[None, :, None], by)
    u, x = prefilled(assumed, now.prompt_tokens[:, None, None])
    u_g, x_g = prefill_g(deep, rates_deep, each(site.g_per_kwh))
    cold_g = base_g + (u_g * u + x_g * x)
    if uses.latency:
        cold_g += wait_g(deep, rates_deep, u, x, floored=True)
    best_g, first = least(cold_g)
    kept = (u_g, x_g) if one is None else (None, None)
    return Cold(base_g, *kept, offset_g, best_g, first), threshold > best


def first_least(values: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The least of `[N, D, G]` by turn and group, `[N, G]`, and its index, the lowest on a tie."""
    lowest, size = values.min(axis=1), values.shape[1]
    index = jnp.arange(size, dtype=values.dtype)[None, :, None]
    ties = (values <= lowest[:, None]) | (values == lowest[:, None])
    return lowest, jnp.where(ties, index, size - 1).min(axis=1)


def folded_least(values: jax.Array) -> tuple[jax.Array, jax.Array]:
    """As `first_least`, as a tree of comparisons.

    With many groups XLA's CPU back end makes a vector of groups of it, which is twice as fast as
    its reductions; with few, there would be nothing to make a vector of.
    """
    rows = [(values[:, d], jnp.full_like(values[:, d], float(d))) for d in range(values.shape[1])]
    while len(rows) > 1:
        pairs = zip(rows[::2], rows[1::2], strict=False)
        odd = rows[-1:] if len(rows) % 2 else []
        rows = [_lesser(*a, *b) for a, b in pairs] + odd
    return rows[0]


def _lesser(
    value: jax.Array, index: jax.Array, other: jax.Array, other_index: jax.Array
) -> tuple[jax.Array, jax.Array]:
    wins = other < value
    return jnp.where(wins, other, value), jnp.where(wins, other_index, index)
