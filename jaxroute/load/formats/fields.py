"""Values of a log's record, read for what they must mean, with a count of those mended."""

import math
from typing import Any

from jaxroute.load.formats.log import MOST, UNKNOWN, digest
from jaxroute.load.moments import epoch_s
from jaxroute.load.repairs import Repairs

NAN = math.nan


def tokens(value: Any, place: str, repairs: Repairs) -> int:
    """A count of tokens; `UNKNOWN` for nothing, and noted for what is none.

    >>> repairs = Repairs("log.jsonl")
    >>> tokens(12, "line 1", repairs), tokens("7", "line 2", repairs), tokens(-3, "", repairs)
    (12, 7, -1)
    >>> repairs.lines()[0]
    '1 numbers written as text read as numbers (first at line 2)'
    """
    if value.__class__ is int and 0 <= value <= MOST:  # what nearly all are
        return value
    if value is None:
        return UNKNOWN
    number = value
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            number = None
        else:
            repairs.note("numbers written as text read as numbers", place)
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    if is_number and 0 <= number <= MOST and number == int(number):
        return int(number)
    repairs.note(f"token counts that are no whole number from 0 to {MOST:,} left out", place)
    return UNKNOWN


def seconds(value: Any, place: str, repairs: Repairs, unit_s: float | None = None) -> float:
    """A time; NaN for nothing, and noted for what is none.

    Args:
      value: a number, text that is one, or ISO-8601.
      place: where, for the note.
      repairs: the tally.
      unit_s: of a number; by default its size tells it, as `jaxroute.load.moments.epoch_s` does.
    """
    if value is None:
        return NAN
    if unit_s is not None and not isinstance(value, bool):
        try:
            number = float(value) * unit_s
        except (TypeError, ValueError, OverflowError):
            number = NAN
        if math.isfinite(number):
            if isinstance(value, str):
                repairs.note("numbers written as text read as numbers", place)
            return number
    moment = epoch_s(value)
    if moment is None:
        repairs.note("times that are neither numbers nor ISO-8601 left out", place)
        return NAN
    if isinstance(value, str) and value.strip().replace(".", "", 1).isdigit():
        repairs.note("numbers written as text read as numbers", place)
    return moment


def name(value: Any) -> str:
    """An id as text; empty for what is none.

    >>> name("a"), name(7), name(None), name({"id": "c"}), name(True)
    ('a', '7', '', 'c', '')
    """
    if isinstance(value, dict):
        value = value.get("id")
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else ""


def mapping(value: Any, place: str, repairs: Repairs) -> dict[str, Any] | None:
    """A record; None, and noted, for what is none."""
    if isinstance(value, dict):
        return value
    repairs.note("JSON values that are no record left out", place)
    return None


def hashes(value: Any) -> list[int] | None:
    """Ids of a prompt's blocks, in 63 bits each; None for what is no list of them."""
    if not isinstance(value, list):
        return None
    ids = list[int]()
    for each in value:
        if isinstance(each, int) and not isinstance(each, bool):
            ids.append(each & 0x7FFF_FFFF_FFFF_FFFF)
        elif isinstance(each, str):
            ids.append(digest(each) >> 1)
        else:
            return None
    return ids
