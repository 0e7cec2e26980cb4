"""Times in a column of a table as nanoseconds since 1970 UTC. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy
import pyarrow
import pyarrow.compute as compute
from numpy.typing import NDArray

from protocol.plain_text import shortened

UNITS = {"s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "ns": 1}
"""Name -> nanoseconds."""
HAS_ZONE = r"\d[T ]\d.*(Z|[+-]\d\d(:?\d\d)?)$"
NANOSECONDS = pyarrow.timestamp("ns")
NANOSECONDS_UTC = pyarrow.timestamp("ns", "UTC")
NO_TIME = "{} is not a time: expected for example 2013-01-31T23:59:00.5+01:00"
SHOWN_MAX = 60


@dataclass
class BadTime(ValueError):
    """A value that is not a time: its row in the column, from 0, and what is wrong with it."""

    row: int
    reason: str


def times_ns(column: pyarrow.Array, unit: str | None, zone: str) -> NDArray[numpy.int64]:
    """`unit`: of numbers; None if there are none. `zone`: of times without a time zone. Raises BadTime.

    A local time that the clocks show twice in autumn is the first one. One that they skip in spring is the moment of the change.
    """
    _refuse(column, column.is_null(), "has no time")
    if pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    kind = column.type
    if pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind):
        return _of_numbers(_numbers_of(column), unit) if unit else _of_texts(column, zone)
    if pyarrow.types.is_temporal(kind) and not pyarrow.types.is_time(kind) and not pyarrow.types.is_duration(kind):
        return _of_moments(column, zone)
    if not (pyarrow.types.is_integer(kind) or pyarrow.types.is_floating(kind) or pyarrow.types.is_decimal(kind)):
        raise BadTime(0, f"is of type {kind}, expected a text, a timestamp or a number")
    if unit is None:
        raise BadTime(0, f"{_shown(column, 0)} is a number; say with --time-unit what the numbers count since 1970")
    return _of_numbers(column, unit)


def _of_texts(column: pyarrow.Array, zone: str) -> NDArray[numpy.int64]:
    """ISO 8601, some with a zone and some without."""
    has_zone = compute.match_substring_regex(column, HAS_ZONE)
    is_number = compute.match_substring_regex(column, r"^[+-]?\d+([.]\d*)?$")
    _refuse(column, is_number, "{} is a number; say with --time-unit what the numbers count since 1970")
    zoned = numpy.flatnonzero(has_zone.to_numpy(zero_copy_only=False))
    local = numpy.flatnonzero(compute.invert(has_zone).to_numpy(zero_copy_only=False))
    times = numpy.empty(len(column), numpy.int64)
    for rows, kind in ((zoned, NANOSECONDS_UTC), (local, NANOSECONDS)):
        if len(rows):
            texts = column if len(rows) == len(column) else column.take(rows)
            times[rows] = _of_moments(_cast(texts, kind, NO_TIME, rows), zone, rows)
    return times


def _of_moments(column: pyarrow.Array, zone: str, rows: NDArray[numpy.int64] | None = None) -> NDArray[numpy.int64]:
    """`rows`: where the values are in the column of the table."""
    is_local = getattr(column.type, "tz", None) is None
    column = _cast(column, NANOSECONDS if is_local else NANOSECONDS_UTC, "{} is outside 1678 to 2262", rows)
    if is_local:
        column = compute.assume_timezone(column, zone, ambiguous="earliest", nonexistent="latest")
    times: NDArray[numpy.int64] = column.cast(pyarrow.int64()).to_numpy()
    return times


def _numbers_of(column: pyarrow.Array) -> pyarrow.Array:
    """Texts as whole numbers if all are, else as numbers with fractions."""
    try:
        return column.cast(pyarrow.int64())
    except pyarrow.ArrowInvalid:
        return _cast(column, pyarrow.float64(), "{} is not a number, as --time-unit expects")


def _of_numbers(column: pyarrow.Array, unit: str) -> NDArray[numpy.int64]:
    if pyarrow.types.is_integer(column.type):
        factor = UNITS[unit]
        numbers = column.to_numpy(zero_copy_only=False)
        limit = (2**63 - 1) // factor
        is_wrong = (numbers > limit) | (numbers < -limit)
        _refuse(column, pyarrow.array(is_wrong), "{} is too large for a time in " + unit)
        times: NDArray[numpy.int64] = numbers.astype(numpy.int64) * factor
        return times
    floats = column.cast(pyarrow.float64()).to_numpy(zero_copy_only=False) * UNITS[unit]
    _refuse(column, pyarrow.array(~(numpy.abs(floats) < 2.0**63)), "{} is not a time in " + unit)
    rounded: NDArray[numpy.int64] = numpy.rint(floats).astype(numpy.int64)
    return rounded


def _refuse(column: pyarrow.Array, is_wrong: pyarrow.Array, reason: str) -> None:
    """Raises BadTime for the first row that is wrong."""
    at = compute.index(is_wrong, True).as_py()
    if at >= 0:
        raise BadTime(at, reason.replace("{}", _shown(column, at)))


def _cast(
    column: pyarrow.Array, kind: pyarrow.DataType, reason: str, rows: NDArray[numpy.int64] | None = None
) -> pyarrow.Array:
    """Raises BadTime for the first value that does not convert. `rows`: where the values are in the column of the table."""
    try:
        return column.cast(kind)
    except pyarrow.ArrowInvalid:
        pass
    low, high = 0, len(column)  # everything before `low` converts
    while high - low > 1:
        middle = (low + high) // 2
        try:
            column.slice(low, middle - low).cast(kind)
            low = middle
        except pyarrow.ArrowInvalid:
            high = middle
    raise BadTime(low if rows is None else int(rows[low]), reason.replace("{}", _shown(column, low)))


def _shown(column: pyarrow.Array, at: int) -> str:
    value: Any = column[at].cast(pyarrow.string()).as_py()
    return "null" if value is None else repr(shortened(value, SHOWN_MAX))
