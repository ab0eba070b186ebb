"""A study's grid on a terminal: what one policy saves, by everything that the study varies."""

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
import rich.box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jaxroute.grid import Grid
from jaxroute.report.load import rough_notes
from jaxroute.report.tables import RECONSTRUCTION, points

PREFERRED = "carbon_router"
"""The policy that is shown, where a study has it; else its first."""

LONG = ">30"
"""Bucket of session length shown apart."""

Figures = pd.DataFrame
"""One row a cell, retention and seed: the saving and its interval, or one figure."""


def show_grid(grid: Grid, out: Console) -> None:
    """Prints, for each trace, the shown policy's figures by combination and retention."""
    baseline = grid.cells[0].config.baseline
    policy = shown_policy(grid)
    for dataset, rows in grid.summary.groupby("dataset", sort=False):
        unserved = f"{rows['unserved_pct'].fillna(0).max():.2f} % unserved"
        for title, figures in _figures(grid, str(dataset), policy, baseline):
            out.print(f"\n{dataset}, {unserved}: {title}", markup=False)
            out.print(_table(figures, grid.axes))
    out.print()
    for line in grid_notes(grid):
        out.print(f"- {line}", markup=False, soft_wrap=not out.is_terminal)


def shown_policy(grid: Grid) -> str:
    """The policy whose figures are shown."""
    policies = grid.summary["policy"].unique()
    others = [name for name in policies if name != grid.cells[0].config.baseline]
    return PREFERRED if PREFERRED in others else next(iter(others), policies[0])


def grid_notes(grid: Grid) -> Iterator[str]:
    """What holds for every cell, and what is not in the tables."""
    yield "(a, b): 95 % interval over sessions" + (
        "; [a, b]: least and greatest over the seeds" if _seeded(grid) else ""
    )
    yield from rough_notes(grid.summary, "rows")
    every = dict.fromkeys(note for notes in grid.notes for note in notes)
    yield from (note for note in every if _holds_throughout(grid, note))
    if "fair_carbon" in set(grid.summary["policy"]):
        yield RECONSTRUCTION
    yield from grid.left_out


def _holds_throughout(grid: Grid, note: str) -> bool:
    """Whether a note is of all the cells of each trace that has it; the others are in run.json."""
    of_cells = list(zip(grid.cells, grid.notes, strict=True))
    traces = {cell.dataset for cell, notes in of_cells if note in notes}
    return all(note in notes for cell, notes in of_cells if cell.dataset in traces)


def _seeded(grid: Grid) -> bool:
    return "seed" in grid.cells[0].labels


def _figures(grid: Grid, dataset: str, policy: str, baseline: str) -> Iterator[tuple[str, Figures]]:
    """Titles and figures: what is saved, of all and of long sessions, quality and latency."""
    keys = [*grid.cells[0].labels, "retention"]

    def of(table: pd.DataFrame, name: str) -> pd.DataFrame:
        return table[(table["dataset"] == dataset) & (table["policy"] == name)].set_index(keys)

    ours = of(grid.summary, policy)
    base = of(grid.summary, baseline).reindex(ours.index)
    saving = f"carbon that {policy} saves against {baseline}, %"
    yield f"{saving}, all sessions", ours
    long = of(grid.by_length, policy)
    long = long[(long["length_bucket"] == LONG) & (long["sessions"] > 0)]
    if len(long):
        yield f"{saving}, sessions of {LONG} turns", long
    quality = ours["mean_quality"] - base["mean_quality"]
    yield f"mean quality of {policy} less {baseline}'s", quality.to_frame("change")
    for name in ("ttft", "e2e"):
        change = 100 * (ours[f"mean_{name}_s"] / base[f"mean_{name}_s"] - 1)
        title = f"mean {name.upper()} of {policy} against {baseline}'s, %"
        yield title, change.to_frame("change_pct")


def _table(figures: Figures, axes: tuple[str, ...]) -> Table:
    retentions = list(figures.index.get_level_values("retention").unique())
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for axis in axes:
        table.add_column(escape(axis), overflow="fold")
    for name in retentions:
        table.add_column(escape(name), justify="right", no_wrap=True)
    groups = figures.groupby(list(axes), sort=False) if axes else [((), figures)]
    for labels, rows in groups:
        cells = [_text(rows[rows.index.get_level_values("retention") == r]) for r in retentions]
        table.add_row(*(escape(str(each)) for each in labels), *cells)
    return table


FORMS: dict[str, Callable[[Any], str]] = {
    "change": lambda value: f"{round(value, 3) + 0.0:+.3f}",
    "change_pct": lambda value: f"{round(value, 1) + 0.0:+.1f}",
    "saving_pct": points,
}


def _text(rows: Figures) -> str:
    """A figure of the first seed, its interval if it has one, and its range over the seeds."""
    column = next(name for name in FORMS if name in rows)
    form, values = FORMS[column], rows[column].dropna()
    if values.empty:
        return ""
    text = form(values.iloc[0])
    if column == "saving_pct":
        ends = rows.loc[values.index[0], ["saving_lo_pct", "saving_hi_pct"]]
        text += f" ({', '.join(map(form, ends))})" if ends.notna().all() else " (too few sessions)"
    if len(values) > 1:
        text += f" [{form(values.min())}, {form(values.max())}]"
    return text
