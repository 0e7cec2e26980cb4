"""Event logs of several brokers become one list, in one order, on one clock. Pure.

Each log has the times of its own machine's clock. A control request that both ends wrote down bounds the difference of two clocks: it
cannot arrive before it was sent, and its answer cannot arrive before it was given.

    sender     sent t1 ............................. answered t4
    receiver            received t2 ....... done t3

    t3 - t4  <=  receiver's clock - sender's clock  <=  t2 - t1
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RequestKey = tuple[int, int, int]
"""(controller epoch, number of the request, broker that gets it): joins the events at both ends."""


@dataclass(frozen=True, slots=True)
class Event:
    """One line of an event log. `broker` wrote it; None: it is from `faults.jsonl`. `at_ms` is on the common clock."""

    at_ms: float
    broker: int | None
    kind: str
    row: Mapping[str, Any]

    @property
    def request_key(self) -> RequestKey | None:
        """None if it is not about a control request, or the line is damaged."""
        other = (
            self.row.get("broker") if self.kind in _OF_SENDER else self.broker if self.kind in _OF_RECEIVER else None
        )
        epoch, number = self.row.get("controller_epoch"), self.row.get("number")
        if isinstance(other, int) and isinstance(epoch, int) and isinstance(number, int):
            return epoch, number, other
        return None


ROUNDING_MS = 1.0
"""Times are whole milliseconds, so the difference of two times is at most this far off."""
_OF_SENDER = ("control_request_sent", "control_request_answered")
_OF_RECEIVER = ("control_request_received", "control_request_done")


@dataclass(frozen=True, slots=True)
class ClockOffset:
    """How far a broker's clock is ahead of the reference clock, in milliseconds: between `low_ms` and `high_ms`. None: not bounded."""

    broker: int
    low_ms: float | None
    high_ms: float | None
    is_reference: bool = False

    @property
    def is_measured(self) -> bool:
        return self.low_ms is not None and self.high_ms is not None

    @property
    def offset_ms(self) -> float:
        """The correction: 0 if the clocks may be equal, otherwise the middle of the bounds."""
        if self.low_ms is None or self.high_ms is None:
            return 0.0
        if self.low_ms <= 0 <= self.high_ms:
            return 0.0
        return (self.low_ms + self.high_ms) / 2


@dataclass(slots=True)
class _Bounds:
    low_ms: float = float("-inf")
    high_ms: float = float("inf")


def events_of_rows(rows: Iterable[Mapping[str, Any]], broker: int | None) -> list[Event]:
    """The events of one log, in its order. Rows without a time or a kind are left out."""
    events = []
    for row in rows:
        time_ms, kind = row.get("time_ms"), row.get("kind")
        if isinstance(time_ms, int | float) and not isinstance(time_ms, bool) and isinstance(kind, str):
            events.append(Event(float(time_ms), broker, kind, row))
    return events


def clock_offsets(logs: Mapping[int, Sequence[Event]]) -> list[ClockOffset]:
    """Measures the clocks of all brokers by the control requests between them.

    The reference, which comes first, is the broker that sent most of them.
    """
    bounds = _bounds_of_pairs(logs)
    sent = {broker: sum(event.kind == "control_request_sent" for event in events) for broker, events in logs.items()}
    if not sent:
        return []
    reference = max(sorted(sent), key=lambda broker: sent[broker])
    known = {reference: _Bounds(0.0, 0.0)}
    waiting = deque([reference])
    while waiting:
        here = waiting.popleft()
        for (sender, receiver), pair in sorted(bounds.items()):
            if here not in (sender, receiver):
                continue
            there = receiver if here == sender else sender
            low, high = (pair.low_ms, pair.high_ms) if here == sender else (-pair.high_ms, -pair.low_ms)
            if there not in known:
                known[there] = _Bounds(known[here].low_ms + low, known[here].high_ms + high)
                waiting.append(there)
    offsets = [_offset(broker, known.get(broker, _Bounds())) for broker in sorted(logs) if broker != reference]
    return [ClockOffset(reference, 0.0, 0.0, is_reference=True), *offsets]


def _offset(broker: int, bounds: _Bounds) -> ClockOffset:
    low, high = bounds.low_ms - ROUNDING_MS, bounds.high_ms + ROUNDING_MS
    is_bounded = float("-inf") < low <= high < float("inf")
    return ClockOffset(broker, low, high) if is_bounded else ClockOffset(broker, None, None)


def _bounds_of_pairs(logs: Mapping[int, Sequence[Event]]) -> dict[tuple[int, int], _Bounds]:
    """(sender, receiver) -> the bounds of the receiver's clock minus the sender's."""
    ends: dict[RequestKey, dict[str, Event]] = {}
    for events in logs.values():
        for event in events:
            key = event.request_key
            if key is not None:
                ends.setdefault(key, {})[event.kind] = event
    bounds: dict[tuple[int, int], _Bounds] = {}
    for found in ends.values():
        sent, received = found.get("control_request_sent"), found.get("control_request_received")
        done, answered = found.get("control_request_done"), found.get("control_request_answered")
        if sent is not None and received is not None and sent.broker != received.broker:
            pair = bounds.setdefault((sent.broker or 0, received.broker or 0), _Bounds())
            pair.high_ms = min(pair.high_ms, received.at_ms - sent.at_ms)
        if done is not None and answered is not None and done.broker != answered.broker:
            pair = bounds.setdefault((answered.broker or 0, done.broker or 0), _Bounds())
            pair.low_ms = max(pair.low_ms, done.at_ms - answered.at_ms)
    return bounds


def on_one_clock(logs: Mapping[int, Sequence[Event]], offsets: Iterable[ClockOffset]) -> dict[int, list[Event]]:
    """The same events with times of the reference clock."""
    by_broker = {offset.broker: offset.offset_ms for offset in offsets}
    return {
        broker: [
            Event(event.at_ms - by_broker.get(broker, 0.0), event.broker, event.kind, event.row) for event in events
        ]
        for broker, events in logs.items()
    }


@dataclass(slots=True)
class _Queue:
    events: Sequence[Event]
    at: int = 0

    @property
    def head(self) -> Event | None:
        return self.events[self.at] if self.at < len(self.events) else None


SLACK_MS = 5.0
"""A request that seems to arrive this much before it was sent is put behind its sending: clocks are read in whole milliseconds."""


def merged(logs: Iterable[Sequence[Event]]) -> list[Event]:
    """All events by time. Each log keeps its order, and a request is sent before it is received, and done before it is answered."""
    queues = [_Queue(events) for events in logs]
    causes: dict[tuple[str, RequestKey], Event] = {}
    for queue in queues:
        for event in queue.events:
            key = event.request_key
            if key is not None:
                causes[event.kind, key] = event
    result: list[Event] = []
    emitted: set[int] = set()
    while True:
        heads = [queue for queue in queues if queue.head is not None]
        if not heads:
            return result
        heads.sort(key=lambda queue: _time(queue.head))
        chosen = next((queue for queue in heads if not _is_early(queue.head, causes, emitted)), heads[0])
        taken = chosen.events[chosen.at]
        chosen.at += 1
        emitted.add(id(taken))
        result.append(taken)


def _time(event: Event | None) -> float:
    assert event is not None
    return event.at_ms


def _is_early(event: Event | None, causes: Mapping[tuple[str, RequestKey], Event], emitted: set[int]) -> bool:
    """Whether the event that caused this one comes a moment later."""
    assert event is not None
    before = {"control_request_received": "control_request_sent", "control_request_answered": "control_request_done"}
    kind, key = before.get(event.kind), event.request_key
    if kind is None or key is None:
        return False
    cause = causes.get((kind, key))
    return (
        cause is not None
        and cause.broker != event.broker
        and id(cause) not in emitted
        and 0 <= cause.at_ms - event.at_ms <= SLACK_MS
    )
