"""BurstGPT: requests to ChatGPT and GPT-4 on Azure OpenAI, in CSV.

Columns `Timestamp` (s), `Session ID` and `Elapsed time` (from release 2.0 on, filled for
conversations), `Model`, `Request tokens`, `Response tokens`, `Total tokens`, `Log Type`
(https://github.com/HPMLL/BurstGPT, arXiv 2401.17644).
"""

from pathlib import Path

import numpy as np
import pandas as pd

from jaxroute.load.formats import columns
from jaxroute.load.formats.assembly import assemble
from jaxroute.load.formats.log import of_columns
from jaxroute.load.repairs import Repairs

KEYS = (frozenset({"Timestamp", "Request tokens", "Response tokens"}),)

SESSION = "Session ID"


def read(file: Path, repairs: Repairs) -> tuple[pd.DataFrame, list[str]]:
    """The turns of a BurstGPT trace as `jaxroute.load.traces.read_trace` has them, and notes.

    Its authors do not say whether `Request tokens` include the history of a conversation; they are
    what a stateless interface was sent, so they are read as whole prompts. The notes tell how many
    later turns are as long as the context before them, which speaks for it.

    Raises:
      InputError: as `jaxroute.load.formats.assembly.assemble`.
      jaxroute.load.unreadable.UNREADABLE: if the file cannot be read.
    """
    table = columns.read(file, KEYS[0], repairs, (SESSION,))
    count = table.num_rows
    names = table[SESSION].combine_chunks() if SESSION in table.column_names else None
    requests = of_columns(
        names,
        columns.seconds(table, "Timestamp", repairs),
        columns.tokens(table, "Request tokens", repairs),
        columns.tokens(table, "Response tokens", repairs),
    )
    single = count if names is None else names.null_count
    frame, notes = assemble(requests, repairs)
    return frame, [_rule(single, count), *_history(frame), *notes]


def _rule(single: int, count: int) -> str:
    if single == count:
        return f"the log has no session ids: each of {count:,} requests is a session of one turn"
    return (
        f"sessions by {SESSION}; each of {single:,} requests without one (API log) is a session of "
        "one turn"
    )


def _history(frame: pd.DataFrame) -> list[str]:
    later = frame["turn"].to_numpy() > 0
    if not later.any():
        return []
    new = frame["input_tokens"].to_numpy(np.int64)
    prefix = frame["prefix_tokens"].to_numpy(np.int64) if "prefix_tokens" in frame else None
    whole = later.copy()
    if prefix is not None:
        left = np.roll(prefix + new + frame["output_tokens"].to_numpy(np.int64), 1)
        whole &= prefix == left
    return [
        "Request tokens are read as whole prompts, history included, which the authors do not say: "
        f"{100 * whole.sum() / later.sum():.0f} % of later turns are at least as long as the "
        "context before them"
    ]
