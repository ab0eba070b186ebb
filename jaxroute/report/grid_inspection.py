"""What a file of carbon intensity holds, on a terminal."""

import functools
from collections.abc import Iterator
from typing import Any

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jaxroute.grid_inspection import GridInspection
from jaxroute.load.carbon import names_of
from jaxroute.load.grids.hours import LONGEST_GAP
from jaxroute.load.grids.readings import described
from jaxroute.report.tables import grid, put, put_notes

COLUMNS = {
    "region": lambda row: escape(row["region"] or "none"),
    "from (UTC)": lambda row: _time(row["start"]),
    "until": lambda row: _time(row["end"]),
    "hours": lambda row: f"{row['hours']:,}",
    "missing": lambda row: f"{row['missing_hours']:,}",
    "longest gap h": lambda row: f"{row['longest_gap_hours']:,}",
    "mean g/kWh": lambda row: _figure(row["mean"]),
    "min": lambda row: _figure(row["min"]),
    "max": lambda row: _figure(row["max"]),
    "daily swing": lambda row: _figure(row["daily_swing"]),
}

CHOICES = [
    list(COLUMNS),
    [name for name in COLUMNS if name not in ("until", "longest gap h")],
    ["region", "hours", "mean g/kWh", "daily swing"],
]
"""Of columns: all, or those that a narrow terminal has room for."""


def show_intensity_inspection(told: GridInspection, out: Console) -> None:
    """Prints a table for each format, and what to know of it."""
    kinds = ["format", "signal", "basis"]
    kind: Any
    for kind, rows in told.table.groupby(kinds, sort=False):
        files = list(dict.fromkeys(file for several in rows["files"] for file in several))
        title = f"{names_of(files)}: {described(*kind)}"
        put(out, functools.partial(_table, rows.to_dict("records")), title, CHOICES)
    put_notes(out, inspection_notes(told))


def inspection_notes(told: GridInspection) -> Iterator[str]:
    """How to read the table, and what was mended, a line each."""
    yield "daily swing: mean over whole UTC days of their maximum less their minimum, g/kWh"
    if (told.table["region"] == "").any():
        yield (
            "region none: say which it is by zones.REGION = 'ZONE' under [intensity] in a study "
            "file"
        )
    long = told.table["longest_gap_hours"] > LONGEST_GAP
    if long.any():
        rows = told.table[long].head(5).to_dict("records")
        gaps = (
            f"{row['zone']} ({row['longest_gap_hours']} h from {_time(row['longest_gap_start'])})"
            for row in rows
        )
        yield f"a study refuses gaps of more than {LONGEST_GAP} h: {', '.join(gaps)}"
    yield from told.notes


def _table(rows: list[dict[Any, Any]], title: str, columns: list[str]) -> Table:
    table = grid(title, "zone", columns)
    for row in rows:
        table.add_row(escape(row["zone"]), *(COLUMNS[name](row) for name in columns))
    return table


def _time(moment: pd.Timestamp) -> str:
    return "" if pd.isna(moment) else f"{moment:%Y-%m-%d %H:%M}"


def _figure(value: float) -> str:
    return "" if pd.isna(value) else f"{value:,.1f}"
