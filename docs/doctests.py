"""What mkdocstrings asks for while it reads docstrings: doctests as blocks of code."""

import re
import textwrap
from typing import Any

import griffe

SESSION = re.compile(r"^( *)>>> .*(?:\n *\S.*)*", re.MULTILINE)


def fenced(session: re.Match[str]) -> str:
    """A doctest, which Markdown would take for a quotation, between fences."""
    return textwrap.indent(f"```pycon\n{textwrap.dedent(session[0])}\n```", session[1])


class Doctests(griffe.Extension):
    """Puts every doctest of a docstring between fences."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = SESSION.sub(fenced, obj.docstring.value)
