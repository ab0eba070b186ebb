"""What a fleet can take at once: replicas, room for KV, and what a batch costs by its size."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.event_replica import Machine, Observers, Replica
from jaxroute.load.files import package_file
from jaxroute.reference import Fleet
from jaxroute.study import Study

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Capacity(NamedTuple):
    """What a fleet of D deployments can take; slots a replica are the world's `batch`.

    Attributes:
      replicas: `[D]`.
      kv_capacity_tokens: `[D]`, of one replica.
      idle_w: `[D]`, W of one replica.
      batch_points: `[K]`, ascending, the first 1.
      dec_j, dec_s: `[K, D]`, J of a token of one sequence and s of a step, both at context 0, where
        as many sequences as the batch point decode together.
    """

    replicas: Ints
    kv_capacity_tokens: Floats
    idle_w: Floats
    batch_points: Floats
    dec_j: Floats
    dec_s: Floats


def capacity_of(study: Study, replicas: int, by_batch: Path) -> Capacity:
    """As many replicas of every deployment of a study's fleet, with the bundled profiles.

    Args:
      study: on the bundled tables.
      replicas: of each deployment.
      by_batch: table of the costs of decoding by batch, columns as those of `profiles.csv`.
    """
    pair = ["model", "gpu"]
    wanted = study.deployments[pair]
    profile = wanted.merge(pd.read_csv(package_file("profiles.csv")), "left", on=pair)
    steps = pd.read_csv(by_batch)
    points = np.sort(steps["batch"].unique())
    for unit in "js":
        slope = steps[f"decode_{unit}_per_token_per_ctx"]
        steps[unit] = steps[f"decode_{unit}_per_token"] - slope * steps["ref_context"]
    steps = steps.pivot(index=pair, columns="batch", values=["j", "s"])
    steps = steps.loc[pd.MultiIndex.from_frame(wanted)]
    return Capacity(
        replicas=np.full(len(wanted), replicas),
        kv_capacity_tokens=profile["kv_capacity_tokens"].to_numpy(np.float64),
        idle_w=profile["idle_w_per_replica"].to_numpy(np.float64),
        batch_points=points.astype(np.float64),
        dec_j=steps["j"].to_numpy(np.float64).T,
        dec_s=steps["s"].to_numpy(np.float64).T,
    )


def replicas_of(
    w: Any, capacity: Capacity, fleets: list[Fleet], tell: Observers, since_s: float
) -> list[list[Replica]]:
    """Every deployment's replicas, numbered through, with what their batches cost by size.

    Per step, joules and seconds are linear in the batch between its points.

    Args:
      w: the world, as `benchmarks.event_router.Router` has it.
      capacity: of the fleet.
      fleets: its deployments' profiles.
      tell: who is told what happens.
      since_s: since when they are idle.
    """
    points, largest = np.asarray(capacity.batch_points, np.float64), int(w.batch.max())
    if points[0] != 1 or points[-1] < largest:
        raise ValueError(f"batch_points must go from 1 to {largest} at least, got {points}")
    sizes = np.arange(largest + 1)
    out: list[list[Replica]] = []
    number = 0
    for d, f in enumerate(fleets):
        step_s = np.interp(sizes, points, capacity.dec_s[:, d])
        step_j = np.interp(sizes, points, points * capacity.dec_j[:, d])
        machine = Machine(
            deployment=d,
            fleet=f,
            slots=int(f.batch),
            room_tokens=float(capacity.kv_capacity_tokens[d]),
            block_tokens=w.block_tokens,
            step_s=step_s.tolist(),
            token_j=(step_j / np.maximum(sizes, 1)).tolist(),
            ctx_s=f.dec_s_ctx / f.batch,
        )
        count = int(capacity.replicas[d])
        out.append([Replica(machine, number + n, tell, since_s) for n in range(count)])
        number += count
    return out
