"""How often sessions were moved, and how often they came straight back."""

from typing import TYPE_CHECKING, Any

import pandas as pd

from jaxroute.config import BOUND_ROW
from jaxroute.figures import series, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def rates(rows: pd.DataFrame) -> pd.DataFrame:
    """Moves and, of these, returns, of 100 turns served."""
    turns = rows["turns"].where(rows["turns"] > 0)
    return pd.DataFrame(
        {name: 100 * rows[name].astype("Float64") / turns for name in ("moves", "returns")}
    )


def draw(rows: pd.DataFrame, width_mm: float) -> "Figure":
    """Bars of one dataset, a panel a retention.

    Args:
      rows: of a summary.
      width_mm: of the figure.
    """
    names = [name for name in rows["policy"].unique() if name != BOUND_ROW]
    count = series.panel_count(rows)
    figure, axes = style.panels(
        count, width_mm, style.bars_mm(len(names)), sharey=True, sharex=True
    )
    for panel, (retention, own) in zip(axes, series.by_retention(rows), strict=True):
        found = rates(own.set_index("policy")).reindex(names).fillna(0).astype(float)
        back, every = found["returns"].to_numpy(), found["moves"].to_numpy()
        look: dict[str, Any] = {"edgecolor": "black", "linewidth": 0.3}
        panel.barh(range(len(names)), back, 0.72, color=style.VERMILION, hatch="//////",
                   label="back to the deployment before", **look)  # fmt: skip
        panel.barh(range(len(names)), every - back, 0.72, back, color=style.SKY,
                   label="to another deployment", **look)  # fmt: skip
        for n, end in enumerate(every):
            style.beside(panel, end, n, f"{end:.1f}")
        panel.set_title(f"caches: {style.short(retention)}")
        panel.set_xlabel("moves per 100 turns")
        panel.tick_params(axis="y", length=0)
        panel.margins(x=0.16)
        panel.set_xlim(left=0)
    axes[0].set_yticks(range(len(names)), [style.short(name) for name in names])
    axes[0].set_ylim(len(names) - 0.4, -0.6)
    style.legend_below(figure, axes)
    return figure
