"""The comparison as files."""

import json
import platform
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxroute.comparison import Comparison
from jaxroute.report.tables import notes
from jaxroute.report.target import RECORD
from jaxroute.study import Study

TABLES = ("summary", "by_length", "shares")

FILES = (*(f"{name}.csv" for name in TABLES), "sessions.parquet", RECORD)
"""What a result consists of."""

PACKAGES = ("jaxroute", "jax", "jaxlib", "numpy", "scipy", "pandas", "pyarrow")


def write(directory: Path, study: Study, comparison: Comparison, wall_s: float) -> None:
    """Writes `FILES` into a directory."""
    for name in TABLES:
        table = getattr(comparison, name)
        table.to_csv(directory / f"{name}.csv", index=False, float_format="%.9g")
    comparison.sessions.to_parquet(directory / "sessions.parquet", index=False)
    record = json.dumps(run_record(study, comparison, wall_s), indent=2, allow_nan=False)
    (directory / RECORD).write_text(f"{record}\n")


def run_record(study: Study, comparison: Comparison, wall_s: float) -> dict[str, Any]:
    """How a result was obtained: enough to obtain it again."""
    from jaxroute import RESULTS_VERSION

    device = jax.devices()[0]
    return {
        "results_version": RESULTS_VERSION,
        "versions": {"python": platform.python_version()}
        | {name: metadata.version(name) for name in PACKAGES},
        "device": {
            "platform": device.platform,
            "kind": device.device_kind,
            "count": jax.device_count(),
        },
        "seed": study.config.seed,
        "study": json.loads(study.config.model_dump_json(exclude_none=True)),
        "policies": {
            name: {field: _plain(value) for field, value in vars(params).items()}
            for name, params in study.policies.items()
        },
        "fixed": comparison.fixed,
        "inputs_sha256": dict(study.inputs),
        "notes": list(notes(study, comparison)),
        "wall_s": round(wall_s, 3),
        "compile_s": round(comparison.compile_s, 3),
        "replay_s": round(comparison.replay_s, 3),
    }


def _plain(value: Any) -> Any:
    """A parameter as JSON holds it; an infinite number as text."""
    numbers = np.asarray(value, np.float64)
    if numbers.ndim:
        return [_plain(number) for number in numbers]
    return round(float(numbers), 9) if np.isfinite(numbers) else str(numbers)
