"""Names and numbers from outside (BAD-26)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.topic_names import INT_MAX, SHOWN_MAX, is_partition_number, is_valid_topic_name, number_of, shown

ILLEGAL = ["", ".", "..", "/", "a/b", "../../x", "a\0b", "a\n", "\n", "ü", "a b", "x" * 250, "٣", None, b"a", 1, ["a"]]


LEGAL = ["a", "...", ".a", "-", "_", "a.b-c_D9", "x" * 249]


@pytest.mark.parametrize(
    ("name", "is_legal"), [*((name, True) for name in LEGAL), *((name, False) for name in ILLEGAL)]
)
def test_names(name: object, is_legal: bool) -> None:
    assert is_valid_topic_name(name) is is_legal


@pytest.mark.parametrize(
    "text", ["", "-1", "+1", "01", "00", "1_0", " 1", "1\n", "²", "٣", "9" * 5000, str(INT_MAX + 1), "NaN"]
)
def test_texts_that_are_not_numbers(text: str) -> None:
    assert number_of(text) is None


@given(st.integers(0, INT_MAX))
def test_every_number_has_one_text(number: int) -> None:
    assert number_of(str(number)) == number
    assert is_partition_number(number)


@pytest.mark.parametrize("number", [-1, INT_MAX + 1, 2**70, True, 1.0, float("nan"), "1", None])
def test_values_that_are_not_partition_numbers(number: object) -> None:
    assert not is_partition_number(number)


@given(st.text() | st.none() | st.integers() | st.lists(st.text()))
def test_a_shown_name_is_one_short_printable_line(name: object) -> None:
    line = shown(name)
    assert line.isascii()
    assert line.isprintable()
    assert len(line) <= 10 * SHOWN_MAX + 40
