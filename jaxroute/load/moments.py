"""Moments as people write them: epoch seconds, milli-, micro- or nanoseconds, or ISO-8601."""

import math
from datetime import UTC, datetime

__all__ = ["EARLIEST_S", "LATEST_S", "epoch_s"]

EARLIEST_S, LATEST_S = 315_532_800.0, 7_258_118_400.0
"""The years 1980 and 2200: no date lies outside them."""

_UNITS = ((1e17, 1e-9), (1e14, 1e-6), (1e11, 1e-3))
"""From which number on it is of that many seconds: epoch seconds reach 1e11 in the year 5138."""


def epoch_s(value: object) -> float | None:
    """Seconds since 1970 of a number, of text that is one, or of ISO-8601; None of anything else.

    Text without an offset is UTC.

    >>> epoch_s(1_700_000_000_000), epoch_s("1700000000.5"), epoch_s("2023-11-14T22:13:20Z")
    (1700000000.0, 1700000000.5, 1700000000.0)
    """
    if isinstance(value, str):
        text = value.strip()
        try:
            value = float(text)
        except ValueError:
            try:
                value = datetime.fromisoformat(text)
            except ValueError:
                return None
    if isinstance(value, datetime):
        try:
            return value.replace(tzinfo=value.tzinfo or UTC).timestamp()
        except (OverflowError, ValueError):
            return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    if not math.isfinite(number):
        return None
    return number * next((scale for least, scale in _UNITS if abs(number) >= least), 1.0)
