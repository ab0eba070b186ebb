"""Settings of a sweep: tables of numbers, and the policies and worlds that they stand for."""

import dataclasses
import itertools
import math
import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import qmc

from jaxroute import gate
from jaxroute.config import FLEET_LISTS, PolicyConfig, StudyConfig
from jaxroute.load.messages import input_error, nearest_few, shown
from jaxroute.load.space import MOST_SETTINGS, Range
from jaxroute.load.table import read_table
from jaxroute.load.toml import fault, refusal
from jaxroute.load.values import AboveZero, AnySign, Horizon, Tokens, Whole
from jaxroute.policies import RouterParams
from jaxroute.world import World

Floats = NDArray[np.float64]

RETENTION = ("ttl_s", "decay_s", "drop_on_leave")

SCALES = {"pue_scale": "pue", "intensity_scale": "intensity_g_per_kwh"}
"""Factors of what the world has of each region, true and believed."""

WORLD = (*RETENTION, "block_tokens", *SCALES)
"""Fields that are no policy's: the baseline is replayed with each of their values as well."""


def kinds(config: StudyConfig) -> dict[str, Any]:
    """The fields that may be swept, and the type of their values (`jaxroute.load.values`).

    Those of `RouterParams`, vectors by element: `gate_weights[2]`, and masks by name, such as
    `region_allowed[DE]`; of `Retention`; and of the world `block_tokens`, `pue_scale` and
    `intensity_scale`, factors of the study's.
    """
    apart = ("preset", "gate_weights", *FLEET_LISTS)
    own = {k: v.annotation for k, v in PolicyConfig.model_fields.items() if k not in apart}
    if not config.embodied.in_decision:
        del own["embodied_weight"]
    weights = {f"gate_weights[{n}]": AnySign for n in range(len(gate.FEATURES))}
    masks = {
        f"{axis[:-1]}_allowed[{entry}]": Whole
        for axis in FLEET_LISTS
        for entry in getattr(config.fleet, axis)
    }
    retention = {"ttl_s": Horizon, "decay_s": Horizon, "drop_on_leave": Whole}
    world = {"block_tokens": Tokens, **dict.fromkeys(SCALES, AboveZero)}
    own["always_stay"] = Whole
    return own | weights | masks | retention | world


def smooth(config: StudyConfig) -> dict[str, Any]:
    """Those of `kinds` that a gradient can tune: a policy's numbers, without its switches."""
    apart = (*WORLD, "wait_knowledge")  # which counts under load alone
    return {k: v for k, v in kinds(config).items() if v is not Whole and k not in apart}


def check(
    space: Mapping[str, Range | tuple[float, ...]], known: Mapping[str, Any], table: str = "sweep"
) -> None:
    """Refuses unknown fields, and values that a policy's table would not take.

    Args:
      space: of a study's `[sweep]` or `[tune]`.
      known: fields, and the type of their values.
      table: which of the two.
    """
    for name, axis in space.items():
        if name not in known:
            raise fault([table, "space", name], "an unknown field", _field_of(name, known))
        if isinstance(axis, Range) and known[name] is Whole:
            raise fault([table, "space", name], "a range", "a list of 0 and 1")
        ends = {"low": axis.low, "high": axis.high} if isinstance(axis, Range) else axis
        pairs = ends.items() if isinstance(ends, Mapping) else enumerate(ends)
        for place, value in pairs:
            expected = refusal(known[name], value)
            if expected:
                raise fault([table, "space", name, place], shown(value), expected)


def _field_of(name: str, known: Mapping[str, Any]) -> str:
    near = nearest_few(name, known)
    return f"one such as {near or ', '.join(map(repr, itertools.islice(known, 3)))}"


def settings(config: StudyConfig) -> pd.DataFrame:
    """The settings of a study's `[sweep]`, one row each, a column for each field.

    A grid is every combination, the last field varying fastest. Random and Sobol points (scrambled;
    Owen, 1998) are drawn by the study's seed; a list is drawn from evenly.

    Raises:
      InputError: for a fault of the table; for more than `MOST_SETTINGS`.
    """
    sweep = config.sweep
    assert sweep is not None
    if sweep.table is not None:
        return _read(sweep.table, kinds(config))
    space = sweep.space or {}
    if sweep.method == "grid":
        axes = [_points(axis, sweep.samples) for axis in space.values()]
        size = math.prod(len(axis) for axis in axes)
        if size > MOST_SETTINGS:
            found, most = f"a grid of {size:,} settings", f"at most {MOST_SETTINGS:,}"
            raise input_error("sweep", "space", found, most, "use method = 'sobol'")
        mesh = np.meshgrid(*axes, indexing="ij")
        return pd.DataFrame({n: each.ravel() for n, each in zip(space, mesh, strict=True)})
    assert sweep.samples is not None
    return drawn(space, sweep.method, sweep.samples, config.seed)


def drawn(
    space: Mapping[str, Range | tuple[float, ...]], method: str, samples: int, seed: int
) -> pd.DataFrame:
    """Random or Sobol points of a space, one row each, a column for each field."""
    columns = zip(space.items(), unit(method, samples, len(space), seed).T, strict=True)
    return pd.DataFrame({name: at(axis, u) for (name, axis), u in columns})


def _points(axis: Range | tuple[float, ...], samples: int | None) -> Floats:
    if not isinstance(axis, Range):
        return np.array(axis, np.float64)
    assert samples is not None
    spaced = np.geomspace if axis.log else np.linspace
    return spaced(axis.low, axis.high, samples, dtype=np.float64)


def unit(method: str, samples: int, dimensions: int, seed: int) -> Floats:
    """Points of the unit cube, `[samples, dimensions]`."""
    rng = np.random.default_rng([seed, zlib.crc32(b"sweep")])
    if method == "random":
        return rng.random((samples, dimensions))
    whole = (samples - 1).bit_length()  # Sobol points are balanced by powers of two
    return qmc.Sobol(dimensions, scramble=True, seed=rng).random_base2(whole)[:samples]


def at(axis: Range | tuple[float, ...], unit: Any) -> Any:
    """Where on an axis points of the unit interval lie."""
    if not isinstance(axis, Range):
        return np.array(axis, np.float64)[(unit * len(axis)).astype(np.int64)]
    if axis.log:
        return axis.low * (axis.high / axis.low) ** unit
    return axis.low + (axis.high - axis.low) * unit


def _read(path: str, known: Mapping[str, Any]) -> pd.DataFrame:
    def choose(header: Any) -> list[str]:
        for name in header:
            if header.count(name) > 1:
                raise input_error(path, f"column {name}", "it more than once", "it once")
            if name not in known:
                raise input_error(
                    path, f"column {name}", "an unknown field", _field_of(name, known)
                )
        return list(header)

    table = read_table(path, choose)
    if not len(table):
        raise input_error(path, "", "no rows", "a setting a row")
    frame = numbers(table.data.to_pandas())
    for name, index, expected in refused(frame, known):
        raise table.fault(index, name, expected)
    return frame


def numbers(frame: pd.DataFrame) -> pd.DataFrame:
    """A table with its columns as float64, NaN where there is no number."""
    return frame.apply(pd.to_numeric, errors="coerce").astype(np.float64).reset_index(drop=True)


def refused(frame: pd.DataFrame, known: Mapping[str, Any]) -> Iterator[tuple[str, int, str]]:
    """The values that are not of their field's kind: field, row and what was expected."""
    for name in frame:
        for value in frame[name].unique():
            expected = refusal(known[str(name)], float(value))
            if expected:
                is_it = frame[name].isna() if np.isnan(value) else frame[name] == value
                yield str(name), int(is_it.to_numpy().argmax()), expected


def of_table(frame: pd.DataFrame, config: StudyConfig) -> pd.DataFrame:
    """A table of settings, checked.

    Raises:
      InputError: for an unknown field, or a value that a policy's table would not take.
    """
    known = kinds(config)
    for name in frame:
        if not frame.columns.is_unique:
            raise input_error("settings", "columns", "some more than once", "each of them once")
        if name not in known:
            found = "an unknown field"
            raise input_error("settings", f"column {name}", found, _field_of(str(name), known))
    if frame.empty:
        raise input_error("settings", "", "no rows or columns", "a setting a row")
    cast = numbers(frame)
    for name, index, expected in refused(cast, known):
        found = shown(frame[name].iloc[index])
        raise input_error("settings", f"row {index}, column {name}", found, expected)
    return cast


def params_at(base: RouterParams, frame: pd.DataFrame, config: StudyConfig) -> RouterParams:
    """The policies of P settings, `[P, ...]` leaves: `base` but for what a setting says.

    Args:
      base: the policy.
      frame: P rows; the fields of `WORLD` are left aside.
      config: its fleet names the entries of the masks.
    """
    leaves: dict[str, NDArray[np.float32]] = {}
    for name, value in vars(base).items():
        single = np.asarray(value, np.float32)
        if name.endswith("_allowed"):
            single = np.broadcast_to(single, len(getattr(config.fleet, f"{name[:-8]}s")))
        leaves[name] = np.repeat(single[None], len(frame), axis=0)
    for field in frame.columns.difference(list(WORLD)):
        name, _, element = str(field).rstrip("]").partition("[")
        column = frame[field].to_numpy(np.float32)
        if name.endswith("_allowed"):
            leaves[name][:, getattr(config.fleet, f"{name[:-8]}s").index(element)] = column
        elif element:
            leaves[name][:, int(element)] = column
        else:
            leaves[name] = column
    return base.replace(**leaves)


def as_policy(
    name: str, base: RouterParams, setting: Mapping[str, float], config: StudyConfig
) -> dict[str, Any]:
    """The table of a study file (`PolicyConfig`) of a policy at one setting.

    Masks that leave nothing are dropped, as they are in a replay.

    Args:
      name: a preset, or a policy of the study's file.
      base: the policy.
      setting: the fields that differ, none of them of `WORLD`.
      config: of the study.
    """
    own = config.policy.get(name)
    table: dict[str, Any] = own.model_dump(exclude_none=True) if own else {"preset": name}
    at = params_at(base, pd.DataFrame([setting]), config)
    for field, value in setting.items():
        stem, _, element = field.rstrip("]").partition("[")
        if stem.endswith("_allowed"):
            entries = f"{stem[:-8]}s"
            mask = np.asarray(getattr(at, stem))[0] > 0
            table[entries] = list(itertools.compress(getattr(config.fleet, entries), mask))
        elif element:
            weights = table.get(stem, np.asarray(getattr(base, stem)).tolist())
            table[stem] = [value if n == int(element) else w for n, w in enumerate(weights)]
        else:
            table[stem] = value
    if [] in (table.get(entries) for entries in FLEET_LISTS):
        table |= {entries: list(getattr(config.fleet, entries)) for entries in FLEET_LISTS}
    return table


@jax.jit
def world_at(world: World, changes: Mapping[str, jax.Array]) -> World:
    """A world with some leaves changed, and batched over P settings if the changes are.

    Args:
      world: the study's.
      changes: by fields of `WORLD`, `[]` or `[P]` each, in the world's dtype.
    """
    retention, belief = world.retention, world.belief
    for name, value in changes.items():
        if name in SCALES:
            leaf = SCALES[name]
            world = world.replace(**{leaf: _scaled(value, getattr(world, leaf))})
            if name == "intensity_scale" and belief is not None:
                forecast = _scaled(value, belief.intensity_g_per_kwh)
                belief = dataclasses.replace(belief, intensity_g_per_kwh=forecast)
        elif name == "block_tokens":
            world = world.replace(block_tokens=value)
        else:
            shape = *value.shape, *(1,) * getattr(retention, name).ndim
            retention = dataclasses.replace(retention, **{name: value.reshape(shape)})
    return world.replace(retention=retention, belief=belief)


def _scaled(factor: jax.Array, leaf: jax.Array) -> jax.Array:
    return factor.reshape(*factor.shape, *(1,) * leaf.ndim) * leaf.reshape(
        *(1,) * factor.ndim, *leaf.shape
    )
