"""Writes `/brokers/topics/<topic>` and `/admin/reassign_partitions` (CTL-10): fenced, and conditional on the version read.

Admins write these nodes too: they add partitions, or request another move. Each write therefore changes only its own part of the
current content, and is decided again if another write came first. A change that the node already contains is not written again. This
also covers a write whose answer was lost (BUG-5).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence

from controller.cluster_store import ClusterStore
from protocol.types import Assignment, TopicPartition
from protocol.zk.session import (
    BadVersion,
    CheckOp,
    ConnectionLoss,
    DeleteOp,
    MultiFailed,
    NoNode,
    NotEmpty,
    Op,
    SetOp,
    WatchCallback,
    ZkError,
)
from protocol.zk.znodes import PartitionStateZNode, ReassignPartitionsZNode, TopicZNode

log = logging.getLogger(__name__)

ANY_VERSION = -1

Rows = list[tuple[TopicPartition, tuple[int, ...]]]
"""(partition, target), as written by an admin."""


async def write_assignments(
    store: ClusterStore, assignments: Mapping[TopicPartition, Assignment], topic_ids: Mapping[str, str]
) -> dict[str, str]:
    """Writes the new assignments of these partitions, all of a topic in one write.

    Returns the topics that were not written, with the reason: the topic was deleted, was created again, or is not readable.

    The version alone does not show that a topic was deleted and created again: it starts at 0 again. But nothing exists below the new
    node until this controller creates it, so the write is also conditional on the node above the partitions.
    """
    remaining: dict[str, dict[int, Assignment]] = {}
    for tp, assignment in assignments.items():
        remaining.setdefault(tp.topic, {})[tp.partition] = assignment
    failed: dict[str, str] = {}
    without_states: set[str] = set()
    while remaining:
        topics = list(remaining)
        writes: dict[str, list[Op]] = {}
        nodes = await store.get_many([TopicZNode.path(topic) for topic in topics])
        for topic, node in zip(topics, nodes, strict=True):
            if node is None:
                failed[topic] = "the topic no longer exists"
                continue
            try:
                found_id, found = TopicZNode.decode(node[0])
            except ValueError as error:
                failed[topic] = f"{TopicZNode.path(topic)} is not readable: {error}"
                continue
            new = {**found, **remaining[topic]}
            known_id = topic_ids.get(topic)
            if known_id is not None and found_id != known_id:
                failed[topic] = "the topic was deleted and created again"
            elif new != found:
                write = SetOp(TopicZNode.path(topic), TopicZNode.encode(found_id, new), node[1].version)
                check = CheckOp(_above_partitions(topic), ANY_VERSION)
                writes[topic] = [write] if topic in without_states else [write, check]
        unwritten = await _write_each(store, writes)
        without_states.update(topic for topic, error in unwritten.items() if isinstance(error, NoNode))
        remaining = {topic: remaining[topic] for topic in unwritten}
    for topic, reason in failed.items():
        log.warning("the assignment of topic %s was not written: %s", topic, reason)
    return failed


def _above_partitions(topic: str) -> str:
    return PartitionStateZNode.parents(TopicPartition(topic, 0))[0]


async def _write_each(store: ClusterStore, writes: Mapping[str, Sequence[Op]]) -> dict[str, ZkError]:
    """Makes each write independently. Returns the keys that must be decided again: another write came first, or the answer was lost."""
    again: dict[str, ZkError] = {}
    results = await store.fenced(list(writes.values()))
    for key, result in zip(writes, results, strict=True):
        if isinstance(result, ConnectionLoss):
            again[key] = result
        elif isinstance(result, MultiFailed):
            if not isinstance(result.error, BadVersion | NoNode | NotEmpty):
                raise result
            again[key] = result.error
    if any(isinstance(error, ConnectionLoss) for error in again.values()):
        await store.reconnected()
    return again


async def requested_moves(store: ClusterStore, watch: WatchCallback | None = None) -> tuple[bytes, int] | None:
    """(content, version) of `/admin/reassign_partitions`, with a watch for its next change; None if it does not exist."""
    path = ReassignPartitionsZNode.PATH
    if watch is not None and not await store.exists(path, watch):
        return None
    (node,) = await store.get_many([path])
    return None if node is None else (node[0], node[1].version)


async def remove_requested_moves(
    store: ClusterStore, is_done: Callable[[TopicPartition, tuple[int, ...]], bool]
) -> None:
    """CTL-10 step 11: removes the entries that are done or refused. Removes the node with its last entry, or if it is not readable."""
    path = ReassignPartitionsZNode.PATH
    while (found := await requested_moves(store)) is not None:
        data, version = found
        try:
            rows = ReassignPartitionsZNode.decode_rows(data)
        except ValueError:
            rows = []
        remaining: Rows = [(tp, target) for tp, target in rows if not is_done(tp, target)]
        if remaining and len(remaining) == len(rows):
            return
        data = ReassignPartitionsZNode.encode(dict(remaining))
        operation: Op = SetOp(path, data, version) if remaining else DeleteOp(path, version)
        unwritten = await _write_each(store, {path: [operation]})
        if not unwritten:
            return
        if isinstance(unwritten[path], NotEmpty):
            await store.delete_below(path)
