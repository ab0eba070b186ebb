"""Small made-up worlds and sessions for properties, drawn from a seed."""

from typing import Any

import golden_cases
import numpy as np


def world(rng: np.random.Generator, *, models: int = 2, gpus: int = 2, regions: int = 3) -> dict:
    """A fleet of every model on every GPU type in every region, over two days."""
    model, gpu, region = (
        axis.ravel()
        for axis in np.meshgrid(range(models), range(gpus), range(regions), indexing="ij")
    )
    count = len(model)

    def between(low: float, high: float, size: Any = count) -> np.ndarray:
        return np.exp(rng.uniform(np.log(low), np.log(high), size))

    return {
        "model": model,
        "gpu": gpu,
        "region": region,
        "pre_j": between(0.01, 0.3),
        "pre_j_ctx": between(1e-7, 1e-5),
        "pre_s": between(1e-5, 2e-4),
        "pre_s_ctx": between(1e-10, 6e-9),
        "ttft_floor_s": between(0.003, 0.03),
        "dec_j": between(0.05, 1.5),
        "dec_j_ctx": between(1e-6, 1e-4),
        "dec_s": between(0.004, 0.03),
        "dec_s_ctx": between(1e-8, 1e-6),
        "host_w": between(100, 600),
        "batch": np.full(count, 32.0),
        "embodied_g_per_s": between(0.005, 0.02),
        "max_context_tokens": np.where(model == 0, 8192.0, 131072.0),
        "params_b": np.where(model == 0, 3.0, 70.0),
        "block_tokens": 16.0,
        **golden_cases.water_and_price(regions),
        "pue": between(1.05, 1.5, regions),
        "intensity_g_per_kwh": between(20, 700, (48, regions)),
        "rtt_s": between(0.002, 0.3, (2, regions)),
        "wait_s": np.zeros((1, 1)),
        "ttl_s": np.full((1, 1), np.inf),
        "decay_s": np.full((1, 1), np.inf),
        "drop_on_leave": 0.0,
    }


def belief(rng: np.random.Generator, of: dict) -> dict:
    """What a router may take for true in a world: other profiles and grids, poor reports."""
    profiles = (
        *("pre_j", "pre_j_ctx", "pre_s", "pre_s_ctx", "ttft_floor_s", "dec_j", "dec_j_ctx"),
        *("dec_s", "dec_s_ctx", "host_w", "batch", "embodied_g_per_s", "params_b"),
    )
    errs = {
        name: of[name] * np.exp(rng.normal(0, 0.3, np.shape(of[name])))
        for name in (*profiles, "intensity_g_per_kwh")
    }
    return errs | {
        "delayed": float(rng.integers(2)),
        "rounded_to_tokens": rng.choice([1.0, 16.0, 100.0, 1000.0]),
        "missing": rng.choice([0.0, 0.3, 1.0]),
    }


def session(rng: np.random.Generator, of: dict, turns: int) -> dict:
    """An append-only conversation, some turns without input or output, one may be huge."""
    new = rng.integers(0, 400, turns)
    output = rng.integers(0, 600, turns)
    if turns > 2 and rng.random() < 0.3:
        new[rng.integers(turns)] = 900_000
    grown = np.maximum(new, 1) + output
    gap = rng.exponential(120, turns)
    gap[0] = 0
    return {
        "arrival_s": np.cumsum(gap),
        "hour": np.minimum(rng.integers(0, 40) + (np.cumsum(gap) // 3600).astype(int), 47),
        "time_bin": rng.integers(0, 96, turns),
        "home": np.full(turns, rng.integers(2)),
        "prefix_tokens": np.cumsum(grown) - grown,
        "new_tokens": new,
        "output_tokens": output,
        "predicted_output_tokens": np.full(turns, 256.0),
        "quality": rng.uniform(0, 1, (turns, len(set(of["model"])))),
        "noise": rng.uniform(0, 1, (turns, len(of["model"]))),
        **({"report_draw": rng.uniform(0, 1, (turns, len(of["model"])))} if "belief" in of else {}),
    }


def params(**changes: Any) -> dict:
    """Neutral parameters with some changes."""
    return golden_cases.neutral() | changes
