"""From a trace as read to a dataset: dates, homes and predicted qualities."""

import dataclasses
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import DTypeLike, NDArray

from jaxroute import beliefs, draws, timeline
from jaxroute.config import DatasetConfig, StudyConfig
from jaxroute.dataset import Dataset
from jaxroute.load.files import sha256
from jaxroute.load.fleet import client_regions
from jaxroute.load.formats.tidy import QUALITY
from jaxroute.load.messages import input_error, known_names, shown
from jaxroute.load.traces import read_trace
from jaxroute.overflow import truncate
from jaxroute.quality import ar1, bundled_irt, predict
from jaxroute.timeline import Extent, Span, Timeline

MAX_CONTEXT_TOKENS = 2**24
"""Above it float32 no longer holds every whole number of tokens."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Undated:
    """A trace as read, or some of its sessions, before they have dates; `told` how it was read."""

    config: DatasetConfig
    frame: pd.DataFrame
    lengths: NDArray[np.int64]
    hashes: draws.Hashes
    timeline: Timeline
    told: tuple[str, ...] = ()

    @property
    def extent(self) -> Extent:
        """When its sessions are."""
        return timeline.extent(self.timeline, self.lengths)


class Counts(NamedTuple):
    """Turns of a trace that its notes tell of.

    Attributes:
      truncated: whose prompt was cut.
      served: that some model's context holds.
      short: of these, whose best quality is below the floor.
    """

    truncated: int = 0
    served: int = 0
    short: int = 0

    def plus(self, other: "Counts") -> "Counts":
        """Those of two parts of a trace together."""
        return Counts(*map(sum, zip(self, other, strict=True)))


def read(config: DatasetConfig, seed: int) -> Undated:
    """Reads a trace and settles when the turns of each session follow one another."""
    trace = read_trace(
        config.path, format=config.format, tokenizer=config.tokenizer, strict=config.strict
    )
    frame = trace.frame
    ids = frame["session_id"][frame["turn"] == 0]
    raw = undated(config, frame, draws.name_hashes(ids), seed)
    return dataclasses.replace(raw, told=trace.told)


def undated(config: DatasetConfig, frame: pd.DataFrame, hashes: draws.Hashes, seed: int) -> Undated:
    """As `read`, of a frame of whole sessions with these hashes, `[S]`."""
    first = np.flatnonzero(frame["turn"].to_numpy() == 0)
    lengths = np.diff(np.append(first, len(frame)))
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
    frame, path = raw.frame, raw.config.path
    when = times(raw, config, span, dates)
    what, counts = contents(raw, config, context_limit)
    return Dataset(
        label=raw.config.label,
        path=path,
        sha256=sha256(path),
        session_ids=frame["session_id"][frame["turn"] == 0].to_numpy(object),
        hashes=raw.hashes,
        lengths=raw.lengths,
        columns=when | what,
        synthetic_times=raw.timeline.synthetic,
        truncated=counts.truncated,
        notes=notes(raw, config, counts),
        seed=config.seed,
        deployments=deployments,
        report_draws=config.router_errs,
        dtype=dtype,
    )


def times(raw: Undated, config: StudyConfig, span: Span, dates: Span) -> dict[str, NDArray]:
    """Columns of a trace that tell when its turns are, `[N]`, as `jaxroute.sessions.Turn` has them.

    Args:
      raw, config, span, dates: as for `lay_on_calendar`.
    """
    check_fits(raw, dates)
    arrival = raw.timeline.arrival_s
    start = timeline.starts(raw.timeline, raw.hashes, raw.lengths, seed=config.seed, span=dates)
    moment = np.repeat(start, raw.lengths) + arrival
    hour = timeline.hour_index(
        moment,
        span,
        trace=raw.config.path,
        session_ids=raw.frame["session_id"],
        intensity=", ".join(config.intensity.paths),
    )
    first = raw.frame["turn"].to_numpy() == 0
    return {
        "gap_s": np.where(first, 0.0, np.diff(arrival, prepend=0.0)),
        "hour": hour,
        "time_bin": timeline.time_bin(moment),
    }


def contents(
    raw: Undated, config: StudyConfig, context_limit: NDArray[np.float64]
) -> tuple[dict[str, NDArray], Counts]:
    """Columns of a trace that no date changes, `[N]`, quality `[N, M]`; what its notes count.

    Args:
      raw, config, context_limit: as for `lay_on_calendar`.
    """
    frame, lengths, path = raw.frame, raw.lengths, raw.config.path
    turn, each = frame["turn"].to_numpy(), np.repeat(raw.hashes, lengths)
    first = turn == 0
    new = np.maximum(frame["input_tokens"].to_numpy(np.int64), 1)
    output = frame["output_tokens"].to_numpy(np.int64)
    context = np.cumsum(new + output)
    prefix = context - np.repeat(context[first] - (new + output)[first], lengths) - new - output
    if "prefix_tokens" in frame:
        prefix = frame["prefix_tokens"].to_numpy(np.int64)
    if _predicted(frame, config):
        predicted = frame["predicted_output_tokens"].to_numpy(np.float64)
    else:
        predicted = beliefs.predicted_output(config.belief, config.seed, each, turn, output)
        predicted = np.minimum(predicted, MAX_CONTEXT_TOKENS)
    truncated = 0
    if config.on_overflow == "truncate":
        prefix, new, cut = truncate(prefix, new, predicted, first, context_limit.max())
        truncated = int(cut.sum())
    longest = (prefix + new + output).max(initial=0)
    if longest >= MAX_CONTEXT_TOKENS:
        at = int(np.argmax(prefix + new + output))
        found = f"a context of {longest:,} tokens"
        where = f"session {frame['session_id'].iloc[at]} turn {turn[at]}"
        raise input_error(path, where, found, f"fewer than {MAX_CONTEXT_TOKENS:,}")
    quality = _quality(frame, each, turn, config, path)
    fits = (prefix + new + predicted)[:, None] <= context_limit
    served = fits.any(axis=1)
    short = (np.where(fits, quality, -np.inf).max(axis=1) < config.quality_floor) & served
    columns = {
        "home": _homes(frame, raw.hashes, lengths, config, path),
        "prefix_tokens": prefix,
        "new_tokens": new,
        "output_tokens": output,
        "predicted_output_tokens": predicted,
        "quality": quality,
    }
    return columns, Counts(truncated, int(served.sum()), int(short.sum()))


def notes(raw: Undated, config: StudyConfig, counts: Counts) -> tuple[str, ...]:
    """What was drawn or assumed of a trace, in words.

    Args:
      raw: the trace, or any of its sessions.
      config: the study.
      counts: of the whole trace.
    """
    told = [*raw.told, *raw.timeline.rules]
    if _predicted(raw.frame, config):
        told.append("predicted output tokens of the trace")
    else:
        told += beliefs.prediction_note(config.belief)
    if config.on_overflow == "truncate":
        told.append(
            f"{counts.truncated:,} turns cut to the longest context, oldest tokens first: their "
            "quality is not modelled (predicted as if whole)"
        )
    told.append(_quality_source(raw.frame, config))
    if config.quality_floor and counts.served:
        told.append(
            f"on {counts.short / counts.served:.1%} of the turns that can be served no model "
            f"reaches the quality floor of {config.quality_floor:g}: the best serves"
        )
    if "home_region" not in raw.frame:
        told.append("home regions drawn uniformly from the fleet's")
    return tuple(told)


def _predicted(frame: pd.DataFrame, config: StudyConfig) -> bool:
    """Whether outputs are predicted as the trace says."""
    by_rule = isinstance(config.belief.predicted_output_tokens, str)
    return "predicted_output_tokens" in frame and not by_rule


def check_fits(raw: Undated, span: Span) -> None:
    """Refuses a session without a date that is longer than the intensity table."""
    length_s = timeline.last_arrivals(raw.timeline, raw.lengths)
    too_long = np.isnan(raw.timeline.start_s) & (length_s >= span[1] - span[0])
    if too_long.any():
        at = int(np.argmax(too_long))
        session = raw.frame["session_id"].iloc[int(np.cumsum(raw.lengths)[at]) - 1]
        found = f"{length_s[at]:,.0f} s from first to last turn"
        expected = f"less than the {span[1] - span[0]:,.0f} s that the intensity covers"
        mend, where = "give an intensity file of more hours", f"session {session}"
        raise input_error(raw.config.path, where, found, expected, mend)


def _quality_columns(frame: pd.DataFrame, config: StudyConfig) -> list[str]:
    """Those of every model's quality; none if the trace lacks one."""
    columns = [f"{QUALITY}{model}" for model in config.fleet.models]
    return columns if set(columns).issubset(frame) else []


def _quality(
    frame: pd.DataFrame,
    hashes: draws.Hashes,
    turn: NDArray[np.int64],
    config: StudyConfig,
    path: str,
) -> NDArray[np.float64]:
    """Predicted quality of each turn and model, `[N, M]`."""
    if columns := _quality_columns(frame, config):
        return frame[columns].to_numpy(np.float64)
    irt = bundled_irt(config.fleet.models, config.fleet.known.abilities, trace=path)
    innovations = draws.normal(config.seed, "difficulty", hashes, turn)
    z = ar1(innovations, turn == 0, config.quality.autocorrelation)
    return predict(irt, irt.difficulty_mean + irt.difficulty_sd * z)


def _quality_source(frame: pd.DataFrame, config: StudyConfig) -> str:
    """In words, where predicted qualities come from."""
    if _quality_columns(frame, config):
        return "predicted quality of the trace"
    along = f"autocorrelation {config.quality.autocorrelation:g}"
    source = f"simulated difficulty, abilities fitted (1PL IRT), {along}"
    others = [str(column) for column in frame if str(column).startswith(QUALITY)]
    if others:
        needed = ", ".join(f"{QUALITY}{model}" for model in config.fleet.models)
        source += f"; the trace's {', '.join(others)} not used: needed are {needed}"
    return source


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
    known = client_regions(config.fleet.known)
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
