"""Logs in the formats that people have: what is made of each, and of what is wrong in them."""

import gzip
import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from logs import BURST, HOUR, LOGS, bailian, lines, mooncake, openai

from jaxroute.config import StudyConfig
from jaxroute.errors import InputError
from jaxroute.load import packed
from jaxroute.load.traces import FORMATS, read_trace
from jaxroute.prepare import read
from jaxroute.study import overridden


@pytest.fixture
def told(tmp_path):
    """Writes a log and reads it."""

    def reading(content, **options):
        path = tmp_path / "log"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_trace(path, **options)

    return reading


def turns(trace):
    """Each turn as session, arrival, new and output tokens, and what of the context remains."""
    frame = trace.frame
    names = ["session_id", "arrival_s", "input_tokens", "output_tokens", "prefix_tokens"]
    rows = frame[[name for name in names if name in frame]].itertuples(index=False)
    return [tuple(row) for row in rows]


GOLDEN = {
    "tidy": [("a", 0, 10, 5), ("a", 9, 20, 6)],
    "requests": [("a", 0, 100, 20), ("a", 30, 30, 30), ("b", 1, 50, 5)],
    "mooncake": [("0", 0, 1500, 100), ("0", 27, 100, 50), ("1", 0, 1100, 10)],
    "bailian": [("7", 0.5, 40, 8), ("7", 4, 12, 3), ("8", 1, 33, 9)],
    "burstgpt": [("x-1", 5, 100, 20), ("x-1", 45, 60, 30), ("row 2", 6, 70, 3)],
    "azure": [("row 1", 0, 4808, 10), ("row 2", 0.052, 3180, 8)],
}


@pytest.mark.parametrize("name", LOGS)
@pytest.mark.parametrize("form", ["plain", "bom", "crlf", "gzip"])
def test_each_format_is_told_by_its_contents(told, name, form):
    content = LOGS[name].replace("\n", "\r\n") if form == "crlf" else LOGS[name]
    data = b"\xef\xbb\xbf" * (form == "bom") + content.encode()
    trace = told(gzip.compress(data) if form == "gzip" else data, strict=True)
    assert trace.format == name and trace.repairs == ()
    got = turns(trace)
    assert [row[0] for row in got] == [row[0] for row in GOLDEN[name]]
    np.testing.assert_allclose(
        [row[1:] for row in got], [row[1:] for row in GOLDEN[name]], atol=1e-6
    )
    frame = trace.frame
    assert frame.turn.tolist() == frame.groupby("session_id", sort=False).cumcount().tolist()
    assert (frame[["turn", "input_tokens", "output_tokens"]].dtypes == np.int64).all()
    assert frame.arrival_s.dtype == np.float64 and frame.index.tolist() == list(range(len(frame)))


def test_every_format_has_a_golden_file():
    assert set(LOGS) <= set(FORMATS)


def test_dates_are_each_sessions_first(told):
    frame = told(LOGS["requests"]).frame
    assert frame.start_time.dtype == "datetime64[us, UTC]"
    assert frame.start_time.dt.second.tolist() == [0, 0, 1]
    assert told(LOGS["azure"]).frame.start_time[0] == pd.Timestamp("2023-11-16T18:17:03.97996Z")
    later = LOGS["azure"].replace("2023-11-16 18:17:03.9799600", "2024-05-10 00:00:00.009930+00:00")
    assert told(later).frame.start_time[0].year == 2024
    assert "start_time" not in told(LOGS["burstgpt"]).frame


USAGE = {  # usage as reported: prompt, output, cached tokens as read, and the convention told
    "chat": (
        {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": {"cached_tokens": 8}},
        (9, 4, 8, "OpenAI"),
    ),
    "null details": (
        {"prompt_tokens": 9, "completion_tokens": 4, "prompt_tokens_details": None},
        (9, 4, -1, "OpenAI"),
    ),
    "reasoning is in the output": (
        {
            "prompt_tokens": 9,
            "completion_tokens": 400,
            "completion_tokens_details": {"reasoning_tokens": 390},
        },
        (9, 400, -1, "OpenAI"),
    ),
    "responses": (
        {"input_tokens": 9, "output_tokens": 4, "input_tokens_details": {"cached_tokens": 8}},
        (9, 4, 8, "OpenAI"),
    ),
    "anthropic": (
        {
            "input_tokens": 9,
            "output_tokens": 4,
            "cache_read_input_tokens": 80,
            "cache_creation_input_tokens": 7,
        },
        (96, 4, 80, "Anthropic"),
    ),
    "anthropic, nulls": (
        {"input_tokens": 9, "output_tokens": 4, "cache_read_input_tokens": None},
        (9, 4, -1, "Anthropic"),
    ),
    "gateway": (
        {"prompt_tokens": 96, "completion_tokens": 4, "cache_read_input_tokens": 80},
        (96, 4, -1, "OpenAI"),
    ),
    "neither": ({"input_tokens": 9, "output_tokens": 4}, (9, 4, -1, "both conventions agree")),
}


@pytest.mark.parametrize("usage, expected", USAGE.values(), ids=USAGE)
@pytest.mark.parametrize("where", ["usage", "response", "message", "body", "flat"])
def test_both_conventions_of_usage_wherever_it_lies(told, where, usage, expected):
    record = {
        "usage": {"usage": usage},
        "response": {"response": {"usage": usage, "tool_calls": [{"id": "t"}]}},
        "message": {"type": "assistant", "message": {"usage": usage, "content": None}},
        "body": {"response": {"status_code": 200, "body": {"usage": usage}}},
        "flat": usage,
    }[where]
    # What was cached shows where the prompt then shrinks: to that much.
    first = {"session_id": "s", "usage": {"prompt_tokens": 5000, "completion_tokens": 0}}
    trace = told(lines(first, {"session_id": "s", **record}))
    assert {each.split(" ", 1)[1].partition(" ")[0] for each in trace.repairs} <= {
        "answers",
        "prompts",
    }
    prompt, output, cached, convention = expected
    last = trace.frame.iloc[-1]
    assert last.output_tokens == output and last.prefix_tokens == max(cached, 0)
    assert last.input_tokens + last.prefix_tokens == prompt
    assert (
        f"1 in {convention}" in trace.notes[0]
        or f"2 in {convention}" in trace.notes[0]
        or (convention == "both conventions agree" and convention in trace.notes[0])
    )


def test_the_convention_is_told_apart_record_by_record(told):
    anthropic = {"input_tokens": 9, "output_tokens": 4, "cache_read_input_tokens": 80}
    log = LOGS["requests"] + lines(
        {"session_id": "c", "timestamp": HOUR + "40", "usage": anthropic}
    )
    assert told(log).notes[0].startswith("usage: 3 in OpenAI convention")
    assert "; 1 in Anthropic convention" in told(log).notes[0]


def test_pieces_of_a_streamed_answer_are_one_turn(told):
    start = {"input_tokens": 10, "cache_read_input_tokens": 500, "output_tokens": 1}
    common = {"session_id": "s", "request_id": "r1"}
    chunk = {"object": "chat.completion.chunk", "session_id": "s", "id": "chatcmpl-2"}
    trace = told(
        lines(
            {**common, "timestamp": 1, "type": "message_start", "message": {"usage": start}},
            {**common, "timestamp": 2, "type": "content_block_delta", "delta": {"text": "x"}},
            {**common, "timestamp": 3, "type": "message_delta", "usage": {"output_tokens": 90}},
            {**chunk, "created": 7, "usage": None},
            {**chunk, "created": 8, "usage": {"prompt_tokens": 650, "completion_tokens": 2}},
            {**chunk, "created": 9, "usage": {"prompt_tokens": 650, "completion_tokens": 33}},
        ),
        strict=True,
    )
    assert turns(trace) == [("s", 1, 510, 90), ("s", 8, 50, 33)]
    assert "4 pieces of 2 streamed answers joined" in trace.notes
    assert "2 records of other kinds hold no usage" in trace.notes


def _anthropic(at, prompt, output, **more):
    start = {"id": f"m{at}", "usage": {"input_tokens": prompt, "output_tokens": 1}}
    return [
        {**more, "timestamp": at, "type": "message_start", "message": start},
        {**more, "timestamp": at + 1, "type": "content_block_delta", "delta": {"text": "x"}},
        {**more, "timestamp": at + 2, "type": "message_delta", "usage": {"output_tokens": output}},
        {**more, "timestamp": at + 2, "type": "message_stop"},
    ]


def _chunks(prompt, *outputs, **more):
    return [
        {"object": "chat.completion.chunk", "created": 1, **more}
        | {"usage": output and {"prompt_tokens": prompt, "completion_tokens": output}}
        for output in outputs
    ]


STREAMS = {  # pieces without an id of two answers, of 15 and 22 tokens
    "events": _anthropic(1, 10, 15, session_id="s") + _anthropic(9, 40, 22, session_id="s"),
    "no session": _anthropic(1, 10, 15) + _anthropic(9, 40, 22),
    "side by side": [
        *_anthropic(1, 10, 15, session_id="a")[:2],
        *_anthropic(2, 40, 22, session_id="b"),
        *_anthropic(1, 10, 15, session_id="a")[2:],
    ],
    "usage so far": _chunks(10, 1, 8, 15, session_id="s") + _chunks(40, 1, 22, session_id="s"),
    "usage at the end": _chunks(10, None, 15, session_id="s")
    + _chunks(10, None, 22, session_id="s"),
    "asked again": _chunks(10, 8, 15, session_id="s") + _chunks(10, 1, 22, session_id="s"),
}


@pytest.mark.parametrize("pieces", STREAMS.values(), ids=STREAMS)
def test_pieces_without_an_id_are_of_the_latest_answer(told, pieces):
    trace = told(lines(*pieces))
    assert trace.frame.output_tokens.tolist() == [15, 22]
    assert not any("left out" in each for each in trace.repairs)


def test_pieces_of_which_nothing_tells_whose_they_are_are_a_repair(told):
    trace = told(lines(*_chunks(10, 1, 15)))
    assert trace.frame.output_tokens.tolist() == [15]
    assert trace.repairs[0].startswith("2 pieces of streamed answers without an id or a session")


def test_a_coding_assistants_transcript(told):
    def said(at, request, prompt, output, **more):
        usage = {"input_tokens": 3, "cache_read_input_tokens": prompt - 3, "output_tokens": output}
        message = {"id": f"msg_{request}", "role": "assistant", "usage": usage}
        return {
            "type": "assistant",
            "sessionId": "s",
            "requestId": request,
            "timestamp": at,
            "message": message,
            **more,
        }

    trace = told(
        lines(
            {"type": "summary", "summary": "..."},
            {"type": "user", "sessionId": "s", "message": {"role": "user", "content": "..."}},
            said(f"{HOUR}01Z", "r1", 900, 8),
            said(f"{HOUR}02Z", "r1", 900, 60),
            said(f"{HOUR}03Z", "r2", 300, 9, isSidechain=True, agentId="side"),
            said(f"{HOUR}09Z", "r3", 1000, 70),
        )
    )
    assert turns(trace) == [("s", 0, 900, 60), ("s", 8, 40, 70), ("s/side", 2, 300, 9)]
    assert trace.repairs == (
        "1 requests logged once more under the same id joined with the fuller (first at session s)",
    )


SHRINKING = {  # prompt and output of a turn, then the next prompt, its cached tokens: what remains
    "grows": (100, 50, 180, None, 150),
    "the same": (100, 50, 150, None, 150),
    "reasoning dropped": (100, 50, 120, None, 100),
    "reasoning dropped, cached less": (100, 50, 120, 64, 100),
    "reasoning dropped, cached more": (100, 50, 120, 112, 112),
    "compacted": (100, 50, 60, None, 0),
    "compacted, nothing cached": (100, 50, 60, 0, 0),
    "compacted, its beginning cached": (100, 50, 60, 48, 48),
    "more cached than is believable": (100, 50, 60, 64, 0),
}


@pytest.mark.parametrize("case", SHRINKING.values(), ids=SHRINKING)
def test_what_remains_of_a_context(told, case):
    prompt, output, later, cached, remains = case
    trace = told(lines(openai("s", 0, prompt, output), openai("s", 1, later, 5, cached)))
    last = trace.frame.iloc[-1]
    assert last.input_tokens == later - remains
    if later < prompt + output:
        assert last.prefix_tokens == remains
        assert any("shorter than the context before" in note for note in trace.notes)
    else:
        assert "prefix_tokens" not in trace.frame


def test_out_of_order_and_equal_times(told):
    trace = told(lines(*(openai("s", at, 10 * n, 1) for n, at in ((3, 9), (1, 2), (2, 2), (4, 9)))))
    assert (trace.frame.input_tokens + trace.frame.get("prefix_tokens", 0)).tolist() == [
        *(10, 9, 9, 9),
    ] and trace.frame.arrival_s.tolist() == [2, 2, 9, 9]
    assert trace.repairs[0].startswith("1 requests logged after a later one")


@pytest.mark.parametrize(
    "at",
    [1_714_557_600, 1_714_557_600_000, 1_714_557_600_000_000, "2024-05-01T10:00:00Z"]
    + ["2024-05-01 10:00:00", "2024-05-01T12:00:00+02:00", 1_714_557_600.0],
)
def test_times_in_every_unit(told, at):
    trace = told(lines(openai("s", at, 10, 1)), strict=True)
    assert trace.frame.start_time[0] == pd.Timestamp("2024-05-01T10:00Z")


WRONG = {  # a log, and the beginning of what is said of it
    "truncated": (
        LOGS["requests"][:-20],
        "the file breaks off, and is read up to there (line 2)",
    ),
    "truncated between records": (
        "[" + LOGS["requests"].replace("\n", ",\n"),
        "the file breaks off, and is read up to there (record 3)",
    ),
    "no trailer": (
        gzip.compress(LOGS["requests"].encode())[:-8],
        "the file breaks off, and is read up to there (line 3)",
    ),
    "csv, no trailer": (
        gzip.compress(LOGS["azure"].encode())[:-8],
        "the file breaks off, and is read up to there (row 3)",
    ),
    "no answer": (
        LOGS["requests"].replace(": 30,", ": 0,"),
        "1 answers of 0 tokens kept (first at session a)",
    ),
    "csv, no answer": (
        LOGS["burstgpt"].replace("70,3,", "70,0,"),
        "1 answers of 0 tokens kept (first at session row 2)",
    ),
    "a context that shrinks": (
        LOGS["requests"].replace(": 150,", ": 110,"),
        "1 prompts shorter than the context before them given the prefix that they can share (fir",
    ),
    "text times": (
        lines(openai("a", "1714557600", 10, 1)),
        "1 numbers written as text read as numbers (first at line 1)",
    ),
    "some sessions": (
        LOGS["requests"].replace('"session_id": "b", ', ""),
        "1 requests without a session id taken as sessions of one turn (first at line 2)",
    ),
    "damaged in the middle": (
        LOGS["requests"].replace("}\n", "\n", 1),
        "1 lines that are not JSON left out (first at line 1)",
    ),
    "damaged at the start": (
        LOGS["requests"][:20] + "\n" + LOGS["requests"],
        "1 lines that are not JSON left out (first at line 1)",
    ),
    "truncated array": (
        json.dumps([openai("a", 1, 10, 1), openai("a", 2, 30, 1)])[:-20],
        "1 records that break off, and nothing after them read (first at record 2)",
    ),
    "no record": (LOGS["requests"] + "3\n", "1 JSON values that are no record left out"),
    "text numbers": (
        lines(openai("a", 1, 10, 1)).replace(": 10,", ': "10",'),
        "1 numbers written as text read as numbers (first at line 1)",
    ),
    "not numbers": (
        LOGS["requests"].replace(": 150,", ": -150,"),
        "1 token counts that are no whole number from 0 to 2,147,483,647 left out (first at line",
    ),
    "no prompt": (
        LOGS["requests"].replace(": 150,", ": null,"),
        "1 requests without prompt tokens left out",
    ),
    "no output": (
        LOGS["requests"].replace('"completion_tokens": 30, ', ""),
        "1 requests without output tokens taken as 0",
    ),
    "no usage": (
        LOGS["requests"] + '{"session_id": "a"}\n',
        "1 requests without usage left out (first at line 4)",
    ),
    "no time": (
        LOGS["requests"].replace(f'"timestamp": "{HOUR}30Z", ', ""),
        "1 requests without a time that can be read given that of the one before in the log",
    ),
    "bad time": (
        LOGS["requests"].replace(f"{HOUR}30Z", "noon"),
        "1 times that are neither numbers nor ISO-8601 left out (first at line 3)",
    ),
    "twice": (
        lines(openai("a", 1, 10, 1, id="r"), openai("a", 2, 10, 9, id="r")),
        "1 requests logged once more under the same id joined with the fuller",
    ),
    "bailian twice": (
        LOGS["bailian"] + lines(bailian(9, 7, 2, 4.0, 60, 3)),
        "1 requests logged once more under the same id joined with the fuller (first at line 4)",
    ),
    "no chat": (
        LOGS["bailian"] + lines(bailian(None, 7, 2, 4.0, 60, 3)),
        "1 requests without chat_id left out (first at line 4)",
    ),
    "no hashes": (
        LOGS["mooncake"] + lines(mooncake(1, 5, 5, None)),
        "1 requests without hash_ids taken as sessions of one turn (first at line 4)",
    ),
    "csv rows": (
        LOGS["azure"] + "2023-11-16 18:17:05\n",
        "1 rows with more or fewer values than the header left out",
    ),
    "csv numbers": (
        LOGS["azure"].replace("4808", "many"),
        "1 token counts that are no whole number from 0 to 2,147,483,647 left out (first at row 2)",
    ),
    "csv times": (
        LOGS["burstgpt"].replace("45.0", "late"),
        "1 times that are neither numbers nor ISO-8601 left out (first at row 4)",
    ),
}


@pytest.mark.parametrize("log, repair", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_mended_and_counted_or_refused(told, tmp_path, log, repair):
    trace = told(log)
    assert any(each.startswith(repair) for each in trace.repairs), trace.repairs
    assert len(trace.frame)
    with pytest.raises(InputError) as caught:
        told(log, strict=True)
    assert str(caught.value).startswith(f"{tmp_path / 'log'}: ")
    assert len(str(caught.value).splitlines()) == 1
    assert "found something to mend (" in str(caught.value)


def test_a_truncated_gzip_file_is_read_as_far_as_it_goes(told):
    packed_log = gzip.compress("".join(LOGS["requests"] for _ in range(300)).encode(), 1)
    trace = told(packed_log[:-30])
    assert trace.repairs[0].startswith("the file breaks off, and is read up to there (line ")
    with pytest.raises(
        InputError, match="row 3: found gzip that breaks off after it, expected a w"
    ):
        told(gzip.compress(LOGS["tidy"].encode())[:-8])


def test_a_time_of_nought_is_a_time(told):
    trace = told(lines(openai("a", 5, 9, 1), openai("a", 0, 5, 1)))
    assert trace.frame.arrival_s.tolist() == [0, 5]
    assert "times have no dates: they count from the log's start" in trace.notes


def test_requests_without_any_session_id(told):
    record = {"id": "x", "usage": {"prompt_tokens": 5, "completion_tokens": 2}}
    trace = told(lines(record, {**record, "id": "y"}))
    assert trace.frame.session_id.tolist() == ["request x", "request y"]
    assert "the log has no session ids: each request is a session of one turn" in trace.notes
    assert "the log has no times" in trace.notes and trace.frame.arrival_s.isna().all()


def test_ids_within_a_session_do_not_join_sessions(told):
    trace = told(lines(*(openai(name, 1, 10, 1, id=1) for name in "ab")))
    assert trace.frame.session_id.tolist() == ["a", "b"] and trace.repairs == ()


def test_mooncake_sessions(told):
    long, other = [*range(10)], [0, *range(50, 60)]
    trace = told(
        lines(
            mooncake(0, 5000, 100, long),  # begins with a system prompt of one block
            mooncake(10, 600, 10, [0, 100]),  # is all system prompt: continued by none
            mooncake(20, 5400, 10, other),  # another question after it
            mooncake(30, 5200, 10, [*long[:9], 20, 21]),  # goes on with the first
            mooncake(40, 5250, 10, [*long[:9], 30, 31]),  # the first once more, or another's
            mooncake(50, 700, 10, [0, 101]),
            mooncake(60, 5405, 10, [*other[:10], 40]),  # too short to hold the answer
        )
    )
    assert trace.frame.groupby("session_id", sort=False).arrival_s.apply(list).tolist() == [
        *([0, 0.03], [0.01], [0.02], [0.04], [0.05], [0.06]),
    ]
    assert trace.frame.input_tokens.tolist()[:3] == [5000, 100, 600]
    assert "sessions rebuilt from hashes" in trace.notes[0]


def test_bailian_chains(told):
    trace = told(
        lines(
            bailian(1, -1, 1, 0, 40, 100, [1, 2, 3]),
            bailian(2, 1, 2, 5, 80, 10, [1, 2, 4, 5, 6]),  # a prompt shorter than 40 + 100
            bailian(3, 1, 2, 6, 90, 10, [1, 2, 9]),  # another answer to the first
            bailian(4, 2, 3, 8, 33, 10, [1, 7, 8]),  # compacted: one block remains
            bailian(5, 99, 4, 9, 70, 10, []),  # its parent was before the log
            bailian("6", 6, 2, 9, 70, 10, []),  # its own parent
        )
    )
    assert turns(trace)[:3] == [("1", 0, 40, 100, 0), ("1", 5, 40, 10, 40), ("1", 8, 17, 10, 16)]
    assert trace.frame.session_id.tolist()[3:] == ["3", "5", "6"]
    assert "1 second answers to one turn begin sessions of their own" in trace.notes[0]
    assert "2 turns whose parent is not in the log begin sessions" in trace.notes[0]


def test_burstgpt_without_session_ids(told):
    trace = told(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n5,m,3,4,7,x\n"
    )
    assert trace.format == "burstgpt" and "no session ids" in trace.notes[0]


def test_burstgpt_says_whether_prompts_hold_the_history(told):
    row = "9,x-1,1,m,60,5,65,Conversation log\n"
    assert any("100 % of later turns" in note for note in told(LOGS["burstgpt"]).notes)
    assert any("0 % of later turns" in note for note in told(f"{BURST}\n{row}{row}").notes)


ODD = {
    "": "found an empty file, ",
    " \n": "found an empty file, ",
    "[]": "found JSON without keys, ",
    "[" * 100_000: "found JSON nested too deeply, ",
    b"PK\3\4\0\0": "found a binary file, ",
    b"\x89PNG\r\n\x1a\n\0\0": "found a binary file, ",
    b"time,\x1b[31mload,cost\n1,2,3\n": r"CSV with columns time, \\x1b\[31mload, cost, ",
    LOGS["azure"].encode("utf-16"): "found text in UTF-16, .*; save it as UTF-8",
}


def test_an_unknown_file_is_refused_with_the_formats_there_are(told):
    for content in ('{"rows": 3}\n', "time,load\n1,2\n", "\n \n" + "x" * 2_000_000, "[1, 2"):
        with pytest.raises(InputError, match=r"formats: tidy, burstgpt|no whole line"):
            told(content)
    for content, found in ODD.items():
        with pytest.raises(InputError, match=found) as caught:
            told(content)
        assert str(caught.value).isprintable()
    with pytest.raises(InputError, match="JSON with keys rows, expected a trace of a known format"):
        told('{"rows": 3}\n')


def test_a_format_can_be_forced(told):
    assert told(LOGS["bailian"], format="mooncake").format == "mooncake"
    with pytest.raises(InputError, match="expected at least one request with its prompt tokens"):
        told(LOGS["requests"], format="mooncake")
    with pytest.raises(InputError, match="did you mean 'mooncake'"):
        told(LOGS["requests"], format="mooncaek")


def test_rows_are_named_by_the_line_they_begin_on(told):
    header = "session_id,turn,arrival_s,input_tokens,output_tokens,note\n"
    log = header + 'a,0,0,1,1,"two\nlines"\n\na,1,0,1,1,"x\ny\nz"\na,2,0,-1,1,"p\nq"\n'
    with pytest.raises(InputError, match="row 8, column input_tokens: found '-1'"):
        told(log)
    with pytest.raises(InputError, match="row 8: found 4 values"):
        told(log.replace('-1,1,"p\nq"', ""))


def test_gzip_bombs_are_refused(told, monkeypatch):
    monkeypatch.setattr(packed, "ROOM", 2**18)
    for line in ("a,0,0,1,1\n", "{}\n", " ", "[", '{"usage":{"prompt_tokens":1}}\n'):
        head = LOGS["tidy"] if line.startswith("a") else ""
        bomb = gzip.compress(head.encode() + line.encode() * (2**21 // len(line)))
        with pytest.raises(
            InputError,
            match=r"bytes of gzip that unpack to|no whole line|JSON without keys|too deeply",
        ):
            told(bomb)


@pytest.mark.parametrize("deep", ["[" * 100_000, '{"a":' * 100_000, '{"usage": ' + "[" * 100_000])
def test_nesting_is_bounded(told, deep):
    with pytest.raises(InputError):
        told(deep)
    assert told(LOGS["requests"] + deep).repairs


def test_a_study_tells_how_a_trace_was_read(tmp_path):
    path = tmp_path / "log.jsonl.gz"
    path.write_bytes(gzip.compress(LOGS["requests"].encode() + b"{"))
    study = overridden(StudyConfig(), traces=[path], format="requests")
    assert study.datasets[0].label == "log" and study.datasets[0].format == "requests"
    told = read(study.datasets[0], 0).told
    assert told[0] == "read as requests" and "dates" in told[2]
    assert told[-1].startswith("mended or left out: the file breaks off")
    with pytest.raises(InputError, match="expected a file that needs no repair"):
        read(overridden(study, strict=True).datasets[0], 0)
    with pytest.raises(InputError, match=r"datasets\[0\].format: found 'x', expected a format"):
        overridden(study, format="x")


_PEAK = """
import resource, sys
from jaxroute.load.traces import read_trace
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
frame = read_trace(sys.argv[1]).frame
print(len(frame), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow  # two processes, 200 MB of text
def test_memory_does_not_grow_with_text(tmp_path):
    peaks = []
    for length in (10, 20_000):
        path = tmp_path / f"{length}.jsonl"
        with path.open("w") as log:
            for n in range(10_000):
                log.write(lines(openai(f"s{n % 99}", n, 10 * n, 5, text="x" * length)))
        done = subprocess.run(
            [sys.executable, "-c", _PEAK, path], capture_output=True, text=True, check=True
        )
        turns, kilobytes = map(int, done.stdout.split())
        assert turns == 10_000
        peaks.append(kilobytes)
    assert peaks[1] - peaks[0] < 40_000
