"""Times of all kinds become nanoseconds, and one that is none is found."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.replay.traces.event_times import BadTime, times_ns

MILLENNIUM = 946_684_800
"""2000-01-01T00:00:00Z in seconds."""
NEW_YORK = "America/New_York"


@pytest.mark.parametrize(
    ("values", "kind", "unit", "zone", "seconds"),
    [
        (["2000-01-01T00:00:00Z", "2000-01-01 01:00:00+01:00", "2000-01-01"], pyarrow.string(), None, "UTC", 0),
        (["1999-12-31T19:00", "1999-12-31 19:00:00-0500"], pyarrow.string(), None, NEW_YORK, 0),
        (["946684800", "946684800.0"], pyarrow.string(), "s", "UTC", 0),
        (["946684800000"], pyarrow.large_string(), "ms", NEW_YORK, 0),
        ([946684800000000], pyarrow.int64(), "us", "UTC", 0),
        ([946684800.5], pyarrow.float64(), "s", "UTC", 0.5),
        ([Decimal("946684800.5")], pyarrow.decimal128(20, 3), "s", "UTC", 0.5),
        ([datetime(2000, 1, 1)], pyarrow.timestamp("us"), None, NEW_YORK, 5 * 3600),
        ([datetime(2000, 1, 1, tzinfo=UTC)], pyarrow.timestamp("s", NEW_YORK), None, "UTC", 0),
        ([date(2000, 1, 1)], pyarrow.date32(), None, "UTC", 0),
        ([], pyarrow.string(), None, "UTC", 0),
    ],
)
def test_times(values: list[Any], kind: pyarrow.DataType, unit: str | None, zone: str, seconds: float) -> None:
    found = times_ns(pyarrow.array(values, kind), unit, zone)
    assert found.tolist() == [int((MILLENNIUM + seconds) * 10**9)] * len(values)


def test_hours_of_a_change_of_the_clocks() -> None:
    """Shown twice: the first. Skipped: the moment of the change."""
    column = pyarrow.array(["2013-11-03 01:30", "2013-03-10 02:30"])
    moments = [datetime(2013, 11, 3, 5, 30, tzinfo=UTC), datetime(2013, 3, 10, 7, tzinfo=UTC)]
    assert times_ns(column, None, NEW_YORK).tolist() == [int(moment.timestamp()) * 10**9 for moment in moments]


@given(st.lists(st.tuples(st.datetimes(datetime(1700, 1, 1), datetime(2250, 1, 1)), st.none() | st.integers(-14, 14))))
def test_texts_with_and_without_zones(moments: list[tuple[datetime, int | None]]) -> None:
    zones = [UTC if hours is None else timezone(timedelta(hours=hours)) for _, hours in moments]
    texts = [
        (moment if hours is None else moment.replace(tzinfo=zone)).isoformat()
        for (moment, hours), zone in zip(moments, zones, strict=True)
    ]
    since = [
        moment.replace(tzinfo=zone) - datetime(1970, 1, 1, tzinfo=UTC)
        for (moment, _), zone in zip(moments, zones, strict=True)
    ]
    expected = [each // timedelta(microseconds=1) * 1000 for each in since]
    assert times_ns(pyarrow.array(texts, pyarrow.string()), None, "UTC").tolist() == expected


@pytest.mark.parametrize(
    ("values", "kind", "unit", "row", "says"),
    [
        (["2000-01-01", None], pyarrow.string(), None, 1, "has no time"),
        (
            ["2000-01-01", "2000-01-01T00:00Z", "2000-13-01", "x"],
            pyarrow.string(),
            None,
            2,
            "'2000-13-01' is not a time",
        ),
        (["2000-01-01", "946684800"], pyarrow.string(), None, 1, "say with --time-unit"),
        ([1], pyarrow.int64(), None, 0, "say with --time-unit"),
        (["1", "1.5", "now"], pyarrow.string(), "s", 2, "'now' is not a number"),
        ([1, 2**62], pyarrow.int64(), "s", 1, "too large for a time in s"),
        ([0.5, float("nan")], pyarrow.float64(), "s", 1, "is not a time in s"),
        ([datetime(2000, 1, 1), datetime(9000, 1, 1)], pyarrow.timestamp("s"), None, 1, "outside 1678 to 2262"),
        ([True], pyarrow.bool_(), None, 0, "is of type bool"),
        ([[1]], pyarrow.list_(pyarrow.int64()), None, 0, "is of type list"),
    ],
)
def test_no_times(values: list[Any], kind: pyarrow.DataType, unit: str | None, row: int, says: str) -> None:
    with pytest.raises(BadTime) as caught:
        times_ns(pyarrow.array(values, kind), unit, "UTC")
    assert caught.value.row == row
    assert says in caught.value.reason
