"""Many settings of a router replayed at once, for sweeps: per-session sums and nothing by turn."""

import dataclasses
import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from numpy.typing import NDArray

from jaxroute import devices, policies, sharing, simulate
from jaxroute.abreast import Extents, Layout, extents, lay_out, only, power_above, width_for
from jaxroute.latency import BINS, Latency
from jaxroute.moments import Uses
from jaxroute.policies import RouterParams
from jaxroute.sessions import Sessions
from jaxroute.simulate import FIELDS, Totals
from jaxroute.slot_scan import MOST_GROUPS, Settings, replay_slots
from jaxroute.world import World

MOST_SETTINGS = 256
"""Of one call: more are no faster, and are what a killed sweep has to do again."""

SLOTS, SLOTS_APART = 5, 6
"""Deployments that hold a session's tokens at a time, of nearly every session; where settings have
prices of their own they move about more. One less is a tenth faster, but for the sessions that have
to be replayed once more."""

MORE_SLOTS = 16
"""For the sessions that need more."""

CPU_OPTIONS = {"xla_cpu_enable_fast_min_max": True, "xla_cpu_prefer_vector_width": 512}
"""Of XLA's compiler: plain minima and maxima, as no NaN reaches one, and the widest vectors."""


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
      extents: where the sessions of each piece lie.
      layout: how the slot path goes through them, `[n, ...]`; None where there are no sessions.
    """

    mesh: Mesh
    size: int
    sessions: Sessions
    extents: tuple[Extents, ...]
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
    alone, count = devices.mesh(1), len(params.carbon_weight)
    parts = parted(params, world, alone, latency=latency)
    pieces = placed([sessions], width_for(count), alone)
    totals, times = devices.gather(replay(parts, pieces), 0)
    shape = sessions.count, count
    return jax.tree.map(lambda x: np.broadcast_to(x, shape).T, totals), times


def placed(pieces: Sequence[Sessions], width: int, mesh: Mesh) -> Round:
    """Pieces of a trace of one shape, on a device each.

    Args:
      pieces: as many as there are devices, or fewer.
      width: sessions abreast (`jaxroute.abreast.width_for`).
      mesh: the devices.
    """
    found = tuple(extents(each) for each in pieces)
    layouts = [lay_out(each, width=width) for each in found if len(each.lengths)]
    return Round(
        mesh=mesh,
        size=len(pieces),
        sessions=devices.spread(pieces, mesh),
        extents=found,
        layout=devices.spread(layouts, mesh) if layouts else None,
    )


def parted(
    params: RouterParams,
    world: World,
    mesh: Mesh,
    *,
    latency: bool = False,
    varied: Collection[str] = (),
) -> tuple[Part, ...]:
    """P settings by the program that replays them, on every device.

    Args:
      params, world, latency: as for `replay_settings`.
      mesh: the devices.
      varied: fields of which other calls, with as many settings, have other values: the programs
        serve these as well.
    """
    params = jax.tree.map(np.asarray, params)
    plain = world.belief is None and world.congestion is None
    alike = plain and all(axis is None for axis in sharing.axes(world))
    free = np.isinf(params.ttft_slo_s) & (alike and not latency and "ttft_slo_s" not in varied)
    drops = alike and bool(np.all(np.asarray(world.retention.drop_on_leave) > 0))
    parts = []
    for by_slots, chosen in ((True, free), (False, ~free)):
        if not chosen.any():
            continue
        rows = np.flatnonzero(chosen)
        some = params if chosen.all() else sharing.some(params, rows)
        given: Any = sharing.settled(some, varied) if by_slots else some
        apart = by_slots and len(given.groups.carbon_weight) > MOST_GROUPS
        most = 1 if drops else SLOTS_APART if apart else SLOTS
        parts.append(
            Part(
                rows=rows,
                params=some,
                given=devices.everywhere((given, world), mesh),
                uses=sharing.uses_of(some, world, varied) if by_slots else None,
                slot_count=min(most, len(world.fleet.model)),
                latency=latency,
            )
        )
    return tuple(parts)


def replay(parts: Sequence[Part], pieces: Round) -> tuple[Totals, Latency | None]:
    """Replays a round of pieces of S sessions under P settings.

    Args:
      parts: of the settings, on the devices of the round.
      pieces: n.

    Returns:
      Sums of each session, `[n, S, P]` leaves on the devices, or `[n, S, 1]` where all settings
      have the same; histograms, `[n, P, BINS]` leaves, or None.
    """
    found = [_replayed(part, pieces) for part in parts]
    if len(parts) == 1:
        return found[0]
    order = np.argsort(np.concatenate([part.rows for part in parts])).tolist()
    sizes = tuple(len(part.rows) for part in parts)
    totals = [totals for totals, _ in found]
    return devices.each(_joined, (), totals, pieces.mesh, sizes=sizes, order=tuple(order)), None


@functools.partial(jax.jit, static_argnames=("sizes", "order"))
@devices.alone
def _joined(
    _: tuple[()], totals: list[Totals], *, sizes: tuple[int, ...], order: tuple[int, ...]
) -> Totals:
    """The totals of parts, of so many settings each, in the order of the settings."""

    def one(*leaves: jax.Array) -> jax.Array:
        whole = [
            jnp.broadcast_to(leaf, (leaf.shape[0], size))
            for leaf, size in zip(leaves, sizes, strict=True)
        ]
        return jnp.concatenate(whole, axis=-1)[..., np.array(order)]

    return jax.tree.map(one, *totals)


def _replayed(part: Part, pieces: Round) -> tuple[Totals, Latency | None]:
    if part.uses is None:
        return devices.each(
            _by_scan, part.given, pieces.sessions, pieces.mesh, latency=part.latency
        )
    if pieces.layout is None:
        nothing = np.zeros((0, 1), part.params.carbon_weight.dtype)
        empty = Totals(**dict.fromkeys(FIELDS, nothing))  # type: ignore[arg-type]
        return devices.spread([empty], pieces.mesh), None
    totals, lost, some_lost = _by_slots(part, pieces, pieces.layout, part.slot_count)
    if np.asarray(some_lost).any():
        totals, lost = _with_more_slots(part, pieces, totals, lost)
        if np.asarray(lost).any():
            totals = _without_slots(part, pieces, totals, lost)
    return totals, None


def _by_slots(
    part: Part, pieces: Round, layout: Layout, slot_count: int
) -> tuple[Totals, jax.Array, jax.Array]:
    """Of each piece, the totals by the slot path, which `[S, P]` are not exact, and if any."""
    program = slots_on(pieces.mesh.devices.flat[0].platform)
    there, static = (pieces.sessions, layout), {"slot_count": slot_count, "uses": part.uses}
    return devices.each(program, part.given, there, pieces.mesh, **static)


def _with_more_slots(
    part: Part, pieces: Round, totals: Totals, lost: jax.Array
) -> tuple[Totals, jax.Array]:
    """The totals of a round, sessions that were lost replayed once more, and what is lost then.

    In the shapes of the round, so that one program more is compiled; on a CPU one session at a
    time, as they are few.
    """
    settings, deployments = len(part.rows), part.given[1].fleet.model.shape[0]
    width = 1 if pieces.mesh.devices.flat[0].platform == "cpu" else width_for(settings)
    layouts = [
        lay_out(pieces.extents[n], devices.gather(lost, n).any(axis=1), width=width)
        for n in range(pieces.size)
    ]
    layout = devices.spread(layouts, pieces.mesh)
    better, still, _ = _by_slots(part, pieces, layout, min(MORE_SLOTS, deployments))
    return devices.each(_replaced, (), (totals, lost, better, still), pieces.mesh)


@jax.jit
@devices.alone
def _replaced(
    _: tuple[()], found: tuple[Totals, jax.Array, Totals, jax.Array]
) -> tuple[Totals, jax.Array]:
    totals, lost, better, still = found

    def one(old: jax.Array, new: jax.Array) -> jax.Array:
        return old if old.shape[-1] == 1 else jnp.where(lost, new, old)

    return jax.tree.map(one, totals, better), lost & still


def _without_slots(part: Part, pieces: Round, totals: Totals, lost: jax.Array) -> Totals:
    """The totals of a round, what is lost replayed by the scan of `evaluate`."""
    world, out = jax.device_get(part.given[1]), []
    for n in range(pieces.size):
        found, some = devices.gather((totals, lost), n)
        found = jax.tree.map(np.array, found)
        chosen, rows = np.flatnonzero(some.any(axis=1)), np.flatnonzero(some.any(axis=0))
        if len(chosen):
            few = only(devices.gather(pieces.sessions, n), chosen)
            params = sharing.some(part.params, np.resize(rows, power_above(len(rows))))
            exact, _ = jax.device_get(dense(params, few, world))
            session, setting = np.nonzero(some[np.ix_(chosen, rows)])
            for name in FIELDS:
                if (old := getattr(found, name)).shape[-1] > 1:
                    new = getattr(exact, name)[setting, session]
                    old[chosen[session], rows[setting]] = new
        out.append(found)
    return devices.spread(out, pieces.mesh)


@functools.cache
def slots_on(platform: str) -> Callable[..., tuple[Totals, jax.Array, jax.Array]]:
    """`replay_slots` of a piece on each device, compiled for a platform."""

    def program(
        given: tuple[Settings, World],
        piece: tuple[Sessions, Layout],
        *,
        slot_count: int,
        uses: Uses,
    ) -> tuple[Totals, jax.Array, jax.Array]:
        totals, lost = replay_slots(given[0], *piece, given[1], slot_count=slot_count, uses=uses)
        return totals, lost, lost.any()

    return jax.jit(
        devices.alone(program),
        static_argnames=("slot_count", "uses"),
        compiler_options=CPU_OPTIONS if platform == "cpu" else None,
    )


@functools.partial(jax.jit, static_argnames="latency")
@devices.alone
def _by_scan(
    given: tuple[RouterParams, World], piece: Sessions, *, latency: bool
) -> tuple[Totals, Latency | None]:
    totals, times = dense(given[0], piece, given[1], latency=latency)
    return jax.tree.map(jnp.transpose, totals), times


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

    return jax.vmap(one, in_axes=(0, sharing.axes(world)))(params, leaves)


def bytes_a_setting(rows: int, count: int, world: World, *, latency: bool = False) -> int:
    """Memory that one setting more takes in a replay, device and host together.

    Its totals, as the scan carries them and as they are returned, and the state of the rows.

    Args:
      rows, count: of the packed sessions.
      world, latency: as for `replay_settings`.
    """
    deployments, size = world.fleet.model.shape[0], np.dtype(world.fleet.pre_j.dtype).itemsize
    return size * (3 * len(FIELDS) * count + 8 * rows * deployments + 4 * BINS * latency)
