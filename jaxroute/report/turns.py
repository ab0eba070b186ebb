"""The explanation of a session on a terminal: its turns, policies side by side."""

from collections.abc import Callable
from typing import Any

import pandas as pd
import rich.box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jaxroute.explanation import Explanation
from jaxroute.report.tables import RECONSTRUCTION, put_notes

Row = dict[str, Any]


def mg(grams: float) -> str:
    """Milligrams, as a turn emits them.

    >>> mg(0.0123456)
    '12.346'
    """
    return f"{1e3 * grams:,.3f}"


def _parts(row: Row) -> str:
    return ", ".join(mg(row[f"carbon_{part}_g"]) for part in ("prefill", "decode", "embodied"))


def _gate(row: Row) -> str:
    if pd.isna(row["gain_g"]):
        return "-"
    return f"{mg(row['gain_g'])}, {row['p_back']:.3f}, {mg(row['return_g'])}"


def _micro_usd(row: Row) -> str:
    return "-" if pd.isna(row["cost_usd"]) else f"{1e6 * row['cost_usd']:.3f}"


def _thresholds(row: Row) -> str:
    if pd.isna(row["gain_g"]):
        return "-"
    return f"{mg(row['threshold_g'])}, {mg(row['hysteresis_g'])}"


def _fallbacks(row: Row) -> str:
    gave_way = [name for name in ("mask", "quality", "ttft") if row[f"{name}_fallbacks"]]
    return ", ".join(gave_way) or "-"


LINES: dict[str, Callable[[Row], str]] = {
    "served by": lambda row: "nobody" if row["unserved"] else row["model"],
    "on, in": lambda row: "-" if row["unserved"] else f"{row['gpu']}, {row['region']}",
    "cached tokens, rebuilt": lambda row: f"{row['cached_tokens']:,}, {row['rebuilt_tokens']:,.0f}",
    "least score": lambda row: (row["wished"] or "-").replace("|", " "),
    "verdict": lambda row: row["verdict"],
    "gate: dJ mg, p_back, R mg": _gate,
    "stays if dJ < gate, hysteresis mg": _thresholds,
    "carbon mg": lambda row: mg(row["carbon_g"]),
    "= prefill + decode + embodied": _parts,
    "of which rebuild": lambda row: mg(row["carbon_rebuild_g"]),
    "energy Wh": lambda row: f"{1e3 * row['energy_kwh']:.4f}",
    "water mL, cost 1e-6 USD": lambda row: f"{1e3 * row['water_l']:.4f}, {_micro_usd(row)}",
    "TTFT s, E2E s": lambda row: (
        "-" if row["unserved"] else f"{row['ttft_s']:.3f}, {row['e2e_s']:.2f}"
    ),
    "quality": lambda row: "-" if row["unserved"] else f"{row['quality']:.3f}",
    "move, return": lambda row: f"{row['moves']:.0f}, {row['returns']:.0f}",
    "filters that gave way": _fallbacks,
}
"""What is told of a turn, under each policy."""


def show(told: Explanation, out: Console) -> None:
    """Prints each turn of a session, the bill of the whole, and what a reader has to know."""
    policies = list(dict.fromkeys(told.turns["policy"]))
    title = f"session {told.session_id} of {told.dataset}, caches: {told.retention}"
    out.print(title, markup=False)
    for turn, rows in told.turns.groupby("turn", sort=True):
        records: list[Row] = [
            {str(k): v for k, v in row.items()} for row in rows.to_dict("records")
        ]
        out.print(f"\n{_heading(records[0])}", markup=False)
        out.print(_side_by_side(policies, records))
        best = told.candidates[told.candidates["turn"] == turn]
        for policy, among in best.groupby("policy", sort=False):
            out.print(_best(str(policy), among))
    out.print("\nthe whole session", markup=False)
    out.print(_whole(policies, told.turns))
    scores = "scores J and their terms in mg of CO2e, terms that are 0 left out; *: the choice"
    reconstruction = [RECONSTRUCTION] if "fair_carbon" in policies else []
    put_notes(out, (scores, *told.notes, *reconstruction))


def _heading(row: Row) -> str:
    return (
        f"turn {row['turn']}: {row['prefix_tokens']:,} prefix + {row['new_tokens']:,} new tokens, "
        f"{row['output_tokens']:,} out ({row['predicted_output_tokens']:,g} predicted), "
        f"{row['gap_s']:,.1f} s after the last"
    )


def _table(*headers: str, first: int | None = None) -> Table:
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    table.add_column(headers[0], overflow="fold", width=first)
    for header in headers[1:]:
        table.add_column(escape(header), overflow="fold")
    return table


def _side_by_side(policies: list[str], rows: list[Row]) -> Table:
    table = _table("", *policies, first=max(map(len, LINES)))
    for name, text in LINES.items():
        table.add_row(name, *(text(row) for row in rows))
    return table


TERMS = {
    "operational_g": "oper.",
    "embodied_g": "embod.",
    "latency_g": "latency",
    "quality_g": "quality",
    "switch_g": "switch",
    "intensity_g": "intens.",
    "rtt_g": "rtt",
    "size_g": "size",
    "noise_g": "noise",
}
"""Headings of the terms of a score."""


def _best(policy: str, rows: pd.DataFrame) -> Table:
    """The candidates of a turn under one policy; terms that are 0 for all are left out."""
    terms = [name for name in TERMS if (rows[name] != 0).any()]
    gap = int(len(terms) < 6)
    table = Table(box=rich.box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, gap))
    table.add_column("", justify="right", no_wrap=True)
    table.add_column(f"best for {escape(policy)}", overflow="fold")
    for heading in ("cached", *(TERMS[name] for name in terms), "J"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in rows.to_dict("records"):
        table.add_row(
            f"{row['rank']}{'*' if row['chosen'] else ' '}",
            f"{row['model']} {row['gpu']} {row['region']}",
            f"{row['cached_tokens']:,.0f}",
            *(mg(row[name]) for name in (*terms, "score_g")),
        )
    return table


def _whole(policies: list[str], turns: pd.DataFrame) -> Table:
    """The session's totals under each policy."""
    sums = turns.groupby("policy", sort=False).sum(numeric_only=True)
    table = _table("", *policies)
    grams = {
        "carbon mg": "carbon_g",
        "prefill mg": "carbon_prefill_g",
        "decode mg": "carbon_decode_g",
        "embodied mg": "carbon_embodied_g",
        "of which rebuild mg": "carbon_rebuild_g",
    }
    counts = {
        "turns served": "turns",
        "unserved": "unserved",
        "moves": "moves",
        "returns": "returns",
        "rebuilt tokens": "rebuilt_tokens",
    }
    for name, column in grams.items():
        table.add_row(name, *(mg(sums[column][policy]) for policy in policies))
    for name, column in counts.items():
        table.add_row(name, *(f"{sums[column][policy]:,.0f}" for policy in policies))
    return table
