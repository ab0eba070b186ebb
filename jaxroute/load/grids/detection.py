"""Which source a file of intensity comes from, told by its contents and never by its name."""

import csv
import json
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
from jaxroute.load.unreadable import UNREADABLE

FORMATS = (
    "Electricity Maps (CSV, API), WattTime v3, carbonintensity.org.uk, ENTSO-E A75, EIA v2, "
    "a tidy table (timestamp, region, gco2_per_kwh)"
)
"""What is read, in words."""

LONGEST_REFUSAL = 4_096
"""Characters."""

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
    """Whether a file, or some file of a directory, looks like one of intensity.

    It need not be a right one: its reader says what is wrong. Only its beginning is read; what
    cannot be read is none.
    """
    try:
        return any(_known(name, parts(name)[0]) for name in listed(path))
    except (InputError, *UNREADABLE):
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
    if begin[:14].lower().startswith(("<!doctype html", "<html")):
        raise input_error(name, "", "a page of HTML", f"intensity of {FORMATS}")
    if begin.startswith("<"):
        return entsoe.read(asked)
    if begin.startswith(("{", "[")):
        value = document(name, file)
        key = _KEY.search(begin)
        if not key:
            told = _refusal(begin)
            found = "JSON of no known source" if told is None else f"the service's answer {told}"
            mend = "" if told is None else "ask it again, with a key that it takes"
            expected = (
                "an answer of Electricity Maps, WattTime (v3), carbonintensity.org.uk or EIA "
                "(v2, fuel-type-data)"
            )
            raise input_error(name, "", found, expected, mend)
        return JSON[key[1] or key[2]](asked, value)
    for _ in pieces(name, file):  # a small file may unzip to a huge one
        pass
    return electricity_maps.read_csv(asked) if _is_yearly(begin) else tidy.read(asked)


def _is_table(name: str, file: Path) -> bool:
    """Whether it is Parquet; an error if that has too many rows."""
    try:
        rows = parquet.rows(parts(name)) if parquet.is_parquet(file) else -1
    except UNREADABLE as error:
        raise input_error(name, "", str(error)[:200], "a readable file") from error
    if rows > MOST_ROWS:
        found, mend = f"more than {MOST_ROWS:,} rows", "split it, for example by year"
        raise input_error(name, "", found, "a smaller table", mend)
    return rows >= 0


def _known(name: str, file: Path) -> bool:
    if parquet.is_parquet(file):
        return tidy.fits(parquet.dataset([file]).schema.names)
    begin = head(name, file)
    if begin.startswith("<"):  # no other XML is read
        return True
    if begin.startswith(("{", "[")):
        return _KEY.search(begin) is not None or _refusal(begin) is not None
    return _is_yearly(begin) or tidy.meant(_header(begin))


def _refusal(begin: str) -> str | None:
    """What a service answered in place of data, if a short file is such an answer."""
    try:
        answer = json.loads(begin) if len(begin) < LONGEST_REFUSAL else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, dict) or "error" not in answer:
        return None
    return json.dumps(answer["error"], ensure_ascii=False)[:200]


def _is_yearly(begin: str) -> bool:
    return electricity_maps.fits(_header(begin))


def _header(begin: str) -> list[str]:
    try:
        return next(csv.reader([begin.partition("\n")[0].rstrip("\r")]), [])
    except csv.Error:
        return []
