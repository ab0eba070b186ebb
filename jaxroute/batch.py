"""Many settings at once: the slot path where it is exact, the dense one elsewhere."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxroute import policies, slots
from jaxroute.cold import SHARED, weigh
from jaxroute.policies import RouterParams
from jaxroute.sessions import Sessions, Turn
from jaxroute.simulate import FIELDS, Totals, admit
from jaxroute.slots import SUMS, Tables, Uses
from jaxroute.world import World

BLOCK_STEPS = 32


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """Sessions of about one length side by side, C at a time, one such chunk after another.

    Attributes:
      turn: `[B, T, C]` int32, where each turn lies in the flattened rows.
      valid: `[B, T, C]` bool.
      first: `[B, T]` bool, the first turn of a chunk.
      chunk: `[B, T]` int32.
      place: `[S]` int32, where in the `chunks * C` each session is.
      chunks: how many.
    """

    turn: Any
    valid: Any
    first: Any
    chunk: Any
    place: Any
    chunks: int = dataclasses.field(metadata={"static": True})


def lay_out(sessions: Sessions, width: int, steps: int = BLOCK_STEPS) -> Layout:
    session = np.asarray(sessions.turns.session).ravel()
    count = sessions.count
    at = np.flatnonzero(session < count)
    lengths = np.bincount(session[at], minlength=count)
    begin = np.zeros(count, np.int64)
    first = at[np.asarray(sessions.turns.first).ravel()[at]]
    begin[session[first]] = first
    order = np.argsort(-lengths, kind="stable")
    chunks = -(-count // width)
    padded = np.full(chunks * width, -1)
    padded[:count] = order
    grid = padded.reshape(chunks, width)
    each = np.where(grid >= 0, lengths[grid], 0)
    longest = np.maximum(each.max(axis=1), 1)
    chunk = np.repeat(np.arange(chunks), longest)
    t = np.arange(len(chunk)) - np.repeat(np.cumsum(longest) - longest, longest)
    valid = t[:, None] < each[chunk]
    turn = np.where(valid, begin[grid[chunk]] + t[:, None], 0)
    fill = -len(chunk) % steps
    place = np.empty(count, np.int32)
    place[order] = np.arange(count)

    def blocks(x, value):
        x = np.concatenate([x, np.full((fill, *x.shape[1:]), value, x.dtype)])
        return x.reshape(-1, steps, *x.shape[1:])

    return Layout(
        turn=blocks(turn.astype(np.int32), 0),
        valid=blocks(valid, False),
        first=blocks(t == 0, False),
        chunk=blocks(chunk.astype(np.int32), chunks - 1),
        place=place,
        chunks=chunks,
    )


def groups_of(params: RouterParams) -> tuple[np.ndarray, np.ndarray]:
    count = len(params.carbon_weight)
    rows = np.concatenate(
        [np.asarray(getattr(params, name)).reshape(count, -1) for name in SHARED], axis=1
    )
    _, first, group = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    if len(first) == count:
        return np.arange(count), np.arange(count, dtype=np.int32)
    return first, group.astype(np.int32)


def uses_of(params: RouterParams, world: World) -> Uses:
    retention = world.retention
    return Uses(
        ageing=bool(np.isfinite(retention.ttl_s).any() or np.isfinite(retention.decay_s).any()),
        features=bool(np.any(np.asarray(params.gate_weights) != 0)),
        latency=bool(np.any(np.asarray(params.latency_price_g_per_s) != 0)),
    )


@functools.partial(jax.jit, static_argnames=("slot_count", "uses", "trace"))
def replay_slots(
    params: RouterParams,
    groups: RouterParams,
    group: jax.Array | None,
    sessions: Sessions,
    layout: Layout,
    world: World,
    *,
    slot_count: int,
    uses: Uses,
    trace: bool = False,
):
    params, sessions, world = admit(params, sessions, world)
    groups, _, _ = admit(groups, sessions, world)
    allowed = jax.vmap(policies.allowed, in_axes=(0, None))(groups, world.fleet)
    dtype = world.fleet.pre_j.dtype
    settings, group_count = params.carbon_weight.shape[0], allowed.shape[0]
    width = layout.turn.shape[-1]
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), sessions.turns)
    by_setting = {
        name: value.T[:, None, :] if value.ndim > 1 else value[None]
        for name, value in vars(params).items()
    }
    wide = RouterParams(**by_setting)
    one = world.block_tokens / world.block_tokens
    places = jnp.arange(settings, dtype=dtype) if group is None else group.astype(dtype)

    weighed = jax.vmap(jax.vmap(functools.partial(weigh, groups, allowed, world)))

    deployments = world.fleet.model.shape[0]

    def spread(x):
        return x if group is None else x[..., group]

    def step(carry, x):
        state, out = carry
        first, chunk, now, by, cold = x
        tables = Tables(by, cold.base_g, places[None], group_count, one)
        cold = cold._replace(**{n: spread(getattr(cold, n)) for n in ("best_g", "best", "offset_g")})
        opened = slots.opening(slot_count, (width, settings), dtype, uses)
        state = jax.tree.map(lambda a, b: jnp.where(first, a, b), opened, state)
        state, added, decision = slots.step(wide, world, uses, tables, state, now, cold)
        carried = {"moves": state.moves, "returns": state.returns, "overflow": state.overflow}
        for name, value in added.items():
            carried[name] = jax.lax.dynamic_index_in_dim(out[name], chunk, keepdims=False) + value
        out = {
            name: jax.lax.dynamic_update_index_in_dim(out[name], value, chunk, 0)
            for name, value in carried.items()
        }
        return (state, out), decision if trace else None

    begin = (jnp.arange(width, dtype=dtype) * deployments)[None, :, None]

    def flattened(now, by, cold):
        def flat(x):
            return x.reshape(x.shape[0], -1)
        return (
            jax.tree.map(lambda a: a[..., None], now),
            jax.tree.map(flat, by),
            cold._replace(base_g=flat(cold.base_g), best=cold.best.astype(dtype) + begin),
        )

    def block(carry, x):
        state, out, shared = carry
        turn = jax.tree.map(lambda a: a[x.turn], flat)
        before = jax.tree.map(lambda a: a[jnp.maximum(x.turn - 1, 0)], flat)
        turn = dataclasses.replace(turn, valid=x.valid)
        now, by, cold = weighed(turn, before)
        tables = flattened(now, by, cold)
        sums = {
            "turns": now.served.astype(dtype)[..., None],
            "unserved": (now.valid & ~now.served).astype(dtype)[..., None],
            "mask_fallbacks": cold.mask_fallback,
            "quality_fallbacks": cold.quality_fallback,
        }
        shared = {name: shared[name].at[x.chunk].add(value) for name, value in sums.items()}
        (state, out), decision = jax.lax.scan(step, (state, out), (x.first, x.chunk, *tables))
        return (state, out, shared), decision

    shape = (layout.chunks, width)
    out = {name: jnp.zeros((*shape, settings), dtype) for name in (*SUMS, "overflow")}
    shared = {
        "turns": jnp.zeros((*shape, 1), dtype),
        "unserved": jnp.zeros((*shape, 1), dtype),
        "mask_fallbacks": jnp.zeros((*shape, group_count), dtype),
        "quality_fallbacks": jnp.zeros((*shape, group_count), dtype),
    }
    state = slots.opening(slot_count, (width, settings), dtype, uses)
    xs = dataclasses.replace(layout, place=None)
    (_, out, shared), decision = jax.lax.scan(block, (state, out, shared), xs)
    for name, value in shared.items():
        value = value.reshape(-1, value.shape[-1])
        value = value[:, group] if group is not None and value.shape[-1] > 1 else value
        out[name] = jnp.broadcast_to(value, (value.shape[0], settings))
    out["ttft_fallbacks"] = jnp.zeros_like(out["turns"])
    out = {n: v.reshape(-1, settings)[layout.place].T for n, v in out.items()}
    overflow = out.pop("overflow")
    return Totals(**out), overflow > 0, decision
