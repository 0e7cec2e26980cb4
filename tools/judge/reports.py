"""The report lines of a program: `@ottla acked topic=orders partition=0 offset=17 id=order 1042` (docs/VERIFY.md). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from protocol.numbers import whole_number

MARK = "@ottla "
_MARK = re.compile(r"@ottla(?!\S)")
PRODUCED, ACKED, FAILED, CONSUMED, COMMITTED = "produced", "acked", "failed", "consumed", "committed"
BEGUN, SENT_OFFSETS, COMMITTING = "begun", "sent-offsets", "committing"
COMMITTED_TXN, ABORTED_TXN = "committed-txn", "aborted-txn"
ASSIGNED, REVOKED, LEFT = "assigned", "revoked", "left"
FIELDS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = MappingProxyType(
    {
        PRODUCED: (("topic", "id"), ("partition", "producer", "txn")),
        ACKED: (("topic", "partition", "id"), ("offset", "producer", "txn")),
        FAILED: (("topic", "id"), ("partition", "producer", "txn")),
        CONSUMED: (("group", "topic", "partition", "offset", "id"), ("txn", "isolation")),
        COMMITTED: (("group", "topic", "partition", "offset"), ()),
        BEGUN: (("txn",), ("transactional-id",)),
        SENT_OFFSETS: (("txn", "group", "topic", "partition", "offset"), ()),
        COMMITTING: (("txn",), ()),
        COMMITTED_TXN: (("txn",), ()),
        ABORTED_TXN: (("txn",), ()),
        ASSIGNED: (("group", "member", "topic", "partition"), ()),
        REVOKED: (("group", "member", "topic", "partition"), ()),
        LEFT: (("group", "member"), ()),
    }
)
"""Event -> the fields that it must have, and those that it may have."""
NUMBERS = {"partition", "offset"}
READ_COMMITTED, READ_UNCOMMITTED = "read_committed", "read_uncommitted"
NO_OFFSET = -1
"""What clients say if they do not know the offset of an acknowledged record."""


class BrokenReport(ValueError):
    """A line that is meant as a report and is none; the text says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Report:
    """One line. `at`: when it was read, in seconds since the start of the run. `order` numbers the reports of a program as they came.

    `line`: where it is: `12`, or `OTTLA_REPORT:12` if it is in the file.
    `offset` is None if it is unknown; for `committed` and `sent-offsets` it is the next offset that the group reads, as in Kafka.
    `member`: the name that the program gives to a member of a group. `txn`: the name that it gives to a transaction.
    `isolation`: of a reader; empty is `read_committed`.
    """

    event: str
    topic: str = ""
    partition: int | None = None
    offset: int | None = None
    id: str = ""
    group: str = ""
    producer: str = ""
    line: str = ""
    order: int = 0
    at: float = 0.0
    txn: str = ""
    transactional_id: str = ""
    isolation: str = ""
    member: str = ""


def parse(text: str, line: str = "", order: int = 0, at: float = 0.0) -> Report | None:
    """None: the line is no report. What stands before the mark, such as a logger's time, is ignored. Raises BrokenReport."""
    found = _MARK.search(text)
    if found is None:
        return None
    rest = text[found.end() :]
    if MARK in rest:
        raise BrokenReport("two reports are in one line: each is to be written with its end of line, with one call")
    event, _, rest = rest.strip().partition(" ")
    if event not in FIELDS:
        raise BrokenReport(f"{event!r} is no event; the events are {', '.join(FIELDS)}")
    required, optional = FIELDS[event]
    values = _values(rest, "id" in required)
    for name in values:
        if name not in required and name not in optional:
            allowed = ", ".join((*required, *optional))
            raise BrokenReport(f"{event} has no field {name!r}; its fields are {allowed}")
    missing = [name for name in required if not values.get(name)]
    if missing:
        raise BrokenReport(f"{event} needs {missing[0]}=...")
    if values.get("isolation", READ_COMMITTED) not in (READ_COMMITTED, READ_UNCOMMITTED):
        raise BrokenReport(f"isolation={values['isolation']} is neither {READ_COMMITTED} nor {READ_UNCOMMITTED}")
    numbers = {name: _number(event, name, values.pop(name)) for name in sorted(NUMBERS & values.keys())}
    words = {_attribute(name): value for name, value in values.items()}
    return Report(event=event, line=line, order=order, at=at, **numbers, **words)  # type: ignore[arg-type]


def line_of(report: Report) -> str:
    """The line that `parse` reads as this report."""
    required, optional = FIELDS[report.event]
    values = {name: getattr(report, _attribute(name)) for name in (*required, *optional) if name != "id"}
    words = [f"{name}={value}" for name, value in values.items() if value is not None and value != ""]
    return " ".join([f"{MARK}{report.event}", *words, *([f"id={report.id}"] if "id" in required else [])])


def _attribute(field: str) -> str:
    """Of a Report."""
    return field.replace("-", "_")


def _values(rest: str, has_id: bool) -> dict[str, str]:
    """The fields. `id` is the last one and may have spaces."""
    id_ = None
    if has_id:
        before, mark, id_ = f" {rest}".partition(" id=")
        rest, id_ = (before, id_.strip()) if mark else (rest, None)
    values: dict[str, str] = {}
    for word in rest.split():
        name, equals, value = word.partition("=")
        if not equals:
            raise BrokenReport(f"{word!r} is not NAME=VALUE (only the id, which comes last, may have spaces)")
        if name in values:
            raise BrokenReport(f"{name} is there twice")
        values[name] = value
    if id_ is not None:
        values["id"] = id_
    return values


def _number(event: str, name: str, text: str) -> int | None:
    try:
        number = whole_number(text)
    except ValueError:
        raise BrokenReport(f"{name}={text} is not a whole number") from None
    if event == ACKED and name == "offset" and number == NO_OFFSET:
        return None
    if number < 0:
        raise BrokenReport(f"{name}={text} is below 0")
    return number
