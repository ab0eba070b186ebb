"""Tidy tables: `timestamp`, `region`, `gco2_per_kwh`, in CSV, gzipped CSV or Parquet."""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from jaxroute.load.grids.content import NAIVE
from jaxroute.load.grids.readings import Asked, Reading
from jaxroute.load.grids.tabular import by_zone
from jaxroute.load.table import Table, read_table, require

COLUMNS = ("timestamp", "region", "gco2_per_kwh")

_WITHOUT_OFFSET = r"^\d{4}-[\d-]*([T ][\d:.]*)?$"


def fits(header: Sequence[str]) -> bool:
    """Whether a table with these columns is one."""
    return set(COLUMNS) <= set(header)


def meant(header: Sequence[str]) -> bool:
    """Whether a table is meant as one, though a column may be missing or have another name."""
    return len(set(COLUMNS) & set(header)) >= 2 and "session_id" not in header


def read(asked: Asked) -> Reading:
    """Reads a table; `timestamp` is when an hour, or a part of one, begins."""

    def columns(header: Sequence[str]) -> list[str]:
        require(asked.name, header, COLUMNS)
        return list(COLUMNS)

    table = read_table(asked.name, columns)
    found, read, rows = by_zone(asked, table, *COLUMNS)
    if naive := _naive(table, rows):
        asked.repairs.note(NAIVE, "", naive)
    return Reading(
        name=asked.name,
        format="tidy table",
        signal="",
        basis="as its author says",
        found=found,
        samples=read,
    )


def _naive(table: Table, rows: pa.Array) -> int:
    """How many times have no offset."""
    data = table.data[COLUMNS[0]].combine_chunks().take(pa.array(rows))
    if pa.types.is_timestamp(data.type):
        return 0 if data.type.tz else len(data)
    if not pa.types.is_string(data.type):
        return 0
    return pc.sum(pc.match_substring_regex(data, _WITHOUT_OFFSET)).as_py() or 0
