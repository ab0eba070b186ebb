"""From a file of conversations in words to the turns of a trace."""

from collections.abc import Callable, Iterable

import pandas as pd

from jaxroute.load.formats.content import Conversation
from jaxroute.load.formats.dialogue import Held, hold
from jaxroute.load.formats.turns import trace
from jaxroute.load.repairs import Repairs
from jaxroute.load.tokens import counter

__all__ = ["counted"]


def _as_they_are(held: Held) -> tuple[Held, list[str]]:
    return held, []


def counted(
    conversations: Iterable[Conversation],
    repairs: Repairs,
    tokenizer: str | None,
    join: Callable[[Held], tuple[Held, list[str]]] = _as_they_are,
) -> tuple[pd.DataFrame, list[str]]:
    """Turns of conversations, whose words are counted and forgotten.

    Args:
      conversations: of a file, read as they are asked for.
      repairs: takes down what is mended or left out.
      tokenizer: as for `jaxroute.load.tokens.counter`.
      join: puts pieces of conversations together, and tells of it.

    Returns:
      Turns, as `jaxroute.load.formats.turns.trace` makes them, and notes.

    Raises:
      InputError: if the file cannot be read or has no turn, or repairs are errors.
    """
    count, note = counter(tokenizer)
    held, joined = join(hold(conversations, count, repairs))
    frame, notes = trace(held, repairs)
    return frame, [note, *joined, *notes]
