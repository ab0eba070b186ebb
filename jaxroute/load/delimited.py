"""CSV files, gzipped or not, every value of them text."""

import csv
import gzip
import io
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from jaxroute.load.messages import input_error

UNREADABLE = (pa.ArrowException, OSError, EOFError, ValueError, csv.Error, zlib.error)
"""What a file that is no CSV, or a damaged one, raises."""

Choose = Callable[[Sequence[str]], list[str]]
"""Given the names in a header, those to read."""


def line(file: Path, index: int) -> int:
    """Line of a data row, counted from 0, of a file whose header is line 1."""
    with _text(file) as stream:
        filled = (number for number, line in enumerate(stream, 1) if line != "\n")
        for _ in range(index + 1):  # the header, and the rows before
            next(filled, None)
        return next(filled, index + 2)


def _is_gzip(file: Path) -> bool:
    with file.open("rb") as stream:
        return stream.read(2) == b"\x1f\x8b"


def _text(file: Path) -> io.TextIOBase:
    opener: Any = gzip.open if _is_gzip(file) else open
    return opener(file, "rt", encoding="utf-8-sig", errors="replace", newline=None)


def read(name: str, file: Path, choose: Choose) -> pa.Table:
    """Some columns of a file, null where empty.

    Args:
      name: the file as the user named it.
      file: it.
      choose: which columns.

    Raises:
      InputError: at the first row that has more or fewer values than the header.
      pa.ArrowException, ...: `UNREADABLE`.
    """
    with _text(file) as stream:
        first = next((line for line in stream if line != "\n"), "")
        any_rows = next((True for line in stream if line != "\n"), False)
    header = next(csv.reader([first]), [])
    columns = choose(header)
    if not any_rows:
        return pa.table({column: pa.array([], pa.string()) for column in columns})
    options = pyarrow.csv.ConvertOptions(
        column_types={column: pa.string() for column in columns},
        include_columns=columns,
        null_values=[""],
        strings_can_be_null=True,
    )
    try:
        compression = "gzip" if _is_gzip(file) else None
        with pa.input_stream(str(file), compression=compression) as source:
            return pyarrow.csv.read_csv(source, convert_options=options)
    except pa.ArrowInvalid:
        with _text(file) as stream:
            rows = csv.reader(stream)
            for row in rows:
                if row and len(row) != len(header):
                    place, found = f"row {rows.line_num}", f"{len(row)} values"
                    expected = f"{len(header)}, as in the header"
                    raise input_error(name, place, found, expected) from None
        raise
