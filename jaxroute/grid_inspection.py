"""What a file of carbon intensity holds, before any study reads it."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from jaxroute.load.carbon import BASES, TYPICAL_DAY, names_of, read_intensity
from jaxroute.load.files import package_file
from jaxroute.load.grids.detection import is_intensity
from jaxroute.load.grids.hours import Hourly, gaps
from jaxroute.load.grids.joining import Zone, joined, read_all
from jaxroute.load.grids.readings import AVERAGE, HOUR_S
from jaxroute.load.grids.zones import region_of
from jaxroute.load.messages import input_error, one_line, shown
from jaxroute.load.repairs import Repairs

__all__ = ["GridInspection", "inspect_intensity", "is_intensity"]

DAY_H = 24


@dataclasses.dataclass(frozen=True)
class GridInspection:
    """What was found.

    Attributes:
      name: what was read, as the user named it.
      table: a row a zone: `zone`, as the file calls it; `region` that it is, empty if none;
        `format`, `signal` (empty: the file does not tell), `basis`; `start` of the first hour and
        `end` of the last, UTC; `hours` with a value, `missing_hours` between,
        `longest_gap_hours`, and since when it lasts, `longest_gap_start`; `files`; `mean`, `min`,
        `max`, g/kWh; `daily_swing`, g/kWh, the mean over whole UTC days of their maximum less
        their minimum, NaN without a whole day.
      notes: what holds for the values and what was mended, in words.
    """

    name: str
    table: pd.DataFrame
    notes: tuple[str, ...]


def inspect_intensity(
    path: str | Path | Sequence[str | Path],
    zones: Mapping[str, str] | None = None,
    *,
    basis: str = "lifecycle",
) -> GridInspection:
    """Reads every zone of some files; gaps of any length are counted, none is closed.

    Args:
      path: as for `jaxroute.load.carbon.read_intensity`.
      zones: of some regions, the name of the zone that is it.
      basis: `lifecycle` or `direct` emissions, of Electricity Maps' files.

    Raises:
      InputError: if a file is none of intensity, or wrong somewhere.
    """
    if basis not in BASES:
        raise ValueError(f"expected a basis of {', '.join(BASES)}, got {shown(basis)}")
    paths = [str(path)] if isinstance(path, str | Path) else [str(each) for each in path]
    named = names_of(paths)
    repairs = Repairs(named)
    if paths == [TYPICAL_DAY]:
        told = _typical_day()
    else:
        told = list(joined(read_all(paths, None, basis, repairs), repairs).values())
    if not told:
        raise input_error(named, "", "no zone with a value", "hourly intensity")
    regions = {zone: region for region, zone in (zones or {}).items()}
    rows = [_row(zone, regions.get(zone.name) or region_of(zone.name)) for zone in told]
    notes = dict.fromkeys(note for zone in told for note in zone.notes)
    lines = tuple(map(one_line, (*notes, *repairs.lines())))
    return GridInspection(named, pd.DataFrame(rows), lines)


def _typical_day() -> list[Zone]:
    table = pd.read_csv(package_file("typical_day_2023.csv"), usecols=["region"], na_filter=False)
    regions = list(table["region"].unique())
    year = read_intensity(TYPICAL_DAY, regions)
    hour = int(year.start.timestamp()) // HOUR_S + np.arange(len(year.g_per_kwh))
    return [
        Zone(
            name=region,
            format="typical day",
            signal=AVERAGE,
            basis="life-cycle, consumption-based",
            files=(TYPICAL_DAY,),
            hours=Hourly(hour, year.g_per_kwh[:, index]),
            notes=(year.note,),
        )
        for index, region in enumerate(regions)
    ]


def _row(zone: Zone, region: str) -> dict[str, object]:
    hour, value = zone.hours
    there = len(hour) > 0
    first, missing = gaps(zone.hours)
    longest = first[missing.argmax()] if len(missing) else None
    return {
        "zone": zone.name,
        "region": region,
        "format": zone.format,
        "signal": zone.signal,
        "basis": zone.basis,
        "start": _moment(hour[0]) if there else pd.NaT,
        "end": _moment(hour[-1] + 1) if there else pd.NaT,
        "hours": len(hour),
        "missing_hours": int(missing.sum()),
        "longest_gap_hours": int(missing.max(initial=0)),
        "longest_gap_start": pd.NaT if longest is None else _moment(longest),
        "files": zone.files,
        "mean": value.mean() if there else np.nan,
        "min": value.min(initial=np.inf) if there else np.nan,
        "max": value.max(initial=-np.inf) if there else np.nan,
        "daily_swing": daily_swing(zone.hours),
    }


def daily_swing(hours: Hourly) -> float:
    """Mean over whole UTC days of their maximum less their minimum; NaN without a whole day.

    >>> daily_swing(Hourly(np.arange(24, 50), np.arange(26.0)))
    23.0
    """
    _, first, count = np.unique(hours.hour // DAY_H, return_index=True, return_counts=True)
    if not (count == DAY_H).any():
        return float("nan")
    swing = np.maximum.reduceat(hours.value, first) - np.minimum.reduceat(hours.value, first)
    return float(swing[count == DAY_H].mean())


def _moment(hour: np.int64) -> pd.Timestamp:
    return pd.Timestamp(int(hour) * HOUR_S, unit="s", tz="UTC")
