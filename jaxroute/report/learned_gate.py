"""What a gate learned and what it is worth, on a terminal and as files."""

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jaxroute import misses
from jaxroute.bounds import drops_only
from jaxroute.config import BOUND_ROW
from jaxroute.gate import FEATURES
from jaxroute.learned_gate import BY_LABELS, CONSTANTS, LEARNED, LearnedGate
from jaxroute.report.files import run_record, study_file, write_tables
from jaxroute.report.tables import (
    RECONSTRUCTION,
    grid,
    notes_of,
    points,
    put,
    put_notes,
    titled,
    with_interval,
)
from jaxroute.report.target import RECORD
from jaxroute.wishes import UNGATED

TARGET_PCT = 95.0
"""Of what the hindsight plan saves: where the gate captures less, its misses are shown."""

SHOWN_PCT = 2.0
"""Of a policy's excess: rows of misses that cost less are in the file only."""

STUDY = "learned_gate.toml"

TABLES = (
    *("weights", "strengths", "scores", "reliability"),
    *("gates", "against", "misses", "ceilings"),
)

GATE_FILES = (*(f"{name}.csv" for name in TABLES), STUDY, RECORD)
"""What a fitted gate leaves: the tables, and the study with the gate among its policies."""


def show_gate(outcome: LearnedGate, out: Console) -> None:
    """Prints the fit, each gate on each dataset and retention, what is missed, and the verdicts."""
    put(out, functools.partial(_weights, outcome), "chance to move straight back", [[]])
    put(out, functools.partial(_scores, outcome), "on moves at stake, sessions held out", [[]])
    put(out, functools.partial(_reliability, outcome), "said and seen, sessions held out", [[]])
    for title, rows in titled(outcome.judged, outcome.comparison.summary):
        put(out, functools.partial(_gates, outcome, rows), f"{title}, sessions held out", [[]])
    for dataset, retention, pct in missed(outcome):
        own = _of(outcome.misses, dataset, retention)
        title = f"{dataset}, {retention}: what {LEARNED} loses to the plan ({pct:.1f} % captured)"
        put(out, functools.partial(_misses, own), title, [list(FEATURES), []])
    put_notes(out, gate_notes(outcome))


def missed(outcome: LearnedGate) -> Iterator[tuple[str, str, float]]:
    """The datasets and retentions where `TARGET_PCT` is missed, and what is captured there."""
    rows = outcome.comparison.summary
    for row in rows[rows["policy"] == LEARNED].to_dict("records"):
        exact = drops_only(outcome.judged.retentions[row["retention"]])
        if exact and row["captured_of_plan_pct"] < TARGET_PCT:
            yield row["dataset"], row["retention"], row["captured_of_plan_pct"]


def verdicts(outcome: LearnedGate) -> Iterator[str]:
    """Whether the learned gate beats the best constant, and every other, a line each."""
    for key, rows in outcome.against.groupby(["dataset", "retention", "policy"], sort=False):
        dataset, retention, gate = key
        for row in rows.to_dict("records"):
            if gate != LEARNED or row["rival"] not in (outcome.best_constant, UNGATED):
                continue
            gain = with_interval(row, "gain")
            if row["gain_lo_pct"] > 0:
                told = "beats"
            elif row["gain_hi_pct"] < 0:
                told = "is worse than"
            else:
                told = "does not beat"
            yield f"{dataset}, {retention}: {gate} {told} {row['rival']}: by {gain} % of the carbon"
    rows = outcome.against[outcome.against["policy"] == LEARNED]
    rows = rows[rows["rival"] != UNGATED]
    yield (
        f"{LEARNED} against {', '.join(CONSTANTS)} on each dataset under each retention: it emits "
        f"no more in {(rows['gain_pct'] >= 0).sum()} of {len(rows)}, and more beyond the interval "
        f"in {(rows['gain_hi_pct'] < 0).sum()}"
    )
    for dataset, retention, pct in missed(outcome):
        (most,) = _of(outcome.ceilings, dataset, retention)["captured_of_plan_pct"]
        yield (
            f"{dataset}, {retention}: {LEARNED} captures {pct:.1f} % of what the hindsight plan "
            f"saves: the target of {TARGET_PCT:g} % is missed; a gate that knew the future, on the "
            f"same scores, would capture {most:.1f} %"
        )


def gate_notes(outcome: LearnedGate) -> Iterator[str]:
    """The verdicts, how to read the tables, and what holds for every replay."""
    yield from verdicts(outcome)
    yield (
        "all but the weights and strengths is of sessions held out; savings against "
        f"{outcome.judged.config.baseline} under the same retention, intervals are paired "
        "bootstrap 95 %"
    )
    yield (
        f"{outcome.best_constant}: the constant gate of least carbon on the sessions learned from; "
        f"{BY_LABELS}: as fitted, strength 1; {LEARNED}: with the strength of least carbon there, "
        f"{outcome.policy['gate_strength']:g}"
    )
    yield (
        "a move is at stake where it saves less than the return would cost (dJ < R); back: the "
        "next turn is served where this one left; constant: the share of it among the moves "
        "learned from"
    )
    yield (
        "lost: what a decision cost more than the best one from where the session was, all later "
        f"turns served as hindsight would; late: turn {misses.LATE_TURN} on, long: a prefix of "
        f"{misses.LONG_TOKENS:,} tokens or more; means are weighted by what was lost"
    )
    summary = outcome.comparison.summary
    yield from notes_of(
        outcome.judged, summary[summary["policy"] != BOUND_ROW], outcome.comparison.fixed
    )
    yield RECONSTRUCTION


def _of(table: pd.DataFrame, dataset: str, retention: str) -> pd.DataFrame:
    return table[(table["dataset"] == dataset) & (table["retention"] == retention)]


def _weights(outcome: LearnedGate, title: str, _: list[str]) -> Table:
    table = grid(title, "feature", ["weight", "mean", "sd", "weight x sd"])
    table.add_row("(bias)", f"{outcome.logistic.bias:.3f}")
    for row in outcome.weights.to_dict("records"):
        figures = row["weight"], row["mean"], row["sd"], row["weight"] * row["sd"]
        table.add_row(row["feature"], *(f"{each:.3f}" for each in figures))
    return table


def _scores(outcome: LearnedGate, title: str, _: list[str]) -> Table:
    table = grid(title, "dataset, caches", ["chance", "moves", "back %", "AUC", "Brier"])
    for row in outcome.scores.to_dict("records"):
        table.add_row(
            escape(f"{row['dataset']}, {row['retention']}"),
            row["rule"],
            f"{row['moves']:,}",
            f"{row['moved_back_pct']:.1f}",
            "" if np.isnan(row["auc"]) else f"{row['auc']:.3f}",
            f"{row['brier']:.4f}",
        )
    return table


def _reliability(outcome: LearnedGate, title: str, _: list[str]) -> Table:
    table = grid(title, "dataset", ["chance", "bin", "moves", "said", "seen"])
    for row in outcome.reliability.to_dict("records"):
        table.add_row(
            escape(row["dataset"]),
            row["rule"],
            f"{row['low']:.1f}-{row['high']:.1f}",
            f"{row['count']:,}",
            f"{row['mean_chance']:.3f}",
            f"{row['observed_share']:.3f}",
        )
    return table


def _gates(outcome: LearnedGate, rows: pd.DataFrame, title: str, _: list[str]) -> Table:
    more = f"{LEARNED} saves more, %"
    table = grid(title, "policy", ["saving %", "of plan %", "moves", more])
    dataset, retention = rows[["dataset", "retention"]].iloc[0]
    against = _of(outcome.against, dataset, retention)
    gains = {
        row["rival"]: with_interval(row, "gain")
        for row in against[against["policy"] == LEARNED].to_dict("records")
    }
    exact = drops_only(outcome.judged.retentions[retention])
    for row in rows[rows["policy"] != BOUND_ROW].to_dict("records"):
        captured = row["captured_of_plan_pct"]
        table.add_row(
            escape(row["policy"]),
            with_interval(row, "saving"),
            points(captured) if exact and not np.isnan(captured) else "",
            f"{row['moves']:,}",
            gains.get(row["policy"], ""),
        )
    return table


def _misses(rows: pd.DataFrame, title: str, features: list[str]) -> Table:
    columns = ["turn", "prefix", "decisions", "lost g", "of excess %", "of plan %", "p_back"]
    table = grid(title, "what", [*columns, *features])
    for row in rows[rows["lost_pct"] >= SHOWN_PCT].to_dict("records"):
        table.add_row(
            row["kind"],
            "late" if row["late"] else "early",
            "long" if row["long_prefix"] else "short",
            f"{row['decisions']:,}",
            f"{row['lost_g']:,.3g}",
            f"{row['lost_pct']:.1f}",
            f"{row['captured_points']:.1f}",
            f"{row['p_back']:.2f}",
            *(f"{row[name]:.2f}" for name in features),
        )
    return table


def write_gate(directory: Path, outcome: LearnedGate, wall_s: float) -> None:
    """Writes `GATE_FILES` into a directory; `gates.csv` is the summary of sessions held out."""
    tables = {name: getattr(outcome, name) for name in TABLES if name != "gates"}
    tables["gates"] = outcome.comparison.summary
    (directory / STUDY).write_text(study_file(outcome.study, LEARNED, outcome.policy))
    record = run_record(outcome.judged, outcome.comparison, gate_notes(outcome), wall_s)
    write_tables(directory, tables, record | {"policy": dict(outcome.policy)})
