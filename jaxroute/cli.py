"""The command line: `jaxroute compare` and its siblings."""

import os
import signal
import sys
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from jaxroute import (
    __version__,
    ablation,
    capacities,
    cluster,
    deriving,
    explanation,
    grid,
    learned_gate,
    matching,
    memory,
    pareto,
    sweeping,
    tuning,
)
from jaxroute.comparison import Report, run
from jaxroute.compilations import reuse_compilations
from jaxroute.config import read_config
from jaxroute.devices import use_every_core
from jaxroute.errors import InputError, UnknownFormatError
from jaxroute.grid_inspection import inspect_intensity, is_intensity
from jaxroute.inspection import inspect_trace
from jaxroute.load.carbon import TYPICAL_DAY
from jaxroute.load.grids.detection import FORMATS
from jaxroute.load.messages import input_error, one_line
from jaxroute.options import Format, Out, Sources, Strict, StudyFile, Tokenizer, with_sources
from jaxroute.report import turns
from jaxroute.report.ablation import show_ablation
from jaxroute.report.capacity import (
    CAPACITY_FILES,
    require_figure,
    show_capacity,
    write_capacity,
)
from jaxroute.report.files import (
    ABLATION_FILES,
    FILES,
    write,
    write_ablation,
    write_grid,
    write_sweep,
)
from jaxroute.report.fleet import FLEET_FILES, fleet_listing, show_fleet, write_fleet
from jaxroute.report.grid import show_grid
from jaxroute.report.grid_inspection import show_intensity_inspection
from jaxroute.report.inspection import show_trace_inspection
from jaxroute.report.learned_gate import GATE_FILES, show_gate, write_gate
from jaxroute.report.load import load_notes, show_load
from jaxroute.report.matched import show_matched
from jaxroute.report.page import write_report
from jaxroute.report.progress import progress_bar
from jaxroute.report.sweep import show_sweep
from jaxroute.report.tables import console, put_notes, show
from jaxroute.report.target import discard_unfinished, whole_directory
from jaxroute.report.tuning import TUNING_FILES, show_tuning, write_tuning
from jaxroute.study import load_study

BAD_INPUT, SIGNALLED = 2, 128

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


class Match(StrEnum):
    """What `--match` makes equal."""

    quality = "quality"
    ttft = "ttft"


class Basis(StrEnum):
    """What `--basis` may be."""

    lifecycle = "lifecycle"
    direct = "direct"


@contextmanager
def _at_work(out: Path | None, names: Collection[str]) -> Iterator[tuple[Path | None, Report]]:
    """Where to write the files `names`, if anywhere, and a progress bar."""
    target: Any = nullcontext() if out is None else whole_directory(out, names)
    with target as directory, progress_bar() as report:
        yield directory, report


def _tell(screen: Console, wall_s: float, compile_s: float | None, out: Path | None) -> None:
    compiling = "" if compile_s is None else f", of which {compile_s:.1f} s compiling"
    tables = f"; tables in {out}" if out else ""
    screen.print(f"- {wall_s:.1f} s{compiling}{tables}", markup=False)


@app.command()
@with_sources
def compare(
    study: StudyFile = None,
    out: Out = None,
    match: Annotated[
        Match | None,
        typer.Option(help="Also the savings at the baseline's mean of this, turning one knob."),
    ] = None,
    *,
    sources: Sources,
) -> None:
    """Carbon, latency and quality of every routing policy on real conversations."""
    began, matched = time.perf_counter(), None
    with _at_work(out, FILES) as (directory, report):
        loaded = load_study(study, **sources)
        outcome = run(loaded, report)
        if match is not None:
            matched = matching.run(loaded, outcome.fixed, match.value, report)
        if directory is not None:
            write(directory, loaded, outcome, time.perf_counter() - began, matched)
    screen = console()
    show(loaded, outcome, screen)
    show_load(loaded, outcome, screen)
    put_notes(screen, load_notes(loaded, outcome))
    compile_s: float | None = outcome.compile_s
    if matched is not None:
        show_matched(loaded, matched, screen)
        compile_s = None  # of the comparison alone
    _tell(screen, time.perf_counter() - began, compile_s, out)


@app.command()
@with_sources
def ablate(
    study: StudyFile = None,
    out: Out = None,
    *,
    sources: Sources,
) -> None:
    """The saving of carbon_router over fair_carbon, split into what each of its parts saves."""
    began = time.perf_counter()
    with _at_work(out, ABLATION_FILES) as (directory, report):
        loaded = load_study(study, **sources)
        outcome = ablation.run(loaded, report)
        if directory is not None:
            write_ablation(directory, loaded, outcome, time.perf_counter() - began)
    screen = console()
    show_ablation(loaded, outcome, screen)
    _tell(screen, time.perf_counter() - began, outcome.compile_s, out)


@app.command()
@with_sources
def capacity(
    study: StudyFile = None,
    out: Out = None,
    *,
    sources: Sources,
) -> None:
    """Carbon, waiting and cache hits of every policy from a tenth of the traffic to more than all.

    Needs a study under load: a table load, or --arrival-rate.
    """
    began = time.perf_counter()
    if out is not None:
        require_figure()
    with _at_work(out, CAPACITY_FILES) as (directory, report):
        loaded = load_study(study, **sources)
        outcome = capacities.run(loaded, report)
        if directory is not None:
            write_capacity(directory, loaded, outcome, time.perf_counter() - began)
    screen = console()
    show_capacity(loaded, outcome, screen)
    _tell(screen, time.perf_counter() - began, outcome.compile_s, out)


@app.command()
@with_sources
def study(
    file: Annotated[Path, typer.Argument(help="Study file (TOML) with tables of what to vary.")],
    out: Annotated[
        Path, typer.Option(help="Directory for the tables. What a killed run left there is used.")
    ],
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, counting up from --seed.")] = 1,
    *,
    sources: Sources,
) -> None:
    """Every combination of what a study file varies, on every trace that is there; resumable."""
    began = time.perf_counter()
    with progress_bar() as report:
        cells, left_out = grid.plan(file, seeds=seeds, **sources)
        outcome = grid.run(cells, left_out, out, report)
        write_grid(out, outcome, time.perf_counter() - began)
    screen = console()
    show_grid(outcome, screen)
    took = f"{len(cells)} comparisons, {time.perf_counter() - began:.1f} s; tables in {out}"
    screen.print(f"- {took}", markup=False)


@app.command()
@with_sources
def sweep(
    study: Annotated[Path, typer.Argument(help="Study file (TOML) with a table of what to sweep.")],
    out: Annotated[
        Path, typer.Option(help="Directory for the table. What a killed run left there is used.")
    ],
    top: Annotated[
        int, typer.Option(min=0, help="How many settings to print, of the least carbon.")
    ] = 10,
    front: Annotated[
        str | None,
        typer.Option(
            "--pareto",
            help="Columns, with commas between, to print the Pareto front of; without it only "
            f"flags are written, of {','.join(pareto.OBJECTIVES)}.",
        ),
    ] = None,
    latency: Annotated[
        bool, typer.Option("--latency", help="Also quantiles of TTFT and E2E; slower.")
    ] = False,
    budget: Annotated[
        str | None,
        typer.Option("--memory", help="Such as 4GiB; by default half of what is free."),
    ] = None,
    coordinator: Annotated[
        str | None,
        typer.Option(
            help="Where process 0 of several listens, host:port; auto: as JAX finds it. Steps of "
            "Slurm and Open MPI need no option."
        ),
    ] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="How many there are.")] = None,
    process_id: Annotated[
        int | None, typer.Option(min=0, help="Which of them this one is, from 0.")
    ] = None,
    *,
    sources: Sources,
) -> None:
    """Thousands of settings of a policy on every trace of a study; resumable."""
    began = time.perf_counter()
    use_every_core()
    cluster.join(coordinator, processes, process_id)
    objectives = front.split(",") if front is not None else pareto.OBJECTIVES
    sweeping.check(objectives, latency=latency)
    allowed = memory.of_text(budget) if budget is not None else None
    with progress_bar() as report:
        loaded = load_study(
            study,
            **sources,
            memory_bytes=(allowed or memory.host_bytes() // 2) // 2,
        )
        outcome = sweeping.run(
            loaded,
            sweeping.planned(loaded.config),
            objectives=objectives,
            latency=latency,
            budget=allowed,
            directory=out,
            report=report,
        )
        if not cluster.leads():
            return
        write_sweep(out, loaded, outcome, time.perf_counter() - began)
    screen = console()
    show_sweep(loaded, outcome, screen, top=top, whole_front=front is not None)
    rate = outcome.decisions / 1e6 / outcome.replay_s
    took = f"{time.perf_counter() - began:.1f} s, {rate:.1f} M decisions/s with compiling"
    screen.print(f"- {took}; table in {out}", markup=False)


@app.command()
@with_sources
def tune(
    study: StudyFile = None,
    out: Out = None,
    *,
    sources: Sources,
) -> None:
    """A policy's numbers by gradient, judged on sessions held out; takes some minutes.

    What is tuned, and how, stands in the study's table named tune; without it, the gate.
    """
    began = time.perf_counter()
    use_every_core()
    with _at_work(out, TUNING_FILES) as (directory, report):
        loaded = load_study(study, **sources)
        outcome = tuning.run(loaded, report)
        if directory is not None:
            write_tuning(directory, outcome, time.perf_counter() - began)
    screen = console()
    show_tuning(outcome, screen)
    _tell(screen, time.perf_counter() - began, None, out)


@app.command()
@with_sources
def fit_gate(
    study: StudyFile = None,
    out: Out = None,
    *,
    sources: Sources,
) -> None:
    """A gate that learns which moves lead straight back, judged on sessions held out."""
    began = time.perf_counter()
    with _at_work(out, GATE_FILES) as (directory, report):
        loaded = load_study(study, **sources)
        outcome = learned_gate.fit_gate(loaded, report)
        if directory is not None:
            write_gate(directory, outcome, time.perf_counter() - began)
    screen = console()
    show_gate(outcome, screen)
    _tell(screen, time.perf_counter() - began, None, out)


@app.command()
@with_sources
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
    *,
    sources: Sources,
) -> None:
    """One session turn by turn: what was weighed, chosen and paid, policies side by side."""
    loaded = load_study(study, **sources)
    told = explanation.explain(
        loaded,
        session,
        dataset=dataset,
        retention=retention,
        policies=policy or explanation.POLICIES,
    )
    turns.show(told, console())


@app.command()
def fleet(
    study: StudyFile = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory for the tables; with --derive a TOML file, a new one."),
    ] = None,
    context: Annotated[
        int, typer.Option(help="Tokens of context that joules and seconds are told at.")
    ] = 1024,
    derive: Annotated[
        Path | None,
        typer.Option(help="config.json of a model, to be made rows for `fleet.tables`."),
    ] = None,
    gpu: Annotated[
        list[str] | None, typer.Option(help="GPU type to derive for. Can be repeated.")
    ] = None,
    tensor_parallel: Annotated[
        int | None, typer.Option(help="GPUs of a replica; by default the fewest that hold it.")
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            help=f"Sequences decoded at a time, to derive for; by default {deriving.BATCH}."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of the model derived.")] = None,
) -> None:
    """What a study's deployments cost to run; or, from an architecture, what one would."""
    if derive is not None:
        rows = deriving.derive(
            derive,
            gpu or (),
            tensor_parallel=tensor_parallel,
            batch=deriving.BATCH if batch is None else batch,
            name=name,
        )
        if out is None:
            print(rows, end="")
        else:
            deriving.write_rows(out, rows)
            console().print(f"{out}, for tables under [fleet]", markup=False)
        return
    for option, value in (
        ("--gpu", gpu),
        ("--tensor-parallel", tensor_parallel),
        ("--batch", batch),
        ("--name", name),
    ):
        if value is not None and value != []:
            raise input_error(option, "", "no --derive beside it", "it with --derive only")
    with _at_work(out, FLEET_FILES) as (directory, _):
        listing = fleet_listing(read_config(study), context)
        if directory is not None:
            write_fleet(directory, listing)
    screen = console()
    show_fleet(listing, screen)
    if out is not None:
        screen.print(f"- tables in {out}", markup=False)


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(help="Trace or carbon intensity, in any known format.")],
    format: Format = None,
    tokenizer: Tokenizer = None,
    strict: Strict = False,
    basis: Annotated[
        Basis, typer.Option(help="Of intensity that is told in both ways.")
    ] = Basis.lifecycle,
) -> None:
    """What a file of conversations, or of carbon intensity, holds, and what is wrong in it."""
    if str(file) == TYPICAL_DAY or (format is None and is_intensity(file)):
        show_intensity_inspection(inspect_intensity(file, basis=basis.value), console())
        return
    try:
        told = inspect_trace(file, format=format, tokenizer=tokenizer, strict=strict)
    except UnknownFormatError as error:
        raise InputError(f"{error}; or intensity of {FORMATS}") from error
    show_trace_inspection(told, console())


@app.command()
def report(
    directory: Annotated[Path, typer.Argument(help="What a command's --out left.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write; by default into that directory.")
    ] = None,
) -> None:
    """A result as one page of HTML, and its figures as SVG for print."""
    written = write_report(directory, out)
    console().print(f"{written.page}, and {len(written.figures)} figures beside it", markup=False)


def _interrupt(number: int, _: object) -> None:
    """Leaves at once: an exception inside a compiled call's callbacks would be lost, or fatal."""
    discard_unfinished()
    os._exit(SIGNALLED + number)


def main() -> None:
    """Runs the command line; bad input is one line on stderr and status 2."""
    reuse_compilations()
    before = {
        number: signal.signal(number, _interrupt) for number in (signal.SIGINT, signal.SIGTERM)
    }
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
        for number, handler in before.items():
            signal.signal(number, handler)
    sys.exit(status)


def _complain(message: str) -> int:
    print(f"jaxroute: {one_line(message)}", file=sys.stderr, flush=True)
    if cluster.several():
        os._exit(BAD_INPUT)  # the others may be gone: nothing is to be said to them
    return BAD_INPUT


if __name__ == "__main__":
    main()
