"""What every command of the command line is told in the same way."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from jaxroute.load.traces import FORMATS

StudyFile = Annotated[
    Path | None, typer.Argument(help="Study file (TOML). Without it, the bundled default.")
]
Trace = Annotated[
    list[Path] | None,
    typer.Option(
        help="Trace in place of the study's, in any format that is known (docs/formats.md). Can be "
        "repeated."
    ),
]
Format = Annotated[
    str | None,
    typer.Option(help=f"Of the traces: {', '.join(FORMATS)}. By default their contents tell."),
]
Tokenizer = Annotated[
    str | None,
    typer.Option(
        help="Counts the tokens of text: an encoding of tiktoken, or the path of a tokenizer.json."
    ),
]
Strict = Annotated[
    bool, typer.Option("--strict", help="What would be mended or left out of a trace is an error.")
]
Carbon = Annotated[
    list[Path] | None,
    typer.Option(
        help="Carbon intensity in place of the study's: a file in any format that is known, or a "
        "directory. Can be repeated, as for one file a region."
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(help="Directory for the tables and run.json; an earlier result is replaced."),
]
Seed = Annotated[int | None, typer.Option(min=0, max=2**32 - 1, help="Of every random draw.")]
ArrivalRate = Annotated[
    float | None,
    typer.Option(
        help="Sessions an hour that the trace stands for: with it the study is under load."
    ),
]
Replicas = Annotated[
    str | None,
    typer.Option(help="Under load, of each deployment; auto: as many as fair_carbon needs."),
]
PeakUtilisation = Annotated[
    float | None,
    typer.Option(help="What --replicas auto sizes for, below 1.", show_default=False),
]
Sources = dict[str, Any]
"""What is read in place of a study's own, as `load_study` takes it."""


def _sources(
    trace: Trace = None,
    format: Format = None,
    tokenizer: Tokenizer = None,
    strict: Strict = False,
    carbon: Carbon = None,
    seed: Seed = None,
    arrival_rate: ArrivalRate = None,
    replicas: Replicas = None,
    peak_utilisation: PeakUtilisation = None,
) -> Sources:
    reading = {"format": format, "tokenizer": tokenizer, "strict": strict}
    load = {
        "arrival_rate": arrival_rate,
        "replicas": replicas if replicas is None else _number_or_rule(replicas),
        "peak_utilisation": peak_utilisation,
    }
    given = {key: value for key, value in load.items() if value is not None}
    places = {"traces": trace or (), "carbon": carbon or None}
    return {**places, "seed": seed, "load": given, **reading}


def _number_or_rule(replicas: str) -> float | str:
    try:
        return float(replicas)
    except ValueError:
        return replicas


def with_sources(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the options of `_sources`, which it gets together as `sources`."""
    own = inspect.signature(command).parameters
    shared = inspect.signature(_sources).parameters
    kept = [option for name, option in own.items() if name != "sources"]

    @functools.wraps(command)
    def with_options(**given: Any) -> None:
        sources = _sources(**{name: given.pop(name) for name in shared})
        command(**given, sources=sources)

    with_options.__signature__ = inspect.Signature([*kept, *shared.values()])  # type: ignore[attr-defined]
    return with_options
