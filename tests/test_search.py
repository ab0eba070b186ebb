"""Search by Optuna: what it is told, how it goes on, and what is judged on sessions held out."""

import sys

import jax
import numpy as np
import optuna
import pandas as pd
import pytest
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from traces import LONG, write_trace

import jaxroute as jr
from jaxroute import measuring, slots, space, study
from jaxroute.config import StudyConfig
from jaxroute.load.toml import validate
from jaxroute.split import split

SPACE = {
    "gate_strength": {"low": 0.05, "high": 5.0, "log": True},
    "gate_weights[2]": {"low": -2.0, "high": 2.0},
    "quality_floor": [0.3, 0.6],
    "latency_price_g_per_s": [0.0, 1e-3],
}
BATCH = 8
FIELDS = list(SPACE)
searching = sys.modules["jaxroute.search"]  # the package's attribute of that name is the function


@pytest.fixture(scope="module", autouse=True)
def small_batches():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searching, "BATCH", BATCH)
        yield


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    path = write_trace(tmp_path_factory.mktemp("search") / "chat.csv", **LONG)
    values = {
        "policies": ["carbon_router"],
        "datasets": [{"path": str(path)}],
        "fleet": {
            "models": ["qwen2.5-3b-instruct", "qwen2.5-32b-instruct"],
            "gpus": ["H100-80GB-SXM"],
            "regions": ["US-CISO", "SG"],
        },
        "retention": [{"label": "minute", "ttl_s": 60.0}, {"label": "ten", "ttl_s": 600.0}],
    }
    return study.of(validate(values, StudyConfig, "test"))


@pytest.fixture(scope="module")
def whole(small):
    """Three batches in one go."""
    return jr.search(small, SPACE, trials=3 * BATCH)


def replayed(small, params, data):
    """By retention, what `evaluate` sums over the sessions of a dataset."""
    for retention in small.retentions.values():
        totals = jr.evaluate(params, data.sessions, small.world.replace(retention=retention))
        yield {name: np.float64(values).sum() for name, values in vars(totals).items()} | {
            "carbon_g": np.float64(totals.carbon_g).sum()
        }


def complete(found):
    return found.trials.query("state == 'complete'").drop(columns="trial").reset_index(drop=True)


@pytest.mark.slow  # several searches, each compiled
def test_batches_of_other_numbers_compile_nothing(small, monkeypatch):
    """Nor does a last one that is not full; prices of nothing and a floor come and go."""
    traced, after = [], []
    step, table = slots.step, measuring.table
    monkeypatch.setattr(slots, "step", lambda *a, **k: traced.append(1) or step(*a, **k))

    def counted(*given):
        found = table(*given)
        after.append(len(traced))
        return found

    monkeypatch.setattr(measuring, "table", counted)
    jax.clear_caches()
    random = optuna.samplers.RandomSampler(seed=0)
    found = jr.search(small, SPACE, trials=3 * BATCH + 1, sampler=random)
    assert after[0] > 0
    *batches, learn, judge = after
    assert len(batches) == 4
    assert {*batches, learn} == {after[0]}
    assert judge > learn  # other sessions
    first = found.trials[FIELDS].iloc[:BATCH]
    assert (first.nunique() > 1).all()
    assert len(found.trials) == 3 * BATCH + 1  # the last, alone, has one floor and one price


@pytest.mark.slow  # searches
def test_the_value_told_is_what_evaluate_gives(small, whole):
    learn, _ = split(small)
    base = small.preset("carbon_router")
    for row in whole.trials[::5].to_dict("records"):
        weights = np.zeros(8, np.float32)
        weights[2] = row["gate_weights[2]"]
        params = base.replace(
            gate_weights=weights,
            **{name: row[name] for name in FIELDS if "[" not in name},
        )
        expected = [each["carbon_g"] for each in replayed(small, params, learn.datasets[0])]
        assert row["carbon_g"] == pytest.approx(np.mean(expected), rel=1e-5)
    assert whole.study.best_trial.number == whole.best["trial"].item()
    assert whole.best["carbon_g"].item() == whole.trials["carbon_g"].min()
    assert whole.trials["carbon_g"].nunique() > BATCH


@pytest.mark.slow  # several searches, each compiled
def test_the_best_is_judged_on_sessions_held_out(small, whole):
    """Its table of the study file, read back, gives the scores of both parts."""
    ((_, table),) = whole.policies.items()
    config = validate(
        small.config.model_dump(exclude_unset=True) | {"policy": {"best": table}}, StudyConfig, ""
    )
    named, _ = study._policies(config.model_copy(update={"policies": ("best",)}), small.world)
    assert set(whole.scores["part"]) == {"learn", "held_out"}
    for part, data in zip(("learn", "held_out"), split(small), strict=True):
        scores = whole.scores[whole.scores["part"] == part]
        assert scores["retention"].tolist() == list(small.retentions)
        assert (scores["sessions"] == data.datasets[0].count).all()
        policies = named["best"], small.preset("fair_carbon")
        ours, theirs = (list(replayed(small, each, data.datasets[0])) for each in policies)
        for n, row in enumerate(scores.to_dict("records")):
            assert row["carbon_g"] == pytest.approx(ours[n]["carbon_g"], rel=1e-5)
            saving = 100 * (1 - ours[n]["carbon_g"] / theirs[n]["carbon_g"])
            assert row["saving_pct"] == pytest.approx(saving, abs=1e-3)
            assert row["saving_lo_pct"] < saving < row["saving_hi_pct"]


@pytest.mark.slow  # several searches, each compiled
def test_a_search_is_of_its_seed(small, whole):
    again = jr.search(small, SPACE, trials=3 * BATCH)
    pd.testing.assert_frame_equal(again.trials, whole.trials)
    seeds = [
        searching._sampler(n, at, several=False)._rng.rng.random()
        for n in (0, 1)
        for at in (0, BATCH)
    ]
    assert len(set(seeds)) == 4


def journal(tmp_path):
    return JournalStorage(JournalFileBackend(str(tmp_path / "trials.log")))


def storages(tmp_path):
    yield journal(tmp_path)
    database = optuna.storages.RDBStorage(f"sqlite:///{tmp_path / 'trials.db'}")
    yield database
    database.remove_session()
    database.engine.dispose()  # else its connections are left to be collected


@pytest.mark.slow  # several searches, each compiled
def test_a_search_goes_on_where_it_stopped(small, whole, tmp_path):
    for storage in storages(tmp_path):
        some = jr.search(small, SPACE, trials=BATCH, storage=storage)
        assert len(some.trials) == BATCH
        found = jr.search(small, SPACE, trials=3 * BATCH, storage=storage)
        pd.testing.assert_frame_equal(found.trials, whole.trials)
        pd.testing.assert_frame_equal(found.scores, whole.scores)
        enough = jr.search(small, SPACE, trials=BATCH, storage=storage)
        pd.testing.assert_frame_equal(enough.trials, whole.trials)


@pytest.mark.slow  # several searches, each compiled
def test_a_search_killed_within_a_batch_tries_it_again(small, whole, tmp_path, monkeypatch):
    storage, table, calls = journal(tmp_path), measuring.table, []

    def killed(*given):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return table(*given)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(measuring, "table", killed)
        jr.search(small, SPACE, trials=3 * BATCH, storage=storage)
    left = optuna.load_study(study_name="default", storage=storage).trials
    assert [each.state.name for each in left] == ["COMPLETE"] * BATCH + ["RUNNING"] * BATCH
    found = jr.search(small, SPACE, trials=3 * BATCH, storage=storage)
    assert found.trials["state"].value_counts().to_dict() == {"complete": 3 * BATCH, "fail": BATCH}
    pd.testing.assert_frame_equal(complete(found), complete(whole))
    abandoned = found.trials.query("state == 'fail'")
    np.testing.assert_array_equal(abandoned[FIELDS], found.trials[2 * BATCH : 3 * BATCH][FIELDS])
    assert not abandoned["pareto"].any()


@pytest.mark.slow  # several searches, each compiled
def test_a_sampler_of_ones_own(small, tmp_path):
    storage = journal(tmp_path)
    sampler = optuna.samplers.RandomSampler(seed=3)
    for trials in (5, 12):
        found = jr.search(small, SPACE, trials=trials, sampler=sampler, storage=storage)
        assert len(found.trials) == trials
    once = jr.search(small, SPACE, trials=12, sampler=optuna.samplers.RandomSampler(seed=3))
    pd.testing.assert_frame_equal(found.trials, once.trials)


def test_a_storage_with_another_search_is_refused(small, tmp_path):
    storage = journal(tmp_path)
    jr.search(small, SPACE, trials=2, storage=storage)
    words = r"study 'default': found another search: .*quality_floor.* give another study_name"
    with pytest.raises(jr.InputError, match=words):
        jr.search(small, SPACE | {"quality_floor": [0.3, 0.5]}, trials=4, storage=storage)
    with pytest.raises(jr.InputError, match=r"found another search: objectives\[0\] was"):
        jr.search(small, SPACE, trials=4, objectives=("water_l",), storage=storage)
    optuna.create_study(storage=storage, study_name="mine").add_trial(
        optuna.trial.create_trial(value=1.0)
    )
    with pytest.raises(jr.InputError, match="study 'mine': found another search"):
        jr.search(small, SPACE, storage=storage, study_name="mine")


@pytest.mark.slow  # several searches, each compiled
def test_the_front_of_several_objectives(small):
    objectives = ("saving_pct", "mean_e2e_s")
    found = jr.search(small, SPACE, objectives=objectives, trials=3 * BATCH)
    points = [(-row["saving_pct"], row["mean_e2e_s"]) for row in found.trials.to_dict("records")]
    beaten = [any(all(np.less_equal(b, a)) and b != a for b in points) for a in points]
    assert 1 < beaten.count(False) < len(points)
    assert found.trials["pareto"].tolist() == [not each for each in beaten]
    theirs = {each.number for each in found.study.best_trials}
    assert set(found.best["trial"]) <= theirs == set(np.flatnonzero(~np.array(beaten)))
    assert list(found.policies) == found.best["trial"].tolist()
    means = found.scores[found.scores["part"] == "learn"].groupby("trial", sort=False)
    for name in objectives:
        np.testing.assert_allclose(means[name].mean(), found.best[name], rtol=1e-12)
    assert len(found.scores) == 2 * 2 * len(found.best)


@pytest.mark.slow  # several searches, each compiled
def test_a_trial_without_a_number_has_failed(small, monkeypatch):
    table = measuring.table

    def unpriced(*given):
        found = table(*given)
        return found.assign(cost_usd=found["cost_usd"].where(found["setting"] % 2 == 0))

    monkeypatch.setattr(measuring, "table", unpriced)
    found = jr.search(small, SPACE, objectives=("cost_usd",), trials=BATCH)
    assert found.trials["state"].tolist() == ["complete", "fail"] * (BATCH // 2)
    assert found.best["cost_usd"].item() == found.trials["cost_usd"].min()


def test_a_policy_at_a_setting_is_a_table_of_the_study(small):
    own = {"preset": "sticky", "hysteresis": 0.2, "gate_weights": [1.0] * 8, "regions": ["SG"]}
    config = validate(
        small.config.model_dump(exclude_unset=True) | {"policy": {"mine": own}}, StudyConfig, ""
    )
    named, _ = study._policies(config.model_copy(update={"policies": ("mine",)}), small.world)
    setting = {"gate_weights[3]": -2.5, "hysteresis": 0.1, "region_allowed[US-CISO]": 1.0}
    expected = space.params_at(named["mine"], pd.DataFrame([setting]), config)
    table = space.as_policy("mine", named["mine"], setting, config)
    assert table["gate_weights"] == [1, 1, 1, -2.5, 1, 1, 1, 1]
    assert table["regions"] == ["US-CISO", "SG"]
    again = validate(
        small.config.model_dump(exclude_unset=True) | {"policy": {"mine": table}}, StudyConfig, ""
    )
    found, _ = study._policies(again.model_copy(update={"policies": ("mine",)}), small.world)
    for name, value in vars(found["mine"]).items():
        np.testing.assert_array_equal(value, np.broadcast_to(value, np.shape(value)))
        theirs = np.asarray(getattr(expected, name))[0]
        np.testing.assert_array_equal(np.broadcast_to(value, theirs.shape), theirs)
    nothing = {"region_allowed[SG]": 0.0}
    assert space.as_policy("mine", named["mine"], nothing, config)["regions"] == ["US-CISO", "SG"]


@pytest.mark.parametrize(
    ("axes", "options", "words"),
    [
        ({"gate_strenth": [1]}, {}, ["sweep.space.gate_strenth", "'gate_strength'"]),
        ({"hysteresis": [-1]}, {}, ["sweep.space.hysteresis[0]", ">= 0"]),
        ({"hysteresis": {"low": 1, "high": 0}}, {}, ["hysteresis.high", "above low"]),
        ({"ttl_s": [60.0]}, {}, ["settings.ttl_s", "a field of the world"]),
        ({"hysteresis": [0]}, {"objectives": ["carbon"]}, ["objectives", "'carbon_g'"]),
        ({"hysteresis": [0]}, {"objectives": []}, ["objectives", "found none"]),
        ({"hysteresis": [0]}, {"trials": 0}, ["sweep.samples", ">= 1"]),
        ({"hysteresis": [0]}, {"policy": "stick"}, ["sweep.policy", "'sticky'"]),
    ],
)
def test_faults_are_one_line(small, axes, options, words):
    with pytest.raises(jr.InputError) as caught:
        jr.search(small, axes, **options)
    assert len(str(caught.value).splitlines()) == 1
    for word in words:
        assert word in str(caught.value)


def test_without_optuna_the_extra_is_named(small, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(jr.InputError) as caught:
        jr.search(small, SPACE)
    assert str(caught.value).endswith('pip install "jaxroute[optuna]"')
    assert len(str(caught.value).splitlines()) == 1


def test_optuna_is_quiet_in_a_search_alone(small, capsys):
    before = optuna.logging.get_verbosity()
    jr.search(small, SPACE, trials=2)
    assert capsys.readouterr().err == ""
    assert optuna.logging.get_verbosity() == before == optuna.logging.INFO
