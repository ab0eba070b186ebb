"""What a turn costs at a deployment where the settings share no prices.

`jaxroute.cold` for many groups. What no setting changes, the amounts, is kept apart from the
prices, so that the scores of D deployments by G groups are a few products each that are never
stored: they are compared as they are made.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxroute.cold import Cold, prefilled
from jaxroute.moments import Moment, Offers, Rates, Site, Uses
from jaxroute.policies import RouterParams
from jaxroute.world import World

RELATIVE = (
    ("intensity_price", "kappa_g_per_kwh"),
    ("rtt_price_g_per_s", "rtt_s"),
    ("size_price_g_per_b", "params_b"),
)
"""Prices of an amount less its least over the feasible deployments, and the amount."""


class Amounts(NamedTuple):
    """What a score is made of, by turn and deployment; what has no price is None.

    Attributes:
      decode_g, embodied_g, e2e_s: of a turn without its prefill, of the predicted output.
      prefill_g_u, prefill_g_x: operational carbon of a token to prefill, and of its attention.
      prefill_s_u, prefill_s_x, ttft_floor_s: seconds, likewise.
      embodied_g_per_s: of prefill.
      quality, noise, kappa_g_per_kwh, rtt_s, params_b: as they are priced.
    """

    decode_g: jax.Array
    embodied_g: jax.Array
    e2e_s: Any
    prefill_g_u: jax.Array
    prefill_g_x: jax.Array
    prefill_s_u: jax.Array
    prefill_s_x: jax.Array
    ttft_floor_s: Any
    embodied_g_per_s: jax.Array
    quality: Any
    noise: Any
    kappa_g_per_kwh: Any
    rtt_s: Any
    params_b: Any


class Limits(NamedTuple):
    """What the deployments of a turn have in common for a group, `[C, G]` each.

    Attributes:
      best_quality, least_quality: of the usable, and what a deployment must reach.
      lowest: of each of `RELATIVE` that has a price, the least over the feasible.
    """

    best_quality: jax.Array
    least_quality: jax.Array
    lowest: dict[str, jax.Array]


def amounts(uses: Uses, world: World, by: Rates, site: Site, offers: Offers) -> Amounts:
    """The amounts of turns, `[..., D]` leaves."""
    shape = site.g_per_kwh.shape

    def spread(values: jax.Array) -> jax.Array:
        return jnp.broadcast_to(values, shape)

    return Amounts(
        decode_g=offers.decode_g,
        embodied_g=offers.embodied_g,
        e2e_s=offers.e2e_s if uses.latency else None,
        prefill_g_u=spread(by.prefill_kwh_u) * site.g_per_kwh,
        prefill_g_x=spread(by.prefill_kwh_x) * site.g_per_kwh,
        prefill_s_u=spread(by.prefill_s_u),
        prefill_s_x=spread(by.prefill_s_x),
        ttft_floor_s=spread(by.ttft_floor_s) if uses.latency else None,
        embodied_g_per_s=spread(world.fleet.embodied_g_per_s),
        quality=site.quality if uses.quality else None,
        noise=offers.noise,
        kappa_g_per_kwh=offers.kappa_g_per_kwh,
        rtt_s=offers.rtt_s,
        params_b=spread(world.fleet.params_b) if uses.size else None,
    )


def served(at: Amounts, cached: jax.Array, prompt: jax.Array) -> Amounts:
    """The amounts with the prefill from `cached` tokens in the first three."""
    u, x = prefilled(cached, prompt)
    time_s = at.prefill_s_u * u + at.prefill_s_x * x
    return at._replace(
        decode_g=at.decode_g + (at.prefill_g_u * u + at.prefill_g_x * x),
        embodied_g=at.embodied_g + at.embodied_g_per_s * time_s,
        e2e_s=None if at.e2e_s is None else at.e2e_s + jnp.maximum(at.ttft_floor_s, time_s),
    )


def score_g(params: RouterParams, at: Amounts, limits: Limits, usable: jax.Array) -> jax.Array:
    """J of a deployment less its offset and the price of switching; infinite if not feasible."""
    found_g = params.carbon_weight * (at.decode_g + params.embodied_weight * at.embodied_g)
    if at.e2e_s is not None:
        found_g += params.latency_price_g_per_s * at.e2e_s
    if at.noise is not None:
        found_g += params.noise_price_g * at.noise
    if at.quality is not None:
        found_g += params.quality_price_g * (limits.best_quality - at.quality)
    for price, name in RELATIVE:
        if name in limits.lowest:
            found_g += getattr(params, price) * (getattr(at, name) - limits.lowest[name])
    return jnp.where(usable >= limits.least_quality, found_g, jnp.inf)


def weigh_each(
    groups: RouterParams,
    mask: jax.Array | None,
    uses: Uses,
    now: Moment,
    offers: Offers,
    at: Amounts,
    whole: Amounts,
    one: jax.Array,
) -> tuple[Cold, Limits, jax.Array]:
    """As `cold.weigh`, of C turns; and the limits, by group.

    Args:
      groups: `[1, G]` leaves.
      mask: `[G]`, which of the A sets of masks is each group's; None for one set.
      uses: of the whole replay.
      now, offers: of the turns, `[C]` and `[C, D]`.
      at, whole: amounts `[C, D]` without and with the prefill of the whole prompt.
      one: 1 (`tables.Tables.held`).
    """
    deployments = offers.decode_g.shape[1]

    def spread(values: jax.Array) -> jax.Array:
        return values if mask is None else values[..., mask]

    def row(tree: Any, d: int) -> Any:
        return jax.tree.map(lambda x: x[:, d, None], tree)

    best = spread(offers.best_quality)
    threshold = jnp.maximum(groups.quality_floor, best - groups.quality_slack)
    usable = [spread(offers.usable_quality[:, d]) for d in range(deployments)]
    limits = Limits(best, jnp.minimum(threshold, best), {})
    offset_g = jnp.zeros_like(threshold)
    if uses.quality:
        offset_g += groups.quality_price_g * (1 - best)
    for price, name in RELATIVE:
        if getattr(at, name) is not None:
            amount = getattr(at, name)
            lowest, _ = least(
                [
                    jnp.where(usable[d] >= limits.least_quality, amount[:, d, None], jnp.inf)
                    for d in range(deployments)
                ]
            )
            limits.lowest[name] = jnp.where(jnp.isinf(lowest), 0, lowest) / one
            offset_g += getattr(groups, price) * limits.lowest[name]
    if uses.blind:
        assumed = (1 - groups.cache_knowledge) * (groups.assumed_hit * now.full_tokens[:, None])
        prompt = now.prompt_tokens[:, None]
        rows = [served(row(at, d), assumed, prompt) for d in range(deployments)]
    else:
        rows = [row(whole, d) for d in range(deployments)]
    best_g, first = least([score_g(groups, rows[d], limits, usable[d]) for d in range(deployments)])
    cold = Cold(
        base_g=None,
        u_g=None,
        x_g=None,
        offset_g=offset_g,
        best_g=best_g / one,
        best=first / one,
    )
    return cold, limits, threshold > best


def least(rows: list[jax.Array]) -> tuple[jax.Array, jax.Array]:
    """The least of some arrays, and which it is, the first on a tie, as a float.

    As a tree of comparisons, of which XLA's CPU back end makes vectors, as it does not of its
    reductions.
    """
    found = [(values, jnp.full_like(values, float(d))) for d, values in enumerate(rows)]
    while len(found) > 1:
        pairs = zip(found[::2], found[1::2], strict=False)
        odd = found[-1:] if len(found) % 2 else []
        found = [_lesser(*a, *b) for a, b in pairs] + odd
    return found[0]


def _lesser(
    value: jax.Array, index: jax.Array, other: jax.Array, other_index: jax.Array
) -> tuple[jax.Array, jax.Array]:
    wins = other < value
    return jnp.where(wins, other, value), jnp.where(wins, other_index, index)
