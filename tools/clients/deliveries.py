"""Counts the outcomes of the lines that `ottla produce` has read. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

COMPLAINTS_MAX = 20
"""Number of lines whose errors are printed; further ones are only counted."""


class Delivery(Enum):
    """The outcome of one line."""

    ACKNOWLEDGED = "acknowledged"
    SENT = "sent"
    """Sent with acks=0: it is unknown whether the record was written."""
    BAD = "malformed"
    """Not a valid record: never sent."""
    REFUSED = "refused"
    """Not written."""
    NOT_SENT = "not_sent"
    """Discarded before it was sent."""
    UNKNOWN = "unknown"
    """Sent but not answered: it may have been written."""


FAILURES = {
    Delivery.BAD: "malformed",
    Delivery.REFUSED: "refused",
    Delivery.NOT_SENT: "not sent",
    Delivery.UNKNOWN: "unknown (may have been written)",
}


@dataclass(slots=True)
class Deliveries:
    """Counts outcomes. Calls `complain` for each of the first COMPLAINTS_MAX failures, and once more if others follow."""

    topic: str
    complain: Callable[[str], None]
    counts: dict[Delivery, int] = field(default_factory=lambda: dict.fromkeys(Delivery, 0))
    complaints: int = 0

    def add(self, outcome: Delivery, line: int, reason: str = "") -> None:
        self.counts[outcome] += 1
        if outcome in FAILURES:
            self.complaints += 1
            if self.complaints <= COMPLAINTS_MAX:
                self.complain(f"line {line}: {reason}")
            elif self.complaints == COMPLAINTS_MAX + 1:
                self.complain("... more lines failed; the end shows the total")

    @property
    def failed(self) -> int:
        return sum(self.counts[outcome] for outcome in FAILURES)

    def summary(self) -> str:
        """How many records were produced."""
        if self.counts[Delivery.SENT]:
            return (
                f"Sent {_records(self.counts[Delivery.SENT])} to {self.topic}; with --acks 0 it is unknown whether they "
                "were written."
            )
        return f"Produced {_records(self.counts[Delivery.ACKNOWLEDGED])} to {self.topic}."

    def failures(self) -> str:
        """`3 of 5 lines were not acknowledged: 2 refused, 1 unknown (may have been written)`."""
        kinds = [f"{self.counts[outcome]} {words}" for outcome, words in FAILURES.items() if self.counts[outcome]]
        lines = sum(self.counts.values())
        return f"{self.failed} of {lines} lines were not acknowledged: {', '.join(kinds)}"

    def as_json(self) -> dict[str, Any]:
        """`{topic, acknowledged, sent, malformed, refused, not_sent, unknown}`: numbers of lines."""
        return {"topic": self.topic, **{outcome.value: count for outcome, count in self.counts.items()}}


def _records(count: int) -> str:
    return f"{count} record{'' if count == 1 else 's'}"
