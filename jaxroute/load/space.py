"""What a study file says of a sweep: which settings of a policy are to be replayed."""

from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    model_validator,
)

from jaxroute.load.toml import Section, fault
from jaxroute.load.values import Finite, Name, Source

MOST_SETTINGS = 2**20
"""Of one sweep; a grid of many axes soon asks for more than anyone meant."""


class Range(Section):
    """Every number from `low` to `high`, evenly or, with `log`, evenly in the logarithm."""

    low: Finite
    high: Finite
    log: Annotated[bool, Field(strict=True)] = False

    @model_validator(mode="after")
    def _refuse_empty(self) -> "Range":
        if self.high <= self.low:
            raise fault(["high"], f"{self.high:g}", f"a number above low, {self.low:g}")
        if self.log and self.low <= 0:
            raise fault(["low"], f"{self.low:g}", "a number > 0, as log is true")
        return self


def _number(value: object) -> object:
    return float(value) if isinstance(value, bool | int) else value


def _some(values: tuple[float, ...]) -> tuple[float, ...]:
    if not values:
        raise fault([], "an empty list", "at least one value")
    return values


Value = Annotated[float, BeforeValidator(_number), Field(strict=True)]
Values = Annotated[tuple[Value, ...], AfterValidator(_some)]
Axis = Annotated[
    Annotated[Range, Tag("[range]")] | Annotated[Values, Tag("[values]")],
    Discriminator(lambda axis: "[range]" if isinstance(axis, dict | Range) else "[values]"),
]


def _not_empty(space: dict[str, Any]) -> dict[str, Any]:
    if not space:
        raise fault([], "an empty table", "a field of the policy, or several")
    return space


class SweepConfig(Section):
    """Settings: what differs from a policy, by a grid, drawn, or row by row of a table.

    `samples` is the number of settings drawn and, of a grid, that of the points of each range.
    """

    policy: Name = "carbon_router"
    method: Literal["grid", "random", "sobol"] = "grid"
    samples: Annotated[int, Field(strict=True, ge=1, le=MOST_SETTINGS)] | None = None
    space: Annotated[dict[Name, Axis], AfterValidator(_not_empty)] | None = None
    table: Source | None = None

    @model_validator(mode="after")
    def _refuse_contradictions(self) -> "SweepConfig":
        if (self.space is None) == (self.table is None):
            found = "neither" if self.space is None else "both"
            raise fault(["space"], f"{found} of space and table", "one of them")
        ranged = [name for name, axis in (self.space or {}).items() if isinstance(axis, Range)]
        if self.samples is None and self.space and (self.method != "grid" or ranged):
            of = f"method {self.method!r}" if self.method != "grid" else f"the range {ranged[0]!r}"
            raise fault(["samples"], "nothing", f"a number of samples, for {of}")
        return self
