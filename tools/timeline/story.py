"""The story: what happened, line by line. Pure.

An event becomes lines (`sentences`), lines of one kind that are close together become one, and the last failure is found.
"""

from __future__ import annotations

import textwrap
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tools.timeline import words
from tools.timeline.merging import Event
from tools.timeline.sentences import OPERATOR, Known, Said, sentences

JOINED_GAP_MS, JOINED_MAX_MS = 60.0, 1000.0
"""Events of the same kind, of one broker, become one line: each at most so long after the last one, and after the first one."""
LEAST_WIDTH = 30
"""Lines are not broken if less is left for what they say."""
QUIET_MS = 15_000.0
"""A failure that starts this long after the last one is another incident."""


@dataclass(slots=True)
class Line:
    """One line of the story. `at_ms` is on the common clock, the time of the first event of the line."""

    at_ms: float
    broker: int | None
    kind: str
    who: str
    rule: str
    said: Said
    partitions: list[str] = field(default_factory=list)
    brokers: list[int] = field(default_factory=list)
    count: int = 0
    until_ms: float = 0.0

    def takes(self, at_ms: float) -> bool:
        """Whether an event of this time may be joined."""
        return at_ms - self.until_ms <= JOINED_GAP_MS and at_ms - self.at_ms <= JOINED_MAX_MS

    @property
    def text(self) -> str:
        names: Sequence[Any] = self.brokers if self.said.brokers else self.partitions
        return self.said.text(names, self.count)

    @property
    def is_trigger(self) -> bool:
        return self.said.is_trigger

    def to_json(self, start_ms: float) -> dict[str, Any]:
        return {
            "seconds": round((self.at_ms - start_ms) / 1000, 4),
            "time_ms": self.at_ms,
            "who": self.who,
            "broker": self.broker,
            "text": self.text,
            "rules": self.rule.split(", ") if self.rule else [],
            "partitions": self.partitions,
        }


@dataclass(frozen=True, slots=True)
class Filter:
    """Which lines are wanted. Lines that are about no partition are wanted for every topic; so are faults for every broker."""

    topic: str | None = None
    broker: int | None = None

    def of(self, event: Event, said: Said) -> tuple[str, ...] | None:
        """The partitions that the line names; None: the line is not wanted."""
        if self.broker is not None and event.broker not in (self.broker, None):
            return None
        if event.broker is None and self.broker is not None and not self._is_hit(event):
            return None
        if self.topic is None or not said.partitions:
            return said.partitions
        found = tuple(name for name in said.partitions if words.topic_of(name) == self.topic)
        is_of_operator = event.broker is None
        return found if found or is_of_operator else None

    def _is_hit(self, event: Event) -> bool:
        """Whether a fault is about the broker: as its victim, or at the other end of its links. Faults of ZooKeeper are about all."""
        others = event.row.get("others")
        return event.row.get("broker") in (self.broker, None) or (isinstance(others, list) and self.broker in others)


class Story:
    """Takes events in order and makes lines. `known` is what the events told so far."""

    def __init__(self, wanted: Filter | None = None) -> None:
        self.known = Known()
        self._wanted = wanted or Filter()

    def lines(self, events: Iterable[Event]) -> Iterator[Line]:
        """The lines of these events, by time, each as soon as no more events can join it; may be called again with later events."""
        lines: deque[tuple[tuple[object, ...], Line]] = deque()
        open_lines: dict[tuple[object, ...], Line] = {}
        for event in events:
            while lines and event.at_ms - lines[0][1].at_ms > JOINED_MAX_MS:
                ended_key, ended = lines.popleft()
                if open_lines.get(ended_key) is ended:
                    del open_lines[ended_key]
                yield ended
            for said in sentences(event, self.known):
                partitions = self._wanted.of(event, said)
                if partitions is None:
                    continue
                # A line without partitions would join with itself when an event is repeated: that is wanted too.
                key = (event.broker, said.rule, *said.key)
                line = open_lines.get(key)
                if line is None or not line.takes(event.at_ms):
                    line = open_lines[key] = Line(
                        event.at_ms, event.broker, event.kind, _who(event, said), said.rule, said
                    )
                    lines.append((key, line))
                line.partitions += [name for name in partitions if name not in line.partitions]
                line.brokers += [broker for broker in said.brokers if broker not in line.brokers]
                line.count += said.count
                line.until_ms = event.at_ms
        yield from (line for _, line in lines)


def _who(event: Event, said: Said) -> str:
    if event.broker is None:
        return OPERATOR
    return f"{'controller' if said.as_controller else 'broker'} {event.broker}"


def last_incident(lines: Iterable[Line]) -> tuple[Line | None, float | None]:
    """(the line with which the last failure began, when the cluster was stopped after it); None: nothing failed, it was not stopped.

    Failures that follow each other quickly are one. The stop of the whole cluster is no failure.
    """
    begin: Line | None = None
    stopped_ms: float | None = None
    last_ms = 0.0
    is_stopping = False
    for line in lines:
        if line.kind in ("cluster_stopping", "cluster_started"):
            is_stopping = line.kind == "cluster_stopping"
            if is_stopping and begin is not None and stopped_ms is None and line.at_ms > begin.at_ms:
                stopped_ms = line.at_ms
        elif line.is_trigger and not is_stopping:
            if begin is None or line.at_ms - last_ms > QUIET_MS:
                begin, stopped_ms = line, None
            last_ms = line.at_ms
    return begin, stopped_ms


def told(lines: Iterable[Line], start_ms: float, width: int | None = None) -> list[str]:
    """The lines as text, in columns: time, who, what, and the rule. `width`: longer lines are broken, below what they say."""
    text = []
    for line in lines:
        start = f"{words.seconds(line.at_ms - start_ms):>11}  {line.who:<12}  "
        said = f"{line.text}{_rule(line)}"
        if width is None or width < len(start) + LEAST_WIDTH:
            text.append(start + said)
        else:
            text += textwrap.wrap(said, width, initial_indent=start, subsequent_indent=" " * len(start))
    return text


def _rule(line: Line) -> str:
    return f"  [{line.rule}]" if line.rule else ""
