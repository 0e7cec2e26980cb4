"""hypothesis strategies for the values that Kafka's messages hold, and for whole messages."""

from __future__ import annotations

import types
import typing
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from hypothesis import strategies as st

int16s = st.integers(-(2**15), 2**15 - 1)
int32s = st.integers(-(2**31), 2**31 - 1)
int64s = st.integers(-(2**63), 2**63 - 1)
error_codes = st.integers(-1, 107)
durations_ms = st.integers(0, 2**31 - 1)
times_ms = st.integers(-1, 4_000_000_000_000)
names = st.text(max_size=20) | st.integers(100, 249).map("t".ljust)
uuids = st.uuids()
"""All-zero does not occur: it is kio's None."""
blobs = st.binary(max_size=50) | st.integers(100, 20_000).map(bytes)

VALUES: dict[str, st.SearchStrategy[Any]] = {
    "bool": st.booleans(),
    "int8": st.integers(-128, 127),
    "int16": int16s,
    "int32": int32s,
    "int64": int64s,
    "string": names,
    "bytes": blobs,
    "records": blobs,
    "error_code": error_codes,
    "timedelta_i32": durations_ms,
    "timedelta_i64": durations_ms,
    "datetime_i64": times_ms,
    "uuid": uuids,
}
NULL_IS_A_VALUE = ("datetime_i64", "uuid")

Special = tuple[tuple[str, st.SearchStrategy[Any]], ...]


@cache
def bodies(schemas: Sequence[Any], special: Special = ()) -> st.SearchStrategy[dict[str, Any]]:
    """Bodies in our form, for the first of kio's schemas: its fields, and those that only the other schemas have.

    `special` has the values of some fields, by name.
    """
    kinds: dict[str, tuple[list[Any], str | None]] = {}
    for schema in schemas:
        hints = typing.get_type_hints(schema)
        for field in fields(schema):
            kinds.setdefault(field.name, ([], field.metadata.get("kafka_type")))[0].append(hints[field.name])
    found = {name: _values(hints, kafka_type, special) for name, (hints, kafka_type) in kinds.items()}
    return st.fixed_dictionaries(found | {name: values for name, values in special if name in found})


def _values(hints: Sequence[Any], kafka_type: str | None, special: Special) -> st.SearchStrategy[Any]:
    if _is_union(hints[0]):
        inner = _values([_without_null(hint) for hint in hints], kafka_type, special)
        return inner if kafka_type in NULL_IS_A_VALUE else st.none() | inner
    hints = [_without_null(hint) for hint in hints]
    if typing.get_origin(hints[0]) is tuple:
        return st.lists(_values([typing.get_args(hint)[0] for hint in hints], kafka_type, special), max_size=2)
    if is_dataclass(hints[0]):
        return bodies(tuple(hints), special)
    assert kafka_type is not None
    return VALUES[kafka_type]


def _without_null(hint: Any) -> Any:
    return next((inner for inner in typing.get_args(hint) if _is_union(hint) and inner is not type(None)), hint)


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)
