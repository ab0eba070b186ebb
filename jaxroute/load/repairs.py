"""What was wrong in a file, and how often it was mended or left out."""

import dataclasses
from collections import Counter

from jaxroute.load.messages import input_error


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
          count: how many of them.

        Raises:
          InputError: if repairs are errors.
        """
        if self.strict:
            mend = "mend the file, or leave out --strict"
            raise input_error(self.name, place, what, "a file that needs no repair", mend)
        self.counts[what] += count
        self.first.setdefault(what, place)

    def lines(self) -> tuple[str, ...]:
        """Each repair in words, with its count and first place."""
        places = {
            what: f" (first at {place})" if place else "" for what, place in self.first.items()
        }
        return tuple(f"{count:,} {what}{places[what]}" for what, count in self.counts.items())
