"""What each command leaves: how its record is told, and the columns that a report needs."""

from collections.abc import Mapping
from typing import NamedTuple

LABELS = (
    *("dataset", "retention", "policy", "length_bucket", "model", "gpu", "region"),
    *("way", "component", "rule", "feature", "gate", "rival", "kind", "knob", "status"),
)
"""Columns of text, beside a study's axes; all others are numbers."""

KEYS = ("dataset", "retention", "policy")
PARTS = ("carbon_prefill_g", "carbon_decode_g", "carbon_embodied_g")
SAVING = ("saving_pct", "saving_lo_pct", "saving_hi_pct")
SUMMARY = (
    *KEYS, "turns", "unserved_pct", "carbon_g", *PARTS, "carbon_rebuild_g", "mean_quality",
    "mean_ttft_s", "mean_e2e_s", "moves", "returns", *SAVING,
)  # fmt: skip
BY_LENGTH = (*KEYS, "length_bucket", "sessions", "carbon_g", *SAVING)
GAINS = ("gain_pct", "gain_lo_pct", "gain_hi_pct")
SWEPT = (
    "dataset", "retention", "setting", "turns", "carbon_g", "mean_quality", "mean_ttft_s",
    "mean_e2e_s", "moves", "returns", *SAVING, "baseline_carbon_g", "baseline_mean_quality",
    "pareto",
)  # fmt: skip
"""Of a sweep's table, beside a column for each field that it swept."""

LOADED = (
    "dataset", "traffic_pct", "policy", "arrival_rate", "turns", "carbon_g", "carbon_idle_g",
    "mean_quality", "mean_wait_s", "mean_ttft_s", "hit_ratio_pct", "mean_batch",
    "peak_utilisation", "unserved_pct", "overflow_pct", "settled",
)  # fmt: skip


class Kind(NamedTuple):
    """What a command leaves.

    Attributes:
      command: its name.
      key: of `run.json`, which no other command's has.
      tables: by name, the columns that are needed.
      optional: likewise, of tables that need not be there.
    """

    command: str
    key: str
    tables: Mapping[str, tuple[str, ...]]
    optional: Mapping[str, tuple[str, ...]] = {}


KINDS = (
    Kind("study", "cells", {"summary": SUMMARY, "by_length": BY_LENGTH}),
    Kind("sweep", "objectives", {}),
    Kind("capacity", "traffic_pct", {"capacity": (*LOADED, *SAVING)}),
    Kind(
        "tune",
        "tuned",
        {
            "summary": SUMMARY,
            "starts": ("start", "soft", "learned", "held_out"),
            "gains": ("dataset", "retention", "policy", "rival", *GAINS),
            "loss": ("step", "start", "loss", "temperature"),
        },
    ),
    Kind(
        "fit-gate",
        "policy",
        {
            "gates": SUMMARY,
            "weights": ("feature", "weight", "mean", "sd"),
            "reliability": ("dataset", "rule", "count", "mean_chance", "observed_share"),
        },
    ),
    Kind(
        "compare",
        "policies",
        {"summary": SUMMARY, "by_length": BY_LENGTH},
        {
            "served": (*KEYS, "region", "hour_utc", "turns", "carbon_g"),
            "matched": (*KEYS, "carbon_g", "mean_quality", "mean_ttft_s", *SAVING),
        },
    ),
    Kind(
        "ablate",
        "study",
        {
            "summary": SUMMARY,
            "ablation": (
                *("dataset", "retention", "way", "component"),
                *("share_pct", "share_lo_pct", "share_hi_pct"),
            ),
        },
    ),
)
"""The first whose key a record has is its kind."""
