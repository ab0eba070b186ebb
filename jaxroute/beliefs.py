"""What a study's routers take for true where it is not, and how its truth is changed.

Every draw is keyed by names, hours and sessions: another order or extent of the tables changes
nothing.
"""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from jaxroute import draws
from jaxroute.config import BeliefConfig, StudyConfig
from jaxroute.load.carbon import Intensity, forecast_error
from jaxroute.timeline import HOUR_S
from jaxroute.world import Belief, Fleet, World, cast

Floats = NDArray[np.float64]

MEMORY_HOURS = 168
"""A forecast error is made of the shocks of this many hours; what is older is below 1e-4 of it."""


def predicted_output(
    belief: BeliefConfig,
    seed: int,
    hashes: draws.Hashes,
    turn: NDArray[np.int64],
    output_tokens: NDArray[np.int64],
) -> Floats:
    """Predicted output tokens of N turns, `[N]`.

    A constant; the true ones; or `max(round(o exp(sigma z)), 1)`, z standard normal.

    Args:
      belief: `predicted_output_tokens` says which, `predicted_output_sigma` is sigma.
      seed: of the study.
      hashes, turn: `[N]`, of the session's id, and index in the session.
      output_tokens: `[N]`, o.
    """
    rule = belief.predicted_output_tokens
    if rule == "exact":
        return output_tokens.astype(np.float64)
    if rule == "noisy":
        z = draws.normal(seed, "predicted_output", hashes, turn)
        return np.maximum(np.round(output_tokens * np.exp(belief.predicted_output_sigma * z)), 1)
    return np.full(len(output_tokens), rule, np.float64)


def ar1_error(seed: int, region: str, hour: NDArray[np.int64], ac1: float) -> Floats:
    """A stationary AR(1) of mean 0 and variance 1 over consecutive hours, `[H]`.

    `e_h = c sum_k ac1^k z_(h - k)`, k below `MEMORY_HOURS`, z standard normal and keyed by region
    and hour: an hour's error is the same whatever hours stand around it.

    Args:
      seed: of the study.
      region: its name.
      hour: `[H]`, since the epoch, each the one before plus 1.
      ac1: correlation with the hour before, in [0, 1).
    """
    weights = ac1 ** np.arange(MEMORY_HOURS)
    weights /= np.sqrt((weights**2).sum())
    hours = np.arange(hour[0] - MEMORY_HOURS + 1, hour[-1] + 1)
    keys = np.repeat(draws.name_hashes([region]), len(hours))
    return np.convolve(draws.normal(seed, "forecast", keys, hours), weights, mode="valid")


def day_ahead(seed: int, regions: tuple[str, ...], hours: Intensity) -> Floats:
    """A forecast of grid intensity, `[H, R]` g/kWh: the truth times `exp(sd_log e)`.

    e is `ar1_error`, with `sd_log` and autocorrelation of the region's real day-ahead forecasts
    (`jaxroute.load.carbon.forecast_error`).
    """
    hour = int(hours.start.timestamp() // HOUR_S) + np.arange(len(hours.g_per_kwh))
    found = forecast_error(regions)
    errors = [
        sd_log * ar1_error(seed, region, hour, ac1)
        for region, sd_log, ac1 in zip(regions, found.sd_log, found.ac1, strict=True)
    ]
    return hours.g_per_kwh * np.exp(np.stack(errors, axis=1))


def rescaled(fleet: Fleet, *, prefill: ArrayLike, decode: ArrayLike) -> Fleet:
    """A fleet with its joules and seconds of prefill and of decode multiplied, `[]` or `[D]`."""
    factors = {
        **dict.fromkeys(("pre_j", "pre_j_ctx", "pre_s", "pre_s_ctx"), prefill),
        **dict.fromkeys(("dec_j", "dec_j_ctx", "dec_s", "dec_s_ctx"), decode),
    }
    changed: dict[str, Any] = {n: getattr(fleet, n) * by for n, by in factors.items()}
    return dataclasses.replace(fleet, **changed)


def misjudged(fleet: Fleet, seed: int, profiles: pd.Series, error: float) -> Fleet:
    """A fleet whose profiles are off by factors log-uniform within `[1 / (1 + error), 1 + error]`.

    One factor for the joules and seconds of prefill and one for those of decode, the same in every
    region.

    Args:
      fleet: D deployments.
      seed: of the study.
      profiles: `[D]`, the name of each deployment's profile, which keys its factors.
      error: >= 0.
    """
    keys = draws.name_hashes(profiles)

    def factor(purpose: str) -> Floats:
        return np.exp((2 * draws.uniform(seed, purpose, keys) - 1) * np.log1p(error))

    return rescaled(fleet, prefill=factor("profile_prefill"), decode=factor("profile_decode"))


def settle(world: World, config: StudyConfig, table: pd.DataFrame, hours: Intensity) -> World:
    """A study's world: its profiles scaled, and what its routers believe where they err.

    Args:
      world: as `jaxroute.load.fleet.build_world` gives it.
      config: the study.
      table: the deployments, as `jaxroute.load.fleet.fleet_table`.
      hours: the true intensity.
    """
    dtype, scale, belief = world.pue.dtype, config.fleet, config.belief
    truth = rescaled(world.fleet, prefill=scale.prefill_scale, decode=scale.decode_scale)
    fleet = truth
    if not config.embodied.in_bill:
        none: Any = np.zeros_like(truth.embodied_g_per_s)
        truth = dataclasses.replace(truth, embodied_g_per_s=none)
    world = cast(world.replace(fleet=truth), dtype)
    if not config.router_errs:
        return world
    intensity: Any = world.intensity_g_per_kwh
    if belief.intensity == "day_ahead":
        intensity = day_ahead(config.seed, config.fleet.regions, hours)
    if belief.profile_error:
        profiles = table["model"] + "|" + table["gpu"]
        fleet = misjudged(fleet, config.seed, profiles, belief.profile_error)
    numbers: dict[str, Any] = {
        "delayed": np.asarray(belief.cached_tokens_delayed, np.float64),
        "rounded_to_tokens": np.asarray(belief.cached_tokens_rounded_to),
        "missing": np.asarray(belief.cached_tokens_missing),
    }
    believed = Belief(fleet=fleet, intensity_g_per_kwh=intensity, **numbers)
    return world.replace(belief=cast(believed, dtype))


def prediction_note(belief: BeliefConfig) -> tuple[str, ...]:
    """In words, how outputs are predicted, unless as in the default study."""
    rule = belief.predicted_output_tokens
    if rule == BeliefConfig().predicted_output_tokens:
        return ()
    if rule == "noisy":
        rule = f"the true ones x exp({belief.predicted_output_sigma:g} z), z standard normal"
    return (f"predicted output tokens: {rule if isinstance(rule, str) else f'{rule:g}'}",)


def notes(config: StudyConfig) -> tuple[str, ...]:
    """In words, what the routers take for true and is not, and how the truth was changed."""
    belief, fleet, embodied = config.belief, config.fleet, config.embodied
    out = []
    if (fleet.prefill_scale, fleet.decode_scale) != (1, 1):
        out.append(
            f"joules and seconds of the profiles: prefill x {fleet.prefill_scale:g}, "
            f"decode x {fleet.decode_scale:g}"
        )
    if not embodied.in_decision:
        out.append("routers leave embodied carbon out of their decisions")
    if not embodied.in_bill:
        out.append("embodied carbon is not billed")
    multiple, share = belief.cached_tokens_rounded_to, belief.cached_tokens_missing
    reports = (
        (belief.cached_tokens_delayed, "of the session's previous turn"),
        (multiple > 1, f"rounded down to multiples of {multiple:g}"),
        (share > 0, f"missing with chance {share:g}"),
    )
    if any(errs for errs, _ in reports):
        out.append(f"reported cached tokens: {', '.join(words for errs, words in reports if errs)}")
    if belief.intensity == "day_ahead":
        found = forecast_error(fleet.regions)
        errors = zip(fleet.regions, found.sd_log, found.ac1, strict=True)
        listed = ", ".join(f"{region} {sd:.2f} and {ac1:.2f}" for region, sd, ac1 in errors)
        borrowed = f"; DE's for {', '.join(found.borrowed)}" if found.borrowed else ""
        out.append(
            "routers decide by a day-ahead forecast of intensity, its log error an AR(1) with sd "
            f"and hourly autocorrelation {listed}{borrowed}"
        )
    if belief.profile_error:
        out.append(
            "routers take each profile's prefill and decode for up to "
            f"{1 + belief.profile_error:g} times more or less than they are"
        )
    return tuple(out)
