"""Which partitions exist, by ZooKeeper: TXN-3."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from broker.cluster.assigned_partitions import AssignedPartitions
from protocol.types import Assignment
from protocol.zk.session import Stat, ZkError
from protocol.zk.znodes import DeleteTopicZNode, TopicZNode
from tests.support.memory_zookeeper import MemorySession, MemoryZooKeeper

TOPICS = ("there", "deleted", "to-be-deleted", "unreadable", "..", "a/b")


@pytest.mark.parametrize(
    ("may_delete", "to_be_deleted"),
    [(True, set()), (False, {0, 1})],  # the controller removes the request, and the topic stays
)
async def test_what_exists(may_delete: bool, to_be_deleted: set[int]) -> None:
    server = MemoryZooKeeper()
    for topic in ("there", "to-be-deleted"):
        server.ensure(TopicZNode.path(topic), TopicZNode.encode(None, dict.fromkeys((0, 1), Assignment((1, 2)))))
    server.ensure(TopicZNode.path("unreadable"), b"{")
    server.ensure(DeleteTopicZNode.path("to-be-deleted"))
    session: Any = MemorySession(server)
    asked = AssignedPartitions(session, may_delete=may_delete)
    found = {topic: set(numbers) for topic, numbers in (await asked.of(TOPICS)).items()}
    nothing: set[int] = set()
    assert found == {
        "there": {0, 1},
        "deleted": nothing,
        "to-be-deleted": to_be_deleted,
        "..": nothing,
        "a/b": nothing,
    }
    session.expire()
    assert set(await asked.of(TOPICS)) == {"..", "a/b"}, "ZooKeeper does not answer"


async def test_a_node_that_may_not_be_read_does_not_hide_the_others() -> None:
    """Otherwise transactions of topics that are looked up together with it would never end."""

    class Guarded(MemorySession):
        async def get_many(self, paths: Sequence[str], *more: Any) -> list[tuple[bytes, Stat] | None]:
            if TopicZNode.path("guarded") in paths:
                raise ZkError("NoAuth")
            return await super().get_many(paths, *more)

    server = MemoryZooKeeper()
    for topic in ("guarded", "there"):
        server.ensure(TopicZNode.path(topic), TopicZNode.encode(None, {0: Assignment((1, 2))}))
    session: Any = Guarded(server)
    found = await AssignedPartitions(session, may_delete=True).of(("deleted", "guarded", "there"))
    assert {topic: set(numbers) for topic, numbers in found.items()} == {"deleted": set(), "there": {0}}
