"""What the values of a study file may be: types that check them as they are read."""

import os
from datetime import UTC, date, datetime, time
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, ValidationInfo

from jaxroute.load.files import BUILTIN
from jaxroute.load.messages import shown
from jaxroute.load.toml import fault

GATE_FEATURES = 8


def distinct(entries: tuple[Any, ...]) -> tuple[Any, ...]:
    """Refuses an empty list, and a name (or the label of a section) that was there before."""
    if not entries:
        raise fault([], "an empty list", "at least one entry")
    names = [getattr(entry, "label", entry) for entry in entries]
    for index, name in enumerate(names):
        if name in names[:index]:
            raise fault([index], f"{name!r} once more", "each name once")
    return entries


def _not_empty(table: dict[str, Any]) -> dict[str, Any]:
    if not table:
        raise fault([], "an empty table", "at least one entry")
    return table


def _one_per_feature(weights: tuple[float, ...]) -> tuple[float, ...]:
    if len(weights) != GATE_FEATURES:
        raise fault([], f"{len(weights)} numbers", f"{GATE_FEATURES}, one for each gate feature")
    return weights


def _moment(value: object) -> datetime:
    """A date and time in UTC; without an offset it is taken as UTC."""
    parsed = value
    if isinstance(value, str):
        try:
            parsed = datetime.fromisoformat(value)
        except ValueError:
            parsed = None
    if isinstance(parsed, date) and not isinstance(parsed, datetime):
        parsed = datetime.combine(parsed, time())
    if not (isinstance(parsed, datetime) and 1980 <= parsed.year < 2200):
        raise fault([], shown(value), "a date and time such as 2023-06-01T00:00:00Z")
    return parsed.replace(tzinfo=parsed.tzinfo or UTC).astimezone(UTC)


def _absolute(path: str, info: ValidationInfo) -> str:
    """A path relative to the study file as an absolute one; `builtin:` names stay."""
    folder = (info.context or {}).get("folder")
    if folder is None or path.startswith(BUILTIN):
        return path
    return os.path.abspath(os.path.join(folder, path))


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _one_or_more(value: object, info: ValidationInfo) -> str | tuple[str, ...]:
    """A path, or several, as `_absolute` has them; a list of one is that one."""
    several = [value] if isinstance(value, str) else value
    if not isinstance(several, list | tuple):
        raise fault([], shown(value), "a path, or a list of paths")
    for index, path in enumerate(several):
        key = [] if isinstance(value, str) else [index]
        if not isinstance(path, str):
            raise fault(key, shown(path), "a text")
        if not path:
            raise fault(key, "''", "a text that is not empty")
    paths = distinct(tuple(_absolute(path, info) for path in several))
    return paths[0] if len(paths) == 1 else paths


def _own_or_named(tokenizer: str, info: ValidationInfo) -> str:
    """A tokenizer's JSON file relative to the study file as an absolute path; names stay."""
    return _absolute(tokenizer, info) if tokenizer.endswith(".json") else tokenizer


def _far_is_infinite(value: float) -> float:
    """Infinity for what float32 cannot hold."""
    return value if value < 1e30 else float("inf")


def _number_of(value: object) -> object:
    return float(value) if isinstance(value, bool) else value


def _zero_or_one(value: float) -> float:
    if value not in (0, 1):
        raise fault([], shown(value), "0 or 1")
    return value


def _prediction(value: object) -> float | str:
    """A number of tokens, or the name of a rule."""
    if value in ("exact", "noisy"):
        return str(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not (is_number and 0 <= value <= LARGEST):  # type: ignore[operator]
        raise fault([], shown(value), "a number >= 0, 'exact' or 'noisy'")
    return float(value)  # type: ignore[arg-type]


Finite = Annotated[float, Field(strict=True, allow_inf_nan=False)]
LARGEST = 1e9
"""Beyond it sums of prices leave float32's range, and no price in grams means anything."""

AtLeastZero = Annotated[Finite, Field(ge=0, le=LARGEST)]
AboveZero = Annotated[Finite, Field(gt=0, le=LARGEST)]
AnySign = Annotated[Finite, Field(ge=-LARGEST, le=LARGEST)]
Spread = Annotated[Finite, Field(ge=0, le=10)]
Share = Annotated[Finite, Field(ge=0, le=1)]
Proportion = Annotated[Finite, Field(ge=0, lt=1)]
Tokens = Annotated[Finite, Field(ge=1, le=LARGEST)]
Prediction = Annotated[float | str, PlainValidator(_prediction)]
Switch = Annotated[bool, Field(strict=True)]
MaybeInfinite = Annotated[float, Field(strict=True, ge=0), AfterValidator(_far_is_infinite)]
Horizon = Annotated[float, Field(strict=True, ge=1e-3), AfterValidator(_far_is_infinite)]
Flag = Annotated[Share, BeforeValidator(_number_of)]
Whole = Annotated[Flag, AfterValidator(_zero_or_one)]
Name = Annotated[str, Field(min_length=1)]
Names = Annotated[tuple[Name, ...], AfterValidator(distinct)]
Weights = Annotated[tuple[AnySign, ...], AfterValidator(_one_per_feature)]
Moment = Annotated[datetime, BeforeValidator(_moment)]
Source = Annotated[Name, AfterValidator(_absolute)]
Sources = Annotated[tuple[Source, ...], BeforeValidator(_listed), AfterValidator(distinct)]
OneOrMore = Annotated[str | tuple[str, ...], BeforeValidator(_one_or_more)]
Tokenizer = Annotated[Name, AfterValidator(_own_or_named)]
Variants = Annotated[dict[Name, dict[Name, Any]], AfterValidator(_not_empty)]
