"""One term of a controller: the objects that it works with, and the steps that all its reactions share."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from controller.announcements import Announcement
from controller.broker_channels import BrokerChannels
from controller.cluster_state import ClusterState
from controller.cluster_store import ClusterStore, ControllerMoved, Written
from controller.event_log import EventLog
from controller.events import ReplicasDeleted
from controller.stats import ControllerStats
from controller.zk_watches import ZkWatches
from protocol.errors import ErrorCode
from protocol.rpc.messages import ControlResponse, LeaderAndIsrRequest, StopReplicaRequest
from protocol.types import LeaderAndIsr, TopicPartition

log = logging.getLogger(__name__)

PARTITIONS_IN_AN_EVENT = 500
DECISIONS_AT_ONCE = 1000
SLICES_WRITTEN_AT_ONCE = 12
ITEMS_AT_ONCE = 1000

Item = TypeVar("Item")

Decide = Callable[[TopicPartition, LeaderAndIsr], LeaderAndIsr | None]
"""(partition, its current state) -> the state to write, or None to write nothing."""

DecideUsual = Callable[[Sequence[TopicPartition]], dict[TopicPartition, LeaderAndIsr]]
"""Some partitions -> the states to write, for those of them that a `Decide` would treat as usual. It is faster than one call for each."""

DecideSome = Callable[[Sequence[TopicPartition]], Awaitable[dict[TopicPartition, LeaderAndIsr]]]
"""Some partitions -> the states to write, for the partitions that change."""

Write = Callable[[Mapping[TopicPartition, LeaderAndIsr]], Coroutine[Any, Any, Written]]
"""`write_states` or `create_states` of the store."""

Prepare = Callable[[Sequence[TopicPartition]], Awaitable[None]]
"""Reads what a decision about these partitions needs."""


@dataclass(frozen=True, slots=True)
class ControllerSettings:
    """The part of the broker's configuration that the controller needs."""

    broker_id: int
    control_listener: str
    unclean_leader_election_enable: bool = False
    auto_leader_rebalance_enable: bool = True
    leader_imbalance_check_interval_seconds: float = 300
    leader_imbalance_per_broker_percentage: int = 10
    delete_topic_enable: bool = True
    fast_failure_detection: bool = False


class Term:
    """Every reaction has the same four steps: decide, persist, apply, announce. A state that was not written is never announced.

    It is made in a running loop, and may be closed from outside of it.
    """

    def __init__(
        self,
        settings: ControllerSettings,
        cluster: ClusterState,
        store: ClusterStore,
        channels: BrokerChannels,
        watches: ZkWatches,
        events: EventLog,
        stats: ControllerStats,
    ) -> None:
        self.settings = settings
        self.cluster = cluster
        self.store = store
        self.channels = channels
        self.watches = watches
        self.events = events
        self.stats = stats
        self._unwritten_events: deque[tuple[str, Mapping[TopicPartition, LeaderAndIsr]]] = deque()
        self._slices_follow = False
        """Whether a slice of states was written, and others follow: the events wait until the brokers know all of them."""
        self._deletions_sent: dict[int, dict[TopicPartition, int]] = {}
        """Broker -> partition -> the number of the last StopReplica(delete), until it is answered."""
        self._event_writer: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        """Stops all writes and requests; a reaction in progress gets ControllerMoved."""
        self.store.close()
        self.channels.close()
        self._slices_follow = False
        self._write_events_later()

    def announcement(self) -> Announcement:
        return Announcement(self.settings.broker_id, self.cluster)

    async def announce(
        self, announcement: Announcement, *, is_repeated: bool = False
    ) -> list[asyncio.Future[ControlResponse]]:
        """Queues the requests. Returns the future answers to the LeaderAndIsr requests. Raises ControllerMoved.

        `is_repeated`: the next announcement will repeat most of this one, so the packed states are kept. A large announcement pauses, so
        that the broker in which this controller runs gets its turns (NET-4).
        """
        for _ in announcement.pack_in_slices():
            await self.store.others_turn()
        answers = []
        is_large = announcement.is_large
        for broker, requests in announcement.requests_by_broker():
            if is_large:
                await self.store.others_turn()
            for request in requests:
                answer = self.channels.send(broker, request)
                if answer is not None and isinstance(request, LeaderAndIsrRequest):
                    answers.append(answer)
                elif answer is not None and isinstance(request, StopReplicaRequest):
                    to_delete = (stop.topic_partition for stop in request.partitions if stop.delete)
                    sent = self._deletions_sent.setdefault(broker, {})
                    sent.update(dict.fromkeys(to_delete, self.channels.last_number))
        if not is_repeated:
            self.cluster.packed_rows.clear()
        self._write_events_later()
        return answers

    def end_life(self, broker: int) -> None:
        """The broker died, or registered again: its requests are not sent, and answers to them do not count."""
        self.channels.remove(broker)
        self._deletions_sent.pop(broker, None)

    def answered_deletions(self, event: ReplicasDeleted) -> list[tuple[TopicPartition, ErrorCode]]:
        """The answers to the last StopReplica(delete) for a partition and broker. Any other answer is late: it is about an earlier topic,
        an earlier move, or an earlier life of the broker."""
        sent = self._deletions_sent.get(event.broker, {})
        if event.controller_epoch != self.cluster.epoch:
            return []
        answered = [(tp, error) for tp, error in event.partitions if sent.get(tp) == event.number]
        for tp, _ in answered:
            del sent[tp]
        return answered

    async def carry_out(self, steps: Generator[None, None, Item]) -> Item:
        """Runs `steps` to its end and returns its value. Other tasks can run at each pause. Raises ControllerMoved."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                result: Item = end.value
                return result
            await self.store.others_turn()

    async def in_slices(self, items: Iterable[Item], size: Callable[[Item], int] = lambda _: 1) -> AsyncIterator[Item]:
        """Yields the items, with pauses in which other tasks can run. These tasks do not change the cluster state.

        `size` returns the number of partitions in an item. Raises ControllerMoved.
        """
        done = 0
        for item in items:
            done += size(item)
            yield item
            if done >= ITEMS_AT_ONCE:
                done = 0
                await self.store.others_turn()

    async def in_pieces(self, items: Sequence[Item]) -> AsyncIterator[Sequence[Item]]:
        """Yields ITEMS_AT_ONCE items at a time, with pauses as `in_slices` has them. Raises ControllerMoved."""
        for at in range(0, len(items), ITEMS_AT_ONCE):
            yield items[at : at + ITEMS_AT_ONCE]
            await self.store.others_turn()

    async def change(
        self,
        partitions: Iterable[TopicPartition],
        decide: Decide,
        announcement: Announcement,
        *,
        reason: str,
        prepare: Prepare | None = None,
        usual: DecideUsual | None = None,
        reads: bool = False,
    ) -> set[TopicPartition]:
        """Decides, persists and applies a new state for each partition, and adds the written ones to the announcement. `decide` decides
        what `usual` has not decided.

        Returns the partitions that were written. If a leader wrote its ISR in between, the decision is repeated with the current state.
        Raises ControllerMoved.

        A leader may have written an ISR that it has not announced yet. A decision to change nothing would then be based on an old state.
        With `reads`, such a decision is made again on ZooKeeper's current state (CTL-5).
        """
        waiting = list(filter(self.cluster.leadership.__contains__, partitions))
        changed: set[TopicPartition] = set()
        while waiting:
            again: list[TopicPartition] = []
            async for written in self._change(waiting, decide, prepare, usual, reads):
                self.apply(written.done, reason)
                announcement.leadership(written.done)
                announcement.pack(written.done)  # now, while ZooKeeper writes the next slice
                changed.update(written.done)
                again += self.adopt(written.conflicts)
            waiting = again
        return changed

    def _change(
        self,
        partitions: Sequence[TopicPartition],
        decide: Decide,
        prepare: Prepare | None,
        usual: DecideUsual | None,
        reads: bool,
    ) -> AsyncIterator[Written]:
        leadership = self.cluster.leadership

        async def decide_some(some: Sequence[TopicPartition]) -> dict[TopicPartition, LeaderAndIsr]:
            if prepare is not None:
                await prepare(some)
            decided = {} if usual is None else usual(some)
            unusual = some if not decided else [tp for tp in some if tp not in decided]
            decided |= {tp: state for tp in unusual if (state := decide(tp, leadership[tp])) is not None}
            if reads and len(decided) < len(some):
                found = self.adopt(await self.store.states([tp for tp in some if tp not in decided]))
                decided |= {tp: state for tp in found if (state := decide(tp, leadership[tp])) is not None}
            return decided

        return self.write_in_slices(partitions, decide_some, self.store.write_states)

    async def write_in_slices(
        self, partitions: Sequence[TopicPartition], decide: DecideSome, write: Write
    ) -> AsyncIterator[Written]:
        """Yields the written states of each slice. While ZooKeeper writes a slice, the next is decided and the previous is applied."""
        writes: deque[asyncio.Task[Written]] = deque()
        try:
            for at in range(0, len(partitions), DECISIONS_AT_ONCE):
                decided = await decide(partitions[at : at + DECISIONS_AT_ONCE])
                writes.append(self._loop.create_task(write(decided)))
                if len(writes) == SLICES_WRITTEN_AT_ONCE or writes[0].done():
                    yield await writes.popleft()
                    self._slices_follow = True
                elif len(partitions) > DECISIONS_AT_ONCE:
                    await self.store.others_turn()
            while writes:
                yield await writes.popleft()
                self._slices_follow = True
        finally:
            self._slices_follow = False
            for unfinished in writes:
                unfinished.cancel()
            await asyncio.gather(*writes, return_exceptions=True)

    def apply(self, states: Mapping[TopicPartition, LeaderAndIsr], reason: str) -> None:
        """Applies our own writes to the cluster state."""
        self.stats.elected(reason, self.cluster.set_written(states))
        if states:
            self._unwritten_events.append((reason, states))
            if len(self._unwritten_events) == 1 and not self._slices_follow:
                self._write_event()

    def _write_events_later(self) -> None:
        """Starts to write the rest of the event log, after the requests are queued: the brokers wait for their leaders."""
        if self._unwritten_events and (self._event_writer is None or self._event_writer.done()):
            self._event_writer = self._loop.create_task(self._write_events())

    async def _write_events(self) -> None:
        while self._unwritten_events and not self._slices_follow:
            self._write_event()
            await asyncio.sleep(0)

    def _write_event(self) -> None:
        reason, states = self._unwritten_events.popleft()
        rows = [[str(tp), s.leader, s.leader_epoch, list(s.isr), s.zk_version] for tp, s in states.items()]
        for at in range(0, len(rows), PARTITIONS_IN_AN_EVENT):
            some = rows[at : at + PARTITIONS_IN_AN_EVENT]
            self.events.write("leader_elected", reason=reason, controller_epoch=self.cluster.epoch, partitions=some)

    def load(self, states: Mapping[TopicPartition, LeaderAndIsr]) -> None:
        """Takes over ZooKeeper's states at the start of the term. Raises ControllerMoved if a newer controller wrote one."""
        newest = max(states.items(), key=lambda item: item[1].controller_epoch, default=None)
        if newest is not None and newest[1].controller_epoch > self.cluster.epoch:
            raise ControllerMoved(f"{newest[0]} was written by controller epoch {newest[1].controller_epoch}")
        self.cluster.load_leadership(states)

    def adopt(self, found: Mapping[TopicPartition, LeaderAndIsr | None]) -> list[TopicPartition]:
        """Adopts states that others wrote. Returns the partitions whose state was adopted. Raises ControllerMoved."""
        adopted = []
        for tp, state in found.items():
            if state is None:
                log.warning("%s: its state znode is missing or not readable, so nothing is written to it", tp)
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
