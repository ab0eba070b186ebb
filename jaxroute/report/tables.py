"""The comparison on a terminal."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import pandas as pd
import rich.box
from rich.console import Console
from rich.table import Table

from jaxroute.comparison import Comparison
from jaxroute.study import Study

PLAIN_WIDTH = 200
"""Columns where the output is no terminal, so that a pipe loses nothing."""

COLUMNS = {
    "carbon g": lambda row: f"{row['carbon_g']:,.1f}",
    "saving % (95 % interval)": lambda row: _saving(row),
    "quality": lambda row: f"{row['mean_quality']:.3f}",
    "TTFT s": lambda row: f"{row['mean_ttft_s']:.3f}",
    "E2E s": lambda row: f"{row['mean_e2e_s']:.2f}",
    "moves": lambda row: f"{row['moves']:,}",
    "returns": lambda row: f"{row['returns']:,}",
    "rebuilt Mtok": lambda row: f"{row['rebuilt_tokens'] / 1e6:.1f}",
}

NARROW = 3
"""Columns shown where the terminal has no room for all."""

WORSE = 0.01
"""Of mean quality below the baseline's: a saving beyond it is marked."""


RECONSTRUCTION = (
    "fair_carbon is our reconstruction of a cache-blind router with the same choices, "
    "from one sentence of the CarbonRouter abstract"
)


def console(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal, or as the tables where there is none."""
    made = Console(stderr=stderr, highlight=False)
    if not made.is_terminal:
        made.width = PLAIN_WIDTH
    return made


def show(study: Study, comparison: Comparison, out: Console) -> None:
    """Prints a table for each dataset and retention, then what a reader has to know."""
    for title, rows in titled(study, comparison.summary):
        marked = list(_marked(rows.to_dict("records"), study.config.baseline))
        made = functools.partial(_table, marked)
        put(out, made, title, list(COLUMNS), list(COLUMNS)[:NARROW])
    put_notes(out, notes(study, comparison))


def titled(study: Study, table: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of each dataset and retention, with what to print above them."""
    synthetic = {each.label for each in study.datasets if each.synthetic_times}
    for (dataset, retention), rows in table.groupby(["dataset", "retention"], sort=False):
        times = " (synthetic times)" if dataset in synthetic else ""
        yield f"{dataset}{times}, caches: {retention}", rows


def put(
    out: Console,
    table: Callable[[str, list[str]], Table],
    title: str,
    wide: list[str],
    narrow: list[str],
) -> None:
    """Prints the table of a title and columns: the `wide` ones, or `narrow` where they must do."""
    made = table(title, wide)
    roomy = out.options.update(width=PLAIN_WIDTH, max_width=PLAIN_WIDTH)
    if out.measure(made, options=roomy).maximum > out.width:
        made = table(f"{title} (more in a wider terminal)", narrow)
    out.print(made)


def put_notes(out: Console, lines: Iterable[str]) -> None:
    """Prints lines as a list."""
    for line in lines:
        out.print(f"- {line}", markup=False, soft_wrap=not out.is_terminal)


def grid(title: str, first: str, columns: Iterable[str]) -> Table:
    """An empty table whose first column names its rows."""
    table = Table(title=title, title_justify="left", box=rich.box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _table(rows: list[dict[str, Any]], title: str, columns: list[str]) -> Table:
    table = grid(title, "policy", columns)
    for row in rows:
        table.add_row(row["policy"], *(COLUMNS[name](row) for name in columns))
    return table


def _marked(rows: list[dict[Any, Any]], baseline: str) -> Iterator[dict[str, Any]]:
    """The rows, told which is the baseline and which reach less quality than it."""
    floor = next(row["mean_quality"] for row in rows if row["policy"] == baseline) - WORSE
    for row in rows:
        yield row | {"is_baseline": row["policy"] == baseline, "worse": row["mean_quality"] < floor}


def _saving(row: dict[str, Any]) -> str:
    if row["is_baseline"]:
        return "baseline "
    figure = with_interval(row["saving_pct"], row["saving_lo_pct"], row["saving_hi_pct"])
    return f"{figure}{'*' if row['worse'] else ' '}"


def with_interval(figure: float, low: float, high: float) -> str:
    """`figure (low, high)`, to a tenth."""
    return f"{figure:.1f} ({low:.1f}, {high:.1f})"


def notes(study: Study, comparison: Comparison) -> Iterator[str]:
    """What was drawn, assumed, left unserved or let through, a line each."""
    yield (
        f"saving against {study.config.baseline} under the same retention; "
        f"*: mean quality more than {WORSE:g} below its, so no like-for-like saving"
    )
    yield from notes_of(study, comparison.summary, comparison.fixed)
    if "fair_carbon" in study.policies:
        yield RECONSTRUCTION


def notes_of(
    study: Study, summary: pd.DataFrame, fixed: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    """The lines that hold for any replay of a study's datasets.

    Args:
      study: what was replayed.
      summary: of every setting (`jaxroute.stats.summary`).
      fixed: by dataset, what was masked to which name.
    """
    for dataset in study.datasets:
        rows = summary[summary["dataset"] == dataset.label]
        turns = int(dataset.lengths.sum())
        unserved = int(rows["unserved"].max())
        yield f"{dataset.label}: {'; '.join(dataset.notes)}"
        yield (
            f"{dataset.label}: {len(dataset.lengths):,} sessions, {turns:,} turns, of which "
            f"{unserved:,} ({unserved / max(turns, 1):.2%}) unserved: no model holds their context"
        )
        for column, gives in (("mask_fallbacks", "masks"), ("ttft_fallbacks", "TTFT limit")):
            counts = rows.groupby("policy", sort=False)[column].max()
            which = ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)
            if which:
                yield f"{dataset.label}: turns on which the {gives} gave way: {which}"
        chosen = fixed[dataset.label]
        if chosen:
            yield f"{dataset.label}: " + ", ".join(f"{k} = {v}" for k, v in chosen.items())
    yield from study.notes
    yield (
        "carbon = operational (GPU and host, x PUE x intensity) + embodied; "
        "means are per served turn; moves and returns count turns"
    )
