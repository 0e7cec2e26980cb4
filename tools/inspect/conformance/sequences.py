"""Histories: requests that depend on each other, such as the life of a topic or of a group.

Each function plays one history in one cluster. The histories of two clusters are compared step by step. What happens in a cluster's own
time, such as a leader for a new topic, is waited for without a step.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from tools.inspect.conformance.actor import Actor, Member
from tools.inspect.conformance.normalising import Plain
from tools.inspect.conformance.requests import Body, commit_row
from tools.inspect.conformance.scene import FIRST_TIME_MS, RECORDS, batch
from tools.inspect.conformance.tables import group_answers, partition_answers, three_brokers

TRANSACTIONAL = 0x10


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
    await actor.until("the second member has joined", first.is_rebalancing)
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
    await actor.list_groups("list stable groups", listed)
    await second.leave("leave")
    await second.step("heartbeat after leaving", ApiKey.HEARTBEAT)
    await first.step("heartbeat after a leave", ApiKey.HEARTBEAT)
    await first.leave("leave")
    await actor.step("describe without members", ApiKey.DESCRIBE_GROUPS, describe, name)
    await actor.list_groups("list empty groups", {**listed, "states_filter": ["Empty"]})
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
        actor.served(api_key)
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


async def partitions(actor: Actor) -> None:
    """Replicas on three brokers: more partitions, an election, a reassignment, deleted records, sizes on the disks, a deletion."""
    a, b, c = brokers = three_brokers(actor)
    labels = dict(zip(brokers, ("first", "second", "third"), strict=True))

    async def described(name: str, broker: int | None = None) -> dict[int, Plain]:
        """Partition -> its leader, replicas and ISR; {} for an unknown topic. By the controller, or by a broker."""
        body = {"topics": [{"name": name}], "allow_auto_topic_creation": False}
        answer = await actor.ask(ApiKey.METADATA, body, broker=actor.cluster.controller if broker is None else broker)
        return {
            row.partition_index: {
                "leader": labels.get(row.leader_id),
                "replicas": [labels[node] for node in row.replica_nodes],
                "isr": sorted(labels[node] for node in row.isr_nodes),
            }
            for row in answer.topics[0].partitions
        }

    async def until_known(name: str, count: int) -> None:
        async def is_known() -> bool:
            views = [await described(name, broker) for broker in brokers]
            return all(len(view) == count and all(row["leader"] for row in view.values()) for view in views)

        await actor.until(f"{name} has {count} partitions everywhere", is_known)

    async def made(word: str, *replicas: list[int]) -> str:
        name = f"{actor.topic}-{word}"
        await actor.cluster.create_topic(name, replicas)
        await until_known(name, len(replicas))
        return name

    async def sizes(name: str) -> dict[str, int]:
        """Broker -> bytes of partition 0 on its disk."""
        found: dict[str, int] = {}
        for broker in brokers:
            answer = await actor.ask(ApiKey.DESCRIBE_LOG_DIRS, log_dirs(name), broker=broker)
            rows = [row for directory in answer.results for topic in directory.topics for row in topic.partitions]
            found.update((labels[broker], row.partition_size) for row in rows)
        return found

    async def until_on_disks(name: str, expected: set[str]) -> None:
        async def is_there() -> bool:
            found = await sizes(name)
            return found.keys() == expected and len(set(found.values())) <= 1

        await actor.until(f"{name} is on the disks of {sorted(expected)}, with the same size", is_there)

    def log_dirs(name: str) -> Body:
        asked = [{"topic": name, "partitions": [0, 99]}, {"topic": actor.scene.unknown, "partitions": [0]}]
        return {"topics": asked}

    async def add(step: str, name: str, count: int, *replicas: list[int], wait_ms: int = 20_000) -> None:
        rows = [{"broker_ids": ids} for ids in replicas] or None
        body = {"topics": [{"name": name, "count": count, "assignments": rows}], "timeout": wait_ms}
        await actor.step(step, ApiKey.CREATE_PARTITIONS, body, tries=1)

    async def reassign(step: str, name: str, replicas: list[int]) -> None:
        topics = [{"name": name, "partitions": [{"partition_index": 0, "replicas": replicas}]}]
        await actor.step(step, ApiKey.ALTER_PARTITION_REASSIGNMENTS, {"topics": topics, "timeout": 20_000})

    async def produce(name: str, count: int) -> None:
        for number in range(count):
            body = actor.produce(batch())
            body["topic_data"][0].update(name=name)
            await actor.step(f"produce {number} to the {name.rpartition('-')[2]} topic", ApiKey.PRODUCE, body)

    async def until_described(name: str, leader: int, *replicas: int) -> None:
        names = [labels[broker] for broker in replicas]
        expected = {"leader": labels[leader], "replicas": names, "isr": sorted(names)}

        async def is_so() -> bool:
            views = [await described(name), await described(name, a)]
            return views == [{0: expected}] * 2

        await actor.until(f"{name} is led by {labels[leader]}, with {names}", is_so)

    name = await made("added", [a, b], [b, c])
    await add("add a partition with chosen replicas", name, 3, [c, a])
    await add("add five more", name, 8)
    await until_known(name, 8)
    replicas = [row["replicas"] for _, row in sorted((await described(name)).items())]
    actor.note("the placement continues that of the others", ApiKey.METADATA, replicas)
    await add("add one without waiting", name, 9, wait_ms=0)
    await until_known(name, 9)

    name = await made("deleted", [a, b])
    rows = [{"name": name, "topic_id": None}]
    deletion = {"topics": rows * 2, "topic_names": [name] * 2, "timeout": 20_000}
    await actor.step("delete a topic that is named twice", ApiKey.DELETE_TOPICS, deletion)
    actor.note("the controller has forgotten it", ApiKey.METADATA, await described(name))
    await until_known(name, 0)
    await actor.step("delete it again", ApiKey.DELETE_TOPICS, deletion)
    if actor.served(ApiKey.DELETE_TOPICS).max >= 6:
        name = await made("forgotten", [a])
        answer = await actor.ask(ApiKey.METADATA, {"topics": [{"name": name, "topic_id": None}]})
        by_id = {"topics": [{"name": None, "topic_id": answer.topics[0].topic_id}], "timeout": 20_000}
        await actor.step("delete it by its id", ApiKey.DELETE_TOPICS, by_id)
        await until_on_disks(name, set())

    name = await made("ordered", [a, b])
    election = {"topic_partitions": [{"topic": name, "partitions": [0]}], "election_type": 0, "timeout": 20_000}
    await reassign("the same replicas in another order", name, [b, a])
    await until_described(name, a, b, a)
    await actor.step("elect the preferred leader", ApiKey.ELECT_LEADERS, election)
    actor.note("the preferred leader leads", ApiKey.METADATA, (await described(name))[0]["leader"])
    await actor.step("elect it again", ApiKey.ELECT_LEADERS, election)

    name = await made("moved", [a, b])
    await produce(name, 2)
    await reassign("move a partition", name, [b, c])
    await until_described(name, b, b, c)
    await until_on_disks(name, {"second", "third"})

    name = await made("shortened", [a, b, c])
    await produce(name, 2)
    for offset, elsewhere in ((4, False), (2, False), (11, False), (-2, False), (5, True), (-1, False)):
        topics = [{"name": name, "partitions": [{"partition_index": 0, "offset": offset}]}]
        step = f"delete records below {offset}{' at a follower' if elsewhere else ''}"
        body = {"topics": topics, "timeout": 20_000}
        await actor.step(step, ApiKey.DELETE_RECORDS, body, tries=1, elsewhere=elsewhere)
        earliest = actor.list_offsets(-2)
        earliest["topics"][0].update(name=name)
        await actor.step(f"earliest after {step}", ApiKey.LIST_OFFSETS, earliest)

    name = await made("measured", [a, b])
    await produce(name, 1)
    await until_on_disks(name, {"first", "second"})
    served = actor.served(ApiKey.DESCRIBE_LOG_DIRS)
    for version, broker in itertools.product(range(served.min, served.max + 1), brokers):
        answer = await actor.ask(ApiKey.DESCRIBE_LOG_DIRS, log_dirs(name), broker=broker, version=version)
        step = f"log directories v{version} of the {labels[broker]} broker"
        actor.note(step, ApiKey.DESCRIBE_LOG_DIRS, actor.plain(answer), version)
        if version >= 4:
            is_told = all(0 < directory.usable_bytes < directory.total_bytes for directory in answer.results)
            actor.note(f"{step}: free bytes", ApiKey.DESCRIBE_LOG_DIRS, is_told, version)


def partitions_to_add(producer: Body, topics: list[Body]) -> Body:
    """AddPartitionsToTxn: `producer` has the transactional id, the producer id and the epoch."""
    one = {**producer, "topics": topics}
    old = {f"v3_and_below_{name}": value for name, value in one.items()}
    return {**one, "transactions": [{**one, "verify_only": False}], **old}


HISTORIES: Mapping[str, Callable[[Actor], Awaitable[None]]] = {
    "topic": topic,
    "fetch-session": fetch_session,
    "group": group,
    "static-member": static_member,
    "idempotent-producer": idempotent_producer,
    "transaction": transaction,
    "partitions": partitions,
    "group-answers": group_answers,
    "partition-answers": partition_answers,
}
