"""The tuned rival computes what the oracle does, whatever the settings share."""

import sys
from pathlib import Path

import numpy as np
import pytest
import tolerances
from bridge import oracle_params, oracle_sessions, oracle_world, places_of
from oracle_check import RETENTIONS, presets, stratified, subset

from jaxroute import reference, stack
from jaxroute.policies import RouterParams
from jaxroute.simulate import FIELDS
from jaxroute.study import load_study
from jaxroute.world import Retention

pytest.importorskip("numba")
sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks.baselines import numba_tuned, python_loop, tuned_kernel

pytestmark = pytest.mark.slow

NEAR = {
    "margin": tolerances.MARGIN["float32"],
    "gate_margin": tolerances.MARGIN["float32"],
    "edge_tokens": tolerances.EDGE_TOKENS["float32"],
    "ttl_edge_s": 1e-2,
}
EXCUSED = 0.01
TOTALS = 1e-4
WEIGHTS = [1.0, 0.5, -0.5, 20.0, 0.3, -0.2, 1.0, 2.0]


@pytest.fixture(scope="module")
def study():
    return load_study()


@pytest.fixture(scope="module")
def sessions(study):
    """Some of every length, contexts halved now and then."""
    dataset = study.datasets[0]
    some = subset(dataset, stratified(dataset, 15, longer_than=1000))
    prefix = some.columns["prefix_tokens"]
    some.columns["prefix_tokens"] = np.where(np.arange(len(prefix)) % 5 == 0, prefix // 2, prefix)
    return some.sessions


def check(settings, sessions, world):
    """Holds the decisions and sums of every setting to the oracle's; returns what was found."""
    found = numba_tuned.run(stack(settings), sessions, world, by_session=True, decisions=True)
    plain_world, plain_sessions = oracle_world(world), oracle_sessions(sessions)
    excused = 0
    for p, params in enumerate(settings):
        plain_params = oracle_params(params)
        for s, (place, session) in enumerate(zip(places_of(sessions), plain_sessions, strict=True)):
            oracle = reference.replay(plain_world, session, plain_params)
            sums = [found[name][p, s] for name in FIELDS]
            expected = [oracle.totals[name] for name in FIELDS]
            differs = found["decision"][p][place] != oracle.decision
            if not differs.any() and np.allclose(sums, expected, rtol=TOTALS, atol=1e-15):
                continue
            first = np.argmax(differs) if differs.any() else len(differs) - 1
            near = [
                (getattr(oracle, edge)[: first + 1] < least).any() for edge, least in NEAR.items()
            ]
            assert any(near), (p, s, first, sums, expected)
            excused += 1
    assert excused <= EXCUSED * len(settings) * sessions.count
    return found


@pytest.mark.parametrize("label", RETENTIONS)
def test_presets_agree_with_the_oracle(study, sessions, label):
    world = study.world.replace(retention=RETENTIONS[label])
    found = check(list(presets(study).values()), sessions, world)
    assert found["moves"].sum() > 0


def gates(base, count=numba_tuned.LANES):
    """Settings that differ in their gates alone."""
    return [
        base.replace(
            gate_strength=float(strength),
            gate_bias=float(bias),
            gate_weights=WEIGHTS if bias > 0 else [0.0] * 8,
            hysteresis=0.02 * (bias > 0.5),
        )
        for strength, bias in zip(np.linspace(0, 2, count), np.linspace(-1, 1, count), strict=True)
    ]


def priced(rng):
    """Prices, filters and a belief drawn at random, as the vectorised kinds allow them."""
    low, high = rng.uniform(0, 1, 2)
    return RouterParams().replace(
        carbon_weight=0.5 + float(low),
        embodied_weight=float(2 * high),
        latency_price_g_per_s=float(10 ** rng.uniform(-6, -3)),
        quality_price_g=float(10 ** rng.uniform(-4, -1)),
        switch_price_g=float(10 ** rng.uniform(-5, -2)),
        intensity_price=float(10 ** rng.uniform(-7, -5)),
        rtt_price_g_per_s=float(10 ** rng.uniform(-4, -1)),
        size_price_g_per_b=float(10 ** rng.uniform(-7, -4)),
        quality_floor=float(rng.uniform(0.3, 0.8)),
        quality_slack=float(rng.uniform(0.1, 0.5)),
        cache_knowledge=float(rng.uniform()),
        expected_gap_s=float(rng.uniform(10, 400)),
    )


def hourly(study):
    """A world whose waits and retention change by the hour, and whose router waits."""
    count = len(study.deployments)
    retention = Retention(
        ttl_s=np.linspace(100, 2400, 24, dtype=np.float32)[:, None],
        decay_s=np.linspace(300, 3000, count, dtype=np.float32)[None],
        drop_on_leave=np.float32(0),
    )
    wait_s = np.linspace(0, 0.2, 96 * count, dtype=np.float32).reshape(96, count)
    return study.world.replace(retention=retention, wait_s=wait_s)


def kinds(settings, world):
    """Of the blocks that the settings fall into."""
    params = stack(settings)
    blocks = numba_tuned.plan(numba_tuned.prices(params), numba_tuned.masks(params, world))
    return [block.kind for block in blocks]


@pytest.mark.parametrize("kind", ["shared", "distinct", "dense"])
@pytest.mark.parametrize("label", ["keep", "drop", "hourly"])
def test_every_kind_of_block_agrees_with_the_oracle(study, sessions, kind, label):
    rng = np.random.default_rng(0)
    world = study.world
    world = hourly(study) if label == "hourly" else world.replace(retention=RETENTIONS[label])
    if kind == "shared":
        base = priced(rng).replace(assumed_hit=0.4, noise_price_g=1e-3, gpu_allowed=[1.0, 0.0, 1.0])
        settings = gates(base)
    elif kind == "distinct":
        settings = [gates(priced(rng))[n] for n in range(0, numba_tuned.LANES, 3)]
    else:
        settings = [
            priced(rng).replace(
                assumed_hit=float(rng.uniform()),
                noise_price_g=1e-3 * n,
                ttft_slo_s=0.1 * n,
                region_allowed=np.eye(4, dtype=np.float32)[n] if n else [1.0] * 4,
                gate_strength=1.0,
            )
            for n in range(4)
        ]
    assert set(kinds(settings, world)) == {getattr(tuned_kernel, kind.upper())}
    check(settings, sessions, world)


def test_blocks_change_nothing(study, sessions):
    """Settings in any company, by session or in all, are the same settings."""
    rng = np.random.default_rng(1)
    settings = [*gates(priced(rng), 20), *(priced(rng) for _ in range(300))]
    assert len(kinds(settings, study.world)) == 3
    together = numba_tuned.run(stack(settings), sessions, study.world)
    by_session = numba_tuned.run(stack(settings), sessions, study.world, by_session=True)
    for name in FIELDS:
        np.testing.assert_allclose(by_session[name].sum(axis=1), together[name], rtol=1e-5)
    for p in (0, 19, 20, 319):
        alone = numba_tuned.run(stack(settings[p : p + 1]), sessions, study.world)
        for name in FIELDS:
            np.testing.assert_allclose(alone[name][0], together[name][p], rtol=1e-5)


def test_python_loop_finds_the_same(study, sessions):
    params, picked = stack(gates(RouterParams(), 2)), [0, 3, 9]
    loop = python_loop.run(params, sessions, study.world, picked)
    tuned = numba_tuned.run(params, sessions, study.world, by_session=True)
    for name in FIELDS:
        np.testing.assert_allclose(loop[name], tuned[name][:, picked], rtol=1e-5, atol=1e-12)


def test_a_belief_is_refused(study, sessions):
    believing = study.world.replace(belief=study.world)
    with pytest.raises(ValueError, match="belief"):
        numba_tuned.run(stack([RouterParams()]), sessions, believing)
