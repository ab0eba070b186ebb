"""The comparison on a terminal."""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd
import rich.box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jaxroute.bounds import drops_only
from jaxroute.catalogue import reconstructions
from jaxroute.comparison import Comparison
from jaxroute.config import BOUND_ROW, PLAN_ROW
from jaxroute.study import Study

PLAIN_WIDTH = 200
"""Columns where the output is no terminal, so that a pipe loses nothing."""


ANY_WIDTH = 10_000
"""Columns to measure a table by: rich takes no more for its width than it is given."""


def _figure(value: float) -> str:
    """One decimal where that is enough, four digits where it is not; never minus nothing."""
    return f"{value:,.1f}" if abs(value) >= 100 or value == 0 else f"{value:.4g}"


def points(value: float) -> str:
    """To a tenth of a percentage point; never minus nothing."""
    return f"{round(value, 1) + 0.0:.1f}"


def number(value: Any, form: str, *, unit: float | None = None) -> str:
    """A number in a format, perhaps in units of another; nothing where there is none."""
    if pd.isna(value):
        return ""
    return format(value / unit if unit else value, form)


def _three(value: float) -> str:
    """Three digits, or all before the point."""
    return number(value, ",.0f" if value >= 1000 else ".3g")


COLUMNS = {
    "carbon g": lambda row: _figure(row["carbon_g"]),
    "saving % (95 % interval)": lambda row: _saving(row),
    "quality": lambda row: number(row["mean_quality"], ".3f"),
    "TTFT s": lambda row: number(row["mean_ttft_s"], ".3f"),
    "E2E s": lambda row: number(row["mean_e2e_s"], ".2f"),
    "moves": lambda row: number(row["moves"], ","),
    "returns": lambda row: number(row["returns"], ","),
    "rebuilt ktok": lambda row: number(row["rebuilt_tokens"], ",.1f", unit=1e3),
    "water L": lambda row: _three(row["water_l"]),
    "cost USD": lambda row: _three(row["cost_usd"]),
    "of plan %": lambda row: _captured(row, "plan"),
    "of bound %": lambda row: _captured(row, "bound"),
}

CAPTURED = ("of plan %", "of bound %")
"""Left out where there is no bound."""

LESS = (("water L", "cost USD"), CAPTURED, tuple(COLUMNS)[3:])
"""Columns left out, one after another, where the terminal has no room for them."""

WORSE = 0.01
"""Of mean quality below the baseline's: a saving beyond it is marked."""

FEW = 1_000
"""Sessions below which a warning stands beside the intervals."""

RECONSTRUCTION = (
    "fair_carbon is our reconstruction of a cache-blind router with the same choices, "
    "from one sentence of the CarbonRouter abstract"
)
"""Said wherever that policy appears."""


def console(*, stderr: bool = False) -> Console:
    """A console as wide as the terminal, or as the tables where there is none."""
    made = Console(stderr=stderr, highlight=False)
    if not made.is_terminal:
        made.width = PLAIN_WIDTH
    return made


def show(study: Study, comparison: Comparison, out: Console) -> None:
    """Prints a table for each dataset and retention, then what a reader has to know."""
    every = [name for name in COLUMNS if study.bounded or name not in CAPTURED]
    choices = [every]
    for less in LESS:
        choices.append([name for name in choices[-1] if name not in less])
    for title, rows in titled(study, comparison.summary):
        told = list(marked(rows.to_dict("records"), study.config.baseline))
        put(out, functools.partial(_table, told), title, choices)
    put_notes(out, notes(study, comparison))


def titled(
    study: Study, table: pd.DataFrame, summary: pd.DataFrame | None = None
) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of each dataset and retention, with what to print above them.

    `summary` has the unserved share of each, where the table has not.
    """
    shares = table if summary is None else summary
    synthetic = {each.label for each in study.datasets if each.synthetic_times}
    for (dataset, retention), rows in table.groupby(["dataset", "retention"], sort=False):
        times = " (synthetic times)" if dataset in synthetic else ""
        same = (shares["dataset"] == dataset) & (shares["retention"] == retention)
        unserved = f"{shares['unserved_pct'][same].fillna(0).max():.2f} % unserved"
        yield f"{dataset}{times}, caches: {retention}, {unserved}", rows


def put(
    out: Console,
    table: Callable[[str, list[str]], Table],
    title: str,
    choices: Sequence[list[str]],
) -> None:
    """Prints the table of a title and columns: the first choice of them that fits, or the last."""
    roomy = out.options.update(width=ANY_WIDTH, max_width=ANY_WIDTH)
    for columns in choices:
        more = "" if columns == choices[0] else " (more in a wider terminal)"
        made = table(f"{title}{more}", columns)
        if out.measure(made, options=roomy).maximum <= out.width:
            break
    out.print(made)


def put_notes(out: Console, lines: Iterable[str]) -> None:
    """Prints lines as a list."""
    for line in lines:
        out.print(f"- {line}", markup=False, soft_wrap=not out.is_terminal)


def grid(title: str, first: str, columns: Iterable[str]) -> Table:
    """An empty table whose first column names its rows."""
    table = Table(
        title=escape(title), title_justify="left", box=rich.box.SIMPLE_HEAD, pad_edge=False
    )
    table.add_column(first, no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _table(rows: list[dict[str, Any]], title: str, columns: list[str]) -> Table:
    table = grid(title, "policy", columns)
    for row in rows:
        table.add_row(escape(row["policy"]), *(COLUMNS[name](row) for name in columns))
    return table


def marked(rows: list[dict[Any, Any]], baseline: str) -> Iterator[dict[str, Any]]:
    """The rows, told which is the baseline and which reach less quality than it."""
    floor = next(row["mean_quality"] for row in rows if row["policy"] == baseline) - WORSE
    for row in rows:
        yield row | {"is_baseline": row["policy"] == baseline, "worse": row["mean_quality"] < floor}


def _few(names: pd.Index) -> str:
    return ", ".join(names) if len(names) < 4 else f"{len(names)} policies"


def _captured(row: dict[str, Any], what: str) -> str:
    """Nothing where less quality was served: that saving is not bounded by theirs."""
    return "" if row["worse"] else number(row[f"captured_of_{what}_pct"], ",.1f")


def _saving(row: dict[str, Any]) -> str:
    if row["is_baseline"]:
        return "baseline "
    return f"{with_interval(row, 'saving')}{'*' if row['worse'] else ' '}"


def with_interval(row: Mapping[Any, Any], name: str) -> str:
    """`figure (low, high)` of `<name>_pct`, `<name>_lo_pct` and `<name>_hi_pct`, to a tenth."""
    figure, low, high = (row[f"{name}{end}_pct"] for end in ("", "_lo", "_hi"))
    if pd.isna(figure):
        return ""
    ends = "too few sessions" if pd.isna(low) else f"{points(low)}, {points(high)}"
    return f"{points(figure)} ({ends})"


def notes(study: Study, comparison: Comparison) -> Iterator[str]:
    """What was drawn, assumed, left unserved or let through, a line each."""
    yield (
        f"saving against {study.config.baseline} under the same retention; "
        f"*: mean quality more than {WORSE:g} below its, so no like-for-like saving"
    )
    yield from _bounds(study)
    yield from notes_of(study, comparison.summary, comparison.fixed)
    if "fair_carbon" in study.policies:
        yield RECONSTRUCTION
    yield from reconstructions(study.policies)


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
            f"{unserved:,} ({unserved / max(turns, 1):.2%}) unserved"
            + (": no model holds their context" if unserved else "")
        )
        for column, gives in (
            ("mask_fallbacks", "masks"),
            ("quality_fallbacks", "quality floor"),
            ("ttft_fallbacks", "TTFT limit"),
        ):
            counts = rows.dropna(subset=[column]).groupby("policy", sort=False)[column].max()
            which = [
                f"{count:,} ({_few(same.index)})"
                for count, same in counts[counts > 0].groupby(counts, sort=False)
            ]
            if which:
                yield f"{dataset.label}: turns on which the {gives} gave way: {'; '.join(which)}"
        if len(dataset.lengths) < FEW:
            yield (
                f"{dataset.label}: with fewer than {FEW:,} sessions intervals are too narrow where "
                "few of them carry the carbon (benchmarks/coverage.py)"
            )
        chosen = fixed[dataset.label]
        if chosen:
            yield f"{dataset.label}: " + ", ".join(f"{k} = {v}" for k, v in chosen.items())
    yield from study.notes
    yield (
        "carbon = operational (GPU and host, x PUE x intensity) + embodied; "
        "means are per served turn; moves and returns count turns"
    )


def _bounds(study: Study) -> Iterator[str]:
    """What the plan and the bound are worth, or why there are none."""
    if study.config.load is not None:
        yield f"no {PLAN_ROW}, no {BOUND_ROW}: under load a turn's cost depends on other sessions"
        return
    if not study.bounded:
        yield (
            f"no {PLAN_ROW} and no {BOUND_ROW}: the TTFT limit of {', '.join(study.ttft_limited)} "
            "depends on what is cached, which they leave out"
        )
        return
    exact = [name for name, each in study.retentions.items() if drops_only(each)]
    kept = [name for name in study.retentions if name not in exact]
    floor = f"under {study.config.quality_rule}"
    yield (
        f"{PLAN_ROW}: knows every turn beforehand, {floor}; "
        + "; ".join(
            f"{', '.join(names)}: {worth}"
            for names, worth in ((exact, "optimum"), (kept, "feasible plan, not an optimum"))
            if names
        )
    )
    yield (
        f"{BOUND_ROW}: each turn where it is cheapest with its context cached everywhere, {floor}; "
        "of plan %, of bound %: the share of their saving, but not where there is a *"
    )
