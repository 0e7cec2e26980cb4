"""Rules about the requests of real connections, without sockets."""

from __future__ import annotations

import asyncio
import json
import struct
from typing import Any

import pytest

from broker.fault_injection import injected_faults
from broker.fault_injection.injected_faults import InjectedFaults
from broker.network.connection_under_faults import ConnectionUnderFaults
from broker.network.request_channel import Request
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import response_header
from tests.unit.broker.network.test_processor import Transport, World, receive
from tools.faults.request_words import parse_request_fault


class ToClose(Transport):
    """`has_left`: its client has closed it."""

    has_left = False


class Faulty(World):
    """`events` has what was written to the event log; `passed` the requests that the rules let through."""

    def __init__(self, *lines: str) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []
        self.monotonic = lambda: self.clock.now
        self.faults = InjectedFaults(
            lambda: self.monotonic(),
            lambda event, **fields: self.events.append(fields),
            lambda topic_id: None,
            lambda: self.clients,
            lambda is_on: None,
        )
        self.made = [parse_request_fault(line).rule for line in lines]
        self.told(add=[rule.to_json() for rule in self.made])
        self.passed: list[Request] = []
        self.clients: list[ConnectionUnderFaults] = []

    def told(self, **line: Any) -> Any:
        return self.faults.answer(json.dumps(line).encode())

    def client(self) -> tuple[ConnectionUnderFaults, ToClose]:
        connection, transport = ConnectionUnderFaults(self.processor, "PLAINTEXT"), ToClose()
        connection.connection_made(transport)  # type: ignore[arg-type]
        self.clients.append(connection)
        return connection, transport

    def turn(self) -> None:
        """As `RequestHandler.handle` of each request that has come."""
        self.turns.run()
        handled, self.handled[:] = list(self.handled), []
        self.passed += [request for request in handled if not self.faults.takes(request)]


def list_groups(number: int) -> bytes:
    sent = messages.encode_request(ApiKey.LIST_GROUPS, 3, number, "c", {})
    return struct.pack(">i", len(sent)) + sent


def answer(request: Request) -> None:
    request.respond_small(messages.encode_response(16, 3, {"throttle_time": 0, "error_code": 0, "groups": []}))


async def test_nothing_comes_behind_half_of_an_answer() -> None:
    """Neither answers that were ready earlier, nor those of the same turn: they would look like the other half."""
    faulty = Faulty("cut the connection in the middle of the answer to list-groups the 2nd")
    connection, transport = faulty.client()
    receive(connection, transport, b"".join(map(list_groups, range(4))))
    faulty.turn()
    first, halved, *later = faulty.passed
    answer(later[0])
    answer(halved)
    answer(first)
    answer(later[1])
    faulty.turns.run()
    await asyncio.sleep(0)
    size = (
        4
        + len(response_header(16, 3, 0))
        + len(messages.encode_response(16, 3, {"throttle_time": 0, "error_code": 0, "groups": []}))
    )
    assert (len(transport.written), transport.is_closed) == (size + size // 2, True)


async def test_a_rule_may_end_while_it_hits() -> None:
    """The next look at the clock is after its end."""
    faulty = Faulty("drop list-groups and cut for 1s")
    connection, transport = faulty.client()
    receive(connection, transport, list_groups(1))
    ticks = iter([faulty.clock.now + 0.5])
    faulty.monotonic = lambda: next(ticks, faulty.clock.now + 2)
    faulty.turn()
    assert [event["hits"] for event in faulty.events] == [1]
    assert transport.is_closed


async def test_a_bug_in_a_fault_ends_only_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """The channel must go on: `takes` never raises."""
    faulty = Faulty("drop list-groups")
    connection, transport = faulty.client()
    receive(connection, transport, list_groups(1))
    monkeypatch.setattr(faulty.faults.book, "hit", lambda asked: 1 / 0)
    faulty.turn()
    assert (faulty.passed, transport.is_closed) == ([], True)


async def test_a_request_that_comes_again_counts_once() -> None:
    """As a fetch that waited for another one."""
    faulty = Faulty("lose the answer to list-groups every 2nd")
    connection, transport = faulty.client()
    receive(connection, transport, list_groups(1) + list_groups(2))
    faulty.turn()
    assert not any(map(faulty.faults.takes, faulty.passed))
    assert len(faulty.events) == 1


async def test_silent_connections_end_with_their_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read from them, so the loop does not tell."""
    monkeypatch.setattr(injected_faults, "LOOK_S", 0.001)
    faulty = Faulty("drop list-groups")
    connection, transport = faulty.client()
    gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(transport, "abort", lambda: (connection.connection_lost(None), gone.set_result(None)))
    monkeypatch.setattr(ConnectionUnderFaults, "has_left", lambda connection: transport.has_left)
    receive(connection, transport, list_groups(1))
    faulty.turn()
    receive(connection, transport, list_groups(2) + list_groups(3))
    faulty.turn()
    assert (faulty.passed, transport.is_reading, connection.is_open) == ([], False, True)
    transport.has_left = True
    await asyncio.wait_for(gone, 5)
    assert faulty.passed == []


@pytest.mark.parametrize(
    "line", [b"{", b"[]", b"[" * 100_000, b'{"add": [{"id": "a", "effect": "delay", "seconds": 1%s}]}' % (b"0" * 400)]
)
async def test_a_line_that_is_no_rule_is_refused(line: bytes) -> None:
    faulty = Faulty()
    assert "error" in faulty.faults.answer(line)


async def test_a_connection_is_not_idle_while_its_client_sends_or_waits() -> None:
    faulty = Faulty()
    (idle, idle_transport), (sends, sends_transport), (waits, waits_transport) = (faulty.client() for _ in range(3))
    receive(idle, idle_transport, list_groups(1))
    receive(sends, sends_transport, list_groups(1)[:9])
    receive(waits, waits_transport, list_groups(1))
    faulty.turn()
    answer(faulty.passed[0])
    faulty.turns.run()
    faulty.told(add=[parse_request_fault("close idle connections now").rule.to_json()])
    closed = [transport.is_closed for transport in (idle_transport, sends_transport, waits_transport)]
    assert closed == [True, False, False]
