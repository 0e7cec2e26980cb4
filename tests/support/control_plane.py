"""The control plane in tests: one sample of each request, and a broker with a control listener that a controller talks to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from broker.control.listener import ControlListener
from protocol.errors import ErrorCode
from protocol.rpc.messages import (
    NO_TOPIC_ID,
    ControlledShutdownRequest,
    ControlRequest,
    ControlResponse,
    LeaderAndIsrRequest,
    PartitionError,
    PartitionState,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from protocol.types import BrokerInfo, Endpoint
from protocol.zk.session import ConnectionLoss, ZkError
from tests.support.replica_cluster import TOPIC_ID, TP, Node

SAMPLE_TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAAA"
SAMPLE_STATES = tuple(
    PartitionState("orders", number, 7, 1, 3, (1, 2), 4, (1, 2, 3), (3,), (2,), number == 0, (3,))
    for number in range(3)
)
SAMPLE_BROKER = BrokerInfo(
    1, 2**33, (Endpoint("PLAINTEXT", "kafka1", 9092), Endpoint("INTERNAL", "kafka1", 9093)), "rack"
)
_IDS = {"orders": SAMPLE_TOPIC_ID}
SAMPLES: dict[str, ControlRequest] = {
    "leader and isr": LeaderAndIsrRequest(1, 7, 2**33, SAMPLE_STATES, _IDS, (SAMPLE_BROKER,), True, ("other",), 5),
    "metadata": UpdateMetadataRequest(1, 7, 2**33, SAMPLE_STATES, _IDS, (SAMPLE_BROKER,), False, 5, {"orders": 3}),
    "stop": StopReplicaRequest(
        1, 7, 2**33, tuple(StopReplicaPartition("orders", number, -2, True) for number in range(3)), _IDS, 5
    ),
    "shutdown": ControlledShutdownRequest(1, 2**33),
}
"""Every field has a value that differs from its default."""
SAMPLE_RESPONSE = ControlResponse(
    ErrorCode.NONE, tuple(PartitionError("orders", number, 6) for number in range(3)), {**_IDS, "other": NO_TOPIC_ID}
)

CONTROLLER = 9
STATE = PartitionState(TP.topic, TP.partition, 1, 1, 0, (1,), 0, (1,), is_new=True)
"""TP, led by broker 1."""


def requests(broker_epoch: int, controller_epoch: int = 1, controller: int = CONTROLLER) -> list[ControlRequest]:
    """The three requests of a controller that change state, for TP."""
    head = (controller, controller_epoch, broker_epoch)
    return [
        LeaderAndIsrRequest(*head, (STATE,), {TP.topic: TOPIC_ID}),
        UpdateMetadataRequest(*head, (STATE,), {TP.topic: TOPIC_ID}, ()),
        StopReplicaRequest(*head, (StopReplicaPartition(TP.topic, 0, 5, False),)),
    ]


class TopicSettings:
    """`/config/topics`. The first `failures` reads fail, and every read of an unreadable topic."""

    def __init__(self, failures: int = 0, unreadable: str | None = None) -> None:
        self.asked: list[tuple[str, ...]] = []
        self._failures = failures
        self.unreadable = unreadable

    async def load(self, topics: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        self.asked.append(tuple(topics))
        if len(self.asked) <= self._failures:
            raise ConnectionLoss("test")
        if self.unreadable in topics:
            raise ZkError("test")
        return {topic: {"min.insync.replicas": "2"} for topic in topics}


def control_listener(
    node: Node,
    settings: TopicSettings | None = None,
    own_broker_epoch: Callable[[], int] | None = None,
    **more: Any,
) -> ControlListener:
    """The broker's control listener. The broker is not the controller."""
    load = (settings or TopicSettings()).load
    return ControlListener(node.manager, own_broker_epoch or (lambda: node.epoch), load, _not_controller, **more)


async def _not_controller(request: ControlledShutdownRequest) -> ControlResponse:
    return ControlResponse(ErrorCode.NOT_CONTROLLER)
