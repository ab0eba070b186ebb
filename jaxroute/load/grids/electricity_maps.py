"""Electricity Maps: yearly CSV files of both header vintages, and answers of its API.

Columns, since 2025 and before: `Datetime (UTC)`, an hour's beginning; `Zone id` or `Zone Id`;
`Carbon intensity gCO₂eq/kWh (direct)`; the same `(Life cycle)`, before that `(LCA)`. The API
(v3 and later, `/carbon-intensity/history`, `/past-range`, `/forecast` and `/latest`) gives
`carbonIntensity` at `datetime`.
Both are average intensity of the electricity consumed in a zone.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jaxroute.errors import InputError
from jaxroute.load.grids.content import Rows, entry
from jaxroute.load.grids.readings import AVERAGE, MOST_G_PER_KWH, Asked, Reading, samples
from jaxroute.load.grids.tabular import by_zone
from jaxroute.load.messages import input_error, shown
from jaxroute.load.table import read_table

BASES = {"lifecycle": "life-cycle", "direct": "direct"}
"""In words; consumption-based, both."""

ESTIMATED = "hours that the provider estimated"

_TIME, _ZONE, _ESTIMATED = "datetime (utc)", "zone id", "data estimated"
_INTENSITY = re.compile(r"carbon intensity gco.{0,3}eq/kwh \((direct|lca|life cycle)\)")


def fits(header: Sequence[str]) -> bool:
    """Whether a table with these columns is one of its files."""
    folded = [name.lower() for name in header]
    return {_TIME, _ZONE} <= set(folded) and any(map(_INTENSITY.fullmatch, folded))


def read_csv(asked: Asked) -> Reading:
    """Reads a yearly file; an hour without a number is missing."""
    basis = BASES[asked.basis]
    wanted: dict[str, str] = {}

    def columns(header: Sequence[str]) -> list[str]:
        for name in header:
            folded = name.lower()
            kind = _INTENSITY.fullmatch(folded)
            if kind and (kind[1] == "direct") == (asked.basis == "direct"):
                wanted["value"] = name
            elif folded in (_TIME, _ZONE, _ESTIMATED):
                wanted[folded] = name
        if missing := [key for key in (_TIME, _ZONE, "value") if key not in wanted]:
            told = f"{basis} intensity" if missing[0] == "value" else missing[0]
            found = f"columns {', '.join(header)}"[:200]
            mend = f"other emissions: basis = {_other(asked.basis)!r}"
            raise input_error(asked.name, "row 1", found, f"a column of {told}", mend)
        return list(wanted.values())

    table = read_table(asked.name, columns)
    names = wanted[_TIME], wanted[_ZONE], wanted["value"]
    found, read, rows = by_zone(asked, table, *names, missing_ok=True)
    if _ESTIMATED in wanted:
        told = pc.utf8_lower(table.text(wanted[_ESTIMATED]).take(pa.array(rows)))
        if count := pc.sum(pc.equal(told, "true")).as_py():
            asked.repairs.note(ESTIMATED, "", count)
    return _reading(asked, "Electricity Maps CSV", found, read)


def read_json(asked: Asked, document: Any) -> Reading:
    """Reads an answer of the API: of `latest` it is the one hour itself."""
    lists = ("history", "data", "forecast")
    key = next((key for key in lists if entry(asked.name, document, key) is not None), "")
    if not key and "carbonIntensity" in document:
        key, document = "latest", {"latest": [document]}
    rows = Rows.of(asked.name, key or "history", document.get(key))
    begin = rows.times("datetime", asked.repairs)
    value = rows.numbers("carbonIntensity", 0, MOST_G_PER_KWH)
    zones = [row.get("zone", document.get("zone")) for row in rows.rows]
    for index, (row, zone) in enumerate(zip(rows.rows, zones, strict=True)):
        if not isinstance(zone, str) or not zone:
            raise rows.fault(index, "zone", "the name of a zone", found=shown(zone))
        kind = row.get("emissionFactorType", "lifecycle")
        if kind != asked.basis and asked.wants(zone):
            mend = f"ask for it, basis = {kind!r} under [intensity]" if kind in BASES else ""
            raise rows.fault(index, "emissionFactorType", repr(asked.basis), mend, shown(kind))
        if row.get("isEstimated") is True and asked.wants(zone):
            asked.repairs.note(ESTIMATED, f"{key}[{index}]")
    found = tuple(dict.fromkeys(zones))
    read = {}
    for zone in filter(asked.wants, found):
        place = np.flatnonzero([each == zone for each in zones])

        def fault(index: int, found: str, expected: str, mend: str, at: Any = place) -> InputError:
            return rows.fault(int(at[index]), "datetime", expected, mend, found)

        read[zone] = {"": samples(begin[place], value[place], fault, asked.repairs)}
    made = f" made at {document['updatedAt']}" if isinstance(document.get("updatedAt"), str) else ""
    notes = (f"a forecast of {', '.join(found)}{made}",) if key == "forecast" else ()
    return _reading(asked, "Electricity Maps API", found, read, notes)


def _reading(
    asked: Asked,
    form: str,
    found: tuple[str, ...],
    read: Mapping[str, Any],
    notes: tuple[str, ...] = (),
) -> Reading:
    return Reading(
        name=asked.name,
        format=form,
        signal=AVERAGE,
        basis=f"{BASES[asked.basis]}, consumption-based",
        found=found,
        samples=read,
        notes=notes,
    )


def _other(basis: str) -> str:
    return "direct" if basis == "lifecycle" else "lifecycle"
