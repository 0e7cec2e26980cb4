"""Handles LeaderAndIsr: reads from ZooKeeper what is needed to open logs, then calls the replica manager (LAI-1..5).

A log is opened with its topic's settings. Defaults are unsafe: a leader would accept records with fewer in-sync replicas
than the topic demands (INV-17), and retention would delete records that a compacted topic keeps. If a partition is not new, has
this broker in its ISR and has no log here, it gets a log only if it is younger than each of this broker's disks; otherwise its
records were lost (`disk_history`). Partitions are *held* while ZooKeeper cannot be asked for their settings or age, or while no
file descriptor is free for their logs. The other partitions and all later requests are carried out.

1. The handler tries again every `RETRY_S`. It applies the held partitions about which ZooKeeper has answered.
2. A newer LeaderAndIsr for a held partition replaces it; a newer StopReplica drops it.
3. A held partition of an earlier life of this broker, or of a deposed controller, is dropped when its turn comes.
4. The request of a held partition was already answered, without an error. If the partition cannot be served, the broker asks
   for a LeaderAndIsr of everything, as after a disk failure. The response to that request contains the error.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from broker.control.pauses import RequestPauses
from broker.replication.leadership_changes import Lookup
from broker.replication.replica_manager import ReplicaManager
from protocol.errors import ErrorCode
from protocol.rpc.messages import ControlResponse, LeaderAndIsrRequest, PartitionState, StopReplicaRequest
from protocol.types import TopicPartition
from protocol.zk.session import ConnectionLoss, SessionExpired, ZkError

log = logging.getLogger(__name__)

RETRY_S = 0.2
READ_WITHIN_S = 1.0
"""How long a request waits for ZooKeeper. It is then carried out without the partitions that still need an answer."""
READ_AT_ONCE = 500
"""Topics or partitions in one read, few enough that even a slow ZooKeeper answers some reads within `READ_WITHIN_S`."""

NOT_SERVED = (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.REPLICA_NOT_AVAILABLE)

Item = TypeVar("Item")

LoadTopicOverrides = Callable[[Sequence[str]], Awaitable[Mapping[str, Mapping[str, str]]]]
"""Topics -> the settings from `/config/topics` of the topics that have some. Raises ZkError."""

LoadCreationZxids = Callable[[Sequence[TopicPartition]], Awaitable[Mapping[TopicPartition, int]]]
"""Partitions -> the zxid at which each partition's state znode was created. Raises ZkError."""


class HeldPartition(NamedTuple):
    """A partition that waits for ZooKeeper's answer, or for a file descriptor. `request`: the LeaderAndIsr that contained it."""

    state: PartitionState
    request: LeaderAndIsrRequest

    @property
    def topic_id(self) -> str | None:
        return self.request.topic_ids.get(self.state.topic)


class LeaderAndIsrHandler:
    """Carries out one request at a time: the listener holds the lock `one_at_a_time` around `handle`.

    `ask_for_everything` makes the controller send a LeaderAndIsr for all partitions that this broker hosts.
    """

    def __init__(
        self,
        pauses: RequestPauses,
        replica_manager: ReplicaManager,
        load_topic_overrides: LoadTopicOverrides,
        load_created: LoadCreationZxids,
        one_at_a_time: asyncio.Lock,
        ask_for_everything: Callable[[], None],
    ) -> None:
        self._pauses = pauses
        self._replica_manager = replica_manager
        self._load_topic_overrides = load_topic_overrides
        self._load_created = load_created
        self._one_at_a_time = one_at_a_time
        self._ask_for_everything = ask_for_everything
        self._held: dict[TopicPartition, HeldPartition] = {}
        self._retries: asyncio.Task[None] | None = None

    async def handle(self, request: LeaderAndIsrRequest) -> ControlResponse:
        response, held = await self._apply(request, await self._look_up(request))
        if response.error is ErrorCode.NONE:
            for state in request.partitions if self._held else ():
                self._held.pop(state.topic_partition, None)
            self._held.update((state.topic_partition, HeldPartition(state, request)) for state in held)
        if held:
            log.warning(
                "%d partitions wait until ZooKeeper can be read or a file opened, first %s-%d", len(held), *held[0][:2]
            )
            if self._retries is None or self._retries.done():
                self._retries = asyncio.get_running_loop().create_task(self._apply_held_regularly())
        return response

    def stopped(self, request: StopReplicaRequest) -> None:
        """Drops the held partitions that a StopReplica names. Called after it was carried out."""
        for stop in request.partitions if self._held else ():
            held = self._held.get(stop.topic_partition)
            if held is not None and request.topic_ids.get(stop.topic) in (None, held.topic_id):
                del self._held[stop.topic_partition]

    async def close(self) -> None:
        """Stops retrying: held partitions are not applied any more."""
        if self._retries is not None:
            self._retries.cancel()
            await asyncio.gather(self._retries, return_exceptions=True)

    async def _apply(
        self, request: LeaderAndIsrRequest, lookup: Lookup
    ) -> tuple[ControlResponse, list[PartitionState]]:
        """Applies the partitions that can be applied now. Returns the answer, and the partitions that must be held."""
        held: list[PartitionState] = []
        response = await self._pauses.carry_out(
            request.broker_epoch,
            lambda pause: self._replica_manager.become_leader_or_follower(request, lookup, held, pause),
        )
        return response, held if response.error is ErrorCode.NONE else []

    async def _look_up(self, request: LeaderAndIsrRequest) -> Lookup:
        """Reads from ZooKeeper as much as it answers within `READ_WITHIN_S`."""
        topics = self._replica_manager.topics_to_configure(request)
        await asyncio.sleep(0)  # each of the two calls takes some milliseconds for ten thousand partitions
        missing = self._replica_manager.missing_logs(request)
        overrides: dict[str, Mapping[str, str]] = {}
        created: dict[TopicPartition, int] = {}
        try:
            async with asyncio.timeout(READ_WITHIN_S):
                for some in _slices(sorted(topics)):
                    await self._load(some, overrides)
                for some_missing in _slices(sorted(missing)):
                    created.update(await self._load_created(some_missing))
        except (TimeoutError, ZkError) as error:
            log.warning("LeaderAndIsr: ZooKeeper did not answer everything in time: %s", error)
        return Lookup(overrides, created, {*(topics - overrides.keys()), *(missing - created.keys())})

    async def _load(self, topics: list[str], found: dict[str, Mapping[str, str]]) -> None:
        """Reads the topics' settings. One topic that cannot be read does not delay the others."""
        if not topics:
            return
        try:
            loaded = await self._load_topic_overrides(topics)
            found.update((topic, loaded.get(topic, {})) for topic in topics)
        except (ConnectionLoss, SessionExpired) as error:
            log.info("the settings of topics cannot be read now: %s", error)
        except ZkError as error:
            if len(topics) == 1:
                log.warning("the settings of topic %s cannot be read: %s", topics[0], error)
                return
            middle = len(topics) // 2
            await self._load(topics[:middle], found)
            await self._load(topics[middle:], found)

    # -- what is held ---------------------------------------------------------------------------------------------

    async def _apply_held_regularly(self) -> None:
        while self._held:
            await asyncio.sleep(RETRY_S)
            try:
                await self._apply_held()
            except Exception:
                # The boundary of the task: held partitions are tried again.
                log.exception("held partitions could not be applied")

    async def _apply_held(self) -> None:
        """Reads first, without the lock, and takes the lock only if there is an answer."""
        by_request: dict[int, list[HeldPartition]] = {}
        for held in self._held.values():
            by_request.setdefault(id(held.request), []).append(held)
        for group in by_request.values():
            if self._is_still_unknown(group, await self._look_up(_part(group))):
                continue
            async with self._one_at_a_time:
                group = [held for held in group if self._held.get(held.state.topic_partition) is held]
                if group:
                    await self._apply_group(group)

    async def _apply_group(self, group: Sequence[HeldPartition]) -> None:
        # Read again under the lock: settings may have changed while the handler waited for it.
        part = _part(group)
        response, waiting = await self._apply(part, await self._look_up(part))
        for state in part.partitions:
            if state not in waiting:
                del self._held[state.topic_partition]
        log.info("%d held partitions were applied or dropped", len(part.partitions) - len(waiting))
        if any(error.error in NOT_SERVED for error in response.partitions):
            self._ask_for_everything()

    def _is_still_unknown(self, group: Sequence[HeldPartition], lookup: Lookup) -> bool:
        return all(lookup.lacks(held.state) for held in group)


def _part(group: Sequence[HeldPartition]) -> LeaderAndIsrRequest:
    """The partitions' request, reduced to these partitions."""
    states = tuple(held.state for held in group)
    return replace(group[0].request, partitions=states, is_full=False, other_topics=())


def _slices(items: list[Item]) -> Iterator[list[Item]]:
    return (items[at : at + READ_AT_ONCE] for at in range(0, len(items), READ_AT_ONCE))
