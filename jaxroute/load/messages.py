"""The wording of input errors, in one place: where, what was found, what was expected."""

import difflib
from collections.abc import Iterable

from jaxroute.errors import InputError

_SHOWN = 60  # characters of a found value


def input_error(file: object, place: str, found: str, expected: str, mend: str = "") -> InputError:
    """An `InputError` of one line: `file: place: found ..., expected ...; mend`.

    Args:
      file: what was read, as the user named it.
      place: the row and column, or the key; may be empty.
      found: words for what was there; `shown` makes them of a value.
      expected: what would have been right.
      mend: what to do about it; may be empty.
    """
    where = f"{place}: " if place else ""
    text = f"{file}: {where}found {found}, expected {expected}"
    return InputError(one_line(f"{text}; {mend}" if mend else text))


def shown(value: object) -> str:
    """A found value as its user would write it, cut to a readable length.

    >>> shown(None), shown("x"), shown(0.5), shown(True)
    ('nothing', "'x'", '0.5', 'true')
    """
    try:
        text = "nothing" if value is None else repr(value)
    except ValueError:  # an integer of thousands of digits
        text = "a number too long to show"
    text = text.lower() if isinstance(value, bool) else text
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def one_line(text: str) -> str:
    """`text` with every run of white space as one space, and what does not print escaped.

    >>> one_line("two\\nlines, \\x1b[31mred")
    'two lines, \\\\x1b[31mred'
    """
    text = " ".join(text.split())
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name most like `name`, or None if none is at least `cutoff` alike (0 to 1).

    >>> nearest("tll_s", ["ttl_s", "decay_s"])
    'ttl_s'
    """
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=cutoff)), None)


def known_names(name: str, known: Iterable[str], kind: str = "known") -> str:
    """How to mend an unknown `name`: the nearest, and all the names there are.

    >>> known_names("de", ["DE", "SG"])
    "did you mean 'DE'? known: DE, SG"
    """
    names = {each.lower(): each for each in known}
    folded = name.lower()
    near = nearest(folded, names) or next((key for key in names if key.startswith(folded)), None)
    listed = f"{kind}: {', '.join(names.values()) or 'none'}"
    return f"did you mean {names[near]!r}? {listed}" if near else listed


def nearest_few(name: str, known: Iterable[str]) -> str:
    """The three known names most like `name`, listed; empty if none is like it.

    >>> nearest_few("s1", ["s0", "s2", "t"])
    "'s2', 's0'"
    """
    return ", ".join(map(repr, difflib.get_close_matches(name, list(known), cutoff=0.5)))
