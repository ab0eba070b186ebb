"""Many settings at once: the slot path where it is exact, the dense one elsewhere."""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxroute import policies, slots
from jaxroute.cold import SHARED, Uses, grids, look, rates, weigh
from jaxroute.policies import RouterParams
from jaxroute.sessions import Sessions, Turn
from jaxroute.simulate import FIELDS, Totals, admit
from jaxroute.slots import SUMS, Tables
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


def uses_of(params: RouterParams, world: World) -> Uses:
    def priced(name: str) -> bool:
        return bool(np.any(np.asarray(getattr(params, name)) != 0))

    retention = world.retention
    return Uses(
        ageing=bool(np.isfinite(retention.ttl_s).any() or np.isfinite(retention.decay_s).any()),
        features=priced("gate_weights"),
        latency=priced("latency_price_g_per_s"),
        quality=priced("quality_price_g"),
        intensity=priced("intensity_price"),
        rtt=priced("rtt_price_g_per_s"),
        size=priced("size_price_g_per_b"),
        noise=priced("noise_price_g"),
        blind=bool(np.any(np.asarray(params.cache_knowledge) != 1)),
    )


MOST_GROUPS = 8


@functools.partial(jax.jit, static_argnames=("slot_count", "uses", "trace"))
def replay_slots(
    params: RouterParams,
    groups: RouterParams,
    group: jax.Array | None,
    masks: RouterParams,
    mask: jax.Array | None,
    sessions: Sessions,
    layout: Layout,
    world: World,
    *,
    slot_count: int,
    uses: Uses,
    trace: bool = False,
):
    params, sessions, world = admit(params, sessions, world)
    groups, masks = admit((groups, masks), sessions, world)[0]
    allowed = jax.vmap(policies.allowed, in_axes=(0, None))(masks, world.fleet)
    dtype, deployments = world.fleet.pre_j.dtype, world.fleet.model.shape[0]
    settings, group_count = params.carbon_weight.shape[0], groups.carbon_weight.shape[0]
    width = layout.turn.shape[-1]
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), sessions.turns)
    wide = RouterParams(
        **{
            name: value.T[:, None, :] if value.ndim > 1 else value[None]
            for name, value in vars(params).items()
        }
    )
    groups = groups.replace(model_allowed=None, gpu_allowed=None, region_allowed=None)
    groups = groups.replace(gate_weights=None)
    one = world.block_tokens / world.block_tokens
    places = jnp.arange(settings, dtype=dtype) if group is None else group.astype(dtype)
    by, grid = rates(world), grids(world, uses)
    tiled = jax.tree.map(lambda x: jnp.tile(x, width), by)
    begin = (jnp.arange(width, dtype=dtype) * deployments)[:, None]
    in_step = group_count > MOST_GROUPS

    def weighed(now, site, offers):
        """`[N, C]` turns to tables by step."""
        shape = now.valid.shape
        one_row = jax.tree.map(lambda x: x.reshape(-1, *x.shape[len(shape):]), (now, site, offers))
        cold, fails = weigh(groups, mask, uses, world, by, *one_row)
        cold, fails = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), (cold, fails))
        base_g = cold.base_g.reshape(*shape[:-1], -1)
        return cold._replace(base_g=base_g, best=cold.best + begin), fails

    def step(carry, x):
        state, out = carry
        first, chunk, now, site, offers, cold = x
        if in_step:
            cold, fails = weighed(now, site, offers)
            quality = (now.served[:, None] & fails).astype(dtype)
        tables_site = jax.tree.map(lambda a: a.reshape(-1), site)
        tables = Tables(tiled, tables_site, cold.base_g, places[None], group_count, one)
        if group is not None:
            cold = cold._replace(
                **{n: getattr(cold, n)[..., group] for n in ("best_g", "best", "offset_g")}
            )
        opened = slots.opening(slot_count, (width, settings), dtype, uses)
        state = jax.tree.map(lambda a, b: jnp.where(first, a, b), opened, state)
        now = jax.tree.map(lambda a: a[:, None], now)
        state, added, decision = slots.step(wide, world, uses, tables, state, now, cold)
        carried = {"moves": state.moves, "returns": state.returns, "overflow": state.overflow}
        if in_step:
            added["quality_fallbacks"] = quality
        for name, value in added.items():
            carried[name] = jax.lax.dynamic_index_in_dim(out[name], chunk, keepdims=False) + value
        out = {
            name: jax.lax.dynamic_update_index_in_dim(out[name], value, chunk, 0)
            for name, value in carried.items()
        }
        return (state, out), decision if trace else None

    def block(carry, x):
        state, out, shared = carry
        at = x.turn.ravel()
        turn = jax.tree.map(lambda a: a[at], flat)
        before = jax.tree.map(lambda a: a[jnp.maximum(at - 1, 0)], flat)
        turn = dataclasses.replace(turn, valid=x.valid.ravel())
        seen = look(world, uses, grid, allowed, turn, before)
        now, site, offers = jax.tree.map(lambda a: a.reshape(*x.turn.shape, *a.shape[1:]), seen)
        sums = {
            "turns": now.served.astype(dtype)[..., None],
            "unserved": (now.valid & ~now.served).astype(dtype)[..., None],
            "mask_fallbacks": (now.served[..., None] & offers.mask_fails).astype(dtype),
        }
        cold = None
        if not in_step:
            cold, fails = weighed(now, site, offers)
            sums["quality_fallbacks"] = (now.served[..., None] & fails).astype(dtype)
            offers = None
        shared = {name: shared[name].at[x.chunk].add(value) for name, value in sums.items()}
        (state, out), decision = jax.lax.scan(
            step, (state, out), (x.first, x.chunk, now, site, offers, cold)
        )
        return (state, out, shared), decision

    shape = (layout.chunks, width)
    out = {name: jnp.zeros((*shape, settings), dtype) for name in (*SUMS, "overflow")}
    shared = {
        "turns": jnp.zeros((*shape, 1), dtype),
        "unserved": jnp.zeros((*shape, 1), dtype),
        "mask_fallbacks": jnp.zeros((*shape, allowed.shape[0]), dtype),
    }
    (out if in_step else shared)["quality_fallbacks"] = jnp.zeros((*shape, group_count), dtype)
    state = slots.opening(slot_count, (width, settings), dtype, uses)
    xs = dataclasses.replace(layout, place=None)
    (_, out, shared), decision = jax.lax.scan(block, (state, out, shared), xs)

    def ordered(values):
        return values.reshape(-1, values.shape[-1])[layout.place]

    def widened(name, values):
        values = ordered(values)
        if name == "mask_fallbacks" and mask is not None:
            values = values[:, mask]
        if name in ("mask_fallbacks", "quality_fallbacks") and group is not None:
            values = values[:, group] if values.shape[1] > 1 else values
        return jnp.broadcast_to(values, (values.shape[0], settings))

    found = {name: widened(name, values) for name, values in (out | shared).items()}
    found["ttft_fallbacks"] = jnp.zeros_like(found["turns"])
    overflow = found.pop("overflow")
    return Totals(**found), overflow > 0, decision


def distinct(params: RouterParams, names: tuple[str, ...]) -> tuple[np.ndarray, np.ndarray | None]:
    """The first of each kind of setting, and the kind of each; None for one kind, or one each."""
    count = len(np.asarray(params.carbon_weight))
    rows = np.concatenate(
        [np.asarray(getattr(params, name)).reshape(count, -1) for name in names], axis=1
    )
    _, first, kind = np.unique(rows, axis=0, return_index=True, return_inverse=True)
    if len(first) == count:
        return np.arange(count), None
    return first, None if len(first) == 1 else kind.astype(np.int32)


def prepared(params: RouterParams, sessions: Sessions, world: World, width: int = 4, steps: int = BLOCK_STEPS):
    first, group = distinct(params, SHARED)
    groups = jax.tree.map(lambda x: np.asarray(x)[first], params)
    kinds, mask = distinct(groups, SHARED[-3:])
    if len(kinds) == len(first) and len(kinds) > 1:
        mask = np.arange(len(kinds), dtype=np.int32)
    masks = jax.tree.map(lambda x: np.asarray(x)[kinds], groups)
    return params, groups, group, masks, mask, sessions, lay_out(sessions, width, steps), world
