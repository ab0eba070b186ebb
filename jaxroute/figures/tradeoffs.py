"""Carbon against quality and latency, and the front that no setting beats."""

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from jaxroute import pareto
from jaxroute.config import BOUND_ROW, PLAN_ROW
from jaxroute.figures import series, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 2.5
"""Of the baseline's carbon: policies that emit more are left out."""

STAR: dict[str, Any] = {
    "marker": "*",
    "s": 60,
    "facecolors": "none",
    "edgecolors": "black",
    "linewidths": 0.9,
    "zorder": 1.5,
}
"""How the baseline is drawn: hollow and below the others, so that it hides nothing."""

PANEL_MM = 32.0
"""Height that the points of a panel have, without what stands around it."""

DENSE = 200
"""Points from which on they are drawn as a picture inside the figure, which stays small."""


class Against(NamedTuple):
    """A column to hold against carbon, and how it is called."""

    column: str
    label: str


AGAINST = (
    Against("mean_quality", "predicted quality (0 to 1)"),
    Against("mean_e2e_s", "time to whole answer (s)"),
)


def front(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """Of rows, those that none beats in carbon and a column at once, by carbon."""
    on = pareto.front(pareto.costs(rows, ("carbon_g", column)))
    return rows[on].sort_values("carbon_g", kind="stable")


def draw(
    rows: pd.DataFrame, baseline: str, lines: dict[str, series.Line], width_mm: float
) -> "Figure":
    """Points of one dataset: two rows of panels, quality and latency, a panel a retention.

    Args:
      rows: of a summary; with a column `setting`, of a sweep, whose settings are a cloud.
      baseline: the policy, or of a sweep what `baseline_carbon_g` is of.
      lines: the policies that are singled out.
      width_mm: of the figure.
    """
    rows = rows[~rows["policy"].isin([BOUND_ROW])] if "policy" in rows else rows
    count = series.panel_count(rows)
    figure, axes = style.panels(2 * count, width_mm, 50, most=count if count > 1 else 2)
    unit_g, unit = series.mass(min(rows["carbon_g"].max(), limit_g(rows, baseline)))
    across_mm = width_mm / (max(count, 2) if width_mm > style.SINGLE_MM else 1)
    remaining = iter(axes)
    for against in AGAINST:
        for retention, own in series.by_retention(rows):
            panel = next(remaining)
            scaled = own.assign(carbon_g=own["carbon_g"] / unit_g)
            if "setting" in own:
                scaled = scaled.assign(baseline_carbon_g=own["baseline_carbon_g"] / unit_g)
                _cloud(panel, scaled, against, baseline)
            else:
                most_g = limit_g(rows, baseline) / unit_g
                _policies(panel, scaled, against, baseline, lines, most_g, across_mm)
            panel.set_title(f"caches: {style.short(retention)}")
            panel.set_xlabel(f"carbon ({unit} CO₂e)")
            panel.set_ylabel(against.label)
            panel.grid()
            style.thousands(panel.xaxis)
    style.legend_below(figure, axes)
    return figure


def limit_g(rows: pd.DataFrame, baseline: str) -> float:
    """The carbon beyond which a policy is left out."""
    if "policy" not in rows:
        return np.inf
    return MOST * float(rows["carbon_g"][rows["policy"] == baseline].max())


def _steps(panel: "Axes", rows: pd.DataFrame, column: str) -> None:
    best = front(rows, column)
    beyond = best.tail(1).assign(carbon_g=rows["carbon_g"].max())  # so that one point has a line
    line = pd.concat([best, beyond])
    panel.plot(
        line["carbon_g"], line[column], drawstyle="steps-post", color=style.BLACK, linewidth=0.8,
        zorder=1, label="front: none has less carbon and is better",
    )  # fmt: skip


def _policies(
    panel: "Axes",
    own: pd.DataFrame,
    against: Against,
    baseline: str,
    lines: dict[str, series.Line],
    most_g: float,
    across_mm: float,
) -> None:
    near = own[own["carbon_g"] <= most_g]
    _steps(panel, near[near["policy"] != PLAN_ROW], against.column)
    others = [name for name in own["policy"] if name not in lines and name != baseline]
    numbers = {name: str(n) for n, name in enumerate(others, 1)}
    offsets = _offsets(near, against.column, numbers, across_mm)
    point: dict[str, Any] = {"edgecolors": "black", "linewidths": 0.3}
    for row in near.to_dict("records"):
        name, at = row["policy"], (row["carbon_g"], row[against.column])
        label = style.short(name)
        if name == baseline:
            panel.scatter(*at, label=f"{label} (baseline)", **STAR)
        elif name in lines:
            line, above = lines[name], 20 - list(lines).index(name)
            look = {"linewidths": 1.0} if line.marker == "x" else point
            panel.scatter(*at, marker=line.marker, s=14, color=line.colour, zorder=above,
                          label=label, **look)  # fmt: skip
        else:
            number = numbers[name]
            panel.scatter(*at, marker="o", s=7, color="white", edgecolors=style.GREY,
                          linewidths=0.6, zorder=2, label=f"{number} {label}")  # fmt: skip
            panel.annotate(
                number, at, offsets[name], textcoords="offset points", fontsize=5.5, zorder=30
            )


def _offsets(
    near: pd.DataFrame, column: str, numbers: dict[str, str], across_mm: float
) -> dict[str, style.Point]:
    """Where the number of each policy stands beside its point, by name."""
    rows = near.dropna(subset=["carbon_g", column])
    sizes = 72 / 25.4 * 0.8 * across_mm, 72 / 25.4 * PANEL_MM
    place = [
        (size * (rows[name] - rows[name].min()) / (np.ptp(rows[name]) or 1.0)).to_numpy()
        for name, size in zip(("carbon_g", column), sizes, strict=True)
    ]
    points = dict(zip(rows["policy"], zip(*place, strict=True), strict=True))
    labelled = {name: at for name, at in points.items() if name in numbers}
    free = [at for name, at in points.items() if name not in numbers]
    texts = [numbers[name] for name in labelled]
    found = style.apart(list(labelled.values()), texts, free)
    return dict.fromkeys(numbers, (2.0, 2.0)) | dict(zip(labelled, found, strict=True))


def _cloud(panel: "Axes", own: pd.DataFrame, against: Against, baseline: str) -> None:
    picture = len(own) > DENSE
    panel.scatter(
        own["carbon_g"], own[against.column], s=4, color=style.SKY, alpha=0.5, linewidths=0,
        rasterized=picture, label="a setting", zorder=0,
    )  # fmt: skip
    _steps(panel, own, against.column)
    best = front(own, against.column)
    panel.scatter(
        best["carbon_g"], best[against.column], s=9, color=style.VERMILION, marker="D",
        edgecolors="black", linewidths=0.3, zorder=3, rasterized=len(best) > DENSE,
        label="a setting on the front",
    )  # fmt: skip
    base = own.drop_duplicates(["baseline_carbon_g", "baseline_mean_quality"])
    if against.column == "mean_quality":
        panel.scatter(
            base["baseline_carbon_g"], base["baseline_mean_quality"],
            label=f"{style.short(baseline)} (baseline)", **STAR,
        )  # fmt: skip
    elif len(base) == 1:
        panel.axvline(base["baseline_carbon_g"].iloc[0], color=style.GREY, linewidth=0.8)


def flags(rows: pd.DataFrame) -> np.ndarray:
    """Whether each policy of a summary is on the front of carbon, quality and latency at once."""
    real = ~rows["policy"].isin([PLAN_ROW, BOUND_ROW])
    found = np.zeros(len(rows), bool)
    found[real] = pareto.flags(rows[real], pareto.OBJECTIVES)
    return found
