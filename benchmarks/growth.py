"""How the speed of an engine changes along sessions, turns, deployments and settings."""

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

from benchmarks import program, synthetic
from jaxroute.policies import RouterParams
from jaxroute.sessions import Sessions
from jaxroute.study import Study
from jaxroute.world import World

BASE = {"sessions": 128, "turns": 32, "deployments": 60, "settings": 256}
"""One number is changed at a time."""

AXES = {
    "sessions": (32, 128, 512),
    "turns": (8, 32, 128),
    "deployments": (12, 60, 240),
    "settings": (1, 16, 256, 4_096),
}

Points = dict[str, list[float]]
"""Decisions/s along each axis."""


def measure(
    seconds: Callable[[RouterParams, list[Sessions], World], float],
    study: Study,
    *,
    parts: int,
    axes: Mapping[str, Sequence[int]] = AXES,
) -> Points:
    """Decisions/s of an engine at every point of every axis.

    Args:
      seconds: of a warm run of the engine.
      study: whose `carbon_router` the settings vary in the gate.
      parts: into how many the sessions are split.
      axes: values of each name of `BASE`.
    """

    @functools.cache
    def speed(sessions: int, turns: int, deployments: int, settings: int) -> float:
        world = synthetic.world(deployments)
        each = max(1, sessions // parts)
        shares = [synthetic.sessions(world, each, turns) for _ in range(min(parts, sessions))]
        params = program.settings(study, settings, distinct=False)
        return each * len(shares) * turns * settings / seconds(params, shares, world)

    return {
        axis: [speed(*(BASE | {axis: value}).values()) for value in values]
        for axis, values in axes.items()
    }


def table(found: Mapping[str, Points], axes: Mapping[str, Sequence[int]] = AXES) -> list[str]:
    """Lines of a table: M decisions/s of each engine, and how its seconds grow between points.

    >>> table({"slot": {"turns": [1e6, 2e6]}}, {"turns": (8, 32)})[1:]
    ['turns                      8          32', '  slot                   1.0   2.0 ^0.50']
    """
    lines = ["M decisions/s, and ^ the exponent by which seconds grow from the point before"]
    for axis, values in axes.items():
        lines.append(f"{axis:<16}" + "".join(f"{value:>12,}" for value in values))
        for name, points in found.items():
            cells = [f"{points[axis][0] / 1e6:.1f}"]
            work = [1 if axis == "deployments" else value for value in values]
            for (m, a), (n, b) in itertools.pairwise(enumerate(points[axis])):
                grown = (work[n] / b) / (work[m] / a)
                exponent = math.log(grown) / math.log(values[n] / values[m])
                cells.append(f"{b / 1e6:.1f} ^{exponent:.2f}")
            lines.append(f"  {name:<14}" + "".join(f"{cell:>12}" for cell in cells))
    return lines
