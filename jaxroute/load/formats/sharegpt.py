"""Conversations as ShareGPT files have them: `id`, and `conversations` of `from` and `value`."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from jaxroute.load.formats.content import Conversation, conversation, name
from jaxroute.load.formats.dialogue import hold
from jaxroute.load.formats.pieces import rejoin
from jaxroute.load.formats.rows import rows
from jaxroute.load.formats.turns import trace
from jaxroute.load.repairs import Repairs
from jaxroute.load.tokens import counter

__all__ = ["KEYS", "read"]

_MESSAGES = "conversations"

KEYS = (frozenset({_MESSAGES}),)
"""What a record has."""


def read(file: Path, repairs: Repairs, tokenizer: str | None) -> tuple[pd.DataFrame, list[str]]:
    """Reads a file of such conversations: JSON, JSON lines or Parquet, gzipped or not.

    Pieces of a conversation are put together where it is certain that they are that.

    Args:
      file: it.
      repairs: takes down what is mended or left out.
      tokenizer: as for `jaxroute.load.tokens.counter`.

    Returns:
      Turns, as `jaxroute.load.formats.turns.trace` makes them, and notes.

    Raises:
      InputError: if the file cannot be read or has no turn, or repairs are errors.
    """
    count, note = counter(tokenizer)
    held, joined = rejoin(hold(_conversations(file, repairs), count, repairs))
    frame, notes = trace(held, repairs)
    return frame, [note, *joined, *notes]


def _conversations(file: Path, repairs: Repairs) -> Iterator[Conversation]:
    for place, record in rows(file, repairs, ("id", _MESSAGES)):
        identity = name(record, ("id",), place, repairs)
        if said := conversation(record, _MESSAGES, identity, place, repairs):
            yield said
