"""The ZooKeeper gateway against a real ZooKeeper that fails: lost connections, expired sessions, paused processes (FLT-19..21)."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kazoo.protocol.serialization import Create2
from kazoo.security import OPEN_ACL_UNSAFE

from protocol.zk.kazoo_client import Completion
from protocol.zk.session import (
    CheckOp,
    ConnectionLoss,
    CreateOp,
    DeleteOp,
    SessionExpired,
    SessionState,
    SetOp,
    WatchEvent,
    WatchKind,
    ZooKeeperSession,
    ZooKeeperUnavailable,
)
from tests.support.zookeeper import ZooKeeperServer
from tests.support.zookeeper_sessions import States, open_session

pytestmark = pytest.mark.integration

REPOSITORY = Path(__file__).resolve().parents[2]
TIMEOUT_S = 20.0


async def test_an_expired_session_is_followed_by_another(session: ZooKeeperSession, server: ZooKeeperServer) -> None:
    states = States(session)
    events: list[WatchEvent] = []
    first = session.session_id
    await session.create("/mine", ephemeral=True)
    await session.create("/lasting", b"1")
    await session.get("/lasting", watch=events.append)
    await asyncio.to_thread(server.expire_session, first)
    await states.wait_for(SessionState.EXPIRED)
    with pytest.raises(SessionExpired):
        await session.heartbeat()
    await states.wait_for(SessionState.CONNECTED)
    second = session.session_id
    assert states.seen == [
        (SessionState.SUSPENDED, first),
        (SessionState.EXPIRED, 0),
        (SessionState.CONNECTED, second),
    ]
    assert second not in (0, first)
    assert await session.exists("/mine") is None
    await session.set("/lasting", b"2")
    await session.heartbeat()
    assert events == [], "watches end with their session"


async def test_zookeeper_stopped_and_started_again(session: ZooKeeperSession, server: ZooKeeperServer) -> None:
    states = States(session)
    events: list[WatchEvent] = []
    session_id = session.session_id
    for path in ("/unchanged", "/changed", "/removed", "/parent"):
        await session.create(path, b"1")
        await session.get(path, watch=events.append)
    await session.exists("/missing", watch=events.append)
    await session.exists("/made", watch=events.append)
    await session.children("/parent", watch=events.append)
    await asyncio.to_thread(server.stop)
    await states.wait_for(SessionState.SUSPENDED)
    for call in (
        session.get("/unchanged"),
        session.set("/changed", b"x"),
        session.heartbeat(),
        session.multi([CheckOp("/changed")]),
    ):
        with pytest.raises(ConnectionLoss):
            await call
    await session.until_connected(0.01)
    assert session.state is SessionState.SUSPENDED, "the wait for a connection ends without one"
    patient = asyncio.ensure_future(session.until_connected(TIMEOUT_S))
    await asyncio.to_thread(server.start)
    async with open_session(f"{server.connect}/{test_zookeeper_stopped_and_started_again.__name__}/x") as other:
        await other.multi([SetOp("/changed", b"2"), DeleteOp("/removed"), CreateOp("/made"), CreateOp("/parent/child")])
    await patient
    await session.heartbeat()
    await states.wait_for(SessionState.CONNECTED)
    assert session.session_id == session_id
    assert [state for state, _ in states.seen] == [SessionState.SUSPENDED, SessionState.CONNECTED]
    assert {(kind, path) for kind, path in events} == {
        (WatchKind.CHANGED, "/changed"),
        (WatchKind.DELETED, "/removed"),
        (WatchKind.CREATED, "/made"),
        (WatchKind.CHILDREN, "/parent"),
    }
    assert await session.get("/changed") == (b"2", await session.exists("/changed"))
    await session.set("/unchanged", b"2")
    await session.create("/missing")
    assert events[4:] == [(WatchKind.CHANGED, "/unchanged"), (WatchKind.CREATED, "/missing")]


async def test_a_step_is_repeated_after_a_lost_connection_and_a_lost_session(
    session: ZooKeeperSession, server: ZooKeeperServer
) -> None:
    attempts: list[str] = []
    is_stopped = asyncio.Event()

    async def step() -> bytes:
        attempts.append("step")
        if len(attempts) == 1:
            await asyncio.to_thread(server.stop)
            is_stopped.set()
        elif len(attempts) == 2:
            await asyncio.to_thread(server.expire_session, session.session_id)
        return (await session.get("/lasting"))[0]

    await session.create("/lasting", b"1")
    repeated = asyncio.ensure_future(session.repeated(step, TIMEOUT_S))
    await is_stopped.wait()
    await asyncio.to_thread(server.start)
    assert await repeated == b"1"
    assert len(attempts) >= 3

    await asyncio.to_thread(server.stop)
    try:
        with pytest.raises(ConnectionLoss, match=r"no new connection within 0.1 s"):
            await session.repeated(session.heartbeat, 0.1)
    finally:
        await asyncio.to_thread(server.start)


async def test_waiting_calls_fail_when_the_connection_breaks(
    session: ZooKeeperSession, server: ZooKeeperServer
) -> None:
    states = States(session)
    server.pause()
    try:
        waiting = [asyncio.ensure_future(session.create(f"/{i}")) for i in range(500)]
        await states.wait_for(SessionState.SUSPENDED)
        states.seen.clear()
    finally:
        server.resume()
    assert all(isinstance(r, ConnectionLoss) for r in await asyncio.gather(*waiting, return_exceptions=True))
    await states.wait_for(SessionState.CONNECTED)
    await session.heartbeat()


async def test_a_request_for_an_earlier_connection_is_not_sent(session: ZooKeeperSession) -> None:
    client, mailbox = session._client, session._mailbox
    assert client is not None
    assert mailbox is not None
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    request = Create2(session._full("/late"), b"", OPEN_ACL_UNSAFE, 0)
    client.submit(request, Completion(mailbox, future, session._connection - 1))
    with pytest.raises(Exception, match=r"^$"):
        await future
    assert await session.exists("/late") is None


PAUSED_PROCESS = """
import asyncio, sys
from protocol.zk.session import ZkError, ZooKeeperSession

async def main():
    zk = ZooKeeperSession(sys.argv[1], session_timeout_ms=4000)
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
async def test_a_missing_zookeeper_is_reported(hosts: str) -> None:
    with pytest.raises(ZooKeeperUnavailable, match=hosts.split("/")[0]):
        await ZooKeeperSession(hosts, session_timeout_ms=2000).start(0.3)


async def test_a_connection_that_zookeeper_forgets_while_it_starts_is_soon_given_up(server: ZooKeeperServer) -> None:
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


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(4096):
        writer.write(piece)
    writer.close()


async def test_calls_after_close_fail(server: ZooKeeperServer) -> None:
    async with open_session(server.connect) as zk:
        states = States(zk)
    assert states.seen == [(SessionState.CLOSED, 0)]
    with pytest.raises(ConnectionLoss):
        await zk.get("/")
    await zk.close()
