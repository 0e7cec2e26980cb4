"""The flights as a trace without keys and values (RPL-5)."""

from __future__ import annotations

import zlib
from datetime import date
from pathlib import Path

import pytest

from tests.support.small_traces import rows_of
from tools.replay.traces.check import check
from tools.replay.traces.flights import PARTITIONS, events_on, write_flights_trace
from tools.replay.traces.schema import Trace, TraceError

DAY = date(2013, 11, 3)
GAP_MS = 600_000


def test_a_day(tmp_path: Path) -> None:
    out = tmp_path / "day"
    events = write_flights_trace(out, DAY, 1)
    assert events == 1800
    assert check(out).count == 0
    assert Trace(out).info.topics == {"departures": PARTITIONS}
    rows = rows_of(out, "op", "time_ns", "client", "partition", "key_hash", "records", "bytes", "group")
    produces, fetches = rows[::2], rows[1::2]
    assert len(produces) == len(fetches) == events
    assert [time for _, time, *_ in produces] == sorted(time for _, time, *_ in produces)
    for (op, time, client, partition, key_hash, records, size, _), fetch in zip(produces, fetches, strict=True):
        assert (op, partition, key_hash, records) == ("produce", -1, zlib.crc32(client.encode()), 1)
        place = key_hash % PARTITIONS
        assert fetch == ("fetch", time, f"reader-{place}", place, None, 1, size, None)
    assert {place for *_, place, _, _, _, _ in fetches} == set(range(PARTITIONS))


def test_the_first_departure_and_its_arrival() -> None:
    """UA1545 left Newark at 05:17 and landed in Houston at 08:30, an hour behind."""
    events = events_on(date(2013, 1, 1), 1).to_pylist()
    times = [f"{event['at']:%H:%M}" for event in events if event["carrier"] == "UA"]
    assert times[0] == "10:17"
    assert "14:30" in times
    assert {event["scheduled"] for event in events} == {date(2013, 1, 1)}


def test_readers_that_fetch_less_often(tmp_path: Path) -> None:
    """Once in each gap and partition, at its last event in it, for all of them."""
    out = tmp_path / "day"
    events = write_flights_trace(out, DAY, 1, GAP_MS * 1_000_000)
    assert check(out).count == 0
    rows = rows_of(out, "op", "time_ns", "partition", "key_hash", "records", "bytes")
    expected: dict[tuple[int, int], tuple[int, int, int]] = {}
    for _, time, _, key_hash, _, size in (row for row in rows if row[0] == "produce"):
        gap = (time // GAP_MS, key_hash % PARTITIONS)
        _, records, total = expected.get(gap, (0, 0, 0))
        expected[gap] = (time, records + 1, total + size)
    fetches = [row for row in rows if row[0] == "fetch"]
    found = {(time // GAP_MS, place): (time, records, size) for _, time, place, _, records, size in fetches}
    assert found == expected
    assert len(fetches) == len(found) < events / 2


@pytest.mark.parametrize(("day", "days"), [(date(2013, 12, 31), 2), (date(2012, 12, 31), 1), (DAY, 0)])
def test_days_outside_of_the_table(tmp_path: Path, day: date, days: int) -> None:
    with pytest.raises(TraceError, match="not all in 2013"):
        write_flights_trace(tmp_path / "out", day, days)
    assert list(tmp_path.iterdir()) == []
