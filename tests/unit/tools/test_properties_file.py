"""Properties files mean what they mean to Java."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.properties_file import BadProperties, read_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=b", [("a", "b", 1)]),
        ("# c\n! c\n\n  a = b = c \r\nd:e\nf g\nh", [("a", "b = c", 4), ("d", "e", 5), ("f", "g", 6), ("h", "", 7)]),
        ("a=one \\\n   two\\\n three\nb=4", [("a", "one twothree", 1), ("b", "4", 4)]),
        ("a=b\\\\\nc=d", [("a", "b\\", 1), ("c", "d", 2)]),
        ("a=one\\\n# no comment", [("a", "one# no comment", 1)]),
        (r"a\=b\:c=d", [("a=b:c", "d", 1)]),
        (r"a=\u0041\tb\n\q\\", [("a", "A\tb\nq\\", 1)]),
        ("a=b\\", [("a", "b", 1)]),
        ("a=1\na=2", [("a", "1", 1), ("a", "2", 2)]),
        ("a=", [("a", "", 1)]),
    ],
)
def test_lines(text: str, expected: list[tuple[str, str, int]]) -> None:
    assert read_properties(text) == expected


def test_an_error_says_the_line_and_no_value() -> None:
    with pytest.raises(BadProperties, match=r"^line 2: \\u needs four hexadecimal digits; write \\\\ for a backslash$"):
        read_properties("a=b\npassword=secret\\u12")
    for half in (r"\uD83D", r"\uDE00\uD83D", r"\uD83Dx"):
        with pytest.raises(
            BadProperties, match=r"^line 2: an escape is half of a surrogate pair, which is no character$"
        ):
            read_properties(f"a=b\npassword=secret{half}")


@given(st.dictionaries(st.text(min_size=1), st.text().map(str.strip)))
def test_what_is_escaped_is_read_back(properties: dict[str, str]) -> None:
    def escaped(text: str) -> str:
        units = text.encode("utf-16-be", "surrogatepass")
        return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))

    basic = {key: value for key, value in properties.items() if max(key + value) <= "\uffff"}
    text = "\n".join(f"{escaped(key)}={escaped(value)}" for key, value in basic.items())
    assert {key: value for key, value, _ in read_properties(text)} == basic
