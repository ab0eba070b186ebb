"""The replay: one turn, a scan over turns, and `evaluate`. The only place that jits it."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import chex
import jax
import jax.numpy as jnp

from jaxroute import footprint, policies
from jaxroute.latency import BINS, Latency, tallied
from jaxroute.numerics import compensated, where_tree
from jaxroute.observe import State, Truth, observe, opening, settled, site_served
from jaxroute.policies import Observation, Policy, RouterParams
from jaxroute.sessions import Sessions, Turn
from jaxroute.world import Array, Congestion, Retention, World, cast


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class Totals:
    """Sums over the turns of a session, `[S]` each; seconds and quality over its served turns.

    Attributes:
      turns, unserved: turns served, and turns whose context no deployment could hold.
      carbon_prefill_g, carbon_decode_g: operational, the host's energy of their seconds included.
      carbon_embodied_g: of the seconds of prefill and, shared by the batch, of decode.
      carbon_rebuild_g: the *part* of the three above spent on tokens that would have been cached
        had every earlier turn been served at the same deployment.
      energy_kwh: GPU and host, times PUE.
      water_l: used on site, and in generation where the world knows its mix.
      cost_usd: of the energy; NaN if a turn was served where no price is known.
      ttft_s, e2e_s, quality: sums; divide by `turns` for means.
      moves, returns: served elsewhere than the last turn; of these, back where it was before.
      rebuilt_tokens: tokens prefilled that `carbon_rebuild_g` counts.
      mask_fallbacks, quality_fallbacks, ttft_fallbacks: turns on which a filter had to give way.
    """

    turns: Array
    unserved: Array
    carbon_prefill_g: Array
    carbon_rebuild_g: Array
    carbon_decode_g: Array
    carbon_embodied_g: Array
    energy_kwh: Array
    water_l: Array
    cost_usd: Array
    ttft_s: Array
    e2e_s: Array
    quality: Array
    moves: Array
    returns: Array
    rebuilt_tokens: Array
    mask_fallbacks: Array
    quality_fallbacks: Array
    ttft_fallbacks: Array

    @property
    def carbon_g(self) -> Array:
        """The whole bill, gCO2e: prefill + decode + embodied."""
        return self.carbon_prefill_g + self.carbon_decode_g + self.carbon_embodied_g


FIELDS = tuple(field.name for field in dataclasses.fields(Totals))


class Trace(NamedTuple):
    """What happened turn by turn, `[R, T]` as the sessions are packed.

    Attributes:
      decision: int32, deployment; -1 for an unserved turn and on padding.
      cached_tokens: tokens of the prompt found in the cache there.
      carbon_g: the turn's bill.
    """

    decision: Array
    cached_tokens: Array
    carbon_g: Array


class Record(NamedTuple):
    """All there is to know of one turn: `[]` or `[D]`; `totals` are its part of the session's."""

    turn: Turn
    observation: Observation
    truth: Truth
    totals: Totals
    trace: Trace


Keep = Callable[[RouterParams, Record], Any]
"""What of a turn is to be returned."""


def _is_feasible(obs: Observation, choice: jax.Array) -> jax.Array:
    """Whether a policy's choice is one of the feasible: NaN bills tell if it is not."""
    index = jnp.clip(choice, 0, obs.feasible.shape[0] - 1).astype(jnp.int32)
    return (index == choice) & obs.feasible[index]


def step(
    params: RouterParams,
    policy: Policy,
    world: World,
    allowed: jax.Array,
    state: State,
    turn: Turn,
) -> tuple[State, Record]:
    """One turn of one session: observe, decide, bill, update. Padding adds nothing.

    Returns the state it leaves and, only to be reported, the turn's record.
    """
    dtype, deployments = world.fleet.pre_j.dtype, allowed.shape[0]
    turn = settled(turn)
    state = where_tree(turn.first, opening(params, policy, world), state)
    obs, truth = observe(params, world, allowed, state, turn)
    choice, policy_state = policy.decide(params, state.policy, obs)

    longest = world.fleet.max_context_tokens.max()
    served = turn.valid & (obs.prompt_tokens + obs.predicted_output_tokens <= longest)
    d = jnp.where(served, choice, 0).astype(jnp.int32)
    site, cached = site_served(world, truth, turn, d), truth.cached_tokens[d]
    cost = footprint.bill(site, cached, truth.full_tokens, obs.prompt_tokens, turn.output_tokens)
    if policy is not policies.router:
        cost = jax.tree.map(lambda x: jnp.where(_is_feasible(obs, choice), x, jnp.nan), cost)
    cost = jax.tree.map(lambda x: jnp.where(served, x, 0), cost)

    used_s = cost.e2e_s
    if world.congestion is not None:
        used_s = used_s - site.wait_s  # the next turn waits as well before its cache is looked for
    context = obs.prompt_tokens + jnp.maximum(turn.output_tokens - 1, 0)
    serves = served & (jnp.arange(deployments, dtype=jnp.int32) == d)
    kept = jnp.minimum(truth.alive_tokens, turn.prefix_tokens)
    moved = served & (state.last >= 0) & (d != state.last)
    returned = moved & (d == state.before)
    left = State(
        resident_tokens=jnp.where(serves, context, kept),
        alive_tokens=None if world.belief is None else truth.alive_tokens,
        last_used_s=jnp.where(serves, used_s, state.last_used_s - turn.gap_s),
        last=jnp.where(served, d, state.last),
        before=jnp.where(moved, state.last, state.before),
        context_tokens=context,
        moves=state.moves + moved.astype(dtype),
        returns=state.returns + returned.astype(dtype),
        policy=where_tree(served, policy_state, state.policy),
    )
    totals = Totals(
        turns=served.astype(dtype),
        unserved=(turn.valid & ~served).astype(dtype),
        quality=jnp.where(served, site.quality, 0),
        moves=moved.astype(dtype),
        returns=returned.astype(dtype),
        mask_fallbacks=(served & truth.mask_fallback).astype(dtype),
        quality_fallbacks=(served & truth.quality_fallback).astype(dtype),
        ttft_fallbacks=(served & truth.ttft_fallback).astype(dtype),
        **cost._asdict(),
    )
    trace = Trace(
        decision=jnp.where(served, d, -1),
        cached_tokens=jnp.where(served, cached, 0),
        carbon_g=totals.carbon_g,
    )
    return left, Record(turn, obs, truth, totals, trace)


def admit(
    params: RouterParams, sessions: Sessions, world: World
) -> tuple[RouterParams, Sessions, World]:
    """The three with every float in the world's dtype, as JAX arrays.

    Refuses sessions that were packed for another fleet, and tables that do not fit together.
    """
    turns, fleet = sessions.turns, jax.tree.leaves(world.fleet)
    deployments, regions = world.fleet.model.shape[0], world.pue.shape[0]
    chex.assert_equal_shape(fleet)
    chex.assert_rank(fleet, 1)
    by_region = [world.wue_l_per_kwh, world.ewif_l_per_kwh, world.price_usd_per_kwh]
    chex.assert_shape([world.pue, *by_region], (regions,))
    chex.assert_shape([world.intensity_g_per_kwh, world.rtt_s], (None, regions))
    flat = [leaf for leaf in jax.tree.leaves(turns) if leaf.ndim < 3]
    chex.assert_rank(flat, 2)
    chex.assert_equal_shape(flat)
    chex.assert_shape(turns.noise, (*turns.valid.shape, deployments))
    chex.assert_shape(turns.quality, (*turns.valid.shape, None))
    if world.belief is not None:
        chex.assert_equal_shape([*fleet, *jax.tree.leaves(world.belief.fleet)])
        chex.assert_equal_shape([world.intensity_g_per_kwh, world.belief.intensity_g_per_kwh])
    if turns.report_draw is not None:
        chex.assert_equal_shape([turns.noise, turns.report_draw])
    chex.assert_shape(jax.tree.leaves(world.congestion), (None, deployments))
    return jax.tree.map(jnp.asarray, cast((params, sessions, world), world.fleet.pre_j.dtype))


def replay(
    params: RouterParams,
    sessions: Sessions,
    world: World,
    *,
    policy: Policy | None = None,
    keep: Keep | None = None,
    latency: bool = False,
) -> tuple[Totals, Any, Latency | None]:
    """The scan behind `evaluate`, unjitted: totals `[S]`, what is kept of turns `[R, T]`, times."""
    policy = params.policy if policy is None else policy
    params, sessions, world = admit(params, sessions, world)
    if world.belief is not None and sessions.turns.report_draw is None:
        raise ValueError("a world with a belief needs sessions packed with report_draw")
    dtype, rows = world.fleet.pre_j.dtype, sessions.turns.valid.shape[0]
    allowed = policies.allowed(params, world.fleet)

    @jax.vmap
    def one_turn(state: State, turn: Turn) -> tuple[State, Totals, Any]:
        left, record = step(params, policy, world, allowed, state, turn)
        return left, record.totals, keep(params, record) if keep else record.trace

    opened = opening(params, policy, world)
    states = jax.tree.map(lambda x: jnp.broadcast_to(x, (rows, *x.shape)), opened)

    def body(carry: Any, turn: Turn) -> Any:
        states, running, sums, counts = carry
        states, totals, kept = one_turn(states, turn)
        added = jnp.stack(jax.tree.leaves(totals), axis=-1)
        total, excess = (jnp.where(turn.first[:, None], 0, x) for x in running)
        running = compensated(total, excess, added)
        if latency:
            counts = tallied(counts, totals.turns > 0, totals.ttft_s, totals.e2e_s)
        return (states, running, sums.at[turn.session].set(running[0], mode="drop"), counts), kept

    sums = jnp.zeros((sessions.count, len(FIELDS)), dtype)
    running = (jnp.zeros((rows, len(FIELDS)), dtype),) * 2
    by_turn = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), sessions.turns)
    counts = jnp.zeros(2 * BINS, dtype) if latency else None
    begin: Any = states, running, sums, counts
    (*_, sums, counts), kept = jax.lax.scan(body, begin, by_turn)
    totals = Totals(**{name: sums[:, i] for i, name in enumerate(FIELDS)})
    kept = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), kept)
    if counts is None:
        return totals, kept, None
    ttft, e2e = jnp.split(counts, 2)
    return totals, kept, Latency(ttft=ttft, e2e=e2e)


@functools.partial(jax.jit, static_argnames=("policy", "trace", "latency"))
def evaluate(
    params: RouterParams,
    sessions: Sessions,
    world: World,
    *,
    policy: Policy | None = None,
    trace: bool | Keep = False,
    latency: bool = False,
) -> Totals | tuple[Any, ...]:
    """Replays every session under one policy setting.

    Composes with the caller's `jit`, `vmap` and `grad`, over `params` and over `world`: every
    number is traced, so a changed one never recompiles, and the scan has a static length.
    Differentiable in every float; gradients hold the decisions fixed.

    Args:
      params: the setting; `RouterParams`, or a dataclass derived from it for a policy of one's own.
      sessions: S sessions, packed (`Study.sessions`).
      world: the fleet and its grids; its floating dtype is that of the whole replay.
      policy: a pair of functions; static; by default that of the parameters' class.
      trace: whether to return a `Trace` as well, or a function of the parameters and a turn's
        `Record` that makes something else of the turn to be returned; static.
      latency: whether to return a `Latency` as well, the turns counted by how long they took
        (`jaxroute.latency.quantile`, `share_above`), which takes no memory by turn; static.

    Returns:
      Sums of each session, `[S]` leaves, with `trace` also its turns, `[R, T, ...]` leaves, and
      with `latency` last the histograms of all of them, `[BINS]` leaves.

    >>> import jaxroute as jr
    >>> study = jr.load_study()
    >>> totals = jr.evaluate(jr.presets["carbon_router"], study.sessions, study.world)
    >>> totals.carbon_g.shape
    (7349,)
    """
    keep = trace if callable(trace) else None
    replayed = replay(params, sessions, world, policy=policy, keep=keep, latency=latency)
    wanted = (True, bool(trace), latency)
    found = tuple(part for part, asked in zip(replayed, wanted, strict=True) if asked)
    return found if len(found) > 1 else found[0]


@functools.partial(jax.jit, static_argnames=("policy", "latency"))
def evaluate_grid(
    params: RouterParams,
    sessions: Sessions,
    world: World,
    retentions: Retention,
    *,
    congestion: Congestion | None = None,
    policy: Policy | None = None,
    latency: bool = False,
) -> tuple[Any, ...]:
    """Replays every session under every setting and retention, in one compiled call.

    Args:
      params: P settings, `[P, ...]` leaves (`jaxroute.stack`).
      sessions, world, policy, latency: as for `evaluate`.
      retentions: N retentions, `[N, ...]` leaves, in place of the world's.
      congestion: what load makes of the fleet under each, `[N, P, ...]` leaves, likewise.

    Returns:
      Totals with `[N, P, S]` leaves, a trace with `[N, P, R, T]` leaves, and with `latency` a
      `Latency` with `[N, P, BINS]` leaves.
    """

    def one(retention: Retention, setting: RouterParams, crowd: Any) -> tuple[Any, ...]:
        retained = world.replace(retention=retention, congestion=crowd)
        found = replay(setting, sessions, retained, policy=policy, latency=latency)
        return found if latency else found[:2]

    over_params = jax.vmap(one, in_axes=(None, 0, 0))
    return jax.vmap(over_params, in_axes=(0, None, 0))(retentions, params, congestion)
