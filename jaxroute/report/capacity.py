"""What a fleet makes of more and more traffic: on a terminal, as files, and as a figure."""

import functools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jaxroute.capacities import Capacities
from jaxroute.catalogue import reconstructions
from jaxroute.figures import capacity, series, style
from jaxroute.figures.capacity import beyond_pct, per_turn
from jaxroute.report.compared import Shown
from jaxroute.report.extras import require
from jaxroute.report.files import made_with, plain, write_tables
from jaxroute.report.kinds import LOADED, SAVING
from jaxroute.report.tables import RECONSTRUCTION, WORSE, grid, points, put, put_notes
from jaxroute.report.target import RECORD
from jaxroute.study import Study

FIGURE = "capacity.svg"

CAPACITY_FILES = ("capacity.csv", "replicas.csv", FIGURE, RECORD)
"""What the command leaves."""

UNSETTLED, BEYOND, LESS = "~", "!", "*"
"""Marks of a figure: its load did not settle; turns beyond capacity; less quality."""


class Block(NamedTuple):
    """A table of policies and levels of traffic.

    Attributes:
      title: what it shows.
      values: of each row.
      form: of a value.
      marks: that values may have.
    """

    title: str
    values: pd.Series
    form: Callable[[float], str]
    marks: str = UNSETTLED + BEYOND


def show_capacity(study: Study, outcome: Capacities, out: Console) -> None:
    """Prints for each dataset tables of policies by level of traffic, then how to read them."""
    base = study.config.baseline
    rows, marks = outcome.table, _marks(outcome.table, base)
    levels = sorted(rows["traffic_pct"].unique())
    choices = [[f"{level:g}" for level in levels[::-every][::-1]] for every in (1, 2, 3, 6)]
    for dataset, own in rows.groupby("dataset", sort=False):
        for block in _blocks(own, base):
            allowed = marks[own.index].map(lambda each, may=block.marks: _only(each, may))
            values = block.values.dropna().map(block.form)
            told = own.assign(value=values, marks=allowed).loc[values.index]
            title = f"{dataset}: {block.title}, by traffic in %"
            if len(told):
                put(out, functools.partial(_table, told), title, choices)
    put_notes(out, capacity_notes(study, outcome))


def _blocks(rows: pd.DataFrame, baseline: str) -> list[Block]:
    carbon_g = per_turn(rows, "carbon_g")
    with_idle_g = carbon_g + per_turn(rows, "carbon_idle_g")
    unit_g, unit = series.mass(with_idle_g.max())
    saving = rows["saving_pct"].mask(rows["policy"] == baseline)
    blocks = [
        Block(f"carbon, {unit} a turn", carbon_g / unit_g, short),
        Block(f"saving against {baseline}, %", saving, points, UNSETTLED + BEYOND + LESS),
        Block(f"carbon with idle power, {unit} a turn", with_idle_g / unit_g, short),
        Block("mean wait, ms", rows["mean_wait_s"] * 1e3, short),
        Block("hit ratio, %", rows["hit_ratio_pct"], points),
        Block("turns unserved or beyond capacity, %", beyond_pct(rows), points),
    ]
    idle = (rows["carbon_idle_g"] > 0).any()
    return [block for block in blocks if idle or "idle" not in block.title]


def _marks(rows: pd.DataFrame, baseline: str) -> pd.Series:
    """The marks of each row, together."""
    less = series.worse_by(rows, baseline, ["dataset", "traffic_pct"])
    marks = np.where(rows["settled"], "", UNSETTLED).astype(object)
    marks += np.where(rows["overflow_pct"] > 0, BEYOND, "").astype(object)
    return pd.Series(marks + np.where(less, LESS, "").astype(object), rows.index)


def _table(rows: pd.DataFrame, title: str, levels: list[str]) -> Table:
    table, most = grid(title, "policy", levels), rows["marks"].str.len().max()
    cells = rows["value"] + rows["marks"].str.ljust(most)
    for policy, own in cells.groupby(rows["policy"], sort=False):
        told = dict(zip(rows["traffic_pct"][own.index].map("{:g}".format), own, strict=True))
        table.add_row(escape(str(policy)), *(told.get(level, "") for level in levels))
    return table


def _only(marks: str, allowed: str) -> str:
    return "".join(mark for mark in marks if mark in allowed)


def short(value: float) -> str:
    """Three digits, or all before the point, and at most two after it; never minus nothing.

    >>> short(0.0149), short(-12.34), short(1234.5), short(-0.001)
    ('0.01', '-12.3', '1,234', '0.00')
    """
    digits = 0 if abs(value) >= 99.95 else 1 if abs(value) >= 9.995 else 2
    return f"{round(value, digits) + 0.0:,.{digits}f}"


def capacity_notes(study: Study, outcome: Capacities) -> Iterator[str]:
    """What traffic means, what was not settled or not served, and what to know, a line each."""
    rows, base = outcome.table, study.config.baseline
    one = rows.iloc[0]
    rate = 100 * one["arrival_rate"] / one["traffic_pct"]
    yield f"traffic: 100 % is {rate:,.4g} sessions an hour; the fleet is the same at every level"
    for dataset, own in outcome.replicas.groupby("dataset", sort=False):
        count = own["replicas"]
        yield (
            f"{dataset}: {count.sum():,.0f} replicas, {count.min():,.0f} to {count.max():,.0f} a "
            "deployment"
        )
    yield (
        f"saving against {base} at the same traffic; carbon and saving are without idle power, "
        "that of replicas while they serve nothing"
    )
    yield "hit ratio: of the prompt tokens that could have been cached, those that were"
    yield from _warnings(rows, base)
    yield from outcome.notes
    if "fair_carbon" in set(rows["policy"]):
        yield RECONSTRUCTION
    yield from reconstructions(study.policies)


def _warnings(rows: pd.DataFrame, baseline: str) -> Iterator[str]:
    """What the marks mean, of those that there are, and whom they concern."""
    told = {
        UNSETTLED: "load and waits did not settle in the rounds given, so the figures may swing",
        BEYOND: "some turns are beyond what their deployment can serve in that quarter hour: its "
        "waits are cut off, and real ones would grow for as long as that lasts",
        LESS: f"mean quality more than {WORSE:g} below {baseline}'s, so no like-for-like saving",
    }
    marks = _marks(rows, baseline)
    for mark, words in told.items():
        own = rows[marks.str.contains(mark, regex=False)]
        if len(own):
            levels = own.groupby("policy", sort=False)["traffic_pct"]
            whom = (f"{name}{_span(at, rows['traffic_pct'])}" for name, at in levels)
            yield f"{mark}: {words} ({', '.join(whom)})"


def _span(levels: pd.Series, every: pd.Series) -> str:
    """Which levels, in words; none where it is every one."""
    low, high = levels.min(), levels.max()
    if high == every.max():
        return "" if low == every.min() else f" from {low:g} %"
    return f" at {low:g} %" if low == high else f" from {low:g} to {high:g} %"


def require_figure() -> None:
    """Raises an `InputError` unless `FIGURE` can be drawn: to be asked before the work."""
    require(FIGURE, "matplotlib")


def write_capacity(directory: Path, study: Study, outcome: Capacities, wall_s: float) -> None:
    """Writes `CAPACITY_FILES` into a directory; `settled` is 1 or 0.

    Raises:
      InputError: as `require_figure`.
    """
    require_figure()
    shown = figure(outcome.table, study.config.baseline, "capacity")
    drawn = style.svg(lambda: shown.draw(style.DOUBLE_MM), shown.name, shown.title, shown.caption)
    (directory / FIGURE).write_text(f'<?xml version="1.0"?>\n{drawn}', encoding="utf-8")
    named = {name: study.policies[name] for name in outcome.table["policy"].unique()}
    record = {
        **made_with(),
        "seed": study.config.seed,
        "study": json.loads(study.config.model_dump_json(exclude_none=True)),
        "traffic_pct": [float(level) for level in sorted(outcome.table["traffic_pct"].unique())],
        "policies": plain({name: vars(params) for name, params in named.items()}),
        "inputs_sha256": dict(study.inputs),
        "notes": list(capacity_notes(study, outcome)),
        "wall_s": round(wall_s, 3),
        "compile_s": round(outcome.compile_s, 3),
        "replay_s": round(outcome.replay_s, 3),
    }
    table = outcome.table.astype({"settled": int})
    write_tables(directory, {"capacity": table, "replicas": outcome.replicas}, record)


def figure(rows: pd.DataFrame, baseline: str, name: str) -> Shown:
    """The figure of some datasets.

    Args:
      rows: of `capacity.csv`.
      baseline: what savings are against.
      name: of its file.
    """
    numbers = rows[[each for each in LOADED if each != "settled"]]
    return Shown(
        name,
        "What more traffic does",
        "Against traffic, in % of what the study says, with the same fleet: carbon of a turn, "
        "without idle power; the mean wait before a turn's prefill, logarithmic and from "
        f"{capacity.LEAST_S * 1e3:g} ms; of the prompt tokens that could have been cached, those "
        "that were; and turns that no deployment holds or that are beyond what theirs can serve. "
        f"Black: {baseline}; grey: policies that are not named. Hollow: load and waits did not "
        "settle.",
        functools.partial(capacity.draw, rows, baseline),
        numbers.assign(**{name: rows[name] for name in SAVING}),
    )
