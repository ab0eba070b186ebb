"""What each part of the router saves, split in two ways."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from jaxroute.ablation import IN_ORDER, OFF_ALONE, REST, ROUTER, START, STEPS, TOTAL
from jaxroute.figures import series, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WAYS = {
    IN_ORDER: ("added one after another", style.BLUE, ""),
    OFF_ALONE: ("switched off alone", style.ORANGE, "//////"),
}

ROWS = {name: name for name in (START, *(step for step, *_ in STEPS), REST)} | {
    TOTAL: f"{ROUTER}, all together"
}


def draw(rows: pd.DataFrame, baseline: str, width_mm: float) -> "Figure":
    """Bars of one dataset with 95 % intervals, a panel a retention.

    Args:
      rows: of `ablation.csv`.
      baseline: what shares are of.
      width_mm: of the figure.
    """
    count = series.panel_count(rows)
    figure, axes = style.panels(count, width_mm, 62, sharey=True, sharex=True)
    for panel, (retention, own) in zip(axes, series.by_retention(rows), strict=True):
        for n, (way, (label, colour, hatch)) in enumerate(WAYS.items()):
            found = own[own["way"] == way].set_index("component").reindex(list(ROWS))
            share = found["share_pct"].to_numpy(np.float64)
            half = np.nan_to_num(found["share_hi_pct"].to_numpy(np.float64) - share)
            panel.barh(
                np.arange(len(ROWS)) + 0.36 * (n - 0.5), share, 0.34, xerr=half, color=colour,
                hatch=hatch, edgecolor="black", linewidth=0.3, label=label,
                error_kw={"elinewidth": 0.7, "capsize": 1.5, "capthick": 0.6},
            )  # fmt: skip
        panel.axvline(0, color=style.BLACK, linewidth=0.5)
        panel.axhline(len(ROWS) - 1.5, color=style.GREY, linewidth=0.4)
        panel.set_title(f"caches: {style.short(retention)}")
        panel.set_xlabel(f"saved of {style.short(baseline, 20)}'s carbon (%)")
        panel.grid(axis="x")
        panel.tick_params(axis="y", length=0)
    axes[0].set_yticks(range(len(ROWS)), list(ROWS.values()))
    axes[0].set_ylim(len(ROWS) - 0.4, -0.6)
    style.legend_below(figure, axes)
    return figure
