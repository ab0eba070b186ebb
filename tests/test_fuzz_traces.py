"""Whatever a log holds, it is read, or refused in one line."""

import gzip
import json

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from logs import LOGS

from jaxroute.errors import InputError
from jaxroute.load.traces import FORMATS, read_trace

FUZZ = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

COLUMNS = ["session_id", "turn", "arrival_s", "input_tokens", "output_tokens"]


def read_or_refused(tmp_path, content, **options):
    path = tmp_path / "log"
    path.write_bytes(content)
    try:
        trace = read_trace(path, **options)
    except InputError as error:
        assert len(str(error).splitlines()) == 1
        return
    frame = trace.frame
    assert list(frame.columns[:5]) == COLUMNS
    counts = frame[[name for name in frame if name.endswith("_tokens")]]
    assert not (counts < 0).any(axis=None)
    assert frame.arrival_s.isna().all() or not frame.arrival_s.isna().any()
    if "prefix_tokens" in frame:
        left = (frame.prefix_tokens + frame.input_tokens + frame.output_tokens).shift(fill_value=0)
        assert (frame.prefix_tokens <= left.where(frame.turn > 0, 0)).all()


JUNK = st.sampled_from(
    [b"", b"\xff", b"\x00", b'"', b"\n", b"{", b"}", b"[", b",", b"-", b"9" * 30]
)


@FUZZ
@given(st.sampled_from(list(LOGS)), st.data(), st.booleans())
def test_damaged_files_of_every_format(tmp_path, name, data, packed):
    content = LOGS[name].encode()
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content)))
        upto = at + data.draw(st.integers(0, 12))
        content = content[:at] + data.draw(JUNK | st.binary(max_size=3)) + content[upto:]
    if packed:
        content = gzip.compress(content, mtime=0)
        content = content[: data.draw(st.integers(len(content) // 2, len(content)))]
    read_or_refused(tmp_path, content, strict=data.draw(st.booleans()))


VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-2, 5000)
    | st.floats(allow_nan=True)
    | st.sampled_from(["", "7", "-1", "x", "\ud800", "1e999", "2024-05-01", 10**30, -(2**40)])
    | st.sampled_from([1_714_557_600, 1.7e12, "2024-05-01T10:00:00+23:59", "0001-01-01", 2**62])
)
KEYS = st.sampled_from(
    [
        *("session_id", "sessionId", "id", "request_id", "timestamp", "created", "type", "object"),
        *("usage", "response", "message", "body", "metadata", "isSidechain", "agentId"),
        *("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "cached_tokens"),
        *("prompt_tokens_details", "input_tokens_details", "cache_read_input_tokens"),
        *("chat_id", "parent_chat_id", "input_length", "output_length", "hash_ids", "turn"),
    ]
)
TREES = st.recursive(
    VALUES,
    lambda inside: st.lists(inside, max_size=4) | st.dictionaries(KEYS, inside, max_size=6),
    max_leaves=12,
)
RECORDS = st.dictionaries(KEYS, TREES, max_size=9)
TABLE = st.sampled_from(list(FORMATS))


@FUZZ
@given(st.lists(RECORDS, min_size=1, max_size=6), TABLE | st.none(), st.booleans())
def test_json_of_any_shape(tmp_path, records, name, by_line):
    text = "\n".join(map(json.dumps, records)) if by_line else json.dumps(records)
    read_or_refused(tmp_path, text.encode(), format=name)


@FUZZ
@given(
    st.sampled_from(["burstgpt", "azure"]),
    st.lists(st.lists(VALUES.map(str) | st.just("\n"), min_size=3, max_size=8), max_size=4),
)
def test_tables_of_any_values(tmp_path, name, rows):
    header, whole, *_ = LOGS[name].splitlines()
    width = header.count(",") + 1
    cells = [",".join((row * width)[:width]) for row in rows]
    text = "\n".join([header, *cells, whole])
    read_or_refused(tmp_path, text.encode(errors="replace"))
