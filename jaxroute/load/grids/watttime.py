"""WattTime, API v3: `{"data": [{"point_time", "value"}], "meta": {"region", "signal_type", …}}`.

`value` holds from `point_time` on, lb CO2/MWh; 1 lb is 453.59237 g (International yard and pound
agreement, 1959). `co2_moer` is the marginal operating emissions rate, `co2_aoer` the average one.
"""

from typing import Any

import numpy as np

from jaxroute.errors import InputError
from jaxroute.load.grids.content import Rows, entry
from jaxroute.load.grids.readings import AVERAGE, MARGINAL, MOST_G_PER_KWH, Asked, Reading, samples
from jaxroute.load.messages import input_error, shown

G_PER_KWH = 0.453_592_37
"""Of one lb/MWh."""

SIGNALS = {"co2_moer": MARGINAL, "co2_aoer": AVERAGE}
UNITS = "lbs_co2_per_mwh"


def read(asked: Asked, document: Any) -> Reading:
    """Reads an answer of `/v3/historical` or `/v3/forecast`."""
    meta = {
        key: entry(asked.name, document, "meta", key) for key in ("region", "signal_type", "units")
    }
    zone, kind, units = meta.values()
    if not isinstance(zone, str) or not zone:
        raise input_error(asked.name, "meta.region", shown(zone), "the name of a region")
    if not isinstance(kind, str) or kind not in SIGNALS:
        raise input_error(asked.name, "meta.signal_type", shown(kind), " or ".join(SIGNALS))
    if units != UNITS:
        raise input_error(asked.name, "meta.units", shown(units), repr(UNITS))
    rows = Rows.of(asked.name, "data", document.get("data"))
    begin = rows.times("point_time", asked.repairs)
    value = rows.numbers("value", 0, MOST_G_PER_KWH) * G_PER_KWH

    def fault(index: int, found: str, expected: str, mend: str) -> InputError:
        return rows.fault(index, "point_time", expected, mend, found)

    made = document["meta"].get("generated_at")
    forecast = (f"a forecast of {zone} made at {made}",) if isinstance(made, str) else ()
    read = samples(begin, np.asarray(value), fault, asked.repairs)
    return Reading(
        name=asked.name,
        format="WattTime v3",
        signal=SIGNALS[kind],
        basis="direct, CO2 alone",
        found=(zone,),
        samples={zone: {"": read}} if asked.wants(zone) else {},
        notes=(*forecast, "WattTime's lb/MWh converted to g/kWh"),
    )
