"""Routing policies: points in a parameter space, and functions of one's own."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from jaxroute import gate
from jaxroute.numerics import first_min, masked_min, row_as
from jaxroute.world import Array, Fleet


def number(default: float) -> Any:
    """A traced number, as a field of a dataclass of parameters."""
    return dataclasses.field(default_factory=lambda: np.float32(default))


def _vector(size: int, default: float) -> Any:
    return dataclasses.field(default_factory=lambda: np.full(size, default, np.float32))


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class RouterParams:
    """The scoring rule and gate of a router: traced numbers, neutral by default.

    A turn's score of a deployment, in grams of CO2e:
    `J = C + latency_price_g_per_s e2e + quality_price_g (1 - q) + switch_price_g [d != last]
    + intensity_price kappa + rtt_price_g_per_s rtt + size_price_g_per_b params + noise_price_g U`
    with `C = carbon_weight (operational + embodied_weight embodied)`; the least feasible J is
    wished for, and the gate may keep the session where it is instead (`jaxroute.gate`).

    Prices and weights are >= 0. A mask of length 1 speaks for all.

    Attributes:
      policy: the rule that reads them, of the class and no field: `router`, or what a class derived
        from this one names.
      carbon_weight, embodied_weight: `[]`, dimensionless.
      latency_price_g_per_s: `[]`, g for a second from arrival to the last token.
      quality_price_g: `[]`, g for the whole of predicted quality.
      switch_price_g: `[]`, g for leaving the last deployment.
      intensity_price: `[]`, g for each g/kWh of PUE x intensity.
      rtt_price_g_per_s: `[]`, g for a second of round trip.
      size_price_g_per_b: `[]`, g for a billion parameters.
      noise_price_g: `[]`, g for the uniform draw of a turn and deployment.
      cache_knowledge: `[]` in [0, 1]; 1 believes the reported cached tokens, 0 `assumed_hit`.
      assumed_hit: `[]` in [0, 1], the believed share of the history that is cached.
      wait_knowledge: `[]` in [0, 1], the share it believes of the waits it sees under load.
      quality_floor: `[]`, least predicted quality; where no model reaches it the best serves.
      quality_slack: `[]`, how far below the best model's quality a model may lie.
      ttft_slo_s: `[]`, s, the longest time to a first token.
      model_allowed, gpu_allowed, region_allowed: `[M]`, `[G]`, `[R]`, > 0 where allowed.
      gate_strength: `[]`, multiplies the gate's threshold; 0 is no gate.
      gate_bias, gate_weights: `[]` and `[8]`, of the logistic chance to move back.
      hysteresis: `[]`, stay unless the gain exceeds this share of the last deployment's score.
      always_stay: `[]`, non-zero stays wherever the filters let it.
      expected_gap_s: `[]`, s, from this turn's arrival to the next one's.
    """

    policy: ClassVar["Policy"]

    carbon_weight: Array = number(1)
    embodied_weight: Array = number(1)
    latency_price_g_per_s: Array = number(0)
    quality_price_g: Array = number(0)
    switch_price_g: Array = number(0)
    intensity_price: Array = number(0)
    rtt_price_g_per_s: Array = number(0)
    size_price_g_per_b: Array = number(0)
    noise_price_g: Array = number(0)
    cache_knowledge: Array = number(1)
    assumed_hit: Array = number(0)
    wait_knowledge: Array = number(1)
    quality_floor: Array = number(0)
    quality_slack: Array = number(np.inf)
    ttft_slo_s: Array = number(np.inf)
    model_allowed: Array = _vector(1, 1)
    gpu_allowed: Array = _vector(1, 1)
    region_allowed: Array = _vector(1, 1)
    gate_strength: Array = number(0)
    gate_bias: Array = number(0)
    gate_weights: Array = _vector(len(gate.FEATURES), 0)
    hysteresis: Array = number(0)
    always_stay: Array = number(0)
    expected_gap_s: Array = number(60)

    def replace(self, **changes: object) -> Self:
        """A copy with some fields changed; plain numbers and lists become float32 arrays.

        >>> RouterParams().replace(hysteresis=0.1).hysteresis
        np.float32(0.1)
        """
        for name, value in changes.items():
            if isinstance(value, int | float | list | tuple):
                changes[name] = np.array(value, np.float32)[()]
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


class Site(NamedTuple):
    """The deployments at one turn, `[D]` each (or one of them, `[]`): what no policy can change.

    Attributes:
      fleet: coefficients.
      pue, water_l_per_kwh, price_usd_per_kwh: of the region; per kWh at the meter.
      kappa_g_per_kwh: PUE x intensity of this hour.
      log_intensity_change: log of the next hour's intensity over this one's.
      rtt_s, wait_s, ttl_s, decay_s: of the session's home; before prefill; of a cache's life.
      quality: predicted, in [0, 1].
    """

    fleet: Fleet
    pue: Array
    water_l_per_kwh: Array
    price_usd_per_kwh: Array
    kappa_g_per_kwh: Array
    log_intensity_change: Array
    rtt_s: Array
    wait_s: Array
    ttl_s: Array
    decay_s: Array
    quality: Array


class Observation(NamedTuple):
    """What a policy may see of a turn: believed values, and the score its parameters imply.

    Attributes:
      turn: `[]`, index of the turn in its session.
      prompt_tokens, prefix_tokens, new_tokens, predicted_output_tokens: `[]`, L, k, n and o.
      context_tokens: `[]`, tokens with KV that the previous turn left, 0 at the first.
      last, before: `[]` int32, the last deployment and the one before the last move, -1 for none.
      moves, returns: `[]`, of the session so far.
      drop_on_leave, block_tokens: `[]`, of the world.
      site, site_table: the deployments at this turn, `[D]`, and the same as rows, but for what load
        makes of them; see `at`.
      knowledge: `[D]`, `cache_knowledge`, 0 where a report is missing.
      alive_tokens, cached_tokens: `[D]`, reported resident, and believed usable for this prompt.
      idle_s: `[D]`, s since the deployment last finished a turn of this session.
      ttft_s, e2e_s, operational_g, embodied_g: `[D]`, of serving this turn.
      feasible: `[D]` bool, what the hard, mask, quality and TTFT filters left.
      score_g: `[D]`, J less `score_offset_g`; infinite where not feasible.
      score_offset_g: `[]`, what J has in common everywhere, kept apart for precision.
    """

    turn: Array
    prompt_tokens: Array
    prefix_tokens: Array
    new_tokens: Array
    predicted_output_tokens: Array
    context_tokens: Array
    last: Array
    before: Array
    moves: Array
    returns: Array
    drop_on_leave: Array
    block_tokens: Array
    site: Site
    site_table: Array
    knowledge: Array
    alive_tokens: Array
    cached_tokens: Array
    idle_s: Array
    ttft_s: Array
    e2e_s: Array
    operational_g: Array
    embodied_g: Array
    feasible: Array
    score_g: Array
    score_offset_g: Array

    def at(self, deployment: Array) -> Site:
        """One deployment at this turn, `[]` leaves."""
        row = row_as(self.site, self.site_table[deployment])
        return row._replace(wait_s=self.site.wait_s[deployment], ttl_s=self.site.ttl_s[deployment])


class Policy(NamedTuple):
    """A routing rule as two pure functions, traced into the replay.

    `init(params) -> state` opens a session; `decide(params, state, observation) -> (deployment,
    state)` serves one turn. `params` is a `RouterParams`, or a dataclass derived from it with more
    fields: its filters, beliefs and prices fill the observation. Such a class may name its rule,
    `policy`, which `evaluate` and `compare` then follow. The state is any pytree of arrays whose
    shapes and dtypes stay. The deployment must be one of `observation.feasible`, else its session's
    bill is NaN; it is not used on a turn that has none.
    """

    init: Callable[[Any], Any]
    decide: Callable[[Any, Any, Observation], tuple[Array, Any]]


def allowed(params: RouterParams, fleet: Fleet) -> jax.Array:
    """`[D]` bool: the deployments whose model, GPU type and region are all allowed."""

    def of(mask, index):
        return mask[jnp.minimum(index, mask.shape[0] - 1)]

    return (
        of(params.model_allowed, fleet.model)
        * of(params.gpu_allowed, fleet.gpu)
        * of(params.region_allowed, fleet.region)
    ) > 0


def eligible(
    params: RouterParams, hard: jax.Array, allowed: jax.Array, quality: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The deployments that the filters on the prompt alone leave: `(eligible, mask, quality)`.

    In order: `hard` (the context limit); the masks, dropped if they would leave none;
    `q >= min(max(quality_floor, q_max - quality_slack), q_max)`. The two flags say which of the
    soft filters had to give way.
    """
    best_hard = -masked_min(-quality, hard)
    best_masked = -masked_min(-quality, hard & allowed)
    mask_fails = jnp.isinf(best_masked)
    best = jnp.where(mask_fails, best_hard, best_masked)
    threshold = jnp.maximum(params.quality_floor, best - params.quality_slack)
    left = hard & (allowed | mask_fails) & (quality >= jnp.minimum(threshold, best))
    servable = ~jnp.isinf(best_hard)
    return left, servable & mask_fails, servable & (threshold > best)


def within_slo(
    params: RouterParams, eligible: jax.Array, ttft_s: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Of the eligible, those with `ttft <= max(ttft_slo_s, the lowest)`: `(feasible, gave way)`."""
    fastest_s = masked_min(ttft_s, eligible)
    limit_s = jnp.maximum(params.ttft_slo_s, fastest_s)
    fails = (fastest_s > params.ttft_slo_s) & ~jnp.isinf(fastest_s)
    return eligible & ((ttft_s <= limit_s) | (ttft_s == limit_s)), fails


def score(
    params: RouterParams,
    eligible: jax.Array,
    site: Site,
    *,
    moves_away: jax.Array,
    operational_g: jax.Array,
    embodied_g: jax.Array,
    e2e_s: jax.Array,
    noise: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """J in grams as `(score [D], offset [])`, `J = score + offset`.

    Terms that do not depend on the cache enter less their minimum over the eligible: in float32 a
    policy that follows one price would otherwise drown the carbon that breaks its ties.
    """
    relative, offset = params.noise_price_g * noise, jnp.zeros_like(params.noise_price_g)
    for price, amount in (
        (params.quality_price_g, 1 - site.quality),
        (params.intensity_price, site.kappa_g_per_kwh),
        (params.rtt_price_g_per_s, site.rtt_s),
        (params.size_price_g_per_b, site.fleet.params_b),
    ):
        least = masked_min(amount, eligible)
        least = jnp.where(jnp.isinf(least), 0, least)
        relative += price * (amount - least)
        offset += price * least
    carbon_g = params.carbon_weight * (operational_g + params.embodied_weight * embodied_g)
    latency_g = params.latency_price_g_per_s * e2e_s
    switch_g = jnp.where(moves_away, params.switch_price_g, 0)
    return relative + (carbon_g + latency_g + switch_g), offset


def wish(obs: Observation) -> tuple[jax.Array, jax.Array, jax.Array]:
    """`[]` each: the last deployment (0 for none), that of the least J, whether to ask the gate."""
    wished = first_min(obs.score_g)
    here = jnp.maximum(obs.last, 0)
    could_stay = (obs.last >= 0) & (here != wished) & ~jnp.isinf(obs.score_g[here])
    return here, wished, could_stay


def _decide(params: RouterParams, state: tuple, obs: Observation) -> tuple[jax.Array, tuple]:
    here, wished, could_stay = wish(obs)
    stays = could_stay & gate.keeps(params, obs, here, wished)
    return jnp.where(stays, here, wished), state


router = Policy(init=lambda params: (), decide=_decide)
"""The least score behind the gate: every preset is this policy at a point of `RouterParams`."""

RouterParams.policy = router
