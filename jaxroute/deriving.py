"""A model's rows for the fleet's tables, derived from its architecture, as a TOML text."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import tomli_w

from jaxroute import roofline
from jaxroute.load import fleet_tables
from jaxroute.load.architecture import read_architecture
from jaxroute.load.messages import input_error, nearest
from jaxroute.load.own_rows import OwnRows
from jaxroute.load.toml import validate
from jaxroute.roofline import Gpu

__all__ = ["BATCH", "batches", "derive", "gpu_named", "gpu_types", "write_rows"]

BATCH = 32
"""Sequences decoded together, as in the bundled profiles."""

HEADER = """\
# Rows for the fleet of a study: [fleet] tables = "THIS FILE", and the names in its lists.
# A [[model]] also takes ability = (jaxroute.quality.ability_of tells it from an accuracy); without
# it, every trace has to have a column quality_<model> of every model.
"""


def gpu_types() -> dict[str, Gpu]:
    """The GPU types with coefficients of the roofline, by name."""
    coefficients = fleet_tables.read_bundled("roofline_coefficients.csv")
    rows = fleet_tables.bundled().gpus.merge(coefficients, on="gpu").to_dict("records")
    return {row["gpu"]: {str(key): value for key, value in row.items()} for row in rows}


def gpu_named(name: str) -> str:
    """The GPU type that a name or its beginning means, whatever its case.

    Raises:
      InputError: if it is the beginning of none, or of several.

    >>> gpu_named("h100")
    'H100-80GB-SXM'
    """
    known = list(gpu_types())
    found = [each for each in known if each.lower().startswith(name.lower())]
    if len(found) != 1:
        near = nearest(name.lower(), [each.lower() for each in known])
        listed = f"known: {', '.join(known)}"
        mend = f"did you mean {next(k for k in known if k.lower() == near)!r}? " if near else ""
        told = f"{name!r}, of which there are {', '.join(found)}" if found and name else repr(name)
        expected = "the beginning of one GPU type with roofline coefficients"
        raise input_error("--gpu", "", told, expected, mend + listed)
    return found[0]


def batches(most: int) -> list[int]:
    """Batches at which decoding is told, for a replica that serves at most so many sequences.

    >>> batches(32), batches(20), batches(4)
    ([1, 8, 16, 32], [1, 8, 16, 20], [1, 4])
    """
    powers = [2**k for k in range(3, most.bit_length())]
    return sorted({1, *powers, most})


def derive(
    path: str | Path,
    gpus: Sequence[str],
    *,
    tensor_parallel: int | None = None,
    batch: int = BATCH,
    name: str | None = None,
) -> str:
    """Tables of a model, and of its costs on each GPU type, as `fleet.tables` reads them.

    `[[model]]`, a `[[profile]]` for each GPU type, and `[[decode]]` at each of `batches`.

    By the roofline of `jaxroute.roofline`, in bf16. It reproduces the bundled rows made by it to
    1e-4 and lies within 13 % of those whose decode was measured; on other models it is good to
    about 30 %. Mixtures of experts: within 26 % of what ML.ENERGY v3 measured of one at batches up
    to 32, at 256 half of it.

    Args:
      path: of a `config.json` (`jaxroute.load.architecture`).
      gpus: names of GPU types, or their beginnings.
      tensor_parallel: GPUs of a replica; by default the least that serve
        (`jaxroute.roofline.least_tensor_parallel`).
      batch: sequences served together.
      name: of the model, in place of the file's.

    Returns:
      TOML.

    Raises:
      InputError: naming the file or the option, what was found and what was expected.
    """
    for option, value, most in (
        ("--tensor-parallel", tensor_parallel, 64),
        ("--batch", batch, 4096),
    ):
        if value is not None and not 1 <= value <= most:
            raise input_error(option, "", str(value), f"a whole number from 1 to {most:,}")
    if not gpus:
        raise input_error("--gpu", "", "nothing", f"at least one of {', '.join(gpu_types())}")
    model, architecture, notes = read_architecture(path, name)
    if model in fleet_tables.bundled().names("models"):
        found = f"{model!r}, the name of a bundled model"
        raise input_error(path, "", found, "a name of its own", "give it by --name")
    source = f"{roofline.PROVENANCE}: the roofline of jaxroute, architecture from {Path(path).name}"
    types = gpu_types()
    row: dict[str, Any] = {
        "model": model,
        "params_total": int(architecture.params_total),
        "params_active": int(architecture.params_active),
        **{key: getattr(architecture, key) for key in ("layers", "hidden", "heads", "kv_heads")},
        "head_dim": architecture.head_dim,
        "dtype_bytes": roofline.DTYPE_BYTES,
        "kv_bytes_per_token": architecture.kv_bytes_per_token,
        "max_context": architecture.max_context,
        "source": f"architecture from {Path(path).name}",
    }
    if architecture.experts:
        row |= {key: getattr(architecture, key) for key in ("experts", "experts_per_token")}
    row |= {"notes": notes} if notes else {}
    profiles: list[dict[str, Any]] = []
    decodes: list[dict[str, Any]] = []
    for gpu in dict.fromkeys(map(gpu_named, gpus)):
        numbers = roofline.profile(
            architecture, types[gpu], batch=batch, tensor_parallel=tensor_parallel
        )
        told = roofline.provenance(architecture, batch)
        sides = {"decode_provenance": told, "prefill_provenance": told}
        pair = {"model": model, "gpu": gpu}
        profiles.append(pair | numbers | sides | {"source": source})
        count = int(numbers["tensor_parallel"])
        for each in batches(batch):
            costs = roofline.decode(architecture, types[gpu], count, each)
            told = roofline.provenance(architecture, each)
            decodes.append(pair | costs | {"provenance": told, "source": source})
    rows = {"model": [row], "profile": profiles, "decode": decodes}
    validate(rows, OwnRows, str(path))
    return f"{HEADER}\n{tomli_w.dumps(rows)}"


def write_rows(path: str | Path, text: str) -> None:
    """Writes a text to a file that is not there yet, whole or not at all.

    Raises:
      InputError: if it is there, or cannot be written.
    """
    file = Path(path)
    try:
        with file.open("x", encoding="utf-8") as stream:
            stream.write(text)
    except FileExistsError as error:
        found, mend = "a file that is there", "give another --out, or remove it"
        raise input_error(path, "", found, "a new one", mend) from error
    except OSError as error:
        reason = error.strerror or str(error)
        raise input_error(path, "", reason, "a file that can be written") from error
