"""Texts from outside in one line: they cannot control a terminal, forge a log line or reorder its text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.plain_text import escaped, escaped_lines, shortened


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("Grüße, 世界", "Grüße, 世界"),
        ("a\nb", r"a\nb"),
        ("a\r\tb", r"a\r\tb"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\x9b2J\x7f\x00", r"\x9b2J\x7f\x00"),
        ("\u2028\u2029\u202e\u2066\u200f", r"\u2028\u2029\u202e\u2066\u200f"),
        ("\udc80\U000e0041", r"\udc80\U000e0041"),
        (r"C:\new", r"C:\new"),
    ],
)
def test_escaped(text: str, shown: str) -> None:
    assert escaped(text) == shown


@given(st.text())
def test_any_text_becomes_one_printable_line(text: str) -> None:
    assert escaped(text).isprintable()
    escaped(text).encode()
    assert escaped_lines(text).count("\n") == text.count("\n")


def test_shortened() -> None:
    assert shortened("abc", 3) == "abc"
    assert shortened("a" * 2000, 3) == "aaa... (1,997 more characters)"
