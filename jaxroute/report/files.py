"""Comparisons, ablations, grids and sweeps as files."""

import json
import os
import platform
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pandas as pd
import tomli_w

from jaxroute.ablation import Ablation
from jaxroute.comparison import Comparison
from jaxroute.grid import Grid
from jaxroute.load.files import BUILTIN
from jaxroute.report.ablation import ablation_notes
from jaxroute.report.load import load_notes
from jaxroute.report.matched import matched_notes
from jaxroute.report.parts import write_whole
from jaxroute.report.sweep import sweep_notes
from jaxroute.report.tables import notes
from jaxroute.report.target import RECORD
from jaxroute.study import Study
from jaxroute.sweeping import Sweep

TABLES = ("summary", "by_length", "shares")

COMPARED = (*TABLES, "served")

LOADED = ("load", "swings")
"""Of a comparison under load; the second where a policy did not settle."""

FILES = (*(f"{name}.csv" for name in (*COMPARED, *LOADED, "matched")), "sessions.parquet", RECORD)
"""What a comparison may consist of; `matched.csv` only where something was to be matched."""

GRID_FILES = (*(f"{name}.csv" for name in TABLES), RECORD)
"""What a grid leaves beside its plan and parts."""

ABLATION_FILES = ("ablation.csv", "summary.csv", RECORD)
"""What an ablation consists of."""

SWEEP_FILES = ("sweep.parquet", RECORD)
"""What a sweep leaves beside its plan and parts."""

PACKAGES = ("jaxroute", "jax", "jaxlib", "numpy", "scipy", "pandas", "pyarrow")


def write(
    directory: Path,
    study: Study,
    comparison: Comparison,
    wall_s: float,
    matched: pd.DataFrame | None = None,
) -> None:
    """Writes `FILES` into a directory; `matched` are the rows of `jaxroute.matching`, if any."""
    tables = {name: getattr(comparison, name) for name in COMPARED}
    tables |= {name: rows for name in LOADED if len(rows := getattr(comparison, name))}
    lines = [*notes(study, comparison), *load_notes(study, comparison)]
    if matched is not None:
        tables["matched"] = matched
        lines += matched_notes(study, matched)
    comparison.sessions.to_parquet(directory / "sessions.parquet", index=False)
    policies = plain({name: vars(params) for name, params in study.policies.items()})
    record = run_record(study, comparison, lines, wall_s) | {"policies": policies}
    write_tables(directory, tables, record)


def write_ablation(directory: Path, study: Study, ablation: Ablation, wall_s: float) -> None:
    """Writes `ABLATION_FILES` into a directory; `summary.csv` is of every setting replayed."""
    tables = {"ablation": ablation.table, "summary": ablation.summary}
    write_tables(
        directory, tables, run_record(study, ablation, ablation_notes(study, ablation), wall_s)
    )


def write_tables(
    directory: Path, tables: Mapping[str, pd.DataFrame], record: dict[str, Any]
) -> None:
    """Tables as CSV, and the record of how they came about."""
    for name, table in tables.items():
        table.to_csv(directory / f"{name}.csv", index=False, float_format="%.9g")
    (directory / RECORD).write_text(f"{json.dumps(record, indent=2, allow_nan=False)}\n")


def run_record(
    study: Study, outcome: Comparison | Ablation, notes: Iterable[str], wall_s: float
) -> dict[str, Any]:
    """How a result was obtained: enough to obtain it again."""
    return {
        **made_with(),
        "seed": study.config.seed,
        "study": json.loads(study.config.model_dump_json(exclude_none=True)),
        "fixed": outcome.fixed,
        "inputs_sha256": dict(study.inputs),
        "notes": list(notes),
        "wall_s": round(wall_s, 3),
        "compile_s": round(outcome.compile_s, 3),
        "replay_s": round(outcome.replay_s, 3),
    }


def study_file(study: Study, policy: str, table: Mapping[str, Any]) -> str:
    """A study as TOML, its paths absolute, with a policy more to compare.

    Args:
      study: as it was read.
      policy: a name.
      table: its `[policy.…]` table.
    """
    values = study.config.model_dump(exclude_unset=True, exclude_none=True)
    values["policy"] = values.get("policy", {}) | {policy: dict(table)}
    places = [(values.get("intensity", {}), "path"), (values.get("water", {}), "mix")]
    for section, key in (*places, *((each, "path") for each in values.get("datasets", ()))):
        given = section.get(key, BUILTIN)
        paths = [given] if isinstance(given, str) else list(given)
        whole = [p if p.startswith(BUILTIN) else os.path.abspath(p) for p in paths]
        if key in section:
            section[key] = whole if len(whole) > 1 else whole[0]
    if study.config.policies is not None:
        values["policies"] = [*dict.fromkeys((*study.config.policies, policy))]
    return tomli_w.dumps(values)


def write_grid(directory: Path, grid: Grid, wall_s: float) -> None:
    """Writes `GRID_FILES` beside the parts of a grid, the record last."""
    for name in TABLES:
        table = getattr(grid, name).to_csv(index=False, float_format="%.9g")
        write_whole(directory / f"{name}.csv", table)
    record = {
        **made_with(),
        "cells": [
            {**cell.labels, "dataset": cell.dataset, "notes": notes}
            for cell, notes in zip(grid.cells, grid.notes, strict=True)
        ],
        "left_out": list(grid.left_out),
        "wall_s": round(wall_s, 3),
    }
    write_whole(directory / RECORD, f"{json.dumps(record, indent=2, allow_nan=False)}\n")


def write_sweep(directory: Path, study: Study, sweep: Sweep, wall_s: float) -> None:
    """Writes `SWEEP_FILES` beside the parts of a sweep, the record last."""
    table, record_file = SWEEP_FILES
    fresh = directory / f".{table}"
    sweep.table.to_parquet(fresh, index=False)
    os.replace(fresh, directory / table)
    record = {
        **made_with(),
        "seed": study.config.seed,
        "study": json.loads(study.config.model_dump_json(exclude_none=True)),
        "objectives": sweep.objectives,
        "fixed": sweep.fixed,
        "inputs_sha256": dict(study.inputs),
        "notes": list(sweep_notes(study, sweep)),
        "wall_s": round(wall_s, 3),
        "replay_s": round(sweep.replay_s, 3),
        "decisions": sweep.decisions,
    }
    write_whole(directory / record_file, f"{json.dumps(record, indent=2, allow_nan=False)}\n")


def made_with() -> dict[str, Any]:
    """Versions and device of this run."""
    from jaxroute import RESULTS_VERSION

    device = jax.devices()[0]
    return {
        "results_version": RESULTS_VERSION,
        "versions": {"python": platform.python_version()}
        | {name: metadata.version(name) for name in PACKAGES},
        "device": {
            "platform": device.platform,
            "kind": device.device_kind,
            "count": jax.device_count(),
        },
    }


def plain(value: Any) -> Any:
    """Parameters as JSON holds them; an infinite number as text."""
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    numbers = np.asarray(value, np.float64)
    if numbers.ndim:
        return [plain(number) for number in numbers]
    return round(float(numbers), 9) if np.isfinite(numbers) else str(numbers)
