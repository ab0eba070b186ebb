"""One sweep on several devices, and in several processes: the same table to the last bit."""

import json
import os
import socket
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from jaxroute import cluster
from jaxroute.errors import InputError

STUDY = """
policies = ["carbon_router"]
[fleet]
models = ["qwen2.5-3b-instruct", "qwen2.5-32b-instruct"]
gpus = ["H100-80GB-SXM"]
regions = ["US-CISO", "SG", "FR"]
[[retention]]
label = "keep"
[sweep]
method = "sobol"
samples = 12
[sweep.space]
gate_strength = { low = 0.1, high = 10.0, log = true }
latency_price_g_per_s = [0.0, 0.01]
ttft_slo_s = [0.2, inf]
"""
PROGRAM = (
    "from jaxroute import pieces; pieces.LEAST_SESSIONS = 12; from jaxroute import cli; cli.main()"
)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    directory = tmp_path_factory.mktemp("devices")
    (directory / "study.toml").write_text(STUDY)
    return directory / "study.toml"


def start(study, out, *options, devices=1):
    """A process that sweeps the bundled trace in its 8 pieces."""
    chunk = ["--memory", "1GiB"]
    command = [sys.executable, "-m", "jaxroute.cli", "sweep", study, "--out", out, *chunk, *options]
    environment = os.environ | {
        "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
        "XDG_CACHE_HOME": str(study.parent / f"cache{devices}"),
    }
    return subprocess.Popen(
        list(map(str, command)), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def finish(*running):
    for each in running:
        _, error = each.communicate(timeout=240)
        assert each.returncode == 0, error.decode()


def table(out):
    return pd.read_parquet(out / "sweep.parquet")


@pytest.fixture(scope="module")
def alone(study):
    out = study.parent / "alone"
    finish(start(study, out))
    return table(out)


@pytest.mark.slow
def test_eight_devices_give_the_table_of_one(study, alone, tmp_path):
    finish(start(study, tmp_path / "out", devices=8))
    pd.testing.assert_frame_equal(table(tmp_path / "out"), alone, check_exact=True)
    assert json.loads((tmp_path / "out" / "run.json").read_text())["device"]["count"] == 8
    assert alone["carbon_g"].nunique() > 6


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.mark.slow
def test_two_processes_give_the_table_of_one(study, alone, tmp_path):
    """Of two devices each; only the first writes, and a second run finds all of it done."""
    for _ in range(2):
        where = f"127.0.0.1:{free_port()}"
        places = [tmp_path / "first", tmp_path / "second"]
        finish(
            *(
                start(
                    study,
                    place,
                    *("--coordinator", where, "--processes", 2, "--process-id", number),
                    devices=2,
                )
                for number, place in enumerate(places)
            )
        )
        pd.testing.assert_frame_equal(table(places[0]), alone, check_exact=True)
        assert not places[1].exists()
    assert json.loads((places[0] / "run.json").read_text())["decisions"] == 0


@pytest.mark.slow
def test_processes_with_different_inputs_stop(study, tmp_path):
    other = tmp_path / "study.toml"
    other.write_text(
        STUDY.replace("chat.csv", str(study.parent / "chat.csv")).replace("10.0", "9.0")
    )
    where = f"127.0.0.1:{free_port()}"
    running = [
        start(each, tmp_path / "out", "--coordinator", where, "--processes", 2, "--process-id", n)
        for n, each in enumerate((study, other))
    ]
    first, second = (each.communicate(timeout=240)[1].decode() for each in running)
    assert "process 1: found study.sweep.space.gate_strength.high is 9.0, not 10.0" in second
    assert "process 1: found another study" in first
    assert [each.returncode for each in running] == [2, 2]


def test_pieces_are_dealt_out_in_order(monkeypatch):
    found = []
    monkeypatch.setattr(cluster.jax, "process_count", lambda: 3)
    for process in range(3):
        monkeypatch.setattr(cluster.jax, "process_index", lambda process=process: process)
        found.append(cluster.own(14, 2))
    assert found == [
        [[0, 1], [6, 7], [12, 13]],
        [[2, 3], [8, 9], []],
        [[4, 5], [10, 11], []],
    ]
    assert sorted(np.concatenate([np.concatenate(each) for each in found])) == list(range(14))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ((None, 2, 0), ["--coordinator", "none", "host:port"]),
        (("here", 2, 0), ["--coordinator", "here", "host:port"]),
        (("here:99999", 2, 0), ["--coordinator", "here:99999", "host:port"]),
        (("here:1", 2, None), ["--process-id", "none"]),
        (("here:1", 2, 2), ["--process-id", "2", "less than 2"]),
    ],
)
def test_options_that_do_not_fit(given, words):
    with pytest.raises(InputError) as caught:
        cluster.join(*given)
    assert all(word in str(caught.value) for word in words)
