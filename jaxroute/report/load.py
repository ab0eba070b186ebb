"""Load on a terminal: how full the fleet is, how long turns wait, and which policies swing."""

import functools
from collections.abc import Iterator
from typing import Any

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jaxroute.comparison import Comparison
from jaxroute.loading import load_of
from jaxroute.report.tables import grid, number, points, put, titled
from jaxroute.study import Study

COLUMNS = {
    "fullest": lambda row: f"{row['peak_utilisation']:.2f}{'!' if _is_over(row) else ' '}",
    "over %": lambda row: number(row["overflow_pct"], ".1f"),
    "wait s": lambda row: number(row["mean_wait_s"], ".3g"),
    "hit %": lambda row: number(row["hit_ratio_pct"], ".1f"),
    "batch": lambda row: number(row["mean_batch"], ".1f"),
    "idle carbon g": lambda row: f"{row['carbon_idle_g']:,.0f}",
    "rounds": lambda row: f"{row['rounds']:.0f}{' ' if row['settled'] else '~'}",
}

FEW_TURNS = 100
"""Behind a time bin; its load says little with fewer."""

LITTLE_PCT = 0.1
"""Of the turns: so few that move are not told of."""

SHOWN = 2
"""Deployments told of each policy that swings, those between which most turns move."""


def _is_over(row: Any) -> bool:
    return row["peak_utilisation"] >= 1


def show_load(study: Study, comparison: Comparison, out: Console) -> None:
    """Prints a table of each dataset's load, if the study is under load."""
    if study.config.load is None:
        return
    for title, rows in titled(study, comparison.summary):
        told = rows.to_dict("records")
        put(out, functools.partial(_table, told), f"{title}, load", [list(COLUMNS)])


def _table(rows: list[dict[Any, Any]], title: str, columns: list[str]) -> Table:
    table = grid(title, "policy", columns)
    for row in rows:
        table.add_row(escape(row["policy"]), *(COLUMNS[name](row) for name in columns))
    return table


def load_notes(study: Study, comparison: Comparison) -> Iterator[str]:
    """What stands for how much, and which policies do not settle."""
    if study.config.load is None:
        return
    yield (
        "fullest: utilisation of the fullest deployment in its fullest quarter of an hour (!: more "
        "comes than it can serve; over %: turns beyond that, served and billed nevertheless); idle "
        "carbon: of the idle power of its replicas, beside the carbon of turns and not in it"
    )
    for dataset in study.datasets:
        load = comparison.load[comparison.load["dataset"] == dataset.label]
        yield f"{dataset.label}: {_bins(study, load)}"
    yield from rough_notes(comparison.summary, "policies")
    if comparison.swings.empty:
        return
    for (dataset, policy), rows in comparison.swings.groupby(["dataset", "policy"], sort=False):
        yield f"{dataset}: {policy} {swing(rows, load_of(study).rounds)}"


def _bins(study: Study, load: pd.DataFrame) -> str:
    """How many replicas there are, and how many turns of the sample stand behind a time bin."""
    baseline = load[load["policy"] == study.config.baseline]
    turns = baseline.groupby("time_utc")["turns"].sum()
    if turns.empty:
        return "no turns, no load"
    little = " (few: its load is rough)" if turns.min() < FEW_TURNS else ""
    fleet = load.drop_duplicates(["model", "gpu", "region"])
    count = fleet["replicas"]
    return (
        f"{turns.min():,.0f} to {turns.max():,.0f} turns of the sample stand behind each of "
        f"{len(turns)} quarter hours{little}; the deployments that serve have {count.min():,.0f} "
        f"to {count.max():,.0f} replicas"
    )


def rough_notes(table: pd.DataFrame, what: str) -> Iterator[str]:
    """How many rows of a table under load did not settle, or are beyond capacity.

    Args:
      table: with the columns of `jaxroute.load_tables.columns`, or without them.
      what: its rows are.
    """
    if "settled" not in table:
        return
    odd, over = int((table["settled"] == 0).sum()), int((table["peak_utilisation"] >= 1).sum())
    if odd or over:
        yield (
            f"load: of {len(table):,} {what} {odd:,} did not settle (column settled: try a lower "
            f"load.damping, more load.rounds) and {over:,} are beyond the capacity of a deployment "
            "(peak_utilisation, overflow_pct): their figures are rough"
        )


def swing(rows: pd.DataFrame, rounds: int) -> str:
    """In words, the two states between which a policy swings."""
    by, first = rows["share_pct"] - rows["share_before_pct"], rows.iloc[0]
    most = rows.loc[by.abs().sort_values(ascending=False, kind="stable").index[:SHOWN]]
    where = "the same turns in each place, but other caches"
    if first["moved_pct"] >= LITTLE_PCT:
        states = ", ".join(
            f"{row['model']}|{row['gpu']}|{row['region']} {points(row['share_before_pct'])} and "
            f"{points(row['share_pct'])} %"
            for row in most.to_dict("records")
        )
        where = (
            f"{points(first['moved_pct'])} % of the turns elsewhere in their quarter of an hour "
            f"(over the day {states})"
        )
    return (
        f"did not settle (~) in {rounds} rounds: a replay's load differs by "
        f"{first['change_pct']:.1f} % from that which it is under, and the last two by "
        f"{first['swing_pct']:.1f} %: {where}"
    )
