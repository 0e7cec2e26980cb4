"""Requests and responses of the control plane, and their form for msgpack (FMT-4).

A request body on the wire is `[kind, field, field, ...]`, a response body `[field, field, ...]`, in the order of the dataclass's
fields. Both ends are the same release of ottla, so there are no versions. `parsing` checks what the other end sends.

Example: LeaderAndIsrRequest(1, 7, 4294967310, (), {}) packs as `[1, 1, 7, 4294967310, [], {}, [], false, [], 0]`.

`number` counts the requests of a controller's term that change a broker's state; a retry keeps its number. A connection that the
controller closed may deliver a request after the next connection delivered a newer one. A broker therefore refuses a number lower than
the highest it has seen in the term (FLT-18). 0 means not numbered.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

from protocol.errors import ErrorCode
from protocol.types import BrokerInfo, TopicPartition

NO_TOPIC_ID = ""
"""A broker's answer for a topic whose id neither its logs nor its metadata have."""


class RequestKind(IntEnum):
    """The first element of every request body."""

    LEADER_AND_ISR = 1
    UPDATE_METADATA = 2
    STOP_REPLICA = 3
    CONTROLLED_SHUTDOWN = 4


class PartitionState(NamedTuple):
    """A partition's leadership as the controller announces it, in LeaderAndIsr and in UpdateMetadata.

    `zk_version` is the version of the partition's state znode; the leader's next ISR write is conditional on it. `is_new` is True if the
    replica was just created, so that a broker with a failed log directory may still create its log.
    """

    topic: str
    partition: int
    controller_epoch: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]
    zk_version: int
    replicas: tuple[int, ...]
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()
    is_new: bool = False
    offline_replicas: tuple[int, ...] = ()

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


class StopReplicaPartition(NamedTuple):
    """A replica to stop. `delete` also removes its log. `leader_epoch` fences a late request (BUG-20); -2 means "topic deleted"."""

    topic: str
    partition: int
    leader_epoch: int
    delete: bool

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True, slots=True)
class LeaderAndIsrRequest:
    """Makes the broker leader or follower of these partitions (LAI-1..5). `topic_ids` maps each topic to its id, as text.

    A request with `is_full` names every partition of the broker whose state the controller knows. A broker gets it from each new
    controller, after its own restart, and after one of its log directories failed. `other_topics` are unreadable, to be deleted, or
    have partitions without a state. Every log that belongs neither to a named partition nor to these topics is a stray replica.
    """

    controller_id: int
    controller_epoch: int
    broker_epoch: int
    partitions: Sequence[PartitionState]
    topic_ids: dict[str, str]
    live_leaders: tuple[BrokerInfo, ...] = ()
    is_full: bool = False
    other_topics: tuple[str, ...] = ()
    number: int = 0


@dataclass(frozen=True, slots=True)
class UpdateMetadataRequest:
    """The contents of every broker's metadata cache (STA-1, CTL-13).

    A request with `is_full` replaces the whole cache; otherwise the named partitions are merged into it. `brokers` always replaces the set
    of live brokers. A partition with the leader LEADER_DURING_DELETE is removed, because its topic is being deleted. A topic missing from
    a full request is unknown to the controller, which may also have failed to read its node.

    `partition_counts` maps each topic to the number of its assigned partitions, some of which may not have a state yet.
    """

    controller_id: int
    controller_epoch: int
    broker_epoch: int
    partitions: Sequence[PartitionState]
    topic_ids: dict[str, str]
    brokers: tuple[BrokerInfo, ...]
    is_full: bool = False
    number: int = 0
    partition_counts: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StopReplicaRequest:
    """Stops replicas on this broker (LAI-6).

    `topic_ids` has the ids of the topics. A replica of another topic with the same name is not touched (BUG-20, FLT-36).
    """

    controller_id: int
    controller_epoch: int
    broker_epoch: int
    partitions: tuple[StopReplicaPartition, ...]
    topic_ids: dict[str, str] = field(default_factory=dict)
    number: int = 0


@dataclass(frozen=True, slots=True)
class ControlledShutdownRequest:
    """A broker asks the controller to move its leaderships away before it stops (STA-2)."""

    broker_id: int
    broker_epoch: int


class PartitionError(NamedTuple):
    """One partition's result inside a ControlResponse."""

    topic: str
    partition: int
    error: int


@dataclass(frozen=True, slots=True)
class ControlResponse:
    """The answer to every control request: an error for the whole request, and one for each partition that failed.

    For ControlledShutdown, `partitions` are the partitions that the broker still leads (error NONE), like Kafka's partitionsRemaining.
    For a LeaderAndIsr that names topics without an id, `topic_ids` has what this broker knows of those of which it has an in-sync
    replica: topic -> its id, or NO_TOPIC_ID.
    """

    error: ErrorCode = ErrorCode.NONE
    partitions: tuple[PartitionError, ...] = ()
    topic_ids: Mapping[str, str] = field(default_factory=dict)


ControlRequest = LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest | ControlledShutdownRequest


def pack_broker(broker: BrokerInfo) -> list[Any]:
    """[id, epoch, [[listener, host, port, security_protocol], ...], rack]"""
    return [broker.id, broker.epoch, [list(e) for e in broker.endpoints], broker.rack]


def request_body(request: ControlRequest) -> list[Any]:
    """The request as lists, numbers and strings, ready for msgpack."""
    match request:
        case LeaderAndIsrRequest():
            return [
                RequestKind.LEADER_AND_ISR.value,
                request.controller_id,
                request.controller_epoch,
                request.broker_epoch,
                request.partitions,
                request.topic_ids,
                [pack_broker(b) for b in request.live_leaders],
                request.is_full,
                request.other_topics,
                request.number,
            ]
        case UpdateMetadataRequest():
            return [
                RequestKind.UPDATE_METADATA.value,
                request.controller_id,
                request.controller_epoch,
                request.broker_epoch,
                request.partitions,
                request.topic_ids,
                [pack_broker(b) for b in request.brokers],
                request.is_full,
                request.number,
                request.partition_counts,
            ]
        case StopReplicaRequest():
            return [
                RequestKind.STOP_REPLICA.value,
                request.controller_id,
                request.controller_epoch,
                request.broker_epoch,
                request.partitions,
                request.topic_ids,
                request.number,
            ]
        case ControlledShutdownRequest():
            return [RequestKind.CONTROLLED_SHUTDOWN.value, request.broker_id, request.broker_epoch]


def response_body(response: ControlResponse) -> list[Any]:
    """[error, [[topic, partition, error], ...], {topic: id, ...}]"""
    return [response.error.value, response.partitions, response.topic_ids]
