"""The settings of a sweep in chunks of one size, each with the baselines of its settings."""

import dataclasses
from collections.abc import Collection

import jax
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from jaxroute import bootstrap, space, stats, streamed
from jaxroute import latency as histograms
from jaxroute.config import StudyConfig
from jaxroute.load.messages import input_error
from jaxroute.policies import RouterParams
from jaxroute.simulate import FIELDS
from jaxroute.streamed import Source, Sums, Trace
from jaxroute.study import Study
from jaxroute.world import World

BASELINE = ("baseline_carbon_g", "baseline_mean_quality")
"""Of the baseline under a setting's retention and world."""


MANY = 16
"""Settings of a world that are worth a chunk of their own."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Chunk:
    """C settings that are replayed together with W baselines: one of each world they are in.

    Attributes:
      settings: the rows that count, C at most.
      padded: these and, up to C, the last of them again.
      worlds: `[W]` rows of the fields of `jaxroute.space.WORLD`; W is that of the sweep's chunk of
        the most, and the last is repeated up to it.
      baseline: `[C]`, which of the worlds each setting is in.
    """

    settings: pd.DataFrame
    padded: pd.DataFrame
    worlds: pd.DataFrame
    baseline: NDArray[np.int64]


def cut(settings: pd.DataFrame, most: int) -> list[Chunk]:
    """Settings in as few chunks as can be, of about as many; those in one world side by side.

    Where each world has many, a chunk is of one world: `jaxroute.batch` is faster then.

    Args:
      settings: one row each.
      most: of a chunk.
    """
    fields = [name for name in settings if name in space.WORLD]
    ordered = settings.sort_values(fields, kind="stable") if fields else settings
    groups = [ordered]
    if fields:
        apart = [rows for _, rows in ordered.groupby(fields, sort=True)]
        groups = apart if len(ordered) >= MANY * len(apart) else groups
    parts = [
        rows.iloc[at : at + size]
        for rows in groups
        for size in [-(-len(rows) // -(-len(rows) // most))]
        for at in range(0, len(rows), size)
    ]
    size = max(map(len, parts))
    padded = [part.iloc[np.minimum(np.arange(size), len(part) - 1)] for part in parts]
    found = [np.unique(each[fields], axis=0, return_inverse=True) for each in padded]
    widest = max(len(worlds) for worlds, _ in found)
    return [
        Chunk(
            settings=part,
            padded=each,
            worlds=pd.DataFrame(
                worlds[np.minimum(np.arange(widest), len(worlds) - 1)], columns=fields
            ),
            baseline=which.ravel(),
        )
        for part, each, (worlds, which) in zip(parts, padded, found, strict=True)
    ]


def placed(
    chunk: Chunk,
    policy: RouterParams,
    baseline: RouterParams,
    world: World,
    config: StudyConfig,
) -> tuple[RouterParams, World]:
    """What `jaxroute.batch` takes of a chunk: its settings, then its baselines.

    Args:
      chunk: C settings, W worlds.
      policy: what the settings differ from.
      baseline: what they are compared with.
      world: the study's, with one retention.
      config: of the study.

    Returns:
      `[C + W, ...]` leaves, and a world, with leaves `[C + W, ...]` where several differ.
    """
    own = space.params_at(policy, chunk.padded, config)
    theirs = space.params_at(baseline, chunk.worlds[[]], config)
    params = jax.tree.map(lambda *leaves: np.concatenate(leaves), own, theirs)
    dtype = world.fleet.pre_j.dtype
    alike = len(chunk.worlds) == 1
    changes = {
        str(name): np.asarray(
            column.iloc[0] if alike else np.append(chunk.padded[name], column), dtype
        )
        for name, column in chunk.worlds.items()
    }
    return params, space.world_at(world, changes)


def rows(study: Study, dataset: Trace, retention: str, chunk: Chunk, sums: Sums) -> pd.DataFrame:
    """One row a setting of a chunk, as `jaxroute.sweep` documents them, but for the Pareto flag."""
    count = len(chunk.baseline)
    limits_s = study.config.slo.model_dump()
    named = stats.measures(
        sums.totals,
        sums.carbon_g,
        histograms.columns(sums.times, limits_s),
        sessions=dataset.count,
        truncated=dataset.truncated,
    )
    base_g, base_quality = (
        named[name][count:][chunk.baseline] for name in ("carbon_g", "mean_quality")
    )
    saving = stats.saving_pct(sums.carbon_g[:count], base_g)
    half_pct = 100 * bootstrap.half_width(bootstrap.joined(sums.own, sums.base[chunk.baseline]))
    own = {name: values[:count] for name, values in named.items()}
    own |= dict(zip(stats.SAVINGS, (saving, saving - half_pct, saving + half_pct), strict=True))
    own |= dict(zip(BASELINE, (base_g, base_quality), strict=True))
    figures = pd.DataFrame(own).astype(dict.fromkeys(stats.COUNTS, "Int64"))
    settings = chunk.settings.reset_index(names="setting")
    table = settings.join(figures)  # without those of the padding
    table.insert(0, "dataset", dataset.label)
    table.insert(1, "retention", retention)
    return table


def columns(*, latency: bool = False) -> list[str]:
    """The figures of a sweep's table: what may be an objective."""
    zero = np.zeros(1)
    counts = {name: np.zeros((1, histograms.BINS)) for name in histograms.FIELDS if latency}
    times = histograms.columns(counts, dict.fromkeys(("ttft_s", "e2e_s"), np.inf))
    sums = dict.fromkeys(FIELDS, zero)
    named = stats.measures(sums, zero, times, sessions=0, truncated=0)
    return [*named, *stats.SAVINGS, *BASELINE]


def fitting(
    source: Source, world: World, fields: Collection[str], budget: int, *, latency: bool
) -> int:
    """How many settings with these fields a chunk of a dataset may have."""
    left = budget - min(streamed.bytes_of(source.trace, world), budget / 2)
    each = streamed.bytes_of_setting(source, world, latency=latency)
    if "intensity_scale" in fields:
        each += world.intensity_g_per_kwh.nbytes
    if not set(space.WORLD).isdisjoint(fields):
        each *= 2  # a baseline of its own
    if left < 2 * each:
        found, least = f"{budget / 1e6:,.1f} MB", f"{4 * each / 1e6:,.1f} MB"
        raise input_error("--memory", "", found, f"{least} for a setting and its baseline")
    return int(left // each) - 1
