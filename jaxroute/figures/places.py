"""Where and when turns were served."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from jaxroute.figures import series, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_REGIONS = 12
"""Rows of a map: the regions that served least are one row, `others`."""

OTHERS, HOURS = "others", 24


def shares(rows: pd.DataFrame) -> pd.DataFrame:
    """Of the turns of each hour, the share that each region served, %: `[regions, hours]`.

    NaN in an hour without turns.

    Args:
      rows: of one policy and retention: region, hour_utc, turns.
    """
    turns = rows.pivot_table(
        index="region", columns="hour_utc", values="turns", aggfunc="sum", sort=False
    ).reindex(columns=range(HOURS), fill_value=0)
    return 100 * turns / turns.sum().replace(0, np.nan)


def grouped(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows with regions beyond `MOST_REGIONS` as one, `OTHERS`."""
    turns = rows.groupby("region", sort=False)["turns"].sum().sort_values(ascending=False)
    if len(turns) <= MOST_REGIONS:
        return rows
    kept = turns.index[: MOST_REGIONS - 1]
    named = rows["region"].where(rows["region"].isin(kept), OTHERS)
    keys = ["dataset", "retention", "policy", "region", "hour_utc"]
    return rows.assign(region=named).groupby(keys, sort=False, as_index=False).sum()


def draw(rows: pd.DataFrame, policies: list[str], width_mm: float) -> "Figure":
    """Maps of one dataset, region by hour: a row a retention, a column a policy.

    Args:
      rows: of `served.csv`, of one dataset.
      policies: one or two.
      width_mm: of the figure.
    """
    rows = grouped(rows[rows["policy"].isin(policies)])
    count, regions = series.panel_count(rows), rows["region"].nunique()
    figure, axes = style.panels(
        count * len(policies), width_mm, max(24, 14 + 3.6 * regions), most=len(policies)
    )
    image, remaining = None, iter(axes)
    for retention, own in series.by_retention(rows):
        for policy in policies:
            panel, found = next(remaining), shares(own[own["policy"] == policy])
            image = panel.imshow(
                found, cmap=style.SHADES, vmin=0, vmax=100, aspect="auto", interpolation="nearest"
            )
            panel.set_facecolor(style.PALE)
            panel.set_yticks(range(len(found)), [style.short(name, 14) for name in found.index])
            panel.set_xticks(range(0, HOURS, 3))
            panel.set_title(f"{style.short(policy)}, caches: {style.short(retention, 16)}")
            panel.set_xlabel("hour of the day (UTC)")
            panel.spines[["top", "right"]].set_visible(True)
    assert image is not None
    figure.colorbar(
        image, ax=axes, label="share of the hour's turns (%)", location="bottom", shrink=0.5,
        aspect=40,
    )  # fmt: skip
    return figure
