"""The deployments of a live router at a moment: tables by the clock, and intensity as it is read.

R regions, D deployments.
"""

import calendar
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxroute.load.messages import input_error
from jaxroute.observe import LEAST_INTENSITY
from jaxroute.online_input import number
from jaxroute.online_names import Places, place_of
from jaxroute.online_rule import Site
from jaxroute.timeline import DAY_S, HOUR_S, QUARTER_S
from jaxroute.world import TIME_BINS, World

Floats = NDArray[np.float64]


class Reading(NamedTuple):
    """Intensity of a region as it was set, g/kWh; of the next hour None where it is not known."""

    now_g_per_kwh: float
    next_g_per_kwh: float | None


Readings = Mapping[int, Reading]
"""By region, of those that were set."""


class Grid(NamedTuple):
    """What a world says of any moment, in float64.

    Attributes:
      start_s: epoch seconds at which the first hour of the intensity begins.
      intensity_g_per_kwh: `[H, R]`, as the router believes it.
      pue: `[R]`.
      region: `[D]`, of each deployment.
      by_bin: `wait_s`, `ttl_s` and `decay_s`, as `World` has them.
    """

    start_s: float
    intensity_g_per_kwh: Floats
    pue: Floats
    region: NDArray[np.int64]
    by_bin: tuple[Floats, Floats, Floats]


def grid_of(world: World, start_s: float) -> Grid:
    """The grid of a world whose intensity begins at `start_s`; of its belief, where it has one."""
    believed = world if world.belief is None else world.belief
    retention = world.retention
    wait_s, ttl_s, decay_s = (
        np.asarray(table, np.float64)
        for table in (world.wait_s, retention.ttl_s, retention.decay_s)
    )
    return Grid(
        start_s=start_s,
        intensity_g_per_kwh=np.asarray(believed.intensity_g_per_kwh, np.float64),
        pue=np.asarray(world.pue, np.float64),
        region=np.asarray(world.fleet.region, np.int64),
        by_bin=(wait_s, ttl_s, decay_s),
    )


def key_at(grid: Grid, now_s: float) -> tuple[int, int]:
    """What of a moment `site` depends on: the row of the intensity, and the quarter of the day."""
    hours = len(grid.intensity_g_per_kwh)
    return row_at(grid.start_s, hours, now_s), int(now_s % DAY_S // QUARTER_S)


def row_at(start_s: float, hours: int, now_s: float) -> int:
    """The row of an hourly table that speaks for a moment.

    That of its hour; outside the table, of the same day and UTC hour in the year after its start
    (28 February for the 29th, where that is missing); where the table does not reach, of the same
    UTC hour of its last day.

    Args:
      start_s: epoch seconds at which the table begins.
      hours: its rows.
      now_s: epoch seconds.

    >>> start, now = datetime(2023, 1, 1, tzinfo=UTC), datetime(2026, 12, 31, 23, 30, tzinfo=UTC)
    >>> row_at(start.timestamp(), 8760, now.timestamp())
    8759
    """
    row = int((now_s - start_s) // HOUR_S)
    if 0 <= row < hours:
        return row
    row = int((_in_year_after(start_s, now_s) - start_s) // HOUR_S)
    if 0 <= row < hours:
        return row
    back = int((start_s // HOUR_S + hours - 1 - now_s // HOUR_S) % 24)
    return max(hours - 1 - back, 0)


def _in_year_after(start_s: float, now_s: float) -> float:
    """The moment in the year from `start_s` on that has the month, day and time of `now_s`."""
    start, now = (datetime.fromtimestamp(seconds, UTC) for seconds in (start_s, now_s))
    moments = [
        now.replace(year=year, day=min(now.day, calendar.monthrange(year, now.month)[1]))
        for year in (start.year, start.year + 1)
    ]
    return (moments[0] if moments[0] >= start else moments[1]).timestamp()


def site(grid: Grid, key: tuple[int, int], readings: Readings) -> Site:
    """The deployments at a moment.

    A reading stands in for the table's intensity. Without a forecast beside it, the change by the
    next hour is the table's.

    Args:
      grid: of the world.
      key: of `key_at`.
      readings: of some regions.
    """
    row, quarter = key
    following = min(row + 1, len(grid.intensity_g_per_kwh) - 1)
    now = grid.intensity_g_per_kwh[row].copy()
    change = _log(grid.intensity_g_per_kwh[following]) - _log(now)
    for region, reading in readings.items():
        now[region] = reading.now_g_per_kwh
        if reading.next_g_per_kwh is not None:
            change[region] = _log(reading.next_g_per_kwh) - _log(reading.now_g_per_kwh)
    size = grid.region.shape
    rows = [np.broadcast_to(t[quarter * len(t) // TIME_BINS], size) for t in grid.by_bin]
    return Site((grid.pue * now)[grid.region], change[grid.region], *rows)


def _log(g_per_kwh: Floats | float) -> Floats:
    return np.log(np.maximum(g_per_kwh, LEAST_INTENSITY))


def updated(
    readings: Readings,
    now: Mapping[str, float | None],
    following: Mapping[str, float],
    regions: Places,
) -> Readings:
    """Readings with those of some regions replaced, by name; None takes one away.

    Raises:
      InputError: for an unknown region, a number that is no intensity, or a forecast alone.
    """
    call, what, out = "set_intensity", "gCO2e/kWh", dict(readings)
    for name in following:
        if now.get(name) is None:
            found = f"a forecast of {name} alone"
            raise input_error(call, "next_hour_g_per_kwh", found, "its intensity now beside it")
    for name, value in now.items():
        region = place_of(call, "region", name, regions)
        if value is None:
            out.pop(region, None)
            continue
        forecast = following.get(name)
        if forecast is not None:
            forecast = number(call, f"next_hour_g_per_kwh of {name}", forecast, what=what)
        out[region] = Reading(number(call, f"g_per_kwh of {name}", value, what=what), forecast)
    return out
