"""The slot path: blocks of steps, and in each a scan over steps of C sessions by P settings.

What a session adds up is summed within each block and then over blocks, as thousands of small terms
that are added plainly to a large sum are each rounded the same way.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxroute import policies, slots
from jaxroute.abreast import WIDTH, Layout
from jaxroute.cold import Cold, weigh
from jaxroute.distinct import amounts, served, weigh_each
from jaxroute.moments import Moment, Offers, Site, Uses, grids, look, rates
from jaxroute.policies import RouterParams
from jaxroute.sessions import Sessions
from jaxroute.simulate import Totals, admit
from jaxroute.slots import SUMS
from jaxroute.tables import Tables
from jaxroute.world import World

MOST_GROUPS = 8
"""With more groups their scores are computed step by step, as those of a block are too many."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """P settings, and what they have in common.

    Attributes:
      each: `[P, ...]` leaves.
      groups: `[G, ...]` leaves, one of each kind in the fields `cold.SHARED`.
      group: `[P]` int32, the kind of each setting; None for one kind, or one each, in order.
      masks: `[A, ...]` leaves, one of each kind of group in its masks.
      mask: `[G]` int32, that kind of each group; None for one.
    """

    each: RouterParams
    groups: RouterParams
    group: Any
    masks: RouterParams
    mask: Any


@functools.partial(jax.jit, static_argnames=("slot_count", "uses"))
def replay_slots(
    settings: Settings,
    sessions: Sessions,
    layout: Layout,
    world: World,
    *,
    slot_count: int,
    uses: Uses,
) -> tuple[Totals, jax.Array]:
    """Replays S sessions under P settings, each with K resident slots.

    Args:
      settings: with no TTFT limit.
      sessions, layout: packed, and which of them are replayed in which order.
      world: without a belief.
      slot_count, uses: K, and what the settings and the world make use of; static.

    Returns:
      Totals with `[S, P]` leaves, `[S, 1]` what is the same for every setting, and which `[S, P]`
      are not exact as they needed more slots.
    """
    everyone, sessions, world = admit(settings.each, sessions, world)
    masks, dtype = admit(settings.masks, sessions, world)[0], world.fleet.pre_j.dtype
    groups = admit(settings.groups, sessions, world)[0].replace(
        model_allowed=None, gpu_allowed=None, region_allowed=None, gate_weights=None
    )
    allowed = jax.vmap(policies.allowed, in_axes=(0, None))(masks, world.fleet)
    deployments, count = world.fleet.model.shape[0], everyone.carbon_weight.shape[0]
    group_count, width = groups.carbon_weight.shape[0], layout.turn.shape[-1]
    group, in_step = settings.group, group_count > MOST_GROUPS
    places = jnp.arange(count, dtype=dtype) if group is None else group.astype(dtype)
    flat_groups = jax.tree.map(lambda x: x[None], groups)
    masked = None
    if settings.mask is not None:
        mask = settings.mask.astype(dtype)
        masked = (mask if group is None else mask[group])[None]
    narrow, session_count = width <= WIDTH, len(layout.place)
    rows = jnp.full(layout.chunks * width, -1, jnp.int32)
    rows = rows.at[layout.place].set(jnp.arange(session_count, dtype=jnp.int32))
    rows = rows.reshape(-1, width)
    rows = jnp.where(rows < 0, rows[:, :1] if narrow else session_count, rows)
    one = world.block_tokens / world.block_tokens
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), sessions.turns)
    by, grid = rates(world), grids(world, uses)
    by_place = jax.tree.map(lambda x: jnp.tile(x, width), by)
    begin = jnp.arange(width, dtype=dtype) * deployments
    aligned = RouterParams(
        **{
            name: value.T[:, None, :] if value.ndim > 1 else value[None]
            for name, value in vars(everyone).items()
        }
    )

    def weighed(now: Moment, site: Site, offers: Offers) -> tuple[Cold, jax.Array]:
        """Scores of `[T, C]` turns, with the tables flat and deployments numbered as in them."""
        shape = now.valid.shape
        now, site, offers = jax.tree.map(
            lambda x: x.reshape(-1, *x.shape[len(shape) :]), (now, site, offers)
        )
        found = weigh(groups, settings.mask, uses, world, by, now, site, offers)
        cold, fails = jax.tree.map(lambda x: x.reshape(*shape, *x.shape[1:]), found)
        flat = {n: getattr(cold, n).reshape(shape[0], -1) for n in ("base_g", "u_g", "x_g")}
        return cold._replace(**flat, best=cold.best + begin[None, :, None]), fails

    def put(out: jax.Array, value: jax.Array, row: jax.Array) -> jax.Array:
        """`out` with the sums of C sessions in their rows.

        Where they are few one by one, those of no session first, in the row of the first.
        """
        if not narrow:
            return out.at[row].set(value, mode="drop")
        for c in reversed(range(width)):
            out = jax.lax.dynamic_update_index_in_dim(out, value[c], row[c], 0)
        return out

    def fallbacks(now: Moment, fails: jax.Array) -> jax.Array:
        return (now.served[..., None] & fails).astype(dtype)

    def step(earlier: Any, carry: Any, x: Any) -> tuple[Any, None]:
        state, sums, out = carry
        (first, last, chunk, here), (now, site, offers, cold, at, whole) = x
        added, limits, usable = {}, None, None
        if in_step:
            cold, limits, fails = weigh_each(
                flat_groups, settings.mask, uses, now, offers, at, whole, one
            )
            cold = cold._replace(best=cold.best + begin[:, None])
            added["quality_fallbacks"] = fallbacks(now, fails)
            usable = offers.usable_quality.ravel()
        site, at = jax.tree.map(lambda a: a.reshape(-1), (site, at))
        if group is not None:
            names = ("best_g", "best", "offset_g")
            cold = cold._replace(**{name: getattr(cold, name)[..., group] for name in names})
            limits = jax.tree.map(lambda a: a[..., group], limits)
        tables = Tables(
            by_place, site, cold, places[None], group_count, at, limits, usable, masked, one
        )
        opened = slots.opening(slot_count, (width, count), dtype, uses)
        state = jax.tree.map(lambda a, b: jnp.where(first, a, b), opened, state)
        now = jax.tree.map(lambda a: a[:, None], now)
        state, more = slots.step(aligned, world, uses, tables, state, now, cold)
        added |= more
        sums = {name: jnp.where(first, 0, sums[name]) + value for name, value in added.items()}

        def written(out: dict[str, jax.Array]) -> dict[str, jax.Array]:
            found = {n: value + jnp.where(here, 0, earlier[n]) for n, value in sums.items()}
            found |= {n: getattr(state, n) for n in ("moves", "returns", "overflow")}
            return {name: put(out[name], value, rows[chunk]) for name, value in found.items()}

        return (state, sums, jax.lax.cond(last, written, lambda out: out, out)), None

    def block(number: jax.Array, carry: Any) -> Any:
        state, earlier, out, shared = carry
        at = jax.tree.map(lambda a: a[number], (layout.turn, layout.valid))
        first, last, chunk = (x[number] for x in (layout.first, layout.last, layout.chunk))
        index, valid = at[0].ravel(), at[1].ravel()
        turn = dataclasses.replace(jax.tree.map(lambda a: a[index], flat), valid=valid)
        before = jax.tree.map(lambda a: a[jnp.maximum(index - 1, 0)], flat)
        seen = look(world, uses, grid, allowed, turn, before)
        now, site, offers = jax.tree.map(lambda a: a.reshape(*at[0].shape, *a.shape[1:]), seen)
        more = {
            "turns": now.served.astype(dtype)[..., None],
            "unserved": (now.valid & ~now.served).astype(dtype)[..., None],
            "mask_fallbacks": fallbacks(now, offers.mask_fails),
        }
        cold, at, whole = None, None, None
        if in_step:
            at = amounts(uses, world, by, site, offers)
            if not uses.blind:
                whole = served(at, jnp.zeros((1, 1, 1), dtype), now.prompt_tokens[..., None])
        else:
            cold, fails = weighed(now, site, offers)
            more["quality_fallbacks"] = fallbacks(now, fails)
            offers = None
        shared = {name: shared[name].at[chunk].add(value) for name, value in more.items()}
        here = jnp.cumsum(first) > 0  # whether the chunk began in this block
        steps = (first, last, chunk, here), (now, site, offers, cold, at, whole)
        fresh = state, jax.tree.map(jnp.zeros_like, earlier), out
        (state, sums, out), _ = jax.lax.scan(functools.partial(step, earlier), fresh, steps)
        earlier = jax.tree.map(lambda a, b: jnp.where(here[-1], 0, a) + b, earlier, sums)
        return state, earlier, out, shared

    def nothing(columns: int) -> jax.Array:
        return jnp.zeros((layout.chunks, width, columns), dtype)

    own = dict.fromkeys((*SUMS, "overflow"), count)
    if in_step:
        own["quality_fallbacks"] = group_count
    out = {name: jnp.zeros((session_count, size), dtype) for name, size in own.items()}
    shared = {"turns": nothing(1), "unserved": nothing(1), "mask_fallbacks": nothing(len(allowed))}
    if not in_step:
        shared["quality_fallbacks"] = nothing(group_count)
    state = slots.opening(slot_count, (width, count), dtype, uses)
    sums = {
        name: jnp.zeros((width, values.shape[1]), dtype)
        for name, values in out.items()
        if name not in ("moves", "returns", "overflow")
    }
    *_, out, shared = jax.lax.fori_loop(0, layout.blocks, block, (state, sums, out, shared))

    def ordered(name: str, values: jax.Array) -> jax.Array:
        if name in shared:
            values = values.reshape(-1, values.shape[-1])[layout.place]
        if name == "mask_fallbacks" and settings.mask is not None:
            values = values[:, settings.mask]
        if name in ("mask_fallbacks", "quality_fallbacks") and values.shape[1] > 1:
            values = values if group is None else values[:, group]
        return values

    found = {name: ordered(name, values) for name, values in (out | shared).items()}
    found["ttft_fallbacks"] = jnp.zeros_like(found["turns"])
    overflow = found.pop("overflow")
    return Totals(**found), overflow > 0
