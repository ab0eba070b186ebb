"""Files of rows that users add to the fleet's tables: TOML, or CSV.

A TOML file holds `[[model]]`, `[[gpu]]`, `[[profile]]`, `[[decode]]` and `[[region]]` tables. A CSV
file holds rows of one kind, told by its header: `model` and `gpu` are of a profile, or with `batch`
and without columns of prefill of decoding; else `model`, `gpu` or `region` names the kind.
"""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from jaxroute.errors import InputError
from jaxroute.load import delimited
from jaxroute.load.files import resolve
from jaxroute.load.messages import input_error
from jaxroute.load.own_rows import DecodeRow, GpuRow, ModelRow, OwnRows, ProfileRow, RegionRow, Row
from jaxroute.load.table import read_table, require
from jaxroute.load.toml import read_toml, validate

__all__ = ["read_rows"]

MOST_BYTES = 2**22
"""Of a file of a fleet; a thousand rows take a fiftieth of it."""

KINDS: dict[str, type[Row]] = dict(
    zip(OwnRows.model_fields, (ModelRow, GpuRow, ProfileRow, DecodeRow, RegionRow), strict=True)
)


def read_rows(path: str | Path) -> OwnRows:
    """Reads a file of them: TOML if its name ends so, else CSV.

    Raises:
      InputError: naming the file, the key (`profile[0].batch`) or the row, what was found and what
        was expected.
    """
    file = resolve(path)
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            head = stream.read(4)
    except OSError as error:
        raise input_error(path, "", str(error), "a readable file") from error
    packed = head.startswith(b"\x1f\x8b") or head == b"PAR1"
    if size > MOST_BYTES or packed:
        found = "a gzipped or a Parquet file" if packed else f"{size:,} bytes"
        raise input_error(path, "", found, f"TOML or CSV of at most {MOST_BYTES:,} bytes")
    if file.suffix.lower() == ".toml":
        return read_toml(path, OwnRows)
    return _csv(path, file)


def _csv(path: str | Path, file: Path) -> OwnRows:
    def choose(header: Sequence[str]) -> list[str]:
        require(str(path), header, (), header)  # no column twice
        _kind(path, header)
        return list(header)

    table = read_table(path, choose)
    kind = _kind(path, table.data.column_names)
    row = KINDS[kind]
    rows = []
    for index, cells in enumerate(table.data.to_pylist()):
        values = {name: _value(row, name, text) for name, text in cells.items() if text is not None}
        try:
            rows.append(validate(values, row, str(path)))
        except InputError:  # once more, with its line
            validate(values, row, f"{path}: row {delimited.line(file, index)}")
    return validate({kind: tuple(rows)}, OwnRows, str(path))


def _kind(path: str | Path, header: Sequence[str]) -> str:
    if {"model", "gpu"} <= set(header):
        prefills = any(name.startswith("prefill") for name in header)
        return "decode" if "batch" in header and not prefills else "profile"
    for kind in ("model", "gpu", "region"):
        if kind in header:
            return kind
    found = f"columns {', '.join(header) or 'none'}"[:200]
    mend = "or end the name of a TOML file in .toml"
    raise input_error(path, "row 1", found, "a column model, gpu or region", mend)


def _value(row: type[Row], name: str, text: str) -> object:
    """A cell as TOML would have it: a number or a truth where one is asked for and is there."""
    field = row.model_fields.get(name)
    if field is None or field.annotation is str:
        return text
    for kind in (int, float):
        with contextlib.suppress(ValueError):
            return kind(text)
    return {"true": True, "false": False}.get(text.lower(), text)
