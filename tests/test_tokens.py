"""Counting tokens: by real tokenizers, offline, and what is said when one is not there."""

import base64
import hashlib
import sys

import pytest
import tiktoken
import tiktoken.load
import tokenizers

from jaxroute.errors import InputError
from jaxroute.load import tokens
from jaxroute.load.tokens import by_encoding, counter

WORDS = r"\w+|[^\w\s]+|\s+(?!\S)|\s+"
ADDRESS = "https://vocabulary.invalid/tiny.tiktoken"
RANKS = {bytes([byte]): byte for byte in range(256)} | {b"th": 256, b"the": 257, b"ca": 258}
VOCABULARY = b"".join(base64.b64encode(key) + b" %d\n" % rank for key, rank in RANKS.items())
SPECIAL = {"<|end|>": 259}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An encoding `tiny` that tiktoken knows, and where its vocabulary would be in the cache."""

    def tiny():
        digest = hashlib.sha256(VOCABULARY).hexdigest()
        ranks = tiktoken.load.load_tiktoken_bpe(ADDRESS, digest)
        return {
            "name": "tiny",
            "pat_str": WORDS,
            "mergeable_ranks": ranks,
            "special_tokens": SPECIAL,
        }

    known = tiktoken.list_encoding_names()
    monkeypatch.setattr(
        tiktoken.registry,
        "ENCODING_CONSTRUCTORS",
        dict.fromkeys(known, tiny) | {"tiny": tiny},
    )
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    monkeypatch.setattr(tiktoken.load, "read_file", lambda address: pytest.fail("it fetched"))
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    return tmp_path / hashlib.sha1(ADDRESS.encode()).hexdigest()


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A tokenizer.json, one that truncates and pads."""
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = byte_level(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=262,
        special_tokens=["<|end|>"],
        initial_alphabet=byte_level.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(["the the the cat the cat"], trainer)
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=50)
    path = tmp_path_factory.mktemp("hf") / "tokenizer.json"
    tokenizer.save(str(path))
    return str(path)


def fault(tokenizer):
    with pytest.raises(InputError) as caught:
        counter(tokenizer)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    return text


def test_without_a_tokenizer_four_bytes_are_a_token_and_a_warning_says_so():
    count, note = counter(None)
    assert count(["", "a", "abcd", "abcde", "日本", "\ud800"]) == [0, 1, 1, 2, 2, 1]
    assert note.startswith("warning: ") and "4 bytes" in note


def test_tiktoken_counts_from_its_cache(cache):
    cache.write_bytes(VOCABULARY)
    count, note = counter("tiny")
    assert note == "tokens counted by tiny of tiktoken"
    assert count(["the cat", "", "thx", "é"]) == [1 + 1 + 2, 0, 2, 2]
    assert count(["<|end|>"]) == [len("<|end|>")]  # as ordinary text, and no error
    assert count(["a\ud800"]) == [1 + 3]  # half a pair is U+FFFD
    assert count([]) == []


@pytest.mark.parametrize("held", [None, b"", VOCABULARY[:-5]])
def test_what_is_not_whole_in_the_cache_is_neither_fetched_nor_mended(cache, held):
    if held is not None:
        cache.write_bytes(held)
    text = fault("tiny")
    assert text.startswith("tokenizer tiny: ") and str(cache.parent) in text
    assert """python -c "import tiktoken; tiktoken.get_encoding('tiny')\"""" in text
    assert [each.read_bytes() for each in cache.parent.iterdir()] == [held] * (held is not None)
    assert tiktoken.load.read_file_cached is not tokens._cached


@pytest.mark.parametrize(
    ("variables", "place"),
    [
        ({"TIKTOKEN_CACHE_DIR": "/a", "DATA_GYM_CACHE_DIR": "/b"}, "/a"),
        ({"DATA_GYM_CACHE_DIR": "/b"}, "/b"),
        ({"TIKTOKEN_CACHE_DIR": ""}, "switched off"),
        ({}, "/t/data-gym-cache"),
    ],
)
@pytest.mark.parametrize("name", ["cl100k_base", "gpt2"])
def test_encodings_are_looked_up_where_tiktoken_keeps_them(monkeypatch, variables, place, name):
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    monkeypatch.setattr(tiktoken.load, "read_file", lambda address: pytest.fail("it fetched"))
    monkeypatch.setattr("tempfile.tempdir", "/t")
    for variable in ("TIKTOKEN_CACHE_DIR", "DATA_GYM_CACHE_DIR"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, value)
    assert f"({place})" in fault(name)


def test_a_tokenizer_json_counts_whole_texts_without_padding(trained):
    count, note = counter(trained)
    assert note == f"tokens counted by {trained}"
    plain = tokenizers.Tokenizer.from_file(trained)
    plain.no_truncation()
    plain.no_padding()
    assert count(["the cat the cat", "", "é"]) == [len(plain.encode("the cat the cat").ids), 0, 2]
    assert count(["the cat the cat"])[0] > 2  # not truncated
    assert count(["<|end|>", "a\ud800"]) == [len("<|end|>"), 1 + 3]


def test_a_text_is_counted_in_pieces_that_tokenizers_bear():
    encoding = tiktoken.Encoding(
        "spaces", pat_str=WORDS, mergeable_ranks=RANKS, special_tokens=SPECIAL
    )
    count = by_encoding(encoding)
    long = " " * 1_000_000  # tiktoken overflows its stack if it gets it at once
    assert count([long, "the", "the" * 50_000]) == [1_000_000, 1, 50_000 + 2]


@pytest.mark.parametrize("content", ["", "{}", "[[", '{"version": "1.0", "model": null}', "\xff"])
def test_a_file_that_is_no_tokenizer_is_an_error(tmp_path, content):
    path = tmp_path / "t.json"
    path.write_bytes(content.encode("latin-1"))
    assert fault(str(path)).startswith(f"{path}: ")


def test_a_tokenizer_that_cannot_take_every_text_is_an_error(tmp_path):
    path = tmp_path / "t.json"
    model = tokenizers.models.WordLevel({"a": 0}, unk_token="[UNK]")
    tokenizers.Tokenizer(model).save(str(path))
    count, _ = counter(str(path))
    assert count(["a"]) == [1]
    with pytest.raises(InputError, match="expected a tokenizer of any text"):
        count(["b"])


def test_names_that_are_none_are_errors(tmp_path):
    assert "did you mean 'cl100k_base'?" in fault("cl100k")
    assert "no file" in fault(str(tmp_path / "none.json"))
    assert "a directory" in fault(str(tmp_path))


@pytest.mark.parametrize("library", ["tiktoken", "tokenizers"])
def test_a_missing_library_names_its_extra(monkeypatch, trained, library):
    monkeypatch.setitem(sys.modules, library, None)
    text = fault(trained if library == "tokenizers" else "cl100k_base")
    assert text.endswith("pip install 'jaxroute[tokenizers]'") and library in text
