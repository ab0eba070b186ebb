"""Made-up trace files."""

from pathlib import Path

import numpy as np

LONG = {"sessions": 120, "turns": 8}
"""Enough conversation for a difference of every part."""


def write_trace(path: Path, sessions: int, turns: int, seed: int = 0) -> Path:
    """A CSV of conversations of log-normal lengths, with times."""
    rng = np.random.default_rng(seed)
    lines = ["session_id,turn,arrival_s,input_tokens,output_tokens"]
    for name in range(sessions):
        arrival = np.cumsum(rng.exponential(90, turns)) * (np.arange(turns) > 0)
        new, output = rng.lognormal(5.5, 1.2, turns), rng.lognormal(5, 1, turns)
        lines += [
            f"{name},{t},{arrival[t]:.1f},{int(new[t]) + 1},{int(output[t])}" for t in range(turns)
        ]
    path.write_text("\n".join(lines) + "\n")
    return path
