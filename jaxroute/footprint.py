"""Energy, carbon and time of serving one turn.

`fleet` is anything with the coefficient fields of `jaxroute.world.Fleet`: all deployments `[D]` or
one of them `[]`. L is the prompt's tokens, c those cached, o the output's.
"""

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp

from jaxroute.world import Array, Fleet, World

if TYPE_CHECKING:
    from jaxroute.policies import Site

J_PER_KWH = 3.6e6


def prefill(
    fleet: Fleet, cached_tokens: jax.Array, prompt_tokens: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """GPU energy (J) and time (s) to prefill a prompt from `c` cached tokens up to `L`.

    `u = L - c`, `x = (L - c)(L + c)/2`; J `= pre_j u + pre_j_ctx x`, seconds alike. The difference
    of squares `(L^2 - c^2)/2` would lose 1e-4 in float32 at 131k tokens; the product does not.

    With `full` for `L` it is the price of a rebuild.
    """
    uncached = prompt_tokens - cached_tokens
    attended = uncached * (prompt_tokens + cached_tokens) / 2
    energy_j = fleet.pre_j * uncached + fleet.pre_j_ctx * attended
    time_s = fleet.pre_s * uncached + fleet.pre_s_ctx * attended
    return energy_j, time_s


def decode(
    fleet: Fleet, prompt_tokens: jax.Array, output_tokens: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """GPU energy (J) and time (s) to generate `o` tokens; the first one comes out of the prefill.

    `v = max(o - 1, 0)`, `y = v (L + v/2)`; J `= dec_j v + dec_j_ctx y`, seconds alike.
    """
    generated = jnp.maximum(output_tokens - 1, 0)
    attended = generated * (prompt_tokens + generated / 2)
    energy_j = fleet.dec_j * generated + fleet.dec_j_ctx * attended
    time_s = fleet.dec_s * generated + fleet.dec_s_ctx * attended
    return energy_j, time_s


def operational_g(
    fleet: Fleet, gpu_j: jax.Array, busy_s: jax.Array, kappa_g_per_kwh: jax.Array
) -> jax.Array:
    """gCO2e of GPU energy and of the host's over `busy_s`: `(gpu_j + host_w busy_s) k / 3.6e6`.

    `kappa_g_per_kwh` is PUE times grid intensity.
    """
    return (gpu_j + fleet.host_w * busy_s) * (kappa_g_per_kwh / J_PER_KWH)


def energy_kwh(fleet: Fleet, gpu_j: jax.Array, busy_s: jax.Array, pue: jax.Array) -> jax.Array:
    """kWh at the meter: `(gpu_j + host_w busy_s) PUE / 3.6e6`."""
    return (gpu_j + fleet.host_w * busy_s) * (pue / J_PER_KWH)


def water_l_per_kwh(world: World) -> jax.Array:
    """Litres for a kWh at the meter, `[R]`: `WUE / PUE + EWIF`, on site and in generation.

    WUE is by definition annual site water over IT energy (The Green Grid, 2011, white paper 35),
    of which a kWh at the meter holds `1 / PUE`.
    """
    return world.wue_l_per_kwh / world.pue + world.ewif_l_per_kwh


def cost_usd(energy_kwh: jax.Array, price_usd_per_kwh: jax.Array) -> jax.Array:
    """Price of energy at the meter; NaN where it is not known.

    The product is kept off an unknown price: in reverse mode NaN times a cotangent of 0 would reach
    the gradient of every other amount.
    """
    known = ~jnp.isnan(price_usd_per_kwh)
    return jnp.where(known, energy_kwh * jnp.where(known, price_usd_per_kwh, 0), jnp.nan)


def embodied_g(fleet: Fleet, busy_s: jax.Array) -> jax.Array:
    """gCO2e of manufacture that `busy_s` seconds of a replica account for."""
    return fleet.embodied_g_per_s * busy_s


class Bill(NamedTuple):
    """What serving one turn cost, `[]` each; named as in `jaxroute.simulate.Totals`."""

    carbon_prefill_g: Array
    carbon_rebuild_g: Array
    carbon_decode_g: Array
    carbon_embodied_g: Array
    energy_kwh: Array
    water_l: Array
    cost_usd: Array
    ttft_s: Array
    e2e_s: Array
    rebuilt_tokens: Array


def bill(
    site: "Site", cached: jax.Array, full: jax.Array, prompt: jax.Array, output: jax.Array
) -> Bill:
    """The true cost of a turn at one deployment, `cached` of its prompt's tokens resident there."""
    fleet, kappa = site.fleet, site.kappa_g_per_kwh
    prefill_j, prefill_s = prefill(fleet, cached, prompt)
    decode_j, decode_s = decode(fleet, prompt, output)
    rebuild_j, rebuild_s = prefill(fleet, cached, full)
    shared_s = decode_s / fleet.batch
    busy_s = prefill_s + shared_s
    metered_kwh = energy_kwh(fleet, prefill_j + decode_j, busy_s, site.pue)
    ttft_s = site.rtt_s + site.wait_s + jnp.maximum(fleet.ttft_floor_s, prefill_s)
    return Bill(
        carbon_prefill_g=operational_g(fleet, prefill_j, prefill_s, kappa),
        carbon_rebuild_g=operational_g(fleet, rebuild_j, rebuild_s, kappa)
        + embodied_g(fleet, rebuild_s),
        carbon_decode_g=operational_g(fleet, decode_j, shared_s, kappa),
        carbon_embodied_g=embodied_g(fleet, busy_s),
        energy_kwh=metered_kwh,
        water_l=metered_kwh * site.water_l_per_kwh,
        cost_usd=cost_usd(metered_kwh, site.price_usd_per_kwh),
        ttft_s=ttft_s,
        e2e_s=ttft_s + decode_s,
        rebuilt_tokens=full - cached,
    )
