"""Sweeps: thousands of settings of a policy, a chunk of them at a time, resumable.

Settings are the outer loop and sessions the inner one: a chunk's rows are whole as soon as its loop
ends, so that they can be kept and only sums have to survive until then. Sessions are put on the
device once, where they have room, and every chunk finds them there.
"""

import dataclasses
import datetime
import functools
import hashlib
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from jaxroute import chunks, cluster, measuring, memory, pareto, space
from jaxroute.batch import MOST_SETTINGS
from jaxroute.comparison import Report
from jaxroute.config import StudyConfig
from jaxroute.load.messages import input_error, nearest_few, shown
from jaxroute.load.toml import validate
from jaxroute.report.parts import Parts, differences
from jaxroute.study import BUNDLED, Study

SWEPT = "swept"
"""Label of the retention where the settings say how long caches live."""

TABLE = "sweep"
"""Name of a chunk's rows where they are kept."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Sweep:
    """The outcome of a sweep.

    Attributes:
      table: one row a dataset, retention and setting, as `sweep` returns it.
      fields: what is swept, columns of the table.
      objectives: what the Pareto front is of.
      fixed: by dataset, the name that a policy with a fixed axis was masked to.
      decisions: turns times settings that this run replayed.
      replay_s: seconds of that, compiling included.
    """

    table: pd.DataFrame
    fields: tuple[str, ...]
    objectives: tuple[str, ...]
    fixed: Mapping[str, Mapping[str, str]]
    decisions: int
    replay_s: float


def sweep(
    study: Study,
    settings: Mapping[str, ArrayLike | Mapping[str, Any]] | pd.DataFrame | None = None,
    *,
    policy: str = "carbon_router",
    method: str = "grid",
    samples: int | None = None,
    objectives: Sequence[str] = pareto.OBJECTIVES,
    latency: bool = False,
) -> pd.DataFrame:
    """Carbon, quality, latency and saving of every setting of a policy.

    Args:
      study: its datasets, retentions and baseline.
      settings: by field (`jaxroute.space.kinds`), values, or `{"low": , "high": , "log": }`; or a
        table of them, a setting a row; without it those of the study's `[sweep]`.
      policy: what the settings differ from: a preset, or a policy of the study's file.
      method: "grid", "random" or "sobol".
      samples: how many settings to draw; of a grid, the points of each range.
      objectives: columns that the Pareto flag is of (`jaxroute.pareto`).
      latency: whether to tell quantiles of TTFT and E2E as well.

    Returns:
      One row a dataset, retention and setting: the values of what is swept, the columns of
      `jaxroute.stats.measures`, the saving against the study's baseline under the same retention
      and world with a 95 % interval, what the baseline emits and serves there, and whether no other
      setting of the dataset and retention is as good in all objectives and better in one. Where
      the settings say how long caches live, they take the place of the study's retentions.

    Raises:
      InputError: for an unknown field or objective, or a value out of range.
    """
    found: dict[str, Any] = {"policy": policy, "method": method, "samples": samples}
    if isinstance(settings, pd.DataFrame):
        study = _with(study, found | {"table": "a table"})
        rows = space.of_table(settings, study.config)
    else:
        if settings is not None:
            study = over(study, settings, **found)
        rows = planned(study.config)
    return run(study, rows, objectives=objectives, latency=latency).table


def over(study: Study, axes: Mapping[str, Any], **sweep: Any) -> Study:
    """The study with a `[sweep]` of these axes, as `sweep` takes them, and of what else it says.

    Raises:
      InputError: for a fault of one of them.
    """
    return _with(study, sweep | {"space": {name: _plain(axis) for name, axis in axes.items()}})


def _with(study: Study, sweep: Mapping[str, Any]) -> Study:
    values = study.config.model_dump(exclude_unset=True) | {"sweep": sweep}
    return dataclasses.replace(study, config=validate(values, StudyConfig, "options"))


def _plain(axis: Any) -> Any:
    return dict(axis) if isinstance(axis, Mapping) else np.asarray(axis).tolist()


def planned(config: StudyConfig) -> pd.DataFrame:
    """The settings of a study's `[sweep]` (`jaxroute.space.settings`).

    Raises:
      InputError: if it has none.
    """
    if config.sweep is None:
        expected = "a table of what to sweep, with policy, method and space"
        raise input_error(f"study {config.name!r}", "[sweep]", "nothing", expected)
    return space.settings(config)


def check(
    objectives: Sequence[str], *, latency: bool = False, option: str = "--pareto"
) -> tuple[str, ...]:
    """The objectives of a Pareto front, given by an option.

    Raises:
      InputError: if one is no figure of the table, or there is none.
    """
    if not objectives:
        raise input_error(option, "", "none", f"a column such as {pareto.OBJECTIVES[0]!r}")
    known = chunks.columns(latency=latency)
    for name in objectives:
        if name not in known:
            near = nearest_few(name, known) or ", ".join(map(repr, pareto.OBJECTIVES))
            raise input_error(option, "", repr(name), f"a column such as {near}")
    return tuple(objectives)


def run(
    study: Study,
    settings: pd.DataFrame,
    *,
    objectives: Sequence[str] = pareto.OBJECTIVES,
    latency: bool = False,
    budget: int | None = None,
    directory: str | Path | None = None,
    report: Report = lambda step, share: None,
) -> Sweep:
    """As `sweep`, of a table of settings, in a directory where a killed run goes on.

    Args:
      study: with a `[sweep]`, of which the policy counts here.
      settings: one row each (`planned`, `jaxroute.space.of_table`).
      objectives, latency: as for `sweep`.
      budget: bytes that may be used, by default half of what is free; how many settings make a
        chunk is settled by it at the first start.
      directory: where to keep the rows of each chunk as soon as they are done, if anywhere.
      report: told of each step.

    Raises:
      InputError: for an unknown objective; if the memory does not suffice for one setting; if the
        directory holds another sweep, or something else.
    """
    assert study.config.sweep is not None
    objectives = check(objectives, latency=latency)
    budget = memory.free_bytes() // 2 if budget is None else budget
    fields = tuple(map(str, settings))
    setup = measuring.set_up(study, study.config.sweep.policy, fields, budget)
    retentions = study.retentions
    if not set(space.RETENTION).isdisjoint(settings):
        retentions = {SWEPT: next(iter(retentions.values()))}

    def settle() -> dict[str, int]:
        most = measuring.fitting(setup, fields, latency=latency)
        return {"memory_bytes": budget, "settings_a_chunk": min(most, MOST_SETTINGS)}

    plan, parts = _plan(study, settings, latency), None
    _same_everywhere(plan)

    def begin() -> tuple[Mapping[str, Any], dict[int, pd.DataFrame]]:
        nonlocal parts
        if directory is None:
            return settle(), {}
        parts = Parts.open(directory, plan, settle)
        return parts.settled, {n: parts.read(n)[0][TABLE] for n in parts.done()}

    settled, done = cluster.led(begin)
    cut = chunks.cut(settings, settled["settings_a_chunk"])
    work = list(itertools.product(setup.sources, retentions, cut))
    decisions = [each.trace.turns * len(chunk.settings) for each, _, chunk in work]
    advance, skip = _progress(report, sum(decisions))
    fixed = {label: each.fixed for label, each in setup.policies.items()}
    tables: list[pd.DataFrame] = []
    replayed, began = 0, time.perf_counter()
    try:
        for n, (each, label, chunk) in enumerate(work):
            if n in done:
                tables.append(done[n])
                skip(decisions[n])
                continue
            told = functools.partial(advance, f"{each.trace.label}, {label}", len(chunk.settings))
            found = measuring.rows(
                setup, each, label, retentions[label], chunk, latency=latency, report=told
            )
            tables.append(found)
            replayed += decisions[n]
            if parts is not None:
                parts.add(n, {TABLE: tables[-1]}, [])
    finally:
        if parts is not None:
            parts.discard_if_empty()
    groups = [tables[at : at + len(cut)] for at in range(0, len(tables), len(cut))]
    table = pd.concat(
        [pd.concat(each).sort_values("setting") for each in groups], ignore_index=True
    )
    table["pareto"] = pareto.flags(table, objectives)
    return Sweep(
        table=table,
        fields=fields,
        objectives=objectives,
        fixed=fixed,
        decisions=replayed,
        replay_s=time.perf_counter() - began,
    )


def _plan(study: Study, settings: pd.DataFrame, latency: bool) -> dict[str, Any]:
    """What must be the same for a killed sweep to go on."""
    exact = settings.to_numpy(np.float64).tobytes()
    return identity(study) | {
        "latency": latency,
        "settings": {"count": len(settings), "sha256": hashlib.sha256(exact).hexdigest()},
    }


def identity(study: Study) -> dict[str, Any]:
    """What a study's results come from, as JSON holds it: the same in two runs that may be one."""
    from jaxroute import RESULTS_VERSION

    config = study.config
    read = {each.path for each in study.datasets} | {*config.files}
    return {
        "results_version": RESULTS_VERSION,
        "study": config.model_dump(mode="json"),
        "inputs_sha256": {k: v for k, v in study.inputs.items() if k in read | {*BUNDLED}},
    }


def _same_everywhere(plan: Mapping[str, Any]) -> None:
    """Stops every process if one was given something else than the leading one."""
    theirs = cluster.led(lambda: plan)
    found = [
        f"{key} is {shown(own)}, not {shown(was)}" for key, was, own in differences(theirs, plan)
    ]
    others = cluster.where(bool(found))
    if others:
        place = f"process {jax.process_index() if found else others[0]}"
        told = found[0] if found else "another study, or other files"
        raise input_error("sweep", place, told, "what process 0 has", "give all the same")


def _progress(
    report: Report, total: int
) -> tuple[Callable[[str, int, int], None], Callable[[int], None]]:
    """Two functions that count decisions: those replayed, and those that an earlier run did.

    `report` is told how many are replayed a second, and how long the rest will take. The clock
    starts when the first are done, so that it leaves compiling out.
    """
    done, fresh, began = 0, 0, 0.0

    def advance(what: str, settings: int, turns: int) -> None:
        nonlocal done, fresh, began
        done += settings * turns
        if not began:
            began = time.perf_counter()
            report(what, done / max(total, 1))
            return
        fresh += settings * turns
        rate = max(fresh, 1) / max(time.perf_counter() - began, 1e-9)
        left = datetime.timedelta(seconds=round((total - done) / rate))
        report(f"{what}: {rate / 1e6:,.1f} M decisions/s, {left} left", done / max(total, 1))

    def skip(decisions: int) -> None:
        nonlocal done
        done += decisions

    report("compile", 0.0)
    return advance, skip
