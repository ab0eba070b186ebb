"""CSV files, gzipped or not, every value of them text."""

import contextlib
import csv
import gzip
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from jaxroute.load import packed
from jaxroute.load.messages import input_error
from jaxroute.load.repairs import BREAKS_OFF, Repairs

Choose = Callable[[Sequence[str]], list[str]]
"""Given the names in a header, those to read."""


def line(file: Path, index: int) -> int:
    """First line of a data row, counted from 0, of a file whose header begins on line 1.

    A row has more lines than one where a quoted value has.
    """
    with _text(file) as stream, contextlib.suppress(csv.Error):
        rows = _rows(stream)
        for _ in range(index + 1):  # the header, and the rows before
            next(rows, None)
        return next(rows)[0]
    return index + 2


def header(file: Path) -> list[str]:
    """The names in the first row of a file; none if it is empty.

    Raises:
      OSError, ...: `jaxroute.load.unreadable.UNREADABLE`.
    """
    with _text(file) as stream:
        return next(_rows(stream), (1, []))[1]


def _rows(stream: io.TextIOBase) -> Iterator[tuple[int, list[str]]]:
    """The rows that are not blank, each with the line on which it begins."""
    rows, number = csv.reader(stream), 1
    for row in rows:
        if row:
            yield number, row
        number = rows.line_num + 1


def _text(file: Path) -> io.TextIOBase:
    opener: Any = gzip.open if packed.is_packed(file) else open
    return opener(file, "rt", encoding="utf-8-sig", errors="replace", newline="")


def read(name: str, file: Path, choose: Choose, repairs: Repairs | None = None) -> pa.Table:
    """Some columns of a file, null where empty.

    Args:
      name: the file as the user named it.
      file: it.
      choose: which columns.
      repairs: if given, rows that have more or fewer values than the header are left out, and of
        a gzipped file that breaks off what is whole is read.

    Raises:
      InputError: at the first row that has more or fewer values than the header; of a gzipped file
        that breaks off, or that unpacks to far more than it could hold.
      pa.ArrowException, ...: `jaxroute.load.unreadable.UNREADABLE`.
    """
    packed.refuse_bomb(file)
    with _text(file) as stream:
        names = next(_rows(stream), (1, []))[1]
        try:
            any_rows = any(text.strip("\r\n") for text in stream)
        except EOFError:
            any_rows = True  # as far as the file goes; see below
    columns = choose(names)
    if not any_rows:
        return pa.table({column: pa.array([], pa.string()) for column in columns})
    options = pyarrow.csv.ConvertOptions(
        column_types={column: pa.string() for column in columns},
        include_columns=columns,
        null_values=[""],
        strings_can_be_null=True,
    )
    parse = pyarrow.csv.ParseOptions(newlines_in_values=True)
    try:
        compression = "gzip" if packed.is_packed(file) else None
        with pa.input_stream(str(file), compression=compression) as source:
            return pyarrow.csv.read_csv(source, parse_options=parse, convert_options=options)
    except (pa.ArrowInvalid, OSError):
        if repairs is not None:
            return _whole_rows(file, names, columns, repairs)
        _refuse_first(name, file, len(names))
        raise


def _refuse_first(name: str, file: Path, width: int) -> None:
    """Raises an error that names the first row of another width, or where a file breaks off."""
    number = 1
    with _text(file) as stream:
        try:
            for number, row in _rows(stream):
                if len(row) != width:
                    place, expected = f"row {number}", f"{width}, as in the header"
                    raise input_error(name, place, f"{len(row)} values", expected) from None
        except EOFError:
            found, mend = "gzip that breaks off after it", "copy or download the file again"
            raise input_error(name, f"row {number}", found, "a whole file", mend) from None


def _whole_rows(
    file: Path, names: Sequence[str], columns: Sequence[str], repairs: Repairs
) -> pa.Table:
    """Some columns of the rows that have a value for each name; malformed UTF-8 as U+FFFD."""
    places = [names.index(column) for column in columns]
    values = [list[str | None]() for _ in columns]
    number = 1
    with _text(file) as stream:
        rows = _rows(stream)
        next(rows, None)
        try:
            for number, row in rows:
                if len(row) != len(names):
                    what = "rows with more or fewer values than the header left out"
                    repairs.note(what, f"row {number}")
                    continue
                for column, place in zip(values, places, strict=True):
                    column.append(row[place] or None)
        except EOFError:
            repairs.note(BREAKS_OFF, f"row {number}", 0)
    return pa.table(
        {name: pa.array(column, pa.string()) for name, column in zip(columns, values, strict=True)}
    )
