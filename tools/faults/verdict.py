"""A verdict compares the records of a load that were acknowledged with those that are in the log. Pure."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

Place = tuple[int, int]
"""(partition, offset)"""
DIGITS = re.compile(rb"[0-9]+")
EXAMPLES_MAX = 5


def longest_gap(times: Iterable[float], since: float = -math.inf, until: float = math.inf) -> float:
    """The longest time between two neighbours of `times` that overlaps `since` to `until`; 0 if there is none."""
    return max((after - before for before, after in pairwise(times) if after > since and before < until), default=0.0)


@dataclass
class Journal:
    """What a load sent, and the brokers' answers. `times` are monotonic seconds, in the order of `positions`."""

    sent: int = 0
    positions: dict[bytes, tuple[int, int | None]] = field(default_factory=dict)
    """Acknowledged value -> (partition, offset). See `Verdict.of` for records without an offset."""
    times: list[float] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    def outage_s(self, since: float = -math.inf) -> float:
        """The longest time without an acknowledgement in any partition, if it ended after `since`."""
        times: dict[int, list[float]] = defaultdict(list)
        for (partition, _), at in zip(self.positions.values(), self.times, strict=True):
            times[partition].append(at)
        return max((longest_gap(of, since) for of in times.values()), default=0.0)


@dataclass(frozen=True)
class Verdict:
    """`lost` and `out_of_order` name the records. `doubled`: how many further copies of records are in the log."""

    acknowledged: int = 0
    lost: tuple[str, ...] = ()
    doubled: int = 0
    out_of_order: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    outage_s: float = 0.0

    @staticmethod
    def of(journal: Journal, log: Mapping[Place, bytes], since: float = -math.inf) -> Verdict:
        """`log` is all that can be read; the outage counts from `since` on.

        An acknowledged record must be at its offset. If its first answer was lost, librdkafka may know no offset (None): a later
        record of the partition was acknowledged, or a new leader, which knows only a producer's last batch from a snapshot,
        answered DUPLICATE_SEQUENCE_NUMBER. Then it must be somewhere in its partition.
        """
        somewhere = {(partition, value) for (partition, _), value in log.items()}
        lost = [
            value.decode(errors="replace")
            for value, (partition, offset) in journal.positions.items()
            if ((partition, value) not in somewhere if offset is None else log.get((partition, offset)) != value)
        ]
        unanswered = journal.sent - len(journal.positions) - len(journal.failed)
        return Verdict(
            acknowledged=len(journal.positions),
            lost=tuple(lost),
            doubled=len(log) - len(set(log.values())),
            out_of_order=tuple(_disorder(log)),
            failed=(*journal.failed, *("no answer",) * unanswered),
            outage_s=journal.outage_s(since),
        )

    def __add__(self, other: Verdict) -> Verdict:
        return Verdict(
            self.acknowledged + other.acknowledged,
            self.lost + other.lost,
            self.doubled + other.doubled,
            self.out_of_order + other.out_of_order,
            self.failed + other.failed,
            max(self.outage_s, other.outage_s),
        )

    def problems(self, *, once_and_in_order: bool) -> list[str]:
        """What must not happen, a line each. `once_and_in_order`: also what an idempotent producer guarantees."""
        found = [_some("acknowledged records lost", self.lost), _some("records failed", self.failed)]
        if once_and_in_order:
            found.append(f"{self.doubled} records are in the log twice" if self.doubled else "")
            found.append(_some("records out of order", self.out_of_order))
        return [problem for problem in found if problem]

    def __str__(self) -> str:
        return (
            f"{self.acknowledged} acknowledged: lost {len(self.lost)}, doubled {self.doubled}, out of order "
            f"{len(self.out_of_order)}; longest time without an acknowledgement {self.outage_s:.2f} s"
        )


def _disorder(log: Mapping[Place, bytes]) -> Iterable[str]:
    """A load numbers its records, so the first number in a value must grow in each partition."""
    last: dict[int, int] = {}
    for (partition, offset), value in sorted(log.items()):
        digits = DIGITS.search(value)
        if digits is None:
            continue  # not a record of a load
        number = int(digits[0])
        before = last.get(partition, -1)
        if number < before:
            yield f"record {number} after {before} at offset {offset} of partition {partition}"
        last[partition] = max(number, before)


def _some(what: str, found: Collection[str]) -> str:
    """The number of records, and the most frequent ones as examples."""
    examples = ", ".join(text for text, _ in Counter(found).most_common(EXAMPLES_MAX))
    return f"{len(found)} {what}, among them {examples}" if found else ""
