"""Which source a file of intensity comes from, told by its contents and never by its name."""

import csv
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxroute.errors import InputError
from jaxroute.load import parquet
from jaxroute.load.files import listed, parts
from jaxroute.load.grids import eia, electricity_maps, entsoe, tidy, uk, watttime
from jaxroute.load.grids.content import document, head, pieces
from jaxroute.load.grids.readings import Asked, Reading
from jaxroute.load.messages import input_error

MOST_ROWS = 2**24
"""Of a Parquet table: a year of hours of two thousand zones."""

JSON: dict[str, Callable[[Asked, Any], Reading]] = {
    "carbonIntensity": electricity_maps.read_json,
    "point_time": watttime.read,
    "signal_type": watttime.read,
    "fueltype": eia.read,
    "intensity": uk.read,
}
"""Readers by a key that only their source has."""

_KEY = re.compile(
    rf'"({"|".join(key for key in JSON if key != "intensity")})"\s*:|"(intensity)"\s*:\s*\{{'
)


def is_intensity(path: str | Path) -> bool:
    """Whether a file, or every file of a directory, looks like one of intensity.

    Only its beginning is read; what cannot be read is none.
    """
    try:
        return all(_known(name, parts(name)[0]) for name in listed(path))
    except (InputError, *parquet.UNREADABLE):
        return False


def read(asked: Asked) -> Reading:
    """Reads a file with the reader of its source.

    Raises:
      InputError: if it is of no known source, or not as that source writes it.
    """
    name, file = asked.name, asked.file
    if _is_table(name, file):
        return tidy.read(asked)
    begin = head(name, file)
    if begin.startswith("<"):
        return entsoe.read(asked)
    if begin.startswith(("{", "[")):
        value = document(name, file)
        key = _KEY.search(begin)
        if not key:
            expected = (
                "an answer of Electricity Maps, WattTime (v3), carbonintensity.org.uk or EIA "
                "(v2, fuel-type-data)"
            )
            raise input_error(name, "", "JSON of no known source", expected)
        return JSON[key[1] or key[2]](asked, value)
    for _ in pieces(name, file):  # a small file may unzip to a huge one
        pass
    return electricity_maps.read_csv(asked) if _is_yearly(begin) else tidy.read(asked)


def _is_table(name: str, file: Path) -> bool:
    """Whether it is Parquet; an error if that has too many rows."""
    try:
        rows = parquet.rows(parts(name)) if parquet.is_parquet(file) else -1
    except parquet.UNREADABLE as error:
        raise input_error(name, "", str(error)[:200], "a readable file") from error
    if rows > MOST_ROWS:
        found, mend = f"more than {MOST_ROWS:,} rows", "split it, for example by year"
        raise input_error(name, "", found, "a smaller table", mend)
    return rows >= 0


def _known(name: str, file: Path) -> bool:
    if parquet.is_parquet(file):
        return tidy.fits(parquet.dataset([file]).schema.names)
    begin = head(name, file)
    if begin.startswith("<"):
        return entsoe.DOCUMENT in begin
    if begin.startswith(("{", "[")):
        return _KEY.search(begin) is not None
    return _is_yearly(begin) or tidy.fits(_header(begin))


def _is_yearly(begin: str) -> bool:
    return electricity_maps.fits(_header(begin))


def _header(begin: str) -> list[str]:
    try:
        return next(csv.reader([begin.partition("\n")[0].rstrip("\r")]), [])
    except csv.Error:
        return []
