"""ENTSO-E Transparency Platform: actual generation per production type (A75), XML.

Elements are told by their local names, whatever the namespace. A `TimeSeries` with
`outBiddingZone_Domain.mRID` is what a type consumes, such as pumped storage that fills. Under
`curveType` A03 a position that is left out repeats the value before it; under A01 it is missing.

The parser is the standard library's expat, which reads a file piece by piece. A document type is
refused where it begins: without one no entity can be declared, so none can expand or be fetched.
"""

import re
from collections import defaultdict
from typing import Any
from xml.parsers import expat

import numpy as np
from numpy.typing import NDArray

from jaxroute.errors import InputError
from jaxroute.load.grids import generation
from jaxroute.load.grids.content import pieces
from jaxroute.load.grids.readings import AVERAGE, Asked, Reading, samples
from jaxroute.load.messages import input_error, shown
from jaxroute.load.moments import EARLIEST_S, LATEST_S, epoch_s

SCHEME = "entsoe"
DOCUMENT, KIND = "GL_MarketDocument", "A75"
REFUSAL = "Acknowledgement_MarketDocument"

IN, OUT = "inBiddingZone_Domain.mRID", "outBiddingZone_Domain.mRID"
CONSUMED = "series of what a type consumes left out"

MOST_POINTS = 2**23
"""Of a file, those repeated included: twelve types every quarter of an hour for twenty years."""

_DEEPEST, _LONGEST = 20, 200
_RESOLUTION = re.compile(r"PT(1|5|10|15|30|60)M|PT1H")
_LEAVES = (
    *("type", IN, OUT, "curveType", "psrType", "quantity_Measure_Unit.name"),
    *("start", "end", "resolution", "position", "quantity"),
)

Fields = dict[str, str]
Series = tuple[Fields, list[tuple[Fields, list[Fields]]]]
"""What a `TimeSeries` says, and each `Period` of it with its points."""


def read(asked: Asked) -> Reading:
    """Reads a document."""
    number, points, found = 0, 0, dict[str, None]()
    parts = defaultdict[str, dict[str, list[tuple[NDArray, ...]]]](dict)
    for series, periods in _series(asked):
        number += 1
        place = f"TimeSeries {number}"
        zone, code = series.get(IN) or series.get(OUT), series.get("psrType", "")
        if not zone:
            raise input_error(asked.name, place, "no bidding zone", f"{IN} or {OUT}")
        found[zone] = None
        if not asked.wants(zone):
            continue
        unit = series.get("quantity_Measure_Unit.name")
        if unit != "MAW":
            raise input_error(asked.name, f"{place}, unit", shown(unit), "'MAW'")
        if code not in generation.factors(SCHEME):
            expected, mend = generation.unknown(code, SCHEME)
            raise input_error(asked.name, f"{place}, psrType", shown(code), expected, mend)
        if OUT in series:
            asked.repairs.note(CONSUMED, f"{code} of {zone}")
            continue
        if np.isnan(generation.factors(SCHEME)[code].g_per_kwh):
            asked.repairs.note(generation.STORAGE, f"{code} of {zone}")
            continue
        for n, (period, given) in enumerate(periods):
            where = f"{place}, Period {n + 1}"
            curve = series.get("curveType", "A01")
            begin, width, value = _laid_out(asked.name, where, curve, period, given, points)
            points += len(value)
            if negative := int((value < 0).sum()):
                asked.repairs.note(generation.NEGATIVE, f"{code} of {zone}", negative)
            each = begin, np.maximum(value, 0), np.full(len(begin), width)
            parts[zone].setdefault(code, []).append(each)
    read: dict[str, dict[str, Any]] = {zone: {} for zone in found if asked.wants(zone)}
    for zone, fuels in parts.items():
        for code, several in fuels.items():

            def fault(
                index: int, found: str, expected: str, mend: str, of: str = f"{code} of {zone}"
            ) -> InputError:
                return input_error(asked.name, of, found, expected, mend)

            begin, value, length = (np.concatenate(each) for each in zip(*several, strict=True))
            read[zone][code] = samples(begin, value, fault, asked.repairs, length)
    return Reading(
        name=asked.name,
        format="ENTSO-E A75",
        signal=AVERAGE,
        basis=generation.BASIS,
        found=tuple(found),
        samples=read,
        scheme=SCHEME,
    )


def _laid_out(
    name: str, place: str, curve: str, period: Fields, given: list[Fields], before: int
) -> tuple[NDArray[np.int64], int, NDArray[np.float64]]:
    """Beginnings, length and values of a period's points; NaN where one is missing.

    `before` are the points of the file so far.
    """
    start, end = (_moment(name, f"{place}, {key}", period.get(key)) for key in ("start", "end"))
    resolution = period.get("resolution")
    told = _RESOLUTION.fullmatch(resolution or "")
    if not told:
        expected = "PT60M, or a shorter one that divides an hour"
        raise input_error(name, f"{place}, resolution", shown(resolution), expected)
    if curve not in ("A01", "A03"):
        raise input_error(name, f"{place}, curveType", shown(curve), "A01 or A03")
    width = 60 * int(told[1] or 60)
    count, rest = divmod(end - start, width)
    if count < 1 or rest:
        found = f"{period.get('start')} to {period.get('end')}"
        raise input_error(name, place, found, f"a whole number of {resolution}")
    if before + count > MOST_POINTS:
        found = f"more than {MOST_POINTS:,} points"
        raise input_error(name, place, found, "fewer", "split it, for example by year")
    value = np.full(count, np.nan)
    for n, point in enumerate(given):
        at, quantity = point.get("position", ""), point.get("quantity", "")
        where = f"{place}, Point {n + 1}"
        if not (at.isascii() and at.isdecimal() and len(at) < 9 and 1 <= int(at) <= count):
            raise input_error(name, f"{where}, position", shown(at), f"1 to {count:,}")
        if not np.isnan(value[int(at) - 1]):
            raise input_error(name, f"{where}, position", f"{at} once more", "each once")
        value[int(at) - 1] = _quantity(name, f"{where}, quantity", quantity)
    if curve == "A03":
        last = np.maximum.accumulate(np.where(np.isnan(value), -1, np.arange(count)))
        value = np.where(last < 0, np.nan, value[last])
    return start + width * np.arange(count), width, value


def _moment(name: str, place: str, text: str | None) -> int:
    seconds = epoch_s(text) if text and "T" in text else None
    if seconds is None or not EARLIEST_S <= seconds < LATEST_S or seconds % 60:
        raise input_error(name, place, shown(text), "a time such as 2023-06-01T12:00Z")
    return int(seconds)


def _quantity(name: str, place: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not generation.LEAST_MW <= number <= generation.MOST_MW:
        expected = f"a number of MW up to {generation.MOST_MW:g}"
        raise input_error(name, place, shown(text), expected)
    return number


def _series(asked: Asked) -> Any:
    """The `TimeSeries` of a document one after another, as `Series`."""
    done: list[Series] = []
    state = _Document(asked.name, done)
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartDoctypeDeclHandler = state.doctype
    parser.StartElementHandler = state.start
    parser.EndElementHandler = state.end
    parser.CharacterDataHandler = state.text
    try:
        for piece in pieces(asked.name, asked.file):
            parser.Parse(piece)
            yield from done
            done.clear()
        parser.Parse("", True)
    except expat.ExpatError as error:
        place = f"line {error.lineno}, column {error.offset + 1}"
        problem = expat.ErrorString(error.code)
        raise input_error(asked.name, place, f"a syntax error ({problem})", "XML") from None
    yield from done


class _Document:
    """What expat calls."""

    def __init__(self, name: str, done: list[Series]) -> None:
        self.name, self.done = name, done
        self.open: list[str] = []
        self.series: Fields = {}
        self.periods: list[tuple[Fields, list[Fields]]] = []
        self.held = ""

    def doctype(self, *_: Any) -> None:
        mend = "take the declaration out"
        raise input_error(self.name, "", "a document type (DOCTYPE)", "XML without one", mend)

    def start(self, tag: str, _: Any) -> None:
        local = tag.rpartition(":")[2]
        if not self.open and local not in (DOCUMENT, REFUSAL):
            expected = f"<{DOCUMENT}> of ENTSO-E, the only XML that is read"
            raise input_error(self.name, "", f"a document <{local[:60]}>", expected)
        if len(self.open) == _DEEPEST:
            raise input_error(self.name, "", "elements too deep in one another", "A75")
        self.open.append(local)
        self.held = ""
        if local == "TimeSeries":
            self.series, self.periods = {}, []
        elif local == "Period":
            self.periods.append(({}, []))
        elif local == "Point" and self.periods:
            self.periods[-1][1].append({})

    def text(self, data: str) -> None:
        if len(self.held) < _LONGEST:
            self.held += data[:_LONGEST]

    def end(self, _: str) -> None:
        local, value = self.open.pop(), self.held.strip()
        self.held = ""
        if (self.open[:1] or [local]) == [REFUSAL] and (local == "text" or not self.open):
            found = f"ENTSO-E's answer {shown(value)}" if value else "an answer of ENTSO-E"
            mend = "ask for another time or zone"
            raise input_error(self.name, "", f"{found} (<{REFUSAL}>)", f"<{DOCUMENT}>", mend)
        if local == "TimeSeries":
            self.done.append((self.series, self.periods))
        if local not in _LEAVES:
            return
        if local == "type" and len(self.open) == 1 and value != KIND:
            expected = f"{KIND!r}, actual generation per type"
            raise input_error(self.name, "type", shown(value), expected)
        inside = self.periods[-1] if "Period" in self.open and self.periods else None
        if inside is None:
            if "TimeSeries" in self.open:
                self.series[local] = value
        elif local in ("position", "quantity"):
            if inside[1]:
                inside[1][-1][local] = value
        else:
            inside[0][local] = value
