"""What a fleet can serve: costs by batch against their table, and what cannot be told."""

import dataclasses

import numpy as np
import pytest

from jaxroute import roofline
from jaxroute.config import FleetConfig
from jaxroute.deriving import batches, gpu_types
from jaxroute.errors import InputError
from jaxroute.load.capacity import build_capacity
from jaxroute.load.fleet import fleet_table
from jaxroute.load.fleet_tables import bundled
from jaxroute.roofline import Architecture

FLEET = FleetConfig()
LISTS = (FLEET.models, FLEET.gpus, FLEET.regions)
REPLICAS = np.arange(1.0, 61.0)
PAIR = ("qwen2.5-7b-instruct", "A100-80GB-SXM")
ONE = ([PAIR[0]], [PAIR[1]], ["DE"], [2])


@pytest.fixture(scope="module")
def capacity():
    return build_capacity(*LISTS, REPLICAS, dtype=np.float64)


def test_costs_at_every_batch_of_the_table(capacity):
    table, decodes = fleet_table(*LISTS), bundled().decodes.set_index(["model", "gpu", "batch"])
    assert capacity.dec_j.shape == capacity.dec_s.shape == (32, 60)
    for d, row in enumerate(table.itertuples()):
        for batch in (1, 8, 16):
            own = decodes.loc[(row.model, row.gpu, batch)]
            for unit in ("j", "s"):
                at_0 = own[f"decode_{unit}_per_token"]
                at_0 -= own[f"decode_{unit}_per_token_per_ctx"] * own["ref_context"]
                made = getattr(capacity, f"dec_{unit}")[batch - 1, d]
                assert made == pytest.approx(at_0, rel=1e-12)
        assert (capacity.dec_j[31, d], capacity.dec_s[31, d]) == (row.dec_j, row.dec_s)
    step_j, step_s = np.arange(1, 33)[:, None] * capacity.dec_j, capacity.dec_s
    for side in (step_j, step_s):  # between them along a line
        np.testing.assert_allclose(side[11], (side[7] + side[15]) / 2, rtol=1e-12)
    assert (np.diff(capacity.dec_j, axis=0) < 0).all()


def test_the_rest_is_the_profiles(capacity):
    table = fleet_table(*LISTS)
    profiles = bundled().profiles.set_index(["model", "gpu"])
    own = profiles.loc[list(zip(table["model"], table["gpu"], strict=True))]
    assert capacity.replicas.tolist() == REPLICAS.tolist()
    assert capacity.slots.tolist() == own["batch"].tolist()
    assert capacity.kv_capacity_tokens.tolist() == own["kv_capacity_tokens"].tolist()
    assert capacity.idle_w.tolist() == own["idle_w_per_replica"].tolist()


def test_without_batches_and_idle_power_it_is_the_profiles_to_the_bit():
    made = build_capacity(*LISTS, [np.inf] * 60, by_batch=False, idle=False, decode_scale=1.3)
    table = fleet_table(*LISTS)
    for name in ("dec_j", "dec_s"):
        scaled = table[name].to_numpy(np.float32) * 1.3
        assert (getattr(made, name) == scaled).all() and scaled.dtype == np.float32
    assert {each.dtype.name for each in vars(made).values()} == {"float32"}
    assert not made.idle_w.any() and np.isinf(made.replicas).all()


def changed(table, at, **values):
    """The bundled tables with a pair's rows changed, or without those of `at`."""
    frame = getattr(bundled(), table).copy()
    same = (frame["model"] == PAIR[0]) & (frame["gpu"] == PAIR[1])
    if at is not None:
        same &= frame["batch"] == at
    for name, value in values.items():
        frame[name] = frame[name].astype(float).where(~same, value)
    return dataclasses.replace(bundled(), **{table: frame if values else frame[~same]})


def test_beyond_its_own_batch_a_profile_holds():
    lists = (["qwen2.5-3b-instruct", PAIR[0]], [PAIR[1]], ["DE"])
    made = build_capacity(*lists, [1, 1], tables=changed("profiles", 32, batch=9.5), by_batch=False)
    assert made.dec_j.shape == (32, 2)
    slope = bundled().decodes.set_index(["model", "gpu", "batch"]).loc[(*PAIR, 8)]
    seconds = slope["decode_s_per_token_per_ctx"] * 9.5 / 8
    tables = changed("profiles", 32, batch=9.5, decode_s_per_token_per_ctx=seconds)
    made = build_capacity(*lists, [1, 1], tables=tables, dtype=np.float64)
    own = fleet_table(*lists, tables).iloc[1]
    assert made.slots.tolist() == [32, 9.5]
    for name in ("dec_j", "dec_s"):
        curve = getattr(made, name)[:, 1]
        assert (curve[9:] == own[name]).all()
        assert min(curve[7], own[name]) < curve[8] < max(curve[7], own[name])


MISTAKES = [
    (("decodes", 1), {},
     "profiles_by_batch.csv: found no decode qwen2.5-7b-instruct on A100-80GB-SXM at batch 1, "
     "expected one, as batches change with load; add [[decode]] tables, jaxroute fleet --derive "
     "makes some, or set load.batch = false"),
    (("profiles", 32), {"idle_w_per_replica": np.nan},
     "profiles.csv: profile qwen2.5-7b-instruct on A100-80GB-SXM: found no idle_w_per_replica, "
     "expected W of an idle replica; give it, or set load.idle = false"),
    (("decodes", 8), {"decode_j_per_token_per_ctx": 1.3e-5 * 1.02},
     "profiles_by_batch.csv: decode qwen2.5-7b-instruct on A100-80GB-SXM at batch 8: found "
     "decode_j_per_token_per_ctx 1.326e-05, expected 1.2987e-05, the profile's, within 1%; "
     "correct it, or set load.batch = false"),
    (("decodes", 16), {"decode_s_per_token_per_ctx": 1e-6},
     "at batch 16: found decode_s_per_token_per_ctx 1e-06, expected 5.1605e-07, the profile's x "
     "its batch / the profile's, within 1%"),
]  # fmt: skip


@pytest.mark.parametrize("where, values, expected", MISTAKES)
def test_what_cannot_be_told_is_refused(where, values, expected):
    tables = changed(*where, **values)
    with pytest.raises(InputError) as caught:
        build_capacity(*ONE, tables=tables)
    assert expected in str(caught.value) and len(str(caught.value).splitlines()) == 1
    build_capacity(*ONE, tables=tables, by_batch=False, idle=False)
    build_capacity(*ONE, tables=changed("decodes", 64, decode_j_per_token_per_ctx=1.0))  # not used


@pytest.mark.parametrize("replicas", [[0], [np.nan], [1, 1], 1])
def test_replicas(replicas):
    with pytest.raises(ValueError, match="replicas must be"):
        build_capacity(*ONE[:3], replicas)


def test_bundled_rows_by_batch_come_of_the_roofline():
    models, types, roofs = bundled().models.set_index("model"), gpu_types(), 0
    shape = {field.name for field in dataclasses.fields(Architecture)}
    for row in bundled().decodes.query("batch <= 32").to_dict("records"):
        model = Architecture(
            **{k: v for k, v in models.loc[row["model"]].to_dict().items() if k in shape}
        )
        made = roofline.decode(model, types[row["gpu"]], row["tensor_parallel"], row["batch"])
        measured = row["provenance"].startswith("measured")
        roofs += not measured
        for name, value in made.items():
            loose = measured and name in ("decode_j_per_token", "decode_s_per_token")
            assert value == pytest.approx(row[name], rel=0.15 if loose else 1e-4), (row, name)
    assert roofs == 15 + 3 * 9 and batches(128) == [1, 8, 16, 32, 64, 128]
