"""Which figures a result has, what each says, and the numbers behind it."""

import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pandas as pd

from jaxroute.figures import (
    components,
    descent,
    gates,
    heatmap,
    places,
    tradeoffs,
)
from jaxroute.report import capacity, compared
from jaxroute.report.compared import Shown
from jaxroute.report.kinds import SAVING
from jaxroute.report.results import Results
from jaxroute.report.tables import WORSE
from jaxroute.report.verdicts import shown_policy

MOST_DATASETS = 6
"""With figures; of more the page says that they are left out."""


MOST_MAPS = 3
"""Of a study, one for each policy that it varies."""


class Section(NamedTuple):
    """Figures under one heading; `said` are sentences, such as why a figure is left out."""

    title: str
    shown: Sequence[Shown]
    said: Sequence[str]


def sections(results: Results) -> list[Section]:
    """The sections of a result, in order: a section a dataset, and what is of all of them."""
    own = {"tune": _tuned, "fit-gate": _fitted}.get(results.command)
    found = [own(results)] if own else []
    datasets = list(results.summary["dataset"].unique())
    for dataset, slug in slugs(datasets[:MOST_DATASETS]).items():
        made = MADE.get(results.command, _of_comparison)
        title = f"Data set {dataset}"
        parts = list(made(results, dataset, slug))
        shown = [each for each in parts if not isinstance(each, str)]
        found.append(Section(title, shown, [each for each in parts if isinstance(each, str)]))
    if len(datasets) > MOST_DATASETS:
        rest = ", ".join(datasets[MOST_DATASETS:])
        found.append(Section("Further data sets", [], [f"Without figures, in the tables: {rest}."]))
    return found


def slugs(names: Sequence[str]) -> dict[str, str]:
    """Names of files for names of anything, each another.

    >>> slugs(["my trace.csv", "my/trace.csv"])
    {'my trace.csv': 'my-trace-csv', 'my/trace.csv': 'my-trace-csv-2'}
    """
    found: dict[str, str] = {}
    for number, name in enumerate(names, 1):
        slug = re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-").lower()[:40] or "data"
        found[name] = f"{slug}-{number}" if slug in found.values() else slug
    return found


def _of(table: pd.DataFrame, dataset: str) -> pd.DataFrame:
    return table[table["dataset"] == dataset].drop(columns="dataset")


def _whole(table: pd.DataFrame, dataset: str) -> pd.DataFrame:
    return table[table["dataset"] == dataset]


def _of_comparison(results: Results, dataset: str, slug: str) -> Iterator[Shown | str]:
    yield from compared.figures(
        results.baseline, results.summary, results.tables.get("by_length"), dataset, slug
    )
    if results.command != "compare":
        return
    if "served" in results.tables:
        yield _places(results, dataset, slug)
    else:
        yield (
            "The figure of where and when turns were served is left out: the result has no "
            "served.csv, as it was written by an earlier version; run compare again for it."
        )
    if "matched" in results.tables:
        yield (
            "Savings at equal quality or latency are in matched.csv, with the settings found; "
            "they have no figure."
        )


def _places(results: Results, dataset: str, slug: str) -> Shown:
    rows = _whole(results.tables["served"], dataset)
    policies = list(
        dict.fromkeys([shown_policy(results.summary, results.baseline), results.baseline])
    )
    grouped = places.grouped(rows[rows["policy"].isin(policies)])
    maps: Any = grouped.groupby(["retention", "policy"], sort=False)
    numbers: Any = pd.concat(
        places.shares(own).assign(retention=retention, policy=policy).reset_index()
        for (retention, policy), own in maps
    ).set_index(["retention", "policy", "region"])
    numbers.columns = [f"{hour:02d} h" for hour in numbers.columns]
    return Shown(
        f"places-{slug}",
        "Where and when turns are served",
        "Of the turns that arrive in an hour of the day, the share that each region serves, in %: "
        "each column adds up to 100; grey: no turn arrived. The darker a region, the more of the "
        f"hour's turns it takes. {' beside '.join(policies)}.",
        functools.partial(places.draw, rows, policies),
        numbers.reset_index(),
    )


def _varied(results: Results, dataset: str, slug: str) -> Iterator[Shown | str]:
    own, axes = _whole(results.summary, dataset), results.axes
    varied = [name for name in results.varied if name in set(own["policy"])]
    shown = varied[:MOST_MAPS] or [shown_policy(results.summary, results.baseline)]
    keys = [*axes, *(["seed"] if "seed" in own else [])]
    if axes:
        combined = heatmap.of_combinations(own, axes)
        seeds = " The first seed is shown." if "seed" in own and own["seed"].nunique() > 1 else ""
        left = combined["column"].nunique() - heatmap.MOST_COLUMNS
        if left > 0:
            yield (
                f"The map shows the first {heatmap.MOST_COLUMNS} combinations of the study, {left} "
                "more are in summary.csv."
            )
    for number, policy in enumerate(shown if axes else (), 1):
        rows = combined[combined["policy"] == policy]
        yield Shown(
            f"study-{slug}" if number == 1 else f"study-{slug}-map-{number}",
            f"What {policy} saves in every combination",
            f"Each cell is the saving of {policy} against {results.baseline} in the same world, in "
            "% of its carbon, and half the width of its 95 % interval: where it is the larger of "
            "the two, they are not told apart; without ±: too few sessions for an interval."
            f"{seeds} Combinations: {', '.join(axes)}.",
            functools.partial(
                heatmap.draw, rows, list(rows["retention"].unique()), ", ".join(axes)
            ),
            rows[[*keys, "retention", *SAVING, "mean_quality"]],
        )
    if not keys:
        yield from compared.figures(
            results.baseline, own, results.tables["by_length"], dataset, slug
        )
        return
    first = own[keys].iloc[0]
    text = ", ".join(
        f"{key} {value:.0f}" if key == "seed" else f"{key} {value}" for key, value in first.items()
    )
    yield f"All figures but the map of combinations are of the first one: {text}."
    summary, by_length = (
        table[(table[keys] == first).all(axis=1)]
        for table in (results.summary, results.tables["by_length"])
    )
    yield from compared.figures(
        results.baseline, summary, by_length, dataset, slug, " in the first combination"
    )


def _swept(results: Results, dataset: str, slug: str) -> Iterator[Shown | str]:
    rows, fields = _whole(results.summary, dataset), results.fields
    front = rows[rows["pareto"]].sort_values(["retention", "carbon_g"])
    figures = ["carbon_g", *SAVING, "mean_quality", "mean_ttft_s", "mean_e2e_s", "moves"]
    objectives = ", ".join(map(str, results.record["objectives"]))
    yield Shown(
        f"tradeoffs-{slug}",
        "Carbon against quality and latency",
        f"Each point is one of {rows['setting'].nunique():,} settings: further left it emits less. "
        "In the panels of quality higher is better, in those of the mean time until the whole "
        "answer is there, lower. No setting on the black line is beaten in both. Grey line: the "
        f"baseline's carbon. The numbers are of the front of {objectives} all at once.",
        functools.partial(tradeoffs.draw, rows, results.baseline, {}),
        front[["retention", "setting", *fields, *figures]],
    )
    for field in _gate_first(fields)[:2]:
        best = heatmap.of_settings(rows, field)
        if best.empty:
            yield f"No setting serves as much quality as {results.baseline}: no map of {field}."
            continue
        yield Shown(
            f"map-{slugs([field])[field]}-{slug}",
            f"How long caches live, and {field}",
            f"Each cell is the most that a setting with {field} in that range saves against "
            f"{results.baseline}, in % of its carbon, and half the width of its 95 % interval "
            "(without ±: too few sessions for one); of the settings whose mean quality is at most "
            f"{WORSE:g} below the baseline's. The best of many settings is flattered by chance.",
            functools.partial(heatmap.draw, best, list(rows["retention"].unique()), field),
            best[["retention", "setting", *fields, *figures]],
        )


def _gate_first(fields: Sequence[str]) -> list[str]:
    """The fields swept, those of the gate first."""
    return sorted(fields, key=lambda name: not name.startswith(("gate_", "hysteresis")))


def _split(results: Results, dataset: str, slug: str) -> Iterator[Shown | str]:
    rows = _whole(results.tables["ablation"], dataset)
    yield Shown(
        f"parts-{slug}",
        "What each part of the router saves",
        f"Bars are shares of {results.baseline}'s carbon with their 95 % intervals; to the left of "
        "0 a part costs carbon. Plain: parts added from the top to one fixed deployment, so that "
        "they add up to the last row; hatched: each switched off alone, with all others on. The "
        "two differ because parts need one another.",
        functools.partial(components.draw, rows, results.baseline),
        rows.drop(columns="dataset"),
    )


def _loaded(results: Results, dataset: str, slug: str) -> Iterator[Shown | str]:
    rows = _whole(results.summary, dataset)
    yield capacity.figure(rows, results.baseline, f"capacity-{slug}")


MADE = {"sweep": _swept, "study": _varied, "ablate": _split, "capacity": _loaded}
"""By command, what makes the figures of a dataset."""


def _tuned(results: Results) -> Section:
    starts, loss = results.tables["starts"], results.tables["loss"]
    taken = descent.best(starts)
    number = starts["start"].iloc[taken]
    shown = [
        Shown(
            "loss",
            "How the loss fell",
            "The loss of each start, step by step, on the piece of the traces that the step looks "
            "at, so that it jumps from step to step; below, the temperature of the relaxed "
            "choices, which falls until they are nearly those of a real router.",
            functools.partial(descent.draw_loss, loss, number),
            loss.pivot_table(index="step", columns="start", values="loss")
            .add_prefix("loss, start ")
            .reset_index(),
        ),
        Shown(
            "parameters",
            "Where the parameters ended",
            "Each point is where a start ended; the star is the one that was taken, the best on "
            "the sessions learned from. Upwards: the objective (carbon in shares of the "
            "baseline's, and what quality and latency are priced at) on the sessions held out, "
            "lower is better; starts that do not reach the quality asked for are left out.",
            functools.partial(descent.draw_parameters, starts, taken),
            starts,
        ),
    ]
    return Section("Tuning", shown, [])


def _fitted(results: Results) -> Section:
    weights, reliability = results.tables["weights"], results.tables["reliability"]
    shown = [
        Shown(
            "weights",
            "What the gate goes by",
            "How much a step of one standard deviation in each feature changes the log-odds of "
            "moving straight back: to the right the gate holds a session, to the left it lets go.",
            functools.partial(gates.draw_weights, weights),
            weights,
        )
    ]
    if len(reliability):
        shown.append(
            Shown(
                "reliability",
                "Whether its chances come true",
                "Of the moves that are told a chance, the share that did move straight back, on "
                "sessions held out: on the grey line the chances are right.",
                functools.partial(gates.draw_reliability, reliability),
                reliability,
            )
        )
    return Section("The fitted gate", shown, [])
