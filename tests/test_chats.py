"""Readers of conversations as text: each shape, each irregularity, and nothing but clean errors."""

import gzip
import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxroute.errors import InputError
from jaxroute.load.formats import arena, chats, dialogue, finetuning, sharegpt
from jaxroute.load.repairs import Repairs
from jaxroute.load.traces import read_trace

FORMATS = [arena, chats, finetuning, sharegpt]


def text(tokens):
    return "abcd" * tokens


def said(*messages):
    """Messages of `u`ser, `a`ssistant, `s`ystem and `t`ool with so many tokens each."""
    roles = {"u": "user", "a": "assistant", "s": "system", "t": "tool"}
    return [
        {"role": roles[each[0]], "content": text(int(each[1:]))} if isinstance(each, str) else each
        for each in messages
    ]


@pytest.fixture
def read(tmp_path):
    """Reads what is written as a format, and returns the frame, notes and repairs."""

    def call(module, content, strict=False):
        path = tmp_path / "f"
        if not isinstance(content, bytes | str):
            content = json.dumps(content)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        repairs = Repairs("f", strict=strict)
        frame, notes = module.read(path, repairs, None)
        assert notes[0].startswith("warning: tokens are estimated")
        return frame, notes[1:], dict(repairs.counts)

    return call


def turns(frame):
    """Input and output tokens of each session's turns."""
    columns = ["input_tokens", "output_tokens"]
    return {
        name: list(map(tuple, each[columns].to_numpy().tolist()))
        for name, each in frame.groupby("session_id", sort=False)
    }


SHAREGPT = {
    "id": "x1",
    "conversations": [
        {"from": "system", "value": text(1)},
        {"from": "human", "value": text(2)},
        {"from": "gpt", "value": text(3)},
        {"from": "human", "value": text(4)},
        {"from": "bard", "value": text(5)},
    ],
}
WILDCHAT = {
    "conversation_hash": "h",
    "model": "m",
    "timestamp": "2023-04-09T00:03:00",
    "conversation": [
        {"role": "user", "content": text(3), "timestamp": None, "turn_identifier": 7},
        {"role": "assistant", "content": text(3), "timestamp": "2023-04-09T00:02:00+00:00"},
        {"role": "user", "content": text(4), "timestamp": None, "turn_identifier": 7},
        {"role": "assistant", "content": text(5), "timestamp": "2023-04-09T00:03:00+00:00"},
    ],
}
LMSYS = {"conversation_id": "l", "model": "m", "conversation": said("u3", "a3", "u4", "a5")}
ARENA = {
    "question_id": "q",
    "conversation_a": said("u3", "a3", "u4", "a5"),
    "conversation_b": said("u3", "a1"),
    "tstamp": 1682351591.0,
}
TUNING = {"messages": said("s1", "u2", "a3", "u4", "a5")}
TWO = [(3, 3), (4, 5)]


@pytest.mark.parametrize(
    ("module", "record", "expected", "note"),
    [
        (sharegpt, SHAREGPT, {"x1": TWO}, "no times of the turns"),
        (chats, WILDCHAT, {"h/7": TWO}, "2 turns timed at their answer"),
        (chats, LMSYS, {"l": TWO}, "no times of the turns"),
        (arena, ARENA, {"q/a": TWO, "q/b": [(3, 1)]}, "only a date of each conversation"),
        (finetuning, TUNING, {"record 1": TWO}, "1 conversations without an id"),
    ],
)
def test_each_shape_reads_without_a_repair(read, module, record, expected, note):
    assert [each for each in FORMATS if any(keys <= record.keys() for keys in each.KEYS)] == [
        module
    ]
    frame, notes, _ = read(module, [record], strict=True)
    assert turns(frame) == expected
    assert any(note in each for each in notes)


def test_the_frame_is_that_of_a_trace(read, tmp_path):
    frame, _, _ = read(sharegpt, [SHAREGPT, SHAREGPT | {"id": 2}])
    path = tmp_path / "t.csv"
    frame.to_csv(path, index=False)
    pd.testing.assert_frame_equal(frame, read_trace(path).frame)
    dated, _, _ = read(chats, [WILDCHAT])
    dated.to_csv(path, index=False)
    pd.testing.assert_frame_equal(dated, read_trace(path).frame)


@pytest.mark.parametrize(
    "form", ["lines", "indented", "bom", "gzip", "crlf", "in a row", "parquet"]
)
def test_every_form_of_a_file_reads_alike(read, tmp_path, form):
    records = [WILDCHAT, WILDCHAT | {"conversation_hash": "g"}]
    want, _, _ = read(chats, records)
    lines = "".join(json.dumps(each) + "\n" for each in records)
    path = tmp_path / "p"
    pa.parquet.write_table(pa.Table.from_pylist(records), path)
    content = {
        "lines": lines,
        "indented": json.dumps(records, indent=1),
        "bom": "\ufeff" + lines,
        "gzip": gzip.compress(lines.encode()),
        "crlf": lines.replace("\n", "\r\n"),
        "in a row": json.dumps(WILDCHAT, indent=1) + json.dumps(records[1]),
        "parquet": path.read_bytes(),
    }[form]
    frame, _, repairs = read(chats, content)
    pd.testing.assert_frame_equal(frame, want)
    assert not repairs


IRREGULAR = [
    ("a1 u2 a3", [(3, 3)], "sessions that start with the assistant"),
    ("s1 a1 a1 u2 a3", [(5, 3)], "sessions that start with the assistant"),
    ("u1 u2 a3", [(3, 3)], "messages of the user in a row taken as one question"),
    ("u1 a2 a3", [(1, 5)], "messages of the assistant in a row taken as one answer"),
    ("u1 a2 u3", [(1, 2)], "questions at the end without an answer left out"),
    ("u1 a2 t3", [(1, 2)], "questions at the end without an answer left out"),
    ("u0 a2", [(0, 2)], "questions of 0 tokens kept"),
    ("u1 a0", [(1, 0)], "answers of 0 tokens kept"),
    ("s1 u2 a3 t4 t5 a6 s1 u1 a1", [(3, 3), (9, 6), (2, 1)], None),
]


@pytest.mark.parametrize(("messages", "expected", "repair"), IRREGULAR)
def test_turns_of_irregular_conversations(read, messages, expected, repair):
    record = LMSYS | {"conversation": said(*messages.split())}
    frame, _, repairs = read(chats, [LMSYS | {"conversation_id": "z"}, record])
    assert turns(frame) == {"z": TWO, "l": expected}
    assert [what.startswith(repair) for what in repairs] == [True] if repair else not repairs
    if repair:
        with pytest.raises(InputError, match=r"^f: record 2: .*--strict$"):
            read(chats, [LMSYS | {"conversation_id": "z"}, record], strict=True)


CALL = {"id": "c", "type": "function", "function": {"name": "abcd", "arguments": text(2)}}
PARTS = [{"type": "text", "text": text(2)}, text(1)]
IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}


@pytest.mark.parametrize(
    ("message", "tokens", "repair"),
    [
        ({"role": "user", "content": PARTS}, (3, 1), None),
        ({"role": "user", "content": [*PARTS, IMAGE]}, (3, 1), "parts of messages that are no"),
        ({"role": "user", "content": {"text": text(2)}}, (2, 1), None),
        ({"role": "user", "content": 12345678}, (2, 1), None),
        ({"role": " Human ", "value": text(2)}, (2, 1), None),
        ({"role": "developer", "content": text(2)}, (3, 1), None),
        ({"role": "moderator", "content": text(2)}, (2, 1), "messages of an unknown role"),
        ({"content": text(2)}, (2, 1), "messages of an unknown role"),
        ({"role": "user", "content": None}, (0, 1), "messages without text taken as empty"),
    ],
)
def test_contents_of_messages(read, message, tokens, repair):
    before = said("u1") if message.get("role") == "developer" else []
    frame, _, repairs = read(finetuning, [{"messages": [*before, message, *said("a1")]}])
    assert turns(frame) == {"record 1": [tokens]}
    kinds = [what for what in repairs if not what.startswith("questions of 0")]
    assert [what.startswith(repair) for what in kinds] == [True] if repair else not kinds


@pytest.mark.parametrize(
    "call",
    [
        {"tool_calls": [CALL]},
        {"function_call": CALL["function"]},
        {"tool_calls": [{"function": {"name": "abcd", "arguments": {"a": 1}}}]},  # as JSON
    ],
)
def test_calls_of_tools_are_output(read, call):
    messages = [*said("u1"), {"role": "assistant", "content": None} | call, *said("t4", "a5")]
    frame, _, _ = read(finetuning, [{"messages": messages}], strict=True)
    assert turns(frame) == {"record 1": [(1, 3), (4, 5)]}


@pytest.mark.parametrize(
    ("odd", "repair"),
    [
        ({"conversation_id": "o", "conversation": []}, "empty conversations left out"),
        ({"conversation_id": "o", "conversation": said("u1")}, "conversations without a question"),
        ({"conversation_id": "o", "conversation": said("a1")}, "conversations without a question"),
        ({"conversation_id": "o", "conversation": None}, "records without a list of conversation"),
        ({"conversation_id": "o"}, "records without a list of conversation"),
        (["o"], "records that are no objects left out"),
        (LMSYS, "conversations with an id that is there twice left out"),
        (LMSYS | {"conversation": said("u9", "a9")}, "conversations with an id that is there"),
    ],
)
def test_records_that_are_left_out(read, odd, repair):
    frame, _, repairs = read(chats, [LMSYS, odd])
    assert turns(frame) == {"l": TWO}
    assert [what.startswith(repair) for what in repairs] == [True]
    with pytest.raises(InputError, match="record 2: "):
        read(chats, [LMSYS, odd], strict=True)


def test_the_fuller_of_two_takes_the_place_of_the_first(read):
    poor = LMSYS | {"conversation": said("u1", "a1")}
    frame, _, _ = read(chats, [poor, LMSYS | {"conversation_id": "m"}, LMSYS])
    assert list(turns(frame).items()) == [("l", TWO), ("m", TWO)]


def test_ids_that_are_none_give_way_to_the_place(read):
    bad = [LMSYS | {"conversation_id": value} for value in (None, "", {}, True)]
    frame, notes, repairs = read(chats, bad)
    assert list(turns(frame)) == [f"record {number}" for number in (1, 2, 3, 4)]
    assert notes[0].startswith("4 conversations without an id")
    assert list(repairs.values()) == [3]


def test_conversations_of_one_hash_are_several_if_their_identifiers_differ(read):
    other = json.loads(json.dumps(WILDCHAT).replace('"turn_identifier": 7', '"turn_identifier": 8'))
    frame, _, repairs = read(chats, [WILDCHAT, other, WILDCHAT])
    assert list(turns(frame)) == ["h/7", "h/8"]
    assert list(repairs.values()) == [1]


def timed(name, *times):
    """A conversation of one-token messages at these times."""
    roles = ["user", "assistant"] * len(times)
    messages = [
        {"role": role, "content": text(1), "timestamp": each}
        for role, each in zip(roles, times, strict=False)
    ]
    return {"conversation_id": name, "conversation": messages}


@pytest.mark.parametrize(
    "times",
    [
        ["2023-06-01T00:00:00Z", None, "2023-06-01T02:00:09+02:00", None],
        [1685577600, None, 1685577609.0, None],
        ["1685577600000", None, 1685577609_000_000, None],
    ],
)
def test_times_are_read_as_people_write_them(read, times):
    earlier = timed("e", 1685577540, None)
    frame, notes, _ = read(chats, [timed("t", *times), earlier], strict=True)
    assert frame.arrival_s.tolist() == [60, 69, 0]
    starts = [pd.Timestamp(each, tz="UTC") for each in ("2023-06-01", "2023-05-31 23:59:00")]
    assert frame.start_time.tolist() == [starts[0], *starts]
    assert not notes


@pytest.mark.parametrize(
    ("conversations", "arrivals", "repair"),
    [
        ([timed("t", 5, 6, 5, 7)], [5, 5], None),  # relative to the trace, equal
        ([timed("t", 9, None, 5, None)], [9, 9], "times before that of the turn before"),
        ([timed("t", 5, 6, None, 8)], [5, 8], None),  # the answer's
        ([timed("t", 9e10, 6)], [9e10], None),  # in the year 4821
        ([timed("t", None, 6, "soon", 8)], [6, 8], "times that cannot be read left out"),
        ([timed("t", 5, 6), timed("u", 7, 8), timed("v", None, None)], [5, 7], "sessions without"),
        ([timed("t", 5, 6), timed("v", None, None)], None, "turns whose times are not used"),
    ],
)
def test_arrivals(read, conversations, arrivals, repair):
    frame, _, repairs = read(chats, conversations)
    assert "start_time" not in frame and frame.arrival_s.dtype == np.float64
    assert (
        frame.arrival_s.isna().all() if arrivals is None else frame.arrival_s.tolist() == arrivals
    )
    assert [what.startswith(repair) for what in repairs] == [True] if repair else not repairs


def test_a_turn_arrives_with_its_last_message_that_has_a_time(read):
    question = [
        {"role": role, "content": text(1), "timestamp": time_s}
        for role, time_s in [("system", 3), ("user", 5), ("system", None), ("assistant", 9)]
    ]
    frame, notes, _ = read(chats, [LMSYS | {"conversation": question}], strict=True)
    assert frame.arrival_s.tolist() == [5] and not notes


def test_texts_are_counted_some_at_a_time_to_the_same_result(read, monkeypatch):
    records = [LMSYS | {"conversation_id": name} for name in "abc"]
    whole, _, _ = read(chats, records)
    monkeypatch.setattr(dialogue, "_AT_ONCE", 15)
    few, _, _ = read(chats, records)
    pd.testing.assert_frame_equal(few, whole)


def test_a_date_of_each_record_is_a_start_without_arrivals(read):
    records = [LMSYS | {"tstamp": 1685577600.25}, LMSYS | {"conversation_id": "m", "tstamp": 1.7e9}]
    frame, _, _ = read(chats, records, strict=True)
    assert frame.arrival_s.isna().all()
    assert frame.start_time[0] == pd.Timestamp("2023-06-01T00:00:00.25Z")
    frame, _, _ = read(chats, [records[0], LMSYS | {"conversation_id": "m"}])
    assert "start_time" not in frame


def share(name, *messages):
    return {
        "id": name,
        "conversations": [
            {"from": {"u": "human", "a": "gpt"}[each[0]], "value": each[1:]} for each in messages
        ],
    }


LOOSE = "2 pieces that do not fit together"


@pytest.mark.parametrize(
    ("records", "sessions"),
    [
        # Cut before a question; other conversations between; the empty piece is a habit, too.
        (
            [share("c_2", "uC", "aD"), share("d_0", "uC", "aD"), share("c_0", "uA", "aB")],
            {"c": 2, "d_0": 1},
        ),
        ([share("c_0"), share("c_0", "uA", "aB"), share("c_2", "uC", "aD")], {"c": 2}),
        # Cut at an answer, which both pieces have.
        ([share("c_0", "uA", "aB"), share("c_1", "aB", "uC", "aD")], {"c": 2}),
        ([share("c_0", "uA", "aB"), share("c_1", "aB"), share("c_2", "uC", "aD")], {"c": 2}),
        # A piece lacks; the answer is another; numbers only count; the whole is there as well.
        ([share("c_0", "uA", "aB"), share("c_4", "uC", "aD")], {"c_0": 1, "c_4": 1}),
        ([share("c_2", "uA", "aB"), share("c_4", "uC", "aD")], {"c_2": 1, "c_4": 1}),
        ([share("c_0", "uA", "aB"), share("c_1", "aX", "uC", "aD")], {"c_0": 1, "c_1": 1}),
        ([share("c_0", "uA", "aB"), share("c_1", "uC", "aD")], {"c_0": 1, "c_1": 1}),
        ([share("c_0", "uA", "uB"), share("c_2", "aC", "uD", "aE")], {"c_2": 1}),
        ([share("c_0", "uA", "uB"), share("c_2", "uC", "aD")], {"c_2": 1}),
        ([share("c_0", "aA"), share("c_1", "uC", "aD")], {"c_1": 1}),
        (
            [share("c", "uA", "aB"), share("c_0", "uA", "aB"), share("c_2", "uC", "aD")],
            {"c": 1, "c_0": 1, "c_2": 1},
        ),
    ],
)
def test_pieces_are_joined_where_that_is_certain(read, records, sessions):
    frame, notes, repairs = read(sharegpt, records)
    assert frame.groupby("session_id", sort=False).size().to_dict() == sessions
    assert any("pieces joined to 1 conversations" in note for note in notes) == (
        len(sessions) < len(records) and "c" in sessions
    )
    if "joined" in str(notes):
        assert (frame[["input_tokens", "output_tokens"]] == 1).all(axis=None)  # nothing twice
        assert not any("start with the assistant" in what for what in repairs)


def test_pieces_that_stay_apart_are_told(read):
    good = [share("c_0", "uA", "aB"), share("c_2", "uC", "aD")]
    loose = [share("d_0", "uA", "aB"), share("d_3", "uC", "aD")]
    _, notes, _ = read(sharegpt, good + loose)
    assert notes[0] == "2 pieces joined to 1 conversations, as their numbers fit"
    assert notes[1].startswith(LOOSE)


@pytest.mark.parametrize("form", ["array", "lines", "gzip"])
def test_of_a_file_that_breaks_off_what_is_whole_is_read(read, form):
    records = [LMSYS | {"conversation_id": str(number)} for number in range(40)]
    lines = "".join(json.dumps(each) + "\n" for each in records)
    content = {
        "array": json.dumps(records)[:-30].encode(),
        "lines": lines[:-30].encode(),
        "gzip": gzip.compress(lines.encode())[:-15],
    }[form]
    frame, _, repairs = read(chats, content)
    assert 0 < frame.session_id.nunique() < 40
    assert len(repairs) == 1
    with pytest.raises(InputError, match="--strict"):
        read(chats, content, strict=True)


@pytest.mark.parametrize("module", FORMATS)
@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", "no", "[" * 100_000, '{"a": 1}\n', b"PAR1 is not all", b"\x1f\x8b\x00"],
)
def test_files_without_a_conversation_are_errors(read, module, content):
    with pytest.raises(InputError, match=r"^f: "):
        read(module, content)


def test_a_directory_of_parquet_is_read_file_by_file(tmp_path):
    folder = tmp_path / "d"
    folder.mkdir()
    for name, record in [("b", LMSYS), ("a", WILDCHAT), ("c", {"conversation_id": 5})]:
        pa.parquet.write_table(pa.Table.from_pylist([record]), folder / f"{name}.parquet")
    repairs = Repairs("d")
    frame, _ = chats.read(folder, repairs, None)
    assert turns(frame) == {"h/7": TWO, "l": TWO}
    assert repairs.first["records without a list of conversation left out"] == "row 1 of c.parquet"


def test_parquet_that_breaks_off_or_holds_something_else_is_an_error(read, tmp_path):
    path = tmp_path / "p"
    for records in ([WILDCHAT], [{"other": 1}], [{"conversation": 5}], [{"conversation": [5]}]):
        pa.parquet.write_table(pa.Table.from_pylist(records), path)
        content = path.read_bytes()
        with pytest.raises(InputError, match=r"^f: "):
            read(chats, content[:-9] if records == [WILDCHAT] else content)


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=6),
    st.sampled_from(["user", "gpt", "assistant", "2023-06-01", "a_0", "a_2", "\ud800", "1e400"]),
)
MESSAGE_KEYS = ["role", "from", "content", "value", "timestamp", "tool_calls", "text", "function"]
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.sampled_from(MESSAGE_KEYS), inner, max_size=4),
    ),
    max_leaves=4,
)
MESSAGES = st.lists(
    st.one_of(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "assistant", "tool"]), "content": VALUES},
            optional={"timestamp": LEAVES, "tool_calls": VALUES},
        ),
        VALUES,
    ),
    max_size=4,
)
KEYS = [key for module in FORMATS for key in sorted(module.KEYS[0])]
RECORDS = st.lists(
    st.one_of(
        st.tuples(MESSAGES, LEAVES, LEAVES).map(
            lambda parts: dict.fromkeys(KEYS, parts[0]) | {"id": parts[1], "timestamp": parts[2]}
        ),
        VALUES,
    ),
    max_size=3,
)


def survives(module, path):
    for strict in (False, True):
        try:
            frame, _ = module.read(path, Repairs(str(path), strict=strict), None)
        except InputError as error:
            assert len(str(error).splitlines()) == 1
        else:
            text_of = frame.to_csv(index=False)
            path.with_suffix(".csv").write_text(text_of, errors="replace")
            again = read_trace(path.with_suffix(".csv")).frame
            assert again.input_tokens.tolist() == frame.input_tokens.tolist()


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(module=st.sampled_from(FORMATS), records=RECORDS)
def test_arbitrary_records_are_read_or_refused_cleanly(tmp_path, module, records):
    path = tmp_path / "f"
    path.write_text(json.dumps(records))
    survives(module, path)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    module=st.sampled_from(FORMATS),
    packed=st.booleans(),
    edits=st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=3)), min_size=1, max_size=4),
)
def test_damaged_bytes_are_read_or_refused_cleanly(tmp_path, module, packed, edits):
    whole = [SHAREGPT | WILDCHAT | ARENA | TUNING, LMSYS | TUNING]
    content = "".join(json.dumps(each) + "\n" for each in whole).encode()
    data = bytearray(gzip.compress(content, mtime=0) if packed else content)
    for where, new in edits:
        at = int(where * len(data))
        data[at : at + 2] = new
    path = tmp_path / "f"
    path.write_bytes(data)
    survives(module, path)
