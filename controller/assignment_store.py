"""Writes `/brokers/topics/<topic>` and `/admin/reassign_partitions` (CTL-10): fenced, and conditional on the version read.

Admins write these nodes too: they add partitions, or request another move. Each write therefore changes only its own part of the
current content, and is decided again if another write came first. A change that the node already contains is not written again. This
also covers a write whose answer was lost (BUG-5).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence

from controller.cluster_store import ClusterStore, decode_topic
from protocol.topic_names import shown
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

FoundTopic = tuple[str | None, dict[int, Assignment]]
"""(id, partition -> assignment)"""

Rows = list[tuple[TopicPartition, tuple[int, ...]]]
"""(partition, target), as written by an admin."""


async def write_assignments(
    store: ClusterStore, assignments: Mapping[TopicPartition, Assignment], topic_ids: Mapping[str, str]
) -> dict[str, str]:
    """Writes the new assignments of these partitions, all of a topic in one write.

    Returns the topics that were not written, with the reason: the topic was deleted, was created again, is not readable, or
    ZooKeeper refuses the write. A topic that has lost its id gets it back in the same write.

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
            has_lost_id = found_id is None and topic not in without_states
            if known_id is not None and found_id != known_id and not has_lost_id:
                failed[topic] = "the topic was deleted and created again"
            elif new != found:
                data = TopicZNode.encode(known_id if has_lost_id else found_id, new)
                write = SetOp(TopicZNode.path(topic), data, node[1].version)
                check = CheckOp(_above_partitions(topic), ANY_VERSION)
                writes[topic] = [write] if topic in without_states else [write, check]
        refused: dict[str, ZkError] = {}
        unwritten = await _write_each(store, writes, refused)
        failed |= {topic: f"ZooKeeper refuses the write: {error}" for topic, error in refused.items()}
        without_states.update(topic for topic, error in unwritten.items() if isinstance(error, NoNode))
        remaining = {topic: remaining[topic] for topic in unwritten}
    for topic, reason in failed.items():
        log.warning("the assignment of topic %s was not written: %s", topic, reason)
    return failed


async def write_topic_ids(
    store: ClusterStore,
    topics: Collection[str],
    choose: Callable[[str, bool], str | None],
    moves: Callable[[str], Mapping[int, Assignment]],
) -> dict[str, FoundTopic]:
    """Writes an id to the nodes of these topics that have none. `choose(topic, has_states)` returns it, or None: the node is not written.

    Without states, nothing is stored below the node yet. Otherwise the write is also conditional on the node above the partitions, and
    contains the `moves` in progress: the tool that removed the id may have removed them too, or have written what it read before them.

    Returns the topics as they are in ZooKeeper now. Missing and unreadable ones are left out.
    """
    results: dict[str, FoundTopic] = {}
    remaining: Collection[str] = topics
    while remaining:
        nodes = await store.get_many([TopicZNode.path(topic) for topic in remaining])
        above = await store.each_exists([_above_partitions(topic) for topic in remaining])
        writes: dict[str, list[Op]] = {}
        for topic, node, has_states in zip(remaining, nodes, above, strict=True):
            results.pop(topic, None)
            if node is None:
                continue
            try:
                found_id, assignment = decode_topic(node[0])
            except ValueError as error:
                log.error("%s is not readable and gets no id: %s", TopicZNode.path(topic), error)
                continue
            topic_id = choose(topic, has_states) if found_id is None else None
            if topic_id is not None:
                assignment = {**assignment, **moves(topic)} if has_states else assignment
                write = SetOp(TopicZNode.path(topic), TopicZNode.encode(topic_id, assignment), node[1].version)
                check = CheckOp(_above_partitions(topic), ANY_VERSION)
                writes[topic] = [write, check] if has_states else [write]
            results[topic] = (found_id or topic_id, assignment)
        refused: dict[str, ZkError] = {}
        remaining = await _write_each(store, writes, refused)
        for topic, refusal in refused.items():
            log.error("topic %s gets no id: %s", topic, shown(str(refusal)))
            results[topic] = (None, results[topic][1])
    return results


def _above_partitions(topic: str) -> str:
    return PartitionStateZNode.parents(TopicPartition(topic, 0))[0]


async def _write_each(
    store: ClusterStore, writes: Mapping[str, Sequence[Op]], refused: dict[str, ZkError] | None = None
) -> dict[str, ZkError]:
    """Makes each write independently. Returns the keys that must be decided again: another write came first, or the answer was lost.

    Any other failure, such as missing access rights, is added to `refused`, or raised if that is None.
    """
    again: dict[str, ZkError] = {}
    results = await store.fenced(list(writes.values()))
    for key, result in zip(writes, results, strict=True):
        if isinstance(result, ConnectionLoss):
            again[key] = result
        elif isinstance(result, MultiFailed):
            if isinstance(result.error, BadVersion | NoNode | NotEmpty):
                again[key] = result.error
            elif refused is None:
                raise result
            else:
                refused[key] = result.error
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
