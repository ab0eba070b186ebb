"""TOML tables as frozen records, and the first error in them as one line."""

import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from jaxroute.errors import InputError
from jaxroute.load.files import resolve
from jaxroute.load.messages import input_error, known_names, shown

__all__ = ["Section", "fault", "read_toml", "refusal"]

_EXPECTED = {
    "missing": "a value: it is required",
    "float_type": "a number",
    "finite_number": "a finite number",
    "int_type": "a whole number",
    "bool_type": "true or false",
    "string_type": "a text",
    "string_too_short": "a text that is not empty",
    "tuple_type": "a list",
    "dict_type": "a table",
    "model_type": "a table",
    "greater_than": "a number > {gt:g}",
    "greater_than_equal": "a number >= {ge:g}",
    "less_than": "a number < {lt:.12g}",
    "less_than_equal": "a number <= {le:g}",
    "literal_error": "{expected}",
}


class Section(BaseModel):
    """A table whose keys are the fields of the class, and no others."""

    model_config = ConfigDict(extra="forbid", ser_json_inf_nan="strings", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _refuse_unknown_keys(cls, data: object) -> object:
        for key in data if isinstance(data, dict) else ():
            if key not in cls.model_fields:
                mend = known_names(key, cls.model_fields, "allowed")
                raise fault([key], "an unknown key", "an allowed one", mend)
        return data


S = TypeVar("S", bound=Section)


def fault(
    key: Sequence[str | int], found: str, expected: str, mend: str = ""
) -> PydanticCustomError:
    """What a validator raises: an error at `key`, relative to the section it is raised in."""
    context = {"key": tuple(key), "found": found, "expected": expected, "mend": mend}
    return PydanticCustomError("study", "{expected}", context)


def read_toml(path: str | Path, section: type[S], context: dict[str, Any] | None = None) -> S:
    """Reads a TOML file into a `section`.

    Args:
      path: the file.
      section: what the whole file is.
      context: for validators; the file's `folder` (absolute) is added.

    Raises:
      InputError: naming the file, the line or the key (such as `retention[1].ttl_s`), what was
        found and what was expected; if there are more errors, how many.
    """
    file = resolve(path)
    try:
        data = tomllib.loads(file.read_bytes().decode("utf-8-sig"))
    except tomllib.TOMLDecodeError as error:
        problem, _, place = str(error).rpartition(" (at ")
        raise input_error(path, place.rstrip(")"), f"a syntax error ({problem})", "TOML") from error
    except (OSError, ValueError, RecursionError) as error:
        raise input_error(path, "", str(error)[:200], "TOML in UTF-8") from error
    folder = file.absolute().parent
    return validate(data, section, str(path), {**(context or {}), "folder": folder})


def validate(
    data: dict[str, Any], section: type[S], source: str, context: dict[str, Any] | None = None
) -> S:
    """Checks values as a `section`; errors name `source` as the file they come from.

    Raises:
      InputError: as `read_toml`.
    """
    try:
        return section.model_validate(data, context=context)
    except ValidationError as error:
        raise _first(source, error.errors(include_url=False)) from error


def refusal(kind: Any, value: object) -> str | None:
    """What would have been right in place of a value that is not of a kind; None if it is.

    Args:
      kind: a type of `jaxroute.load.values`.
      value: of a key of that kind.

    >>> from jaxroute.load.values import Share
    >>> refusal(Share, 0.5), refusal(Share, 2.0)
    (None, 'a number <= 1')
    """
    try:
        TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        return _expected(error.errors(include_url=False)[0])
    return None


def _expected(error: ErrorDetails) -> str:
    return _EXPECTED.get(error["type"], error["msg"]).format(**error.get("ctx", {}))


def _first(file: str, errors: Sequence[ErrorDetails]) -> InputError:
    error = errors[0]
    key, context = [*error["loc"]], error.get("ctx", {})
    if isinstance(inner := context.get("error"), InputError):  # of another file
        return inner
    found = "nothing" if error["type"] == "missing" else shown(error["input"])
    expected, mend = _expected(error), ""
    if error["type"] == "study":
        key += context["key"]
        found, expected, mend = (context[part] for part in ("found", "expected", "mend"))
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return InputError(f"{input_error(file, _dotted(key), found, expected, mend)}{more}")


def _dotted(key: Sequence[str | int]) -> str:
    """A key as it would be written: `retention[1].ttl_s`."""
    # "[key]" tells of an error in a key, not in its value; other brackets are of a union's member.
    names = (part for part in key if not str(part).startswith("["))
    parts = (
        f"[{part}]"
        if isinstance(part, int)
        else f".{part if re.fullmatch(r'[A-Za-z0-9_-]+', part) else repr(part)}"
        for part in names
    )
    return "".join(parts).lstrip(".")
