"""Battles of Chatbot Arena: `conversation_a` and `conversation_b`, two sessions of a record.

They are named by `question_id` or `id`, and `/a` or `/b`; `tstamp` or `timestamp` is of both.
"""

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from jaxroute.load.formats.content import TIMES, Conversation, conversation, name
from jaxroute.load.formats.rows import rows
from jaxroute.load.formats.texts import counted
from jaxroute.load.repairs import Repairs

__all__ = ["KEYS", "read"]

_BOTH = ("conversation_a", "conversation_b")

KEYS = (frozenset(_BOTH),)
"""What a record has."""

_IDS = ("question_id", "id")


def read(file: Path, repairs: Repairs, tokenizer: str | None) -> tuple[pd.DataFrame, list[str]]:
    """Reads such conversations, JSON or Parquet: see `jaxroute.load.formats.texts.counted`."""
    return counted(_conversations(file, repairs), repairs, tokenizer)


def _conversations(file: Path, repairs: Repairs) -> Iterator[Conversation]:
    for place, record in rows(file, repairs, (*_IDS, *_BOTH, *TIMES)):
        identity = name(record, _IDS, place, repairs) or place
        for key in _BOTH:
            whose = f"{identity}/{key[-1]}"
            if said := conversation(record, key, whose, place, repairs):
                yield said
