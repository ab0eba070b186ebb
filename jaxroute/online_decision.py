"""What a live router tells its gateway."""

import dataclasses
from typing import NamedTuple

from jaxroute import gate
from jaxroute.online_rule import Choice, Query, Rule
from jaxroute.online_state import State


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """Where a turn is to be served.

    Attributes:
      model, gpu, region: names; None where no deployment holds the context: the turn is unserved.
      deployment: the three joined by `|`; what `OnlineRouter.observe` takes.
      expected_carbon_g: operational and embodied gCO2e, with the predicted output.
      why: the verdict on a move, in the words of `jaxroute.explain`.
    """

    model: str | None
    gpu: str | None
    region: str | None
    deployment: str | None
    expected_carbon_g: float
    why: str


class CacheReport(NamedTuple):
    """How the cached tokens that a deployment reported compare with those expected of it.

    Attributes:
      turns: served there with a report.
      expected_tokens, reported_tokens: sums over these turns.
    """

    turns: int
    expected_tokens: float
    reported_tokens: float


def decision_of(
    rule: Rule, state: State, query: Query, choice: Choice, parts: tuple[str, str, str] | None
) -> Decision:
    """A choice in words; `parts` are the names of its deployment, None where it is unserved."""
    p = rule.params
    why = gate.verdict(
        choice.deployment,
        last=state.last,
        wished=choice.wished,
        asked=choice.asked,
        reasons=choice.reasons,
        has_gate=p.gate_strength > 0 or p.hysteresis > 0 or p.always_stay > 0,
    )
    if parts is None:
        needed = query.prefix_tokens + query.new_tokens + query.predicted_output_tokens
        longest = rule.max_context_tokens.max()
        why += f": {needed:,.0f} tokens of context, the longest limit is {longest:,.0f}"
    model, gpu, region = parts or (None, None, None)
    return Decision(
        model=model,
        gpu=gpu,
        region=region,
        deployment="|".join(parts) if parts else None,
        expected_carbon_g=choice.carbon_g,
        why=why,
    )
