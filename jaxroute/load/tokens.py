"""How many tokens texts have: by tiktoken, by a Hugging Face tokenizer, or by a rule of thumb.

A tokenizer is only read from this machine: nothing is ever fetched.
"""

import contextlib
import hashlib
import importlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from jaxroute.load.files import resolve
from jaxroute.load.messages import input_error, known_names

__all__ = ["BYTES_PER_TOKEN", "LONGEST", "Count", "by_encoding", "by_tokenizer", "counter"]

BYTES_PER_TOKEN = 4
"""Of UTF-8, "on average, in practice" (README of tiktoken, github.com/openai/tiktoken)."""

LONGEST = 100_000
"""Characters that are tokenised at once. A longer text is cut, each cut adding a token at most:
tiktoken overflows its stack at a million spaces, and a merge of one long word takes its time."""

Count = Callable[[list[str]], list[int]]
"""Tokens of each text; text that looks like a special token is counted as ordinary text."""


def counter(tokenizer: str | None) -> tuple[Count, str]:
    """What counts tokens, and in words how.

    Args:
      tokenizer: an encoding of tiktoken that is in its cache, such as `cl100k_base`; or the path of
        a Hugging Face `tokenizer.json`; None for ceil(bytes of UTF-8 / `BYTES_PER_TOKEN`).

    Raises:
      InputError: if there is no such encoding or file, it is not on this machine, or the library
        that reads it is not installed.

    >>> count, note = counter(None)
    >>> count(["", "four", "seven"])
    [0, 1, 2]
    """
    if tokenizer is None:
        note = (
            f"warning: tokens are estimated, one for {BYTES_PER_TOKEN} bytes of text, which is far "
            "off in languages other than English and in code; name a tokenizer to count them"
        )
        return _by_bytes, note
    if os.path.exists(tokenizer) or tokenizer.endswith(".json") or os.sep in tokenizer:
        return by_tokenizer(_tokenizer(tokenizer), tokenizer), f"tokens counted by {tokenizer}"
    return by_encoding(_encoding(tokenizer)), f"tokens counted by {tokenizer} of tiktoken"


def by_encoding(encoding: Any) -> Count:
    """Counts by a `tiktoken.Encoding`."""
    return _in_pieces(encoding.encode_ordinary_batch)


def by_tokenizer(tokenizer: Any, name: str) -> Count:
    """Counts by a `tokenizers.Tokenizer`, which is changed: it truncates and pads no longer.

    Args:
      tokenizer: it.
      name: to be named in errors.
    """
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True

    def encode(texts: list[str]) -> list[Any]:
        try:
            return tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        except Exception as error:  # the library raises no narrower one
            raise input_error(name, "", str(error)[:200], "a tokenizer of any text") from error

    return _in_pieces(encode)


def _by_bytes(texts: list[str]) -> list[int]:
    return [-(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN) for text in texts]


def _in_pieces(encode: Callable[[list[str]], Sequence[Any]]) -> Count:
    def count(texts: list[str]) -> list[int]:
        whole = [_valid(text) for text in texts]
        pieces = [
            (at, text[begin : begin + LONGEST])
            for at, text in enumerate(whole)
            for begin in range(0, len(text), LONGEST)
        ]
        counts = [0] * len(texts)
        coded = encode([piece for _, piece in pieces])
        for (at, _), tokens in zip(pieces, coded, strict=True):
            counts[at] += len(tokens)
        return counts

    return count


def _valid(text: str) -> str:
    """`text` with what no UTF-8 has, halves of surrogate pairs, replaced."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _library(name: str, tokenizer: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        mend = "pip install 'jaxroute[tokenizers]'"
        raise input_error(f"tokenizer {tokenizer}", "", f"no module {name}", "it", mend) from error


def _tokenizer(path: str) -> Any:
    file, library = resolve(path), _library("tokenizers", path)
    try:
        return library.Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises no narrower one
        expected = "a tokenizer.json of Hugging Face"
        raise input_error(path, "", str(error)[:200], expected) from error


class _NotCachedError(Exception):
    """That a vocabulary is not in this folder."""


def _encoding(name: str) -> Any:
    tiktoken = _library("tiktoken", name)
    known = tiktoken.list_encoding_names()
    where = f"tokenizer {name}"
    if name not in known:
        expected = "a path of a tokenizer.json or an encoding of tiktoken"
        raise input_error(where, "", "no such file", expected, known_names(name, known))
    try:
        with _cached_only():
            return tiktoken.get_encoding(name)
    except _NotCachedError as error:
        fetch = f"""python -c "import tiktoken; tiktoken.get_encoding('{name}')\""""
        found = f"no whole vocabulary in tiktoken's cache ({error})"
        mend = f"fetch it once with `{fetch}`, or give the path of a tokenizer.json"
        raise input_error(where, "", found, "one, as nothing is fetched here", mend) from error
    except (OSError, ValueError) as error:
        raise input_error(where, "", str(error)[:200], "a readable vocabulary") from error


@contextlib.contextmanager
def _cached_only() -> Iterator[None]:
    """Inside, tiktoken reads what is in its cache, and neither fetches the rest nor writes."""
    load = importlib.import_module("tiktoken.load")
    usual = load.read_file_cached
    load.read_file_cached = _cached  # type: ignore[attr-defined]
    try:
        yield
    finally:
        load.read_file_cached = usual  # type: ignore[attr-defined]


def _cached(address: str, expected_hash: str | None = None) -> bytes:
    """What tiktoken keeps of an address; where it does so is said in its `load.py`."""
    default = os.path.join(tempfile.gettempdir(), "data-gym-cache")
    folder = os.environ.get("DATA_GYM_CACHE_DIR", default)
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", folder)
    file = Path(folder, hashlib.sha1(address.encode()).hexdigest())
    if not folder or not file.is_file():
        raise _NotCachedError(folder or "switched off")
    data = file.read_bytes()
    if expected_hash and hashlib.sha256(data).hexdigest() != expected_hash:
        raise _NotCachedError(folder)
    return data
