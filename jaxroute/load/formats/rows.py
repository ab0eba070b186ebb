"""Records of a file, whether they are JSON or rows of Parquet."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet

from jaxroute.load import parquet
from jaxroute.load.files import parts
from jaxroute.load.records import records
from jaxroute.load.repairs import Repairs
from jaxroute.load.unreadable import readable

__all__ = ["rows"]

_BATCH = 128
"""Rows of Parquet that are Python objects at a time: a conversation may have megabytes."""

Row = tuple[str, Mapping[str, Any]]
"""Where a record is, such as `line 3`, and it."""


def rows(file: Path, repairs: Repairs, columns: Sequence[str]) -> Iterator[Row]:
    """The JSON objects of a file, or its rows if it is Parquet, in bounded memory.

    Args:
      file: JSON in any shape that `jaxroute.load.records.records` reads, Parquet, or a directory
        of Parquet files, which are read one after another.
      repairs: takes down what is left out.
      columns: those to read of Parquet, where it has them.

    Raises:
      InputError: if the file cannot be read.
    """
    with readable(repairs.name, "a file of JSON or Parquet"):
        files = parts(file)
        if file.is_dir() or parquet.is_parquet(file):
            for each in files:
                yield from _of_parquet(each, columns, f" of {each.name}" if file.is_dir() else "")
            return
        for place, record in records(file, repairs):
            if isinstance(record, dict):
                yield place, record
            else:
                repairs.note("records that are no objects left out", place)


def _of_parquet(file: Path, columns: Sequence[str], where: str) -> Iterator[Row]:
    with pyarrow.parquet.ParquetFile(file) as source:
        present = [name for name in source.schema_arrow.names if name in columns]
        row = 0
        for batch in source.iter_batches(batch_size=_BATCH, columns=present):
            for record in batch.to_pylist():
                row += 1
                yield f"row {row}{where}", record
