"""What policies make of more and more traffic: carbon, waits, hits, and what is not served."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from jaxroute.catalogue import FIXED
from jaxroute.figures import series, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEAST_S = 1e-3
"""Waits below it are drawn as it, since the axis is logarithmic."""


MOST_LINES = 6
"""With a name and a colour."""


class Panel(NamedTuple):
    """A panel of each dataset.

    Attributes:
      label: of its axis.
      value: what is drawn of rows.
    """

    label: str
    value: Callable[[pd.DataFrame], pd.Series]


def per_turn(rows: pd.DataFrame, column: str) -> pd.Series:
    """A sum over served turns divided by their number; NaN where none was served."""
    return rows[column] / rows["turns"].where(rows["turns"] > 0)


def beyond_pct(rows: pd.DataFrame) -> pd.Series:
    """Turns that no deployment holds, and those beyond what their deployment can serve, %."""
    return rows["unserved_pct"] + rows["overflow_pct"]


def draw(rows: pd.DataFrame, baseline: str, width_mm: float) -> "Figure":
    """Four panels a dataset, against traffic; the policies not singled out are grey.

    Args:
      rows: of `capacity.csv`.
      baseline: the policy that savings are against.
      width_mm: of the figure.
    """
    from matplotlib.ticker import StrMethodFormatter

    datasets = list(rows["dataset"].unique()[: series.MOST_PANELS])
    unit_g, unit = series.mass(per_turn(rows, "carbon_g").max())
    shown = (
        Panel(f"carbon ({unit} a turn)", lambda own: per_turn(own, "carbon_g") / unit_g),
        Panel("mean wait (s)", lambda own: own["mean_wait_s"].clip(lower=LEAST_S)),
        Panel("hit ratio (%)", lambda own: own["hit_ratio_pct"]),
        Panel("unserved + overflow (%)", beyond_pct),
    )
    figure, axes = style.panels(len(shown) * len(datasets), width_mm, 44, most=2)
    lines, remaining = looks(rows, baseline), iter(axes)
    for dataset in datasets:
        own = rows[rows["dataset"] == dataset]
        for panel in shown:
            axis = next(remaining)
            _lines(axis, own, panel, lines)
            axis.set_xlabel("traffic (% of the study's)")
            axis.set_ylabel(panel.label)
            if len(datasets) > 1:
                axis.set_title(style.short(dataset))
            axis.grid()
            if panel is shown[1]:
                axis.set_yscale("log")
                axis.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    style.legend_below(figure, axes)
    return figure


def looks(rows: pd.DataFrame, baseline: str) -> dict[str, series.Line]:
    """The policies singled out, and how: the baseline, the router, those that save most."""
    less = set(rows["policy"][series.worse_by(rows, baseline, ["dataset", "traffic_pct"])])
    saving = rows.groupby("policy", sort=False)["saving_pct"].mean()
    found = series.looks(saving, baseline, {*less, *FIXED})
    few = dict(list(found.items())[: MOST_LINES - 1])
    return {baseline: series.Line(style.BLACK, "o", "-"), **few}


def _lines(axis: "Axes", rows: pd.DataFrame, panel: Panel, lines: dict[str, series.Line]) -> None:
    for name, unsorted in rows.groupby("policy", sort=False):
        own = unsorted.sort_values("traffic_pct")
        at, values, line = own["traffic_pct"], panel.value(own), lines.get(str(name))
        if line is None:
            axis.plot(at, values, color=style.GREY, linewidth=0.4, zorder=1, label="other policies")
            continue
        look: dict[str, Any] = {"color": line.colour, "marker": line.marker}
        axis.plot(at, values, **look, linestyle=line.dashes, zorder=3, label=style.short(name))
        odd = ~own["settled"].astype(bool)
        axis.plot(at[odd], values[odd], **look, linestyle="none", markerfacecolor="white", zorder=4)
