"""Tuning: the numbers of a policy by gradient, through the relaxed replay, and how good they are.

What is learned from some sessions is told of others: every result is replayed with hard choices on
the sessions held out, beside the best of a search without gradients that tried as many settings.
"""

import dataclasses
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from jaxroute import comparison, descent, measuring, memory, paired, space, stats
from jaxroute.batch import MOST_SETTINGS
from jaxroute.comparison import Comparison, Report
from jaxroute.config import PolicyConfig, StudyConfig
from jaxroute.load.messages import input_error
from jaxroute.load.toml import validate
from jaxroute.load.tuning import TuneConfig
from jaxroute.loading import refuse
from jaxroute.policies import RouterParams
from jaxroute.split import split
from jaxroute.study import Study

TUNED, SEARCHED = "tuned", "best_of_search"
"""Names of the tuned policy, and of the best of the Sobol points."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Tuning:
    """The outcome of tuning, and how good it is on sessions that it has not seen.

    Attributes:
      study: the study that was tuned, with the policy `tuned`.
      judge: the study of the sessions held out, with the policies of `judged`.
      fields: what was tuned, by name the tuned number.
      starts: one row a start: the fields as they ended; `soft`, the objective at the last
        temperature on the sessions learned from; `learned` and `held_out`, the objective by hard
        choices on these and on the sessions held out.
      loss: one row a step and start: `step`, `start`, `temperature`, `loss`, of one piece of each
        trace, so that it also says how pieces differ.
      judged: the comparison on the sessions held out: the study's baseline, what was tuned, `tuned`
        and `best_of_search`.
      gains: what `tuned` emits less than `best_of_search`, and than the policy that was tuned
        (`jaxroute.paired.gains`).
      scores: by name, the objective of those two and of the policy on the sessions held out.
      settings: how many settings the search tried.
      tune_s, search_s: seconds that both took, compiling included.
    """

    study: Study
    judge: Study
    fields: Mapping[str, float]
    starts: pd.DataFrame
    loss: pd.DataFrame
    judged: Comparison
    gains: pd.DataFrame
    scores: Mapping[str, float]
    settings: int
    tune_s: float
    search_s: float

    @property
    def better(self) -> bool:
        """Whether tuning did better than the search, on the sessions held out.

        In the mean, with an interval above 0 somewhere, and nowhere one below.
        """
        over = self.gains[self.gains["rival"] == SEARCHED]
        ahead, behind = (over["gain_lo_pct"] > 0).any(), (over["gain_hi_pct"] < 0).any()
        return bool(self.scores[TUNED] < self.scores[SEARCHED] and ahead and not behind)


def tune(study: Study, options: Mapping[str, Any] | None = None) -> Tuning:
    """Tunes the numbers of a policy by gradient.

    The objective is the mean, over the study's datasets and retentions, of
    `(carbon + quality_price_g (turns - quality) + latency_price_g_per_s e2e) / baseline carbon`,
    each a sum over sessions. With `least_quality` the mean predicted quality has to reach it: the
    price of quality then rises by dual ascent for as long as it does not. Many starts descend at
    once by Adam (Kingma and Ba, 2015) in the box of the space, each step through the relaxed replay
    (`jaxroute.relaxed`) of one piece of each trace, at a temperature that falls geometrically. The
    first start is the policy itself, the others are Sobol points. Of the ends, and of as many
    further Sobol points as there were steps and starts, the best by hard choices count, all on the
    sessions learned from.

    Args:
      study: its datasets in memory; its `[tune]` says what and how, by default the gate of
        `carbon_router`.
      options: keys of `[tune]` in place of the study's.

    Raises:
      InputError: for a fault of the options; for a policy with a fixed axis, or that is no setting
        of the router; for too few sessions.

    `configs/tune.toml` is a study that says what to tune, and how.
    """
    return run(study if options is None else with_options(study, options))


def with_options(study: Study, options: Mapping[str, Any]) -> Study:
    """The study with these keys of `[tune]` in place of its own."""
    values = study.config.model_dump(exclude_unset=True)
    values["tune"] = values.get("tune", {}) | dict(options)
    return dataclasses.replace(study, config=validate(values, StudyConfig, "options"))


def run(study: Study, report: Report = lambda step, share: None) -> Tuning:
    """As `tune`, of a study's own `[tune]`."""
    refuse(study, "tune")
    config = study.config.tune or TuneConfig()
    base = study.with_policies([config.policy])
    if config.policy in base.fixed:
        found = f"{config.policy!r}, masked by what a dataset tells"
        raise input_error("tune", "policy", found, "one without a fixed axis")
    learn, judge = split(study, config.held_out)
    start = base.policies[config.policy]

    began = time.perf_counter()
    ends, soft, loss = descent.descend(learn, start, config, report)
    tuned_s = time.perf_counter() - began
    began = time.perf_counter()
    count = config.starts * config.steps  # as many settings as the descent looks at
    drawn = descent.rounded(space.drawn(config.space, "sobol", count, study.config.seed))
    learned = _scores(learn, pd.concat([ends, drawn], ignore_index=True), config, report)
    at_ends, searched = learned[: len(ends)], learned[len(ends) :]
    search_s = time.perf_counter() - began
    best, rival = ends.iloc[int(at_ends.argmin())], drawn.iloc[int(searched.argmin())]
    own = _own(start, config)
    rows = pd.DataFrame([best, rival, own])
    held = _scores(judge, pd.concat([ends, rows], ignore_index=True), config, report)

    named = {
        name: _policy(study, start, config, values)
        for name, values in ((TUNED, best), (SEARCHED, rival))
    }
    names = dict.fromkeys([config.policy, *named, study.config.baseline])
    judge = _with_policies(judge, named).with_policies(list(names))
    judged = comparison.run(judge, report)
    pairs = [(TUNED, rival) for rival in dict.fromkeys((SEARCHED, config.policy))]
    return Tuning(
        study=_with_policies(study, {TUNED: named[TUNED]}),
        judge=judge,
        fields={str(name): float(value) for name, value in best.items()},
        starts=ends.assign(
            soft=soft,
            learned=at_ends,
            held_out=held[: len(ends)],
        ).rename_axis("start"),
        loss=loss,
        judged=judged,
        gains=paired.gains(judge, judged.sessions, pairs),
        scores=dict(zip([TUNED, SEARCHED, config.policy], held[len(ends) :], strict=True)),
        settings=len(drawn),
        tune_s=tuned_s,
        search_s=search_s,
    )


def _scores(
    study: Study, settings: pd.DataFrame, config: TuneConfig, report: Report
) -> stats.Floats:
    """The objective of settings by hard choices, `[P]`; infinite where quality is too low."""
    setup = measuring.set_up(study, config.policy, tuple(config.space), memory.free_bytes() // 2)
    report("replay", 1.0)
    table = measuring.table(setup, settings, min(MOST_SETTINGS, len(settings)))
    turns = table["turns"].to_numpy(np.float64)
    grams = (
        table["carbon_g"]
        + config.quality_price_g * turns * (1 - table["mean_quality"])
        + config.latency_price_g_per_s * turns * table["mean_e2e_s"]
    )
    each = pd.DataFrame(
        {
            "setting": table["setting"],
            "ratio": grams / table["baseline_carbon_g"],
            "quality": table["mean_quality"],
        }
    )
    mean = each.groupby("setting").mean().reindex(np.arange(len(settings)))
    ratio = mean["ratio"].to_numpy(np.float64)
    if config.least_quality is not None:
        ratio = np.where(mean["quality"] >= config.least_quality, ratio, np.inf)
    return ratio


def _own(params: RouterParams, config: TuneConfig) -> pd.Series:
    """What the policy itself has of each field."""
    return pd.Series({name: float(descent.field(params, name)) for name in config.space})


def _policy(
    study: Study, base: RouterParams, config: TuneConfig, values: pd.Series
) -> PolicyConfig:
    """The policy with these numbers, as a study file has it."""
    setting = {str(name): float(value) for name, value in values.items()}
    table = space.as_policy(config.policy, base, setting, study.config)
    return validate(table, PolicyConfig, "tuned")


def _with_policies(study: Study, named: Mapping[str, PolicyConfig]) -> Study:
    policies = {**study.config.policy, **named}
    return dataclasses.replace(study, config=study.config.model_copy(update={"policy": policies}))
