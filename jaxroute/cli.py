"""The command line: `jaxroute compare` and `jaxroute explain`."""

import os
import signal
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from jaxroute import __version__, explanation
from jaxroute.comparison import run
from jaxroute.errors import InputError
from jaxroute.load.messages import one_line
from jaxroute.report import turns
from jaxroute.report.files import FILES, write
from jaxroute.report.tables import console, show
from jaxroute.report.target import discard_unfinished, whole_directory
from jaxroute.study import load_study

BAD_INPUT, INTERRUPTED = 2, 130

app = typer.Typer(
    name="jaxroute",
    help="How much carbon would a routing policy have emitted on this conversation trace?",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


StudyFile = Annotated[
    Path | None, typer.Argument(help="Study file (TOML). Without it, the bundled default.")
]
Trace = Annotated[
    list[Path] | None,
    typer.Option(
        help="Trace (CSV or Parquet: session_id, turn, arrival_s, input_tokens, output_tokens "
        "and optional columns) in place of the study's. Can be repeated."
    ),
]
Carbon = Annotated[
    Path | None, typer.Option(help="Hourly carbon intensity (timestamp, region, gco2_per_kwh).")
]
Seed = Annotated[int | None, typer.Option(min=0, max=2**32 - 1, help="Of every random draw.")]


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
    study: StudyFile = None,
    trace: Trace = None,
    carbon: Carbon = None,
    out: Annotated[
        Path | None,
        typer.Option(help=f"Directory for {', '.join(FILES)}; an earlier result is replaced."),
    ] = None,
    seed: Seed = None,
) -> None:
    """Carbon, latency and quality of every routing policy on real conversations."""
    began = time.perf_counter()
    terminal = console(stderr=True)
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        console=terminal,
        disable=not terminal.is_terminal,
        transient=True,
    )
    target: Any = nullcontext() if out is None else whole_directory(out, FILES)
    with target as directory, progress:
        task = progress.add_task("read", total=None)
        loaded = load_study(study, traces=trace or (), carbon=carbon, seed=seed)
        progress.update(task, total=1.0)

        def report(step: str, share: float) -> None:
            progress.update(task, description=escape(step), completed=share)

        outcome = run(loaded, report)
        if directory is not None:
            write(directory, loaded, outcome, time.perf_counter() - began)
    screen = console()
    show(loaded, outcome, screen)
    took = f"{time.perf_counter() - began:.1f} s, of which {outcome.compile_s:.1f} s compiling"
    screen.print(f"- {took}" + (f"; tables in {out}" if out else ""), markup=False)


@app.command()
def explain(
    session: Annotated[str, typer.Option(help="Id of the session.")],
    study: StudyFile = None,
    dataset: Annotated[
        str | None, typer.Option(help="Label of its trace, where the study has several.")
    ] = None,
    retention: Annotated[
        str | None, typer.Option(help="Label of how caches live; the study's first by default.")
    ] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="Policy to show. Can be repeated.")
    ] = None,
    trace: Trace = None,
    carbon: Carbon = None,
    seed: Seed = None,
) -> None:
    """One session turn by turn: what was weighed, chosen and paid, policies side by side."""
    loaded = load_study(study, traces=trace or (), carbon=carbon, seed=seed)
    told = explanation.explain(
        loaded,
        session,
        dataset=dataset,
        retention=retention,
        policies=policy or explanation.POLICIES,
    )
    turns.show(told, console())


def _interrupt(*_: object) -> None:
    """Leaves at once: an exception inside a compiled call's callbacks would be lost, or fatal."""
    discard_unfinished()
    os._exit(INTERRUPTED)


def main() -> None:
    """Runs the command line; bad input is one line on stderr and status 2."""
    before = signal.signal(signal.SIGINT, _interrupt)
    usage_error: Any = typer.BadParameter.__base__  # click's, wherever typer keeps it
    try:
        status = app(standalone_mode=False)
    except usage_error as error:
        message = error.format_message()  # empty where the help was printed instead
        sys.exit(_complain(f"{message} (see --help)") if message else BAD_INPUT)
    except InputError as error:
        sys.exit(_complain(str(error)))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except OSError as error:
        sys.exit(_complain(f"found {error}, expected a file system with room"))
    finally:
        signal.signal(signal.SIGINT, before)
    sys.exit(status)


def _complain(message: str) -> int:
    print(f"jaxroute: {one_line(message)}", file=sys.stderr)
    return BAD_INPUT


if __name__ == "__main__":
    main()
