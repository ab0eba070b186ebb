"""The plain rival: a compiled loop over sessions, turns and candidate deployments.

What one would write in C in an afternoon: one policy under one retention at a time, float32 state,
every core, no cleverness. It shares no code with the engine and computes the same thing (see
`jaxroute.reference`): all filters, the gate and its features, retention, time bins and fallbacks.
"""

from collections import namedtuple
from typing import NamedTuple

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

from jaxroute.policies import RouterParams
from jaxroute.sessions import Sessions
from jaxroute.simulate import FIELDS
from jaxroute.world import TIME_BINS, Retention, World

f32 = np.float32
# Typed constants: a Python number would make an expression float64.
ZERO, HALF, ONE, INF = f32(0), f32(0.5), f32(1), f32(np.inf)
EDGE_TOKENS = f32(0.01)
KWH_PER_J = f32(1 / 3.6e6)
LEAST_INTENSITY = f32(1e-9)
NONE = -1
AT = namedtuple("At", FIELDS)(*range(len(FIELDS)))  # where each sum stands

compiled = njit(cache=True, error_model="numpy")


class Turns(NamedTuple):
    """N turns, the S sessions one after another; floats are float32, tokens among them.

    Attributes:
      offset: `[S + 1]`, where each session begins.
      gap_s: `[N]`, since the previous turn's arrival, 0 at the first.
      hour, time_bin, home: `[N]`, rows of the intensity, quarter-hour of the day, client region.
      prefix_tokens, new_tokens, output_tokens, predicted_output_tokens: `[N]`.
      quality: `[N, M]`, predicted, of each model.
      noise: `[N, D]`, uniform on [0, 1).
    """

    offset: NDArray
    gap_s: NDArray
    hour: NDArray
    time_bin: NDArray
    home: NDArray
    prefix_tokens: NDArray
    new_tokens: NDArray
    output_tokens: NDArray
    predicted_output_tokens: NDArray
    quality: NDArray
    noise: NDArray


class Site(NamedTuple):
    """Fleet, grids and retention, flat; as `jaxroute.world`, but `[B, D]` tables in full."""

    model: NDArray
    gpu: NDArray
    region: NDArray
    pre_j: NDArray
    pre_j_ctx: NDArray
    pre_s: NDArray
    pre_s_ctx: NDArray
    ttft_floor_s: NDArray
    dec_j: NDArray
    dec_j_ctx: NDArray
    dec_s: NDArray
    dec_s_ctx: NDArray
    host_w: NDArray
    batch: NDArray
    embodied_g_per_s: NDArray
    max_context_tokens: NDArray
    params_b: NDArray
    pue: NDArray
    water_l_per_kwh: NDArray
    price_usd_per_kwh: NDArray
    intensity_g_per_kwh: NDArray
    rtt_s: NDArray
    wait_s: NDArray
    ttl_s: NDArray
    decay_s: NDArray
    block_tokens: np.float32
    drop_on_leave: bool


class Router(NamedTuple):
    """The numbers of a policy, as `jaxroute.policies.RouterParams`; the masks are one, `[D]`."""

    allowed: NDArray
    gate_weights: NDArray
    carbon_weight: np.float32
    embodied_weight: np.float32
    latency_price_g_per_s: np.float32
    quality_price_g: np.float32
    switch_price_g: np.float32
    intensity_price: np.float32
    rtt_price_g_per_s: np.float32
    size_price_g_per_b: np.float32
    noise_price_g: np.float32
    cache_knowledge: np.float32
    assumed_hit: np.float32
    quality_floor: np.float32
    quality_slack: np.float32
    ttft_slo_s: np.float32
    gate_strength: np.float32
    gate_bias: np.float32
    hysteresis: np.float32
    always_stay: np.float32
    expected_gap_s: np.float32


def flatten(sessions: Sessions) -> Turns:
    """Packed sessions as the loop reads them."""
    session = np.asarray(sessions.turns.session).ravel()
    there = np.flatnonzero(session < sessions.count)
    at = there[np.argsort(session[there], kind="stable")]  # a session's turns are in order
    lengths = np.bincount(session[there], minlength=sessions.count)
    columns = {}
    for name in Turns._fields[1:]:
        values = np.asarray(getattr(sessions.turns, name))
        columns[name] = values.reshape(-1, *values.shape[2:])[at]
    columns["new_tokens"] = np.maximum(columns["new_tokens"], 1)
    return Turns(offset=np.append(0, np.cumsum(lengths)), **columns)


def site(world: World, retention: Retention) -> Site:
    """A world under one retention as the loop reads it."""
    deployments = len(world.fleet.model)

    def full(table):
        return np.broadcast_to(table, (len(table), deployments)).astype(f32)

    return Site(
        **vars(world.fleet),
        pue=world.pue,
        water_l_per_kwh=world.wue_l_per_kwh / world.pue + world.ewif_l_per_kwh,
        price_usd_per_kwh=world.price_usd_per_kwh,
        intensity_g_per_kwh=world.intensity_g_per_kwh,
        rtt_s=world.rtt_s,
        wait_s=full(world.wait_s),
        ttl_s=full(retention.ttl_s),
        decay_s=full(retention.decay_s),
        block_tokens=f32(world.block_tokens),
        drop_on_leave=bool(retention.drop_on_leave > 0),
    )


def router(params: RouterParams, world: World) -> Router:
    """A policy as the loop reads it."""
    allowed = np.ones(len(world.fleet.model), bool)
    for axis in ("model", "gpu", "region"):
        mask, index = getattr(params, f"{axis}_allowed"), getattr(world.fleet, axis)
        allowed &= mask[np.minimum(index, len(mask) - 1)] > 0
    numbers = {
        name: f32(getattr(params, name))
        for name in Router._fields
        if name not in ("allowed", "gate_weights")
    }
    return Router(allowed=allowed, gate_weights=params.gate_weights.astype(f32), **numbers)


@compiled
def blocks(tokens, block):
    """Tokens in full blocks."""
    return block * np.floor((tokens + EDGE_TOKENS) / block)


@compiled
def prefill(w, d, start, stop):
    """Joules and seconds of prefilling tokens `start` to `stop` at deployment d."""
    u = stop - start
    x = u * (stop + start) * HALF
    return w.pre_j[d] * u + w.pre_j_ctx[d] * x, w.pre_s[d] * u + w.pre_s_ctx[d] * x


@compiled
def decode(w, d, prompt, output):
    """Joules and seconds of generating `output` tokens at deployment d."""
    v = max(output - ONE, ZERO)
    y = v * (prompt + v * HALF)
    return w.dec_j[d] * v + w.dec_j_ctx[d] * y, w.dec_s[d] * v + w.dec_s_ctx[d] * y


@compiled
def kappa(w, d, hour):
    """g/kWh of IT energy."""
    r = w.region[d]
    return w.pue[r] * w.intensity_g_per_kwh[hour, r]


@compiled
def trend(w, d, hour):
    """Log of the next hour's intensity over this one's."""
    r, last = w.region[d], len(w.intensity_g_per_kwh) - 1
    now = max(w.intensity_g_per_kwh[hour, r], LEAST_INTENSITY)
    later = max(w.intensity_g_per_kwh[min(hour + 1, last), r], LEAST_INTENSITY)
    return np.log(later / now)


@compiled
def rebuild_price_g(p, w, s, t, i, alive, idle_s, kept):
    """What coming back to i at the next turn would rebuild, g."""
    k, prompt = s.prefix_tokens[t], s.prefix_tokens[t] + s.new_tokens[t]
    predicted, gap_s = s.predicted_output_tokens[t], p.expected_gap_s
    ttl_s = w.ttl_s[s.time_bin[t] * len(w.ttl_s) // TIME_BINS, i]
    fade = np.exp(-gap_s / w.decay_s[s.time_bin[t] * len(w.decay_s) // TIME_BINS, i])
    believed = p.cache_knowledge * alive + (ONE - p.cache_knowledge) * p.assumed_hit * kept
    left = np.floor(min(believed, k) * fade + EDGE_TOKENS)
    if w.drop_on_leave or idle_s + gap_s > ttl_s:
        left = ZERO
    stay = np.floor((prompt + max(predicted - ONE, ZERO)) * fade + EDGE_TOKENS)
    if gap_s > ttl_s:
        stay = ZERO
    c0 = blocks(min(left, prompt + predicted), w.block_tokens)
    c1 = blocks(min(stay, prompt + predicted), w.block_tokens)
    energy_j, time_s = prefill(w, i, c0, c1)
    operational_g = (energy_j + w.host_w[i] * time_s) * kappa(w, i, s.hour[t]) * KWH_PER_J
    embodied_g = w.embodied_g_per_s[i] * time_s
    carbon_g = p.carbon_weight * (operational_g + p.embodied_weight * embodied_g)
    return carbon_g + p.latency_price_g_per_s * time_s


@compiled
def stays(p, w, s, t, turn, i, j, gain_g, score_g, rebuild_g, return_share):
    """Whether a session that wishes to move from i to j stays."""
    weights = p.gate_weights
    logit = p.gate_bias
    if score_g > ZERO:
        logit += weights[0] * (gain_g / score_g)
    if w.model[i] != w.model[j]:
        logit += weights[1]
    if w.region[i] != w.region[j]:
        logit += weights[2]
    logit += weights[3] * (trend(w, i, s.hour[t]) - trend(w, j, s.hour[t]))
    logit += weights[4] * np.log1p(f32(turn))
    logit += weights[5] * np.log1p(s.prefix_tokens[t] / s.new_tokens[t])
    logit += weights[6] * return_share
    logit += weights[7] * (s.quality[t, w.model[i]] - s.quality[t, w.model[j]])
    p_back = ONE / (ONE + np.exp(-logit))
    return (
        gain_g < p.gate_strength * p_back * rebuild_g
        or gain_g < p.hysteresis * score_g
        or p.always_stay > ZERO
    )


@compiled
def replay_session(p, w, s, begin, end, sums, decision):
    """One session: adds to `sums` `[16]` and sets `decision[begin:end]`."""
    deployments = len(w.region)
    resident = np.zeros(deployments, f32)  # tokens, as of the previous turn
    last_used_s = np.zeros(deployments, f32)  # since the previous arrival
    alive, cached, idle_s, ttft_s, score = np.empty((5, deployments), f32)
    last = before = NONE
    context = moves = returns = ZERO

    for t in range(begin, end):
        k, prompt = s.prefix_tokens[t], s.prefix_tokens[t] + s.new_tokens[t]
        predicted, gap_s, hour = s.predicted_output_tokens[t], s.gap_s[t], s.hour[t]
        wait = w.wait_s[s.time_bin[t] * len(w.wait_s) // TIME_BINS]
        ttl = w.ttl_s[s.time_bin[t] * len(w.ttl_s) // TIME_BINS]
        decay = w.decay_s[s.time_bin[t] * len(w.decay_s) // TIME_BINS]
        rtt = w.rtt_s[s.home[t]]
        usable = min(k, prompt - ONE)
        full = blocks(min(context, usable), w.block_tokens)
        assumed = (ONE - p.cache_knowledge) * p.assumed_hit * full

        # Residency on arrival, and the best quality that the context limit and the masks leave.
        best_fit = best_allowed = -INF
        for d in range(deployments):
            idle_s[d] = max(gap_s - last_used_s[d], ZERO)
            alive[d] = ZERO
            gone = idle_s[d] > ttl[d] or (w.drop_on_leave and d != last)
            if resident[d] > ZERO and not gone:
                lapse_s = max(gap_s - max(last_used_s[d], ZERO), ZERO)
                alive[d] = np.floor(resident[d] * np.exp(-lapse_s / decay[d]) + EDGE_TOKENS)
            if prompt + predicted <= w.max_context_tokens[d]:
                best_fit = max(best_fit, s.quality[t, w.model[d]])
                if p.allowed[d]:
                    best_allowed = max(best_allowed, s.quality[t, w.model[d]])
        served = best_fit > -INF
        mask_fails = best_allowed == -INF
        best = best_fit if mask_fails else best_allowed
        floor = max(p.quality_floor, best - p.quality_slack)

        # What serving would cost, and the least of each term that does not depend on the cache:
        # terms enter the score less that, else float32 drowns what breaks their ties.
        fastest_s = least_kappa = least_rtt = least_size = INF
        best_quality = -INF
        for d in range(deployments):
            quality = s.quality[t, w.model[d]]
            score[d] = INF
            if (
                prompt + predicted > w.max_context_tokens[d]
                or not (p.allowed[d] or mask_fails)
                or quality < min(floor, best)
            ):
                continue
            cached[d] = blocks(min(alive[d], usable), w.block_tokens)
            believed = p.cache_knowledge * cached[d] + assumed
            prefill_j, prefill_s = prefill(w, d, believed, prompt)
            decode_j, decode_s = decode(w, d, prompt, predicted)
            busy_s = prefill_s + decode_s / w.batch[d]
            kappa_d = kappa(w, d, hour)
            operational_g = (prefill_j + decode_j + w.host_w[d] * busy_s) * kappa_d * KWH_PER_J
            embodied_g = w.embodied_g_per_s[d] * busy_s
            ttft_s[d] = rtt[w.region[d]] + wait[d] + max(w.ttft_floor_s[d], prefill_s)
            score[d] = p.carbon_weight * (operational_g + p.embodied_weight * embodied_g)
            score[d] += p.latency_price_g_per_s * (ttft_s[d] + decode_s)
            if last != NONE and d != last:
                score[d] += p.switch_price_g
            fastest_s = min(fastest_s, ttft_s[d])
            least_kappa = min(least_kappa, kappa_d)
            least_rtt = min(least_rtt, rtt[w.region[d]])
            least_size = min(least_size, w.params_b[d])
            best_quality = max(best_quality, quality)

        # The least score among the feasible, the lowest index on a tie.
        wished = NONE
        for d in range(deployments):
            if score[d] == INF or ttft_s[d] > max(p.ttft_slo_s, fastest_s):
                score[d] = INF
                continue
            score[d] += (
                p.quality_price_g * (best_quality - s.quality[t, w.model[d]])
                + p.intensity_price * (kappa(w, d, hour) - least_kappa)
                + p.rtt_price_g_per_s * (rtt[w.region[d]] - least_rtt)
                + p.size_price_g_per_b * (w.params_b[d] - least_size)
                + p.noise_price_g * s.noise[t, d]
            )
            if wished == NONE or score[d] < score[wished]:
                wished = d

        d = wished
        if last not in (NONE, wished) and score[last] < INF:
            offset_g = (
                p.quality_price_g * (ONE - best_quality)
                + p.intensity_price * least_kappa
                + p.rtt_price_g_per_s * least_rtt
                + p.size_price_g_per_b * least_size
            )
            gain_g, score_g = score[last] - score[wished], score[last] + offset_g
            kept = min(k, context)
            rebuild_g = rebuild_price_g(p, w, s, t, last, alive[last], idle_s[last], kept)
            share = returns / max(moves, ONE)
            if stays(p, w, s, t, t - begin, last, wished, gain_g, score_g, rebuild_g, share):
                d = last

        for x in range(deployments):
            resident[x] = min(alive[x], k)
            last_used_s[x] -= gap_s
        context = prompt + max(s.output_tokens[t] - ONE, ZERO)
        decision[t] = d
        if not served:
            sums[AT.unserved] += 1
            continue

        # The bill, on true values.
        c = cached[d]
        per_j = kappa(w, d, hour) * KWH_PER_J
        prefill_j, prefill_s = prefill(w, d, c, prompt)
        decode_j, decode_s = decode(w, d, prompt, s.output_tokens[t])
        rebuild_j, rebuild_s = prefill(w, d, c, full)
        shared_s = decode_s / w.batch[d]
        busy_s = prefill_s + shared_s
        first_s = rtt[w.region[d]] + wait[d] + max(w.ttft_floor_s[d], prefill_s)
        energy_j = prefill_j + decode_j + w.host_w[d] * busy_s
        moved = last != NONE and d != last
        returned = moved and d == before
        sums[AT.turns] += 1
        sums[AT.carbon_prefill_g] += (prefill_j + w.host_w[d] * prefill_s) * per_j
        sums[AT.carbon_rebuild_g] += (rebuild_j + w.host_w[d] * rebuild_s) * per_j
        sums[AT.carbon_rebuild_g] += w.embodied_g_per_s[d] * rebuild_s
        sums[AT.carbon_decode_g] += (decode_j + w.host_w[d] * shared_s) * per_j
        sums[AT.carbon_embodied_g] += w.embodied_g_per_s[d] * busy_s
        energy_kwh = energy_j * w.pue[w.region[d]] * KWH_PER_J
        sums[AT.energy_kwh] += energy_kwh
        sums[AT.water_l] += energy_kwh * w.water_l_per_kwh[w.region[d]]
        sums[AT.cost_usd] += energy_kwh * w.price_usd_per_kwh[w.region[d]]
        sums[AT.ttft_s] += first_s
        sums[AT.e2e_s] += first_s + decode_s
        sums[AT.quality] += s.quality[t, w.model[d]]
        sums[AT.moves] += moved
        sums[AT.returns] += returned
        sums[AT.rebuilt_tokens] += full - c
        sums[AT.mask_fallbacks] += mask_fails
        sums[AT.quality_fallbacks] += floor > best
        sums[AT.ttft_fallbacks] += fastest_s > p.ttft_slo_s

        resident[d], last_used_s[d] = context, first_s + decode_s
        if moved:
            before = last
            moves += ONE
        if returned:
            returns += ONE
        last = d


@njit(cache=True, parallel=True, error_model="numpy")
def replay_all(p, w, s, totals, decisions):
    """Every session, on all cores."""
    for n in prange(len(s.offset) - 1):
        replay_session(p, w, s, s.offset[n], s.offset[n + 1], totals[n], decisions)


def replay(
    params: RouterParams, turns: Turns, world: World, retention: Retention
) -> tuple[NDArray[np.float64], NDArray[np.int32]]:
    """Replays every session under one policy and one retention.

    Args:
      params: the policy.
      turns: a trace from `flatten`.
      world: fleet and grids; its own retention is not used.
      retention: how long caches live.

    Returns:
      Sums of each session, `[S, 18]` in the order of `jaxroute.simulate.FIELDS`, and the deployment
      of each turn, `[N]`, -1 where unserved.
    """
    totals = np.zeros((len(turns.offset) - 1, len(FIELDS)))
    decisions = np.empty(len(turns.gap_s), np.int32)
    replay_all(router(params, world), site(world, retention), turns, totals, decisions)
    return totals, decisions
