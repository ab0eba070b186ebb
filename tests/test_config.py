"""The study file: its defaults, its paths, and what it says of mistakes."""

import dataclasses
import math
from datetime import UTC, datetime
from pathlib import Path

import pytest

from jaxroute import catalogue, gate, policies
from jaxroute.config import (
    BeliefConfig,
    EmbodiedConfig,
    PolicyConfig,
    RetentionConfig,
    SloConfig,
    StudyConfig,
    WaterConfig,
    read_config,
)
from jaxroute.errors import InputError
from jaxroute.load.files import package_file
from jaxroute.load.values import GATE_FEATURES

PRESETS = ("carbon_router", "fair_carbon", "random")


@pytest.fixture
def study(tmp_path):
    """Writes a study file and returns its path."""

    def write(text):
        path = tmp_path / "study.toml"
        path.write_text(text, encoding="utf-8")
        return path

    return write


def test_the_default_study_is_the_empty_one(study):
    default = StudyConfig.model_validate({}, context={"presets": PRESETS})
    assert read_config(presets=PRESETS) == default
    assert read_config(study(""), presets=PRESETS) == default
    assert [entry.label for entry in default.retention] == ["keep", "ttl_300s", "drop"]
    assert math.isinf(default.retention[0].ttl_s) and default.retention[1].ttl_s == 300
    assert default.datasets[0].label == "sharegpt"
    assert len(default.fleet.models) * len(default.fleet.gpus) * len(default.fleet.regions) == 60


def test_the_two_copies_of_the_default_study_are_identical():
    copy = Path(__file__).parent.parent / "configs" / "default.toml"
    assert copy.read_bytes() == package_file("default.toml").read_bytes()


def test_presets_and_parameters_are_those_of_the_router():
    assert read_config() == read_config(presets=catalogue.PRESET_NAMES)
    fields = {field.name for field in dataclasses.fields(policies.RouterParams)}
    masks = {"model_allowed", "gpu_allowed", "region_allowed"}
    own = {"preset", "models", "gpus", "regions"}
    assert set(PolicyConfig.model_fields) - own == fields - masks
    assert len(gate.FEATURES) == GATE_FEATURES


def test_a_whole_study(study, tmp_path):
    path = study(
        """
        name = "mine"
        seed = 7
        policies = ["random", "mine"]
        [[datasets]]
        path = "../traces/a.csv.gz"
        trace_start = 2023-06-01T02:00:00+02:00
        synthetic_times = { median_gap_s = 9 }
        [[datasets]]
        path = "b.parquet"
        label = "c"
        trace_start = "2023-06-01"
        [[datasets]]
        path = "builtin:sharegpt"
        [intensity]
        path = "/grid.csv"
        [[retention]]
        label = "fade"
        decay_s = 60
        ttl_s = inf
        [policy.mine]
        preset = "carbon_router"
        gate_bias = -1
        gate_weights = [0, 0, 0, 0, 0, 0, 0, 1.5]
        always_stay = true
        ttft_slo_s = inf
        regions = ["DE"]
        """
    )
    config = read_config(path, presets=PRESETS)
    first, second, third = config.datasets
    assert first.path == str(tmp_path.parent / "traces" / "a.csv.gz") and first.label == "a"
    assert first.trace_start == datetime(2023, 6, 1, tzinfo=UTC)
    assert (first.synthetic_times.median_gap_s, first.synthetic_times.sigma) == (9, 1.2)
    assert second.path == str(tmp_path / "b.parquet") and second.label == "c"
    assert second.trace_start == datetime(2023, 6, 1, tzinfo=UTC)
    assert (third.path, third.label) == ("builtin:sharegpt", "sharegpt")
    assert config.intensity.path == "/grid.csv"
    assert config.retention[0].decay_s == 60
    policy = config.policy["mine"]
    assert policy.regions == ("DE",) and policy.models is None
    assert policy.changes() == {
        "gate_bias": -1,
        "gate_weights": (0, 0, 0, 0, 0, 0, 0, 1.5),
        "always_stay": 1,
        "ttft_slo_s": math.inf,
    }


def test_a_config_cannot_be_changed():
    with pytest.raises(ValueError, match="frozen"):
        read_config(presets=PRESETS).seed = 1  # type: ignore[misc]


RETENTION = "[[retention]]\nlabel = 'a'\n[[retention]]\nlabel = 'b'\n"
POLICY = "[policy.mine]\npreset = 'random'\n"
DATASET = "[[datasets]]\npath = 'a.csv'\n"
MISTAKES = {
    "nam = 'x'": "nam: found an unknown key, expected an allowed one; did you mean 'name'?",
    "name = ''": "name: found '', expected a text that is not empty",
    "name = 3": "name: found 3, expected a text",
    "seed = 1.5": "seed: found 1.5, expected a whole number",
    "seed = true": "seed: found true, expected a whole number",
    "seed = -1": "seed: found -1, expected a number >= 0",
    "quality_floor = 1.5": "quality_floor: found 1.5, expected a number <= 1",
    "quality_floor = '0.5'": "quality_floor: found '0.5', expected a number",
    "on_overflow = 'drop'": "on_overflow: found 'drop', expected 'unserved' or 'truncate'",
    "[water]\nmix = ''": "water.mix: found '', expected a text that is not empty",
    "[slo]\nttft_s = -1": "slo.ttft_s: found -1, expected a number >= 0",
    "baseline = 'fair'": "baseline: found 'fair', expected a policy; did you mean 'fair_carbon'?",
    "policies = []": "policies: found an empty list, expected at least one entry",
    "policies = ['random', 'x']": "policies[1]: found 'x', expected a policy; known: carbon_router",
    "policies = ['random', 'random']": "policies[1]: found 'random' once more, expected each name",
    "policies = 'random'": "policies: found 'random', expected a list",
    "datasets = []": "datasets: found an empty list, expected at least one entry",
    "[[datasets]]\nlabel = 'a'": "datasets[0].path: found nothing, expected a value",
    DATASET + DATASET: "datasets[1]: found 'a' once more, expected each name once",
    DATASET + "trace_start = 'soon'": "datasets[0].trace_start: found 'soon', expected a date and",
    DATASET + "trace_start = 5": "datasets[0].trace_start: found 5, expected a date and time such",
    DATASET
    + "synthetic_times = {sigma = -1}": "datasets[0].synthetic_times.sigma: found -1, expec",
    DATASET
    + "synthetic_times = {gap = 1}": "datasets[0].synthetic_times.gap: found an unknown key",
    "[fleet]\nmodels = []": "fleet.models: found an empty list, expected at least one entry",
    "[fleet]\ngpus = ['a', 'a']": "fleet.gpus[1]: found 'a' once more, expected each name once",
    "[fleet]\nregions = ['DE', 3]": "fleet.regions[1]: found 3, expected a text",
    "fleet = 3": "fleet: found 3, expected a table",
    "[intensity]\npath = ''": "intensity.path: found '', expected a text that is not empty",
    "[quality]\nsource = 'guess'": "quality.source: found 'guess', expected 'irt'",
    "[quality]\nautocorrelation = 1": "quality.autocorrelation: found 1, expected a number < 1",
    "[belief]\npredicted_output_tokens = nan": "belief.predicted_output_tokens: found nan",
    "[belief]\npredicted_output_tokens = 'all'": "belief.predicted_output_tokens: found 'all', "
    "expected a number >= 0, 'exact' or 'noisy'",
    "[belief]\npredicted_output_tokens = true": "belief.predicted_output_tokens: found true, expe",
    "[belief]\npredicted_output_tokens = -1": "belief.predicted_output_tokens: found -1, expected",
    "[belief]\ncached_tokens_missing = 1.1": "belief.cached_tokens_missing: found 1.1, expected a",
    "[belief]\ncached_tokens_delayed = 1": "belief.cached_tokens_delayed: found 1, expected true",
    "[belief]\ncached_tokens_rounded_to = 0.5": "belief.cached_tokens_rounded_to: found 0.5, exp",
    "[belief]\nintensity = 'late'": "belief.intensity: found 'late', expected 'exact' or 'day_ah",
    "[belief]\nprofile_error = 1": "belief.profile_error: found 1, expected a number < 1",
    "[fleet]\ndecode_scale = 0": "fleet.decode_scale: found 0, expected a number > 0",
    "[embodied]\nin_bill = 0": "embodied.in_bill: found 0, expected true or false",
    RETENTION + "ttl_s = 0": "retention[1].ttl_s: found 0, expected a number >= 0.001",
    RETENTION + "decay_s = nan": "retention[1].decay_s: found nan, expected a number >= 0.001",
    RETENTION + "drop_on_leave = 1": "retention[1].drop_on_leave: found 1, expected true or false",
    RETENTION
    + "ttl = 3": "retention[1].ttl: found an unknown key, expected an allowed one; did you",
    RETENTION + RETENTION: "retention[2]: found 'a' once more, expected each name once",
    "[[retention]]\nttl_s = 1": "retention[0].label: found nothing, expected a value",
    "[policy.lower_bound]\npreset = 'random'": "policy.lower_bound: found the name of a bound,",
    "[policy.random]\npreset = 'random'": "policy.random: found a preset's name, expected",
    "[policy.x]\npreset = 'randm'": "policy.x.preset: found 'randm', expected a preset; did",
    "[policy.x]": "policy.x.preset: found nothing, expected a value",
    "[policy.'x y']\npreset = 3": "policy.'x y'.preset: found 3, expected a text",
    POLICY + "hysteresis = -1": "policy.mine.hysteresis: found -1, expected a number >= 0",
    POLICY + "hysteresis = inf": "policy.mine.hysteresis: found inf, expected a finite number",
    POLICY + "cache_knowledge = 2": "policy.mine.cache_knowledge: found 2, expected a number <= 1",
    POLICY + "expected_gap_s = 0": "policy.mine.expected_gap_s: found 0, expected a number > 0",
    POLICY + "gate_weights = [1]": "policy.mine.gate_weights: found 1 numbers, expected 8, one for",
    POLICY
    + "gate_strengt = 1": "policy.mine.gate_strengt: found an unknown key, expected an allowed",
    POLICY
    + "regions = ['de']": "policy.mine.regions[0]: found 'de', expected one of fleet.regions; ",
    POLICY + "models = []": "policy.mine.models: found an empty list, expected at least one entry",
    "a = 1\nb = ,": "line 2, column 5: found a syntax error (Invalid value), expected TOML",
}


@pytest.mark.parametrize("text", MISTAKES)
def test_mistakes(study, text):
    path = study(text)
    with pytest.raises(InputError) as caught:
        read_config(path, presets=PRESETS)
    found = str(caught.value)
    assert len(found.splitlines()) == 1
    assert found.startswith(f"{path}: {MISTAKES[text]}")


def test_only_the_first_error_is_told_and_the_others_counted(study):
    path = study("seed = -1\nquality_floor = 2\n[belief]\npredicted_output_tokens = 'x'\n")
    with pytest.raises(InputError) as caught:
        read_config(path, presets=PRESETS)
    assert str(caught.value) == f"{path}: seed: found -1, expected a number >= 0 (and 2 more)"


def test_unreadable_files(tmp_path):
    with pytest.raises(InputError, match=r"none.toml: found no file, expected a file"):
        read_config(tmp_path / "none.toml", presets=PRESETS)
    with pytest.raises(InputError, match="found a directory"):
        read_config(tmp_path, presets=PRESETS)
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    with pytest.raises(InputError, match="expected TOML in UTF-8"):
        read_config(tmp_path / "latin.toml", presets=PRESETS)


def test_the_default_study_names_every_key_there_is():
    text = package_file("default.toml").read_text()
    for section in (
        BeliefConfig,
        EmbodiedConfig,
        PolicyConfig,
        RetentionConfig,
        SloConfig,
        StudyConfig,
        WaterConfig,
    ):
        for key in section.model_fields:
            assert f"{key} = " in text or f"[{key}" in text, key


def test_how_a_trace_is_to_be_read(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(
        "[[datasets]]\npath = 'log.jsonl.gz'\nformat = 'requests'\ntokenizer = 'tokenizer.json'\n"
        "strict = true\n[[datasets]]\npath = 'chats.json'\ntokenizer = 'cl100k_base'\n"
    )
    first, second = read_config(path).datasets
    assert (first.label, first.format, first.strict) == ("log", "requests", True)
    assert first.tokenizer == str(tmp_path / "tokenizer.json")
    assert (second.label, second.tokenizer) == ("chats", "cl100k_base")
    assert second.format is None and not second.strict
    path.write_text("[[datasets]]\npath = 'a.json'\nformat = 'mooncaek'\n")
    with pytest.raises(InputError, match=r"datasets\[0\].format: .* did you mean 'mooncake'"):
        read_config(path)
