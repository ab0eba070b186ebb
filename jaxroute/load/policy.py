"""What a study file says of a policy of the user's: a preset, and what differs from it."""

from typing import Annotated, Any

from pydantic import Discriminator, Tag

from jaxroute.load.toml import Section
from jaxroute.load.values import (
    AboveZero,
    AnySign,
    AtLeastZero,
    Flag,
    MaybeInfinite,
    Name,
    Names,
    Share,
    Tokens,
    Weights,
)

FLEET_LISTS = ("models", "gpus", "regions")


class PolicyConfig(Section):
    """A policy of the user's: a preset and what differs from it (see `RouterParams`)."""

    preset: Name
    carbon_weight: AtLeastZero | None = None
    embodied_weight: AtLeastZero | None = None
    latency_price_g_per_s: AtLeastZero | None = None
    quality_price_g: AtLeastZero | None = None
    switch_price_g: AtLeastZero | None = None
    intensity_price: AtLeastZero | None = None
    rtt_price_g_per_s: AtLeastZero | None = None
    size_price_g_per_b: AtLeastZero | None = None
    noise_price_g: AtLeastZero | None = None
    cache_knowledge: Share | None = None
    assumed_hit: Share | None = None
    wait_knowledge: Share | None = None
    quality_floor: Share | None = None
    quality_slack: MaybeInfinite | None = None
    ttft_slo_s: MaybeInfinite | None = None
    gate_strength: AtLeastZero | None = None
    gate_bias: AnySign | None = None
    gate_weights: Weights | None = None
    hysteresis: AtLeastZero | None = None
    always_stay: Flag | None = None
    expected_gap_s: AboveZero | None = None
    models: Names | None = None
    gpus: Names | None = None
    regions: Names | None = None

    def changes(self) -> dict[str, float | tuple[float, ...]]:
        """The fields of `RouterParams` that the table sets; masks (models, gpus, regions) apart."""
        other = {"preset", *FLEET_LISTS}
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return {k: v for k, v in values.items() if k not in other and v is not None}


class SessionPriceConfig(PolicyConfig):
    """One that differs from `session_price` (see `jaxroute.neighbours.SessionPriceParams`)."""

    switch_margin: AtLeastZero | None = None
    warmth_weight: AtLeastZero | None = None
    history_weight: AtLeastZero | None = None
    idle_timeout_s: MaybeInfinite | None = None


class PrefixAffinityConfig(PolicyConfig):
    """One that differs from `prefix_affinity` (see `jaxroute.neighbours.PrefixAffinityParams`)."""

    match_share: Share | None = None
    escape_ttft_s: MaybeInfinite | None = None


class PrimalDualConfig(PolicyConfig):
    """One that differs from `primal_dual` (see `jaxroute.neighbours.PrimalDualParams`)."""

    budget_g: AboveZero | None = None
    price_step: AtLeastZero | None = None
    window_turns: Tokens | None = None
    start_price: AtLeastZero | None = None


RULE_CONFIGS: dict[str, type[PolicyConfig]] = {
    "ski_rental": PolicyConfig,
    "session_price": SessionPriceConfig,
    "prefix_affinity": PrefixAffinityConfig,
    "primal_dual": PrimalDualConfig,
}
"""By the name of a rule beside the router's (`jaxroute.catalogue.RULES`): its keys."""


def _rule(policy: Any) -> str:
    preset = policy.get("preset") if isinstance(policy, dict) else getattr(policy, "preset", None)
    own = isinstance(preset, str) and RULE_CONFIGS.get(preset, PolicyConfig) is not PolicyConfig
    return f"[{preset}]" if own else "[router]"


OwnPolicy = Annotated[
    Annotated[PolicyConfig, Tag("[router]")]
    | Annotated[SessionPriceConfig, Tag("[session_price]")]
    | Annotated[PrefixAffinityConfig, Tag("[prefix_affinity]")]
    | Annotated[PrimalDualConfig, Tag("[primal_dual]")],
    Discriminator(_rule),
]
"""A `[policy.…]` table: its preset says which keys it may have."""
