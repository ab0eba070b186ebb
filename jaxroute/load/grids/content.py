"""A file of intensity in bounded memory, and rows of JSON whose faults name the row."""

import json
import math
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxroute.errors import InputError
from jaxroute.load.messages import input_error, shown
from jaxroute.load.moments import EARLIEST_S, LATEST_S, epoch_s
from jaxroute.load.records import text_chunks
from jaxroute.load.repairs import Repairs

LARGEST = 2**28
"""Characters of a file, unzipped: ten times an hour-by-hour year of every zone there is."""

LARGEST_JSON = 2**25
"""Characters of a JSON file, which is held as a whole; a year of five minutes has a fifth."""

NAIVE = "times without an offset taken as UTC"

_HEAD = 2**16
_WITH_OFFSET = re.compile(r"\d{4}.*[T ].*(Z|z|[+-]\d{2}(:?\d{2})?)")


def pieces(name: str, file: Path, most: float | None = None) -> Iterator[str]:
    """The text of a file, unzipped if it is gzipped.

    Raises:
      InputError: if it cannot be read, or has more than `most` characters (`LARGEST`).
    """
    most, size = LARGEST if most is None else most, 0
    try:
        for chunk in text_chunks(file):
            size += len(chunk)
            if size > most:
                found, mend = f"more than {most:,} characters", "split it, for example by year"
                raise input_error(name, "", found, "a smaller file", mend)
            yield chunk
    except (OSError, EOFError, zlib.error) as error:
        raise input_error(name, "", str(error)[:200], "a readable file") from error


def head(name: str, file: Path) -> str:
    """The first characters of a file, without leading white space."""
    return next(pieces(name, file, math.inf), "")[:_HEAD].lstrip()


def document(name: str, file: Path) -> Any:
    """The value of a JSON file.

    Raises:
      InputError: naming line and column, if it is none.
    """
    text = "".join(pieces(name, file, LARGEST_JSON))
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise input_error(name, place, f"a syntax error ({error.msg})", "JSON") from None
    except (ValueError, RecursionError) as error:
        raise input_error(name, "", str(error)[:200], "JSON") from None


def entry(name: str, value: Any, *keys: str) -> Any:
    """What a JSON object has under some keys, one inside another; None if one is missing."""
    for key in keys:
        if not isinstance(value, Mapping):
            found = f"{shown(value)} in place of what has {key}"
            raise input_error(name, "", found, "a JSON object")
        value = value.get(key)
    return value


class Rows(NamedTuple):
    """A list of JSON objects.

    Attributes:
      name: the file as the user named it.
      key: where the list is in it, such as `response.data`.
      rows: the objects.
    """

    name: str
    key: str
    rows: Sequence[Mapping[str, Any]]

    @classmethod
    def of(cls, name: str, key: str, value: Any) -> "Rows":
        """Checks that a value is a list of objects.

        Raises:
          InputError: if it is not, or is empty.
        """
        if not isinstance(value, list) or not value:
            found = "an empty list" if value == [] else shown(value)
            raise input_error(name, key, found, "a list of hours")
        for index, row in enumerate(value):
            if not isinstance(row, Mapping):
                raise input_error(name, f"{key}[{index}]", shown(row), "a JSON object")
        return cls(name, key, value)

    def fault(
        self, index: int, key: str, expected: str, mend: str = "", found: str = ""
    ) -> InputError:
        """An error about what a row has under a key."""
        found = found or shown(self.rows[index].get(key))
        return input_error(self.name, f"{self.key}[{index}].{key}", found, expected, mend)

    def times(self, key: str, repairs: Repairs) -> NDArray[np.int64]:
        """Epoch seconds of every row; times without an offset are UTC, and counted.

        Raises:
          InputError: at the first that is no time from 1980 to 2199.
        """
        out = np.zeros(len(self.rows), np.int64)
        for index, row in enumerate(self.rows):
            value = row.get(key)
            seconds = epoch_s(value)
            if seconds is None or not EARLIEST_S <= seconds < LATEST_S:
                raise self.fault(index, key, "a time from 1980 to 2199 (2023-06-01T12:00Z)")
            if isinstance(value, str) and not _WITH_OFFSET.fullmatch(value.strip()):
                repairs.note(NAIVE, f"{self.key}[{index}] of {Path(self.name).name}")
            out[index] = round(seconds)
        return out

    def numbers(self, key: str, low: float, high: float) -> NDArray[np.float64]:
        """Numbers of every row, also as text, in [low, high]; NaN where there is none.

        Raises:
          InputError: at the first that is something else.
        """
        out = np.full(len(self.rows), np.nan)
        for index, row in enumerate(self.rows):
            value = row.get(key)
            if value is None:
                continue
            number = _number(value)
            if number is None or not low <= number <= high:
                raise self.fault(index, key, f"a number from {low:g} to {high:.12g}")
            out[index] = number
        return out

    def text(self, key: str) -> list[str]:
        """A name of every row.

        Raises:
          InputError: at the first that is none.
        """
        for index, row in enumerate(self.rows):
            if not isinstance(row.get(key), str) or not row[key].strip():
                raise self.fault(index, key, "a name")
        return [row[key].strip() for row in self.rows]


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None
