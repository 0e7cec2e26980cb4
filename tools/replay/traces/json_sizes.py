"""The size of a table's rows as JSON, without writing the JSON. Pure.

A row is one object without blanks, in UTF-8: `{"a":1,"b":"x"}`. Its size is that of Python's json.dumps(row, ensure_ascii=False,
separators=(",", ":")), with the values as Arrow writes them; times and bytes are texts. The rows of a CSV file have only texts: those
that are a JSON number, true or false are counted without quotes, and an empty one is null.
"""

from __future__ import annotations

import json

import numpy
import pyarrow
import pyarrow.compute as compute
from numpy.typing import NDArray

QUOTES = 2
NULL = 4
LITERAL = r"^(-?(0|[1-9][0-9]*)([.][0-9]+)?([eE][+-]?[0-9]+)?|true|false)$"
ESCAPED = r'["\\\x08\x09\x0a\x0c\x0d]'
"""Characters that JSON writes as two."""
ESCAPED_LONG = r"[\x00-\x07\x0b\x0e-\x1f]"
"""Characters that JSON writes as six."""

Numbers = NDArray[numpy.int64]


def json_sizes(rows: pyarrow.RecordBatch, *, guess_types: bool) -> Numbers:
    """The size of each row in bytes. `guess_types`: the rows are those of a CSV file."""
    names = [len(json.dumps(name, ensure_ascii=False).encode()) + len(":") for name in rows.schema.names]
    fixed = len("{}") + sum(names) + max(0, len(names) - 1) * len(",")
    sizes = numpy.full(rows.num_rows, fixed, numpy.int64)
    for column in rows.columns:
        sizes += compute.fill_null(_sizes(column, guess_types), NULL).to_numpy()
    return sizes


def _sizes(column: pyarrow.Array, guess_types: bool) -> pyarrow.Array:
    """The size of each value; null for null."""
    kind = column.type
    if pyarrow.types.is_dictionary(kind):
        return _sizes(column.dictionary, guess_types).take(column.indices)
    if pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind):
        return _text_sizes(column, guess_types)
    if pyarrow.types.is_nested(kind):
        texts = [
            None if value is None else json.dumps(value, ensure_ascii=False, default=str)
            for value in column.to_pylist()
        ]
        return pyarrow.array([None if text is None else len(text.encode()) for text in texts], pyarrow.int64())
    if pyarrow.types.is_binary(kind) or pyarrow.types.is_large_binary(kind) or pyarrow.types.is_fixed_size_binary(kind):
        return compute.add(compute.binary_length(column.cast(pyarrow.large_binary())), QUOTES)
    sizes = compute.binary_length(column.cast(pyarrow.string())).cast(pyarrow.int64())
    is_bare = pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind) or pyarrow.types.is_boolean(kind)
    return sizes if is_bare or pyarrow.types.is_decimal(kind) else compute.add(sizes, QUOTES)


def _text_sizes(column: pyarrow.Array, guess_types: bool) -> pyarrow.Array:
    lengths = compute.binary_length(column).cast(pyarrow.int64())
    longer = compute.add(
        compute.count_substring_regex(column, ESCAPED),
        compute.multiply(compute.count_substring_regex(column, ESCAPED_LONG), 5),
    ).cast(pyarrow.int64())
    sizes = compute.add(compute.add(lengths, longer), QUOTES)
    if not guess_types:
        return sizes
    is_literal = compute.match_substring_regex(column, LITERAL)
    return compute.if_else(is_literal, lengths, compute.if_else(compute.equal(lengths, 0), NULL, sizes))
