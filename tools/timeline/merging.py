"""Event logs of several brokers become one list, in one order, on one clock. Pure.

Each log has the times of its own machine's clock. A control request that both ends wrote down bounds the difference of two clocks: it
cannot arrive before it was sent, and its answer cannot arrive before it was given.

    sender     sent t1 ............................. answered t4
    receiver            received t2 ....... done t3

    t3 - t4  <=  receiver's clock - sender's clock  <=  t2 - t1
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
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


EVENTS_OF_A_REQUEST = 4
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


def events_of_rows(rows: Iterable[Mapping[str, Any]], broker: int | None, ahead_ms: float = 0.0) -> Iterator[Event]:
    """The events of one log, in its order. Rows without a time or a kind are left out. `ahead_ms`: of its clock."""
    for row in rows:
        time_ms, kind = row.get("time_ms"), row.get("kind")
        if isinstance(time_ms, int | float) and not isinstance(time_ms, bool) and isinstance(kind, str):
            yield Event(float(time_ms) - ahead_ms, broker, kind, row)


def clock_offsets(logs: Mapping[int, Iterable[Event]]) -> list[ClockOffset]:
    """Measures the clocks of all brokers by the control requests between them.

    The logs are read side by side, so that a request is in memory only until both of its ends are read. The reference, which comes
    first, is the broker that sent most of them.
    """
    bounds = _Exchanges()
    sent = dict.fromkeys(logs, 0)
    for event in heapq.merge(*logs.values(), key=_time):
        if event.kind == "control_request_sent" and event.broker is not None:
            sent[event.broker] += 1
        bounds.add(event)
    if not sent:
        return []
    reference = max(sorted(sent), key=lambda broker: sent[broker])
    known = {reference: _Bounds(0.0, 0.0)}
    waiting = deque([reference])
    while waiting:
        here = waiting.popleft()
        for (sender, receiver), pair in sorted(bounds.of_pairs.items()):
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


class _Exchanges:
    """Control requests whose four events are not all read yet. `of_pairs`: (sender, receiver) -> receiver's clock minus sender's."""

    def __init__(self) -> None:
        self.of_pairs: dict[tuple[int, int], _Bounds] = {}
        self._ends: dict[RequestKey, dict[str, tuple[int | None, float]]] = {}
        """Kind of event -> (who wrote it, when)."""

    def add(self, event: Event) -> None:
        key = event.request_key
        if key is None:
            return
        found = self._ends.setdefault(key, {})
        found[event.kind] = event.broker, event.at_ms
        if event.kind in ("control_request_sent", "control_request_received"):
            sent, received = found.get("control_request_sent"), found.get("control_request_received")
            if sent is not None and received is not None and sent[0] != received[0]:
                pair = self.of_pairs.setdefault((sent[0] or 0, received[0] or 0), _Bounds())
                pair.high_ms = min(pair.high_ms, received[1] - sent[1])
        else:
            done, answered = found.get("control_request_done"), found.get("control_request_answered")
            if done is not None and answered is not None and done[0] != answered[0]:
                pair = self.of_pairs.setdefault((answered[0] or 0, done[0] or 0), _Bounds())
                pair.low_ms = max(pair.low_ms, done[1] - answered[1])
        if len(found) == EVENTS_OF_A_REQUEST:
            del self._ends[key]


def on_one_clock(logs: Mapping[int, Sequence[Event]], offsets: Iterable[ClockOffset]) -> dict[int, list[Event]]:
    """The same events with times of the reference clock."""
    by_broker = {offset.broker: offset.offset_ms for offset in offsets}
    return {
        broker: [
            Event(event.at_ms - by_broker.get(broker, 0.0), event.broker, event.kind, event.row) for event in events
        ]
        for broker, events in logs.items()
    }


SLACK_MS = 5.0
"""A request that seems to arrive this much before it was sent is put behind its sending: clocks are read in whole milliseconds."""
CAUSES = MappingProxyType(
    {"control_request_received": "control_request_sent", "control_request_answered": "control_request_done"}
)
"""Kind of event -> the kind of the event at the other end that caused it."""

Waiting = dict[tuple[str, RequestKey], Event]
"""The causes that are read and not in their place yet."""


class _Queue:
    """One log, read as far ahead as the order needs it."""

    def __init__(self, events: Iterable[Event], causes: Waiting) -> None:
        self._events = iter(events)
        self._causes = causes
        self._ahead: deque[Event] = deque()
        self._is_over = False

    @property
    def head(self) -> Event | None:
        if not self._ahead:
            self._read_one()
        return self._ahead[0] if self._ahead else None

    def read_until(self, at_ms: float) -> None:
        """Reads up to the first event after this time."""
        while not self._is_over and (not self._ahead or self._ahead[-1].at_ms <= at_ms):
            self._read_one()

    def take(self) -> Event:
        event = self._ahead.popleft()
        key = event.request_key
        if key is not None and self._causes.get((event.kind, key)) is event:
            del self._causes[event.kind, key]
        return event

    def _read_one(self) -> None:
        event = next(self._events, None)
        if event is None:
            self._is_over = True
            return
        self._ahead.append(event)
        key = event.request_key
        if key is not None and event.kind in CAUSES.values():
            self._causes[event.kind, key] = event


def merged(logs: Iterable[Iterable[Event]]) -> Iterator[Event]:
    """All events by time. Each log keeps its order, and a request is sent before it is received, and done before it is answered.

    The logs are read side by side; only what is within SLACK_MS is in memory.
    """
    causes: Waiting = {}
    queues = [_Queue(events, causes) for events in logs]
    while True:
        heads = [(head.at_ms, number, head) for number, queue in enumerate(queues) if (head := queue.head) is not None]
        if not heads:
            return
        heads.sort(key=lambda head: head[:2])
        chosen = heads[0][1]
        for _, number, head in heads:
            if not _is_early(head, queues, causes):
                chosen = number
                break
        yield queues[chosen].take()


def _time(event: Event) -> float:
    return event.at_ms


def _is_early(event: Event, queues: Sequence[_Queue], causes: Waiting) -> bool:
    """Whether the event that caused this one comes a moment later."""
    kind, key = CAUSES.get(event.kind), event.request_key
    if kind is None or key is None:
        return False
    for queue in queues:
        queue.read_until(event.at_ms + SLACK_MS)
    cause = causes.get((kind, key))
    return cause is not None and cause.broker != event.broker and 0 <= cause.at_ms - event.at_ms <= SLACK_MS
