"""The parts of the router's saving on a terminal, split in two ways beside each other."""

import functools
from collections.abc import Iterator

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from jaxroute.ablation import (
    BASELINE,
    IN_ORDER,
    OFF_ALONE,
    REST,
    ROUTER,
    START,
    STEPS,
    TOTAL,
    Ablation,
)
from jaxroute.report.load import rough_notes
from jaxroute.report.tables import (
    RECONSTRUCTION,
    grid,
    notes_of,
    put,
    put_notes,
    titled,
    with_interval,
)
from jaxroute.study import Study

ROWS = (START, *(name for name, *_ in STEPS), REST, TOTAL)

COLUMNS = {
    "in order, %": lambda alone, order: _share(order),
    "switched off alone, %": lambda alone, order: _share(alone),
    "quality with it, in order": lambda alone, order: _quality(order, "with"),
    "quality without it alone": lambda alone, order: _quality(alone, "without"),
}
"""Of the component's row in each way, None where it has none."""

CHOICES = [list(COLUMNS), list(COLUMNS)[:2]]
"""Of columns: all, or those that a narrow terminal has room for."""


def show_ablation(study: Study, ablation: Ablation, out: Console) -> None:
    """Prints a table for each dataset and retention, then how to read them."""
    for title, rows in titled(study, ablation.table, ablation.summary):
        made = functools.partial(_table, rows)
        put(out, made, f"{title}: {ROUTER} over {BASELINE}", CHOICES)
    put_notes(out, ablation_notes(study, ablation))


def _table(rows: pd.DataFrame, title: str, columns: list[str]) -> Table:
    table = grid(title, "component", columns)
    found = {(row["way"], row["component"]): row for row in rows.to_dict("records")}
    for name in ROWS:
        alone, order = found.get((OFF_ALONE, name)), found.get((IN_ORDER, name))
        if name == TOTAL:
            table.add_section()
        cells = (COLUMNS[column](alone, order) for column in columns)
        table.add_row(f"{TOTAL}, the saving" if name == TOTAL else name, *cells)
    return table


def _share(row: dict | None) -> str:
    if row is None:
        return ""
    return with_interval(row, "share")


def _quality(row: dict | None, side: str) -> str:
    if row is None or np.isnan(row[f"quality_{side}"]):
        return ""
    return f"{row[f'quality_{side}']:.3f}"


def ablation_notes(study: Study, ablation: Ablation) -> Iterator[str]:
    """How to read the split, and what holds for every replay of the study, a line each."""
    yield from rough_notes(ablation.summary, "variants")
    yield (
        f"% of {BASELINE}'s carbon under the same retention that a component saves, with its "
        "paired bootstrap 95 % interval; negative: it costs carbon"
    )
    yield (
        f"in order: components added from the top to one fixed deployment that knows nothing of "
        f"caches; with the three choices it is {BASELINE}, so that the last two make the saving; "
        "start and steps add up to it"
    )
    yield (
        f"switched off alone: {ROUTER} against itself without the component, all others on; "
        "rest is what the five leave of the saving"
    )
    yield (
        "the two differ because components share and need one another: a choice is worth more or "
        f"less with the others there, and {BASELINE} has the three choices too, so that what they "
        f"are worth to {ROUTER} is no part of its saving over it"
    )
    yield (
        "model choice buys quality: one model has what it has, whatever the rule is for the others "
        f"({study.config.quality_rule}); a component that changes quality saves not like for like"
    )
    yield from notes_of(study, ablation.summary, ablation.fixed)
    yield RECONSTRUCTION
