"""The replay with soft choices: what a router does in expectation, differentiable in its numbers.

Where the router is after a turn is a distribution over deployments; it is known what a cache holds
there, and carried as an expectation what caches elsewhere hold. The wish is a softmin of the score
J, staying a sigmoid of the gate's slack, both over `temperature` times the turn's least score; as
the temperature goes to 0 the replay becomes that of `jaxroute.simulate`. What a session would wish
for enters the gate by its mean over the softmin, so that a turn takes O(D).
"""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxroute import footprint, gate, policies, residency, simulate, soft, soft_cache
from jaxroute.numerics import masked_min, where_tree
from jaxroute.observe import Serving, believed_site, serving, settled, site_at
from jaxroute.policies import RouterParams, Site
from jaxroute.sessions import Sessions, Turn
from jaxroute.soft_cache import Cache
from jaxroute.world import Array, World

TEMPERATURE = 0.05
"""A deployment that is 5 % dearer than the cheapest has a weight of 1/e."""

LEAST_TEMPERATURE = 1e-9
"""A colder one is as hard, and its square would leave float32's range."""

NOT_RELAXED = ("model_allowed", "gpu_allowed", "region_allowed", "always_stay")
"""Fields of `RouterParams` that are switches: their gradient is 0."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class SoftTotals:
    """Expected sums over the turns of a session, `[S]` each; named as in `simulate.Totals`."""

    turns: Array
    carbon_g: Array
    quality: Array
    ttft_s: Array
    e2e_s: Array
    moves: Array
    returns: Array


FIELDS = tuple(field.name for field in dataclasses.fields(SoftTotals))


class _State(NamedTuple):
    """What a session carries: where it was served last, and before, as distributions `[D]`.

    `here` are the caches of each deployment if the session was served there last, `there` if not.
    """

    last: Array
    before: Array
    here: Cache
    there: Cache
    context_tokens: Array
    moves: Array
    returns: Array


def soft_totals(
    params: RouterParams,
    sessions: Sessions,
    world: World,
    temperature: float | jax.Array = TEMPERATURE,
) -> SoftTotals:
    """Expected sums of each session under soft choices.

    Differentiable in every float but the switches `NOT_RELAXED`. Turns are checkpointed: memory
    grows with the root of their number. Reports on caches are taken as true, whatever the world's
    belief says of them; its profiles and forecast are the router's.

    Args:
      params: the setting.
      sessions: S sessions, packed.
      world: the fleet and its grids.
      temperature: `>= 0`, relative to the least score of each turn; 0.05 softens choices between
        deployments whose scores differ by 5 %.

    Returns:
      `[S]` leaves.

    Raises:
      ValueError: for a temperature that is no such number; for parameters of another rule than the
        router's, which has no relaxation.

    >>> import jaxroute as jr
    >>> study = jr.load_study()
    >>> one = study.datasets[0].alone(568)
    >>> router = jr.presets["carbon_router"]
    >>> soft_g = jr.soft_totals(router, one, study.world, 1e-4).carbon_g
    >>> bool(abs(soft_g / jr.evaluate(router, one, study.world).carbon_g - 1) < 1e-3)
    True
    """
    if params.policy is not policies.router:
        found = type(params).__name__
        raise ValueError(f"found {found}, whose rule is its own, expected RouterParams")
    if isinstance(temperature, int | float) and not 0 <= temperature < np.inf:
        raise ValueError(f"temperature: found {temperature}, expected a finite number >= 0")
    params, sessions, world = simulate.admit(params, sessions, world)
    dtype, rows = world.fleet.pre_j.dtype, sessions.turns.valid.shape[0]
    heat = jnp.maximum(jnp.asarray(temperature, dtype), LEAST_TEMPERATURE)
    allowed = policies.allowed(params, world.fleet)

    def one_turn(states: _State, turn: Turn) -> tuple[_State, jax.Array]:
        return jax.vmap(lambda state, now: _turn(params, world, allowed, heat, state, now))(
            states, turn
        )

    opened = _opening(world)
    states = jax.tree.map(lambda x: jnp.broadcast_to(x, (rows, *x.shape)), opened)
    by_turn = jax.tree.map(lambda x: jnp.moveaxis(x, 1, 0), sessions.turns)
    added = _checkpointed(one_turn, states, by_turn)
    sums = jnp.zeros((sessions.count, len(FIELDS)), dtype)
    sums = sums.at[by_turn.session].add(added, mode="drop")
    return SoftTotals(**{name: sums[:, n] for n, name in enumerate(FIELDS)})


def soft_carbon(
    params: RouterParams,
    sessions: Sessions,
    world: World,
    temperature: float | jax.Array = TEMPERATURE,
) -> jax.Array:
    """Expected carbon of all sessions under soft choices, gCO2e: `soft_totals` summed.

    `examples/soft_gradient.py` descends along its slope.
    """
    return soft_totals(params, sessions, world, temperature).carbon_g.sum()


def _checkpointed(one_turn: Any, state: Any, turns: Any) -> jax.Array:
    """A scan over the T turns in about sqrt(T) runs, of which reverse mode keeps only the starts.

    The last run is filled up with turns that are not valid.
    """
    count = jax.tree.leaves(turns)[0].shape[0]
    length = max(1, round(count**0.5))
    runs = -(-count // length)

    def cut(x: jax.Array) -> jax.Array:
        filled = jnp.pad(x, ((0, runs * length - count), *((0, 0),) * (x.ndim - 1)))
        return filled.reshape(runs, length, *x.shape[1:])

    run = jax.checkpoint(lambda now, some: jax.lax.scan(one_turn, now, some), prevent_cse=False)
    _, out = jax.lax.scan(run, state, jax.tree.map(cut, turns))
    return out.reshape(runs * length, *out.shape[2:])[:count]


def _opening(world: World) -> _State:
    nowhere = jnp.zeros_like(world.fleet.pre_j)
    empty, zero = Cache(nowhere, nowhere, nowhere), jnp.zeros((), nowhere.dtype)
    return _State(nowhere, nowhere, empty, empty, zero, zero, zero)


def _turn(
    params: RouterParams,
    world: World,
    allowed: jax.Array,
    heat: jax.Array,
    state: _State,
    turn: Turn,
) -> tuple[_State, jax.Array]:
    """One turn of one session: the state it leaves, and what it adds to `FIELDS`."""
    turn = settled(turn)
    state = where_tree(turn.first, _opening(world), state)
    truth = site_at(world, turn)
    site = believed_site(world, truth, turn)
    prompt = turn.prefix_tokens + turn.new_tokens
    full = residency.cached(state.context_tokens, turn.prefix_tokens, prompt, world.block_tokens)
    drops = world.retention.drop_on_leave > 0
    here, there = (
        soft_cache.aged(each, turn.gap_s, truth, heat) for each in (state.here, state.there)
    )
    there = there._replace(held=jnp.where(drops, 0, there.held))
    exists = state.last.sum() > 0.5

    hard = prompt + turn.predicted_output_tokens <= world.fleet.max_context_tokens
    fits, passes, best = _quality_filter(params, hard, allowed, site.quality, heat)

    def priced(cache: Cache, moves_away: jax.Array) -> tuple[Any, Serving, jax.Array, jax.Array]:
        usable = jnp.minimum(cache.tokens, jnp.minimum(turn.prefix_tokens, prompt - 1))
        cached = cache.held * soft.blocks(usable, world.block_tokens, heat)
        known = params.cache_knowledge
        believed = known * cached + (1 - known) * params.assumed_hit * full
        expected = serving(site, believed, prompt, turn.predicted_output_tokens)
        score_g, offset_g = policies.score(
            params,
            best,
            site,
            moves_away=moves_away,
            operational_g=expected.operational_g,
            embodied_g=expected.embodied_g,
            e2e_s=expected.e2e_s,
            noise=turn.noise,
        )
        bill = footprint.bill(truth, cached, full, prompt, turn.output_tokens)
        return bill, expected, score_g, offset_g

    warm_bill, warm, warm_g, _ = priced(here, jnp.zeros_like(fits))
    cold_bill, cold, cold_g, offset_g = priced(there, jnp.broadcast_to(exists, fits.shape))
    in_time, in_time_here = _ttft_filter(params, best, state.last, warm.ttft_s, cold.ttft_s, heat)

    least_g = masked_min(cold_g, best)
    least_g = jnp.where(jnp.isinf(least_g), 0, least_g)
    scale_g = jnp.where(least_g + offset_g > 0, least_g + offset_g, 1) * heat
    wishes = jnp.where(fits, (least_g - cold_g) / scale_g + passes + in_time, soft.NEVER)
    wish_here = jnp.where(fits, (least_g - warm_g) / scale_g + passes + in_time_here, soft.NEVER)
    rest = soft.others(wishes)

    gain_g, features = _wished(state, turn, site, rest, warm_g, cold_g, offset_g, len(world.pue))
    p_back = jax.nn.sigmoid(params.gate_bias + features @ params.gate_weights)
    return_g = _rebuild_price_g(params, world, state, turn, site, here, heat)
    price_g = params.gate_strength * p_back * return_g
    slack_g = jnp.maximum(price_g, params.hysteresis * (warm_g + offset_g)) - gain_g
    keeps = jnp.where(params.always_stay > 0, 1, jax.nn.sigmoid(slack_g / scale_g))
    could = jnp.where(fits, jnp.exp(passes + in_time_here), 0)
    content = jax.nn.sigmoid(wish_here - rest.log_sum)

    stays = state.last * (content + (1 - content) * keeps * could)
    leaves = state.last * (1 - content) * (1 - keeps * could)
    arrives = jnp.where(exists, rest.received(leaves), jax.nn.softmax(wishes))
    total = (stays + arrives).sum()
    stays, arrives = stays / total, arrives / total

    served = turn.valid & hard.any()
    context = prompt + jnp.maximum(turn.output_tokens - 1, 0)
    used_s = soft_cache.mean(stays, warm_bill.e2e_s, arrives, cold_bill.e2e_s)
    returned = (arrives * state.before).sum()
    left = _State(
        last=jnp.where(served, stays + arrives, state.last),
        before=jnp.where(served, (1 - leaves.sum()) * state.before + leaves, state.before),
        here=where_tree(
            served,
            Cache(jnp.ones_like(used_s), jnp.zeros_like(used_s) + context, used_s),
            soft_cache.kept(here, turn),
        ),
        there=where_tree(
            served,
            soft_cache.left_behind(
                leaves,
                1 - state.last - arrives,
                soft_cache.kept(here, turn),
                soft_cache.kept(there, turn),
            ),
            soft_cache.kept(there, turn),
        ),
        context_tokens=context,
        moves=state.moves + jnp.where(served, leaves.sum(), 0),
        returns=state.returns + jnp.where(served, returned, 0),
    )
    amounts = {
        name: (stays * getattr(warm_bill, name) + arrives * getattr(cold_bill, name)).sum()
        for name in (*_CARBON, "ttft_s", "e2e_s")
    }
    sums = {
        "turns": jnp.ones((), heat.dtype),
        "carbon_g": amounts[_CARBON[0]] + amounts[_CARBON[1]] + amounts[_CARBON[2]],
        "quality": ((stays + arrives) * site.quality).sum(),
        "ttft_s": amounts["ttft_s"],
        "e2e_s": amounts["e2e_s"],
        "moves": leaves.sum(),
        "returns": returned,
    }
    return left, jnp.where(served, jnp.stack([sums[name] for name in FIELDS]), 0)


_CARBON = ("carbon_prefill_g", "carbon_decode_g", "carbon_embodied_g")


def _quality_filter(
    params: RouterParams, hard: jax.Array, allowed: jax.Array, quality: jax.Array, heat: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The deployments that limit and masks leave; the log weight that quality gives each; and those
    of full weight.

    It falls by the square of the temperature, so that no price outweighs it as that goes to 0.
    """
    fits = hard & (allowed | ~(hard & allowed).any())
    best = -masked_min(-quality, fits)
    best = jnp.where(jnp.isinf(best), 0, best)
    threshold = jnp.maximum(params.quality_floor, best - params.quality_slack)
    excess = quality - jnp.minimum(threshold, best)
    return fits, jnp.minimum(excess, 0) / heat**2, fits & (excess >= 0)


def _ttft_filter(
    params: RouterParams,
    fits: jax.Array,
    last: jax.Array,
    warm_s: jax.Array,
    cold_s: jax.Array,
    heat: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """The log weights that the TTFT limit gives to coming to each deployment and to staying."""
    limited = ~jnp.isinf(params.ttft_slo_s)
    slo_s = jnp.where(limited, params.ttft_slo_s, 1)
    fastest_s = jnp.minimum(masked_min(cold_s, fits), jnp.where(fits, warm_s, jnp.inf))
    fastest_s = jnp.where(jnp.isinf(fastest_s), 0, fastest_s)
    limit_here_s = jnp.maximum(slo_s, fastest_s)
    met_s = jnp.where(last.sum() > 0.5, (last * limit_here_s).sum(), limit_here_s.max())

    def weight(limit_s: jax.Array, ttft_s: jax.Array) -> jax.Array:
        return jnp.where(limited, jnp.minimum((limit_s - ttft_s) / (heat**2 * slo_s), 0), 0)

    return weight(met_s, cold_s), weight(limit_here_s, warm_s)


def _wished(
    state: _State,
    turn: Turn,
    site: Site,
    rest: soft.Others,
    warm_g: jax.Array,
    cold_g: jax.Array,
    offset_g: jax.Array,
    region_count: int,
) -> tuple[jax.Array, jax.Array]:
    """What a session at each deployment would gain by its wish, `[D]` g, and the gate's features.

    Those of `jaxroute.gate.features`, `[D, 8]`, what they tell of the wish being its mean.
    """
    fleet, dtype = site.fleet, warm_g.dtype
    models = jax.nn.one_hot(fleet.model, turn.quality.shape[0], dtype=dtype)
    regions = jax.nn.one_hot(fleet.region, region_count, dtype=dtype)
    amounts = jnp.stack([cold_g, site.log_intensity_change, site.quality], axis=-1)
    mean = rest.means(amounts)
    gain_g, score_g = warm_g - mean[:, 0], warm_g + offset_g
    scored = score_g > 0
    shared = (
        jnp.log1p(turn.turn.astype(dtype)),
        jnp.log1p(turn.prefix_tokens / turn.new_tokens),
        state.returns / jnp.maximum(state.moves, 1),
    )
    by_wish = (
        jnp.where(scored, gain_g / jnp.where(scored, score_g, 1), 0),
        1 - rest.share(models),
        1 - rest.share(regions),
        site.log_intensity_change - mean[:, 1],
    )
    last = site.quality - mean[:, 2]
    columns = (*by_wish, *(jnp.broadcast_to(x, last.shape) for x in shared), last)
    assert len(columns) == len(gate.FEATURES)
    return gain_g, jnp.stack(columns, axis=-1)


def _rebuild_price_g(
    params: RouterParams,
    world: World,
    state: _State,
    turn: Turn,
    site: Site,
    here: Cache,
    heat: jax.Array,
) -> jax.Array:
    """`jaxroute.gate.rebuild_price_g` at each deployment that may have served last, `[D]` g."""
    gap_s, known = params.expected_gap_s, params.cache_knowledge
    assumed = params.assumed_hit * jnp.minimum(turn.prefix_tokens, state.context_tokens)
    believed = known * here.held * here.tokens + (1 - known) * assumed
    idle_s = jnp.maximum(-here.last_used_s, 0)
    left = soft.decayed(jnp.minimum(believed, turn.prefix_tokens), gap_s, site.decay_s, heat)
    lives = soft.survives(idle_s + gap_s, site.ttl_s, heat)
    left *= jnp.where(world.retention.drop_on_leave > 0, 0, lives)
    prompt = turn.prefix_tokens + turn.new_tokens
    stay = prompt + jnp.maximum(turn.predicted_output_tokens - 1, 0)
    stay = soft.decayed(stay, gap_s, site.decay_s, heat) * soft.survives(gap_s, site.ttl_s, heat)
    history = prompt + turn.predicted_output_tokens
    before, after = (
        soft.blocks(jnp.minimum(tokens, history), world.block_tokens, heat)
        for tokens in (left, stay)
    )
    return gate.prefill_price_g(params, site, before, after)
