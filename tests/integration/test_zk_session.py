"""The ZooKeeper gateway against a real ZooKeeper: operations, watches, lost connections, expired sessions (BUG-5, 7; FLT-19..21)."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from kazoo.protocol.serialization import Create2
from kazoo.security import OPEN_ACL_UNSAFE

from protocol.zk.kazoo_client import Completion
from protocol.zk.session import (
    BadVersion,
    CheckOp,
    ConnectionLoss,
    CreateOp,
    DeleteOp,
    MultiFailed,
    NodeExists,
    NoNode,
    NotEmpty,
    SessionExpired,
    SessionState,
    SetOp,
    Stat,
    WatchEvent,
    WatchKind,
    ZkError,
    ZooKeeperSession,
    ZooKeeperUnavailable,
)
from tests.support.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_S = 20.0

Test = Callable[[ZooKeeperSession], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as running:
        yield running


@pytest.fixture
def in_session(server: ZooKeeperServer, request: pytest.FixtureRequest) -> Callable[[Test], None]:
    """Runs a coroutine function with a session that has a chroot of this test's own."""

    def run(test: Test) -> None:
        async def main() -> None:
            async with asyncio.timeout(TIMEOUT_S), open_session(f"{server.connect}/{request.node.name}/x") as session:
                await test(session)

        asyncio.run(main())

    return run


@asynccontextmanager
async def open_session(hosts: str, session_timeout_ms: int = 4000) -> AsyncIterator[ZooKeeperSession]:
    session = ZooKeeperSession(hosts, session_timeout_ms=session_timeout_ms)
    await session.start(10)
    try:
        yield session
    finally:
        await session.close()


class States:
    """Records the changes of state, with the session id at that moment."""

    def __init__(self, session: ZooKeeperSession) -> None:
        self.seen: list[tuple[SessionState, int]] = []
        self._session = session
        self._changed = asyncio.Event()
        session.add_listener(self._note)

    def _note(self, state: SessionState) -> None:
        self.seen.append((state, self._session.session_id))
        self._changed.set()

    async def wait_for(self, state: SessionState) -> None:
        """Until it is, or has been since the last wait, in that state."""
        while state not in (seen for seen, _ in self.seen):
            self._changed.clear()
            await self._changed.wait()


def test_reads_and_writes(in_session: Callable[[Test], None]) -> None:
    async def test(zk: ZooKeeperSession) -> None:
        path, created = await zk.create("/a/b/c", b"one", make_parents=True)
        assert path == "/a/b/c"
        assert created.version == 0
        assert await zk.get("/a/b/c") == (b"one", created)
        assert await zk.get("/a") == (b"", await zk.exists("/a"))
        changed = await zk.set("/a/b/c", b"two", version=0)
        assert changed.version == 1
        assert changed.mzxid > created.mzxid
        assert await zk.children("/a") == ["b"]
        assert await zk.exists("/no") is None
        await zk.ensure_path("/a/b/c")
        await zk.ensure_path("/a/d/e")
        assert sorted(await zk.children("/a")) == ["b", "d"]
        await zk.delete("/a/b/c", version=1)
        assert await zk.children("/a/b") == []
        await zk.heartbeat()

    in_session(test)


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
def test_errors(
    server: ZooKeeperServer, call: Callable[[ZooKeeperSession], Coroutine[Any, Any, Any]], error: type[ZkError]
) -> None:
    async def main() -> None:
        async with open_session(f"{server.connect}/errors") as zk:
            await zk.ensure_path("/a/child")
            with pytest.raises(error):
                await call(zk)

    asyncio.run(main())


def test_ephemeral_and_sequence_nodes(server: ZooKeeperServer, in_session: Callable[[Test], None]) -> None:
    async def test(zk: ZooKeeperSession) -> None:
        _, stat = await zk.create("/alive", ephemeral=True)
        assert stat.ephemeral_owner == zk.session_id
        first, _ = await zk.create("/n_", sequence=True)
        second, _ = await zk.create("/n_", sequence=True)
        assert len(first) == len("/n_") + 10
        assert first < second
        async with open_session(f"{server.connect}/{test_ephemeral_and_sequence_nodes.__name__}/x") as other:
            await other.create("/other", ephemeral=True)
            assert await zk.exists("/other") is not None
        assert await zk.exists("/other") is None, "a closed session's nodes go at once"

    in_session(test)


def test_a_multi_is_all_or_nothing(in_session: Callable[[Test], None]) -> None:
    async def test(zk: ZooKeeperSession) -> None:
        await zk.create("/epoch", b"1")
        path, stat, deleted, checked = await zk.multi(
            [CreateOp("/a", b"x"), SetOp("/a", b"y", 0), DeleteOp("/a", 1), CheckOp("/epoch", 0)]
        )
        assert path == "/a"
        assert isinstance(stat, Stat)
        assert stat.version == 1
        assert deleted is None
        assert checked is None
        assert await zk.multi([]) == []
        for index, operations, error in (
            (1, [CreateOp("/b"), CheckOp("/epoch", 9), SetOp("/epoch", b"2")], BadVersion),
            (0, [SetOp("/no", b""), CreateOp("/b")], NoNode),
            (2, [CreateOp("/b"), CreateOp("/b/c"), CreateOp("/b")], NodeExists),
        ):
            with pytest.raises(MultiFailed) as failed:
                await zk.multi(operations)
            assert failed.value.index == index
            assert isinstance(failed.value.error, error)
        assert await zk.exists("/b") is None
        results = await zk.multi_many([[CreateOp("/p")], [CreateOp("/p")], [], [CreateOp("/p/q")]])
        assert results[0] == ["/p"]
        assert isinstance(results[1], MultiFailed)
        assert results[2:] == [[], ["/p/q"]]

    in_session(test)


def test_many_nodes_at_once(in_session: Callable[[Test], None]) -> None:
    async def test(zk: ZooKeeperSession) -> None:
        paths = [f"/many/{i}" for i in range(1000)]
        await zk.create("/many")
        await zk.multi_many(
            [[CreateOp(path, path.encode() * 3) for path in paths[i : i + 50]] for i in range(0, 1000, 50)]
        )
        await zk.create("/many/7/åäö")
        found = await zk.get_many(["/no", *paths, "/no/x"])
        assert found[0] is None
        assert found[-1] is None
        assert [entry[0] for entry in found[1:-1] if entry] == [path.encode() * 3 for path in paths]
        names = await zk.children_many(["/many", "/no", "/many/7", "/many/8"])
        assert names[0] is not None
        assert len(names[0]) == 1000
        assert names[1:] == [None, ["åäö"], []]
        assert await zk.get_many([]) == []

    in_session(test)


def test_watches_fire_once_and_before_later_reads(in_session: Callable[[Test], None]) -> None:
    async def test(zk: ZooKeeperSession) -> None:
        events: list[WatchEvent] = []
        assert await zk.exists("/a", watch=events.append) is None
        await zk.create("/a", b"1")
        assert events == [(WatchKind.CREATED, "/a")]
        await zk.get("/a", watch=events.append)
        await zk.get("/a", watch=events.append)
        await zk.children("/a", watch=events.append)
        await zk.set("/a", b"2")
        assert events[1:] == [(WatchKind.CHANGED, "/a")], "equal callbacks are one watch"
        await zk.set("/a", b"3")
        await zk.create("/a/b")
        assert events[2:] == [(WatchKind.CHILDREN, "/a")]
        await zk.exists("/a", watch=events.append)
        await zk.delete("/a/b")
        await zk.delete("/a")
        assert events[3:] == [(WatchKind.DELETED, "/a")]
        with pytest.raises(NoNode):
            await zk.get("/a", watch=events.append)
        await zk.create("/a")
        assert len(events) == 4, "a failed get sets no watch"

    in_session(test)


def test_a_cancelled_call_harms_no_other(in_session: Callable[[Test], None]) -> None:
    async def test(zk: ZooKeeperSession) -> None:
        async with asyncio.TaskGroup() as group:
            given_up = group.create_task(zk.create("/a"))
            await asyncio.sleep(0)
            kept = group.create_task(zk.create("/b"))
            await asyncio.sleep(0)
            given_up.cancel()
        assert kept.result()[0] == "/b"

    in_session(test)


def test_an_expired_session_is_followed_by_another(server: ZooKeeperServer, in_session: Callable[[Test], None]) -> None:
    async def test(zk: ZooKeeperSession) -> None:
        states = States(zk)
        events: list[WatchEvent] = []
        first = zk.session_id
        await zk.create("/mine", ephemeral=True)
        await zk.create("/lasting", b"1")
        await zk.get("/lasting", watch=events.append)
        await asyncio.to_thread(server.expire_session, first)
        await states.wait_for(SessionState.EXPIRED)
        with pytest.raises(SessionExpired):
            await zk.heartbeat()
        await states.wait_for(SessionState.CONNECTED)
        second = zk.session_id
        assert states.seen == [
            (SessionState.SUSPENDED, first),
            (SessionState.EXPIRED, 0),
            (SessionState.CONNECTED, second),
        ]
        assert second not in (0, first)
        assert await zk.exists("/mine") is None
        await zk.set("/lasting", b"2")
        await zk.heartbeat()
        assert events == [], "watches end with their session"

    in_session(test)


def test_zookeeper_stopped_and_started_again(server: ZooKeeperServer, in_session: Callable[[Test], None]) -> None:
    async def test(zk: ZooKeeperSession) -> None:
        states = States(zk)
        events: list[WatchEvent] = []
        session_id = zk.session_id
        for path in ("/unchanged", "/changed", "/removed", "/parent"):
            await zk.create(path, b"1")
            await zk.get(path, watch=events.append)
        await zk.exists("/missing", watch=events.append)
        await zk.exists("/made", watch=events.append)
        await zk.children("/parent", watch=events.append)
        await asyncio.to_thread(server.stop)
        await states.wait_for(SessionState.SUSPENDED)
        for call in (zk.get("/unchanged"), zk.set("/changed", b"x"), zk.heartbeat(), zk.multi([CheckOp("/changed")])):
            with pytest.raises(ConnectionLoss):
                await call
        await asyncio.to_thread(server.start)
        async with open_session(f"{server.connect}/{test_zookeeper_stopped_and_started_again.__name__}/x") as other:
            await other.multi(
                [SetOp("/changed", b"2"), DeleteOp("/removed"), CreateOp("/made"), CreateOp("/parent/child")]
            )
        await states.wait_for(SessionState.CONNECTED)
        await zk.heartbeat()
        assert zk.session_id == session_id
        assert [state for state, _ in states.seen] == [SessionState.SUSPENDED, SessionState.CONNECTED]
        assert {(kind, path) for kind, path in events} == {
            (WatchKind.CHANGED, "/changed"),
            (WatchKind.DELETED, "/removed"),
            (WatchKind.CREATED, "/made"),
            (WatchKind.CHILDREN, "/parent"),
        }
        assert await zk.get("/changed") == (b"2", await zk.exists("/changed"))
        await zk.set("/unchanged", b"2")
        await zk.create("/missing")
        assert events[4:] == [(WatchKind.CHANGED, "/unchanged"), (WatchKind.CREATED, "/missing")]

    in_session(test)


def test_what_waits_fails_when_the_connection_breaks(
    server: ZooKeeperServer, in_session: Callable[[Test], None]
) -> None:
    async def test(zk: ZooKeeperSession) -> None:
        states = States(zk)
        server.pause()
        try:
            waiting = [asyncio.ensure_future(zk.create(f"/{i}")) for i in range(500)]
            await states.wait_for(SessionState.SUSPENDED)
        finally:
            server.resume()
        assert all(isinstance(r, ConnectionLoss) for r in await asyncio.gather(*waiting, return_exceptions=True))
        states.seen.clear()
        await states.wait_for(SessionState.CONNECTED)
        await zk.heartbeat()

    in_session(test)


def test_a_request_for_an_earlier_connection_is_not_sent(in_session: Callable[[Test], None]) -> None:
    async def test(zk: ZooKeeperSession) -> None:
        client, mailbox = zk._client, zk._mailbox
        assert client is not None
        assert mailbox is not None
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        request = Create2(zk._full("/late"), b"", OPEN_ACL_UNSAFE, 0)
        client.submit(request, Completion(mailbox, future, zk._connection - 1))
        with pytest.raises(Exception, match=r"^$"):
            await future
        assert await zk.exists("/late") is None

    in_session(test)


PAUSED_PROCESS = """
import asyncio, sys
from protocol.zk.session import ZkError, ZooKeeperSession

async def main():
    zk = ZooKeeperSession(sys.argv[1], session_timeout_ms=1000)
    zk.add_listener(lambda state: print(state.name, zk.session_id, flush=True))
    await zk.start(10)
    await asyncio.to_thread(sys.stdin.readline)
    try:
        await zk.heartbeat()
        print("ALIVE", flush=True)
    except ZkError as error:
        print(type(error).__name__, flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print("NOW", zk.state.name, zk.session_id, flush=True)
    await zk.close()

asyncio.run(main())
"""


def test_a_process_paused_past_its_session_cannot_take_it_for_alive(server: ZooKeeperServer) -> None:
    """FLT-6: the line that it reads first on waking makes it ask; the answer must not be that all is well."""
    process = subprocess.Popen(
        [sys.executable, "-c", PAUSED_PROCESS, server.connect],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        state, first = process.stdout.readline().split()
        assert state == "CONNECTED"
        process.send_signal(signal.SIGSTOP)
        process.stdin.write("\n")
        process.stdin.flush()
        asyncio.run(session_gone(server, int(first)))
        process.send_signal(signal.SIGCONT)
        lines = [process.stdout.readline().split() for _ in range(4)]
        assert [line[0] for line in lines if line[0] not in ("ConnectionLoss", "SessionExpired")] == [
            "SUSPENDED",
            "EXPIRED",
            "CONNECTED",
        ]
        process.stdin.write("\n")
        process.stdin.flush()
        _, state, second = process.stdout.readline().split()
        assert state == "CONNECTED"
        assert second != first
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()


async def session_gone(server: ZooKeeperServer, session_id: int) -> None:
    """Until ZooKeeper has ended that session, as its own list of sessions says."""
    while True:
        reader, writer = await asyncio.open_connection(*server.address)
        writer.write(b"dump")
        sessions = (await reader.read()).decode()
        writer.close()
        if f"{session_id:#x}" not in sessions:
            return
        await asyncio.sleep(0.1)


@pytest.mark.parametrize(
    "hosts", ["127.0.0.1:1", "127.0.0.1:1,127.0.0.1:2/chroot", "127.0.0.1:http", "nowhere.invalid:1"]
)
def test_no_zookeeper_there(hosts: str) -> None:
    async def main() -> None:
        with pytest.raises(ZooKeeperUnavailable, match=hosts.split("/")[0]):
            await ZooKeeperSession(hosts, session_timeout_ms=2000).start(0.3)

    asyncio.run(main())


def test_a_connection_that_zookeeper_forgets_while_it_starts_is_soon_given_up(server: ZooKeeperServer) -> None:
    async def main() -> None:
        connections = 0

        async def forget_the_first(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal connections
            connections += 1
            if connections == 1:
                await reader.read()
            else:
                to_reader, to_writer = await asyncio.open_connection(*server.address)
                await asyncio.gather(copy(reader, to_writer), copy(to_reader, writer))
            writer.close()

        relay = await asyncio.start_server(forget_the_first, "127.0.0.1", 0)
        host, port = relay.sockets[0].getsockname()
        async with asyncio.timeout(5), open_session(f"{host}:{port}", session_timeout_ms=18_000) as zk:
            assert connections == 2
            await zk.heartbeat()
        relay.close()

    asyncio.run(main())


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(4096):
        writer.write(piece)
    writer.close()


def test_nothing_works_after_close(server: ZooKeeperServer) -> None:
    async def main() -> None:
        async with open_session(server.connect) as zk:
            states = States(zk)
        assert states.seen == [(SessionState.CLOSED, 0)]
        with pytest.raises(ConnectionLoss):
            await zk.get("/")
        await zk.close()

    asyncio.run(main())


def test_watches_on_many_nodes_fire_for_what_changed_since_the_read(in_session: Callable[[Test], None]) -> None:
    """In one request for all: a change between the read and that request must fire too. Survives a reconnect (FLT-19)."""

    async def test(session: ZooKeeperSession) -> None:
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

    in_session(test)


async def session_is(session: ZooKeeperSession, state: SessionState) -> None:
    reached = asyncio.Event()

    def listener(new: SessionState) -> None:
        if new is state:
            reached.set()

    session.add_listener(listener)
    if session.state is not state:
        await reached.wait()
    session.remove_listener(listener)


def test_versions_of_many_nodes(in_session: Callable[[Test], None]) -> None:
    async def test(session: ZooKeeperSession) -> None:
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

    in_session(test)
