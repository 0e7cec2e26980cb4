"""Names of things in sentences. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from protocol.topic_names import INTERNAL_TOPICS

NAMED = 6
"""Partitions that a sentence names; of the others it says how many there are."""


def topic_of(partition: str) -> str:
    return partition.rpartition("-")[0]


def partitions(names: Sequence[str], more: int = 0) -> str:
    """`orders-0`, or `12 partitions: orders-0, orders-3, ..., 18 of __consumer_offsets`. `more`: partitions without a name."""
    own = sorted({name for name in names if topic_of(name) not in INTERNAL_TOPICS}, key=_by_number)
    internal = [name for name in set(names) if topic_of(name) in INTERNAL_TOPICS]
    count = len(own) + len(internal) + more
    if count == 1:
        return (own or internal or ["1 partition"])[0]
    if not own and not more and len({topic_of(name) for name in internal}) == 1:
        return f"{count:,} partitions of {topic_of(internal[0])}"
    shown = own[:NAMED]
    if len(own) > NAMED:
        shown.append("...")
    for topic in sorted({topic_of(name) for name in internal}):
        shown.append(f"{sum(topic_of(name) == topic for name in internal)} of {topic}")
    return f"{count:,} partitions" + (f": {', '.join(shown)}" if shown else "")


def _by_number(name: str) -> tuple[str, int]:
    topic, _, number = name.rpartition("-")
    return topic, int(number) if number.isdecimal() else -1


def brokers(ids: Iterable[Any]) -> str:
    """`broker 1`, `brokers 1 and 3`, `brokers 1, 2 and 3`, `no broker`."""
    found = [str(each) for each in ids]
    if not found:
        return "no broker"
    if len(found) == 1:
        return f"broker {found[0]}"
    return f"brokers {', '.join(found[:-1])} and {found[-1]}"


def isr(members: Iterable[Any]) -> str:
    return ",".join(map(str, members)) or "nobody"


def count(number: int, one: str, many: str = "") -> str:
    """`1 state`, `12 states`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def seconds(ms: float) -> str:
    """`+0.132 s`."""
    return f"{'-' if ms < 0 else '+'}{abs(ms) / 1000:.3f} s"
