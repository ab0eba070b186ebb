"""Conversations as chat records hold them: who said what, and when."""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jaxroute.load.moments import epoch_s
from jaxroute.load.repairs import Repairs

__all__ = ["ROLES", "TIMES", "Conversation", "Message", "conversation", "name"]

ROLES = {
    "user": ("user", "human", "prompter"),
    "assistant": ("assistant", "gpt", "chatgpt", "bard", "bing", "model", "function_call"),
    "context": ("system", "developer", "tool", "function", "observation", "ipython"),
}
"""Names that roles go by: who asks, who answers, and what is put before the assistant besides."""

_ROLE = {name: role for role, names in ROLES.items() for name in names}

TIMES = ("timestamp", "created", "tstamp")
"""Where a time may be, by precedence: WildChat and -1M, WildChat-4.8M, Chatbot Arena."""


class Message(NamedTuple):
    """What was said.

    Attributes:
      role: one of `ROLES`.
      text: it.
      time_s: epoch seconds; None if it is not known.
    """

    role: str
    text: str
    time_s: float | None


class Conversation(NamedTuple):
    """A record.

    Attributes:
      name: its id; None if it has none.
      place: where it is in the file.
      messages: in order.
      time_s: of the record, epoch seconds; None if it is not told.
    """

    name: str | None
    place: str
    messages: list[Message]
    time_s: float | None = None


def conversation(
    record: Mapping[str, Any], key: str, identity: str | None, place: str, repairs: Repairs
) -> Conversation | None:
    """A record's conversation; None if it has none, which is taken down.

    Args:
      record: it.
      key: where its messages are: `role` and `content`, or `from` and `value`.
      identity: its id.
      place: where it is in the file.
      repairs: takes down what is mended or left out.
    """
    found = record.get(key)
    if not isinstance(found, list):
        repairs.note(f"records without a list of {key} left out", place)
        return None
    read = [_message(each, place, repairs) for each in found if isinstance(each, dict)]
    if len(read) < len(found):
        what = "messages that are no objects left out"
        repairs.note(what, place, len(found) - len(read))
    return Conversation(identity, place, read, _moment(record, place, repairs))


def _message(found: Mapping[str, Any], place: str, repairs: Repairs) -> Message:
    content = found.get("content", found.get("value"))
    text = _text(content, place, repairs)
    if "tool_calls" in found or "function_call" in found:
        text += "".join(_calls(found))
    if content is None and not text:
        repairs.note("messages without text taken as empty", place)
    role = _role(found.get("role", found.get("from")), place, repairs)
    return Message(role, text, _moment(found, place, repairs))


def name(
    record: Mapping[str, Any], keys: Sequence[str], place: str, repairs: Repairs
) -> str | None:
    """The id of a record; None if it has none."""
    for key in keys:
        value = record.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if isinstance(value, str) and value.strip():
            return value.encode("utf-8", "replace").decode()
        if value is not None:
            repairs.note("ids that are empty, or neither text nor whole numbers, left out", place)
    return None


def _moment(record: Mapping[str, Any], place: str, repairs: Repairs) -> float | None:
    """When a message or a conversation was, epoch seconds; None if it is not told."""
    for key in TIMES:
        if record.get(key) is not None:
            seconds = epoch_s(record[key])
            if seconds is None:
                repairs.note("times that cannot be read left out", place)
            return seconds
    return None


def _role(found: object, place: str, repairs: Repairs) -> str:
    role = _ROLE.get(found.strip().lower()) if isinstance(found, str) else None
    if role is None:
        repairs.note("messages of an unknown role taken as the user's", place)
    return role or "user"


def _text(content: object, place: str, repairs: Repairs) -> str:
    """The text of a message: it, a number, or the text parts of a list."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, int | float):
        return str(content)
    texts = list[str]()
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str):
            texts.append(text)
        else:
            repairs.note("parts of messages that are no text, such as images, not counted", place)
    return "".join(texts)


def _calls(message: Mapping[str, Any]) -> Iterator[str]:
    """Names and arguments of the functions that a message calls: the model writes them too."""
    calls = message.get("tool_calls")
    called = [call.get("function") for call in _objects(calls)] + [message.get("function_call")]
    for function in _objects(called):
        for value in (function.get("name"), function.get("arguments")):
            if isinstance(value, str):
                yield value
            elif value is not None:
                with contextlib.suppress(RecursionError):  # beyond any use
                    yield json.dumps(value, default=str)


def _objects(found: object) -> list[Mapping[str, Any]]:
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []
