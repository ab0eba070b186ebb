"""What policies save of the baseline's carbon, by how long sessions are."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from jaxroute.figures import series, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LEAST_PCT = -100.0
"""Savings below it are not drawn."""


def draw(
    rows: pd.DataFrame, baseline: str, lines: dict[str, series.Line], width_mm: float
) -> "Figure":
    """Savings of one dataset with their 95 % intervals, a panel a retention.

    Args:
      rows: by session length (`jaxroute.stats`), of one dataset.
      baseline: what is saved against.
      lines: the policies shown.
      width_mm: of the figure.
    """
    count = series.panel_count(rows)
    figure, axes = style.panels(count, width_mm, 52, sharey=True)
    for panel, (retention, own) in zip(axes, series.by_retention(rows), strict=True):
        _lines(panel, own[own["sessions"] > 0], lines)
        panel.set_title(f"caches: {style.short(retention)}")
        panel.set_xlabel("turns of a session (below: sessions)")
        panel.axhline(0, color=style.GREY, linewidth=0.7)
        panel.grid(axis="y")
    shown = rows[rows["policy"].isin(lines)]
    low, high = shown["saving_lo_pct"].min(), shown["saving_hi_pct"].max()
    if np.isfinite([low, high]).all():
        margin = 0.06 * max(high - low, 1)
        axes[0].set_ylim(max(low - margin, LEAST_PCT), max(high + margin, 1))
    across = max(1, 3 if width_mm > style.SINGLE_MM else 1)
    for panel in axes[::across]:
        panel.set_ylabel("saving (%)")
    style.legend_below(figure, axes)
    return figure


def _lines(panel: "Axes", own: pd.DataFrame, lines: dict[str, series.Line]) -> None:
    buckets = list(own["length_bucket"].unique())
    sessions = own.drop_duplicates("length_bucket").set_index("length_bucket")["sessions"]
    panel.set_xticks(range(len(buckets)), [f"{name}\n{sessions[name]:,.0f}" for name in buckets])
    there = [name for name in lines if name in set(own["policy"])]
    for n, name in enumerate(there):
        rows, line = (
            own[own["policy"] == name].set_index("length_bucket").reindex(buckets),
            lines[name],
        )
        at = np.arange(len(buckets)) + 0.7 * ((n + 0.5) / len(there) - 0.5)
        half = (rows["saving_hi_pct"] - rows["saving_pct"]).to_numpy(np.float64)
        panel.errorbar(
            at, rows["saving_pct"], np.nan_to_num(half), color=line.colour, marker=line.marker,
            linestyle="none", elinewidth=0.8, capsize=1.5, capthick=0.6, label=style.short(name),
        )  # fmt: skip
    for edge in range(1, len(buckets)):
        panel.axvline(edge - 0.5, color="#E4E4E4", linewidth=0.4)
    panel.set_xlim(-0.5, max(len(buckets) - 0.5, 0.5))
