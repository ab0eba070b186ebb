"""What each part of `carbon_router` contributes to its saving over `fair_carbon`."""

import dataclasses
from collections.abc import Mapping

import numpy as np
import pandas as pd

from jaxroute import bootstrap, catalogue, comparison, draws, stats
from jaxroute.catalogue import AXES
from jaxroute.comparison import Report
from jaxroute.dataset import Dataset
from jaxroute.numerics import stack
from jaxroute.policies import RouterParams
from jaxroute.replays import Within
from jaxroute.study import Study

ROUTER, BASELINE = "carbon_router", "fair_carbon"

START, REST, TOTAL = "blind at one deployment", "rest", ROUTER
"""Rows beside the parts: where the order starts, what the parts alone leave, the whole."""

STEPS = (
    ("region choice", "router in one region", START, "blind in any region"),
    ("GPU choice", "router on one GPU type", "blind in any region", "blind on any GPU there"),
    ("model choice", "router with one model", "blind on any GPU there", BASELINE),
    ("cache-aware cost", "blind router", BASELINE, "router without gate"),
    ("gate", "router without gate", "router without gate", ROUTER),
)
"""Of each part: its name, the router without it, and the settings before and after adding it."""

OFF_ALONE, IN_ORDER = "off_alone", "in_order"
"""The two ways to split the saving."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Ablation:
    """The saving of `carbon_router` over `fair_carbon`, split into its parts in two ways.

    Attributes:
      table: one row a dataset, retention, way and component, as `ablate` documents it.
      summary: of every setting replayed, under `policy` its name (`jaxroute.stats.summary`).
      fixed: by dataset, the model, GPU type and region that a part taken away leaves.
      compile_s, replay_s: seconds spent compiling and replaying.
    """

    table: pd.DataFrame
    summary: pd.DataFrame
    fixed: Mapping[str, Mapping[str, str]]
    compile_s: float
    replay_s: float


def ablate(study: Study) -> pd.DataFrame:
    """Splits the saving of `carbon_router` over `fair_carbon` into the router's five parts.

    A part's share is `100 (C_without - C_with) / C_fair`, in % of the carbon of `fair_carbon`; it
    is negative where the part costs carbon. Two ways, which differ where parts overlap or need one
    another:

    - `off_alone`: `C_with` is the full router, `C_without` the router with this part alone switched
      off. The shares need not add up to the saving; `rest` is what they leave of it.
    - `in_order`: the parts are added one by one to one fixed deployment that knows nothing of
      caches, each counted on top of those before it. The shares and that start add up to the
      saving. After model choice the setting is `fair_carbon` itself.

    Off means: cache-aware cost, the beliefs of `fair_carbon`; gate, strength 0; a choice, masked to
    the one index with the least `fair_carbon` carbon on the dataset, as the `*_fixed_*` presets.
    Both policies are the presets at the study's quality floor.

    Returns:
      Columns dataset, retention, way, component; `carbon_without_g`, `carbon_with_g`; `share_pct`,
      `share_lo_pct`, `share_hi_pct` with the paired bootstrap 95 % interval over sessions;
      `quality_without`, `quality_with`, mean predicted quality of a served turn: a part that
      changes it is no like-for-like saving. Of the row `rest` carbon and quality are NaN.

    >>> import dataclasses
    >>> import jaxroute as jr
    >>> study = jr.load_study()
    >>> drop = {"drop": study.retentions["drop"]}
    >>> shares = jr.ablate(dataclasses.replace(study, retentions=drop)).set_index("component")
    >>> bool((shares.loc["cache-aware cost", "share_lo_pct"] > 0).all())
    True
    """
    return run(study).table


def run(study: Study, report: Report = lambda step, share: None) -> Ablation:
    """As `ablate`, with how the table was obtained."""
    tables, summaries, fixed, compile_s, replay_s = [], [], {}, 0.0, 0.0
    for dataset, within in comparison.each_dataset(study, report):
        indices, outcome = _outcome(study, dataset, within)
        within("bootstrap", int(dataset.lengths.sum()))
        names = list(variants(study, indices))
        summary = stats.summary(study, dataset, outcome, names, BASELINE)
        bills_g = dict(zip(names, np.moveaxis(stats.bills(outcome.totals), 1, 0), strict=True))
        tables.append(_table(summary, bills_g, dataset.hashes, study.config.seed))
        summaries.append(summary)
        fixed[dataset.label] = {
            axis: comparison.entries(study, axis)[index] for axis, index in indices.items()
        }
        compile_s += outcome.compile_s
        replay_s += outcome.replay_s
    return Ablation(
        table=pd.concat(tables, ignore_index=True),
        summary=pd.concat(summaries, ignore_index=True),
        fixed=fixed,
        compile_s=compile_s,
        replay_s=replay_s,
    )


def variants(study: Study, fixed: Mapping[str, int]) -> dict[str, RouterParams]:
    """The settings that the two ways need, by the names in `STEPS`.

    Args:
      study: gives the fleet and the quality floor.
      fixed: the index left of each of `AXES` whose choice is off.
    """
    router, fair = study.preset(ROUTER), study.preset(BASELINE)

    def fix(params: RouterParams, *axes: str) -> RouterParams:
        for axis in axes:
            params = comparison.fix(study, params, axis, fixed[axis])
        return params

    return {
        ROUTER: router,
        "router in one region": fix(router, "region"),
        "router on one GPU type": fix(router, "gpu"),
        "router with one model": fix(router, "model"),
        "blind router": router.replace(
            cache_knowledge=fair.cache_knowledge, assumed_hit=fair.assumed_hit
        ),
        "router without gate": router.replace(gate_strength=0.0),
        BASELINE: fair,
        START: fix(fair, *AXES),
        "blind in any region": fix(fair, "model", "gpu"),
        "blind on any GPU there": fix(fair, "model"),
    }


def _outcome(
    study: Study, dataset: Dataset, report: Within
) -> tuple[dict[str, int], stats.Outcome]:
    """The index left of each axis, and the outcome of the `variants` with them.

    Two calls of one compiled program: the indices have to be known before the variants are.
    """
    turns = int(dataset.lengths.sum())
    rows = comparison.reference_rows(study, AXES)
    count = len(variants(study, dict.fromkeys(AXES, 0)))
    size = max(count, len(rows))

    def replay(settings: list[RouterParams], before: int) -> stats.Outcome:
        padded = settings + settings[:1] * (size - len(settings))
        return comparison.replay(
            study, dataset, stack(padded), lambda step, done: report(step, (before + done) / 2)
        )

    references = replay([row.params for row in rows], 0)
    grams = stats.bills(references.totals).sum((0, 2))
    blind = catalogue.preset(BASELINE)
    fixed = {axis: comparison.cheapest(rows, axis, grams, blind) for axis in AXES}
    outcome = replay(list(variants(study, fixed).values()), turns)
    return fixed, dataclasses.replace(
        comparison.only(outcome, range(count)),
        compile_s=references.compile_s + outcome.compile_s,
        replay_s=references.replay_s + outcome.replay_s,
    )


def _table(
    summary: pd.DataFrame,
    bills_g: Mapping[str, stats.Floats],
    hashes: draws.Hashes,
    seed: int,
) -> pd.DataFrame:
    """Both splits of one dataset, of the variants' summary and bills, `[N, S]` each."""
    compared = {(OFF_ALONE, name): (without, ROUTER) for name, without, _, _ in STEPS}
    compared |= {
        (OFF_ALONE, TOTAL): (BASELINE, ROUTER),
        (IN_ORDER, START): (BASELINE, START),
        **{(IN_ORDER, name): (before, after) for name, _, before, after in STEPS},
        (IN_ORDER, TOTAL): (BASELINE, ROUTER),
    }
    gains_g = {key: bills_g[without] - bills_g[with_] for key, (without, with_) in compared.items()}
    alone_g = [gains_g[OFF_ALONE, name] for name, *_ in STEPS]
    gains_g[OFF_ALONE, REST] = gains_g[OFF_ALONE, TOTAL] - np.sum(alone_g, axis=0)

    keys = list(compared)
    keys.insert(len(STEPS), (OFF_ALONE, REST))
    gained, base = np.stack([gains_g[key] for key in keys]), bills_g[BASELINE]
    half_pct = 100 * bootstrap.half_width(bootstrap.sums(gained, base, hashes, seed)[0])
    share_pct = stats.saving_pct(base.sum(-1) - gained.sum(-1), base.sum(-1))

    labels = summary.loc[summary["policy"] == ROUTER, ["dataset", "retention"]]
    carbon, quality = (
        {str(name): rows.to_numpy() for name, rows in summary.groupby("policy")[column]}
        for column in ("carbon_g", "mean_quality")
    )
    nothing = {None: np.full(len(labels), np.nan)}
    rows = []
    for n, (way, component) in enumerate(keys):
        without, with_ = compared.get((way, component), (None, None))
        rows.append(
            labels.assign(
                way=way,
                component=component,
                carbon_without_g=(nothing | carbon)[without],
                carbon_with_g=(nothing | carbon)[with_],
                share_pct=share_pct[n],
                share_lo_pct=share_pct[n] - half_pct[n],
                share_hi_pct=share_pct[n] + half_pct[n],
                quality_without=(nothing | quality)[without],
                quality_with=(nothing | quality)[with_],
            )
        )
    return pd.concat(rows).sort_index(kind="stable").reset_index(drop=True)
