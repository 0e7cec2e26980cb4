"""A member of a group that uses the new protocol (KIP-848): the broker assigns, and one request says and hears everything."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from random import Random
from typing import Any

from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from protocol.types import Address, TopicPartition
from tools.sim.clients.group_member import (
    COMMITS,
    HEARTBEAT_S,
    REBALANCE,
    SESSION,
    GroupMember,
    JoinAgain,
    commit_body,
)
from tools.sim.clients.history import History, Ownership
from tools.sim.clients.wire_client import PATIENCE_S, NoAnswer

JOINING, LEAVING, LEAVING_FOR_A_WHILE = 0, -1, -2
"""Member epochs of a heartbeat."""
NOT_SAID = timedelta(milliseconds=-1)
HAS_ID_SINCE = 1
"""From this version of the heartbeat on, a member makes its own id, and may subscribe to a regular expression."""
EPOCHS_SINCE = 9
"""From this version on, OffsetCommit and OffsetFetch take the epoch of a member."""
STATIC, PATTERNS, LATE = 0.25, 0.25, 0.1
"""How many members are static, how many subscribe to a regular expression, and how often an application is late with a commit."""
LATE_S = (0.5, 8.0)
NOT_A_MEMBER = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.FENCED_INSTANCE_ID,
        ErrorCode.GROUP_ID_NOT_FOUND,
    }
)
PASSING = frozenset({ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNRELEASED_INSTANCE_ID})
"""The next heartbeat brings the newest epoch. The static member that has the place is gone when its session has ended."""


class NewMember(GroupMember):
    """Gives up what it must, says so, and takes what it then gets.

    A request that was not answered may come late. With the same coordinator, it comes before the next one: both use one connection. With
    another one, the member begins anew, with another id: in Kafka as well, a late heartbeat would speak for the member of today.
    """

    def __init__(
        self,
        name: str,
        group: str,
        bootstrap: Sequence[Address],
        partitions: Sequence[TopicPartition],
        random: Random,
        history: History,
    ) -> None:
        super().__init__(name, group, bootstrap, partitions, random, history)
        self._instance_id = f"instance-of-{name}" if random.random() < STATIC else None
        self._pattern = "|".join(self._topics) if random.random() < PATTERNS else None
        self._makes_id = self._pattern is not None or random.random() < 0.8
        self._assignor = random.choice((None, None, "uniform", "range"))
        self._epoch = JOINING
        self._mine: dict[TopicPartition, None] = {}
        """What it may read. It reads those of them whose committed offsets it knows."""
        self._told: dict[TopicPartition, None] | None = None
        """What it has said that it reads, if the coordinator surely knows that."""
        self._is_in_doubt = False
        """Its last request was not answered."""
        self._asked: Address | None = None
        self._late: asyncio.Task[None] | None = None
        self._late_epoch = JOINING
        self._turn = asyncio.Lock()
        """One request at a time."""
        self._client.knows_ids = True

    async def _in_a_generation(self) -> None:
        """Works until something is wrong. Raises JoinAgain, NoAnswer."""
        loop = asyncio.get_running_loop()
        if not all(topic in self._client.topic_ids for topic in self._topics):
            raise NoAnswer("the ids of the topics are not known")
        await self._beat(is_full=True)
        leaves_at = loop.time() + self._random.expovariate(1 / self._lives_s)
        heartbeat_at = loop.time() + HEARTBEAT_S
        while True:
            await self._find_positions()
            if self.positions:
                await self._read_once()
            if self._stands_still():
                await asyncio.sleep(SESSION.total_seconds() * self._random.uniform(1.2, 2.0))
                await self._commit()
            if self._random.random() < COMMITS:
                await self._commit()
            if self._random.random() < LATE:
                self._begin_late_commit()
            if self._leaves(leaves_at):
                await self._commit()
                await self._go()
                await asyncio.sleep(self._random.random() * 5)
                return
            if loop.time() >= heartbeat_at:
                heartbeat_at = loop.time() + HEARTBEAT_S
                await self._beat(is_full=self._random.random() < 0.1)
            await asyncio.sleep(self._random.random() / 2)

    # -- heartbeats ---------------------------------------------------------------------------------------------------

    async def _beat(self, *, is_full: bool = False) -> None:
        """Joins, or goes on. If partitions must be given up, that is said at once."""
        if self._epoch == JOINING:
            self._give_up_all()
            if not self._makes_id:
                self._member_id = ""
            elif not self._member_id:
                self._member_id = str(uuid.UUID(int=self._random.getrandbits(128)))
        if await self._exchange(is_full=is_full or self._epoch == JOINING):
            await self._exchange()

    async def _exchange(self, *, is_full: bool = False) -> bool:
        """One heartbeat. True: the member has given up partitions since. Raises JoinAgain, NoAnswer."""
        says_what_it_reads = is_full or self._told != self._mine
        body = {
            "group_id": self.group,
            "member_id": self._member_id,
            "member_epoch": self._epoch,
            "instance_id": self._instance_id,
            "rack_id": None,
            "rebalance_timeout": REBALANCE if is_full else NOT_SAID,
            "subscribed_topic_names": tuple(self._topics) if is_full and self._pattern is None else None,
            "subscribed_topic_regex": self._pattern if is_full else None,
            "server_assignor": self._assignor if is_full else None,
            "topic_partitions": self._by_id(self._mine) if says_what_it_reads else None,
        }
        asked_at, told = self._history.scheduler.now, dict(self._mine)
        oldest, newest = (HAS_ID_SINCE, HAS_ID_SINCE) if self._makes_id else (0, 0)
        answer = await self._request(ApiKey.CONSUMER_GROUP_HEARTBEAT, body, oldest, newest)
        self._check(answer.error_code)
        self._heard(asked_at)
        self._history.counts["heartbeats of new members"] += 1
        if says_what_it_reads:
            self._told = told
        self._member_id, self._epoch = answer.member_id, answer.member_epoch
        if answer.assignment is None:
            return False
        return await self._take_assignment(
            TopicPartition(self._client.names[row.topic_id], number)
            for row in answer.assignment.topic_partitions
            for number in row.partitions
        )

    async def _take_assignment(self, assigned: Iterable[TopicPartition]) -> bool:
        """True: the member has given up partitions. Raises JoinAgain, NoAnswer."""
        wanted = dict.fromkeys(assigned)
        lost = [tp for tp in self._mine if tp not in wanted]
        gained = [tp for tp in wanted if tp not in self._mine]
        # A static member that comes back has another member id, and what it had.
        who = self._instance_id or self._member_id
        self._history.owned.append(Ownership(self.group, self._epoch, who, tuple(wanted)))
        self._history.holders.takes(self.group, self.name, gained)
        self._mine |= dict.fromkeys(gained)
        if not lost:
            return False
        self._history.counts["partitions given up"] += len(lost)
        try:
            if self._random.random() < COMMITS:
                await self._commit()
        finally:
            self._history.holders.gives_up(self.group, self.name, lost)
            for tp in lost:
                self._mine.pop(tp, None)
                self.positions.pop(tp, None)
        return True

    async def _go(self) -> None:
        """A static member may come back."""
        is_for_a_while = self._instance_id is not None and not self._is_stopping
        body = {
            "group_id": self.group,
            "member_id": self._member_id,
            "member_epoch": LEAVING_FOR_A_WHILE if is_for_a_while else LEAVING,
            "instance_id": self._instance_id,
            "rack_id": None,
            "rebalance_timeout": NOT_SAID,
            "subscribed_topic_names": None,
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": None,
        }
        self._abandon()
        oldest, newest = (HAS_ID_SINCE, HAS_ID_SINCE) if self._makes_id else (0, 0)
        answer = await self._request(ApiKey.CONSUMER_GROUP_HEARTBEAT, body, oldest, newest)
        self._check(answer.error_code)

    def _abandon(self) -> None:
        """It is no member any more."""
        if self._late is not None:
            self._late.cancel()
            self._late = None
        self._give_up_all()
        self._epoch, self._member_id = JOINING, ""

    def _give_up_all(self) -> None:
        self._history.holders.gives_up(self.group, self.name)
        self._mine, self._told, self.positions = {}, None, {}

    # -- offsets ------------------------------------------------------------------------------------------------------

    async def _find_positions(self) -> None:
        """Of partitions that are new. Raises JoinAgain, NoAnswer."""
        unknown = [tp for tp in self._mine if tp not in self.positions]
        if unknown:
            found = await self._committed_offsets(unknown)
            self.positions |= {tp: offset for tp, offset in found.items() if tp in self._mine}

    async def _committed_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        committed = dict(self._history.last_committed)
        topics = tuple(
            {
                "name": topic,
                "topic_id": self._client.topic_ids[topic],
                "partition_indexes": tuple(tp.partition for tp in partitions if tp.topic == topic),
            }
            for topic in dict.fromkeys(tp.topic for tp in partitions)
        )
        row = {
            "group_id": self.group,
            "member_id": self._member_id,
            "member_epoch": self._epoch,
            "topics": topics,
        }
        answer = await self._request(ApiKey.OFFSET_FETCH, {"groups": (row,), "require_stable": True}, EPOCHS_SINCE)
        found = dict.fromkeys(partitions, 0)
        self._check(answer.groups[0].error_code)
        for topic in answer.groups[0].topics:
            for partition in topic.partitions:
                self._check(partition.error_code)
                tp = TopicPartition(self._client.name_of(topic), partition.partition_index)
                found[tp] = max(0, partition.committed_offset)
                before = committed.get((self.group, tp), 0)
                host = self._asked[0] if self._asked is not None else ""
                self._history.check_committed(self.name, self.group, tp, found[tp], before, host)
        self._committed |= found
        return found

    async def _commit(self) -> None:
        """Unless its application has begun a commit in this epoch, and is not ready."""
        if self._late is None or self._late.done() or self._late_epoch != self._epoch:
            self._check(await self._commit_in(self._epoch, self._moved()))

    def _moved(self) -> dict[TopicPartition, int]:
        return {tp: offset for tp, offset in self.positions.items() if offset != self._committed.get(tp)}

    async def _commit_in(self, epoch: int, moved: Mapping[TopicPartition, int]) -> ErrorCode:
        """The first error. Raises JoinAgain, NoAnswer."""
        if not moved:
            return ErrorCode.NONE
        body = commit_body(self.group, self._member_id, epoch, moved, self._client.topic_ids)
        answer = await self._request(
            ApiKey.OFFSET_COMMIT, body | {"group_instance_id": self._instance_id}, EPOCHS_SINCE
        )
        for topic in answer.topics:
            for partition in topic.partitions:
                if partition.error_code != ErrorCode.NONE:
                    return ErrorCode(partition.error_code)
                tp = TopicPartition(self._client.name_of(topic), partition.partition_index)
                self._committed[tp] = moved[tp]
                self._history.committed(self.group, tp, moved[tp])
        return ErrorCode.NONE

    def _begin_late_commit(self) -> None:
        """By an application that takes its time: meanwhile, the member may have to give up partitions, and get another epoch."""
        if self._late is None or self._late.done():
            self._late_epoch = self._epoch
            self._late = asyncio.create_task(self._commit_late(self._epoch, self._moved()))

    async def _commit_late(self, epoch: int, moved: Mapping[TopicPartition, int]) -> None:
        await asyncio.sleep(self._random.uniform(*LATE_S))
        try:
            code = await self._commit_in(epoch, moved)
        except (JoinAgain, NoAnswer):
            return
        self._history.counts["late commits refused"] += code != ErrorCode.NONE

    # -- requests -----------------------------------------------------------------------------------------------------

    async def _request(self, api: ApiKey, body: Mapping[str, Any], oldest: int, newest: int = 32_767) -> Any:
        """Raises JoinAgain, NoAnswer."""
        async with self._turn:
            coordinator = await self._where()
            if self._is_in_doubt and coordinator != self._asked:
                self._is_in_doubt = False
                self._abandon()
                raise JoinAgain
            self._asked = coordinator
            try:
                async with asyncio.timeout(PATIENCE_S):
                    connection = await self._client.connection(coordinator)
                    answer = await connection.ask(api, self._client.version(api, oldest, newest), body)
            except (NoAnswer, TimeoutError):
                self._is_in_doubt = True
                raise NoAnswer(f"no answer to {api.name}") from None
            self._is_in_doubt = False
            return answer

    def _check(self, code: int) -> None:
        """Raises JoinAgain or NoAnswer for errors that pass."""
        if code in NOT_A_MEMBER:
            self._history.counts["new members put out"] += 1
            member_id = self._member_id
            self._abandon()
            if code == ErrorCode.FENCED_MEMBER_EPOCH:
                self._member_id = member_id
            raise JoinAgain
        if code in PASSING:
            raise NoAnswer(ErrorCode(code).name)
        super()._check(code)

    def _by_id(self, partitions: Iterable[TopicPartition]) -> tuple[Mapping[str, Any], ...]:
        numbers: dict[str, list[int]] = {}
        for tp in partitions:
            numbers.setdefault(tp.topic, []).append(tp.partition)
        return tuple(
            {"topic_id": self._client.topic_ids[topic], "partitions": tuple(found)} for topic, found in numbers.items()
        )
