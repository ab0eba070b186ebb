"""The rule of the replay for one query, in NumPy float64: what `jaxroute.online` decides by.

The formulas are the oracle's own (`jaxroute.reference`); the batch engine, which shares no code
with it, is the judge of both. Pure functions: a state that goes in is never written to.
"""

import math
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxroute.gate import CLAUSES
from jaxroute.load.messages import input_error
from jaxroute.online_state import State
from jaxroute.policies import RouterParams, router
from jaxroute.reference import NONE, Fleet, aged, blocks, decode, emissions, prefill, select
from jaxroute.world import World

Floats = NDArray[np.float64]


class Rule(NamedTuple):
    """A policy and the fleet it chooses from, in float64.

    Attributes:
      params: the fields of `RouterParams` as plain numbers.
      fleet: coefficients as the router believes them, `[D]`; `rows`, the same by deployment.
      model, region: `[D]`, index of each deployment's; `number`, its own.
      allowed: `[D]` bool, by the masks.
      max_context_tokens, params_b: `[D]`.
      block_tokens, drop_on_leave: of the world.
    """

    params: Any
    fleet: Fleet
    rows: tuple[Fleet, ...]
    model: NDArray[np.int64]
    region: NDArray[np.int64]
    number: NDArray[np.int64]
    allowed: NDArray[np.bool_]
    max_context_tokens: Floats
    params_b: Floats
    block_tokens: float
    drop_on_leave: bool


class Site(NamedTuple):
    """The deployments at this moment, `[D]` each; named as in `jaxroute.policies.Site`."""

    kappa_g_per_kwh: Floats
    log_intensity_change: Floats
    wait_s: Floats
    ttl_s: Floats
    decay_s: Floats


class Query(NamedTuple):
    """A turn as it arrives: `arrival_s` in epoch seconds, tokens, and `[D]` or `[M]` of it.

    Attributes:
      arrival_s: epoch seconds.
      prefix_tokens, new_tokens, predicted_output_tokens: k, n and o.
      rtt_s: `[D]`, from the client.
      quality: `[M]`, predicted of each model.
      noise: `[D]`, uniform on [0, 1), or 0 where no price is on it.
    """

    arrival_s: float
    prefix_tokens: float
    new_tokens: float
    predicted_output_tokens: float
    rtt_s: Floats
    quality: Floats
    noise: Floats | float


class Choice(NamedTuple):
    """A decision, and what it was made of.

    Attributes:
      deployment: -1 where none holds the context.
      wished: the deployment of the least score.
      asked: whether the gate was asked, the last one being another and feasible.
      reasons: to stay, of `jaxroute.gate.CLAUSES`.
      carbon_g: believed, operational and embodied.
      finish_s: epoch seconds, believed.
      alive_tokens: `[D]`, resident on arrival.
    """

    deployment: int
    wished: int
    asked: bool
    reasons: tuple[str, ...]
    carbon_g: float
    finish_s: float
    alive_tokens: Floats


def rule_of(params: RouterParams, world: World) -> Rule:
    """A policy on the fleet of a world; where the world has a belief, as that has its profiles."""
    if params.policy is not router:
        found = f"{type(params).__name__}, a rule beside the router's"
        raise input_error("OnlineRouter", "policy", found, "a setting of the router")
    believed = world.fleet if world.belief is None else world.belief.fleet
    fleet = Fleet(*(np.asarray(getattr(believed, name), np.float64) for name in Fleet._fields))
    axes = {axis: np.asarray(getattr(world.fleet, axis), np.int64) for axis in _AXES}
    masks = [np.asarray(getattr(params, f"{axis}_allowed")) for axis in _AXES]
    passes = [
        np.broadcast_to(mask, max(len(mask), int(index.max()) + 1))[index] > 0
        for mask, index in zip(masks, axes.values(), strict=True)
    ]
    numbers = {
        name: np.asarray(value, np.float64).tolist()
        for name, value in vars(params).items()
        if not name.endswith("_allowed")
    }
    return Rule(
        params=SimpleNamespace(**numbers),
        fleet=fleet,
        rows=tuple(Fleet(*row) for row in np.stack(fleet, axis=1).tolist()),
        model=axes["model"],
        region=axes["region"],
        number=np.arange(len(axes["model"])),
        allowed=np.logical_and.reduce(passes),
        max_context_tokens=np.asarray(world.fleet.max_context_tokens, np.float64),
        params_b=np.asarray(believed.params_b, np.float64),
        block_tokens=float(world.block_tokens),
        drop_on_leave=bool(world.retention.drop_on_leave > 0),
    )


_AXES = ("model", "gpu", "region")


def decide(rule: Rule, site: Site, state: State, query: Query) -> Choice:
    """Where a turn is served: the least feasible score, behind the gate.

    Args:
      rule: the policy and its fleet.
      site: the deployments at this moment.
      state: of the session, its last turn no longer awaited.
      query: the turn, not before the last one's arrival.
    """
    p, fleet = rule.params, rule.fleet
    arrival_s, k, n, predicted, rtt_s, quality, noise = query
    prompt = k + n

    idle_s = np.maximum(0, arrival_s - state.last_used_s)
    lapse_s = np.maximum(0, arrival_s - np.maximum(state.last_used_s, state.arrival_s))
    gone = idle_s > site.ttl_s
    if rule.drop_on_leave:
        gone |= rule.number != state.last
    alive = aged(np.where(gone, 0, state.resident_tokens), np.exp(-lapse_s / site.decay_s), [])

    assumed = (1 - p.cache_knowledge) * p.assumed_hit
    full = blocks(min(k, state.context_tokens, prompt - 1), rule.block_tokens)
    usable = blocks(np.minimum(alive, min(k, prompt - 1)), rule.block_tokens)
    cached = p.cache_knowledge * usable + assumed * full
    prefill_j, prefill_s = prefill(fleet, cached, prompt)
    decode_j, decode_s = decode(fleet, prompt, predicted)
    busy_s = prefill_s + decode_s / fleet.batch
    operational_g, embodied_g = emissions(fleet, site.kappa_g_per_kwh, prefill_j + decode_j, busy_s)
    ttft_s = rtt_s + site.wait_s + np.maximum(fleet.ttft_floor_s, prefill_s)
    e2e_s = ttft_s + decode_s

    fits = prompt + predicted <= rule.max_context_tokens
    if not fits.any():
        return Choice(NONE, NONE, False, (), 0.0, arrival_s, alive)
    quality = quality[rule.model]
    feasible, _ = select(p, fits, rule.allowed, quality, ttft_s)
    score_g = (
        p.carbon_weight * (operational_g + p.embodied_weight * embodied_g)
        + p.latency_price_g_per_s * e2e_s
        + p.quality_price_g * (1 - quality)
        + p.intensity_price * site.kappa_g_per_kwh
        + p.rtt_price_g_per_s * rtt_s
        + p.size_price_g_per_b * rule.params_b
        + p.noise_price_g * noise
    )
    i = state.last
    if p.switch_price_g and i != NONE:
        score_g += p.switch_price_g * (rule.number != i)
    j = int(np.where(feasible, score_g, np.inf).argmin())

    reasons: tuple[str, ...] = ()
    asked = i not in (NONE, j) and bool(feasible[i])
    if asked:
        left = p.cache_knowledge * alive.item(i) + assumed * min(k, state.context_tokens)
        return_g = _return_g(rule, site, i, min(left, k), idle_s.item(i), query)
        features = (
            rule.model[i] != rule.model[j],
            rule.region[i] != rule.region[j],
            site.log_intensity_change[i] - site.log_intensity_change[j],
            math.log1p(state.turns),
            math.log1p(k / n),
            state.returns / max(state.moves, 1),
            quality[i] - quality[j],
        )
        reasons = _reasons(p, score_g.item(i), score_g.item(j), return_g, features)
    d = i if reasons else j
    carbon_g = operational_g.item(d) + embodied_g.item(d)
    return Choice(d, j, asked, reasons, carbon_g, arrival_s + e2e_s.item(d), alive)


def _return_g(
    rule: Rule, site: Site, i: int, left_tokens: float, idle_s: float, query: Query
) -> float:
    """R_i of DESIGN: what the policy pays at `i` for the history if it leaves and comes back, g.

    `left_tokens` are those believed there now, `idle_s` is since their last use.
    """
    p, (_, k, n, predicted, *_) = rule.params, query
    gap_s, ttl_s, prompt = p.expected_gap_s, site.ttl_s.item(i), k + n
    lost = rule.drop_on_leave or idle_s + gap_s > ttl_s, gap_s > ttl_s
    after = left_tokens, prompt + max(predicted - 1, 0)
    after = aged(np.where(lost, 0, after), math.exp(-gap_s / site.decay_s.item(i)), [])
    start, stop = blocks(np.minimum(after, prompt + predicted), rule.block_tokens).tolist()
    fleet = rule.rows[i]
    energy_j, time_s = prefill(fleet, start, stop)
    operational_g, embodied_g = emissions(fleet, site.kappa_g_per_kwh.item(i), energy_j, time_s)
    carbon_g = p.carbon_weight * (operational_g + p.embodied_weight * embodied_g)
    return carbon_g + p.latency_price_g_per_s * time_s


def _reasons(
    p: Any, score_i: float, score_j: float, return_g: float, features: tuple
) -> tuple[str, ...]:
    """The clauses of the gate that hold for a wished move from i to j (`jaxroute.gate.Terms`)."""
    gain_g = score_i - score_j
    weighed = np.dot(p.gate_weights, [gain_g / score_i if score_i else 0.0, *features])
    p_back = (1 + math.tanh((p.gate_bias + weighed) / 2)) / 2
    clauses = (
        gain_g < p.gate_strength * p_back * return_g,
        gain_g < p.hysteresis * score_i,
        p.always_stay > 0,
    )
    return tuple(name for name, holds in zip(CLAUSES, clauses, strict=True) if holds)


def sent(state: State, query: Query, choice: Choice) -> State:
    """The session with its turn under way, expected to go as predicted.

    A turn that no deployment holds is expected to give no output.
    """
    served = choice.deployment != NONE
    return state._replace(
        resident_tokens=np.minimum(choice.alive_tokens, query.prefix_tokens),
        arrival_s=query.arrival_s,
        prompt_tokens=query.prefix_tokens + query.new_tokens,
        output_tokens=query.predicted_output_tokens if served else 0.0,
        turns=state.turns + 1,
        awaited=(choice.deployment, choice.finish_s),
    )
