"""kcat's tokens and escapes."""

from __future__ import annotations

import json

import pytest

from tools.clients.record_format import BadFormat, json_line, record_formatter, unescape
from tools.clients.records import ReadRecord

RECORD = ReadRecord("orders", 2, 17, 1700000000000, "CreateTime", b"k", b"va\xff", (("a", b"1"), ("b", None)))
NULLS = ReadRecord("orders", 0, 0, None, "NoTimestampType", None, None, ())


@pytest.mark.parametrize(
    ("template", "full", "nulls"),
    [
        ("%s\\n", b"va\xff\n", b"\n"),
        ("%k=%s", b"k=va\xff", b"="),
        ("%K %S", b"1 3", b"-1 -1"),
        ("%R", b"\x00\x00\x00\x03", b"\xff\xff\xff\xff"),
        ("%t/%p@%o", b"orders/2@17", b"orders/0@0"),
        ("%T", b"1700000000000", b"-1"),
        ("%h|", b"a=1,b=NULL|", b"|"),
        ("100%% \\x41\\t\\\\n\\0", b"100% A\t\\n\x00", b"100% A\t\\n\x00"),
        ("%%s", b"%s", b"%s"),
        ("ä", "ä".encode(), "ä".encode()),
        ("", b"", b""),
    ],
)
def test_templates(template: str, full: bytes, nulls: bytes) -> None:
    render = record_formatter(template)
    assert render(RECORD) == full
    assert render(NULLS) == nulls


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("%z", "unknown token '%z': the tokens are %s, %S"),
        ("%", "unknown token '%'"),
        ("%s%", "unknown token '%'"),
        ("%\n", "unknown token"),
        ("\\q", r"unknown escape '\q'"),
        ("\\x4", r"unknown escape '\x'"),
        ("\\", "unknown escape"),
    ],
)
def test_bad_templates(template: str, says: str) -> None:
    with pytest.raises(BadFormat) as refused:
        record_formatter(template)
    assert says in str(refused.value)


def test_json() -> None:
    assert json.loads(record_formatter("json")(RECORD)) == {
        "topic": "orders",
        "partition": 2,
        "offset": 17,
        "timestamp": 1700000000000,
        "timestamp_type": "CreateTime",
        "key": "k",
        "value_base64": "dmH/",
        "headers": [{"key": "a", "value": "1"}, {"key": "b", "value": None}],
    }
    assert json.loads(json_line(NULLS))["key"] is None


def test_escapes_keep_the_rest() -> None:
    assert unescape("a\\tb") == b"a\tb"
    assert unescape("::") == b"::"
