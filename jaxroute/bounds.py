"""What a session's carbon is held against: a lower bound, and the best plan in hindsight.

Both know every turn beforehand, true outputs included, and choose among the deployments that the
filters on the prompt alone leave: context limit, masks and quality. A TTFT limit depends on the
caches and is no part of either.
"""

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxroute import footprint, policies, residency, simulate
from jaxroute.numerics import first_min
from jaxroute.observe import settled, site_at
from jaxroute.policies import RouterParams, Site
from jaxroute.sessions import Sessions, Turn
from jaxroute.world import Array, Retention, World

FILTERS = (
    *("quality_floor", "quality_slack"),
    *("model_allowed", "gpu_allowed", "region_allowed"),
)
"""The fields of `RouterParams` that say where a turn may be served, whatever is cached."""


def drops_only(retention: Retention) -> bool:
    """Whether caches are dropped on leaving and never age: where `hindsight_plan` is an optimum."""
    ages = np.isfinite(retention.ttl_s).any() or np.isfinite(retention.decay_s).any()
    return bool(retention.drop_on_leave > 0) and not ages


class Plan(NamedTuple):
    """Where to serve every turn, and what that costs where leaving drops the cache.

    Attributes:
      decision: `[R, T]` int32, as the sessions are packed; -1 for an unserved turn and on padding.
      carbon_g: `[S]`, the plan's value.
    """

    decision: Array
    carbon_g: Array


@jax.jit
def free_context_bound(params: RouterParams, sessions: Sessions, world: World) -> jax.Array:
    """Carbon of each session were its context cached everywhere: a bound under any retention.

    `LB0 = sum_t min_d C_t(d, c = full)` over the deployments d that the filters leave: no cache
    holds more than `full` tokens of a prompt, and no cached token makes a turn dearer.

    Args:
      params: the filters, `FILTERS`; nothing else of it is read.
      sessions: S sessions, packed.
      world: the fleet and its grids; its retention is not read.

    Returns:
      `[S]`, gCO2e. No policy with these filters emits less, whatever it knows.

    >>> import jaxroute as jr
    >>> study, router = jr.load_study(), jr.presets["carbon_router"]
    >>> bound_g = jr.free_context_bound(router, study.sessions, study.world)
    >>> carbon_g = jr.evaluate(router, study.sessions, study.world).carbon_g
    >>> bool((bound_g <= 1.00001 * carbon_g).all())
    True
    """
    params, sessions, world = simulate.admit(params, sessions, world)
    allowed = policies.allowed(params, world.fleet)

    def of_turn(context_tokens: jax.Array, turn: Turn) -> tuple[jax.Array, jax.Array]:
        turn, site, eligible = options(params, world, allowed, turn)
        context_tokens = jnp.where(turn.first, 0, context_tokens)
        carbon_g = serving_g(world, site, turn, context_tokens)
        least_g = jnp.where(eligible, carbon_g, jnp.inf).min()
        return context_left(turn), jnp.where(eligible.any(), least_g, 0)

    def of_row(turns: Turn) -> jax.Array:
        return jax.lax.scan(of_turn, jnp.zeros((), world.pue.dtype), turns)[1]

    return _by_session(sessions, jax.vmap(of_row)(sessions.turns))


class _Choices(NamedTuple):
    """What the plan's way back needs of a turn: `[]` each, but for `stays` `[D]`.

    `best` is the cheapest deployment to have been served at after the turn, `source` before it;
    `stays` says of each deployment whether, served there, the session was there already.
    """

    served: Array
    best: Array
    source: Array
    stays: Array
    least_g: Array


@jax.jit
def hindsight_plan(params: RouterParams, sessions: Sessions, world: World) -> Plan:
    """The plan of least carbon where leaving a deployment drops the cache and nothing else does.

    Viterbi over the deployment that served last, exact for `drop_on_leave` with infinite `ttl_s`
    and `decay_s`. With `V_t(d)` the least carbon up to turn t if d serves it, and `V_t` left as it
    is where no deployment can hold the prompt:

    `V_t(d) = min(V_(t-1)(d) + C_t(d, c = warm), min_d' V_(t-1)(d') + C_t(d, c = 0))`

    for the d that the filters leave: only whether a session stays or comes matters, so a turn takes
    O(D). `warm = blocks(min(r, k, L - 1))` is the same for every d: r, the tokens resident at the
    last deployment, is the previous turn's `L + max(o - 1, 0)` if that turn could be served at all,
    else `min(r, k)` of it.

    Under another retention it is a feasible plan and not an optimum: `planned` tells its cost.

    Args:
      params: the filters, `FILTERS`; nothing else of it is read.
      sessions: S sessions, packed.
      world: the fleet and its grids; its retention is not read.

    Returns:
      The plan and its value.

    >>> import jaxroute as jr
    >>> study, router = jr.load_study(), jr.presets["carbon_router"]
    >>> world = study.world.replace(retention=study.retentions["drop"])
    >>> plan = jr.hindsight_plan(router, study.sessions, world)
    >>> carbon_g = jr.evaluate(router, study.sessions, world).carbon_g
    >>> bool((plan.carbon_g <= 1.00001 * carbon_g).all())
    True
    """
    params, sessions, world = simulate.admit(params, sessions, world)
    allowed = policies.allowed(params, world.fleet)
    plan, least_g = jax.vmap(lambda turns: _plan_row(params, world, allowed, turns))(sessions.turns)
    return Plan(decision=plan, carbon_g=_by_session(sessions, least_g))


def _plan_row(
    params: RouterParams, world: World, allowed: jax.Array, turns: Turn
) -> tuple[jax.Array, jax.Array]:
    """The plan of a row of sessions, and what each turn adds to its value: `[T]` each."""

    def forward(carry, turn: Turn):
        resident_tokens, excess_g, source = carry
        turn, site, eligible = options(params, world, allowed, turn)
        served = eligible.any()
        resident_tokens = jnp.where(turn.first, 0, resident_tokens)
        excess_g = jnp.where(turn.first, 0, excess_g)

        stay_g = excess_g + serving_g(world, site, turn, resident_tokens)
        come_g = serving_g(world, site, turn, jnp.zeros_like(resident_tokens))
        value_g = jnp.where(eligible, jnp.minimum(stay_g, come_g), jnp.inf)
        least_g = value_g.min()
        best = jnp.where(served, first_min(value_g), source)
        choices = _Choices(
            served, best, source, stay_g <= come_g, least_g=jnp.where(served, least_g, 0)
        )
        left_tokens = jnp.minimum(resident_tokens, turn.prefix_tokens)
        return (
            jnp.where(served, context_left(turn), left_tokens),
            jnp.where(served, value_g - least_g, excess_g),
            best,
        ), choices

    def backward(after: jax.Array, turn: tuple[jax.Array, _Choices]):
        ends, choices = turn
        here = jnp.where(ends, choices.best, after)
        comes = choices.served & ~choices.stays[here]
        return jnp.where(comes, choices.source, here), jnp.where(choices.served, here, -1)

    dtype = world.pue.dtype
    opened = jnp.zeros((), dtype), jnp.zeros(allowed.shape, dtype), jnp.int32(0)
    _, choices = jax.lax.scan(forward, opened, turns)
    opens = turns.first | ~turns.valid
    ends = jnp.concatenate([opens[1:], jnp.ones(1, bool)])
    _, plan = jax.lax.scan(backward, jnp.int32(0), (ends, choices), reverse=True)
    return plan, choices.least_g


def planned(
    params: RouterParams, sessions: Sessions, decision: jax.Array
) -> tuple[RouterParams, Sessions]:
    """A router and sessions for `evaluate` that serve every turn where a plan says.

    The router has the filters of `params` and follows the noise alone, which is 0 at the plan's
    deployment and 1 elsewhere.

    Args:
      params: the setting whose `FILTERS` the plan keeps to.
      sessions: packed as the plan is.
      decision: `[R, T]`, a deployment; not used where a turn cannot be served.
    """
    kept = {name: getattr(params, name) for name in FILTERS}
    follower = RouterParams().replace(carbon_weight=0.0, noise_price_g=1.0, **kept)
    noise = jnp.asarray(sessions.turns.noise)
    follow = 1 - jax.nn.one_hot(decision, noise.shape[-1], dtype=noise.dtype)
    turns = dataclasses.replace(sessions.turns, noise=follow)
    return follower, dataclasses.replace(sessions, turns=turns)


@functools.partial(jax.jit, static_argnames="latency")
def evaluate_grid(
    params: RouterParams,
    filters: RouterParams,
    sessions: Sessions,
    world: World,
    retentions: Retention,
    *,
    latency: bool = False,
) -> tuple[Any, ...]:
    """As `simulate.evaluate_grid`, with the hindsight plan as the last setting, and the bound.

    Args:
      params: P settings, `[P, ...]` leaves.
      filters: the setting whose `FILTERS` plan and bound keep to.
      sessions, world, retentions, latency: as there.

    Returns:
      Totals with `[N, P + 1, S]` leaves, a trace with `[N, P + 1, R, T]` leaves, with `latency` a
      `Latency` with `[N, P + 1, BINS]` leaves, and `free_context_bound`, `[S]` g.
    """
    plan = hindsight_plan(filters, sessions, world)
    follower, following = planned(filters, sessions, plan.decision)
    alone = jax.tree.map(lambda x: jnp.asarray(x)[None], follower)
    replays = (
        simulate.evaluate_grid(params, sessions, world, retentions, latency=latency),
        simulate.evaluate_grid(alone, following, world, retentions, latency=latency),
    )
    joined = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=1), *replays)
    return *joined, free_context_bound(filters, sessions, world)


def options(
    params: RouterParams, world: World, allowed: jax.Array, turn: Turn
) -> tuple[Turn, Site, jax.Array]:
    """A turn without the junk of padding, the deployments at it, and those that may serve it."""
    turn = settled(turn)
    site = site_at(world, turn)
    prompt = turn.prefix_tokens + turn.new_tokens
    hard = prompt + turn.predicted_output_tokens <= world.fleet.max_context_tokens
    eligible, _, _ = policies.eligible(params, hard, allowed, site.quality)
    return turn, site, eligible & turn.valid


def serving_g(world: World, site: Site, turn: Turn, held_tokens: jax.Array) -> jax.Array:
    """The true bill of a turn at each deployment `[D]` that holds so many tokens of the session."""
    prompt = turn.prefix_tokens + turn.new_tokens
    cached = residency.cached(held_tokens, turn.prefix_tokens, prompt, world.block_tokens)
    cost = footprint.bill(site, cached, cached, prompt, turn.output_tokens)
    return cost.carbon_prefill_g + cost.carbon_decode_g + cost.carbon_embodied_g


def context_left(turn: Turn) -> jax.Array:
    """Tokens with KV that a served turn leaves: the last one generated has none."""
    return turn.prefix_tokens + turn.new_tokens + jnp.maximum(turn.output_tokens - 1, 0)


def _by_session(sessions: Sessions, carbon_g: jax.Array) -> jax.Array:
    """Sums `[S]` of amounts of turns `[R, T]`."""
    sums = jnp.zeros(sessions.count, carbon_g.dtype)
    return sums.at[sessions.turns.session].add(carbon_g, mode="drop")
