"""A long run's directory: a plan, and a part for each piece of work as soon as it is done."""

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import pandas as pd

from jaxroute.load.messages import input_error, shown

PLAN, PARTS, NOTES = "plan.json", "parts", "notes.json"

SETTLED = "settled"
"""Key of a plan that is not compared."""

_ABSENT = object()


@dataclasses.dataclass(frozen=True)
class Parts:
    """Parts 0, 1, 2, … of a run; each is written whole or not at all, and never changed.

    Attributes:
      directory: of the run.
      settled: what its first start settled for all that go on with it.
    """

    directory: Path
    settled: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @classmethod
    def open(
        cls,
        directory: str | Path,
        plan: Mapping[str, Any],
        settle: Callable[[], Mapping[str, Any]] = dict,
    ) -> Self:
        """Begins a run, or goes on with one of the same plan.

        Args:
          directory: of the run.
          plan: what has to be the same whenever the run goes on; as JSON holds it.
          settle: what is to be settled once, at the first start, such as by the memory then free.

        Raises:
          InputError: if the directory holds another plan's run, or something else; or cannot be
            written.
        """
        target = Path(directory)
        plan = json.loads(json.dumps(plan))
        try:
            if (target / PLAN).is_file():
                known = _known(target / PLAN)
                settled = known.pop(SETTLED, {})
                _same(directory, known, plan)
            else:
                strange = _strange(target)
                if strange:
                    expected = "an empty or new directory, or an earlier run's"
                    raise input_error(directory, "", strange, expected, "give another --out")
                settled = dict(settle())
                target.mkdir(parents=True, exist_ok=True)
                text = json.dumps({**plan, SETTLED: settled}, indent=2, sort_keys=True)
                write_whole(target / PLAN, f"{text}\n")
            (target / PARTS).mkdir(exist_ok=True)
            for unfinished in (target / PARTS).glob(".*"):
                shutil.rmtree(unfinished)
        except OSError as error:
            reason = error.strerror or str(error)
            raise input_error(directory, "", reason, "a directory that can be written") from error
        return cls(target, settled)

    def _place(self, number: int) -> Path:
        return self.directory / PARTS / f"{number:05d}"

    def __contains__(self, number: int) -> bool:
        return self._place(number).is_dir()

    def done(self) -> list[int]:
        """The numbers of the parts that are there."""
        return sorted(int(place.name) for place in (self.directory / PARTS).glob("[0-9]*"))

    def discard_if_empty(self) -> None:
        """Leaves nothing of a run that failed before its first part was done."""
        if not any((self.directory / PARTS).iterdir()):
            (self.directory / PARTS).rmdir()
            (self.directory / PLAN).unlink()
            if not any(self.directory.iterdir()):
                self.directory.rmdir()

    def add(self, number: int, tables: Mapping[str, pd.DataFrame], notes: list[str]) -> None:
        """Keeps a part's tables and notes."""
        place = self._place(number)
        fresh = place.with_name(f".{place.name}")
        try:
            fresh.mkdir()
        except FileExistsError as error:
            expected = "the directory to itself"
            raise input_error(self.directory, "", "another run's work", expected) from error
        for name, table in tables.items():
            table.to_parquet(fresh / f"{name}.parquet", index=False)
        (fresh / NOTES).write_text(json.dumps({"tables": sorted(tables), "notes": notes}))
        os.replace(fresh, place)

    def read(self, number: int) -> tuple[dict[str, pd.DataFrame], list[str]]:
        """A part's tables by name, and its notes."""
        place = self._place(number)
        try:
            notes = json.loads((place / NOTES).read_text())
            files = sorted(place.glob("*.parquet"))
            tables = {file.stem: pd.read_parquet(file) for file in files}
            if set(tables) != set(notes["tables"]):
                raise ValueError("a table is missing")
        except (OSError, ValueError, KeyError, TypeError) as error:
            found, expected = f"a damaged part ({error})", "the files as they were written"
            raise input_error(
                place, "", found, expected, "delete the folder and run again"
            ) from error
        return tables, notes["notes"]


def _known(file: Path) -> dict[str, Any]:
    """The plan of an earlier run."""
    try:
        return dict(json.loads(file.read_text()))
    except (ValueError, TypeError) as error:
        expected = "the plan as it was written"
        raise input_error(file, "", str(error), expected, "give another --out") from error


def _strange(target: Path) -> str:
    """What stands in the way of a new run at a place, in words.

    Nothing if it is empty, or was left by a first start that was killed.
    """
    if not target.exists():
        return ""
    if not target.is_dir():
        return "a file"
    others = sorted({entry.name for entry in target.iterdir()} - {f".{PLAN}"})
    return f"{others[0]!r} in it" if others else ""


def differences(old: Any, new: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Keys at which two JSON values differ, with both values there.

    >>> list(differences({"a": [1, 2], "b": 3}, {"a": [1, 4], "b": 3}))
    [('a[1]', 2, 4)]
    """
    if isinstance(old, dict) and isinstance(new, dict):
        for name in dict.fromkeys((*new, *old)):
            inside = f"{key}.{name}".lstrip(".")
            yield from differences(old.get(name, _ABSENT), new.get(name, _ABSENT), inside)
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        for n, pair in enumerate(zip(old, new, strict=True)):
            yield from differences(*pair, f"{key}[{n}]")
    elif old != new:
        yield key, old, new


def _same(directory: str | Path, known: Any, plan: Any) -> None:
    found = list(differences(known, plan))
    if found:
        key, was, now = found[0]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise input_error(
            directory, PLAN,
            f"another study, or inputs that changed: {key} was {_told(was)} and is now "
            f"{_told(now)}{more}",
            "this study and these inputs", "give another --out, or delete it",
        )  # fmt: skip


def _told(value: Any) -> str:
    if isinstance(value, list | dict):
        return f"{len(value)} entries"
    return "absent" if value is _ABSENT else shown(value)


def write_whole(file: Path, text: str) -> None:
    """Writes a file so that it is there with all of its text, or as it was before."""
    fresh = file.with_name(f".{file.name}")
    fresh.write_text(text)
    os.replace(fresh, file)
