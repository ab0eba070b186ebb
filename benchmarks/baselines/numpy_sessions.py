"""NumPy over sessions: the turns of one number of all sessions at once, one setting after another.

What one would write who vectorises `jaxroute.reference` and nothing more: `[S, D]` arrays, S being
the sessions that still have a turn. Floats are of the inputs' dtype, sums float64.
"""

from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from jaxroute.policies import RouterParams
from jaxroute.sessions import Sessions
from jaxroute.simulate import FIELDS
from jaxroute.world import TIME_BINS, Fleet, World

EDGE_TOKENS = 0.01
LEAST_INTENSITY = 1e-9
J_PER_KWH = 3.6e6
NONE = -1


def run(params: RouterParams, sessions: Sessions, world: World) -> dict[str, NDArray[np.float64]]:
    """Replays every session under every setting.

    Args:
      params: P settings, `[P, ...]` leaves (`jaxroute.stack`), on the host.
      sessions: S sessions, packed, on the host.
      world: fleet, grids and retention; without a belief.

    Returns:
      The sums of `jaxroute.simulate.FIELDS`, `[P, S]` each.
    """
    turns = _by_turn(sessions)
    found = []
    for p in range(len(params.carbon_weight)):
        setting = {name: np.asarray(values)[p] for name, values in vars(params).items()}
        found.append(_replay(SimpleNamespace(**setting), turns, world, sessions.count))
    return {name: np.stack([sums[name] for sums in found]) for name in FIELDS}


def _by_turn(sessions: Sessions) -> list[tuple[NDArray[np.int64], SimpleNamespace]]:
    """For every number of a turn, the sessions that have it, the longest first, and its columns."""
    t = sessions.turns
    session = np.asarray(t.session).ravel()
    there = np.flatnonzero(session < sessions.count)
    lengths = np.bincount(session[there], minlength=sessions.count)
    number = np.asarray(t.turn).ravel().astype(int)
    order = there[np.lexsort((session[there], -lengths[session[there]], number[there]))]
    ends = np.cumsum(np.bincount(number[there]))
    flat = {n: np.asarray(x).reshape(-1, *x.shape[2:]) for n, x in vars(t).items() if x is not None}
    return [
        (session[at], SimpleNamespace(**{name: values[at] for name, values in flat.items()}))
        for at in np.split(order, ends[:-1])
    ]


def _replay(p: Any, turns: list, w: World, count: int) -> dict[str, NDArray[np.float64]]:
    """The sums of every session under one setting. Row s of the state is the s-th longest."""
    f, retention, drops = w.fleet, w.retention, bool(w.retention.drop_on_leave > 0)
    dtype, deployments = f.pre_j.dtype, np.arange(len(f.model))
    allowed = np.ones(len(deployments), bool)
    for axis in ("model", "gpu", "region"):
        mask, index = getattr(p, f"{axis}_allowed"), getattr(f, axis)
        allowed &= mask[np.minimum(index, len(mask) - 1)] > 0
    sums = {name: np.zeros(count) for name in FIELDS}
    resident, used = np.zeros((2, count, len(deployments)), dtype)
    last, before = np.full((2, count), NONE)
    context, moves, returns = np.zeros((3, count), dtype)
    bins = {"wait_s": w.wait_s, "ttl_s": retention.ttl_s, "decay_s": retention.decay_s}
    fades = np.isfinite(retention.decay_s).any()

    for number, (who, s) in enumerate(turns):
        n = len(who)
        k, new, output = s.prefix_tokens, np.maximum(s.new_tokens, 1), s.output_tokens
        prompt, predicted, gap = k + new, s.predicted_output_tokens, s.gap_s[:, None]
        rows = {name: x[s.time_bin * len(x) // TIME_BINS] for name, x in bins.items()}
        wait, ttl, decay = (np.broadcast_to(x, (n, len(deployments))) for x in rows.values())
        kappa = (w.pue * w.intensity_g_per_kwh[s.hour])[:, f.region]
        rtt, quality = w.rtt_s[s.home][:, f.region], s.quality[:, f.model]
        here = last[:n, None] == deployments

        # Residency on arrival, and the tokens that it saves.
        idle = np.maximum(gap - used[:n], 0)
        alive = np.where((idle > ttl) | (drops & ~here), 0, resident[:n])
        if fades:
            lapse = np.maximum(gap - np.maximum(used[:n], 0), 0)
            alive = np.floor(alive * np.exp(-lapse / decay) + EDGE_TOKENS)
        usable = np.minimum(k, prompt - 1)
        cached = _blocks(w, np.minimum(alive, usable[:, None]))
        full = _blocks(w, np.minimum(context[:n], usable))
        unknown = (1 - p.cache_knowledge) * p.assumed_hit * full
        believed = p.cache_knowledge * cached + unknown[:, None]

        # Serving as believed, and the deployments that may.
        prefill_j, prefill_s = _prefill(f, believed, prompt[:, None])
        decode_j, decode_s = _decode(f, prompt[:, None], predicted[:, None])
        busy_s = prefill_s + decode_s / f.batch
        ttft = rtt + wait + np.maximum(f.ttft_floor_s, prefill_s)
        fits = (prompt + predicted)[:, None] <= f.max_context_tokens
        served, feasible = fits.any(axis=1), fits & allowed
        mask_fails = ~feasible.any(axis=1)
        feasible |= fits & mask_fails[:, None]
        best = np.where(feasible, quality, -np.inf).max(axis=1)
        floor = np.maximum(p.quality_floor, best - p.quality_slack)
        feasible &= quality >= np.minimum(floor, best)[:, None]
        fastest = np.where(feasible, ttft, np.inf).min(axis=1)
        feasible &= ttft <= np.maximum(p.ttft_slo_s, fastest)[:, None]

        # The score. What does not depend on caches enters less its least, for float32's sake.
        gpu_g = (prefill_j + decode_j + f.host_w * busy_s) * (kappa / J_PER_KWH)
        score = p.carbon_weight * (gpu_g + p.embodied_weight * (f.embodied_g_per_s * busy_s))
        score += p.latency_price_g_per_s * (ttft + decode_s)
        score += p.switch_price_g * ((last[:n, None] != NONE) & ~here)
        offset = np.zeros(n, dtype)
        standing = (
            (p.quality_price_g, 1 - quality),
            (p.intensity_price, kappa),
            (p.rtt_price_g_per_s, rtt),
            (p.size_price_g_per_b, np.broadcast_to(f.params_b, kappa.shape)),
        )
        for price, values in standing:
            if price:
                least = np.where(feasible, values, np.inf).min(axis=1, initial=np.inf)
                least = np.where(served, least, 0)
                score += price * (values - least[:, None])
                offset += price * least
        score += p.noise_price_g * s.noise
        score[~feasible] = np.inf
        d = score.argmin(axis=1)

        # The gate, of the sessions that wish to move and could stay.
        at = np.flatnonzero(served & (last[:n] != NONE) & (d != last[:n]))
        at = at[feasible[at, last[at]]]
        if len(at):
            i, j = last[at], d[at]
            gain, score_i = score[at, i] - score[at, j], score[at, i] + offset[at]
            turn = SimpleNamespace(
                number=number,
                k=k[at],
                new=new[at],
                prompt=prompt[at],
                predicted=predicted[at],
                kept=np.minimum(k, context[:n])[at],
                alive=alive[at, i],
                idle=idle[at, i],
                ttl=ttl[at, i],
                decay=decay[at, i],
                kappa=kappa[at, i],
                hour=s.hour[at],
                share=returns[at] / np.maximum(moves[at], 1),
                better=quality[at, i] - quality[at, j],
            )
            d[at] = np.where(_stays(p, w, turn, i, j, gain, score_i), i, j)

        # The state afterwards, and the bill on true values.
        resident[:n], context[:n] = (
            np.minimum(alive, k[:, None]),
            prompt + np.maximum(output - 1, 0),
        )
        used[:n] -= gap
        at = np.flatnonzero(served)
        x, start = d[at], last[at]
        one = _rows(f, x)
        c = cached[at, x]
        prefill_j, prefill_s = _prefill(one, c, prompt[at])
        decode_j, decode_s = _decode(one, prompt[at], output[at])
        rebuild_j, rebuild_s = _prefill(one, c, full[at])
        shared_s = decode_s / one.batch
        per_j, region = kappa[at, x] / J_PER_KWH, f.region[x]
        it_kwh = (prefill_j + decode_j + one.host_w * (prefill_s + shared_s)) / J_PER_KWH
        first_s = rtt[at, x] + wait[at, x] + np.maximum(one.ttft_floor_s, prefill_s)
        moved = (start != NONE) & (x != start)
        returned = moved & (x == before[at])
        bill = {
            "turns": 1,
            "carbon_prefill_g": (prefill_j + one.host_w * prefill_s) * per_j,
            "carbon_rebuild_g": (rebuild_j + one.host_w * rebuild_s) * per_j
            + one.embodied_g_per_s * rebuild_s,
            "carbon_decode_g": (decode_j + one.host_w * shared_s) * per_j,
            "carbon_embodied_g": one.embodied_g_per_s * (prefill_s + shared_s),
            "energy_kwh": it_kwh * w.pue[region],
            "water_l": it_kwh * (w.wue_l_per_kwh + w.pue * w.ewif_l_per_kwh)[region],
            "cost_usd": it_kwh * (w.pue * w.price_usd_per_kwh)[region],
            "ttft_s": first_s,
            "e2e_s": first_s + decode_s,
            "quality": quality[at, x],
            "moves": moved,
            "returns": returned,
            "rebuilt_tokens": full[at] - c,
            "mask_fallbacks": mask_fails[at],
            "quality_fallbacks": (floor > best)[at],
            "ttft_fallbacks": (fastest > p.ttft_slo_s)[at],
        }
        for name, values in bill.items():
            sums[name][who[at]] += values
        sums["unserved"][who[~served]] += 1
        resident[at, x], used[at, x] = context[at], first_s + decode_s
        before[at] = np.where(moved, start, before[at])
        moves[at] += moved
        returns[at] += returned
        last[at] = x
    return sums


def _rows(fleet: Fleet, at: NDArray[np.int64]) -> SimpleNamespace:
    """The columns of a fleet at some deployments."""
    return SimpleNamespace(**{name: values[at] for name, values in vars(fleet).items()})


def _blocks(w: World, tokens: NDArray) -> NDArray:
    return w.block_tokens * np.floor((tokens + EDGE_TOKENS) / w.block_tokens)


def _prefill(f: Any, start: NDArray, stop: NDArray) -> tuple[NDArray, NDArray]:
    u = stop - start
    x = u * (stop + start) / 2
    return f.pre_j * u + f.pre_j_ctx * x, f.pre_s * u + f.pre_s_ctx * x


def _decode(f: Any, prompt: NDArray, output: NDArray) -> tuple[NDArray, NDArray]:
    v = np.maximum(output - 1, 0)
    y = v * (prompt + v / 2)
    return f.dec_j * v + f.dec_j_ctx * y, f.dec_s * v + f.dec_s_ctx * y


def _stays(
    p: Any, w: World, t: Any, i: NDArray, j: NDArray, gain: NDArray, score_i: NDArray
) -> NDArray[np.bool_]:
    """Whether sessions that wish to move from i to j, to gain so much of i's score, stay."""
    f, gap = _rows(w.fleet, i), p.expected_gap_s
    believed = p.cache_knowledge * t.alive + (1 - p.cache_knowledge) * p.assumed_hit * t.kept
    fade = np.exp(-gap / t.decay)
    left = np.floor(np.minimum(believed, t.k) * fade + EDGE_TOKENS)
    stay = np.floor((t.prompt + np.maximum(t.predicted - 1, 0)) * fade + EDGE_TOKENS)
    left = np.where((w.retention.drop_on_leave > 0) | (t.idle + gap > t.ttl), 0, left)
    stay = np.where(gap > t.ttl, 0, stay)
    most = t.prompt + t.predicted
    c0, c1 = _blocks(w, np.minimum(left, most)), _blocks(w, np.minimum(stay, most))
    rebuild_j, rebuild_s = _prefill(f, c0, c1)
    gpu_g = (rebuild_j + f.host_w * rebuild_s) * (t.kappa / J_PER_KWH)
    return_g = p.carbon_weight * (gpu_g + p.embodied_weight * (f.embodied_g_per_s * rebuild_s))
    return_g += p.latency_price_g_per_s * rebuild_s
    known = np.log(np.maximum(w.intensity_g_per_kwh, LEAST_INTENSITY))
    later = np.minimum(t.hour + 1, len(known) - 1)
    region = w.fleet.region
    trend = [known[later, region[d]] - known[t.hour, region[d]] for d in (i, j)]
    features = (
        np.divide(gain, score_i, out=np.zeros_like(gain), where=score_i > 0),
        w.fleet.model[i] != w.fleet.model[j],
        region[i] != region[j],
        trend[0] - trend[1],
        np.log1p(t.number),
        np.log1p(t.k / t.new),
        t.share,
        t.better,
    )
    logit = p.gate_bias + sum(a * x for a, x in zip(p.gate_weights, features, strict=True))
    p_back = 1 / (1 + np.exp(-logit))
    stays = gain < np.maximum(p.gate_strength * p_back * return_g, p.hysteresis * score_i)
    return stays | (p.always_stay > 0)
