"""The fleet from its tables: which deployments there are, and what each costs to run.

Sources of the bundled tables (each has its own `source` columns, and `jaxroute/data/README.md`
tells the whole):
`models.csv`, parameters and context limits of the model cards; `gpus.csv`, embodied carbon of GPU
and host over a lifetime of five years; `profiles.csv`, energy and time of serving, decode measured
(ML.ENERGY v3) or fitted to that, prefill from a roofline; `pue.csv`, PUE and WUE as the providers
report them; `electricity_price.csv`, means of wholesale prices; `rtt_ms.csv`, round trips between
cloud regions, measured or fitted to distance.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import DTypeLike, NDArray

from jaxroute.load.fleet_tables import OWN, Tables, bundled
from jaxroute.load.messages import input_error, known_names, shown
from jaxroute.world import Fleet, Retention, World, cast

__all__ = [
    "build_world",
    "client_regions",
    "fleet_table",
    "price_of",
    "pue_of",
    "reported",
    "wue_of",
]

BLOCK_TOKENS = 16
"""Tokens of a KV block: vLLM's default, where only full blocks are shared."""

PROVIDERS = (OWN, "aws", "gcp", "azure")
"""Whose PUE and WUE speak for a region, the first that reports one: the user's before all."""

PROVENANCE = ("decode_provenance", "prefill_provenance")

_RENAMED = {
    "prefill_j_per_token": "pre_j",
    "prefill_j_per_token_per_ctx": "pre_j_ctx",
    "prefill_s_per_token": "pre_s",
    "prefill_s_per_token_per_ctx": "pre_s_ctx",
    "decode_j_per_token": "dec_j",
    "decode_j_per_token_per_ctx": "dec_j_ctx",
    "decode_s_per_token": "dec_s",
    "decode_s_per_token_per_ctx": "dec_s_ctx",
    "host_w_per_replica": "host_w",
}
_INDICES = ("model", "gpu", "region")
_COEFFICIENTS = (
    *("pre_j", "pre_j_ctx", "pre_s", "pre_s_ctx", "ttft_floor_s"),
    *("dec_j", "dec_j_ctx", "dec_s", "dec_s_ctx", "host_w", "batch"),
    *("embodied_g_per_s", "max_context_tokens", "params_b"),
)


def _check(tables: Tables, kind: str, names: Sequence[str]) -> None:
    file = f"{kind}s.csv"
    known = tables.names(f"{kind}s")
    for name in names:
        if name not in known:
            raise input_error(
                file, kind, shown(name), f"a {kind} in the table", known_names(name, known)
            )
        if names.count(name) > 1:
            raise input_error(file, kind, f"{name!r} asked for twice", f"each {kind} once")


def fleet_table(
    models: Sequence[str],
    gpus: Sequence[str],
    regions: Sequence[str],
    tables: Tables | None = None,
) -> pd.DataFrame:
    """Every deployment of a fleet, one a row: model-major, then GPU type, then region.

    Decode costs, stated at a reference context in `profiles.csv`, are moved to context 0:
    `dec = decode_per_token - decode_per_token_per_ctx * ref_context`. Embodied carbon is
    `embodied_gpu_plus_host_ug_per_s * 1e-6 * tensor_parallel`. The context limit is the model's, or
    the room for KV on a replica where that is less.

    Args:
      models, gpus, regions: names as in the tables of models, GPU types and regions.
      tables: the bundled ones by default.

    Returns:
      `model`, `gpu`, `region` (names); the coefficients of `jaxroute.world.Fleet`, in its units;
      `tensor_parallel`; `decode_provenance` and `prefill_provenance`.

    Raises:
      InputError: for an unknown name, or a model that has no profile on a GPU type.
    """
    known = tables or bundled()
    for kind, names in zip(_INDICES, (models, gpus, regions), strict=True):
        _check(known, kind, names)
    profiles = known.profiles.set_index(["model", "gpu"])
    pairs = pd.MultiIndex.from_product([models, gpus], names=["model", "gpu"])
    for model, gpu in pairs:
        if (model, gpu) not in profiles.index:
            others = [other for each, other in profiles.index if each == model]
            found, expected = f"no profile of {model} on {gpu}", "one of each pair"
            mend = f"it has {', '.join(others)}"
            if not others:
                mend = "it has none: add [[profile]] tables (jaxroute fleet --derive makes some)"
            raise input_error("profiles.csv", "", found, expected, mend)
    table = profiles.loc[pairs].rename(columns=_RENAMED).reset_index()
    table = table.merge(known.models[["model", "params_total", "max_context"]], "left")
    table = table.merge(known.gpus[["gpu", "embodied_gpu_plus_host_ug_per_s"]], "left")
    for unit in ("j", "s"):
        table[f"dec_{unit}"] -= table[f"dec_{unit}_ctx"] * table["ref_context"]
        wrong = table[~(table[f"dec_{unit}"] > 0)]
        if len(wrong):
            row = wrong.iloc[0]
            place, found = f"{row['model']} on {row['gpu']}", f"{row[f'dec_{unit}']:g}"
            raise input_error("profiles.csv", place, found, f"dec_{unit} > 0 at context 0")
    table["embodied_g_per_s"] = (
        table["embodied_gpu_plus_host_ug_per_s"] * 1e-6 * table["tensor_parallel"]
    )
    table["max_context_tokens"] = table[["max_context", "kv_capacity_tokens"]].min(axis=1)
    table["params_b"] = table["params_total"] / 1e9
    table = table.merge(pd.DataFrame({"region": list(regions)}), "cross")
    return table[[*_INDICES, *_COEFFICIENTS, "tensor_parallel", *PROVENANCE]]


def pue_of(region: str, tables: Tables | None = None) -> float:
    """Power usage effectiveness of data centres in a region, as the providers report it.

    The user's own, else the newest AWS value, else GCP's, else Azure's; for a region without any,
    the same of the providers' global averages (`*` in `pue.csv`).
    """
    return float(reported(region, "pue", tables)["pue"])


def wue_of(region: str, tables: Tables | None = None) -> float:
    """Litres of water for a kWh of IT energy in data centres of a region, as the providers report.

    Chosen as `pue_of` is among the rows that report it: without any in the region, the global
    average of Azure, 0.3, the only one.
    """
    return float(reported(region, "wue_l_per_kwh", tables)["wue_l_per_kwh"])


def reported(region: str, column: str, tables: Tables | None = None) -> pd.Series:
    """The row of the table of PUE and WUE whose `column` speaks for a region."""
    table = (tables or bundled()).pue.dropna(subset=[column])
    table = table.sort_values("year", ascending=False, kind="stable")
    rows = table[table["region"] == region]
    rows = rows if len(rows) else table[table["region"] == "*"]
    rank = rows["provider"].map({name: rank for rank, name in enumerate(PROVIDERS)})
    return rows.loc[rank.sort_values(kind="stable").index[0]]


def price_of(region: str, tables: Tables | None = None) -> tuple[float, int]:
    """USD for a kWh, the mean of a region's newest year, and that year; NaN and 0 if not known."""
    table = (tables or bundled()).electricity_price
    rows = table[table["region"] == region]
    if rows.empty:
        return float("nan"), 0
    newest = rows.sort_values("year").iloc[-1]
    return float(newest["mean_usd_per_mwh"]) / 1e3, int(newest["year"])


def client_regions(tables: Tables | None = None) -> list[str]:
    """The C regions that clients may be in: those of `rtt_ms.csv`, then the user's."""
    return (tables or bundled()).client_regions


def _rtt_s(regions: Sequence[str], tables: Tables) -> NDArray[np.float64]:
    wide = tables.rtt_ms.pivot(index="client_region", columns="dc_region", values="rtt_ms")
    return wide.loc[tables.client_regions, list(regions)].to_numpy(np.float64) / 1e3


def build_world(
    models: Sequence[str],
    gpus: Sequence[str],
    regions: Sequence[str],
    intensity_g_per_kwh: NDArray[np.floating],
    *,
    ewif_l_per_kwh: NDArray[np.floating] | None = None,
    tables: Tables | None = None,
    dtype: DTypeLike = np.float32,
) -> World:
    """The world of a fleet, as NumPy arrays; caches are kept for ever and nothing waits.

    Args:
      models, gpus, regions: names, as for `fleet_table`; deployments are in its order.
      intensity_g_per_kwh: `[H, R]`, gCO2e/kWh, columns in the order of `regions`.
      ewif_l_per_kwh: `[R]`, litres that generating a kWh takes (`read_mix`); 0 by default.
      tables: the bundled ones by default.
      dtype: of every float; indices are int32.

    Raises:
      InputError: as `fleet_table`.
      ValueError: if the intensity is not finite numbers `[H, R]`, H at least 1.
    """
    known = tables or bundled()
    table = fleet_table(models, gpus, regions, known)
    intensity = np.asarray(intensity_g_per_kwh, np.float64)
    if intensity.ndim != 2 or intensity.shape[1] != len(regions) or not len(intensity):
        raise ValueError(f"intensity must be [H, {len(regions)}], got shape {intensity.shape}")
    if not np.isfinite(intensity).all():
        raise ValueError("intensity must be finite")
    indices: dict[str, Any] = {
        field: table[field].map({name: index for index, name in enumerate(names)})
        for field, names in zip(_INDICES, (models, gpus, regions), strict=True)
    }
    coefficients: dict[str, Any] = {field: table[field].to_numpy() for field in _COEFFICIENTS}
    grids: dict[str, Any] = {
        "block_tokens": np.asarray(BLOCK_TOKENS, np.float64),
        "pue": np.array([pue_of(region, known) for region in regions]),
        "wue_l_per_kwh": np.array([wue_of(region, known) for region in regions]),
        "ewif_l_per_kwh": np.zeros(len(regions)) if ewif_l_per_kwh is None else ewif_l_per_kwh,
        "price_usd_per_kwh": np.array([price_of(region, known)[0] for region in regions]),
        "intensity_g_per_kwh": intensity,
        "rtt_s": _rtt_s(regions, known),
        "wait_s": np.zeros((1, 1)),
    }
    world = World(
        fleet=Fleet(
            **{field: column.to_numpy(np.int32) for field, column in indices.items()},
            **{field: values.astype(np.float64) for field, values in coefficients.items()},
        ),
        retention=Retention.of(),
        **grids,
    )
    return cast(world, dtype)
