"""How tuning went: the loss of every start, and where its parameters ended."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from jaxroute.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCORES = ("start", "soft", "learned", "held_out")
"""Columns of `starts.csv` that are no parameters."""


def best(starts: pd.DataFrame) -> int:
    """The row that was taken: of the least objective on the sessions learned from."""
    return int(np.nanargmin(starts["learned"].to_numpy(np.float64)))


def draw_loss(loss: pd.DataFrame, taken: int, width_mm: float) -> "Figure":
    """The loss of each start step by step, and the temperature of the choices below it.

    Args:
      loss: one row a step and start.
      taken: the start that was taken.
      width_mm: of the figure.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import StrMethodFormatter

    size = width_mm / 25.4, 80 / 25.4
    figure = Figure(figsize=size, layout="constrained")
    above, below = figure.subplots(2, sharex=True, height_ratios=(3, 1))
    for start, rows in loss.groupby("start"):
        own = start == taken
        above.plot(
            rows["step"], rows["loss"], color=style.VERMILION if own else style.GREY,
            linewidth=1.4 if own else 0.6, zorder=2 if own else 1,
            label=f"start {start:.0f}, taken" if own else "other starts",
        )  # fmt: skip
    heat = loss.drop_duplicates("step")
    below.semilogy(heat["step"], heat["temperature"], color=style.BLACK)
    above.set_ylabel("loss of the sessions\nof a step (no unit)")
    below.set_ylabel("temperature\nof choices")
    below.set_xlabel("step")
    below.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    style.legend_below(figure, [above])
    return figure


def draw_parameters(starts: pd.DataFrame, taken: int, width_mm: float) -> "Figure":
    """Where each start ended: a panel a parameter, the objective on the sessions held out above it.

    Args:
      starts: one row a start.
      taken: the row of the one that was taken.
      width_mm: of the figure.
    """
    fields = [str(name) for name in starts if name not in SCORES]
    figure, axes = style.panels(len(fields), width_mm, 38, most=4, sharey=True)
    known = np.isfinite(starts["held_out"].to_numpy(np.float64))
    known &= np.arange(len(starts)) != taken
    for panel, field in zip(axes, fields, strict=True):
        panel.scatter(starts[field][known], starts["held_out"][known], s=12, color=style.SKY,
                      edgecolors="black", linewidths=0.3, label="another start")  # fmt: skip
        own: Any = starts.iloc[taken]
        panel.scatter(own[field], own["held_out"], s=40, marker="*", color=style.VERMILION,
                      edgecolors="black", linewidths=0.3, zorder=3, label="taken")  # fmt: skip
        panel.set_xlabel(style.short(field, 24))
        panel.margins(0.1)
        panel.grid()
    for panel in axes[:: 4 if width_mm > style.SINGLE_MM else 1]:
        panel.set_ylabel("objective, held out")
    style.legend_below(figure, axes)
    return figure
