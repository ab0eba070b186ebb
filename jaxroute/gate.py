"""The gate: keep a session on its cached deployment when it would likely move straight back."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

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
    gap_s, knowledge = params.expected_gap_s, obs.knowledge[i]
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


class Terms(NamedTuple):
    """What the gate weighs when a session wishes to move from `i` to `j`, `[]` each.

    Attributes:
      gain_g: dJ = J_i - J_j, what the move saves at this turn.
      p_back: chance to move straight back, `sigmoid(bias + weights . features)`.
      return_g: R_i, what rebuilding the history at `i` would then cost (`rebuild_price_g`).
      threshold_g: `gate_strength p_back R_i`.
      hysteresis_g: `hysteresis J_i`.
      always_stay: the parameter.
    """

    gain_g: jax.Array
    p_back: jax.Array
    return_g: jax.Array
    threshold_g: jax.Array
    hysteresis_g: jax.Array
    always_stay: jax.Array

    def clauses(self) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Which of the three reasons to stay hold, `[]` bool each, in the order of `CLAUSES`."""
        return (
            self.gain_g < self.threshold_g,
            self.gain_g < self.hysteresis_g,
            self.always_stay > 0,
        )


CLAUSES = ("gate", "hysteresis", "always_stay")
"""Names of the reasons to stay."""


def verdict(
    decision: int, *, last: int, wished: int, asked: bool, reasons: Sequence[str], has_gate: bool
) -> str:
    """What became of the wish of a turn, in words.

    Args:
      decision, last, wished: deployments, -1 for none.
      asked: whether the gate was asked.
      reasons: those of `CLAUSES` that hold.
      has_gate: whether the policy has any reason to stay.
    """
    if decision < 0:
        return "unserved"
    if last < 0:
        return "no gate: first turn"
    if wished == last:
        return "no gate: best is here"
    if not asked:
        return "no gate: here is filtered out"
    if decision == last:
        return f"stays: {', '.join(reasons)}"
    return f"moves: {'no clause holds' if has_gate else 'no gate'}"


def terms(params: "RouterParams", obs: "Observation", i: jax.Array, j: jax.Array) -> Terms:
    """The gate's terms for a session at `i` that wishes to move to `j`."""
    here, there = obs.at(i), obs.at(j)
    gain_g = obs.score_g[i] - obs.score_g[j]
    score_g = obs.score_g[i] + obs.score_offset_g
    weighed = params.gate_weights * features(obs, here, there, score_g, gain_g)
    p_back = jax.nn.sigmoid(params.gate_bias + weighed.sum())
    return_g = rebuild_price_g(params, obs, i, here)
    return Terms(
        gain_g=gain_g,
        p_back=p_back,
        return_g=return_g,
        threshold_g=params.gate_strength * p_back * return_g,
        hysteresis_g=params.hysteresis * score_g,
        always_stay=params.always_stay,
    )


def keeps(params: "RouterParams", obs: "Observation", i: jax.Array, j: jax.Array) -> jax.Array:
    """Whether a session wishing to move from `i` to `j` stays at `i`, `[]` bool.

    Stay iff `dJ < gate_strength p_back R_i`, or `dJ < hysteresis J_i`, or `always_stay`.
    """
    by_gate, by_hysteresis, always = terms(params, obs, i, j).clauses()
    return by_gate | by_hysteresis | always
