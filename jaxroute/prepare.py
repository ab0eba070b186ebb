"""From a trace as read to a dataset: dates, homes and predicted qualities."""

import dataclasses

import numpy as np
import pandas as pd
from numpy.typing import DTypeLike, NDArray

from jaxroute import beliefs, draws, timeline
from jaxroute.config import DatasetConfig, StudyConfig
from jaxroute.dataset import Dataset
from jaxroute.load.files import sha256
from jaxroute.load.fleet import client_regions
from jaxroute.load.messages import input_error, known_names, shown
from jaxroute.load.traces import QUALITY, read_trace
from jaxroute.overflow import truncate
from jaxroute.quality import ar1, bundled_irt, predict
from jaxroute.timeline import Span, Timeline

MAX_CONTEXT_TOKENS = 2**24
"""Above it float32 no longer holds every whole number of tokens."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Undated:
    """A trace as read, before its sessions have dates."""

    config: DatasetConfig
    frame: pd.DataFrame
    lengths: NDArray[np.int64]
    hashes: draws.Hashes
    timeline: Timeline


def read(config: DatasetConfig, seed: int) -> Undated:
    """Reads a trace and settles when the turns of each session follow one another."""
    frame = read_trace(config.path)
    first = np.flatnonzero(frame["turn"].to_numpy() == 0)
    lengths = np.diff(np.append(first, len(frame)))
    hashes = draws.name_hashes(frame["session_id"].iloc[first])
    arrived = timeline.arrivals(
        frame,
        hashes,
        lengths,
        seed=seed,
        synthetic=config.synthetic_times,
        trace_start=config.trace_start,
    )
    return Undated(config=config, frame=frame, lengths=lengths, hashes=hashes, timeline=arrived)


def lay_on_calendar(
    raw: Undated,
    config: StudyConfig,
    span: Span,
    *,
    dates: Span,
    context_limit: NDArray[np.float64],
    deployments: tuple[str, ...],
    dtype: DTypeLike,
) -> Dataset:
    """Gives every session a date, a home and predicted qualities.

    Args:
      raw: the trace.
      config: the study.
      span: what the intensity table covers, epoch seconds.
      dates: where the sessions without a date are laid.
      context_limit: `[M]`, tokens.
      deployments: names, `[D]`.
      dtype: of the packed floats.
    """
    frame, lengths, hashes, path = raw.frame, raw.lengths, raw.hashes, raw.config.path
    turn = frame["turn"].to_numpy()
    first = turn == 0
    each = np.repeat(hashes, lengths)
    arrival = raw.timeline.arrival_s
    _check_fits(raw, dates)
    start = timeline.starts(raw.timeline, hashes, lengths, seed=config.seed, span=dates)
    moment = np.repeat(start, lengths) + arrival
    ids = frame["session_id"].to_numpy(object)
    hour = timeline.hour_index(
        moment, span, trace=path, session_ids=ids, intensity=config.intensity.path
    )
    new = np.maximum(frame["input_tokens"].to_numpy(np.int64), 1)
    output = frame["output_tokens"].to_numpy(np.int64)
    context = np.cumsum(new + output)
    prefix = context - np.repeat(context[first] - (new + output)[first], lengths) - new - output
    if "prefix_tokens" in frame:
        prefix = frame["prefix_tokens"].to_numpy(np.int64)
    notes = list(raw.timeline.rules)
    by_rule = isinstance(config.belief.predicted_output_tokens, str)
    if "predicted_output_tokens" in frame and not by_rule:
        predicted = frame["predicted_output_tokens"].to_numpy(np.float64)
        notes.append("predicted output tokens of the trace")
    else:
        predicted = beliefs.predicted_output(config.belief, config.seed, each, turn, output)
        predicted = np.minimum(predicted, MAX_CONTEXT_TOKENS)
        notes += beliefs.prediction_note(config.belief)
    truncated = 0
    if config.on_overflow == "truncate":
        prefix, new, cut = truncate(prefix, new, predicted, first, context_limit.max())
        truncated = int(cut.sum())
        notes.append(
            f"{truncated:,} turns cut to the longest context, oldest tokens first: their quality "
            "is not modelled (predicted as if whole)"
        )
    longest = (prefix + new + output).max(initial=0)
    if longest >= MAX_CONTEXT_TOKENS:
        at = int(np.argmax(prefix + new + output))
        found = f"a context of {longest:,} tokens"
        limit = f"fewer than {MAX_CONTEXT_TOKENS:,}"
        raise input_error(path, f"session {ids[at]} turn {turn[at]}", found, limit)

    quality, source = _quality(frame, each, turn, config)
    notes.append(source)
    fits = (prefix + new + predicted)[:, None] <= context_limit
    served = fits.any(axis=1)
    short = (np.where(fits, quality, -np.inf).max(axis=1) < config.quality_floor) & served
    if config.quality_floor and served.any():
        notes.append(
            f"on {short.sum() / max(served.sum(), 1):.1%} of the turns that can be served no model "
            f"reaches the quality floor of {config.quality_floor:g}: the best serves"
        )
    home = _homes(frame, hashes, lengths, config, path)
    if "home_region" not in frame:
        notes.append("home regions drawn uniformly from the fleet's")
    return Dataset(
        label=raw.config.label,
        path=path,
        sha256=sha256(path),
        session_ids=ids[first],
        hashes=hashes,
        lengths=lengths,
        columns={
            "gap_s": np.where(first, 0.0, np.diff(arrival, prepend=0.0)),
            "hour": hour,
            "time_bin": timeline.time_bin(moment),
            "home": home,
            "prefix_tokens": prefix,
            "new_tokens": new,
            "output_tokens": output,
            "predicted_output_tokens": predicted,
            "quality": quality,
        },
        synthetic_times=bool(frame["arrival_s"].isna().any()),
        truncated=truncated,
        notes=tuple(notes),
        seed=config.seed,
        deployments=deployments,
        report_draws=config.router_errs,
        dtype=dtype,
    )


def _check_fits(raw: Undated, span: Span) -> None:
    """Refuses a session without a date that is longer than the intensity table."""
    length_s = timeline.last_arrivals(raw.timeline, raw.lengths)
    too_long = np.isnan(raw.timeline.start_s) & (length_s >= span[1] - span[0])
    if too_long.any():
        at = int(np.argmax(too_long))
        session = raw.frame["session_id"].iloc[int(np.cumsum(raw.lengths)[at]) - 1]
        found = f"{length_s[at]:,.0f} s from first to last turn"
        expected = f"less than the {span[1] - span[0]:,.0f} s that the intensity covers"
        mend = "give an intensity file of more hours"
        raise input_error(raw.config.path, f"session {session}", found, expected, mend)


def _quality(
    frame: pd.DataFrame, hashes: draws.Hashes, turn: NDArray[np.int64], config: StudyConfig
) -> tuple[NDArray[np.float64], str]:
    """Predicted quality of each turn and model `[N, M]`, and in words where it came from."""
    models = config.fleet.models
    columns = [f"{QUALITY}{model}" for model in models]
    there = [column for column in columns if column in frame]
    if len(there) == len(columns):
        return frame[columns].to_numpy(np.float64), "predicted quality of the trace"
    irt = bundled_irt(models)
    z = ar1(
        draws.normal(config.seed, "difficulty", hashes, turn),
        turn == 0,
        config.quality.autocorrelation,
    )
    source = (
        "simulated difficulty, abilities fitted (1PL IRT), autocorrelation "
        f"{config.quality.autocorrelation:g}"
    )
    others = [str(column) for column in frame if str(column).startswith(QUALITY)]
    if others:
        source += f"; the trace's {', '.join(others)} not used: needed are {', '.join(columns)}"
    return predict(irt, irt.difficulty_mean + irt.difficulty_sd * z), source


def _homes(
    frame: pd.DataFrame,
    hashes: draws.Hashes,
    lengths: NDArray[np.int64],
    config: StudyConfig,
    path: str,
) -> NDArray[np.int64]:
    """Client region of each turn, `[N]`: the trace's, or drawn uniformly from the fleet's.

    Every region draws a lot for every session, keyed by its name, and the highest wins: the order
    of the fleet's list does not matter.
    """
    known = client_regions()
    place = {region: index for index, region in enumerate(known)}
    if "home_region" in frame:
        home = frame["home_region"].map(place)
        if home.isna().any():
            at = int(np.argmax(home.isna().to_numpy()))
            name, session = frame["home_region"].iloc[at], frame["session_id"].iloc[at]
            mend = known_names(name, known)
            where = f"session {session}: home_region"
            raise input_error(path, where, shown(name), "a known region", mend)
        return np.array(home, np.int64)
    regions = config.fleet.regions
    lots = [draws.uniform(config.seed, f"home {region}", hashes) for region in regions]
    among = np.array([place[region] for region in regions], np.int64)
    return np.repeat(among[np.argmax(lots, axis=0)], lengths)
