"""One term of office: what an elected controller has at hand, and the steps that all its reactions share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from controller.announcements import Announcement
from controller.broker_channels import BrokerChannels
from controller.cluster_state import ClusterState
from controller.cluster_store import ClusterStore, ControllerMoved
from controller.events import Event
from controller.partition_states import PartitionState
from protocol.rpc.messages import ControlResponse, LeaderAndIsrRequest
from protocol.types import NO_LEADER, LeaderAndIsr, TopicPartition
from protocol.zk.session import WatchCallback, WatchEvent

log = logging.getLogger(__name__)

Decide = Callable[[TopicPartition, LeaderAndIsr], LeaderAndIsr | None]


class EventLog(Protocol):
    """Where the timeline is written (RUN-3)."""

    def write(self, kind: str, **fields: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """The part of the broker's configuration that the controller needs."""

    broker_id: int
    control_listener: str
    unclean_leader_election_enable: bool = False
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_seconds: int = 300
    leader_imbalance_per_broker_percentage: int = 10


class Term:
    """Every reaction is the same four steps: decide, persist, apply, announce. What was not written is never announced."""

    def __init__(
        self,
        settings: ControllerSettings,
        cluster: ClusterState,
        store: ClusterStore,
        channels: BrokerChannels,
        events: EventLog,
        post: Callable[[Event], None],
    ) -> None:
        self.settings = settings
        self.cluster = cluster
        self.store = store
        self.channels = channels
        self.events = events
        self._post = post

    def watch(self, event: Event) -> WatchCallback:
        """A ZooKeeper watch that puts `event` into the queue, and does nothing else."""

        def on_watch(_: WatchEvent) -> None:
            self._post(event)

        return on_watch

    def announcement(self) -> Announcement:
        return Announcement(self.settings.broker_id, self.cluster)

    def announce(self, announcement: Announcement) -> list[asyncio.Future[ControlResponse]]:
        """Queues the requests. Returns the answers to come of the LeaderAndIsr among them."""
        answers = []
        for broker, requests in announcement.requests().items():
            for request in requests:
                answer = self.channels.send(broker, request)
                if answer is not None and isinstance(request, LeaderAndIsrRequest):
                    answers.append(answer)
        return answers

    async def change(
        self, partitions: Iterable[TopicPartition], decide: Decide, announcement: Announcement, *, reason: str
    ) -> None:
        """Decides, persists and applies a new state for each partition; what was written goes into the announcement.

        Where a leader wrote its ISR in between, the decision is made again from what is there now. Raises ControllerMoved.
        """
        waiting = [tp for tp in partitions if tp in self.cluster.leadership]
        while waiting:
            decided: dict[TopicPartition, LeaderAndIsr] = {}
            for tp in waiting:
                state = decide(tp, self.cluster.leadership[tp])
                if state is not None:
                    decided[tp] = state
            written = await self.store.write_states(decided)
            self.apply(written.done, reason)
            announcement.leadership(written.done)
            waiting = self._adopt_conflicts(written.conflicts)

    def apply(self, states: Mapping[TopicPartition, LeaderAndIsr], reason: str) -> None:
        """Takes over what ZooKeeper now has."""
        for tp, state in states.items():
            self.cluster.set_leadership(tp, state)
            target = PartitionState.OFFLINE if state.leader == NO_LEADER else PartitionState.ONLINE
            self.cluster.move_partition(tp, target)
            self.events.write(
                "leader_elected",
                reason=reason,
                partition=str(tp),
                leader=state.leader,
                leader_epoch=state.leader_epoch,
                isr=list(state.isr),
                controller_epoch=self.cluster.epoch,
                zk_version=state.zk_version,
            )

    def _adopt_conflicts(self, conflicts: Mapping[TopicPartition, LeaderAndIsr | None]) -> list[TopicPartition]:
        """Reads into the cluster state what stood in the way. Returns the partitions to decide about again."""
        again = []
        for tp, state in conflicts.items():
            if state is None:
                log.warning("%s: its state znode is gone", tp)
                continue
            if state.controller_epoch > self.cluster.epoch:
                raise ControllerMoved(f"{tp} was written by controller epoch {state.controller_epoch}")
            self.cluster.set_leadership(tp, state)
            again.append(tp)
        return again
