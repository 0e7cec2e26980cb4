"""One term of office: what an elected controller has at hand, and the steps that all its reactions share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from controller.announcements import Announcement
from controller.broker_channels import BrokerChannels
from controller.cluster_state import ClusterState
from controller.cluster_store import ClusterStore, ControllerMoved
from controller.partition_states import PartitionState
from controller.zk_watches import ZkWatches
from protocol.rpc.messages import ControlResponse, LeaderAndIsrRequest
from protocol.types import NO_LEADER, LeaderAndIsr, TopicPartition

log = logging.getLogger(__name__)

PARTITIONS_IN_AN_EVENT = 500

Decide = Callable[[TopicPartition, LeaderAndIsr], LeaderAndIsr | None]
"""(partition, what is known of it) -> the state to write, or None for none."""

Prepare = Callable[[Sequence[TopicPartition]], Awaitable[None]]
"""Gets what a decision about these partitions needs to know."""


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
    leader_imbalance_check_interval_seconds: float = 300
    leader_imbalance_per_broker_percentage: int = 10


class Term:
    """Every reaction is the same four steps: decide, persist, apply, announce. What was not written is never announced."""

    def __init__(
        self,
        settings: ControllerSettings,
        cluster: ClusterState,
        store: ClusterStore,
        channels: BrokerChannels,
        watches: ZkWatches,
        events: EventLog,
    ) -> None:
        self.settings = settings
        self.cluster = cluster
        self.store = store
        self.channels = channels
        self.watches = watches
        self.events = events

    def close(self) -> None:
        """Nothing is written and nothing is sent any more; a reaction under way gets ControllerMoved."""
        self.store.close()
        self.channels.close()

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
        self,
        partitions: Iterable[TopicPartition],
        decide: Decide,
        announcement: Announcement,
        *,
        reason: str,
        prepare: Prepare | None = None,
    ) -> None:
        """Decides, persists and applies a new state for each partition; what was written goes into the announcement.

        Where a leader wrote its ISR in between, the decision is made again from what is there now. Raises ControllerMoved.
        """
        waiting = [tp for tp in partitions if tp in self.cluster.leadership]
        while waiting:
            if prepare is not None:
                await prepare(waiting)
            decided: dict[TopicPartition, LeaderAndIsr] = {}
            for tp in waiting:
                state = decide(tp, self.cluster.leadership[tp])
                if state is not None:
                    decided[tp] = state
            written = await self.store.write_states(decided)
            self.apply(written.done, reason)
            announcement.leadership(written.done)
            waiting = self.adopt(written.conflicts)

    def apply(self, states: Mapping[TopicPartition, LeaderAndIsr], reason: str) -> None:
        """Takes over what ZooKeeper now has because we wrote it."""
        for tp, state in states.items():
            self.cluster.set_leadership(tp, state)
            self.cluster.move_partition(
                tp, PartitionState.OFFLINE if state.leader == NO_LEADER else PartitionState.ONLINE
            )
        rows = [[str(tp), s.leader, s.leader_epoch, list(s.isr), s.zk_version] for tp, s in states.items()]
        for at in range(0, len(rows), PARTITIONS_IN_AN_EVENT):
            self.events.write(
                "leader_elected",
                reason=reason,
                controller_epoch=self.cluster.epoch,
                partitions=rows[at : at + PARTITIONS_IN_AN_EVENT],
            )

    def adopt(self, found: Mapping[TopicPartition, LeaderAndIsr | None]) -> list[TopicPartition]:
        """Takes over what others wrote. Returns the partitions that there is something about."""
        adopted = []
        for tp, state in found.items():
            if state is None:
                log.warning("%s: its state znode is gone or not readable, nothing is written to it", tp)
                continue
            if state.controller_epoch > self.cluster.epoch:
                raise ControllerMoved(f"{tp} was written by controller epoch {state.controller_epoch}")
            known = self.cluster.leadership.get(tp)
            if known is None or state.leader_epoch >= known.leader_epoch:
                self.cluster.set_leadership(tp, state)
                adopted.append(tp)
            else:
                log.error("%s: its leader epoch went back from %d to %d", tp, known.leader_epoch, state.leader_epoch)
        return adopted
