"""Histories: requests that depend on each other, such as the life of a topic or of a group.

Each function plays one history in one cluster. The histories of two clusters are compared step by step. What happens in a cluster's own
time, such as a leader for a new topic, is waited for without a step. histories.yaml has the steps of those that need no more than a list.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml

from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from tools.inspect.conformance.actor import Actor, Member, NotServed
from tools.inspect.conformance.normalising import Plain
from tools.inspect.conformance.requests import Body, filled, requests
from tools.inspect.conformance.scene import batch
from tools.inspect.conformance.tables import group_answers, partition_answers, three_brokers

STEPS = Path(__file__).with_name("histories.yaml")
OF_A_PRODUCE = ("acks", "transactional_id")
"""The arguments of a produce that are not of its batch."""

Waits = Mapping[str, Callable[[], Awaitable[bool]]]


async def topic(actor: Actor) -> None:
    """A topic from its creation to its deletion."""
    create: Body = {"name": actor.topic, "num_partitions": 1, "replication_factor": 1, "assignments": []}
    if len(actor.cluster.brokers) > 1:
        chosen = [{"partition_index": 0, "broker_ids": [actor.scene.home]}]
        create |= {"num_partitions": -1, "replication_factor": -1, "assignments": chosen}
    create["configs"] = [{"name": "retention.ms", "value": "-1"}, {"name": "cleanup.policy", "value": "delete"}]
    config = {"resource_type": 2, "resource_name": actor.topic, "configuration_keys": None}

    async def is_served() -> bool:
        await actor.until_served()
        return True

    async def is_changed() -> bool:
        answer = await actor.ask(ApiKey.DESCRIBE_CONFIGS, {"resources": [config]})
        return any(row.name == "max.message.bytes" and row.value == "100000" for row in answer.results[0].configs)

    async def has_two() -> bool:
        answer = await actor.ask(ApiKey.METADATA, actor.metadata())
        return len(answer.topics[0].partitions) == 2 and all(p.leader_id >= 0 for p in answer.topics[0].partitions)

    async def is_deleted() -> bool:
        answer = await actor.ask(ApiKey.METADATA, actor.metadata())
        listed = await actor.ask(ApiKey.LIST_OFFSETS, actor.list_offsets(-1))
        errors = (answer.topics[0].error_code, listed.topics[0].partitions[0].error_code)
        return all(int(error) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for error in errors)

    waits = {"served": is_served, "changed": is_changed, "has two partitions": has_two, "deleted": is_deleted}
    await play("topic", actor, {"create": create}, waits)


async def fetch_session(actor: Actor) -> None:
    await actor.make_topic()
    await play("fetch-session", actor)


async def group(actor: Actor) -> None:
    """A group from its first member to its deletion, with a rebalance for a second one."""
    await actor.until_coordinated(actor.group)
    names = {name: Member(actor, name) for name in ("first", "second", "stranger", "wrong", "outsider")}
    first, second = names["first"], names["second"]

    async def is_described() -> bool:
        """Kafka 4 answers a join before the group's first record is written, and describes what is written."""
        answer = await actor.ask(ApiKey.DESCRIBE_GROUPS, {"groups": [actor.group]}, actor.group)
        return bool(answer.groups[0].members)

    await play("group", actor, names, {"described": is_described})
    joining = asyncio.create_task(second.join())
    await actor.until("the second member has joined", first.is_rebalancing)
    await first.step("heartbeat in the rebalance", ApiKey.HEARTBEAT)
    await first.commit("commit in the rebalance", 5)
    await first.sync("sync in the rebalance")
    # The answers of both joins come at once: they are kept in the order of their names.
    await first.join("join again")
    await joining
    _sort_tail(actor, 2)
    waiting = asyncio.create_task(second.sync())
    await first.sync(assignments={first.member_id: b"one", second.member_id: b"two"})
    await waiting
    _sort_tail(actor, 2)
    await play("group-with-two", actor, names)


def _sort_tail(actor: Actor, count: int) -> None:
    """Two requests were answered at the same time: their steps are sorted, as the answers' order is nobody's promise."""
    actor.steps[-count:] = sorted(actor.steps[-count:], key=lambda step: step.name)


async def static_member(actor: Actor) -> None:
    await actor.until_coordinated(actor.group)
    await play("static-member", actor, {name: Member(actor, name, "instance") for name in ("first", "twin")})


async def idempotent_producer(actor: Actor) -> None:
    await actor.make_topic()
    await play("idempotent-producer", actor)


OF_TRANSACTION_VERSION_1: Mapping[int, int] = {ApiKey.PRODUCE: 11, ApiKey.END_TXN: 4, ApiKey.TXN_OFFSET_COMMIT: 4}
"""The newest versions by which an epoch lasts for several transactions (KIP-890)."""

BY_TOPIC_NAMES = 12
"""The newest version of Produce that names topics."""


async def transaction(actor: Actor) -> None:
    """A transaction that commits, one that aborts, one with offsets, and a producer that is fenced (KIP-98)."""
    needed = (ApiKey.ADD_PARTITIONS_TO_TXN, ApiKey.ADD_OFFSETS_TO_TXN, ApiKey.END_TXN, ApiKey.TXN_OFFSET_COMMIT)
    for api_key in needed:
        actor.served(api_key)
    actor.serve_at_most(OF_TRANSACTION_VERSION_1)
    await _play_transactions("transaction", actor)


async def raised_epochs(actor: Actor) -> None:
    """Transactions of transaction version 2, what comes late, and what clients of earlier versions do with the same id (KIP-890)."""
    for api_key, newest in OF_TRANSACTION_VERSION_1.items():
        if actor.served(api_key).max <= newest:
            raise NotServed(f"{messages.api_name(api_key)} v{newest + 1}")
    actor.serve_at_most({ApiKey.PRODUCE: BY_TOPIC_NAMES})
    await _play_transactions("raised-epochs", actor)


async def _play_transactions(history: str, actor: Actor) -> None:
    """In the history's topic and group, with a transactional id of its own."""
    await actor.make_topic()
    await actor.until_coordinated(actor.group)
    name = f"{actor.scene.run}-{history}"
    body = {"transactional_id": name, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    row = {"group_id": actor.group, "topics": [{"name": actor.topic, "partition_indexes": [0]}], "member_epoch": -1}
    stable = {**row, "groups": [row], "require_stable": True}

    async def is_coordinated() -> bool:
        answer = await actor.ask(ApiKey.INIT_PRODUCER_ID, body, name)
        return int(answer.error_code) == ErrorCode.NONE

    async def state() -> str:
        described = await actor.ask(ApiKey.DESCRIBE_TRANSACTIONS, {"transactional_ids": [name]}, name)
        return str(described.transaction_states[0].transaction_state)

    async def is_ended(expected: str) -> bool:
        """EndTxn answers before the markers are written."""
        stable = await actor.ask(ApiKey.LIST_OFFSETS, actor.list_offsets(-1, 1))
        latest = await actor.ask(ApiKey.LIST_OFFSETS, actor.list_offsets(-1, 0))
        are_same = stable.topics[0].partitions[0].offset == latest.topics[0].partitions[0].offset
        return bool(await state() == expected and are_same)

    async def is_stable() -> bool:
        answer = await actor.ask(ApiKey.OFFSET_FETCH, stable, actor.group)
        groups = getattr(answer, "groups", None)
        return int((groups[0] if groups else answer).topics[0].partitions[0].committed_offset) == 4

    async def is_free() -> bool:
        return await state() == "CompleteCommit"

    await actor.until("the transactional id has a coordinator", is_coordinated)
    waits = {
        "committed": lambda: is_ended("CompleteCommit"),
        "aborted": lambda: is_ended("CompleteAbort"),
        "offsets committed": is_stable,
        "free": is_free,
    }
    await play(history, actor, {"transaction": name, "stable": stable}, waits)


async def play(name: str, actor: Actor, names: Mapping[str, Any] | None = None, waits: Waits | None = None) -> None:
    """Plays the rows of histories.yaml. `names`: what `$name` stands for, and the members. `waits`: what a row may wait for."""
    known = {
        "own": actor.topic,
        "own-id": actor.scene.topic_ids.get(actor.topic),
        "group": actor.group,
        **(names or {}),
    }

    def named(word: str) -> Any:
        return known[word] if word in known else getattr(actor.scene, word)

    for step, what, *more in steps()[name]:
        body, options = (*more, {}, {})[:2]
        for known["each"] in options.get("each", (None,)):
            await play_row(actor, known, waits or {}, *filled([step, what, body, options], named))


async def play_row(
    actor: Actor, known: dict[str, Any], waits: Waits, step: str | None, what: str, given: Body, options: Body
) -> None:
    who, _, does = what.partition(".")
    if step == "until":
        await actor.until(what, waits[what])
    elif step == "set":
        for field, value in given.items():
            setattr(known[what], field, value)
    elif does == "heartbeat":
        await known[who].step(step, ApiKey.HEARTBEAT)
    elif does:
        if "assignments" in given:
            given["assignments"] = {known[name].member_id: data.encode() for name, data in given["assignments"].items()}
        await getattr(known[who], does)(step, **given)
    elif what == "list_groups":
        await actor.list_groups(str(step), given)
    else:
        send = actor.ask if step is None else partial(actor.step, step)
        answer = await send(*request_of(actor, what, given), options.get("of", ""), version=options.get("version"))
        known |= {name: getattr(answer, field, 0) for name, field in options.get("keep", {}).items()}


def request_of(actor: Actor, what: str, given: Body) -> tuple[int, Body]:
    """The API and the body."""
    if what == "produce":
        own = {key: given.pop(key) for key in OF_A_PRODUCE if key in given}
        return ApiKey.PRODUCE, actor.produce(batch(**given), **own)
    if what == "add_partitions":
        return ApiKey.ADD_PARTITIONS_TO_TXN, partitions_to_add(given)
    if what in OWN_REQUESTS:
        return OWN_REQUESTS[what], getattr(actor, what)(**given)
    return api_keys()[what], given


OWN_REQUESTS = {"metadata": ApiKey.METADATA, "fetch": ApiKey.FETCH, "list_offsets": ApiKey.LIST_OFFSETS}


@cache
def api_keys() -> Mapping[str, int]:
    return {messages.api_name(key): key for key in requests()}


@cache
def steps() -> Mapping[str, list[list[Any]]]:
    found: Mapping[str, list[list[Any]]] = yaml.safe_load(STEPS.read_text())
    return found


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


def partitions_to_add(one: Body) -> Body:
    """AddPartitionsToTxn, of one transaction."""
    old = {f"v3_and_below_{name}": value for name, value in one.items()}
    return {**one, "transactions": [{**one, "verify_only": False}], **old}


HISTORIES: Mapping[str, Callable[[Actor], Awaitable[None]]] = {
    "topic": topic,
    "fetch-session": fetch_session,
    "group": group,
    "static-member": static_member,
    "idempotent-producer": idempotent_producer,
    "transaction": transaction,
    "raised-epochs": raised_epochs,
    "partitions": partitions,
    "group-answers": group_answers,
    "partition-answers": partition_answers,
}
