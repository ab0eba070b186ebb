"""Conversations as files for fine-tuning have them: `messages` of `role` and `content`."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from jaxroute.load.formats.content import Conversation, conversation, name
from jaxroute.load.formats.dialogue import hold
from jaxroute.load.formats.rows import rows
from jaxroute.load.formats.turns import trace
from jaxroute.load.repairs import Repairs
from jaxroute.load.tokens import counter

__all__ = ["KEYS", "read"]

_MESSAGES = "messages"

KEYS = (frozenset({_MESSAGES}),)
"""What a record has."""


def read(file: Path, repairs: Repairs, tokenizer: str | None) -> tuple[pd.DataFrame, list[str]]:
    """Reads a file of such conversations: JSON, JSON lines or Parquet, gzipped or not.

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
    frame, notes = trace(hold(_conversations(file, repairs), count, repairs), repairs)
    return frame, [note, *notes]


def _conversations(file: Path, repairs: Repairs) -> Iterator[Conversation]:
    for place, record in rows(file, repairs, ("id", _MESSAGES)):
        identity = name(record, ("id",), place, repairs)
        if said := conversation(record, _MESSAGES, identity, place, repairs):
            yield said
