"""Many settings of a router replayed at once, for sweeps: per-session sums and nothing by turn."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from jaxroute import devices, policies, simulate
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


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Part:
    """Those of P settings that one program replays.

    Attributes:
      rows: which they are.
      params: `[.., ...]` leaves on the host.
      given: on every device, the same as the program takes them, and the world.
      uses: what they make use of; None where the scan of `evaluate` replays them.
      slot_count: of the slot path.
      latency: whether to count turns by their latency.
    """

    rows: NDArray[np.int64]
    params: RouterParams
    given: tuple[Settings | RouterParams, World]
    uses: Uses | None
    slot_count: int
    latency: bool


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Round:
    """Pieces of a trace that are replayed at once, one on each device.

    Attributes:
      mesh: n devices.
      size: how many pieces, n at most; the rest is padding.
      sessions: `[n, ...]` leaves.
      layout: how the slot path goes through them, likewise; None where there are no sessions.
    """

    mesh: Mesh
    size: int
    sessions: Sessions
    layout: Layout | None


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
    alone = devices.mesh(1)
    (found,) = replay(
        parted(params, world, alone, latency=latency),
        placed([sessions], len(params.carbon_weight), alone),
    )
    return found


def placed(pieces: Sequence[Sessions], settings: int, mesh: Mesh) -> Round:
    """Pieces of a trace of one shape, on a device each, for so many settings."""
    layouts = [lay_out(each, width=width_for(settings)) for each in pieces if each.count]
    return Round(
        mesh=mesh,
        size=len(pieces),
        sessions=devices.spread(pieces, mesh),
        layout=devices.spread(layouts, mesh) if layouts else None,
    )


def parted(
    params: RouterParams, world: World, mesh: Mesh, *, latency: bool = False
) -> tuple[Part, ...]:
    """P settings by the program that replays them, on every device.

    Args:
      params, world, latency: as for `replay_settings`.
      mesh: the devices.
    """
    params = jax.tree.map(np.asarray, params)
    alike = all(axis is None for axis in _axes(world)) and world.belief is None
    free = np.isinf(params.ttft_slo_s) & (alike and not latency)
    drops = alike and bool(np.all(np.asarray(world.retention.drop_on_leave) > 0))
    parts = []
    for by_slots, chosen in ((True, free), (False, ~free)):
        if not chosen.any():
            continue
        rows = np.flatnonzero(chosen)
        some = params if chosen.all() else _some(params, rows)
        given = settled(some) if by_slots else some
        parts.append(
            Part(
                rows=rows,
                params=some,
                given=devices.everywhere((given, world), mesh),
                uses=uses_of(some, world) if by_slots else None,
                slot_count=1 if drops else min(SLOTS, len(world.fleet.model)),
                latency=latency,
            )
        )
    return tuple(parts)


def replay(parts: Sequence[Part], pieces: Round) -> list[tuple[Totals, Latency | None]]:
    """As `replay_settings`, of each piece of a round.

    Args:
      parts: of P settings, on the devices of the round.
      pieces: of S sessions each.
    """
    found = [_replayed(part, pieces) for part in parts]
    if len(parts) == 1:
        return found[0]
    return [_joined(parts, each) for each in zip(*found, strict=True)]


def _joined(
    parts: Sequence[Part], found: Sequence[tuple[Totals, Latency | None]]
) -> tuple[Totals, Latency | None]:
    """Parts without latency, as one."""
    order = np.argsort(np.concatenate([part.rows for part in parts]))
    totals = [each for each, _ in found]
    return jax.tree.map(lambda *values: np.concatenate(values)[order], *totals), None


def _replayed(part: Part, pieces: Round) -> list[tuple[Totals, Latency | None]]:
    if part.uses is None:
        counted = _by_scan(part.given, pieces.sessions, mesh=pieces.mesh, latency=part.latency)
        return [devices.gather(counted, n) for n in range(pieces.size)]
    if pieces.layout is None:
        nothing: Any = np.zeros((len(part.rows), 0), part.params.carbon_weight.dtype)
        return [(Totals(**dict.fromkeys(FIELDS, nothing)), None)] * pieces.size
    out: list[tuple[Totals, Latency | None]] = []
    for n, (totals, lost) in enumerate(_by_slots(part, part.given, pieces, part.slot_count)):
        if lost.any():
            totals = _mended(part, devices.gather(pieces.sessions, n), totals, lost)
        out.append((jax.tree.map(np.transpose, totals), None))
    return out


def _mended(part: Part, sessions: Sessions, totals: Totals, lost: NDArray[np.bool_]) -> Totals:
    """The slot path's `[S, P]` totals, those `lost` once more with more slots, then without."""
    alone, world = devices.mesh(1), jax.device_get(part.given[1])
    totals = jax.tree.map(np.array, totals)
    for slot_count in (MORE_SLOTS, None):
        if not lost.any():
            break
        chosen, rows = np.flatnonzero(lost.any(axis=1)), np.flatnonzero(lost.any(axis=0))
        few, some = (
            only(sessions, chosen),
            _some(part.params, np.resize(rows, power_above(len(rows)))),
        )
        if slot_count is None:
            exact, _ = jax.device_get(dense(some, few, world))
            again, more = jax.tree.map(np.transpose, exact), np.zeros(exact.turns.T.shape, bool)
        else:
            again_pieces = placed([few], len(rows), alone)
            most = min(slot_count, len(world.fleet.model))
            ((again, more),) = _by_slots(part, (settled(some), world), again_pieces, most)
        at, setting = np.nonzero(lost[np.ix_(chosen, rows)])
        where = chosen[at], rows[setting]
        for name in FIELDS:
            getattr(totals, name)[where] = getattr(again, name)[at, setting]
        lost = np.zeros_like(lost)
        lost[where] = more[at, setting]
    return totals


def _by_slots(
    part: Part, given: tuple[Any, World], pieces: Round, slot_count: int
) -> list[tuple[Totals, NDArray[np.bool_]]]:
    """Of each piece, totals `[S, P]` and which are not exact."""
    platform = pieces.mesh.devices.flat[0].platform
    found = slots_on(platform)(
        given,
        (pieces.sessions, pieces.layout),
        mesh=pieces.mesh,
        slot_count=slot_count,
        uses=part.uses,
    )
    out: list[Any] = []
    for n in range(pieces.size):
        totals, lost = devices.gather(found, n)
        whole = jax.tree.map(lambda x, shape=lost.shape: np.broadcast_to(x, shape), totals)
        out.append((whole, lost))
    return out


@functools.cache
def slots_on(platform: str) -> Callable[..., tuple[Totals, jax.Array]]:
    """`replay_slots` of a piece on each device, compiled for a platform."""

    def program(
        given: tuple[Settings, World],
        pieces: tuple[Sessions, Layout],
        *,
        mesh: Mesh,
        slot_count: int,
        uses: Uses,
    ) -> tuple[Totals, jax.Array]:
        return devices.each(
            lambda given, piece: replay_slots(
                given[0], *piece, given[1], slot_count=slot_count, uses=uses
            ),
            given,
            pieces,
            mesh,
        )

    return jax.jit(
        program,
        static_argnames=("mesh", "slot_count", "uses"),
        compiler_options=CPU_OPTIONS if platform == "cpu" else None,
    )


@functools.partial(jax.jit, static_argnames=("mesh", "latency"))
def _by_scan(
    given: tuple[RouterParams, World], pieces: Sessions, *, mesh: Mesh, latency: bool
) -> tuple[Totals, Latency | None]:
    def one(given: tuple[RouterParams, World], sessions: Sessions) -> tuple[Totals, Latency | None]:
        return dense(given[0], sessions, given[1], latency=latency)

    return devices.each(one, given, pieces, mesh)


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
    return Settings(each=params, groups=groups, group=group, masks=masks, mask=mask)


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


def bytes_a_setting(rows: int, count: int, world: World, *, latency: bool = False) -> int:
    """Memory that one setting more takes in a replay, device and host together.

    Its totals, as the scan carries them and as they are returned, and the state of the rows.

    Args:
      rows, count: of the packed sessions.
      world, latency: as for `replay_settings`.
    """
    deployments, size = world.fleet.model.shape[0], np.dtype(world.fleet.pre_j.dtype).itemsize
    return size * (3 * len(FIELDS) * count + 8 * rows * deployments + 4 * BINS * latency)
