"""Intensity from what generates: `Σ generation x factor / Σ generation`, hour by hour.

Production-based: imports and exports are left out, and so is what comes out of storage, whose
carbon was emitted when it was charged. The factors are life-cycle, of `emission_factors.csv`, each
with its source there; most are medians of IPCC AR5 WG3 (2014), Annex III, table A.III.2.
"""

import csv
import functools
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from jaxroute.load.files import package_file
from jaxroute.load.grids.hours import LONGEST_GAP, PARTLY, Hourly, at_hours, hourly
from jaxroute.load.grids.readings import Samples
from jaxroute.load.messages import known_names
from jaxroute.load.repairs import Repairs

TABLE = "emission_factors.csv"

BASIS = "life-cycle by fuel type, production-based"

LEAST_MW, MOST_MW = -1e6, 1e7
"""No zone consumes or generates a tenth of it: more is another unit."""

STORAGE = "series of storage left out"
NEGATIVE = "negative generation counted as 0"


class Factor(NamedTuple):
    """A fuel type.

    Attributes:
      g_per_kwh: gCO2e/kWh, life-cycle; NaN of storage, which is left out.
      assumed: whether no source has it, and that of another technology stands in.
    """

    g_per_kwh: float
    assumed: bool


@functools.cache
def factors(scheme: str) -> dict[str, Factor]:
    """The fuel types of a scheme by code: `eia` or `entsoe`.

    >>> factors("eia")["NUC"].g_per_kwh
    12.0
    """
    with package_file(TABLE).open(encoding="utf-8", newline="") as stream:
        return {
            row["code"]: Factor(float(row["g_per_kwh"] or "nan"), row["assumed"] == "yes")
            for row in csv.DictReader(stream)
            if row["scheme"] == scheme
        }


def unknown(code: str, scheme: str) -> tuple[str, str]:
    """What is expected in place of an unknown code, and how to mend it."""
    return f"a fuel type of {TABLE}", known_names(code, factors(scheme))


def weighed(
    zone: str, scheme: str, fuels: Mapping[str, Samples], repairs: Repairs
) -> tuple[Hourly, tuple[str, ...]]:
    """Intensity of the hours in which something generates, and what to know of it.

    A fuel type that is missing for at most three hours is interpolated; an hour inside a longer gap
    of one is left out. So are up to three hours at an end that one lacks, as if not yet reported;
    more of them are before it began, or after it ended: there it counts as 0.

    Args:
      zone: its name.
      scheme: of the fuel types.
      fuels: generation by fuel type; the unit does not matter.
      repairs: where those are counted.
    """
    known = dict[str, Hourly]()
    for code, samples in fuels.items():
        if len(samples.value):
            known[code], partly = hourly(samples)
            if partly:
                repairs.note(PARTLY, f"{code} of {zone}", partly)
    hours = np.unique(np.concatenate([np.zeros(0, np.int64), *(h.hour for h in known.values())]))
    total, emitted, assumed = np.zeros((3, len(hours)))
    for code, fuel in known.items():
        factor = factors(scheme)[code]
        value = at_hours(fuel, hours)
        outside, cut = np.zeros(len(hours), bool), np.zeros(len(hours), bool)
        for beyond in (hours < fuel.hour[0], hours > fuel.hour[-1]):
            (cut if beyond.sum() <= LONGEST_GAP else outside)[beyond] = True
        filled = np.isfinite(value) & ~np.isin(hours, fuel.hour)
        for what, where in (
            ("hours of a fuel type interpolated", filled),
            ("hours at an end left out, as a fuel type lacks them", cut),
            ("hours before or after all of a fuel type's, where it counts as 0", outside),
        ):
            if where.any():
                repairs.note(what, f"{code} of {zone}", int(where.sum()))
        value = np.where(outside, 0.0, value)
        total += value
        emitted += value * factor.g_per_kwh
        assumed += value * factor.assumed
    some = total > 0  # false of NaN
    notes = ["generation of the zone alone, without imports and storage"]
    if assumed[some].any():
        share = assumed[some].sum() / total[some].sum()
        notes.append(f"{share:.1%} of {zone}'s generation at an assumed factor")
    return Hourly(hours[some], emitted[some] / total[some]), tuple(notes)
