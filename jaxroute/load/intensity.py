"""The `[intensity]` section of a study file, and the hours that it asks for."""

from collections.abc import Sequence
from typing import Literal

import pandas as pd
from pydantic import Field

from jaxroute.load.carbon import Intensity, read_intensity
from jaxroute.load.files import listed
from jaxroute.load.toml import Section
from jaxroute.load.values import Name, OneOrMore

__all__ = ["IntensityConfig", "read_hours"]


class IntensityConfig(Section):
    """Hourly carbon intensity of the regions.

    `zones` names the zone of a region in the files, where its names do not tell.
    """

    path: OneOrMore = "builtin:typical-day-2023"
    basis: Literal["lifecycle", "direct"] = "lifecycle"
    signal: Literal["average", "marginal"] = "average"
    zones: dict[Name, Name] = Field(default_factory=dict)

    @property
    def paths(self) -> tuple[str, ...]:
        """The files and directories given."""
        return (self.path,) if isinstance(self.path, str) else self.path

    @property
    def files(self) -> tuple[str, ...]:
        """What is read: in place of a directory, the files in it."""
        return tuple(file for path in self.paths for file in listed(path))


def read_hours(
    config: IntensityConfig, regions: Sequence[str], span: tuple[float, float] | None = None
) -> Intensity:
    """The intensity that a study asks for.

    Args:
      config: its section.
      regions: names.
      span: epoch seconds, where a typical day is laid; 2023 by default.

    Raises:
      InputError: as `jaxroute.load.carbon.read_intensity`.
    """
    bounds = None
    if span is not None:
        bounds = pd.Timestamp(span[0], unit="s"), pd.Timestamp(span[1], unit="s")
    return read_intensity(
        config.paths,
        regions,
        span=bounds,
        zones=config.zones,
        basis=config.basis,
        signal=config.signal,
    )
