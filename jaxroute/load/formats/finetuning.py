"""Conversations as files for fine-tuning have them: `messages` of `role` and `content`."""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from jaxroute.load.formats.content import Conversation, conversation, name
from jaxroute.load.formats.rows import rows
from jaxroute.load.formats.texts import counted
from jaxroute.load.repairs import Repairs

__all__ = ["KEYS", "read"]

_MESSAGES = "messages"

KEYS = (frozenset({_MESSAGES}),)
"""What a record has."""


def read(file: Path, repairs: Repairs, tokenizer: str | None) -> tuple[pd.DataFrame, list[str]]:
    """Reads such conversations, JSON or Parquet: see `jaxroute.load.formats.texts.counted`."""
    return counted(_conversations(file, repairs), repairs, tokenizer)


def _conversations(file: Path, repairs: Repairs) -> Iterator[Conversation]:
    for place, record in rows(file, repairs, ("id", _MESSAGES)):
        identity = name(record, ("id",), place, repairs)
        if said := conversation(record, _MESSAGES, identity, place, repairs):
            yield said
