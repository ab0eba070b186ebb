"""Conversations as WildChat and LMSYS-Chat-1M have them: `conversation` of `role` and `content`.

| source | id | times |
|---|---|---|
| WildChat-1M, WildChat-4.8M | `conversation_hash` | `timestamp` of each answer |
| WildChat | `conversation_id` | `timestamp` of the last answer |
| LMSYS-Chat-1M | `conversation_id` | none, or `tstamp` |

A `conversation_hash` is of the text, and several conversations may share it; they differ in the
`turn_identifier` of their messages (card of allenai/WildChat-1M). So a session is named by the
hash and its first identifier.
"""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from jaxroute.load.formats.content import TIMES, Conversation, conversation, name
from jaxroute.load.formats.rows import rows
from jaxroute.load.formats.texts import counted
from jaxroute.load.repairs import Repairs

__all__ = ["KEYS", "read"]

_MESSAGES = "conversation"

KEYS = (frozenset({_MESSAGES}),)
"""What a record has."""

_IDS = ("conversation_hash", "conversation_id", "id")


def read(file: Path, repairs: Repairs, tokenizer: str | None) -> tuple[pd.DataFrame, list[str]]:
    """Reads such conversations, JSON or Parquet: see `jaxroute.load.formats.texts.counted`."""
    return counted(_conversations(file, repairs), repairs, tokenizer)


def _conversations(file: Path, repairs: Repairs) -> Iterator[Conversation]:
    for place, record in rows(file, repairs, (*_IDS, _MESSAGES, *TIMES)):
        identity = name(record, _IDS, place, repairs)
        found = record.get(_MESSAGES)
        first = found[0] if isinstance(found, list) and found else None
        if identity and isinstance(first, dict) and first.get("turn_identifier") is not None:
            identity = f"{identity}/{first['turn_identifier']}"
        if said := conversation(record, _MESSAGES, identity, place, repairs):
            yield said
