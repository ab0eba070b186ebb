"""A user's own models, GPU types, profiles and regions beside the bundled tables."""

import contextlib
import json

import jax
import numpy as np
import pandas as pd
import pytest
import tomli_w
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from traces import write_trace

import jaxroute as jr
from jaxroute import prepare
from jaxroute.config import StudyConfig, read_config
from jaxroute.errors import InputError
from jaxroute.load.architecture import Config, read_architecture
from jaxroute.load.capacity import build_capacity
from jaxroute.load.files import sha256
from jaxroute.load.fleet import build_world, client_regions, fleet_table, price_of, pue_of, wue_of
from jaxroute.load.fleet_tables import bundled, with_own
from jaxroute.load.own_rows import ModelRow
from jaxroute.quality import ability_of, bundled_irt, expected_accuracy
from jaxroute.report.fleet import FLEET_FILES, fleet_listing, show_fleet, write_fleet
from jaxroute.report.tables import console

MODEL = {
    "model": "my-13b",
    "params_total": 13e9,
    "max_context": 8192,
    "ability": 0.25,
    "source": "our model card",
}
GPU = {
    "gpu": "MINE-96GB",
    "embodied_gpu_kgco2e": 150,
    "embodied_host_share_kgco2e": 712.5,
    "lifetime_years": 5,
    "source": "the vendor's sheet",
}
PROFILE = {
    "model": "my-13b",
    "gpu": "MINE-96GB",
    "tensor_parallel": 2,
    "batch": 16,
    "prefill_j_per_token": 0.03,
    "prefill_j_per_token_per_ctx": 1e-6,
    "prefill_s_per_token": 4e-5,
    "prefill_s_per_token_per_ctx": 1e-9,
    "ttft_floor_s": 0.01,
    "decode_j_per_token": 0.4,
    "decode_j_per_token_per_ctx": 2e-5,
    "decode_s_per_token": 0.02,
    "decode_s_per_token_per_ctx": 1e-6,
    "ref_context": 2000,
    "kv_capacity_tokens": 5000,
    "host_w_per_replica": 300,
    "source": "measured by us",
}
REGION = {"region": "HERE", "lat": 50.11, "lon": 8.68, "pue": 1.2, "source": "our hall"}
DECODE = {
    "model": "my-13b",
    "gpu": "MINE-96GB",
    "batch": 1,
    "decode_j_per_token": 3.1,
    "decode_j_per_token_per_ctx": 2e-5,
    "decode_s_per_token": 0.015,
    "decode_s_per_token_per_ctx": 1e-6 / 16,
    "ref_context": 1000,
    "source": "measured by us",
}
ROWS = {
    "model": [MODEL],
    "gpu": [GPU],
    "profile": [PROFILE | {"idle_w_per_replica": 120}],
    "decode": [DECODE],
    "region": [REGION],
}


def write(path, rows):
    path.write_text(tomli_w.dumps(rows))
    return str(path)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return write(tmp_path_factory.mktemp("own") / "my_fleet.toml", ROWS)


def test_rows_are_added_to_the_bundled(file):
    tables = with_own([file])
    row = fleet_table(["my-13b"], ["MINE-96GB"], ["HERE"], tables).iloc[0]
    assert row["dec_j"] == pytest.approx(0.4 - 2e-5 * 2000)
    assert row["embodied_g_per_s"] == pytest.approx(2 * 862.5e3 / (5 * 365 * 86_400))
    assert (row["params_b"], row["max_context_tokens"], row["host_w"]) == (13, 5000, 300)
    assert row["decode_provenance"] == row["prefill_provenance"] == "measured by us"
    assert tables.abilities == {"my-13b": 0.25}
    assert tables.notes == (
        "of your own, in my_fleet.toml: model my-13b, gpu MINE-96GB, "
        "profile my-13b on MINE-96GB, region HERE, decode my-13b on MINE-96GB at 1 batch",
    )
    lists = (bundled().names("models"), bundled().names("gpus"), ["DE", "SG"])
    pd.testing.assert_frame_equal(
        fleet_table(*lists, tables), fleet_table(*lists), check_dtype=False
    )
    assert "my-13b" not in bundled().names("models")  # nothing global changes
    assert with_own([]) is bundled()


def test_a_region_of_ones_own(file):
    tables = with_own([file])
    assert (pue_of("HERE", tables), wue_of("HERE", tables)) == (1.2, wue_of("KR"))
    assert np.isnan(price_of("HERE", tables)[0])
    world = build_world(["my-13b"], ["MINE-96GB"], ["HERE", "DE"], np.ones((1, 2)), tables=tables)
    clients = client_regions(tables)
    assert clients == [*client_regions(), "HERE"] and world.rtt_s.shape == (29, 2)
    assert world.rtt_s[-1, 0] == pytest.approx(2e-3)
    assert world.rtt_s[-1, 1] == world.rtt_s[clients.index("DE"), 0]
    # The same fit as the bundled table's: Frankfurt to Cape Town or Johannesburg.
    fits = bundled().rtt_ms.query("client_region == 'DE' and source == 'fit'")
    for row in fits.itertuples():
        if row.dc_region in tables.names("regions"):
            pairs = tables.rtt_ms.query("client_region == 'HERE'").set_index("dc_region")
            assert pairs.loc[row.dc_region, "rtt_ms"] == pytest.approx(row.rtt_ms, rel=0.02)


def test_csv_files_say_the_same(tmp_path, file):
    paths = []
    for kind, rows in ROWS.items():
        paths.append(str(tmp_path / f"any-{kind}.csv"))
        pd.DataFrame(rows).to_csv(paths[-1], index=False)
    by_csv, by_toml = with_own(paths), with_own([file])
    lists = (["my-13b"], ["MINE-96GB"], ["HERE", "SG"])
    pd.testing.assert_frame_equal(fleet_table(*lists, by_csv), fleet_table(*lists, by_toml))
    capacities = [build_capacity(*lists, [2, 3], tables=each) for each in (by_csv, by_toml)]
    jax.tree.map(np.testing.assert_array_equal, *capacities)
    assert by_csv.abilities == by_toml.abilities and len(by_csv.notes) == 5


def test_costs_by_batch_of_ones_own(file, tmp_path):
    made = build_capacity(
        ["my-13b"], ["MINE-96GB"], ["HERE"], [2], tables=with_own([file]), dtype=np.float64
    )
    at_1, at_16 = 3.1 - 0.02, 0.4 - 0.04
    assert made.dec_j[[0, 8, 15], 0] == pytest.approx(
        [at_1, (7 / 15 * at_1 + 8 / 15 * 16 * at_16) / 9, at_16]
    )
    assert made.dec_s[[0, 15], 0] == pytest.approx([0.015 - 1e-3 / 16, 0.018])
    assert (made.slots, made.kv_capacity_tokens, made.idle_w) == (16, 5000, 120)
    # A profile in place of a bundled one is of another machine than the bundled rows of decoding.
    pair = {"model": "llama-3.1-8b-instruct", "gpu": "H100-80GB-SXM", "override": True}
    lists = ([pair["model"]], [pair["gpu"]], ["DE"], [2])
    profile, paths = {"profile": [PROFILE | pair]}, ("profile.toml", "decode.toml")
    paths = [tmp_path / name for name in paths]
    tables = with_own([write(paths[0], profile)])
    with pytest.raises(InputError, match=r"found no decode llama-3.1-8b-instruct on H100"):
        build_capacity(*lists, tables=tables, idle=False)
    decode = write(paths[1], {"decode": [DECODE | pair]})
    tables = with_own([str(paths[0]), decode])
    own = build_capacity(*lists, tables=tables, idle=False, dtype=np.float64)
    assert own.dec_j.tolist() == made.dec_j.tolist()
    assert tables.notes[1].endswith("at 1 batch in place of the bundled")
    with pytest.raises(InputError, match=r"batch 1: found decode_j_per_token_per_ctx 2e-05, expe"):
        build_capacity(*lists, tables=with_own([decode]))  # beside the bundled profile


def test_bundled_files_are_read_with_a_source_and_override(tmp_path):
    paths = []
    for field in ("models", "gpus", "profiles", "decodes"):
        table = getattr(bundled(), field).drop(columns="origin")
        paths.append(str(tmp_path / f"{field}.csv"))
        table.assign(source="the same", override="true").to_csv(paths[-1], index=False)
    lists = (bundled().names("models"), bundled().names("gpus"), ["DE"])
    same = fleet_table(*lists, with_own(paths))
    pd.testing.assert_frame_equal(same, fleet_table(*lists), check_dtype=False)
    by_own, ours = (build_capacity(*lists, [1] * 15, tables=t) for t in (with_own(paths), None))
    jax.tree.map(np.testing.assert_array_equal, by_own, ours)


def test_bundled_rows_are_replaced_on_demand(tmp_path):
    rows = {
        "profile": [
            PROFILE | {"model": "llama-3.1-8b-instruct", "gpu": "H100-80GB-SXM", "override": True}
        ],
        "region": [
            {
                "region": "DE",
                "override": True,
                "pue": 1.05,
                "source": "our hall",
                "price_usd_per_kwh": 0.2,
                "price_year": 2020,
            }
        ],
    }
    tables = with_own([write(tmp_path / "f.toml", rows)])
    lists = (["llama-3.1-8b-instruct"], ["A100-80GB-SXM", "H100-80GB-SXM"], ["DE"])
    ours, mine = fleet_table(*lists), fleet_table(*lists, tables)
    assert mine["dec_j"].tolist() == [ours["dec_j"][0], pytest.approx(0.36)]
    assert (pue_of("DE", tables), wue_of("DE", tables)) == (1.05, wue_of("DE"))
    assert price_of("DE", tables) == (pytest.approx(0.2), 2020)
    assert client_regions(tables) == client_regions()
    assert "in place of the bundled" in tables.notes[0]


def without(row, key):
    return {name: value for name, value in row.items() if name != key}


MISTAKES = [
    ({"model": [without(MODEL, "source")]}, "model[0].source: found nothing, expected a value"),
    ({"model": [MODEL | {"size": 1}]}, "model[0].size: found an unknown key, expected an allowed"),
    ({"model": [MODEL | {"params_total": 13}]}, "params_total: found 13, expected a number >= 1e"),
    ({"model": [MODEL | {"params_active": 14e9}]}, "model[0].params_active: found 1.4e+10, expec"),
    ({"model": [MODEL | {"experts": 8}]}, "experts_per_token: found 0 of 8 experts, expected fro"),
    ({"model": [MODEL | {"model": "a|b"}]}, "model[0].model: found 'a|b', expected letters, digi"),
    ({"model": [MODEL, MODEL]}, "model my-13b: found one in "),
    ({"models": [MODEL]}, "models: found an unknown key, expected an allowed one; did you mean '"),
    ({"model": MODEL}, "model: found {"),
    ({"model": [MODEL | {"model": "qwen2.5-7b-instruct"}]},
     "model qwen2.5-7b-instruct: found the name of a bundled model, expected its own; or override"),
    ({"model": [MODEL | {"override": True}]}, "model my-13b: found override = true, expected the"),
    ({"gpu": [without(GPU, "lifetime_years")]},
     "gpu[0].lifetime_years: found nothing, expected a value: embodied carbon is billed; give emb"),
    ({"profile": [PROFILE | {"gpu": "H10"}], "model": [MODEL]},
     "profile my-13b on H10: found 'H10', expected a bundled gpu, or one of a [[gpu]] table; did"),
    ({"profile": [PROFILE | {"tensor_parallel": 1.5}]},
     "profile[0].tensor_parallel: found 1.5, expected a whole number"),
    ({"profile": [PROFILE | {"decode_s_per_token": 20}]}, "decode_s_per_token: found 20, expecte"),
    ({"profile": [PROFILE | {"decode_j_per_token_per_ctx": 3e-4}]},
     "profile[0].decode_j_per_token: found 0.4 at 2000 tokens of context, expected more than dec"),
    ({"profile": [without(PROFILE, "ttft_floor_s")]}, "profile[0].ttft_floor_s: found nothing"),
    (ROWS | {"decode": [DECODE | {"ref_context": 2e5}]},
     "decode[0].decode_j_per_token: found 3.1 at 200000 tokens of context, expected more than"),
    (ROWS | {"decode": [DECODE, DECODE]}, "decode my-13b on MINE-96GB at batch 1: found one in "),
    (ROWS | {"decode": [DECODE | {"gpu": "MINE"}]},
     "decode my-13b on MINE at batch 1: found 'MINE', expected a bundled gpu, or one of a [[gpu]]"),
    (ROWS | {"profile": []}, "decode my-13b on MINE-96GB at batch 1: found no profile of the two,"),
    (ROWS | {"decode": [DECODE | {"tensor_parallel": 4}]},
     "decode my-13b on MINE-96GB at batch 1: found tensor_parallel 4, expected 2, as its profile"),
    ({"decode": [DECODE | {"model": "qwen2.5-7b-instruct", "gpu": "A100-80GB-SXM"}]},
     "at batch 1: found the name of a bundled decode, expected its own; or override"),
    ({"region": [without(REGION, "pue")]}, "region[0].pue: found nothing, expected a value: a re"),
    ({"region": [REGION | {"pue": 0.9}]}, "region[0].pue: found 0.9, expected a number >= 1"),
    ({"region": [REGION | {"price_year": 2024}]},
     "region[0].price_usd_per_kwh: found nothing, expected a value beside price_year"),
]  # fmt: skip


@pytest.mark.parametrize("rows, expected", MISTAKES)
def test_mistakes_in_toml(tmp_path, rows, expected):
    path = write(tmp_path / "f.toml", rows)
    with pytest.raises(InputError) as caught:
        with_own([path])
    assert str(caught.value).startswith(f"{path}: ") and expected in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_huge_values(tmp_path):
    path = tmp_path / "f.toml"
    huge = f"0x{'f' * 5000}"
    path.write_text(
        f"model = [{{model = 'a', source = 'b', max_context = 1, params_total = {huge}}}]"
    )
    with pytest.raises(
        InputError, match=r"params_total: found a number too long to show, expected"
    ):
        with_own([str(path)])
    path.write_text(f"gpu = {'[' * 5000}")
    with pytest.raises(InputError, match="expected TOML in UTF-8"):
        with_own([str(path)])
    many = [REGION | {"region": f"R{number}"} for number in range(101)]
    with pytest.raises(InputError, match=r"region: found 101 regions, expected at most 100"):
        with_own([write(path, {"region": many})])


KEYS = st.sampled_from([*ModelRow.model_fields, *Config.model_fields, "gpu", "profile", "region"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS, inner, max_size=6),
    max_leaves=12,
)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(KEYS, VALUES, max_size=8) | st.binary(max_size=60))
def test_whatever_a_file_holds_there_is_a_clean_error(tmp_path, data):
    for name, read in (
        ("f.toml", lambda path: with_own([path])),
        ("f.csv", lambda path: with_own([path])),
        ("f.json", read_architecture),
    ):
        path = tmp_path / name
        if isinstance(data, bytes):
            path.write_bytes(data)
        elif name == "f.csv":
            path.write_text(f"{','.join(data)}\n{','.join(map(str, data.values()))}\n", "utf-8")
        else:
            path.write_text(json.dumps(data) if name == "f.json" else _toml(data), "utf-8")
        with contextlib.suppress(InputError):
            read(str(path))


def _toml(data):
    """As TOML has it, which has no null."""
    plain = {k: v for k, v in data.items() if "null" not in json.dumps(v)}
    return tomli_w.dumps(plain)


HEADER = "model,params_total,max_context,source"


@pytest.mark.parametrize(
    "text, expected",
    [
        (f"{HEADER}\na,7e9,4096,x\n\nb,seven,4096,x\n", "row 4: params_total: found 'seven', exp"),
        (f"{HEADER}\na,7e9,4096.5,x\n", "row 2: max_context: found 4096.5, expected a whole numb"),
        (f"{HEADER}\na,7e9,,x\n", "row 2: max_context: found nothing, expected a value: it is req"),
        (f"{HEADER}\na,7e9,4096\n", "row 2: found 3 values, expected 4, as in the header"),
        (f"{HEADER},nan\na,nan,4096,x,1\n", "row 2: nan: found an unknown key"),
        (f"{HEADER},source\na,7e9,4096,x,y\n", "row 1: found 2 columns source, expected one"),
        ("name,size\na,1\n", "row 1: found columns name, size, expected a column model, gpu or"),
        ("", "row 1: found columns none, expected a column model, gpu or region; or end the name"),
        (b"\x1f\x8b", "found a gzipped or a Parquet file, expected TOML or CSV of at most"),
        (b"#" * (2**22 + 1), "found 4,194,305 bytes, expected TOML or CSV of at most 4,194,304 b"),
        (b"PAR1", "found a gzipped or a Parquet file, expected"),
    ],
)  # fmt: skip
def test_mistakes_in_csv(tmp_path, text, expected):
    path = tmp_path / "f.csv"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as caught:
        with_own([str(path)])
    assert str(caught.value).startswith(f"{path}: ") and expected in str(caught.value)


def study_file(folder, fleet, **more):
    rows = tomli_w.dumps({"fleet": fleet, **more})
    (folder / "study.toml").write_text(rows)
    return folder / "study.toml"


FLEET = {
    "tables": "my_fleet.toml",
    "models": ["my-13b"],
    "gpus": ["MINE-96GB"],
    "regions": ["DE", "SG"],
}


def test_studies_may_name_them(tmp_path):
    path, presets = study_file(tmp_path, FLEET), ["fair_carbon"]
    with pytest.raises(InputError, match=r"my_fleet.toml: found no file, expected a file"):
        read_config(path, presets=presets)
    (tmp_path / "my_fleet.toml").write_text("[[model]]\nmodel = 1")
    with pytest.raises(InputError) as caught:  # of that file, not of the study's
        read_config(path, presets=presets)
    fleet_file = tmp_path / "my_fleet.toml"
    assert str(caught.value).startswith(f"{fleet_file}: model[0].source: found nothing")
    write(fleet_file, ROWS)
    config = read_config(path, presets=presets)
    assert config.fleet.tables == (str(fleet_file),) and config.files[0] == str(fleet_file)
    again = StudyConfig.model_validate(config.model_dump(exclude_unset=True))
    assert again.fleet.known.names("models")[-1] == "my-13b"
    for fleet, expected in (
        (FLEET | {"models": ["my-14b"]}, "fleet.models[0]: found 'my-14b', expected a bundled one, "
         "or one of fleet.tables; did you mean 'my-13b'"),
        (FLEET | {"tables": ["my_fleet.toml", "my_fleet.toml"]}, "fleet.tables[1]: found "),
    ):  # fmt: skip
        with pytest.raises(InputError) as caught:
            read_config(study_file(tmp_path, fleet), presets=presets)
        assert expected in str(caught.value)


DATED = "session_id,turn,arrival_s,input_tokens,output_tokens,start_time,home_region"
"""Of a trace of which nothing has to be drawn but quality."""


def test_qualities_are_of_the_trace_or_refused(tmp_path):
    own = ROWS | {"model": [without(MODEL, "ability")]}
    path = write(tmp_path / "my_fleet.toml", own)
    trace = tmp_path / "t.csv"
    row = "a,0,0,50,70,2023-06-01T00:00:00Z,HERE"
    trace.write_text(f"{DATED},quality_my-13b\n{row},0.5\n")
    study = study_file(tmp_path, FLEET, datasets=[{"path": "t.csv"}], policies=["fair_carbon"])
    loaded = jr.load_study(study)
    assert loaded.inputs[path] == sha256(path)
    assert loaded.notes[0].startswith("of your own, in my_fleet.toml: model my-13b")
    assert loaded.deployments["model"].tolist() == ["my-13b"] * 2
    assert loaded.datasets[0].columns["quality"].tolist() == [[0.5]]
    assert loaded.datasets[0].columns["home"].tolist() == [28]
    trace.write_text(f"{DATED}\n{row}\n")
    raw = prepare.read(loaded.config.datasets[0], 0)
    with pytest.raises(InputError) as caught:
        prepare.contents(raw, loaded.config, np.array([5000.0]))
    assert str(caught.value).startswith(
        f"{trace}: found 'my-13b', expected a model with a fitted ability; known: qwen2.5-3b"
    )
    assert "or give quality_<model> of every model in the trace, or ability in" in str(caught.value)


def test_abilities():
    models = bundled().names("models")
    fit = bundled_irt([*models, "my"], {"my": -1.0, models[0]: 2.0})
    assert fit.ability[[0, -1]].tolist() == [2.0, -1.0]
    fit = bundled_irt(models)
    found = [ability_of(share) for share in expected_accuracy(fit)[[0, -1]]]
    assert found == pytest.approx(fit.ability[[0, -1]].tolist(), abs=1e-6)
    with pytest.raises(
        InputError, match=r"accuracy: found 1.5, expected a share above 0 and below"
    ):
        ability_of(1.5)


def test_the_listing(tmp_path, capsys):
    write(tmp_path / "my_fleet.toml", ROWS)
    scaled = {"prefill_scale": 2.0, "decode_scale": 3.0}
    config = read_config(study_file(tmp_path, FLEET | scaled), presets=["fair_carbon"])
    listing = fleet_listing(config, 500)
    row = listing.pairs.iloc[0]
    assert row["prefill_j_per_token"] == pytest.approx(2 * (0.03 + 1e-6 * 250))
    assert row["decode_j_per_token"] == pytest.approx(3 * (0.4 - 2e-5 * 1500))
    assert row["tpot_s"] == pytest.approx(3 * (0.02 - 1e-6 * 1500))
    regions = listing.regions.set_index("region")
    assert regions.loc["DE", "pue_source"] == "aws 2024"
    assert regions.loc["SG", "price_usd_per_kwh"] == price_of("SG")[0]
    show_fleet(listing, console())
    shown = capsys.readouterr().out
    for part in ("MINE-96GB", "yours: measured by us", "aws 2024", "of your own, in my_fleet.toml"):
        assert part in shown
    write_fleet(tmp_path, listing)
    assert {each.name for each in tmp_path.iterdir()} >= set(FLEET_FILES)
    assert pd.read_csv(tmp_path / "fleet.csv")["origin"][0] == config.fleet.tables[0]
    with pytest.raises(InputError, match=r"--context: found 0, expected a whole number from 1"):
        fleet_listing(config, 0)


def test_the_listing_of_the_default_study():
    listing = fleet_listing(read_config(presets=["fair_carbon"]))
    assert len(listing.pairs) == 15 and set(listing.pairs["origin"]) == {"bundled"}
    at = listing.pairs.set_index(["model", "gpu"])
    profiles = bundled().profiles.set_index(["model", "gpu"])
    assert at["decode_j_per_token"].to_dict() == pytest.approx(
        profiles["decode_j_per_token"].to_dict()
    )


@pytest.mark.slow  # a comparison from end to end compiles the replay
def test_a_comparison(tmp_path):
    write(tmp_path / "my_fleet.toml", ROWS)
    write_trace(tmp_path / "t.csv", sessions=20, turns=4)
    study = study_file(tmp_path, FLEET, datasets=[{"path": "t.csv"}], policies=["carbon_router"])
    loaded = jr.load_study(study)
    quality = loaded.datasets[0].columns["quality"]
    assert 0.1 < quality.mean() < 0.95 and quality.std() > 0.1
    table = jr.compare(loaded)
    assert (table["carbon_g"] > 0).all()
