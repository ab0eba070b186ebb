"""The gate: keep a session on its cached deployment when it would likely move straight back."""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from jaxroute import footprint, residency

if TYPE_CHECKING:
    from jaxroute.policies import Observation, RouterParams, Site

FEATURES = (
    "relative_gain",
    "other_model",
    "other_region",
    "intensity_trend",
    "log_turn",
    "log_prefix_ratio",
    "return_share",
    "quality_gain",
)
"""What `p_back` sees, in the order of `RouterParams.gate_weights`."""


def features(
    obs: "Observation", here: "Site", there: "Site", score_g: jax.Array, gain_g: jax.Array
) -> jax.Array:
    """The eight dimensionless features of a wished move from `i` (here) to `j` (there), `[8]`.

    `dJ / J_i`; `m_i != m_j`; `r_i != r_j`; `log` of how the intensity ratio i : j changes by the
    next hour; `log1p(t)`; `log1p(k / n)`; returns / moves so far; `q_i - q_j`.
    """
    dtype = gain_g.dtype
    scored = score_g > 0
    return jnp.stack(
        [
            jnp.where(scored, gain_g / jnp.where(scored, score_g, 1), 0),
            (here.fleet.model != there.fleet.model).astype(dtype),
            (here.fleet.region != there.fleet.region).astype(dtype),
            here.log_intensity_change - there.log_intensity_change,
            jnp.log1p(obs.turn),
            jnp.log1p(obs.prefix_tokens / obs.new_tokens),
            obs.returns / jnp.maximum(obs.moves, 1),
            here.quality - there.quality,
        ]
    )


def prefill_price_g(
    params: "RouterParams", site: "Site", from_tokens: jax.Array, to_tokens: jax.Array
) -> jax.Array:
    """What a policy pays to prefill from one number of tokens up to another, g.

    At this hour's intensity, weighted as the score weighs carbon, plus the price of its seconds.
    """
    energy_j, time_s = footprint.prefill(site.fleet, from_tokens, to_tokens)
    carbon_g = footprint.operational_g(site.fleet, energy_j, time_s, site.kappa_g_per_kwh)
    carbon_g += params.embodied_weight * footprint.embodied_g(site.fleet, time_s)
    return params.carbon_weight * carbon_g + params.latency_price_g_per_s * time_s


def rebuild_price_g(
    params: "RouterParams", obs: "Observation", i: jax.Array, here: "Site"
) -> jax.Array:
    """R_i: what the history costs at `i` if the session leaves now and comes back next turn, g.

    The prefill from the tokens left there after the detour up to those a stay would leave. `here`
    is `obs.at(i)`.
    """
    gap_s, knowledge = params.expected_gap_s, params.cache_knowledge
    assumed = params.assumed_hit * jnp.minimum(obs.prefix_tokens, obs.context_tokens)
    believed = knowledge * obs.alive_tokens[i] + (1 - knowledge) * assumed
    left = residency.decayed(jnp.minimum(believed, obs.prefix_tokens), gap_s, here.decay_s)
    left = jnp.where((obs.idle_s[i] + gap_s > here.ttl_s) | (obs.drop_on_leave > 0), 0, left)
    stay = obs.prompt_tokens + jnp.maximum(obs.predicted_output_tokens - 1, 0)
    stay = jnp.where(gap_s > here.ttl_s, 0, residency.decayed(stay, gap_s, here.decay_s))

    history = obs.prompt_tokens + obs.predicted_output_tokens
    from_tokens = residency.blocks(jnp.minimum(left, history), obs.block_tokens)
    to_tokens = residency.blocks(jnp.minimum(stay, history), obs.block_tokens)
    return prefill_price_g(params, here, from_tokens, to_tokens)


def keeps(params: "RouterParams", obs: "Observation", i: jax.Array, j: jax.Array) -> jax.Array:
    """Whether a session wishing to move from `i` to `j` stays at `i`, `[]` bool.

    Stay iff `dJ < gate_strength p_back R_i`, or `dJ < hysteresis J_i`, or `always_stay`, with
    `p_back = sigmoid(bias + weights . features)`.
    """
    here, there = obs.at(i), obs.at(j)
    gain_g = obs.score_g[i] - obs.score_g[j]
    score_g = obs.score_g[i] + obs.score_offset_g
    weighed = params.gate_weights * features(obs, here, there, score_g, gain_g)
    p_back = jax.nn.sigmoid(params.gate_bias + weighed.sum())
    threshold_g = params.gate_strength * p_back * rebuild_price_g(params, obs, i, here)
    return (
        (gain_g < threshold_g) | (gain_g < params.hysteresis * score_g) | (params.always_stay > 0)
    )
