"""The requests of a log as columns: what every reader of a log fills."""

import dataclasses
import hashlib
from array import array
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

UNKNOWN = -1
"""A count of tokens that the log does not tell."""

MOST = 2**31 - 1
"""Tokens of a count: they are int32 in the replay."""

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
