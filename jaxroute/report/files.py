"""The comparison as a directory of files, written whole or not at all."""

import json
import platform
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import pandas as pd

from jaxroute.ablation import Ablation
from jaxroute.comparison import Comparison
from jaxroute.load.messages import input_error
from jaxroute.report.ablation import ablation_notes
from jaxroute.report.matched import matched_notes
from jaxroute.report.tables import notes
from jaxroute.study import Study

RECORD = "run.json"
"""Marks a directory as one of ours."""

PACKAGES = ("jaxroute", "jax", "jaxlib", "numpy", "scipy", "pandas", "pyarrow")


def check_target(directory: Path) -> None:
    """Refuses to replace a directory that is not the result of an earlier run.

    Raises:
      InputError: if there is something else of that name.
    """
    if directory.is_dir():
        entries = [entry.name for entry in directory.iterdir()]
        if entries and RECORD not in entries:
            found = f"{len(entries)} files and no {RECORD}"
            expected = "an empty directory, or one of an earlier run"
            raise input_error(directory, "", found, expected, "give another --out")
    elif directory.exists():
        raise input_error(directory, "", "a file", "a directory", "give another --out")


@contextmanager
def whole_directory(directory: Path) -> Iterator[Path]:
    """A new directory to write into, which takes the place of `directory` once all is written.

    Raises:
      InputError: if it cannot be made.
    """
    check_target(directory)
    parent = directory.absolute().parent
    try:
        parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=parent))
    except OSError as error:
        raise input_error(directory, "", str(error), "a directory that can be written") from error
    try:
        yield fresh
        fresh.chmod(0o755)
        if directory.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{directory.name}-old-", dir=parent))
            directory.rename(old / directory.name)
            fresh.rename(directory)
            shutil.rmtree(old)
        else:
            fresh.rename(directory)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def write(
    directory: Path,
    study: Study,
    comparison: Comparison,
    wall_s: float,
    matched: pd.DataFrame | None = None,
) -> None:
    """Writes `summary.csv`, `by_length.csv`, `shares.csv`, `sessions.parquet` and `run.json`.

    With the rows of `jaxroute.matching` also `matched.csv`.
    """
    lines = list(notes(study, comparison))
    tables = {name: getattr(comparison, name) for name in ("summary", "by_length", "shares")}
    if matched is not None:
        tables["matched"] = matched
        lines += matched_notes(study, matched)
    with whole_directory(directory) as fresh:
        _put(fresh, tables, run_record(study, comparison, lines, wall_s))
        comparison.sessions.to_parquet(fresh / "sessions.parquet", index=False)


def write_ablation(directory: Path, study: Study, ablation: Ablation, wall_s: float) -> None:
    """Writes `ablation.csv`, `summary.csv` of every setting replayed, and `run.json`."""
    tables = {"ablation": ablation.table, "summary": ablation.summary}
    record = run_record(study, ablation, list(ablation_notes(study, ablation)), wall_s)
    with whole_directory(directory) as fresh:
        _put(fresh, tables, record)


def _put(fresh: Path, tables: Mapping[str, pd.DataFrame], record: Mapping[str, Any]) -> None:
    for name, table in tables.items():
        table.to_csv(fresh / f"{name}.csv", index=False, float_format="%.9g")
    (fresh / RECORD).write_text(f"{json.dumps(record, indent=2, allow_nan=False)}\n")


def run_record(
    study: Study, outcome: Comparison | Ablation, notes: Sequence[str], wall_s: float
) -> dict[str, Any]:
    """How a result was obtained: enough to obtain it again."""
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
        "seed": study.config.seed,
        "study": json.loads(study.config.model_dump_json()),
        "fixed": outcome.fixed,
        "inputs_sha256": dict(study.inputs),
        "notes": list(notes),
        "wall_s": round(wall_s, 3),
        "compile_s": round(outcome.compile_s, 3),
        "replay_s": round(outcome.replay_s, 3),
    }
