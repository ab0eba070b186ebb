"""What tuning found, on a terminal and as files."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from rich.console import Console
from rich.table import Table

from jaxroute.report.files import plain, run_record, study_file, write_tables
from jaxroute.report.tables import grid, put, put_notes, show, with_interval
from jaxroute.report.target import RECORD
from jaxroute.tuning import SEARCHED, TUNED, Tuning

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STUDY, CURVE = "tuned.toml", "loss.svg"

TABLES = ("summary", "starts", "gains", "loss")

TUNING_FILES = (STUDY, CURVE, *(f"{name}.csv" for name in TABLES), RECORD)
"""What tuning leaves: the study with the tuned policy, for `compare`; the loss; the tables."""


def show_tuning(tuning: Tuning, out: Console) -> None:
    """Prints the comparison on the sessions held out, the starts, and what was found."""
    show(tuning.judge, tuning.judged, out)
    order = tuning.starts["learned"].sort_values().index
    made = functools.partial(_starts, tuning.starts)
    choices = [[f"start {n}" for n in order[:count]] for count in (12, 6, 3, 1)]
    put(out, made, "the best starts: where they ended, and the objective there", choices)
    put_notes(out, tuning_notes(tuning))


_SCORES = {
    "soft": "soft, learned from",
    "learned": "hard, learned from",
    "held_out": "hard, held out",
}


def _starts(starts: pd.DataFrame, title: str, columns: list[str]) -> Table:
    table, shown = grid(title, "", columns), [int(name.split()[1]) for name in columns]
    for field in map(str, starts):
        if field == next(iter(_SCORES)):
            table.add_section()
        table.add_row(_SCORES.get(field, field), *(f"{starts[field][n]:.4g}" for n in shown))
    return table


def tuning_notes(tuning: Tuning) -> Iterator[str]:
    """What was found and how good it is, a line each."""
    config, baseline = tuning.study.config.tune, tuning.study.config.baseline
    yield (
        f"objective: carbon in shares of {baseline}'s, and what quality and latency are priced at; "
        "the mean over datasets and retentions; soft by relaxed choices, hard as replayed"
    )
    yield f"{TUNED}: " + ", ".join(f"{name} = {value:g}" for name, value in tuning.fields.items())
    mine, theirs = tuning.scores[TUNED], tuning.scores[SEARCHED]
    than = f"the best of {tuning.settings:,} Sobol points of the same space"
    verdict = f"better than {than}" if tuning.better else f"NOT better than {than}"
    yield f"on the sessions held out {TUNED} is {verdict} ({mine:.5f}, {theirs:.5f})"
    gains: Any = tuning.gains.to_dict("records")
    for row in gains:
        sure = "" if row["gain_lo_pct"] > 0 or row["gain_hi_pct"] < 0 else ": not told apart"
        where, less = f"{row['dataset']}, {row['retention']}", with_interval(row, "gain")
        yield f"{where}: {TUNED} saves {less} % of {baseline} more than {row['rival']}{sure}"
    if config is not None and config.least_quality is not None:
        reached = np.isfinite(tuning.starts["learned"]).sum()
        yield (
            f"a mean quality of {config.least_quality:g} is reached, on the sessions learned from, "
            f"by the ends of {reached} of {len(tuning.starts)} starts; the objective of others is "
            "infinite"
        )


def write_tuning(directory: Path, tuning: Tuning, wall_s: float) -> None:
    """Writes `TUNING_FILES` into a directory."""
    table = tuning.study.config.policy[TUNED].model_dump(exclude_none=True)
    (directory / STUDY).write_text(study_file(tuning.study, TUNED, table))
    _curve(tuning).savefig(directory / CURVE)
    tables = {
        "summary": tuning.judged.summary,
        "starts": tuning.starts.reset_index(),
        "gains": tuning.gains,
        "loss": tuning.loss,
    }
    record = run_record(tuning.judge, tuning.judged, tuning_notes(tuning), wall_s)
    record |= {"tuned": dict(tuning.fields), "objective": plain(dict(tuning.scores))}
    record |= {"tune_s": round(tuning.tune_s, 3), "search_s": round(tuning.search_s, 3)}
    write_tables(directory, tables, record)


def _curve(tuning: Tuning) -> "Figure":
    """The loss of each start, step by step, and the temperature below it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    above, below = figure.subplots(2, sharex=True, height_ratios=(3, 1))
    for start, rows in tuning.loss.groupby("start"):
        above.plot(rows["step"], rows["loss"], linewidth=1, label=f"start {start}")
    heat = tuning.loss.drop_duplicates("step")
    below.semilogy(heat["step"], heat["temperature"], color="black", linewidth=1)
    above.set_ylabel("loss of a piece")
    below.set(xlabel="step", ylabel="temperature")
    return figure
