"""The fleet: each coefficient against its table, and the world that comes of it."""

import dataclasses

import jax
import numpy as np
import pandas as pd
import pytest

from jaxroute.config import FleetConfig
from jaxroute.errors import InputError
from jaxroute.load.files import package_file
from jaxroute.load.fleet import build_world, client_regions, fleet_table, pue_of
from jaxroute.load.fleet_tables import bundled

FLEET = FleetConfig()
LISTS = (FLEET.models, FLEET.gpus, FLEET.regions)


def source(name):
    return pd.read_csv(package_file(name), na_values=[""], keep_default_na=False)


def test_deployments_are_model_major_then_gpu_then_region():
    table = fleet_table(*LISTS)
    names = table[["model", "gpu", "region"]].itertuples(index=False, name=None)
    assert list(names) == [
        (model, gpu, region)
        for model in FLEET.models
        for gpu in FLEET.gpus
        for region in FLEET.regions
    ]
    assert not table.isna().any(axis=None)


def test_a_turn_costs_what_the_profile_says():
    table = fleet_table(*LISTS)
    profiles = source("profiles.csv").set_index(["model", "gpu"])
    cached, new, out = 700.0, 300.0, 120.0
    prompt = cached + new
    for row in table.itertuples():
        profile = profiles.loc[(row.model, row.gpu)]
        attended = new * cached + new**2 / 2
        context = prompt + out / 2
        for unit in ("j", "s"):
            prefill = profile[f"prefill_{unit}_per_token"] * new
            prefill += profile[f"prefill_{unit}_per_token_per_ctx"] * attended
            decode = profile[f"decode_{unit}_per_token"] + profile[
                f"decode_{unit}_per_token_per_ctx"
            ] * (context - profile["ref_context"])
            ours = getattr(row, f"pre_{unit}") * new
            ours += getattr(row, f"pre_{unit}_ctx") * new * (prompt + cached) / 2
            assert ours == pytest.approx(prefill, rel=1e-12)
            ours = getattr(row, f"dec_{unit}") + getattr(row, f"dec_{unit}_ctx") * context
            assert ours == pytest.approx(decode, rel=1e-12)
        assert row.dec_j > 0 and row.dec_s > 0
        assert (row.host_w, row.batch) == (profile["host_w_per_replica"], profile["batch"])


def test_embodied_carbon_size_and_context_limit():
    table = fleet_table(*LISTS).set_index(["model", "gpu", "region"])
    gpus = source("gpus.csv").set_index("gpu")
    models = source("models.csv").set_index("model")
    for (model, gpu, _), row in table.iterrows():
        rate = gpus.loc[gpu, "embodied_gpu_plus_host_ug_per_s"] * row["tensor_parallel"]
        assert row["embodied_g_per_s"] == pytest.approx(rate / 1e6)
        assert row["params_b"] == pytest.approx(models.loc[model, "params_total"] / 1e9)
        assert row["max_context_tokens"] == models.loc[model, "max_context"]
    assert table.loc[("llama-3.1-70b-instruct", "A100-80GB-SXM", "DE"), "tensor_parallel"] == 4


@pytest.mark.parametrize(
    "region, pue",
    [("DE", 1.35), ("SG", 1.32), ("US-ERCO", 1.12), ("IT", 1.12), ("KR", 1.15)],
    ids=["aws", "aws before others", "gcp before azure", "azure", "everywhere: aws"],
)
def test_pue(region, pue):
    assert pue_of(region) == pue


def test_the_newest_pue_of_a_provider_counts():
    rows = [("X", "azure", 2025, 1.1), ("X", "gcp", 2020, 1.2), ("X", "gcp", 2024, 1.3)]
    table = pd.DataFrame(rows, columns=["region", "provider", "year", "pue"])
    assert pue_of("X", dataclasses.replace(bundled(), pue=table)) == 1.3


def test_the_world():
    intensity = np.arange(8.0).reshape(2, 4)
    world = build_world(*LISTS, intensity)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(world))
    dtypes = {leaf.dtype.name for leaf in jax.tree.leaves(world)}
    assert dtypes == {"float32", "int32"}
    assert world.fleet.model.tolist() == [d // 12 for d in range(60)]
    assert world.fleet.gpu.tolist() == [d // 4 % 3 for d in range(60)]
    assert world.fleet.region.tolist() == [d % 4 for d in range(60)]
    assert world.fleet.model.dtype == np.int32
    assert world.block_tokens == 16 and world.block_tokens.shape == ()
    assert world.wait_s.tolist() == [[0]]
    assert np.isinf(world.retention.ttl_s).all() and world.retention.drop_on_leave == 0
    assert world.intensity_g_per_kwh.tolist() == intensity.tolist()
    assert world.pue.tolist() == [np.float32(pue_of(region)) for region in FLEET.regions]


def test_a_float64_world():
    world = build_world(*LISTS, np.ones((1, 4)), dtype=np.float64)
    dtypes = {leaf.dtype.name for leaf in jax.tree.leaves(world)}
    assert dtypes == {"float64", "int32"}
    assert world.fleet.dec_j.tolist() == fleet_table(*LISTS).dec_j.tolist()


def test_round_trips_are_seconds_from_every_client_region():
    world = build_world(*LISTS, np.ones((1, 4)), dtype=np.float64)
    table = source("rtt_ms.csv")
    assert world.rtt_s.shape == (len(client_regions()), 4)
    assert len(client_regions()) == 28 and "NO" in client_regions()
    for row in table.itertuples():
        if row.dc_region in FLEET.regions:
            client = client_regions().index(row.client_region)
            region = FLEET.regions.index(row.dc_region)
            assert world.rtt_s[client, region] == pytest.approx(row.rtt_ms / 1000)


@pytest.mark.parametrize(
    "shape", [(4,), (0, 4), (2, 3)], ids=["no hours", "empty", "other regions"]
)
def test_intensity_of_another_shape(shape):
    with pytest.raises(ValueError, match=r"intensity must be \[H, 4\]"):
        build_world(*LISTS, np.ones(shape))


def test_intensity_that_is_not_finite():
    with pytest.raises(ValueError, match="finite"):
        build_world(*LISTS, np.full((1, 4), np.nan))


@pytest.mark.parametrize(
    "which, names, expected",
    [
        (0, ["llama-3.1-8b"], "models.csv: model: found 'llama-3.1-8b', expected a model in the"),
        (0, ["llama-3.1-8b"], "did you mean 'llama-3.1-8b-instruct'? known: qwen2.5-3b-instruct, "),
        (
            1,
            ["H100"],
            "gpus.csv: gpu: found 'H100', expected a gpu in the table; did you mean 'H100-",
        ),
        (
            2,
            ["XX"],
            "regions.csv: region: found 'XX', expected a region in the table; known: US-CISO",
        ),
        (
            2,
            ["DE", "DE"],
            "regions.csv: region: found 'DE' asked for twice, expected each region once",
        ),
    ],
)
def test_unknown_names(which, names, expected):
    lists = [*LISTS]
    lists[which] = names
    with pytest.raises(InputError) as caught:
        fleet_table(*lists)
    assert expected in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_pair_without_a_profile():
    less = dataclasses.replace(bundled(), profiles=source("profiles.csv").drop(index=4))
    with pytest.raises(InputError) as caught:
        fleet_table(*LISTS, less)
    assert str(caught.value) == (
        "profiles.csv: found no profile of qwen2.5-7b-instruct on H100-80GB-SXM, "
        "expected one of each pair; it has A100-80GB-SXM, B200-180GB-SXM"
    )


def test_a_replica_without_room_and_a_decode_cost_below_zero():
    profiles = source("profiles.csv")
    profiles.loc[0, "kv_capacity_tokens"] = 1000
    tables = dataclasses.replace(bundled(), profiles=profiles)
    assert fleet_table(*LISTS, tables).max_context_tokens[0] == 1000
    profiles.loc[0, "decode_s_per_token_per_ctx"] = 1.0
    with pytest.raises(InputError, match=r"3b-instruct on A100.*dec_s > 0 at context 0"):
        fleet_table(*LISTS, tables)
