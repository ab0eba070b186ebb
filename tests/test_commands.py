"""The commands that read one file and tell of it, as a user types them."""

import json

import made_results
import pytest
import test_cli

HOURS = "timestamp,region,gco2_per_kwh\n" + "".join(
    f"2023-03-01T{hour:02}:00Z,DE,{100 + hour}\n" for hour in range(24)
)
LOG = "".join(
    json.dumps({"session_id": "s", "timestamp": 1_700_000_000 + at, "usage": usage}) + "\n"
    for at, usage in enumerate([
        {"prompt_tokens": 100, "completion_tokens": 20},
        {"prompt_tokens": 150, "completion_tokens": 30},
    ])
)  # fmt: skip
ARCHITECTURE = {
    "model_type": "llama",
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "tie_word_embeddings": True,
    "max_position_embeddings": 131072,
}


@pytest.fixture
def jaxroute(monkeypatch, capsys):
    return lambda *arguments: test_cli.jaxroute(monkeypatch, capsys, *arguments)


def test_a_log_and_a_grid_are_told_apart_and_inspected(jaxroute, tmp_path):
    log, hours = tmp_path / "a", tmp_path / "b"
    log.write_text(LOG)
    hours.write_text(HOURS)
    status, out, _ = jaxroute("inspect", log)
    assert status == 0 and "read as requests: 1 session, 2 turns" in " ".join(out.split())
    status, out, _ = jaxroute("inspect", hours)
    assert status == 0 and "DE" in out and "111.5" in out
    status, out, err = jaxroute("inspect", hours, "--format", "mooncake")
    assert status == 2 and not out and err.count("\n") == 1
    log.write_text("a,b\n1,2\n")
    status, out, err = jaxroute("inspect", log)
    assert status == 2 and "burstgpt" in err and "or intensity of Electricity Maps" in err
    status, out, _ = jaxroute("inspect", "builtin:typical-day-2023")
    assert status == 0 and "typical day" in out


def test_a_fleet_is_listed_and_written(jaxroute, tmp_path):
    status, out, _ = jaxroute("fleet", "--context", 2048, "--out", tmp_path / "fleet")
    assert status == 0 and "llama-3.1-70b-instruct" in out and "2,048 tokens" in out
    assert (tmp_path / "fleet" / "fleet.csv").exists()
    assert f"tables in {tmp_path / 'fleet'}" in out.replace("\n", "")
    status, out, err = jaxroute("report", tmp_path / "fleet")
    assert status == 2 and "what fleet leaves, which has no report" in err
    status, out, err = jaxroute("fleet", "--gpu", "H100")
    assert status == 2 and not out and "--gpu: found no --derive beside it" in err


def test_a_derived_model_joins_the_fleet(jaxroute, tmp_path):
    described, rows, study = (tmp_path / name for name in ("config.json", "rows.toml", "s.toml"))
    described.write_text(json.dumps(ARCHITECTURE))
    named = ("fleet", "--derive", described, "--gpu", "H100", "--name", "mine")
    status, out, _ = jaxroute(*named)
    assert status == 0 and "derived, ±30 %" in out
    status, told, _ = jaxroute(*named, "--out", rows)
    assert status == 0 and rows.read_text() == out and str(rows) in told.replace("\n", "")
    assert jaxroute(*named, "--out", rows)[0] == 2
    study.write_text('[fleet]\ntables = "rows.toml"\nmodels = ["mine"]\ngpus = ["H100-80GB-SXM"]\n')
    status, out, _ = jaxroute("fleet", study)
    assert status == 0 and "mine" in out and "derived" in out


def test_a_report_is_written_beside_its_result(jaxroute, tmp_path):
    made_results.compared(tmp_path)
    status, out, _ = jaxroute("report", tmp_path)
    assert status == 0 and str(tmp_path / "report.html") in out.replace("\n", "")
    assert (tmp_path / "report.html").exists()
    status, out, err = jaxroute("report", tmp_path / "nowhere")
    assert status == 2 and not out and err.count("\n") == 1


def test_options_that_derive_want_an_architecture(jaxroute, tmp_path):
    for option in (("--batch", 32), ("--gpu", "H100"), ("--tensor-parallel", 2), ("--name", "m")):
        status, out, err = jaxroute("fleet", *option)
        assert status == 2 and not out and option[0] in err
    described = tmp_path / "config.json"
    described.write_text(json.dumps(ARCHITECTURE))
    status, _, err = jaxroute("fleet", "--derive", described, "--gpu", "H100", "--batch", 0)
    assert status == 2 and "--batch" in err
