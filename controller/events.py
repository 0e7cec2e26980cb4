"""What can happen to a controller (CTL-3). Watches, timers and requests only make these; one queue handles them in order.

Most say no more than that something is to be looked at: what is there then is read again, so that an event that comes
twice, late, or from an earlier term does no harm.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.rpc.messages import ControlledShutdownRequest


@dataclass(frozen=True, slots=True)
class Elect:
    """`/controller` may have changed or gone, or this broker has just (again) got a session: look, and run if it is free."""


@dataclass(frozen=True, slots=True)
class BrokersChanged:
    """A child of `/brokers/ids` came or went."""


@dataclass(frozen=True, slots=True)
class TopicsChanged:
    """A child of `/brokers/topics` came or went."""


@dataclass(frozen=True, slots=True)
class AssignmentChanged:
    """The data of `/brokers/topics/<topic>` changed: partitions were added, or the topic was deleted and made again."""

    topic: str


@dataclass(frozen=True, slots=True)
class IsrsChanged:
    """A leader announced an ISR change below `/isr_change_notification` (CTL-13)."""


@dataclass(frozen=True, slots=True)
class PreferredElectionRequested:
    """`/admin/preferred_replica_election` was written (CTL-12)."""


@dataclass(frozen=True, slots=True)
class RebalanceDue:
    """The timer of `leader.imbalance.check.interval.seconds` (CTL-12)."""


@dataclass(frozen=True, slots=True)
class ControlledShutdownRequested:
    """A broker wants to stop (STA-2); the answer goes to the waiter known under `ticket`."""

    request: ControlledShutdownRequest
    ticket: int


Event = (
    Elect
    | BrokersChanged
    | TopicsChanged
    | AssignmentChanged
    | IsrsChanged
    | PreferredElectionRequested
    | RebalanceDue
    | ControlledShutdownRequested
)
"""All of them."""
