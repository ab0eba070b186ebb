"""Sweeps: their settings, what is told of each, and how a killed one goes on."""

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pandas as pd
import pytest
from test_cli import jaxroute
from traces import LONG, write_trace

import jaxroute as jr
from jaxroute import (
    batch,
    bootstrap,
    chunks,
    comparison,
    devices,
    memory,
    pareto,
    pieces,
    simulate,
    slots,
    space,
    stats,
    streamed,
    study,
    sweeping,
)
from jaxroute.config import StudyConfig
from jaxroute.load.files import package_file
from jaxroute.load.toml import validate

FLEET = {
    "models": ["qwen2.5-3b-instruct", "qwen2.5-32b-instruct"],
    "gpus": ["H100-80GB-SXM"],
    "regions": ["US-CISO", "SG"],
}
RETENTIONS = [{"label": "keep"}, {"label": "drop", "drop_on_leave": True}]
FIXED = "carbon_router_fixed_region"
STRENGTHS = [0.0, 0.5, 1.0, 4.0, 20.0]


@pytest.fixture(scope="module")
def trace(tmp_path_factory):
    return write_trace(tmp_path_factory.mktemp("sweep") / "chat.csv", **LONG)


def loaded(trace, **values):
    values = {
        "policies": ["carbon_router"],
        "datasets": [{"path": str(trace)}],
        "fleet": FLEET,
        "retention": RETENTIONS,
    } | values
    return study.of(validate(values, StudyConfig, "test"))


def swept(trace, sweep, **values):
    return loaded(trace, sweep=sweep, **values)


@pytest.fixture(scope="module")
def small(trace):
    return swept(trace, {"space": {"gate_strength": STRENGTHS}})


# Settings


def settings(**sweep):
    return space.settings(validate({"sweep": sweep}, StudyConfig, "test"))


def test_a_grid_is_every_combination():
    ranges = {"low": 0.01, "high": 1.0, "log": True}
    table = settings(space={"gate_strength": [0, 1], "hysteresis": ranges}, samples=3)
    assert table.to_numpy().round(12).tolist() == [
        [g, h] for g in (0.0, 1.0) for h in (0.01, 0.1, 1.0)
    ]


@pytest.mark.parametrize("method", ["random", "sobol"])
def test_drawn_settings_are_in_range_and_of_the_seed(method):
    axes = {
        "gate_strength": {"low": 0.01, "high": 10.0, "log": True},
        "gate_weights[2]": {"low": -1.0, "high": 1.0},
        "quality_floor": [0.5, 0.7],
    }
    table = settings(method=method, samples=100, space=axes)
    assert len(table) == 100
    assert table["gate_strength"].between(0.01, 10.0).all()
    assert 30 < (table["gate_strength"] < 10**-0.5).sum() < 70
    assert table["gate_weights[2]"].between(-1, 1).all()
    assert set(table["quality_floor"]) == {0.5, 0.7}
    pd.testing.assert_frame_equal(table, settings(method=method, samples=100, space=axes))
    other = validate(
        {"seed": 1, "sweep": {"method": method, "samples": 100, "space": axes}}, StudyConfig, ""
    )
    assert (space.settings(other)["gate_strength"] != table["gate_strength"]).all()


def test_sobol_points_are_balanced():
    """Each sixteenth of an axis holds one of sixteen points: random ones would fall together."""
    table = settings(
        method="sobol", samples=16,
        space={f: {"low": 0.0, "high": 16.0} for f in ("gate_strength", "hysteresis")},
    )  # fmt: skip
    for name in table:
        assert sorted(np.floor(table[name])) == list(range(16))


def test_settings_of_a_table(tmp_path):
    rows = pd.DataFrame({"ttl_s": [60.0, np.inf], "region_allowed[DE]": [1, 0]})
    rows.to_csv(tmp_path / "t.csv", index=False)
    rows.to_parquet(tmp_path / "t.parquet")
    for name in ("t.csv", "t.parquet"):
        found = settings(table=str(tmp_path / name))
        pd.testing.assert_frame_equal(found, rows.astype(float))


@pytest.mark.parametrize(
    ("sweep", "words"),
    [
        ({"space": {"gate_strenth": [1]}}, ["sweep.space.gate_strenth", "'gate_strength'"]),
        ({"space": {"quality_floor": [0.5, 2]}}, ["sweep.space.quality_floor[1]", "found 2.0"]),
        ({"space": {"ttl_s": {"low": 0.0, "high": 1.0}}, "samples": 2}, ["ttl_s.low", ">= 0.001"]),
        ({"space": {"hysteresis": {"low": 1.0, "high": 0.5}}}, ["hysteresis.high", "above low"]),
        ({"space": {"hysteresis": {"low": 0.0, "high": 1.0}}}, ["samples", "found nothing"]),
        ({"space": {"hysteresis": [0.1]}, "method": "sobol"}, ["samples", "'sobol'"]),
        ({"space": {"region_allowed[Mars]": [1]}}, ["region_allowed[Mars]", "region_allowed["]),
        ({"space": {"hysteresis": []}}, ["sweep.space.hysteresis", "an empty list"]),
        ({"space": {"hysteresis": "0.1"}}, ["sweep.space.hysteresis", "a list"]),
        ({"policy": "sticki", "space": {"hysteresis": [0]}}, ["sweep.policy", "'sticky'"]),
        ({}, ["sweep.space", "neither of space and table"]),
    ],
)  # fmt: skip
def test_faults_of_a_space_are_one_line(sweep, words):
    with pytest.raises(jr.InputError) as caught:
        settings(**sweep)
    assert len(str(caught.value).splitlines()) == 1
    for word in words:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("hysteresis\n0.1\n-1\n", ["row 3, column hysteresis", "'-1'", ">= 0"]),
        ("hysteresis\nx\n", ["row 2, column hysteresis", "'x'"]),
        ("hysteresi\n1\n", ["column hysteresi", "'hysteresis'"]),
        ("hysteresis\n", ["no rows"]),
    ],
)
def test_faults_of_a_table_name_its_row(tmp_path, text, words):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(jr.InputError) as caught:
        settings(table=str(tmp_path / "t.csv"))
    for word in ["t.csv", *words]:
        assert word in str(caught.value)


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        ({"gate_strenth": [1]}, {}, ["options", "gate_strenth", "'gate_strength'"]),
        ({"hysteresis": np.array([0.1, -1])}, {}, ["options", "hysteresis[1]", "-1.0"]),
        ({"hysteresis": {"low": 0, "high": 1}}, {"method": "sobol"}, ["samples"]),
        (pd.DataFrame({"hysteresi": [1.0]}), {}, ["column hysteresi", "'hysteresis'"]),
        (pd.DataFrame({"hysteresis": [1.0, np.nan]}), {}, ["row 1, column hysteresis", "nan"]),
        (pd.DataFrame({"hysteresis": []}), {}, ["no rows"]),
        (None, {}, ["[sweep]", "found nothing"]),
        ({"hysteresis": [0]}, {"objectives": ["carbon"]}, ["'carbon'", "'carbon_g'"]),
        ({"hysteresis": [0]}, {"policy": "stick"}, ["sweep.policy", "'sticky'"]),
    ],
)
def test_faults_in_python(trace, rows, options, words):
    with pytest.raises(jr.InputError) as caught:
        jr.sweep(loaded(trace), rows, **options)
    for word in words:
        assert word in str(caught.value)


def test_a_grid_that_is_too_large_is_refused():
    axes = {name: {"low": 0.0, "high": 1.0} for name in ("hysteresis", "quality_floor")}
    with pytest.raises(jr.InputError, match="4,000,000 settings"):
        settings(space=axes, samples=2000)


# Figures


def test_a_setting_is_told_as_compare_tells_it(small):
    """By the functions behind `compare`, which see every session at once."""
    (data,) = small.datasets
    names = {0.0: "carbon_router_no_gate", 1.0: "carbon_router", None: "fair_carbon"}
    policies = jr.stack(small.preset(name) for name in names.values())
    outcome = comparison.replay(small, data, policies)
    known = stats.summary(small, data, outcome, list(names.values()), "fair_carbon")
    known = {name: rows.reset_index(drop=True) for name, rows in known.groupby("policy")}
    table = jr.sweep(small, latency=True)
    ends = ("saving_lo_pct", "saving_hi_pct")
    for strength in (0.0, 1.0):
        ours = table[table["gate_strength"] == strength].reset_index(drop=True)
        theirs = known[names[strength]]
        shared = [name for name in theirs if name in ours and name not in ends]
        assert len(shared) > 30
        pd.testing.assert_frame_equal(ours[shared], theirs[shared], rtol=1e-6)
    base = known["fair_carbon"].set_index("retention")
    for name in ("carbon_g", "mean_quality"):
        found = table.groupby("retention")[f"baseline_{name}"].agg(["min", "max"])
        for end in found:
            np.testing.assert_allclose(found[end], base[name][found.index], rtol=1e-6)


def bills(small, policy, retention="drop", allowed=(1, 1), **changes):
    params = small.preset(policy).replace(region_allowed=list(allowed), **changes)
    world = small.world.replace(retention=small.retentions[retention])
    return np.float64(jr.evaluate(params, small.sessions, world).carbon_g)


def fresh(study):
    """The study, of whose datasets nothing is cached yet."""
    return dataclasses.replace(
        study, datasets=tuple(dataclasses.replace(each) for each in study.datasets)
    )


def test_the_streamed_interval_is_the_bootstraps(small, monkeypatch):
    """Piece by piece, and with a baseline of all settings, as of all sessions at once."""
    monkeypatch.setattr(pieces, "MOST_SESSIONS", 16)
    assert len(pieces.even(small.datasets[0].lengths)) > 2
    row = jr.sweep(fresh(small)).set_index(["retention", "gate_strength"]).loc[("drop", 4.0)]
    a, b = bills(small, "carbon_router", gate_strength=4.0), bills(small, "fair_carbon")
    (data,) = small.datasets
    half = 100 * bootstrap.half_width(
        bootstrap.sums(a, b, data.hashes, data.seed, replicates=200)[0]
    )
    assert half > 1
    np.testing.assert_allclose(row["saving_pct"], 100 * (1 - a.sum() / b.sum()), rtol=1e-4)
    np.testing.assert_allclose(row["saving_pct"] - row["saving_lo_pct"], half, rtol=1e-4)
    np.testing.assert_allclose(row["saving_hi_pct"] - row["saving_pct"], half, rtol=1e-4)


@pytest.mark.slow
def test_a_policy_with_a_fixed_axis_is_masked_as_compare_masks_it(small):
    names = comparison.fixed(small.with_policies([FIXED]), small.datasets[0])
    chosen = list(FLEET["regions"]).index(names[FIXED])
    table = jr.sweep(small, {"gate_strength": STRENGTHS}, policy=FIXED)
    found = table.set_index(["retention", "gate_strength"])["carbon_g"][("drop", 1.0)]
    fixed, other = (
        bills(small, "carbon_router", allowed=mask, gate_strength=1.0).sum()
        for mask in (np.arange(2) == chosen, np.arange(2) != chosen)
    )
    np.testing.assert_allclose(found, fixed, rtol=1e-6)
    assert found < 0.99 * other


def test_fields_of_the_world_and_elements_of_vectors(trace):
    """Against `evaluate` in that world; the baseline is replayed in it as well."""
    believing = loaded(trace, belief={"cached_tokens_rounded_to": 32})
    rows = pd.DataFrame(
        {
            "ttl_s": [30.0, np.inf, 90.0],
            "drop_on_leave": [0, 1, 0],
            "block_tokens": [16, 64, 1],
            "pue_scale": [1.0, 1.5, 1.0],
            "intensity_scale": [1.0, 0.5, 3.0],
            "gate_weights[1]": [0.0, -2.0, 1.0],
            "region_allowed[SG]": [1, 1, 0],
        }
    )
    table = jr.sweep(believing, rows)
    assert table["retention"].tolist() == [sweeping.SWEPT] * 3
    world, sessions = believing.world, believing.sessions
    for n, row in rows.iterrows():
        there = world.replace(
            retention=jr.Retention.of(row["ttl_s"], drop_on_leave=row["drop_on_leave"] > 0),
            block_tokens=np.float32(row["block_tokens"]),
            pue=world.pue * np.float32(row["pue_scale"]),
            intensity_g_per_kwh=world.intensity_g_per_kwh * np.float32(row["intensity_scale"]),
        )
        forecast = there.belief.intensity_g_per_kwh * np.float32(row["intensity_scale"])
        belief = {**vars(there.belief), "intensity_g_per_kwh": forecast}
        there = there.replace(belief=type(there.belief)(**belief))
        weights = [0, row["gate_weights[1]"], 0, 0, 0, 0, 0, 0]
        mask = [1, row["region_allowed[SG]"]]
        params = believing.preset("carbon_router").replace(
            gate_weights=weights, region_allowed=mask
        )
        ours = jr.evaluate(params, sessions, there)
        blind = believing.preset("fair_carbon").replace(region_allowed=[1, 1])
        base = jr.evaluate(blind, sessions, there)
        for name, expected in (
            ("carbon_g", ours.carbon_g), ("moves", ours.moves), ("water_l", ours.water_l),
            ("baseline_carbon_g", base.carbon_g),
        ):  # fmt: skip
            np.testing.assert_allclose(table[name][n], np.float64(expected).sum(), rtol=1e-5)
    assert table["carbon_g"].nunique() == table["baseline_carbon_g"].nunique() == 3


@pytest.mark.slow  # several programs
def test_results_depend_on_neither_chunks_nor_batches(small, monkeypatch):
    rows = sweeping.planned(small.config)
    whole = sweeping.run(small, rows).table
    monkeypatch.setattr(sweeping, "MOST_SETTINGS", 2)
    monkeypatch.setattr(pieces, "MOST_TURNS", 100)
    steps = []
    cut = sweeping.run(fresh(small), rows, report=lambda *step: steps.append(step)).table
    pd.testing.assert_frame_equal(
        cut, whole, rtol=1e-6, atol=1e-4
    )  # a session's own sums are float32
    assert whole["setting"].tolist() == [*range(5)] * 2
    shares = [share for _, share in steps]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert len(set(shares)) > 2 * 3 * 5
    assert re.fullmatch(r"chat, drop: [\d,.]+ M decisions/s, 0:00:00 left", steps[-1][0])


def test_without_room_for_the_sessions_they_are_packed_anew(small):
    rows, data = sweeping.planned(small.config), small.datasets[0]
    room = streamed.bytes_of(data, small.world)
    held, passing = (streamed.source(data, small.world, room + more) for more in (0, -1))
    assert held.rounds(6) is held.rounds(6)
    assert passing.rounds(6) is not passing.rounds(6)
    policies = small.preset("carbon_router"), small.preset("fair_carbon")
    (chunk,) = chunks.cut(rows, 5)
    parts = batch.parted(
        *chunks.placed(chunk, *policies, small.world, small.config), devices.mesh()
    )
    baseline = devices.everywhere(chunk.baseline, held.mesh)
    a, b = (streamed.summed(each, parts, baseline) for each in (held, passing))
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_settings_in_one_world_share_a_baseline():
    rows = settings(space={"gate_strength": [0, 1, 2], "ttl_s": [60.0, 600.0]})
    parts = chunks.cut(rows, 4)
    assert [len(each.settings) for each in parts] == [3, 3]
    for part in parts:
        assert len(part.worlds) == 1
        assert part.settings["ttl_s"].nunique() == 1
        theirs = part.worlds["ttl_s"].to_numpy()[part.baseline]
        np.testing.assert_array_equal(theirs, part.padded["ttl_s"])
    assert sorted(n for part in parts for n in part.settings.index) == list(range(6))


@pytest.mark.slow  # several programs
def test_worlds_of_many_settings_are_replayed_by_slots(small):
    """Each of these chunks is in one world, those of the same settings at fewer are in several."""
    strengths = np.linspace(0, 4, chunks.MANY)
    both = settings(space={"gate_strength": list(strengths), "ttl_s": [60.0, 600.0]})
    apart, together = chunks.cut(both, 256), chunks.cut(both.iloc[:-1], 256)
    assert [len(each.worlds) for each in (*apart, *together)] == [1, 1, 2]
    policies = small.preset("carbon_router"), small.preset("fair_carbon")
    for chunk, uses in (*((each, True) for each in apart), (together[0], False)):
        given = chunks.placed(chunk, *policies, small.world, small.config)
        (part,) = batch.parted(*given, devices.mesh())
        assert (part.uses is not None) == uses
    table = jr.sweep(small, both)
    fewer = jr.sweep(small, both.iloc[:-1])
    pd.testing.assert_frame_equal(
        table.iloc[:-1].drop(columns="pareto"), fewer.drop(columns="pareto"), rtol=1e-5, atol=1e-4
    )


def test_an_empty_trace(tmp_path):
    path = tmp_path / "none.csv"
    path.write_text("session_id,turn,arrival_s,input_tokens,output_tokens\n")
    table = jr.sweep(loaded(path), {"gate_strength": [0.0, 1.0]})
    assert (table[["sessions", "turns", "carbon_g"]] == 0).all(axis=None)
    assert not table["pareto"].any()


def test_the_front_is_of_what_none_beats():
    rng = np.random.default_rng(0)
    costs = rng.integers(0, 6, (200, 3)).astype(float)
    costs[::50, 1] = np.nan
    better = [any((other <= row).all() and (other < row).any() for other in costs) for row in costs]
    expected = ~np.array(better) & ~np.isnan(costs).any(axis=1)
    assert 0 < expected.sum() < 100
    np.testing.assert_array_equal(pareto.front(costs), expected)
    table = pd.DataFrame({"carbon_g": [1.0, 2, 3], "mean_quality": [0.5, 0.9, 0.7]})
    table[["dataset", "retention"]] = "x"
    assert pareto.flags(table, ("carbon_g", "mean_quality")).tolist() == [True, True, False]


# Speed


@contextlib.contextmanager
def no_transfer():
    """From host to device, in any thread."""
    name = "jax_transfer_guard_host_to_device"
    jax.config.update(name, "disallow_explicit")
    try:
        yield
    finally:
        jax.config.update(name, "allow")


@pytest.mark.parametrize("latency", [False, True])
def test_a_warm_sweep_transfers_no_sessions_and_traces_once(small, monkeypatch, latency):
    traced = []
    for module, name in ((simulate, "replay"), (slots, "step")):
        original = getattr(module, name)
        monkeypatch.setattr(
            module, name, lambda *a, _=original, **k: traced.append(1) or _(*a, **k)
        )
    jax.clear_caches()
    rows, data = sweeping.planned(small.config), small.datasets[0]
    held = streamed.source(data, small.world, np.inf)
    world = jax.device_put(small.world)
    policies = small.preset("carbon_router"), small.preset("fair_carbon")
    cold, *warm = (
        (
            batch.parted(
                *chunks.placed(chunk, *policies, world, small.config),
                held.mesh,
                latency=latency,
            ),
            devices.everywhere(chunk.baseline, held.mesh),
        )
        for chunk in chunks.cut(rows, 2)
    )
    streamed.summed(held, *cold)
    once = len(traced)
    assert once >= 1
    with no_transfer():
        for each in warm:
            streamed.summed(held, *each)
    assert len(warm) == 2
    assert len(traced) == once
    passing = streamed.source(data, small.world, 0)
    with pytest.raises(Exception, match="Disallowed host-to-device transfer"), no_transfer():
        streamed.summed(passing, *cold)


def test_little_of_the_bundled_trace_is_padding(monkeypatch):
    (data,) = study.of(validate({"fleet": FLEET}, StudyConfig, "test")).datasets
    for turns in (pieces.MOST_TURNS, 4096):
        monkeypatch.setattr(pieces, "MOST_TURNS", turns)
        cut = pieces.even(data.lengths)
        valid = [each.turns.valid for each in data.packed(cut, range(len(cut)))]
        assert len(valid) >= 8
        assert len({each.shape for each in valid}) == 1
        assert sum(each.sum() for each in valid) == data.lengths.sum() == 45_715
        assert data.lengths.sum() > 0.9 * sum(each.size for each in valid)


def test_memory_settles_the_chunk(small):
    rows = sweeping.planned(small.config)
    source = streamed.source(small.datasets[0], small.world, np.inf)
    one = streamed.bytes_of_setting(source, small.world, latency=False)
    held = streamed.bytes_of(small.datasets[0], small.world)
    assert chunks.fitting(source, small.world, rows, 11 * one + held, latency=False) == 10
    with pytest.raises(jr.InputError, match=r"--memory: found 0\.0 MB"):
        sweeping.run(small, rows, budget=1000)
    assert memory.free_bytes() > 10**6
    for text in ("lots", "4 GB of it", "0", "-1GB"):
        with pytest.raises(jr.InputError, match="--memory"):
            memory.of_text(text)


# The command

SWEEP = """
policies = ["carbon_router"]
[[datasets]]
path = "chat.csv"
[fleet]
models = ["qwen2.5-3b-instruct", "qwen2.5-32b-instruct"]
gpus = ["H100-80GB-SXM"]
regions = ["US-CISO", "SG"]
[[retention]]
label = "drop"
drop_on_leave = true
[sweep]
method = "sobol"
samples = 200
[sweep.space]
gate_strength = { low = 0.1, high = 10.0, log = true }
hysteresis = [0.0, 0.1]
"""
COUNTED = """
import atexit, jax
events = []
jax.monitoring.register_event_listener(lambda event, **_: events.append(event))
atexit.register(lambda: print([sum(name in event for event in events) for name in
    ("compilation_cache/cache_hits", "compilation_cache/cache_misses")]))
from jaxroute import cli
cli.main()
"""


def write_study(trace, text=SWEEP):
    path = trace.parent / "study.toml"
    path.write_text(text)
    return path


def test_a_killed_sweep_goes_on_and_compiles_nothing(trace, tmp_path, monkeypatch, capsys):
    path = write_study(trace)
    loaded = jr.load_study(path)
    source = streamed.source(loaded.datasets[0], loaded.world, np.inf)
    one = streamed.bytes_of_setting(source, loaded.world, latency=False)
    held = streamed.bytes_of(loaded.datasets[0], loaded.world)
    budget = held + 6 * 2 * one  # of two devices
    killed, out = tmp_path / "killed", tmp_path / "whole"
    two = "--xla_force_host_platform_device_count=2"
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache"), "XLA_FLAGS": two}
    command = [sys.executable, "-c", COUNTED, "sweep", path, "--out", killed]
    running = subprocess.Popen(
        [*command, "--memory", str(budget)], env=environment, stderr=subprocess.PIPE
    )
    parts = killed / "parts"
    until = time.monotonic() + 120
    while running.poll() is None and time.monotonic() < until:
        if parts.is_dir() and len(list(parts.glob("[0-9]*"))) >= 2:
            break
        time.sleep(0.002)
    running.send_signal(signal.SIGKILL)
    assert running.wait() == -signal.SIGKILL, running.stderr.read()
    running.stderr.close()
    done = len(list(parts.glob("[0-9]*")))
    plan = json.loads((killed / "plan.json").read_text())
    assert plan["settled"] == {"memory_bytes": budget, "settings_a_chunk": 5}
    count = 200 // 5
    assert 2 <= done < count
    assert not (killed / "sweep.parquet").exists()

    again = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert again.stderr == ""
    hits, misses = json.loads(again.stdout.splitlines()[-1])
    assert hits > 0
    assert misses == 0
    assert json.loads((killed / "plan.json").read_text()) == plan
    assert len(list(parts.glob("[0-9]*"))) == count
    arguments = ["sweep", path, "--out", out, "--memory", held + 6 * one]
    assert jaxroute(monkeypatch, capsys, *arguments)[0] == 0
    assert json.loads((out / "plan.json").read_text())["settled"]["settings_a_chunk"] == 5
    tables = [pd.read_parquet(place / "sweep.parquet") for place in (killed, out)]
    assert len(tables[0]) == 200
    pd.testing.assert_frame_equal(*tables, check_exact=True)

    write_study(trace, SWEEP.replace("high = 10.0", "high = 20.0"))
    status, printed, error = jaxroute(monkeypatch, capsys, "sweep", path, "--out", killed)
    assert (status, printed) == (2, "")
    assert "study.sweep.space.gate_strength.high was 10.0 and is now 20.0" in error
    assert len(error.splitlines()) == 1


def test_the_command_prints_the_best_and_the_front(trace, tmp_path, monkeypatch, capsys):
    path = write_study(trace, SWEEP.replace("samples = 200", "samples = 5"))
    out = tmp_path / "out"
    arguments = ["sweep", path, "--out", out, "--top", 3, "--latency"]
    status, printed, _ = jaxroute(
        monkeypatch, capsys, *arguments, "--pareto", "carbon_g,ttft_p95_s"
    )
    assert status == 0
    table = pd.read_parquet(out / "sweep.parquet")
    assert list(table)[:5] == ["dataset", "retention", "setting", "gate_strength", "hysteresis"]
    best = table.sort_values("carbon_g", kind="stable")
    above, below = printed.split("Pareto front of carbon_g, ttft_p95_s", 1)
    front = best[best["pareto"]]
    for text, rows in ((above, best.head(3)), (below, front)):
        listed = [int(n) for n in re.findall(r"^ (\d+) .* \d", text, re.MULTILINE)]
        assert listed == rows["setting"].tolist()
    assert f"chat, drop: {len(front)} of 5" in printed
    assert "120 sessions, 960 turns, of which 0 (0.00%) unserved" in printed
    assert "M decisions/s" in printed
    assert {file.name for file in out.iterdir()} == {
        "plan.json", "parts", "run.json", "sweep.parquet",
    }  # fmt: skip
    record = json.loads((out / "run.json").read_text())
    assert record["objectives"] == ["carbon_g", "ttft_p95_s"]
    assert record["decisions"] == 5 * 960
    assert any("Pareto front" in note for note in record["notes"])


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        (SWEEP, ["--pareto", "carbon"], ["--pareto", "'carbon'", "'carbon_g'"]),
        (SWEEP, ["--pareto", "ttft_p95_s"], ["--pareto", "'ttft_p95_s'"]),
        (SWEEP, ["--memory", "much"], ["--memory", "'much'", "4GiB"]),
        (SWEEP.split("[sweep]")[0], [], ["[sweep]", "found nothing"]),
        (SWEEP.replace("hysteresis", "hysteresi"), [], ["study.toml", "sweep.space.hysteresi"]),
    ],
)
def test_faults_leave_nothing(trace, tmp_path, monkeypatch, capsys, text, options, words):
    out = tmp_path / "out"
    path = write_study(trace, text)
    status, printed, error = jaxroute(monkeypatch, capsys, "sweep", path, "--out", out, *options)
    assert (status, printed) == (2, "")
    assert len(error.splitlines()) == 1
    for word in words:
        assert word in error
    assert not out.exists()


def test_the_bundled_sweep_is_sound():
    folder = package_file("default.toml").parents[2] / "configs"
    table = sweeping.planned(jr.load_study(folder / "sweep.toml").config)
    assert table.shape == (1024, 5)
    assert not table.duplicated().any()
