"""Numbers from outside: the forms of Kafka's settings, and none that only Python accepts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.numbers import decimal_number, is_plain_number, whole_number

NO_NUMBERS = ["", " ", "+", "-", "1_0", "1 0", "0x10", "١٠", "²", "\uff11\uff10", "1" * 5000, "1\xa0"]
NO_NUMBERS += ["nan", "NaN", "inf", "Infinity", "-inf"]


@pytest.mark.parametrize("text", [*NO_NUMBERS, "1.0", "1e3"])
def test_other_texts_are_not_whole_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="whole number"):
        whole_number(text)


@pytest.mark.parametrize("text", [*NO_NUMBERS, "1_0.5", "1e400", "1f", "1d", ".", "e5", "0x1p3"])
def test_other_texts_are_not_decimal_numbers(text: str) -> None:
    with pytest.raises(ValueError, match="number"):
        decimal_number(text)


@given(st.integers())
def test_whole_numbers(number: int) -> None:
    text = str(number)
    if len(text) <= 400:
        assert whole_number(f" \t{text}\r\n") == number
        assert is_plain_number(text) == (number >= 0)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_decimal_numbers(number: float) -> None:
    assert decimal_number(repr(number)) == number


@given(st.text(max_size=20))
def test_any_text_is_a_number_or_an_error(text: str) -> None:
    try:
        assert math.isfinite(decimal_number(text))
        assert text.isascii()
    except ValueError:
        return


@pytest.mark.parametrize("text", ["+5", "-5", " 5", "5 ", "", "5\n", *NO_NUMBERS])
def test_other_texts_are_not_plain_numbers(text: str) -> None:
    assert not is_plain_number(text)
