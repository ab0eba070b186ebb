"""What every command of the command line is told in the same way."""

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

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
Out = Annotated[
    Path | None,
    typer.Option(help="Directory for the tables and run.json; an earlier result is replaced."),
]
Seed = Annotated[int | None, typer.Option(min=0, max=2**32 - 1, help="Of every random draw.")]
Sources = dict[str, Any]
"""What is read in place of a study's own, as `load_study` takes it."""


def _sources(trace: Trace = None, carbon: Carbon = None, seed: Seed = None) -> Sources:
    return {"traces": trace or (), "carbon": carbon, "seed": seed}


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
