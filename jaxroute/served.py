"""Where and when turns were served: by deployment, and by region and hour of the day."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from jaxroute.world import TIME_BINS

Floats = NDArray[np.float64]

HOURS = 24
"""Of the UTC day."""


def tally(
    decision: NDArray[np.int32],
    carbon_g: NDArray[np.floating],
    time_bin: NDArray[np.int32],
    deployments: int,
) -> tuple[NDArray[np.int64], Floats]:
    """Turns served and gCO2e of each hour of the UTC day and deployment, `[N, P, HOURS, D]`.

    Args:
      decision, carbon_g: of a trace, `[N, P, R, T]`; -1 where nothing was served.
      time_bin: of the UTC day, when turns arrive, `[R, T]`.
      deployments: D.
    """
    groups = decision.shape[0] * decision.shape[1]
    hour = time_bin.ravel() * HOURS // TIME_BINS
    size = HOURS * (deployments + 1)
    flat = decision.reshape(groups, -1) + (hour * (deployments + 1) + 1)
    flat += np.arange(groups, dtype=np.int32)[:, None] * size
    shape = (*decision.shape[:2], HOURS, deployments + 1)
    turns = np.bincount(flat.ravel(), minlength=groups * size)
    grams = np.bincount(flat.ravel(), carbon_g.ravel(), minlength=groups * size)
    return turns.reshape(shape)[..., 1:], grams.reshape(shape)[..., 1:]


def by_deployment(
    turns: NDArray[np.int64], carbon_g: Floats, deployments: pd.DataFrame
) -> dict[str, NDArray]:
    """Columns `[N, P, D]`: the deployment, turns served there and their gCO2e.

    Args:
      turns, carbon_g: of `tally`.
      deployments: one row each (`jaxroute.load.fleet.fleet_table`).
    """
    shape = (*turns.shape[:2], len(deployments))
    names = {
        column: np.broadcast_to(deployments[column].to_numpy(object), shape)
        for column in ("model", "gpu", "region")
    }
    return names | {"turns": turns.sum(2), "carbon_g": carbon_g.sum(2)}


def by_hour(
    turns: NDArray[np.int64], carbon_g: Floats, deployments: pd.DataFrame
) -> dict[str, NDArray]:
    """Columns `[N, P, regions, HOURS]`: region, `hour_utc`, turns that arrived in it, their gCO2e.

    Args:
      turns, carbon_g, deployments: as for `by_deployment`.
    """
    own, names = pd.factorize(deployments["region"])
    inside = own[:, None] == np.arange(len(names))
    shape = (*turns.shape[:2], len(names), HOURS)

    def summed(values: NDArray) -> NDArray:
        return np.swapaxes(values @ inside.astype(values.dtype), 2, 3)

    return {
        "region": np.broadcast_to(np.array(names, object)[:, None], shape),
        "hour_utc": np.broadcast_to(np.arange(HOURS), shape),
        "turns": summed(turns),
        "carbon_g": summed(carbon_g),
    }
