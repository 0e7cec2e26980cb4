"""Sizes of rows as JSON are those of the JSON that Python writes."""

from __future__ import annotations

import json
from typing import Any

import pyarrow
from hypothesis import given
from hypothesis import strategies as st

from tools.replay.traces.json_sizes import json_sizes

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
LIKE_NUMBERS = st.text("0123456789-+.eE", max_size=6) | st.sampled_from(["true", "false", "null", "1\n", "NaN"])


def size(row: dict[str, Any]) -> int:
    return len(json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode())


@given(
    TEXT, st.lists(st.tuples(st.none() | TEXT, st.none() | st.integers(-(2**63), 2**63 - 1), st.none() | st.booleans()))
)
def test_rows_with_types(name: str, rows: list[tuple[str | None, int | None, bool | None]]) -> None:
    names = [f"1{name}", "number", "flag"]
    columns = [[row[place] for row in rows] for place in range(3)]
    types = (pyarrow.string(), pyarrow.int64(), pyarrow.bool_())
    batch = pyarrow.record_batch([pyarrow.array(*pair) for pair in zip(columns, types, strict=True)], names=names)
    expected = [size(dict(zip(names, row, strict=True))) for row in rows]
    assert json_sizes(batch, guess_types=False).tolist() == expected


def value_of(text: str | None) -> Any:
    """A field of a CSV file as the JSON value that it looks like. The number itself does not matter, only its text."""
    if not text:
        return None
    try:
        value = json.loads(text, parse_constant=str)
    except ValueError:
        return text
    return value if isinstance(value, bool | int | float) and text == text.strip() else text


@given(st.lists(st.none() | TEXT | LIKE_NUMBERS))
def test_rows_of_texts(texts: list[str | None]) -> None:
    batch = pyarrow.record_batch([pyarrow.array(texts, pyarrow.string())], names=["a"])
    expected = []
    for text in texts:
        value = value_of(text)
        shown = text if isinstance(value, int | float) else json.dumps(value, ensure_ascii=False)
        expected.append(len(f'{{"a":{shown}}}'.encode()))
    assert json_sizes(batch, guess_types=True).tolist() == expected
