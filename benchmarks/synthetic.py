"""Made-up conversations of equal length, and fleets of any size from the bundled tables."""

import numpy as np

from jaxroute.config import FleetConfig
from jaxroute.load.carbon import TYPICAL_DAY, read_intensity
from jaxroute.load.fleet import build_world
from jaxroute.sessions import Sessions, pack
from jaxroute.world import TIME_BINS, World

FLEETS = {12: (2, 3, 2), 60: (5, 3, 4), 240: (5, 3, 16)}
"""Models, GPU types and regions by how many deployments they make; 60 are the default study's."""

REGIONS = (
    *FleetConfig().regions,
    *(
        "AU-NSW",
        "AU-VIC",
        "BR-CS",
        "CA-ON",
        "CA-QC",
        "ES",
        "FI",
        "FR",
        "GB",
        "IN-WE",
        "JP-TK",
        "KR",
    ),
)
"""Regions that have a typical day, the default study's first."""

MEDIAN_GAP_S, GAP_SIGMA = 60.0, 1.2
"""Log-normal, as of the default study."""


def world(deployments: int) -> World:
    """A fleet of `FLEETS` over the typical days of 2023; caches are kept for ever."""
    models, gpus, regions = FLEETS[deployments]
    fleet, places = FleetConfig(), list(REGIONS[:regions])
    hours = read_intensity(TYPICAL_DAY, places)
    return build_world(fleet.models[:models], fleet.gpus[:gpus], places, hours.g_per_kwh)


def sessions(of: World, count: int, turns: int, *, rows: int | None = None) -> Sessions:
    """Append-only conversations for a world: S sessions of T turns, in as many rows as asked for.

    Gaps are log-normal, new tokens 1 to 400 and outputs 0 to 600 a turn, qualities and noise
    uniform. Drawn from a constant seed; NumPy leaves, packed.
    """
    rng = np.random.default_rng(0)
    size, deployments, hours = count * turns, len(of.fleet.model), len(of.intensity_g_per_kwh)
    new, output = rng.integers(1, 401, (count, turns)), rng.integers(0, 601, (count, turns))
    grown = new + output
    gap_s = rng.lognormal(np.log(MEDIAN_GAP_S), GAP_SIGMA, (count, turns)).astype(np.float32)
    gap_s[:, 0] = 0
    arrival_s = np.cumsum(gap_s, axis=1) + rng.uniform(0, 3600 * hours, (count, 1))
    quarter = (arrival_s // 900).astype(np.int64)
    columns = {
        "gap_s": gap_s,
        "hour": quarter // 4 % hours,
        "time_bin": quarter % TIME_BINS,
        "home": np.repeat(rng.integers(0, len(of.rtt_s), count), turns),
        "prefix_tokens": np.cumsum(grown, axis=1) - grown,
        "new_tokens": new,
        "output_tokens": output,
        "predicted_output_tokens": np.full(size, 256.0),
    }
    columns = {name: values.ravel() for name, values in columns.items()}
    columns["quality"] = rng.random((size, int(of.fleet.model.max()) + 1), np.float32)
    columns["noise"] = rng.random((size, deployments), np.float32)
    return pack(columns, np.full(count, turns), rows=rows)
