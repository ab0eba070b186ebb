"""Mooncake traces: requests with hashes of their prompt's blocks, and no session ids.

JSON lines of `timestamp` (ms from the start), `input_length`, `output_length` and `hash_ids`, one
for each block of 512 tokens; equal leading ids mean equal leading tokens
(https://github.com/kvcache-ai/Mooncake, FAST25-release/traces).
"""

from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from jaxroute.load.formats import fields
from jaxroute.load.formats.assembly import assemble
from jaxroute.load.formats.log import UNKNOWN, Requests
from jaxroute.load.records import records
from jaxroute.load.repairs import Repairs

KEYS = (frozenset({"timestamp", "input_length", "output_length", "hash_ids"}),)

BLOCK = 512
"""Tokens that a hash stands for."""

RULE = (
    f"sessions rebuilt from hashes: a request continues the latest request whose whole blocks of "
    f"{BLOCK} tokens (one or more) its own begin with, the longest such beginning; if that one's "
    "session was the first with them, it has not been continued, and this prompt is as long as its "
    "prompt and answer; what came before the log began is unknown"
)


def read(file: Path, repairs: Repairs) -> tuple[pd.DataFrame, list[str]]:
    """The turns of a Mooncake trace as `jaxroute.load.traces.read_trace` has them, and notes.

    Sessions are rebuilt by `RULE`: only the first session with a beginning can be continued by it,
    so that a system prompt, which many share, joins none.

    Raises:
      InputError: as `jaxroute.load.formats.assembly.assemble`; for a value too long.
      OSError, zlib.error: if the file cannot be read.
    """
    requests = Requests()
    blocks, ends = array("q"), array("q", [0])
    for place, value in records(file, repairs):
        record = fields.mapping(value, place, repairs)
        if record is None:
            continue
        ids = fields.hashes(record.get("hash_ids"))
        if ids is None:
            repairs.note("requests without hash_ids taken as sessions of one turn", place)
        prompt = fields.tokens(record.get("input_length"), place, repairs)
        blocks.extend((ids or [])[: max(prompt, 0) // BLOCK])
        ends.append(len(blocks))
        requests.add(
            "",
            fields.seconds(record.get("timestamp"), place, repairs, unit_s=1e-3),
            prompt,
            fields.tokens(record.get("output_length"), place, repairs),
        )
    session = _sessions(requests, blocks, ends)
    requests.sessions = pc.cast(pa.array(np.arange(max(session, default=0) + 1)), pa.string())
    requests.session = session
    frame, notes = assemble(requests, repairs)
    return frame, [RULE, *notes]


def _sessions(requests: Requests, blocks: Sequence[int], ends: Sequence[int]) -> array:
    """The session of each request, numbered in order of time."""
    session = array("i", bytes(4 * len(requests)))
    owner, last, count = dict[int, int](), dict[int, int](), 0
    for row in np.argsort(np.array(requests.time_s), kind="stable").tolist():
        prompt = requests.prompt[row]
        chain, chains = 0, list[int]()
        for block in blocks[ends[row] : ends[row + 1]]:
            chain = hash((chain, block))
            chains.append(chain)
        mine = count
        for chain in reversed(chains):
            before = last.get(chain, -1)
            if before < 0 or owner[chain] != session[before]:
                continue
            if prompt >= requests.prompt[before] + max(requests.output[before], 0):
                mine = session[before]
                del last[chain]
                break
        if mine == count:
            count += 1
        session[row] = mine
        for chain in chains:
            owner.setdefault(chain, mine)
        if chains and prompt != UNKNOWN and owner[chains[-1]] == mine:
            last[chains[-1]] = row
    return session
