"""What the gate is asked, turn by turn, and whether the wish led straight back."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd

from jaxroute import gate, policies, simulate
from jaxroute.dataset import Dataset
from jaxroute.policies import RouterParams
from jaxroute.regret import Regret, hindsight_regret
from jaxroute.sessions import Sessions
from jaxroute.simulate import Record
from jaxroute.world import Array, World

UNGATED = "carbon_router_no_gate"
"""Whose moves are learned from: where there is no gate every wish is followed."""


class Wish(NamedTuple):
    """Of a turn; what the gate weighs is 0 where it was not asked.

    Attributes:
      decision: `[]` int32, the deployment that served, -1 if none could.
      last: `[]` int32, the one before, -1 for none.
      wished: `[]` int32, the deployment of the least score.
      asked: `[]` bool, whether it is another than the last, which could serve as well.
      prefix_tokens: `[]`, k.
      gain_g, return_g, p_back: `[]`, of `jaxroute.gate.Terms`.
      features: `[8]`, `jaxroute.gate.features`.
    """

    decision: Array
    last: Array
    wished: Array
    asked: Array
    prefix_tokens: Array
    gain_g: Array
    return_g: Array
    p_back: Array
    features: Array


def wish(params: RouterParams, record: Record) -> Wish:
    """What `evaluate(trace=wish)` keeps of a turn under `jaxroute.policies.router`."""
    obs = record.observation
    here, wished, asked = policies.wish(obs)
    asked &= record.totals.turns > 0
    terms = gate.terms(params, obs, here, wished)
    score_g = obs.score_g[here] + obs.score_offset_g
    features = gate.features(obs, obs.at(here), obs.at(wished), score_g, terms.gain_g)
    return Wish(
        decision=record.trace.decision,
        last=obs.last,
        wished=wished,
        asked=asked,
        prefix_tokens=obs.prefix_tokens,
        gain_g=jnp.where(asked, terms.gain_g, 0),
        return_g=jnp.where(asked, terms.return_g, 0),
        p_back=jnp.where(asked, terms.p_back, 0),
        features=jnp.where(asked, features, 0),
    )


@functools.partial(jax.jit, static_argnames="regret")
def _replay(
    params: RouterParams, sessions: Sessions, world: World, *, regret: bool
) -> tuple[Wish, Regret | None]:
    _, told = simulate.evaluate(params, sessions, world, trace=wish)
    return told, hindsight_regret(params, sessions, world, told.decision) if regret else None


def turns(
    params: RouterParams, dataset: Dataset, world: World, *, regret: bool = False
) -> pd.DataFrame:
    """One row a turn, session by session, of a router's replay.

    Args:
      params: the router.
      dataset, world: what it is replayed on.
      regret: whether to tell as well what each decision cost in hindsight.

    Returns:
      `session`, its index, `turn`, the fields of `Wish`, a column of each of
      `jaxroute.gate.FEATURES`, and with `regret` those of `jaxroute.regret.Regret`.
    """
    tables = []
    for part, sessions in dataset.blocks():
        told, lost = jax.device_get(_replay(params, sessions, world, regret=regret))
        packed = sessions.turns
        valid = np.asarray(packed.valid)
        columns: dict[str, Any] = {
            "session": np.asarray(packed.session)[valid].astype(np.int64) + part.start,
            "turn": np.asarray(packed.turn)[valid].astype(np.int64),
        }
        columns |= {name: getattr(told, name)[valid] for name in Wish._fields[:-1]}
        columns |= dict(zip(gate.FEATURES, told.features[valid].T, strict=True))
        if lost is not None:
            columns |= {name: values[valid] for name, values in lost._asdict().items()}
        tables.append(pd.DataFrame(columns).sort_values(["session", "turn"]))
    return pd.concat(tables, ignore_index=True)


def labelled(told: pd.DataFrame) -> pd.DataFrame:
    """The wishes among `turns` of the ungated router, told whether they were taken back.

    `moved_back`: the session's next turn is served where this one left. The last turn of a session,
    and one whose next is unserved, is a no.
    """
    following = told["decision"].shift(-1, fill_value=-1)
    same = told["session"].shift(-1, fill_value=-1) == told["session"]
    moved_back = told["asked"] & same & (following == told["last"])
    return told.assign(moved_back=moved_back)[told["asked"]]


def at_stake(moves: pd.DataFrame) -> pd.DataFrame:
    """Those that a gate of strength 1 could stop, were it sure of the return: `dJ < R`."""
    return moves[moves["gain_g"] < moves["return_g"]]
