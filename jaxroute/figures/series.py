"""Which policies a figure singles out, and what is said of all of them alike."""

from collections.abc import Collection, Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from jaxroute.catalogue import FIXED
from jaxroute.config import BOUND_ROW, PLAN_ROW
from jaxroute.figures import style
from jaxroute.report.grid import PREFERRED
from jaxroute.report.tables import WORSE

MOST_PANELS = 6
"""Retentions of a figure: more are in the tables only."""

UNGATED = f"{PREFERRED}_no_gate"


class Line(NamedTuple):
    """How a policy is drawn: its colour, marker and dashes."""

    colour: str
    marker: str
    dashes: object


def worse_by(rows: pd.DataFrame, baseline: str, keys: list[str]) -> pd.Series:
    """Whether rows serve a mean quality more than `WORSE` below that of their baseline.

    Args:
      rows: of a summary, with the baseline's of every comparison.
      baseline: its name.
      keys: columns that tell comparisons apart.
    """
    base = rows[rows["policy"] == baseline].drop_duplicates(keys).set_index(keys)["mean_quality"]
    floor = base.reindex(pd.MultiIndex.from_frame(rows[keys])).to_numpy() - WORSE
    return rows["mean_quality"] < floor


def worse(rows: pd.DataFrame, baseline: str) -> pd.Series:
    """`worse_by` where a comparison is a dataset and retention."""
    return worse_by(rows, baseline, ["dataset", "retention"])


def policies(rows: pd.DataFrame) -> list[str]:
    """The policies of a table in order, without the bounds."""
    return [name for name in rows["policy"].unique() if name not in (PLAN_ROW, BOUND_ROW)]


def leading(summary: pd.DataFrame, baseline: str) -> dict[str, Line]:
    """The policies that figures single out, how they are drawn, the hindsight plan last.

    The router and it without its gate, where they are; then those that save most, of the ones that
    nowhere serve less quality than the baseline and have no choice taken away.
    """
    less = set(summary["policy"][worse(summary, baseline)])
    saving = summary.groupby("policy", sort=False)["saving_pct"].mean()
    found = looks(saving, baseline, {PLAN_ROW, BOUND_ROW, *less, *FIXED})
    if PLAN_ROW in saving.index:
        found[PLAN_ROW] = Line(style.BLACK, "x", (0, (1, 2)))
    return found


def looks(saving: pd.Series, baseline: str, apart: Collection[str]) -> dict[str, Line]:
    """The router and it without its gate, then those that save most, as many as there are looks.

    Args:
      saving: by policy.
      baseline: never one of them.
      apart: neither, but for the router and it without its gate.
    """
    ranked = saving.sort_values(ascending=False, kind="stable").index
    first = [name for name in (PREFERRED, UNGATED) if name in saving.index]
    chosen = dict.fromkeys([*first, *(name for name in ranked if name not in apart)])
    chosen.pop(baseline, None)
    return {name: Line(*look) for name, look in zip(chosen, style.SERIES, strict=False)}


def by_retention(rows: pd.DataFrame) -> Iterator[tuple[str, pd.DataFrame]]:
    """The rows of each retention, the first `MOST_PANELS` of them."""
    for retention in rows["retention"].unique()[:MOST_PANELS]:
        yield retention, rows[rows["retention"] == retention]


def panel_count(rows: pd.DataFrame) -> int:
    """Of `by_retention`."""
    return min(rows["retention"].nunique(), MOST_PANELS)


def mass(most_g: float) -> tuple[float, str]:
    """Grams of a unit in which the largest of some masses is read easily, and its name.

    >>> mass(12_000.0), mass(900.0), mass(0.5)
    ((1000.0, 'kg'), (1.0, 'g'), (0.001, 'mg'))
    """
    if not np.isfinite(most_g) or most_g <= 0:
        return 1.0, "g"
    for size, name in ((1e6, "t"), (1e3, "kg"), (1.0, "g")):
        if most_g >= 10 * size:
            return size, name
    return 1e-3, "mg"
