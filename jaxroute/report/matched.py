"""Savings at equal quality, or at an equal TTFT, on a terminal."""

import functools
from collections.abc import Iterator
from typing import Any

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jaxroute.matching import MEAN, TOLERANCE, On
from jaxroute.report import tables
from jaxroute.report.tables import WORSE, grid, marked, put, put_notes, titled, with_interval
from jaxroute.study import Study

COLUMNS = {
    "saving % (95 % interval)": lambda row: _saving(row),
    **{name: tables.COLUMNS[name] for name in ("quality", "TTFT s", "carbon g", "E2E s")},
    "at": lambda row: _knobs(row),
}

CHOICES = [list(COLUMNS), list(COLUMNS)[:-1], list(COLUMNS)[:3]]
"""Of columns: all, or those that a narrow terminal has room for."""


def show_matched(study: Study, matched: pd.DataFrame, out: Console) -> None:
    """Prints a table for each dataset and retention, then how to read them."""
    name = "quality" if _on(matched) == "quality" else "TTFT"
    for title, rows in titled(study, matched):
        made = functools.partial(_table, study.config.baseline, rows)
        put(out, made, f"{title}, at equal {name}", CHOICES)
    put_notes(out, matched_notes(study, matched))


def _table(baseline: str, rows: pd.DataFrame, title: str, columns: list[str]) -> Table:
    table = grid(title, "policy", columns)
    for row in marked(rows.to_dict("records"), baseline):
        table.add_row(escape(row["policy"]), *(COLUMNS[name](row) for name in columns))
    return table


def _saving(row: dict[str, Any]) -> str:
    if row["is_baseline"]:
        return "baseline  "
    if row["status"] == "worse":
        return "cannot be matched  "
    mark = "+" if row["status"] == "better" else " "
    return f"{with_interval(row, 'saving')}{mark}{'*' if row['worse'] else ' '}"


def _knobs(row: dict[str, Any]) -> str:
    if not row["knob"]:
        return "as it is"
    return ", ".join(f"{name} {row[name]:.3g}" for name in row["knob"].split(", "))


def _on(matched: pd.DataFrame) -> On:
    return "quality" if "baseline_quality" in matched else "ttft"


def matched_notes(study: Study, matched: pd.DataFrame) -> Iterator[str]:
    """How to read the rows of `jaxroute.matching`, a line each."""
    on, base = _on(matched), study.config.baseline
    name, unit = ("quality", "") if on == "quality" else ("TTFT", " s")
    turned = (
        "its quality price if it has one, else or thereafter its quality floor"
        if on == "quality"
        else "its latency price, which at 0 makes nothing slower"
    )
    yield (
        f"at equal {name}: each policy's mean {name} within {TOLERANCE[on]:g}{unit} of {base}'s "
        f"under the same retention, by turning {turned}; a policy so near already is as it is"
    )
    for status, mark in (("worse", ""), ("better", "+: ")):
        rows = matched[(matched["status"] == status) & matched[f"mean_{MEAN[on]}"].notna()]
        which = dict.fromkeys(rows["policy"])
        if which:
            yield (
                f"{mark}cannot be matched: no setting tried comes so near; shown is the nearest, "
                f"whose mean {name} is {status} ({', '.join(which)})"
            )
    if on == "ttft":
        yield f"*: mean quality more than {WORSE:g} below {base}'s, so no like-for-like saving"
    yield f"the interval at equal {name} is at the setting found, without the search's own error"
