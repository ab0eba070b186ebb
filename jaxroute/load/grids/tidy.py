"""Tidy tables: `timestamp`, `region`, `gco2_per_kwh`, in CSV, gzipped CSV or Parquet."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from jaxroute.errors import InputError
from jaxroute.load.grids.content import NAIVE
from jaxroute.load.grids.readings import MOST_G_PER_KWH, Asked, Fault, Reading, samples
from jaxroute.load.messages import input_error
from jaxroute.load.table import Table, read_table, require

COLUMNS = ("timestamp", "region", "gco2_per_kwh")

_MICROS = 1_000_000
_WITHOUT_OFFSET = r"^\d{4}-[\d-]*([T ][\d:.]*)?$"


def fits(header: Sequence[str]) -> bool:
    """Whether a table with these columns is one."""
    return set(COLUMNS) <= set(header)


def read(asked: Asked) -> Reading:
    """Reads a table; `timestamp` is when an hour, or a part of one, begins."""

    def columns(header: Sequence[str]) -> list[str]:
        require(asked.name, header, COLUMNS)
        return list(COLUMNS)

    table = read_table(asked.name, columns)
    code, names = table.codes("region")
    found = names.to_pylist()
    times = table.times("timestamp").as_unit("us").asi8
    if not len(table):
        raise input_error(asked.name, "", "no rows", "hourly intensity")
    uneven = times % (60 * _MICROS) > 0
    if uneven.any():
        raise table.fault(int(np.argmax(uneven)), "timestamp", "a time on a whole minute")
    read = {}
    for index, zone in enumerate(found):
        if asked.wants(zone):
            rows = np.flatnonzero(code == index)
            value = table.numbers("gco2_per_kwh", 0, MOST_G_PER_KWH, rows=rows)
            begin = times[rows] // _MICROS
            read[zone] = {"": samples(begin, value, _fault(table, rows, zone))}
    if naive := _naive(table):
        asked.repairs.note(NAIVE, "", naive)
    return Reading(
        name=asked.name,
        format="tidy table",
        signal="",
        basis="as its author says",
        found=tuple(found),
        samples=read,
    )


def _naive(table: Table) -> int:
    """How many times have no offset."""
    data = table.data["timestamp"]
    if pa.types.is_timestamp(data.type):
        return 0 if data.type.tz else len(table)
    if not pa.types.is_string(data.type):
        return 0
    return pc.sum(pc.match_substring_regex(data, _WITHOUT_OFFSET)).as_py() or 0


def _fault(table: Table, rows: np.ndarray, zone: str) -> Fault:
    def fault(index: int, found: str, expected: str, mend: str) -> InputError:
        return table.fault(int(rows[index]), "timestamp", expected, mend, f"{found}, of {zone}")

    return fault
