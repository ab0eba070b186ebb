"""A long run's directory: a plan, and a part for each piece of work as soon as it is done."""

import dataclasses
import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import pandas as pd

from jaxroute.load.messages import input_error

PLAN, PARTS, NOTES = "plan.json", "parts", "notes.json"


@dataclasses.dataclass(frozen=True)
class Parts:
    """Parts 0, 1, 2, … of a run; each is written whole or not at all, and never changed.

    Attributes:
      directory: of the run.
    """

    directory: Path

    @classmethod
    def open(cls, directory: str | Path, plan: Mapping[str, Any]) -> Self:
        """Begins a run, or goes on with one of the same plan.

        Raises:
          InputError: if the directory holds another plan's run, or something else; or cannot be
            written.
        """
        target = Path(directory)
        text = f"{json.dumps(plan, indent=2, sort_keys=True)}\n"
        try:
            known = (target / PLAN).read_text() if (target / PLAN).is_file() else None
            strange = _strange(target) if known is None else ""
            if strange:
                expected = "an empty or new directory, or an earlier run's"
                raise input_error(directory, "", strange, expected, "give another --out")
            if known is not None and known != text:
                expected = "this study and these inputs"
                raise input_error(
                    directory, PLAN, "another study, or inputs that changed", expected,
                    "give another --out, or delete it",
                )  # fmt: skip
            (target / PARTS).mkdir(parents=True, exist_ok=True)
            for unfinished in (target / PARTS).glob(".*"):
                shutil.rmtree(unfinished)
            write_whole(target / PLAN, text)
        except OSError as error:
            reason = error.strerror or str(error)
            raise input_error(directory, "", reason, "a directory that can be written") from error
        return cls(target)

    def _place(self, number: int) -> Path:
        return self.directory / PARTS / f"{number:05d}"

    def __contains__(self, number: int) -> bool:
        return self._place(number).is_dir()

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
        fresh.mkdir()
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


def _strange(target: Path) -> str:
    """What stands in the way of a new run at a place, in words."""
    if not target.exists():
        return ""
    if not target.is_dir():
        return "a file"
    return next((f"{entry.name!r} in it" for entry in sorted(target.iterdir())), "")


def write_whole(file: Path, text: str) -> None:
    """Writes a file so that it is there with all of its text, or as it was before."""
    fresh = file.with_name(f".{file.name}")
    fresh.write_text(text)
    os.replace(fresh, file)
