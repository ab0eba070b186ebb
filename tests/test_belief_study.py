"""The beliefs of a study file: how each is drawn, what it is keyed by, and what is said of it."""

import numpy as np
import pandas as pd
import pytest

import jaxroute as jr
from jaxroute import beliefs, comparison
from jaxroute.explanation import ScoreTerms
from jaxroute.load.carbon import Intensity, forecast_error
from jaxroute.simulate import FIELDS, evaluate

HEADER = "session_id,turn,arrival_s,input_tokens,output_tokens"
ROWS = [f"{s},{t},{30 * t},{40 + 7 * t},{90 + 200 * t}" for s in "abcd" for t in range(6)]
PROFILES = {
    "prefill": ("pre_j", "pre_j_ctx", "pre_s", "pre_s_ctx"),
    "decode": ("dec_j", "dec_j_ctx", "dec_s", "dec_s_ctx"),
}


@pytest.fixture
def load(tmp_path):
    """Loads a study of a small trace with some settings."""

    def of(text="", *, rows=ROWS, header=HEADER, **options):
        trace, file = tmp_path / "t.csv", tmp_path / "study.toml"
        trace.write_text("\n".join([header, *rows]) + "\n")
        file.write_text(text + "\n[[datasets]]\npath = 't.csv'\n")
        return jr.load_study(file, **options)

    return of


def test_by_default_routers_know_the_truth(load):
    study = load()
    assert study.world.belief is None
    assert study.sessions.turns.report_draw is None
    assert len(study.notes) == 2 and not any("predicted" in n for n in study.datasets[0].notes)


@pytest.mark.parametrize("rule", ["64", "exact", "noisy"])
def test_predicted_outputs(load, rule):
    given = rule if rule == "64" else f"'{rule}'"
    data = load(f"[belief]\npredicted_output_tokens = {given}").datasets[0]
    output, predicted = (data.columns[f"{n}output_tokens"] for n in ("", "predicted_"))
    words = "the true ones x exp(0.5 z), z standard normal" if rule == "noisy" else rule
    assert f"predicted output tokens: {words}" in data.notes
    if rule == "noisy":
        assert (predicted == np.round(predicted)).all() and (predicted != output).any()
    else:
        np.testing.assert_array_equal(predicted, 64 if rule == "64" else output)


def test_a_predicting_column_beats_a_number_and_no_rule(load):
    header, rows = f"{HEADER},predicted_output_tokens", [f"{row},33" for row in ROWS]
    given = load("[belief]\npredicted_output_tokens = 64", rows=rows, header=header)
    exact = load("[belief]\npredicted_output_tokens = 'exact'", rows=rows, header=header)
    assert (given.datasets[0].columns["predicted_output_tokens"] == 33).all()
    columns = exact.datasets[0].columns
    np.testing.assert_array_equal(columns["predicted_output_tokens"], columns["output_tokens"])


def test_noisy_predictions_are_log_normal_and_of_the_session_alone(load):
    rows = [f"s{n},0,0,10,100000" for n in range(3000)]
    text = "[belief]\npredicted_output_tokens = 'noisy'\npredicted_output_sigma = 0.8"
    column = load(text, rows=rows).datasets[0].columns["predicted_output_tokens"]
    error = np.log(column / 100000)
    assert abs(error.mean()) < 0.06 and abs(error.std() - 0.8) < 0.04
    shuffled = load(text, rows=rows[::-7]).datasets[0].columns["predicted_output_tokens"]
    np.testing.assert_array_equal(shuffled, column[::-7])
    empty = load(text, rows=[f"s{n},0,0,10,0" for n in range(24)]).datasets[0].columns
    assert (empty["predicted_output_tokens"] == 1).all()


def test_report_draws_are_the_sessions_own(load):
    study = load("[belief]\ncached_tokens_missing = 0.25")
    belief, turns = study.world.belief, study.sessions.turns
    assert float(belief.missing) == 0.25
    np.testing.assert_array_equal(belief.fleet.pre_j, study.world.fleet.pre_j)
    np.testing.assert_array_equal(belief.intensity_g_per_kwh, study.world.intensity_g_per_kwh)
    assert turns.report_draw.shape == turns.noise.shape
    assert (turns.report_draw != turns.noise)[turns.valid].all()
    fewer = load("[belief]\ncached_tokens_missing = 0.25", rows=ROWS[12:]).sessions.turns
    np.testing.assert_array_equal(
        fewer.report_draw[fewer.valid], turns.report_draw[np.isin(turns.session, [2, 3])]
    )


def _hours(count, regions, start="2023-03-01"):
    stamp = pd.Timestamp(start, tz="UTC")
    return Intensity(stamp, np.full((count, regions), 300.0), "made up")


def test_a_forecast_errs_as_real_ones_do():
    regions = ("US-PJM", "DE", "SG")
    found = forecast_error(regions)
    assert found.borrowed == ("SG",) and found.sd_log[1] == found.sd_log[2]
    error = np.log(beliefs.day_ahead(0, regions, _hours(20_000, 3)) / 300.0)
    np.testing.assert_allclose(error.std(0), found.sd_log, rtol=0.05)
    ac1 = [np.corrcoef(e[1:], e[:-1])[0, 1] for e in error.T]
    np.testing.assert_allclose(ac1, found.ac1, atol=0.02)
    assert np.abs(np.corrcoef(error.T) - np.eye(3)).max() < 0.1
    assert (beliefs.day_ahead(1, regions, _hours(48, 3)) != 300 * np.exp(error[:48])).all()


def test_an_hours_forecast_depends_on_region_and_hour_alone():
    regions = ("US-PJM", "DE", "SG")
    whole = beliefs.day_ahead(0, regions, _hours(24 * 60, 3))
    part = beliefs.day_ahead(0, ("SG", "US-PJM"), _hours(24, 2, "2023-03-31"))
    np.testing.assert_allclose(part, whole[24 * 30 : 24 * 31][:, [2, 0]], rtol=1e-12)


def test_the_forecast_is_believed_and_the_truth_stays(load):
    plain, study = load(), load("[belief]\nintensity = 'day_ahead'")
    np.testing.assert_array_equal(study.world.intensity_g_per_kwh, plain.world.intensity_g_per_kwh)
    believed = study.world.belief.intensity_g_per_kwh
    assert believed.dtype == np.float32
    assert 0.03 < np.log(believed / study.world.intensity_g_per_kwh).std() < 0.2


def _factors(believed, true):
    ratios = {
        part: np.array([getattr(believed, name) / getattr(true, name) for name in names])
        for part, names in PROFILES.items()
    }
    for ratio in ratios.values():
        np.testing.assert_allclose(ratio, ratio[[0] * 4], rtol=1e-6)
    return np.stack([ratio[0] for ratio in ratios.values()])


def test_profiles_are_misjudged_by_name(load):
    study = load("[belief]\nprofile_error = 0.3")
    true, believed = study.world.fleet, study.world.belief.fleet
    factors = _factors(believed, true)
    assert (factors <= 1.3 * 1.00001).all() and (factors >= 1 / 1.3 / 1.00001).all()
    assert factors.min() < 0.9 and factors.max() > 1.1 and (factors[0] != factors[1]).all()
    profile = (study.deployments["model"] + study.deployments["gpu"]).to_numpy()
    for name in set(profile):
        assert np.ptp(factors[:, profile == name], axis=1).max() < 1e-5
    assert len(np.unique(factors[0].round(4))) == len(set(profile))
    np.testing.assert_array_equal(believed.ttft_floor_s, true.ttft_floor_s)
    fewer = load(
        "[belief]\nprofile_error = 0.3\n[fleet]\nregions = ['SE']\n"
        "models = ['llama-3.1-8b-instruct', 'qwen2.5-3b-instruct']"
    )
    few = _factors(fewer.world.belief.fleet, fewer.world.fleet)
    for n, row in fewer.deployments.iterrows():
        at = np.argmax(profile == row["model"] + row["gpu"])
        np.testing.assert_allclose(few[:, n], factors[:, at], rtol=1e-5)


def test_scales_change_truth_and_belief_alike(load):
    plain = load().world.fleet
    study = load("[fleet]\nprefill_scale = 2\ndecode_scale = 0.5\n[belief]\nprofile_error = 0.3")
    factors = _factors(study.world.fleet, plain)
    np.testing.assert_allclose(factors, np.broadcast_to([[2], [0.5]], factors.shape), rtol=1e-6)
    believed = load("[belief]\nprofile_error = 0.3").world.belief.fleet
    np.testing.assert_allclose(study.world.belief.fleet.pre_j, 2 * believed.pre_j, rtol=1e-6)
    np.testing.assert_allclose(study.world.belief.fleet.dec_s, believed.dec_s / 2, rtol=1e-6)


def test_embodied_carbon_out_of_decisions_or_bills(load):
    rate = load().world.fleet.embodied_g_per_s
    unbilled = load("[embodied]\nin_bill = false")
    assert (unbilled.world.fleet.embodied_g_per_s == 0).all()
    np.testing.assert_array_equal(unbilled.world.belief.fleet.embodied_g_per_s, rate)
    text = (
        "[policy.mine]\npreset = 'sticky'\nembodied_weight = 2.0\n[embodied]\nin_decision = false"
    )
    unweighed = load(text)
    assert unweighed.world.belief is None
    np.testing.assert_array_equal(unweighed.world.fleet.embodied_g_per_s, rate)
    rows = comparison.settings(unweighed)
    assert len(rows) > len(unweighed.policies)
    assert all(float(row.params.embodied_weight) == 0 for row in rows)
    neither = load("[embodied]\nin_decision = false\nin_bill = false")
    assert neither.world.belief is None and (neither.world.fleet.embodied_g_per_s == 0).all()


ALL = """
[fleet]
prefill_scale = 1.5
[embodied]
in_bill = false
[belief]
predicted_output_tokens = "noisy"
cached_tokens_missing = 0.1
cached_tokens_delayed = true
cached_tokens_rounded_to = 100
intensity = "day_ahead"
profile_error = 0.3
"""


def test_every_belief_is_told(load):
    study = load(ALL)
    told = "\n".join((*study.notes, *study.datasets[0].notes))
    for words in (
        *("prefill x 1.5", "embodied carbon is not billed", "exp(0.5 z)"),
        *("previous turn", "multiples of 100", "missing with chance 0.1"),
        *("day-ahead forecast", "DE 0.13 and 0.79", "DE's for SG", "up to 1.3 times"),
    ):
        assert words in told, words
    assert "forecast_error_dayahead.csv" in study.inputs


@pytest.mark.slow  # a program for each belief
def test_an_explained_session_sums_to_its_bill_under_beliefs(load):
    study = load(ALL)
    told = jr.explain(study, "b", retention="drop", policies=["carbon_router"])
    world = study.world.replace(retention=study.retentions["drop"])
    terms = [name for name in told.candidates if name in ScoreTerms._fields]
    scores = told.candidates["score_g"]
    np.testing.assert_allclose(told.candidates[terms].sum(axis=1), scores, rtol=2e-6)
    totals = evaluate(study.policies["carbon_router"], study.sessions, world)
    bills = told.turns.sum(numeric_only=True)
    for name in (*FIELDS, "carbon_g"):
        np.testing.assert_allclose(bills[name], getattr(totals, name)[1], rtol=1e-6, err_msg=name)
    assert bills["carbon_g"] > 0 == bills["carbon_embodied_g"]
    assert (told.candidates["embodied_g"] > 0).all()
