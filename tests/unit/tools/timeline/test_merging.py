"""Event logs of several clocks become one list: offsets are measured, causes come before effects (OBS-1)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.timeline.merging import ROUNDING_MS, Event, clock_offsets, events_of_rows, merged, on_one_clock

SENT, RECEIVED, DONE, ANSWERED = (f"control_request_{end}" for end in ("sent", "received", "done", "answered"))


def event(at_ms: float, broker: int, kind: str, /, **fields: Any) -> Event:
    return Event(at_ms, broker, kind, {"time_ms": at_ms, "kind": kind, **fields})


def exchange(number: int, at_ms: float, delays: tuple[float, float, float], ahead_ms: float) -> dict[int, list[Event]]:
    """One request of controller 1 to broker 2, whose clock is ahead: sent, on its way, carried out, on its way back."""
    there, work, back = delays
    about = {"controller_epoch": 1, "number": number, "request": "LeaderAndIsr"}
    arrived = at_ms + there + ahead_ms
    return {
        1: [
            event(at_ms, 1, SENT, broker=2, **about),
            event(at_ms + there + work + back, 1, ANSWERED, broker=2, **about),
        ],
        2: [event(arrived, 2, RECEIVED, controller=1, **about), event(arrived + work, 2, DONE, controller=1, **about)],
    }


def together(*exchanges: Mapping[int, list[Event]]) -> dict[int, list[Event]]:
    return {broker: [one for each in exchanges for one in each[broker]] for broker in (1, 2)}


DELAYS = st.tuples(*(st.floats(0, 50) for _ in range(3)))


@given(st.floats(-1e7, 1e7), st.lists(DELAYS, min_size=1, max_size=8))
def test_the_true_offset_is_within_the_measured_bounds(
    ahead_ms: float, delays: list[tuple[float, float, float]]
) -> None:
    logs = together(*(exchange(number, 1000.0 * number, each, ahead_ms) for number, each in enumerate(delays, 1)))
    reference, other = clock_offsets(logs)
    assert (reference.broker, reference.is_reference, other.broker) == (1, True, 2)
    assert other.low_ms is not None
    assert other.high_ms is not None
    assert other.low_ms - 0.01 <= ahead_ms <= other.high_ms + 0.01
    least = min(there + back for there, _, back in delays)
    assert other.high_ms - other.low_ms <= least + 2 * ROUNDING_MS + 0.02, "no wider than the fastest round trip"
    corrected = on_one_clock(logs, [reference, other])[2][0].at_ms
    assert abs(corrected - (1000 + delays[0][0])) <= least + ROUNDING_MS + 0.02


def test_clocks_that_may_be_equal_are_taken_as_equal() -> None:
    _, other = clock_offsets(exchange(1, 0.0, (3.0, 5.0, 1.0), ahead_ms=1.0))
    assert (other.low_ms, other.high_ms, other.offset_ms) == (-1.0, 5.0, 0.0)


def test_a_broker_without_requests_is_not_measured() -> None:
    logs = {**exchange(1, 0.0, (1.0, 1.0, 1.0), 500.0), 3: [event(5.0, 3, "stopped")]}
    offsets = {offset.broker: offset for offset in clock_offsets(logs)}
    assert (offsets[3].low_ms, offsets[3].high_ms) == (None, None)
    assert offsets[3].offset_ms == 0.0
    assert None not in (offsets[2].low_ms, offsets[2].high_ms)


def test_a_clock_is_measured_through_another_broker() -> None:
    """Broker 3 was only asked by broker 2, in a later term."""
    first = exchange(1, 0.0, (1.0, 1.0, 1.0), 100.0)
    about = {"controller_epoch": 2, "number": 1, "request": "LeaderAndIsr"}
    second = [event(1100.0, 2, SENT, broker=3, **about), event(1103.0, 2, ANSWERED, broker=3, **about)]
    third = [event(1501.0, 3, RECEIVED, controller=2, **about), event(1502.0, 3, DONE, controller=2, **about)]
    offsets = {o.broker: o.offset_ms for o in clock_offsets({1: first[1], 2: first[2] + second, 3: third})}
    assert offsets == pytest.approx({1: 0.0, 2: 100.0, 3: 500.0})


@given(st.lists(DELAYS, min_size=1, max_size=6), st.lists(st.integers(0, 3), max_size=20))
def test_causes_come_before_effects_and_each_log_keeps_its_order(
    delays: list[tuple[float, float, float]], more: list[int]
) -> None:
    """Times are whole milliseconds, so causes and effects often have the same one."""
    logs = together(*(exchange(number, 200.0 * number, each, 0.0) for number, each in enumerate(delays, 1)))
    whole = {
        broker: [Event(float(int(one.at_ms)), broker, one.kind, one.row) for one in events]
        for broker, events in logs.items()
    }
    noise = [event(200.0 + at, 3, "noise", at=at) for at in sorted(more)]
    # Broker 2 comes first: without the rule, its events of the same millisecond would, too.
    result = list(merged([whole[2], noise, whole[1]]))
    assert len(result) == sum(map(len, whole.values())) + len(noise)
    for broker, events in ((1, whole[1]), (2, whole[2]), (3, noise)):
        assert [one for one in result if one.broker == broker] == events
    for number in range(1, len(delays) + 1):
        kinds = [one.kind for one in result if one.row.get("number") == number]
        assert kinds == [SENT, RECEIVED, DONE, ANSWERED]


def test_rows_without_a_time_or_a_kind_are_left_out() -> None:
    rows: list[dict[str, Any]] = [
        {"kind": "a"},
        {"time_ms": 1},
        {"time_ms": True, "kind": "a"},
        {"time_ms": "x", "kind": "a"},
    ]
    assert list(events_of_rows(rows, 1)) == []


def test_logs_of_any_size_are_merged_side_by_side() -> None:
    """Only what is within the slack is read ahead."""
    read = dict.fromkeys((1, 2), 0)

    def endless(broker: int) -> Iterator[Event]:
        sender = ("control_request_sent", "control_request_answered")
        kinds = sender if broker == 1 else ("control_request_received", "control_request_done")
        for number in itertools.count():
            for at, kind in enumerate(kinds):
                read[broker] += 1
                row = {"controller_epoch": 1, "number": number, **({"broker": 2} if broker == 1 else {})}
                yield Event(10.0 * number + 2 * at, broker, kind, row)

    found = list(itertools.islice(merged([endless(2), endless(1)]), 4000))
    assert [event.kind.rpartition("_")[2] for event in found[:4]] == ["sent", "received", "done", "answered"]
    assert sum(read.values()) < 4020
