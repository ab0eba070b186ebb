"""Whatever a file that is damaged, or of another kind, makes its reader raise, as one line."""

import contextlib
import csv
import zlib
from collections.abc import Iterator

import pyarrow as pa

from jaxroute.errors import InputError
from jaxroute.load.messages import input_error

__all__ = ["UNREADABLE", "readable"]

UNREADABLE = (
    pa.ArrowException,
    OSError,
    EOFError,
    OverflowError,
    ValueError,
    csv.Error,
    zlib.error,
)
"""What the readers of CSV, JSON, Parquet and gzip raise."""


@contextlib.contextmanager
def readable(name: object, expected: str) -> Iterator[None]:
    """Inside, what cannot be read is an `InputError`.

    Args:
      name: the file as the user named it.
      expected: what it should have been.
    """
    try:
        yield
    except InputError:
        raise
    except UNREADABLE as error:
        found = str(error)[:200] or type(error).__name__
        raise input_error(name, "", found, expected) from error
