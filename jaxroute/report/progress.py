"""A progress bar on a terminal."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from jaxroute.comparison import Report
from jaxroute.report.tables import console


@contextmanager
def progress_bar() -> Iterator[Report]:
    """A bar on stderr, if that is a terminal, and what to tell it."""
    terminal = console(stderr=True)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=terminal,
        disable=not terminal.is_terminal,
        transient=True,
    )
    with progress:
        task = progress.add_task("read", total=None)

        def report(step: str, share: float) -> None:
            progress.update(task, description=escape(step), completed=share, total=1.0)

        yield report
