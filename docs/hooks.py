"""What mkdocs fills in while it builds the site: pages that are written elsewhere already."""

import subprocess
import sys
from collections.abc import Callable
from importlib.resources import files


def commands() -> str:
    """The help of every command, as typer writes it."""
    write = [sys.executable, "-m", "typer", "jaxroute.cli", "utils", "docs", "--name", "jaxroute"]
    told = subprocess.run(write, check=True, capture_output=True, text=True).stdout
    return told[told.index("## ") :]


def data() -> str:
    """Sources, columns and licences of the bundled tables."""
    return (files("jaxroute") / "data" / "README.md").read_text(encoding="utf-8")


FILLED: dict[str, Callable[[], str]] = {
    "<!-- the commands -->": commands,
    "<!-- the notes of the bundled data -->": data,
}


def on_page_markdown(markdown: str, **_: object) -> str:
    """Fills in the markers of a page."""
    for marker, written in FILLED.items():
        if marker in markdown:
            markdown = markdown.replace(marker, written())
    return markdown
