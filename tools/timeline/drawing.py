"""What the page draws, as one JSON object: lanes, arrows, bands and steps. Pure. All times are seconds since the start of the story."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from protocol.topic_names import INTERNAL_TOPICS
from protocol.types import NO_LEADER
from tools.timeline.merging import Event, RequestKey
from tools.timeline.story import Line
from tools.timeline.words import topic_of

LINKS, DISK_FULL = "links broken", "disk full"
ZOOKEEPER_AWAY = ("killed", "paused")
PARTITIONS_MAX = 60
"""Partitions that the page can show; those whose leader changed come first."""

State = tuple[float, int, int, tuple[int, ...]]
"""(time, leader, leader epoch, ISR), in ZooKeeper from then on. The ISR is empty only in `GONE`."""
GONE = (NO_LEADER, 0, ())
"""The topic is deleted."""


@dataclass(slots=True)
class _Partition:
    states: list[State] = field(default_factory=list)
    offsets: list[tuple[float, int, int]] = field(default_factory=list)
    """(time, high watermark, log end offset) at the leader."""

    def note(self, state: State) -> None:
        if not self.states or self.states[-1][1:] != state[1:]:
            self.states.append(state)


@dataclass(slots=True)
class _Span:
    broker: int | None
    """None: ZooKeeper."""
    begin: float
    what: str
    end: float | None = None


class Drawing:
    """Takes all events in order; `to_json` has those between `begin_ms` and `end_ms`."""

    def __init__(self, start_ms: float) -> None:
        self._start_ms = start_ms
        self._partitions: dict[str, _Partition] = {}
        self._terms: list[_Span] = []
        self._absences: list[_Span] = []
        self._harms: list[_Span] = []
        """Faults that leave the process alive: broken links, a full disk; and all of ZooKeeper's."""
        self._brokers: set[int] = set()
        self._requests: dict[RequestKey, dict[str, Event]] = {}
        self._moved: list[_Partition] = []
        """Those that the last event named."""

    def add(self, event: Event) -> None:
        """A damaged line is left out."""
        with contextlib.suppress(TypeError, ValueError):
            self._add(event)

    def add_earlier(self, event: Event) -> None:
        """An event before the time that is shown: only what it leads to is kept."""
        with contextlib.suppress(TypeError, ValueError):
            self._add(event)
        self._requests.clear()
        for found in self._moved:
            del found.states[:-1], found.offsets[:-1]
        for spans in (self._terms, self._absences, self._harms):
            spans[:] = [span for span in spans if span.end is None]

    def _add(self, event: Event) -> None:
        self._moved.clear()
        if event.broker is not None:
            self._brokers.add(event.broker)
        key = event.request_key
        if key is not None:
            self._requests.setdefault(key, {})[event.kind] = event
        at, row = self._at(event.at_ms), event.row
        match event.kind:
            case "broker_killed" | "broker_paused":
                self._absent(row.get("broker"), at, "killed" if event.kind == "broker_killed" else "paused")
            case "broker_resumed":
                self._present(row.get("broker"), at)
            case "links_broken":
                self._harms.append(_Span(_id(row.get("broker")), at, f"{LINKS} {row.get('links')}"))
            case "links_joined":
                links, victim = row.get("links"), _id(row.get("broker"))
                if links is None:
                    self._end_harms(at, lambda span: span.broker == victim and span.what.startswith(LINKS))
                else:
                    self._end_harms(at, lambda span: (span.broker, span.what) == (victim, f"{LINKS} {links}"))
            case "links_started":
                self._end_harms(at, lambda span: span.what.startswith(LINKS))
            case "disk_filled":
                self._harms.append(_Span(_id(row.get("broker")), at, DISK_FULL))
            case "disk_emptied":
                victim = _id(row.get("broker"))
                self._end_harms(at, lambda span: (span.broker, span.what) == (victim, DISK_FULL))
            case "zookeeper_killed" | "zookeeper_paused":
                self._end_harms(at, lambda span: span.what in ZOOKEEPER_AWAY)
                self._harms.append(_Span(None, at, event.kind.removeprefix("zookeeper_")))
            case "zookeeper_started" | "zookeeper_resumed":
                self._end_harms(at, lambda span: span.what in ZOOKEEPER_AWAY)
            case "cluster_started":
                self._end_harms(at, lambda span: span.what != DISK_FULL)
            case "stopped":
                self._absent(event.broker, at, "stopped")
            case "registered":
                self._present(event.broker, at)
            case "controller_elected" if event.broker is not None:
                self._end_term(at)
                self._terms.append(_Span(event.broker, at, f"controller, epoch {row.get('controller_epoch')}"))
            case "controller_resigned":
                if self._terms and self._terms[-1].broker == event.broker:
                    self._end_term(at)
            case "leader_elected":
                for partition, leader, epoch, isr, *_ in _rows(row.get("partitions"), 4):
                    self._of(partition).note((at, leader, epoch, tuple(isr)))
            case "leader_and_isr":
                for partition, leader, epoch, isr, *offsets in _rows(row.get("taken"), 4):
                    found = self._of(partition)
                    if not found.states:
                        found.note((at, leader, epoch, tuple(isr)))
                    if leader == event.broker and len(offsets) == 2:
                        found.offsets.append((at, offsets[1], offsets[0]))
            case "topics_deleted" | "topics_gone" if isinstance(topics := row.get("topics"), list):
                for name, found in self._partitions.items():
                    if topic_of(name) in topics:
                        self._moved.append(found)
                        found.note((at, *GONE))
            case "isr_change" if row.get("outcome") == "COMMITTED" and event.broker is not None:
                isr_now = tuple(row.get("isr") or ())
                self._of(str(row.get("partition"))).note((at, event.broker, row.get("leader_epoch", 0), isr_now))
            case "high_watermarks":
                for partition, _, high_watermark, end in _rows(row.get("partitions"), 4):
                    self._of(partition).offsets.append((at, high_watermark, end))

    def to_json(self, begin_ms: float, end_ms: float, lines: Sequence[Line], topic: str | None) -> dict[str, Any]:
        """The object that `page.js` draws."""
        begin, end = self._at(begin_ms), self._at(end_ms)
        return {
            "begin": begin,
            "end": end,
            "brokers": sorted(self._brokers),
            "lines": [
                {
                    "t": self._at(line.at_ms),
                    "broker": line.broker,
                    "who": line.who,
                    "text": line.text,
                    "rule": line.rule,
                    "partitions": line.partitions,
                    "trigger": line.is_trigger,
                }
                for line in lines
            ],
            "arrows": list(self._arrows(begin, end)),
            "terms": _clipped(self._terms, begin, end),
            "absences": _clipped(self._absences, begin, end),
            "harms": _clipped(self._harms, begin, end),
            "partitions": self._shown_partitions(begin, end, topic),
        }

    # -- while events are added -------------------------------------------------------------------------------------

    def _at(self, at_ms: float) -> float:
        return round((at_ms - self._start_ms) / 1000, 4)

    def _of(self, partition: Any) -> _Partition:
        found = self._partitions.setdefault(str(partition), _Partition())
        self._moved.append(found)
        return found

    def _absent(self, broker: Any, at: float, what: str) -> None:
        if isinstance(broker, int):
            self._present(broker, at)
            self._absences.append(_Span(broker, at, what))
            if self._terms and self._terms[-1].broker == broker and what == "killed":
                self._end_term(at)

    def _present(self, broker: Any, at: float) -> None:
        for span in self._absences:
            if span.broker == broker and span.end is None:
                span.end = at

    def _end_harms(self, at: float, ends: Callable[[_Span], bool]) -> None:
        for span in self._harms:
            if span.end is None and ends(span):
                span.end = at

    def _end_term(self, at: float) -> None:
        if self._terms and self._terms[-1].end is None:
            self._terms[-1].end = at

    # -- afterwards -------------------------------------------------------------------------------------------------

    def _arrows(self, begin: float, end: float) -> Iterable[dict[str, Any]]:
        """A request, and its answer, from lane to lane."""
        for (_, _, receiver), ends in self._requests.items():
            sent, received = ends.get("control_request_sent"), ends.get("control_request_received")
            done, answered = ends.get("control_request_done"), ends.get("control_request_answered")
            if sent is None or not begin <= self._at(sent.at_ms) <= end:
                continue
            name = str(sent.row.get("request"))
            error = str((answered or done or sent).row.get("error", "NONE"))
            common = {"request": name, "partitions": sent.row.get("partitions"), "error": error}
            arrival = self._at(received.at_ms) if received is not None else None
            yield {
                **common,
                "from": sent.broker,
                "to": receiver,
                "t": self._at(sent.at_ms),
                "until": arrival,
                "answer": False,
            }
            if done is not None and answered is not None:
                times = {"t": self._at(done.at_ms), "until": self._at(answered.at_ms)}
                yield {**common, "from": receiver, "to": sent.broker, **times, "answer": True}

    def _shown_partitions(self, begin: float, end: float, topic: str | None) -> dict[str, Any]:
        names = [name for name in self._partitions if topic is None or topic_of(name) == topic]
        names.sort(
            key=lambda name: (topic_of(name) in INTERNAL_TOPICS, not self._changes_leader(name, begin, end), name)
        )
        shown = {}
        for name in names[:PARTITIONS_MAX]:
            found = self._partitions[name]
            before = [state for state in found.states if state[0] <= begin][-1:]
            states = before + [state for state in found.states if begin < state[0] <= end]
            if states and all(state[1:] == GONE for state in states):
                continue
            offsets = [each for each in found.offsets if each[0] <= begin][-1:]
            offsets += [each for each in found.offsets if begin < each[0] <= end]
            shown[name] = {"states": [[max(t, begin), *rest] for t, *rest in states], "offsets": offsets}
        return shown

    def _changes_leader(self, name: str, begin: float, end: float) -> bool:
        states = self._partitions[name].states
        before = [state for state in states if state[0] <= begin][-1:]
        return len({state[1] for state in (*before, *(s for s in states if begin < s[0] <= end))}) > 1


def _id(broker: Any) -> int | None:
    """Raises TypeError for a damaged line."""
    if broker is not None and not isinstance(broker, int):
        raise TypeError(f"no broker: {broker!r}")
    return broker


def _rows(value: Any, least: int) -> Iterable[Sequence[Any]]:
    return [row for row in value or () if isinstance(row, list) and len(row) >= least]


def _clipped(spans: Iterable[_Span], begin: float, end: float) -> list[Mapping[str, Any]]:
    return [
        {
            "broker": span.broker,
            "t": max(span.begin, begin),
            "until": end if span.end is None else min(span.end, end),
            "what": span.what,
        }
        for span in spans
        if span.begin <= end and (span.end is None or span.end >= begin)
    ]
