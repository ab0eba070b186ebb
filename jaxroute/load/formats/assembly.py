"""From the requests of a log, interleaved as they were served, to the turns of its sessions."""

from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from jaxroute.errors import InputError
from jaxroute.load.formats.log import UNKNOWN, Floats, Requests, Rows
from jaxroute.load.messages import input_error
from jaxroute.load.moments import EARLIEST_S, LATEST_S
from jaxroute.load.repairs import Repairs

TWICE = "requests logged once more under the same id joined with the fuller"


def assemble(requests: Requests, repairs: Repairs) -> tuple[pd.DataFrame, list[str]]:
    """The turns of a log, one a request, as `jaxroute.load.traces.read_trace` has them.

    Requests of a session with one id are one: each count is the largest told, the time the first.
    Turns follow by time, those of equal times as in the log. What the context left by a turn,
    its prompt and output, and the next prompt have in common is not in a log of counts. So a prompt
    at least as long as that context is taken to begin with the whole of it. A shorter one begins
    with the previous prompt if it is at least as long as that (what was dropped is of the answer,
    such as its reasoning), else with nothing; or with what it is known to share
    (`Requests.shared`), if that is more.

    Args:
      requests: of the log.
      repairs: where what was mended or left out is counted.

    Returns:
      The frame; and notes: what times there are, and what is taken to remain of contexts that
      shrank.

    Raises:
      InputError: if no request has a prompt; at a repair, if those are errors.
    """
    if not len(requests):
        raise _nothing(repairs)
    names = requests.sessions
    if isinstance(names, dict):
        names = pa.array([name.encode(errors="replace").decode() for name in names], pa.string())
    requests.sessions = {}
    columns = {name: _taken(requests, name, dtype) for name, dtype in _DTYPES.items()}
    notes = list[str]()
    keep = _join(columns, names, repairs, notes)
    del columns["key"], columns["piece"]
    keep &= _told(columns, keep, names, repairs)
    if not keep.any():
        raise _nothing(repairs)
    if not keep.all():
        _each(columns, keep)
    dated = _settle_times(columns["time_s"], repairs, notes)
    order = np.argsort(columns["session"], kind="stable")
    _each(columns, order)
    _count_disorder(columns, names, repairs)
    order = np.lexsort((columns["time_s"], columns["session"]))
    _each(columns, order)
    del order, keep
    session, time_s = columns["session"], columns.pop("time_s")
    # The frame is the most that is held: each column goes when its own is made of it.
    first = np.ones(len(session), bool)
    first[1:] = session[1:] != session[:-1]
    starts = np.flatnonzero(first)
    lengths = np.diff(np.append(starts, len(session)))
    prefix, shrunk = _prefix(columns, first, names, repairs, notes)
    del first, columns["shared"], columns["session"]
    output = columns.pop("output").astype(np.int64)
    new = np.subtract(columns.pop("prompt"), prefix, out=None if shrunk else prefix)
    frame: dict[str, object] = {
        "session_id": names.take(pa.array(session)).to_pandas(),
        "turn": None,
        "arrival_s": time_s,
        "input_tokens": new,
        "output_tokens": output,
    }
    del session
    turn = np.arange(len(time_s))
    turn -= np.repeat(starts, lengths)
    frame["turn"] = turn
    if shrunk:
        frame["prefix_tokens"] = prefix
    if dated:
        micros = np.round(time_s[starts] * 1e6).astype(np.int64).astype("datetime64[us]")
        frame["start_time"] = pd.DatetimeIndex(np.repeat(micros, lengths)).tz_localize("UTC")
        time_s -= time_s.min()
    return pd.DataFrame(frame, copy=False), notes


_DTYPES = {
    "session": np.int32,
    "time_s": np.float64,
    "prompt": np.int32,
    "output": np.int32,
    "shared": np.int32,
    "key": np.uint64,
    "piece": np.int8,
}

Columns = dict[str, NDArray[Any]]


def _taken(requests: Requests, name: str, dtype: Any) -> NDArray[Any]:
    """A column that the requests no longer hold, so that it goes when it is no longer needed."""
    values = np.frombuffer(getattr(requests, name), dtype)
    setattr(requests, name, None)
    return values if values.flags.writeable else values.copy()


def _each(columns: Columns, rows: NDArray[Any]) -> None:
    """Rows of each column in its place."""
    for name in columns:
        columns[name] = columns[name][rows]


def _nothing(repairs: Repairs) -> InputError:
    expected = "at least one request with its prompt tokens"
    return input_error(repairs.name, "", "no request with prompt tokens", expected)


def _join(
    columns: Columns, names: pa.Array, repairs: Repairs, notes: list[str]
) -> NDArray[np.bool_]:
    """Joins requests of one id into the first of them in place; which to keep."""
    session, key, piece = (columns[name] for name in ("session", "key", "piece"))
    keep = np.ones(len(session), bool)
    rows = np.flatnonzero(key)
    rows = rows[np.lexsort((key[rows], session[rows]))]
    same = (key[rows[1:]] == key[rows[:-1]]) & (session[rows[1:]] == session[rows[:-1]])
    if not same.any():
        return keep
    begins = np.flatnonzero(np.concatenate([[True], ~same]))
    for name in ("time_s", "prompt", "output", "shared"):
        best, column = np.fmin if name == "time_s" else np.maximum, columns[name]
        column[rows[begins]] = best.reduceat(column[rows], begins)
    others = np.diff(np.append(begins, len(rows))) - 1
    streamed = np.maximum.reduceat(piece[rows], begins) > 0
    keep[rows[1:][same]] = False
    if streamed.any():
        pieces = int((others + 1)[streamed].sum())
        notes.append(f"{pieces:,} pieces of {int(streamed.sum()):,} streamed answers joined")
    twice = (others > 0) & ~streamed
    if twice.any():
        place = f"session {names[int(session[rows[begins[np.argmax(twice)]]])]}"
        repairs.note(TWICE, place, int(others[twice].sum()))
    return keep


def _place(names: pa.Array, session: NDArray[Any], rows: NDArray[np.bool_]) -> str:
    """Where the first of some rows is."""
    return f"session {names[int(session[np.argmax(rows)])]}"


def _told(
    columns: Columns, keep: NDArray[np.bool_], names: pa.Array, repairs: Repairs
) -> NDArray[np.bool_]:
    """Which requests have a prompt; missing outputs become 0."""
    prompt, output = columns["prompt"], columns["output"]
    told = prompt != UNKNOWN
    zero = keep & told & (output == 0)
    if zero.any():
        place = _place(names, columns["session"], zero)
        repairs.note("answers of 0 tokens kept", place, int(zero.sum()))
    if count := int((keep & ~told).sum()):
        repairs.note("requests without prompt tokens left out", "", count)
    blank = output == UNKNOWN
    if count := int((keep & told & blank).sum()):
        repairs.note("requests without output tokens taken as 0", "", count)
    output[blank] = 0
    return told


def _settle_times(time_s: Floats, repairs: Repairs, notes: list[str]) -> bool:
    """Whether times are dates; those missing become that of the request before in the log."""
    time_s[~(np.abs(time_s) < LATEST_S)] = np.nan
    late = time_s >= EARLIEST_S
    dated = bool(late.any())
    if dated:
        time_s[~late] = np.nan
    missing = np.isnan(time_s)
    if missing.all():
        notes.append("the log has no times")
        return False
    notes.append(
        "times are dates (UTC; those without an offset are taken for it)"
        if dated
        else "times have no dates: they count from the log's start"
    )
    if missing.any():
        what = "requests without a time that can be read given that of the one before in the log"
        repairs.note(what, "", int(missing.sum()))
        known = np.flatnonzero(~missing)
        before = np.maximum.accumulate(np.where(missing, -1, np.arange(len(time_s))))
        time_s[:] = time_s[np.where(before < 0, known[0], before)]
    return dated


def _count_disorder(columns: Columns, names: pa.Array, repairs: Repairs) -> None:
    """Counts the requests that are before the one logged before them; sessions are side by side."""
    who, when = columns["session"], columns["time_s"]
    back = (when[1:] < when[:-1]) & (who[1:] == who[:-1])
    if back.any():
        place = _place(names, who[1:], back)
        what = "requests logged after a later one of their session put in order of time"
        repairs.note(what, place, int(back.sum()))


def _prefix(
    columns: Columns,
    first: NDArray[np.bool_],
    names: pa.Array,
    repairs: Repairs,
    notes: list[str],
) -> tuple[Rows, bool]:
    """Leading tokens of each prompt that the turn before left, and whether that is ever not all."""
    prompt, output, shared = (columns[name] for name in ("prompt", "output", "shared"))
    before = np.roll(prompt, 1)
    before[first] = 0
    left = np.roll(output, 1).astype(np.int64)
    left += before
    left[first] = 0
    shrunk = prompt < left
    if not shrunk.any():
        return left, False
    known = np.where(prompt >= before, before, 0)
    np.maximum(shared, known, out=known)
    prefix = left
    np.minimum(known, prompt, out=prefix, where=shrunk)
    kept = int((shrunk & (prefix >= before)).sum())
    none = int((shrunk & (prefix == 0)).sum())
    what = "prompts shorter than the context before them given the prefix that they can share"
    repairs.note(what, _place(names, columns["session"], shrunk), int(shrunk.sum()))
    notes.append(
        f"{int(shrunk.sum()):,} prompts are shorter than the context before them: taken to begin "
        f"with the previous prompt where they are as long ({kept:,}), else with the tokens known "
        f"to be shared or cached ({int(shrunk.sum()) - kept - none:,}), else with nothing of it "
        f"({none:,})"
    )
    return prefix, True
