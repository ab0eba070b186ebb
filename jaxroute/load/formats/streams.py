"""To which request the pieces of streamed answers belong that do not say it.

- Anthropic: `message_start` has the id and the prompt, `message_delta` the output but no id
  (https://docs.anthropic.com/en/docs/build-with-claude/streaming): it is of the latest start.
- OpenAI's chunks have an id, which some logs leave out. With usage so far in each of them, one is
  of the answer of the one before if its prompt is the same and its output no shorter. Where usage
  comes with the last chunk alone, each of those is an answer.
"""

from typing import NamedTuple

START, DELTA, STOP, CHUNK = "message_start", "message_delta", "message_stop", ".chunk"
_OTHERS = ("content_block", "response.", "ping")

UNTOLD = (
    "pieces of streamed answers without an id or a session joined where their prompts are alike"
)


class Piece(NamedTuple):
    """The latest piece of a session's answer: of which request, and its tokens."""

    request: str
    prompt: int
    output: int


Latest = dict[str, Piece]
"""Of each session; what has no session is in one."""


def is_piece(kind: str) -> bool:
    """Whether a record of this type is a piece of a streamed answer."""
    return kind.endswith(CHUNK) or kind.startswith((START, DELTA, STOP, *_OTHERS))


def without_usage(latest: Latest, session: str, kind: str) -> None:
    """Takes down a record without usage: it may end a message, or begin another answer."""
    if kind == STOP or kind.endswith(CHUNK):
        latest.pop(session, None)


def request_of(latest: Latest, session: str, kind: str, piece: Piece, place: str) -> str:
    """The id of a piece's request.

    Args:
      latest: the pieces before it, which it is added to.
      session: its session; empty if it has none.
      kind: the type of its record.
      piece: it, with the id that it has itself, if any.
      place: where it is: an id for what begins a request without one.
    """
    before = latest.get(session)
    request = piece.request
    if kind == START:
        request = request or place
    elif request or (kind != DELTA and not kind.endswith(CHUNK)):
        return request
    elif kind == DELTA:
        return before.request if before else ""
    else:
        goes_on = before and before.prompt == piece.prompt and before.output <= piece.output
        request = before.request if before and goes_on else place
    latest[session] = piece._replace(request=request)
    return request
