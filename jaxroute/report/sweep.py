"""A sweep on a terminal: the settings of least carbon, the Pareto front, and notes."""

import functools
from collections.abc import Iterator
from typing import Any

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jaxroute.report import tables
from jaxroute.report.load import rough_notes
from jaxroute.report.tables import RECONSTRUCTION, WORSE, notes_of, put, put_notes, titled
from jaxroute.study import Study
from jaxroute.sweeping import SWEPT, Sweep

FIGURES = ("carbon g", "saving % (95 % interval)", "quality", "TTFT s", "E2E s", "moves")
"""Columns of `jaxroute.report.tables.COLUMNS` that are shown."""

LESS = (FIGURES, FIGURES[:-1], FIGURES[:3], FIGURES[:2])
"""What is shown of them, the first that the terminal has room for."""


def show_sweep(study: Study, sweep: Sweep, out: Console, *, top: int, whole_front: bool) -> None:
    """Prints the settings that emit least and, if asked for, all of the front, then the notes.

    Args:
      study: what was swept.
      sweep: the outcome.
      out: the terminal.
      top: how many settings of each dataset and retention.
      whole_front: whether to print the front as well.
    """
    for title, rows in titled(study, sweep.table):
        best = rows.sort_values("carbon_g", kind="stable").head(top)
        ranked = f"{title}: {len(best)} of {len(rows):,} settings, least carbon first"
        if len(best):
            put(out, functools.partial(_table, sweep, best), ranked, [list(c) for c in LESS])
        if whole_front:
            front = rows[rows["pareto"]].sort_values(sweep.objectives[0], kind="stable")
            named = f"{title}: Pareto front of {', '.join(sweep.objectives)}"
            put(out, functools.partial(_table, sweep, front), named, [list(c) for c in LESS])
    put_notes(out, sweep_notes(study, sweep))


def _table(sweep: Sweep, rows: pd.DataFrame, title: str, columns: list[str]) -> Table:
    known = [name for name in sweep.objectives if name not in SHOWN]
    table = tables.grid(title, "setting", [*map(escape, sweep.fields), *columns, *known, "front"])
    for row in _marked(rows):
        table.add_row(
            str(row["setting"]),
            *(f"{row[name]:.6g}" for name in sweep.fields),
            *(tables.COLUMNS[name](row) for name in columns),
            *(f"{row[name]:.6g}" for name in known),
            "yes" if row["pareto"] else "",
        )
    return table


SHOWN = ("carbon_g", "mean_quality", "mean_ttft_s", "mean_e2e_s", "saving_pct", "moves")
"""Objectives that need no column more."""


def _marked(rows: pd.DataFrame) -> Iterator[dict[str, Any]]:
    """The rows, told which serve less quality than their baseline."""
    for row in rows.to_dict("records"):
        worse = row["mean_quality"] < row["baseline_mean_quality"] - WORSE
        yield {str(k): v for k, v in row.items()} | {"is_baseline": False, "worse": worse}


def sweep_notes(study: Study, sweep: Sweep) -> Iterator[str]:
    """How many settings are on the front, and what holds for all of them, a line each."""
    assert study.config.sweep is not None
    policy, baseline = study.config.sweep.policy, study.config.baseline
    groups = sweep.table.groupby(["dataset", "retention"], sort=False)["pareto"]
    counts = [
        f"{dataset}, {retention}: {flags.sum():,} of {len(flags):,}"
        for (dataset, retention), flags in groups
    ]
    yield from rough_notes(sweep.table, "settings")
    yield f"on the Pareto front of {', '.join(sweep.objectives)}: {'; '.join(counts)}"
    yield (
        f"settings of {policy}; saving against {baseline} under the same retention and world; "
        f"*: mean quality more than {WORSE:g} below its, so no like-for-like saving"
    )
    if SWEPT in set(sweep.table["retention"]):
        yield "the settings say how long caches live, in place of the study's retentions"
    yield from notes_of(study, sweep.table.assign(policy="the setting with the most"), sweep.fixed)
    if "fair_carbon" in (policy, baseline):
        yield RECONSTRUCTION
