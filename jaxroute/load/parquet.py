"""Parquet files, one after another as one table, of which some rows are in memory at a time."""

import bisect
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.dataset
import pyarrow.fs
import pyarrow.parquet

BATCH = 65_536
"""Rows that are decoded at a time."""


def is_parquet(file: Path) -> bool:
    """Whether a file begins as Parquet does."""
    with file.open("rb") as stream:
        return stream.read(4) == b"PAR1"


def dataset(files: Sequence[Path]) -> pa.dataset.Dataset:
    """Files as one table.

    A column is of a type that holds those of every file, and null where a file lacks it.

    Raises:
      pa.ArrowException, OSError: if one cannot be read, or types do not go together.
    """
    schema = None
    if len(files) > 1:
        schemas = [pa.parquet.read_schema(file) for file in files]
        schema = pa.unify_schemas(schemas, promote_options="permissive")
    paths, place = [str(file) for file in files], pa.fs.LocalFileSystem()
    return pa.dataset.dataset(paths, schema, "parquet", filesystem=place)


def rows(files: Sequence[Path]) -> int:
    """Rows of files together."""
    return sum(pa.parquet.read_metadata(file).num_rows for file in files)


def place(files: Sequence[Path], row: int) -> str:
    """Where a row, counted from 0 over all files, is: `row 3`, or `row 3 of part-1.parquet`."""
    if len(files) > 1:
        for file in files:
            held = rows([file])
            if row < held:
                return f"row {row + 1} of {file.name}"
            row -= held
    return f"row {row + 1}"


def batches(
    data: pa.dataset.Dataset,
    columns: Sequence[str],
    bounds: Sequence[tuple[int, int]] | None = None,
) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Some columns of a table in runs of at most `BATCH` rows, each with the number of its first.

    Args:
      data: as `dataset` gives it.
      columns: names.
      bounds: ascending; row groups that none of these rows are in are left out.
    """
    # A scan of all of it would read far ahead.
    unbuffered = pa.dataset.ParquetFragmentScanOptions(use_buffered_stream=True, pre_buffer=False)
    stops = None if bounds is None else [stop for _, stop in bounds]
    row = 0
    for fragment, held in _stretches(data):
        if bounds is not None and stops is not None:
            next_bound = bisect.bisect_right(stops, row)
            if next_bound == len(bounds) or bounds[next_bound][0] >= row + held:
                row += held
                continue
        for batch in fragment.to_batches(
            schema=data.schema,
            columns=list(columns),
            batch_size=BATCH,
            batch_readahead=2,
            fragment_scan_options=unbuffered,
        ):
            if len(batch):
                yield row, batch
            row += len(batch)


def _stretches(data: pa.dataset.Dataset) -> Iterator[tuple[pa.dataset.Fragment, int]]:
    """Row groups of each file in order, small ones together, and how many rows they have."""
    for fragment in data.get_fragments():
        ids, held = list[int](), 0
        for group in fragment.row_groups:
            ids.append(group.id)
            held += group.num_rows
            if held >= BATCH:
                yield fragment.subset(row_group_ids=ids), held
                ids, held = [], 0
        if held:
            yield fragment.subset(row_group_ids=ids), held


def windows(
    data: pa.dataset.Dataset, columns: Sequence[str], bounds: Sequence[tuple[int, int]]
) -> Iterator[pa.Table]:
    """Some columns of the rows from one number up to another, for ascending bounds.

    Raises:
      ValueError: if the table has fewer rows.
    """
    stream = batches(data, columns, bounds)
    held: list[tuple[int, pa.RecordBatch]] = []
    for begin, stop in bounds:
        held = [(row, batch) for row, batch in held if row + len(batch) > begin]
        while not held or held[-1][0] + len(held[-1][1]) < stop:
            row, batch = next(stream, (0, None))
            if batch is None:
                raise ValueError(f"fewer than the {stop:,} rows that were there before")
            if row + len(batch) > begin:
                held.append((row, batch))
        table = pa.Table.from_batches([batch for _, batch in held])
        yield table.slice(begin - held[0][0], stop - begin)
