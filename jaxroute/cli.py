"""The command line: `jaxroute compare` and `jaxroute ablate`."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from jaxroute import __version__, ablation, matching
from jaxroute.comparison import Report, run
from jaxroute.errors import InputError
from jaxroute.report.ablation import show_ablation
from jaxroute.report.files import check_target, write, write_ablation
from jaxroute.report.matched import show_matched
from jaxroute.report.tables import console, show
from jaxroute.study import load_study

app = typer.Typer(
    name="jaxroute",
    help="How much carbon would a routing policy have emitted on this conversation trace?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        print(f"jaxroute {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


StudyFile = Annotated[
    Path | None, typer.Argument(help="Study file (TOML). Without it, the bundled default.")
]
Traces = Annotated[
    list[Path] | None,
    typer.Option(help="Trace (CSV or Parquet) in place of the study's. Can be repeated."),
]
Carbon = Annotated[
    Path | None, typer.Option(help="Hourly carbon intensity (timestamp,region,gco2_per_kwh).")
]
Out = Annotated[
    Path | None, typer.Option(help="Directory for the tables; replaced if of an earlier run.")
]
Seed = Annotated[int | None, typer.Option(min=0, max=2**32 - 1, help="Of every random draw.")]


class Match(StrEnum):
    """What `--match` makes equal."""

    quality = "quality"
    ttft = "ttft"


@contextmanager
def _progress(out: Path | None) -> Iterator[Report]:
    """A bar on a terminal, after a look at where the results shall go."""
    if out is not None:
        check_target(out)
    terminal = console(stderr=True)
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=terminal,
        disable=not terminal.is_terminal,
        transient=True,
    ) as progress:
        task = progress.add_task("read", total=None)

        def report(step: str, share: float) -> None:
            progress.update(task, description=step, completed=share, total=1.0)

        yield report


def _say_took(screen: Console, wall_s: float, compile_s: float | None, out: Path | None) -> None:
    compiling = "" if compile_s is None else f", of which {compile_s:.1f} s compiling"
    tables = f"; tables in {out}" if out else ""
    screen.print(f"- {wall_s:.1f} s{compiling}{tables}", markup=False)


@app.command()
def compare(
    study: StudyFile = None,
    trace: Traces = None,
    carbon: Carbon = None,
    out: Out = None,
    seed: Seed = None,
    match: Annotated[
        Match | None,
        typer.Option(help="Also the savings at the baseline's mean of this, turning one knob."),
    ] = None,
) -> None:
    """Carbon, latency and quality of every routing policy on real conversations."""
    began = time.perf_counter()
    matched = None
    with _progress(out) as report:
        loaded = load_study(study, traces=trace or (), carbon=carbon, seed=seed)
        outcome = run(loaded, report)
        if match is not None:
            matched = matching.run(loaded, outcome.fixed, match.value, report)
        if out is not None:
            write(out, loaded, outcome, time.perf_counter() - began, matched)
    screen = console()
    show(loaded, outcome, screen)
    compile_s: float | None = outcome.compile_s
    if matched is not None:
        show_matched(loaded, matched, screen)
        compile_s = None  # of the comparison alone
    _say_took(screen, time.perf_counter() - began, compile_s, out)


@app.command()
def ablate(
    study: StudyFile = None,
    trace: Traces = None,
    carbon: Carbon = None,
    out: Out = None,
    seed: Seed = None,
) -> None:
    """The saving of carbon_router over fair_carbon, split into what each of its parts saves."""
    began = time.perf_counter()
    with _progress(out) as report:
        loaded = load_study(study, traces=trace or (), carbon=carbon, seed=seed)
        outcome = ablation.run(loaded, report)
        if out is not None:
            write_ablation(out, loaded, outcome, time.perf_counter() - began)
    screen = console()
    show_ablation(loaded, outcome, screen)
    _say_took(screen, time.perf_counter() - began, outcome.compile_s, out)


def main() -> None:
    """Runs the command line; an input error is one line on stderr and status 2."""
    try:
        app()
    except InputError as error:
        print(f"jaxroute: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
