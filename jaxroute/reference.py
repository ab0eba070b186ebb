"""The exact semantics of one conversation, as a plain NumPy float64 loop over its turns.

This is the oracle of the engine, with which it shares no code, and its executable documentation.
D deployments, M models, G GPU types, R regions, C homes, H hours and T turns. Units are in the
names, `_g` being gCO2e; kappa is PUE x grid intensity, gCO2e per kWh of IT energy.
"""

from __future__ import annotations

import math
from collections import namedtuple
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Values = Mapping[str, Any]
NONE = -1
NEVER = 1e30
JOULES_PER_KWH = 3.6e6
SLACK_TOKENS = 0.01
SMALLEST_INTENSITY = 1e-9
BINS_PER_DAY = 96
PERFECT = {"delayed": 0, "rounded_to_tokens": 1, "missing": 0}
INDICES = frozenset({"model", "gpu", "region", "hour", "time_bin", "home"})
FALLBACKS = ("mask_fallbacks", "quality_fallbacks", "ttft_fallbacks")
TOTALS = (
    *("turns", "unserved", "carbon_prefill_g", "carbon_rebuild_g", "carbon_decode_g"),
    *("carbon_embodied_g", "energy_kwh", "water_l", "cost_usd", "ttft_s", "e2e_s", "quality"),
    *("moves", "returns", "rebuilt_tokens", *FALLBACKS),
)

# What serving costs: columns [D], or the numbers of one deployment.
Fleet = namedtuple(
    "Fleet",
    "pre_j pre_j_ctx pre_s pre_s_ctx ttft_floor_s dec_j dec_j_ctx dec_s dec_s_ctx "
    "host_w batch embodied_g_per_s",
)


class Replay(NamedTuple):
    """What happened at each turn [T], and sums over the session.

    `margin` to `ttl_edge_s` tell how near a turn was to another outcome, 1e30 if there is none.
    Total carbon is `carbon_prefill_g + carbon_decode_g + carbon_embodied_g` of `totals`, a part of
    which is `carbon_rebuild_g`.
    """

    decision: NDArray[np.int64]  # the deployment that served, -1 when unserved
    cached_tokens: NDArray[np.float64]  # prompt tokens found in its cache, 0 when unserved
    margin: NDArray[np.float64]  # (J2 - J1)/|J1|, the two lowest scores among the feasible
    gate_margin: NDArray[np.float64]  # J_i - J_j to the nearer gate threshold, over |J_i|
    edge_tokens: NDArray[np.float64]  # an inexact number of tokens to a jump of its floor
    ttl_edge_s: NDArray[np.float64]  # an idle time to the `ttl_s` it is compared with
    totals: dict[str, float]  # by the names of `TOTALS`


def blocks(tokens: Any, block: float) -> Any:
    """Tokens in full blocks, B floor((tokens + 0.01)/B): only full blocks are shared."""
    return block * np.floor((tokens + SLACK_TOKENS) / block)


def aged(tokens: Any, factor: Any, edges: list[float]) -> Any:
    """Whole tokens left after decay, floor(tokens factor + 0.01).

    Appends to `edges` the least distance of an argument from a jump of the floor, leaving out those
    that are exact in float32 too.
    """
    argument = tokens * factor + SLACK_TOKENS
    exact = (tokens == 0) | ((factor == 1) & (tokens == np.floor(tokens)))
    distance = np.abs(argument - np.maximum(np.rint(argument), 1))
    edges.append(float(np.where(exact, NEVER, distance).min()))
    return np.floor(argument)


def prefill(f: Fleet, start: Any, stop: Any) -> tuple[Any, Any]:
    """Joules and seconds of prefilling the prompt's tokens from `start` to `stop`."""
    u = stop - start
    x = u * (stop + start) / 2
    return f.pre_j * u + f.pre_j_ctx * x, f.pre_s * u + f.pre_s_ctx * x


def decode(f: Fleet, prompt: float, output: float) -> tuple[Any, Any]:
    """Joules and seconds of generating `output` tokens, the first of which the prefill emits."""
    v = max(output - 1, 0)
    y = v * (prompt + v / 2)
    return f.dec_j * v + f.dec_j_ctx * y, f.dec_s * v + f.dec_s_ctx * y


def emissions(f: Fleet, kappa: Any, gpu_j: Any, busy_s: Any) -> tuple[Any, Any]:
    """Operational (GPU and host) and embodied gCO2e of a replica busy for `busy_s`."""
    return (gpu_j + f.host_w * busy_s) * kappa / JOULES_PER_KWH, f.embodied_g_per_s * busy_s


def select(p: Any, fits: Any, allowed: Any, quality: Any, ttft_s: Any) -> tuple[Any, list[bool]]:
    """Feasible deployments [D], and which of `FALLBACKS` were needed.

    `fits`, the context limit, holds somewhere; a soft filter that nobody passes leaves the best.
    """
    mask_fallback = not (fits & allowed).any()
    feasible = fits if mask_fallback else fits & allowed
    best = quality[feasible].max()
    floor = max(p.quality_floor, best - p.quality_slack)
    feasible = feasible & (quality >= min(floor, best))
    fastest = ttft_s[feasible].min()
    feasible = feasible & (ttft_s <= max(p.ttft_slo_s, fastest))
    return feasible, [mask_fallback, floor > best, p.ttft_slo_s < fastest]


def relative(distance: float, scale: float) -> float:
    """distance/|scale|; at scale 0, 0 for no distance and 1e30 for any other."""
    return distance / abs(scale) if scale else NEVER if distance else 0.0


def gate(
    p: Any, score_i: float, score_j: float, return_g: float, features: Sequence[float]
) -> tuple[bool, float]:
    """Whether to stay at i although j scores lower, and how clear of the thresholds that is.

    Stay iff dJ < gate_strength p_back R_i, or dJ < hysteresis J_i, or always_stay; dJ = J_i - J_j,
    R_i = `return_g`, p_back = sigmoid(bias + weights . features), the first feature being dJ/J_i.
    """
    excess_g = score_i - score_j
    features = [excess_g / score_i if score_i else 0.0, *features]
    p_back = (1 + math.tanh((p.gate_bias + np.dot(p.gate_weights, features)) / 2)) / 2
    thresholds = p.gate_strength * p_back * return_g, p.hysteresis * score_i
    nearest = min(abs(excess_g - threshold) for threshold in thresholds)
    return excess_g < max(thresholds) or p.always_stay > 0, relative(nearest, score_i)


def _namespace(values: Values) -> Any:
    """The values as attributes: int64 indices, else float64; a plain number where 0-d."""
    namespace = SimpleNamespace()
    for name, value in ((n, v) for n, v in values.items() if n != "belief"):
        array = np.asarray(value, np.int64 if name in INDICES else np.float64)
        setattr(namespace, name, array if array.ndim else array.item())
    return namespace


def _tabulate(w: Any, s: Any, p: Any) -> None:
    """Add to `w` [D] and `s` [T, D] what no decision changes."""
    w.fleet = Fleet(*(getattr(w, name) for name in Fleet._fields))
    w.index = np.arange(len(w.region))
    masks = (p.model_allowed, w.model), (p.gpu_allowed, w.gpu), (p.region_allowed, w.region)
    allowed = [(mask[index] if np.size(mask) > 1 else mask) > 0 for mask, index in masks]
    w.allowed = allowed[0] & allowed[1] & allowed[2]
    s.quality = s.quality[:, w.model]
    s.kappa = (w.pue * w.intensity_g_per_kwh[s.hour])[:, w.region]
    s.rtt_s = w.rtt_s[s.home][:, w.region]
    for name in ("wait_s", "ttl_s", "decay_s"):
        table = getattr(w, name)
        rows = table[s.time_bin * len(table) // BINS_PER_DAY]
        setattr(s, name, np.broadcast_to(rows, s.kappa.shape))
    s.standing_g = (
        p.quality_price_g * (1 - s.quality)
        + p.intensity_price * s.kappa
        + p.rtt_price_g_per_s * s.rtt_s
        + p.size_price_g_per_b * w.params_b
        + p.noise_price_g * s.noise
    )


def replay(
    world: Values, session: Values, params: Values, *, forced: tuple[Any, Any] | None = None
) -> Replay:
    """Replay one session under one policy. Infinite is `numpy.inf`.

    Args:
      world: `model`, `gpu`, `region`, the fields of `Fleet`, `max_context_tokens` and `params_b`
        (billions) [D]; `pue`, `wue_l_per_kwh` (of IT energy), `ewif_l_per_kwh` and
        `price_usd_per_kwh` (at the meter) [R]; `intensity_g_per_kwh` [H, R]; `rtt_s` [C, R];
        `wait_s`, `ttl_s`, `decay_s` [B, D or 1], B divides 96; `block_tokens`, `drop_on_leave` [];
        perhaps `belief`, what the router takes for true: `intensity_g_per_kwh`, `params_b` and the
        fields of `Fleet` as above, and of the reports on caches `delayed` (0 or 1), which are then
        of the previous turn's arrival, `rounded_to_tokens`, and `missing`, the chance of none.
      session: `arrival_s` after its first turn, `hour` (row of the intensity), `time_bin` (quarter
        of an hour of the UTC day), `prefix_tokens`, `new_tokens` (0 counts as 1), `output_tokens`,
        `predicted_output_tokens`, `home` [T]; `quality` [T, M]; `noise` [T, D] uniform on [0, 1),
        with a belief `report_draw` likewise: a report is missing where it is less than `missing`.
      params: the numbers of a policy; `model_allowed` [M], `gpu_allowed` [G], `region_allowed` [R]
        or [1] for all; `gate_weights` [8].
      forced: decisions [T] and cached tokens [T] to bill instead of the policy's own.
    """
    w, s, p = _namespace(world), _namespace(session), _namespace(params)
    b, told = _namespace({**PERFECT, **world, **world.get("belief", {})}), _namespace(session)
    _tabulate(w, s, p)
    _tabulate(b, told, p)
    turns, deployments = s.kappa.shape
    decision, cached_tokens = np.full(turns, NONE), np.zeros(turns)
    margin, gate_margin, edge_tokens, ttl_edge_s = np.full((4, turns), NEVER)
    totals = dict.fromkeys(TOTALS, 0.0)
    resident, last_used_s, earlier = np.zeros((3, deployments))
    last = before = NONE
    gap_s, previous_s, previous_context = p.expected_gap_s, 0.0, 0.0

    for t in range(turns):
        arrival_s, k, n = s.arrival_s.item(t), s.prefix_tokens.item(t), max(1, s.new_tokens.item(t))
        output, predicted = s.output_tokens.item(t), s.predicted_output_tokens.item(t)
        prompt, kappa, ttl_s, decay_s = k + n, told.kappa[t], s.ttl_s[t], s.decay_s[t]
        edges: list[float] = []

        # Residency on arrival.
        idle_s = np.maximum(0, arrival_s - last_used_s)
        lapse_s = np.maximum(0, arrival_s - np.maximum(last_used_s, previous_s))
        gone = (idle_s > ttl_s) | (bool(w.drop_on_leave) & (w.index != last))
        alive = aged(np.where(gone, 0, resident), np.exp(-lapse_s / decay_s), edges)
        ttl_edge_s[t] = np.abs(idle_s - ttl_s)[resident > 0].min(initial=NEVER)

        # Cached tokens: true, the most there could be, reported, and believed.
        kept = min(k, previous_context)
        cached = blocks(np.minimum(alive, min(k, prompt - 1)), w.block_tokens)
        full = blocks(min(kept, prompt - 1), w.block_tokens)
        report = earlier if b.delayed else alive
        usable = blocks(np.minimum(report, min(k, prompt - 1)), w.block_tokens)
        report, usable = blocks(np.array((report, usable)), b.rounded_to_tokens)
        absent = told.report_draw[t] < b.missing if b.missing else np.zeros(deployments, bool)
        trust = np.where(absent, 0, p.cache_knowledge)
        hit = (1 - trust) * p.assumed_hit
        believed = trust * usable + hit * full

        # Serving, as believed.
        prefill_j, prefill_s = prefill(b.fleet, believed, prompt)
        decode_j, decode_s = decode(b.fleet, prompt, predicted)
        busy_s = prefill_s + decode_s / b.batch
        operational_g, embodied_g = emissions(b.fleet, kappa, prefill_j + decode_j, busy_s)
        ttft_s = s.rtt_s[t] + s.wait_s[t] + np.maximum(b.ttft_floor_s, prefill_s)

        d, fallbacks = NONE, [False] * 3
        fits = prompt + predicted <= w.max_context_tokens
        if fits.any():
            # Feasible, and the score in grams.
            feasible, fallbacks = select(p, fits, w.allowed, s.quality[t], ttft_s)
            score = p.carbon_weight * (operational_g + p.embodied_weight * embodied_g)
            score += p.latency_price_g_per_s * (ttft_s + decode_s) + told.standing_g[t]
            score += p.switch_price_g * ((last != NONE) & (w.index != last))
            candidates = np.where(feasible, score, np.inf)
            d = int(candidates.argmin())
            if np.count_nonzero(feasible) > 1:
                lowest, second = np.partition(candidates, 1)[:2].tolist()
                margin[t] = relative(second - lowest, lowest)

            # Gate: what a return to i would rebuild, and how likely it is.
            i, j = last, d
            if i not in (NONE, j) and feasible[i]:
                left, stay = trust[i] * report[i] + hit[i] * kept, prompt + max(predicted - 1, 0)
                left = min(left, k)
                lost = w.drop_on_leave or idle_s[i] + gap_s > ttl_s[i], gap_s > ttl_s[i]
                fade = math.exp(-gap_s / decay_s[i])
                left, stay = aged(np.where(lost, 0, (left, stay)), fade, edges)
                c0, c1 = blocks(np.minimum((left, stay), prompt + predicted), w.block_tokens)
                ttl_edge_s[t] = min(ttl_edge_s[t], abs(idle_s[i] + gap_s - ttl_s[i]))
                f = Fleet(*(column.item(i) for column in b.fleet))
                rebuild_j, rebuild_s = prefill(f, c0, c1)
                rebuild_g, rebuild_embodied_g = emissions(f, kappa[i], rebuild_j, rebuild_s)
                return_g = p.carbon_weight * (rebuild_g + p.embodied_weight * rebuild_embodied_g)
                return_g += p.latency_price_g_per_s * rebuild_s
                hours = [s.hour[t], min(s.hour[t] + 1, len(w.intensity_g_per_kwh) - 1)]
                intensity = b.intensity_g_per_kwh[hours][:, w.region[[i, j]]]
                now, later = np.log(np.maximum(intensity, SMALLEST_INTENSITY))
                features = (
                    w.model[i] != w.model[j],
                    w.region[i] != w.region[j],
                    (later[0] - later[1]) - (now[0] - now[1]),
                    math.log1p(t),
                    math.log1p(k / n),
                    totals["returns"] / max(totals["moves"], 1),
                    s.quality[t, i] - s.quality[t, j],
                )
                stays, gate_margin[t] = gate(p, score.item(i), score.item(j), return_g, features)
                d = i if stays else j
        edge_tokens[t] = min(edges)

        # The bill, on true values, and the state afterwards.
        resident, context, earlier = np.minimum(alive, k), prompt + max(output - 1, 0), alive
        previous_s, previous_context = arrival_s, context
        d = d if forced is None else int(forced[0][t])
        if d == NONE:
            totals["unserved"] += 1
            continue
        c = float(cached[d] if forced is None else forced[1][t])
        decision[t], cached_tokens[t] = d, c
        f, kappa = Fleet(*(column.item(d) for column in w.fleet)), s.kappa[t]
        prefill_j, prefill_s = prefill(f, c, prompt)
        decode_j, decode_s = decode(f, prompt, output)
        busy_s = prefill_s + decode_s / f.batch
        r, it_kwh = w.region[d], (prefill_j + decode_j + f.host_w * busy_s) / JOULES_PER_KWH
        ttft = s.rtt_s[t, d] + s.wait_s[t, d] + max(f.ttft_floor_s, prefill_s)
        moved = last not in (NONE, d)
        bill = {
            "turns": 1,
            "carbon_prefill_g": emissions(f, kappa[d], prefill_j, prefill_s)[0],
            "carbon_rebuild_g": sum(emissions(f, kappa[d], *prefill(f, c, full))),
            "carbon_decode_g": emissions(f, kappa[d], decode_j, decode_s / f.batch)[0],
            "carbon_embodied_g": f.embodied_g_per_s * busy_s,
            "energy_kwh": it_kwh * w.pue[r],
            "water_l": it_kwh * (w.wue_l_per_kwh[r] + w.pue[r] * w.ewif_l_per_kwh[r]),
            "cost_usd": it_kwh * w.pue[r] * w.price_usd_per_kwh[r],
            "ttft_s": ttft,
            "e2e_s": ttft + decode_s,
            "quality": s.quality[t, d],
            "moves": moved,
            "returns": moved and d == before,
            "rebuilt_tokens": full - c,
            **dict(zip(FALLBACKS, fallbacks, strict=True)),
        }
        for name, value in bill.items():
            totals[name] += float(value)
        resident[d], last_used_s[d] = context, arrival_s + ttft + decode_s
        before, last = last if moved else before, d

    return Replay(decision, cached_tokens, margin, gate_margin, edge_tokens, ttl_edge_s, totals)
