"""The named policies: points of the parameter space, and rules beside the router's."""

from collections.abc import Mapping

import numpy as np

from jaxroute.neighbours import (
    PrefixAffinityParams,
    PrimalDualParams,
    SessionPriceParams,
    SkiRentalParams,
)
from jaxroute.policies import RouterParams
from jaxroute.world import Fleet

AXES = ("model", "gpu", "region")
"""What a deployment is a choice of."""


def logit(probability: float) -> float:
    """`log(p / (1 - p))`: the gate bias of a constant `p_back`."""
    return float(np.log(probability) - np.log1p(-probability))


def only(index: int, size: int) -> np.ndarray:
    """A mask `[size]` that allows one index.

    >>> only(1, 3)
    array([0., 1., 0.], dtype=float32)
    """
    return np.eye(size, dtype=np.float32)[index]


_GATED = {"gate_strength": 1.0, "gate_bias": logit(0.35)}
_BLIND = {"cache_knowledge": 0.0, "assumed_hit": 0.0}
_TIE = {"carbon_weight": 1e-3}

_DIFFERENCES: dict[str, dict[str, float]] = {
    "carbon_router": _GATED,
    "carbon_router_no_gate": {},
    "carbon_router_fixed_model": _GATED,
    "carbon_router_fixed_gpu": _GATED,
    "carbon_router_fixed_region": _GATED,
    "fair_carbon": _BLIND,
    "fair_carbon_new_only": {"cache_knowledge": 0.0, "assumed_hit": 1.0},
    "sticky": _BLIND | {"always_stay": 1.0},
    "hysteresis": {"hysteresis": 0.1},
    "nearest": _TIE | {"rtt_price_g_per_s": 1.0},
    "cleanest_region": _TIE | {"intensity_price": 1.0},
    "smallest_model": {},
    "largest_model": {},
    "best_quality": _TIE | {"quality_price_g": 1.0},
    "lowest_latency": _TIE | {"latency_price_g_per_s": 1.0},
    "random": {"carbon_weight": 0.0, "noise_price_g": 1.0},
}

PRESET_NAMES = tuple(_DIFFERENCES)

RULES: dict[str, type[RouterParams]] = {
    "ski_rental": SkiRentalParams,
    "session_price": SessionPriceParams,
    "prefix_affinity": PrefixAffinityParams,
    "primal_dual": PrimalDualParams,
}
"""The parameters of the rules beside the router's (`jaxroute.neighbours`): compared where named."""

NAMES = (*PRESET_NAMES, *RULES)
"""All that a study file may name."""

FIXED = {
    "carbon_router_fixed_model": "model",
    "carbon_router_fixed_gpu": "gpu",
    "carbon_router_fixed_region": "region",
}
"""Presets masked to the one index with the least `fair_carbon` carbon on a dataset."""

UNFLOORED = ("smallest_model", "largest_model")
"""Presets without a quality floor."""


def preset(name: str, fleet: Fleet | None = None, *, quality_floor: float = 0.6) -> RouterParams:
    """A named point of the parameter space.

    Args:
      name: one of `NAMES`. `fair_carbon` is our reconstruction of a cache-blind router with
        the same action space, from one sentence of the CarbonRouter abstract (arXiv 2610.35230).
        The three of `FIXED` come without their mask, which depends on a dataset.
      fleet: needed by `smallest_model` and `largest_model`, which mask all models but one.
      quality_floor: applies to every preset but those two, so that none wins by lowering quality.

    Raises:
      ValueError: unknown name, or a preset that needs a fleet without one.

    >>> preset("hysteresis").hysteresis
    np.float32(0.1)
    """
    if name not in NAMES:
        raise ValueError(f"unknown preset {name!r}; known: {', '.join(NAMES)}")
    neutral = RULES.get(name, RouterParams)()
    params = neutral.replace(quality_floor=quality_floor, **_DIFFERENCES.get(name, {}))
    if name not in UNFLOORED:
        return params
    if fleet is None:
        raise ValueError(f"preset {name!r} needs a fleet: preset({name!r}, world.fleet)")
    models, sizes_b = np.asarray(fleet.model), np.asarray(fleet.params_b)
    chosen = sizes_b.argmin() if name == "smallest_model" else sizes_b.argmax()
    mask = only(models[chosen], models.max() + 1)
    return params.replace(quality_floor=0.0, model_allowed=mask)


def reconstructions(policies: Mapping[str, RouterParams]) -> tuple[str, ...]:
    """A line on those of the policies whose rules are after other systems, if there are any."""
    rules = SessionPriceParams, PrefixAffinityParams, PrimalDualParams
    names = [name for name, params in policies.items() if isinstance(params, rules)]
    if not names:
        return ()
    return (f"{', '.join(names)}: rules of other systems as we reconstruct them (neighbours.py)",)


presets: dict[str, RouterParams] = {
    name: preset(name) for name in PRESET_NAMES if name not in (*FIXED, *UNFLOORED)
}
"""The presets that depend on no fleet and no dataset, at the default quality floor of 0.6."""
