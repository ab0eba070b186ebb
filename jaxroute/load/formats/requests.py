"""Request logs: JSON lines with a session id and the `usage` that a provider reported.

Two conventions of usage, told apart record by record:

- OpenAI: `prompt_tokens` (chat completions) or `input_tokens` (responses) is the whole prompt,
  cached tokens, in `prompt_tokens_details` or `input_tokens_details`, among it; reasoning is
  among `completion_tokens` or `output_tokens`
  (https://platform.openai.com/docs/api-reference/chat/object, /responses/object).
- Anthropic: `input_tokens` is what was neither read from a cache nor written to one; the prompt is
  the sum with `cache_read_input_tokens` and `cache_creation_input_tokens`
  (https://docs.anthropic.com/en/docs/build-with-claude/prompt-caching).

Usage of streamed answers is cumulative in both.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from jaxroute.load.formats import fields, streams
from jaxroute.load.formats.assembly import assemble
from jaxroute.load.formats.log import MOST, UNKNOWN, Requests
from jaxroute.load.records import records
from jaxroute.load.repairs import Repairs

KEYS = (
    frozenset({"usage"}),
    frozenset({"prompt_tokens"}),
    frozenset({"input_tokens", "output_tokens"}),
    frozenset({"response"}),
    frozenset({"message", "sessionId"}),
    frozenset({"message", "session_id"}),
)
"""Any of these; usage may lie in `response` or `message`."""

SESSION = (
    *("session_id", "sessionId", "conversation_id", "conversationId", "thread_id", "threadId"),
    *("chat_id", "chatId", "session", "conversation", "thread"),
)
REQUEST = ("request_id", "requestId", "x_request_id", "response_id", "responseId")
TIME = (
    *("start_time", "startTime", "started_at", "request_time", "requestTime", "timestamp"),
    *("@timestamp", "time", "ts", "created_at", "createdAt", "created"),
)
"""Keys looked for, in this order, in a record and in what it holds; the first that is told."""

_HOLDERS = ("response", "message", "body", "request", "metadata")

OPENAI = "OpenAI convention (the prompt includes cached tokens)"
ANTHROPIC = "Anthropic convention (the prompt is input and cached tokens together)"
PLAIN = "input_tokens without cached tokens, in which both conventions agree"
PART = "pieces of streamed answers without input tokens"
UNTOLD = "records without a prompt's tokens that can be read"


class Usage(NamedTuple):
    """Tokens of a request, `UNKNOWN` if not told, and the convention they were told in."""

    prompt: int
    output: int
    cached: int
    convention: str


def read(file: Path, repairs: Repairs) -> tuple[pd.DataFrame, list[str]]:
    """The turns of a request log as `jaxroute.load.traces.read_trace` has them, and notes.

    Requests of one id are one, as the pieces of a streamed answer are, also those that have no id:
    see `jaxroute.load.formats.streams`. Records of other kinds, such
    as a user's messages, are left out; so are requests without usage, which is a repair. What runs
    beside a session (`isSidechain`) is a session of its own.

    Raises:
      InputError: as `jaxroute.load.formats.assembly.assemble`; for a value too long.
      OSError, zlib.error: if the file cannot be read.
    """
    requests, told, latest = Requests(), Counter[str](), streams.Latest()
    others, unnamed, first_unnamed = 0, 0, ""
    for place, value in records(file, repairs):
        record = fields.mapping(value, place, repairs)
        if record is None:
            continue
        holders = list(_holders(record))
        kind = _kind(record)
        found, session = _usage(holders, place, repairs), _first(holders, SESSION)
        if found is None:
            streams.without_usage(latest, session, kind)
            if kind:
                others += 1
            else:
                repairs.note("requests without usage left out", place)
            continue
        request, is_piece = _request(record, holders), streams.is_piece(kind)
        if is_piece:
            if not session and not request and kind.endswith(streams.CHUNK):
                repairs.note(streams.UNTOLD, place)
            piece = streams.Piece(request, found.prompt, found.output)
            request = streams.request_of(latest, session, kind, piece, place)
        if not session:
            session = f"request {request or place}"
            unnamed += 1
            first_unnamed = first_unnamed or place
        if record.get("isSidechain") is True:
            session += f"/{fields.name(record.get('agentId')) or 'sidechain'}"
        time = next(
            (each[key] for each in holders for key in TIME if each.get(key) is not None), None
        )
        requests.add(
            session,
            fields.seconds(time, place, repairs),
            found.prompt,
            found.output,
            found.cached,
            request,
            is_piece,
        )
        told[found.convention if found.prompt != UNKNOWN else PART if is_piece else UNTOLD] += 1
    if 0 < unnamed < told.total():
        what = "requests without a session id taken as sessions of one turn"
        repairs.note(what, first_unnamed, unnamed)
    frame, notes = assemble(requests, repairs)
    return frame, [*_rules(told, others, unnamed), *notes]


def _rules(told: Counter[str], others: int, unnamed: int) -> Iterator[str]:
    yield "usage: " + "; ".join(f"{number:,} in {words}" for words, number in told.items())
    if others:
        yield f"{others:,} records of other kinds hold no usage"
    if unnamed == told.total():
        yield "the log has no session ids: each request is a session of one turn"


def _holders(record: dict[str, Any], depth: int = 2) -> Iterator[dict[str, Any]]:
    """A record and the records in it that tell of the same request."""
    yield record
    for key in _HOLDERS:
        inside = record.get(key)
        if depth and isinstance(inside, dict):
            yield from _holders(inside, depth - 1)


def _first(holders: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> str:
    """The first id under one of some keys; empty if there is none."""
    for each in holders:
        for key in keys:
            if key in each and (found := fields.name(each[key])):
                return found
    return ""


def _request(record: dict[str, Any], holders: Sequence[Mapping[str, Any]]) -> str:
    """The id of a request: named so, else that of its answer, else of its record."""
    return _first(holders, REQUEST) or _first(holders[1:], ("id",)) or fields.name(record.get("id"))


def _kind(record: Mapping[str, Any]) -> str:
    """The type of a record, empty if it has none."""
    kind = record.get("type") or record.get("object")
    return kind if isinstance(kind, str) else ""


def _usage(holders: Sequence[dict[str, Any]], place: str, repairs: Repairs) -> Usage | None:
    """What a record tells of tokens; None if it tells nothing."""
    for each in holders:
        if isinstance(inside := each.get("usage"), dict):
            return usage(inside, place, repairs)
    record = holders[0]
    if "prompt_tokens" in record or "input_tokens" in record:
        return usage(record, place, repairs)
    return None


def usage(told: Mapping[str, Any], place: str, repairs: Repairs) -> Usage:
    """The tokens of a `usage` record.

    Args:
      told: it; values may be missing or null.
      place: where, for notes.
      repairs: the tally.

    >>> repairs = Repairs("log.jsonl")
    >>> told = {"input_tokens": 5, "cache_read_input_tokens": 90, "output_tokens": 7}
    >>> usage(told, "", repairs)[:3]
    (95, 7, 90)
    >>> usage({"prompt_tokens": 95, "completion_tokens": 7}, "", repairs)[:3]
    (95, 7, -1)
    """

    def count(key: str) -> int:
        return fields.tokens(told.get(key), place, repairs)

    if "prompt_tokens" in told:
        prompt, output, convention = count("prompt_tokens"), count("completion_tokens"), OPENAI
    else:
        prompt, output, convention = count("input_tokens"), count("output_tokens"), PLAIN
    details = told.get("prompt_tokens_details", told.get("input_tokens_details"))
    if convention is PLAIN and (
        "cache_read_input_tokens" in told or "cache_creation_input_tokens" in told
    ):
        cached = count("cache_read_input_tokens")
        written = count("cache_creation_input_tokens")
        if prompt != UNKNOWN:
            prompt = min(prompt + max(cached, 0) + max(written, 0), MOST)
        convention = ANTHROPIC
    elif isinstance(details, dict) and "cached_tokens" in details:
        cached, convention = fields.tokens(details["cached_tokens"], place, repairs), OPENAI
    else:
        cached = count("prompt_cache_hit_tokens")
        convention = OPENAI if "input_tokens_details" in told else convention
    if prompt != UNKNOWN and cached > prompt:
        repairs.note("cached tokens beyond the prompt's not believed", place)
        cached = UNKNOWN
    return Usage(prompt, output, cached, convention)
