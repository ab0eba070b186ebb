"""Traces on disk are what they are in memory, bit for bit, and as strictly checked."""

import dataclasses
import itertools
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from test_traces import GOOD, HEADER, OPTIONAL, ROWS

import jaxroute as jr
from jaxroute import draws, pieces, study
from jaxroute.config import StudyConfig
from jaxroute.dataset import Dataset
from jaxroute.load import parquet
from jaxroute.load.shards import frames, index
from jaxroute.load.toml import validate
from jaxroute.load.traces import read_trace
from jaxroute.shards import Shards

FLEET = {
    "models": ["qwen2.5-3b-instruct", "qwen2.5-32b-instruct"],
    "gpus": ["H100-80GB-SXM"],
    "regions": ["US-CISO", "SG"],
}
COMMON = (
    *("label", "path", "sha256", "notes", "truncated", "synthetic_times", "seed", "deployments"),
    *("report_draws", "dtype", "count", "turns"),
)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Few rows and few sessions at a time, so that a small trace is many of them."""
    monkeypatch.setattr(parquet, "BATCH", 64)
    monkeypatch.setattr(pieces, "MOST_SESSIONS", 40)


def both(path, **values):
    """A trace in memory, and the same on disk."""
    values = {"fleet": FLEET, "datasets": [{"path": str(path)}], **values}
    config = validate(values, StudyConfig, "test")
    (memory,), (disk,) = (study.of(config, memory_bytes=m).datasets for m in (None, 0))
    assert isinstance(memory, Dataset) and isinstance(disk, Shards)
    return memory, disk


def check(memory, disk, **options):
    """Every leaf of every piece is the same, to the last bit."""
    for name in COMMON:
        assert getattr(memory, name) == getattr(disk, name), name
    np.testing.assert_array_equal(memory.lengths, disk.lengths)
    np.testing.assert_array_equal(memory.hashes, disk.hashes)
    for one, other in zip(
        dataclasses.astuple(memory.pieces), dataclasses.astuple(disk.pieces), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    numbers = range(len(memory.pieces))
    same(memory, disk, memory.pieces, numbers, **options)


def same(memory, disk, cut, numbers, **options):
    pairs = zip(
        memory.packed(cut, numbers, **options), disk.packed(cut, numbers, **options), strict=True
    )
    for one, other in pairs:
        assert jax.tree.structure(one) == jax.tree.structure(other)
        for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
            assert type(x) is type(y) is np.ndarray and x.dtype == y.dtype
            np.testing.assert_array_equal(x, y)


def in_files(frame, folder, ends=(), group=50):
    """A frame as files that end at some rows, of small row groups."""
    folder.mkdir()
    edges = [0, *ends, len(frame)]
    for n, (begin, end) in enumerate(itertools.pairwise(edges)):
        part = frame.iloc[begin:end]
        part.to_parquet(folder / f"part-{n}.parquet", row_group_size=group, index=False)
    return folder


def random_trace(seed, sessions=150):
    """Every column there is; sessions of 1 to 40 turns, their rows in any order."""
    rng = np.random.default_rng(seed)
    lengths = np.minimum(rng.geometric(0.15, sessions), 40)
    first = np.repeat(np.cumsum(lengths) - lengths, lengths)
    turn = np.arange(lengths.sum()) - first
    number = np.repeat(np.arange(sessions), lengths)
    grown = np.cumsum(rng.exponential(90, len(turn)))
    new, output = (rng.integers(1, 400, len(turn)) for _ in range(2))
    kept = np.where(turn > 0, np.roll(new + output, 1) * rng.uniform(0, 1, len(turn)), 0)
    frame = pd.DataFrame({
        "session_id": [f"s {n}" for n in number],
        "turn": turn,
        "arrival_s": grown - grown[first] + 1000.0 * number,
        "input_tokens": new,
        "output_tokens": output,
        "prefix_tokens": kept.astype(int),
        "start_time": pd.Timestamp("2023-03-04T05:06:07Z")
        + pd.to_timedelta(number * 1001, unit="s"),
        "home_region": np.array(["DE", "SE", "US-CISO"])[number % 3],
        "predicted_output_tokens": rng.lognormal(5, 1, len(turn)),
        **{f"quality_{model}": rng.uniform(0, 1, len(turn)) for model in FLEET["models"]},
    })  # fmt: skip
    order = np.lexsort((rng.random(len(turn)), number))
    return frame.iloc[order].reset_index(drop=True)


EXTRA = ("prefix_tokens", "start_time", "home_region", "predicted_output_tokens")
BELIEF = {"cached_tokens_missing": 0.1, "predicted_output_tokens": "noisy"}
CASES = {
    "every column": {},
    "no optional column": {"drop": "all"},
    "no times": {"drop": ["start_time"], "untimed": True, "values": {"on_overflow": "truncate"}},
    "poor reports": {"drop": ["prefix_tokens"], "values": {"belief": BELIEF, "seed": 3}},
    "from a date": {"drop": ["start_time"], "trace_start": "2024-02-28T00:00:00Z"},
    "dates as text": {"text": True},
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_piece_is_that_of_memory(tmp_path, case):
    frame = random_trace(len(case))
    dropped = case.get("drop", [])
    frame = frame.drop(columns=list(frame.columns[5:]) if dropped == "all" else dropped)
    if case.get("untimed"):
        frame["arrival_s"] = np.nan
        frame["input_tokens"] *= 100
    if case.get("text"):
        moments = frame["start_time"].dt.strftime("%Y-%m-%dT%H:%M:%SZ")
        frame["start_time"] = moments.where(frame["turn"] == 0, "as before")
        frame["input_tokens"] = frame["input_tokens"].astype(str)
    path = in_files(frame, tmp_path / "trace", [7, 200, 201, 611])
    data = {"path": str(path)}
    if "trace_start" in case:
        data["trace_start"] = case["trace_start"]
    memory, disk = both(path, datasets=[data], **case.get("values", {}))
    assert memory.count == 150 and len(memory.pieces) > 3
    check(memory, disk)
    if "values" in case and "on_overflow" in case["values"]:
        assert memory.truncated > 0


def test_the_bundled_trace_is_that_of_memory(tmp_path, monkeypatch):
    monkeypatch.undo()
    frame = read_trace("builtin:sharegpt").frame
    path = in_files(frame, tmp_path / "chat", [11_111, 30_000], group=5_000)
    memory, disk = both(path)
    assert len(memory.pieces) == 8
    check(memory, disk, noise=False)
    same(memory, disk, memory.pieces, [5])
    (bundled,) = jr.load_study().datasets
    np.testing.assert_array_equal(disk.hashes, bundled.hashes)


def test_some_pieces_of_any_cut_from_another_thread(tmp_path):
    memory, disk = both(in_files(random_trace(1), tmp_path / "t", [300]))
    cut = pieces.cut(disk.lengths, turns=90)
    assert len(cut) > 9
    for numbers in ([0, 3, 6, 9], [2, len(cut) - 1], [], range(len(cut))):
        with ThreadPoolExecutor(1) as pool:
            pool.submit(same, memory, disk, cut, numbers, noise=False).result()
    for (part, one), (other, two) in zip(memory.blocks(90), disk.blocks(90), strict=True):
        assert part == other
        np.testing.assert_array_equal(one.turns.noise, two.turns.noise)


def test_row_groups_of_no_use_are_not_read(tmp_path, monkeypatch):
    _, disk = both(in_files(random_trace(1), tmp_path / "t"))
    read, batches = [], parquet.batches
    monkeypatch.setattr(
        parquet, "batches", lambda *a: (read.append(x[0]) or x for x in batches(*a))
    )
    number = len(disk.pieces) - 1
    list(disk.packed(disk.pieces, [number], noise=False))
    assert min(read) > disk.pieces.turns[:number].sum() - 100


def test_without_noise_all_else_is_the_same(tmp_path):
    memory, disk = both(in_files(random_trace(1), tmp_path / "t"))
    for data in (memory, disk):
        for with_, without in zip(
            data.packed(data.pieces, range(2)), data.packed(data.pieces, range(2), noise=False),
            strict=True,
        ):  # fmt: skip
            assert with_.turns.noise.any() and not without.turns.noise.any()
            assert with_.turns.noise.dtype == without.turns.noise.dtype
            alike = dataclasses.replace(without.turns, noise=with_.turns.noise)
            jax.tree.map(np.testing.assert_array_equal, alike, with_.turns)
            assert alike.noise.shape == without.turns.noise.shape


def test_the_hours_of_a_file_and_turns_outside_them(tmp_path):
    frame = random_trace(2)
    path = in_files(frame, tmp_path / "t", [100])
    hours = pd.date_range("2023-03-04T05:00", periods=72, freq="h", tz="UTC")
    grid = pd.DataFrame({
        "timestamp": np.tile(hours.strftime("%Y-%m-%dT%H:%M:%SZ"), 2),
        "region": np.repeat(FLEET["regions"], 72),
        "gco2_per_kwh": np.arange(144.0),
    })  # fmt: skip
    grid.to_csv(tmp_path / "grid.csv", index=False)
    table = {"intensity": {"path": str(tmp_path / "grid.csv")}}
    check(*both(path, **table), noise=False)
    grid[grid["timestamp"] < "2023-03-05T12"].to_csv(tmp_path / "grid.csv", index=False)
    told = []
    for memory_bytes in (None, 0):
        values = {"fleet": FLEET, "datasets": [{"path": str(path)}], **table}
        with pytest.raises(jr.InputError, match="found a turn at 2023-03-05T12") as caught:
            study.of(validate(values, StudyConfig, "test"), memory_bytes=memory_bytes)
        told.append(str(caught.value))
    assert told[0] == told[1]


# Faults


def told_of(path):
    """What is said of a trace on disk."""
    with pytest.raises(jr.InputError) as caught:
        trace = index(path)
        cut = pieces.even(trace.lengths)
        ends = np.cumsum(cut.turns).tolist()
        for _ in frames(trace, list(itertools.pairwise([0, *ends]))):
            pass
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def as_text(path, header, rows, before=200, after=200):
    """A Parquet file of text: good sessions, then these rows, then good sessions."""
    names = header.split(",")
    cells = [[cell or None for cell in row.split(",")] for row in rows.split("\n") if row]
    optional = dict(zip(names, cells[0], strict=True))
    filler = {"turn": "0", "input_tokens": "1", "output_tokens": "1", "quality_m": "1"}
    filler |= {"prefix_tokens": "0", "start_time": "2023-06-01", "home_region": "DE"}
    filler |= {"arrival_s": "0", "predicted_output_tokens": "1"}

    def good(n):
        return [f"good {n}" if name == "session_id" else filler[name] for name in optional]

    table = [*map(good, range(before)), *cells, *map(good, range(before, before + after))]
    columns = {name: [row[n] for row in table] for n, name in enumerate(names)}
    pa.parquet.write_table(pa.table(columns, pa.schema({n: pa.string() for n in names})), path)


FAULTS = {name: (HEADER, rows) for name, (rows, _) in ROWS.items() if not name.endswith(" row")} | {
    name: (f"{HEADER},{column}", rows) for name, (column, rows, _) in OPTIONAL.items()
}
FAULTS["twice"] = (HEADER, "a,0,0,1,1\na,0,0,1,1")
del FAULTS["compact"]  # a date among dates


@pytest.mark.parametrize("header, rows", FAULTS.values(), ids=FAULTS)
def test_faults_are_told_as_of_a_trace_in_memory(tmp_path, header, rows):
    as_text(tmp_path / "t.parquet", header, rows)
    with pytest.raises(jr.InputError) as caught:
        read_trace(tmp_path / "t.parquet")
    assert re.search(r"row \d+, column", str(caught.value))
    assert told_of(tmp_path / "t.parquet") == str(caught.value)


def table(ids, **columns):
    count = len(ids)
    turn = [list(ids[:n]).count(name) for n, name in enumerate(ids)]
    numbers = {
        "arrival_s": [0.0] * count,
        "input_tokens": [5] * count,
        "output_tokens": [5] * count,
    }
    return pa.table({"session_id": list(ids), "turn": turn, **numbers, **columns})


def written(folder, *tables):
    folder.mkdir(exist_ok=True)
    for n, each in enumerate(tables):
        pa.parquet.write_table(each, folder / f"{n}.parquet", row_group_size=3)
    return folder


def test_a_session_that_comes_back_is_refused(tmp_path):
    whole = table(["a", "b", "b", "c", "c", "d", "b", "a"])
    path = written(tmp_path / "t", whole[:4], whole[4:])
    assert len(read_trace(path).frame) == 8
    told = told_of(path)
    assert "t: row 3 of 1.parquet, column session_id: found session 'b' once more" in told
    assert "which began at row 2 of 0.parquet" in told and "sort the file by session_id" in told
    one = tmp_path / "one.parquet"
    names = [f"s{n}" for n in range(500)]
    pa.parquet.write_table(table([*names, "s7", "s3"]), one)
    assert "row 501, column session_id: found session 's7' once more, which began at row 8" in (
        told_of(one)
    )


def test_doubles_are_found_range_by_range(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxroute.load.shards._RANGE", 16)
    names = [f"s{n}" for n in range(300)]
    pa.parquet.write_table(table(names), tmp_path / "good.parquet")
    assert len(index(tmp_path / "good.parquet").hashes) == 300
    for again in (0, 120, 298):
        pa.parquet.write_table(table([*names, names[again]]), tmp_path / "t.parquet")
        assert f"row 301, column session_id: found session 's{again}'" in (
            told_of(tmp_path / "t.parquet")
        )


def test_two_sessions_of_one_hash_are_two(tmp_path, monkeypatch):
    alike = draws.name_hashes
    monkeypatch.setattr(draws, "name_hashes", lambda names: alike(name[0] for name in names))
    path = written(tmp_path / "t", table(["a1", "a1", "b1", "a2"]))
    assert index(path).lengths.tolist() == [2, 1, 1]
    path = written(tmp_path / "t", table(["a1", "a1", "b1", "a2", "b2", "a1"]))
    assert "row 6, column session_id: found session 'a1' once more" in told_of(path)


def test_a_column_is_complete_or_empty_in_all_files_together(tmp_path):
    none, some = pa.nulls(3), pa.array([0, 10, 0])
    first, other = ["a", "a", "b"], ["c", "c", "d"]
    path = written(tmp_path / "t", table(first), table(other, prefix_tokens=some))
    assert "row 1 of 0.parquet, column prefix_tokens: found nothing" in told_of(path)
    path = written(
        tmp_path / "t", table(first, prefix_tokens=some), table(other, prefix_tokens=none)
    )
    assert "row 1 of 1.parquet, column prefix_tokens: found nothing" in told_of(path)
    path = written(
        tmp_path / "t", table(first, prefix_tokens=none), table(other, prefix_tokens=none)
    )
    assert "prefix_tokens" not in index(path).columns
    check(*both(path), noise=False)
    path = written(
        tmp_path / "t",
        table(first, prefix_tokens=some),
        table(other, prefix_tokens=some.cast(pa.float64())),
    )
    check(*both(path), noise=False)


@pytest.mark.parametrize("missing", [0, 1])
def test_times_are_complete_or_empty_in_all_files_together(tmp_path, missing):
    parts = [table(["a", "a", "b"]), table(["c", "c", "d"])]
    at = parts[missing].column_names.index("arrival_s")
    parts[missing] = parts[missing].set_column(at, "arrival_s", pa.nulls(3, pa.float64()))
    path = written(tmp_path / "t", *parts)
    with pytest.raises(jr.InputError) as caught:
        read_trace(path)
    assert f"row 1 of {missing}.parquet, column arrival_s: found nothing" in str(caught.value)
    assert told_of(path) == str(caught.value)


def test_whether_dates_are_seconds_is_settled_for_all(tmp_path):
    """Alone, 20230601 would be taken for epoch seconds, too early; beside ISO dates it is one."""
    dates = ["20230601"] * 100 + ["2023-06-02"] + ["20230603"] * 100
    trace = table([f"s{n}" for n in range(201)], start_time=dates)
    pa.parquet.write_table(trace, tmp_path / "t.parquet")
    check(*both(tmp_path / "t.parquet"), noise=False)
    trace = table([f"s{n}" for n in range(101)], start_time=[*dates[:100], "1685577600"])
    pa.parquet.write_table(trace, tmp_path / "t.parquet")
    with pytest.raises(jr.InputError, match="row 1, column start_time: found '20230601'") as caught:
        read_trace(tmp_path / "t.parquet")
    assert told_of(tmp_path / "t.parquet") == str(caught.value)


def test_damaged_files_and_files_that_do_not_go_together(tmp_path):
    path = written(tmp_path / "t", table(["a"]), table(["b"]))
    (path / "1.parquet").write_bytes((path / "1.parquet").read_bytes()[:-20])
    assert str(path) in told_of(path)
    path = written(tmp_path / "t", table(["a"]), table(["b"], home_region=[1]))
    assert "column home_region" in told_of(path)
    other = table(["b"]).set_column(3, "input_tokens", pa.array(["5"]))
    assert "expected a table in Parquet" in told_of(written(tmp_path / "t", table(["a"]), other))


def test_a_file_that_changes_meanwhile_is_told(tmp_path):
    path = in_files(random_trace(1), tmp_path / "t")
    _, disk = both(path)
    frame = pd.read_parquet(path / "part-0.parquet")
    frame.iloc[:-1].to_parquet(path / "part-0.parquet", index=False)
    with pytest.raises(jr.InputError, match="found fewer than the"):
        list(disk.packed(disk.pieces, range(len(disk.pieces)), noise=False))


# Which traces stay on disk


def test_only_parquet_that_is_too_large_stays_on_disk(tmp_path):
    path = in_files(random_trace(1), tmp_path / "t") / "part-0.parquet"
    pd.read_parquet(path).to_csv(tmp_path / "t.csv", index=False)
    rows = parquet.rows([path])
    for file, memory_bytes, kind in (
        (path, None, Dataset), (path, 10_000 * rows, Dataset), (path, 100 * rows, Shards),
        (tmp_path / "t.csv", 0, Dataset),
    ):  # fmt: skip
        loaded = jr.load_study(traces=[file], memory_bytes=memory_bytes)
        assert type(loaded.datasets[0]) is kind
    with pytest.raises(jr.InputError, match="no file"):
        jr.load_study(traces=[tmp_path / "none.parquet"], memory_bytes=0)


def test_one_study_has_traces_of_both_kinds(tmp_path):
    """A trace with dates on disk moves the span of the intensity as it does in memory."""
    path = in_files(random_trace(1), tmp_path / "t")
    frame = pd.read_parquet(path / "part-0.parquet")
    frame["start_time"] += pd.Timedelta(days=800)
    frame.to_parquet(path / "part-0.parquet", index=False)
    (tmp_path / "small.csv").write_text(GOOD)
    memory, disk = (
        jr.load_study(traces=[tmp_path / "small.csv", path], memory_bytes=memory_bytes)
        for memory_bytes in (None, 0)
    )
    np.testing.assert_array_equal(memory.world.intensity_g_per_kwh, disk.world.intensity_g_per_kwh)
    assert memory.notes == disk.notes and memory.inputs == disk.inputs
    check(memory.datasets[1], disk.datasets[1], noise=False)


def test_nothing_is_left_in_the_temporary_directory(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    path = written(tmp_path / "t", table(["a", "b", "b"]))
    trace = index(path)
    assert trace.lengths.tolist() == [1, 2]
    assert list((tmp_path / "scratch").iterdir()) == []


def test_a_longer_trace_takes_no_more_memory_to_index(tmp_path, monkeypatch):
    """What is held of a trace is two mapped files and a few batches."""
    monkeypatch.setattr(parquet, "BATCH", 4096)
    most = []
    for count in (20_000, 80_000):
        path = tmp_path / f"{count}.parquet"
        turn = np.arange(count) % 4
        columns = {"session_id": [f"{n:08x}" for n in np.arange(count) // 4], "turn": turn}
        columns |= dict.fromkeys(HEADER.split(",")[2:], turn)
        pa.parquet.write_table(pa.table(columns), path, row_group_size=4096)
        del columns
        least = pa.total_allocated_bytes()
        trace, peak = index(path), 0
        ends = [*range(4000, count, 4000), count]
        for _ in frames(trace, list(itertools.pairwise([0, *ends]))):
            peak = max(peak, pa.total_allocated_bytes() - least)
        most.append(peak)
    assert most[1] < 1.2 * most[0]


@pytest.mark.slow
def test_the_peak_of_a_sweep_does_not_grow_with_its_trace():
    root = Path(__file__).parents[1]
    peak = []
    for sessions in (80_000, 320_000):  # from 40,960 on, pieces are as large
        command = [sys.executable, str(root / "benchmarks" / "large.py")]
        command += ["--sessions", str(sessions), "--memory", "100MB"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        found = re.fullmatch(r"peak +(\d+\.\d+) GiB of 4", done.stdout.splitlines()[-1])
        assert found is not None, done.stdout
        peak.append(float(found[1]))
    assert peak[1] < 1.25 * peak[0]  # in memory it would be 0.5 GiB more
