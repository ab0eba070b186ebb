"""Conversation traces in the formats that people have, told apart by what is in the file."""

import codecs
import itertools
import json
import os
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import pyarrow.parquet

from jaxroute.errors import UnknownFormatError
from jaxroute.load import delimited, packed, parquet
from jaxroute.load.files import parts
from jaxroute.load.formats import (
    arena,
    azure,
    bailian,
    burstgpt,
    chats,
    finetuning,
    mooncake,
    requests,
    sharegpt,
    tidy,
)
from jaxroute.load.messages import input_error, known_names, one_line
from jaxroute.load.records import records, text_chunks
from jaxroute.load.repairs import Repairs
from jaxroute.load.unreadable import readable

__all__ = ["FORMATS", "TIDY", "Format", "Trace", "read_trace"]

TIDY = "tidy"
"""The format of the project's own."""

JSON, CSV, PARQUET = "JSON", "CSV", "Parquet"

_SAMPLE = 64
"""Records that are looked at for their keys: a log may begin with others than requests."""

_HEAD, _FEW = 512, 10
"""Bytes of a file's beginning that are looked at; one of so many may be a control character."""

_TEXT = bytes({*range(32, 127), *range(128, 256), *b"\t\n\v\f\r"})
"""Bytes of text."""


class Format(NamedTuple):
    """How a format is told, and read.

    Attributes:
      kinds: of files that hold it: JSON, CSV, Parquet.
      keys: what a record's keys, or a table's columns, must have: all of one of these.
      read: given the file and a tally of repairs, the turns and notes.
      is_text: whether it holds text: `read` takes a tokenizer, and a directory of Parquet.
    """

    kinds: Collection[str]
    keys: Sequence[Collection[str]]
    read: Callable[..., tuple[pd.DataFrame, list[str]]]
    is_text: bool = False


def _tidy(file: Path, repairs: Repairs) -> tuple[pd.DataFrame, list[str]]:
    return tidy.read(repairs.name), []


FORMATS: dict[str, Format] = {
    TIDY: Format((CSV, PARQUET), (frozenset(tidy.REQUIRED),), _tidy),
    "burstgpt": Format((CSV,), burstgpt.KEYS, burstgpt.read),
    "azure": Format((CSV,), azure.KEYS, azure.read),
    "bailian": Format((JSON,), bailian.KEYS, bailian.read),
    "mooncake": Format((JSON,), mooncake.KEYS, mooncake.read),
    "sharegpt": Format((JSON, PARQUET), sharegpt.KEYS, sharegpt.read, is_text=True),
    "chats": Format((JSON, PARQUET), chats.KEYS, chats.read, is_text=True),
    "arena": Format((JSON, PARQUET), arena.KEYS, arena.read, is_text=True),
    "requests": Format((JSON,), requests.KEYS, requests.read),
    "messages": Format((JSON, PARQUET), finetuning.KEYS, finetuning.read, is_text=True),
}
"""The first that fits is it."""


class Trace(NamedTuple):
    """A trace as read.

    Attributes:
      frame: its turns, see `read_trace`.
      format: one of `FORMATS`.
      notes: in words, what was read, by which rule sessions were rebuilt, and what is not known.
      repairs: in words, what was mended or left out, how often and where first.
    """

    frame: pd.DataFrame
    format: str
    notes: tuple[str, ...] = ()
    repairs: tuple[str, ...] = ()

    @property
    def told(self) -> tuple[str, ...]:
        """How it was read, in words; of the project's own format there is nothing to tell."""
        if self.format == TIDY:
            return ()
        mended = (f"mended or left out: {each}" for each in self.repairs)
        return (f"read as {self.format}", *self.notes, *mended)


def read_trace(
    path: str | Path,
    *,
    format: str | None = None,
    tokenizer: str | None = None,
    strict: bool = False,
) -> Trace:
    """Reads a trace of conversations and checks it whole.

    A tidy table (CSV or Parquet, also a directory of Parquet files) is read as
    `jaxroute.load.formats.tidy.read` says, and must be right. Other formats are read for what they
    tell of tokens: what is wrong in them is mended or left out, and counted.

    Args:
      path: a file, plain or gzipped; a directory of Parquet files; or `builtin:sharegpt`.
      format: one of `FORMATS`; by default the contents tell.
      tokenizer: for formats that hold text, what counts its tokens: see
        `jaxroute.load.tokens.counter`.
      strict: whether whatever would be mended or left out is an error.

    Returns:
      The trace. Its frame has sessions in order of first appearance, their turns ascending:
      `session_id` (text), `turn` (int64), `arrival_s` (float64, s, or all NaN), `input_tokens`,
      those new at this turn, `output_tokens` (int64); where known `prefix_tokens` (int64), at most
      the context that the previous turn left, `start_time` (UTC, microseconds), the same for all
      turns of a session; and of a tidy table its other optional columns.

    Raises:
      InputError: naming file, place, what was found and what was expected.
    """
    files, name = parts(path), str(path)
    if format is not None and format not in FORMATS:
        mend = known_names(format, FORMATS)
        raise input_error(name, "format", repr(format), "the name of a format", mend)
    with readable(name, "a trace that can be read"):
        chosen = format or _told(name, files)
        how = FORMATS[chosen]
        if chosen == TIDY:
            return Trace(tidy.read(path), TIDY)
        repairs, is_directory = Repairs(name, strict), os.path.isdir(path)
        if how.is_text:
            whole = Path(path) if is_directory else files[0]
            frame, notes = how.read(whole, repairs, tokenizer)
        elif is_directory:
            mend = "give one file"
            raise input_error(name, "", "a directory", f"a file to be read as {chosen}", mend)
        else:
            frame, notes = how.read(files[0], repairs)
    return Trace(frame, chosen, tuple(map(one_line, notes)), repairs.lines())


def _told(name: str, files: Sequence[Path]) -> str:
    """The format of a file by its contents."""
    file = files[0]
    if len(files) > 1 or parquet.is_parquet(file):
        columns = pyarrow.parquet.read_schema(file).names
        return _fitting(PARQUET, [columns]) or _tidy_or_not(name, PARQUET, columns)
    head = ""
    for chunk in text_chunks(file):
        head += chunk
        if len(head) >= packed.CHUNK or "\n" in head.strip():
            break
    text = head.lstrip()
    if text[:1] in ("{", "["):
        sample = itertools.islice(records(file, Repairs(name)), _SAMPLE)
        keys = [list(value) for _, value in sample if isinstance(value, dict)]
        if not keys and _is_deep(text):
            raise _unknown(name, "JSON nested too deeply")
        return _fitting(JSON, keys) or _refuse(name, JSON, keys[0] if keys else [])
    if len(head) >= packed.CHUNK and "\n" not in text and "\r" not in text:
        found = f"no whole line in the first {packed.CHUNK:,} characters"
        raise input_error(name, "row 1", found, "the header of a table, or JSON")
    if not text:
        raise _unknown(name, "an empty file")
    _refuse_bytes(name, file)
    columns = delimited.header(file)
    return _fitting(CSV, [columns]) or _tidy_or_not(name, CSV, columns)


def _fitting(kind: str, found: Iterable[Sequence[str]]) -> str | None:
    """The first format of a kind that the keys of a record, or columns, are those of."""
    for keys in found:
        for name, each in FORMATS.items():
            if kind in each.kinds and any(set(some).issubset(keys) for some in each.keys):
                return name
    return None


def _tidy_or_not(name: str, kind: str, columns: Sequence[str]) -> str:
    """Tidy if a table is meant to be, so that its reader says what is wrong."""
    if not columns or set(columns) & set(tidy.REQUIRED):
        return TIDY
    return _refuse(name, kind, columns)


def _unknown(name: str, found: str, mend: str = "") -> UnknownFormatError:
    error = input_error(name, "", found, "a trace of a known format", mend)
    return UnknownFormatError(str(error))


def _refuse(name: str, kind: str, found: Sequence[str]) -> str:
    what, listed = "columns" if kind in (CSV, PARQUET) else "keys", ", ".join(found)[:120]
    has = f"{kind} with {what} {listed}" if found else f"{kind} without {what}"
    mend = f"formats: {', '.join(FORMATS)}; name it with --format if it is one of them"
    raise _unknown(name, has, mend)


def _is_deep(text: str) -> bool:
    """Whether JSON is nested too deeply to be read."""
    try:
        json.JSONDecoder().raw_decode(text)
    except RecursionError:
        return True
    except ValueError:
        pass
    return False


def _refuse_bytes(name: str, file: Path) -> None:
    """Raises an error if a file begins as no text in UTF-8 does."""
    head = next(filter(None, packed.chunks(file)), b"")[:_HEAD]
    if head[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
        raise _unknown(name, "text in UTF-16", "save it as UTF-8")
    odd = head.translate(None, _TEXT)
    if b"\0" in odd or _FEW * len(odd) > len(head):
        raise _unknown(name, "a binary file")
