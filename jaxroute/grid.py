"""Studies as files: every combination of what a study varies, on every trace, resumable."""

import dataclasses
import functools
import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from jaxroute import comparison, study
from jaxroute.catalogue import reconstructions
from jaxroute.comparison import Report
from jaxroute.config import StudyConfig, read_config
from jaxroute.load.files import BUILTIN, sha256
from jaxroute.load.messages import input_error
from jaxroute.load.toml import validate
from jaxroute.report.parts import Parts
from jaxroute.report.tables import notes_of

TABLES = ("summary", "by_length", "shares")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """One combination on one trace.

    Attributes:
      labels: of each axis that the study varies, which entry; `seed` last, if there are several.
      config: the study of that combination, with the one dataset.
    """

    labels: Mapping[str, str | int]
    config: StudyConfig

    @property
    def dataset(self) -> str:
        """Label of the trace."""
        return self.config.datasets[0].label


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Grid:
    """The outcome of every cell.

    Attributes:
      summary, by_length, shares: as `jaxroute.stats` documents them, after a column for each axis.
      cells: the combinations, in order.
      notes: by cell, what a reader has to know of it.
      left_out: inputs that are not on this machine, and what needed them.
    """

    summary: pd.DataFrame
    by_length: pd.DataFrame
    shares: pd.DataFrame
    cells: Sequence[Cell]
    notes: Sequence[Sequence[str]]
    left_out: Sequence[str]

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of what varies, the seed apart."""
        return tuple(name for name in self.cells[0].labels if name != "seed")


def plan(
    path: str | Path,
    *,
    seeds: int = 1,
    **overrides: Any,
) -> tuple[list[Cell], list[str]]:
    """The cells of a study file, every one checked, and the inputs that are not on this machine.

    Args:
      path: a study file; its `[vary.AXIS]` tables name the entries of each axis and what each
        changes in the study. Cells are all their combinations.
      seeds: how many seeds, counting up from the study's.
      overrides: what is read, how, and the seed, as `jaxroute.study.overridden` takes them.

    Raises:
      InputError: for the first fault of any cell; if no trace is there.
    """
    base = study.overridden(read_config(path), **overrides)
    axes: dict[str, dict[Any, dict[str, Any]]] = {**base.vary}
    if seeds > 1:
        axes["seed"] = {n: {"seed": n} for n in range(base.seed, base.seed + seeds)}
    plain = base.model_dump(exclude_unset=True, exclude={"vary"})
    folder = {"folder": Path(path).absolute().parent}
    cells: list[Cell] = []
    missing: dict[str, str] = {}
    for labels in itertools.product(*axes.values()):
        values: dict[str, Any] = plain
        for axis, label in zip(axes, labels, strict=True):
            values = merged(values, axes[axis][label])
        named = dict(zip(axes, labels, strict=True))
        of = ", ".join(f"vary.{axis}.{each}" for axis, each in named.items() if axis != "seed")
        config = validate(values, StudyConfig, f"{path}, {of}" if of else str(path), folder)
        tables = config.files[: -len(config.datasets)]
        absent = [file for file in tables if not _is_there(file)]
        missing |= dict.fromkeys(absent, f"{of or 'everything'} left out")
        if absent:
            continue
        for dataset in config.datasets:
            if _is_there(dataset.path):
                alone = config.model_copy(update={"datasets": (dataset,)})
                cells.append(Cell(labels=named, config=alone))
            else:
                missing[dataset.path] = f"{dataset.label} left out"
    left_out = [
        f"{os.path.relpath(file, folder['folder'])} is not on this machine: {what}"
        for file, what in missing.items()
    ]
    if not cells:
        found = f"none of {', '.join(missing)}"
        mend = "give a trace by --trace, hours by --carbon"
        raise input_error(path, "", found, "files that are there", mend)
    return sorted(cells, key=lambda cell: _order(base, cell)), left_out


def _order(base: StudyConfig, cell: Cell) -> int:
    """Trace by trace, so that a compiled program serves many cells in a row."""
    labels = [dataset.label for dataset in base.datasets]
    return labels.index(cell.dataset) if cell.dataset in labels else len(labels)


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Values with some changed; tables key by key, anything else as a whole.

    >>> merged({"a": {"x": 1, "y": 2}, "b": 3}, {"a": {"y": 4}})
    {'a': {'x': 1, 'y': 4}, 'b': 3}
    """
    out = dict(values)
    for key, value in changes.items():
        old = out.get(key)
        if isinstance(old, Mapping) and isinstance(value, Mapping):
            value = merged(old, value)
        out[key] = value
    return out


def _is_there(path: str) -> bool:
    return path.startswith(BUILTIN) or Path(path).exists()


def run(
    cells: Sequence[Cell],
    left_out: Sequence[str],
    directory: str | Path,
    report: Report = lambda step, share: None,
) -> Grid:
    """Compares the policies of every cell, each once: what an earlier run finished is read.

    Args:
      cells, left_out: of `plan`.
      directory: where each cell's tables are kept as soon as it is done (`report.parts.Parts`).
      report: told of each step.

    Raises:
      InputError: if there is something else in the directory, or another study's parts.
    """
    parts = Parts.open(directory, record(cells))
    try:
        for n, cell in enumerate(cells):
            if n not in parts:
                share = functools.partial(_report_one, report, n, len(cells))
                parts.add(n, *_compared(cell, share))
    finally:
        parts.discard_if_empty()
    saved = [parts.read(n) for n in range(len(cells))]
    joined = {
        name: pd.concat(
            [_labelled(cell, tables[name]) for cell, (tables, _) in zip(cells, saved, strict=True)],
            ignore_index=True,
        )
        for name in TABLES
    }
    return Grid(**joined, cells=cells, notes=[notes for _, notes in saved], left_out=left_out)


def record(cells: Sequence[Cell]) -> dict[str, Any]:
    """What a run consists of: another directory's is another run."""
    from jaxroute import RESULTS_VERSION

    return {
        "results_version": RESULTS_VERSION,
        "cells": [
            {"labels": dict(cell.labels), "study": cell.config.model_dump(mode="json")}
            for cell in cells
        ],
        "inputs_sha256": {
            file: sha256(file) for file in sorted({f for c in cells for f in c.config.files})
        },
    }


def _report_one(report: Report, number: int, count: int, step: str, share: float) -> None:
    report(f"{number + 1} of {count}, {step}", (number + share) / count)


def _compared(cell: Cell, report: Report) -> tuple[dict[str, pd.DataFrame], list[str]]:
    """Tables and notes of one cell."""
    report(f"{cell.dataset}: read", 0.0)
    loaded = study.of(cell.config)
    outcome = comparison.run(loaded, report)
    notes = notes_of(loaded, outcome.summary, outcome.fixed)
    kept = {name: getattr(outcome, name) for name in TABLES}
    return kept, [*notes, *reconstructions(loaded.policies)]


def _labelled(cell: Cell, table: pd.DataFrame) -> pd.DataFrame:
    labels = pd.DataFrame({axis: [label] * len(table) for axis, label in cell.labels.items()})
    return pd.concat([labels, table], axis=1)
