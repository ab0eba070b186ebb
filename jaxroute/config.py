"""The study file: TOML, checked whole, so that a wrong key stops a study before it begins.

Each section's defaults are those of the default study: an empty file is the default study.
"""

import functools
import itertools
import math
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, model_validator

from jaxroute.load.files import BUILTIN, package_file
from jaxroute.load.fleet_tables import Tables, with_own
from jaxroute.load.intensity import IntensityConfig
from jaxroute.load.messages import known_names
from jaxroute.load.policy import FLEET_LISTS, RULE_CONFIGS, OwnPolicy, PolicyConfig
from jaxroute.load.space import SweepConfig
from jaxroute.load.toml import Section, fault, read_toml
from jaxroute.load.traces import FORMATS
from jaxroute.load.traffic import OTHERS, LoadConfig
from jaxroute.load.tuning import TuneConfig
from jaxroute.load.values import (
    AboveZero,
    Horizon,
    MaybeInfinite,
    Moment,
    Name,
    Names,
    Prediction,
    Proportion,
    Share,
    Source,
    Sources,
    Spread,
    Switch,
    Tokenizer,
    Tokens,
    Variants,
    distinct,
)

__all__ = [
    "BeliefConfig", "DatasetConfig", "EmbodiedConfig", "FleetConfig", "IntensityConfig",
    "LoadConfig", "PolicyConfig", "QualityConfig", "RetentionConfig", "SloConfig", "StudyConfig",
    "SyntheticTimes", "WaterConfig", "read_config",
]  # fmt: skip

COLUMNS = (
    *("dataset", "retention", "policy", "seed", "length_bucket", "model", "gpu", "region"),
    *("sessions", "turns", "unserved", "unserved_pct", "truncated", "energy_kwh"),
    *("carbon_g", "carbon_prefill_g", "carbon_rebuild_g", "carbon_decode_g", "carbon_embodied_g"),
    *("water_l", "cost_usd", "mean_ttft_s", "mean_e2e_s", "mean_quality"),
    *(f"{name}_{p}_s" for name in ("ttft", "e2e") for p in ("p50", "p95", "p99")),
    *("ttft_slo_violations_pct", "e2e_slo_violations_pct"),
    *("moves", "returns", "rebuilt_tokens"),
    *("mask_fallbacks", "quality_fallbacks", "ttft_fallbacks"),
    *("saving_pct", "saving_lo_pct", "saving_hi_pct", "median_session_saving_pct"),
    *("captured_of_plan_pct", "captured_of_bound_pct"),
    *("carbon_idle_g", "mean_wait_s", "hit_ratio_pct", "mean_batch", "peak_utilisation"),
    *("overflow_pct", "rounds", "settled"),
)
"""Of the tables of a grid, beside one for each axis."""

COMMON = ("name", "baseline", "vary")
"""Keys that the comparisons of a grid have in common."""

PLAN_ROW, BOUND_ROW = "hindsight_plan", "lower_bound"
"""Rows of the tables that are no policies: no policy may take their names."""


class SyntheticTimes(Section):
    """Log-normal gaps between turns, arrival to arrival, for traces without times."""

    median_gap_s: AboveZero = 60.0
    sigma: Spread = 1.2


class DatasetConfig(Section):
    """A trace; its label is the file's stem, or the name after `builtin:`, unless it has one."""

    path: Source
    label: Name
    format: Name | None = None
    tokenizer: Tokenizer | None = None
    strict: Switch = False
    trace_start: Moment | None = None
    synthetic_times: SyntheticTimes = SyntheticTimes()

    @model_validator(mode="before")
    @classmethod
    def _label_by_path(cls, data: object) -> object:
        if isinstance(data, dict) and isinstance(path := data.get("path"), str):
            stem = Path(path.removeprefix(BUILTIN)).name
            return {
                "label": re.sub(r"(\.(csv|jsonl?))?(\.gz)?$|\.parquet$", "", stem) or path or "?"
            } | data
        return data


class FleetConfig(Section):
    """Every model runs on every GPU type in every region; the scales multiply all profiles."""

    models: Names = (
        "qwen2.5-3b-instruct",
        "qwen2.5-7b-instruct",
        "llama-3.1-8b-instruct",
        "qwen2.5-32b-instruct",
        "llama-3.1-70b-instruct",
    )
    gpus: Names = ("A100-80GB-SXM", "H100-80GB-SXM", "B200-180GB-SXM")
    regions: Names = ("US-CISO", "US-PJM", "DE", "SG")
    prefill_scale: AboveZero = 1.0
    decode_scale: AboveZero = 1.0
    tables: Sources = ()

    @functools.cached_property
    def known(self) -> Tables:
        """The bundled tables with the user's rows, as they were when the study was read."""
        return with_own(self.tables)


class QualityConfig(Section):
    """Predicted quality where a trace has no columns of it."""

    source: Literal["irt"] = "irt"
    autocorrelation: Proportion = 0.5


class EmbodiedConfig(Section):
    """Whether embodied carbon is weighed by the routers, and billed."""

    in_decision: Switch = True
    in_bill: Switch = True


class BeliefConfig(Section):
    """What the routers take for true; but for the output to come, by default the truth."""

    predicted_output_tokens: Prediction = 256.0
    predicted_output_sigma: Spread = 0.5
    cached_tokens_missing: Share = 0.0
    cached_tokens_delayed: Switch = False
    cached_tokens_rounded_to: Tokens = 1.0
    intensity: Literal["exact", "day_ahead"] = "exact"
    profile_error: Proportion = 0.0


class WaterConfig(Section):
    """What generates the regions' electricity; without it the water of that is left out."""

    mix: Source | None = None


class SloConfig(Section):
    """Times that a turn should not exceed: violations are counted, no policy is told."""

    ttft_s: MaybeInfinite = float("inf")
    e2e_s: MaybeInfinite = float("inf")


class RetentionConfig(Section):
    """How long deployments keep caches; by default for ever."""

    label: Name
    ttl_s: Horizon = float("inf")
    decay_s: Horizon = float("inf")
    drop_on_leave: Switch = False


class StudyConfig(Section):
    """A study: which policies, on which traces, fleet and grids."""

    name: Name = "default"
    seed: Annotated[int, Field(strict=True, ge=0, lt=2**32)] = 0
    baseline: Name = "fair_carbon"
    policies: Names | None = None
    quality_floor: Share = 0.6
    quality_slack: MaybeInfinite = float("inf")
    on_overflow: Literal["unserved", "truncate"] = "unserved"
    datasets: Annotated[tuple[DatasetConfig, ...], AfterValidator(distinct)] = (
        DatasetConfig(path="builtin:sharegpt", label="sharegpt"),
    )
    fleet: FleetConfig = FleetConfig()
    intensity: IntensityConfig = IntensityConfig()
    quality: QualityConfig = QualityConfig()
    embodied: EmbodiedConfig = EmbodiedConfig()
    belief: BeliefConfig = BeliefConfig()
    water: WaterConfig = WaterConfig()
    slo: SloConfig = SloConfig()
    retention: Annotated[tuple[RetentionConfig, ...], AfterValidator(distinct)] = (
        RetentionConfig(label="keep"),
        RetentionConfig(label="ttl_300s", ttl_s=300.0),
        RetentionConfig(label="drop", drop_on_leave=True),
    )
    load: LoadConfig | None = None
    policy: dict[Name, OwnPolicy] = Field(default_factory=dict)
    vary: dict[Name, Variants] = Field(default_factory=dict)
    sweep: SweepConfig | None = None
    tune: TuneConfig | None = None

    @property
    def quality_rule(self) -> str:
        """In words, what bounds the quality of every policy from below."""
        rules = [f"the quality floor of {self.quality_floor:g}"] if self.quality_floor else []
        if math.isfinite(self.quality_slack):
            rules.append(f"a quality at most {self.quality_slack:g} below the best model's")
        return " and ".join(rules) or "no quality floor"

    @property
    def files(self) -> tuple[str, ...]:
        """What is read beside the bundled tables: own rows, intensity, mix, then traces."""
        mix = () if self.water.mix is None else (self.water.mix,)
        traces = (dataset.path for dataset in self.datasets)
        return (*self.fleet.tables, *self.intensity.files, *mix, *traces)

    def preset_of(self, name: str) -> str:
        """The preset that a policy is, or differs from."""
        return self.policy[name].preset if name in self.policy else name

    @property
    def router_errs(self) -> bool:
        """Whether routers take anything for true that is not, but for the output to come."""
        belief = self.belief
        return (
            (self.embodied.in_decision and not self.embodied.in_bill)
            or belief.cached_tokens_missing > 0
            or belief.cached_tokens_delayed
            or belief.cached_tokens_rounded_to > 1
            or belief.intensity != "exact"
            or belief.profile_error > 0
        )

    @model_validator(mode="after")
    def _refuse_unknown_names(self, info: ValidationInfo) -> "StudyConfig":
        for field in FLEET_LISTS:
            for index, entry in enumerate(getattr(self.fleet, field)):
                known, kind = self.fleet.known.names(field), "a bundled one"
                kind += ", or one of fleet.tables" if self.fleet.tables else ""
                _known(["fleet", field, index], entry, known, kind)
        for region in self.intensity.zones:
            regions = self.fleet.known.names("regions")
            _known(["intensity", "zones", region], region, regions, "a region")
        for index, dataset in enumerate(self.datasets):
            if dataset.format is not None:
                _known(["datasets", index, "format"], dataset.format, FORMATS, "a format")
        presets: Collection[str] | None = (info.context or {}).get("presets")
        if presets is None:
            from jaxroute.catalogue import NAMES  # late: it imports JAX

            presets = NAMES
        for name, policy in self.policy.items():
            if name in presets:
                raise fault(["policy", name], "a preset's name", "a name of its own")
            if name in (PLAN_ROW, BOUND_ROW):
                raise fault(["policy", name], "the name of a bound", "a name of its own")
            _known(["policy", name, "preset"], policy.preset, presets, "a preset")
            for field in FLEET_LISTS:
                fleet = getattr(self.fleet, field)
                for index, entry in enumerate(getattr(policy, field) or ()):
                    _known(["policy", name, field, index], entry, fleet, f"one of fleet.{field}")
        for axis in self.vary:
            if axis in COLUMNS:
                raise fault(["vary", axis], "the name of a column", "a name of its own")
            for label, changes in self.vary[axis].items():
                for key in changes:
                    if key in COMMON:
                        found = "a key that all comparisons have in common"
                        raise fault(["vary", axis, label, key], found, "another key")
        if self.load is not None and isinstance(self.load.replicas, dict):
            fleet = self.fleet
            names = map("|".join, itertools.product(fleet.models, fleet.gpus, fleet.regions))
            deployments = (OTHERS, *names)
            for name in self.load.replicas:
                expected = f"a deployment of the fleet, model|gpu|region, or {OTHERS!r}"
                _known(["load", "replicas", name], name, deployments, expected)
            left = [name for name in deployments if name not in self.load.replicas]
            if OTHERS in left and len(left) > 1:
                found = f"no {OTHERS}, and none of {left[1]}"
                raise fault(["load", "replicas"], found, f"{OTHERS}, or every deployment")
        policies = [*presets, *self.policy]
        _known(["baseline"], self.baseline, policies, "a policy")
        for index, entry in enumerate(self.policies or ()):
            _known(["policies", index], entry, policies, "a policy")
        if self.sweep is not None or self.tune is not None:
            from jaxroute import space  # late: it imports this module

            if self.sweep is not None:
                self._refuse_other_rules("sweep", self.sweep.policy, policies)
                space.check(self.sweep.space or {}, space.kinds(self))
            if self.tune is not None:
                self._refuse_other_rules("tune", self.tune.policy, policies)
                space.check(self.tune.space, space.smooth(self), "tune")
        return self

    def _refuse_other_rules(self, table: str, policy: str, known: Collection[str]) -> None:
        _known([table, "policy"], policy, known, "a policy")
        for name, key in ((self.baseline, ["baseline"]), (policy, [table, "policy"])):
            if self.preset_of(name) in RULE_CONFIGS:
                found = f"{name!r}, a rule beside the router's"
                raise fault(key, found, f"a policy of the router's: a {table} replays no other")


def _known(key: Sequence[str | int], name: str, known: Collection[str], expected: str) -> None:
    if name not in known:
        raise fault(key, repr(name), expected, known_names(name, known))


def read_config(
    path: str | Path | None = None, *, presets: Collection[str] | None = None
) -> StudyConfig:
    """Reads and checks a study file.

    Args:
      path: a TOML file; None is the default study, bundled.
      presets: names of the preset policies; those of `jaxroute.policies` by default.

    Returns:
      The study, its paths absolute: in the file they are relative to it.

    Raises:
      InputError: of one line, naming the file, the key (such as `retention[1].ttl_s`) or line, what
        was found and what was expected; if there are more errors, how many.
    """
    file = package_file("default.toml") if path is None else path
    return read_toml(file, StudyConfig, {"presets": presets})
