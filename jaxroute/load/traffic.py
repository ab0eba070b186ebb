"""What a study file says of traffic, and of the replicas that serve it."""

from typing import Annotated

from pydantic import Field, PlainValidator, model_validator

from jaxroute.load.messages import shown
from jaxroute.load.toml import Section, fault
from jaxroute.load.values import AboveZero, Finite, Switch

AUTO, OTHERS = "auto", "others"


def _count(value: object, key: list[str | int]) -> float:
    whole = isinstance(value, int | float) and not isinstance(value, bool) and value >= 1
    if not (whole and (value == float("inf") or value % 1 == 0)):  # type: ignore[operator]
        raise fault(key, shown(value), "a whole number of replicas, 1 or more, or inf")
    return float(value)  # type: ignore[arg-type]


def _replicas(value: object) -> str | float | dict[str, float]:
    """A rule, a number of each deployment, or numbers by the name of a deployment."""
    if value == AUTO:
        return AUTO
    if isinstance(value, dict):
        return {name: _count(each, [name]) for name, each in value.items()}
    if isinstance(value, str):
        raise fault([], shown(value), "'auto', a number, or a table of numbers by deployment")
    return _count(value, [])


class LoadConfig(Section):
    """The traffic that a trace stands for, and the fleet's replicas."""

    arrival_rate: AboveZero
    replicas: Annotated[str | float | dict[str, float], PlainValidator(_replicas)] = AUTO
    peak_utilisation: Annotated[Finite, Field(gt=0, lt=1)] = 0.8
    batch: Switch = True
    idle: Switch = True
    damping: Annotated[Finite, Field(gt=0, le=1)] = 0.7
    rounds: Annotated[int, Field(strict=True, ge=2, le=1000)] = 24

    @model_validator(mode="after")
    def _goes_together(self) -> "LoadConfig":
        given = self.replicas
        counts = given.values() if isinstance(given, dict) else [given]
        if self.idle and float("inf") in counts:
            raise fault(["replicas"], "inf", "a finite number, or idle = false beside it")
        if given != AUTO and "peak_utilisation" in self.model_fields_set:
            raise fault(["peak_utilisation"], "it beside replicas", "replicas = 'auto', or neither")
        return self
