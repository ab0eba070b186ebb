"""What a fitted gate goes by, and whether the chances that it tells come true."""

from typing import TYPE_CHECKING

import pandas as pd

from jaxroute.figures import style

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_weights(weights: pd.DataFrame, width_mm: float) -> "Figure":
    """Each feature's weight times its standard deviation.

    Args:
      weights: of `weights.csv`: feature, weight, sd.
      width_mm: of the figure.
    """
    pull = weights["weight"] * weights["sd"]
    figure, (panel,) = style.panels(1, width_mm, 12 + 5 * len(weights))
    colours = [style.VERMILION if each > 0 else style.SKY for each in pull]
    panel.barh(range(len(weights)), pull, 0.7, color=colours, edgecolor="black", linewidth=0.3)
    panel.axvline(0, color=style.BLACK, linewidth=0.5)
    panel.set_yticks(range(len(weights)), [style.short(name, 40) for name in weights["feature"]])
    panel.set_ylim(len(weights) - 0.4, -0.6)
    panel.set_xlabel("change of the log-odds of moving straight back, per standard deviation")
    panel.tick_params(axis="y", length=0)
    panel.grid(axis="x")
    return figure


def draw_reliability(reliability: pd.DataFrame, width_mm: float) -> "Figure":
    """The chance told against the share that came true, a panel a dataset.

    Args:
      reliability: of `reliability.csv`.
      width_mm: of the figure.
    """
    datasets = reliability["dataset"].unique()[:6]
    figure, axes = style.panels(len(datasets), width_mm, 58, sharex=True, sharey=True)
    for panel, dataset in zip(axes, datasets, strict=True):
        own = reliability[(reliability["dataset"] == dataset) & (reliability["count"] > 0)]
        panel.plot([0, 1], [0, 1], color=style.GREY, linewidth=0.7, label="as told")
        for (rule, rows), (colour, marker, dashes) in zip(
            own.groupby("rule", sort=False), style.SERIES, strict=False
        ):
            panel.plot(rows["mean_chance"], rows["observed_share"], color=colour, marker=marker,
                       linestyle=dashes, label=style.short(rule))  # fmt: skip
        panel.set_title(style.short(dataset))
        panel.set(xlabel="chance told (0 to 1)", xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes[0].set_ylabel("share that moved straight back (0 to 1)")
    style.legend_below(figure, axes)
    return figure
