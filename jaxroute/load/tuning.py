"""What a study file says of tuning: which numbers of a policy, between what ends, and how."""

from typing import Annotated

from pydantic import AfterValidator, Field

from jaxroute.load.space import Range
from jaxroute.load.toml import Section, fault
from jaxroute.load.values import GATE_FEATURES, AboveZero, AtLeastZero, Name, Share

GATE = {
    "gate_strength": Range(low=0.05, high=5.0, log=True),
    "gate_bias": Range(low=-6.0, high=6.0),
    **{f"gate_weights[{n}]": Range(low=-3.0, high=3.0) for n in range(GATE_FEATURES)},
    "hysteresis": Range(low=0.0, high=0.3),
}
"""The gate: how a session is kept where its cache is."""


def _not_empty(space: dict[str, Range]) -> dict[str, Range]:
    if not space:
        raise fault([], "an empty table", "a field of the policy, or several")
    return space


def _falling(ends: tuple[float, float]) -> tuple[float, float]:
    if ends[1] > ends[0]:
        raise fault([1], f"{ends[1]:g}", f"at most the first, {ends[0]:g}")
    return ends


Part = Annotated[float, Field(strict=True, gt=0, lt=1)]
Count = Annotated[int, Field(strict=True, ge=1, le=2**16)]


class TuneConfig(Section):
    """What is tuned, and how (`jaxroute.tune`)."""

    policy: Name = "carbon_router"
    space: Annotated[dict[Name, Range], AfterValidator(_not_empty)] = GATE
    starts: Count = 8
    steps: Count = 60
    learning_rate: AboveZero = 0.05
    temperature: Annotated[tuple[AboveZero, AboveZero], AfterValidator(_falling)] = (0.1, 0.01)
    quality_price_g: AtLeastZero = 0.0
    latency_price_g_per_s: AtLeastZero = 0.0
    least_quality: Share | None = None
    held_out: Part = 0.5
