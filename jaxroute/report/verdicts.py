"""The summary of a result in words, with its numbers."""

from collections.abc import Iterator
from typing import Any

import pandas as pd

from jaxroute.ablation import IN_ORDER, ROUTER, STEPS, TOTAL
from jaxroute.config import BOUND_ROW, PLAN_ROW
from jaxroute.figures import series
from jaxroute.report.grid import PREFERRED
from jaxroute.report.results import Results
from jaxroute.report.tables import WORSE, with_interval

MOST_LINES = 40
"""Of a summary: what is more stands in the tables."""


def verdicts(results: Results) -> list[str]:
    """The most important findings, a line each, with the care that the command's notes take."""
    told = {
        "study": _of_study,
        "sweep": _of_sweep,
        "ablate": _of_ablation,
        "capacity": _of_capacity,
    }
    lines = list(told.get(results.command, _of_comparison)(results))
    if len(lines) > MOST_LINES:
        lines[MOST_LINES:] = [f"and {len(lines) - MOST_LINES} more, in the tables below"]
    return lines


def against_nothing(row: Any, name: str = "saving") -> str:
    """Whether an interval holds 0, in words."""
    low, high = row[f"{name}_lo_pct"], row[f"{name}_hi_pct"]
    if pd.isna(low):
        return "too few sessions for an interval"
    if low <= 0 <= high:
        return "its 95 % interval holds 0, so the two are not told apart"
    return f"its 95 % interval lies {'above' if low > 0 else 'below'} 0"


def _of_comparison(results: Results) -> Iterator[str]:
    base, summary = results.baseline, results.summary
    less = series.worse(summary, base)
    groups = summary.groupby(["dataset", "retention"], sort=False)
    for (dataset, retention), rows in groups:
        real = rows[~rows["policy"].isin([base, PLAN_ROW, BOUND_ROW])]
        like: Any = real[~less[real.index]].dropna(subset=["saving_pct"])
        where = f"{dataset}, caches {retention}"
        if not rows["turns"].any():
            yield f"{where}: nothing was served"
            continue
        if like.empty:
            yield f"{where}: no other policy serves as much quality as {base}"
            continue
        count = f"{len(like)} policies" if len(like) > 1 else "1 policy"
        best = like.loc[like["saving_pct"].idxmax()]
        saved = f"{with_interval(best, 'saving')} % of {base}'s carbon"
        line = (
            f"{where}: of {count} with no less quality than {base}'s, "
            f"{best['policy']} saves most: {saved}; {against_nothing(best)}"
        )
        router = like[like["policy"] == PREFERRED]
        if best["saving_pct"] <= 0:
            line = (
                f"{where}: none of {count} with no less quality than {base}'s "
                f"emits less; {best['policy']} comes nearest, with a saving of {saved}"
            )
        if len(router) and best["policy"] != PREFERRED:
            line += f"; {PREFERRED} saves {with_interval(router.iloc[0], 'saving')} %"
        yield line
    lower = summary[less & (summary["saving_pct"] > 0) & ~summary["policy"].isin([BOUND_ROW])]
    if len(lower):
        names = ", ".join(lower["policy"].unique())
        yield (
            f"less carbon for less quality (mean more than {WORSE:g} below {base}'s), so no "
            f"like-for-like saving: {names}"
        )
    if "gains" in results.tables:
        for row in results.tables["gains"].to_dict("records"):
            yield (
                f"{row['dataset']}, caches {row['retention']}, sessions held out: {row['policy']} "
                f"saves {with_interval(row, 'gain')} % of {base} more than {row['rival']}; "
                f"{against_nothing(row, 'gain')}"
            )
    yield (
        "(a, b): paired bootstrap 95 % interval over sessions; the one that saves most of several "
        "is also the one that chance favoured, which its interval does not allow for"
    )


def _of_study(results: Results) -> Iterator[str]:
    summary, base = results.summary, results.baseline
    policy = shown_policy(summary, base)
    less = series.worse_by(summary, base, of_cells(results))
    groups: Any = summary[summary["policy"] == policy].groupby("dataset", sort=False)
    for dataset, rows in groups:
        known: Any = rows.dropna(subset=["saving_pct"])
        if known.empty:
            continue
        low, high = (
            known.loc[find()] for find in (known["saving_pct"].idxmin, known["saving_pct"].idxmax)
        )
        above, below = (known["saving_lo_pct"] > 0).sum(), (known["saving_hi_pct"] < 0).sum()
        yield (
            f"{dataset}: {policy} saves between {with_interval(low, 'saving')} % of {base}'s "
            f"carbon ({_where(low, results)}) and {with_interval(high, 'saving')} % "
            f"({_where(high, results)})"
        )
        yield (
            f"{dataset}: the interval lies above 0 in {above} of {len(known)} comparisons and "
            f"below 0 in {below}; in {int(less[known.index].sum())} the quality is more than "
            f"{WORSE:g} below {base}'s, so that the saving is not like for like"
        )
    yield "(a, b): paired bootstrap 95 % interval over sessions, of each comparison by itself"


def shown_policy(summary: pd.DataFrame, baseline: str) -> str:
    """The policy that a study's maps are of: the router, or else the first beside the baseline."""
    others = [name for name in series.policies(summary) if name != baseline]
    return PREFERRED if PREFERRED in others else next(iter(others), baseline)


def of_cells(results: Results) -> list[str]:
    """Columns that tell the comparisons of a study apart."""
    seed = ["seed"] if "seed" in results.summary else []
    return [*results.axes, *seed, "dataset", "retention"]


def _where(row: Any, results: Results) -> str:
    seed = [f"seed {row['seed']:.0f}"] if "seed" in row else []
    return ", ".join(
        [*(str(row[axis]) for axis in results.axes), *seed, f"caches {row['retention']}"]
    )


def _of_sweep(results: Results) -> Iterator[str]:
    for (dataset, retention), rows in results.summary.groupby(["dataset", "retention"], sort=False):
        where = f"{dataset}, caches {retention}"
        front = f"{int(rows['pareto'].sum()):,} of {len(rows):,} settings are on the front"
        like: Any = rows[rows["mean_quality"] >= rows["baseline_mean_quality"] - WORSE]
        like = like.dropna(subset=["saving_pct"])
        if like.empty:
            yield f"{where}: {front}; none serves as much quality as {results.baseline}"
            continue
        best = like.loc[like["saving_pct"].idxmax()]
        values = ", ".join(f"{name} {best[name]:.3g}" for name in results.fields)
        yield (
            f"{where}: {front}; of the {len(like):,} that serve no less quality than "
            f"{results.baseline}, setting {best['setting']:.0f} ({values}) saves most: "
            f"{with_interval(best, 'saving')} %; {against_nothing(best)}"
        )
    yield (
        "the setting that saves most of many is also the one that chance favoured: its "
        "interval, a paired bootstrap over sessions, does not allow for that choice; judge it on "
        "other sessions"
    )


def _of_ablation(results: Results) -> Iterator[str]:
    table = results.tables["ablation"]
    for (dataset, retention), rows in table.groupby(["dataset", "retention"], sort=False):
        order: Any = rows[rows["way"] == IN_ORDER].set_index("component")
        if TOTAL not in order.index:
            continue
        total = order.loc[TOTAL]
        last = ", ".join(
            f"{name} {with_interval(order.loc[name], 'share')}"
            for name, *_ in STEPS[-2:]
            if name in order.index
        )
        yield (
            f"{dataset}, caches {retention}: {ROUTER} saves {with_interval(total, 'share')} % of "
            f"{results.baseline}'s carbon; {against_nothing(total, 'share')}; in order: {last}"
        )


def _of_capacity(results: Results) -> Iterator[str]:
    base, rows = results.baseline, results.summary
    less = series.worse_by(rows, base, ["dataset", "traffic_pct"])
    policy = shown_policy(rows, base)
    for dataset, own in rows.groupby("dataset", sort=False):
        others: Any = own[(own["policy"] != base) & ~less[own.index]].dropna(subset=["saving_pct"])
        for level in sorted({own["traffic_pct"].min(), own["traffic_pct"].max()}):
            there = others[others["traffic_pct"] == level]
            if there.empty:
                yield f"{dataset}, {level:g} % of traffic: none serves as much quality as {base}"
                continue
            best = there.loc[there["saving_pct"].idxmax()]
            yield (
                f"{dataset}, {level:g} % of traffic: of {len(there)} with no less quality than "
                f"{base}'s, {best['policy']} saves most: {with_interval(best, 'saving')} %; "
                f"{against_nothing(best)}"
            )
        for name in dict.fromkeys([policy, base]):
            over = own[(own["policy"] == name) & (own["overflow_pct"] > 0)]["traffic_pct"]
            first = f"from {over.min():g} % of traffic on" if len(over) else "at no level"
            yield f"{dataset}: {name} sends deployments more than they can serve {first}"
    odd = int((rows["settled"] == 0).sum())
    if odd:
        yield f"load did not settle in {odd} of {len(rows)} rows, whose figures may swing"
    yield "(a, b): paired bootstrap 95 % interval over sessions, with the loads as they settled"
