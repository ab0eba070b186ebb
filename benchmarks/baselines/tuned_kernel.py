"""The compiled loops of `numba_tuned`: a row of sessions under a block of settings.

Settings stand on the last axis of every array, side by side in SIMD lanes, in float32 (indices
too). Arrays that a loop reads together are rows of one array made here, of constant width: LLVM
then knows that they do not overlap and vectorises without run-time checks.

`slots` are the deployments that some setting of the block has been at. Only they may hold a cache,
so only they are priced setting by setting; the others are priced cold.
"""

from typing import NamedTuple

import numpy as np
from numba import njit, prange
from numpy.typing import NDArray

f32 = np.float32
ZERO, HALF, ONE, INF, NONE = f32(0), f32(0.5), f32(1), f32(np.inf), f32(-1)
EDGE_TOKENS, LEAST_INTENSITY = f32(0.01), f32(1e-9)
TIME_BINS = 96
SETTINGS = 256  # most in a block
STRIDE = SETTINGS + 16  # of a row, deployments or settings; not a power of two, for the caches
AMOUNTS = 16  # of a bill, in the order of the first rows of `OUT`
FLUSH_TURNS = 64  # summed in float32 before they are added to float64

SHARED, DISTINCT, DENSE = range(3)
"""Kinds of blocks: all settings have the same prices and filters; they differ, but nothing assumes
a hit, masks, draws noise or limits the TTFT; anything, for which every deployment is a slot."""

# Rows of `p`: what a setting is. EMBODIED = carbon_weight x embodied_weight; UNKNOWN = (1 -
# cache_knowledge) x assumed_hit; P_BACK is that of the bias alone.
(CARBON, EMBODIED, LATENCY, QUALITY, SWITCH, INTENSITY, RTT, SIZE, NOISE, KNOWLEDGE, UNKNOWN, FLOOR,
 SLACK, SLO, STRENGTH, BIAS, HYSTERESIS, ALWAYS, GAP, P_BACK, *_weights) = range(28)  # fmt: skip
WEIGHT = P_BACK + 1  # the first of eight
PRICES = WEIGHT + 8

# Rows of `x`: the state of a setting's session and its turn.
(LAST, BEFORE, MOVES, RETURNS, MASKED, SHORT, SLOW, USED, BEST, WISHED, CACHED, SCORE_HERE,
 CACHED_HERE, ALIVE_HERE, IDLE_HERE, LEAST_QUALITY, OPEN, ENTER, FASTEST) = range(19)  # fmt: skip

# Rows of `fleet`: a deployment's coefficients; joules are with the host's.
(PRE_J, PRE_J_CTX, PRE_S, PRE_S_CTX, LEAST_TTFT, DEC_J, DEC_J_CTX, DEC_S, DEC_S_CTX, EMBODIED_G,
 SHARED_G, LIMIT, PARAMS_B, PUE_KWH, WATER, USD, MODEL, REGION) = range(18)  # fmt: skip

# Rows of `site`: a deployment at a turn, as a policy sees it; COLD_ ones without a cache.
(FITS, KAPPA, Q, BASE_S, DECODE_G, DECODE_EMBODIED_G, LATE_S, PRE_G, PRE_G_CTX, COLD_G,
 COLD_EMBODIED_G, COLD_S, MORE_KAPPA, MORE_RTT, MORE_B, STANDING_G, SCORE) = range(17)  # fmt: skip

# What `out` holds of a setting: the bill, the last one the cached tokens' shortfall, and counts.
(PREFILL, REBUILD, DECODE, EMBODIED_OUT, ENERGY, WATER_OUT, COST, TTFT, E2E, QUALITY_OUT,
 REBUILT) = range(11)  # fmt: skip
(MOVES_OUT, RETURNS_OUT, MASKED_OUT, SHORT_OUT, SLOW_OUT, TURNS, UNSERVED) = range(16, 23)
OUT = 24
BY_ONE, BY_U, BY_X, BY_DU, BY_DX, BY_FIRST = range(6)  # rows of a bill: what multiplies them

exactly = njit(cache=True, error_model="numpy", fastmath={"contract"}, forceinline=True)
choosing = njit(
    cache=True, error_model="numpy", fastmath={"contract", "nnan", "nsz"}, forceinline=True
)


class Tables(NamedTuple):
    """A world under one retention, by deployment: `[*, D]`.

    Attributes:
      fleet: `[18, D]`, the rows of `fleet`.
      classes: `[D]`, deployments sorted by class, one model and size each; `class_ends` their ends.
      carbon: `[H, D]`, g/kWh of the grid; `trend` log of the next hour's over this one's.
      rtt_s, wait_s, ttl_s, decay_s: `[C, D]`, `[B, D]`.
      block_tokens: of a KV block.
      drops, ages, decays: whether caches are dropped on leaving, have a finite life, decay.
    """

    fleet: NDArray
    classes: NDArray
    class_ends: NDArray
    carbon: NDArray
    trend: NDArray
    rtt_s: NDArray
    wait_s: NDArray
    ttl_s: NDArray
    decay_s: NDArray
    block_tokens: np.float32
    drops: bool
    ages: bool
    decays: bool


class Now(NamedTuple):
    """The numbers of a turn, the same for every setting."""

    gap_s: np.float32
    k: np.float32
    n: np.float32
    prompt: np.float32
    predicted: np.float32
    output: np.float32
    usable: np.float32  # most tokens of the prompt that may be cached
    full: np.float32
    kept: np.float32
    context: np.float32  # left by the previous turn
    turn: np.float32
    begun: bool  # some turn of the session was served
    fresh: bool  # the previous one was
    block: np.float32
    leave: np.float32  # 0 where caches are dropped on leaving, else 1


@choosing
def least(a, b):
    return a if a < b else b


@choosing
def most(a, b):
    return a if a > b else b


@choosing
def blocks(tokens, block):
    """Whole tokens in full blocks: the half keeps the quotient off a jump, as 0.01 does."""
    return block * np.floor((tokens + HALF) * (ONE / block))


@exactly
def survey(w, fleet, site, hour, home, bin_, quality, now):
    """Fills `site`; returns the best quality that fits the context and least kappa, rtt, size."""
    D = len(w.classes)
    v = most(now.predicted - ONE, ZERO)
    y = v * (now.prompt + v * HALF)
    history = now.prompt + now.predicted
    wait = bin_ * len(w.wait_s) // TIME_BINS
    for d in range(D):
        site[KAPPA, d] = fleet[PUE_KWH, d] * w.carbon[hour, d]
        site[MORE_RTT, d] = w.rtt_s[home, d]
        site[BASE_S, d] = w.rtt_s[home, d] + w.wait_s[wait, d]
    for d in range(D):
        seconds = fleet[DEC_S, d] * v + fleet[DEC_S_CTX, d] * y
        site[DECODE_G, d] = (fleet[DEC_J, d] * v + fleet[DEC_J_CTX, d] * y) * site[KAPPA, d]
        site[DECODE_EMBODIED_G, d] = fleet[SHARED_G, d] * seconds
        site[LATE_S, d] = site[BASE_S, d] + seconds
        site[PRE_G, d] = fleet[PRE_J, d] * site[KAPPA, d]
        site[PRE_G_CTX, d] = fleet[PRE_J_CTX, d] * site[KAPPA, d]
        site[FITS, d] = ONE if history <= fleet[LIMIT, d] else ZERO
    top, least_kappa, least_rtt, least_b = NONE, INF, INF, INF
    for d in range(D):
        site[Q, d] = quality[int(fleet[MODEL, d])]
        if site[FITS, d] > ZERO:
            top = most(top, site[Q, d])
            least_kappa = least(least_kappa, site[KAPPA, d])
            least_rtt = least(least_rtt, site[MORE_RTT, d])
            least_b = least(least_b, fleet[PARAMS_B, d])
    for d in range(D):
        # KAPPA is per joule; prices are of g/kWh.
        site[MORE_KAPPA, d] = (site[KAPPA, d] - least_kappa) * f32(3.6e6)
        site[MORE_RTT, d] -= least_rtt
        site[MORE_B, d] = fleet[PARAMS_B, d] - least_b
    return top, least_kappa * f32(3.6e6), least_rtt, least_b


@choosing
def price_cold(w, fleet, site, now, believed):
    """The cold columns of `site`, `believed` tokens being taken for cached everywhere."""
    u = now.prompt - believed
    x = u * (now.prompt + believed) * HALF
    for d in range(len(w.classes)):
        seconds = fleet[PRE_S, d] * u + fleet[PRE_S_CTX, d] * x
        site[COLD_G, d] = site[DECODE_G, d] + (site[PRE_G, d] * u + site[PRE_G_CTX, d] * x)
        site[COLD_EMBODIED_G, d] = site[DECODE_EMBODIED_G, d] + fleet[EMBODIED_G, d] * seconds
        site[COLD_S, d] = site[LATE_S, d] + most(fleet[LEAST_TTFT, d], seconds)


@choosing
def age(w, x, resident, used, slot, d, lanes, now, ttl_s, decay_s):
    """What of a slot's caches is left on arrival, where they have a finite life."""
    here, fresh = f32(d), now.fresh
    for p in range(lanes):
        mine = x[LAST, p] == here
        tokens, since_s = resident[slot, p], used[slot, p]
        resident[slot, p] = now.context if mine and fresh else tokens
        used[slot, p] = x[USED, p] if mine and fresh else since_s
    if w.decays:
        for p in range(lanes):
            lapse_s = most(now.gap_s - most(used[slot, p], ZERO), ZERO)
            left = resident[slot, p] * np.exp(-lapse_s / decay_s)
            resident[slot, p] = np.floor(left + EDGE_TOKENS)
    for p in range(lanes):
        mine = x[LAST, p] == here
        idle_s, before_s = most(now.gap_s - used[slot, p], ZERO), x[IDLE_HERE, p]
        tokens = resident[slot, p]
        used[slot, p] -= now.gap_s
        resident[slot, p] = ZERO if idle_s > ttl_s else tokens
        x[IDLE_HERE, p] = idle_s if mine else before_s


@choosing
def arrive(resident, slot, p, mine, now, fresh):
    """Tokens alive at a slot; leaves those that remain of them after this turn."""
    stored = resident[slot, p]
    alive = now.context if mine and fresh else stored
    alive = alive if mine else alive * now.leave
    resident[slot, p] = least(alive, now.k)
    return alive


@choosing
def keep_only(x, resident, slot, d, lanes, now, fresh):
    """The caches of a slot that may not serve."""
    here = f32(d)
    for p in range(lanes):
        arrive(resident, slot, p, x[LAST, p] == here, now, fresh)


@choosing
def settle(x, p, here, mine, alive, cached, score):
    """Enters a slot's score: where it is the least, and where the session is."""
    best, wished, tokens = x[BEST, p], x[WISHED, p], x[CACHED, p]
    score_here, cached_here, alive_here = x[SCORE_HERE, p], x[CACHED_HERE, p], x[ALIVE_HERE, p]
    better = (score < best) | ((score == best) & (here < wished))
    x[BEST, p] = score if better else best
    x[WISHED, p] = here if better else wished
    x[CACHED, p] = cached if better else tokens
    x[SCORE_HERE, p] = score if mine else score_here
    x[CACHED_HERE, p] = cached if mine else cached_here
    x[ALIVE_HERE, p] = alive if mine else alive_here


@choosing
def price_slot_shared(fleet, site, prices, x, resident, slot, d, lanes, now, fresh):
    """A slot of a block that shares its prices: they are folded into four numbers."""
    here = f32(d)
    pre_s, pre_s_ctx, least_s = fleet[PRE_S, d], fleet[PRE_S_CTX, d], fleet[LEAST_TTFT, d]
    embodied = prices[EMBODIED, 0] * fleet[EMBODIED_G, d]
    by_u = prices[CARBON, 0] * site[PRE_G, d] + embodied * pre_s
    by_x = prices[CARBON, 0] * site[PRE_G_CTX, d] + embodied * pre_s_ctx
    fixed_g = prices[CARBON, 0] * site[DECODE_G, d]
    fixed_g += prices[EMBODIED, 0] * site[DECODE_EMBODIED_G, d]
    fixed_g += prices[LATENCY, 0] * site[LATE_S, d] + site[STANDING_G, d]
    latency, knowledge = prices[LATENCY, 0], prices[KNOWLEDGE, 0]
    unknown = prices[UNKNOWN, 0] * now.full
    away_g = prices[SWITCH, 0] if now.begun else ZERO
    for p in range(lanes):
        mine = x[LAST, p] == here
        alive = arrive(resident, slot, p, mine, now, fresh)
        cached = blocks(least(alive, now.usable), now.block)
        believed = knowledge * cached + unknown
        u = now.prompt - believed
        attended = u * (now.prompt + believed) * HALF
        seconds = pre_s * u + pre_s_ctx * attended
        score = fixed_g + by_u * u + by_x * attended + latency * most(least_s, seconds)
        score += ZERO if mine else away_g
        settle(x, p, here, mine, alive, cached, score)


@choosing
def weigh(prices, p, at, mine, begun, now, cached):
    """Score and TTFT of one setting at deployment `at` with `cached` tokens there."""
    believed = prices[KNOWLEDGE, p] * cached + prices[UNKNOWN, p] * now.full
    u = now.prompt - believed
    attended = u * (now.prompt + believed) * HALF
    seconds = at.pre_s * u + at.pre_s_ctx * attended
    first_s = most(at.least_s, seconds)
    score = prices[CARBON, p] * (at.decode_g + at.pre_g * u + at.pre_g_ctx * attended)
    score += prices[EMBODIED, p] * (at.decode_embodied_g + at.embodied_g * seconds)
    score += prices[LATENCY, p] * (at.late_s + first_s)
    score += prices[QUALITY, p] * at.worse + prices[SIZE, p] * at.more_b
    score += prices[INTENSITY, p] * at.more_kappa + prices[RTT, p] * at.more_rtt
    score += ZERO if mine else prices[SWITCH, p] * begun
    return score, at.base_s + first_s


class At(NamedTuple):
    """A column of `fleet` and `site`."""

    pre_s: np.float32
    pre_s_ctx: np.float32
    least_s: np.float32
    pre_g: np.float32
    pre_g_ctx: np.float32
    decode_g: np.float32
    embodied_g: np.float32
    decode_embodied_g: np.float32
    base_s: np.float32
    late_s: np.float32
    quality: np.float32
    worse: np.float32
    more_kappa: np.float32
    more_rtt: np.float32
    more_b: np.float32


@choosing
def column(fleet, site, d, top):
    """The numbers that `weigh` reads, of deployment d."""
    return At(
        fleet[PRE_S, d], fleet[PRE_S_CTX, d], fleet[LEAST_TTFT, d], site[PRE_G, d],
        site[PRE_G_CTX, d], site[DECODE_G, d], fleet[EMBODIED_G, d], site[DECODE_EMBODIED_G, d],
        site[BASE_S, d], site[LATE_S, d], site[Q, d], top - site[Q, d], site[MORE_KAPPA, d],
        site[MORE_RTT, d], site[MORE_B, d],
    )  # fmt: skip


@choosing
def price_slot(fleet, site, prices, x, resident, slot, d, lanes, now, fresh, top):
    """A slot of a block whose settings differ."""
    here, at, begun = f32(d), column(fleet, site, d, top), ONE if now.begun else ZERO
    for p in range(lanes):
        mine = x[LAST, p] == here
        alive = arrive(resident, slot, p, mine, now, fresh)
        cached = blocks(least(alive, now.usable), now.block)
        score, _ = weigh(prices, p, at, mine, begun, now, cached)
        score = score if at.quality >= x[LEAST_QUALITY, p] else INF
        settle(x, p, here, mine, alive, cached, score)


@choosing
def price_dense(fleet, site, prices, x, resident, scratch, allowed, d, lanes, now, fresh, top, u01):
    """A slot (its number is d) under every filter but that on the TTFT, into `scratch`."""
    here, at, begun = f32(d), column(fleet, site, d, top), ONE if now.begun else ZERO
    for p in range(lanes):
        mine = x[LAST, p] == here
        alive = arrive(resident, d, p, mine, now, fresh)
        cached = blocks(least(alive, now.usable), now.block)
        score, ttft_s = weigh(prices, p, at, mine, begun, now, cached)
        score += prices[NOISE, p] * u01
        may = (at.quality >= x[LEAST_QUALITY, p]) & (allowed[d, p] + x[OPEN, p] > ZERO)
        fastest_s = x[FASTEST, p]
        ttft_s = ttft_s if may else INF
        x[FASTEST, p] = least(fastest_s, ttft_s)
        scratch[4 * d, p] = score
        scratch[4 * d + 1, p] = ttft_s
        scratch[4 * d + 2, p] = alive
        scratch[4 * d + 3, p] = cached


@choosing
def settle_dense(prices, x, scratch, d, lanes):
    """Enters what `price_dense` left, where the limit on the TTFT allows it."""
    here = f32(d)
    for p in range(lanes):
        ttft_s, limit_s = scratch[4 * d + 1, p], most(prices[SLO, p], x[FASTEST, p])
        score = scratch[4 * d, p]
        score = score if (ttft_s <= limit_s) & (ttft_s < INF) else INF
        mine = x[LAST, p] == here
        settle(x, p, here, mine, scratch[4 * d + 2, p], scratch[4 * d + 3, p], score)


@choosing
def cold_shared(site, prices, slot_of, may, D, begun, top):
    """The least score among the deployments that are no slots, and where it is."""
    away_g = prices[SWITCH, 0] if begun else ZERO
    for d in range(D):
        score = prices[CARBON, 0] * site[COLD_G, d] + prices[EMBODIED, 0] * site[COLD_EMBODIED_G, d]
        score += prices[LATENCY, 0] * site[COLD_S, d]
        site[SCORE, d] = score + (site[STANDING_G, d] + away_g)
    best, wished = INF, NONE
    for d in range(D):
        if may[d] > ZERO and slot_of[d] < 0 and site[SCORE, d] < best:
            best, wished = site[SCORE, d], f32(d)
    return best, wished


@choosing
def cold_three(site, prices, x, lanes, a, b, c):
    """Three deployments that are no slots, under every setting; of one model and size."""
    at_a, at_b, at_c = cold_column(site, a), cold_column(site, b), cold_column(site, c)
    name_a, name_b, name_c = f32(a), f32(b), f32(c)
    for p in range(lanes):
        enter, carbon, embodied = x[ENTER, p], prices[CARBON, p], prices[EMBODIED, p]
        latency, intensity, rtt = prices[LATENCY, p], prices[INTENSITY, p], prices[RTT, p]
        best, wished = x[BEST, p], x[WISHED, p]
        score_a = cold(at_a, enter, carbon, embodied, latency, intensity, rtt)
        score_b = cold(at_b, enter, carbon, embodied, latency, intensity, rtt)
        score_c = cold(at_c, enter, carbon, embodied, latency, intensity, rtt)
        score_ab = least(score_a, score_b)
        name_ab = name_b if score_b < score_a else name_a
        name_ab = name_c if score_c < score_ab else name_ab
        score_ab = least(score_ab, score_c)
        x[WISHED, p] = name_ab if score_ab < best else wished
        x[BEST, p] = least(score_ab, best)


@choosing
def cold_column(site, d):
    return (
        site[COLD_G, d], site[COLD_EMBODIED_G, d], site[COLD_S, d], site[MORE_KAPPA, d],
        site[MORE_RTT, d],
    )  # fmt: skip


@choosing
def cold(at, enter, carbon, embodied, latency, intensity, rtt):
    """A cold deployment's score; `enter` is what its model and size add."""
    score = enter + carbon * at[0] + embodied * at[1] + latency * at[2]
    return score + intensity * at[3] + rtt * at[4]


@choosing
def cold_distinct(w, fleet, site, prices, x, slot_of, lanes, begun, top):
    """The least score of each setting among the deployments that are no slots."""
    threshold, away = INF, ONE if begun else ZERO
    for p in range(lanes):
        threshold = least(threshold, x[LEAST_QUALITY, p])
    begin = 0
    for end in w.class_ends:
        at, begin = begin, end
        quality = site[Q, w.classes[at]]
        if quality < threshold:
            continue
        worse, more_b = top - quality, site[MORE_B, w.classes[at]]
        for p in range(lanes):
            enter = prices[QUALITY, p] * worse + prices[SIZE, p] * more_b
            enter += prices[SWITCH, p] * away
            x[ENTER, p] = enter if quality >= x[LEAST_QUALITY, p] else INF
        a = b = -1
        for n in range(at, end):
            d = w.classes[n]
            if slot_of[d] >= 0 or site[FITS, d] == ZERO:
                continue
            if a < 0:
                a = d
            elif b < 0:
                b = d
            else:
                cold_three(site, prices, x, lanes, a, b, d)
                a = b = -1
        if a >= 0:
            b = b if b >= 0 else a
            cold_three(site, prices, x, lanes, a, b, b)


@choosing
def filter_lanes(site, prices, x, allowed, lanes, D, top, dense):
    """Which masks give way (`OPEN`) and the least quality of each setting; counts both."""
    for p in range(lanes):
        x[OPEN, p] = ZERO
        x[LEAST_QUALITY, p] = top
    if dense:
        for p in range(lanes):
            x[LEAST_QUALITY, p] = NONE
        for d in range(D):
            if site[FITS, d] > ZERO:
                quality = site[Q, d]
                for p in range(lanes):
                    known = x[LEAST_QUALITY, p]
                    x[LEAST_QUALITY, p] = most(known, quality if allowed[d, p] > ZERO else NONE)
        for p in range(lanes):
            best = x[LEAST_QUALITY, p]
            gives_way = ONE if best == NONE else ZERO
            x[OPEN, p] = gives_way
            x[MASKED, p] += gives_way
            x[LEAST_QUALITY, p] = top if best == NONE else best
    for p in range(lanes):
        best = x[LEAST_QUALITY, p]
        floor = most(prices[FLOOR, p], best - prices[SLACK, p])
        x[SHORT, p] += ONE if floor > best else ZERO
        x[LEAST_QUALITY, p] = least(floor, best)


@choosing
def rebuild_price_g(w, fleet, site, prices, x, p, i, now, ttl_s, decay_s):
    """What coming back to i at the next turn would rebuild, g."""
    gap_s = prices[GAP, p]
    left = prices[KNOWLEDGE, p] * x[ALIVE_HERE, p] + prices[UNKNOWN, p] * now.kept
    left, stay = least(left, now.k), now.prompt + most(now.predicted - ONE, ZERO)
    if w.decays:
        fade = np.exp(-gap_s / decay_s)
        left, stay = left * fade, stay * fade
    left, stay = np.floor(left + EDGE_TOKENS), np.floor(stay + EDGE_TOKENS)
    if w.drops or (w.ages and x[IDLE_HERE, p] + gap_s > ttl_s):
        left = ZERO
    if w.ages and gap_s > ttl_s:
        stay = ZERO
    history = np.floor(now.prompt + now.predicted + EDGE_TOKENS)
    start, stop = blocks(least(left, history), now.block), blocks(least(stay, history), now.block)
    u = stop - start
    attended = u * (stop + start) * HALF
    seconds = fleet[PRE_S, i] * u + fleet[PRE_S_CTX, i] * attended
    operational_g = site[PRE_G, i] * u + site[PRE_G_CTX, i] * attended
    embodied_g = fleet[EMBODIED_G, i] * seconds
    return (
        prices[CARBON, p] * operational_g
        + prices[EMBODIED, p] * embodied_g
        + prices[LATENCY, p] * seconds
    )


@choosing
def p_back(fleet, site, trend, prices, x, p, i, j, gain_g, score_g, now):
    """The chance to move straight back from j to i."""
    logit = prices[BIAS, p]
    if score_g > ZERO:
        logit += prices[WEIGHT, p] * (gain_g / score_g)
    if fleet[MODEL, i] != fleet[MODEL, j]:
        logit += prices[WEIGHT + 1, p]
    if fleet[REGION, i] != fleet[REGION, j]:
        logit += prices[WEIGHT + 2, p]
    logit += prices[WEIGHT + 3, p] * (trend[i] - trend[j])
    logit += prices[WEIGHT + 4, p] * np.log1p(now.turn)
    logit += prices[WEIGHT + 5, p] * np.log1p(now.k / now.n)
    logit += prices[WEIGHT + 6, p] * (x[RETURNS, p] / most(x[MOVES, p], ONE))
    logit += prices[WEIGHT + 7, p] * (site[Q, i] - site[Q, j])
    return ONE / (ONE + np.exp(-logit))


@choosing
def gate(w, fleet, site, trend, prices, x, lanes, now, leasts, weighted, ttl_s, decay_s):
    """Keeps sessions where they are that would likely move straight back."""
    top, least_kappa, least_rtt, least_b = leasts
    for p in range(lanes):
        here, there, score_here = x[LAST, p], x[WISHED, p], x[SCORE_HERE, p]
        if here == NONE or here == there or score_here == INF:
            continue
        i, j = int(here), int(there)
        gain_g = score_here - x[BEST, p]
        score_g = score_here + (
            prices[QUALITY, p] * (ONE - top)
            + prices[INTENSITY, p] * least_kappa
            + prices[RTT, p] * least_rtt
            + prices[SIZE, p] * least_b
        )
        stays = prices[ALWAYS, p] > ZERO or gain_g < prices[HYSTERESIS, p] * score_g
        if not stays and prices[STRENGTH, p] > ZERO:
            back = prices[P_BACK, p]
            if weighted:
                back = p_back(fleet, site, trend, prices, x, p, i, j, gain_g, score_g, now)
            rebuild_g = rebuild_price_g(
                w, fleet, site, prices, x, p, i, now, ttl_s[i], decay_s[i]
            )
            stays = gain_g < prices[STRENGTH, p] * back * rebuild_g
        if stays:
            x[WISHED, p] = here
            x[CACHED, p] = x[CACHED_HERE, p]


@choosing
def move(x, lanes):
    """Counts moves and returns, and enters where the sessions are now."""
    for p in range(lanes):
        last, before, d = x[LAST, p], x[BEFORE, p], x[WISHED, p]
        moved = (last != NONE) & (d != last)
        x[MOVES, p] += ONE if moved else ZERO
        x[RETURNS, p] += ONE if moved & (d == before) else ZERO
        x[BEFORE, p] = last if moved else before
        x[LAST, p] = d


@exactly
def open_bill(fleet, site, carbon, bills, d, now):
    """What serving the turn at d costs: rows by what multiplies them, see `BY_ONE`."""
    v = most(now.output - ONE, ZERO)
    y = v * (now.prompt + v * HALF)
    seconds = fleet[DEC_S, d] * v + fleet[DEC_S_CTX, d] * y
    decode_kwh = (fleet[DEC_J, d] * v + fleet[DEC_J_CTX, d] * y) * fleet[PUE_KWH, d]
    kwh, kwh_ctx = fleet[PRE_J, d] * fleet[PUE_KWH, d], fleet[PRE_J_CTX, d] * fleet[PUE_KWH, d]
    pre_s, pre_s_ctx, embodied = fleet[PRE_S, d], fleet[PRE_S_CTX, d], fleet[EMBODIED_G, d]
    g = carbon[d]
    by = bills[d]
    by[BY_ONE, DECODE] = decode_kwh * g
    by[BY_ONE, EMBODIED_OUT] = fleet[SHARED_G, d] * seconds
    by[BY_ONE, TTFT], by[BY_ONE, E2E] = site[BASE_S, d], site[BASE_S, d] + seconds
    by[BY_ONE, QUALITY_OUT] = site[Q, d]
    by[BY_U, PREFILL], by[BY_X, PREFILL] = kwh * g, kwh_ctx * g
    by[BY_U, EMBODIED_OUT], by[BY_X, EMBODIED_OUT] = embodied * pre_s, embodied * pre_s_ctx
    by[BY_DU, REBUILD] = kwh * g + embodied * pre_s
    by[BY_DX, REBUILD] = kwh_ctx * g + embodied * pre_s_ctx
    by[BY_DU, REBUILT] = ONE
    by[BY_FIRST, TTFT] = by[BY_FIRST, E2E] = ONE
    for amount, rate in ((ENERGY, ONE), (WATER_OUT, fleet[WATER, d]), (COST, fleet[USD, d])):
        by[BY_ONE, amount] = decode_kwh * rate
        by[BY_U, amount], by[BY_X, amount] = kwh * rate, kwh_ctx * rate


@exactly
def bill(fleet, bills, x, sums, p, d, now):
    """Adds the turn's bill; the TTFT is the round trip, the wait and `first_s`."""
    cached = x[CACHED, p]
    u, du = now.prompt - cached, now.full - cached
    attended, dx = u * (now.prompt + cached) * HALF, du * (now.full + cached) * HALF
    seconds = fleet[PRE_S, d] * u + fleet[PRE_S_CTX, d] * attended
    first_s = most(fleet[LEAST_TTFT, d], seconds)
    for f in range(AMOUNTS):
        sums[p, f] += (
            bills[d, BY_ONE, f]
            + u * bills[d, BY_U, f]
            + attended * bills[d, BY_X, f]
            + du * bills[d, BY_DU, f]
            + dx * bills[d, BY_DX, f]
            + first_s * bills[d, BY_FIRST, f]
        )
    x[USED, p] = bills[d, BY_ONE, E2E] + first_s


@exactly
def flush(sums, out, lanes):
    """Moves a part of a session's bill to its float64 sums."""
    for p in range(lanes):
        for f in range(AMOUNTS):
            out[p, f] += sums[p, f]
            sums[p, f] = ZERO


@exactly
def close(x, sums, out, lanes, served, unserved):
    """Ends a session."""
    flush(sums, out, lanes)
    for p in range(lanes):
        out[p, MOVES_OUT] += x[MOVES, p]
        out[p, RETURNS_OUT] += x[RETURNS, p]
        out[p, MASKED_OUT] += x[MASKED, p]
        out[p, SHORT_OUT] += x[SHORT, p]
        out[p, SLOW_OUT] += x[SLOW, p]
        out[p, TURNS] += served
        out[p, UNSERVED] += unserved


@njit(cache=True, error_model="numpy", fastmath={"contract"})
def replay_row(w, turns, row, block, lanes, kind, weighted, allowed, out, by_session, decisions):
    """The sessions of a row under a block of settings.

    Args:
      w: `Tables`.
      turns: the leaves of `jaxroute.sessions.Turn`, `[R, T, ...]`.
      row: of them.
      block: `[PRICES, SETTINGS]`, the settings.
      lanes: how many there are, a multiple of 16.
      kind, weighted: of the block; whether the gate has weights.
      allowed: `[D, SETTINGS]`, the masks.
      out: `[S or R, lanes, OUT]`, added to, by session or by row.
      decisions: `[lanes, R, T]`, or empty.
    """
    D, T = len(w.classes), turns.valid.shape[1]
    dense = kind == DENSE
    fleet, site = np.empty((18, STRIDE), f32), np.empty((17, STRIDE), f32)
    prices, x = np.empty((PRICES, STRIDE), f32), np.empty((19, STRIDE), f32)
    fleet[:, :D], prices[:, :SETTINGS] = w.fleet, block
    resident, used = np.zeros((D, STRIDE), f32), np.zeros((D, STRIDE), f32)
    scratch = np.empty((4 * D if dense else 1, STRIDE), f32)
    may, slot_of, slots = np.empty(D, f32), np.full(D, -1), np.empty(D, np.int64)
    bills, billed_at = np.zeros((D, 6, AMOUNTS), f32), np.empty(D, np.int64)
    sums = np.zeros((SETTINGS, AMOUNTS), f32)
    count = served = unserved = since = 0
    context, begun, fresh, at = ZERO, False, False, 0
    for t in range(T + 1):
        if t == T or not turns.valid[row, t] or turns.first[row, t]:
            if t > 0:
                close(x, sums, out[at], lanes, served, unserved)
            if t == T or not turns.valid[row, t]:
                break
            at = turns.session[row, t] if by_session else row
            count = served = unserved = since = 0
            context, begun, fresh = ZERO, False, False
            slot_of[:], billed_at[:] = -1, -1
            x[LAST : BEFORE + 1], x[MOVES : USED + 1] = NONE, ZERO
            if dense:
                count = D
                for d in range(D):
                    slots[d] = slot_of[d] = d
                resident[:], used[:] = ZERO, ZERO

        k, n = turns.prefix_tokens[row, t], most(turns.new_tokens[row, t], ONE)
        hour, bin_ = turns.hour[row, t], turns.time_bin[row, t]
        ttl_s = w.ttl_s[bin_ * len(w.ttl_s) // TIME_BINS]
        decay_s = w.decay_s[bin_ * len(w.decay_s) // TIME_BINS]
        usable = least(k, k + n - ONE)
        now = Now(
            turns.gap_s[row, t],
            k,
            n,
            k + n,
            turns.predicted_output_tokens[row, t],
            turns.output_tokens[row, t],
            usable,
            blocks(least(context, usable), w.block_tokens),
            least(context, k),
            context,
            turns.turn[row, t],
            begun,
            fresh,
            w.block_tokens,
            ZERO if w.drops else ONE,
        )
        leasts = survey(
            w, fleet, site, hour, turns.home[row, t], bin_, turns.quality[row, t], now
        )
        top = leasts[0]
        if w.ages:
            for slot in range(count):
                d = slots[slot]
                age(w, x, resident, used, slot, d, lanes, now, ttl_s[d], decay_s[d])
            fresh = False
        context = k + n + most(now.output - ONE, ZERO)
        if top < ZERO:
            for slot in range(count):
                keep_only(x, resident, slot, slots[slot], lanes, now, fresh)
            unserved += 1
            fresh = False
            continue

        x[SCORE_HERE] = INF
        if kind == SHARED:
            masked, short = filter_shared(site, prices, allowed, may, D, top)
            if masked:
                x[MASKED] += ONE
            if short:
                x[SHORT] += ONE
            price_cold(w, fleet, site, now, prices[UNKNOWN, 0] * now.full)
            stand(fleet, site, prices, turns.noise[row, t], D, top)
            x[BEST], x[WISHED] = cold_shared(site, prices, slot_of, may, D, begun, top)
            x[CACHED] = ZERO
            for slot in range(count):
                d = slots[slot]
                if may[d] > ZERO:
                    price_slot_shared(
                        fleet, site, prices, x, resident, slot, d, lanes, now, fresh
                    )
                else:
                    keep_only(x, resident, slot, d, lanes, now, fresh)
        else:
            filter_lanes(site, prices, x, allowed, lanes, D, top, dense)
            x[BEST], x[WISHED], x[CACHED] = INF, NONE, ZERO
            if dense:
                x[FASTEST] = INF
                for d in range(D):
                    if site[FITS, d] > ZERO:
                        u01 = turns.noise[row, t, d]
                        price_dense(
                            fleet, site, prices, x, resident, scratch, allowed, d, lanes, now,
                            fresh, top, u01,
                        )  # fmt: skip
                    else:
                        keep_only(x, resident, d, d, lanes, now, fresh)
                for d in range(D):
                    if site[FITS, d] > ZERO:
                        settle_dense(prices, x, scratch, d, lanes)
                for p in range(lanes):
                    x[SLOW, p] += ONE if x[FASTEST, p] > prices[SLO, p] else ZERO
            else:
                price_cold(w, fleet, site, now, ZERO)
                cold_distinct(w, fleet, site, prices, x, slot_of, lanes, begun, top)
                for slot in range(count):
                    d = slots[slot]
                    if site[FITS, d] > ZERO:
                        price_slot(
                            fleet, site, prices, x, resident, slot, d, lanes, now, fresh, top
                        )
                    else:
                        keep_only(x, resident, slot, d, lanes, now, fresh)

        if begun:
            gate(
                w, fleet, site, w.trend[hour], prices, x, lanes, now, leasts, weighted, ttl_s,
                decay_s,
            )  # fmt: skip
        move(x, lanes)
        for p in range(lanes):
            d = int(x[LAST, p])
            if billed_at[d] != t:
                billed_at[d] = t
                open_bill(fleet, site, w.carbon[hour], bills, d, now)
                if slot_of[d] < 0:
                    slots[count], slot_of[d] = d, count
                    resident[count], used[count] = ZERO, ZERO
                    count += 1
            bill(fleet, bills, x, sums, p, d, now)
        if len(decisions):
            for p in range(lanes):
                decisions[p, row, t] = int(x[LAST, p])
        begun = fresh = True
        served += 1
        since += 1
        if since == FLUSH_TURNS:
            flush(sums, out[at], lanes)
            since = 0
        if w.drops and not dense:
            count = forget(slots, slot_of, count, billed_at, t)


@exactly
def forget(slots, slot_of, count, billed_at, t):
    """Frees the slots where no session is: their caches were dropped."""
    kept = 0
    for slot in range(count):
        d = slots[slot]
        slot_of[d] = -1
        if billed_at[d] == t:
            slots[kept], slot_of[d] = d, kept
            kept += 1
    return kept


@exactly
def filter_shared(site, prices, allowed, may, D, top):
    """Where a block with common filters `may` serve; whether the masks and the floor give way."""
    best = NONE
    for d in range(D):
        if site[FITS, d] > ZERO and allowed[d, 0] > ZERO:
            best = most(best, site[Q, d])
    masked = best == NONE
    best = top if masked else best
    floor = most(prices[FLOOR, 0], best - prices[SLACK, 0])
    for d in range(D):
        fits = site[FITS, d] > ZERO and (masked or allowed[d, 0] > ZERO)
        may[d] = ONE if fits and site[Q, d] >= least(floor, best) else ZERO
    return masked, floor > best


@exactly
def stand(fleet, site, prices, noise, D, top):
    """What of the score of a block with common prices depends on no cache."""
    for d in range(D):
        score = prices[QUALITY, 0] * (top - site[Q, d]) + prices[SIZE, 0] * site[MORE_B, d]
        score += prices[INTENSITY, 0] * site[MORE_KAPPA, d] + prices[RTT, 0] * site[MORE_RTT, d]
        site[STANDING_G, d] = score + prices[NOISE, 0] * noise[d]


@njit(cache=True, parallel=True, error_model="numpy")
def replay_all(w, turns, blocks, lanes, kinds, weighted, allowed, outs, by_session, decisions):
    """Every row under every block, on all cores."""
    rows = turns.valid.shape[0]
    for job in prange(rows * len(lanes)):
        row, b = job // len(lanes), job % len(lanes)
        begin = b * SETTINGS
        stop = begin + lanes[b]
        replay_row(
            w, turns, row, blocks[b], lanes[b], kinds[b], weighted[b], allowed[b],
            outs[:, begin:stop], by_session, decisions[begin:stop],
        )  # fmt: skip
