"""From files to arrays: what is drawn, and what is read as it is."""

import dataclasses

import jax
import numpy as np
import pandas as pd
import pytest

import jaxroute as jr
from jaxroute import comparison, draws, timeline
from jaxroute.load.carbon import read_intensity

HEADER = "session_id,turn,arrival_s,input_tokens,output_tokens"


@pytest.fixture(scope="module")
def bundled():
    return jr.load_study()


def _study(tmp_path, rows, header=HEADER, name="t.csv", **options):
    path = tmp_path / name
    path.write_text("\n".join([header, *rows]) + "\n")
    return jr.load_study(traces=[path], **options)


def test_the_default_study(bundled):
    assert len(bundled.deployments) == 60
    assert list(bundled.retentions) == ["keep", "ttl_300s", "drop"]
    assert len(bundled.policies) == 16
    assert bundled.datasets[0].columns["hour"].max() < 8760
    valid = bundled.sessions.turns.valid
    assert valid.sum() == 45_715
    assert valid.mean() > 0.9


def test_presets_of_python_are_those_of_the_default_study(bundled):
    for name, params in jr.presets.items():
        for mine, theirs in zip(
            jax.tree.leaves(params), jax.tree.leaves(bundled.policies[name]), strict=True
        ):
            np.testing.assert_array_equal(mine, theirs)


def test_a_known_utc_hour_reads_the_known_intensity_in_every_region(tmp_path):
    """No rolling by time zone: 05:00 UTC on 2 March reads that hour's row, everywhere."""
    hours = pd.date_range("2023-03-01", periods=72, freq="h", tz="UTC")
    regions = ("US-CISO", "US-PJM", "DE", "SG")
    grid = tmp_path / "grid.csv"
    rows = [
        f"{hour:%Y-%m-%dT%H:%M:%SZ},{region},{100 * n + hour.hour + 24 * hour.day}"
        for hour in hours
        for n, region in enumerate(regions)
    ]
    grid.write_text("\n".join(["timestamp,region,gco2_per_kwh", *rows]) + "\n")
    study = _study(
        tmp_path,
        ["a,0,0,10,10,2023-03-02T05:59:59Z", "a,1,2,10,10,2023-03-02T05:59:59Z"],
        f"{HEADER},start_time",
        carbon=grid,
    )
    hour = study.datasets[0].columns["hour"]
    read = study.world.intensity_g_per_kwh[hour]
    np.testing.assert_allclose(read[0], [100 * n + 5 + 48 for n in range(4)])
    np.testing.assert_allclose(read[1], [100 * n + 6 + 48 for n in range(4)])
    np.testing.assert_array_equal(study.datasets[0].columns["time_bin"], [23, 24])


def test_the_typical_day_reads_the_same_hour_in_every_year(tmp_path):
    header = f"{HEADER},start_time"
    rows = [f"{y},0,0,10,10,{y}-07-15T13:20:00Z" for y in (2019, 2023, 2026)]
    study = _study(tmp_path, rows, header)
    regions = study.config.fleet.regions
    day = read_intensity("builtin:typical-day-2023", regions)
    expected = day.g_per_kwh[(31 + 28 + 31 + 30 + 31 + 30 + 14) * 24 + 13]
    read = study.world.intensity_g_per_kwh[study.datasets[0].columns["hour"]]
    np.testing.assert_allclose(read, np.tile(expected, (3, 1)), rtol=1e-6)
    assert "synthetic" not in study.datasets[0].notes[0]


def test_the_context_of_an_append_only_conversation(tmp_path):
    study = _study(tmp_path, ["a,0,0,10,5", "b,0,0,3,4", "a,1,7,0,5", "a,2,9,8,0"])
    columns = study.datasets[0].columns
    assert study.datasets[0].session_ids.tolist() == ["a", "b"]
    assert columns["new_tokens"].tolist() == [10, 1, 8, 3]
    assert columns["prefix_tokens"].tolist() == [0, 15, 21, 0]
    assert columns["gap_s"].tolist() == [0, 7, 2, 0]


def test_columns_of_the_trace_win(tmp_path):
    models = jr.load_study().config.fleet.models
    quality = [f"quality_{model}" for model in models]
    header = f"{HEADER},prefix_tokens,home_region,predicted_output_tokens,{','.join(quality)}"
    study = _study(
        tmp_path,
        ["a,0,0,10,5,0,SE,77,.1,.2,.3,.4,.5", "a,1,9,10,5,12,SE,78,.5,.4,.3,.2,.1"],
        header,
    )
    columns = study.datasets[0].columns
    assert columns["prefix_tokens"].tolist() == [0, 12]
    assert columns["predicted_output_tokens"].tolist() == [77, 78]
    np.testing.assert_allclose(
        columns["quality"], [[0.1, 0.2, 0.3, 0.4, 0.5], [0.5, 0.4, 0.3, 0.2, 0.1]]
    )
    rtt = study.world.rtt_s[columns["home"][0]]
    assert rtt[2] == rtt.min() < 0.05
    assert any("quality of the trace" in note for note in study.datasets[0].notes)


def test_draws_depend_on_the_session_alone(bundled, tmp_path):
    """Shuffled, and half of it missing, a session keeps its times, home, quality and noise."""
    whole = bundled.datasets[0]
    ids = [str(n) for n in (17, 4, 3, 900)]
    rows = []
    for name in ids:
        at = int(np.flatnonzero(whole.session_ids == name)[0])
        begin = int(whole.lengths[:at].sum())
        for t in range(whole.lengths[at]):
            new = whole.columns["new_tokens"][begin + t]
            rows.append(f"{name},{t},,{new},{whole.columns['output_tokens'][begin + t]}")
    part = _study(tmp_path, rows).datasets[0]
    for n, name in enumerate(ids):
        at = int(np.flatnonzero(whole.session_ids == name)[0])
        mine = slice(int(part.lengths[:n].sum()), int(part.lengths[: n + 1].sum()))
        theirs = slice(int(whole.lengths[:at].sum()), int(whole.lengths[: at + 1].sum()))
        for column, values in part.columns.items():
            expected = whole.columns[column][theirs]
            np.testing.assert_array_equal(values[mine], expected, err_msg=column)


def test_draws_have_the_distribution_they_claim():
    hashes = draws.name_hashes(str(n) for n in range(20_000))
    u = draws.uniform(1, "test", hashes)
    assert 0 < u.min() < u.max() < 1
    assert np.abs(np.sort(u) - np.linspace(0, 1, u.size)).max() < 1.95 / np.sqrt(u.size)
    z = draws.normal(1, "test", hashes, np.zeros(u.size, int))
    assert abs(z.mean()) < 0.03
    assert abs(z.std() - 1) < 0.03
    assert abs(np.corrcoef(u, draws.uniform(1, "other", hashes))[0, 1]) < 0.03
    assert abs(np.corrcoef(u, draws.uniform(2, "test", hashes))[0, 1]) < 0.03
    weights = draws.bootstrap_weights(0, hashes[:2000], 200)
    assert weights.mean() == pytest.approx(1, abs=0.01)
    assert weights.var() == pytest.approx(1, abs=0.02)


def test_synthetic_times_are_inside_the_year_and_have_the_median(bundled):
    gaps = bundled.datasets[0].columns["gap_s"]
    later = gaps[gaps > 0]
    assert np.median(later) == pytest.approx(60, rel=0.03)
    assert np.log(later).std() == pytest.approx(1.2, rel=0.03)


def test_sums_along_sessions_are_each_sessions_own():
    rng = np.random.default_rng(0)
    lengths = np.r_[rng.integers(1, 30, 50), 400, 3]
    values = rng.lognormal(0, 3, lengths.sum())
    parts = np.split(values, np.cumsum(lengths)[:-1])
    expected = np.concatenate([np.cumsum(part) for part in parts])
    np.testing.assert_array_equal(timeline.sums_along(values, lengths), expected)


def test_blocks_of_a_dataset_give_what_the_whole_gives(bundled):
    whole = bundled.datasets[0]
    keep = 400
    turns = int(whole.lengths[:keep].sum())
    part = dataclasses.replace(
        whole,
        session_ids=whole.session_ids[:keep],
        hashes=whole.hashes[:keep],
        lengths=whole.lengths[:keep],
        columns={name: values[:turns] for name, values in whole.columns.items()},
    )
    params = bundled.policies["random"]
    together = jr.evaluate(params, part.sessions, bundled.world).carbon_g
    blocks = list(part.blocks(turns=500))
    assert len(blocks) > 3
    shapes = {tuple(x.shape for x in jax.tree.leaves(sessions)) for _, sessions in blocks}
    assert len(shapes) == 1
    for at, sessions in blocks:
        alone = jr.evaluate(params, sessions, bundled.world).carbon_g[: at.stop - at.start]
        np.testing.assert_allclose(alone, together[at], rtol=1e-6)


def test_several_datasets_have_no_single_sessions(tmp_path):
    for name in ("x.csv", "y.csv"):
        (tmp_path / name).write_text(f"{HEADER}\na,0,0,1,1\n")
    study = jr.load_study(traces=[tmp_path / "x.csv", tmp_path / "y.csv"])
    with pytest.raises(ValueError, match="several datasets"):
        _ = study.sessions


def test_two_traces_of_one_name_are_refused(tmp_path):
    for folder in ("p", "q"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "t.csv").write_text(f"{HEADER}\na,0,0,1,1\n")
    with pytest.raises(jr.InputError, match="t"):
        jr.load_study(traces=[tmp_path / "p" / "t.csv", tmp_path / "q" / "t.csv"])


def test_settings_hold_every_index_of_a_fixed_axis(bundled):
    rows = comparison.settings(bundled)
    fixed = [row for row in rows if row.policy == "carbon_router_fixed_region"]
    assert [row.index for row in fixed] == [0, 1, 2, 3]
    assert all(row.params.region_allowed.sum() == 1 for row in fixed)


def test_another_trace_changes_no_date(tmp_path):
    rows = ["a,0,0,10,5", "a,1,7,20,5", "b,0,0,3,4"]
    alone = _study(tmp_path, rows)
    dated = tmp_path / "dated.csv"
    dated.write_text(f"{HEADER},start_time\nz,0,0,10,10,2026-03-01T00:00:00Z\n")
    beside = jr.load_study(traces=[tmp_path / "t.csv", dated])
    read = [
        study.world.intensity_g_per_kwh[study.datasets[0].columns["hour"]]
        for study in (alone, beside)
    ]
    np.testing.assert_array_equal(*read)
    bins = [study.datasets[0].columns["time_bin"] for study in (alone, beside)]
    np.testing.assert_array_equal(*bins)


def test_a_fixed_axis_keeps_to_the_policys_own_mask(tmp_path):
    path = tmp_path / "study.toml"
    (tmp_path / "t.csv").write_text(f"{HEADER}\na,0,0,100,50\na,1,7,20,50\n")
    path.write_text(
        'policies = ["mine"]\n[[datasets]]\npath = "t.csv"\n'
        '[policy.mine]\npreset = "carbon_router_fixed_region"\nregions = ["SG", "DE"]\n'
    )
    outcome = comparison.run(jr.load_study(path))
    assert outcome.fixed["t"]["mine"] in ("SG", "DE")
    served = outcome.shares.query("policy == 'mine' and turns > 0")
    assert served["region"].unique().tolist() == [outcome.fixed["t"]["mine"]]
    assert (outcome.summary["mask_fallbacks"] == 0).all()


def test_the_share_below_the_floor_is_that_of_the_fallbacks(bundled):
    outcome = comparison.run(bundled)
    row = outcome.summary.query("policy == 'fair_carbon' and retention == 'keep'").iloc[0]
    share = row["quality_fallbacks"] / row["turns"]
    assert any(f"on {share:.1%} of the turns" in note for note in bundled.datasets[0].notes)


def test_tiny_and_huge_numbers_of_a_study_are_refused_or_harmless(tmp_path):
    path = tmp_path / "study.toml"
    (tmp_path / "t.csv").write_text(f"{HEADER}\na,0,0,100,50\na,1,7,20,50\n")
    for line in ("decay_s = 1e-36", "ttl_s = 1e-9"):
        path.write_text(f'[[retention]]\nlabel = "x"\n{line}\n')
        with pytest.raises(jr.InputError, match="retention"):
            jr.load_study(path)
    for line in ("carbon_weight = 1e300", "latency_price_g_per_s = 1e38", "gate_bias = 1e300"):
        path.write_text(f'[policy.x]\npreset = "sticky"\n{line}\n')
        with pytest.raises(jr.InputError, match=r"policy\.x"):
            jr.load_study(path)
    path.write_text(
        'policies = ["x"]\n[[datasets]]\npath = "t.csv"\n'
        '[[retention]]\nlabel = "never"\nttl_s = 1e300\n'
        '[[retention]]\nlabel = "at once"\ndecay_s = 0.001\n'
        '[policy.x]\npreset = "carbon_router"\ncarbon_weight = 1e9\nlatency_price_g_per_s = 1e9\n'
    )
    table = comparison.run(jr.load_study(path)).summary
    assert np.isfinite(table["carbon_g"]).all()
