"""Water that generating electricity takes, from what generates it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from jaxroute.load.files import package_file
from jaxroute.load.fleet_tables import bundled
from jaxroute.load.messages import input_error, known_names, shown
from jaxroute.load.table import read_table, require

__all__ = ["read_mix"]

COLUMNS = ("region", "technology", "share")

TOLERANCE = 1e-3
"""By which the shares of a region may miss 1."""


def read_mix(path: str | Path, regions: Sequence[str]) -> NDArray[np.float64]:
    """Litres for a kWh at the meter, `[R]`: the sum over technologies of share x EWIF.

    The energy water intensity factor of each technology is of `ewif_by_technology.csv`: water
    consumed in operation, aggregated from Macknick et al. (2012), Environ. Res. Lett. 7, 045802.

    Args:
      path: a table of `region`, `technology` and `share`, the share (0 to 1) of the region's
        electricity; regions beyond those asked for are checked and not used.
      regions: R names.

    Raises:
      InputError: at an unknown region or technology, a pair that is there twice, shares that do
        not sum to 1, or a region that is missing.
    """

    def columns(header: Sequence[str]) -> list[str]:
        require(str(path), header, COLUMNS)
        return list(COLUMNS)

    table = read_table(path, columns)
    ewif = pd.read_csv(package_file("ewif_by_technology.csv")).set_index("technology")["l_per_kwh"]
    share = table.numbers("share", 0, 1)
    names = {}
    for column, known in (
        ("region", [*bundled().names("regions"), *regions]),
        ("technology", list(ewif.index)),
    ):
        codes, found = table.codes(column)
        for code, name in enumerate(found.to_pylist()):
            if name not in known:
                row = int(np.argmax(codes == code))
                raise table.fault(row, column, f"a known {column}", known_names(name, known))
        names[column] = np.array(found.to_pylist(), object)[codes]
    frame = pd.DataFrame(names | {"share": share})
    again = frame.duplicated(["region", "technology"]).to_numpy()
    if again.any():
        row = int(np.argmax(again))
        found = f"{shown(frame['technology'].iloc[row])} of {frame['region'].iloc[row]} once more"
        raise table.fault(row, "technology", "each technology of a region once", found=found)
    sums = frame.groupby("region", sort=False)["share"].sum()
    for region, total in sums.items():
        if abs(total - 1) > TOLERANCE:
            raise input_error(path, f"region {region}", f"shares that sum to {total:g}", "1")
    for region in regions:
        if region not in sums.index:
            expected = "the mix of every region of the fleet"
            raise input_error(path, "column region", f"no {region}", expected)
    litres = frame["share"] * ewif.loc[frame["technology"]].to_numpy()
    return litres.groupby(frame["region"]).sum().loc[list(regions)].to_numpy(np.float64)
