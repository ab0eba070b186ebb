"""The engine on the default study beside a plain compiled loop on the same work.

    python benchmarks/compare.py [--sessions N]

Each engine runs in a process of its own, every policy under every retention, and reports what it
emitted as well as how long it took; so does the whole `jaxroute compare` command. Compiling is
timed apart, with empty caches. A decision is one turn under one setting. Progress goes to stderr.
"""

import argparse
import contextlib
import dataclasses
import datetime
import importlib.metadata
import importlib.util
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

sys.path[0] = str(Path(__file__).parents[1])  # numba would take coverage.py here for the library's

REPEATS = 3
SHOWN = ("carbon_router", "fair_carbon", "sticky", "lowest_latency", "random")
LARGEST_DIFFERENCE = 1e-3
TARGET_S, TARGET_MIB = 15.0, 2048.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sessions", type=int, help="only the first N, without the command")
    parser.add_argument("--only", choices=ENGINES, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measure(ENGINES[options.only], options.sessions)))
    else:
        report(options.sessions)


def report(sessions: int | None) -> None:
    """Runs everything and prints it."""
    load = os.getloadavg()[0]
    command = None if sessions else time_command()
    engine, numba = (run_alone(name, sessions) for name in ENGINES)
    print_heading(engine["device"], engine["sizes"], load)
    if command:
        wall_s, peak_mib = command
        print(
            f"jaxroute compare, cold: {wall_s:.1f} s, {met(wall_s, TARGET_S, 's')};"
            f" peak {peak_mib:,.0f} MiB, {met(peak_mib, TARGET_MIB, 'MiB')}\n"
        )

    heads = ("compile s", "best s", "median s", "M decisions/s", "MiB loaded", "MiB peak")
    print(f"{'':<16}" + "".join(f"{head:>14}" for head in heads))
    for name, found in (("jaxroute", engine), ("numba, plain", numba)):
        numbers = (
            found["compile_s"],
            min(found["run_s"]),
            statistics.median(found["run_s"]),
            rate(found) / 1e6,
        )
        row = "".join(f"{number:>14.3f}" for number in numbers)
        row += "".join(f"{found[which]:>14,.0f}" for which in ("loaded_mib", "peak_mib"))
        print(f"{name:<16}{row}")

    ours, theirs = np.array(engine["carbon_g"]), np.array(numba["carbon_g"])
    difference = np.abs(ours / theirs - 1)
    print(f"\n{'carbon, g':<32}{'jaxroute':>14}{'numba':>14}{'difference':>14}")
    for r, retention in enumerate(engine["retentions"]):
        for p, policy in enumerate(engine["policies"]):
            if policy in SHOWN:
                answers = f"{ours[r, p]:>14,.4f}{theirs[r, p]:>14,.4f}{difference[r, p]:>14.1e}"
                print(f"{policy + ', ' + retention:<32}{answers}")
    print(f"largest difference over all {difference.size} settings: {difference.max():.1e}")
    assert difference.max() < LARGEST_DIFFERENCE, "the engines disagree: their times mean nothing"
    print(f"ratio engine/numba: {rate(engine) / rate(numba):.3f}")


def print_heading(device: str, sizes: str, load: float) -> None:
    """Device and machine with its load before the run, versions, date and sizes."""
    packages = ("jaxroute", "jax", "jaxlib", "numpy", "numba")
    there = [name for name in packages if importlib.util.find_spec(name)]
    versions = [f"{name} {importlib.metadata.version(name)}" for name in there]
    print(f"device    {device}; {processor()}, {os.cpu_count()} cores, load {load:.1f} before")
    print(f"versions  python {platform.python_version()}, {', '.join(versions)}")
    print(f"date      {datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC")
    print(f"sizes     {sizes}\n")


def rate(found: dict[str, Any]) -> float:
    """Decisions per second of the best run."""
    return found["decisions"] / min(found["run_s"])


def met(value: float, target: float, unit: str) -> str:
    return f"{'meets' if value <= target else 'misses'} {target:,.0f} {unit}"


def processor() -> str:
    """The processor's name, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def peak_mib(who: int) -> float:
    """Largest resident set so far, of this process or of its children that ended."""
    unit_bytes = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(who).ru_maxrss * unit_bytes / 2**20


@contextlib.contextmanager
def no_caches() -> Iterator[dict[str, str]]:
    """An environment for Python processes without compiled code from earlier runs."""
    with tempfile.TemporaryDirectory() as folder:
        yield os.environ | {"NUMBA_CACHE_DIR": folder, "JAX_ENABLE_COMPILATION_CACHE": "false"}


def run_cold(arguments: list[str]) -> str:
    """Output of a Python process without compiled code from earlier runs."""
    with no_caches() as environment:
        done = subprocess.run(
            [sys.executable, *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return done.stdout


def time_command() -> tuple[float, float]:
    """Wall seconds and peak MiB of `jaxroute compare`, provided no other child ended before."""
    print("jaxroute compare", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        run_cold(["-m", "jaxroute.cli", "compare", "--out", f"{folder}/out"])
        return time.perf_counter() - began, peak_mib(resource.RUSAGE_CHILDREN)


def run_alone(name: str, sessions: int | None) -> dict[str, Any]:
    """`measure` in a process of its own."""
    print(name, file=sys.stderr)
    subset = ["--sessions", str(sessions)] if sessions else []
    return json.loads(run_cold([__file__, "--only", name, *subset]))


def first(dataset: Any, sessions: int) -> Any:
    """A dataset of the first sessions of another."""
    lengths = dataset.lengths[:sessions]
    return dataclasses.replace(
        dataset,
        session_ids=dataset.session_ids[:sessions],
        hashes=dataset.hashes[:sessions],
        lengths=lengths,
        columns={name: values[: lengths.sum()] for name, values in dataset.columns.items()},
    )


def measure(engine: Callable[..., dict[str, Any]], sessions: int | None) -> dict[str, Any]:
    """Loads the default study and runs it: sizes, seconds, MiB and grams `[retention, policy]`."""
    import jax

    from jaxroute.comparison import settings
    from jaxroute.study import load_study

    study = load_study()
    dataset = first(study.datasets[0], sessions or len(study.datasets[0].lengths))
    rows = settings(study)
    loaded_mib = peak_mib(resource.RUSAGE_SELF)
    found = engine(study, dataset, [row.params for row in rows])
    turns, count = int(dataset.lengths.sum()), len(rows) * len(study.retentions)
    sizes = (
        f"{len(dataset.lengths):,} sessions",
        f"{turns:,} turns",
        f"{len(study.deployments)} deployments",
        f"{count} settings = {len(rows)} policies x {len(study.retentions)} retentions",
    )
    return found | {
        "device": jax.devices()[0].device_kind,
        "sizes": ", ".join(sizes),
        "policies": [row.policy for row in rows],
        "retentions": list(study.retentions),
        "decisions": turns * count,
        "loaded_mib": loaded_mib,
        "peak_mib": peak_mib(resource.RUSAGE_SELF),
    }


def timed(run: Callable[[], Any]) -> tuple[Any, float]:
    """What a call returns, and its seconds."""
    began = time.perf_counter()
    result = run()
    return result, time.perf_counter() - began


def repeated(run: Callable[[], Any]) -> tuple[Any, list[float]]:
    """What the last of the calls returns, and the seconds of each."""
    run_s = []
    for _ in range(REPEATS):
        result = None  # frees the last call's
        result, seconds = timed(run)
        run_s.append(seconds)
    return result, run_s


def run_engine(study: Any, dataset: Any, params: list[Any]) -> dict[str, Any]:
    """`jaxroute.simulate.evaluate_grid`: one call for all settings."""
    import jax

    from jaxroute import simulate, stack

    inputs = (
        stack(params),
        dataset.sessions,
        study.world,
        stack(study.retentions.values()),
    )
    compiled, compile_s = timed(lambda: simulate.evaluate_grid.lower(*inputs).compile())
    (totals, _trace), run_s = repeated(lambda: jax.block_until_ready(compiled(*inputs)))
    carbon_g = np.asarray(totals.carbon_g, np.float64).sum(axis=-1)
    return {"compile_s": compile_s, "run_s": run_s, "carbon_g": carbon_g.tolist()}


def run_numba(study: Any, dataset: Any, params: list[Any]) -> dict[str, Any]:
    """The plain loop: one call a setting, its results kept like the engine's."""
    from benchmarks.baselines import numba_plain
    from jaxroute.simulate import FIELDS

    turns = numba_plain.flatten(dataset.sessions)

    def grid() -> list[list[Any]]:
        return [
            [numba_plain.replay(one, turns, study.world, retention) for one in params]
            for retention in study.retentions.values()
        ]

    # The first call compiles; of its seconds milliseconds are work.
    first = next(iter(study.retentions.values()))
    _, compile_s = timed(lambda: numba_plain.replay(params[0], turns, study.world, first))
    results, run_s = repeated(grid)
    parts = [FIELDS.index(f"carbon_{part}_g") for part in ("prefill", "decode", "embodied")]
    carbon_g = [[float(totals[:, parts].sum()) for totals, _ in row] for row in results]
    return {"compile_s": compile_s, "run_s": run_s, "carbon_g": carbon_g}


ENGINES = {"jaxroute": run_engine, "numba": run_numba}

if __name__ == "__main__":
    main()
