"""Qwen-Bailian traces: requests that name the request they continue.

JSON lines of `chat_id`, `parent_chat_id` (-1 at the first turn), `turn`, `timestamp` (s from the
start), `input_length`, `output_length`, `type` and `hash_ids`, one for each block of 16 tokens
(https://github.com/alibaba-edu/qwen-bailian-usagetraces-anon).
"""

from array import array
from pathlib import Path

import numpy as np
import pandas as pd

from jaxroute.load.formats import fields
from jaxroute.load.formats.assembly import TWICE, assemble
from jaxroute.load.formats.log import UNKNOWN, Requests
from jaxroute.load.records import records
from jaxroute.load.repairs import Repairs

KEYS = (frozenset({"chat_id", "parent_chat_id", "timestamp", "input_length", "output_length"}),)

BLOCK = 16
"""Tokens that a hash stands for."""

_NONE = ("", "-1")


def read(file: Path, repairs: Repairs) -> tuple[pd.DataFrame, list[str]]:
    """The turns of a Bailian trace as `jaxroute.load.traces.read_trace` has them, and notes.

    A request follows its parent in the parent's session. A second request with the same parent
    begins a session of its own, as does one whose parent is not before it in the log. Where a
    prompt is shorter than the context before it, the blocks that its hashes have in common with the
    parent's are known to be shared.

    Raises:
      InputError: as `jaxroute.load.formats.assembly.assemble`; for a value too long.
      OSError, zlib.error: if the file cannot be read.
    """
    requests = Requests()
    row_of, parent_of = dict[str, int](), list[str]()
    blocks, ends = array("q"), array("q", [0])
    for place, value in records(file, repairs):
        record = fields.mapping(value, place, repairs)
        if record is None:
            continue
        chat = fields.name(record.get("chat_id"))
        if not chat:
            repairs.note("requests without chat_id left out", place)
            continue
        told = (
            fields.seconds(record.get("timestamp"), place, repairs, unit_s=1.0),
            fields.tokens(record.get("input_length"), place, repairs),
            fields.tokens(record.get("output_length"), place, repairs),
        )
        row = row_of.setdefault(chat, len(requests))
        if row < len(requests):
            repairs.note(TWICE, place)
            requests.prompt[row] = max(requests.prompt[row], told[1])
            requests.output[row] = max(requests.output[row], told[2])
            continue
        parent_of.append(fields.name(record.get("parent_chat_id")))
        blocks.extend(fields.hashes(record.get("hash_ids")) or [])
        ends.append(len(blocks))
        requests.add(chat, *told)
    counts = _link(requests, row_of, parent_of, np.array(blocks), ends)
    frame, notes = assemble(requests, repairs)
    rule = "sessions are chains of parent_chat_id"
    for count, words in zip(
        counts, ("second answers to one turn", "turns whose parent is not in the log"), strict=True
    ):
        rule += f"; {count:,} {words} begin sessions of their own" if count else ""
    return frame, [rule, *notes]


def _link(
    requests: Requests,
    row_of: dict[str, int],
    parent_of: list[str],
    blocks: np.ndarray,
    ends: array,
) -> tuple[int, int]:
    """Gives requests their parent's session, and what they share; branches, and lost parents."""
    seen, continued = bytearray(len(requests)), bytearray(len(requests))
    branches = lost = 0
    for row in np.argsort(np.array(requests.time_s), kind="stable").tolist():
        seen[row] = requests.prompt[row] != UNKNOWN
        if parent_of[row] in _NONE:
            continue
        parent = row_of.get(parent_of[row], row)
        if parent == row or not seen[parent]:
            lost += 1
        elif continued[parent]:
            branches += 1
        elif seen[row]:
            continued[parent] = True
            requests.session[row] = requests.session[parent]
            left = requests.prompt[parent] + max(requests.output[parent], 0)
            if requests.prompt[row] < left:
                mine = blocks[ends[row] : ends[row + 1]]
                theirs = blocks[ends[parent] : ends[parent + 1]]
                most = min(len(mine), len(theirs))
                differ = np.flatnonzero(mine[:most] != theirs[:most])
                same = BLOCK * int(differ[0] if len(differ) else most)
                requests.shared[row] = min(same, requests.prompt[row])
    return branches, lost
