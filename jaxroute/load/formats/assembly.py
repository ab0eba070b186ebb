"""From the requests of a log, interleaved as they were served, to the turns of its sessions."""

import dataclasses
import hashlib
from array import array
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from jaxroute.errors import InputError
from jaxroute.load.messages import input_error
from jaxroute.load.repairs import Repairs

UNKNOWN = -1
"""A count of tokens that the log does not tell."""

TWICE = "requests logged once more under the same id joined with the fuller"

MOST = 2**31 - 1
"""Tokens of a count: they are int32 in the replay."""

DATED_S, LAST_S = 315_532_800.0, 7_258_118_400.0
"""The years 1980 and 2200: a log with times between them counts from 1970; none lie beyond."""

Rows = NDArray[np.int64]
Floats = NDArray[np.float64]


def _column(code: str) -> Any:
    return dataclasses.field(default_factory=lambda: array(code))


@dataclasses.dataclass
class Requests:
    """Requests in the order of a log, a column for each fact; a request takes 33 bytes.

    Attributes:
      sessions: numbers of the sessions by name, in order of first appearance; or their names.
      session: of each request, its session's number.
      time_s: when it arrived, NaN if unknown.
      prompt, output: tokens, `UNKNOWN` if not told.
      shared: tokens that its prompt is known to have in common with what was served before it,
        such as those reported as cached; `UNKNOWN` if not told.
      key: a digest of its id within the session, 0 if it has none.
      piece: whether it is a piece of a streamed answer.
    """

    sessions: dict[str, int] | pa.Array = dataclasses.field(default_factory=dict)
    session: Any = _column("i")
    time_s: Any = _column("d")
    prompt: Any = _column("i")
    output: Any = _column("i")
    shared: Any = _column("i")
    key: Any = _column("Q")
    piece: Any = _column("b")

    def __len__(self) -> int:
        return len(self.session)

    def add(
        self,
        session: str,
        time_s: float = float("nan"),
        prompt: int = UNKNOWN,
        output: int = UNKNOWN,
        shared: int = UNKNOWN,
        key: str = "",
        piece: bool = False,
    ) -> None:
        """Adds a request; `key` is its id, if it has one."""
        numbers: Any = self.sessions
        self.session.append(numbers.setdefault(session, len(numbers)))
        self.time_s.append(time_s)
        self.prompt.append(prompt)
        self.output.append(output)
        self.shared.append(shared)
        self.key.append(digest(key) if key else 0)
        self.piece.append(piece)


def of_columns(sessions: pa.Array | None, time_s: Floats, prompt: Rows, output: Rows) -> Requests:
    """Requests of a table: each its session's name; where that is missing, or all are, its own."""
    numbers = pc.cast(pa.array(np.arange(len(time_s)) + 1), pa.string())
    rows = pc.binary_join_element_wise("row", numbers, " ")
    named = rows if sessions is None else pc.coalesce(sessions, rows)
    encoded = pa.array(named).dictionary_encode()
    whole: Any = np.int32
    return Requests(
        sessions=encoded.dictionary,
        session=encoded.indices.to_numpy().astype(whole),
        time_s=time_s,
        prompt=prompt.astype(whole),
        output=output.astype(whole),
        shared=np.full(len(rows), UNKNOWN, whole),
        key=np.zeros(len(rows), np.uint64),
        piece=np.zeros(len(rows), np.int8),
    )


def digest(text: str) -> int:
    """64 bits of a text, never 0."""
    data = text.encode(errors="surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "little") or 1


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
      The frame; and notes: what times there are, how many contexts shrank, turns without output.

    Raises:
      InputError: if no request has a prompt; at a repair, if those are errors.
    """
    if not len(requests):
        raise _nothing(repairs)
    names = requests.sessions
    if isinstance(names, dict):
        names = pa.array([name.encode(errors="replace").decode() for name in names], pa.string())
    session: NDArray = np.frombuffer(requests.session, np.int32)
    columns: dict[str, NDArray] = {
        "time_s": np.frombuffer(requests.time_s, np.float64).copy(),
        "prompt": np.frombuffer(requests.prompt, np.int32).copy(),
        "output": np.frombuffer(requests.output, np.int32).copy(),
        "shared": np.frombuffer(requests.shared, np.int32).copy(),
    }
    key, piece = np.frombuffer(requests.key, np.uint64), np.frombuffer(requests.piece, np.int8)
    notes = list[str]()
    keep = _join(session, key, piece, columns, names, repairs, notes)
    keep &= _told(columns, keep, repairs)
    session = session[keep].astype(np.int64)
    time_s, prompt, output, shared = (column[keep] for column in columns.values())
    if not len(session):
        raise _nothing(repairs)
    dated = _settle_times(time_s, repairs, notes)
    _count_disorder(session, time_s, names, repairs)
    order = np.lexsort((time_s, session))
    session, time_s, prompt, output, shared = (
        column[order] for column in (session, time_s, prompt, output, shared)
    )
    first = np.ones(len(session), bool)
    first[1:] = session[1:] != session[:-1]
    starts = np.flatnonzero(first)
    lengths = np.diff(np.append(starts, len(session)))
    prefix, shrunk = _prefix(prompt, output, shared, first, notes)
    if zeros := int((output == 0).sum()):
        notes.append(f"{zeros:,} turns have no output tokens and are kept")
    frame: dict[str, object] = {
        "session_id": names.take(pa.array(session)).to_pandas(),
        "turn": np.arange(len(session)) - np.repeat(starts, lengths),
        "arrival_s": time_s - (time_s.min() if dated else 0.0),
        "input_tokens": prompt - prefix,
        "output_tokens": output.astype(np.int64),
    }
    if shrunk:
        frame["prefix_tokens"] = prefix
    if dated:
        micros = np.round(time_s[starts] * 1e6).astype(np.int64).astype("datetime64[us]")
        frame["start_time"] = pd.DatetimeIndex(micros).tz_localize("UTC")[
            np.repeat(np.arange(len(starts)), lengths)
        ]
    return pd.DataFrame(frame), notes


def _nothing(repairs: Repairs) -> InputError:
    expected = "at least one request with its prompt tokens"
    return input_error(repairs.name, "", "no request with prompt tokens", expected)


def _join(
    session: NDArray,
    key: NDArray[np.uint64],
    piece: NDArray[np.int8],
    columns: dict[str, NDArray],
    names: pa.Array,
    repairs: Repairs,
    notes: list[str],
) -> NDArray[np.bool_]:
    """Joins requests of one id into the first of them in place; which to keep."""
    keep = np.ones(len(session), bool)
    rows = np.flatnonzero(key)
    rows = rows[np.lexsort((key[rows], session[rows]))]
    same = (key[rows[1:]] == key[rows[:-1]]) & (session[rows[1:]] == session[rows[:-1]])
    if not same.any():
        return keep
    begins = np.flatnonzero(np.concatenate([[True], ~same]))
    for name, column in columns.items():
        best = np.fmin if name == "time_s" else np.maximum
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


def _told(
    columns: dict[str, NDArray], keep: NDArray[np.bool_], repairs: Repairs
) -> NDArray[np.bool_]:
    """Which requests have a prompt; missing outputs become 0."""
    prompt, output = columns["prompt"], columns["output"]
    told = prompt != UNKNOWN
    if count := int((keep & ~told).sum()):
        repairs.note("requests without prompt tokens left out", "", count)
    blank = output == UNKNOWN
    if count := int((keep & told & blank).sum()):
        repairs.note("requests without output tokens taken as 0", "", count)
    output[blank] = 0
    return told


def _settle_times(time_s: Floats, repairs: Repairs, notes: list[str]) -> bool:
    """Whether times are dates; those missing become that of the request before in the log."""
    time_s[~(np.abs(time_s) < LAST_S)] = np.nan
    late = time_s >= DATED_S
    dated = bool(late.any())
    if dated:
        time_s[~late] = np.nan
    missing = np.isnan(time_s)
    if missing.all():
        notes.append("the log has no times")
        return False
    notes.append(
        "times are dates (UTC)" if dated else "times have no dates: they count from the log's start"
    )
    if missing.any():
        what = "requests without a time that can be read given that of the one before in the log"
        repairs.note(what, "", int(missing.sum()))
        known = np.flatnonzero(~missing)
        before = np.maximum.accumulate(np.where(missing, -1, np.arange(len(time_s))))
        time_s[:] = time_s[np.where(before < 0, known[0], before)]
    return dated


def _count_disorder(session: NDArray, time_s: Floats, names: pa.Array, repairs: Repairs) -> None:
    order = np.argsort(session, kind="stable")
    who, when = session[order], time_s[order]
    back = (when[1:] < when[:-1]) & (who[1:] == who[:-1])
    if back.any():
        place = f"session {names[int(who[1:][np.argmax(back)])]}"
        what = "requests logged after a later one of their session put in order of time"
        repairs.note(what, place, int(back.sum()))


def _prefix(
    prompt: NDArray[np.int32],
    output: NDArray[np.int32],
    shared: NDArray[np.int32],
    first: NDArray[np.bool_],
    notes: list[str],
) -> tuple[Rows, bool]:
    """Leading tokens of each prompt that the turn before left, and whether that is ever not all."""
    before = np.concatenate([[0], prompt[:-1]]).astype(np.int64)
    left = before + np.concatenate([[0], output[:-1]])
    before[first] = left[first] = 0
    shrunk = prompt < left
    if not shrunk.any():
        return left, False
    at_least = np.where(prompt >= before, before, 0)
    known = np.maximum(shared, at_least)
    prefix = np.where(shrunk, np.minimum(known, prompt), left)
    kept = int((shrunk & (prefix >= before)).sum())
    none = int((shrunk & (prefix == 0)).sum())
    notes.append(
        f"{int(shrunk.sum()):,} prompts are shorter than the context before them: taken to begin "
        f"with the previous prompt where they are as long ({kept:,}), else with the tokens known "
        f"to be shared or cached ({int(shrunk.sum()) - kept - none:,}), else with nothing of it "
        f"({none:,})"
    )
    return prefix, True
