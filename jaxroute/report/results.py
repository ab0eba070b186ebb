"""What a command left in a directory, read back and checked."""

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from jaxroute.ablation import BASELINE
from jaxroute.config import BOUND_ROW
from jaxroute.load import delimited
from jaxroute.load.messages import input_error, shown
from jaxroute.load.unreadable import UNREADABLE
from jaxroute.report.kinds import KEYS, KINDS, LABELS, PARTS, SWEPT
from jaxroute.report.parts import PLAN
from jaxroute.report.target import RECORD

MOST_BYTES = 2**30
"""Of a table; none that a command writes comes near it."""

OF_SUMMARY = {"fit-gate": "gates", "sweep": "sweep", "capacity": "capacity"}
"""Tables that stand for a summary, by command."""

Names = tuple[str, ...]
UNBOUNDED = ("starts", "matched")
"""Tables that may hold infinite numbers."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Results:
    """What a command left.

    Attributes:
      directory: where.
      command: its name.
      record: of `run.json`.
      study: as resolved; of a grid, that of its first cell.
      baseline: the policy that savings are against.
      varied: of a study, the policies that it varies by their own tables.
      axes: of a study, what it varies, the seed apart.
      fields: of a sweep, what it swept.
      tables: by the name of their file.
    """

    directory: Path
    command: str
    record: Mapping[str, Any]
    study: Mapping[str, Any]
    baseline: str
    axes: tuple[str, ...]
    fields: tuple[str, ...]
    varied: tuple[str, ...]
    tables: Mapping[str, pd.DataFrame]

    @property
    def summary(self) -> pd.DataFrame:
        """One row a dataset, retention (of `capacity`, level of traffic) and policy, or setting."""
        return self.tables[OF_SUMMARY.get(self.command, "summary")]


def read_results(directory: str | Path) -> Results:
    """Reads what `compare`, `study`, `sweep`, `tune`, `fit-gate`, `ablate` or `capacity` left.

    Raises:
      InputError: if there is no such directory or no result in it, if it is of another version of
        results, or if a file is missing or damaged.
    """
    place = Path(directory)
    if not place.is_dir():
        found = "a file" if place.exists() else "nothing"
        raise input_error(directory, "", found, "a directory that a command wrote by --out")
    record = _record(place)
    kind = next((kind for kind in KINDS if kind.key in record), None)
    if (place / "fleet.csv").is_file():
        raise _not_a_result(place, "what fleet leaves, which has no report")
    if kind is None:
        raise _not_a_result(place / RECORD, "a record of none of the commands")
    study = _part(place / RECORD, record, "study", dict, {})
    axes: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    varied: tuple[str, ...] = ()
    if kind.command == "study":
        study, axes, varied = _of_study(place, record)
    if kind.command == "sweep":
        fields = tuple(_path(place / RECORD, study, ("sweep", "space")))
    baseline = _path(place / RECORD, study, ("baseline",), str)
    if kind.command == "ablate":
        baseline = BASELINE
    tables = {
        name: _csv(place / f"{name}.csv", columns, axes)
        for name, columns in {**kind.tables, **kind.optional}.items()
        if name in kind.tables or (place / f"{name}.csv").exists()
    }
    if kind.command == "sweep":
        tables["sweep"] = _parquet(place / "sweep.parquet", (*SWEPT[:3], *fields, *SWEPT[3:]))
    results = Results(
        directory=place,
        command=kind.command,
        record=record,
        study=study,
        baseline=baseline,
        axes=axes,
        fields=fields,
        varied=varied,
        tables=tables,
    )
    _check(place, results)
    return results


def _not_a_result(file: Path, found: str) -> Exception:
    expected = "what compare, study, sweep, tune, fit-gate, ablate or capacity leave"
    return input_error(file, "", found, expected, "give the directory of such a command's --out")


def _damaged(file: Path, found: str, place: str = "") -> Exception:
    expected = "the file as it was written"
    return input_error(file, place, found, expected, "run the command again")


def _json(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > MOST_BYTES // 16:
            raise _damaged(file, f"{file.stat().st_size:,} bytes")
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise _damaged(file, f"no JSON ({error})") from error
    if not isinstance(found, dict):
        raise _damaged(file, shown(found))
    return _cleaned(found)


def _record(place: Path) -> dict[str, Any]:
    from jaxroute import RESULTS_VERSION

    file = place / RECORD
    if not file.is_file():
        raise _not_a_result(place, f"no {RECORD} in it")
    record = _json(file)
    version = record.get("results_version")
    if version is None:
        raise _not_a_result(file, "no results_version")
    if version != RESULTS_VERSION:
        expected = f"{RESULTS_VERSION}, this version's"
        raise input_error(
            file, "results_version", shown(version), expected, "run the command again"
        )
    for name, kind in (("versions", dict), ("device", dict), ("inputs_sha256", dict)):
        _part(file, record, name, kind, {})
    _part(file, record, "notes", list, [])
    return record


def _part(file: Path, record: Mapping[str, Any], name: str, kind: type, default: Any) -> Any:
    found = record.get(name, default)
    if not isinstance(found, kind):
        raise _damaged(file, shown(found), name)
    return found


def _path(file: Path, values: Any, keys: Iterable[Any], kind: type = dict) -> Any:
    """What stands at keys one below another."""
    keys = list(keys)
    for key in keys:
        try:
            values = values[key]
        except (KeyError, IndexError, TypeError) as error:
            raise _damaged(file, "nothing", ".".join(map(str, keys))) from error
    if not isinstance(values, kind):
        raise _damaged(file, shown(values), ".".join(map(str, keys)))
    return values


def _of_study(place: Path, record: Mapping[str, Any]) -> tuple[dict[str, Any], Names, Names]:
    """The study of the first cell, the names of what varies, and the policies whose tables do."""
    first = _path(place / RECORD, record, ("cells", 0))
    axes = tuple(name for name in first if name not in ("dataset", "notes", "seed"))
    plan = _json(place / PLAN)
    study = _path(place / PLAN, plan, ("cells", 0, "study"))
    tables: dict[str, set[str]] = {}
    for cell in _path(place / PLAN, plan, ("cells",), list):
        own = _path(place / PLAN, cell, ("study",)).get("policy") or {}
        for name, table in own.items() if isinstance(own, dict) else ():
            tables.setdefault(name, set()).add(json.dumps(table, sort_keys=True))
    return study, axes, tuple(name for name, several in tables.items() if len(several) > 1)


_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def _cleaned(value: Any) -> Any:
    """A value without the characters that neither XML nor HTML can hold."""
    if isinstance(value, str):
        return _CONTROL.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(each) for key, each in value.items()}
    return [_cleaned(each) for each in value] if isinstance(value, list) else value


def _csv(file: Path, needed: tuple[str, ...], axes: tuple[str, ...]) -> pd.DataFrame:
    try:
        if file.stat().st_size > MOST_BYTES:
            raise _damaged(file, f"{file.stat().st_size:,} bytes")
        text = delimited.read(str(file), file, list).to_pandas().fillna("")
    except FileNotFoundError as error:
        raise _damaged(file, "no such file") from error
    except UNREADABLE as error:
        raise _damaged(file, str(error)) from error
    _has(file, text.columns, (*axes, *needed))
    labels = {*LABELS, *axes}
    return pd.DataFrame(
        {
            name: values.map(_cleaned).astype(object)
            if name in labels
            else _numbers(file, str(name), values)
            for name, values in text.items()
        }
    )


def _has(file: Path, columns: Iterable[str], needed: Iterable[str]) -> None:
    missing = [name for name in needed if name not in set(columns)]
    if missing:
        raise _damaged(file, f"no column {missing[0]!r}")


def _numbers(file: Path, name: str, values: pd.Series) -> pd.Series:
    filled = values.where(values != "", "nan")
    numbers = pd.to_numeric(filled, errors="coerce").astype(np.float64)
    bad = numbers.isna() & ~filled.str.lower().isin(["nan", "<na>"])
    if file.stem not in UNBOUNDED:
        bad |= np.isinf(numbers)
    if bad.any():
        row = int(bad.to_numpy().argmax())
        raise _damaged(file, shown(values.iloc[row]), f"line {row + 2}, column {name}")
    return numbers


def _parquet(file: Path, needed: tuple[str, ...]) -> pd.DataFrame:
    try:
        import pyarrow.parquet as pq

        _has(file, pq.read_schema(file).names, needed)
        table = pd.read_parquet(file, columns=list(needed))
    except FileNotFoundError as error:
        raise _damaged(file, "no such file") from error
    except (OSError, ValueError, pa.ArrowException) as error:
        raise _damaged(file, str(error)) from error
    try:
        return pd.DataFrame(
            {
                name: values.astype(str).map(_cleaned)
                if name in LABELS
                else values.astype(bool if name == "pareto" else np.float64)
                for name, values in table.items()
            }
        )
    except (TypeError, ValueError) as error:
        raise _damaged(file, str(error)) from error


def _check(place: Path, results: Results) -> None:
    """Refuses tables that cannot be of one run."""
    for name, table in results.tables.items():
        if table.empty and name != "reliability":
            raise _damaged(place / f"{name}.csv", "no rows")
    if results.command == "sweep":
        return
    rows = results.summary
    summary = place / f"{OF_SUMMARY.get(results.command, 'summary')}.csv"
    keys = [*results.axes, *(["seed"] if "seed" in rows else []), *KEYS]
    if results.command == "capacity":
        keys = ["dataset", "traffic_pct", "policy"]
    each = rows.groupby(keys[:-1], sort=False)["policy"].agg(set)
    without = each[~each.map(lambda names: results.baseline in names)]
    if len(without):
        raise _damaged(summary, f"no row of the baseline {results.baseline!r}")
    if results.command == "capacity":
        return
    total = rows[list(PARTS)].sum(axis=1, skipna=False)
    off = (total - rows["carbon_g"]).abs() > 1e-6 * rows["carbon_g"].abs() + 1e-9
    if off.any():
        row = int(off.to_numpy().argmax())
        found = f"parts of {total.iloc[row]:g} g of a carbon_g of {rows['carbon_g'].iloc[row]:g}"
        raise _damaged(summary, found, f"line {row + 2}")
    _same_rows(place / "by_length.csv", results.tables.get("by_length"), rows, keys)
    real = rows[rows["policy"] != BOUND_ROW]
    _same_rows(place / "served.csv", results.tables.get("served"), real, keys)
    _same_rows(place / "ablation.csv", results.tables.get("ablation"), rows, keys[:-1])
    if "starts" in results.tables and results.tables["starts"]["learned"].isna().all():
        raise _damaged(place / "starts.csv", "no number", "column learned")


def _same_rows(file: Path, table: pd.DataFrame | None, rows: pd.DataFrame, keys: list[str]) -> None:
    """Refuses a table that is of other comparisons than the summary."""
    if table is None:
        return
    if "seed" in keys:
        _has(file, table.columns, ["seed"])
    own, known = (set(map(tuple, each[keys].to_numpy(object))) for each in (table, rows))
    if own != known:
        odd = sorted(map(str, own ^ known))[0]
        raise _damaged(file, f"not the rows of summary.csv, for one {odd}")
