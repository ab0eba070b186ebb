"""The compiled loops of `numba_tuned`: a row of sessions under a block of settings.

Settings stand on the last axis of every array, side by side in SIMD lanes, in float32 (indices
too). What a loop reads and writes are rows of tables of one constant width (`row`, `get`): LLVM
then knows that they do not overlap, and no reference is counted (atomically: half of the time).

`slots` are the deployments that some setting of the block has been at. Only they may hold a cache,
so only they are priced setting by setting; the others are priced cold. Dropped caches free slots.

It is one file because numba's cache does not notice that a function of another file has changed.
"""

from typing import NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic
from numba.np import arrayobj
from numpy.typing import NDArray

f32 = np.float32
ZERO, HALF, ONE, INF, NONE = f32(0), f32(0.5), f32(1), f32(np.inf), f32(-1)
EDGE_TOKENS, LEAST_INTENSITY = f32(0.01), f32(1e-9)
TIME_BINS = 96
SETTINGS = 256  # most in a block
STRIDE = SETTINGS + 16  # of a row, deployments or settings; not a power of two, for the caches
AMOUNTS = 16  # of a bill, 11 of them used: a register of float32
FLUSH_TURNS = 64  # summed in float32 before they are added to float64

SHARED, DISTINCT, DENSE = range(3)
"""Kinds of blocks. SHARED: all settings have the same prices and filters, and price what is cold
once a turn. DISTINCT: they differ, but none assumes a hit, masks, draws noise or limits the TTFT.
DENSE: anything; every deployment is a slot."""

# Rows of `prices`: what a setting is. EMBODIED = carbon_weight x embodied_weight; UNKNOWN = (1 -
# cache_knowledge) x assumed_hit; P_BACK is that of the bias alone.
(CARBON, EMBODIED, LATENCY, QUALITY, SWITCH, INTENSITY, RTT, SIZE, NOISE, KNOWLEDGE, UNKNOWN, FLOOR,
 SLACK, SLO, STRENGTH, BIAS, HYSTERESIS, ALWAYS, GAP, P_BACK, *_weights) = range(28)  # fmt: skip
WEIGHT = P_BACK + 1  # the first of eight
PRICES = WEIGHT + 8

# Rows of `x`: the state of a setting's session, and what the turn brought so far. `_HERE` is where
# the session is; OPEN where masks gave way; ENTER what model and size add to a cold score.
(LAST, BEFORE, MOVES, RETURNS, MASKED, SHORT, SLOW, USED_S, BEST, WISHED, CACHED, SCORE_HERE,
 CACHED_HERE, ALIVE_HERE, IDLE_HERE, LEAST_QUALITY, OPEN, ENTER, FASTEST_S, ALL_MOVES,
 ALL_RETURNS) = range(21)  # fmt: skip

# Rows of `fleet`: a deployment's coefficients; joules are with the host's.
(PRE_J, PRE_J_CTX, PRE_S, PRE_S_CTX, LEAST_TTFT, DEC_J, DEC_J_CTX, DEC_S, DEC_S_CTX, EMBODIED_G,
 SHARED_G, LIMIT, PARAMS_B, PUE_KWH, WATER, USD, MODEL, REGION) = range(18)  # fmt: skip

# Rows of `site`: a deployment at a turn; COLD_ without a cache, MORE_ than the least. KAPPA is g/J;
# STANDING_G is the part of a score that depends on no cache, in a block with common prices.
(FITS, KAPPA, Q, BASE_S, DECODE_G, DECODE_EMBODIED_G, LATE_S, PRE_G, PRE_G_CTX, COLD_G,
 COLD_EMBODIED_G, COLD_S, MORE_KAPPA, MORE_RTT, MORE_B, STANDING_G, SCORE, TREND, TTL_S, DECAY_S,
 TRUE_S, NUMBER) = range(22)  # fmt: skip

# What `out` holds of a setting: the amounts of a bill, and counts.
(PREFILL, REBUILD, DECODE, EMBODIED_OUT, ENERGY, WATER_OUT, COST, TTFT, E2E, QUALITY_OUT,
 REBUILT) = range(11)  # fmt: skip
(MOVES_OUT, RETURNS_OUT, MASKED_OUT, SHORT_OUT, SLOW_OUT, TURNS, UNSERVED) = range(16, 23)
OUT = 24
BY_ONE, BY_U, BY_X, BY_DU, BY_DX, BY_FIRST = range(6)  # rows of a bill: what multiplies them

# Phases of a turn are compiled apart; `nnan` stays away from bills, where a price may be NaN.
exactly = njit(cache=True, error_model="numpy", fastmath={"contract"})
phase = njit(cache=True, error_model="numpy", fastmath={"contract", "nnan", "nsz"})
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
    drops: bool
    ages: bool
    decays: bool


@intrinsic
def row(typingctx, table, at):
    """A row of STRIDE float32 of a table made so wide, as an array that nothing counts.

    Its distance from other rows is a constant to LLVM, which therefore vectorises loops over them;
    the table must outlive it.
    """

    def generate(context, builder, signature, arguments):
        table, at = arguments
        data = context.make_array(signature.args[0])(context, builder, table).data
        found = context.make_array(signature.return_type)(context, builder)
        wide = ir.IntType(64)
        arrayobj.populate_array(
            found,
            data=builder.gep(data, [builder.mul(at, ir.Constant(wide, STRIDE))]),
            shape=[ir.Constant(wide, STRIDE)],
            strides=[ir.Constant(wide, 4)],
            itemsize=ir.Constant(wide, 4),
            meminfo=None,
        )
        return found._getvalue()

    return types.Array(types.float32, 1, "C")(table, types.int64), generate


@intrinsic
def get(typingctx, table, at, p):
    """`row(table, at)[p]`."""

    def generate(context, builder, signature, arguments):
        table, at, p = arguments
        data = context.make_array(signature.args[0])(context, builder, table).data
        begin = builder.mul(at, ir.Constant(ir.IntType(64), STRIDE))
        return builder.load(builder.gep(builder.gep(data, [begin]), [p]))

    return types.float32(table, types.int64, types.int64), generate


def _vector(builder, context, kind, array, at):
    """Address of the row `at` of 16 float32 of an array, and its type."""
    data = context.make_array(kind)(context, builder, array).data
    vector = ir.VectorType(ir.FloatType(), AMOUNTS)
    begin = builder.mul(at, ir.Constant(ir.IntType(64), AMOUNTS))
    return builder.bitcast(builder.gep(data, [begin]), vector.as_pointer()), vector


@intrinsic
def add_bill(typingctx, sums, p, bills, d, u, x, du, dx, first):
    """`sums[p] += bills[d, 0] + u bills[d, 1] + x bills[d, 2] + ...`, rows of 16 float32.

    LLVM does not vectorise the plain loop: it cannot tell that the two do not overlap.
    """

    def generate(context, builder, signature, arguments):
        sums, p, bills, d, *factors = arguments
        kinds, wide = signature.args, ir.IntType(64)
        begin = builder.mul(d, ir.Constant(wide, 6))
        address, vector = _vector(builder, context, kinds[2], bills, begin)
        undefined = ir.Constant(vector, ir.Undefined)
        zeros = ir.Constant(ir.VectorType(ir.IntType(32), AMOUNTS), [0] * AMOUNTS)
        total = builder.load(address, align=4)
        for n, factor in enumerate(factors, 1):
            at = builder.add(begin, ir.Constant(wide, n))
            rates = builder.load(_vector(builder, context, kinds[2], bills, at)[0], align=4)
            one = builder.insert_element(undefined, factor, ir.Constant(wide, 0))
            spread = builder.shuffle_vector(one, undefined, zeros)
            product = builder.fmul(rates, spread, flags=("contract",))
            total = builder.fadd(total, product, flags=("contract",))
        address, _ = _vector(builder, context, kinds[0], sums, p)
        builder.store(builder.fadd(builder.load(address, align=4), total), address, align=4)
        return context.get_dummy_value()

    numbers = (types.float32,) * 5
    return types.void(sums, types.int64, bills, types.int64, *numbers), generate


@intrinsic
def add_row(typingctx, sums, p, found):
    """`sums[p] += found`, rows of 16 float32."""

    def generate(context, builder, signature, arguments):
        sums, p, found = arguments
        kinds = signature.args
        total, _ = _vector(builder, context, kinds[0], sums, p)
        more, _ = _vector(builder, context, kinds[2], found, ir.Constant(ir.IntType(64), 0))
        added = builder.fadd(builder.load(total, align=4), builder.load(more, align=4))
        builder.store(added, total, align=4)
        return context.get_dummy_value()

    return types.void(sums, types.int64, found), generate


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


@phase
def fill(table, at, lanes, value):
    """Sets a row."""
    values = row(table, at)
    for p in range(lanes):
        values[p] = value


@phase
def add(table, at, lanes, value):
    """Adds to a row."""
    values = row(table, at)
    for p in range(lanes):
        values[p] += value


@phase
def copy(table, at, source, begin, D):
    """Sets a row to one of another table."""
    values = row(table, at)
    for d in range(D):
        values[d] = source[begin, d]


@phase
def survey(fleet, site, quality, D, now):
    """Fills `site`; returns the best quality that fits the context and least kappa, rtt, size.

    The grid's g/kWh, the round trip and the wait are there in KAPPA, MORE_RTT and BASE_S.
    """
    fits, kappa, at_quality = row(site, FITS), row(site, KAPPA), row(site, Q)
    base_s, late_s, decode_g = row(site, BASE_S), row(site, LATE_S), row(site, DECODE_G)
    decode_embodied_g, pre_g = row(site, DECODE_EMBODIED_G), row(site, PRE_G)
    pre_g_ctx, more_kappa = row(site, PRE_G_CTX), row(site, MORE_KAPPA)
    more_rtt, more_b = row(site, MORE_RTT), row(site, MORE_B)
    v = most(now.predicted - ONE, ZERO)
    y = v * (now.prompt + v * HALF)
    history = now.prompt + now.predicted
    for d in range(D):
        seconds = get(fleet, DEC_S, d) * v + get(fleet, DEC_S_CTX, d) * y
        g_per_j = get(fleet, PUE_KWH, d) * kappa[d]
        kappa[d] = g_per_j
        decode_g[d] = (get(fleet, DEC_J, d) * v + get(fleet, DEC_J_CTX, d) * y) * g_per_j
        decode_embodied_g[d] = get(fleet, SHARED_G, d) * seconds
        base = base_s[d] + more_rtt[d]
        base_s[d], late_s[d] = base, base + seconds
        pre_g[d] = get(fleet, PRE_J, d) * g_per_j
        pre_g_ctx[d] = get(fleet, PRE_J_CTX, d) * g_per_j
        fits[d] = ONE if history <= get(fleet, LIMIT, d) else ZERO
    for d in range(D):
        at_quality[d] = quality[int(get(fleet, MODEL, d))]
    top, least_kappa, least_rtt, least_b = NONE, INF, INF, INF
    for d in range(D):
        fit = fits[d] > ZERO
        top = most(top, at_quality[d] if fit else NONE)
        least_kappa = least(least_kappa, kappa[d] if fit else INF)
        least_rtt = least(least_rtt, more_rtt[d] if fit else INF)
        least_b = least(least_b, get(fleet, PARAMS_B, d) if fit else INF)
    for d in range(D):
        # KAPPA is per joule; prices are of g/kWh.
        more_kappa[d] = (kappa[d] - least_kappa) * f32(3.6e6)
        more_rtt[d] -= least_rtt
        more_b[d] = get(fleet, PARAMS_B, d) - least_b
    return top, least_kappa * f32(3.6e6), least_rtt, least_b


@phase
def price_cold(fleet, site, D, now, believed):
    """The cold columns of `site`, `believed` tokens being taken for cached everywhere."""
    at_decode_g = row(site, DECODE_G)
    at_decode_embodied_g = row(site, DECODE_EMBODIED_G)
    at_late_s = row(site, LATE_S)
    at_pre_g = row(site, PRE_G)
    at_pre_g_ctx = row(site, PRE_G_CTX)
    at_cold_g = row(site, COLD_G)
    at_cold_embodied_g = row(site, COLD_EMBODIED_G)
    at_cold_s = row(site, COLD_S)
    u = now.prompt - believed
    x = u * (now.prompt + believed) * HALF
    for d in range(D):
        seconds = get(fleet, PRE_S, d) * u + get(fleet, PRE_S_CTX, d) * x
        at_cold_g[d] = at_decode_g[d] + (at_pre_g[d] * u + at_pre_g_ctx[d] * x)
        at_cold_embodied_g[d] = at_decode_embodied_g[d] + get(fleet, EMBODIED_G, d) * seconds
        at_cold_s[d] = at_late_s[d] + most(get(fleet, LEAST_TTFT, d), seconds)


@phase
def age(x, residents, useds, slot, d, lanes, now, ttl_s, decay_s):
    """What of a slot's caches is left on arrival, where they have a finite life."""
    resident, used = row(residents, slot), row(useds, slot)
    x_last = row(x, LAST)
    x_used_s = row(x, USED_S)
    x_idle_here = row(x, IDLE_HERE)
    here, fresh = f32(d), now.fresh
    for p in range(lanes):
        mine = x_last[p] == here
        tokens, since_s = resident[p], used[p]
        resident[p] = now.context if mine & fresh else tokens
        used[p] = x_used_s[p] if mine & fresh else since_s
    if now.decays:
        for p in range(lanes):
            lapse_s = most(now.gap_s - most(used[p], ZERO), ZERO)
            left = resident[p] * np.exp(-lapse_s / decay_s)
            resident[p] = np.floor(left + EDGE_TOKENS)
    for p in range(lanes):
        mine = x_last[p] == here
        idle_s, before_s = most(now.gap_s - used[p], ZERO), x_idle_here[p]
        tokens = resident[p]
        used[p] -= now.gap_s
        resident[p] = ZERO if idle_s > ttl_s else tokens
        x_idle_here[p] = idle_s if mine else before_s


@choosing
def arrive(resident, p, mine, now, fresh):
    """Tokens alive at a slot; leaves those that remain of them after this turn."""
    stored = resident[p]
    alive = now.context if mine & fresh else stored
    alive = alive if mine else alive * now.leave
    resident[p] = least(alive, now.k)
    return alive


@phase
def keep_only(x, residents, slot, d, lanes, now, fresh):
    """The caches of a slot that may not serve."""
    resident = row(residents, slot)
    x_last = row(x, LAST)
    here = f32(d)
    for p in range(lanes):
        arrive(resident, p, x_last[p] == here, now, fresh)


@choosing
def settle(
    bests,
    wishes,
    cacheds,
    scores_here,
    cacheds_here,
    alives_here,
    p,
    here,
    mine,
    alive,
    cached,
    score,
):
    """Enters a slot's score: where it is the least, and where the session is."""
    best, wished, tokens = bests[p], wishes[p], cacheds[p]
    score_here, cached_here, alive_here = scores_here[p], cacheds_here[p], alives_here[p]
    better = (score < best) | ((score == best) & (here < wished))
    bests[p] = score if better else best
    wishes[p] = here if better else wished
    cacheds[p] = cached if better else tokens
    scores_here[p] = score if mine else score_here
    cacheds_here[p] = cached if mine else cached_here
    alives_here[p] = alive if mine else alive_here


@phase
def price_slot_shared(fleet, site, prices, x, residents, slot, d, lanes, now, fresh):
    """A slot of a block that shares its prices: they are folded into four numbers."""
    resident = row(residents, slot)
    best, wished, tokens = row(x, BEST), row(x, WISHED), row(x, CACHED)
    score_here, cached_here = row(x, SCORE_HERE), row(x, CACHED_HERE)
    alive_here = row(x, ALIVE_HERE)
    x_last = row(x, LAST)
    at_decode_g = row(site, DECODE_G)
    at_decode_embodied_g = row(site, DECODE_EMBODIED_G)
    at_late_s = row(site, LATE_S)
    at_pre_g = row(site, PRE_G)
    at_pre_g_ctx = row(site, PRE_G_CTX)
    at_standing_g = row(site, STANDING_G)
    here = f32(d)
    pre_s, pre_s_ctx, least_s = (
        get(fleet, PRE_S, d),
        get(fleet, PRE_S_CTX, d),
        get(fleet, LEAST_TTFT, d),
    )
    embodied = get(prices, EMBODIED, 0) * get(fleet, EMBODIED_G, d)
    by_u = get(prices, CARBON, 0) * at_pre_g[d] + embodied * pre_s
    by_x = get(prices, CARBON, 0) * at_pre_g_ctx[d] + embodied * pre_s_ctx
    fixed_g = get(prices, CARBON, 0) * at_decode_g[d]
    fixed_g += get(prices, EMBODIED, 0) * at_decode_embodied_g[d]
    fixed_g += get(prices, LATENCY, 0) * at_late_s[d] + at_standing_g[d]
    latency, knowledge = get(prices, LATENCY, 0), get(prices, KNOWLEDGE, 0)
    unknown = get(prices, UNKNOWN, 0) * now.full
    away_g = get(prices, SWITCH, 0) if now.begun else ZERO
    for p in range(lanes):
        mine = x_last[p] == here
        alive = arrive(resident, p, mine, now, fresh)
        cached = blocks(least(alive, now.usable), now.block)
        believed = knowledge * cached + unknown
        u = now.prompt - believed
        attended = u * (now.prompt + believed) * HALF
        seconds = pre_s * u + pre_s_ctx * attended
        score = fixed_g + by_u * u + by_x * attended + latency * most(least_s, seconds)
        score += ZERO if mine else away_g
        settle(
            best,
            wished,
            tokens,
            score_here,
            cached_here,
            alive_here,
            p,
            here,
            mine,
            alive,
            cached,
            score,
        )


@choosing
def weigh(prices, p, at, mine, begun, now, cached):
    """Score and TTFT of one setting at deployment `at` with `cached` tokens there."""
    believed = get(prices, KNOWLEDGE, p) * cached + get(prices, UNKNOWN, p) * now.full
    u = now.prompt - believed
    attended = u * (now.prompt + believed) * HALF
    seconds = at.pre_s * u + at.pre_s_ctx * attended
    first_s = most(at.least_s, seconds)
    score = get(prices, CARBON, p) * (at.decode_g + at.pre_g * u + at.pre_g_ctx * attended)
    score += get(prices, EMBODIED, p) * (at.decode_embodied_g + at.embodied_g * seconds)
    score += get(prices, LATENCY, p) * (at.late_s + first_s)
    score += get(prices, QUALITY, p) * at.worse + get(prices, SIZE, p) * at.more_b
    score += get(prices, INTENSITY, p) * at.more_kappa + get(prices, RTT, p) * at.more_rtt
    score += ZERO if mine else get(prices, SWITCH, p) * begun
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
        get(fleet, PRE_S, d), get(fleet, PRE_S_CTX, d), get(fleet, LEAST_TTFT, d),
        get(site, PRE_G, d), get(site, PRE_G_CTX, d), get(site, DECODE_G, d),
        get(fleet, EMBODIED_G, d), get(site, DECODE_EMBODIED_G, d), get(site, BASE_S, d),
        get(site, LATE_S, d), get(site, Q, d), top - get(site, Q, d), get(site, MORE_KAPPA, d),
        get(site, MORE_RTT, d), get(site, MORE_B, d),
    )  # fmt: skip


@phase
def price_slot(fleet, site, prices, x, residents, slot, d, lanes, now, fresh, top):
    """A slot of a block whose settings differ."""
    resident = row(residents, slot)
    best, wished, tokens = row(x, BEST), row(x, WISHED), row(x, CACHED)
    score_here, cached_here = row(x, SCORE_HERE), row(x, CACHED_HERE)
    alive_here = row(x, ALIVE_HERE)
    x_last = row(x, LAST)
    x_least_quality = row(x, LEAST_QUALITY)
    here, at, begun = f32(d), column(fleet, site, d, top), ONE if now.begun else ZERO
    for p in range(lanes):
        mine = x_last[p] == here
        alive = arrive(resident, p, mine, now, fresh)
        cached = blocks(least(alive, now.usable), now.block)
        score, _ = weigh(prices, p, at, mine, begun, now, cached)
        score = score if at.quality >= x_least_quality[p] else INF
        settle(
            best,
            wished,
            tokens,
            score_here,
            cached_here,
            alive_here,
            p,
            here,
            mine,
            alive,
            cached,
            score,
        )


@phase
def price_dense(
    fleet, site, prices, x, residents, scratch, alloweds, d, lanes, now, fresh, top, u01
):
    """A slot (its number is d) under every filter but that on the TTFT, into `scratch`."""
    resident, allowed = row(residents, d), row(alloweds, d)
    scores, ttfts = row(scratch, 4 * d), row(scratch, 4 * d + 1)
    alives, cacheds = row(scratch, 4 * d + 2), row(scratch, 4 * d + 3)
    x_last, x_least, x_open = row(x, LAST), row(x, LEAST_QUALITY), row(x, OPEN)
    x_fastest_s, x_noise = row(x, FASTEST_S), row(prices, NOISE)
    here, at, begun = f32(d), column(fleet, site, d, top), ONE if now.begun else ZERO
    for p in range(lanes):
        mine = x_last[p] == here
        alive = arrive(resident, p, mine, now, fresh)
        cached = blocks(least(alive, now.usable), now.block)
        score, ttft_s = weigh(prices, p, at, mine, begun, now, cached)
        score += x_noise[p] * u01
        may = (at.quality >= x_least[p]) & (allowed[p] + x_open[p] > ZERO)
        fastest_s = x_fastest_s[p]
        ttft_s = ttft_s if may else INF
        x_fastest_s[p] = least(fastest_s, ttft_s)
        scores[p], ttfts[p], alives[p], cacheds[p] = score, ttft_s, alive, cached


@phase
def settle_dense(prices, x, scratch, d, lanes):
    """Enters what `price_dense` left, where the limit on the TTFT allows it."""
    scores, ttfts = row(scratch, 4 * d), row(scratch, 4 * d + 1)
    alives, cacheds = row(scratch, 4 * d + 2), row(scratch, 4 * d + 3)
    best, wished, tokens = row(x, BEST), row(x, WISHED), row(x, CACHED)
    score_here, cached_here = row(x, SCORE_HERE), row(x, CACHED_HERE)
    alive_here = row(x, ALIVE_HERE)
    x_last, x_fastest_s, slo_s, here = row(x, LAST), row(x, FASTEST_S), row(prices, SLO), f32(d)
    for p in range(lanes):
        limit_s = most(slo_s[p], x_fastest_s[p])
        score = scores[p] if (ttfts[p] <= limit_s) & (ttfts[p] < INF) else INF
        mine = x_last[p] == here
        settle(
            best, wished, tokens, score_here, cached_here, alive_here, p, here, mine, alives[p],
            cacheds[p], score,
        )  # fmt: skip


@phase
def count_slow(prices, x, lanes):
    """Counts the turns on which nothing is fast enough."""
    slow, fastest_s, slo_s = row(x, SLOW), row(x, FASTEST_S), row(prices, SLO)
    for p in range(lanes):
        slow[p] += ONE if fastest_s[p] > slo_s[p] else ZERO


@phase
def cold_shared(site, prices, slot_of, may, D, begun, top):
    """The least score among the deployments that are no slots, and where it is."""
    at_cold_g = row(site, COLD_G)
    at_cold_embodied_g = row(site, COLD_EMBODIED_G)
    at_cold_s = row(site, COLD_S)
    at_standing_g = row(site, STANDING_G)
    at_score = row(site, SCORE)
    away_g = get(prices, SWITCH, 0) if begun else ZERO
    for d in range(D):
        score = (
            get(prices, CARBON, 0) * at_cold_g[d] + get(prices, EMBODIED, 0) * at_cold_embodied_g[d]
        )
        score += get(prices, LATENCY, 0) * at_cold_s[d]
        at_score[d] = score + (at_standing_g[d] + away_g)
    best, wished = INF, NONE
    for d in range(D):
        if may[d] > ZERO and slot_of[d] < 0 and at_score[d] < best:
            best, wished = at_score[d], f32(d)
    return best, wished


@phase
def cold_two(site, prices, x, lanes, a, b):
    """Two deployments that are no slots, under every setting; of one model and size.

    Two at a time share the loads of the prices; with three, registers run out.
    """
    x_best, x_wished, x_enter = row(x, BEST), row(x, WISHED), row(x, ENTER)
    at_a, at_b = cold_column(site, a), cold_column(site, b)
    name_a, name_b = get(site, NUMBER, a), get(site, NUMBER, b)
    for p in range(lanes):
        enter, carbon, embodied = x_enter[p], get(prices, CARBON, p), get(prices, EMBODIED, p)
        latency, intensity = get(prices, LATENCY, p), get(prices, INTENSITY, p)
        rtt, best, wished = get(prices, RTT, p), x_best[p], x_wished[p]
        score_a = cold(at_a, enter, carbon, embodied, latency, intensity, rtt)
        score_b = cold(at_b, enter, carbon, embodied, latency, intensity, rtt)
        wished = name_a if score_a < best else wished
        best = least(score_a, best)
        x_wished[p] = name_b if score_b < best else wished
        x_best[p] = least(score_b, best)


@choosing
def cold_column(site, d):
    """The numbers that `cold` reads, of deployment d."""
    return (
        get(site, COLD_G, d), get(site, COLD_EMBODIED_G, d), get(site, COLD_S, d),
        get(site, MORE_KAPPA, d), get(site, MORE_RTT, d),
    )  # fmt: skip


@choosing
def cold(at, enter, carbon, embodied, latency, intensity, rtt):
    """A cold deployment's score; `enter` is what its model and size add."""
    score = enter + carbon * at[0] + embodied * at[1] + latency * at[2]
    return score + intensity * at[3] + rtt * at[4]


@phase
def cold_distinct(classes, class_ends, site, prices, x, slot_of, lanes, begun, top):
    """The least score of each setting among the deployments that are no slots."""
    x_least_quality = row(x, LEAST_QUALITY)
    x_enter = row(x, ENTER)
    at_fits = row(site, FITS)
    at_quality = row(site, Q)
    at_more_b = row(site, MORE_B)
    threshold, away = INF, ONE if begun else ZERO
    for p in range(lanes):
        threshold = least(threshold, x_least_quality[p])
    begin = 0
    for end in class_ends:
        at, begin = begin, end
        quality = at_quality[classes[at]]
        if quality < threshold:
            continue
        worse, more_b = top - quality, at_more_b[classes[at]]
        for p in range(lanes):
            enter = get(prices, QUALITY, p) * worse + get(prices, SIZE, p) * more_b
            enter += get(prices, SWITCH, p) * away
            x_enter[p] = enter if quality >= x_least_quality[p] else INF
        a = -1
        for n in range(at, end):
            d = classes[n]
            if slot_of[d] >= 0 or at_fits[d] == ZERO:
                continue
            if a < 0:
                a = d
            else:
                cold_two(site, prices, x, lanes, a, d)
                a = -1
        if a >= 0:
            cold_two(site, prices, x, lanes, a, a)


@phase
def filter_lanes(site, prices, x, allowed, lanes, D, top, dense):
    """Which masks give way (`OPEN`) and the least quality of each setting; counts both."""
    x_masked = row(x, MASKED)
    x_short = row(x, SHORT)
    x_least_quality = row(x, LEAST_QUALITY)
    x_open = row(x, OPEN)
    at_fits = row(site, FITS)
    at_quality = row(site, Q)
    for p in range(lanes):
        x_open[p] = ZERO
        x_least_quality[p] = top
    if dense:
        for p in range(lanes):
            x_least_quality[p] = NONE
        for d in range(D):
            if at_fits[d] > ZERO:
                quality = at_quality[d]
                for p in range(lanes):
                    known = x_least_quality[p]
                    x_least_quality[p] = most(known, quality if allowed[d, p] > ZERO else NONE)
        for p in range(lanes):
            best = x_least_quality[p]
            gives_way = ONE if best == NONE else ZERO
            x_open[p] = gives_way
            x_masked[p] += gives_way
            x_least_quality[p] = top if best == NONE else best
    for p in range(lanes):
        best = x_least_quality[p]
        floor = most(get(prices, FLOOR, p), best - get(prices, SLACK, p))
        x_short[p] += ONE if floor > best else ZERO
        x_least_quality[p] = least(floor, best)


@phase
def expect_return(fleet, site, prices, x, lanes, now, leasts):
    """`P_BACK` from all features, of those that wish to move."""
    p_back = row(prices, P_BACK)
    top, least_kappa, least_rtt, least_b = leasts
    log_turn, log_ratio = np.log1p(now.turn), np.log1p(now.k / now.n)
    for p in range(lanes):
        here, there, score_here = get(x, LAST, p), get(x, WISHED, p), get(x, SCORE_HERE, p)
        if here in (NONE, there) or score_here == INF:
            continue
        i, j = int(here), int(there)
        score_g = score_here + get(prices, QUALITY, p) * (ONE - top)
        score_g += get(prices, INTENSITY, p) * least_kappa + get(prices, RTT, p) * least_rtt
        score_g += get(prices, SIZE, p) * least_b
        logit = get(prices, BIAS, p)
        if score_g > ZERO:
            logit += get(prices, WEIGHT, p) * ((score_here - get(x, BEST, p)) / score_g)
        if get(fleet, MODEL, i) != get(fleet, MODEL, j):
            logit += get(prices, WEIGHT + 1, p)
        if get(fleet, REGION, i) != get(fleet, REGION, j):
            logit += get(prices, WEIGHT + 2, p)
        logit += get(prices, WEIGHT + 3, p) * (get(site, TREND, i) - get(site, TREND, j))
        logit += get(prices, WEIGHT + 4, p) * log_turn + get(prices, WEIGHT + 5, p) * log_ratio
        logit += get(prices, WEIGHT + 6, p) * (get(x, RETURNS, p) / most(get(x, MOVES, p), ONE))
        logit += get(prices, WEIGHT + 7, p) * (get(site, Q, i) - get(site, Q, j))
        p_back[p] = ONE / (ONE + np.exp(-logit))


@phase
def gate(fleet, site, prices, x, lanes, now, leasts):
    """Keeps sessions where they are that would likely move straight back.

    One loop without calls that take arrays: each would be counted, atomically.
    """
    x_wished, x_cached = row(x, WISHED), row(x, CACHED)
    top, least_kappa, least_rtt, least_b = leasts
    history = np.floor(now.prompt + now.predicted + EDGE_TOKENS)
    whole_stay = now.prompt + most(now.predicted - ONE, ZERO)
    for p in range(lanes):
        here, there, score_here = get(x, LAST, p), x_wished[p], get(x, SCORE_HERE, p)
        if here in (NONE, there) or score_here == INF:
            continue
        gain_g = score_here - get(x, BEST, p)
        score_g = score_here + get(prices, QUALITY, p) * (ONE - top)
        score_g += get(prices, INTENSITY, p) * least_kappa + get(prices, RTT, p) * least_rtt
        score_g += get(prices, SIZE, p) * least_b
        stays = get(prices, ALWAYS, p) > ZERO or gain_g < get(prices, HYSTERESIS, p) * score_g
        if not stays and get(prices, STRENGTH, p) > ZERO:
            # What coming back at the next turn would rebuild.
            i = int(here)
            left = get(prices, KNOWLEDGE, p) * get(x, ALIVE_HERE, p)
            left, stay = least(left + get(prices, UNKNOWN, p) * now.kept, now.k), whole_stay
            gap_s, ttl_s = get(prices, GAP, p), get(site, TTL_S, i) if now.ages else INF
            if now.decays:
                fade = np.exp(-gap_s / get(site, DECAY_S, i))
                left, stay = left * fade, stay * fade
            left, stay = np.floor(left + EDGE_TOKENS), np.floor(stay + EDGE_TOKENS)
            if now.drops or (now.ages and get(x, IDLE_HERE, p) + gap_s > ttl_s):
                left = ZERO
            if now.ages and gap_s > ttl_s:
                stay = ZERO
            start = blocks(least(left, history), now.block)
            stop = blocks(least(stay, history), now.block)
            u = stop - start
            attended = u * (stop + start) * HALF
            seconds = get(fleet, PRE_S, i) * u + get(fleet, PRE_S_CTX, i) * attended
            operational_g = get(site, PRE_G, i) * u + get(site, PRE_G_CTX, i) * attended
            rebuild_g = get(prices, CARBON, p) * operational_g + get(prices, LATENCY, p) * seconds
            rebuild_g += get(prices, EMBODIED, p) * get(fleet, EMBODIED_G, i) * seconds
            stays = gain_g < get(prices, STRENGTH, p) * get(prices, P_BACK, p) * rebuild_g
        if stays:
            x_wished[p] = here
            x_cached[p] = get(x, CACHED_HERE, p)


@phase
def move(x, lanes):
    """Counts moves and returns, and enters where the sessions are now."""
    x_last = row(x, LAST)
    x_before = row(x, BEFORE)
    x_moves = row(x, MOVES)
    x_returns = row(x, RETURNS)
    x_wished = row(x, WISHED)
    for p in range(lanes):
        last, before, d = x_last[p], x_before[p], x_wished[p]
        moved = (last != NONE) & (d != last)
        x_moves[p] += ONE if moved else ZERO
        x_returns[p] += ONE if moved & (d == before) else ZERO
        x_before[p] = last if moved else before
        x_last[p] = d


@exactly
def open_bill(fleet, site, g, bills, d, now):
    """What serving the turn at d costs: rows by what multiplies them, see `BY_ONE`."""
    v = most(now.output - ONE, ZERO)
    y = v * (now.prompt + v * HALF)
    seconds = get(fleet, DEC_S, d) * v + get(fleet, DEC_S_CTX, d) * y
    decode_kwh = (get(fleet, DEC_J, d) * v + get(fleet, DEC_J_CTX, d) * y) * get(fleet, PUE_KWH, d)
    kwh, kwh_ctx = (
        get(fleet, PRE_J, d) * get(fleet, PUE_KWH, d),
        get(fleet, PRE_J_CTX, d) * get(fleet, PUE_KWH, d),
    )
    pre_s, pre_s_ctx, embodied = (
        get(fleet, PRE_S, d),
        get(fleet, PRE_S_CTX, d),
        get(fleet, EMBODIED_G, d),
    )
    bills[d, BY_ONE, DECODE] = decode_kwh * g
    bills[d, BY_ONE, EMBODIED_OUT] = get(fleet, SHARED_G, d) * seconds
    bills[d, BY_ONE, TTFT], bills[d, BY_ONE, E2E] = (
        get(site, BASE_S, d),
        get(site, BASE_S, d) + seconds,
    )
    site[TRUE_S, d] = get(site, BASE_S, d) + seconds
    bills[d, BY_ONE, QUALITY_OUT] = get(site, Q, d)
    bills[d, BY_U, PREFILL], bills[d, BY_X, PREFILL] = kwh * g, kwh_ctx * g
    bills[d, BY_U, EMBODIED_OUT], bills[d, BY_X, EMBODIED_OUT] = (
        embodied * pre_s,
        embodied * pre_s_ctx,
    )
    bills[d, BY_DU, REBUILD] = kwh * g + embodied * pre_s
    bills[d, BY_DX, REBUILD] = kwh_ctx * g + embodied * pre_s_ctx
    bills[d, BY_DU, REBUILT] = ONE
    bills[d, BY_FIRST, TTFT] = bills[d, BY_FIRST, E2E] = ONE
    for amount, rate in (
        (ENERGY, ONE),
        (WATER_OUT, get(fleet, WATER, d)),
        (COST, get(fleet, USD, d)),
    ):
        bills[d, BY_ONE, amount] = decode_kwh * rate
        bills[d, BY_U, amount], bills[d, BY_X, amount] = kwh * rate, kwh_ctx * rate


@njit(cache=True, error_model="numpy", fastmath={"contract"}, forceinline=True)
def bill(fleet, site, bills, sums, p, cached, d, now):
    """Adds what the turn cost at d; returns its seconds."""
    u, du = now.prompt - cached, now.full - cached
    attended, dx = u * (now.prompt + cached) * HALF, du * (now.full + cached) * HALF
    seconds = get(fleet, PRE_S, d) * u + get(fleet, PRE_S_CTX, d) * attended
    first_s = most(get(fleet, LEAST_TTFT, d), seconds)
    add_bill(sums, p, bills, d, u, attended, du, dx, first_s)
    return get(site, TRUE_S, d) + first_s


@exactly
def bill_each(fleet, site, bills, x, sums, lanes, now):
    """Bills the turn to every setting."""
    used_s = row(x, USED_S)
    for p in range(lanes):
        d = int(get(x, LAST, p))
        used_s[p] = bill(fleet, site, bills, sums, p, get(x, CACHED, p), d, now)


@exactly
def bill_alike(fleet, site, bills, x, sums, found, lanes, now):
    """`bill_each` where neighbours often do the same: where only the gate differs."""
    used_s, seen, seen_tokens, seconds = row(x, USED_S), NONE, NONE, ZERO
    for p in range(lanes):
        number, tokens = get(x, LAST, p), get(x, CACHED, p)
        if number != seen or tokens != seen_tokens:
            seen, seen_tokens = number, tokens
            for f in range(AMOUNTS):
                found[0, f] = ZERO
            seconds = bill(fleet, site, bills, found, 0, tokens, int(number), now)
        add_row(sums, p, found)
        used_s[p] = seconds


@exactly
def enter(
    carbon, hour, fleet, site, bills, billed_at, x, residents, useds, slots, slot_of, count, lanes,
    now, t,
):  # fmt: skip
    """Opens bills and slots of the deployments that serve; returns how many slots there are."""
    for p in range(lanes):
        d = int(get(x, LAST, p))
        if billed_at[d] != t:
            billed_at[d] = t
            open_bill(fleet, site, carbon[hour, d], bills, d, now)
            if slot_of[d] < 0:
                slots[count], slot_of[d] = d, count
                fill(residents, count, lanes, ZERO)
                fill(useds, count, lanes, ZERO)
                count += 1
    return count


@exactly
def close(x, lanes):
    """Ends a session: its moves and returns join those of the ones before it."""
    moves, returns = row(x, MOVES), row(x, RETURNS)
    all_moves, all_returns = row(x, ALL_MOVES), row(x, ALL_RETURNS)
    for p in range(lanes):
        all_moves[p] += moves[p]
        all_returns[p] += returns[p]
        moves[p] = returns[p] = ZERO


@exactly
def flush(x, sums, outs, at, lanes, served, unserved):
    """Moves what was summed in float32 to the float64 sums."""
    for p in range(lanes):
        for f in range(AMOUNTS):
            outs[at, p, f] += sums[p, f]
            sums[p, f] = ZERO
        outs[at, p, MOVES_OUT] += get(x, ALL_MOVES, p)
        outs[at, p, RETURNS_OUT] += get(x, ALL_RETURNS, p)
        outs[at, p, MASKED_OUT] += get(x, MASKED, p)
        outs[at, p, SHORT_OUT] += get(x, SHORT, p)
        outs[at, p, SLOW_OUT] += get(x, SLOW, p)
        outs[at, p, TURNS] += served
        outs[at, p, UNSERVED] += unserved
    for counted in (ALL_MOVES, ALL_RETURNS, MASKED, SHORT, SLOW):
        fill(x, counted, lanes, ZERO)


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
    # Taken apart first: every reading of an array from a tuple is counted, atomically.
    classes, class_ends, carbon, trend = w.classes, w.class_ends, w.carbon, w.trend
    rtt_s, wait_s, ttl_s, decay_s = w.rtt_s, w.wait_s, w.ttl_s, w.decay_s
    valid, first, session, turn_number = turns.valid, turns.first, turns.session, turns.turn
    gap_s, hours, time_bins, homes = turns.gap_s, turns.hour, turns.time_bin, turns.home
    prefixes, news, outputs = turns.prefix_tokens, turns.new_tokens, turns.output_tokens
    predicteds, qualities, noise = turns.predicted_output_tokens, turns.quality, turns.noise
    D, T = len(classes), valid.shape[1]
    dense = kind == DENSE
    fleet, prices = np.empty((18, STRIDE), f32), np.empty((PRICES, STRIDE), f32)
    site, x = np.empty((22, STRIDE), f32), np.zeros((21, STRIDE), f32)
    fleet[:, :D], prices[:, :SETTINGS] = w.fleet, block
    for d in range(D):
        site[NUMBER, d] = d
    masks = np.zeros((D, STRIDE), f32)
    masks[:, :SETTINGS] = allowed
    resident, used = np.zeros((D, STRIDE), f32), np.zeros((D, STRIDE), f32)
    scratch = np.empty((4 * D if dense else 1, STRIDE), f32)
    may, slot_of, slots = np.empty(D, f32), np.full(D, -1), np.empty(D, np.int64)
    bills, billed_at = np.zeros((D, 6, AMOUNTS), f32), np.empty(D, np.int64)
    found = np.zeros((1, AMOUNTS), f32)
    sums, quality = np.zeros((SETTINGS, AMOUNTS), f32), np.empty(qualities.shape[2], f32)
    count = served = unserved = 0
    context, begun, fresh, at = ZERO, False, False, 0
    for t in range(T + 1):
        if t == T or not valid[row, t] or first[row, t]:
            if t > 0:
                close(x, lanes)
            done = t == T or not valid[row, t]
            if t > 0 and (by_session or done or served + unserved >= FLUSH_TURNS):
                flush(x, sums, out, at, lanes, served, unserved)
                served = unserved = 0
            if done:
                break
            at = session[row, t] if by_session else row
            count = 0
            context, begun, fresh = ZERO, False, False
            slot_of[:], billed_at[:] = -1, -1
            fill(x, USED_S, lanes, ZERO)
            fill(x, LAST, lanes, NONE)
            fill(x, BEFORE, lanes, NONE)
            if dense:
                count = D
                for d in range(D):
                    slots[d] = slot_of[d] = d
                resident[:], used[:] = ZERO, ZERO

        k, n = prefixes[row, t], most(news[row, t], ONE)
        hour, bin_ = hours[row, t], time_bins[row, t]
        usable = least(k, k + n - ONE)
        now = Now(
            gap_s[row, t],
            k,
            n,
            k + n,
            predicteds[row, t],
            outputs[row, t],
            usable,
            blocks(least(context, usable), w.block_tokens),
            least(context, k),
            context,
            turn_number[row, t],
            begun,
            fresh,
            w.block_tokens,
            ZERO if w.drops else ONE,
            w.drops,
            w.ages,
            w.decays,
        )
        for m in range(len(quality)):
            quality[m] = qualities[row, t, m]
        copy(site, KAPPA, carbon, hour, D)
        copy(site, MORE_RTT, rtt_s, homes[row, t], D)
        copy(site, BASE_S, wait_s, bin_ * len(wait_s) // TIME_BINS, D)
        if w.ages:
            copy(site, TTL_S, ttl_s, bin_ * len(ttl_s) // TIME_BINS, D)
            copy(site, DECAY_S, decay_s, bin_ * len(decay_s) // TIME_BINS, D)
        leasts = survey(fleet, site, quality, D, now)
        top = leasts[0]
        if w.ages:
            for slot in range(count):
                d = slots[slot]
                age(x, resident, used, slot, d, lanes, now, site[TTL_S, d], site[DECAY_S, d])
            fresh = False
        context = k + n + most(now.output - ONE, ZERO)
        if top < ZERO:
            for slot in range(count):
                keep_only(x, resident, slot, slots[slot], lanes, now, fresh)
            unserved += 1
            fresh = False
            continue

        fill(x, SCORE_HERE, lanes, INF)
        fill(x, CACHED, lanes, ZERO)
        if kind == SHARED:
            masked, short = filter_shared(site, prices, masks, may, D, top)
            if masked:
                add(x, MASKED, lanes, ONE)
            if short:
                add(x, SHORT, lanes, ONE)
            price_cold(fleet, site, D, now, prices[UNKNOWN, 0] * now.full)
            stand(site, prices, noise, row, t, D, top)
            best, wished = cold_shared(site, prices, slot_of, may, D, begun, top)
            fill(x, BEST, lanes, best)
            fill(x, WISHED, lanes, wished)
            for slot in range(count):
                d = slots[slot]
                if may[d] > ZERO:
                    price_slot_shared(fleet, site, prices, x, resident, slot, d, lanes, now, fresh)
                else:
                    keep_only(x, resident, slot, d, lanes, now, fresh)
        else:
            filter_lanes(site, prices, x, masks, lanes, D, top, dense)
            fill(x, BEST, lanes, INF)
            fill(x, WISHED, lanes, NONE)
            if dense:
                fill(x, FASTEST_S, lanes, INF)
                for d in range(D):
                    if site[FITS, d] > ZERO:
                        u01 = noise[row, t, d]
                        price_dense(
                            fleet, site, prices, x, resident, scratch, masks, d, lanes, now, fresh,
                            top, u01,
                        )  # fmt: skip
                    else:
                        keep_only(x, resident, d, d, lanes, now, fresh)
                for d in range(D):
                    if site[FITS, d] > ZERO:
                        settle_dense(prices, x, scratch, d, lanes)
                count_slow(prices, x, lanes)
            else:
                price_cold(fleet, site, D, now, ZERO)
                cold_distinct(classes, class_ends, site, prices, x, slot_of, lanes, begun, top)
                for slot in range(count):
                    d = slots[slot]
                    if site[FITS, d] > ZERO:
                        price_slot(
                            fleet, site, prices, x, resident, slot, d, lanes, now, fresh, top
                        )
                    else:
                        keep_only(x, resident, slot, d, lanes, now, fresh)

        if begun:
            if weighted:
                copy(site, TREND, trend, hour, D)
                expect_return(fleet, site, prices, x, lanes, now, leasts)
            gate(fleet, site, prices, x, lanes, now, leasts)
        move(x, lanes)
        count = enter(
            carbon, hour, fleet, site, bills, billed_at, x, resident, used, slots, slot_of, count,
            lanes, now, t,
        )  # fmt: skip
        if kind == SHARED:
            bill_alike(fleet, site, bills, x, sums, found, lanes, now)
        else:
            bill_each(fleet, site, bills, x, sums, lanes, now)
        if len(decisions):
            for p in range(lanes):
                decisions[p, row, t] = int(x[LAST, p])
        begun = fresh = True
        served += 1
        if served >= FLUSH_TURNS:
            flush(x, sums, out, at, lanes, served, unserved)
            served = unserved = 0
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
    at_fits = row(site, FITS)
    at_quality = row(site, Q)
    best = NONE
    for d in range(D):
        if at_fits[d] > ZERO and allowed[d, 0] > ZERO:
            best = most(best, at_quality[d])
    masked = best == NONE
    best = top if masked else best
    floor = most(get(prices, FLOOR, 0), best - get(prices, SLACK, 0))
    for d in range(D):
        fits = at_fits[d] > ZERO and (masked or allowed[d, 0] > ZERO)
        may[d] = ONE if fits and at_quality[d] >= least(floor, best) else ZERO
    return masked, floor > best


@exactly
def stand(site, prices, noise, at_row, at_turn, D, top):
    """What of the score of a block with common prices depends on no cache."""
    at_quality = row(site, Q)
    at_more_kappa = row(site, MORE_KAPPA)
    at_more_rtt = row(site, MORE_RTT)
    at_more_b = row(site, MORE_B)
    at_standing_g = row(site, STANDING_G)
    for d in range(D):
        score = (
            get(prices, QUALITY, 0) * (top - at_quality[d]) + get(prices, SIZE, 0) * at_more_b[d]
        )
        score += get(prices, INTENSITY, 0) * at_more_kappa[d] + get(prices, RTT, 0) * at_more_rtt[d]
        at_standing_g[d] = score + get(prices, NOISE, 0) * noise[at_row, at_turn, d]


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
