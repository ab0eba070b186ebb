"""Tables with a row for each time of each zone."""

import numpy as np
from numpy.typing import NDArray

from jaxroute.errors import InputError
from jaxroute.load.grids.readings import MOST_G_PER_KWH, Asked, Fault, Samples, samples
from jaxroute.load.messages import input_error
from jaxroute.load.table import Table

_SECOND = 1_000_000
"""Microseconds of one."""

Zones = dict[str, dict[str, Samples]]


def by_zone(
    asked: Asked, table: Table, time: str, zone: str, value: str, *, missing_ok: bool = False
) -> tuple[tuple[str, ...], Zones, NDArray[np.int64]]:
    """Every zone's name, the samples of those asked for, and the rows that these are in.

    Args:
      asked: which zones; the rows of others may hold anything.
      table: its columns.
      time, zone, value: names of columns; `time` is when a sample begins.
      missing_ok: whether a value may be missing, as a gap.

    Raises:
      InputError: at the first row that is wrong; if there is none.
    """
    if not len(table):
        raise input_error(asked.name, "", "no rows", "hourly intensity")
    code, names = table.codes(zone)
    found = names.to_pylist()
    wanted = np.array([asked.wants(each) for each in found])[code]
    rows = np.flatnonzero(wanted)
    micros = table.times(time, rows).as_unit("us").asi8
    uneven = np.flatnonzero(micros % (60 * _SECOND))
    if len(uneven):
        raise table.fault(int(rows[uneven[0]]), time, "a time on a whole minute")
    number = table.numbers(value, 0, MOST_G_PER_KWH, missing_ok=missing_ok, rows=rows)
    read: Zones = {}
    order = np.argsort(code[rows], kind="stable")
    for of_zone in np.split(order, np.flatnonzero(np.diff(code[rows][order])) + 1):
        if len(of_zone):
            name = found[code[rows[of_zone[0]]]]
            fault = _fault(table, time, rows[of_zone], name)
            begin = micros[of_zone] // _SECOND
            read[name] = {"": samples(begin, number[of_zone], fault, asked.repairs)}
    return tuple(found), read, rows


def _fault(table: Table, column: str, rows: NDArray[np.int64], zone: str) -> Fault:
    def fault(index: int, found: str, expected: str, mend: str) -> InputError:
        return table.fault(int(rows[index]), column, expected, mend, f"{found}, of {zone}")

    return fault
