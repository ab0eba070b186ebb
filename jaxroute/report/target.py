"""A directory of results that is written whole or not at all, and replaces nothing but results."""

import json
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from jaxroute.errors import InputError
from jaxroute.load.messages import input_error

RECORD = "run.json"
"""Written last; marks a directory as one of ours."""

PAGE, FIGURES = "report.html", "figures"
"""What a report adds to a result; gone with the result it is of."""

_unfinished: set[Path] = set()


@contextmanager
def whole_directory(directory: Path, names: Collection[str]) -> Iterator[Path]:
    """A place to write the files `names` to, which appear in `directory` once all are written.

    It is made at once, so that a directory that cannot be written is refused before any work. An
    earlier result in `directory` is replaced file by file, its record first removed and the new one
    moved last, and those of its files that were not written again are removed, and so is its
    report. A mount point, a link to a directory and the current directory serve as well.

    Raises:
      InputError: if there is something there that is no earlier result, or it cannot be written.
    """
    target = _resolved(directory)
    try:
        _check(directory, target, names)
        missing = [parent for parent in target.parents if not parent.exists()]
        target.parent.mkdir(parents=True, exist_ok=True)
        place = target if target.exists() else target.parent
        fresh = Path(tempfile.mkdtemp(prefix=".jaxroute-", dir=place))
    except OSError as error:
        reason = error.strerror or str(error)
        raise input_error(directory, "", reason, "a directory that can be written") from error
    _unfinished.add(fresh)
    done = False
    try:
        yield fresh
        _move(fresh, target, names)
        done = True
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
        _unfinished.discard(fresh)
        for parent in [] if done else missing:
            if not any(parent.iterdir()):
                parent.rmdir()


def discard_unfinished() -> None:
    """Removes what an interrupted `whole_directory` has written so far."""
    for fresh in _unfinished:
        shutil.rmtree(fresh, ignore_errors=True)


def _resolved(directory: Path) -> Path:
    try:
        return directory.resolve()
    except (OSError, RuntimeError) as error:
        raise input_error(directory, "", str(error), "a directory") from error


def _check(directory: Path, target: Path, names: Collection[str]) -> None:
    if not target.exists():
        return
    if not target.is_dir():
        raise input_error(directory, "", "a file", "a directory", "give another --out")
    known = {*names, PAGE, *([FIGURES] if holds_figures(target / FIGURES) else [])}
    strange = sorted({entry.name for entry in target.iterdir()} - known)
    earlier = _is_record(target / RECORD)
    if strange or not (earlier or not any(target.iterdir())):
        found = f"{strange[0]!r} in it" if strange else f"files and no {RECORD} of ours"
        expected = "an empty directory, or an earlier result of this command and nothing else"
        raise input_error(directory, "", found, expected, "give another --out")


def holds_figures(place: Path) -> bool:
    """Whether a place is a directory of figures and of nothing else."""
    return place.is_dir() and all(each.suffix == ".svg" for each in place.iterdir())


def _is_record(file: Path) -> bool:
    try:
        return "results_version" in json.loads(file.read_text())
    except (OSError, ValueError, TypeError):
        return False


def _move(fresh: Path, target: Path, names: Collection[str]) -> None:
    fresh.chmod(0o755)
    try:
        if not target.exists():
            fresh.rename(target)
            return
        (target / RECORD).unlink(missing_ok=True)
        (target / PAGE).unlink(missing_ok=True)
        if holds_figures(target / FIGURES):
            shutil.rmtree(target / FIGURES)
        for name in set(names) - {file.name for file in fresh.iterdir()}:
            (target / name).unlink(missing_ok=True)
        for file in sorted(fresh.iterdir(), key=lambda file: file.name == RECORD):
            os.replace(file, target / file.name)
    except OSError as error:
        raise InputError(
            f"{target}: {error.strerror or error}, while moving the results"
        ) from error
