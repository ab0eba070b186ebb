"""A study, loaded: traces, fleet, grids and policies as arrays ready for the replay."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import DTypeLike, NDArray

from jaxroute import beliefs, catalogue, prepare, shards
from jaxroute.config import PolicyConfig, RetentionConfig, StudyConfig, read_config
from jaxroute.load.carbon import TYPICAL_DAY, Intensity
from jaxroute.load.files import package_file, sha256
from jaxroute.load.fleet import build_world, fleet_table, price_of
from jaxroute.load.intensity import read_hours
from jaxroute.load.mix import read_mix
from jaxroute.load.toml import validate
from jaxroute.policies import RouterParams
from jaxroute.sessions import Sessions
from jaxroute.timeline import HOUR_S, Extent, Span
from jaxroute.world import Retention, World, cast

LRU = "lru"
"""Label of the retention under load: caches live as long as there is room for them."""

BUNDLED = (
    *("models.csv", "gpus.csv", "profiles.csv", "pue.csv", "rtt_ms.csv", "irt.json"),
    *("forecast_error_dayahead.csv", "emission_factors.csv", "zones.csv", "regions.csv"),
    *("electricity_price.csv", "ewif_by_technology.csv", "profiles_by_batch.csv"),
)
"""Tables of the package that every study may read."""

YEAR_2023: Span = (
    pd.Timestamp("2023-01-01", tz="UTC").timestamp(),
    pd.Timestamp("2024-01-01", tz="UTC").timestamp(),
)
"""Where the sessions of a trace without dates are laid when the intensity is a typical day."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Study:
    """Everything that `compare` needs.

    Attributes:
      config: the study file as resolved.
      datasets: the traces, in order; `jaxroute.shards.Shards`, which only sweeps take, are those
        that `load_study` was not to keep in memory.
      world: the fleet and its grids, with the first retention, and what the routers believe.
      retentions: by label.
      policies: by name, those to compare; the presets of `jaxroute.catalogue.FIXED`, and policies
        derived from them, still without the mask that depends on a dataset.
      fixed: of these policies, the axis (model, gpu or region) to be fixed.
      deployments: one row each, as `jaxroute.load.fleet.fleet_table`.
      notes: what holds for every dataset.
      inputs: SHA-256 of every file read, by path.
    """

    config: StudyConfig
    datasets: tuple[Any, ...]
    world: World
    retentions: Mapping[str, Retention]
    policies: Mapping[str, RouterParams]
    fixed: Mapping[str, str]
    deployments: pd.DataFrame
    notes: tuple[str, ...]
    inputs: Mapping[str, str]

    @property
    def sessions(self) -> Sessions:
        """The packed sessions of the study's only dataset."""
        if len(self.datasets) != 1:
            labels = ", ".join(each.label for each in self.datasets)
            raise ValueError(f"the study has several datasets ({labels}): use study.datasets")
        return self.datasets[0].sessions

    @property
    def bounded(self) -> bool:
        """Whether bounds can be told: they leave out load, and what a TTFT limit depends on."""
        return not self.ttft_limited and self.config.load is None

    @property
    def ttft_limited(self) -> tuple[str, ...]:
        """The policies that have a TTFT limit."""
        return tuple(n for n, each in self.policies.items() if not np.isinf(each.ttft_slo_s))

    def preset(self, name: str) -> RouterParams:
        """A preset with the study's quality floor and slack, and embodied carbon or not."""
        return _preset(name, self.config, self.world)

    def with_policies(self, names: Sequence[str]) -> Self:
        """The study with these policies, and its baseline, in place of those it compares.

        Args:
          names: presets, or policies of its file's `[policy.…]` tables.

        Raises:
          InputError: for an unknown name.
        """
        values = self.config.model_dump(exclude_unset=True) | {"policies": list(names)}
        config = validate(values, StudyConfig, "options")
        named, fixed = _policies(config, self.world)
        return dataclasses.replace(self, config=config, policies=named, fixed=fixed)


def load_study(
    path: str | Path | None = None,
    *,
    traces: str | Path | Sequence[str | Path] = (),
    carbon: str | Path | Sequence[str | Path] | None = None,
    seed: int | None = None,
    dtype: DTypeLike = np.float32,
    memory_bytes: int | None = None,
    format: str | None = None,
    tokenizer: str | None = None,
    strict: bool = False,
    load: Mapping[str, Any] | None = None,
) -> Study:
    """Reads a study file and everything it names.

    Args:
      path: a TOML file; without it the default study, on bundled data.
      traces: a trace file, or several, in place of the study's datasets, labelled by their stems.
      carbon: an intensity file or directory, or several, in place of the study's.
      seed: in place of the study's.
      dtype: of every float; float64 needs JAX's x64 mode.
      memory_bytes: traces in Parquet that would take more stay on disk (`jaxroute.shards`), but
        under load, where all sessions are replayed at once.
      format, tokenizer: of every trace, in place of what the study file says of it or its contents
        tell; as `jaxroute.load.traces.read_trace` has them.
      strict: whether whatever would be mended or left out of a trace is an error.
      load: keys of the study's `[load]`, in place of its own.

    Raises:
      InputError: naming file, row or key, what was found and what was expected.
    """
    traces = [traces] if isinstance(traces, str | Path) else traces
    config = overridden(
        read_config(path),
        traces=traces,
        carbon=carbon,
        seed=seed,
        format=format,
        tokenizer=tokenizer,
        strict=strict,
        load=load,
    )
    study = of(config, dtype=dtype, memory_bytes=memory_bytes)
    own = {} if path is None else {str(path): sha256(path)}
    return dataclasses.replace(study, inputs={**study.inputs, **own})


def of(
    config: StudyConfig, *, dtype: DTypeLike = np.float32, memory_bytes: int | None = None
) -> Study:
    """Reads everything that a study file, as read, names: `load_study` of its contents."""
    names = config.fleet
    table = fleet_table(names.models, names.gpus, names.regions, names.known)
    deployments = tuple(table["model"] + "|" + table["gpu"] + "|" + table["region"])
    grids, hours = config.intensity, None
    if grids.path != TYPICAL_DAY:
        hours = read_hours(grids, names.regions)
    covered = None if hours is None else _covered(hours)
    dates = covered or YEAR_2023
    limits = _context_limits(table, names.models)
    raw = [
        shards.scan(each, config, span=covered, dates=dates, context_limit=limits)
        if config.load is None and shards.larger(each, len(names.models), memory_bytes)
        else prepare.read(each, config.seed)
        for each in config.datasets
    ]
    span = covered or _span([each.extent for each in raw])
    hours = hours or read_hours(grids, names.regions, span)
    mix = config.water.mix
    world = build_world(
        names.models,
        names.gpus,
        names.regions,
        hours.g_per_kwh,
        ewif_l_per_kwh=None if mix is None else read_mix(mix, names.regions),
        tables=names.known,
        dtype=dtype,
    )
    world = beliefs.settle(world, config, table, hours)
    shared: dict[str, Any] = {
        "dates": dates,
        "context_limit": limits,
        "deployments": deployments,
        "dtype": dtype,
    }
    datasets = tuple(
        shards.lay_on_calendar(each, config, span, **shared)
        if isinstance(each, shards.Scanned)
        else prepare.lay_on_calendar(each, config, span, **shared)
        for each in raw
    )
    kept = (RetentionConfig(label=LRU),) if config.load else config.retention
    retentions = {
        each.label: cast(
            Retention.of(each.ttl_s, each.decay_s, drop_on_leave=each.drop_on_leave), dtype
        )
        for each in kept
    }
    named, fixed = _policies(config, world)
    return Study(
        config=config,
        datasets=datasets,
        world=world.replace(retention=next(iter(retentions.values()))),
        retentions=retentions,
        policies=named,
        fixed=fixed,
        deployments=table,
        notes=(
            *names.known.notes,
            f"intensity: {hours.note}",
            *beliefs.notes(config),
            _water_and_cost(config),
            *_load_notes(config),
        ),
        inputs={each.path: each.sha256 for each in datasets}
        | {file: sha256(file) for file in grids.files}
        | ({} if mix is None else {mix: sha256(mix)})
        | {own: sha256(own) for own in names.tables}
        | {
            each.tokenizer: sha256(each.tokenizer)
            for each in config.datasets
            if each.tokenizer and each.tokenizer.endswith(".json")
        }
        | {name: sha256(package_file(name)) for name in BUNDLED},
    )


def overridden(
    config: StudyConfig,
    *,
    traces: Sequence[str | Path] = (),
    carbon: str | Path | Sequence[str | Path] | None = None,
    seed: int | None = None,
    format: str | None = None,
    tokenizer: str | None = None,
    strict: bool = False,
    load: Mapping[str, Any] | None = None,
) -> StudyConfig:
    """A study file with what is read, how, or the seed replaced, as `load_study` takes them."""
    values = config.model_dump(exclude_unset=True)
    if traces:
        values["datasets"] = [{"path": str(each)} for each in traces]
    reading = {"format": format, "tokenizer": tokenizer, "strict": strict or None}
    given = {key: value for key, value in reading.items() if value is not None}
    if given:
        datasets = values.get("datasets") or [each.model_dump() for each in config.datasets]
        values["datasets"] = [{**each, **given} for each in datasets]
    paths = [carbon] if isinstance(carbon, str | Path) else carbon
    if paths:
        values["intensity"] = values.get("intensity", {}) | {"path": [str(each) for each in paths]}
    if seed is not None:
        values["seed"] = seed
    if load:
        own = values.get("load") or {}
        if "replicas" in load:  # and so no size that the file asks for
            own = {key: value for key, value in own.items() if key != "peak_utilisation"}
        values["load"] = own | dict(load)
    return validate(values, StudyConfig, "options")


def _covered(hours: Intensity) -> Span:
    """Epoch seconds that an intensity table covers."""
    start = hours.start.timestamp()
    return start, start + HOUR_S * len(hours.g_per_kwh)


def _span(extents: Sequence[Extent]) -> Span:
    """Epoch seconds that the intensity has to cover, whole hours."""
    known = [YEAR_2023] if any(each.undated for each in extents) else []
    known += [(each.start_s, each.end_s + HOUR_S) for each in extents if each.end_s > -np.inf]
    if not known:
        return YEAR_2023
    begin, end = min(a for a, _ in known), max(b for _, b in known)
    return begin // HOUR_S * HOUR_S, -(-end // HOUR_S) * HOUR_S


def _water_and_cost(config: StudyConfig) -> str:
    """What water and cost consist of, in words, and where no price is known."""
    mix = config.water.mix
    generation = f"and generation's ({Path(mix).name})" if mix else "generation's left out (no mix)"
    prices = {region: price_of(region, config.fleet.known) for region in config.fleet.regions}
    years = sorted({year for _, year in prices.values() if year})
    span = " to ".join(dict.fromkeys((str(years[0]), str(years[-1])))) if years else "none"
    unpriced = [region for region, (_, year) in prices.items() if not year]
    blank = f"; none known of {', '.join(unpriced)}: blank if served there" if unpriced else ""
    return (
        f"water = IT energy (without PUE) x WUE as providers report it, {generation}; "
        f"cost = energy x mean wholesale price ({span}){blank}"
    )


def _load_notes(config: StudyConfig) -> tuple[str, ...]:
    """What load is and stands in place of, in words."""
    load = config.load
    if load is None:
        return ()
    replaced = ", ".join(each.label for each in config.retention)
    return (
        f"load: {load.arrival_rate:,g} sessions an hour; caches are evicted least recently used "
        f"first (in place of the retentions {replaced}); docs/load.md says how far to trust it",
    )


def _context_limits(table: pd.DataFrame, models: Sequence[str]) -> NDArray[np.float64]:
    """The longest context that some deployment of each model holds, `[M]`."""
    limits = table.groupby("model")["max_context_tokens"].max()
    return limits.loc[list(models)].to_numpy(np.float64)


def _policies(config: StudyConfig, world: World) -> tuple[dict[str, RouterParams], dict[str, str]]:
    """The policies to compare, the baseline among them, and the axis fixed in some."""
    wanted = list(config.policies or (*catalogue.PRESET_NAMES, *config.policy))
    if config.baseline not in wanted:
        wanted.append(config.baseline)
    named, fixed = {}, {}
    for name in wanted:
        own, base = config.policy.get(name), config.preset_of(name)
        params = _preset(base, config, world)
        named[name] = _changed(params, own, config) if own else params
        if base in catalogue.FIXED:
            fixed[name] = catalogue.FIXED[base]
    return named, fixed


def _preset(name: str, config: StudyConfig, world: World) -> RouterParams:
    params = catalogue.preset(name, world.fleet, quality_floor=config.quality_floor)
    if not config.embodied.in_decision:
        params = params.replace(embodied_weight=0.0)
    return (
        params
        if name in catalogue.UNFLOORED
        else params.replace(quality_slack=config.quality_slack)
    )


def _changed(params: RouterParams, own: PolicyConfig, config: StudyConfig) -> RouterParams:
    masks = {
        f"{axis}_allowed": np.isin(getattr(config.fleet, f"{axis}s"), allowed).astype(np.float32)
        for axis in catalogue.AXES
        if (allowed := getattr(own, f"{axis}s")) is not None
    }
    changes = own.changes()
    if not config.embodied.in_decision:
        changes.pop("embodied_weight", None)
    return params.replace(**changes, **masks)
