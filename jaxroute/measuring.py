"""A study laid out for many settings of one policy: sessions stay on the devices between calls."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import jax
import numpy as np
import pandas as pd

from jaxroute import chunks, comparison, devices, streamed
from jaxroute.batch import parted
from jaxroute.chunks import Chunk
from jaxroute.dataset import Dataset
from jaxroute.load_tables import columns
from jaxroute.loading import congestion, loading_of
from jaxroute.numerics import stack
from jaxroute.policies import RouterParams
from jaxroute.streamed import Source
from jaxroute.study import Study
from jaxroute.world import Retention, World, cast


class Policies(NamedTuple):
    """The policies that the settings of a dataset begin from.

    Attributes:
      fixed: the name that each with a fixed axis was masked to.
      policy: what the settings differ from.
      baseline: what they are compared with.
    """

    fixed: Mapping[str, str]
    policy: RouterParams
    baseline: RouterParams


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Setup:
    """What stays as it is from one call to the next.

    Attributes:
      study: its retentions and baseline.
      policy: the name of what the settings differ from.
      world: of the study, on the devices.
      sources: its datasets.
      budget: bytes that may be used.
    """

    study: Study
    policy: str
    world: World
    sources: tuple[Source, ...]
    budget: int

    @functools.cached_property
    def policies(self) -> Mapping[str, Policies]:
        """By dataset; those with a fixed axis are masked by what a replay tells."""
        return {each.trace.label: _policies(self, each) for each in self.sources}


def set_up(study: Study, policy: str, fields: Collection[str], budget: int) -> Setup:
    """A study, ready to be measured.

    Args:
      study: its datasets, world, retentions and baseline.
      policy: a preset, or a policy of the study's file.
      fields: those that the settings have.
      budget: bytes that may be used; half of it by the sessions.
    """
    world = jax.device_put(cast(study.world, study.world.fleet.pre_j.dtype))
    both = study.with_policies([policy]).policies
    names = policy, study.config.baseline
    noise = "noise_price_g" in fields or any(both[name].noise_price_g for name in names)
    sources = [streamed.source(each, world, budget / 2, noise=noise) for each in study.datasets]
    return Setup(study=study, policy=policy, world=world, sources=tuple(sources), budget=budget)


def fitting(setup: Setup, fields: Collection[str], *, latency: bool = False) -> int:
    """How many settings with these fields may be replayed at once, on every dataset."""
    return min(
        chunks.fitting(each, setup.world, fields, setup.budget, latency=latency)
        for each in setup.sources
    )


def rows(
    setup: Setup,
    source: Source,
    label: str,
    retention: Retention,
    chunk: Chunk,
    *,
    latency: bool = False,
    varied: Collection[str] = (),
    report: Callable[[int], None] = lambda turns: None,
) -> pd.DataFrame:
    """What `jaxroute.sweep` tells of a chunk of settings, a row each, but for the Pareto flag.

    Args:
      setup: the study.
      source: one of its datasets.
      label, retention: what the caches of its world do, and the name of it.
      chunk: the settings.
      latency: whether to tell quantiles of TTFT and E2E as well.
      varied: the fields in which other calls differ (`jaxroute.batch.parted`).
      report: told how many turns are done more.
    """
    study, mesh = setup.study, source.mesh
    _, policy, baseline = setup.policies[source.trace.label]
    world = setup.world.replace(retention=jax.device_put(retention))
    params, world = chunks.placed(chunk, policy, baseline, world, study.config)
    loading = None
    if isinstance(source.trace, Dataset) and study.config.load is not None:
        loading = loading_of(study, source.trace, params, world=world)
        crowd = jax.tree.map(lambda x: x[0], congestion(loading, study))
        world = world.replace(congestion=crowd)
    programs = parted(params, world, mesh, latency=latency, varied=varied)
    baselines = devices.everywhere(chunk.baseline.astype(np.int32), mesh)
    sums = streamed.summed(source, programs, baselines, report)
    found = chunks.rows(study, source.trace, label, chunk, sums)
    if loading is None:
        return found
    return found.assign(**{k: v[0, : len(found)] for k, v in columns(loading).items()})


def table(setup: Setup, settings: pd.DataFrame, most: int) -> pd.DataFrame:
    """As `rows`, of settings of a policy, on every dataset and under every retention.

    All calls run the same compiled programs, however many settings and whatever their values.

    Args:
      setup: the study.
      settings: one row each, numbered from 0, with no fields of the world.
      most: how many are replayed at once, memory permitting; the last is repeated to make up as
        many.
    """
    size = min(most, fitting(setup, tuple(map(str, settings))))
    count = -(-len(settings) // size) * size
    padded = settings.iloc[np.minimum(np.arange(count), len(settings) - 1)]
    varied = {str(name).partition("[")[0] for name in settings}
    parts = [
        rows(setup, source, label, retention, chunk, varied=varied)
        for source in setup.sources
        for label, retention in setup.study.retentions.items()
        for chunk in chunks.cut(padded.reset_index(drop=True), size)
    ]
    found = pd.concat(parts, ignore_index=True)
    return found[found["setting"] < len(settings)].reset_index(drop=True)


def _policies(setup: Setup, source: Source) -> Policies:
    study = setup.study.with_policies([setup.policy])
    reference = comparison.reference_rows(study, dict.fromkeys(study.fixed.values()))
    fixed: Mapping[str, str] = {}
    if reference:
        params = stack(row.params for row in reference)
        nothing = devices.everywhere(np.zeros(0, np.int32), source.mesh)
        worlds = [setup.world.replace(retention=each) for each in study.retentions.values()]
        grams = [
            streamed.summed(source, parted(params, each, source.mesh), nothing).carbon_g
            for each in jax.device_put(worlds)
        ]
        fixed = comparison.fixed_by(study, reference, np.sum(grams, axis=0))
    named = comparison.masked(study, fixed)
    return Policies(fixed, named[setup.policy], named[study.config.baseline])
