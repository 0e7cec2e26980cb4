"""A member of a consumer group: joins, takes what the leader assigns, reads, commits, and leaves in the end."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from datetime import timedelta
from random import Random
from typing import Any

from protocol.errors import ErrorCode, error_name, is_retriable
from protocol.kafka import consumer_protocol
from protocol.kafka.api_keys import ApiKey
from protocol.types import Address, TopicPartition
from tools.sim.clients.history import MEMBER_SESSION_S, History, Ownership
from tools.sim.clients.reader import Reader
from tools.sim.clients.wire_client import PATIENCE_S, NoAnswer

GROUP = 0
"""The kind of coordinator."""
SESSION = timedelta(seconds=MEMBER_SESSION_S)
REBALANCE = timedelta(seconds=10)
HEARTBEAT_S = 1.0
REBALANCES = (ApiKey.JOIN_GROUP, ApiKey.SYNC_GROUP)
STALLS = 0.02
"""How often a member stands still for longer than its session."""
COMMITS = 0.4
"""How often a member commits what it has read."""
PROTOCOL = "simulated"
NO_GENERATION = -1
OUT_OF_DATE = frozenset(
    {
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.MEMBER_ID_REQUIRED,
    }
)


ONE_GROUP_NEWEST = 5
"""Newer versions of OffsetFetch can name several groups, and wait for pending commits."""


def offsets_body(group: str, partitions: Sequence[TopicPartition]) -> dict[str, Any]:
    """OffsetFetch, for versions 2 to ONE_GROUP_NEWEST."""
    topics = tuple(
        {"name": topic, "partition_indexes": tuple(tp.partition for tp in partitions if tp.topic == topic)}
        for topic in dict.fromkeys(tp.topic for tp in partitions)
    )
    return {"group_id": group, "topics": topics}


def commit_body(
    group: str,
    member_id: str,
    generation: int,
    offsets: Mapping[TopicPartition, int],
    topic_ids: Mapping[str, Any],
) -> dict[str, Any]:
    """OffsetCommit. `generation`: or the epoch of a member of the new protocol."""
    topics = tuple(
        {
            "name": topic,
            "topic_id": topic_ids.get(topic),
            "partitions": tuple(
                {
                    "partition_index": tp.partition,
                    "committed_offset": offset,
                    "committed_leader_epoch": -1,
                    "commit_timestamp": -1,
                    "committed_metadata": "",
                }
                for tp, offset in offsets.items()
                if tp.topic == topic
            ),
        }
        for topic in dict.fromkeys(tp.topic for tp in offsets)
    )
    return {
        "group_id": group,
        "generation_id_or_member_epoch": generation,
        "member_id": member_id,
        "group_instance_id": None,
        "retention_time": timedelta(milliseconds=-1),
        "topics": topics,
    }


class JoinAgain(Exception):
    """The member is no longer in its generation."""


class GroupMember(Reader):
    """Reads uncommitted records, from where its group has committed."""

    def __init__(
        self,
        name: str,
        group: str,
        bootstrap: Sequence[Address],
        partitions: Sequence[TopicPartition],
        random: Random,
        history: History,
    ) -> None:
        super().__init__(name, bootstrap, (), random, history)
        self.is_committed_only = False
        self.group = group
        self._all = list(partitions)
        self._topics = sorted({tp.topic for tp in partitions})
        self._coordinator: Address | None = None
        self._member_id = ""
        self._generation = NO_GENERATION
        self._committed: dict[TopicPartition, int] = {}
        self._lives_s = random.choice((5.0, 20.0, 1000.0))
        """How long it stays until it leaves for a while."""
        self._is_settled = False

    async def run(self) -> None:
        await self._client.refresh(self._topics)
        while not self._is_stopping:
            try:
                await self._in_a_generation()
            except JoinAgain:
                continue
            except NoAnswer:
                self._coordinator = None
                await self._client.back_off()
                await self._client.refresh(self._topics)
        self._client.close()

    def settle(self) -> None:
        """The load has ended: from now on it stays in the group, and does not stand still. So the group can read everything."""
        self._is_settled = True

    def _stands_still(self) -> bool:
        return self._random.random() < STALLS and not self._is_settled

    def _leaves(self, leaves_at: float) -> bool:
        return self._is_stopping or (asyncio.get_running_loop().time() > leaves_at and not self._is_settled)

    async def _in_a_generation(self) -> None:
        """Joins and works until the group rebalances. Raises JoinAgain, NoAnswer."""
        loop = asyncio.get_running_loop()
        await self._join()
        leaves_at = loop.time() + self._random.expovariate(1 / self._lives_s)
        heartbeat_at = loop.time() + HEARTBEAT_S
        while True:
            await self._read_once()
            if self._stands_still():
                # The group goes on without it, and its commit is refused.
                await asyncio.sleep(SESSION.total_seconds() * self._random.uniform(1.2, 2.0))
                await self._commit()
            if self._random.random() < COMMITS:
                await self._commit()
            if self._leaves(leaves_at):
                await self._commit()
                await self._leave()
                await asyncio.sleep(self._random.random() * 5)
                return
            if loop.time() >= heartbeat_at:
                heartbeat_at = loop.time() + HEARTBEAT_S
                asked_at = self._history.scheduler.now
                answer = await self._ask(ApiKey.HEARTBEAT, self._in_generation())
                self._check(answer.error_code)
                self._heard(asked_at)
            await asyncio.sleep(self._random.random())

    async def _read_once(self) -> None:
        if not all(await self._fetch_all()):
            await self._client.refresh(self._topics)

    # -- the group ----------------------------------------------------------------------------------------------------

    async def _join(self) -> None:
        self._history.holders.gives_up(self.group, self.name)
        subscription = consumer_protocol.subscription(self._topics)
        body = {
            "group_id": self.group,
            "session_timeout": SESSION,
            "rebalance_timeout": REBALANCE,
            "member_id": self._member_id,
            "group_instance_id": None,
            "protocol_type": "consumer",
            "protocols": ({"name": PROTOCOL, "metadata": subscription},),
            "reason": None,
        }
        joined = await self._ask(ApiKey.JOIN_GROUP, body)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = joined.member_id
        self._check(joined.error_code)
        self._member_id, self._generation = joined.member_id, joined.generation_id
        assignments = self._shares([member.member_id for member in joined.members]) if joined.members else {}
        rows = tuple(
            {"member_id": member, "assignment": consumer_protocol.assignment(tps)}
            for member, tps in assignments.items()
        )
        body = {**self._in_generation(), "protocol_type": "consumer", "protocol_name": PROTOCOL, "assignments": rows}
        asked_at = self._history.scheduler.now
        synced = await self._ask(ApiKey.SYNC_GROUP, body)
        self._check(synced.error_code)
        self._heard(asked_at)
        mine = consumer_protocol.assigned(bytes(synced.assignment))
        self._history.owned.append(Ownership(self.group, self._generation, self._member_id, tuple(mine)))
        self._history.holders.takes(self.group, self.name, mine)
        self._history.counts["generations joined"] += 1
        self.positions = await self._committed_offsets(mine)

    def _shares(self, members: Sequence[str]) -> dict[str, list[TopicPartition]]:
        shares: dict[str, list[TopicPartition]] = {member: [] for member in members}
        for number, tp in enumerate(self._all):
            shares[members[number % len(members)]].append(tp)
        return shares

    async def _committed_offsets(self, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        if not partitions:
            return {}
        coordinator = await self._where()
        connection = await self._client.connection(coordinator)
        committed = dict(self._history.last_committed)
        version = min(ONE_GROUP_NEWEST, self._client.version(ApiKey.OFFSET_FETCH, 2))
        answer = await connection.ask(ApiKey.OFFSET_FETCH, version, offsets_body(self.group, partitions))
        self._check(answer.error_code)
        found = dict.fromkeys(partitions, 0)
        for topic in answer.topics:
            for partition in topic.partitions:
                self._check(partition.error_code)
                tp = TopicPartition(topic.name, partition.partition_index)
                found[tp] = max(0, partition.committed_offset)
                before = committed.get((self.group, tp), 0)
                self._history.check_committed(self.name, self.group, tp, found[tp], before, coordinator[0])
        self._committed = dict(found)
        return found

    async def _commit(self) -> None:
        moved = {tp: offset for tp, offset in self.positions.items() if offset != self._committed.get(tp)}
        if not moved:
            return
        body = commit_body(self.group, self._member_id, self._generation, moved, self._client.topic_ids)
        answer = await self._ask(ApiKey.OFFSET_COMMIT, body, oldest=2)
        for topic in answer.topics:
            for partition in topic.partitions:
                self._check(partition.error_code)
                tp = TopicPartition(self._client.name_of(topic), partition.partition_index)
                self._committed[tp] = moved[tp]
                self._history.committed(self.group, tp, moved[tp])

    async def _leave(self) -> None:
        self._history.holders.gives_up(self.group, self.name)
        member = {"member_id": self._member_id, "group_instance_id": None, "reason": None}
        body = {"group_id": self.group, "member_id": self._member_id, "members": (member,)}
        await self._ask(ApiKey.LEAVE_GROUP, body)
        self._member_id, self._generation = "", NO_GENERATION
        self.positions = {}

    def _in_generation(self) -> dict[str, Any]:
        return {
            "group_id": self.group,
            "generation_id": self._generation,
            "member_id": self._member_id,
            "group_instance_id": None,
        }

    def _heard(self, asked_at: float) -> None:
        """A coordinator that does not know that it was replaced does not count."""
        if self._coordinator is not None and not self._history.is_unaware(self.group, self._coordinator[0]):
            self._history.holders.heard(self.name, asked_at)

    async def _where(self) -> Address:
        if self._coordinator is None:
            self._coordinator = await self._client.coordinator(self.group, GROUP)
        return self._coordinator

    async def _ask(self, api: ApiKey, body: Mapping[str, Any], oldest: int = 0) -> Any:
        """Raises NoAnswer, also if the answer takes too long. Only that of a rebalance may."""
        try:
            async with asyncio.timeout(None if api in REBALANCES else PATIENCE_S):
                return await self._client.ask(await self._where(), api, body, oldest)
        except TimeoutError:
            raise NoAnswer(f"{api.name} takes too long") from None

    def _check(self, code: int) -> None:
        """Raises JoinAgain or NoAnswer for errors that pass."""
        if code == ErrorCode.NONE:
            return
        if code in OUT_OF_DATE:
            if code == ErrorCode.UNKNOWN_MEMBER_ID:
                self._member_id = ""
            self.positions = {}
            self._history.holders.gives_up(self.group, self.name)
            raise JoinAgain
        if not is_retriable(code):
            self._history.break_promise(f"{self.name} of group {self.group}: {error_name(code)}")
        raise NoAnswer(error_name(code))
