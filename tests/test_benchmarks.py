"""The rival of the benchmark computes what the oracle does, and the benchmark runs."""

import doctest
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tolerances
from bridge import oracle_params, oracle_sessions, oracle_world
from oracle_check import RETENTIONS, presets, stratified, subset

from jaxroute import reference, stack
from jaxroute.catalogue import PRESET_NAMES
from jaxroute.policies import RouterParams
from jaxroute.simulate import FIELDS
from jaxroute.study import load_study
from jaxroute.world import Retention, cast

pytest.importorskip("numba")
ROOT = Path(__file__).parents[1]
BENCHMARKS = ROOT / "benchmarks"
sys.path.insert(0, str(ROOT))
from benchmarks import checks, compiled, engines, gpu, growth, program, synthetic  # noqa: E402
from benchmarks.baselines import numba_plain, numpy_sessions, python_loop  # noqa: E402

SESSIONS = 40
TOTALS = tolerances.TOTALS["float32"]
NEAR = {
    "margin": tolerances.MARGIN["float32"],
    "gate_margin": tolerances.MARGIN["float32"],
    "edge_tokens": tolerances.EDGE_TOKENS["float32"],
    "ttl_edge_s": 1e-2,
}
EXCUSED = 1


@pytest.fixture(scope="module")
def study():
    return load_study()


@pytest.fixture(scope="module")
def turns(study):
    return numba_plain.flatten(study.datasets[0].sessions)


def sample(turns):
    """Sessions of every length: number, first turn, end, and the oracle's form."""
    lengths = np.diff(turns.offset)
    ranks = np.linspace(0, len(lengths) - 1, SESSIONS).astype(int)
    found = []
    for session in np.argsort(lengths, kind="stable")[ranks]:
        begin, end = turns.offset[session : session + 2]
        columns = {name: getattr(turns, name)[begin:end] for name in turns._fields[1:]}
        columns["arrival_s"] = np.cumsum(columns.pop("gap_s"), dtype=float)
        found.append((session, begin, end, columns))
    return found


def check(params, turns, world):
    """Holds decisions and totals to the oracle, on the sampled sessions."""
    totals, decisions = numba_plain.replay(params, turns, world, world.retention)
    plain_world, plain_params = oracle_world(world), oracle_params(params)
    excused = 0
    for session, begin, end, columns in sample(turns):
        oracle = reference.replay(plain_world, columns, plain_params)
        expected = [oracle.totals[field] for field in FIELDS]
        differs = decisions[begin:end] != oracle.decision
        same_sums = np.allclose(totals[session], expected, rtol=TOTALS, atol=1e-15)
        if same_sums and not differs.any():
            continue
        first = np.argmax(differs) if differs.any() else end - begin - 1
        near = [(getattr(oracle, edge)[: first + 1] < least).any() for edge, least in NEAR.items()]
        assert any(near), f"session {session}: {totals[session]}, expected {expected}"
        excused += 1
    assert excused <= EXCUSED


@pytest.mark.slow  # compiles the whole rival
@pytest.mark.parametrize("label", RETENTIONS)
@pytest.mark.parametrize("name", PRESET_NAMES)
def test_plain_loop_agrees_with_the_oracle(study, turns, name, label):
    check(presets(study)[name], turns, study.world.replace(retention=RETENTIONS[label]))


def priced(strength):
    """A setting with every price, filter and feature."""
    return RouterParams().replace(
        carbon_weight=0.8,
        embodied_weight=1.5,
        latency_price_g_per_s=1e-4,
        quality_price_g=0.02,
        switch_price_g=1e-4,
        intensity_price=1e-5,
        rtt_price_g_per_s=0.01,
        size_price_g_per_b=1e-5,
        noise_price_g=1e-3,
        cache_knowledge=0.7,
        assumed_hit=0.4,
        quality_floor=0.5,
        quality_slack=0.3,
        ttft_slo_s=0.3,
        gate_strength=strength,
        gate_weights=[1.0, 0.5, -0.5, 20.0, 0.3, -0.2, 1.0, 2.0],
        hysteresis=0.02,
        expected_gap_s=90.0,
    )


def varying(study):
    """A world with waits and retentions by the time of day."""
    deployments = len(study.deployments)
    hourly = Retention(
        ttl_s=np.linspace(100, 2400, 24, dtype=np.float32)[:, None],
        decay_s=np.linspace(300, 3000, deployments, dtype=np.float32)[None],
        drop_on_leave=np.float32(0),
    )
    wait_s = np.linspace(0, 0.2, 96 * deployments, dtype=np.float32).reshape(96, deployments)
    return study.world.replace(retention=hourly, wait_s=wait_s)


@pytest.mark.parametrize("strength", [0.5, 2.0])
def test_every_price_filter_and_feature_agrees_with_the_oracle(study, turns, strength):
    """Also waits and retentions by the time of day, and contexts halved every third turn."""
    third = np.arange(len(turns.gap_s)) % 3 == 0
    prefix = np.where(third, np.floor(turns.prefix_tokens / 2), turns.prefix_tokens)
    check(priced(strength), turns._replace(prefix_tokens=prefix), varying(study))


@pytest.mark.parametrize("label", [*RETENTIONS, "varying"])
def test_numpy_over_sessions_is_the_oracle_in_float64(study, label):
    """Whose decisions and carbon are then those of the other engines, in whatever precision."""
    retained = study.world.replace(retention=RETENTIONS.get(label))
    world = cast(varying(study) if label == "varying" else retained, np.float64)
    dataset = study.datasets[0]
    some = subset(dataset, stratified(dataset, 10, longer_than=1000))
    sessions = cast(some.sessions, np.float64)
    settings = [*presets(study).values(), priced(0.5), priced(2.0)]
    found = numpy_sessions.run(cast(stack(settings), np.float64), sessions, world)
    assert found["moves"].sum() > 0
    plain_world, plain_sessions = oracle_world(world), oracle_sessions(sessions)
    for p, setting in enumerate(settings):
        for s, session in enumerate(plain_sessions):
            expected = reference.replay(plain_world, session, oracle_params(setting)).totals
            for name in FIELDS:
                got = found[name][p, s]
                assert np.isclose(got, expected[name], rtol=1e-9, atol=1e-15), (p, s, name)


@pytest.mark.slow
def test_benchmark_runs_and_prints_the_ratio():
    command = [sys.executable, str(BENCHMARKS / "compare.py"), "--sessions", "50"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"ratio engine/numba: \d+\.\d+", done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_the_sweep_benchmark_ends_with_its_ratios():
    command = [sys.executable, str(BENCHMARKS / "sweep.py"), "--sessions", "50", "--settings", "8"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    last = done.stdout.splitlines()[-1]
    assert re.fullmatch(r"slot/numba_tuned shared=\d+\.\d\d distinct=\d+\.\d\d", last)


@pytest.mark.slow
def test_the_program_benchmark_prints_its_limits():
    command = [sys.executable, "-m", "benchmarks.program", "--sessions", "50", "--settings", "16"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^limits .* [1-9]\d* G operations/s, [1-9]\d* GB/s$", done.stdout, re.M)
    assert len(re.findall(r"^  \d+% of the arithmetic, \d+% of the bytes", done.stdout, re.M)) == 2


def test_growth_changes_one_number_at_a_time(study):
    """In a second, as many decisions as the point has."""
    axes = {"sessions": (3, 6), "turns": (2,), "deployments": (12, 240), "settings": (1, 300)}
    seen = []

    def seconds(params, shares, world):
        turns = sum(int(share.turns.valid.sum()) for share in shares)
        seen.append((len(params.carbon_weight), turns, len(world.fleet.model)))
        return 1.0

    found = growth.measure(seconds, study, parts=3, axes=axes)
    assert set(found["deployments"]) == {126 * 32 * 256}  # thirds of 128 sessions
    assert found["sessions"] == [3 * 32 * 256, 6 * 32 * 256]
    assert found["turns"] == [126 * 2 * 256]
    assert found["settings"] == [126 * 32 * 1, 126 * 32 * 300]
    assert {deployments for *_, deployments in seen} == {12, 60, 240}


@pytest.mark.parametrize("module", [compiled, growth, program])
def test_examples_of_the_benchmarks(module):
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert not found.failed


@pytest.mark.slow  # replays what the benchmark does
def test_the_check_of_a_device_stops_at_a_wrong_sum_or_decision(study, monkeypatch):
    """The engine is right, so the oracle is changed: first its grid, then what it may choose."""
    params = stack([study.preset("carbon_router"), study.preset("random")])
    sessions = synthetic.sessions(study.world, 6, 4)
    assert checks.against_oracle(params, sessions, [study.world]) == 0
    world_of = python_loop.world_of

    def changed(**factors):
        return lambda world: {n: x * factors.get(n, 1) for n, x in world_of(world).items()}

    monkeypatch.setattr(python_loop, "world_of", changed(price_usd_per_kwh=1.001))
    with pytest.raises(SystemExit, match="sums of setting 0"):
        checks.against_oracle(params, sessions, [study.world])
    monkeypatch.setattr(python_loop, "world_of", changed(pre_j=np.linspace(30, 1, 60)))
    with pytest.raises(SystemExit, match=r"setting 0, session \d+: at turn \d"):
        checks.against_oracle(params, sessions, [study.world])


def test_the_accelerator_benchmark_says_what_it_skips(study, capsys):
    gpu.measure(study, count=4, largest=1e4, copied=1.0, left=lambda: -1.0)
    *rows, _, last = capsys.readouterr().out.splitlines()[1:]
    assert len(rows) == 4
    assert all("skipped: some time, -1 s left" in row for row in rows)
    assert "shared skipped" in last and "distinct skipped" in last


@pytest.mark.slow
def test_the_accelerator_benchmark_runs_on_a_cpu():
    options = ["--largest", "1e4", "--settings", "16"]
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "skipped" not in done.stdout
    for path in ("slot, shared", "slot, distinct", "dense, shared", "dense, distinct"):
        assert re.search(rf"^{path} +625 ", done.stdout, re.MULTILINE)
    assert re.search(
        r"host to host, 625 sessions: shared \S+ M/s distinct \S+ M/s$", done.stdout, re.M
    )


@pytest.mark.slow
def test_op_by_op_is_compared_with_compiled(study, monkeypatch):
    setting = study.preset("carbon_router")
    assert checks.compiled_against_eager(setting, study.world, count=40) == 0
    monkeypatch.setattr(checks, "TOTALS", 0.0)  # the two do differ in the last bits
    with pytest.raises(SystemExit, match="op by op"):
        checks.compiled_against_eager(setting, study.world, count=40)


@pytest.mark.slow
@pytest.mark.parametrize("deployments", synthetic.FLEETS)
def test_engines_agree_on_every_fleet(study, deployments):
    world = synthetic.world(deployments)
    assert len(world.fleet.model) == deployments
    parts = [synthetic.sessions(world, 20, 8)]
    params = program.settings(study, 16, distinct=True)
    expected = engines.loop(params, parts, world)()
    for engine in (engines.numpy, engines.plain, engines.tuned, engines.by_slots, engines.dense):
        np.testing.assert_allclose(engine(params, parts, world)(), expected, rtol=1e-5)
