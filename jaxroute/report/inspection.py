"""What a trace holds, on a terminal."""

import functools
from collections.abc import Iterator

import pandas as pd
from rich.console import Console
from rich.table import Table

from jaxroute.inspection import TraceInspection
from jaxroute.load.messages import one_line
from jaxroute.report.tables import grid, put, put_notes

_MIDDLE = ("mean", "p50", "p95", "max")
_DAY_S = 86_400.0


def show_trace_inspection(told: TraceInspection, out: Console) -> None:
    """Prints the figures of a trace, then what else there is to know of it."""
    held = f"{_counted(told.sessions, 'session')}, {_counted(told.turns, 'turn')}"
    title = f"{one_line(told.path)}, read as {told.format}: {held}"
    rows = told.figures.dropna()
    if told.turns:
        put(out, functools.partial(_table, rows), title, [list(map(str, rows)), list(_MIDDLE)])
    else:
        out.print(title, markup=False, soft_wrap=not out.is_terminal)
    put_notes(out, inspection_notes(told))


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def _table(rows: pd.DataFrame, title: str, columns: list[str]) -> Table:
    table = grid(title, "", columns)
    for name, row in rows.iterrows():
        table.add_row(str(name), *(_figure(row[column]) for column in columns))
    return table


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def inspection_notes(told: TraceInspection) -> Iterator[str]:
    """What a reader has to know of a trace, a line each."""
    if not told.turns:
        yield "no turns: the file has nothing but its header"
        return
    for most, row in told.beyond.iterrows():
        yield (
            f"sessions of more than {most} turns: {row['sessions_pct']:.1f} % of sessions, with "
            f"{row['turns_pct']:.1f} % of turns"
        )
    if told.first is not None and told.last is not None:
        begin, end = (f"{each:%Y-%m-%d %H:%M:%S}" for each in (told.first, told.last))
        yield f"from {begin} to {end} UTC, {_duration(told.span_s)}"
    elif told.times == "seconds":
        yield f"{_duration(told.span_s)} from the earliest to the latest time, which have no dates"
    else:
        yield "no times: a study draws the gaps between turns"
    yield from told.notes
    if told.repairs:
        yield from (f"mended or left out: {each}" for each in told.repairs)
    else:
        yield "nothing had to be mended or left out"


def _duration(span_s: float) -> str:
    if span_s >= 2 * _DAY_S:
        return f"{span_s / _DAY_S:.1f} days"
    return f"{span_s / 3600:.1f} hours" if span_s >= 7200 else f"{span_s:,.0f} s"
