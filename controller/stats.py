"""What the controller does, in numbers for the metrics (Kafka's ControllerStats and ControllerEventManager).

The loop writes plain numbers; the metrics thread reads them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from types import MappingProxyType

from controller.events import (
    AssignmentChanged,
    BrokerFoundDead,
    BrokersChanged,
    ControlledShutdownRequested,
    Elect,
    ElectionsRequested,
    Event,
    IsrsChanged,
    LogDirsFailed,
    LogsMissing,
    PreferredElectionRequested,
    ReassignmentsAltered,
    ReassignmentsRequested,
    RebalanceDue,
    ReplicasDeleted,
    ReplicasFailed,
    TopicDeletionsRequested,
    TopicIdsReported,
    TopicsChanged,
    UncleanElectionsAllowed,
)
from protocol.time_histogram import TimeHistogram


class ControllerState(IntEnum):
    """What the controller is working on. The numbers are Kafka's (`kafka.controller.ControllerState`)."""

    IDLE = 0
    CONTROLLER_CHANGE = 1
    BROKER_CHANGE = 2
    TOPIC_CHANGE = 3
    TOPIC_DELETION = 4
    ALTER_PARTITION_REASSIGNMENT = 5
    AUTO_LEADER_BALANCE = 6
    MANUAL_LEADER_BALANCE = 7
    CONTROLLED_SHUTDOWN = 8
    ISR_CHANGE = 9
    LEADER_AND_ISR_RESPONSE_RECEIVED = 10
    LOG_DIR_CHANGE = 11
    TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE = 14


STATE_OF: Mapping[type, ControllerState] = MappingProxyType(
    {
        Elect: ControllerState.CONTROLLER_CHANGE,
        BrokersChanged: ControllerState.BROKER_CHANGE,
        BrokerFoundDead: ControllerState.BROKER_CHANGE,
        TopicsChanged: ControllerState.TOPIC_CHANGE,
        AssignmentChanged: ControllerState.TOPIC_CHANGE,
        TopicDeletionsRequested: ControllerState.TOPIC_DELETION,
        ReplicasDeleted: ControllerState.TOPIC_DELETION,
        ReassignmentsRequested: ControllerState.ALTER_PARTITION_REASSIGNMENT,
        ReassignmentsAltered: ControllerState.ALTER_PARTITION_REASSIGNMENT,
        RebalanceDue: ControllerState.AUTO_LEADER_BALANCE,
        PreferredElectionRequested: ControllerState.MANUAL_LEADER_BALANCE,
        ElectionsRequested: ControllerState.MANUAL_LEADER_BALANCE,
        ControlledShutdownRequested: ControllerState.CONTROLLED_SHUTDOWN,
        IsrsChanged: ControllerState.ISR_CHANGE,
        ReplicasFailed: ControllerState.LEADER_AND_ISR_RESPONSE_RECEIVED,
        TopicIdsReported: ControllerState.LEADER_AND_ISR_RESPONSE_RECEIVED,
        LogsMissing: ControllerState.LEADER_AND_ISR_RESPONSE_RECEIVED,
        LogDirsFailed: ControllerState.LOG_DIR_CHANGE,
        UncleanElectionsAllowed: ControllerState.TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE,
    }
)
TIMED: Mapping[ControllerState, str] = MappingProxyType(
    {
        ControllerState.CONTROLLER_CHANGE: "controllerchange",
        ControllerState.BROKER_CHANGE: "leaderelection",
        ControllerState.TOPIC_CHANGE: "topicchange",
        ControllerState.TOPIC_DELETION: "topicdeletion",
        ControllerState.ALTER_PARTITION_REASSIGNMENT: "partitionreassignment",
        ControllerState.AUTO_LEADER_BALANCE: "autoleaderbalance",
        ControllerState.MANUAL_LEADER_BALANCE: "manualleaderbalance",
        ControllerState.CONTROLLED_SHUTDOWN: "controlledshutdown",
        ControllerState.ISR_CHANGE: "isrchange",
        ControllerState.LEADER_AND_ISR_RESPONSE_RECEIVED: "leaderandisrresponsereceived",
        ControllerState.LOG_DIR_CHANGE: "logdirchange",
        ControllerState.TOPIC_UNCLEAN_LEADER_ELECTION_ENABLE: "topicuncleanleaderelectionenable",
    }
)
"""How Kafka names the time that each state takes: for most their own name, but a change of brokers is a `LeaderElection`."""


class ControllerStats:
    """`elections`: partitions that got another leader, by reason. `unclean_elections`: those whose leader was not in the ISR."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self.state = ControllerState.IDLE
        self.queue_times = TimeHistogram()
        self.times = {state: TimeHistogram() for state in TIMED}
        self.elections: Counter[str] = Counter()
        self.unclean_elections = 0

    @property
    def named_times(self) -> Mapping[str, TimeHistogram]:
        """By the names in TIMED."""
        return {name: self.times[state] for state, name in TIMED.items()}

    @contextmanager
    def handling(self, event: Event, waited_s: float) -> Iterator[None]:
        """Times the reaction to an event that waited in the queue."""
        began = self.monotonic()
        self.queue_times.add(waited_s, began)
        self.state = STATE_OF[type(event)]
        try:
            yield
        finally:
            now = self.monotonic()
            self.times[self.state].add(now - began, now)
            self.state = ControllerState.IDLE

    def elected(self, reason: str, partitions: int) -> None:
        """So many partitions got another leader, or their first."""
        if partitions:
            self.elections[reason] += partitions
