"""What clever clients do to a cluster, each attack by itself (BAD-1..35). `ATTACKS` has them by name.

Attacks that need an assertion of their own are beside this file, in tests.

An attack gets a `Target` and returns when it is over; what it leaves open, it closes. It may return a complaint: what went
wrong beside waiting, memory and dead processes, which the caller watches.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import struct
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import cramjam
import msgpack

from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.record_batch import HEADER_SIZE, build_batch, crc32c
from tests.support.invariants import ZooKeeperView
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
ANSWER_S = 30.0
MARKER = "planted-line"


@dataclass(frozen=True)
class LoginListener:
    """The listener of SASL_SSL: its port on each broker, and the file of the authority that has signed their certificate."""

    ports: Mapping[int, int]
    authority: Path


@dataclass
class Target:
    """The cluster under attack. `wide` is a topic of 50 partitions, `full` one of 3 with large records in it."""

    cluster: LocalCluster
    zk: ZooKeeperView
    login: LoginListener
    wide: str
    full: str
    rng: random.Random = field(default_factory=random.Random)

    def port(self) -> int:
        return self.cluster.port(self.rng.choice(self.cluster.broker_ids))

    def controller_port(self) -> int:
        return self.cluster.port(self.cluster.controller_id())

    def leader_port(self, topic: str, partition: int = 0) -> int:
        return self.cluster.port(self.zk.states(topic)[partition].leader)

    def control_address(self, broker: int) -> tuple[str, int]:
        from tools.cluster.run_directory import BrokerDirectory

        return BrokerDirectory(broker, self.cluster.broker_directory(broker)).listener_addresses()[1]


class Attack(Protocol):
    """What went wrong, or None."""

    __name__: str

    def __call__(self, target: Target, /) -> str | None: ...


ATTACKS: dict[str, Attack] = {}


def attack(play: Attack) -> Attack:
    ATTACKS[play.__name__] = play
    return play


# -- bytes ------------------------------------------------------------------------------------------------------------


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack(">h", len(data)) + data


def array(items: Sequence[bytes]) -> bytes:
    return struct.pack(">i", len(items)) + b"".join(items)


def frame(api_key: int, version: int, body: bytes, client_id: str = "hostile") -> bytes:
    """With a header v1: for versions that are not flexible."""
    payload = struct.pack(">hhi", api_key, version, 1) + text(client_id) + body
    return struct.pack(">i", len(payload)) + payload


def kio_frame(api_key: ApiKey, version: int, body: dict[str, Any]) -> bytes:
    payload = messages.encode_request(api_key, version, 1, "hostile", body)
    return struct.pack(">i", len(payload)) + payload


def fetch_body(
    topic: str, partitions: Sequence[int], *, replica_id: int = -1, offset: int = 0, epoch: int = -1, wait_ms: int = 0
) -> bytes:
    """Fetch v11. `epoch` is the session's: -1 is none, 0 asks for one."""
    rows = [struct.pack(">iiqqi", partition, -1, offset, -1, 55 << 20) for partition in partitions]
    head = struct.pack(">iiiibii", replica_id, wait_ms, 1, INT32_MAX, 0, 0, epoch)
    return head + array([text(topic) + array(rows)]) + array([]) + text("")


def produce_frame(topic: str, batches: Sequence[tuple[int, bytes]], version: int = 7) -> bytes:
    rows = [struct.pack(">ii", partition, len(batch)) + batch for partition, batch in batches]
    body = struct.pack(">hhi", -1, -1, 10000) + array([text(topic) + array(rows)])
    return frame(ApiKey.PRODUCE, version, body)


def packed_batch(payload: bytes, compression: int, records: int) -> bytes:
    """A batch whose frame is right around any payload."""
    batch = bytearray(build_batch([(None, b"", [], 0)]))[:HEADER_SIZE] + payload
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">hi", batch, 21, compression, records - 1)
    struct.pack_into(">i", batch, 57, records)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


# -- sockets ----------------------------------------------------------------------------------------------------------


def send(port: int, data: bytes, answers: int = 1, host: str = "127.0.0.1") -> list[bytes]:
    """Sends and reads that many frames; fewer when the broker closes the connection or takes too long."""
    found: list[bytes] = []
    with contextlib.suppress(OSError), Wire(port, host=host, timeout_s=ANSWER_S) as wire:
        wire.send_raw(data)
        while len(found) < answers:
            found.append(wire.receive_frame())
    return found


def ask(port: int, api_key: int, version: int, body: bytes, client_id: str = "hostile") -> None:
    """One request, and its answer if one comes."""
    send(port, frame(api_key, version, body, client_id))


@contextlib.contextmanager
def connections(port: int, count: int, source: str = "127.0.0.1") -> Iterator[list[socket.socket]]:
    """As many as the broker takes; all closed in the end."""
    opened: list[socket.socket] = []
    try:
        for _ in range(count):
            try:
                connection = socket.create_connection(("127.0.0.1", port), timeout=2, source_address=(source, 0))
            except OSError:
                break
            connection.setblocking(False)
            opened.append(connection)
        yield opened
    finally:
        for connection in opened:
            connection.close()


def push(connection: socket.socket, data: bytes) -> None:
    """As much as goes without waiting."""
    with contextlib.suppress(OSError):
        connection.send(data)


def new_topic_works(target: Target) -> str | None:
    """The control plane still does its work: a topic is made, led and deleted."""
    name = f"probe-{uuid.uuid4().hex[:8]}"
    row = {"name": name, "num_partitions": 3, "replication_factor": 3, "assignments": [], "configs": []}
    begun = time.monotonic()
    with Wire(target.controller_port()) as wire:
        body = {"topics": [row], "timeout": 10000, "validate_only": False}
        code = int(wire.call(ApiKey.CREATE_TOPICS, 5, body).topics[0].error_code)
        if code:
            return f"a new topic is refused with {code}"
        while True:
            answer = wire.call(ApiKey.METADATA, 4, {"topics": [{"name": name}], "allow_auto_topic_creation": False})
            rows = answer.topics[0].partitions
            if len(rows) == 3 and all(int(row.leader_id) >= 0 and len(row.isr_nodes) == 3 for row in rows):
                break
            if time.monotonic() - begun > 10:
                return "a new topic is not led after 10 s"
            time.sleep(0.02)
        wire.call(ApiKey.DELETE_TOPICS, 3, {"topic_names": [name], "timeout": 10000})
    return None


# -- the control plane ------------------------------------------------------------------------------------------------


def control(target: Target, broker: int, payload: bytes) -> None:
    host, port = target.control_address(broker)
    with contextlib.suppress(OSError), Wire(port, host=host, timeout_s=2) as wire:
        wire.send_raw(payload)
        wire.receive_frame()


@attack
def control_frames(target: Target) -> str | None:
    """Huge, nested, half and trickled frames at the control listener, on many connections."""
    broker = target.cluster.controller_id()
    host, port = target.control_address(broker)
    nested = b"\x91" * 100_000 + b"\xc0"
    many = msgpack.packb([1, 1, 10**6, 1, [[0] * 12] * 200_000, {}, []])
    for body in (nested, many, b"\xdd\x7f\xff\xff\xff", b"\xdf\x7f\xff\xff\xff", os.urandom(1000)):
        control(target, broker, struct.pack(">ii", len(body) + 4, 1) + body)
    with contextlib.ExitStack() as stack:
        for size in (INT32_MAX, -1, 90 << 20, 3):
            for _ in range(50):
                with contextlib.suppress(OSError):
                    connection = stack.enter_context(socket.create_connection((host, port), timeout=2))
                    connection.setblocking(False)
                    push(connection, struct.pack(">i", size) + b"\x00" * 100_000)
        time.sleep(0.5)
    return new_topic_works(target)


# -- names and descriptors --------------------------------------------------------------------------------------------


@attack
def comes_and_goes(target: Target) -> str | None:
    """Connections that come and go, some in the middle of a request."""
    port = target.port()
    good = frame(ApiKey.METADATA, 1, array([]))
    for number in range(3000):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(good[: number % len(good)] if number % 3 else b"GET / HTTP/1.1\r\n\r\n")
    return None


# -- quadratic work and amplified answers -----------------------------------------------------------------------------


@attack
def repeated_names(target: Target) -> str | None:
    """Names twenty thousand times: of a topic of fifty partitions, of groups, of configs."""
    port = target.port()
    unknown = array([text("unknown")] * 20_000) + struct.pack(">i", 1000)
    for name in (target.wide, "unknown"):
        names = array([text(name)] * 20_000)
        ask(port, ApiKey.METADATA, 1, names)
        ask(port, ApiKey.DESCRIBE_GROUPS, 0, names)
        ask(port, ApiKey.DELETE_GROUPS, 0, names)
        ask(target.controller_port(), ApiKey.DELETE_TOPICS, 1, unknown)
        rows = [struct.pack(">b", 2) + text(name) + struct.pack(">i", -1)] * 20_000
        ask(port, ApiKey.DESCRIBE_CONFIGS, 1, array(rows) + b"\x00")
        rows = [text(name) + array([struct.pack(">i", p) for p in range(50)])] * 1000
        ask(port, ApiKey.DESCRIBE_LOG_DIRS, 1, array(rows))
    for number in range(3):
        names = array([text(f"unknown-{number}-{at}") for at in range(50_000)])
        ask(port, ApiKey.METADATA, 4, names + b"\x00")
        ask(port, ApiKey.DESCRIBE_GROUPS, 0, names)
    topics = [{"name": target.wide, "partition_indexes": list(range(50)) * 20}] * 10
    with contextlib.suppress(Exception):
        send(port, kio_frame(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": topics}))
        body = {"key_type": 0, "coordinator_keys": ["g"] * 20_000}
        send(port, kio_frame(ApiKey.FIND_COORDINATOR, 4, body))
    return None


@attack
def large_creations(target: Target) -> str | None:
    """Topics of a million partitions, assignments without end, the same name again and again."""
    port = target.controller_port()
    end = struct.pack(">i", 1000) + b"\x01"  # validate only

    def topic(name: str, partitions: int, assignments: Sequence[bytes] = (), configs: Sequence[bytes] = ()) -> bytes:
        return (
            text(name) + struct.pack(">ih", partitions, -1 if assignments else 1) + array(assignments) + array(configs)
        )

    ask(port, ApiKey.CREATE_TOPICS, 2, array([topic("huge", INT32_MAX)]) + end)
    ask(port, ApiKey.CREATE_TOPICS, 2, array([topic("huge", 1_000_000)]) + struct.pack(">i", 1000) + b"\x00")
    rows = [struct.pack(">i", p) + array([struct.pack(">i", 1)]) for p in range(50_000)]
    ask(port, ApiKey.CREATE_TOPICS, 2, array([topic("many", -1, rows)]) + end)
    ask(port, ApiKey.CREATE_TOPICS, 2, array([topic("same", 1)] * 20_000) + end)
    configs = [text(f"c{at}") + text("v") for at in range(50_000)]
    ask(port, ApiKey.CREATE_TOPICS, 2, array([topic("configs", 1, (), configs)]) + end)
    rows = [text("canary") + struct.pack(">i", 1_000_000) + struct.pack(">i", -1)] * 100
    ask(port, ApiKey.CREATE_PARTITIONS, 0, array(rows) + end)
    return None


# -- produce ----------------------------------------------------------------------------------------------------------


COMPRESS = {1: cramjam.gzip.compress, 2: cramjam.snappy.compress_raw, 3: cramjam.lz4.compress, 4: cramjam.zstd.compress}


def _zeros(size: int, compression: int) -> bytes:
    """Compressed by the codec of that number."""
    return bytes(COMPRESS[compression](bytes(size)))


@attack
def bombs(target: Target) -> str | None:
    """Small batches that unpack to much, once and again for one partition; millions of records in one batch."""
    port = target.leader_port(target.full)
    for compression in (4, 1, 3, 2):
        bomb = packed_batch(_zeros(4 << 20, compression), compression, 1)
        send(port, produce_frame(target.full, [(0, bomb)] * min(400, (900_000 // len(bomb)) or 1)))
        send(port, produce_frame(target.full, [(p, bomb) for p in range(200)]))
        huge = packed_batch(_zeros(200 << 20, compression), compression, 1)
        if len(huge) < 90 << 20:
            send(port, produce_frame(target.full, [(0, huge)]))
    records = b"".join(b"\x0c\x00\x00" + _varint(delta) + b"\x01\x01\x00" for delta in range(64))
    many = 3_000_000
    with contextlib.suppress(ValueError):
        packed = bytes(cramjam.zstd.compress(records * (many // 64)))
        send(port, produce_frame(target.full, [(0, packed_batch(packed, 4, many))]))
        send(port, produce_frame(target.full, [(0, packed_batch(records * 2000, 0, 128_000))] * 5))
    return None


def _varint(number: int) -> bytes:
    return bytes([number * 2])


@attack
def invented_producers(target: Target) -> str | None:
    """A new producer id with each batch, and many asked for."""
    port = target.leader_port(target.full)
    for start in range(0, 10_000, 500):
        data = b"".join(
            produce_frame(
                target.full,
                [(0, build_batch([(None, b"x", [], 0)], producer_id=10**6 + at, producer_epoch=0, base_sequence=0))],
            )
            for at in range(start, start + 500)
        )
        send(port, data, 500)
    with contextlib.suppress(Exception):
        one = kio_frame(ApiKey.INIT_PRODUCER_ID, 0, {"transactional_id": None, "transaction_timeout": 60000})
        send(port, one * 2000, 2000)
    return None


# -- answers, sessions, groups ----------------------------------------------------------------------------------------


@attack
def unread_answers(target: Target) -> str | None:
    """Pipelined fetches of all there is, on connections that do not read."""
    one = frame(ApiKey.FETCH, 11, fetch_body(target.full, range(3)))
    with contextlib.ExitStack() as stack:
        for broker in target.cluster.broker_ids:
            for connection in stack.enter_context(connections(target.cluster.port(broker), 50)):
                push(connection, one * 64)
        time.sleep(4)
    return None


@attack
def slow_senders(target: Target) -> str | None:
    """Announced frames of 100 MB of which a part comes, byte by byte."""
    with connections(target.port(), 500) as opened:
        for connection in opened:
            push(connection, struct.pack(">i", 99 << 20) + b"\x00" * 200_000)
        for _ in range(20):
            for connection in opened:
                push(connection, b"\x00")
            time.sleep(0.1)
    return None


@attack
def fetch_sessions(target: Target) -> str | None:
    """Sessions of very many partitions that nobody has, and very many sessions."""
    port = target.port()
    ask(port, ApiKey.FETCH, 11, fetch_body("nobody", range(100_000), epoch=0))
    one = frame(ApiKey.FETCH, 11, fetch_body("nobody", range(200), epoch=0))
    for _ in range(10):
        send(port, one * 120, 120)
    return None


@attack
def parked_fetches(target: Target) -> str | None:
    """Fetches that would wait for weeks, pipelined on many connections."""
    body = fetch_body(target.wide, range(50), offset=0, wait_ms=INT32_MAX)
    body = body[:8] + struct.pack(">i", INT32_MAX) + body[12:]
    with connections(target.leader_port(target.wide), 500) as opened:
        for connection in opened:
            push(connection, frame(ApiKey.FETCH, 11, body) * 20)
        time.sleep(1)
    return None


@attack
def pending_members(target: Target) -> str | None:
    """Members that never come back, with long names, in one group and in many."""
    port = _coordinator_port(target, "crowd")

    def join(group: str, client_id: str, version: int = 4) -> bytes:
        protocols = array([text("range") + struct.pack(">i", 1000) + b"\x00" * 1000])
        body = text(group) + struct.pack(">ii", 1_800_000, 1_800_000) + text("") + text("consumer") + protocols
        return frame(ApiKey.JOIN_GROUP, version, body, client_id=client_id)

    for _ in range(150):
        send(port, join("crowd", "c" * 30_000) * 20, 20)
    for broker in target.cluster.broker_ids:
        for start in range(0, 2000, 100):
            send(
                target.cluster.port(broker), b"".join(join(f"crowd-{start + at}", "c" * 1000) for at in range(100)), 100
            )
    with connections(port, 300) as opened:
        for connection in opened:
            push(connection, join("crowd-old", "c" * 1000, version=2))
        time.sleep(1)
    return None


def _coordinator_port(target: Target, group: str) -> int:
    with Wire(target.port()) as wire:
        deadline = time.monotonic() + 20
        while True:
            answer = wire.call(ApiKey.FIND_COORDINATOR, 0, {"key": group})
            if not int(answer.error_code) or time.monotonic() > deadline:
                return int(answer.port)
            time.sleep(0.1)


@attack
def large_members(target: Target) -> str | None:
    """A group whose members say very much of themselves, whose leader hands out even more, and who describe it all."""
    port = _coordinator_port(target, "large")

    def join(member: str) -> bytes:
        protocols = array([text("range") + struct.pack(">i", 900_000) + b"\x00" * 900_000])
        body = text("large") + struct.pack(">ii", 10_000, 3000) + text(member) + text("consumer") + protocols
        return frame(ApiKey.JOIN_GROUP, 2, body)

    with connections(port, 100) as opened:
        for connection in opened:
            connection.setblocking(True)
            connection.settimeout(2)
            with contextlib.suppress(OSError):
                connection.sendall(join(""))
        time.sleep(3.5)
        send(port, frame(ApiKey.DESCRIBE_GROUPS, 0, array([text("large")])) * 5, 5)
        assignment = array([text("nobody") + struct.pack(">i", 90 << 20) + b"\x00" * (90 << 20)])
        ask(port, ApiKey.SYNC_GROUP, 2, text("large") + struct.pack(">i", 1) + text("nobody") + assignment)
    return None


@attack
def committed_offsets(target: Target) -> str | None:
    """Very many offsets with long notes, for many groups."""
    note = "m" * 4000
    rows = [struct.pack(">iq", partition, 1) + text(note) for partition in range(50)]
    for broker in target.cluster.broker_ids:
        port = target.cluster.port(broker)
        commits = []
        for at in range(150):
            body = text(f"noted-{at}") + struct.pack(">i", -1) + text("") + struct.pack(">q", -1)
            commits.append(frame(ApiKey.OFFSET_COMMIT, 2, body + array([text(target.wide) + array(rows)])))
        for start in range(0, len(commits), 10):
            send(port, b"".join(commits[start : start + 10]), 10)
    return None


@attack
def broken_off(target: Target) -> str | None:
    """Connections that are reset while their answers come, closed for writing, or send a byte at a time."""
    port = target.leader_port(target.full)
    one = frame(ApiKey.FETCH, 11, fetch_body(target.full, range(3)))
    for number in range(300):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(one * 5)
            if number % 3 == 0:
                connection.shutdown(socket.SHUT_WR)
                connection.recv(1000)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with connections(port, 500) as opened:
        for at in range(40):
            for connection in opened:
                push(connection, one[at : at + 1])
    return None


# -- logs, and anything at all ----------------------------------------------------------------------------------------


@attack
def lines_in_logs(target: Target) -> str | None:
    """Escapes and newlines wherever a client's text may end up in a log."""
    evil = f"\x1b[31mred\r\n2030-01-01 ERROR {MARKER}\n\u2028\x9b0m"
    port = target.port()
    for name in (evil, evil * 50):
        ask(port, ApiKey.METADATA, 4, array([text(name)]) + b"\x01", client_id=name)
        row = text(name) + struct.pack(">ih", 1, 1) + array([]) + array([text(name) + text(name)])
        ask(port, ApiKey.CREATE_TOPICS, 2, array([row]) + struct.pack(">i", 1000) + b"\x00", client_id=name)
        rows = [text(name) + array([text(name) + array([struct.pack(">i", 0)])])]
        ask(port, ApiKey.ALTER_REPLICA_LOG_DIRS, 1, array(rows), client_id=name)
        rows = [text(f"/{name}") + array([text(target.full) + array([struct.pack(">i", 0)])])]
        ask(port, ApiKey.ALTER_REPLICA_LOG_DIRS, 1, array(rows), client_id=name)
        protocols = array([text(name) + struct.pack(">i", 0)])
        body = text(name) + struct.pack(">ii", 10_000, 10_000) + text("") + text(name) + protocols
        ask(_coordinator_port(target, "g"), ApiKey.JOIN_GROUP, 3, body, client_id=name)
        ask(port, 999, 0, name.encode(), client_id=name)
    time.sleep(0.3)
    for broker in target.cluster.broker_ids:
        for path in target.cluster.broker_directory(broker).glob("*.log"):
            data = path.read_bytes()
            if b"\x1b" in data or b"\x9b" in data.replace(b"\xc2\x9b", b"\x9b"):
                return f"an escape character is in {path.name} of broker {broker}"
            if any(line.startswith(b"2030-01-01") for line in data.splitlines()):
                return f"a client wrote a line of its own into {path.name} of broker {broker}"
    return None
