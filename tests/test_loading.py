"""Studies under load: what they are asked, how fleets are sized, and that the tables agree."""

import dataclasses

import numpy as np
import pandas as pd
import pytest

import jaxroute as jr
from jaxroute import comparison, loading, tuning
from jaxroute.errors import InputError
from jaxroute.load.toml import validate
from jaxroute.load.traffic import LoadConfig
from jaxroute.load_tables import idle_g
from jaxroute.loading import Loading
from jaxroute.report.files import LOADED
from jaxroute.report.load import load_notes, swing
from jaxroute.study import LRU

STUDY = """
policies = ["fair_carbon", "carbon_router"]
[fleet]
models = ["qwen2.5-3b-instruct", "qwen2.5-7b-instruct"]
gpus = ["H100-80GB-SXM"]
regions = ["US-CISO", "SG"]
[load]
arrival_rate = 9000.0
peak_utilisation = 0.7
"""


def trace(path, sessions=80):
    """Conversations of two to seven turns."""
    rng = np.random.default_rng(1)
    rows = ["session_id,turn,arrival_s,input_tokens,output_tokens"]
    for n, length in enumerate(rng.integers(2, 8, sessions)):
        rows += [
            f"s{n},{turn},,{rng.integers(20, 300)},{rng.integers(50, 400)}"
            for turn in range(length)
        ]
    path.write_text("\n".join(rows))
    return path


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    folder = tmp_path_factory.mktemp("load")
    (folder / "study.toml").write_text(STUDY)
    return jr.load_study(folder / "study.toml", traces=trace(folder / "small.csv"))


@pytest.fixture(scope="module")
def compared(study):
    return comparison.run(study)


def test_the_fleet_is_sized_for_the_baseline_and_no_larger(study, compared):
    replicas = np.asarray(loading.capacity_of(study, study.datasets[0]).replicas)
    load = compared.load[compared.load["policy"] == "fair_carbon"]
    peak = load.groupby(["model", "region"])["utilisation"].max()
    assert (peak <= 0.7 * 1.01).all()
    assert replicas.max() > 1
    fullest = load.loc[load["utilisation"].idxmax()]
    assert fullest["utilisation"] * fullest["replicas"] / (fullest["replicas"] - 1) > 0.7


def test_summary_and_load_table_say_the_same(study, compared):
    assert list(study.retentions) == [LRU]
    for row in compared.summary.to_dict("records"):
        own = compared.load[compared.load["policy"] == row["policy"]]
        assert own["turns"].sum() == row["turns"]
        assert own["utilisation"].max() == pytest.approx(row["peak_utilisation"])
        wait_s = np.average(own["wait_s"], weights=own["turns"])
        assert wait_s == pytest.approx(row["mean_wait_s"], rel=1e-5)
        assert row["mean_wait_s"] < row["mean_ttft_s"]
        assert 1 <= row["mean_batch"] <= 32
        per_s = 9000 * 24 / 80 * own["turns"] / 900
        assert own["turns_per_s"].to_numpy() == pytest.approx(per_s.to_numpy())
    assert row["settled"]
    assert row["rounds"] < 24
    assert compared.swings.empty


def test_idle_power_is_of_what_is_neither_prefilling_nor_decoding(study, compared):
    """All of it at no traffic; less by what is busy at more."""
    dataset = study.datasets[0]
    capacity = loading.capacity_at(study, np.full(4, 2.0))
    params = jr.stack([study.policies["fair_carbon"]])
    none, all_ = (
        idle_g(loading.settle(study, dataset, params, capacity, share=[share]))[0, 0]
        for share in (1e-6, 1.0)
    )
    power_w = 2 * np.asarray(capacity.idle_w)
    hours = np.asarray(study.world.intensity_g_per_kwh, np.float64).reshape(-1, 24, 2).mean(0)
    kappa = (hours * study.world.pue).mean(0)[np.asarray(study.world.fleet.region)]
    day_g = (power_w * kappa * 24 / 1e3).sum()
    assert none * 9000 * 1e-6 * 24 / 80 == pytest.approx(day_g, rel=1e-4)
    assert 0 < all_ * 9000 * 24 / 80 < day_g
    off = study.config.load.model_copy(update={"idle": False})
    still = loading.capacity_at(with_load(study, off), np.full(4, 2.0))
    assert not np.asarray(still.idle_w).any()


def with_load(study, load):
    config = study.config.model_copy(update={"load": load})
    return dataclasses.replace(study, config=config)


def test_notes_tell_how_many_turns_stand_behind_a_quarter_of_an_hour(study, compared):
    told = " ".join(load_notes(study, compared))
    assert "turns of the sample stand behind each of" in told
    assert "(few: its load is rough)" in told
    assert set(LOADED) <= {*vars(compared)}


def test_both_states_of_a_swing_are_told(study):
    rows = pd.DataFrame(
        {
            "model": ["m", "m"],
            "gpu": ["g", "g"],
            "region": ["DE", "SG"],
            "share_before_pct": [80.0, 20.0],
            "share_pct": [25.0, 75.0],
            "moved_pct": 55.0,
            "change_pct": 40.0,
            "swing_pct": 60.0,
        }
    )
    told = swing(rows, 24)
    assert "55.0 % of the turns elsewhere" in told
    assert "m|g|DE 80.0 and 25.0 %, m|g|SG 20.0 and 75.0 %" in told
    assert "other caches" in swing(rows.assign(moved_pct=0.0), 24)


def test_replicas_by_name_and_for_the_others(study):
    name = "qwen2.5-7b-instruct|H100-80GB-SXM|SG"
    given = study.config.load.model_copy(update={"replicas": {name: 5.0, "others": 3.0}})
    capacity = loading.capacity_of(with_load(study, given), study.datasets[0])
    assert np.asarray(capacity.replicas).tolist() == [3, 3, 3, 5]


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, "arrival_rate: found nothing"),
        ({"arrival_rate": 0.0}, "arrival_rate: found 0.0"),
        ({"arrival_rate": 1.0, "replicas": 0}, "replicas: found 0, expected a whole number"),
        ({"arrival_rate": 1.0, "replicas": 1.5}, "replicas: found 1.5, expected a whole number"),
        ({"arrival_rate": 1.0, "replicas": True}, "replicas: found true"),
        ({"arrival_rate": 1.0, "replicas": "many"}, "replicas: found 'many', expected 'auto'"),
        ({"arrival_rate": 1.0, "replicas": {"a": -1}}, "replicas.a: found -1"),
        ({"arrival_rate": 1.0, "replicas": float("inf")}, "replicas: found inf, expected a finite"),
        ({"arrival_rate": 1.0, "peak_utilisation": 1.0}, "peak_utilisation: found 1.0"),
        ({"arrival_rate": 1.0, "damping": 0.0}, "damping: found 0.0"),
        ({"arrival_rate": 1.0, "rounds": 1}, "rounds: found 1"),
        ({"arrival_rate": 1.0, "replica": 2}, "replica: found"),
    ],
)
def test_faults_of_the_table_are_named(values, told):
    with pytest.raises(InputError) as caught:
        validate(values, LoadConfig, "study.toml")
    assert told in str(caught.value)


def test_unknown_deployments_are_refused(tmp_path):
    plain = STUDY.replace("peak_utilisation = 0.7\n", "")
    (tmp_path / "s.toml").write_text(plain + '[load.replicas]\n"qwen|H100|SG" = 2\n')
    with pytest.raises(InputError, match=r"load\.replicas\.'qwen\|H100\|SG': found"):
        jr.load_study(tmp_path / "s.toml")
    name = "qwen2.5-7b-instruct|H100-80GB-SXM|SG"
    (tmp_path / "s.toml").write_text(plain + f'[load.replicas]\n"{name}" = 2\n')
    with pytest.raises(
        InputError, match=r"load\.replicas: found no others, and none of qwen2\.5-3b"
    ):
        jr.load_study(tmp_path / "s.toml")


def test_replicas_given_as_an_option_take_the_place_of_a_size(study, tmp_path):
    (tmp_path / "s.toml").write_text(STUDY)
    files = {"traces": trace(tmp_path / "t.csv", 2)}
    load = jr.load_study(tmp_path / "s.toml", **files, load={"replicas": 2.0}).config.load
    assert (load.replicas, load.arrival_rate) == (2, 9000)
    with pytest.raises(InputError, match=r"load\.peak_utilisation: found it beside replicas"):
        options = {"replicas": 2.0, "peak_utilisation": 0.5}
        jr.load_study(tmp_path / "s.toml", **files, load=options)


@pytest.mark.parametrize(
    "call",
    [
        lambda study: tuning.run(study),
        lambda study: jr.fit_gate(study),
        lambda study: jr.explain(study, "s1"),
        lambda study: jr.match(study),
        lambda study: jr.OnlineRouter.from_study(study, policy="carbon_router"),
    ],
)
def test_what_knows_no_load_refuses_it(study, call):
    with pytest.raises(InputError, match=r"\[load\]: found a load, expected none"):
        call(study)


def test_capacity_needs_a_load(study):
    with pytest.raises(InputError, match=r"\[load\]: found nothing"):
        jr.capacity(with_load(study, None))


@pytest.mark.slow  # compiles the loop for twelve levels of traffic, and once more for a sweep
def test_more_traffic_fills_batches_and_evicts_and_sweeps_know_load(study):
    table = jr.capacity(study)
    assert list(table["traffic_pct"].unique()) == list(range(10, 121, 10))
    for _, rows in table.groupby("policy"):
        for name, sign in (("mean_batch", 1), ("hit_ratio_pct", -1), ("carbon_idle_g", -1)):
            assert (sign * np.diff(rows[name]) > -0.02 * rows[name].iloc[:-1].abs()).all(), name
    rows = jr.sweep(study, {"gate_strength": [0.0, 1.0], "ttl_s": [60.0, float("inf")]})
    rates = rows.groupby("ttl_s")["hit_ratio_pct"].mean()
    assert rates.loc[60.0] < rates.loc[np.inf]
    assert {"mean_wait_s", "settled"} <= set(rows)


def test_the_joined_loads_are_those_of_each(study):
    """As of groups of policies, which are settled one after another."""
    settled = {name: np.arange(6.0).reshape(1, 2, 3) for name in ("a", "b")}
    one = Loading(
        capacity=None, copies=np.ones(1), settled=settled, by_batch=True, kappa_g_per_kwh=None
    )
    higher = {name: x + 10 for name, x in settled.items()}
    both = loading.joined([one, dataclasses.replace(one, settled=higher)])
    assert both.only([3, 0]).settled["a"][0].tolist() == [[13, 14, 15], [0, 1, 2]]
    for name in settled:
        assert both.settled[name].shape == (1, 4, 3)
        assert both.settled[name][0, 2:].min() == 10
    assert loading.joined([]) is None
