"""A dataset under the load that it stands for: a fleet's size, and what policies settle on."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, Self

import jax
import numpy as np
from numpy.typing import NDArray

from jaxroute import load_model
from jaxroute.dataset import Dataset
from jaxroute.load.capacity import build_capacity
from jaxroute.load.messages import input_error
from jaxroute.load.traffic import AUTO, OTHERS, LoadConfig
from jaxroute.load_model import Settled
from jaxroute.numerics import stack
from jaxroute.policies import RouterParams
from jaxroute.provision import Capacity
from jaxroute.served import HOURS
from jaxroute.sessions import Sessions
from jaxroute.study import Study
from jaxroute.world import TIME_BINS, Congestion, World

Floats = NDArray[np.float64]

MOST_SIZINGS = 8
"""Each gives deployments that are too full more replicas, until none is."""

ENDLESS = 1e9
"""Replicas that are more than any traffic needs."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Loading:
    """The loads of P settings at N levels of traffic, as they settled.

    Attributes:
      capacity: of the fleet, on the host.
      copies: `[N]`, sessions of a day that each of the sample stands for.
      settled: `[N, P, ...]` leaves on the host.
      by_batch: whether tokens cost what they cost at the batch that there is.
      kappa_g_per_kwh: `[TIME_BINS, D]`, PUE x intensity, means over the days that there are.
    """

    capacity: Capacity
    copies: Floats
    settled: Settled
    by_batch: bool
    kappa_g_per_kwh: Floats

    def only(self, rows: Sequence[int]) -> Self:
        """Those of some of its settings."""
        settled = jax.tree.map(lambda x: x[:, rows], self.settled)
        return dataclasses.replace(self, settled=settled)


def joined(parts: Sequence[Loading]) -> Loading | None:
    """The loads of the settings of several, in order; None of none."""
    if not parts:
        return None
    settled = jax.tree.map(lambda *x: np.concatenate(x, axis=1), *(each.settled for each in parts))
    return dataclasses.replace(parts[0], settled=settled)


def loading_of(
    study: Study,
    dataset: Dataset,
    params: RouterParams,
    share: Sequence[float] = (1.0,),
    world: World | None = None,
) -> Loading:
    """The loads that P settings settle on, with the fleet that the study gives or asks for."""
    return settle(study, dataset, params, capacity_of(study, dataset), share=share, world=world)


def load_of(study: Study) -> LoadConfig:
    """What the study says of load; only for one that says it."""
    assert study.config.load is not None
    return study.config.load


def copies_of(study: Study, dataset: Dataset, share: Sequence[float] = (1.0,)) -> Floats:
    """Sessions of a day that each of a dataset's stands for, at shares of the study's traffic."""
    day = load_of(study).arrival_rate * HOURS
    return day * np.asarray(share) / max(dataset.count, 1)


def gathered(dataset: Dataset) -> Sessions:
    """A dataset's sessions in pieces of one shape, `[pieces, ...]` leaves."""
    return jax.tree.map(lambda *x: np.stack(x), *(sessions for _, sessions in dataset.blocks()))


def capacity_at(study: Study, replicas: Floats) -> Capacity:
    """The capacity of the study's fleet with so many replicas, `[D]`."""
    fleet, load = study.config.fleet, load_of(study)
    return build_capacity(
        fleet.models,
        fleet.gpus,
        fleet.regions,
        replicas,
        tables=fleet.known,
        by_batch=load.batch,
        idle=load.idle,
        decode_scale=fleet.decode_scale,
        dtype=study.world.fleet.pre_j.dtype,
    )


def capacity_of(study: Study, dataset: Dataset) -> Capacity:
    """The capacity that the study file gives its fleet, or that `sized` finds for a dataset."""
    given, names = load_of(study).replicas, study.deployments[["model", "gpu", "region"]]
    if given == AUTO:
        return sized(study, dataset)
    if not isinstance(given, Mapping):
        return capacity_at(study, np.full(len(names), given, np.float64))
    each = [given.get("|".join(name), given.get(OTHERS)) for name in names.itertuples(index=False)]
    return capacity_at(study, np.array(each, np.float64))


@functools.lru_cache(maxsize=4)
def sized(study: Study, dataset: Dataset) -> Capacity:
    """As many replicas of each deployment as keep `fair_carbon` below a peak utilisation.

    One at least, and so many that none is fuller in its fullest quarter of an hour than the
    study's `peak_utilisation`, at its `arrival_rate`. Where a deployment is too full it gets more,
    until none is; `fair_carbon`, which looks at no cache, sends the same turns there throughout.
    """
    target, pieces = load_of(study).peak_utilisation, gathered(dataset)
    alone = stack([study.preset("fair_carbon")])
    replicas, least = np.full(len(study.deployments), ENDLESS), np.ones(len(study.deployments))
    for _ in range(MOST_SIZINGS):
        found = settle(study, dataset, alone, capacity_at(study, replicas), pieces=pieces).settled
        peak = np.asarray(found.conditions.replica.utilisation[0, 0], np.float64).max(axis=0)
        needed = np.maximum(np.ceil(peak * replicas / target - 1e-6), least)
        if np.array_equal(needed, replicas):
            break
        replicas = least = needed
    return capacity_at(study, replicas)


def settle(
    study: Study,
    dataset: Dataset,
    params: RouterParams,
    capacity: Capacity,
    *,
    share: Sequence[float] = (1.0,),
    pieces: Sessions | None = None,
    world: World | None = None,
) -> Loading:
    """The loads that P settings settle on, at N shares of the study's traffic.

    Args:
      study, dataset: whose sessions they are.
      params: `[P, ...]` leaves.
      capacity: of the study's fleet.
      share: `[N]`, of its `arrival_rate`.
      pieces: the dataset `gathered`, where it is at hand.
      world: in place of the study's, as `jaxroute.load_model.settle` takes it.
    """
    load, copies = load_of(study), copies_of(study, dataset, share)
    found = load_model.settle(
        params,
        gathered(dataset) if pieces is None else pieces,
        study.world if world is None else world,
        capacity,
        copies,
        by_batch=load.batch,
        damping=load.damping,
        most_rounds=load.rounds,
    )
    return Loading(
        capacity=capacity,
        copies=copies,
        settled=jax.device_get(found),
        by_batch=load.batch,
        kappa_g_per_kwh=_day_kappa(study, dataset),
    )


def congestion(loading: Loading, study: Study) -> Congestion:
    """What the loads make of the fleet, `[N, P, TIME_BINS, D]` leaves, as `World` has it."""

    def one(given: Any) -> Congestion:
        world = load_model.under(study.world, given, by_batch=loading.by_batch)
        assert world.congestion is not None
        return world.congestion

    return jax.vmap(jax.vmap(one))(loading.settled.conditions)


def _day_kappa(study: Study, dataset: Dataset) -> Floats:
    """PUE x intensity of each quarter of an hour of a day, mean over the days of the table."""
    world = study.world
    intensity = np.asarray(world.intensity_g_per_kwh, np.float64)
    columns, quarters = dataset.columns, TIME_BINS // HOURS
    begins = 0
    if dataset.turns:
        begins = int(columns["time_bin"][0]) // quarters - int(columns["hour"][0])
    of_day = (np.arange(len(intensity)) + begins) % HOURS
    mean = np.broadcast_to(intensity.mean(axis=0), (HOURS, intensity.shape[1])).copy()
    for hour in np.unique(of_day):
        mean[hour] = intensity[of_day == hour].mean(axis=0)
    by_region = np.repeat(mean, quarters, axis=0) * np.asarray(world.pue, np.float64)
    return by_region[:, np.asarray(world.fleet.region)]


def refuse(study: Study, what: str) -> None:
    """Stops what replays sessions that never meet.

    Raises:
      InputError: if the study is under load.
    """
    if study.config.load is not None:
        expected, mend = f"none: {what} knows no load", "leave the table and --arrival-rate out"
        raise input_error(f"study {study.config.name!r}", "[load]", "a load", expected, mend)
