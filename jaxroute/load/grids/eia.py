"""EIA, API v2, `/electricity/rto/fuel-type-data`: net generation by hour and energy source.

Of Form EIA-930: `period` is the hour **ending** then, UTC (or with an offset, where it was asked
for in local time), `value` MWh, a number or text, null where it was not reported.
"""

import re
from collections import defaultdict
from typing import Any

import numpy as np

from jaxroute.errors import InputError
from jaxroute.load.grids import generation
from jaxroute.load.grids.content import Rows, entry
from jaxroute.load.grids.readings import AVERAGE, HOUR_S, Asked, Reading, Samples, samples
from jaxroute.load.moments import EARLIEST_S, epoch_s

SCHEME = "eia"
UNIT = "megawatthours"


def read(asked: Asked, document: Any) -> Reading:
    """Reads an answer, or a page of one; the hours are shifted to their beginning."""
    response = entry(asked.name, document, "response")
    rows = Rows.of(asked.name, "response.data", entry(asked.name, response, "data"))
    zones, codes = rows.text("respondent"), rows.text("fueltype")
    places = defaultdict[str, dict[str, list[int]]](dict)
    for index, (zone, code) in enumerate(zip(zones, codes, strict=True)):
        places[zone].setdefault(code, []).append(index)
        if rows.rows[index].get("value-units", UNIT) != UNIT:
            raise rows.fault(index, "value-units", repr(UNIT))
    end = _ends(rows)
    value = rows.numbers("value", generation.LEAST_MW, generation.MOST_MW)
    read: dict[str, dict[str, Samples]] = {}
    for zone in filter(asked.wants, places):
        read[zone] = {}
        for code, indices in places[zone].items():
            at = np.array(indices)
            if code not in generation.factors(SCHEME):
                expected, mend = generation.unknown(code, SCHEME)
                raise rows.fault(indices[0], "fueltype", expected, mend)
            if np.isnan(generation.factors(SCHEME)[code].g_per_kwh):
                asked.repairs.note(generation.STORAGE, f"{code} of {zone}")
                continue

            def fault(n: int, found: str, expected: str, mend: str, at: Any = at) -> InputError:
                return rows.fault(int(at[n]), "period", expected, mend, found)

            if negative := int((value[at] < 0).sum()):
                asked.repairs.note(generation.NEGATIVE, f"{code} of {zone}", negative)
            begin, positive = end[at] - HOUR_S, np.maximum(value[at], 0)
            read[zone][code] = samples(begin, positive, fault, asked.repairs)
    notes = ["hours that EIA names by their end shifted to their beginning"]
    total = response.get("total")
    whole = int(total) if re.fullmatch(r"\d{1,15}", str(total)) else 0
    if whole > len(rows.rows):
        notes.append(f"{asked.file.name} is a page: {len(rows.rows):,} of EIA's {whole:,} rows")
    return Reading(
        name=asked.name,
        format="EIA v2 fuel-type-data",
        signal=AVERAGE,
        basis=generation.BASIS,
        found=tuple(places),
        samples=read,
        scheme=SCHEME,
        notes=tuple(notes),
    )


def _ends(rows: Rows) -> np.ndarray:
    """When each hour ends, epoch seconds."""
    known: dict[Any, int] = {}
    out = np.zeros(len(rows.rows), np.int64)
    for index, row in enumerate(rows.rows):
        period = row.get("period")
        if not isinstance(period, str):
            raise rows.fault(index, "period", "an hour such as 2022-10-31T11")
        if period not in known:
            seconds = epoch_s(period) if "T" in period else None
            if seconds is None or not seconds >= EARLIEST_S or seconds % HOUR_S:
                raise rows.fault(index, "period", "an hour such as 2022-10-31T11")
            known[period] = int(seconds)
        out[index] = known[period]
    return out
