"""A change and its announcement are made together or not at all."""

from __future__ import annotations

from typing import Any

import pytest

from broker.process.announced_writes import NoGuard, write_announced
from protocol.zk.session import BadVersion, CreateOp, DeleteOp, NodeExists, NoNode, NotEmpty, Op, SetOp, ZkError
from tests.support.memory_zookeeper import MemorySession, MemoryZooKeeper

TOLD = CreateOp("/changes/change_", b"a", sequence=True)


def world() -> tuple[MemoryZooKeeper, Any]:
    server = MemoryZooKeeper()
    for path in ("/changes", "/a/b", "/guard"):
        server.ensure(path)
    return server, MemorySession(server)


@pytest.mark.parametrize(
    "write", [CreateOp("/new", b"x"), SetOp("/a", b"x", 0), DeleteOp("/a/b", 0), DeleteOp("/a/b"), None]
)
async def test_both_are_made(write: Op | None) -> None:
    server, zk = world()
    await write_announced(zk, write, TOLD, guard="/guard")
    assert server.children("/changes") == ["change_0000000000"]
    await write_announced(zk, None, TOLD)
    assert server.children("/changes") == ["change_0000000000", "change_0000000001"]
    assert [path for path, node in server.nodes.items() if node.data == b"x"] == (
        [write.path] if isinstance(write, CreateOp | SetOp) else []
    )
    assert ("/a/b" in server.nodes) is not isinstance(write, DeleteOp)


@pytest.mark.parametrize(
    ("write", "guard", "error"),
    [
        (CreateOp("/a", b"x"), None, NodeExists),
        (CreateOp("/no/a", b"x"), "/guard", NoNode),
        (SetOp("/a", b"x", 1), "/guard", BadVersion),
        (SetOp("/no", b"x"), None, NoNode),
        (DeleteOp("/a", 0), None, NotEmpty),
        (SetOp("/a", b"x", 0), "/no", NoGuard),
        (None, "/no", NoGuard),
    ],
)
async def test_neither_is_made(write: Op | None, guard: str | None, error: type[ZkError]) -> None:
    server, zk = world()
    before = dict(server.nodes)
    with pytest.raises(error) as raised:
        await write_announced(zk, write, TOLD, guard=guard)
    assert type(raised.value) is error
    assert server.nodes == before
    assert not any(node.data for node in server.nodes.values())


async def test_a_missing_parent_of_the_announcements_is_made() -> None:
    server, zk = world()
    server.remove("/changes")
    await write_announced(zk, SetOp("/a", b"x"), TOLD)
    assert server.children("/changes") == ["change_0000000000"]
    assert server.nodes["/a"].version == 1


async def test_a_change_that_cannot_be_announced_is_not_made() -> None:
    server, zk = world()
    server.ensure("/changes/change_0000000001")  # the number of the next one, and no broker's
    with pytest.raises(ZkError, match=r"cannot be announced: .*change_") as raised:
        await write_announced(zk, SetOp("/a", b"x"), TOLD)
    assert not isinstance(raised.value, NodeExists), "or the caller would try again"
    assert server.nodes["/a"].version == 0
