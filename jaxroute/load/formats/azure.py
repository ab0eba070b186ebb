"""Azure LLM inference traces of 2023 and 2024, in CSV.

Columns `TIMESTAMP`, `ContextTokens` (the whole prompt) and `GeneratedTokens`; times of 2023 are
without an offset, those of 2024 with one (https://github.com/Azure/AzurePublicDataset).
"""

from pathlib import Path

import pandas as pd

from jaxroute.load.formats import columns
from jaxroute.load.formats.assembly import assemble
from jaxroute.load.formats.log import of_columns
from jaxroute.load.repairs import Repairs

KEYS = (frozenset({"TIMESTAMP", "ContextTokens", "GeneratedTokens"}),)


def read(file: Path, repairs: Repairs) -> tuple[pd.DataFrame, list[str]]:
    """The turns of an Azure trace as `jaxroute.load.traces.read_trace` has them, and notes.

    It has no session ids, so each request is a session of one turn.

    Raises:
      InputError: as `jaxroute.load.formats.assembly.assemble`.
      jaxroute.load.unreadable.UNREADABLE: if the file cannot be read.
    """
    table = columns.read(file, KEYS[0], repairs)
    requests = of_columns(
        None,
        columns.seconds(table, "TIMESTAMP", repairs),
        columns.tokens(table, "ContextTokens", repairs),
        columns.tokens(table, "GeneratedTokens", repairs),
    )
    frame, notes = assemble(requests, repairs)
    rule = (
        f"the log has no session ids: each of {len(frame):,} requests is a session of one turn, "
        "any history part of its prompt: nothing is cached from turn to turn"
    )
    return frame, [rule, *notes]
