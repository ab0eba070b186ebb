"""The bytes of a file, unzipped if it is gzipped, a little at a time."""

import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from jaxroute.load.messages import input_error

CHUNK = 2**20
"""Bytes that are read, and at most unpacked, at a time."""

ROOM = 2**28
"""Bytes that any file may unpack to."""

RATIO = 100
"""Times its size that a file may unpack to beyond that: traces come to 20, a gzip bomb to 1,000."""


def is_packed(file: Path) -> bool:
    """Whether a file begins as gzip does."""
    with file.open("rb") as stream:
        return stream.read(2) == b"\x1f\x8b"


def _ignored() -> None: ...


def chunks(file: Path, broken: Callable[[], object] = _ignored) -> Iterator[bytes]:
    """The contents of a file in pieces; a gzipped file that breaks off ends where it does.

    Args:
      file: it.
      broken: called at the end of a gzipped file that breaks off.

    Raises:
      InputError: of a gzipped file, once it unpacks to more than `ROOM` and `RATIO` times its size.
      OSError, zlib.error: if it cannot be read.
    """
    packed, size, unpacked, whole = is_packed(file), file.stat().st_size, 0, True
    with file.open("rb") as stream:
        unzip = zlib.decompressobj(wbits=31)
        while chunk := stream.read(CHUNK):
            if not packed:
                yield chunk
                continue
            while chunk:
                piece = unzip.decompress(chunk, CHUNK)
                unpacked += len(piece)
                if unpacked > max(ROOM, RATIO * size):
                    found = f"{size:,} bytes of gzip that unpack to more than {unpacked:,}"
                    expected = f"at most {RATIO} times as many, or {ROOM:,}"
                    raise input_error(file, "", found, expected, "unpack it if it is to be trusted")
                yield piece
                chunk, whole = unzip.unconsumed_tail, unzip.eof
                if whole:  # another member may follow
                    chunk = unzip.unused_data.lstrip(b"\0")
                    unzip = zlib.decompressobj(wbits=31)
    if not whole:
        broken()


def refuse_bomb(file: Path) -> None:
    """Raises the `InputError` of `chunks` before a reader unpacks all of a file at once."""
    if is_packed(file) and file.stat().st_size * 1_032 > ROOM:  # deflate's highest ratio
        for _ in chunks(file):
            pass
