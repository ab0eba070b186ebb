"""Tuning: what it refuses, what it finds, and that `compare` reads what it writes."""

import dataclasses
import sys

import jax
import numpy as np
import pytest

from jaxroute import InputError, cli, descent, load_study, presets, tune
from jaxroute.load.space import Range
from jaxroute.load.tuning import GATE, TuneConfig
from jaxroute.report.tuning import TUNING_FILES, write_tuning
from jaxroute.split import some
from jaxroute.tuning import SEARCHED, TUNED, with_options

AXES = {
    "gate_strength": Range(low=0.1, high=4.0, log=True),
    "gate_weights[3]": Range(low=-2.0, high=3.0),
    "quality_floor": Range(low=0.0, high=0.9),
}


@pytest.fixture(scope="module")
def study():
    """Few sessions, of some length, under one retention, with few deployments."""
    whole = load_study()
    dataset = whole.datasets[0]
    chosen = (dataset.lengths >= 6) & (dataset.lengths <= 12)
    chosen &= np.cumsum(chosen) <= 60
    drop = {"drop": whole.retentions["drop"]}
    return dataclasses.replace(whole, datasets=(some(dataset, chosen),), retentions=drop)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "carbon_rooter"}, "tune.policy: found 'carbon_rooter'"),
        ({"policy": "prefix_affinity"}, "tune.policy: found 'prefix_affinity', a rule beside"),
        ({"space": {"always_stay": {"low": 0.0, "high": 1.0}}}, "tune.space.always_stay"),
        ({"space": {"ttl_s": {"low": 1.0, "high": 9.0}}}, "tune.space.ttl_s: found an unknown"),
        ({"space": {"hysteresis": {"low": -1.0, "high": 1.0}}}, "tune.space.hysteresis.low"),
        ({"space": {}}, "tune.space: found an empty table"),
        ({"temperature": [0.01, 0.1]}, "tune.temperature[1]: found 0.1"),
        ({"held_out": 1.0}, "tune.held_out: found 1"),
        ({"starts": 0}, "tune.starts: found 0"),
        ({"stepz": 3}, "tune.stepz: found an unknown key"),
    ],
)
def test_faults_are_told_before_anything_is_done(study, options, message):
    with pytest.raises(InputError) as caught:
        with_options(study, options)
    assert message in str(caught.value)


def test_a_policy_masked_by_a_dataset_is_refused(study):
    with pytest.raises(InputError, match="without a fixed axis"):
        tune(study, {"policy": "carbon_router_fixed_gpu"})


def test_every_field_of_the_gate_is_where_the_cube_says():
    box = descent.Box.of(AXES)
    for unit in ([0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.5, 0.2, 0.6]):
        numbers = box.at(np.array(unit))
        base = jax.tree.map(np.asarray, presets["hysteresis"])
        params = descent.with_fields(jax.tree.map(jax.numpy.asarray, base), tuple(AXES), numbers)
        strength, weight = 0.1 * 40 ** unit[0], -2 + 5 * unit[1]
        np.testing.assert_allclose(descent.field(params, "gate_strength"), strength, rtol=1e-6)
        np.testing.assert_allclose(descent.field(params, "gate_weights[3]"), weight, rtol=1e-6)
        assert (np.delete(np.asarray(params.gate_weights), 3) == 0).all()
        assert params.hysteresis == base.hysteresis


def test_the_first_start_is_the_policy_itself():
    config = TuneConfig(starts=3, space=AXES)
    starts = descent._starts(config, np.array([1.0, 0.5, 0.6]), seed=0)
    assert starts.shape == (3, 3)
    np.testing.assert_allclose(starts[0], [np.log(10) / np.log(40), 0.5, 2 / 3])
    assert ((starts >= 0) & (starts <= 1)).all()
    assert set(GATE) == {"gate_strength", "gate_bias", "hysteresis"} | {
        f"gate_weights[{n}]" for n in range(8)
    }


@pytest.mark.slow  # compiles the gradient of the relaxed replay
def test_it_descends_and_again_the_same_and_compare_reads_it(study, tmp_path, monkeypatch, capsys):
    options = {
        "space": {name: axis.model_dump() for name, axis in AXES.items()},
        "starts": 2,
        "steps": 24,
        "temperature": [0.05, 0.05],
        "learning_rate": 0.03,
    }
    with jax.debug_key_reuse(True), jax.debug_nans(True):
        found = tune(study, options)
    again = tune(study, options)
    np.testing.assert_array_equal(found.starts, again.starts)
    np.testing.assert_array_equal(found.loss, again.loss)
    np.testing.assert_array_equal(found.gains.gain_pct, again.gains.gain_pct)

    good = tune(study, options | {"least_quality": 0.55})
    means = [each.judged.summary.set_index("policy")["mean_quality"] for each in (found, good)]
    assert means[0][TUNED] + 0.03 < means[1][TUNED]
    assert found.fields["quality_floor"] < good.fields["quality_floor"]

    first, last = found.loss.query("step < 6"), found.loss.query("step >= 18")
    assert last["loss"].mean() < first["loss"].mean()
    assert found.settings == 48
    assert set(found.scores) == {TUNED, SEARCHED, "carbon_router"}
    assert not (found.better and found.scores[TUNED] > found.scores[SEARCHED])
    summary = found.judged.summary.set_index("policy")
    ratio = summary["carbon_g"] / summary["carbon_g"]["fair_carbon"]
    for name, score in found.scores.items():
        assert ratio[name] == pytest.approx(score, rel=1e-5)
    near = found.starts["soft"] / found.starts["learned"]
    assert near.between(0.9, 1.1).all()

    write_tuning(tmp_path, found, 1.0)
    assert {file.name for file in tmp_path.iterdir()} == set(TUNING_FILES)
    read = load_study(tmp_path / "tuned.toml").policies[TUNED]
    for name, value in found.fields.items():
        assert descent.field(read, name) == np.float32(value)
    monkeypatch.setattr(sys, "argv", ["jaxroute", "compare", str(tmp_path / "tuned.toml")])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert not caught.value.code
    assert " tuned " in capsys.readouterr().out
