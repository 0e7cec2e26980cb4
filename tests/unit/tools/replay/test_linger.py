"""Batches as a producer with linger.ms and batch.size makes them."""

from __future__ import annotations

import pyarrow
from hypothesis import given
from hypothesis import strategies as st

from protocol.kafka.record_batch import HEADER_SIZE, build_batch
from tools.replay.traces.linger import gather

Event = tuple[int, str, int | None]
"""Time in milliseconds, client, hash of the key. Each has a null key and a value of 40 bytes: a body of 44."""
BODY = 44


SCHEMA = pyarrow.schema(
    [
        *((name, pyarrow.int64()) for name in ("time_ns", "partition", "key_hash", "body", "records", "bytes")),
        *((name, pyarrow.string()) for name in ("client", "topic")),
    ]
)


def batches(events: list[Event], linger_ms: int, batch_bytes: int, at_once: int) -> list[tuple[object, ...]]:
    """Of a topic with two partitions, in the order of their times."""
    given_rows = [
        {
            **{"time_ns": time * 10**6, "client": client, "topic": "t", "key_hash": key_hash, "body": BODY},
            **{"partition": -1 if key_hash is None else key_hash % 2},
        }
        for time, client, key_hash in events
    ]
    given_rows.sort(key=lambda row: (row["client"], row["partition"]))
    tables = [
        pyarrow.RecordBatch.from_pylist(given_rows[first : first + at_once], SCHEMA)
        for first in range(0, len(events), at_once)
    ]
    names = ("client", "partition", "records", "bytes")
    rows = [row for table in gather(linger_ms, batch_bytes, tables) for row in table.to_pylist()]
    rows.sort(key=lambda row: row["time_ns"])
    return [(row["time_ns"] / 10**6, *(row[name] for name in names)) for row in rows]


def size(*deltas_ms: int) -> int:
    return len(build_batch([(None, bytes(40), (), delta) for delta in deltas_ms]))


def test_a_batch_leaves_when_its_first_record_has_waited() -> None:
    events: list[Event] = [(0, "a", 4), (3, "b", 4), (4, "a", 6), (9, "a", None), (10, "a", 4), (300, "a", 1)]
    assert batches(events, 10, 1000, 100) == [
        (10, "a", 0, 2, size(0, 4)),
        (13, "b", 0, 1, size(0)),
        (19, "a", -1, 1, size(0)),
        (20, "a", 0, 1, size(0)),
        (310, "a", 1, 1, size(0)),
    ]


def test_a_full_batch_leaves_at_once() -> None:
    events: list[Event] = [(0, "a", 0), (1, "a", 0), (2, "a", 0), (3, "a", 0)]
    assert batches(events, 10, size(0, 1), 100) == [(2, "a", 0, 2, size(0, 1)), (12, "a", 0, 2, size(0, 1))]
    assert [records for *_, records, _ in batches(events, 10, 1, 100)] == [1, 1, 1, 1]


EVENTS = st.lists(st.tuples(st.integers(0, 60), st.sampled_from("ab"), st.none() | st.integers(0, 3)), max_size=40)


@given(EVENTS, st.integers(1, 20), st.integers(1, 500), st.integers(1, 50))
def test_no_record_is_lost_or_late(events: list[Event], linger_ms: int, batch_bytes: int, at_once: int) -> None:
    events.sort(key=lambda event: event[0])
    found = batches(events, linger_ms, batch_bytes, at_once)
    assert found == batches(events, linger_ms, batch_bytes, 1)
    assert sum(row[3] for row in found) == len(events)  # type: ignore[misc]
    assert all(row[4] <= max(batch_bytes, HEADER_SIZE + 50) for row in found)  # type: ignore[operator]
    for client in "ab":
        for partition in (-1, 0, 1):
            mine = [time for time, by, key in events if by == client and (-1 if key is None else key % 2) == partition]
            for time, *owner, records, _ in found:
                if owner == [client, partition]:
                    taken, mine = mine[: int(records)], mine[int(records) :]  # type: ignore[call-overload]
                    assert taken[-1] <= time <= taken[0] + linger_ms  # type: ignore[operator]
