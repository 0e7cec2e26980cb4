"""Reads from ZooKeeper what Metadata does not show: unreadable nodes, partitions without a state, topics without an id."""

from __future__ import annotations

import asyncio
import logging

from protocol.types import TopicPartition
from protocol.zk.znodes import PartitionStateZNode
from tools.cluster.health import ZnodeProblems
from tools.cluster.zookeeper_place import ZooKeeperPlace
from tools.cluster.zookeeper_view import ZooKeeperReader, ZooKeeperView

CONNECT_TIMEOUT_S = 1.0
PAUSE_S = 0.5
"""Seconds between two reads. Only what both find is reported: a new topic has neither id nor states for a moment."""


def find(zookeeper: ZooKeeperPlace) -> ZnodeProblems:
    """Raises AdminError if it does not answer."""
    logging.getLogger("protocol.zk").setLevel(logging.CRITICAL)
    logging.getLogger("kazoo").setLevel(logging.CRITICAL)
    return asyncio.run(_find(zookeeper))


async def _find(zookeeper: ZooKeeperPlace) -> ZnodeProblems:
    reader = ZooKeeperReader(zookeeper, connect_timeout_s=CONNECT_TIMEOUT_S)
    try:
        await reader.open()
        first = problems(await reader.read())
        if first == ZnodeProblems():
            return first
        await asyncio.sleep(PAUSE_S)
        return _lasting(first, problems(await reader.read()))
    finally:
        await reader.close()


def problems(view: ZooKeeperView) -> ZnodeProblems:
    """The problems of a view. Topics that are being deleted have none."""
    without_state: dict[TopicPartition, str] = {}
    for tp in view.assignment.keys() - view.states.keys():
        if tp.topic not in view.to_be_deleted:
            path = PartitionStateZNode.path(tp)
            reason = view.unreadable.get(path)
            replicas = ",".join(map(str, view.assignment[tp].replicas))
            without_state[tp] = (
                f"it has never had a leader: none of its replicas {replicas} was live when it was created"
                if reason is None
                else f"{path} is not readable: {reason}"
            )
    return ZnodeProblems(view.unreadable, view.topics_without_id, dict(sorted(without_state.items())))


def _lasting(before: ZnodeProblems, now: ZnodeProblems) -> ZnodeProblems:
    return ZnodeProblems(
        {path: reason for path, reason in now.unreadable.items() if path in before.unreadable},
        tuple(topic for topic in now.without_id if topic in before.without_id),
        {tp: reason for tp, reason in now.without_state.items() if tp in before.without_state},
    )
