"""Reads a cluster over the open connections: partitions, high watermarks, groups with their offsets, moves. Raises NoAnswer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from protocol.kafka.api_keys import ApiKey
from tools.console.broker_connections import METADATA_VERSION, Links, NoAnswer
from tools.console.state import PartitionRow

LIST_OFFSETS_VERSION = 2
LIST_MOVES_VERSION = 0
LIST_GROUPS_VERSION = 5
CONSUMER_GROUP_DESCRIBE_VERSION = 0
DESCRIBE_GROUPS_VERSION = 3
OFFSET_FETCH_VERSION = 5
MOVES_TIMEOUT_MS = 1000
LATEST = -1
GROUPS_MAX = 200
"""Groups whose members and offsets are read; the others are only listed."""
WITHOUT_COORDINATOR = "coordinator away"


class GroupRow(NamedTuple):
    """A group. `members` and `committed` (partition -> offset) are None if they were not read."""

    state: str
    coordinator: int
    members: int | None = None
    committed: Mapping[str, int] | None = None


async def partitions(links: Links, broker: int) -> dict[str, PartitionRow]:
    """All partitions, as this broker knows them."""
    body = {"topics": None, "allow_auto_topic_creation": False}
    answer = await links.ask(broker, ApiKey.METADATA, METADATA_VERSION, body)
    return {
        f"{topic.name}-{partition.partition_index}": (
            int(partition.leader_id),
            int(partition.leader_epoch),
            tuple(map(int, partition.replica_nodes)),
            tuple(map(int, partition.isr_nodes)),
        )
        for topic in answer.topics
        if not topic.error_code
        for partition in topic.partitions
    }


async def high_watermarks(links: Links, led: Mapping[str, PartitionRow]) -> dict[str, int]:
    """The high watermarks, from all leaders at once. Partitions whose leader does not answer are left out."""
    of_leaders: dict[int, dict[str, list[int]]] = {}
    for name, row in led.items():
        topic, _, number = name.rpartition("-")
        if row[0] >= 0:
            of_leaders.setdefault(row[0], {}).setdefault(topic, []).append(int(number))
    found = await asyncio.gather(*(_high_watermarks(links, leader, topics) for leader, topics in of_leaders.items()))
    return {name: offset for each in found for name, offset in each.items()}


async def _high_watermarks(links: Links, leader: int, topics: Mapping[str, Sequence[int]]) -> dict[str, int]:
    body = {
        "replica_id": -1,
        "isolation_level": 0,
        "topics": [
            {"name": topic, "partitions": [{"partition_index": number, "timestamp": LATEST} for number in numbers]}
            for topic, numbers in topics.items()
        ],
    }
    try:
        answer = await links.ask(leader, ApiKey.LIST_OFFSETS, LIST_OFFSETS_VERSION, body)
    except NoAnswer:
        return {}
    return {
        f"{topic.name}-{partition.partition_index}": int(partition.offset)
        for topic in answer.topics
        for partition in topic.partitions
        if not partition.error_code and partition.offset >= 0
    }


async def moves(links: Links, controller: int) -> dict[str, dict[str, list[int]]]:
    """The reassignments under way."""
    body = {"timeout": MOVES_TIMEOUT_MS, "topics": None}
    answer = await links.ask(controller, ApiKey.LIST_PARTITION_REASSIGNMENTS, LIST_MOVES_VERSION, body)
    if answer.error_code:
        raise NoAnswer(f"broker {controller} does not list reassignments")
    return {
        f"{topic.name}-{partition.partition_index}": {
            "adding": list(map(int, partition.adding_replicas)),
            "removing": list(map(int, partition.removing_replicas)),
        }
        for topic in answer.topics
        for partition in topic.partitions
    }


async def groups(links: Links, brokers: Sequence[int], before: Mapping[str, GroupRow]) -> dict[str, GroupRow]:
    """The consumer groups that these brokers coordinate.

    A group of `before` whose coordinator does not answer stays, as WITHOUT_COORDINATOR, until another broker names it or that one answers.
    """
    found = await asyncio.gather(*(_groups_of(links, broker) for broker in brokers))
    answered = {broker for broker, rows in zip(brokers, found, strict=True) if rows is not None}
    kept = {
        group: row._replace(state=WITHOUT_COORDINATOR)
        for group, row in before.items()
        if row.coordinator not in answered
    }
    return kept | {group: row for rows in found for group, row in (rows or {}).items()}


async def _groups_of(links: Links, broker: int) -> dict[str, GroupRow] | None:
    """None: the broker did not answer."""
    try:
        body: dict[str, Any] = {"states_filter": [], "types_filter": []}
        listed = await links.ask(broker, ApiKey.LIST_GROUPS, LIST_GROUPS_VERSION, body)
        of_new_kind = {str(group.group_id) for group in listed.groups if group.group_type.lower() == "consumer"}
        rows = {
            str(group.group_id): GroupRow(str(group.group_state), broker)
            for group in sorted(listed.groups, key=lambda group: str(group.group_id))
            if group.protocol_type in ("consumer", "")
        }
        asked = list(rows)[:GROUPS_MAX]
        if not asked:
            return rows
        classic = [group for group in asked if group not in of_new_kind]
        new = [group for group in asked if group in of_new_kind]
        members: dict[str, int] = {}
        for api, version, field, names in (
            (ApiKey.DESCRIBE_GROUPS, DESCRIBE_GROUPS_VERSION, "groups", classic),
            (ApiKey.CONSUMER_GROUP_DESCRIBE, CONSUMER_GROUP_DESCRIBE_VERSION, "group_ids", new),
        ):
            if names:
                described = await links.ask(
                    broker, api, version, {field: names, "include_authorized_operations": False}
                )
                members |= {str(group.group_id): len(group.members) for group in described.groups}
        for group in asked:
            body = {"group_id": group, "topics": None}
            answer = await links.ask(broker, ApiKey.OFFSET_FETCH, OFFSET_FETCH_VERSION, body)
            rows[group] = rows[group]._replace(members=members.get(group), committed=_committed(answer))
    except NoAnswer:
        return None
    return rows


def _committed(answer: Any) -> dict[str, int] | None:
    if answer.error_code:
        return None
    return {
        f"{topic.name}-{partition.partition_index}": int(partition.committed_offset)
        for topic in answer.topics
        for partition in topic.partitions
        if not partition.error_code and partition.committed_offset >= 0
    }
