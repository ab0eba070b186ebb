"""A gate that has learned from the ungated router which sessions move straight back.

One setting for all datasets and retentions of a study, since no feature says how long caches live:
what a return costs the gate knows already, in R.
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from jaxroute import batch, comparison, logistic, misses, paired, wishes
from jaxroute.catalogue import logit
from jaxroute.comparison import Comparison, Report
from jaxroute.config import StudyConfig
from jaxroute.dataset import Dataset
from jaxroute.gate import FEATURES
from jaxroute.load.messages import input_error
from jaxroute.load.toml import validate
from jaxroute.loading import refuse
from jaxroute.logistic import Logistic
from jaxroute.numerics import stack
from jaxroute.policies import RouterParams
from jaxroute.split import split
from jaxroute.stats import bills
from jaxroute.study import Study
from jaxroute.wishes import UNGATED
from jaxroute.world import World

CONSTANTS = {f"p_back_{p:g}": p for p in (0.25, 0.35, 0.5)}
"""The gates to beat: one chance for every wish."""

BY_LABELS, LEARNED = "learned_by_labels", "learned_gate"
"""The gate as fitted, at strength 1, and with the strength of least carbon."""

STRENGTHS = np.round(np.geomspace(1 / 8, 8, 25), 4)

RULES = ("learned", "constant")
"""What is held against the labels: the fitted chance, and the share of yes among those learned."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class LearnedGate:
    """The outcome of `fit_gate`; all but `logistic`, `weights` and `strengths` is of sessions held
    out.

    Attributes:
      study: the study that was learned from.
      policy: the setting as a `[policy.learned_gate]` table of a study file.
      logistic: the fitted chance.
      weights: one row a feature: its `weight`, and `mean` and `sd` of the moves learned from.
      strengths: one row a `gate` and `strength`: `relative_carbon`, the mean over datasets and
        retentions of its carbon over that of the ungated router.
      best_constant: of `CONSTANTS`, the one of least `relative_carbon`.
      scores: one row a dataset, retention and rule (`RULES`), where any move is at stake: `moves`,
        `moved_back_pct`, `auc`, `brier`, the mean squared error of the chance.
      reliability: as `jaxroute.logistic.reliability`, a dataset and rule.
      judged: the study of the sessions held out, with every gate as a policy.
      comparison: of it (`jaxroute.comparison.run`).
      against: what the two learned gates emit less than the constant ones and than none
        (`jaxroute.paired.gains`).
      misses: of `LEARNED`, as `jaxroute.misses.table`, a dataset and retention where the plan is an
        optimum.
      ceilings: what a gate on the same scores that knew the future would capture there
        (`jaxroute.misses.ceilings`).
    """

    study: Study
    policy: Mapping[str, Any]
    logistic: Logistic
    weights: pd.DataFrame
    strengths: pd.DataFrame
    best_constant: str
    scores: pd.DataFrame
    reliability: pd.DataFrame
    judged: Study
    comparison: Comparison
    against: pd.DataFrame
    misses: pd.DataFrame
    ceilings: pd.DataFrame

    @property
    def params(self) -> RouterParams:
        """The setting of `policy`, at the study's quality floor."""
        return self.judged.policies[LEARNED]


def fit_gate(study: Study, report: Report = lambda step, share: None) -> LearnedGate:
    """Learns a gate on half of the sessions, and judges it on the other half.

    The ungated router is rolled out under each retention (`jaxroute.wishes`). Of its moves those
    count that are at stake, `dJ < R`, under all retentions together: no other could be stopped at
    strength 1, whatever `p_back` is, and where caches outlive a detour R is small, so that most are
    of a retention under which leaving costs something. The chance to move straight back is fitted
    to them by maximum likelihood (`jaxroute.logistic`).

    The labels leave amounts out: a move that is taken back may have paid nevertheless. So a second
    stage settles one number, `gate_strength`, by the carbon of the sessions learned from, each
    dataset and retention counting alike. Both settings are judged, `BY_LABELS` and `LEARNED`.

    Args:
      study: its datasets in memory; which sessions are held out hangs on its seed.
      report: told of each step.

    Raises:
      InputError: if a part has no sessions, or if all moves at stake lead back, or none.
    """
    refuse(study, "fit-gate")
    learn, judge = split(study)
    report("wishes", 0)
    seen = wishes.at_stake(_wishes(learn))
    back = seen["moved_back"].to_numpy()
    if back.all() or not back.any():
        counts = f"{back.sum():,} of {len(back):,} moves at stake lead straight back"
        expected = "some that do, and some that do not"
        raise input_error(
            f"study {study.config.name!r}", UNGATED, counts, expected, "take more sessions"
        )
    report("fit", 0.2)
    found = logistic.fit(seen[list(FEATURES)].to_numpy(np.float64), back)
    report("strength", 0.3)
    strengths = _strengths(learn, found)
    strength = float(_best(strengths, [LEARNED])["strength"])
    tables = {name: _table(logit(p)) for name, p in CONSTANTS.items()}
    tables |= {
        name: _table(found.bias, found.weights.tolist(), value)
        for name, value in ((BY_LABELS, 1.0), (LEARNED, strength))
    }

    judged = with_tables(judge, tables)
    told = wishes.at_stake(_wishes(judge))
    base = float(back.mean())
    outcome = comparison.run(judged, lambda step, share: report(step, 0.5 + 0.4 * share))
    pairs = [(gate, rival) for gate in (BY_LABELS, LEARNED) for rival in (*CONSTANTS, UNGATED)]
    report("misses", 0.9)
    lost = misses.table(judged, LEARNED, outcome.summary)
    report("a gate that knows the future", 0.95)
    ceilings = misses.ceilings(judged, LEARNED, outcome.summary)
    return LearnedGate(
        study=study,
        policy=tables[LEARNED],
        logistic=found,
        weights=pd.DataFrame(
            {"feature": FEATURES, "weight": found.weights, "mean": found.mean, "sd": found.sd}
        ),
        strengths=strengths,
        best_constant=str(_best(strengths, CONSTANTS)["gate"]),
        scores=_scores(told, found, base),
        reliability=_reliability(told, found, base),
        judged=judged,
        comparison=outcome,
        against=paired.gains(judged, outcome.sessions, pairs),
        misses=lost,
        ceilings=ceilings,
    )


def with_tables(study: Study, tables: Mapping[str, Mapping[str, Any]]) -> Study:
    """The study with `[policy.…]` tables beside those of its file, and only these and the ungated
    router, and its baseline, to compare.
    """
    values = study.config.model_dump(exclude_unset=True)
    own = values.get("policy", {}) | tables
    config = validate(values | {"policy": own}, StudyConfig, "options")
    return dataclasses.replace(study, config=config).with_policies([UNGATED, *tables])


def _table(
    bias: float, weights: Sequence[float] = (0.0,) * len(FEATURES), strength: float = 1.0
) -> dict[str, Any]:
    return {
        "preset": "carbon_router",
        "gate_strength": strength,
        "gate_bias": bias,
        "gate_weights": list(weights),
    }


def _wishes(study: Study) -> pd.DataFrame:
    """`jaxroute.wishes.labelled` under every retention, with columns dataset and retention."""
    router = study.preset(UNGATED)
    return pd.concat(
        [
            wishes.labelled(
                wishes.turns(router, dataset, study.world.replace(retention=each))
            ).assign(dataset=dataset.label, retention=label)
            for dataset in study.datasets
            for label, each in study.retentions.items()
        ],
        ignore_index=True,
    )


def _strengths(study: Study, found: Logistic) -> pd.DataFrame:
    """Carbon of the constant gates and of the fitted one at each strength, over the ungated."""
    router = study.preset("carbon_router")
    learned = router.replace(gate_bias=found.bias, gate_weights=found.weights.tolist())
    rows = [(name, 1.0, router.replace(gate_bias=logit(p))) for name, p in CONSTANTS.items()]
    rows += [(LEARNED, s, learned.replace(gate_strength=float(s))) for s in STRENGTHS]
    params = stack([study.preset(UNGATED), *(each for *_, each in rows)])
    relative = []
    for dataset in study.datasets:
        for retention in study.retentions.values():
            carbon_g = _carbon_g(params, dataset, study.world.replace(retention=retention))
            relative.append(carbon_g[1:] / carbon_g[0])
    return pd.DataFrame(
        {
            "gate": [gate for gate, *_ in rows],
            "strength": [strength for _, strength, _ in rows],
            "relative_carbon": np.mean(relative, axis=0),
        }
    )


def _carbon_g(params: RouterParams, dataset: Dataset, world: World) -> np.ndarray:
    """`[P]`, of a whole dataset."""
    return np.sum(
        [
            bills(vars(batch.replay_settings(params, sessions, world)[0])).sum(-1)
            for _, sessions in dataset.blocks()
        ],
        axis=0,
    )


def _best(strengths: pd.DataFrame, gates: Iterable[str]) -> pd.Series:
    """The row of least carbon among those of some gates."""
    own = strengths[strengths["gate"].isin(list(gates))]
    return own.iloc[int(own["relative_carbon"].argmin())]


def _chances(moves: pd.DataFrame, found: Logistic, base: float) -> dict[str, np.ndarray]:
    features = moves[list(FEATURES)].to_numpy(np.float64)
    learned = logistic.chance(found.bias, found.weights, features)
    return dict(zip(RULES, (learned, np.full(len(moves), base)), strict=True))


def _scores(moves: pd.DataFrame, found: Logistic, base: float) -> pd.DataFrame:
    rows = []
    for (dataset, retention), own in moves.groupby(["dataset", "retention"], sort=False):
        yes = own["moved_back"].to_numpy()
        for rule, chance in _chances(own, found, base).items():
            rows.append(
                {
                    "dataset": dataset,
                    "retention": retention,
                    "rule": rule,
                    "moves": len(own),
                    "moved_back_pct": 100 * yes.mean(),
                    "auc": logistic.auc(chance, yes),
                    "brier": np.mean((chance - yes) ** 2),
                }
            )
    return pd.DataFrame(rows)


def _reliability(moves: pd.DataFrame, found: Logistic, base: float) -> pd.DataFrame:
    return pd.concat(
        [
            logistic.reliability(chance, own["moved_back"].to_numpy()).assign(
                dataset=dataset, rule=rule
            )
            for dataset, own in moves.groupby("dataset", sort=False)
            for rule, chance in _chances(own, found, base).items()
        ],
        ignore_index=True,
    )[["dataset", "rule", "low", "high", "count", "mean_chance", "observed_share"]]
