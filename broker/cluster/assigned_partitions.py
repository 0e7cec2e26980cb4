"""Which partitions a topic has, by its node in ZooKeeper: the proof that a partition is gone, which the metadata cannot give."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from protocol.topic_names import is_valid_topic_name, shown
from protocol.zk.session import ZkError, ZooKeeperSession, each_readable
from protocol.zk.znodes import DeleteTopicZNode, TopicZNode

log = logging.getLogger(__name__)

NONE_ASSIGNED: frozenset[int] = frozenset()


class AssignedPartitions:
    """Reads ZooKeeper. `may_delete` is `delete.topic.enable`: without it, the controller refuses requests to delete."""

    def __init__(self, zk: ZooKeeperSession, *, may_delete: bool) -> None:
        self._zk = zk
        self._may_delete = may_delete

    async def of(self, topics: Collection[str]) -> Mapping[str, Collection[int]]:
        """Topic -> its partitions: none if it does not exist, or if its deletion is asked for. A topic that cannot be read is missing.

        The caller keeps `topics` few: their nodes are decoded in one turn of the loop.
        """
        found: dict[str, Collection[int]] = {topic: NONE_ASSIGNED for topic in topics if not is_valid_topic_name(topic)}
        names = [topic for topic in topics if topic not in found]
        try:
            # In this order: a topic that was made again after the second read does not count as the one that was to be deleted.
            nodes = await each_readable([TopicZNode.path(topic) for topic in names], self._zk.get_many)
            deletions = await each_readable([DeleteTopicZNode.path(topic) for topic in names], self._zk.get_many)
        except ZkError:
            return found
        for topic, node, deletion in zip(names, nodes, deletions, strict=True):
            if isinstance(node, ZkError) or isinstance(deletion, ZkError):
                refusal = node if isinstance(node, ZkError) else deletion
                log.warning("it is not known whether topic %s exists: %s", shown(topic), shown(str(refusal)))
                continue
            if node is None or (deletion is not None and self._may_delete):
                found[topic] = NONE_ASSIGNED
                continue
            try:
                found[topic] = TopicZNode.decode(node[0])[1].keys()
            except ValueError as error:
                log.warning("the node of topic %s cannot be read: %s", shown(topic), error)
        return found
