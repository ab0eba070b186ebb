"""Conversations whose messages are counted, and their texts forgotten."""

import dataclasses
from array import array
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from jaxroute.load.formats.content import ROLES, Conversation
from jaxroute.load.repairs import Repairs
from jaxroute.load.tokens import Count

__all__ = ["ASSISTANT", "CONTEXT", "USER", "Held", "Span", "hold"]

USER, ASSISTANT, CONTEXT = range(len(ROLES))
_CODE = {role: code for code, role in enumerate(ROLES)}

_AT_ONCE = 2**20
"""Characters of text that are counted together."""


class Span(NamedTuple):
    """Where the messages of a session are held.

    Attributes:
      begin, end: of its messages in the columns of `Held`.
      place: of its record.
      time_s: of the record; NaN if it is not told.
      texts: hashes of the first and the last message's text.
    """

    begin: int
    end: int
    place: str
    time_s: float
    texts: tuple[int, int]


@dataclasses.dataclass
class Held:
    """Conversations without their texts.

    Attributes:
      spans: of each session by its id, in order of first appearance.
      roles: of each message: `USER`, `ASSISTANT` or `CONTEXT`.
      tokens: of each message.
      times_s: of each message; NaN if it is not told.
      unnamed: conversations that had no id.
    """

    spans: dict[str, Span] = dataclasses.field(default_factory=dict)
    roles: "array[int]" = dataclasses.field(default_factory=lambda: array("b"))
    tokens: "array[int]" = dataclasses.field(default_factory=lambda: array("q"))
    times_s: "array[float]" = dataclasses.field(default_factory=lambda: array("d"))
    unnamed: int = 0


def hold(conversations: Iterable[Conversation], count: Count, repairs: Repairs) -> Held:
    """Counts the tokens of conversations.

    Empty ones are left out, and of those with one id all but the fullest, which takes the place of
    the first.
    """
    held = Held()
    for group in _groups(conversations):
        counts = iter(count([each.text for said in group for each in said.messages]))
        for said in group:
            if not said.messages:
                repairs.note("empty conversations left out", said.place)
                continue
            begin = len(held.roles)
            held.roles.extend(_CODE[each.role] for each in said.messages)
            held.tokens.extend(next(counts) for _ in said.messages)
            held.times_s.extend(_or_nan(each.time_s) for each in said.messages)
            held.unnamed += said.name is None
            texts = hash(said.messages[0].text), hash(said.messages[-1].text)
            span = Span(begin, len(held.roles), said.place, _or_nan(said.time_s), texts)
            _keep(held, said.name or said.place, span, repairs)
    return held


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


def _groups(conversations: Iterable[Conversation]) -> Iterator[list[Conversation]]:
    group, size = list[Conversation](), 0
    for said in conversations:
        group.append(said)
        size += sum(len(each.text) + 1 for each in said.messages)
        if size > _AT_ONCE:
            yield group
            group, size = [], 0
    yield group


def _keep(held: Held, name: str, span: Span, repairs: Repairs) -> None:
    before = held.spans.get(name)
    if before is not None:
        repairs.note("conversations with an id that is there twice left out", span.place)

        def fullness(each: Span) -> tuple[int, int]:
            return each.end - each.begin, sum(held.tokens[each.begin : each.end])

        span = max(before, span, key=fullness)
    held.spans[name] = span
