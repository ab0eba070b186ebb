"""Columns of a log in CSV, read for what they must mean, with a count of those mended."""

from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from jaxroute.load import delimited
from jaxroute.load.formats import fields
from jaxroute.load.formats.log import MOST, UNKNOWN
from jaxroute.load.repairs import Repairs
from jaxroute.load.table import require


def read(
    file: Path, required: Collection[str], repairs: Repairs, optional: Collection[str] = ()
) -> pa.Table:
    """Columns of a file, text, null where empty; of the optional ones those that are there.

    Rows of the wrong length are left out and noted.

    Raises:
      InputError: if a column is missing or doubled.
      jaxroute.load.unreadable.UNREADABLE: if the file cannot be read.
    """

    def choose(header: Sequence[str]) -> list[str]:
        require(repairs.name, header, sorted(required), sorted(optional))
        return [name for name in header if name in required or name in optional]

    return delimited.read(repairs.name, file, choose, repairs)


def tokens(table: pa.Table, column: str, repairs: Repairs) -> NDArray[np.int64]:
    """A column of token counts; `UNKNOWN` where there is none, noted unless empty."""
    text = table[column].to_pandas()
    values = pd.to_numeric(text, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    good = (values >= 0) & (values <= MOST) & (values == np.floor(values))
    _note(text, good, f"token counts that are no whole number from 0 to {MOST:,} left out", repairs)
    return np.where(good, values, UNKNOWN).astype(np.int64)


def seconds(table: pa.Table, column: str, repairs: Repairs) -> NDArray[np.float64]:
    """A column of times, epoch seconds of dates; NaN where there is none, noted unless empty."""
    text = table[column].to_pandas()
    values = pd.to_numeric(text, errors="coerce").to_numpy(np.float64, na_value=np.nan)
    if 2 * np.isnan(values).sum() > len(values):  # dates, then
        moments = pd.to_datetime(text, format="ISO8601", utc=True, errors="coerce")
        micros = moments.dt.tz_localize(None).to_numpy("datetime64[us]")
        values = np.where(np.isnat(micros), np.nan, micros.astype(np.int64) / 1e6)
    good = np.isfinite(values)
    _note(text, good, "times that are neither numbers nor ISO-8601 left out", repairs)
    return np.where(good, values, fields.NAN)


def _note(text: pd.Series, good: NDArray[np.bool_], what: str, repairs: Repairs) -> None:
    wrong = ~good & text.notna().to_numpy()
    if wrong.any():
        repairs.note(what, f"row {int(np.argmax(wrong)) + 2}", int(wrong.sum()))
