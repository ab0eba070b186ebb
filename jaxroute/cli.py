"""The command line: `jaxroute compare`."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from jaxroute import __version__
from jaxroute.comparison import run
from jaxroute.errors import InputError
from jaxroute.report.files import check_target, write
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


@app.command()
def compare(
    study: Annotated[
        Path | None, typer.Argument(help="Study file (TOML). Without it, the bundled default.")
    ] = None,
    trace: Annotated[
        list[Path] | None,
        typer.Option(help="Trace (CSV or Parquet) in place of the study's. Can be repeated."),
    ] = None,
    carbon: Annotated[
        Path | None,
        typer.Option(help="Hourly carbon intensity (timestamp,region,gco2_per_kwh)."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Directory for the tables; replaced if of an earlier run.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, max=2**32 - 1, help="Of every random draw.")
    ] = None,
) -> None:
    """Carbon, latency and quality of every routing policy on real conversations."""
    began = time.perf_counter()
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
        loaded = load_study(study, traces=trace or (), carbon=carbon, seed=seed)
        progress.update(task, total=1.0)

        def report(step: str, share: float) -> None:
            progress.update(task, description=step, completed=share)

        outcome = run(loaded, report)
        if out is not None:
            write(out, loaded, outcome, time.perf_counter() - began)
    screen = console()
    show(loaded, outcome, screen)
    took = f"{time.perf_counter() - began:.1f} s, of which {outcome.compile_s:.1f} s compiling"
    screen.print(f"- {took}" + (f"; tables in {out}" if out else ""), markup=False)


def main() -> None:
    """Runs the command line; an input error is one line on stderr and status 2."""
    try:
        app()
    except InputError as error:
        print(f"jaxroute: {error}", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
