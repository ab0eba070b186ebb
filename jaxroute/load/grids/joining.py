"""Files of intensity together: hour by hour for each zone, whichever files they are in."""

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from jaxroute.load.files import BUILTIN, left_out, listed, parts
from jaxroute.load.grids import detection, generation
from jaxroute.load.grids.hours import PARTLY, Hourly, hourly
from jaxroute.load.grids.readings import REPEATED, Asked, Reading, Samples, repeated, utc
from jaxroute.load.messages import input_error
from jaxroute.load.repairs import Repairs

ASIDE = "files of a directory that are no data, by their names, left out"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Zone:
    """A zone's intensity.

    Attributes:
      name: as its source calls it.
      format, signal, basis: as of `Reading`.
      files: where it stands.
      hours: g/kWh; some may be missing between.
      notes: what to know of it, in words.
    """

    name: str
    format: str
    signal: str
    basis: str
    files: tuple[str, ...]
    hours: Hourly
    notes: tuple[str, ...] = ()


def read_all(
    paths: Sequence[str | Path], zones: Collection[str] | None, basis: str, repairs: Repairs
) -> list[Reading]:
    """Reads files, and those of directories.

    Args:
      paths: files or directories.
      zones: to read; None: all.
      basis: `lifecycle` or `direct`, where a file has both.
      repairs: where to count what was mended.

    Raises:
      InputError: for the first fault of any of them.
    """
    out = []
    for path in paths:
        if str(path).startswith(BUILTIN) and len(paths) > 1:
            raise input_error(path, "", "a bundled table beside files", "one or the other")
        if aside := left_out(path):
            repairs.note(ASIDE, aside[0], len(aside))
        for name in listed(path):
            asked = Asked(name, parts(name)[0], zones, basis, repairs)
            out.append(detection.read(asked))
    return out


def joined(readings: Sequence[Reading], repairs: Repairs) -> dict[str, Zone]:
    """Every zone of some files, by its name.

    Raises:
      InputError: if a time of a zone has two values in two files, or they are of different kinds.
    """
    of_zone: dict[str, list[Reading]] = {}
    for reading in readings:
        for zone in reading.samples:
            of_zone.setdefault(zone, []).append(reading)
    return {zone: _zone(zone, several, repairs) for zone, several in of_zone.items()}


def _zone(name: str, readings: Sequence[Reading], repairs: Repairs) -> Zone:
    first = readings[0]
    for other in readings[1:]:
        if (other.format, other.signal, other.basis) != (first.format, first.signal, first.basis):
            found = f"{name} ({other.format}, {other.basis})"
            expected = f"it from one source: it is in {first.name} too ({first.format})"
            raise input_error(other.name, "", found, expected, "leave one file out")
    fuels = {
        fuel: _together(name, [r for r in readings if fuel in r.samples[name]], fuel, repairs)
        for fuel in dict.fromkeys(fuel for each in readings for fuel in each.samples[name])
    }
    notes = tuple(note for each in readings for note in each.notes)
    if first.scheme:
        hours, told = generation.weighed(name, first.scheme, fuels, repairs)
        notes += told
    else:
        hours, partly = hourly(fuels[""])
        if partly:
            repairs.note(PARTLY, name, partly)
    return Zone(
        name=name,
        format=first.format,
        signal=first.signal,
        basis=first.basis,
        files=tuple(each.name for each in readings),
        hours=hours,
        notes=tuple(dict.fromkeys(notes)),
    )


def _together(zone: str, readings: Sequence[Reading], fuel: str, repairs: Repairs) -> Samples:
    parts = [each.samples[zone][fuel] for each in readings]
    if len(parts) == 1:
        return parts[0]
    begin, length, value = (np.concatenate(each) for each in zip(*parts, strict=True))
    whose = np.repeat(np.arange(len(parts)), [len(each.value) for each in parts])
    order = np.argsort(begin, kind="stable")
    what = f"{fuel} of {zone}" if fuel else zone
    same = repeated(begin[order], length[order], value[order])
    if same.any():
        repairs.note(REPEATED, f"{utc(begin[order][same][0])} of {what}", int(same.sum()))
    order = order[~same]
    begin, length, value, whose = begin[order], length[order], value[order], whose[order]
    again = np.flatnonzero(np.diff(begin) < length[:-1])
    if len(again):
        one, two = (readings[whose[again[0] + n]].name for n in (0, 1))
        found = f"{utc(begin[again[0] + 1])} of {what}"
        raise input_error(two, "", found, f"each time once: {one} has it with another value")
    return Samples(begin, length, value)


def signal_of(zones: Mapping[str, Zone], asked: str) -> None:
    """Refuses zones of another signal than the one asked for, or of both.

    Raises:
      InputError: naming a file, and how to ask for what it has.
    """
    told = {zone.signal: zone for zone in zones.values() if zone.signal}
    if len(told) > 1:
        one, two = told.values()
        found = f"{two.signal} intensity of {two.name}"
        expected = f"{one.signal} intensity, as that of {one.name} ({one.files[0]})"
        mend = "they rank regions differently: give one or the other"
        raise input_error(two.files[0], "", found, expected, mend)
    for signal, zone in told.items():
        if signal != asked:
            found = f"{signal} intensity ({zone.format})"
            mend = f'to use it: signal = "{signal}" under [intensity] in the study file'
            raise input_error(zone.files[0], "", found, f"{asked} intensity", mend)
