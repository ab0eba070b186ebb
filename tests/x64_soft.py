"""Run by `test_relaxed.py` in a process of its own: slopes and finite differences in float64."""

import dataclasses

import conftest  # noqa: F401  (strict promotion here too)
import numpy as np
from soft_check import RETENTIONS, SETTINGS, case, setting, slope, smooth_fields, under, value

from jaxroute.world import cast

CHANGE, HEAT = 1e-8, 0.3  # of the sum, by a step: more would cross the kinks of soft floors

if __name__ == "__main__":
    checked = 0
    for seed, retention in enumerate(RETENTIONS):
        sessions, world = case(seed, np.float64)
        world = under(world, retention, np.float64)
        for name in SETTINGS:
            params = cast(setting(name), np.float64)
            found = slope(params, sessions, world, HEAT)
            for field in smooth_fields():
                at = np.asarray(getattr(params, field))
                if np.isinf(at).all():
                    assert getattr(found, field) == 0
                    continue
                for n in range(at.size):
                    exact = float(np.asarray(getattr(found, field)).reshape(-1)[n])
                    step, ends = CHANGE / max(1, abs(exact)), []
                    for sign in (1, -1):
                        moved = np.array(at, np.float64)
                        moved.reshape(-1)[n] += sign * step
                        there = dataclasses.replace(params, **{field: moved})
                        ends.append(float(value(there, sessions, world, HEAT)))
                    numeric = (ends[0] - ends[1]) / (2 * step)
                    close = abs(exact - numeric) <= 1e-5 * max(abs(exact), abs(numeric)) + 1e-6
                    assert close, (retention, name, field, n, exact, numeric)
                    checked += 1
    print(f"{checked} slopes agree")
