"""What is saved as a map: retentions by gates, or by what a study varies."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from jaxroute.figures import series, style
from jaxroute.report.grid import PREFERRED

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GATES = {
    series.UNGATED: "no gate",
    PREFERRED: "gate of the router",
    "hysteresis": "hysteresis",
    "sticky": "always stays",
}
"""Policies that differ in what makes a session stay."""

MOST_COLUMNS = 24

MOST_BINS = 8
"""Columns of a sweep's map."""

MINUS = "\N{MINUS SIGN}"

FIGURES = ["saving_pct", "saving_lo_pct", "saving_hi_pct"]


def of_gates(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of a summary whose policies `GATES` has, with its name of each as `column`."""
    own = rows[rows["policy"].isin(GATES)]
    order = own["policy"].map(list(GATES).index)
    return own.assign(column=own["policy"].map(GATES)).loc[order.sort_values(kind="stable").index]


def of_combinations(rows: pd.DataFrame, axes: Sequence[str]) -> pd.DataFrame:
    """The rows of a study, with what each varies, in words, as `column`."""
    text = rows[list(axes)].astype(str).agg(", ".join, axis=1)
    return rows.assign(column=text)


def of_settings(rows: pd.DataFrame, field: str) -> pd.DataFrame:
    """Of a sweep, the setting of least carbon in each bin of a field, with the bin as `column`.

    Of those that serve at most `WORSE` less quality than the baseline; bins of as many values each,
    or of one where there are few.
    """
    rows = rows[rows["mean_quality"] >= rows["baseline_mean_quality"] - series.WORSE]
    values = rows[field].to_numpy(np.float64)
    distinct = np.unique(values)
    bins = np.array_split(distinct, min(MOST_BINS, max(len(distinct), 1)))
    at = np.searchsorted([own[0] for own in bins if len(own)], values, side="right") - 1
    text = [_range(own) for own in bins]
    named = rows.assign(at=at, column=[text[n] for n in at])
    best = named.sort_values("carbon_g", kind="stable").drop_duplicates(
        ["dataset", "retention", "at"]
    )
    return best.sort_values("at", kind="stable").drop(columns="at")


def draw(rows: pd.DataFrame, retentions: Sequence[str], columns: str, width_mm: float) -> "Figure":
    """A map of one dataset: a row a retention, each cell a saving and half its 95 % interval.

    Args:
      rows: with retention, `column` and the saving of each; of several with the same, the first.
      retentions: rows of the map.
      columns: what the columns are.
      width_mm: of the figure.
    """
    names = list(rows["column"].unique())[:MOST_COLUMNS]
    first = rows.drop_duplicates(["retention", "column"]).set_index(["retention", "column"])
    cells = {
        name: first[name].unstack("column").reindex(index=list(retentions), columns=names)
        for name in FIGURES
    }
    turned = width_mm <= style.SINGLE_MM or len(names) > 12
    if turned:
        cells = {name: table.T for name, table in cells.items()}
    saving = cells["saving_pct"].to_numpy(np.float64)
    half = cells["saving_hi_pct"].to_numpy(np.float64) - saving
    most = max(float(np.nanmax(np.abs(saving), initial=0)), 1.0)
    figure, (panel,) = style.panels(1, width_mm, 24 + 6.5 * len(saving))
    image = panel.imshow(
        saving, cmap=style.SIGNED, vmin=-most, vmax=most, aspect="auto", interpolation="nearest"
    )
    for (row, column), value in np.ndenumerate(saving):
        if np.isnan(value):
            continue
        text = f"{round(value, 1) + 0.0:+.1f}".replace("-", MINUS)
        if not np.isnan(half[row, column]):
            text += f"\n±{half[row, column]:.1f}"
        colour = style.ink(image.cmap(image.norm(value)))
        panel.text(column, row, text, ha="center", va="center", fontsize=5.5, color=colour)
    table = cells["saving_pct"]
    wide = max(8, round((100 if turned else 180) / max(len(table.columns), 1)))
    panel.set_yticks(range(len(table.index)), [style.short(name, 30) for name in table.index])
    panel.set_xticks(range(len(table.columns)), [style.short(n, wide) for n in table.columns])
    along, up = ("caches kept", columns) if turned else (columns, "caches kept")
    panel.set_xlabel(along)
    panel.set_ylabel(up)
    panel.spines[:].set_visible(False)
    panel.tick_params(length=0)
    figure.colorbar(image, ax=panel, label="saving (%)", shrink=0.9, pad=0.02)
    return figure
