"""The ZooKeeper gateway against a real ZooKeeper: operations, watches, many nodes at once (BUG-5, BUG-7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from protocol.zk.session import (
    BadVersion,
    CheckOp,
    CreateOp,
    DeleteOp,
    MultiFailed,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionState,
    SetOp,
    WatchEvent,
    WatchKind,
    ZkError,
    ZooKeeperSession,
)
from tests.support.zookeeper import ZooKeeperServer
from tests.support.zookeeper_sessions import open_session, session_is

pytestmark = pytest.mark.integration


async def test_reads_and_writes(session: ZooKeeperSession) -> None:
    path, created = await session.create("/a/b/c", b"one", make_parents=True)
    assert path == "/a/b/c"
    assert created.version == 0
    assert await session.get("/a/b/c") == (b"one", created)
    assert await session.get("/a") == (b"", await session.exists("/a"))
    changed = await session.set("/a/b/c", b"two", version=0)
    assert changed.version == 1
    assert changed.mzxid > created.mzxid
    assert await session.children("/a") == ["b"]
    assert await session.exists("/no") is None
    await session.ensure_path("/a/b/c")
    await session.ensure_path("/a/d/e")
    assert sorted(await session.children("/a")) == ["b", "d"]
    await session.delete("/a/b/c", version=1)
    assert await session.children("/a/b") == []
    await session.heartbeat()


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda zk: zk.get("/no"), NoNode),
        (lambda zk: zk.children("/no"), NoNode),
        (lambda zk: zk.set("/no", b""), NoNode),
        (lambda zk: zk.delete("/no"), NoNode),
        (lambda zk: zk.create("/no/x"), NoNode),
        (lambda zk: zk.create("/a"), NodeExists),
        (lambda zk: zk.set("/a", b"", version=7), BadVersion),
        (lambda zk: zk.delete("/a", version=7), BadVersion),
        (lambda zk: zk.delete("/a"), NotEmpty),
        (lambda zk: zk.create("//x"), ZkError),
        (lambda zk: zk.create("no slash"), ValueError),
    ],
)
async def test_errors(
    server: ZooKeeperServer, call: Callable[[ZooKeeperSession], Coroutine[Any, Any, Any]], error: type[ZkError]
) -> None:
    async with open_session(f"{server.connect}/errors") as zk:
        await zk.ensure_path("/a/child")
        with pytest.raises(error):
            await call(zk)


async def test_ephemeral_and_sequence_nodes(session: ZooKeeperSession, server: ZooKeeperServer) -> None:
    _, stat = await session.create("/alive", ephemeral=True)
    assert stat.ephemeral_owner == session.session_id
    first, _ = await session.create("/n_", sequence=True)
    second, _ = await session.create("/n_", sequence=True)
    assert len(first) == len("/n_") + 10
    assert first < second
    async with open_session(f"{server.connect}/{test_ephemeral_and_sequence_nodes.__name__}/x") as other:
        await other.create("/other", ephemeral=True)
        assert await session.exists("/other") is not None
    assert await session.exists("/other") is None, "a closed session's nodes go at once"


async def test_a_multi_is_all_or_nothing(session: ZooKeeperSession) -> None:
    await session.create("/epoch", b"1")
    path, version, deleted, checked = await session.multi(
        [CreateOp("/a", b"x"), SetOp("/a", b"y", 0), DeleteOp("/a", 1), CheckOp("/epoch", 0)]
    )
    assert path == "/a"
    assert version == 1
    assert deleted is None
    assert checked is None
    assert await session.multi([]) == []
    for index, operations, error in (
        (1, [CreateOp("/b"), CheckOp("/epoch", 9), SetOp("/epoch", b"2")], BadVersion),
        (0, [SetOp("/no", b""), CreateOp("/b")], NoNode),
        (2, [CreateOp("/b"), CreateOp("/b/c"), CreateOp("/b")], NodeExists),
    ):
        with pytest.raises(MultiFailed) as failed:
            await session.multi(operations)
        assert failed.value.index == index
        assert isinstance(failed.value.error, error)
    assert await session.exists("/b") is None
    first, second, _ = await session.multi(
        [CreateOp("/s_", sequence=True), CreateOp("/s_", sequence=True), CheckOp("/epoch")]
    )
    assert await session.exists(str(first)) is not None
    assert str(second) == f"/s_{int(str(first)[-10:]) + 1:010d}"
    results = await session.multi_many([[CreateOp("/p")], [CreateOp("/p")], [], [CreateOp("/p/q")]])
    assert results[0] == ["/p"]
    assert isinstance(results[1], MultiFailed)
    assert results[2:] == [[], ["/p/q"]]


async def test_many_nodes_at_once(session: ZooKeeperSession) -> None:
    paths = [f"/many/{i}" for i in range(1000)]
    await session.create("/many")
    await session.multi_many(
        [[CreateOp(path, path.encode() * 3) for path in paths[i : i + 50]] for i in range(0, 1000, 50)]
    )
    await session.create("/many/7/åäö")
    found = await session.get_many(["/no", *paths, "/no/x"])
    assert found[0] is None
    assert found[-1] is None
    assert [entry[0] for entry in found[1:-1] if entry] == [path.encode() * 3 for path in paths]
    names = await session.children_many(["/many", "/no", "/many/7", "/many/8"])
    assert names[0] is not None
    assert len(names[0]) == 1000
    assert names[1:] == [None, ["åäö"], []]
    assert await session.get_many([]) == []


async def test_watches_fire_once_and_before_later_reads(session: ZooKeeperSession) -> None:
    events: list[WatchEvent] = []
    assert await session.exists("/a", watch=events.append) is None
    await session.create("/a", b"1")
    assert events == [(WatchKind.CREATED, "/a")]
    await session.get("/a", watch=events.append)
    await session.get("/a", watch=events.append)
    await session.children("/a", watch=events.append)
    await session.set("/a", b"2")
    assert events[1:] == [(WatchKind.CHANGED, "/a")], "equal callbacks are one watch"
    await session.set("/a", b"3")
    await session.create("/a/b")
    assert events[2:] == [(WatchKind.CHILDREN, "/a")]
    await session.exists("/a", watch=events.append)
    await session.delete("/a/b")
    await session.delete("/a")
    assert events[3:] == [(WatchKind.DELETED, "/a")]
    with pytest.raises(NoNode):
        await session.get("/a", watch=events.append)
    await session.create("/a")
    assert len(events) == 4, "a failed get sets no watch"


async def test_a_cancelled_call_does_not_affect_others(session: ZooKeeperSession) -> None:
    async with asyncio.TaskGroup() as group:
        given_up = group.create_task(session.create("/a"))
        await asyncio.sleep(0)
        kept = group.create_task(session.create("/b"))
        await asyncio.sleep(0)
        given_up.cancel()
    assert kept.result()[0] == "/b"


async def test_watches_on_many_nodes_fire_for_nodes_that_changed_since_the_read(session: ZooKeeperSession) -> None:
    """One request sets all watches. A change between the read and this request must fire them too. They survive a reconnect (FLT-19)."""
    paths = [f"/n{number}" for number in range(1200)]
    await session.multi([CreateOp(path, b"old") for path in paths])
    fired: list[WatchEvent] = []
    there = asyncio.Event()

    def watch(event: WatchEvent) -> None:
        fired.append(event)
        there.set()

    async def next_event() -> WatchEvent:
        await there.wait()
        there.clear()
        return fired[-1]

    request, meddled = session._request, []

    async def meddling(path: str, *rest: Any) -> Any:
        if path == "a watch" and not meddled:
            meddled.append(path)
            await session.set(paths[1], b"new")
            await session.delete(paths[2])
        return await request(path, *rest)

    session._request = meddling  # type: ignore[method-assign]
    nodes = await session.get_many([*paths, "/missing"], watch)
    assert [node[0] if node else None for node in nodes] == [b"old"] * 1200 + [None]
    assert set(fired) == {WatchEvent(WatchKind.CHANGED, paths[1]), WatchEvent(WatchKind.DELETED, paths[2])}
    there.clear()
    await session.create("/missing")
    await session.set(paths[5], b"x")
    assert await next_event() == WatchEvent(WatchKind.CHANGED, paths[5])
    assert session._client is not None
    session._client._connection._socket.shutdown(2)
    await session_is(session, SessionState.SUSPENDED)
    await session_is(session, SessionState.CONNECTED)
    await session.set(paths[1199], b"y")
    assert await next_event() == WatchEvent(WatchKind.CHANGED, paths[1199])
    assert len(fired) == 4, "each fires once, and none where there was no node"


async def test_versions_of_many_nodes(session: ZooKeeperSession) -> None:
    await session.create("/a", b"1")
    _, made = await session.create("/b")
    changed = await session.set("/a", b"22")
    assert await session.get_versions(["/a", "/no", "/b"]) == [
        (b"22", 1, changed.mzxid),
        None,
        (b"", 0, made.mzxid),
    ]
    assert await session.get_versions([]) == []
    many = [f"/b/{number}" for number in range(600)]
    await session.multi([CreateOp(path, path.encode()) for path in many])
    written = await session.exists(many[0])
    assert written is not None
    assert await session.get_versions(many) == [(path.encode(), 0, written.czxid) for path in many]
