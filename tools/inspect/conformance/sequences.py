"""Histories: requests that depend on each other, such as the life of a topic or of a group.

Each function plays one history in one cluster. `Actor.step` sends a request and keeps its outcome; the histories of two clusters are
compared step by step. What happens in a cluster's own time, such as a leader for a new topic, is waited for without a step.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple

from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from tools.inspect.conformance.bodies import WELL_FORMED, Body, commit_row, complete, partitions_to_add
from tools.inspect.conformance.cluster import RETRY_S, Cluster, is_passing
from tools.inspect.conformance.normalising import Normaliser, Plain
from tools.inspect.conformance.scene import FIRST_TIME_MS, RECORDS, Scene, batch
from tools.inspect.conformance.variants import encoded, sized

TRANSACTIONAL = 0x10
MEMBER_TIMEOUT_MS = 30_000
"""Longer than a history takes on a busy machine."""
PASSING_TRIES = 100


class Step(NamedTuple):
    name: str
    api_key: int
    version: int
    outcome: Plain


class NotServed(Exception):
    """One of the clusters does not have an API of the history."""


class Actor:
    """`versions`: the version of each API that both clusters have. `topic` and `group` are names of this history alone."""

    def __init__(
        self, name: str, cluster: Cluster, scene: Scene, normaliser: Normaliser, versions: Mapping[int, int]
    ) -> None:
        self.name = name
        self.cluster = cluster
        self.scene = scene
        self.topic = self.group = f"{scene.run}-history-{name}"
        self.steps: list[Step] = []
        self._normaliser = normaliser
        self._versions = versions
        self._correlation_ids = itertools.count(1)

    async def step(self, name: str, api_key: int, body: Body, of: str = "", line: str = "") -> Any:
        """Sends the request and keeps its outcome. Returns the answer as kio reads it, or a text if there is none.

        Tries again while the broker only asks for patience, as a client does.
        """
        for _ in range(PASSING_TRIES):
            answer = await self.ask(api_key, body, of, line)
            if not is_passing(answer):
                break
            await asyncio.sleep(RETRY_S)
        plain = answer if isinstance(answer, str) else self._normaliser.answer(answer)
        self.steps.append(Step(name, api_key, self.version(api_key), plain))
        return answer

    async def ask(self, api_key: int, body: Body, of: str = "", line: str = "") -> Any:
        """Like `step`, but keeps nothing."""
        version = self.version(api_key)
        frame = encoded(
            api_key,
            version,
            next(self._correlation_ids),
            "ottla-inspect",
            complete(messages.request_schema(api_key, version), body),
        )
        address = await self.cluster.address(WELL_FORMED[api_key][0], of)
        return await self.cluster.outcome((address, line), api_key, version, sized(frame))

    def version(self, api_key: int) -> int:
        """Raises NotServed."""
        if api_key not in self._versions:
            raise NotServed(messages.api_name(api_key))
        return self._versions[api_key]

    async def until(self, what: str, is_true: Callable[[], Awaitable[bool]]) -> None:
        """Raises AdminError after SETTLE_TIMEOUT_S."""
        await self.cluster.until(f"history {self.name}: {what}", is_true)

    # -- bodies -------------------------------------------------------------------------------------------------------

    def produce(self, records: bytes, *, transactional_id: str | None = None, acks: int = -1) -> Body:
        body = WELL_FORMED[ApiKey.PRODUCE][1](self.scene)
        body["topic_data"][0].update(name=self.topic, topic_id=None)
        body["topic_data"][0]["partition_data"][0].update(records=records)
        return {**body, "transactional_id": transactional_id, "acks": acks}

    def fetch(self, offset: int, **more: Any) -> Body:
        body = WELL_FORMED[ApiKey.FETCH][1](self.scene)
        body["topics"][0].update(topic=self.topic, topic_id=self.scene.topic_ids.get(self.topic))
        body["topics"][0]["partitions"][0].update(fetch_offset=offset)
        return {**body, **more}

    def list_offsets(self, timestamp: int, isolation_level: int = 0) -> Body:
        body = WELL_FORMED[ApiKey.LIST_OFFSETS][1](self.scene)
        body["topics"][0].update(name=self.topic)
        body["topics"][0]["partitions"][0].update(timestamp=timestamp)
        return {**body, "isolation_level": isolation_level}

    def metadata(self) -> Body:
        return {"topics": [{"name": self.topic, "topic_id": None}], "allow_auto_topic_creation": False}

    async def make_topic(self) -> None:
        """Without a step."""
        await self.cluster.create_topic(self.topic)
        await self.until_served()

    async def until_served(self) -> None:
        await self.cluster.until_known(self.topic)
        answer = await self.ask(ApiKey.METADATA, self.metadata())
        found = getattr(answer.topics[0], "topic_id", None)
        if found is not None:
            self.scene.topic_ids[self.topic] = found

        async def leads() -> bool:
            listed = await self.ask(ApiKey.LIST_OFFSETS, self.list_offsets(-1))
            return int(listed.topics[0].partitions[0].error_code) == ErrorCode.NONE

        await self.until("the new topic has a leader", leads)

    async def until_coordinated(self, group: str) -> None:
        async def is_served() -> bool:
            answer = await self.ask(ApiKey.DESCRIBE_GROUPS, {"groups": [group]}, group)
            return not isinstance(answer, str) and int(answer.groups[0].error_code) in (
                ErrorCode.NONE,
                ErrorCode.GROUP_ID_NOT_FOUND,
            )

        await self.until("the group has a coordinator", is_served)


async def topic(actor: Actor) -> None:
    """A topic from its creation to its deletion."""
    name = actor.topic
    create = {
        "name": name,
        "num_partitions": 1,
        "replication_factor": 1,
        "assignments": [],
        "configs": [{"name": "retention.ms", "value": "-1"}, {"name": "cleanup.policy", "value": "delete"}],
    }
    if len(actor.cluster.brokers) > 1:
        create |= {
            "num_partitions": -1,
            "replication_factor": -1,
            "assignments": [{"partition_index": 0, "broker_ids": [actor.scene.home]}],
        }
    await actor.step("create", ApiKey.CREATE_TOPICS, {"topics": [create], "timeout": 10_000, "validate_only": False})
    await actor.until_served()
    await actor.step("create again", ApiKey.CREATE_TOPICS, {"topics": [create], "timeout": 10_000})
    await actor.step("metadata", ApiKey.METADATA, actor.metadata())
    await actor.step("fetch of the empty topic", ApiKey.FETCH, actor.fetch(0))
    for timestamp in (-1, -2, -3, FIRST_TIME_MS):
        await actor.step(
            f"offsets of the empty topic at {timestamp}", ApiKey.LIST_OFFSETS, actor.list_offsets(timestamp)
        )
    for number in range(3):
        await actor.step(f"produce {number}", ApiKey.PRODUCE, actor.produce(batch()))
    await actor.step("produce with acks 1", ApiKey.PRODUCE, actor.produce(batch(), acks=1))
    for timestamp in (-1, -2, -3, -4, -5, FIRST_TIME_MS, FIRST_TIME_MS + 2_500, FIRST_TIME_MS + 10**9):
        await actor.step(f"offsets at {timestamp}", ApiKey.LIST_OFFSETS, actor.list_offsets(timestamp))
    for offset in (0, RECORDS, RECORDS + 2, 4 * RECORDS, 4 * RECORDS + 1):
        await actor.step(f"fetch at {offset}", ApiKey.FETCH, actor.fetch(offset))
    await actor.step("fetch of one byte", ApiKey.FETCH, actor.fetch(0, max_bytes=1))
    leader_epoch = {"partition": 0, "partition_index": 0, "current_leader_epoch": -1, "leader_epoch": 0}
    topic_row = {"topic": name, "name": name, "partitions": [leader_epoch]}
    await actor.step("end of epoch 0", ApiKey.OFFSET_FOR_LEADER_EPOCH, {"replica_id": -1, "topics": [topic_row]})
    deletion = {"topics": [{"name": name, "partitions": [{"partition_index": 0, "offset": 7}]}], "timeout": 10_000}
    await actor.step("delete records below 7", ApiKey.DELETE_RECORDS, deletion)
    await actor.step("earliest after that", ApiKey.LIST_OFFSETS, actor.list_offsets(-2))
    await actor.step("fetch below the log start", ApiKey.FETCH, actor.fetch(0))
    await actor.step("fetch at the log start", ApiKey.FETCH, actor.fetch(7))
    config = {"resource_type": 2, "resource_name": name, "configuration_keys": None, "configs": []}
    await actor.step("settings", ApiKey.DESCRIBE_CONFIGS, {"resources": [config], "include_synonyms": True})
    changes = [
        {"name": "max.message.bytes", "config_operation": 0, "value": "100000"},
        {"name": "retention.ms", "config_operation": 1, "value": None},
        {"name": "cleanup.policy", "config_operation": 2, "value": "compact"},
    ]
    await actor.step(
        "change settings", ApiKey.INCREMENTAL_ALTER_CONFIGS, {"resources": [{**config, "configs": changes}]}
    )

    async def is_changed() -> bool:
        answer = await actor.ask(ApiKey.DESCRIBE_CONFIGS, {"resources": [config]})
        return any(row.name == "max.message.bytes" and row.value == "100000" for row in answer.results[0].configs)

    await actor.until("the settings are changed", is_changed)
    await actor.step("changed settings", ApiKey.DESCRIBE_CONFIGS, {"resources": [config], "include_synonyms": True})
    more = {"name": name, "count": 2, "assignments": [{"broker_ids": [actor.scene.home]}]}
    await actor.step("add a partition", ApiKey.CREATE_PARTITIONS, {"topics": [more], "timeout": 10_000})

    async def has_two() -> bool:
        answer = await actor.ask(ApiKey.METADATA, actor.metadata())
        return len(answer.topics[0].partitions) == 2 and all(p.leader_id >= 0 for p in answer.topics[0].partitions)

    await actor.until("the topic has two partitions", has_two)
    await actor.step("metadata of two partitions", ApiKey.METADATA, actor.metadata())
    delete = {"topics": [{"name": name, "topic_id": None}], "topic_names": [name], "timeout": 10_000}
    await actor.step("delete", ApiKey.DELETE_TOPICS, delete)

    async def is_deleted() -> bool:
        answer = await actor.ask(ApiKey.METADATA, actor.metadata())
        listed = await actor.ask(ApiKey.LIST_OFFSETS, actor.list_offsets(-1))
        errors = (answer.topics[0].error_code, listed.topics[0].partitions[0].error_code)
        return all(int(error) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for error in errors)

    await actor.until("the topic is deleted", is_deleted)
    await actor.step("delete again", ApiKey.DELETE_TOPICS, delete)
    await actor.step("metadata of the deleted topic", ApiKey.METADATA, actor.metadata())
    await actor.step("produce to the deleted topic", ApiKey.PRODUCE, actor.produce(batch()))
    await actor.step("fetch of the deleted topic", ApiKey.FETCH, actor.fetch(0))
    await actor.step("offsets of the deleted topic", ApiKey.LIST_OFFSETS, actor.list_offsets(-1))


async def fetch_session(actor: Actor) -> None:
    """An incremental fetch session (KIP-227)."""
    await actor.make_topic()
    await actor.step("produce", ApiKey.PRODUCE, actor.produce(batch()))
    opened = await actor.step("open", ApiKey.FETCH, actor.fetch(0, session_epoch=0))
    session = getattr(opened, "session_id", 0)
    nothing: Body = {"session_id": session, "topics": []}
    await actor.step("nothing new", ApiKey.FETCH, actor.fetch(0, **nothing, session_epoch=1))
    await actor.step("the same epoch again", ApiKey.FETCH, actor.fetch(0, **nothing, session_epoch=1))
    await actor.step("an epoch too late", ApiKey.FETCH, actor.fetch(0, **nothing, session_epoch=9))
    await actor.step("another offset", ApiKey.FETCH, actor.fetch(3, session_id=session, session_epoch=2))
    forgotten = {"topic": actor.topic, "topic_id": actor.scene.topic_ids.get(actor.topic), "partitions": [0]}
    await actor.step(
        "forget", ApiKey.FETCH, actor.fetch(0, **nothing, session_epoch=3, forgotten_topics_data=[forgotten])
    )
    await actor.step("nothing left", ApiKey.FETCH, actor.fetch(0, **nothing, session_epoch=4))
    await actor.step("close", ApiKey.FETCH, actor.fetch(0, **nothing, session_epoch=-1))
    await actor.step("after the close", ApiKey.FETCH, actor.fetch(0, **nothing, session_epoch=5))


class Member:
    """One member of the actor's group, with a connection of its own."""

    def __init__(self, actor: Actor, name: str, instance_id: str | None = None) -> None:
        self.actor = actor
        self.name = name
        self.member_id = ""
        self.generation = -1
        self.instance_id = instance_id

    def body(self, **more: Any) -> Body:
        return {
            "group_id": self.actor.group,
            "generation_id": self.generation,
            "generation_id_or_member_epoch": self.generation,
            "member_id": self.member_id,
            "group_instance_id": self.instance_id,
            **more,
        }

    async def step(self, name: str, api_key: int, **more: Any) -> Any:
        return await self.actor.step(
            f"{self.name}: {name}", api_key, self.body(**more), self.actor.group, line=self.name
        )

    async def join(self, name: str = "join", **more: Any) -> Any:
        """A member that is told its id joins with it."""
        settings = {
            "session_timeout": MEMBER_TIMEOUT_MS,
            "rebalance_timeout": MEMBER_TIMEOUT_MS,
            "protocol_type": "consumer",
            "protocols": [
                {"name": "range", "metadata": b"\0\0\0\0\0\0\0\0\0\0"},
                {"name": "roundrobin", "metadata": b""},
            ],
            "reason": "history",
            **more,
        }
        answer = await self.step(name, ApiKey.JOIN_GROUP, **settings)
        if int(answer.error_code) == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            answer = await self.step(f"{name} with its id", ApiKey.JOIN_GROUP, **settings)
        self._note(answer)
        return answer

    def _note(self, answer: Any) -> None:
        if int(answer.error_code) == ErrorCode.NONE:
            self.member_id, self.generation = answer.member_id, answer.generation_id

    async def sync(self, name: str = "sync", assignments: Mapping[str, bytes] | None = None) -> Any:
        rows = [{"member_id": member, "assignment": data} for member, data in (assignments or {}).items()]
        return await self.step(
            name, ApiKey.SYNC_GROUP, protocol_type="consumer", protocol_name="range", assignments=rows
        )

    async def commit(self, name: str, offset: int) -> Any:
        topic_id = self.actor.scene.topic_ids.get(self.actor.scene.topic)
        rows = [{"name": self.actor.scene.topic, "topic_id": topic_id, "partitions": [commit_row(offset)]}]
        return await self.step(name, ApiKey.OFFSET_COMMIT, topics=rows)

    async def leave(self, name: str) -> Any:
        row = {"member_id": self.member_id, "group_instance_id": self.instance_id, "reason": "history"}
        return await self.step(name, ApiKey.LEAVE_GROUP, members=[row])


async def group(actor: Actor) -> None:
    """A group from its first member to its deletion, with a rebalance for a second one."""
    name = actor.group
    await actor.until_coordinated(name)
    first, second = Member(actor, "first"), Member(actor, "second")
    describe = {"groups": [name], "include_authorized_operations": False}
    topics = [{"name": actor.scene.topic, "partition_indexes": [0, 1]}]
    row = {"group_id": name, "member_id": None, "member_epoch": -1, "topics": topics}
    offsets = {**row, "groups": [row], "require_stable": False}

    await actor.step("fetch offsets of no group", ApiKey.OFFSET_FETCH, offsets, name)
    await first.join()
    await actor.step("describe before sync", ApiKey.DESCRIBE_GROUPS, describe, name)
    await first.step("heartbeat before sync", ApiKey.HEARTBEAT)
    await first.commit("commit before sync", 1)
    await first.sync(assignments={first.member_id: b"all"})
    await first.sync("sync again")
    await first.step("heartbeat", ApiKey.HEARTBEAT)
    await actor.step("describe", ApiKey.DESCRIBE_GROUPS, describe, name)
    await first.commit("commit", 2)
    await actor.step("fetch offsets", ApiKey.OFFSET_FETCH, offsets, name)
    generation, first.generation = first.generation, 77
    await first.commit("commit of another generation", 3)
    await first.step("heartbeat of another generation", ApiKey.HEARTBEAT)
    await first.sync("sync of another generation")
    first.generation = generation
    stranger = Member(actor, "stranger")
    await stranger.commit("commit to a live group", 4)
    stranger.member_id, stranger.generation = actor.scene.unknown, generation
    await stranger.step("heartbeat", ApiKey.HEARTBEAT)
    await stranger.commit("commit as a member", 4)
    await stranger.leave("leave")
    wrong = Member(actor, "wrong")
    await wrong.join(protocol_type="connect")
    wrong.member_id = ""
    await wrong.join("join with another protocol", protocols=[{"name": "sticky", "metadata": b""}])
    await actor.step("delete the live group", ApiKey.DELETE_GROUPS, {"groups_names": [name]}, name)
    deletion = {"group_id": name, "topics": [{"name": actor.scene.topic, "partitions": [{"partition_index": 0}]}]}
    await actor.step("delete an offset of the live group", ApiKey.OFFSET_DELETE, deletion, name)

    joining = asyncio.create_task(second.join())

    async def is_rebalancing() -> bool:
        answer = await actor.ask(ApiKey.HEARTBEAT, first.body(), name, line="first")
        return int(answer.error_code) == ErrorCode.REBALANCE_IN_PROGRESS

    await actor.until("the second member has joined", is_rebalancing)
    await first.step("heartbeat in the rebalance", ApiKey.HEARTBEAT)
    await first.commit("commit in the rebalance", 5)
    await first.sync("sync in the rebalance")
    # The answers of both joins come at once: they are kept in the order of their names.
    answer = await first.join("join again")
    await joining
    _sort_tail(actor, 2)
    waiting = asyncio.create_task(second.sync())
    await first.sync(assignments={first.member_id: b"one", second.member_id: b"two"})
    await waiting
    _sort_tail(actor, 2)
    assert answer is not None
    await actor.step("describe two members", ApiKey.DESCRIBE_GROUPS, describe, name)
    listed = {"states_filter": ["Stable"], "types_filter": []}
    await actor.step("list stable groups", ApiKey.LIST_GROUPS, listed, name)
    await second.leave("leave")
    await second.step("heartbeat after leaving", ApiKey.HEARTBEAT)
    await first.step("heartbeat after a leave", ApiKey.HEARTBEAT)
    await first.leave("leave")
    await actor.step("describe without members", ApiKey.DESCRIBE_GROUPS, describe, name)
    await actor.step("list empty groups", ApiKey.LIST_GROUPS, {**listed, "states_filter": ["Empty"]}, name)
    outsider = Member(actor, "outsider")
    await outsider.commit("commit to the empty group", 6)
    await actor.step("fetch offsets of the empty group", ApiKey.OFFSET_FETCH, offsets, name)
    await actor.step("delete an offset", ApiKey.OFFSET_DELETE, deletion, name)
    await actor.step("fetch deleted offsets", ApiKey.OFFSET_FETCH, offsets, name)
    await outsider.commit("commit again", 7)
    await actor.step("delete the group", ApiKey.DELETE_GROUPS, {"groups_names": [name]}, name)
    await actor.step("delete it again", ApiKey.DELETE_GROUPS, {"groups_names": [name]}, name)
    await actor.step("describe the deleted group", ApiKey.DESCRIBE_GROUPS, describe, name)
    await actor.step("fetch offsets of the deleted group", ApiKey.OFFSET_FETCH, offsets, name)


def _sort_tail(actor: Actor, count: int) -> None:
    """Two requests were answered at the same time: their steps are sorted, as the answers' order is nobody's promise."""
    actor.steps[-count:] = sorted(actor.steps[-count:], key=lambda step: step.name)


async def static_member(actor: Actor) -> None:
    """A static member that comes back without a rebalance, and a twin that fences it (KIP-345)."""
    await actor.until_coordinated(actor.group)
    describe = {"groups": [actor.group]}
    first = Member(actor, "first", "instance")
    await first.join()
    await first.sync(assignments={first.member_id: b"all"})
    twin = Member(actor, "twin", "instance")
    await twin.join("join as the same instance")
    await twin.sync()
    await twin.step("heartbeat", ApiKey.HEARTBEAT)
    await first.step("heartbeat of the fenced one", ApiKey.HEARTBEAT)
    await first.commit("commit of the fenced one", 1)
    await twin.commit("commit", 2)
    await first.join("join of the fenced one")
    await first.leave("leave of the fenced one")
    await actor.step("describe", ApiKey.DESCRIBE_GROUPS, describe, actor.group)
    twin.member_id = ""
    await twin.leave("leave by its instance")
    await actor.step("describe without members", ApiKey.DESCRIBE_GROUPS, describe, actor.group)


async def idempotent_producer(actor: Actor) -> None:
    """Sequence numbers and epochs of a producer (KIP-98, KIP-360)."""
    await actor.make_topic()
    body = {"transactional_id": None, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    answer = await actor.step("init", ApiKey.INIT_PRODUCER_ID, body)
    producer = answer.producer_id

    def records(sequence: int, epoch: int = 0, count: int = 2) -> Body:
        return actor.produce(batch(count, producer_id=producer, producer_epoch=epoch, base_sequence=sequence))

    for number in range(6):
        await actor.step(f"sequence {2 * number}", ApiKey.PRODUCE, records(2 * number))
    await actor.step("the last batch again", ApiKey.PRODUCE, records(10))
    await actor.step("the fifth last batch again", ApiKey.PRODUCE, records(2))
    await actor.step("the sixth last batch again", ApiKey.PRODUCE, records(0))
    await actor.step("a gap", ApiKey.PRODUCE, records(20))
    await actor.step("half a batch again", ApiKey.PRODUCE, records(11))
    await actor.step("next epoch, not at 0", ApiKey.PRODUCE, records(5, 1))
    await actor.step("next epoch", ApiKey.PRODUCE, records(0, 1))
    await actor.step("earlier epoch", ApiKey.PRODUCE, records(12))
    producers = {"topics": [{"name": actor.topic, "partition_indexes": [0]}]}
    await actor.step("producers", ApiKey.DESCRIBE_PRODUCERS, producers)
    await actor.step("all records", ApiKey.FETCH, actor.fetch(0))
    again = {**body, "producer_id": producer, "producer_epoch": 1}
    await actor.step("init with the id", ApiKey.INIT_PRODUCER_ID, again)


async def transaction(actor: Actor) -> None:
    """A transaction that commits, one that aborts, one with offsets, and a producer that is fenced (KIP-98)."""
    needed = (ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT)
    for api_key in needed:
        actor.version(api_key)
    await actor.make_topic()
    await actor.until_coordinated(actor.group)
    name = f"{actor.scene.run}-transaction"
    body = {"transactional_id": name, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}

    async def is_coordinated() -> bool:
        answer = await actor.ask(ApiKey.INIT_PRODUCER_ID, body, name)
        return int(answer.error_code) == ErrorCode.NONE

    await actor.until("the transactional id has a coordinator", is_coordinated)
    answer = await actor.step("init", ApiKey.INIT_PRODUCER_ID, body, name)
    producer, epoch = answer.producer_id, answer.producer_epoch
    state = {"transactional_id": name, "producer_id": producer, "producer_epoch": epoch}
    topics = [{"name": actor.topic, "partitions": [0]}]

    def records(sequence: int, **more: Any) -> Body:
        made = batch(
            2,
            producer_id=producer,
            producer_epoch=more.get("epoch", epoch),
            base_sequence=sequence,
            attributes=TRANSACTIONAL,
        )
        return actor.produce(made, transactional_id=name)

    async def ended(is_committed: bool) -> None:
        """EndTxn answers before the markers are written."""

        async def is_complete() -> bool:
            stable = await actor.ask(ApiKey.LIST_OFFSETS, actor.list_offsets(-1, 1))
            latest = await actor.ask(ApiKey.LIST_OFFSETS, actor.list_offsets(-1, 0))
            described = await actor.ask(ApiKey.DESCRIBE_TRANSACTIONS, {"transactional_ids": [name]}, name)
            states = [row.transaction_state for row in described.transaction_states]
            return states == ["CompleteCommit" if is_committed else "CompleteAbort"] and (
                stable.topics[0].partitions[0].offset == latest.topics[0].partitions[0].offset
            )

        await actor.until("the transaction is complete", is_complete)

    await actor.step("end without a transaction", ApiKey.END_TXN, {**state, "committed": True}, name)
    await actor.step("produce without the partition", ApiKey.PRODUCE, records(0))
    await actor.step("add partitions", ApiKey.ADD_PARTITIONS_TO_TXN, partitions_to_add(state, topics), name)
    await actor.step("add them again", ApiKey.ADD_PARTITIONS_TO_TXN, partitions_to_add(state, topics), name)
    unknown = [{"name": actor.scene.unknown, "partitions": [0]}]
    await actor.step("add an unknown topic", ApiKey.ADD_PARTITIONS_TO_TXN, partitions_to_add(state, unknown), name)
    await actor.step("produce", ApiKey.PRODUCE, records(0))
    await actor.step("read uncommitted", ApiKey.FETCH, actor.fetch(0))
    await actor.step("read committed", ApiKey.FETCH, actor.fetch(0, isolation_level=1))
    await actor.step("stable offset", ApiKey.LIST_OFFSETS, actor.list_offsets(-1, 1))
    await actor.step("describe", ApiKey.DESCRIBE_TRANSACTIONS, {"transactional_ids": [name]}, name)
    await actor.step(
        "producers", ApiKey.DESCRIBE_PRODUCERS, {"topics": [{"name": actor.topic, "partition_indexes": [0]}]}
    )
    await actor.step("commit", ApiKey.END_TXN, {**state, "committed": True}, name)
    await ended(True)
    await actor.step("commit again", ApiKey.END_TXN, {**state, "committed": True}, name)
    await actor.step("abort after the commit", ApiKey.END_TXN, {**state, "committed": False}, name)
    await actor.step("read committed after the commit", ApiKey.FETCH, actor.fetch(0, isolation_level=1))

    await actor.ask(ApiKey.ADD_PARTITIONS_TO_TXN, partitions_to_add(state, topics), name)
    await actor.step("produce to be aborted", ApiKey.PRODUCE, records(2))
    await actor.step("abort", ApiKey.END_TXN, {**state, "committed": False}, name)
    await ended(False)
    await actor.step("read committed after the abort", ApiKey.FETCH, actor.fetch(0, isolation_level=1))
    await actor.step("read uncommitted after the abort", ApiKey.FETCH, actor.fetch(0))

    commit = {
        **state,
        "group_id": actor.group,
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": actor.topic, "partitions": [commit_row(4)]}],
    }
    row = {"group_id": actor.group, "topics": [{"name": actor.topic, "partition_indexes": [0]}], "member_epoch": -1}
    await actor.step("add offsets", ApiKey.ADD_OFFSETS_TO_TXN, {**state, "group_id": actor.group}, name)
    await actor.step("commit offsets", ApiKey.TXN_OFFSET_COMMIT, commit, actor.group)
    stable = {**row, "groups": [row], "require_stable": True}
    await actor.step("stable offsets of the group", ApiKey.OFFSET_FETCH, stable, actor.group)
    await actor.step("commit with offsets", ApiKey.END_TXN, {**state, "committed": True}, name)

    async def is_stable() -> bool:
        answer = await actor.ask(ApiKey.OFFSET_FETCH, stable, actor.group)
        groups = getattr(answer, "groups", None)
        return int((groups[0] if groups else answer).topics[0].partitions[0].committed_offset) == 4

    await actor.until("the offsets are committed", is_stable)
    await actor.step("offsets of the group", ApiKey.OFFSET_FETCH, stable, actor.group)

    async def is_free() -> bool:
        described = await actor.ask(ApiKey.DESCRIBE_TRANSACTIONS, {"transactional_ids": [name]}, name)
        return bool(described.transaction_states[0].transaction_state == "CompleteCommit")

    await actor.until("the transaction is complete", is_free)
    await actor.step("init again", ApiKey.INIT_PRODUCER_ID, body, name)
    await actor.step(
        "add partitions of the fenced one", ApiKey.ADD_PARTITIONS_TO_TXN, partitions_to_add(state, topics), name
    )
    await actor.step("end of the fenced one", ApiKey.END_TXN, {**state, "committed": True}, name)


HISTORIES: Mapping[str, Callable[[Actor], Awaitable[None]]] = {
    "topic": topic,
    "fetch-session": fetch_session,
    "group": group,
    "static-member": static_member,
    "idempotent-producer": idempotent_producer,
    "transaction": transaction,
}
