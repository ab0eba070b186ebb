"""Tidy tables in CSV, gzipped CSV or Parquet: columns as arrays, and errors that name the row.

Parquet may be a file or a directory of files, one after another.

Columns of a CSV file are read as text and converted whole; only when that fails is the first bad
row looked for.
"""

import dataclasses
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from jaxroute.errors import InputError
from jaxroute.load import delimited, parquet
from jaxroute.load.delimited import Choose
from jaxroute.load.files import parts
from jaxroute.load.messages import input_error, nearest, shown
from jaxroute.load.unreadable import readable

# From 1980 on no epoch second can be a date such as 20230601 or a time that starts from 0.
_FIRST, _LAST = np.datetime64("1980-01-01", "us"), np.datetime64("2200-01-01", "us")
_WITH_OFFSET = r"^\d{4}.*[T ].*(Z|z|[+-]\d{2}(:?\d{2})?)$"
_WITHOUT_OFFSET = r"^\d{4}[\d-]*([T ][\d:.]*)?$"


@dataclasses.dataclass(frozen=True)
class Table:
    """The chosen columns of a file, or of some of its rows, in file order.

    Attributes:
      name: the file as the user named it, for messages.
      files: it, or the files of a directory.
      data: its columns; those of a CSV file are text, null where empty.
      is_csv: whether rows have line numbers.
      begin: rows of the file before these.
      as_text: columns of text that is not all numbers, though that of these rows may be.
    """

    name: str
    files: Sequence[Path]
    data: pa.Table
    is_csv: bool
    begin: int = 0
    as_text: Collection[str] = ()

    def __len__(self) -> int:
        return self.data.num_rows

    def __contains__(self, column: str) -> bool:
        return column in self.data.column_names

    def fault(
        self, index: int, column: str, expected: str, mend: str = "", found: str = ""
    ) -> InputError:
        """An error about the value of `column` at data row `index` (from 0).

        Its row is the line of a CSV file, whose header is row 1; rows of Parquet count from 1.
        """
        found = found or shown(self.data[column][int(index)].as_py())
        place = f"{self._row(int(index))}, column {column}"
        return input_error(self.name, place, found, expected, mend)

    def _row(self, index: int) -> str:
        if not self.is_csv:
            return parquet.place(self.files, self.begin + index)
        return f"row {delimited.line(self.files[0], index)}"

    def is_blank(self, column: str) -> bool:
        """Whether the table has rows, and none of them a value in `column`."""
        return len(self) > 0 and self.data[column].null_count == len(self)

    def text(self, column: str) -> pa.Array:
        """`column` as strings, null where empty."""
        try:
            return pc.cast(self.data[column], pa.string()).combine_chunks()
        except pa.ArrowException as error:
            raise self._wrong_type(column, "text") from error

    def names(self, column: str) -> pa.Array:
        """`column` as strings.

        Raises:
          InputError: if a value is missing.
        """
        text = self.text(column)
        if text.null_count:
            index = int(np.argmax(text.is_null().to_numpy(zero_copy_only=False)))
            raise self.fault(index, column, "a name", "fill every row")
        return text

    def codes(self, column: str) -> tuple[NDArray[np.int64], pa.Array]:
        """`column` as indices into its distinct strings, which are in order of first appearance.

        Raises:
          InputError: if a value is missing.
        """
        encoded = self.names(column).dictionary_encode()
        return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary

    def numbers(
        self,
        column: str,
        low: float = -np.inf,
        high: float = np.inf,
        *,
        whole: bool = False,
        missing_ok: bool = False,
        rows: NDArray[np.int64] | None = None,
    ) -> NDArray[np.float64]:
        """`column` at `rows` as finite numbers in [low, high], NaN where missing.

        Args:
          column: its name.
          low, high: the range allowed.
          whole: whether only whole numbers are.
          missing_ok: whether values may be missing.
          rows: indices of the rows to read, all by default; others may hold anything.

        Raises:
          InputError: at the first value that is not so.
        """
        values, junk = self._floats(column)
        rows = np.arange(len(self)) if rows is None else rows
        values, junk = values[rows], junk[rows]
        good = np.isfinite(values) & (values >= low) & (values <= high)
        if whole:
            good &= values == np.floor(values)
        if missing_ok:
            good |= np.isnan(values) & ~junk
        if not good.all():
            kind = "a whole number" if whole else "a number"
            bounds = f" >= {low:g}" if np.isfinite(low) else ""
            bounds = f" from {low:g} to {high:.12g}" if np.isfinite(high) else bounds
            raise self.fault(int(rows[np.argmin(good)]), column, kind + bounds)
        return values

    def _floats(self, column: str) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Values, NaN where missing or not a number, and whether they are not a number."""
        data = self.data[column]
        try:
            floats = None if column in self.as_text else pc.cast(data, pa.float64())
        except pa.ArrowNotImplementedError as error:
            raise self._wrong_type(column, "numbers") from error
        except pa.ArrowInvalid:
            floats = None
        if floats is None:
            series = self.text(column).to_pandas()
            values = pd.to_numeric(series, errors="coerce").to_numpy(np.float64, na_value=np.nan)
            return values, np.isnan(values) & series.notna().to_numpy()
        return np.array(floats.to_numpy(), np.float64), np.zeros(len(self), bool)

    def times(self, column: str, rows: NDArray[np.int64] | None = None) -> pd.DatetimeIndex:
        """`column` as UTC moments (microseconds) at `rows`: ISO-8601, or epoch seconds throughout.

        Times without an offset are UTC.

        Raises:
          InputError: at the first value that is missing, not a time, or not from 1980 to 2199.
        """
        rows = np.arange(len(self)) if rows is None else rows
        data = self.data[column].combine_chunks().take(pa.array(rows, pa.int64()))
        try:
            floats = None if column in self.as_text else pc.cast(data, pa.float64())
        except pa.ArrowException:
            floats = None
        if floats is None:
            moments = self._calendar(column, data)
        else:
            seconds = floats.to_numpy(zero_copy_only=False)
            sane = (seconds >= 0) & (seconds < 2**33)
            micros = np.round(np.where(sane, seconds, -1) * 1e6).astype(np.int64)
            moments = micros.astype("datetime64[us]")
        good = (moments >= _FIRST) & (moments < _LAST)  # NaT is neither
        if not good.all():
            raise self.fault(
                int(rows[np.argmin(good)]),
                column,
                "a time from 1980 to 2199",
                "write all as ISO-8601 (2023-06-01T12:00:00Z) or all as epoch seconds",
            )
        return pd.DatetimeIndex(moments).tz_localize("UTC")

    def _calendar(self, column: str, data: pa.Array) -> NDArray[np.datetime64]:
        if pa.types.is_temporal(data.type):
            try:
                return pc.cast(data, pa.timestamp("us"), safe=False).to_numpy(zero_copy_only=False)
            except pa.ArrowException as error:
                raise self._wrong_type(column, "times") from error
        try:
            text = pc.cast(data, pa.string())
        except pa.ArrowException as error:
            raise self._wrong_type(column, "times") from error
        moments = np.full(len(text), "NaT", "datetime64[us]")
        for pattern in (_WITH_OFFSET, _WITHOUT_OFFSET):  # together, pandas 2.2 mixes them up
            some = pc.fill_null(pc.match_substring_regex(text, pattern), False)
            chosen = some.to_numpy(zero_copy_only=False)
            parsed = pd.to_datetime(
                text.filter(some).to_pandas(), format="ISO8601", utc=True, errors="coerce"
            )
            moments[chosen] = parsed.dt.tz_localize(None).to_numpy("datetime64[us]")
        return moments

    def _wrong_type(self, column: str, expected: str) -> InputError:
        kind = f"values of type {self.data[column].type}"
        return input_error(self.name, f"column {column}", kind, expected)


def read_table(path: str | Path, choose: Choose) -> Table:
    """Reads some columns of a table; its contents, not its name, say which format it is.

    Args:
      path: a file, a directory of Parquet files, or `builtin:` and a name.
      choose: given the names in the header, returns those to read, or raises.

    Raises:
      InputError: if the file is missing or unreadable; at the first row of a CSV file that has more
        or fewer values than its header.
    """
    files = parts(path)
    with readable(path, "a table in CSV, gzipped CSV or Parquet"):
        is_csv = not parquet.is_parquet(files[0])
        if is_csv:
            data = delimited.read(str(path), files[0], choose)
        else:
            found = parquet.dataset(files)
            data = found.to_table(columns=choose(found.schema.names))
    return Table(str(path), files, data, is_csv)


def require(
    name: str, header: Sequence[str], required: Sequence[str], optional: Sequence[str] = ()
) -> None:
    """Raises an `InputError` unless `header` has every required column, and none known twice."""
    unknown = [column for column in header if column not in {*required, *optional}]
    for column in (*required, *optional):
        count = header.count(column)
        if count > 1:
            raise input_error(name, "row 1", f"{count} columns {column}", "one")
        if count == 0 and column in required:
            near = nearest(column, unknown)
            mend = f"rename {near!r} if that is it" if near else ""
            found = f"columns {', '.join(header) or 'none'}"[:200]
            raise input_error(name, "row 1", found, f"a column {column}", mend)
