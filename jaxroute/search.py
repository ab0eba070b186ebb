"""Search of a policy's settings by Optuna, in batches that the sweep's programs replay."""

import contextlib
import dataclasses
import importlib
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from jaxroute import measuring, memory, pareto, space, sweeping
from jaxroute.load.messages import input_error, shown
from jaxroute.load.space import Range
from jaxroute.measuring import Setup
from jaxroute.report.parts import differences
from jaxroute.split import split
from jaxroute.study import Study

if TYPE_CHECKING:
    import optuna

BATCH = 64
"""Trials that are asked for, replayed together, and told."""

IDENTITY = "jaxroute"
"""Attribute of Optuna's study that says what is searched."""

LEARN, JUDGE = "learn", "held_out"
"""Parts of the sessions: those that the search sees, and those that it does not."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Search:
    """The outcome of a search.

    Attributes:
      trials: one row a trial, in Optuna's order: its number and state, what is searched, the
        objectives, and whether no other trial is as good in all of them and better in one. A trial
        that an earlier run was killed in, or that has no number for an objective, has failed.
      best: of these rows, the best trial; of several objectives, their front.
      scores: the best on the sessions searched by (`part` "learn") and on those held out
        ("held_out"): one row a part, dataset, retention and trial, as `jaxroute.sweep` returns
        it, with the saving against the baseline and its 95 % interval. The second is the one to
        believe.
      policies: by trial, the best as tables of the study file's `[policy.…]`.
      study: Optuna's, for its plots and its storage.
    """

    trials: pd.DataFrame
    best: pd.DataFrame
    scores: pd.DataFrame
    policies: Mapping[int, Mapping[str, Any]]
    study: "optuna.Study"


def search(
    study: Study,
    settings: Mapping[str, ArrayLike | Mapping[str, Any]],
    *,
    policy: str = "carbon_router",
    objectives: Sequence[str] = ("carbon_g",),
    trials: int = 512,
    sampler: "optuna.samplers.BaseSampler | None" = None,
    storage: "str | optuna.storages.BaseStorage | None" = None,
    study_name: str | None = None,
) -> Search:
    """The settings of a policy that Optuna finds best on one half of the sessions.

    Trials are asked for 64 at a time, and replayed by programs that are compiled once, from
    sessions that stay on the devices. An objective is the mean of its column over datasets and
    retentions: in `carbon_g` the largest dataset counts most, in `saving_pct` each counts alike.
    The best are measured again on the other half (`jaxroute.split`).

    Args:
      study: its datasets in memory, its retentions and its baseline.
      settings: by field of the policy (`jaxroute.space.kinds`), a list to choose from, or
        `{"low": , "high": , "log": }`.
      policy: what the settings differ from: a preset, or a policy of the study's file.
      objectives: columns of a sweep's table; `jaxroute.pareto` says which are to be maximised.
      trials: how many in all; those already in the storage count.
      sampler: any of Optuna's. By default TPE, or NSGA-II for several objectives, seeded anew in
        each batch by the study's seed and the trials before it: a search that goes on after a
        whole batch, or was killed in one, finds what one in one go would have.
      storage: where Optuna keeps the trials, so that the same call goes on with them: a URL such as
        `sqlite:///trials.db`, or a storage of Optuna's. One process at a time: what another is
        still running is taken for the remains of one that was killed.
      study_name: in the storage; by default that of the study.

    Raises:
      InputError: for an unknown field or objective, a value out of range or a field of the world;
        if the storage has another search of that name; without Optuna.
    """
    optuna, fields = _optuna(), tuple(settings)
    study = sweeping.over(study, settings, policy=policy, method="random", samples=trials)
    if isinstance(objectives, str) or len(set(objectives)) < len(objectives):
        raise input_error("search", "objectives", shown(objectives), "a list, each of them once")
    names = sweeping.check(objectives, option="objectives")
    for name in fields:
        if name in space.WORLD:
            found, expected = "a field of the world", "one of the policy, which is what is searched"
            raise input_error("search", f"settings.{name}", found, expected)
    parts = dict(zip((LEARN, JUDGE), split(study), strict=True))
    with _quiet(optuna):
        theirs = _opened(optuna, storage, study_name or study.config.name, names)
        _go_on(theirs, _identity(study, names))
        budget = memory.free_bytes() // 2 // len(parts)
        setups = {
            part: measuring.set_up(each, policy, fields, budget) for part, each in parts.items()
        }
        _run(theirs, setups[LEARN], names, trials, sampler)
        table = _trials(theirs, fields, names)
    best = _best(table, fields, names)
    frame = best[list(fields)].reset_index(drop=True)
    base = study.with_policies([policy]).policies[policy]
    return Search(
        trials=table,
        best=best,
        scores=_scores(setups, best, frame),
        policies={
            trial: space.as_policy(policy, base, dict(zip(fields, row, strict=True)), study.config)
            for trial, row in zip(best["trial"], frame.to_numpy().tolist(), strict=True)
        },
        study=theirs,
    )


def _optuna() -> Any:
    try:
        return importlib.import_module("optuna")
    except ImportError as error:
        mend = 'pip install "jaxroute[optuna]"'
        raise input_error("search", "", "no module optuna", "Optuna", mend) from error


@contextlib.contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Without Optuna's word on every study and trial; its warnings stay."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(before, optuna.logging.WARNING))
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def _identity(study: Study, objectives: tuple[str, ...]) -> dict[str, Any]:
    """What must be the same for a search to go on; how many trials, need not be."""
    found = sweeping.identity(study)
    del found["study"]["sweep"]["samples"]
    turns = {each.label: each.turns for each in study.datasets}
    return found | {"turns": turns, "objectives": list(objectives)}


def _go_on(theirs: "optuna.Study", identity: Mapping[str, Any]) -> None:
    """Makes Optuna's study that of this search, without what a killed run left.

    Raises:
      InputError: if it is of another search.
    """
    if not theirs.get_trials(deepcopy=False):
        theirs.set_user_attr(IDENTITY, identity)
    changes = list(differences(theirs.user_attrs.get(IDENTITY, {}), identity))
    if changes:
        key, was, now = changes[0]
        found = f"another search: {key} was {shown(was)} and is now {shown(now)}"
        mend = "give another study_name"
        raise input_error(f"study {theirs.study_name!r}", "", found, "this one", mend)
    state = _states()
    for trial in theirs.get_trials(deepcopy=False, states=(state.RUNNING,)):
        theirs.tell(trial.number, state=state.FAIL)


def _run(
    theirs: "optuna.Study",
    setup: Setup,
    objectives: tuple[str, ...],
    trials: int,
    sampler: "optuna.samplers.BaseSampler | None",
) -> None:
    """Asks for batches of trials, replays and tells them, until so many are complete."""
    config, state = setup.study.config, _states()
    assert config.sweep is not None
    assert config.sweep.space is not None
    axes = {name: _distribution(axis) for name, axis in config.sweep.space.items()}
    done = len(theirs.get_trials(deepcopy=False, states=(state.COMPLETE,)))
    for begin in range(done, trials, BATCH):
        theirs.sampler = sampler or _sampler(config.seed, begin, several=len(objectives) > 1)
        asked = [theirs.ask(axes) for _ in range(min(BATCH, trials - begin))]
        frame = pd.DataFrame([trial.params for trial in asked], dtype=np.float64)
        values = _means(measuring.table(setup, frame, BATCH), objectives)
        for trial, own in zip(asked, values, strict=True):
            if np.isnan(own).any():
                theirs.tell(trial, state=state.FAIL)
            else:
                theirs.tell(trial, own.tolist())


def _opened(optuna: Any, storage: Any, name: str, objectives: Sequence[str]) -> "optuna.Study":
    """Optuna's study of that name, a new one or the one in the storage."""
    directions = [
        "maximize" if each in pareto.MORE_IS_BETTER else "minimize" for each in objectives
    ]
    given = {"storage": storage, "study_name": name, "directions": directions}
    try:
        return optuna.create_study(**given, load_if_exists=True)
    except Exception as error:  # of whatever kind the storage has
        found = f"{type(error).__name__} ({str(error).strip().splitlines()[0]})"
        expected = "a storage of Optuna's, such as 'sqlite:///trials.db'"
        raise input_error("search", f"storage {shown(storage)}", found, expected) from error


def _states() -> Any:
    return importlib.import_module("optuna.trial").TrialState


def _distribution(axis: Range | tuple[float, ...]) -> Any:
    distributions = importlib.import_module("optuna.distributions")
    if isinstance(axis, Range):
        return distributions.FloatDistribution(axis.low, axis.high, log=axis.log)
    return distributions.CategoricalDistribution(axis)


def _sampler(seed: int, begin: int, *, several: bool) -> "optuna.samplers.BaseSampler":
    samplers = importlib.import_module("optuna.samplers")
    words = [seed, begin, zlib.crc32(b"search")]
    own = int(np.random.SeedSequence(words).generate_state(1)[0])
    if several:
        return samplers.NSGAIISampler(population_size=BATCH, seed=own)
    return samplers.TPESampler(seed=own)


def _means(table: pd.DataFrame, objectives: tuple[str, ...]) -> NDArray[np.float64]:
    """Means over datasets and retentions, `[P, K]`, of P settings; NaN where one of them is."""
    size = table["setting"].max() + 1
    values = table[list(objectives)].to_numpy(np.float64, na_value=np.nan)
    return values.reshape(-1, size, len(objectives)).mean(axis=0)


def _trials(
    theirs: "optuna.Study", fields: tuple[str, ...], objectives: tuple[str, ...]
) -> pd.DataFrame:
    unknown = [np.nan] * len(objectives)
    rows = [
        [each.number, each.state.name.lower()]
        + [each.params[name] for name in fields]
        + (each.values or unknown)
        for each in theirs.get_trials(deepcopy=False)
    ]
    table = pd.DataFrame(rows, columns=["trial", "state", *fields, *objectives])
    table["pareto"] = pareto.front(pareto.costs(table, objectives))
    return table


def _best(
    table: pd.DataFrame, fields: tuple[str, ...], objectives: tuple[str, ...]
) -> pd.DataFrame:
    front = table[table["pareto"]].drop_duplicates(list(fields))
    return front.head(1) if len(objectives) == 1 else front


def _scores(setups: Mapping[str, Setup], best: pd.DataFrame, frame: pd.DataFrame) -> pd.DataFrame:
    """The rows of a sweep for the best trials, on each part of the sessions."""
    if best.empty:
        return pd.DataFrame()
    parts = []
    for part, setup in setups.items():
        table = measuring.table(setup, frame, BATCH)
        table.insert(0, "part", part)
        table.insert(1, "trial", best["trial"].to_numpy()[table.pop("setting")])
        parts.append(table)
    return pd.concat(parts, ignore_index=True)
