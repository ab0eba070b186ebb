"""Conversations as ShareGPT files have them: `id`, and `conversations` of `from` and `value`."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from jaxroute.load.formats.content import Conversation, conversation, name
from jaxroute.load.formats.pieces import rejoin
from jaxroute.load.formats.rows import rows
from jaxroute.load.formats.texts import counted
from jaxroute.load.repairs import Repairs

__all__ = ["KEYS", "read"]

_MESSAGES = "conversations"

KEYS = (frozenset({_MESSAGES}),)
"""What a record has."""


def read(file: Path, repairs: Repairs, tokenizer: str | None) -> tuple[pd.DataFrame, list[str]]:
    """Reads such conversations, JSON or Parquet: see `jaxroute.load.formats.texts.counted`.

    Pieces of a conversation are put together where it is certain that they are that.
    """
    return counted(_conversations(file, repairs), repairs, tokenizer, rejoin)


def _conversations(file: Path, repairs: Repairs) -> Iterator[Conversation]:
    for place, record in rows(file, repairs, ("id", _MESSAGES)):
        identity = name(record, ("id",), place, repairs)
        if said := conversation(record, _MESSAGES, identity, place, repairs):
            yield said
