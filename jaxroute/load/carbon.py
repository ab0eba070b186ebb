"""Carbon intensity of the grids, hour by hour."""

import dataclasses
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from jaxroute.load.files import BUILTIN, package_file
from jaxroute.load.grids.electricity_maps import BASES
from jaxroute.load.grids.generation import BASIS as BY_FUEL
from jaxroute.load.grids.hours import LONGEST_GAP, at_hours, gaps
from jaxroute.load.grids.joining import Zone, joined, read_all, signal_of
from jaxroute.load.grids.readings import AVERAGE, HOUR_S, MARGINAL, described, utc
from jaxroute.load.grids.zones import aliases, chosen
from jaxroute.load.messages import input_error, one_line, shown
from jaxroute.load.repairs import Repairs
from jaxroute.load.table import Table, read_table, require

__all__ = ["TYPICAL_DAY", "ForecastError", "Intensity", "forecast_error", "read_intensity"]

TYPICAL_DAY = f"{BUILTIN}typical-day-2023"

FORECAST_ERROR = "forecast_error_dayahead.csv"

FILLED = "missing hours interpolated"
BEYOND = "hours left out that other regions lack"

_TYPICAL = ("region", "month", "hour_utc", "mean_gco2_per_kwh")
_YEAR = (datetime(2023, 1, 1), datetime(2024, 1, 1))

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
    path: str | Path | Sequence[str | Path],
    regions: Sequence[str],
    *,
    span: tuple[Moment, Moment] | None = None,
    zones: Mapping[str, str] | None = None,
    basis: str = "lifecycle",
    signal: str = AVERAGE,
) -> Intensity:
    """Reads hourly carbon intensity, or lays a typical day of each month over a span of time.

    Files may be of Electricity Maps (yearly CSV, API), WattTime (v3), carbonintensity.org.uk,
    ENTSO-E (A75) or EIA (v2, fuel-type-data), gzipped or not, or tidy tables (CSV or Parquet):
    `timestamp` (the hour's beginning, ISO-8601 or epoch seconds, UTC unless it has an offset),
    `region` and `gco2_per_kwh`. Which it is, the contents tell. One zone may stand in several
    files; where they overlap they must agree. Samples of less than an hour are averaged, up to
    three missing hours in a row interpolated, and both counted in the note.

    `builtin:typical-day-2023` holds the mean of each month and UTC hour of 2023 (Electricity Maps
    2025, life-cycle consumption intensity); every hour of `span`, in whatever year, reads the mean
    of its month and UTC hour.

    Args:
      path: a file, a directory, several of them, or `builtin:typical-day-2023`.
      regions: R names; their order is that of the columns returned. A zone of a file is a region
        if it has its name, its `em_zone` of `regions.csv`, or a name of `zones.csv`.
      span: UTC, from and until, of the builtin: the whole hours that cover it, 2023 by default.
        Files cover the hours that they have of all regions.
      zones: of some regions, the name of the zone to take.
      basis: `lifecycle` or `direct` emissions, of Electricity Maps' files.
      signal: `average` or `marginal`; a file of the other is refused.

    Raises:
      InputError: if a region is unknown; at a bad value, a time that is there with two values,
        or more than three missing hours.
    """
    paths = [str(path)] if isinstance(path, str | Path) else [str(each) for each in path]
    if basis not in BASES or signal not in (AVERAGE, MARGINAL):
        raise ValueError(f"expected a basis and a signal, got {shown(basis)}, {shown(signal)}")
    if not paths:
        raise input_error("intensity", "path", "an empty list", "at least one file")
    if paths == [TYPICAL_DAY]:
        if signal != AVERAGE:
            mend = "give files of it (--carbon)"
            raise input_error(TYPICAL_DAY, "", "average intensity", f"{signal} intensity", mend)
        table = read_table(TYPICAL_DAY, _columns)
        return _typical(table, regions, span or _YEAR)
    return _joined(paths, regions, zones or {}, basis, signal)


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


def _joined(
    paths: Sequence[str],
    regions: Sequence[str],
    zones: Mapping[str, str],
    basis: str,
    signal: str,
) -> Intensity:
    named, repairs = names_of(paths), Repairs(names_of(paths))
    if len(set(regions)) < len(regions):
        raise input_error(named, "", f"regions {', '.join(regions)} asked for", "each once")
    wanted = {
        name
        for region in regions
        for name in ((zones[region],) if region in zones else aliases(region))
    }
    readings = read_all(paths, wanted, basis, repairs)
    found = dict.fromkeys(zone for each in readings for zone in each.found)
    choice = chosen(named, regions, zones, found)
    kept = set(choice.values())
    thinned = [
        dataclasses.replace(each, samples={z: s for z, s in each.samples.items() if z in kept})
        for each in readings
    ]
    of_zone = joined(thinned, repairs)
    signal_of(of_zone, signal)
    of = [of_zone[choice[region]] for region in regions]
    begin, end = _common(named, dict(zip(regions, of, strict=True)), repairs)
    hour = np.arange(begin, end + 1)
    table = np.stack([at_hours(zone.hours, hour) for zone in of], axis=1)
    start = pd.Timestamp(int(begin) * HOUR_S, unit="s", tz="UTC")
    files = names_of([Path(each).name for each in paths])
    told = [f"{files}: {len(hour)} hours from {start:%Y-%m-%dT%H:%MZ}"]
    kinds: dict[str, list[str]] = {}
    for region, zone in zip(regions, of, strict=True):
        kind = described(zone.format, zone.signal, zone.basis)
        kind += "" if zone.signal else f" (taken as {signal})"
        kinds.setdefault(kind, []).append(region)
    told += [f"{', '.join(names)}: {kind}" for kind, names in kinds.items()]
    if len({zone.basis for zone in of}) > 1:
        told.append("regions differ in which emissions are counted")
    told += dict.fromkeys(note for zone in of for note in zone.notes)
    return Intensity(start, table, one_line("; ".join([*told, *repairs.lines()])))


def names_of(paths: Sequence[str]) -> str:
    """Files in a message or a note: by their paths if they are few.

    >>> names_of(["a.csv"]), names_of(["a.csv", "b.csv", "c.csv", "d.csv"])
    ('a.csv', 'a.csv and 3 more')
    """
    return ", ".join(paths) if len(paths) < 4 else f"{paths[0]} and {len(paths) - 1} more"


def _common(named: str, of: Mapping[str, Zone], repairs: Repairs) -> tuple[int, int]:
    """First and last hour that all regions have; every gap between is a short one.

    Raises:
      InputError: if there is none, or a gap is too long.
    """
    for region, zone in of.items():
        if not len(zone.hours.hour):
            raise input_error(named, "", f"no hour of {region} with a value", "its intensity")
    begin = max(int(zone.hours.hour[0]) for zone in of.values())
    end = min(int(zone.hours.hour[-1]) for zone in of.values())
    if end < begin:
        spans = (
            f"{region} {utc(z.hours.hour[0] * HOUR_S)} to {utc(z.hours.hour[-1] * HOUR_S)}"
            for region, z in of.items()
        )
        expected = "hours that all regions have"
        raise input_error(named, "", f"none in common: {', '.join(spans)}"[:500], expected)
    for region, zone in of.items():
        first, missing = gaps(zone.hours)
        inside = (first + missing > begin) & (first <= end)
        first, missing = first[inside], missing[inside]
        if len(long := np.flatnonzero(missing > LONGEST_GAP)):
            at, count = int(first[long[0]]), int(missing[long[0]])
            span = f"{utc(at * HOUR_S)} to {utc((at + count) * HOUR_S)}"
            more = f", and {len(long) - 1} more such gaps" if len(long) > 1 else ""
            found = f"no intensity of {region} from {span} ({count} hours{more})"
            each = " of every fuel type" if zone.basis == BY_FUEL else ""
            expected = f"at most {LONGEST_GAP} missing hours in a row{each}"
            raise input_error(zone.files[0], "", found, expected, "fill the gap")
        if len(first):
            last = np.minimum(first + missing - 1, end)
            count = int((last - np.maximum(first, begin) + 1).sum())
            repairs.note(FILLED, f"{utc(first[0] * HOUR_S)} of {region}", count)
        beyond = int(((zone.hours.hour < begin) | (zone.hours.hour > end)).sum())
        if beyond:
            repairs.note(BEYOND, region, beyond)
    return begin, end


def _columns(header: Sequence[str]) -> list[str]:
    require(TYPICAL_DAY, header, _TYPICAL)
    return list(_TYPICAL)


def _region_index(table: Table, regions: Sequence[str]) -> NDArray[np.int64]:
    """Index into `regions` of each row, -1 for others; an error if the table lacks one."""
    codes, names = table.codes("region")
    known = names.to_pylist()
    if len(set(regions)) < len(regions):
        raise input_error(table.name, "", f"regions {', '.join(regions)} asked for", "each once")
    for region in regions:
        if region not in known:
            mend = f"give a file of its hours (--carbon), or choose of {', '.join(sorted(known))}"
            raise input_error(table.name, "column region", f"no {region}", "its intensity", mend)
    place = {region: index for index, region in enumerate(regions)}
    return np.array([place.get(name, -1) for name in known], np.int64)[codes]


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
