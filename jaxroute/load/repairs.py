"""What was wrong in a file, and how often it was mended or left out."""

import dataclasses
from collections import Counter

from jaxroute.load.messages import input_error, one_line

BREAKS_OFF = "the file breaks off, and is read up to there"
"""Noted once, with what is last read."""


@dataclasses.dataclass
class Repairs:
    """A tally of repairs, or a refusal of the first one.

    Attributes:
      name: the file as the user named it.
      strict: whether a repair is an error.
      counts: how often each was made, in order of the first time.
      first: where each was first made.

    >>> repairs = Repairs("log.jsonl")
    >>> for line in (3, 8):
    ...     repairs.note("requests without output taken as 0 tokens", f"line {line}")
    >>> repairs.lines()
    ('2 requests without output taken as 0 tokens (first at line 3)',)
    """

    name: str
    strict: bool = False
    counts: Counter[str] = dataclasses.field(default_factory=Counter)
    first: dict[str, str] = dataclasses.field(default_factory=dict)

    def note(self, what: str, place: str, count: int = 1) -> None:
        """Counts a repair.

        Args:
          what: in the plural, and what was done about it.
          place: where, such as `line 3`; may be empty.
          count: how many of them; 0 of what is no plural.

        Raises:
          InputError: if repairs are errors.
        """
        if self.strict:
            mend = "mend the file, or leave out --strict"
            found = f"something to mend ({what})"
            raise input_error(self.name, place, found, "a file that needs no repair", mend)
        self.counts[what] += count
        self.first.setdefault(what, place)

    def lines(self) -> tuple[str, ...]:
        """Each repair in words, with its count and first place."""
        told = list[str]()
        for what, count in self.counts.items():
            place = self.first[what] and f" ({'first at ' if count else ''}{self.first[what]})"
            told.append(one_line(f"{count:,} {what}{place}" if count else f"{what}{place}"))
        return tuple(told)
