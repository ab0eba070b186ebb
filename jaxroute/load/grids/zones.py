"""Which zone of a source is which region of a fleet."""

import functools
from collections.abc import Collection, Mapping, Sequence

import pandas as pd

from jaxroute.load.files import package_file
from jaxroute.load.messages import input_error, known_names


@functools.cache
def _aliases() -> dict[str, tuple[str, ...]]:
    names = pd.read_csv(package_file("regions.csv"), keep_default_na=False, dtype=str)
    others = pd.read_csv(package_file("zones.csv"), keep_default_na=False, dtype=str)
    return {
        region: tuple(dict.fromkeys([region, zone, *others["zone"][others["region"] == region]]))
        for region, zone in zip(names["region"], names["em_zone"], strict=True)
    }


def aliases(region: str) -> tuple[str, ...]:
    """Names that sources give a region: its own, Electricity Maps', those of `zones.csv`.

    >>> aliases("US-CISO")
    ('US-CISO', 'US-CAL-CISO', 'CISO', 'CAISO_NORTH')
    """
    return _aliases().get(region, (region,))


def region_of(zone: str) -> str:
    """The region that a zone is; empty if it is none."""
    return next((region for region, names in _aliases().items() if zone in names), "")


def chosen(
    name: str, regions: Sequence[str], zones: Mapping[str, str], found: Collection[str]
) -> dict[str, str]:
    """The zone of each region.

    Args:
      name: what was read, for messages.
      regions: names, each once.
      zones: of some regions, the zone that they are to have.
      found: the zones that there are.

    Raises:
      InputError: if a region has no zone, or more than one.
    """
    out = {}
    for region in regions:
        names = (zones[region],) if region in zones else aliases(region)
        there = [each for each in names if each in found]
        if not there:
            told = f" ({names[0]})" if region in zones else ""
            expected = "its intensity"
            mend = known_names(names[0], sorted(found), "there are")
            if region not in zones:
                mend += f"; say which it is: zones.{region} = '...' under [intensity]"
            raise input_error(name, "", f"no {region}{told}", expected, mend)
        if len(there) > 1:
            mend = f"zones.{region} = '...' under [intensity], or leave a file out"
            raise input_error(name, "", f"{region} as {' and '.join(there)}", "one of them", mend)
        out[region] = there[0]
    return out
