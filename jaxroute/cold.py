"""What a turn costs at every deployment before anything is known of its caches.

A deployment without resident tokens costs the same under every setting that shares the scoring
prices, so what is here is computed once a turn and group of such settings (`jaxroute.slots`).
N turns, D deployments, G groups, A sets of masks.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxroute.moments import Moment, Offers, Rates, Site, Uses
from jaxroute.policies import RouterParams
from jaxroute.world import World

SHARED = (
    *("carbon_weight", "embodied_weight", "latency_price_g_per_s", "quality_price_g"),
    *("intensity_price", "rtt_price_g_per_s", "size_price_g_per_b", "noise_price_g"),
    *("cache_knowledge", "assumed_hit", "quality_floor", "quality_slack"),
    *("model_allowed", "gpu_allowed", "region_allowed"),
)
"""The fields of `RouterParams` that the settings of a group have in common."""


class Cold(NamedTuple):
    """Scores of G groups at N turns.

    Attributes:
      base_g: `[N, D, G]`, J less its offset, the price of prefill and of switching; infinite where
        not feasible; None where the groups are many.
      u_g, x_g: `[N, D, G]`, the price of carbon of a token to prefill and of its attention; None
        likewise.
      offset_g: `[N, G]`, what J has in common everywhere.
      best_g: `[N, G]`, the least score of a deployment without resident tokens, but for switching.
      best: `[N, G]`, that deployment, the lowest on a tie, as a float.
    """

    base_g: Any
    u_g: Any
    x_g: Any
    offset_g: jax.Array
    best_g: jax.Array
    best: jax.Array


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
) -> tuple[Cold, jax.Array]:
    """The scores of a few groups at N turns, and whether quality had to give way, `[N, G]` bool.

    Args:
      groups: `[G]` leaves.
      mask: `[G]`, which of the A sets of masks is each group's; None for one set.
      uses, world, by: of the whole replay.
      now, site, offers: of the turns.
    """

    def spread(values: jax.Array) -> jax.Array:
        return values if mask is None else values[..., mask]

    def each(values: jax.Array) -> jax.Array:
        return values[..., None]

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
            lowest, _ = first_least(jnp.where(eligible, each(amount), jnp.inf))
            lowest = jnp.where(jnp.isinf(lowest), 0, lowest)
            base_g += getattr(deep, price) * (each(amount) - lowest[:, None])
            offset_g += getattr(flat, price) * lowest
    base_g = jnp.where(eligible, base_g, jnp.inf)
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
    best_g, first = first_least(cold_g)
    cold = Cold(base_g=base_g, u_g=u_g, x_g=x_g, offset_g=offset_g, best_g=best_g, best=first)
    return cold, threshold > best


def first_least(values: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The least of `[N, D, G]` by turn and group, `[N, G]`, and its index, the lowest on a tie."""
    lowest, size = values.min(axis=1), values.shape[1]
    index = jnp.arange(size, dtype=values.dtype)[None, :, None]
    ties = (values <= lowest[:, None]) | (values == lowest[:, None])
    return lowest, jnp.where(ties, index, size - 1).min(axis=1)
