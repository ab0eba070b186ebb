"""The worked cases of `golden/cases.json`, in the form that `jaxroute.reference.replay` takes."""

import json
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

PATH = Path(__file__).parent / "golden" / "cases.json"
MASKS = ("model_allowed", "gpu_allowed", "region_allowed")
RENAMED = {
    "max_context": "max_context_tokens",
    "a": "arrival_s",
    "k": "prefix_tokens",
    "n": "new_tokens",
    "o": "output_tokens",
    "o_hat": "predicted_output_tokens",
}


class Case(NamedTuple):
    """One world, its sessions, one policy, and the answers `expect[name][session]`."""

    world: dict[str, Any]
    sessions: list[dict[str, Any]]
    params: dict[str, Any]
    expect: dict[str, list[Any]]


def neutral() -> dict[str, Any]:
    """The policy that follows carbon alone, with no gate."""
    zero = (
        *("latency_price_g_per_s", "quality_price_g", "switch_price_g", "intensity_price"),
        *("rtt_price_g_per_s", "size_price_g_per_b", "noise_price_g", "assumed_hit"),
        *("quality_floor", "gate_strength", "gate_bias", "hysteresis", "always_stay"),
    )
    return {
        **dict.fromkeys(zero, 0.0),
        **dict.fromkeys(("carbon_weight", "embodied_weight", "cache_knowledge"), 1.0),
        **dict.fromkeys(("quality_slack", "ttft_slo_s"), np.inf),
        **dict.fromkeys(MASKS, np.ones(1)),
        "gate_weights": np.zeros(8),
        "expected_gap_s": 60.0,
    }


def load() -> list[Case]:
    """Every golden case, in file order."""
    return [
        Case(
            _world(case),
            [_session(session, len(case["deployments"])) for session in case["sessions"]],
            _params(case),
            case["expect"],
        )
        for case in json.loads(PATH.read_text())
    ]


def water_and_price(regions: int) -> dict[str, Any]:
    """Water and prices that differ by region."""
    return {
        "wue_l_per_kwh": np.linspace(0.1, 1.7, regions),
        "ewif_l_per_kwh": np.linspace(2.0, 0.5, regions),
        "price_usd_per_kwh": np.linspace(0.03, 0.12, regions),
    }


def _columns(rows: list[dict[str, Any]]) -> dict[str, Any]:
    return {RENAMED.get(name, name): np.array([row[name] for row in rows]) for name in rows[0]}


def _world(case: dict[str, Any]) -> dict[str, Any]:
    retention = {
        name: np.inf if value is None else value for name, value in case["retention"].items()
    }
    return {
        **_columns(case["deployments"]),
        **{name: np.array(case[name]) for name in ("pue", "intensity_g_per_kwh", "rtt_s")},
        **water_and_price(len(case["pue"])),
        **{name: np.full((1, 1), retention[name]) for name in ("ttl_s", "decay_s")},
        "wait_s": np.zeros((1, 1)),
        "drop_on_leave": retention["drop_on_leave"],
        "block_tokens": case["block"],
    }


def _session(session: dict[str, Any], deployments: int) -> dict[str, Any]:
    turns = len(session["turns"])
    return {
        **_columns(session["turns"]),
        "home": np.full(turns, session["home"]),
        "time_bin": np.zeros(turns, int),
        "noise": np.zeros((turns, deployments)),
    }


def _params(case: dict[str, Any]) -> dict[str, Any]:
    given = dict(case["params"])
    if "p_back" in given:
        given["gate_bias"] = _logit(given.pop("p_back"))
    return {**neutral(), **given, **{name: np.array(case[name]) for name in MASKS}}


def _logit(p: float) -> float:
    return math.log(p / (1 - p)) if 0 < p < 1 else math.copysign(math.inf, p - 0.5)
