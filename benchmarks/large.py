"""A sweep of a trace larger than memory: seconds, decisions a second and peak memory.

    python benchmarks/large.py [--sessions N] [--memory 2GiB]

Writes a made-up trace of N sessions in Parquet, log-normal in its tokens and its turns, about 6 a
session, and runs `jaxroute sweep` of 64 settings on it in a process of its own.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

SETTINGS = 64
LIMIT_GIB = 4.0
AT_ONCE = 50_000
"""Sessions that are made up together, and one row group of the file."""

STUDY = f"""
[[datasets]]
path = "large.parquet"

[[retention]]
label = "keep"

[sweep]
method = "sobol"
samples = {SETTINGS}

[sweep.space]
gate_strength = {{ low = 0.01, high = 10.0, log = true }}
hysteresis = {{ low = 0.0, high = 0.2 }}
"""


def made_up(sessions: int, seed: int = 0) -> Iterator[pa.Table]:
    """Conversations: turns, gaps (median 60 s) and tokens all log-normal."""
    rng = np.random.default_rng(seed)
    for begin in range(0, sessions, AT_ONCE):
        lengths = np.ceil(rng.lognormal(1.2, 1.0, min(AT_ONCE, sessions - begin))).astype(int)
        first = np.cumsum(lengths) - lengths
        turns = int(lengths.sum())
        at_s = np.cumsum(rng.lognormal(np.log(60), 1.2, turns))
        number = np.repeat(begin + np.arange(len(lengths)), lengths)
        names = pa.array([f"{name:08x}" for name in range(begin, begin + len(lengths))])
        yield pa.table({
            "session_id": names.take(pa.array(number - begin)),
            "turn": np.arange(turns) - np.repeat(first, lengths),
            "arrival_s": (at_s - np.repeat(at_s[first], lengths)).round(3),
            "input_tokens": np.ceil(rng.lognormal(4.5, 1.2, turns)).astype(int),
            "output_tokens": np.ceil(rng.lognormal(5.0, 1.0, turns)).astype(int),
        })  # fmt: skip


def write(path: Path, sessions: int) -> int:
    """Writes a trace, a row group at a time; returns its turns."""
    turns, writer = 0, None
    for table in made_up(sessions):
        writer = writer or pa.parquet.ParquetWriter(path, table.schema)
        writer.write_table(table)
        turns += len(table)
    if writer is not None:
        writer.close()
    return turns


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, default=2_000_000)
    parser.add_argument("--memory", default="2GiB", help="of the sweep")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        turns = write(folder / "large.parquet", options.sessions)
        (folder / "study.toml").write_text(STUDY)
        size = (folder / "large.parquet").stat().st_size
        print(f"sizes   {options.sessions:,} sessions, {turns:,} turns, {size / 1e6:,.0f} MB")
        command = [sys.executable, "-m", "jaxroute.cli", "sweep", str(folder / "study.toml")]
        command += ["--out", str(folder / "out"), "--memory", options.memory]
        began = time.perf_counter()
        process = subprocess.Popen(command)
        _, status, used = os.wait4(process.pid, 0)
        took_s = time.perf_counter() - began
    if status:
        sys.exit("the sweep failed")
    peak_gib = used.ru_maxrss / 1024**2
    rate = turns * SETTINGS / took_s / 1e6
    print(f"seconds {took_s:.1f}, {rate:.1f} M decisions/s with loading and compiling")
    print(f"peak    {peak_gib:.2f} GiB of {LIMIT_GIB:g}")
    if peak_gib > LIMIT_GIB:
        sys.exit("too much memory")


if __name__ == "__main__":
    main()
