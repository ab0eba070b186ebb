"""The figures that every comparison of policies has, what each says, and its numbers."""

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import pandas as pd

from jaxroute.config import BOUND_ROW, PLAN_ROW
from jaxroute.figures import carbon, heatmap, moves, savings, series, tradeoffs
from jaxroute.report.kinds import SAVING
from jaxroute.report.tables import WORSE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Shown(NamedTuple):
    """A figure.

    Attributes:
      name: of its files: letters, digits and hyphens.
      title, caption: what it shows, and how to read it.
      draw: makes it in a width, mm.
      numbers: what it is drawn from, under the names of the result's columns.
    """

    name: str
    title: str
    caption: str
    draw: Callable[[float], "Figure"]
    numbers: pd.DataFrame


def figures(
    baseline: str,
    summary: pd.DataFrame,
    by_length: pd.DataFrame | None,
    dataset: str,
    slug: str,
    where: str = "",
) -> Iterator[Shown | str]:
    """Figures of one dataset, and sentences where some of it is left out.

    Args:
      baseline: what savings are against.
      summary, by_length: of every dataset (`jaxroute.stats`), so that all single out the same.
      dataset: its label.
      slug: of its figures' names.
      where: which of several comparisons it is, to be read after a noun; empty if it is the only.
    """
    lines = series.leading(summary, baseline)
    rows = summary[summary["dataset"] == dataset]
    left = rows["retention"].nunique() - series.MOST_PANELS
    if left > 0:
        yield f"Figures show the first {series.MOST_PANELS} retentions; {left} more are in files."
    stars = f"*: mean quality more than {WORSE:g} below {baseline}'s, so no like-for-like saving"
    split = carbon.parts(rows)
    yield Shown(
        f"carbon-{slug}",
        "What carbon was spent on",
        f"Each bar is all carbon that a policy emitted{where}, its parts add up to the number "
        "beside it; the hatched part was spent on computing context again that would still have "
        "been cached had the session stayed where it was (it is taken off the reading of tokens, "
        f"and holds the embodied carbon of its seconds). Shorter is better. {stars}. Bars beyond "
        f"{carbon.MOST:g} times the longest of the baseline's are cut (…).",
        functools.partial(carbon.draw, rows, baseline),
        pd.concat(
            [rows[["retention", "policy"]], split, rows[["carbon_g", *SAVING, "mean_quality"]]],
            axis=1,
        ),
    )
    if by_length is not None and not lines:
        yield f"No other policy serves as much quality as {baseline}: no figure of savings."
    elif by_length is not None:
        own = by_length[by_length["dataset"] == dataset]
        chosen = own[own["policy"].isin(lines)]
        yield Shown(
            f"savings-{slug}",
            "What is saved, by length of the session",
            f"Points are the share of {baseline}'s carbon that a policy saves on the sessions of "
            f"so many turns{where}, bars the paired bootstrap 95 % interval over sessions: where a "
            "bar crosses 0 the two are not told apart. Higher is better. Shown are policies that "
            f"nowhere serve less quality than {baseline}, those that save most first.",
            functools.partial(savings.draw, own, baseline, lines),
            chosen[["retention", "policy", "length_bucket", "sessions", "carbon_g", *SAVING]],
        )
    beyond = tradeoffs.limit_g(rows, baseline)
    far = ", ".join(series.policies(rows[rows["carbon_g"] > beyond]))
    off = f" Off the panels, beyond {tradeoffs.MOST:g} times its carbon: {far}." if far else ""
    yield Shown(
        f"tradeoffs-{slug}",
        "Carbon against quality and latency",
        f"Each point is a policy{where}: further left it emits less. In the panels of quality "
        "higher is better, in those of the mean time until the whole answer is there, lower. No "
        f"policy on the black line is beaten in both; {PLAN_ROW} knows the future and is no "
        f"policy, so that the line leaves it out. Star: {baseline}.{off}",
        functools.partial(tradeoffs.draw, rows, baseline, lines),
        rows[
            ["retention", "policy", "carbon_g", "mean_quality", "mean_ttft_s", "mean_e2e_s"]
        ].assign(on_front_of_all_three=tradeoffs.flags(rows)),
    )
    real = rows[rows["policy"] != BOUND_ROW]
    yield Shown(
        f"moves-{slug}",
        "How often sessions move",
        f"Of 100 turns{where}, how many are served at another deployment than the turn before; the "
        "hatched part goes back to the deployment before that, whose cache may be gone by then.",
        functools.partial(moves.draw, rows),
        pd.concat(
            [
                real[["retention", "policy", "turns", "moves", "returns"]],
                moves.rates(real).astype(float).add_suffix("_per_100_turns"),
            ],
            axis=1,
        ),
    )
    named = heatmap.of_gates(rows)
    if named["policy"].nunique() > 1:
        yield Shown(
            f"gates-{slug}",
            "How long caches live, and what makes a session stay",
            f"Each cell is the saving against {baseline} under the same retention{where}, in % of "
            "its carbon, and half the width of its 95 % interval: where it is the larger of the "
            "two, the two are not told apart; without ±: too few sessions for an interval. Rows: "
            "how long caches live; columns: what keeps a session where it is.",
            functools.partial(
                heatmap.draw, named, list(rows["retention"].unique()), "what makes a session stay"
            ),
            named[["retention", "policy", *SAVING]],
        )
