"""Carbon of every policy, split into what it was spent on."""

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from jaxroute.figures import series, style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOOKS = {
    "rebuild_g": ("rebuilding lost caches", style.VERMILION, "//////"),
    "new_prefill_g": ("reading new tokens", style.SKY, ""),
    "decode_g": ("writing answers", style.BLUE, ""),
    "embodied_g": ("embodied", style.YELLOW, ""),
}
"""Of each part: its name, colour and hatch."""

MOST = 2.5
"""Of the baseline's carbon: longer bars are cut, with their length written beside them."""


def parts(rows: pd.DataFrame) -> pd.DataFrame:
    """Four parts of each row's carbon that add up to it, gCO2e.

    `rebuild` is part of the other three (`jaxroute.footprint`): the prefill of its tokens and the
    embodied carbon of those seconds, which is small beside it. It is taken off the prefill, and off
    the embodied carbon only where it exceeds the prefill. With p, e and r for `carbon_prefill_g`,
    `carbon_embodied_g` and `carbon_rebuild_g`: `new_prefill = max(p - r, 0)`,
    `embodied = e - max(r - p, 0)`.

    Args:
      rows: of a summary, or by session length.

    >>> rows = pd.DataFrame({"carbon_prefill_g": [5.0], "carbon_rebuild_g": [2.0],
    ...                      "carbon_decode_g": [3.0], "carbon_embodied_g": [1.0]})
    >>> parts(rows).loc[0].to_dict()
    {'rebuild_g': 2.0, 'new_prefill_g': 3.0, 'decode_g': 3.0, 'embodied_g': 1.0}
    """
    prefill, rebuild = rows["carbon_prefill_g"], rows["carbon_rebuild_g"]
    return pd.DataFrame(
        {
            "rebuild_g": rebuild,
            "new_prefill_g": (prefill - rebuild).clip(lower=0),
            "decode_g": rows["carbon_decode_g"],
            "embodied_g": rows["carbon_embodied_g"] - (rebuild - prefill).clip(lower=0),
        }
    )


def draw(rows: pd.DataFrame, baseline: str, width_mm: float) -> "Figure":
    """Stacked bars of one dataset, a panel a retention.

    Args:
      rows: of a summary.
      baseline: its bar tells where longer ones are cut.
      width_mm: of the figure.
    """
    names = list(rows["policy"].unique())
    limit_g = MOST * rows["carbon_g"][rows["policy"] == baseline].max()
    limit_g = float(min(limit_g, rows["carbon_g"].max())) or 1.0
    unit_g, unit = series.mass(limit_g)
    height_mm = style.bars_mm(len(names))
    count = series.panel_count(rows)
    figure, axes = style.panels(count, width_mm, height_mm, sharey=True, sharex=True)
    less = set(rows["policy"][series.worse(rows, baseline)])
    for panel, (retention, own) in zip(axes, series.by_retention(rows), strict=True):
        _bars(panel, own.set_index("policy"), names, limit_g, unit_g)
        panel.set_title(f"caches: {style.short(retention)}")
        panel.set_xlabel(f"carbon ({unit} CO₂e)")
    marks = {baseline: " (baseline)"} | dict.fromkeys(less, " *")
    axes[0].set_yticks(range(len(names)), [f"{style.short(n)}{marks.get(n, '')}" for n in names])
    axes[0].set_ylim(len(names) - 0.4, -0.6)
    style.legend_below(figure, axes)
    return figure


def _bars(
    panel: "Axes", own: pd.DataFrame, names: list[str], limit_g: float, unit_g: float
) -> None:
    there = [n for n, name in enumerate(names) if name in own.index]
    rows = own.loc[[names[n] for n in there]]
    left, room = np.zeros(len(rows)), limit_g / unit_g
    split = parts(rows) / unit_g
    for part, (label, colour, hatch) in LOOKS.items():
        value = np.nan_to_num(split[part].to_numpy(np.float64))
        shown = np.clip(value, 0, np.maximum(room - left, 0))
        panel.barh(
            there, shown, 0.72, left, color=colour, hatch=hatch, label=label, edgecolor="black",
            linewidth=0.3,
        )  # fmt: skip
        left += shown
    known = split["decode_g"].notna().to_numpy()
    whole = np.where(known, 0, np.minimum(rows["carbon_g"] / unit_g, room))
    if not known.all():
        panel.barh(there, whole, 0.72, fill=False, linestyle=(0, (3, 2)), linewidth=0.6,
                   edgecolor="black", label="not split")  # fmt: skip
    for n, end, grams in zip(there, left + whole, rows["carbon_g"] / unit_g, strict=True):
        cut = "… " if grams > room * 1.001 else ""
        text = f"{grams:,.0f}" if grams >= 100 else f"{grams:.3g}"
        style.beside(panel, end, n, f"{cut}{text}")
    panel.set_xlim(0, room * 1.22)
    style.thousands(panel.xaxis)
    panel.tick_params(axis="y", length=0)
