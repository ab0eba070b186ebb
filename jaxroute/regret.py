"""What each decision of a replay cost in hindsight, where leaving a deployment drops the cache."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxroute import bounds, policies, simulate
from jaxroute.numerics import first_min
from jaxroute.policies import RouterParams
from jaxroute.sessions import Sessions, Turn
from jaxroute.world import Array, World


class Regret(NamedTuple):
    """Of each turn, as the sessions are packed, `[R, T]` each.

    Attributes:
      lost_g: what the decision cost more than the best one from where the session was, every later
        turn served as hindsight would; 0 for an unserved turn and on padding.
      best: int32, that best deployment, the decision where none is better; -1 where unserved.
    """

    lost_g: Array
    best: Array


@jax.jit
def hindsight_regret(
    params: RouterParams, sessions: Sessions, world: World, decision: jax.Array
) -> Regret:
    """What each decision cost where a retention drops on leaving and nothing ages.

    With `G_t(i)` the least carbon from turn t on of a session last served at i, and
    `Q_t(i, d) = C_t(d, c = warm if d = i else 0) + G_(t+1)(d)`:

    `G_t(i) = min_d Q_t(i, d)`, `lost_t = Q_t(i, d_t) - G_t(i)`

    over the d that the filters leave, true outputs known. The losses of a session add up to what it
    emitted more than `jaxroute.bounds.hindsight_plan`.

    Args:
      params: the filters, `bounds.FILTERS`; nothing else of it is read.
      sessions: S sessions, packed.
      world: the fleet and its grids; its retention is not read.
      decision: `[R, T]`, of a replay with these filters under such a retention (`Trace.decision`).

    >>> import jaxroute as jr
    >>> study, router = jr.load_study(), jr.presets["carbon_router"]
    >>> world = study.world.replace(retention=study.retentions["drop"])
    >>> some = study.datasets[0].alone(5)
    >>> totals, trace = jr.evaluate(router, some, world, trace=True)
    >>> more_g = totals.carbon_g - jr.hindsight_plan(router, some, world).carbon_g
    >>> lost_g = hindsight_regret(router, some, world, trace.decision).lost_g
    >>> bool(abs(lost_g.sum() - more_g.sum()) < 1e-6)
    True
    """
    params, sessions, world = simulate.admit(params, sessions, world)
    allowed = policies.allowed(params, world.fleet)

    def of_row(turns: Turn, chosen: jax.Array) -> Regret:
        return _row(params, world, allowed, turns, chosen)

    return jax.vmap(of_row)(sessions.turns, decision)


def _row(
    params: RouterParams, world: World, allowed: jax.Array, turns: Turn, chosen: jax.Array
) -> Regret:
    index, dtype = jnp.arange(allowed.shape[0], dtype=jnp.int32), world.pue.dtype

    def forward(carry: tuple[jax.Array, jax.Array], turn: tuple[Turn, jax.Array]) -> Any:
        """Where the session is and what is cached there, on arrival of each turn."""
        resident_tokens, last = carry
        raw, at = turn
        now, _, eligible = bounds.options(params, world, allowed, raw)
        held_tokens = jnp.where(now.first, 0, resident_tokens)
        last = jnp.where(now.first, -1, last)
        served = eligible.any()
        left_tokens = jnp.minimum(held_tokens, now.prefix_tokens)
        after = jnp.where(served, bounds.context_left(now), left_tokens)
        return (after, jnp.where(served, at, last)), (held_tokens, last)

    def backward(excess_g: jax.Array, turn: tuple[Turn, jax.Array, jax.Array, jax.Array]) -> Any:
        """`excess_g` is `G_(t+1)` less its minimum, so that it is of a turn's size."""
        raw, at, held_tokens, last = turn
        now, site, eligible = bounds.options(params, world, allowed, raw)
        served = eligible.any()
        warm_g = bounds.serving_g(world, site, now, held_tokens)
        cold_g = bounds.serving_g(world, site, now, jnp.zeros_like(held_tokens))
        come_g = jnp.where(eligible, cold_g + excess_g, jnp.inf)
        stay_g = jnp.where(eligible, warm_g + excess_g, jnp.inf)
        here_g = jnp.where(index == last, jnp.minimum(come_g, stay_g), come_g)
        place = jnp.maximum(at, 0)
        least_g = here_g.min()
        lost_g = jnp.where(served, here_g[place] - least_g, 0)
        best = jnp.where(served, jnp.where(lost_g > 0, first_min(here_g), place), -1)

        before_g = jnp.minimum(come_g.min(), stay_g)
        before_g = jnp.where(served, before_g - before_g.min(), excess_g)
        begins = now.first | ~now.valid
        return jnp.where(begins, 0, before_g), (lost_g, best)

    opened = jnp.zeros((), dtype), jnp.int32(-1)
    _, (held_tokens, last) = jax.lax.scan(forward, opened, (turns, chosen))
    _, (lost_g, best) = jax.lax.scan(
        backward,
        jnp.zeros(allowed.shape, dtype),
        (turns, chosen, held_tokens, last),
        reverse=True,
    )
    return Regret(lost_g=lost_g, best=best)
