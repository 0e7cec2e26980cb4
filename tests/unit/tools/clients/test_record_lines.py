"""Lines become records, and a bad line is refused with a reason."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.clients.record_format import json_line
from tools.clients.record_lines import BadLine, LineRules, json_parser, line_parser
from tools.clients.records import ReadRecord, Record


@pytest.mark.parametrize(
    ("rules", "line", "record"),
    [
        (LineRules(), b"hello:world", Record(None, b"hello:world")),
        (LineRules(), b"", Record(None, b"")),
        (LineRules(), b"ends in a return\r", Record(None, b"ends in a return\r")),
        (LineRules(), b"\xff\x00", Record(None, b"\xff\x00")),
        (LineRules(key_separator=b":"), b"k:v:w", Record(b"k", b"v:w")),
        (LineRules(key_separator=b":"), b":", Record(b"", b"")),
        (LineRules(key_separator=b"=>"), b"k=>v", Record(b"k", b"v")),
        (LineRules(fixed_key=b"k"), b"v", Record(b"k", b"v")),
        (LineRules(null_text=b"NULL"), b"NULL", Record(None, None)),
        (LineRules(null_text=b""), b"", Record(None, None)),
        (LineRules(key_separator=b":", null_text=b"-"), b"k:-", Record(b"k", None)),
        (LineRules(key_separator=b":", null_text=b"-"), b"-:v", Record(None, b"v")),
        (LineRules(with_headers=True), b"a:1,b:2:3\tv", Record(None, b"v", (("a", b"1"), ("b", b"2:3")))),
        (LineRules(with_headers=True), b"\tv", Record(None, b"v")),
        (
            LineRules(with_headers=True, key_separator=b"|", fixed_headers=(("f", b"x"),), partition=3),
            b"a:\tk|v",
            Record(b"k", b"v", (("f", b"x"), ("a", b"")), 3),
        ),
    ],
)
def test_lines(rules: LineRules, line: bytes, record: Record) -> None:
    assert line_parser(rules)(line) == record


@pytest.mark.parametrize(
    ("rules", "line", "says"),
    [
        (LineRules(key_separator=b":"), b"no key", "no key separator ':'"),
        (LineRules(key_separator=b"\t"), b"no key", r"no key separator '\t'"),
        (LineRules(with_headers=True), b"a:1 v", "no tab after the headers"),
        (LineRules(with_headers=True), b"a\tv", "header 'a': expected NAME:VALUE"),
        (LineRules(with_headers=True), b":1\tv", "header ':1'"),
        (LineRules(with_headers=True), b"\xff:1\tv", "a header's name is not UTF-8"),
    ],
)
def test_bad_lines(rules: LineRules, line: bytes, says: str) -> None:
    with pytest.raises(BadLine) as refused:
        line_parser(rules)(line)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("rules", "line", "record"),
    [
        (LineRules(), {"value": "v"}, Record(None, b"v")),
        (LineRules(), {}, Record(None, None)),
        (LineRules(), {"key": "k", "value": None, "partition": 2, "timestamp": 5}, Record(b"k", None, (), 2, 5)),
        (LineRules(), {"value_base64": "/w==", "offset": 7, "topic": "t"}, Record(None, b"\xff")),
        (LineRules(), {"headers": {"a": "1", "b": None}}, Record(None, None, (("a", b"1"), ("b", None)))),
        (LineRules(), {"headers": [{"key": "a", "value_base64": "/w=="}]}, Record(None, None, (("a", b"\xff"),))),
        (LineRules(fixed_key=b"f", partition=1), {"partition": 2, "value": ""}, Record(b"f", b"", (), 1)),
    ],
)
def test_json(rules: LineRules, line: dict[str, object], record: Record) -> None:
    assert json_parser(rules)(json.dumps(line).encode()) == record


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "expected a JSON object"),
        (b'"text"', "expected a JSON object"),
        (b'{"val": "x"}', "unknown field 'val': the fields are headers, key"),
        (b'{"value": 1}', "value is not a string"),
        (b'{"value": "x", "value_base64": "eA=="}', "value and value_base64 are both given"),
        (b'{"value_base64": "?"}', "value_base64 is not base64"),
        (b'{"value_base64": 1}', "value_base64 is not base64"),
        (b'{"key": "\\ud800"}', "key cannot be written in UTF-8"),
        (b'{"partition": -1}', "partition is not a number from 0"),
        (b'{"partition": true}', "partition is not a number from 0"),
        (b'{"timestamp": 1e3}', "timestamp is not a number from 0"),
        (b'{"headers": "a"}', "headers must be an object or a list"),
        (b'{"headers": ["a"]}', "a header must be an object like"),
        (b'{"headers": {"a": 1}}', "value is not a string"),
    ],
)
def test_bad_json(line: bytes, says: str) -> None:
    with pytest.raises(BadLine) as refused:
        json_parser(LineRules())(line)
    assert says in str(refused.value)


NULLABLE = st.none() | st.binary(max_size=8)
HEADERS = st.lists(st.tuples(st.text(st.characters(codec="utf-8"), max_size=4), NULLABLE), max_size=3).map(tuple)


@given(NULLABLE, NULLABLE, HEADERS, st.integers(0, 9), st.integers(0, 2**62))
def test_produce_reads_what_consume_prints(
    key: bytes | None, value: bytes | None, headers: tuple[tuple[str, bytes | None], ...], partition: int, time: int
) -> None:
    line = json_line(ReadRecord("t", partition, 7, time, "CreateTime", key, value, headers))
    assert line.count(b"\n") == 1
    assert json_parser(LineRules())(line.rstrip(b"\n")) == Record(key, value, headers, partition, time)
