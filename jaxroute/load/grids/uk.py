"""carbonintensity.org.uk: half-hours of Great Britain, forecast and, once it is known, actual.

Operational emissions, generation and imports (National Grid ESO, Carbon Intensity Forecast
Methodology): average, direct. Its documentation: https://carbon-intensity.github.io/api-definitions/
"""

from typing import Any

import numpy as np

from jaxroute.errors import InputError
from jaxroute.load.grids.content import Rows
from jaxroute.load.grids.readings import (
    AVERAGE,
    HOUR_S,
    MOST_G_PER_KWH,
    Asked,
    Reading,
    samples,
)
from jaxroute.load.messages import shown

ZONE = "GB"

FORECAST = "half-hours without an actual value, where the forecast is used"


def read(asked: Asked, document: Any) -> Reading:
    """Reads an answer of `/intensity`; a half-hour with neither value is missing."""
    rows = Rows.of(asked.name, "data", document.get("data"))
    begin, end = (rows.times(key, asked.repairs) for key in ("from", "to"))
    if len(odd := np.flatnonzero((end <= begin) | (end > begin + HOUR_S))):
        raise rows.fault(int(odd[0]), "to", "a time at most an hour after `from`")
    for index, row in enumerate(rows.rows):
        if not isinstance(row.get("intensity"), dict):
            raise rows.fault(index, "intensity", "an object with `actual` and `forecast`")
    values = Rows(asked.name, "data.intensity", [row["intensity"] for row in rows.rows])
    actual, forecast = (values.numbers(key, 0, MOST_G_PER_KWH) for key in ("actual", "forecast"))
    for at in map(int, np.flatnonzero(np.isnan(actual) & ~np.isnan(forecast))):
        asked.repairs.note(FORECAST, shown(rows.rows[at]["from"]))

    def fault(index: int, found: str, expected: str, mend: str) -> InputError:
        return rows.fault(index, "from", expected, mend, found)

    value = np.where(np.isnan(actual), forecast, actual)
    read = samples(begin, value, fault, asked.repairs, end - begin)
    return Reading(
        name=asked.name,
        format="carbonintensity.org.uk",
        signal=AVERAGE,
        basis="direct, consumption-based",
        found=(ZONE,),
        samples={ZONE: {"": read}} if asked.wants(ZONE) else {},
    )
