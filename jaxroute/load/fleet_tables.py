"""The tables that a fleet is made of: the bundled ones, and rows of the user's beside them."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from jaxroute.load.files import package_file
from jaxroute.load.messages import input_error, known_names
from jaxroute.load.own_files import read_rows
from jaxroute.load.own_rows import OwnRows, RegionRow, Row

__all__ = ["BUNDLED", "OWN", "Tables", "bundled", "with_own"]

BUNDLED = "bundled"
"""Origin of a row that is not of a user's file."""

OWN = "own"
"""Provider of the PUE and WUE of a user's file."""

INTERCEPT_MS, MS_PER_KM, WITHIN_MS = 13.3, 0.01592, 2.0
"""Round trips by distance, and within a region, as in `rtt_ms.csv` where none was measured."""

EARTH_KM = 6371.0


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Tables:
    """Every table of a fleet; none is changed in place.

    Attributes:
      models, gpus, profiles, regions: as the bundled files of these names, and `origin`: `bundled`,
        or the file of the row.
      decodes: likewise, as `profiles_by_batch.csv`.
      pue, electricity_price, rtt_ms: as the bundled files of these names.
      abilities: of the user's models that have one, on the scale of the bundled fit.
      notes: which rows are the user's, a line for each file.
    """

    models: pd.DataFrame
    gpus: pd.DataFrame
    profiles: pd.DataFrame
    decodes: pd.DataFrame
    regions: pd.DataFrame
    pue: pd.DataFrame
    electricity_price: pd.DataFrame
    rtt_ms: pd.DataFrame
    abilities: Mapping[str, float] = dataclasses.field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def names(self, field: str) -> list[str]:
        """Names that a study's `fleet.models`, `fleet.gpus` or `fleet.regions` may hold."""
        return list(getattr(self, field)[field.removesuffix("s")])

    @property
    def client_regions(self) -> list[str]:
        """The C regions that clients may be in: those of `rtt_ms`, in its order."""
        return list(self.rtt_ms["client_region"].unique())


def read_bundled(name: str) -> pd.DataFrame:
    """A bundled table; names are text as they stand, so that Norway's `NO` stays `NO`."""
    return pd.read_csv(package_file(name), na_values=[""], keep_default_na=False)


@functools.cache
def bundled() -> Tables:
    """The tables of the package alone."""
    rows: dict[str, Any] = {
        name: read_bundled(f"{name}.csv").assign(origin=BUNDLED)
        for name in ("models", "gpus", "profiles", "regions")
    }
    rest: dict[str, Any] = {
        name: read_bundled(f"{name}.csv") for name in ("pue", "electricity_price", "rtt_ms")
    }
    decodes = read_bundled("profiles_by_batch.csv").assign(origin=BUNDLED)
    return Tables(decodes=decodes, **rows, **rest)


def with_own(paths: Sequence[str]) -> Tables:
    """The bundled tables with the rows of the user's files added, in their order.

    A row that has the name of a bundled one, which for a profile is that of its model and its GPU
    type and for a row of decoding its batch too, must say `override = true`, and no other row may.
    With a bundled profile its bundled rows of decoding go: they are of another machine.

    Args:
      paths: TOML and CSV files (`jaxroute.load.own_files`); without any, the bundled tables.

    Raises:
      InputError: naming the file, the key or the row, what was found and what was expected.
    """
    tables, seen = bundled(), dict[_Key, str]()
    for path in paths:
        rows = read_rows(path)
        for kind in OwnRows.model_fields:
            _check_names(path, kind, getattr(rows, kind), seen)
        tables = _added(tables, path, rows)
    for path in paths:
        _check_pairs(path, tables, "profile")
        _check_pairs(path, tables, "decode")
        _check_decodes(path, tables)
    return tables


_COLUMNS = {"profile": ["model", "gpu"], "decode": ["model", "gpu", "batch"]}

_Key = tuple[Any, ...]


def _columns(kind: str) -> list[str]:
    return _COLUMNS.get(kind, [kind])


def _key(kind: str, row: Row) -> _Key:
    return tuple(getattr(row, name) for name in _columns(kind))


def _keys(table: pd.DataFrame, kind: str) -> list[_Key]:
    return list(table[_columns(kind)].itertuples(index=False, name=None))


def row_name(kind: str, key: _Key) -> str:
    """A row in words.

    >>> row_name("decode", ("my-13b", "MINE-96GB", 8.0))
    'decode my-13b on MINE-96GB at batch 8'
    """
    batch = f" at batch {key[2]:g}" if kind == "decode" else ""
    return f"{kind} {' on '.join(key[:2])}{batch}"


def _check_names(path: str, kind: str, rows: Sequence[Row], seen: dict[_Key, str]) -> None:
    known = set(_keys(getattr(bundled(), f"{kind}s"), kind))
    for row in rows:
        key = _key(kind, row)
        place = row_name(kind, key)
        if (kind, *key) in seen:
            raise input_error(path, place, f"one in {seen[kind, *key]} before it", "each once")
        seen[kind, *key] = path
        if key in known and not row.override:
            mend = "or override = true, to replace it"
            raise input_error(path, place, f"the name of a bundled {kind}", "its own", mend)
        if row.override and key not in known:
            found, expected = "override = true", "the name of a bundled one beside it"
            raise input_error(path, place, found, expected)


def _added(tables: Tables, path: str, rows: OwnRows) -> Tables:
    frames = {f"{kind}s": getattr(tables, f"{kind}s") for kind in OwnRows.model_fields}
    frames["decodes"] = _without_bundled(tables.decodes, rows.profile)
    for kind in ("model", "gpu", "profile", "decode"):
        frames[f"{kind}s"] = _put(frames[f"{kind}s"], kind, getattr(rows, kind), path)
    out = dataclasses.replace(
        tables,
        **frames,
        abilities={
            **tables.abilities,
            **{row.model: row.ability for row in rows.model if row.ability is not None},
        },
        notes=(*tables.notes, _note(path, rows)),
    )
    for place in rows.region:
        out = _with_region(out, path, place)
    return out


def _without_bundled(decodes: pd.DataFrame, profiles: Sequence[Row]) -> pd.DataFrame:
    """Rows of decoding without the bundled ones of pairs whose profile is replaced."""
    replaced = {_key("profile", row) for row in profiles}
    theirs = np.array([key in replaced for key in _keys(decodes, "profile")], bool)
    return decodes[~(theirs & (decodes["origin"] == BUNDLED))]


def _put(table: pd.DataFrame, kind: str, rows: Sequence[Row], path: str) -> pd.DataFrame:
    """The table with rows at its end, those of the same names left out."""
    if not rows:
        return table
    replaced = {_key(kind, row) for row in rows}
    kept = [key not in replaced for key in _keys(table, kind)]
    added = [
        {**row.model_dump(exclude={"override", "ability"}), **row.implied, "origin": path}
        for row in rows
    ]
    told = [{k: v for k, v in row.items() if v is not None} for row in added]
    return pd.DataFrame([*table[kept].to_dict("records"), *told])


def _with_region(tables: Tables, path: str, row: RegionRow) -> Tables:
    name = row.region
    frames = {each: getattr(tables, each) for each in ("pue", "electricity_price", "rtt_ms")}
    if not row.override:
        place = {"region": name, "lat": row.lat, "lon": row.lon, "tier": OWN, "origin": path}
        regions = pd.DataFrame([*tables.regions.to_dict("records"), place])
        frames["regions"] = regions
        frames["rtt_ms"] = pd.concat([tables.rtt_ms, _round_trips(regions)], ignore_index=True)
    else:
        same = tables.regions["region"] == name
        frames["regions"] = tables.regions.assign(origin=tables.regions["origin"].mask(same, path))
    reported = {"provider": OWN, "pue": row.pue, "wue_l_per_kwh": row.wue_l_per_kwh}
    frames["pue"] = _with_row(tables.pue, {"region": name, "source": row.source, **reported})
    if row.price_usd_per_kwh is not None:
        price = {"year": row.price_year, "mean_usd_per_mwh": row.price_usd_per_kwh * 1e3}
        others = tables.electricity_price[tables.electricity_price["region"] != name]
        new = {"region": name, "source": row.source, **price}
        frames["electricity_price"] = _with_row(others, new)
    return dataclasses.replace(tables, **frames)


def _with_row(table: pd.DataFrame, row: Mapping[str, object]) -> pd.DataFrame:
    return pd.DataFrame([*table.to_dict("records"), row])


def _round_trips(regions: pd.DataFrame) -> pd.DataFrame:
    """Rows of `rtt_ms` between the last of the regions and each, in both directions.

    `13.3 ms + 0.01592 ms/km` along the great circle, the fit to pairs of data centres that stands
    for those without a measurement in the bundled table; 2 ms within a region.
    """
    lat, lon = np.radians(regions[["lat", "lon"]].to_numpy(float)).T
    half = np.sin((lat - lat[-1]) / 2) ** 2
    half += np.cos(lat) * np.cos(lat[-1]) * np.sin((lon - lon[-1]) / 2) ** 2
    km = 2 * EARTH_KM * np.arcsin(np.sqrt(np.minimum(half, 1)))
    rtt = INTERCEPT_MS + MS_PER_KM * km
    rtt[-1] = WITHIN_MS
    names, new = regions["region"], regions["region"].iloc[-1]
    out = pd.DataFrame({"client_region": names, "dc_region": new, "rtt_ms": rtt, "km": km.round()})
    out["source"] = "fit"
    swapped = {"client_region": "dc_region", "dc_region": "client_region"}
    return pd.concat([out, out.iloc[:-1].rename(columns=swapped)])


def _check_pairs(path: str, tables: Tables, kind: str) -> None:
    """That the models and GPU types of a file's profiles, or rows of decoding, are known."""
    table = getattr(tables, f"{kind}s")
    own = table[table["origin"] == path]
    for key in _keys(own, kind):
        for part, name in zip(("model", "gpu"), key, strict=False):
            known = tables.names(f"{part}s")
            if name not in known:
                expected = f"a bundled {part}, or one of a [[{part}]] table"
                place = row_name(kind, key)
                raise input_error(path, place, repr(name), expected, known_names(name, known))


def _check_decodes(path: str, tables: Tables) -> None:
    """That a file's rows of decoding are of a profile, and of as many GPUs."""
    gpus = dict(
        zip(_keys(tables.profiles, "profile"), tables.profiles["tensor_parallel"], strict=True)
    )
    own = tables.decodes[tables.decodes["origin"] == path]
    for key, count in zip(_keys(own, "decode"), own["tensor_parallel"], strict=True):
        place, expected = row_name("decode", key), gpus.get(key[:2])
        if expected is None:
            raise input_error(
                path, place, "no profile of the two", "one", "add a [[profile]] table"
            )
        if not (pd.isna(count) or count == expected):
            found = f"tensor_parallel {count:g}"
            raise input_error(path, place, found, f"{expected:g}, as its profile says")


def _note(path: str, rows: OwnRows) -> str:
    """In words, which rows of a file took part."""
    told = [
        f"{row_name(kind, _key(kind, row))}{_words(row)}{_replacing(row)}"
        for kind in OwnRows.model_fields
        if kind != "decode"
        for row in getattr(rows, kind)
    ]
    decodes = dict[tuple[str, str], list[Row]]()
    for row in rows.decode:
        decodes.setdefault((row.model, row.gpu), []).append(row)
    for pair, own in decodes.items():
        batches = f"{len(own)} batch{'es' if len(own) > 1 else ''}"
        told.append(f"decode {' on '.join(pair)} at {batches}{_replacing(*own)}")
    return f"of your own, in {Path(path).name}: {', '.join(told) or 'nothing'}"


def _words(row: Row) -> str:
    words = getattr(row, "decode_provenance", "")
    return f" ({words})" if words else ""


def _replacing(*rows: Row) -> str:
    return " in place of the bundled" if any(row.override for row in rows) else ""
