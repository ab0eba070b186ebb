"""The trace reader: what it makes of good files, and what it says of bad ones."""

import gzip
import re

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jaxroute.errors import InputError
from jaxroute.load.files import sha256
from jaxroute.load.traces import read_trace

HEADER = "session_id,turn,arrival_s,input_tokens,output_tokens"
GOOD = f"{HEADER}\nb,1,3.5,20,30\na,0,100,7,8\nb,0,0,10,12\n"


@pytest.fixture
def trace(tmp_path):
    """Writes a file and returns its path."""

    def write(text, name="t.csv"):
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def message(path):
    with pytest.raises(InputError) as caught:
        read_trace(path)
    text = str(caught.value)
    assert len(text.splitlines()) == 1
    assert text.startswith(str(path))
    return text.removeprefix(str(path))


def test_sessions_in_order_of_appearance_and_turns_ascending(trace):
    frame = read_trace(trace(GOOD)).frame
    assert frame.session_id.tolist() == ["b", "b", "a"]
    assert frame.turn.tolist() == [0, 1, 0]
    assert frame.arrival_s.tolist() == [0.0, 3.5, 100.0]
    assert frame.input_tokens.tolist() == [10, 20, 7]
    assert frame.output_tokens.tolist() == [12, 30, 8]
    assert frame.index.tolist() == [0, 1, 2]
    integers = frame[["turn", "input_tokens", "output_tokens"]].dtypes
    assert (integers == np.int64).all() and frame.arrival_s.dtype == np.float64


@pytest.mark.parametrize("form", ["gzip", "parquet", "bom", "crlf", "blank lines", "no end"])
def test_every_form_of_a_file_reads_alike(trace, tmp_path, form):
    want = read_trace(trace(GOOD)).frame
    text = {
        "gzip": gzip.compress(GOOD.encode()),
        "bom": "\ufeff" + GOOD,
        "crlf": GOOD.replace("\n", "\r\n"),
        "blank lines": "\n" + GOOD.replace("\n", "\n\n"),
        "no end": GOOD.rstrip("\n"),
    }.get(form)
    path = tmp_path / "t.parquet"
    if text is None:
        pd.read_csv(trace(GOOD)).to_parquet(path)
    else:
        path = trace(text, "other.csv")
    pd.testing.assert_frame_equal(read_trace(path).frame, want)


@pytest.mark.parametrize("end", ["", "\n", "\r\n", "\n\n"])
def test_a_header_alone_is_an_empty_trace(trace, end):
    frame = read_trace(trace(f"{HEADER},prefix_tokens,start_time,home_region,quality_m{end}")).frame
    assert len(frame) == 0
    assert list(frame.columns[:5]) == HEADER.split(",")
    assert frame.start_time.dtype == "datetime64[us, UTC]"
    assert frame.quality_m.dtype == np.float64 and frame.prefix_tokens.dtype == np.int64


def test_session_ids_are_text_as_it_stands(trace):
    ids = ["NA", "null", "007", "7", "1e3", "nan"]
    rows = "".join(f"{name},0,,1,1\n" for name in ids)
    assert read_trace(trace(f"{HEADER}\n{rows}")).frame.session_id.tolist() == ids


def test_times_may_be_absent_throughout(trace):
    frame = read_trace(trace(f"{HEADER}\na,0,,1,1\na,1,,1,1\n")).frame
    assert frame.arrival_s.isna().all() and frame.arrival_s.dtype == np.float64


def test_optional_columns(trace):
    path = trace(
        f"{HEADER},prefix_tokens,start_time,home_region,predicted_output_tokens,quality_m,note\n"
        "a,1,1,5,6,7,junk,,2.5,1,x\n"
        "a,0,0,3,4,0,2023-06-01T02:00:00+02:00,DE,100,0.25,y\n"
        "b,0,0,1,1,0,2023-06-02,NO,1,0,z\n"
    )
    frame = read_trace(path).frame
    assert frame.prefix_tokens.tolist() == [0, 7, 0]
    first, other = pd.Timestamp("2023-06-01T00:00Z"), pd.Timestamp("2023-06-02T00:00Z")
    assert frame.start_time.tolist() == [first, first, other]
    assert frame.start_time.dtype == "datetime64[us, UTC]"
    assert frame.home_region.tolist() == ["DE", "DE", "NO"]
    assert frame.predicted_output_tokens.tolist() == [100, 2.5, 1]
    assert frame.quality_m.tolist() == [0.25, 1, 0]
    assert "note" not in frame


def test_optional_columns_without_any_value_are_absent(trace):
    names = "prefix_tokens,start_time,home_region,predicted_output_tokens"
    frame = read_trace(trace(f"{HEADER},{names}\na,0,0,1,1,,,,\n")).frame
    assert list(frame.columns) == HEADER.split(",")


@pytest.mark.parametrize(
    "value", ["1685577600", "1685577600.0", "2023-06-01T00:00:00", "2023-06-01 00:00Z"]
)
def test_start_times_as_epoch_seconds_or_iso(trace, value):
    frame = read_trace(trace(f"{HEADER},start_time\na,0,0,1,1,{value}\n")).frame
    assert frame.start_time[0] == pd.Timestamp("2023-06-01T00:00Z")


def test_parquet_types(tmp_path):
    path = tmp_path / "t.parquet"
    start = pd.Timestamp("2023-06-01T12:00", tz="Europe/Berlin")
    columns = {"session_id": [7], "turn": [0.0], "arrival_s": [None], "input_tokens": ["5"]}
    pd.DataFrame({**columns, "output_tokens": [1], "start_time": [start]}).to_parquet(path)
    frame = read_trace(path).frame
    assert frame.session_id.tolist() == ["7"] and frame.input_tokens.tolist() == [5]
    assert frame.start_time[0] == pd.Timestamp("2023-06-01T10:00Z")


def test_the_bundled_trace():
    frame = read_trace("builtin:sharegpt").frame
    assert (len(frame), frame.session_id.nunique()) == (45_715, 7_349)
    assert frame.arrival_s.isna().all()
    assert re.fullmatch("[0-9a-f]{64}", sha256("builtin:sharegpt"))


ROWS = {  # rows of a file with these optional columns, and what the message must say
    "input_tokens": ("a,0,0,-3,1", "row 2, column input_tokens: found '-3', expected a whole"),
    "float tokens": ("a,0,0,1,1\na,1,0,1,2.5", "row 3, column output_tokens: found '2.5'"),
    "text tokens": ("a,0,0,1,1\na,1,0,1,many", "row 3, column output_tokens: found 'many'"),
    "no tokens": ("a,0,0,1,", "row 2, column output_tokens: found nothing"),
    "huge tokens": (
        "a,0,0,1,9999999999",
        "found '9999999999', expected a whole number from 0 to 2",
    ),
    "infinite": ("a,0,inf,1,1", "row 2, column arrival_s: found 'inf', expected a number"),
    "no session": ("a,0,0,1,1\n,0,0,1,1", "row 3, column session_id: found nothing"),
    "turn": ("a,zero,0,1,1", "row 2, column turn: found 'zero'"),
    "from 1": ("a,1,0,1,1", "row 2, column turn: found turn 1 of session 'a', expected turn 0"),
    "gap": (
        "a,2,0,1,1\na,0,0,1,1",
        "row 2, column turn: found turn 2 of session 'a', expected tur",
    ),
    "twice": (
        "a,0,0,1,1\n\nb,0,0,1,1\na,0,0,1,1",
        "row 5, column turn: found turn 0 of session 'a'",
    ),
    "one time": (
        "a,0,,1,1\na,1,5,1,1",
        "row 2, column arrival_s: found nothing, expected a number",
    ),
    "time back": (
        "a,1,3,1,1\na,0,5,1,1",
        "row 2, column arrival_s: found '3', expected at least 5",
    ),
    "short row": ("a,0,0,1,1\na,1,0,1", "row 3: found 4 values, expected 5, as in the header"),
    "long row": ("a,0,0,1,1,9", "row 2: found 6 values, expected 5, as in the header"),
}


@pytest.mark.parametrize("rows, expected", ROWS.values(), ids=ROWS)
def test_bad_rows(trace, rows, expected):
    assert expected in message(trace(f"{HEADER}\n{rows}\n"))


OPTIONAL = {
    "late prefix": (
        "prefix_tokens",
        "a,0,0,10,20,0\na,1,1,5,5,31",
        "row 3, column prefix_tokens: fou",
    ),
    "shrunk": (
        "prefix_tokens",
        "a,0,0,9,9,0\na,1,0,1,1,2\na,2,0,1,1,5",
        "row 4, column prefix_tokens",
    ),
    "first prefix": (
        "prefix_tokens",
        "a,0,0,1,1,1",
        "found '1', expected at most 0, a first turn has",
    ),
    "no prefix": (
        "prefix_tokens",
        "a,0,0,1,1,0\na,1,0,1,1,",
        "row 3, column prefix_tokens: found no",
    ),
    "low quality": (
        "quality_m",
        "a,0,0,1,1,-0.1",
        "column quality_m: found '-0.1', expected a numb",
    ),
    "high quality": (
        "quality_m",
        "a,0,0,1,1,1.5",
        "column quality_m: found '1.5', expected a number",
    ),
    "no quality": ("quality_m", "a,0,0,1,1,", "row 2, column quality_m: found nothing"),
    "NaN quality": ("quality_m", "a,0,0,1,1,nan", "row 2, column quality_m: found 'nan'"),
    "prediction": (
        "predicted_output_tokens",
        "a,0,0,1,1,-1",
        "column predicted_output_tokens: found",
    ),
    "start": (
        "start_time",
        "a,0,0,1,1,today",
        "row 2, column start_time: found 'today', expected a",
    ),
    "compact": (
        "start_time",
        "a,0,0,1,1,20230601",
        "found '20230601', expected a time from 1980 to",
    ),
    "ms": (
        "start_time",
        "a,0,0,1,1,1685577600000",
        "found '1685577600000', expected a time from 1980",
    ),
    "no start": (
        "start_time",
        "a,0,0,1,1,2023-06-01\nb,0,0,1,1,",
        "row 3, column start_time: found nothing",
    ),
    "no home": (
        "home_region",
        "a,0,0,1,1,DE\nb,0,0,1,1,",
        "row 3, column home_region: found nothing",
    ),
}


@pytest.mark.parametrize("column, rows, expected", OPTIONAL.values(), ids=OPTIONAL)
def test_bad_optional_values(trace, column, rows, expected):
    assert expected in message(trace(f"{HEADER},{column}\n{rows}\n"))


@pytest.mark.parametrize(
    "header, expected",
    [
        (HEADER.replace("turn", "trun"), "row 1: found columns session_id, trun, arrival_s"),
        (HEADER.replace("turn", "trun"), "expected a column turn; rename 'trun' if that is it"),
        (f"{HEADER},turn", "row 1: found 2 columns turn, expected one"),
        (f"{HEADER},prefix_token", "found a column 'prefix_token', expected 'prefix_tokens'"),
        (f"{HEADER},Start_Time", "found a column 'Start_Time', expected 'start_time'"),
        (f"{HEADER},qualty_m", "found a column 'qualty_m', expected 'quality_m'"),
        ("", ": found an empty file, expected a trace"),
    ],
)
def test_bad_headers(trace, header, expected):
    assert expected in message(trace(f"{header}\n"))


def test_unknown_columns_are_ignored(trace):
    assert list(read_trace(trace(f"{HEADER},end_time,cost\na,0,0,1,1,x,y\n")).frame.columns) == (
        HEADER.split(",")
    )


@pytest.mark.parametrize(
    "content",
    [b"\xff\xfe\x00", b"PAR1 but no more", b"\x1f\x8bnot gzip", gzip.compress(b"x", mtime=0)[:-4]],
)
def test_what_is_no_trace(trace, content):
    assert "found" in message(trace(content))


def test_missing_files(tmp_path):
    assert message(tmp_path / "none.csv") == ": found no file, expected a file; check the path"
    assert ": found a directory without *.parquet, expected a file" in message(tmp_path)
    assert "did you mean 'sharegpt'?" in message("builtin:sharegtp")
    with pytest.raises(InputError, match="no file"):
        sha256(tmp_path / "none.csv")


CELLS = st.sampled_from(
    [
        "",
        "a",
        "b",
        "0",
        "1",
        "2",
        "-1",
        "1.5",
        "nan",
        "inf",
        "1e400",
        "2023-06-01",
        "today",
        '"',
        "\x00",
    ]
    + ["9" * 30, "é", " 1", "0x1", "\n", "\r", "NaT", "\u2028"]
) | st.text(max_size=4)
NAMES = st.sampled_from(
    [*HEADER.split(","), "prefix_tokens", "start_time", "home_region", "quality_m"]
)


@st.composite
def tables(draw):
    header = [*HEADER.split(","), *draw(st.lists(NAMES, max_size=3, unique=True))]
    header = header[draw(st.sampled_from([0, 0, 0, 1])) :]
    row = st.lists(CELLS, min_size=len(header) - 1, max_size=len(header)).map(",".join)
    return "\n".join([",".join(header), *draw(st.lists(row, max_size=4))]).encode()


FUZZ = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@FUZZ
@given(st.binary(max_size=200) | st.text(max_size=60).map(str.encode) | tables(), st.booleans())
def test_nothing_but_an_input_error_is_ever_raised(tmp_path, content, packed):
    path = tmp_path / "fuzz.csv"
    path.write_bytes(gzip.compress(content) if packed else content)
    try:
        frame = read_trace(path).frame
    except InputError as error:
        assert len(str(error).splitlines()) == 1
    else:
        assert list(frame.columns[:5]) == HEADER.split(",")


@settings(FUZZ, derandomize=True)
@given(st.integers(0, 2000), st.binary(min_size=1, max_size=8))
def test_a_damaged_parquet_file_raises_nothing_else(tmp_path, at, junk):
    path = tmp_path / "fuzz.parquet"
    columns = {name: [0, 1] for name in HEADER.split(",")}
    pd.DataFrame(columns).to_parquet(path)
    content = bytearray(path.read_bytes())
    at %= len(content)
    content[at : at + len(junk)] = junk
    path.write_bytes(content)
    try:
        read_trace(path)
    except InputError as error:
        assert len(str(error).splitlines()) == 1


@FUZZ
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 50)), min_size=1, max_size=5), st.randoms()
)
def test_the_order_of_rows_within_sessions_changes_nothing(tmp_path, sessions, random):
    rows = [
        (f"s{number}", turn, 10.0 * turn, tokens, turn)
        for number, (turns, tokens) in enumerate(sessions)
        for turn in range(turns)
    ]
    want = pd.DataFrame(rows, columns=HEADER.split(","))
    shuffled = want.sample(frac=1, random_state=random.randrange(2**31))
    path = tmp_path / "t.csv"
    shuffled.to_csv(path, index=False)
    order = {name: index for index, name in enumerate(shuffled.session_id.unique())}
    want = want.sort_values("session_id", key=lambda ids: ids.map(order), kind="stable")
    pd.testing.assert_frame_equal(
        read_trace(path).frame, want.reset_index(drop=True), check_dtype=False
    )


def test_times_with_and_without_offset_in_one_file(trace):
    times = ["2023-06-01T02:00:00+02:00", "2023-06-01 00:00", "2023-05-31T19:00-0500", "20230601"]
    rows = "".join(f"{number},0,0,1,1,{time}\n" for number, time in enumerate(times))
    frame = read_trace(trace(f"{HEADER},start_time\n{rows}")).frame
    assert (frame.start_time == pd.Timestamp("2023-06-01T00:00Z")).all()
