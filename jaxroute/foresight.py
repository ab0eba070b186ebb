"""The best gate there could be: it knows the future, but only stays or follows the router's wish.

What it leaves to the hindsight plan no gate can win: the wishes themselves would have to be others.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxroute import bounds, policies, simulate
from jaxroute.observe import State, observe, opening, settled
from jaxroute.policies import RouterParams
from jaxroute.sessions import Sessions, Turn
from jaxroute.world import Array, World


class _Ways(NamedTuple):
    """Of a turn, from each deployment that may have served last, `[D]`, and from none, `[]`.

    `stay_g` and `move_g` are bills, infinite where there is no such way; `wished` is where a move
    goes; `first` and `first_g` are of a session that was served nowhere yet.
    """

    stay_g: Array
    move_g: Array
    wished: Array
    first: Array
    first_g: Array


@jax.jit
def foreseeing_gate(params: RouterParams, sessions: Sessions, world: World) -> jax.Array:
    """Carbon of each session under the best gate, where leaving drops the cache and nothing ages.

    With `w(d)` the wish of a session served last at d, by the router's score, and
    `V_t(d)` the least carbon from turn t on:

    `V_t(d) = min(C_t(d, c = warm) + V_(t+1)(d), C_t(w(d), c = 0) + V_(t+1)(w(d)))`

    The first where d passes the filters, the second where the wish is another. True outputs are
    known to the gate, and not to the score.

    Args:
      params: the router; its gate is not read.
      sessions: S sessions, packed.
      world: the fleet and its grids, with such a retention.

    Returns:
      `[S]`, gCO2e: no gate on these scores emits less.

    >>> import jaxroute as jr
    >>> study, router = jr.load_study(), jr.presets["carbon_router"]
    >>> world = study.world.replace(retention=study.retentions["drop"])
    >>> one = study.datasets[0].alone(568)
    >>> least_g = foreseeing_gate(router, one, world)
    >>> bool((least_g <= 1.00001 * jr.evaluate(router, one, world).carbon_g).all())
    True
    >>> bool((least_g >= 0.99999 * jr.hindsight_plan(router, one, world).carbon_g).all())
    True
    """
    params, sessions, world = simulate.admit(params, sessions, world)
    allowed = policies.allowed(params, world.fleet)
    values = jax.vmap(lambda turns: _row(params, world, allowed, turns))(sessions.turns)
    sums = jnp.zeros(sessions.count, values.dtype)
    return sums.at[sessions.turns.session].add(values, mode="drop")


def _row(params: RouterParams, world: World, allowed: jax.Array, turns: Turn) -> jax.Array:
    """Of a row of sessions, at the first turn of each its carbon, elsewhere 0: `[T]`."""
    dtype = world.pue.dtype
    begin = opening(params, policies.router, world)

    def forward(state: State, raw: Turn) -> tuple[State, State]:
        """What any way leaves behind: the context, and how much of it is cached at the last."""
        now, _, eligible = bounds.options(params, world, allowed, raw)
        state = jax.tree.map(lambda a, b: jnp.where(now.first, a, b), begin, state)
        kept = jnp.minimum(state.resident_tokens, now.prefix_tokens)
        context = bounds.context_left(now)
        after = state._replace(
            resident_tokens=jnp.where(eligible.any(), context, kept), context_tokens=context
        )
        return after, state

    def backward(after: tuple[jax.Array, jax.Array], turn: tuple[Turn, State]) -> Any:
        """The value from here on, less nothing: of each last deployment, and of none."""
        ahead_g, none_g = after
        raw, state = turn
        ways, served = _ways(params, world, allowed, state, raw)
        stay_g = ways.stay_g + ahead_g
        move_g = ways.move_g + ahead_g[ways.wished]
        here_g = jnp.where(served, jnp.minimum(stay_g, move_g), ahead_g)
        fresh_g = jnp.where(served, ways.first_g + ahead_g[ways.first], none_g)
        out = jnp.where(raw.first & raw.valid, fresh_g, 0)
        begins = raw.first | ~raw.valid
        return (jnp.where(begins, 0, here_g), jnp.where(begins, 0, fresh_g)), out

    _, states = jax.lax.scan(forward, begin, turns)
    nothing = jnp.zeros(allowed.shape, dtype), jnp.zeros((), dtype)
    _, values = jax.lax.scan(backward, nothing, (turns, states), reverse=True)
    return values


def _ways(
    params: RouterParams, world: World, allowed: jax.Array, state: State, raw: Turn
) -> tuple[_Ways, jax.Array]:
    turn, site, eligible = bounds.options(params, world, allowed, raw)
    warm_g = bounds.serving_g(world, site, turn, state.resident_tokens)
    cold_g = bounds.serving_g(world, site, turn, jnp.zeros_like(state.resident_tokens))
    index = jnp.arange(allowed.shape[0], dtype=jnp.int32)

    def seen(last: jax.Array) -> tuple[jax.Array, jax.Array]:
        held = jnp.where(index == last, state.resident_tokens, 0)
        there = state._replace(last=last, resident_tokens=held)
        obs, _ = observe(params, world, allowed, there, settled(raw))
        return policies.wish(obs)[1], obs.feasible

    wished, feasible = jax.vmap(seen)(index)
    first, _ = seen(jnp.int32(-1))
    may_stay = jnp.diagonal(feasible)
    ways = _Ways(
        stay_g=jnp.where(may_stay, warm_g, jnp.inf),
        move_g=jnp.where((wished == index) & may_stay, jnp.inf, cold_g[wished]),
        wished=wished,
        first=first,
        first_g=cold_g[first],
    )
    return ways, eligible.any()
