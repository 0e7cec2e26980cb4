"""What a controller persists and what brokers answer, step by step, so that a test can let something happen at each of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from protocol.network_client import Disconnected
from protocol.rpc.messages import ControlRequest, ControlResponse, StopReplicaRequest
from protocol.zk.session import Op, OpResult, SessionExpired
from tests.support.memory_cluster import MemoryCluster

MOMENTS = ("before", "after")
"""Before it is applied, or after it is applied and before anybody has heard."""


class PersistedSteps:
    """`at_multi` and `at_stop` are called at both moments of each step: a multi that counts, or a StopReplica(delete)."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.cluster = cluster
        self.multis: list[Any] = []
        """What `kind_of` says of each."""
        self.stops: list[tuple[int, StopReplicaRequest]] = []
        self.at_multi: Callable[[int, str], None] = lambda index, moment: None
        self.at_stop: Callable[[int, str], None] = lambda index, moment: None
        self._multi = cluster.server.multi
        cluster.server.multi = self.multi  # type: ignore[method-assign]
        for broker in cluster.disks.values():
            self._watch(broker.id, broker)

    def kind_of(self, ops: Sequence[Op]) -> Any:
        """None: it does not count."""
        raise NotImplementedError

    def check_multi(self, ops: Sequence[Op]) -> None:
        """Called as it is applied."""

    def check_stop(self, broker_id: int, request: StopReplicaRequest) -> None:
        """Called as it arrives."""

    def multi(self, ops: Sequence[Op], session_id: int) -> list[OpResult]:
        kind = self.kind_of(ops)
        if kind is None:
            return self._multi(ops, session_id)
        index = len(self.multis)
        self.multis.append(kind)
        self.at_multi(index, "before")
        for session in self.cluster.sessions.values():
            if session.session_id == session_id:
                session._check_connection()
                break
        else:
            raise SessionExpired("its process was killed in this moment")
        self.check_multi(ops)
        results = self._multi(ops, session_id)
        self.at_multi(index, "after")
        return results

    def _watch(self, broker_id: int, broker: Any) -> None:
        handle = broker.handle

        def watched(request: ControlRequest) -> ControlResponse:
            if not isinstance(request, StopReplicaRequest) or not any(stop.delete for stop in request.partitions):
                return handle(request)  # type: ignore[no-any-return]
            index = len(self.stops)
            self.stops.append((broker_id, request))
            self.at_stop(index, "before")
            self.check_stop(broker_id, request)
            response: ControlResponse = handle(request)
            self.at_stop(index, "after")
            return response

        broker.handle = watched


Act = Callable[[MemoryCluster], None]
Disturb = Callable[[MemoryCluster, Any], None]


def at_multi(step: int, moment: str, act: Act) -> Disturb:
    """Calls `act` at that moment of that multi."""

    def disturb(cluster: MemoryCluster, steps: PersistedSteps) -> None:
        steps.at_multi = lambda index, when: act(cluster) if (index, when) == (step, moment) else None

    return disturb


def at_stop(answer: int, moment: str, act: Act) -> Disturb:
    """Lets it happen at that StopReplica, which is lost if it happens before."""

    def disturb(cluster: MemoryCluster, steps: PersistedSteps) -> None:
        def act_then(index: int, when: str) -> None:
            if (index, when) == (answer, moment):
                act(cluster)
                if when == "before":
                    raise Disconnected("the request is lost")

        steps.at_stop = act_then

    return disturb


def kill_controller(cluster: MemoryCluster) -> None:
    (active,) = [broker for broker, controller in cluster.controllers.items() if controller.is_active]
    cluster.crash(active)


def depose_controller(cluster: MemoryCluster) -> None:
    cluster.server.remove("/controller")


def lose_answers(cluster: MemoryCluster) -> None:
    for session in cluster.sessions.values():
        session.lose_answers = 1
