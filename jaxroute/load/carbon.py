"""Carbon intensity of the grids, hour by hour."""

import dataclasses
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from jaxroute.load.files import BUILTIN, package_file
from jaxroute.load.messages import input_error, known_names, shown
from jaxroute.load.table import Table, read_table, require

__all__ = ["TYPICAL_DAY", "ForecastError", "Intensity", "forecast_error", "read_intensity"]

TYPICAL_DAY = f"{BUILTIN}typical-day-2023"

FORECAST_ERROR = "forecast_error_dayahead.csv"

MOST_G_PER_KWH = 1e5
"""No grid reaches a fiftieth of it: more is another unit."""

_HOURLY = ("timestamp", "region", "gco2_per_kwh")
_TYPICAL = ("region", "month", "hour_utc", "mean_gco2_per_kwh")
_YEAR = (datetime(2023, 1, 1), datetime(2024, 1, 1))
_HOUR = pd.Timedelta(hours=1)

Moment = datetime | pd.Timestamp


@dataclasses.dataclass(frozen=True)
class Intensity:
    """Carbon intensity of some regions over consecutive hours.

    Attributes:
      start: UTC, the beginning of the first hour.
      g_per_kwh: `[H, R]` float64, gCO2e/kWh.
      note: one line on where the numbers come from, for reports.
    """

    start: pd.Timestamp
    g_per_kwh: NDArray[np.float64]
    note: str


def read_intensity(
    path: str | Path, regions: Sequence[str], *, span: tuple[Moment, Moment] | None = None
) -> Intensity:
    """Reads hourly carbon intensity, or lays a typical day of each month over a span of time.

    A file (CSV, gzipped CSV or Parquet) has the columns `timestamp` (the hour's beginning, ISO-8601
    or epoch seconds, UTC unless it has an offset), `region` and `gco2_per_kwh`. It must have every
    hour from its first to its last for each of `regions`, once.

    `builtin:typical-day-2023` holds the mean of each month and UTC hour of 2023 (Electricity Maps
    2025, life-cycle consumption intensity); every hour of `span`, in whatever year, reads the mean
    of its month and UTC hour.

    Args:
      path: a file, or `builtin:typical-day-2023`.
      regions: R names; their order is that of the columns returned.
      span: UTC, from and until, of the builtin: the whole hours that cover it, 2023 by default.
        A file covers what it covers.

    Raises:
      InputError: if a region is unknown; at a bad value; at an hour that is missing or there twice.
    """
    typical = str(path) == TYPICAL_DAY
    required = _TYPICAL if typical else _HOURLY
    table = read_table(path, lambda header: _columns(str(path), header, required))
    return _typical(table, regions, span or _YEAR) if typical else _hourly(table, regions)


class ForecastError(NamedTuple):
    """How day-ahead forecasts of some regions' intensity err.

    Attributes:
      sd_log: `[R]`, standard deviation of log(forecast / truth).
      ac1: `[R]`, correlation of that with its value of the hour before.
      borrowed: the regions without a row of their own, which have Germany's.
    """

    sd_log: NDArray[np.float64]
    ac1: NDArray[np.float64]
    borrowed: tuple[str, ...]


def forecast_error(regions: Sequence[str]) -> ForecastError:
    """The error of real day-ahead forecasts, of `forecast_error_dayahead.csv`.

    >>> forecast_error(["DE", "SG"]).borrowed
    ('SG',)
    """
    table = pd.read_csv(package_file(FORECAST_ERROR), keep_default_na=False).set_index("region")
    borrowed = tuple(region for region in regions if region not in table.index)
    rows = table.loc[["DE" if region in borrowed else region for region in regions]]
    return ForecastError(rows["sd_log"].to_numpy(), rows["ac1"].to_numpy(), borrowed)


def _columns(path: str, header: Sequence[str], required: tuple[str, ...]) -> list[str]:
    require(path, header, required)
    return list(required)


def _region_index(table: Table, regions: Sequence[str]) -> NDArray[np.int64]:
    """Index into `regions` of each row, -1 for others; an error if the table lacks one."""
    codes, names = table.codes("region")
    known = names.to_pylist()
    if len(set(regions)) < len(regions):
        raise input_error(table.name, "", f"regions {', '.join(regions)} asked for", "each once")
    for region in regions:
        if region not in known:
            mend = known_names(region, sorted(known), "the file has")
            if table.name == TYPICAL_DAY:
                mend = (
                    f"give a file of its hours (--carbon), or choose of {', '.join(sorted(known))}"
                )
            raise input_error(table.name, "column region", f"no {region}", "its intensity", mend)
    place = {region: index for index, region in enumerate(regions)}
    return np.array([place.get(name, -1) for name in known], np.int64)[codes]


def _hourly(table: Table, regions: Sequence[str]) -> Intensity:
    column = _region_index(table, regions)
    times = table.times("timestamp")
    if not len(table):
        raise input_error(table.name, "", "no rows", "hourly intensity")
    uneven = times.minute + times.second + times.microsecond > 0
    if uneven.any():
        raise table.fault(int(np.argmax(uneven)), "timestamp", "the beginning of an hour")
    asked = np.flatnonzero(column >= 0)
    start, end = times[asked].min(), times[asked].max()
    hour = np.asarray((times - start) // _HOUR, np.int64)
    hours, count = int(hour[asked].max()) + 1, len(regions)
    cell = hour[asked] * count + column[asked]
    again = pd.Series(cell).duplicated().to_numpy()
    if again.any():
        index = int(asked[np.argmax(again)])
        found = f"{times[index]:%Y-%m-%dT%H:%MZ} of {regions[column[index]]} once more"
        raise table.fault(index, "timestamp", "each hour of a region once", "drop a row", found)
    grid = np.full(hours * count, np.nan)
    grid[cell] = table.numbers("gco2_per_kwh", 0, MOST_G_PER_KWH, rows=asked)
    missing = np.isnan(grid)
    if missing.any():
        at, region = divmod(int(np.argmax(missing)), count)
        absent = f"no row for {regions[region]} at {start + at * _HOUR:%Y-%m-%dT%H:%MZ}"
        found = f"{absent} ({missing.sum()} hours missing in all)"
        expected = f"every hour from {start:%Y-%m-%dT%H:%MZ} to {end:%Y-%m-%dT%H:%MZ}"
        raise input_error(table.name, "", found, expected, "fill the gap")
    note = f"{Path(table.name).name}: {hours} hours from {start:%Y-%m-%dT%H:%MZ}"
    return Intensity(start, grid.reshape(hours, count), note)


def _typical(table: Table, regions: Sequence[str], span: tuple[Moment, Moment]) -> Intensity:
    column = _region_index(table, regions)
    asked = np.flatnonzero(column >= 0)
    month = table.numbers("month", 1, 12, whole=True).astype(np.int64) - 1
    hour = table.numbers("hour_utc", 0, 23, whole=True).astype(np.int64)
    day = np.full((12, 24, len(regions)), np.nan)
    day[month[asked], hour[asked], column[asked]] = table.numbers("mean_gco2_per_kwh", 0)[asked]
    start, end = _utc(span[0]).floor("h"), _utc(span[1]).ceil("h")
    if end <= start:
        raise ValueError(f"span must end after it begins, got {shown(span)}")
    hours = pd.date_range(start, end, freq="h", inclusive="left")
    note = (
        "typical day of each month of 2023 (mean by UTC hour), laid over "
        f"{start:%Y-%m-%d} to {end:%Y-%m-%d}; Electricity Maps (2025), ODbL-1.0"
    )
    return Intensity(start, day[hours.month - 1, hours.hour], note)


def _utc(moment: Moment) -> pd.Timestamp:
    stamp = pd.Timestamp(moment)
    return stamp.tz_localize("UTC") if stamp.tzinfo is None else stamp.tz_convert("UTC")
