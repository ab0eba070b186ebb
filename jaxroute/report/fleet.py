"""The fleet of a study on a terminal: what each model costs on each GPU type, and each region."""

import functools
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from jaxroute.config import StudyConfig
from jaxroute.load.files import sha256
from jaxroute.load.fleet import fleet_table, price_of, reported
from jaxroute.load.fleet_tables import BUNDLED
from jaxroute.load.intensity import read_hours
from jaxroute.load.messages import input_error
from jaxroute.report.tables import grid, put, put_notes
from jaxroute.report.target import RECORD

__all__ = ["FLEET_FILES", "FleetListing", "fleet_listing", "show_fleet", "write_fleet"]

FLEET_FILES = ("fleet.csv", "regions.csv", RECORD)
"""What a written listing consists of."""

CONTEXT_TOKENS = 1024

MOST_TOKENS = 2**24


class FleetListing(NamedTuple):
    """What a fleet costs.

    Attributes:
      pairs: one row for each model and GPU type, per replica: `tensor_parallel`, `batch`,
        `context_tokens`; `prefill_j_per_token` and `prefill_s_per_token`, the mean over a prompt of
        that length; `decode_j_per_token` and `tpot_s` at that context; `ttft_floor_s`,
        `max_context_tokens`, `host_w`, `embodied_g_per_s`, the provenances; `origin`: `bundled`,
        or the user's file.
      regions: one row each: `pue`, `wue_l_per_kwh` and who reports them, `mean_g_per_kwh` over the
        hours of the study's intensity, `price_usd_per_kwh` and its year, `origin`.
      notes: how to read them.
      config: the study's.
    """

    pairs: pd.DataFrame
    regions: pd.DataFrame
    notes: tuple[str, ...]
    config: StudyConfig


def fleet_listing(config: StudyConfig, context_tokens: int = CONTEXT_TOKENS) -> FleetListing:
    """The fleet of a study, with its scales.

    Args:
      config: the study.
      context_tokens: at which prefill and decode are told.

    Raises:
      InputError: as `fleet_table` and `read_hours`; if the context is not 1 to 2^24 tokens.
    """
    if not 1 <= context_tokens <= MOST_TOKENS:
        expected = f"a whole number from 1 to {MOST_TOKENS:,}"
        raise input_error("--context", "", str(context_tokens), expected)
    fleet, known = config.fleet, config.fleet.known
    hours = read_hours(config.intensity, fleet.regions)
    table = fleet_table(fleet.models, fleet.gpus, fleet.regions[:1], known)
    origin = known.profiles.set_index(["model", "gpu"])["origin"]
    pairs = table[["model", "gpu", "tensor_parallel", "batch"]].assign(
        context_tokens=context_tokens,
        prefill_j_per_token=_at(table, "pre_j", context_tokens / 2) * fleet.prefill_scale,
        decode_j_per_token=_at(table, "dec_j", context_tokens) * fleet.decode_scale,
        prefill_s_per_token=_at(table, "pre_s", context_tokens / 2) * fleet.prefill_scale,
        tpot_s=_at(table, "dec_s", context_tokens) * fleet.decode_scale,
        **{
            name: table[name]
            for name in ("ttft_floor_s", "max_context_tokens", "host_w", "embodied_g_per_s")
        },
        decode_provenance=table["decode_provenance"],
        prefill_provenance=table["prefill_provenance"],
        origin=origin.loc[list(zip(table["model"], table["gpu"], strict=True))].to_numpy(),
    )
    places = known.regions.set_index("region")["origin"]
    rows = []
    for region, mean in zip(fleet.regions, hours.g_per_kwh.mean(axis=0), strict=True):
        pue, wue = (reported(region, name, known) for name in ("pue", "wue_l_per_kwh"))
        price, year = price_of(region, known)
        rows.append(
            {
                "region": region,
                "pue": pue["pue"],
                "pue_source": _reporter(pue),
                "wue_l_per_kwh": wue["wue_l_per_kwh"],
                "wue_source": _reporter(wue),
                "mean_g_per_kwh": mean,
                "price_usd_per_kwh": price,
                "price_year": year or None,
                "origin": places[region],
            }
        )
    regions = pd.DataFrame(rows).astype({"price_year": "Int64"})
    return FleetListing(pairs, regions, _notes(config, hours.note, context_tokens), config)


def _at(table: pd.DataFrame, cost: str, context_tokens: float) -> pd.Series:
    return table[cost] + table[f"{cost}_ctx"] * context_tokens


def _reporter(row: pd.Series) -> str:
    year = "" if pd.isna(row["year"]) else f" {row['year']:.0f}"
    return f"{row['provider']}{year}{', global mean' if row['region'] == '*' else ''}"


def _notes(config: StudyConfig, intensity: str, context_tokens: int) -> tuple[str, ...]:
    fleet = config.fleet
    scaled = ""
    if (fleet.prefill_scale, fleet.decode_scale) != (1, 1):
        scaled = f"; x {fleet.prefill_scale:g} prefill, x {fleet.decode_scale:g} decode"
    return (
        f"joules of a replica's GPUs for a token of one request: prefill the mean over a prompt of "
        f"{context_tokens:,} tokens, decode after {context_tokens:,}, at the batch stated{scaled}",
        "host power, PUE and embodied carbon come on top",
        "TPOT: seconds between two tokens of a request; TTFT floor: the least time to a first one",
        "decode of the bundled profiles: measured (ML.ENERGY v3), or a roofline fitted to that; "
        "prefill: roofline; errors of both in jaxroute/data/README.md",
        f"intensity: {intensity}",
        *fleet.known.notes,
    )


Row = Mapping[Any, Any]

COLUMNS: dict[str, Callable[[Row], str]] = {
    "GPU type": lambda row: escape(row["gpu"]),
    "GPUs": lambda row: f"{row['tensor_parallel']:g}",
    "batch": lambda row: f"{row['batch']:g}",
    "prefill J/tok": lambda row: f"{row['prefill_j_per_token']:.4g}",
    "decode J/tok": lambda row: f"{row['decode_j_per_token']:.4g}",
    "TPOT ms": lambda row: f"{row['tpot_s'] * 1e3:.3g}",
    "TTFT floor ms": lambda row: f"{row['ttft_floor_s'] * 1e3:.3g}",
    "context limit": lambda row: f"{row['max_context_tokens']:,.0f}",
    "decode from": lambda row: escape(_short(row, "decode_provenance")),
    "prefill from": lambda row: escape(_short(row, "prefill_provenance")),
}

CHOICES = [
    list(COLUMNS),
    [name for name in COLUMNS if name not in ("prefill from", "TTFT floor ms")],
    ["GPU type", "prefill J/tok", "decode J/tok", "TPOT ms", "decode from"],
]
"""Of columns: all, or those that a narrow terminal has room for."""

PLACES: dict[str, Callable[[Row], str]] = {
    "PUE": lambda row: f"{row['pue']:.3g}",
    "reported by": lambda row: escape(row["pue_source"]),
    "WUE L/kWh": lambda row: f"{row['wue_l_per_kwh']:.3g}",
    "WUE by": lambda row: escape(row["wue_source"]),
    "mean g/kWh": lambda row: f"{row['mean_g_per_kwh']:.1f}",
    "USD/kWh": lambda row: _or_none(row["price_usd_per_kwh"], ".4f"),
    "of": lambda row: _or_none(row["price_year"], "d"),
    "row": lambda row: escape(_file(row)),
}

PLACE_CHOICES = [list(PLACES), ["PUE", "WUE L/kWh", "mean g/kWh", "USD/kWh"]]


def _or_none(value: Any, form: str) -> str:
    return "not known" if pd.isna(value) else format(value, form)


def _file(row: Row) -> str:
    return row["origin"] if row["origin"] == BUNDLED else f"yours: {Path(row['origin']).name}"


def _short(row: Row, column: str) -> str:
    """The word of a bundled provenance; a user's whole, marked as theirs."""
    if row["origin"] == BUNDLED:
        return str(row[column]).partition(":")[0]
    return f"yours: {row[column]}"[:40]


def show_fleet(listing: FleetListing, out: Console) -> None:
    """Prints a table of models and GPU types, one of regions, then how to read them."""
    context = listing.pairs["context_tokens"].iloc[0]
    title = f"{listing.config.name}: a replica at {context:,} tokens of context"
    pairs = listing.pairs.to_dict("records")
    put(out, functools.partial(_table, pairs, "model", COLUMNS), title, CHOICES)
    places = listing.regions.to_dict("records")
    put(out, functools.partial(_table, places, "region", PLACES), "regions", PLACE_CHOICES)
    put_notes(out, listing.notes)


def _table(
    rows: list[dict[Any, Any]],
    first: str,
    cells: Mapping[str, Callable[[Row], str]],
    title: str,
    columns: list[str],
) -> Table:
    table, last = grid(title, first, columns), None
    for row in rows:
        name = row[first]
        table.add_row("" if name == last else escape(name), *(cells[each](row) for each in columns))
        last = name
    return table


def write_fleet(directory: Path, listing: FleetListing) -> None:
    """Writes `FLEET_FILES` into a directory."""
    from jaxroute.report.files import made_with, write_tables  # late: it imports much

    config = listing.config
    files = (*config.fleet.tables, *config.intensity.files)
    record = {
        **made_with(),
        "study": json.loads(config.model_dump_json(exclude_none=True)),
        "inputs_sha256": {file: sha256(file) for file in files},
        "notes": list(listing.notes),
    }
    write_tables(directory, {"fleet": listing.pairs, "regions": listing.regions}, record)
