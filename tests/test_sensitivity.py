"""Elasticities against the oracle's finite differences, and what scaling and relabelling do."""

import dataclasses

import jax
import numpy as np
import pytest
from bridge import oracle_params, oracle_sessions, oracle_world, places_of
from oracle_check import stratified, subset

import jaxroute as jr
from jaxroute import reference, simulate
from jaxroute.numerics import stack
from jaxroute.sensitivity import FACTORS, Scales, scaled, sensitivity
from jaxroute.world import Retention

NAMES = ["carbon_router", "fair_carbon", "random"]
REGIONS = ("US-CISO", "US-PJM", "DE", "SG")


@pytest.fixture(scope="module")
def study():
    """Some bundled sessions, long ones among them, under two retentions."""
    whole = jr.load_study()
    data = subset(whole.datasets[0], stratified(whole.datasets[0], 20, longer_than=240))
    retentions = {"ttl": Retention.of(300.0), "drop": Retention.of(drop_on_leave=True)}
    named = whole.with_policies(NAMES)
    masked = named.policies["carbon_router"].replace(region_allowed=[0, 1, 1, 1])
    return dataclasses.replace(
        named,
        datasets=(data,),
        retentions=retentions,
        policies={**named.policies, "masked": masked},
    )


@pytest.fixture(scope="module")
def table(study):
    return sensitivity(study).set_index(["retention", "policy"])


@pytest.fixture(scope="module")
def replayed(study):
    """The engine's totals and trace under every policy and retention."""
    return _grid(study)


def _grid(study, world=None, policies=None):
    params = stack((policies or study.policies).values())
    retentions = stack(study.retentions.values())
    return simulate.evaluate_grid(params, study.sessions, world or study.world, retentions)


def test_the_elasticities_are_the_oracles_finite_differences(study, table, replayed):
    """Under the engine's decisions carbon is linear in each factor: the difference is exact."""
    sessions, places = oracle_sessions(study.sessions), places_of(study.sessions)
    trace = jax.tree.map(np.asarray, replayed[1])
    step = 0.1
    for (n, label), (p, name) in [
        ((0, "ttl"), (0, "carbon_router")),
        ((1, "drop"), (1, "fair_carbon")),
    ]:
        params = oracle_params(study.policies[name])
        world = study.world.replace(retention=study.retentions[label])

        def carbon_g(scales, n=n, p=p, world=world, params=params):
            plain, total = oracle_world(scaled(world, scales)), 0.0
            for place, session in zip(places, sessions, strict=True):
                forced = trace.decision[n, p][place], trace.cached_tokens[n, p][place]
                sums = reference.replay(plain, session, params, forced=forced).totals
                total += sum(sums[f"carbon_{part}_g"] for part in ("prefill", "decode", "embodied"))
            return total

        row, base = table.loc[label, name], carbon_g(Scales())
        assert row["carbon_g"] == pytest.approx(base, rel=1e-5)
        for factor in FACTORS:
            up, down = (carbon_g(Scales(**{factor: np.float32(1 + s)})) for s in (step, -step))
            difference = (up - down) / (2 * step * base)
            assert row[factor] == pytest.approx(difference, rel=2e-5, abs=1e-6), (name, factor)
            assert row[factor] > 0


def test_the_elasticities_are_shares_of_the_bill(study, table, replayed):
    totals = jax.tree.map(lambda x: np.asarray(x, np.float64).sum(-1), replayed[0])
    operational = (totals.carbon_prefill_g + totals.carbon_decode_g) / totals.carbon_g
    np.testing.assert_allclose(table["carbon_g"], totals.carbon_g.ravel(), rtol=1e-5)
    np.testing.assert_allclose(table["pue"], operational.ravel(), rtol=1e-5)
    np.testing.assert_allclose(table["intensity"], table["pue"], rtol=1e-5)
    energy = table["prefill_energy"] + table["decode_energy"] + table["host_power"]
    np.testing.assert_allclose(energy, table["pue"], rtol=1e-5)
    np.testing.assert_allclose(table["pue"] + table["embodied_rate"], 1, rtol=1e-5)
    busy = table["prefill_time"] + table["decode_time"]
    np.testing.assert_allclose(busy, table["host_power"] + table["embodied_rate"], rtol=1e-5)


def test_at_fixed_decisions_twice_the_pue_is_twice_the_operational_carbon(study, replayed):
    """Decisions are fixed by policies that follow the draws alone, and these by the carbon router.

    The draw of a turn is 0 at the deployment that `carbon_router` chose, so that `random`, without
    a floor, chooses it as well.
    """
    decision = np.asarray(replayed[1].decision)[0, 0]
    noise = (np.arange(len(study.deployments)) != decision[..., None]).astype(np.float32)
    turns = dataclasses.replace(study.sessions.turns, noise=noise)
    sessions = dataclasses.replace(study.sessions, turns=turns)
    drawn = study.policies["random"].replace(quality_floor=0.0, region_allowed=[1, 1, 1, 1])
    params = stack([drawn] * len(study.policies))
    worlds = study.world, study.world.replace(pue=2 * study.world.pue)
    once, twice = (
        simulate.evaluate_grid(params, sessions, world, stack(study.retentions.values()))
        for world in worlds
    )
    for _, trace in (once, twice):
        np.testing.assert_array_equal(np.asarray(trace.decision)[0, 0], decision)
    for name in simulate.FIELDS:
        doubles = name in ("carbon_prefill_g", "carbon_decode_g", "energy_kwh", "cost_usd")
        before, after = (np.asarray(getattr(totals, name)) for totals, _ in (once, twice))
        if name != "carbon_rebuild_g":
            np.testing.assert_allclose(after, before * (1 + doubles), rtol=1e-6, err_msg=name)
    assert (once[0].carbon_embodied_g > 0).all()


def _relabelled(study, order):
    """The same world and policies, the regions' indices dealt out anew."""
    world, place = study.world, np.argsort(order)
    return world.replace(
        fleet=dataclasses.replace(world.fleet, region=place[world.fleet.region].astype(np.int32)),
        pue=world.pue[order],
        wue_l_per_kwh=world.wue_l_per_kwh[order],
        ewif_l_per_kwh=world.ewif_l_per_kwh[order],
        price_usd_per_kwh=world.price_usd_per_kwh[order],
        intensity_g_per_kwh=world.intensity_g_per_kwh[:, order],
        rtt_s=world.rtt_s[:, order],
    ), {
        name: params.replace(region_allowed=np.broadcast_to(params.region_allowed, 4)[order])
        for name, params in study.policies.items()
    }


def test_renaming_regions_changes_nothing(study, replayed):
    world, policies = _relabelled(study, np.array([2, 0, 3, 1]))
    for mine, theirs in zip(
        jax.tree.leaves(_grid(study, world, policies)), jax.tree.leaves(replayed), strict=True
    ):
        np.testing.assert_array_equal(mine, theirs)


def test_permuting_regions_permutes_the_answer(tmp_path):
    """Deployments are in another order then, and every draw is found by its name."""
    rng = np.random.default_rng(4)
    trace = tmp_path / "trace.csv"
    rows = [
        f"{s},{t},{200 * t},{rng.integers(1, 900)},{rng.integers(1, 700)}"
        for s in range(24)
        for t in range(1 + s % 12)
    ]
    header = "session_id,turn,arrival_s,input_tokens,output_tokens"
    trace.write_text("\n".join([header, *rows]) + "\n")

    def run(regions):
        file = tmp_path / f"{regions[0]}.toml"
        file.write_text(
            f'policies = ["carbon_router", "fair_carbon", "random", "nearest", "mine"]\n'
            f'[[datasets]]\npath = "trace.csv"\n[fleet]\nregions = {list(regions)}\n'
            '[policy.mine]\npreset = "carbon_router"\nregions = ["DE", "SG"]\n'
        )
        study = jr.load_study(file)
        totals, seen = _grid(study)
        names = study.deployments[["model", "gpu", "region"]].agg("|".join, axis=1).to_numpy()
        decision = np.asarray(seen.decision)
        assert (decision >= 0).sum() == decision.shape[0] * decision.shape[1] * len(rows)
        return totals, np.where(decision >= 0, names[decision], "")

    one, other = run(REGIONS), run(("SG", "US-CISO", "DE", "US-PJM"))
    np.testing.assert_array_equal(one[1], other[1])
    assert len(set(one[1][0, 2].ravel())) > 40
    for name in simulate.FIELDS:
        mine, theirs = (getattr(totals, name) for totals, _ in (one, other))
        np.testing.assert_allclose(mine, theirs, rtol=1e-6, err_msg=name)


def test_a_bill_of_nothing_has_no_elasticity(study):
    data = study.datasets[0]
    huge = data.columns | {"new_tokens": np.full_like(data.columns["new_tokens"], 900_000)}
    unserved = dataclasses.replace(data, columns=huge)
    none = sensitivity(dataclasses.replace(study, datasets=(unserved,)))
    assert (none["carbon_g"] == 0).all()
    assert none[list(FACTORS)].isna().all(axis=None)
