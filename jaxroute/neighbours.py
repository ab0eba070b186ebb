"""Rules that no parameters of the router express: `Policy` examples, after systems near to it.

`session_price`, `prefix_affinity` and `primal_dual` are our reconstructions of what other systems
do, in this engine's units: each says what it takes from its source and what it leaves out.
`compare` takes all of them by name (`jaxroute.catalogue.RULES`).
"""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxroute import gate, residency
from jaxroute.numerics import first_min, masked_min
from jaxroute.policies import Observation, Policy, RouterParams, number
from jaxroute.world import Array


class Settled(NamedTuple):
    """A turn as if the history were cached everywhere, `[D]` each.

    Attributes:
      score_g: J then, less its offset; infinite where not feasible.
      rebuild_g: what the score charges now for the part that is not cached.
      history_tokens: what would be cached.
    """

    score_g: Array
    rebuild_g: Array
    history_tokens: Array


def settled(params: RouterParams, obs: Observation) -> Settled:
    """The scores of a turn without the price of rebuilding its history."""
    reusable = jnp.minimum(
        obs.prefix_tokens, jnp.minimum(obs.context_tokens, obs.prompt_tokens - 1)
    )
    history = jnp.maximum(residency.blocks(reusable, obs.block_tokens), obs.cached_tokens)
    rebuild_g = gate.prefill_price_g(params, obs.site, obs.cached_tokens, history)
    return Settled(obs.score_g - rebuild_g, rebuild_g, history)


def _ski_rental(params: RouterParams, rent_g: Array, obs: Observation) -> tuple[Array, Array]:
    settled_g, rebuild_g, _ = settled(params, obs)
    target = first_min(settled_g)
    here = jnp.maximum(obs.last, 0)
    can_stay = (obs.last >= 0) & obs.feasible[here]
    rent_g = rent_g + jnp.where(can_stay, settled_g[here] - settled_g[target], 0)
    stays = can_stay & (rent_g < rebuild_g[target])
    moved_to = jnp.where(can_stay, target, first_min(obs.score_g))
    return jnp.where(stays, here, moved_to), jnp.where(stays, rent_g, 0)


ski_rental = Policy(init=lambda params: jnp.zeros_like(params.carbon_weight), decide=_ski_rental)
"""Rent until the rents have cost as much as buying: a worked example of `Policy`.

The rent of a turn is what it costs more here than at the deployment that would be cheapest if the
history were cached everywhere; to buy is to rebuild the history there. The session moves as soon as
the rents since its last move reach that price: the break-even rule of the ski-rental problem, which
never costs more than twice the best plan for a single move (Karlin et al., Algorithmica 3, 1988).
"""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class SkiRentalParams(RouterParams):
    """The parameters of `ski_rental`: the router's, of which it reads those of the score."""

    policy = ski_rental


MASS_TOKENS, MASS_TURNS = 8192, 8
"""Beyond them the weight of a session's past grows no more (`session_price`)."""

MASS_SHARES = (0.45, 0.35, 0.20)
"""Of that weight: the history's share of the prompt, its tokens, and its turns."""


def _session_price(
    params: "SessionPriceParams", state: tuple, obs: Observation
) -> tuple[Array, tuple]:
    settled_g, _, history = settled(params, obs)
    target, here = first_min(settled_g), jnp.maximum(obs.last, 0)
    by_share, by_tokens, by_turns = MASS_SHARES
    mass = (
        by_share * (history[here] / obs.prompt_tokens)
        + by_tokens * jnp.minimum(history[here] / MASS_TOKENS, 1)
        + by_turns * jnp.minimum(obs.turn / MASS_TURNS, 1)
    )
    warmth = obs.cached_tokens[here] / jnp.maximum(history[here], 1)
    unrest = jnp.minimum(obs.moves / MASS_TURNS, 1)
    price = (
        params.switch_margin + params.warmth_weight * mass * warmth + params.history_weight * unrest
    )
    gain_g = settled_g[here] - settled_g[target]
    pays = gain_g > price * (settled_g[here] + obs.score_offset_g)
    awake = obs.idle_s[here] <= params.idle_timeout_s
    stays = (obs.last >= 0) & obs.feasible[here] & awake & ~pays
    return jnp.where(stays, here, target), state


session_price = Policy(init=lambda params: (), decide=_session_price)
"""Leave only for a relative gain above a price that grows with what is cached.

Scores know nothing of caches: J is what a turn would cost were the history cached everywhere. With
j the least of it and i the last deployment, the session stays while `1 - J_j / J_i <= price`,

`price = switch_margin + warmth_weight mass warmth + history_weight min(moves / 8, 1)`
`mass = 0.45 h / L + 0.35 min(h / 8192, 1) + 0.20 min(turn / 8, 1)`, `warmth = c_i / h`

for h tokens of reusable history in a prompt of L, c_i of them cached at i. Once i was idle for
longer than `idle_timeout_s` the price is gone and j serves. All are dimensionless but tokens.

Our reconstruction of the session-aware policy of vLLM Semantic Router ("Session-Aware Agentic
Routing", vLLM blog, 2 June 2026; `pkg/selection/session_aware*.go` of vllm-project/semantic-router,
from where the numbers of `mass` are). There scores are utilities in [0, 1], here `J_j / J` stands
for them; it adds a bonus to staying and a penalty to switching, here summed into one price. Left
out: locks in tool loops and on state that only one provider holds, measured gaps of quality between
models, resets when the kind of request changes, and dearer switches among dearer models.
"""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class SessionPriceParams(RouterParams):
    """The parameters of `session_price`: the router's, of which it reads those of the score.

    The defaults are those of vLLM Semantic Router, summed as far as they always go together.

    Attributes:
      switch_margin: `[]`, share of the cost; stay bias 0.10, switch margin 0.05, hand-off 0.05.
      warmth_weight: `[]`; a bonus to staying and a penalty to switching of 0.20 each, times the
        factor 1.75 that models without prices get.
      history_weight: `[]`, what eight moves or more add.
      idle_timeout_s: `[]`, s.
    """

    policy = session_price

    switch_margin: Array = number(0.20)
    warmth_weight: Array = number(0.70)
    history_weight: Array = number(0.04)
    idle_timeout_s: Array = number(300)


def _prefix_affinity(
    params: "PrefixAffinityParams", state: tuple, obs: Observation
) -> tuple[Array, tuple]:
    matches = obs.cached_tokens >= params.match_share * obs.prompt_tokens
    sticky = obs.feasible & matches
    slower_s = masked_min(obs.ttft_s, sticky) - masked_min(obs.ttft_s, obs.feasible & ~matches)
    narrows = sticky.any() & (slower_s <= params.escape_ttft_s)
    return first_min(jnp.where(sticky | ~narrows, obs.score_g, jnp.inf)), state


prefix_affinity = Policy(init=lambda params: (), decide=_prefix_affinity)
"""Only deployments that hold most of the prompt, unless they are too slow; of those the least J.

Sticky are the feasible with `c_d >= match_share L`, the share of the prompt's tokens cached. If
there are any, and the fastest of them reaches its first token at most `escape_ttft_s` later than
the fastest of the others, they alone are considered; else all feasible are.

Our reconstruction of the affinity gate of llm-d's latency scorer (its README: `affinityGateTau`
0.80, `affinityMaxTTFTPenaltyMs` 5000). There what is left is scored by its latency's headroom below
a limit and picked at random by weight, here the least J serves. Left out: a first gate at 0.99, the
tiers with and without headroom, one request in a hundred that ignores the gate to explore, and
queues, without which no cache is often 5 s slower: `escape_ttft_s` matters for long prompts alone.
"""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class PrefixAffinityParams(RouterParams):
    """The parameters of `prefix_affinity`: the router's, but for its gate, and two of its own.

    Attributes:
      match_share: `[]` in [0, 1], of the prompt's tokens; llm-d's default.
      escape_ttft_s: `[]`, s; infinite never leaves the sticky; llm-d's default.
    """

    policy = prefix_affinity

    match_share: Array = number(0.80)
    escape_ttft_s: Array = number(5)


LEAST_PRICE = 1e-3
"""Of a budget's carbon, in units of quality: above 0, so that ties fall to carbon."""


class Budgeting(NamedTuple):
    """What `primal_dual` carries, `[]` each: price, mean carbon of the turns, and their number."""

    price: Array
    mean_g: Array
    turns: Array


def _open_budget(params: "PrimalDualParams") -> Budgeting:
    nothing = jnp.zeros_like(params.start_price)
    return Budgeting(params.start_price, nothing, nothing)


def _primal_dual(
    params: "PrimalDualParams", state: Budgeting, obs: Observation
) -> tuple[Array, Budgeting]:
    carbon_g = params.carbon_weight * (obs.operational_g + params.embodied_weight * obs.embodied_g)
    best = -masked_min(-obs.site.quality, obs.feasible)
    loss = (best - obs.site.quality) + state.price * (carbon_g / params.budget_g)
    choice = first_min(jnp.where(obs.feasible, loss, jnp.inf))
    turns = state.turns + 1
    weight = 1 / jnp.minimum(turns, params.window_turns)
    mean_g = state.mean_g + weight * (carbon_g[choice] - state.mean_g)
    price = state.price + params.price_step * (mean_g / params.budget_g - 1)
    return choice, Budgeting(jnp.maximum(price, LEAST_PRICE), mean_g, turns)


primal_dual = Policy(init=_open_budget, decide=_primal_dual)
"""The best quality at a price of carbon that rises while the session is over its budget.

With C the carbon of a turn as the policy believes it, b the budget of one, and q the quality, the
feasible deployment of the least `1 - q + price C / b` serves. Then

`mean += (C - mean) / min(turns, window_turns)`, `price = max(price + price_step (mean / b - 1), 0)`

(the least price is 0.001, so that of equal qualities the one of the least carbon serves): the dual
ascent of "most quality, subject to a rolling mean of carbon within the budget". The price is in
quality for a budget's carbon, dimensionless. The floors of quality and of TTFT are the filters of
every policy.

Our reconstruction of GAR-PD from the abstract of GAR (arXiv 2605.11603): carbon under an accuracy
floor and a limit on p95 latency, an online primal-dual algorithm for rolling carbon budgets. Of its
formulas no more is known to us. GAR knows no caches, so by default every candidate is charged the
whole prompt. Its budget is the fleet's; here sessions are replayed independently, so that each has
a budget and a price of its own. The limit on p95 is one on each turn (`ttft_slo_s`).
"""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True, kw_only=True)
class PrimalDualParams(RouterParams):
    """The parameters of `primal_dual`: the router's filters, beliefs and weights of carbon.

    The defaults are ours: none are public.

    Attributes:
      cache_knowledge: 0 by default, with `assumed_hit` 0.
      budget_g: `[]`, gCO2e of a turn.
      price_step: `[]`, how far the price moves for each budget that the mean is over.
      window_turns: `[]` >= 1, over which the mean rolls.
      start_price: `[]`, of a session's first turn.
    """

    policy = primal_dual

    cache_knowledge: Array = number(0)
    budget_g: Array = number(0.02)
    price_step: Array = number(0.1)
    window_turns: Array = number(10)
    start_price: Array = number(0.1)
