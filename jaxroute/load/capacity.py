"""The capacity of a fleet, from its tables: slots, room for KV, idle power, and costs by batch."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, DTypeLike, NDArray

from jaxroute.load.fleet import fleet_table
from jaxroute.load.fleet_tables import BUNDLED, Tables, bundled, row_name
from jaxroute.load.messages import input_error
from jaxroute.provision import Capacity
from jaxroute.world import cast

__all__ = ["build_capacity"]

TOLERANCE = 0.01
"""By which slopes in context may differ from what the profile implies; tables have five digits."""

Curve = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Joules of a token and seconds of a step at batches 1, 2, …, both at context 0."""


def build_capacity(
    models: Sequence[str],
    gpus: Sequence[str],
    regions: Sequence[str],
    replicas: ArrayLike,
    *,
    tables: Tables | None = None,
    by_batch: bool = True,
    idle: bool = True,
    decode_scale: float = 1.0,
    dtype: DTypeLike = np.float32,
) -> Capacity:
    """The capacity of a fleet, as NumPy arrays.

    Decode costs of n sequences at context 0 are interpolated linearly in n for a whole step, n
    times the joules of a token and the seconds, which for a dense model's roofline is exact:
    between the pair's rows of decoding below the batch of its profile and the profile itself.
    Beyond that batch, which no replica serves, the last values stand.

    Args:
      models, gpus, regions: names, as for `fleet_table`; deployments are in its order.
      replicas: `[D]`, more than 0; may be infinite.
      tables: the bundled ones by default.
      by_batch: without it decoding costs what the profile says, at every batch.
      idle: without it replicas that serve nothing take no power.
      decode_scale: multiplies the joules and seconds of decoding.
      dtype: of every array.

    Raises:
      InputError: as `fleet_table`; for a pair without what is asked for, or with a row of decoding
        whose slopes in context are not those of its profile, so that they do not add up over the
        sequences of a batch: joules a token the same at each batch, seconds in proportion to it.
      ValueError: if the replicas are not D numbers above 0.
    """
    known = tables or bundled()
    fleet = fleet_table(models, gpus, regions, known)
    count = np.asarray(replicas, np.float64)
    if count.shape != (len(fleet),) or not (count > 0).all():
        raise ValueError(f"replicas must be [{len(fleet)}] numbers above 0, got {count}")
    pairs = fleet.drop_duplicates(["model", "gpu"])
    largest = int(np.ceil(pairs["batch"].max()))
    curves = [_curve(row, known, largest, by_batch) for _, row in pairs.iterrows()]
    profiles = known.profiles.set_index(["model", "gpu"])
    profiles = profiles.loc[list(zip(pairs["model"], pairs["gpu"], strict=True))]
    idle_w = profiles["idle_w_per_replica"].astype(float)
    if idle and idle_w.isna().any():
        key = idle_w.index[idle_w.isna()][0]
        origin = str(profiles.loc[[key], "origin"].iloc[0])
        place, mend = row_name("profile", key), "give it, or set load.idle = false"
        raise input_error(
            _file(origin, "profiles"), place, "no idle_w_per_replica", "W of an idle replica", mend
        )
    own = len(regions)
    dec_j, dec_s = (
        np.repeat(np.transpose(side), own, axis=1) for side in zip(*curves, strict=True)
    )
    arrays: dict[str, Any] = {
        "replicas": count,
        "slots": fleet["batch"].to_numpy(np.float64),
        "kv_capacity_tokens": np.repeat(profiles["kv_capacity_tokens"].to_numpy(np.float64), own),
        "idle_w": np.repeat(idle_w.to_numpy(), own) if idle else np.zeros(len(fleet)),
        "dec_j": dec_j,
        "dec_s": dec_s,
    }
    made = cast(arrays, dtype)
    made |= {name: made[name] * decode_scale for name in ("dec_j", "dec_s")}
    return Capacity(**made)


def _file(origin: str, table: str) -> str:
    return f"{table}.csv" if origin == BUNDLED else origin


def _curve(profile: pd.Series, tables: Tables, largest: int, by_batch: bool) -> Curve:
    """Of a model on a GPU type, at batches 1 to `largest`."""
    if not by_batch:
        return np.full(largest, profile["dec_j"]), np.full(largest, profile["dec_s"])
    batch, pair = profile["batch"], (profile["model"], profile["gpu"])
    rows = tables.decodes
    rows = rows[(rows["model"] == pair[0]) & (rows["gpu"] == pair[1]) & (rows["batch"] < batch)]
    rows = rows.sort_values("batch")
    if batch > 1 and not (rows["batch"] == 1).any():
        found, expected = f"no {row_name('decode', (*pair, 1))}", "one, as batches change with load"
        mend = (
            "add [[decode]] tables, jaxroute fleet --derive makes some, or set load.batch = false"
        )
        raise input_error("profiles_by_batch.csv", "", found, expected, mend)
    _check_slopes(rows, profile)
    at = np.append(rows["batch"].to_numpy(np.float64), batch)
    n = np.minimum(np.arange(1, largest + 1), batch)

    def at_0(unit: str) -> NDArray[np.float64]:
        per_token = rows[f"decode_{unit}_per_token"]
        moved = per_token - rows[f"decode_{unit}_per_token_per_ctx"] * rows["ref_context"]
        return np.append(moved.to_numpy(np.float64), profile[f"dec_{unit}"])

    joules = np.where(n == batch, profile["dec_j"], np.interp(n, at, at * at_0("j")) / n)
    return joules, np.interp(n, at, at_0("s"))


def _check_slopes(rows: pd.DataFrame, profile: pd.Series) -> None:
    for row in rows.to_dict("records"):
        for unit, share in (("j", 1.0), ("s", row["batch"] / profile["batch"])):
            name = f"decode_{unit}_per_token_per_ctx"
            expected = profile[f"dec_{unit}_ctx"] * share
            if abs(row[name] - expected) > TOLERANCE * expected:
                place = row_name("decode", (row["model"], row["gpu"], row["batch"]))
                scaled = " x its batch / the profile's" if unit == "s" else ""
                raise input_error(
                    _file(row["origin"], "profiles_by_batch"),
                    place,
                    f"{name} {row[name]:g}",
                    f"{expected:.5g}, the profile's{scaled}, within {TOLERANCE:.0%}",
                    "correct it, or set load.batch = false",
                )
