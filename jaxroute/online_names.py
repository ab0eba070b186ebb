"""Names of a live router's deployments, models, regions and clients, and their indices."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from jaxroute.load.messages import input_error, known_names, shown
from jaxroute.world import World

Places = Mapping[str, int]


class Names(NamedTuple):
    """The index of each name, in order.

    Attributes:
      deployments: D of them, model, GPU type and region joined by `|`.
      models, regions, homes: of the M models, R regions and C client regions.
      parts: `[D]`, (model, GPU type, region).
    """

    deployments: Places
    models: Places
    regions: Places
    homes: Places
    parts: Sequence[tuple[str, str, str]]


def names_of(
    world: World, deployments: Sequence[tuple[str, str, str]], homes: Sequence[str]
) -> Names:
    """The names of a world's indices.

    Args:
      world: D deployments.
      deployments: `[D]`, (model, GPU type, region) of each.
      homes: `[C]`, of the rows of `world.rtt_s`.

    Raises:
      InputError: for another number of names, a deployment named twice, or two names of one index.
    """
    size, clients = len(world.fleet.model), len(world.rtt_s)
    joined = {"|".join(each): d for d, each in enumerate(deployments)}
    if not len(joined) == len(deployments) == size:
        found = f"{len(deployments)} names, {len(joined)} of them different"
        raise input_error("OnlineRouter", "deployments", found, f"one for each of {size}")
    if len(set(homes)) != clients or len(homes) != clients:
        found, expected = f"{len(homes)} names", f"{clients} different ones, one a row of rtt_s"
        raise input_error("OnlineRouter", "homes", found, expected)
    models, regions = (
        _axis(np.asarray(index), [each[at] for each in deployments])
        for index, at in ((world.fleet.model, 0), (world.fleet.region, 2))
    )
    places = {name: c for c, name in enumerate(homes)}
    return Names(joined, models, regions, places, list(deployments))


def _axis(index: NDArray, names: Sequence[str]) -> Places:
    """Names of the indices of an axis; without one, an index has its number."""
    named: dict[int, str] = {}
    for place, name in zip(index.tolist(), names, strict=True):
        if named.setdefault(place, name) != name:
            found = f"{named[place]!r} and {name!r} of one index"
            raise input_error("OnlineRouter", "deployments", found, "one name")
    return {named.get(place, str(place)): place for place in range(max(named) + 1)}


def place_of(call: str, field: str, name: object, known: Places) -> int:
    """The index of a name.

    Raises:
      InputError: for an unknown one, with the one most like it.

    >>> place_of("route", "home_region", "de", {"DE": 0})
    Traceback (most recent call last):
    ...
    jaxroute.errors.InputError: route: home_region: found 'de', expected a known name; did you mean 'DE'? known: DE
    """  # noqa: E501
    if not isinstance(name, str) or name not in known:
        mend = known_names(str(name), known)
        raise input_error(call, field, shown(name), "a known name", mend)
    return known[name]
