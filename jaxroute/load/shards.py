"""Traces in Parquet that stay on disk: where their sessions lie, and some of them at a time."""

import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from jaxroute import draws
from jaxroute.errors import InputError
from jaxroute.load import parquet
from jaxroute.load.files import parts
from jaxroute.load.formats import tidy
from jaxroute.load.messages import shown
from jaxroute.load.table import Table
from jaxroute.load.unreadable import readable

_EXPECTED = "a table in Parquet that stays as it is"

_RANGE = 2**20
"""Hashes that are looked through for doubles at a time."""

_SUSPECTS = 64
"""Pairs of equal hashes whose sessions are looked up: one pair in 1e6 traces is of two sessions."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Index:
    """A trace on disk of S sessions, the rows of each side by side.

    Attributes:
      name: of the file or the directory, as the user gave it.
      files: it, or the files of the directory.
      columns: those to read; optional ones without a value are not.
      as_text: as of `jaxroute.load.table.Table`.
      hashes, lengths: `[S]`, of each session's id, and its turns; in temporary files that are gone
        with the last reference to them.
    """

    name: str
    files: Sequence[Path]
    columns: Sequence[str]
    as_text: frozenset[str]
    hashes: draws.Hashes
    lengths: NDArray[np.int64]


def index(path: str | Path) -> Index:
    """Looks through a trace for what holds of it as a whole.

    Args:
      path: a Parquet file, or a directory of them.

    Raises:
      InputError: for columns and files as `jaxroute.load.traces.read_trace`; if `arrival_s` is
        neither complete nor empty; at a session that comes back after another.
    """
    name, files = str(path), parts(path)
    with readable(name, _EXPECTED):
        found = _index(name, files)
        again = _first_again(found)
    if again is not None:
        raise again
    return found


def frames(trace: Index, bounds: Sequence[tuple[int, int]]) -> Iterator[pd.DataFrame]:
    """The rows from one number up to another, for ascending bounds around whole sessions.

    Yields frames as `jaxroute.load.traces.read_trace` returns them.

    Raises:
      InputError: as `read_trace`.
    """
    with readable(trace.name, _EXPECTED):
        data = parquet.dataset(trace.files)
        read = parquet.windows(data, trace.columns, bounds)
        for (begin, _), rows in zip(bounds, read, strict=True):
            table = Table(trace.name, trace.files, rows, False, begin, trace.as_text)
            yield tidy.parsed(table)


def _index(name: str, files: Sequence[Path]) -> Index:
    data = parquet.dataset(files)
    columns = tidy.columns(name, data.schema.names)
    optional = [column for column in columns if column in tidy.OPTIONAL]
    numbers = [column for column in columns if column not in ("session_id", "home_region")]
    texts = [column for column in numbers if _is_text(data.schema.field(column).type)]
    also = ("turn",) if "start_time" in texts else ()
    read = dict.fromkeys(("session_id", "arrival_s", *optional, *texts, *also))
    filled, as_text, missing, absent = set[str](), set[str](), 0, None
    rows, last, pending = 0, None, np.zeros(0, np.int64)
    with tempfile.TemporaryFile() as hashes, tempfile.TemporaryFile() as lengths:
        for begin, batch in parquet.batches(data, list(read)):
            table = Table(name, files, pa.Table.from_batches([batch]), False, begin)
            ids = table.names("session_id")
            changed = _changed(ids, last)
            hashes.write(draws.name_hashes(ids.take(pa.array(changed)).to_pylist()).tobytes())
            edges = np.append(pending, begin + changed)
            lengths.write(np.diff(edges).tobytes())
            rows, last, pending = begin + len(batch), ids[-1], edges[-1:]
            empty = np.isnan(table.numbers("arrival_s", missing_ok=True))
            if empty.any() and absent is None:
                absent = tidy.no_time(table, int(np.argmax(empty)))
            missing += int(empty.sum())
            filled |= {name for name in optional if table.data[name].null_count < len(table)}
            as_text |= {column for column in texts if not _all_numbers(table, column)}
        lengths.write((rows - pending).tobytes())
        mapped = _mapped(hashes, np.uint64), _mapped(lengths, np.int64)
    if absent is not None and missing < rows:
        raise absent
    return Index(
        name=name,
        files=files,
        columns=[column for column in columns if column not in optional or column in filled],
        as_text=frozenset(as_text),
        hashes=mapped[0],
        lengths=mapped[1],
    )


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _changed(ids: pa.Array, last: pa.Scalar | None) -> NDArray[np.int64]:
    """Indices of the ids that differ from the one before, of which the first's is `last`."""
    other = np.ones(len(ids), bool)
    other[1:] = pc.not_equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False)
    other[0] = last is None or last != ids[0]
    return np.flatnonzero(other)


def _all_numbers(table: Table, column: str) -> bool:
    """Whether text is of numbers; of `start_time` that at turn 0 counts."""
    values = table.data[column]
    if column == "start_time":
        turn = table.numbers("turn", 0, whole=True)
        values = values.take(pa.array(np.flatnonzero(turn == 0)))
    try:
        pc.cast(values, pa.float64())
    except pa.ArrowInvalid:
        return False
    return True


def _mapped(file: IO[bytes], dtype: Any) -> NDArray:
    """A file as an array that reads it where it is looked at."""
    file.flush()
    return np.memmap(file, dtype, "r") if file.tell() else np.zeros(0, dtype)


def _first_again(trace: Index) -> InputError | None:
    """An error about the first session that comes back, if one does.

    Runs of one session have one hash. Hashes are looked through range by range, and the sessions of
    equal ones looked up.
    """
    count = len(trace.hashes)
    ranges = -(-count // _RANGE)
    pairs = np.zeros((0, 2), np.int64)
    for number in range(ranges):
        among = np.concatenate([
            at + np.flatnonzero((trace.hashes[at : at + _RANGE] >> 32) * ranges >> 32 == number)
            for at in range(0, count, _RANGE)
        ])  # fmt: skip
        values = trace.hashes[among]
        order = np.argsort(values, kind="stable")
        same = np.flatnonzero(values[order[1:]] == values[order[:-1]])
        found = np.stack([among[order[same]], among[order[same + 1]]], axis=1)
        pairs = np.concatenate([pairs, found])
        pairs = pairs[np.argsort(pairs[:, 1], kind="stable")[:_SUSPECTS]]
    if not len(pairs):
        return None
    runs = np.unique(pairs)
    rows = [int(trace.lengths[:run].sum()) for run in runs]
    data, first = parquet.dataset(trace.files), dict[str, int]()
    bounds = [(row, row + 1) for row in rows]
    for row, found in zip(rows, parquet.windows(data, ["session_id"], bounds), strict=True):
        table = Table(trace.name, trace.files, found, False, begin=row)
        session = table.names("session_id")[0].as_py()
        if session in first:
            before = parquet.place(trace.files, first[session])
            told = f"session {shown(session)} once more, which began at {before}"
            mend = "sort the file by session_id and turn"
            return table.fault(0, "session_id", "its rows side by side", mend, told)
        first[session] = row
    return None
