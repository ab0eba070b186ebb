"""Load as a mean field: sessions meet each other only through what they make of the deployments.

A replay under given conditions tells the load of every deployment and quarter of an hour
(`jaxroute.loads`); load tells conditions: waits, how full the decode batches are
(`jaxroute.queueing`), and how long caches live (`jaxroute.lifetime`). Conditions and load that
agree are a fixed point, found by damped iteration, every setting at once in one compiled loop.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxroute import sharing, simulate
from jaxroute.lifetime import BIN_S, lifetime_s
from jaxroute.loads import CELLS, Loads, busy_s, nothing, served
from jaxroute.loads import loads as loads_of
from jaxroute.numerics import where_tree
from jaxroute.policies import RouterParams
from jaxroute.provision import Capacity
from jaxroute.queueing import MOST_WAIT_S, TINY, Arrivals, Replica, backlog_s, steady
from jaxroute.sessions import Sessions
from jaxroute.world import Array, Congestion, World, cast

DAMPING, MOST_ROUNDS, TOLERANCE = 0.7, 24, 0.01
"""Of `settle`: what does not settle in so many rounds does not in forty either, as tried."""

STALLED, LEAST_DAMPING = 0.8, 0.05
"""Where a change is more than this share of the last, damping is halved, down to the least."""


class Conditions(NamedTuple):
    """What a load makes of the fleet, `[TIME_BINS, D]` each.

    Attributes:
      replica: each deployment's replicas, in the steady state of each time bin.
      ttl_s: how long a cache lives.
    """

    replica: Replica
    ttl_s: Array


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Settled:
    """A load and its conditions, and how they were found; `[N, P, ...]` leaves of `settle`.

    Attributes:
      loads: what the conditions are of.
      conditions: of these loads.
      response, before: loads of the last replay, and of the last but one: where they go on
        differing, the two states that the fleet swings between.
      change: `[]`, by how much the last replay's loads differed from `loads` (`distance`).
      swing: `[]`, and by how much from those of the replay before.
      rounds: `[]` int32, replays until that was less than the tolerance, or all.
    """

    loads: Loads
    conditions: Conditions
    response: Loads
    before: Loads
    change: Array
    swing: Array
    rounds: Array


def conditions(loads: Loads, world: World, capacity: Capacity, copies: Array) -> Conditions:
    """What a load makes of the fleet.

    Args:
      loads: of a sample of sessions.
      world: its fleet.
      capacity: what there is of it.
      copies: `[]`, sessions of a day that each of the sample stands for.
    """
    there = jax.vmap(functools.partial(_at_bin, world, capacity, copies))
    replica, free_tokens = there({name: getattr(loads, name) for name in CELLS})
    wait_s = replica.wait_s + backlog_s(replica.utilisation, BIN_S)
    replica = replica._replace(wait_s=jnp.minimum(wait_s, MOST_WAIT_S))
    left_per_s = copies * loads.left / BIN_S
    again = loads.again / jnp.maximum(loads.left.sum(0), TINY)[None]
    return Conditions(replica, lifetime_s(left_per_s, again, free_tokens))


def _at_bin(
    world: World, capacity: Capacity, copies: Array, cells: dict[str, jax.Array]
) -> tuple[Replica, jax.Array]:
    """The replicas of a time bin, and the tokens of caches that they have room for, `[D]`."""
    turns = jnp.maximum(cells["turns"], TINY)
    generated = jnp.maximum(cells["generated"], TINY)
    arrivals = Arrivals(
        per_s=copies * cells["turns"] / BIN_S / capacity.replicas,
        prefill_s=cells["prefill_s"] / turns,
        prefill_s2=cells["prefill_s2"] / turns,
        generated=cells["generated"] / turns,
        generated2=cells["generated2"] / turns,
        context=cells["attended"] / generated,
    )
    held = (cells["attended"] + cells["generated2"] / 2) / generated  # that a running turn reserves
    slots = jnp.clip(capacity.kv_capacity_tokens / jnp.maximum(held, 1), 1, capacity.slots)
    a_token_s = world.fleet.dec_s_ctx / world.fleet.batch
    replica = steady(arrivals, slots, capacity.dec_j, capacity.dec_s, a_token_s)
    running_tokens = jnp.minimum(replica.running, slots) * held
    free = jnp.maximum(capacity.kv_capacity_tokens - running_tokens, 0)
    return replica, capacity.replicas * free


def under(world: World, given: Conditions, *, by_batch: bool = True) -> World:
    """A world under conditions: their waits and cache lifetimes, and decoding at their batches.

    Routers see the waits of the time bin before, the last of the day before the first.

    Args:
      world: any.
      given: `[TIME_BINS, D]` leaves.
      by_batch: without it tokens cost what the profiles say, at their batches.
    """
    replica, shape = given.replica, given.ttl_s.shape
    own = replica if by_batch else world.fleet
    decoding = {name: getattr(own, name) for name in ("dec_j", "dec_s", "dec_s_ctx")}
    decoding["batch"] = replica.sharers if by_batch else world.fleet.batch
    congestion = Congestion(
        **{name: jnp.broadcast_to(x, shape) for name, x in decoding.items()},
        wait_s=replica.wait_s,
        seen_wait_s=jnp.roll(replica.wait_s, 1, axis=0),
        ttl_s=given.ttl_s,
    )
    return world.replace(congestion=congestion)


def distance(one: Loads, other: Loads, world: World) -> jax.Array:
    """By how much a load differs from another, as a share of that: busy replica seconds.

    Those of each time bin and deployment that one has and the other has not, over all it has.
    """
    a, b = (busy_s(each, world.fleet) for each in (one, other))
    return jnp.abs(a - b).sum() / jnp.maximum(b.sum(), TINY)


class _Iterate(NamedTuple):
    loads: Loads
    response: Loads
    before: Loads
    change: jax.Array
    part: jax.Array
    rounds: jax.Array


def every_one(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of every setting at every level of traffic, of `[N, P, ...]` leaves."""
    return jax.vmap(jax.vmap(function))


def _towards(part: jax.Array, old: Loads, new: Loads) -> Loads:
    return jax.tree.map(lambda x, y: x + part * (y - x), old, new)


@functools.partial(jax.jit, static_argnames="by_batch")
def settle(
    params: RouterParams,
    pieces: Sessions,
    world: World,
    capacity: Capacity,
    copies: Array,
    start: Loads | None = None,
    *,
    by_batch: bool = True,
    damping: float = DAMPING,
    most_rounds: int = MOST_ROUNDS,
    tolerance: float = TOLERANCE,
) -> Settled:
    """Loads and conditions that agree, of P settings at N levels of traffic, in one compiled loop.

    A round replays everything under the conditions of the loads so far, and moves these by a share
    `damping` towards what the replay says; in the first round all the way. It ends when every
    setting's replay differs by less than `tolerance` from the loads its conditions are of.

    Args:
      params: `[P, ...]` leaves.
      pieces: a trace in pieces of one shape, `[pieces, ...]` leaves (`gathered`).
      world: its fleet and grids; leaves with a dimension more are one of each setting.
      capacity: of its fleet.
      copies: `[N]`, sessions of a day that each of the sample stands for.
      start: loads to begin with, of every setting; by default none.
      by_batch: as for `under`.
      damping: in (0, 1]; 1 is no damping.
      most_rounds: after these a setting is given up.
      tolerance: as above.

    Returns:
      `[N, P, ...]` leaves.
    """
    dtype = world.fleet.pre_j.dtype
    given = cast((pieces, world, capacity, copies), dtype)
    pieces, world, capacity, copies = jax.tree.map(jnp.asarray, given)
    begin = nothing(world) if start is None else start
    levels, settings = copies.shape[0], params.carbon_weight.shape[0]

    leaves, structure = jax.tree.flatten(world)

    def answer(setting: RouterParams, own: list[jax.Array], loads: Loads, many: jax.Array) -> Loads:
        """What a replay under the conditions of a load says of the load."""
        alone = jax.tree.unflatten(structure, own)
        there = under(alone, conditions(loads, alone, capacity, many), by_batch=by_batch)

        def piece(sums: Loads, sessions: Sessions) -> tuple[Loads, None]:
            _, kept, _ = simulate.replay(setting, sessions, there, keep=served)
            return jax.tree.map(jnp.add, sums, loads_of(sessions, kept, alone)), None

        return jax.lax.scan(piece, nothing(alone), pieces)[0]

    of_settings = jax.vmap(answer, in_axes=(0, sharing.axes(world), 0, None))
    every = jax.vmap(of_settings, in_axes=(None, None, 0, 0))
    apart = every_one(functools.partial(distance, world=world))
    where = every_one(where_tree)

    def settled(at: _Iterate) -> jax.Array:
        return at.change < tolerance

    def round_(at: _Iterate) -> _Iterate:
        response = every(params, leaves, at.loads, copies)
        change = apart(at.loads, response)
        still = ~settled(at)
        slower = at.part * jnp.where((change > STALLED * at.change) & (damping < 1), 0.5, 1)
        part = jnp.where(at.rounds == 0, 1, jnp.maximum(slower, LEAST_DAMPING)).astype(dtype)
        goes_on = still & (change >= tolerance)

        moved = every_one(_towards)(part, at.loads, response)
        return _Iterate(
            loads=where(goes_on, moved, at.loads),
            response=where(still, response, at.response),
            before=where(still, at.response, at.before),
            change=jnp.where(still, change, at.change),
            part=jnp.where(at.rounds == 0, jnp.asarray(damping, dtype), part),
            rounds=at.rounds + still.astype(jnp.int32),
        )

    def unsettled(at: _Iterate) -> jax.Array:
        return (~settled(at)).any() & (at.rounds.max() < most_rounds)

    empty = jax.tree.map(lambda x: jnp.broadcast_to(x, (levels, settings, *x.shape)), begin)
    far = jnp.full((levels, settings), jnp.inf, dtype)
    at = _Iterate(
        empty, empty, empty, far, jnp.ones_like(far), jnp.zeros((levels, settings), jnp.int32)
    )
    at = jax.lax.while_loop(unsettled, round_, at)
    many = jnp.broadcast_to(copies[:, None], far.shape)
    given = every_one(lambda loads, many: conditions(loads, world, capacity, many))(at.loads, many)
    return Settled(
        loads=at.loads,
        conditions=given,
        response=at.response,
        before=at.before,
        change=at.change,
        swing=apart(at.response, at.before),
        rounds=at.rounds,
    )
