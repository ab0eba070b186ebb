"""What the settings of a sweep have in common: prices, masks, worlds, and what they make use of."""

from collections.abc import Collection, Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from jaxroute.abreast import power_above
from jaxroute.cold import SHARED
from jaxroute.moments import Uses
from jaxroute.policies import RouterParams
from jaxroute.slot_scan import Settings
from jaxroute.world import Belief, Congestion, Fleet, Retention, World

_FLEET = Fleet(**dict.fromkeys(Fleet.__dataclass_fields__, 1))  # type: ignore[arg-type]
_ALONE: dict[str, Any] = {
    "fleet": _FLEET,
    "block_tokens": 0,
    **dict.fromkeys(("pue", "wue_l_per_kwh", "ewif_l_per_kwh", "price_usd_per_kwh"), 1),
    **dict.fromkeys(("intensity_g_per_kwh", "rtt_s", "wait_s"), 2),
    "retention": Retention(ttl_s=2, decay_s=2, drop_on_leave=0),  # type: ignore[arg-type]
}
_BELIEF: dict[str, Any] = {
    "fleet": _FLEET,
    "intensity_g_per_kwh": 2,
    **dict.fromkeys(("delayed", "rounded_to_tokens", "missing"), 0),
}
_CONGESTION = Congestion(**dict.fromkeys(Congestion.__dataclass_fields__, 2))  # type: ignore[arg-type]
"""Dimensions of each leaf of a world and its parts that are the same for every setting."""


def uses_of(params: RouterParams, world: World, varied: Collection[str] = ()) -> Uses:
    """What P settings and their world make use of, or would at other values of what is varied."""

    def priced(name: str) -> bool:
        return name in varied or bool(np.any(np.asarray(getattr(params, name)) != 0))

    ttl_s, decay_s = np.asarray(world.retention.ttl_s), np.asarray(world.retention.decay_s)
    return Uses(
        ageing=bool(np.isfinite(ttl_s).any() or np.isfinite(decay_s).any()),
        features=priced("gate_weights"),
        latency=priced("latency_price_g_per_s"),
        quality=priced("quality_price_g"),
        intensity=priced("intensity_price"),
        rtt=priced("rtt_price_g_per_s"),
        size=priced("size_price_g_per_b"),
        noise=priced("noise_price_g"),
        blind="cache_knowledge" in varied or bool(np.any(np.asarray(params.cache_knowledge) != 1)),
    )


def settled(params: RouterParams, varied: Collection[str] = ()) -> Settings:
    """P settings, sorted into groups that have the scores of cold deployments in common.

    In as many groups whatever the values of the fields that are varied.
    """
    first, group = kinds(params, SHARED, varied)
    groups = some(params, first)
    masked, mask = kinds(groups, SHARED[-3:], varied)
    if len(masked) > 1 and mask is None:
        mask = np.arange(len(masked), dtype=np.int32)
    masks = some(groups, masked)
    return Settings(each=params, groups=groups, group=group, masks=masks, mask=mask)


def kinds(
    params: RouterParams, names: Sequence[str], varied: Collection[str] = ()
) -> tuple[NDArray[np.int64], NDArray[np.int32] | None]:
    """The first of each kind of setting in some fields, padded, and the kind of each setting.

    So that few shapes are compiled, the kinds are made a power of two by repeating the last, or as
    many as there are settings; that they are as well if one of the fields is varied.

    Returns:
      `[G]` indices into the P settings, and `[P]`; None for one kind, or one each, in order.
    """
    count = len(params.carbon_weight)
    if not set(names).isdisjoint(varied):
        return np.arange(count), None
    columns = [np.asarray(getattr(params, name)).reshape(count, -1) for name in names]
    _, first, kind = np.unique(
        np.concatenate(columns, axis=1), axis=0, return_index=True, return_inverse=True
    )
    size = power_above(len(first))
    if size >= count:
        return np.arange(count), None
    if size == 1:
        return first, None
    padding = np.repeat(first[-1:], size - len(first))
    return np.concatenate([first, padding]), kind.astype(np.int32)


def some(params: RouterParams, rows: NDArray[np.int64]) -> RouterParams:
    """Some of P settings, on the host."""
    return jax.tree.map(lambda x: np.asarray(x)[rows], params)


def axes(world: World) -> list[int | None]:
    """0 for each leaf of a world that is one of each setting, None for the others."""
    belief = None if world.belief is None else Belief(**_BELIEF)
    congestion = None if world.congestion is None else _CONGESTION
    alone = jax.tree.leaves(World(**_ALONE, belief=belief, congestion=congestion))
    leaves = jax.tree.leaves(world)
    return [0 if np.ndim(leaf) > rank else None for leaf, rank in zip(leaves, alone, strict=True)]
