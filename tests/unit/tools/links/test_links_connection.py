"""What the links do to requests and answers of one connection, with a broker that answers what a test says."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import parse_request_header, response_header
from tools.cluster.ports import LOCAL_HOST
from tools.cluster.processes import ClusterError
from tools.faults.request_words import parse_request_fault
from tools.links import advertised
from tools.links.connection import HELD_BYTES_MAX
from tools.links.frames import framed
from tools.links.links_directory import LinksDirectory
from tools.links.proxy import Proxy

WAIT_S = 10.0
BROKER = 1
UNKNOWN_API = 999


class FakeBroker:
    """Answers each request in order: Metadata names `port` and the brokers of `others`, anything else is echoed by its correlation id."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, int]] = []
        """(API, correlation id) of clients' requests."""
        self.others: dict[int, int] = {}
        self.topics: list[dict[str, Any]] = []
        """In its answers to Metadata."""
        self.says_nothing = False
        self.echo = b"done"
        self.connections = 0
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> None:
        self.server = await asyncio.start_server(self._serve, LOCAL_HOST, 0)
        self.port = self.server.sockets[0].getsockname()[1]

    def stop(self) -> None:
        self.server.close()
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                frame = await reader.readexactly(size)
                header = parse_request_header(frame)
                if header.client_id != "ottla-links":
                    self.heard.append((header.api_key, header.correlation_id))
                if self.says_nothing:
                    break
                body = self._body(header.api_key, header.api_version)
                if body is not None:
                    writer.write(
                        framed(response_header(header.api_key, header.api_version, header.correlation_id), body)
                    )
        writer.close()

    def _body(self, key: int, version: int) -> bytes | None:
        if key == ApiKey.API_VERSIONS:
            rows = [{"api_key": ApiKey.METADATA, "min_version": 0, "max_version": 12}]
            return messages.encode_response(key, version, {"error_code": 0, "api_keys": rows, "throttle_time": 0})
        if key == ApiKey.METADATA:
            brokers = {BROKER: self.port, **self.others}
            rows = [{"node_id": node, "host": LOCAL_HOST, "port": port, "rack": None} for node, port in brokers.items()]
            body: dict[str, Any] = {
                "throttle_time": 0,
                "brokers": rows,
                "cluster_id": None,
                "controller_id": 1,
                "topics": self.topics,
            }
            return messages.encode_response(key, version, body)
        return None if key == ApiKey.PRODUCE else self.echo


class World:
    def __init__(self, broker: FakeBroker, proxy: Proxy, told: list[dict[str, Any]]) -> None:
        self.broker, self.proxy, self.told = broker, proxy, told

    def rule(self, line: str, broker: int = BROKER) -> None:
        answered = self.proxy.brokers[broker].lines.answer(_line({"add": [parse_request_fault(line).rule.to_json()]}))
        assert "error" not in answered

    def heal(self) -> None:
        self.proxy.brokers[BROKER].lines.answer(_line({"remove": None}))

    async def connect(self, broker: int = BROKER) -> Client:
        return Client(*await asyncio.open_connection(LOCAL_HOST, self.proxy.brokers[broker].port))


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def heartbeat(self, number: int) -> None:
        body = {"group_id": "g", "generation_id": 1, "member_id": "m"}
        self.writer.write(framed(messages.encode_request(ApiKey.HEARTBEAT, 3, number, "c", body)))

    def send(self, key: int, version: int, number: int, body: bytes = b"") -> None:
        self.writer.write(
            framed(key.to_bytes(2, "big") + version.to_bytes(2, "big") + number.to_bytes(4, "big") + b"\xff\xff" + body)
        )

    async def answers(self, count: int) -> list[int]:
        """The correlation ids of the next answers."""
        found = []
        async with asyncio.timeout(WAIT_S):
            for _ in range(count):
                size = int.from_bytes(await self.reader.readexactly(4), "big")
                found.append(int.from_bytes((await self.reader.readexactly(size))[:4], "big"))
        return found

    async def rest(self) -> bytes:
        """What comes until the end of the connection."""
        async with asyncio.timeout(WAIT_S):
            try:
                return await self.reader.read(-1)
            except ConnectionResetError:
                return b""


def _line(row: Any) -> bytes:
    import json

    return json.dumps(row).encode()


@pytest.fixture
@contextlib.asynccontextmanager
async def world(tmp_path: Path) -> AsyncIterator[World]:
    broker = FakeBroker()
    await broker.start()
    told: list[dict[str, Any]] = []
    proxy = Proxy(LinksDirectory(tmp_path), LOCAL_HOST, 0, LOCAL_HOST, lambda kind, **fields: told.append(fields))
    await proxy.start([(LOCAL_HOST, broker.port)])
    running = asyncio.create_task(proxy.run())
    try:
        yield World(broker, proxy, told)
    finally:
        running.cancel()
        await asyncio.wait([running])
        broker.stop()


async def test_pipelined_answers_keep_their_order(world: World) -> None:
    world.rule("answer heartbeat with UNKNOWN_MEMBER_ID the 2nd")
    world.rule("delay heartbeat by 200ms once")
    client = await world.connect()
    for number in range(1, 5):
        client.heartbeat(number)
    assert await client.answers(4) == [1, 2, 3, 4]
    assert [number for _, number in world.broker.heard] == [1, 3, 4]
    assert {row["rule"] for row in world.told} == {
        "answer heartbeat with UNKNOWN_MEMBER_ID the 2nd",
        "delay heartbeat by 200ms once",
    }


async def test_delays_of_pipelined_answers_pass_at_the_same_time(world: World) -> None:
    world.rule("delay heartbeat by 300ms")
    client = await world.connect()
    began = time.monotonic()
    for number in range(10):
        client.heartbeat(number)
    assert await client.answers(10) == list(range(10))
    assert 0.25 < time.monotonic() - began < 2


async def test_of_late_answers_only_some_are_held(world: World) -> None:
    """The others stay at the broker: a delay must not take the memory of a whole log."""
    size, count = 1024 * 1024, 60
    world.broker.echo = bytes(size)
    world.rule("delay heartbeat by 1s")
    client = await world.connect()
    for number in range(count):
        client.heartbeat(number)
    await _until(lambda: len(world.broker.heard) == count)
    (connection,) = world.proxy.connections
    await asyncio.sleep(0.3)  # what would come has come
    assert HELD_BYTES_MAX < connection.held_bytes < HELD_BYTES_MAX + 4 * size
    assert await client.answers(count) == list(range(count))
    assert not connection.held_bytes


async def test_the_end_of_one_mute_does_not_end_a_later_one(world: World) -> None:
    """KIP-219: the second answer mutes the connection for its whole time."""
    world.rule("throttle heartbeat by 300ms once")
    world.rule("throttle leave-group by 700ms once")
    client = await world.connect()
    client.heartbeat(1)
    client.send(ApiKey.LEAVE_GROUP, 1, 2, b"\x00\x01g\x00\x01m")  # before the connection is muted
    assert await client.answers(1) == [1]
    began = time.monotonic()
    assert await client.answers(1) == [2]
    client.heartbeat(3)
    assert await client.answers(1) == [3]
    assert time.monotonic() - began > 0.6


async def test_apis_and_versions_that_nobody_knows_pass(world: World) -> None:
    world.rule("throttle everything by 10ms")
    world.rule("delay everything of topic orders by 10ms")
    client = await world.connect()
    client.send(UNKNOWN_API, 7, 1, b"anything")
    client.send(ApiKey.HEARTBEAT, 60, 2, b"\x00")
    client.heartbeat(3)
    assert (await client.answers(3))[0] == 1
    assert [key for key, _ in world.broker.heard] == [UNKNOWN_API, ApiKey.HEARTBEAT, ApiKey.HEARTBEAT]


async def test_a_produce_with_acks_0_has_no_answer(world: World) -> None:
    client = await world.connect()
    body: dict[str, Any] = {"transactional_id": None, "acks": 0, "timeout": 1, "topic_data": []}
    client.writer.write(framed(messages.encode_request(ApiKey.PRODUCE, 9, 1, "c", body)))
    client.heartbeat(2)
    assert await client.answers(1) == [2]
    world.rule("answer produce with NOT_LEADER_OR_FOLLOWER")
    client.writer.write(framed(messages.encode_request(ApiKey.PRODUCE, 9, 3, "c", body)))
    assert await client.rest() == b""


async def test_what_a_client_sends_before_it_ends_arrives(world: World) -> None:
    body: dict[str, Any] = {"transactional_id": None, "acks": 0, "timeout": 1, "topic_data": []}
    client = await world.connect()
    client.writer.write(framed(messages.encode_request(ApiKey.PRODUCE, 9, 1, "c", body)))
    client.writer.close()
    await _until(lambda: world.broker.heard == [(ApiKey.PRODUCE, 1)])


@pytest.mark.parametrize("line", ["drop heartbeat once", "lose the answer to heartbeat once"])
async def test_a_lost_request_makes_the_connection_silent_until_the_heal(world: World, line: str) -> None:
    client = await world.connect()
    client.heartbeat(1)
    assert await client.answers(1) == [1]
    world.rule(line)
    client.heartbeat(2)
    client.heartbeat(3)
    await _until(lambda: bool(world.proxy.brokers[BROKER].silent))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await client.reader.read(1)
    assert ((ApiKey.HEARTBEAT, 2) in world.broker.heard) == line.startswith("lose")
    world.heal()
    assert await client.rest() == b""


async def test_silence_ends_with_the_time_of_the_rule(world: World) -> None:
    world.rule("drop heartbeat for 200ms")
    client = await world.connect()
    client.heartbeat(1)
    assert await client.rest() == b""
    assert not world.broker.heard


@pytest.mark.parametrize(
    ("line", "rest"),
    [
        ("cut the connection in the middle of the answer to heartbeat", 6),
        ("lose the answer to heartbeat and cut", 0),
        ("drop heartbeat and cut", 0),
        ("refuse connections", 0),
    ],
)
async def test_a_connection_ends_by_a_rule(world: World, line: str, rest: int) -> None:
    world.rule(line)
    client = await world.connect()
    client.heartbeat(1)
    assert len(await client.rest()) == rest


async def test_idle_connections_are_closed_and_others_stay(world: World) -> None:
    idle, busy = await world.connect(), await world.connect()
    idle.heartbeat(1)
    assert await idle.answers(1) == [1]
    world.rule("delay heartbeat by 500ms")
    busy.heartbeat(2)
    await _until(lambda: len(world.broker.heard) == 2)
    world.rule("close idle connections now")
    assert await idle.rest() == b""
    assert await busy.answers(1) == [2]


async def test_a_client_of_a_broker_that_refuses_is_closed_too(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """The links say so once: such as when brokers advertise names that only they can resolve."""
    world.broker.stop()
    for _ in range(2):
        client = await world.connect()
        client.heartbeat(1)
        assert await client.rest() == b""
    said = [each for each in caplog.messages if "accepts no connection" in each]
    assert len(said) == 1
    assert f"broker 1 at {LOCAL_HOST}:{world.broker.port}" in said[0]


async def test_the_brokers_are_followed(world: World) -> None:
    world.broker.others = {2: 1}
    await _until(lambda: 2 in world.proxy.brokers)
    assert world.proxy.brokers[2].address == (LOCAL_HOST, 1)
    port = world.proxy.brokers[2].port
    world.broker.others = {2: 7}
    await _until(lambda: world.proxy.brokers[2].address == (LOCAL_HOST, 7))
    assert world.proxy.brokers[2].port == port


async def test_a_broker_that_joins_has_the_rules_of_all(world: World) -> None:
    """And loses them with the others, whoever removes them there knows of it or not."""
    world.rule("drop heartbeat and cut for 60s")
    world.rule("refuse connections at broker 1")
    world.broker.others = {2: world.broker.port}
    await _until(lambda: 2 in world.proxy.brokers)
    first, joined = world.proxy.brokers[BROKER].book, world.proxy.brokers[2].book
    assert [each.rule.id for each in joined.live] == ["drop heartbeat and cut for 60s"]
    assert joined.live[0].until == first.live[0].until
    client = await world.connect(2)
    client.heartbeat(1)
    assert await client.rest() == b""
    world.rule("drop fetch", broker=2)
    world.heal()
    assert [each.rule.id for each in joined.live] == ["drop fetch"]
    other = await world.connect(2)
    other.heartbeat(2)
    assert await other.answers(1) == [2]


async def test_a_rule_that_is_given_again_is_that_of_the_broker_that_has_joined(world: World) -> None:
    """Whoever gets it first: the one that was taken over has ended meanwhile."""
    world.rule("drop heartbeat for 1500ms")
    world.broker.others = {2: world.broker.port}
    await _until(lambda: 2 in world.proxy.brokers)
    joined = world.proxy.brokers[2].book
    assert len(joined.live) == 1
    await _until(lambda: not joined.live)
    world.rule("drop heartbeat for 1500ms", broker=2)
    assert len(joined.live) == 1


async def test_deleted_topics_are_forgotten(world: World) -> None:
    topic_id = uuid.UUID(int=7)
    partition = {"error_code": 0, "partition_index": 0, "leader_id": 1, "leader_epoch": 0}
    world.broker.topics = [{"error_code": 0, "name": "orders", "topic_id": topic_id, "partitions": [partition]}]
    await _until(lambda: world.proxy.topic_name(topic_id) == "orders")
    leaders = world.proxy.brokers[BROKER].book.leaders
    assert "orders" in leaders.topics
    world.broker.topics = []
    await _until(lambda: world.proxy.topic_name(topic_id) is None)
    assert not leaders.topics


async def test_brokers_that_have_all_moved_are_found_where_they_were_found_first(tmp_path: Path) -> None:
    bootstrap, before, after = FakeBroker(), FakeBroker(), FakeBroker()
    for each in (bootstrap, before, after):
        await each.start()
    listens_at, bootstrap.port = bootstrap.port, before.port
    proxy = Proxy(LinksDirectory(tmp_path), LOCAL_HOST, 0, LOCAL_HOST, lambda kind, **fields: None)
    await proxy.start([(LOCAL_HOST, listens_at)])
    running = asyncio.create_task(proxy.run())
    try:
        assert proxy.brokers[BROKER].address == (LOCAL_HOST, before.port)
        bootstrap.port = after.port
        before.stop()
        await _until(lambda: proxy.brokers[BROKER].address == (LOCAL_HOST, after.port))
    finally:
        running.cancel()
        await asyncio.wait([running])
        for each in (bootstrap, before, after):
            each.stop()


async def test_a_large_request_passes(world: World) -> None:
    client = await world.connect()
    client.send(UNKNOWN_API, 0, 1, bytes(30 * 1024 * 1024))
    client.heartbeat(2)
    assert await client.answers(2) == [1, 2]


async def test_a_client_that_does_not_read_is_not_read(world: World) -> None:
    """Otherwise what is answered here would wait in memory without a limit."""
    world.rule("answer describe-groups with NOT_COORDINATOR")
    client = await world.connect()
    await _until(lambda: bool(world.proxy.connections))
    (connection,) = world.proxy.connections
    body = {"groups": ["g" * 3000], "include_authorized_operations": False}
    request, count = messages.encode_request(ApiKey.DESCRIBE_GROUPS, 5, 1, "c", body), 5000
    sending = asyncio.create_task(_write_all(client.writer, [framed(request)] * count))
    seen, most = -1, 0
    live = world.proxy.brokers[BROKER].book.live[0]
    while seen != live.seen:  # until no more is taken
        seen = live.seen
        await asyncio.sleep(0.2)
        assert connection.client.transport is not None
        most = max(most, connection.client.transport.get_write_buffer_size())
    assert most < 1024 * 1024
    assert await client.answers(count) == [1] * count
    await sending


async def _write_all(writer: asyncio.StreamWriter, frames: list[bytes]) -> None:
    for frame in frames:
        writer.write(frame)
        await writer.drain()


async def test_an_answer_that_cannot_be_passed_on_ends_the_connection(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> bytes:
        raise RuntimeError("nobody expected this")

    monkeypatch.setattr(advertised, "rewritten", broken)
    client = await world.connect()
    client.send(ApiKey.DESCRIBE_CLUSTER, 0, 1, b"\x00\x00\x00")
    assert await client.rest() == b""


async def test_what_is_no_request_ends_its_connection_only(world: World) -> None:
    client, other = await world.connect(), await world.connect()
    client.writer.write(b"GET / HTTP/1.1\r\n\r\n")
    assert await client.rest() == b""
    other.heartbeat(1)
    assert await other.answers(1) == [1]


async def test_a_listener_that_does_not_answer_in_the_clear_is_an_error(tmp_path: Path) -> None:
    broker = FakeBroker()
    broker.says_nothing = True
    await broker.start()
    try:
        proxy = Proxy(LinksDirectory(tmp_path), LOCAL_HOST, 0, LOCAL_HOST, lambda kind, **fields: None)
        with pytest.raises(ClusterError, match="neither TLS nor SASL"):
            await proxy.start([(LOCAL_HOST, broker.port)])
    finally:
        broker.stop()


async def _until(condition: Any) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():  # noqa: ASYNC110 - the world tells nobody when it changes
            await asyncio.sleep(0.01)
