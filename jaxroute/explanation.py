"""Why a session was served as it was: its replay, with everything weighed at each turn."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from jaxroute import comparison, gate, policies, simulate
from jaxroute.catalogue import AXES, reconstructions
from jaxroute.dataset import Dataset
from jaxroute.load.messages import input_error, known_names, nearest_few, shown
from jaxroute.loading import refuse
from jaxroute.numerics import stack
from jaxroute.policies import Observation, RouterParams
from jaxroute.replays import by_rule
from jaxroute.sessions import Sessions
from jaxroute.simulate import Record
from jaxroute.study import Study
from jaxroute.world import Array, World, cast

POLICIES = ("carbon_router", "fair_carbon")
"""Explained side by side unless others are asked for."""

BEST = 5
"""Candidates shown of a turn."""


class ScoreTerms(NamedTuple):
    """What J is the sum of, g, `[D]` each: a price of `RouterParams` times its amount."""

    operational_g: Array
    embodied_g: Array
    latency_g: Array
    quality_g: Array
    switch_g: Array
    intensity_g: Array
    rtt_g: Array
    size_g: Array
    noise_g: Array


_PRICES = {
    "latency_g": "latency_price_g_per_s",
    "quality_g": "quality_price_g",
    "switch_g": "switch_price_g",
    "intensity_g": "intensity_price",
    "rtt_g": "rtt_price_g_per_s",
    "size_g": "size_price_g_per_b",
    "noise_g": "noise_price_g",
}


def score_terms(params: RouterParams, obs: Observation, noise: jax.Array) -> ScoreTerms:
    """The terms of an observation's score: J is linear in its prices, so each is the engine's own
    score with every other price at 0. `noise` is `[D]`.
    """
    zero = jnp.zeros_like(params.carbon_weight)
    free = params.replace(carbon_weight=zero, **dict.fromkeys(_PRICES.values(), zero))
    index = jnp.arange(obs.feasible.shape[0], dtype=jnp.int32)

    def alone(operational_g: jax.Array, embodied_g: jax.Array, **price: Array) -> jax.Array:
        relative_g, offset_g = policies.score(
            free.replace(**price),
            obs.feasible,
            obs.site,
            moves_away=(obs.last >= 0) & (index != obs.last),
            operational_g=operational_g,
            embodied_g=embodied_g,
            e2e_s=obs.e2e_s,
            noise=noise,
        )
        return relative_g + offset_g

    none = jnp.zeros_like(obs.embodied_g)
    return ScoreTerms(
        operational_g=alone(obs.operational_g, none, carbon_weight=params.carbon_weight),
        embodied_g=alone(none, obs.embodied_g, carbon_weight=params.carbon_weight),
        **{term: alone(none, none, **{p: getattr(params, p)}) for term, p in _PRICES.items()},
    )


class Account(NamedTuple):
    """A turn's record, and what it does not hold of the decision.

    Attributes:
      record: of the engine.
      terms: of the score, `[D]` each.
      wished: `[]` int32, the deployment of the least score.
      has_gate: `[]` bool, whether the parameters give the policy any reason to stay.
      asked: `[]` bool, whether the gate was asked, the last one being another and feasible; a rule
        beside the router's has none to ask.
      gate: its terms, of use only where it was asked.
    """

    record: Record
    terms: ScoreTerms
    wished: Array
    has_gate: Array
    asked: Array
    gate: gate.Terms


def account(params: RouterParams, record: Record) -> Account:
    """What `evaluate(trace=account)` keeps of a turn."""
    obs = record.observation
    here, wished, asked = policies.wish(obs)
    return Account(
        record=record,
        terms=score_terms(params, obs, record.turn.noise),
        wished=wished,
        has_gate=(params.gate_strength > 0) | (params.hysteresis > 0) | (params.always_stay > 0),
        asked=asked & (params.policy is policies.router),
        gate=gate.terms(params, obs, here, wished),
    )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Explanation:
    """One session under several policies.

    Attributes:
      dataset, session_id, retention: what was replayed.
      notes: what was drawn or assumed, in words.
      turns: one row a policy and turn: its tokens, of which `cached_tokens` true and at the choice;
        `model`, `gpu` and `region` of the choice; `wished`, the deployment of the least score; the
        `verdict` on a move there and its `jaxroute.gate.Terms`, NaN where the gate was not asked;
        the bill, by the names of `jaxroute.simulate.Totals`, and `carbon_g`. Sums over the turns
        are the session's totals.
      candidates: one row a policy, turn and deployment, the five of the least score and the choice:
        `rank`, whether `chosen`, `cached_tokens` as believed, the terms of the score, and
        `score_g`, their sum J.
    """

    dataset: str
    session_id: str
    retention: str
    notes: tuple[str, ...]
    turns: pd.DataFrame
    candidates: pd.DataFrame


def explain(
    study: Study,
    session: str,
    *,
    dataset: str | None = None,
    retention: str | None = None,
    policies: Sequence[str] = POLICIES,
) -> Explanation:
    """Replays one session and tells of every turn what was weighed, chosen and paid.

    Args:
      study: where the session, the fleet and the policies are from.
      session: its id.
      dataset: label; may be left out where the study has one.
      retention: label; the study's first by default.
      policies: names of presets or of the study's own policies.

    Raises:
      InputError: for an unknown session, with those most like it, or another unknown name.

    >>> import jaxroute as jr
    >>> told = jr.explain(jr.load_study(), "568", retention="drop")
    >>> told.turns.groupby("policy")["verdict"].last().to_dict()
    {'carbon_router': 'stays: gate', 'fair_carbon': 'moves: no gate'}
    """
    refuse(study, "explain")
    data = _named("dataset", dataset, {each.label: each for each in study.datasets})
    label = next(iter(study.retentions)) if retention is None else retention
    world = study.world.replace(retention=_named("retention", label, study.retentions))
    at = _find(data, str(session))
    known = comparison.resolved(study.with_policies(policies), data)
    settings = [known[name] for name in policies]
    told = list(zip(policies, settings, _replay(settings, data, at, world), strict=True))
    names = study.deployments[list(AXES)]
    return Explanation(
        dataset=data.label,
        session_id=str(session),
        retention=label,
        notes=(*data.notes, *study.notes, *reconstructions({n: known[n] for n in policies})),
        turns=pd.concat([_turns(*each, names) for each in told], ignore_index=True),
        candidates=pd.concat(
            [_candidates(name, each, names) for name, _, each in told], ignore_index=True
        ),
    )


def _named(kind: str, name: str | None, known: Mapping[str, Any]) -> Any:
    if name is None and len(known) == 1:
        return next(iter(known.values()))
    if name is None or name not in known:
        expected = f"the label of a {kind} of the study"
        raise input_error("options", kind, shown(name), expected, known_names(name or "", known))
    return known[name]


def _find(data: Dataset, session: str) -> int:
    """Index of a session."""
    found = np.flatnonzero(data.session_ids == session)
    if not len(found):
        near = nearest_few(session, data.session_ids)
        near = f"did you mean {near}?" if near else ""
        expected = f"the id of one of its {len(data.lengths):,} sessions"
        raise input_error(data.path, "session", shown(session), expected, near)
    return int(found[0])


@jax.jit
def _evaluate(params: RouterParams, sessions: Sessions, world: World) -> Account:
    return jax.vmap(lambda one: simulate.evaluate(one, sessions, world, trace=account)[1])(params)


def _replay(
    settings: Sequence[RouterParams], data: Dataset, at: int, world: World
) -> list[Account]:
    """The turns of a session under each setting, `[T, ...]` leaves."""
    told: dict[int, Account] = {}
    for group in by_rule(settings):
        accounts = _evaluate(stack(settings[n] for n in group), data.alone(at), world)
        turns = jax.tree.map(lambda x: np.asarray(x)[:, 0, : data.lengths[at]], accounts)
        for row, n in enumerate(group):
            told[n] = jax.tree.map(lambda x, row=row: x[row], cast(turns, np.float64))
    return [told[n] for n in range(len(settings))]


def _turns(policy: str, params: RouterParams, told: Account, names: pd.DataFrame) -> pd.DataFrame:
    obs, totals, decision = told.record.observation, told.record.totals, told.record.trace.decision
    served = decision >= 0
    whole = {
        "turn": obs.turn,
        "prompt_tokens": obs.prompt_tokens,
        "prefix_tokens": obs.prefix_tokens,
        "new_tokens": obs.new_tokens,
        "output_tokens": told.record.turn.output_tokens,
        "cached_tokens": told.record.trace.cached_tokens,
    }
    columns: dict[str, Any] = {"policy": policy}
    columns |= {name: np.rint(values).astype(int) for name, values in whole.items()}
    columns["gap_s"] = told.record.turn.gap_s
    columns["predicted_output_tokens"] = obs.predicted_output_tokens
    for axis in AXES:
        columns[axis] = np.where(served, names[axis].to_numpy(object)[decision], None)
    joined = np.array(["|".join(row) for row in names.to_numpy()], object)
    columns["wished"] = np.where(served, joined[told.wished], None)
    columns["verdict"] = _verdicts(told, gated=params.policy is policies.router)
    asked = told.asked & served
    columns |= {
        name: np.where(asked, values, np.nan)
        for name, values in told.gate._asdict().items()
        if name != "always_stay"
    }
    columns |= {name: getattr(totals, name) for name in simulate.FIELDS}
    return pd.DataFrame(columns | {"carbon_g": totals.carbon_g})


def _verdicts(told: Account, *, gated: bool) -> list[str]:
    """What became of the wish of each turn, in words, or what a rule without a gate chose."""
    obs, decisions = told.record.observation, told.record.trace.decision
    if not gated:
        stays = np.where(decisions == obs.last, "stays", "moves")
        words = np.where(obs.last < 0, "first turn", stays)
        return np.where(decisions < 0, "unserved", np.char.add("own rule: ", words)).tolist()
    clauses = np.stack(told.gate.clauses(), axis=1)
    return [
        gate.verdict(
            int(decision),
            last=int(obs.last[t]),
            wished=int(told.wished[t]),
            asked=bool(told.asked[t]),
            reasons=[name for name, holds in zip(gate.CLAUSES, clauses[t], strict=True) if holds],
            has_gate=bool(told.has_gate[t]),
        )
        for t, decision in enumerate(decisions)
    ]


def _candidates(policy: str, told: Account, names: pd.DataFrame) -> pd.DataFrame:
    obs, decision = told.record.observation, told.record.trace.decision
    order = np.argsort(obs.score_g, axis=1, kind="stable")
    rank = np.argsort(order, axis=1, kind="stable")
    chosen = np.arange(order.shape[1]) == decision[:, None]
    t, place = np.nonzero(np.take_along_axis(obs.feasible & ((rank < BEST) | chosen), order, 1))
    d = order[t, place]
    columns: dict[str, Any] = {"policy": policy, "turn": t, "rank": place + 1}
    columns |= {axis: names[axis].to_numpy(object)[d] for axis in AXES}
    columns |= {"chosen": chosen[t, d], "cached_tokens": obs.cached_tokens[t, d]}
    columns |= {name: values[t, d] for name, values in told.terms._asdict().items()}
    return pd.DataFrame(columns | {"score_g": obs.score_g[t, d] + obs.score_offset_g[t]})
