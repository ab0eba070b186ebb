"""From the messages of conversations to the turns of a trace.

A turn is an answer of the assistant with all that was said since its last one. Its input is what
the user, the system and tools said since then, its output the answer; the rest of its context is
the turns before it. What a chat template puts around a message, a few tokens, is not counted.

- Messages of the assistant in a row are one answer; messages of the user in a row are one question.
- What the assistant says before the user does, such as a greeting, is input of the first turn.
- A question at the end that nobody answered is left out: nothing shows that it was served.
- Questions and answers of no tokens stay.
- A turn arrives with the last message before its answer that has a time, or else when the answer
  does, which is late by the time that it took.
"""

from array import array
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from jaxroute.load.formats.dialogue import ASSISTANT, USER, Held, Span
from jaxroute.load.messages import input_error
from jaxroute.load.moments import EARLIEST_S, LATEST_S
from jaxroute.load.repairs import Repairs

__all__ = ["trace"]

Floats = NDArray[np.float64]


class _Turn(NamedTuple):
    new_tokens: int
    output_tokens: int
    time_s: float  # NaN if it is not told
    is_late: bool  # whether that is the answer's


def trace(held: Held, repairs: Repairs) -> tuple[pd.DataFrame, list[str]]:
    """The turns of conversations, and in words what is known of their times.

    Returns:
      The frame as `jaxroute.load.traces.read_trace` returns it, and notes. Where all times are
      dates it has `start_time`, and `arrival_s` counts from the first of them.

    Raises:
      InputError: if there is no turn at all, or repairs are errors.
    """
    names, lengths, starts_s = list[str](), list[int](), list[float]()
    columns: tuple[array[Any], ...] = array("q"), array("q"), array("d"), array("b")  # of `_Turn`
    for name, span in held.spans.items():
        these = _turns(held, span, repairs)
        if these:
            names.append(name)
            lengths.append(len(these))
            starts_s.append(span.time_s)
            for column, values in zip(columns, zip(*these, strict=True), strict=True):
                column.extend(values)
        else:
            repairs.note("conversations without a question and its answer left out", span.place)
    if not names:
        found = "no question with its answer"
        raise input_error(repairs.name, "", found, "conversations", "is it of another format?")
    length = np.array(lengths)
    new, output, time_s, is_late = (np.array(column) for column in columns)
    kept, is_timed = _with_times(time_s, length, repairs)
    rows = np.repeat(kept, length)
    length, new, output = length[kept], new[rows], output[rows]
    first = np.cumsum(length) - length
    session = np.repeat(np.arange(len(length)), length)
    named = pa.array(names, pa.string()).filter(pa.array(kept))
    notes = []
    if held.unnamed:
        notes.append(f"{held.unnamed:,} conversations without an id, named by their place")
    if is_timed:
        arrival_s = time_s[rows]
        start_s = arrival_s[first]
        if late := int(is_late[rows].sum()):
            notes.append(f"{late:,} turns timed at their answer, as the question has no time")
    else:
        arrival_s = np.full(len(new), np.nan)
        start_s = np.array(starts_s)[kept]
    frame: dict[str, object] = {
        "session_id": named.take(session).to_pandas(),
        "turn": np.arange(len(new)) - first[session],
        "arrival_s": arrival_s,
        "input_tokens": new,
        "output_tokens": output,
    }
    if ((start_s >= EARLIEST_S) & (start_s < LATEST_S)).all():
        if is_timed:
            frame["arrival_s"] = arrival_s - start_s.min()
        micros = np.round(start_s * 1e6).astype("datetime64[us]")
        frame["start_time"] = pd.DatetimeIndex(micros).tz_localize("UTC")[session]
    if not is_timed:
        dated = ", only a date of each conversation" if "start_time" in frame else ""
        notes.append(f"no times of the turns{dated}")
    return pd.DataFrame(frame), notes


def _turns(held: Held, span: Span, repairs: Repairs) -> list[_Turn]:
    turns = list[_Turn]()
    new, time_s, last = 0, np.nan, -1
    is_asked = is_led = False
    for role, tokens, said_s in zip(
        held.roles[span.begin : span.end],
        held.tokens[span.begin : span.end],
        held.times_s[span.begin : span.end],
        strict=True,
    ):
        if role != ASSISTANT:
            if role == last == USER:
                repairs.note("messages of the user in a row taken as one question", span.place)
            is_asked |= role == USER
            new += tokens
            time_s = time_s if np.isnan(said_s) else said_s
        elif last == ASSISTANT and turns:
            repairs.note("messages of the assistant in a row taken as one answer", span.place)
            turns[-1] = turns[-1]._replace(output_tokens=turns[-1].output_tokens + tokens)
        elif not is_asked:
            is_led, new = True, new + tokens
        else:
            is_late = bool(np.isnan(time_s))
            time_s = said_s if is_late else time_s
            if turns and time_s < turns[-1].time_s:
                repairs.note("times before that of the turn before raised to it", span.place)
                time_s = turns[-1].time_s
            turns.append(_Turn(new, tokens, time_s, is_late and not np.isnan(time_s)))
            new, time_s = 0, np.nan
        last = role
    _take_down(turns, is_led, last != ASSISTANT, span.place, repairs)
    return turns


def _take_down(
    turns: list[_Turn], is_led: bool, is_open: bool, place: str, repairs: Repairs
) -> None:
    if is_led and turns:
        what = "sessions that start with the assistant, what it says taken as input"
        repairs.note(what, place)
    if is_open and turns:
        repairs.note("questions at the end without an answer left out", place)
    for turn in turns:
        if not turn.new_tokens:
            repairs.note("questions of 0 tokens kept", place)
        if not turn.output_tokens:
            repairs.note("answers of 0 tokens kept", place)


def _with_times(
    time_s: Floats, length: NDArray[np.int64], repairs: Repairs
) -> tuple[NDArray[np.bool_], bool]:
    """Which sessions to keep, and whether turns have times: if those of most sessions do."""
    has_time = np.isfinite(time_s)
    timed = np.logical_and.reduceat(has_time, np.cumsum(length) - length)
    every = np.ones(len(length), bool)
    if timed.all() or not has_time.any():
        return every, bool(timed.all())
    if 2 * timed.sum() > len(timed):
        repairs.note("sessions without all times left out", "", int((~timed).sum()))
        return timed, True
    without = "turns whose times are not used, as half of the sessions or more lack some"
    repairs.note(without, "", int(has_time.sum()))
    return every, False
