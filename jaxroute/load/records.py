"""JSON values of a file one after another, in bounded memory: JSON lines, an array, or in a row.

Gzipped or not, with a byte-order mark or without. Of a file that breaks off what is whole is read.
"""

import codecs
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from jaxroute.load import packed
from jaxroute.load.messages import input_error
from jaxroute.load.repairs import BREAKS_OFF, Repairs

__all__ = ["Record", "records", "text_chunks"]

LONGEST = 2**25
"""Characters of a record; a longer one is refused: no conversation has 32 MiB."""

_BETWEEN = re.compile(r"[\s,\x00]*")

Record = tuple[str, Any]
"""Where a value is, such as `line 3`, and it."""


def text_chunks(file: Path, broken: Callable[[], object] | None = None) -> Iterator[str]:
    """The text of a file, unzipped if it is gzipped, in pieces that are not empty.

    Malformed UTF-8 reads as U+FFFD. A gzipped file that breaks off ends there, as plain ones do;
    `broken`, if given, is called then.

    Raises:
      InputError: of a gzipped file that unpacks to far more than it could hold.
      OSError, zlib.error: if it cannot be read.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
    for chunk in packed.chunks(file, *([broken] if broken else [])):
        if text := decoder.decode(chunk):
            yield text
    if text := decoder.decode(b"", final=True):
        yield text


def records(file: Path, repairs: Repairs) -> Iterator[Record]:
    """The JSON values of a file: of its array, of its lines, or one after another.

    What is not JSON is left out and noted: a line of JSON lines, else all from there on. So is it
    if the file breaks off: in a line or an array, or as gzip.

    Raises:
      InputError: at a value of more than `LONGEST` characters, or as `text_chunks`.
      OSError, zlib.error: if the file cannot be read.
    """
    cuts = list[bool]()
    chunks = text_chunks(file, lambda: cuts.append(True))
    head = ""
    for chunk in chunks:
        head += chunk
        if head.strip() or len(head) > LONGEST:
            break
    while "\n" not in head and len(head) <= packed.CHUNK and (more := next(chunks, "")):
        head += more
    place = ""
    for place, value in (_lines if _by_line(head) else _values)(head, chunks, repairs):
        yield place, value
    for _ in chunks:  # what follows an array
        pass
    if cuts and BREAKS_OFF not in repairs.counts:
        repairs.note(BREAKS_OFF, place or "its beginning", 0)


def _by_line(head: str) -> bool:
    """Whether a file has a record on each line: on its first, or its second if that is damaged."""
    first, _, rest = head.lstrip().partition("\n")
    second = rest.partition("\n")[0]
    if not first.startswith("{") or _parsed(first) is not None:
        return first.startswith("{")
    return first.strip() != "{" and second.startswith("{") and _parsed(second) is not None


def _parsed(text: str) -> Any:
    """The value of a text, None if it is not JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _lines(pending: str, chunks: Iterator[str], repairs: Repairs) -> Iterator[Record]:
    number, at_end = 0, False
    while not at_end:
        *whole, pending = pending.split("\n")
        for line in whole:
            number += 1
            yield from _line(line, number, repairs)
        if len(pending) > LONGEST:
            raise _too_long(repairs, f"line {number + 1}")
        chunk = next(chunks, None)
        at_end = chunk is None
        pending += chunk or ""
    yield from _line(pending, number + 1, repairs, is_last=True)


def _line(line: str, number: int, repairs: Repairs, is_last: bool = False) -> Iterator[Record]:
    if line.strip("\0 \t\r\n,"):
        place, value = f"line {number}", _parsed(line)
        if value is None and is_last and number > 1:
            repairs.note(BREAKS_OFF, f"line {number - 1}", 0)
        elif value is None:
            repairs.note("lines that are not JSON left out", place)
        else:
            yield place, value


def _values(buffer: str, chunks: Iterator[str], repairs: Repairs) -> Iterator[Record]:
    decode = json.JSONDecoder().raw_decode
    number, at, in_array = 0, 0, False
    while True:
        at = _BETWEEN.match(buffer, at).end()  # type: ignore[union-attr]
        if at == len(buffer):
            chunk = next(chunks, None)
            if chunk is None:
                if in_array:
                    repairs.note(BREAKS_OFF, f"record {number}", 0)
                return
            buffer, at = chunk, 0
            continue
        if buffer[at] == "[" and number == 0 and not in_array:
            in_array, at = True, at + 1
            continue
        if buffer[at] == "]" and in_array:
            return
        try:
            value, at = decode(buffer, at)
        except (ValueError, RecursionError) as error:
            more = "" if isinstance(error, RecursionError) else _more(chunks, len(buffer) - at)
            if not more:
                _broken(repairs, number)
                return
            buffer, at = buffer[at:] + more, 0
            if len(buffer) > LONGEST:
                raise _too_long(repairs, f"record {number + 1}") from None
            continue
        number += 1
        yield f"record {number}", value


def _more(chunks: Iterator[str], held: int) -> str:
    """As much again as is held: what is tried again and again then takes linear time."""
    parts, size = list[str](), 0
    while size <= held and (chunk := next(chunks, None)) is not None:
        parts.append(chunk)
        size += len(chunk)
    return "".join(parts)


def _broken(repairs: Repairs, number: int) -> None:
    what = "records that break off, and nothing after them read"
    repairs.note(what, f"record {number + 1}")


def _too_long(repairs: Repairs, place: str) -> Exception:
    found = f"a JSON value of more than {LONGEST:,} characters"
    return input_error(repairs.name, place, found, "a shorter one", "split it into records")
