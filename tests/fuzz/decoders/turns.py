"""Requests at a broker's real request handler: no exception inside it, and no turn of its loop above 50 ms.

An input is several requests of one connection: a byte for the API, one for the version, the body. In `broker-repeated`, the arrays of
each request get up to some thousand elements, which shows work that is quadratic or not done in slices. A broker serves some hundred
inputs, and keeps what they made.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import logging
import shutil
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast

from broker.network.request_channel import Request
from broker.request_handler import RequestHandler
from broker.settings.config import BrokerConfig
from protocol.kafka import messages
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.kafka.framing import MalformedRequest, is_flexible, parse_request_header, request_header
from protocol.kafka.record_batch import build_batch
from protocol.topic_ids import topic_id_text
from protocol.types import Assignment, TopicPartition
from protocol.zk.znodes import TopicZNode
from tests.fuzz.decoder import Decoder
from tests.fuzz.sealing import packed, parts_of
from tests.support.api_world import FakeConnection, level_of
from tests.support.every_api import context_of
from tests.support.group_cluster import GroupCluster
from tests.support.kafka_values import bodies
from tests.support.kio_oracle import as_body
from tests.support.memory_zookeeper import MemorySession, MemoryZooKeeper

TURN_MS = 50.0
SLOWDOWN = 4.0 if "atheris" in sys.modules else 1.0
"""How much slower code is that counts its own coverage. `broker-repeated` is not instrumented."""
BUSY = 4.0 if "pytest" in sys.modules else 1.0
"""How much slower a processor may be on which tests run side by side. They find turns that grow too fast, `make fuzz` those above the
bound."""
TURNS_MAX = 60
INPUTS_OF_ONE_BROKER = 300
REPEATED_MAX = 2000
KEYS = tuple(SUPPORTED)
T_ID = uuid.UUID(int=1)


def decoders() -> list[Decoder]:
    return [
        Decoder(
            name,
            partial(_requests, is_repeated),
            partial(_seeds, is_repeated),
            cpu_ms=5000,
            memory=512 << 20,
            lines=20_000_000,
            bytes_max=600,
            is_instrumented=not is_repeated,
            is_slow=True,
        )
        for name, is_repeated in (("broker", False), ("broker-repeated", True))
    ]


class _Connection(FakeConnection):
    """Takes the answers of several requests."""

    def answer(self, number: int, parts: Sequence[bytes]) -> None:
        if self.is_open:
            sum(map(len, parts))

    def close(self, reason: str) -> None:
        self.is_open = False

    def hold(self, reason: int) -> None: ...

    def release(self, reason: int) -> None: ...

    def flush(self) -> None: ...

    def at_end(self, number: int, callback: Callable[[], object]) -> None: ...

    def when_answered(self, number: int, callback: Callable[[], object]) -> None: ...


class _Failures(logging.Handler):
    """What the request handler logs of an exception."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: BaseException | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and record.exc_info[1] is not None:
            self.found = record.exc_info[1]


class _Loop(asyncio.SelectorEventLoop):
    """Measures the loop's longest turn, in CPU time."""

    longest_ms = 0.0

    def _run_once(self) -> None:
        began = time.thread_time()
        super()._run_once()  # type: ignore[misc]
        self.longest_ms = max(self.longest_ms, (time.thread_time() - began) * 1000)


class _Broker:
    """One broker with topic `t` and the groups' topic, over a ZooKeeper in memory; its controller is a fake."""

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="ottla-fuzz-"))
        self.loop = _Loop()
        self.failures = _Failures()
        self.inputs = 0
        self.loop.run_until_complete(self._start())

    def _listen(self) -> None:
        """Listens to the log from now on: a handler may log that it failed."""
        self.failures.found = None
        log = logging.getLogger("broker")
        log.setLevel(logging.ERROR)
        log.propagate = False
        log.handlers = [self.failures]

    async def _start(self) -> None:
        config = BrokerConfig(broker_id=1, log_dirs=str(self.directory), auto_create_topics_enable=False)
        self.cluster = cluster = GroupCluster(self.directory)
        await cluster.start(1)
        await cluster.serve(1, 0, (1,))
        for number in range(2):
            cluster.tp = TopicPartition("t", number)
            cluster.lead(1, 0, (1,), replicas=(1,), topic_id=topic_id_text(T_ID))
        zk = MemoryZooKeeper()
        for path in ("/brokers/topics", "/admin/delete_topics", "/config/topics", "/config/brokers", "/config/changes"):
            zk.ensure(path)
        zk.ensure(
            TopicZNode.path("t"), TopicZNode.encode(topic_id_text(T_ID), {n: Assignment((1,)) for n in range(10)})
        )
        # What is measured takes real time, so a slice ends by the real clock.
        cluster.nodes[1].manager.client_budget._monotonic = time.monotonic
        self.context = context_of(cluster, MemorySession(zk), config, time.monotonic)
        await self.context.configs.start()

    def take(self, frames: Sequence[bytes]) -> float:
        """The longest turn in ms. Raises what the request handler would have logged."""
        self.inputs += 1
        self._listen()
        self.loop.longest_ms = 0.0
        self.loop.run_until_complete(self._take(frames))
        found = self.failures.found
        if found is not None:
            raise found
        return self.loop.longest_ms

    async def _take(self, frames: Sequence[bytes]) -> None:
        handler, connection = RequestHandler(self.context), _Connection()
        for number, frame in enumerate(frames):
            view = memoryview(frame)
            request = Request(
                cast(Any, connection), number, parse_request_header(view), view, self.cluster.time.monotonic()
            )
            handler.serve(level_of(request.header.api_key, request.header.api_version))
            handler.handle(request)
            for _ in range(TURNS_MAX):
                await asyncio.sleep(0)
                self.cluster.time.turn()
                if not handler._tasks:
                    break
            self.cluster.pass_time(0.5)
            if not connection.is_open:
                break
        await handler.close()

    def close(self) -> None:
        for task in asyncio.all_tasks(self.loop):
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0))
        self.cluster.close()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        shutil.rmtree(self.directory, ignore_errors=True)


_brokers: list[_Broker] = []


def _end() -> None:
    while _brokers:
        _brokers.pop().close()


def _broker() -> _Broker:
    if _brokers and _brokers[0].inputs >= INPUTS_OF_ONE_BROKER:
        _end()
    if not _brokers:
        if not gc.get_freeze_count():
            atexit.register(_end)
        _brokers.append(_Broker())
        gc.collect()
        gc.freeze()  # as the broker does with what stays
    return _brokers[0]


def _requests(is_repeated: bool, data: bytes) -> object:
    frames = [frame for part in parts_of(data)[:4] if (frame := _frame(part, is_repeated)) is not None]
    if not frames:
        return None
    try:
        longest = _broker().take(frames)
        allowed = TURN_MS * BUSY * (1.0 if is_repeated else SLOWDOWN)
        if longest > allowed:
            longest = min(longest, *(_broker().take(frames) for _ in range(2)))
        assert longest <= allowed, f"a turn of {longest:.0f} ms for {sum(map(len, frames))} bytes"
    except Exception:
        _end()
        raise
    return frames


def _frame(part: bytes, is_repeated: bool) -> bytes | None:
    """A whole request. None: its body cannot be read, so it cannot be repeated."""
    if len(part) < 2:
        return None
    key = KEYS[part[0] % len(KEYS)]
    oldest, newest = SUPPORTED[key]
    version = oldest + part[1] % (newest - oldest + 1)
    head = request_header(key, version, 1, "fuzz", flexible=is_flexible(key, version))
    body = part[2:]
    if is_repeated:
        try:
            entity = messages.decode_request(key, version, head + body, len(head))
        except MalformedRequest:
            return None
        body = messages.encode_request(key, version, 1, "fuzz", _repeated(as_body(entity)))[len(head) :]
    return head + body


def _repeated(body: dict[str, Any], most: int = REPEATED_MAX) -> dict[str, Any]:
    """Repeats the elements of each array, and of the arrays inside the first one up to a limit."""
    changes: dict[str, Any] = {}
    for name, value in body.items():
        if isinstance(value, list) and value:
            inner = [_repeated(item, 8) if isinstance(item, dict) else item for item in value]
            changes[name] = inner * max(1, most // len(inner))
    return body | changes


def _seeds(is_repeated: bool) -> Iterator[bytes]:
    random = Random(9)
    for index, key in enumerate(KEYS):
        oldest, newest = SUPPORTED[key]
        for version in {oldest, (oldest + newest) // 2, newest}:
            make = bodies((messages.request_schema(key, version),), are_small=True)
            head = request_header(key, version, 1, None, flexible=is_flexible(key, version))
            body = messages.encode_request(key, version, 1, None, make(random))[len(head) :]
            yield packed([bytes((index, version - oldest)) + body])
    produce, fetch = KEYS.index(ApiKey.PRODUCE), KEYS.index(ApiKey.FETCH)
    records = build_batch([(b"k", b"v", (), 1000)])
    body = {"transactional_id": None, "acks": 1, "timeout": 5}
    body["topic_data"] = [{"name": "t", "partition_data": [{"index": 0, "records": records}]}]
    head = request_header(ApiKey.PRODUCE, 9, 1, None, flexible=True)
    sent = bytes((produce, 6)) + messages.encode_request(ApiKey.PRODUCE, 9, 1, None, body)[len(head) :]
    asked = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1000, "isolation_level": 0, "session_id": 0}
    asked |= {"session_epoch": 0, "forgotten_topics_data": [], "rack_id": ""}
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1000, "log_start_offset": -1}
    partition |= {"current_leader_epoch": -1, "last_fetched_epoch": -1}
    asked["topics"] = [{"topic": "t", "topic_id": T_ID, "partitions": [partition]}]
    head = request_header(ApiKey.FETCH, 12, 1, None, flexible=True)
    wanted = bytes((fetch, 8)) + messages.encode_request(ApiKey.FETCH, 12, 1, None, asked)[len(head) :]
    yield packed([wanted] if is_repeated else [sent, wanted])
