"""A result as one page of HTML, and its figures as SVG in the size of print.

The page needs nothing else: style and figures stand in it, and nothing runs or is fetched.
"""

import json
import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from jaxroute.errors import InputError
from jaxroute.load.messages import input_error
from jaxroute.report.extras import require
from jaxroute.report.results import Results, read_results
from jaxroute.report.sections import Section, Shown, sections
from jaxroute.report.target import FIGURES, PAGE, holds_figures
from jaxroute.report.verdicts import verdicts

GENERATOR = '<meta name="generator" content="jaxroute">'
"""Marks a page as one of ours, which may be replaced."""

MOST_ROWS = 150
"""Of the numbers behind a figure: more are in the result's files."""

MOST_TABLE, MOST_TEXT = 3_000, 60_000
"""Cells of a table, and characters of a study, that a page holds, so that it stays small."""


class Written(NamedTuple):
    """Where a report is.

    Attributes:
      page: the HTML file.
      figures: the SVG files, of each figure one for two columns of print and one for one.
    """

    page: Path
    figures: list[Path]


def write_report(directory: str | Path, out: str | Path | None = None) -> Written:
    """Writes `report.html` and `figures/*.svg` of a result; an earlier report is replaced.

    Args:
      directory: what `compare`, `study`, `sweep`, `tune`, `fit-gate`, `ablate` or `capacity` left.
      out: where to write; by default there.

    Raises:
      InputError: as `read_results` does; if matplotlib or Jinja is not installed; if the place
        cannot be written, or holds a page or figures that are no report's.
    """
    require("report", "jinja2", "matplotlib")
    results = read_results(directory)
    target = Path(directory if out is None else out)
    _check(target)
    found = sections(results)
    drawn = {shown.name: _drawn(shown) for section in found for shown in section.shown}
    page = rendered(results, found, drawn)
    try:
        return _written(target, page, drawn)
    except OSError as error:
        reason = error.strerror or str(error)
        raise input_error(target, "", reason, "a directory that can be written") from error


def _check(target: Path) -> None:
    """Refuses to replace what is no report."""
    page, figures = target / PAGE, target / FIGURES
    if target.exists() and not target.is_dir():
        raise input_error(target, "", "a file", "a directory", "give another --out")
    if page.is_dir() or (page.exists() and GENERATOR not in _head(page)):
        raise input_error(page, "", "another page", "an earlier report", "give another --out")
    if figures.exists() and not holds_figures(figures):
        found = "something else than figures in it" if figures.is_dir() else "a file"
        raise input_error(figures, "", found, "SVG files only", "give another --out")


def _head(page: Path) -> str:
    try:
        with page.open(encoding="utf-8", errors="replace") as stream:
            return stream.read(2_000)
    except OSError as error:
        raise input_error(page, "", error.strerror or str(error), "a file to replace") from error


class Drawn(NamedTuple):
    """A figure for two columns of print and for one."""

    wide: str
    narrow: str


def _drawn(shown: Shown) -> Drawn:
    from jaxroute.figures import style

    def in_width(width_mm: float, suffix: str) -> str:
        name = f"{shown.name}{suffix}"
        return style.svg(lambda: shown.draw(width_mm), name, shown.title, shown.caption)

    return Drawn(in_width(style.DOUBLE_MM, ""), in_width(style.SINGLE_MM, "_narrow"))


def _written(target: Path, page: str, drawn: Mapping[str, Drawn]) -> Written:
    """Writes everything beside its place and then moves it there, the page last."""
    target.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=".jaxroute-", dir=target))
    try:
        figures = fresh / FIGURES
        figures.mkdir()
        for name, (wide, narrow) in drawn.items():
            for file, text in ((f"{name}.svg", wide), (f"{name}_narrow.svg", narrow)):
                (figures / file).write_text(f'<?xml version="1.0"?>\n{text}', encoding="utf-8")
        (fresh / PAGE).write_text(page, encoding="utf-8")
        (target / PAGE).unlink(missing_ok=True)
        if (target / FIGURES).exists():
            shutil.rmtree(target / FIGURES)
        os.replace(figures, target / FIGURES)
        os.replace(fresh / PAGE, target / PAGE)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return Written(target / PAGE, sorted((target / FIGURES).iterdir()))


def rendered(results: Results, found: list[Section], drawn: Mapping[str, Drawn]) -> str:
    """The page; all that comes from files is escaped.

    Args:
      results: of a command.
      found: its sections.
      drawn: by name, their figures.
    """
    import jinja2

    environment = jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["cell"] = cell
    template = resources.files("jaxroute.report").joinpath("page.html.j2").read_text("utf-8")
    tables = {shown.name: _numbers(shown.numbers) for section in found for shown in section.shown}
    record, study = results.record, results.study
    return environment.from_string(template).render(
        generator=GENERATOR,
        command=results.command,
        title=str(results.study.get("name", "default")),
        verdicts=verdicts(results),
        sections=found,
        drawn=drawn,
        tables=tables,
        notes=_notes(record),
        facts=_facts(record),
        inputs=[(str(name), str(value)) for name, value in _inputs(results).items()],
        details={
            name: _text(values)
            for name, values in (
                ("The study of the first combination" if "cells" in record else "The study", study),
                ("The policies", record.get("policies")),
            )
            if values
        },
        folder=FIGURES,
    )


def _notes(record: Mapping[str, Any]) -> list[str]:
    """The notes of a record; of a study those of every cell, each once."""
    every = [*record.get("notes", [])]
    for one in record.get("cells", []):
        every += one.get("notes", [])
    left_out = [f"left out: {each}" for each in record.get("left_out", [])]
    return [*dict.fromkeys(map(str, every)), *left_out][:MOST_ROWS]


def _inputs(results: Results) -> dict[str, Any]:
    from jaxroute.report.parts import PLAN

    known = results.record.get("inputs_sha256", {})
    if known or not (results.directory / PLAN).is_file():
        return known
    try:
        plan = json.loads((results.directory / PLAN).read_text())
        return dict(plan["inputs_sha256"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{results.directory / PLAN}: no inputs_sha256 ({error})") from error


def _facts(record: Mapping[str, Any]) -> list[tuple[str, str]]:
    """How it was run: a name and a value each."""
    versions = ", ".join(f"{name} {value}" for name, value in record.get("versions", {}).items())
    device = ", ".join(f"{name} {value}" for name, value in record.get("device", {}).items())
    facts = {
        "Versions": versions,
        "Device": device,
        "Seed": _seeds(record),
        "Format of results": record.get("results_version", ""),
        "Wall time (s)": record.get("wall_s", ""),
        "of which compiling (s)": record.get("compile_s", ""),
        "of which replaying (s)": record.get("replay_s", ""),
        "Decisions replayed": f"{record['decisions']:,}" if "decisions" in record else "",
    }
    return [(name, str(value)) for name, value in facts.items() if value != ""]


def _seeds(record: Mapping[str, Any]) -> str:
    cells = [str(one["seed"]) for one in record.get("cells", []) if "seed" in one]
    return ", ".join(dict.fromkeys(cells)) or str(record.get("seed", ""))


def _text(value: Any) -> str:
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return text if len(text) <= MOST_TEXT else f"{text[:MOST_TEXT]}\n… (the rest is in run.json)"


class Numbers(NamedTuple):
    """A table for the page.

    Attributes:
      header, rows: of it.
      is_text: whether each column is.
      more: how many rows are left out.
    """

    header: list[str]
    rows: list[tuple[Any, ...]]
    is_text: list[bool]
    more: int


def _numbers(table: pd.DataFrame) -> Numbers:
    most = min(MOST_ROWS, max(MOST_TABLE // max(len(table.columns), 1), 20))
    few = table.head(most)
    return Numbers(
        [str(name) for name in table.columns],
        list(few.itertuples(index=False, name=None)),
        [not pd.api.types.is_numeric_dtype(kind) for kind in table.dtypes],
        len(table) - len(few),
    )


def cell(value: Any) -> str:
    """A value as a table shows it: four digits, or all before the point.

    >>> cell(1234567.8), cell(0.123456), cell(3.0), cell(float("nan")), cell("a"), cell(True)
    ('1,234,568', '0.1235', '3', '', 'a', 'yes')
    """
    if isinstance(value, bool | np.bool_):
        return "yes" if value else ""
    if not isinstance(value, int | float | np.number) or value is pd.NA:
        return str(value)
    number = float(value)
    if math.isnan(number):
        return ""
    if math.isinf(number):
        return "infinite" if number > 0 else "-infinite"
    return f"{number:,.0f}" if abs(number) >= 1000 or number == int(number) else f"{number:.4g}"
