"""What needs no ZooKeeper; the rest of the session is tested against a real one."""

from __future__ import annotations

import asyncio

import pytest

from protocol.zk.session import ConnectionLoss, CreateOp, RequestTooLarge, SetOp, ZooKeeperSession

LARGEST = 1_000_000


def test_a_request_that_zookeeper_would_not_take_is_not_sent() -> None:
    """ZooKeeper ends the connection of who sends it: a client's long setting must not cut a broker off."""

    async def scenario() -> None:
        session = ZooKeeperSession("127.0.0.1:1", session_timeout_ms=1000)
        for size, expected in ((LARGEST + 1, RequestTooLarge), (LARGEST - 1000, ConnectionLoss)):
            data = bytes(size)
            for request in (
                session.set("/a", data),
                session.create("/a", data),
                session.multi([CreateOp("/a", data[: size // 2]), SetOp("/b", data[size // 2 :])]),
            ):
                with pytest.raises(expected):
                    await request

    asyncio.run(scenario())
