"""Where an input lies: a path of the user's, or `builtin:` for a table inside the package."""

import hashlib
import os
from importlib import resources
from pathlib import Path

from jaxroute.load.messages import input_error, known_names, shown

BUILTIN = "builtin:"

BUILTIN_FILES = {
    "sharegpt": "sharegpt.csv.gz",
    "typical-day-2023": "typical_day_2023.csv",
}
"""File of each `builtin:` name in `jaxroute/data`."""


PROSE = (".md", ".txt", ".rst", ".pdf")
"""Suffixes of files that tell of the data beside them."""


def package_file(name: str) -> Path:
    """Path of a table in `jaxroute/data`; its compressed form where only that is there."""
    path = Path(str(resources.files("jaxroute") / "data" / name))
    packed = path.with_name(f"{name}.gz")
    return packed if packed.exists() and not path.exists() else path


def resolve(path: str | Path) -> Path:
    """The file that `path` means.

    Args:
      path: a path, or `builtin:` and a name of `BUILTIN_FILES`.

    Raises:
      InputError: if there is no such file, or no such builtin.
    """
    text = os.fspath(path)
    if text.startswith(BUILTIN):
        name = text.removeprefix(BUILTIN)
        if name not in BUILTIN_FILES:
            mend = known_names(name, BUILTIN_FILES)
            raise input_error(text, "", shown(name), "the name of a bundled table", mend)
        return package_file(BUILTIN_FILES[name])
    try:
        file = Path(text)
        kind = "" if file.is_file() else "no plain file" if file.exists() else "no file"
        kind = "a directory" if file.is_dir() else kind
    except (OSError, ValueError) as error:  # too long, or with a null character
        kind = str(error)
    if kind:
        raise input_error(text, "", kind, "a file", "check the path")
    return Path(text)


def parts(path: str | Path) -> list[Path]:
    """The file that `path` means, or the Parquet files of a directory, in the order of their names.

    Args:
      path: as for `resolve`, or a directory.

    Raises:
      InputError: if there is no such file, or the directory holds none.
    """
    if not os.path.isdir(path):
        return [resolve(path)]
    found = sorted(Path(path).rglob("*.parquet"))
    if not found:
        raise input_error(path, "", "a directory without *.parquet", "a file, or some in it")
    return found


def listed(path: str | Path) -> list[str]:
    """A path; in place of a directory without Parquet, the files in it in order of their names.

    Hidden files are left out, and those that are `PROSE` by their names.
    """
    try:
        if not os.path.isdir(path) or next(Path(path).rglob("*.parquet"), None) is not None:
            return [os.fspath(path)]
        found = [each for each in Path(path).iterdir() if each.is_file() and each.name[0] != "."]
    except OSError as error:
        raise input_error(path, "", str(error), "a readable directory") from error
    data = [each for each in found if each.suffix.lower() not in PROSE]
    return [str(each) for each in sorted(data)] or [os.fspath(path)]


def left_out(path: str | Path) -> list[str]:
    """Names of the files in a directory that `listed` leaves out as prose, such as a README.txt."""
    if not os.path.isdir(path) or listed(path) == [os.fspath(path)]:
        return []
    every = sorted(Path(path).iterdir())
    return [each.name for each in every if each.name[0] != "." and each.suffix.lower() in PROSE]


def sha256(path: str | Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal, for the record of a run.

    That of a directory is of the names of its files and the SHA-256 of each.

    Args:
      path: as for `parts`.

    Raises:
      InputError: if there is no such file, or it cannot be read.
    """
    files = parts(path)
    try:
        digests = [_digest(file) for file in files]
    except OSError as error:
        raise input_error(path, "", str(error), "a readable file") from error
    if not os.path.isdir(path):
        return digests[0]
    names = (file.relative_to(path).as_posix() for file in files)
    listed = "".join(f"{digest} {name}\n" for digest, name in zip(digests, names, strict=True))
    return hashlib.sha256(listed.encode()).hexdigest()


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
