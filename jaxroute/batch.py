"""Many settings of a router replayed at once, for sweeps: per-session sums and nothing by turn."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from jaxroute import policies, simulate
from jaxroute.abreast import Layout, lay_out, only, power_above, width_for
from jaxroute.cold import SHARED
from jaxroute.latency import BINS, Latency
from jaxroute.moments import Uses
from jaxroute.policies import RouterParams
from jaxroute.sessions import Sessions
from jaxroute.simulate import FIELDS, Totals
from jaxroute.slot_scan import Settings, replay_slots
from jaxroute.world import Belief, Fleet, Retention, World

MOST_SETTINGS = 256
"""Of one call: more are no faster, and are what a killed sweep has to do again."""

SLOTS = 5
"""Deployments that hold a session's tokens at a time, of nearly every session: each one less is a
tenth faster, and with 4 a tenth of the turns have to be replayed once more."""

MORE_SLOTS = 16
"""For the sessions that need more."""

CPU_OPTIONS = {"xla_cpu_enable_fast_min_max": True, "xla_cpu_prefer_vector_width": 512}
"""Of XLA's compiler: plain minima and maxima, as no NaN reaches one, and the widest vectors."""

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
"""Dimensions of each leaf of a world and of a belief that are the same for every setting."""


def replay_settings(
    params: RouterParams, sessions: Sessions, world: World, *, latency: bool = False
) -> tuple[Totals, Latency | None]:
    """Replays every session under P settings, with the decisions and sums of `evaluate`.

    By the slot path (`jaxroute.slots`); what it cannot serve is replayed by the scan of `evaluate`:
    settings with a TTFT limit, worlds with a belief or that differ from setting to setting, and
    histograms of latency. Sessions that needed more slots are replayed with more.

    Args:
      params: `[P, ...]` leaves.
      sessions: S sessions, packed.
      world: leaves with a dimension more than `World` says are `[P, ...]`, one of each setting.
      latency: whether to count the turns by how long they took.

    Returns:
      Sums of each session, `[P, S]` leaves on the host; histograms, `[P, BINS]` leaves, or None.

    >>> import jaxroute as jr
    >>> study = jr.load_study()
    >>> settings = jr.stack([jr.presets["carbon_router"], jr.presets["fair_carbon"]])
    >>> totals, _ = replay_settings(settings, study.datasets[0].alone(0), study.world)
    >>> totals.carbon_g.shape
    (2, 1)
    """
    own = any(axis == 0 for axis in _axes(world))
    if latency or own or world.belief is not None or not sessions.count:
        return dense(params, sessions, world, latency=latency)
    limited = np.isfinite(np.asarray(params.ttft_slo_s))
    if limited.all():
        return dense(params, sessions, world)
    if not limited.any():
        return _by_slots(params, sessions, world), None
    free = _by_slots(_some(params, np.flatnonzero(~limited)), sessions, world)
    bound, _ = dense(_some(params, np.flatnonzero(limited)), sessions, world)

    def joined(name: str) -> NDArray[np.floating]:
        some, others = np.asarray(getattr(free, name)), np.asarray(getattr(bound, name))
        out = np.empty((len(limited), some.shape[1]), some.dtype)
        out[~limited], out[limited] = some, others
        return out

    return Totals(**{name: joined(name) for name in FIELDS}), None  # type: ignore[arg-type]


def _by_slots(params: RouterParams, sessions: Sessions, world: World) -> Totals:
    """The slot path; sessions that need more slots once more with more, and then without."""
    drops = bool(np.all(np.asarray(world.retention.drop_on_leave) > 0))
    uses, deployments = uses_of(params, world), len(world.fleet.model)
    width = width_for(len(params.carbon_weight))
    replay = replay_on_cpu if jax.default_backend() == "cpu" else replay_slots
    totals, overflow = replay(
        settled(params),
        sessions,
        jax.device_put(lay_out(sessions, width=width)),
        world,
        slot_count=1 if drops else min(SLOTS, deployments),
        uses=uses,
    )
    lost = np.asarray(overflow)
    sums = _alike(totals, lost.shape)
    if lost.any():
        sums = {name: values.copy() for name, values in sums.items()}
    for slot_count in (MORE_SLOTS, None):
        if not lost.any():
            break
        chosen, rows = np.flatnonzero(lost.any(axis=1)), np.flatnonzero(lost.any(axis=0))
        some = _some(params, np.resize(rows, power_above(len(rows))))
        if slot_count is None:
            exact, _ = dense(*jax.device_put((some, only(sessions, chosen))), world)
            again = jax.tree.map(lambda x: np.asarray(x).T, exact)
            more = np.zeros(again.turns.shape, bool)
        else:
            again, more = replay(
                settled(some),
                sessions,
                jax.device_put(lay_out(sessions, chosen, width=width)),
                world,
                slot_count=min(slot_count, deployments),
                uses=uses,
            )
        more, found = np.asarray(more), _alike(again, np.shape(more))
        at, setting = np.nonzero(lost[np.ix_(chosen, rows)])
        where = chosen[at], rows[setting]
        for name, values in sums.items():
            values[where] = found[name][at, setting]
        lost = np.zeros_like(lost)
        lost[where] = more[at, setting]
    return Totals(**{name: values.T for name, values in sums.items()})  # type: ignore[arg-type]


def _alike(totals: Totals, shape: tuple[int, ...]) -> dict[str, NDArray[np.floating]]:
    """Totals by name, `[S, P]`, what is one for all settings included."""
    return {name: np.broadcast_to(np.asarray(getattr(totals, name)), shape) for name in FIELDS}


@functools.partial(jax.jit, static_argnames=("slot_count", "uses"), compiler_options=CPU_OPTIONS)
def replay_on_cpu(
    settings: Settings,
    sessions: Sessions,
    layout: Layout,
    world: World,
    *,
    slot_count: int,
    uses: Uses,
) -> tuple[Totals, jax.Array]:
    """`replay_slots`, compiled for a CPU."""
    return replay_slots(settings, sessions, layout, world, slot_count=slot_count, uses=uses)


def uses_of(params: RouterParams, world: World) -> Uses:
    """What P settings and their world make use of."""

    def priced(name: str) -> bool:
        return bool(np.any(np.asarray(getattr(params, name)) != 0))

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
        blind=bool(np.any(np.asarray(params.cache_knowledge) != 1)),
    )


def settled(params: RouterParams) -> Settings:
    """P settings, sorted into groups that have the scores of cold deployments in common."""
    first, group = kinds(params, SHARED)
    groups = _some(params, first)
    masked, mask = kinds(groups, SHARED[-3:])
    if len(masked) > 1 and mask is None:
        mask = np.arange(len(masked), dtype=np.int32)
    masks = _some(groups, masked)
    found = Settings(each=params, groups=groups, group=group, masks=masks, mask=mask)
    return jax.device_put(found)


def kinds(
    params: RouterParams, names: Sequence[str]
) -> tuple[NDArray[np.int64], NDArray[np.int32] | None]:
    """The first of each kind of setting in some fields, padded, and the kind of each setting.

    So that few shapes are compiled, the kinds are made a power of two by repeating the last, or as
    many as there are settings.

    Returns:
      `[G]` indices into the P settings, and `[P]`; None for one kind, or one each, in order.
    """
    count = len(params.carbon_weight)
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


def _some(params: RouterParams, rows: NDArray[np.int64]) -> RouterParams:
    return jax.tree.map(lambda x: np.asarray(x)[rows], params)


def _axes(world: World) -> list[int | None]:
    """0 for each leaf of a world that is one of each setting, None for the others."""
    belief = None if world.belief is None else Belief(**_BELIEF)
    alone = jax.tree.leaves(World(**_ALONE, belief=belief))
    leaves = jax.tree.leaves(world)
    return [0 if np.ndim(leaf) > rank else None for leaf, rank in zip(leaves, alone, strict=True)]


@functools.partial(jax.jit, static_argnames="latency")
def dense(
    params: RouterParams, sessions: Sessions, world: World, *, latency: bool = False
) -> tuple[Totals, Latency | None]:
    """As `replay_settings`, by the scan of `evaluate` alone; differentiable like it."""
    leaves, structure = jax.tree.flatten(world)

    def one(setting: RouterParams, own: list[jax.Array]) -> tuple[Totals, Latency | None]:
        totals, _, times = simulate.replay(
            setting,
            sessions,
            jax.tree.unflatten(structure, own),
            policy=policies.router,
            keep=lambda params, record: (),
            latency=latency,
        )
        return totals, times

    return jax.vmap(one, in_axes=(0, _axes(world)))(params, leaves)


def bytes_a_setting(sessions: Sessions, world: World, *, latency: bool = False) -> int:
    """Memory that one setting more takes in `replay_settings`, device and host together.

    Its totals, as the scan carries them and as they are returned, and the state of the rows.
    """
    rows, deployments = sessions.turns.valid.shape[0], world.fleet.model.shape[0]
    size = np.dtype(world.fleet.pre_j.dtype).itemsize
    floats = 3 * len(FIELDS) * sessions.count + 8 * rows * deployments + 4 * BINS * latency
    return size * floats
