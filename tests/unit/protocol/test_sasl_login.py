"""A broker's own logins over its network client: it logs in first, again in time, and never between two answers (KIP-368)."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from broker.apis.api_versions import answer_before_login
from broker.process.audit_log import AuditLog
from broker.process.clock import SystemClock
from broker.security.login import Login, Logins
from broker.security.scram_users import ScramUsers
from broker.settings.sasl import ListenerSasl
from protocol.kafka.api_keys import ApiKey, ApiLevel
from protocol.network_client import Disconnected, NetworkClient
from protocol.sasl_login import ClientLogin

LIFETIME_MS = 300
MINE = ClientLogin("PLAIN", "broker", "a secret")

SILENT = AuditLog(None, SystemClock())


class Server:
    """Takes logins, also later ones, and answers other frames with themselves after a moment."""

    def __init__(self) -> None:
        sasl = ListenerSasl("B", ("PLAIN",), {"broker": "a secret"}, {"PLAIN": LIFETIME_MS}, 1000)
        self.logins = Logins(sasl, ScramUsers(), partial(answer_before_login, ApiLevel.KAFKA_3_9), SILENT)
        self.renewed = 0
        self.takes_renewals = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        login = Login(self.logins)
        try:
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
                if login.result is not None and frame[:2] == int(ApiKey.SASL_HANDSHAKE).to_bytes(2, "big"):
                    if not self.takes_renewals:
                        break
                    login = Login(self.logins, login.result)
                    self.renewed += 1
                if login.result is None:
                    writer.write(login.take(frame))
                else:
                    await asyncio.sleep(0.005)
                    writer.write(len(frame).to_bytes(4, "big") + frame)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()


@pytest.fixture
def server() -> Server:
    return Server()


async def test_it_logs_in_again_between_requests(server: Server) -> None:
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    address = listening.sockets[0].getsockname()[:2]
    client = NetworkClient(SystemClock(), request_timeout_ms=10_000, random=lambda: 0.5, login=MINE)
    try:
        async with asyncio.timeout(20):
            while server.renewed < 2:
                sent = (client.send(address, lambda number: (number.to_bytes(4, "big"), b"asked")) for _ in range(8))
                assert [bytes(answer[4:]) for answer in await asyncio.gather(*sent)] == [b"asked"] * 8
    finally:
        client.close()
        listening.close()


async def test_a_renewal_that_fails_ends_the_connection_and_another_one_begins(server: Server) -> None:
    server.takes_renewals = False
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    address = listening.sockets[0].getsockname()[:2]
    client = NetworkClient(SystemClock(), request_timeout_ms=10_000, random=lambda: 0.5, login=MINE)
    ended = 0
    try:
        async with asyncio.timeout(20):
            while not ended:
                try:
                    await client.send(address, lambda number: (number.to_bytes(4, "big"), b"asked"))
                except Disconnected:
                    ended += 1
            answer = await client.send(address, lambda number: (number.to_bytes(4, "big"), b"asked"))
        assert bytes(answer[4:]) == b"asked"
    finally:
        client.close()
        listening.close()
