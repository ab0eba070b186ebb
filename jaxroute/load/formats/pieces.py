"""Conversations that were cut into pieces, put together again.

Published ShareGPT files are cut to the context of a model (`split_long_conversation` of FastChat):
a piece is named after the number of its first message, `abc_0`, `abc_8`, and older versions of the
script repeat the answer at which they cut as the first message of the next piece.
"""

import itertools
import re
from collections import defaultdict

from jaxroute.load.formats.dialogue import ASSISTANT, USER, Held, Span

__all__ = ["rejoin"]

_PIECE = re.compile(r"(.+)_(\d{1,9})", re.DOTALL)

Pieces = list[tuple[int, str, Span]]
"""The number of each one's first message, its id, and where it is; ascending."""


def rejoin(held: Held) -> tuple[Held, list[str]]:
    """Joins the pieces of a conversation where it is certain that they are that.

    It is if they are two or more, the first is 0, and each is numbered by the messages of those
    before it, which end with an answer: either the next piece goes on with a question, or it
    repeats the answer word for word. Numbers that merely count conversations do not fit: a first
    piece, and one from a question to an answer, have two messages or more.

    Returns:
      Conversations with those joined in the place of their first piece, and notes.
    """
    stems = defaultdict[str, Pieces](list)
    for name, span in held.spans.items():
        if match := _PIECE.fullmatch(name):
            stems[match[1]].append((int(match[2]), name, span))
    joined, gone, loose = dict[str, tuple[str, Span]](), set[str](), 0
    for stem, pieces in stems.items():
        if len(pieces) == 1:
            continue
        pieces.sort()
        overlaps = _overlaps(held, pieces)
        if overlaps is None or stem in held.spans:
            loose += len(pieces)
            continue
        joined[pieces[0][1]] = stem, _join(held, pieces, overlaps)
        gone.update(name for _, name, _ in pieces[1:])
    if not joined:
        return held, []
    held.spans = dict(
        joined.get(name, (name, span)) for name, span in held.spans.items() if name not in gone
    )
    count = len(joined) + len(gone)
    notes = [f"{count:,} pieces joined to {len(joined):,} conversations, as their numbers fit"]
    if loose:
        notes.append(f"{loose:,} pieces that do not fit together, each a session of its own")
    return held, notes


def _overlaps(held: Held, pieces: Pieces) -> list[int] | None:
    """Messages at the start of each piece that end the one before it; None if one does not fit."""
    overlaps = [0]
    number, _, span = pieces[0]
    if number != 0 or span.end - span.begin < 2:
        return None
    for (number, _, span), (next_number, _, following) in itertools.pairwise(pieces):
        overlap = number + span.end - span.begin - next_number
        if held.roles[span.end - 1] != ASSISTANT:
            return None
        again = (held.roles[following.begin], following.texts[0]) == (ASSISTANT, span.texts[1])
        goes_on = held.roles[following.begin] == USER
        if not (again if overlap == 1 else goes_on and overlap == 0):
            return None
        overlaps.append(overlap)
    return overlaps


def _join(held: Held, pieces: Pieces, overlaps: list[int]) -> Span:
    begin, first = len(held.roles), pieces[0][2]
    for (_, _, span), overlap in zip(pieces, overlaps, strict=True):
        for column in (held.roles, held.tokens, held.times_s):
            column.extend(column[span.begin + overlap : span.end])  # type: ignore[arg-type]
    texts = first.texts[0], pieces[-1][2].texts[1]
    return Span(begin, len(held.roles), first.place, first.time_s, texts)
