"""The tuned rival: settings in the inner SIMD loop, on every core, the engine's own inputs.

What one would write to sweep many settings on a CPU without JAX. It computes what the engine does
(see `jaxroute.reference`) and shares no code with it. Only deployments where some setting has been
are looked at setting by setting; the others have no cache, so a block of settings with common
prices prices them once a turn.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.baselines import numba_plain
from benchmarks.baselines import tuned_kernel as kernel
from jaxroute.policies import RouterParams
from jaxroute.sessions import Sessions
from jaxroute.simulate import FIELDS
from jaxroute.world import World

f32 = np.float32
LANES = 16
"""Blocks are filled up to a multiple of it with copies of their last setting."""

COLUMNS = {
    "carbon_prefill_g": kernel.PREFILL,
    "carbon_rebuild_g": kernel.REBUILD,
    "carbon_decode_g": kernel.DECODE,
    "carbon_embodied_g": kernel.EMBODIED_OUT,
    "energy_kwh": kernel.ENERGY,
    "water_l": kernel.WATER_OUT,
    "cost_usd": kernel.COST,
    "ttft_s": kernel.TTFT,
    "e2e_s": kernel.E2E,
    "quality": kernel.QUALITY_OUT,
    "rebuilt_tokens": kernel.REBUILT,
    "moves": kernel.MOVES_OUT,
    "returns": kernel.RETURNS_OUT,
    "mask_fallbacks": kernel.MASKED_OUT,
    "quality_fallbacks": kernel.SHORT_OUT,
    "ttft_fallbacks": kernel.SLOW_OUT,
    "turns": kernel.TURNS,
    "unserved": kernel.UNSERVED,
}


class Block(NamedTuple):
    """Settings that are replayed side by side: which, and their kind (`tuned_kernel.SHARED`)."""

    settings: NDArray[np.int64]
    kind: int


def tables(world: World) -> kernel.Tables:
    """A world as the kernel reads it."""
    w = numba_plain.site(world, world.retention)
    share = w.host_w / w.batch
    rows = (
        *(w.pre_j + w.host_w * w.pre_s, w.pre_j_ctx + w.host_w * w.pre_s_ctx),
        *(w.pre_s, w.pre_s_ctx, w.ttft_floor_s),
        *(w.dec_j + share * w.dec_s, w.dec_j_ctx + share * w.dec_s_ctx, w.dec_s, w.dec_s_ctx),
        *(w.embodied_g_per_s, w.embodied_g_per_s / w.batch, w.max_context_tokens, w.params_b),
        *(w.pue[w.region] / 3.6e6, w.water_l_per_kwh[w.region], w.price_usd_per_kwh[w.region]),
        *(w.model, w.region),
    )
    classes = np.lexsort((np.arange(len(w.model)), w.params_b, w.model))
    of_class = np.stack([w.model, w.params_b])[:, classes]
    ends = np.append(np.flatnonzero((np.diff(of_class) != 0).any(axis=0)) + 1, len(classes))
    known = np.maximum(w.intensity_g_per_kwh.astype(float), kernel.LEAST_INTENSITY)
    trend = np.diff(np.log(known), axis=0, append=np.log(known[-1:]))
    return kernel.Tables(
        fleet=np.stack(rows).astype(f32),
        classes=classes,
        class_ends=ends,
        carbon=np.ascontiguousarray(w.intensity_g_per_kwh[:, w.region], f32),
        trend=trend[:, w.region].astype(f32),
        rtt_s=np.ascontiguousarray(w.rtt_s[:, w.region], f32),
        wait_s=np.ascontiguousarray(w.wait_s),
        ttl_s=np.ascontiguousarray(w.ttl_s),
        decay_s=np.ascontiguousarray(w.decay_s),
        block_tokens=w.block_tokens,
        drops=w.drop_on_leave,
        ages=bool(np.isfinite(w.ttl_s).any() or np.isfinite(w.decay_s).any()),
        decays=bool(np.isfinite(w.decay_s).any()),
    )


def prices(params: RouterParams) -> NDArray[np.float32]:
    """A stack of P settings as the kernel reads it: `[PRICES, P]`."""
    p = params
    bias = p.gate_bias.astype(float)
    rows = (
        *(p.carbon_weight, p.carbon_weight * p.embodied_weight, p.latency_price_g_per_s),
        *(p.quality_price_g, p.switch_price_g, p.intensity_price, p.rtt_price_g_per_s),
        *(p.size_price_g_per_b, p.noise_price_g, p.cache_knowledge),
        *((1 - p.cache_knowledge) * p.assumed_hit, p.quality_floor, p.quality_slack),
        *(p.ttft_slo_s, p.gate_strength, p.gate_bias, p.hysteresis, p.always_stay),
        *(p.expected_gap_s, 1 / (1 + np.exp(-bias)), *p.gate_weights.T),
    )
    return np.stack(rows).astype(f32)


def masks(params: RouterParams, world: World) -> NDArray[np.float32]:
    """Whether each of P settings allows each deployment: `[D, P]`, 0 or 1."""
    fleet = world.fleet
    allowed = np.ones((len(fleet.model), len(params.carbon_weight)), bool)
    for axis in ("model", "gpu", "region"):
        mask, index = getattr(params, f"{axis}_allowed"), getattr(fleet, axis)
        allowed &= mask.T[np.minimum(index, mask.shape[1] - 1)] > 0
    return allowed.astype(f32)


def plan(rows: NDArray[np.float32], allowed: NDArray[np.float32]) -> list[Block]:
    """Settings into blocks: those with common prices together, if they fill the lanes."""
    scoring = np.concatenate([rows[: kernel.STRENGTH], allowed]).T
    _, group, sizes = np.unique(scoring, axis=0, return_inverse=True, return_counts=True)
    anything = (
        (rows[kernel.NOISE] != 0)
        | (rows[kernel.UNKNOWN] != 0)
        | np.isfinite(rows[kernel.SLO])
        | (allowed == 0).any(axis=0)
    )
    common = (sizes[group] >= LANES) & ~np.isfinite(rows[kernel.SLO])
    kinds = np.where(common, kernel.SHARED, np.where(anything, kernel.DENSE, kernel.DISTINCT))
    group = np.where(common, group, -1)
    found = []
    for kind, label in sorted(set(zip(kinds.tolist(), group.tolist(), strict=True))):
        members = np.flatnonzero((kinds == kind) & (group == label))
        starts = range(0, len(members), kernel.SETTINGS)
        found += [Block(members[at : at + kernel.SETTINGS], kind) for at in starts]
    return found


def run(
    params: RouterParams,
    sessions: Sessions,
    world: World,
    *,
    by_session: bool = False,
    decisions: bool = False,
) -> dict[str, NDArray]:
    """Replays every session under every setting; the first call compiles.

    Args:
      params: P settings, `[P, ...]` leaves (`jaxroute.stack`), on the host.
      sessions: S sessions, packed, on the host.
      world: fleet, grids and retention; without a belief.
      by_session: whether to return sums by session.
      decisions: whether to return the deployment of each turn as well.

    Returns:
      The sums of `jaxroute.simulate.FIELDS` in float64, `[P]` or `[P, S]`, and `decision`,
      `[P, R, T]` int32 as the sessions are packed, -1 where unserved and on padding.

    Raises:
      ValueError: a world with a belief, or more deployments than a row holds.
    """
    count, deployments = len(params.carbon_weight), len(world.fleet.model)
    if world.belief is not None or deployments > kernel.STRIDE:
        raise ValueError(f"needs a world without a belief, of {kernel.STRIDE} deployments at most")
    rows, allowed = prices(params), masks(params, world)
    blocks = plan(rows, allowed)
    lanes = np.array([-(-len(block.settings) // LANES) * LANES for block in blocks])
    place = np.zeros((len(blocks), kernel.SETTINGS), np.int64)
    for at, block in zip(place, blocks, strict=True):
        at[:] = block.settings[-1]
        at[: len(block.settings)] = block.settings
    turns, slots = sessions.turns, len(blocks) * kernel.SETTINGS
    sums = np.zeros((sessions.count if by_session else len(turns.valid), slots, kernel.OUT))
    traced = np.full((slots if decisions else 0, *turns.valid.shape), kernel.NONE, np.int32)
    kernel.replay_all(
        tables(world),
        turns_of(sessions),
        np.ascontiguousarray(rows[:, place].swapaxes(0, 1)),
        lanes,
        np.array([block.kind for block in blocks]),
        (rows[kernel.WEIGHT :, place] != 0).any(axis=(0, 2)),
        np.ascontiguousarray(allowed[:, place].swapaxes(0, 1)),
        sums,
        by_session,
        traced,
    )
    where = np.empty(count, np.int64)
    for b, block in enumerate(blocks):
        where[block.settings] = b * kernel.SETTINGS + np.arange(len(block.settings))
    found = {name: sums[:, where, COLUMNS[name]].T for name in FIELDS}
    if not by_session:
        found = {name: values.sum(axis=1) for name, values in found.items()}
    return found | ({"decision": traced[where]} if decisions else {})


class Turns(NamedTuple):
    """The leaves of `jaxroute.sessions.Turn`, `[R, T, ...]`."""

    valid: Any
    first: Any
    session: Any
    turn: Any
    gap_s: Any
    hour: Any
    time_bin: Any
    home: Any
    prefix_tokens: Any
    new_tokens: Any
    output_tokens: Any
    predicted_output_tokens: Any
    quality: Any
    noise: Any


def turns_of(sessions: Sessions) -> Turns:
    """Packed sessions as the kernel reads them."""
    return Turns(*(getattr(sessions.turns, name) for name in Turns._fields))
