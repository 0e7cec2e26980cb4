"""The parts of a session that need no server. The integration tests use a real ZooKeeper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from protocol.zk.kazoo_client import SessionClient
from protocol.zk.session import (
    REPETITIONS_MAX,
    ConnectionLoss,
    CreateOp,
    RequestTooLarge,
    SessionState,
    SetOp,
    ZkError,
    ZooKeeperSession,
    each_readable,
)

LARGEST = 1_000_000


@pytest.mark.parametrize(("size", "expected"), [(LARGEST + 1, RequestTooLarge), (LARGEST - 1000, ConnectionLoss)])
async def test_a_request_that_is_too_large_for_zookeeper_is_not_sent(size: int, expected: type[Exception]) -> None:
    """ZooKeeper would close the connection: a client's long setting must not disconnect a broker."""
    session = ZooKeeperSession("127.0.0.1:1", session_timeout_ms=1000)
    data = bytes(size)
    for request in (
        session.set("/a", data),
        session.create("/a", data),
        session.multi([CreateOp("/a", data[: size // 2]), SetOp("/b", data[size // 2 :])]),
    ):
        with pytest.raises(expected):
            await request


async def test_other_nodes_are_read_beside_an_unreadable_one() -> None:
    asked: list[Sequence[str]] = []

    async def read(paths: Sequence[str]) -> list[str]:
        asked.append(paths)
        if not {"/3", "/7"}.isdisjoint(paths):
            raise ZkError("NoAuthError")
        return [path.upper() for path in paths]

    paths = [f"/{number}" for number in range(100)]
    found = await each_readable(paths, read)
    assert [None if isinstance(one, ZkError) else one for one in found] == [
        None if path in ("/3", "/7") else path for path in paths
    ]
    assert len(asked) <= 2 * 2 * 8, "not one by one"


async def test_a_lost_connection_does_not_make_nodes_unreadable() -> None:
    async def read(paths: Sequence[str]) -> list[str]:
        raise ConnectionLoss("test")

    with pytest.raises(ConnectionLoss):
        await each_readable(["/a", "/b"], read)


@pytest.mark.parametrize(("timeout_s", "expected"), [(10, REPETITIONS_MAX + 1), (0, 1)])
async def test_a_step_that_ends_every_connection_is_not_repeated_for_ever(timeout_s: float, expected: int) -> None:
    """A server with a lower `jute.maxbuffer` closes the connection for a large request, and accepts the next connection."""
    session = ZooKeeperSession("127.0.0.1:1", session_timeout_ms=1000)
    session._state = SessionState.CONNECTED
    attempts = 0

    async def step() -> None:
        nonlocal attempts
        attempts += 1
        raise ConnectionLoss("the connection to ZooKeeper broke")

    with pytest.raises(ConnectionLoss):
        await session.repeated(step, timeout_s)
    assert attempts == expected


def test_each_reason_is_logged_once_until_there_is_a_connection(caplog: pytest.LogCaptureFixture) -> None:
    """The certificates of a whole ensemble often expire together, and then its servers are tried in turn, many times in a second."""
    session = ZooKeeperSession("one:1,two:1", session_timeout_ms=1000)
    session._client = cast(SessionClient, object())
    for _ in range(3):
        session.on_refused("one:1: expired", True)
        session.on_refused("two:1: expired", True)
    assert [record.getMessage().partition(": ")[2] for record in caplog.records] == ["one:1: expired", "two:1: expired"]
    caplog.clear()
    session.on_connected(1, 7, b"", 1000)
    session.on_refused("two:1: expired", True)
    assert [record.levelname for record in caplog.records if "expired" in record.getMessage()] == ["WARNING"]
