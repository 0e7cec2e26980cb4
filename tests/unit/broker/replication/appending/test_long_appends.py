"""Batches that would hold the loop for too long: what may happen during their check, and their order (REP-4, INV-20)."""

from __future__ import annotations

import asyncio
import io
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from broker.network.connection import ClientConnection, Limits
from broker.network.processor import Processor
from broker.network.request_channel import RequestChannel
from broker.network.request_metrics import RequestMetrics
from broker.recording.recording import Recording
from broker.replication.appending import appends
from broker.request_handler import RequestHandler
from broker.storage.producers.produced_batches import UNPACKED_AT_ONCE
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.produce_codec import ProducePartitionResult
from protocol.kafka.record_batch import build_batch
from protocol.recording import Header, RecordingReader, header_frame
from tests.support.api_world import quotas
from tests.support.replica_cluster import TP, Cluster
from tests.unit.broker.network.test_processor import Clock, Transport, receive

LARGE = b"l" * (UNPACKED_AT_ONCE + 1)


class Gate:
    """Unpacking waits in its thread until the gate is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._opened = threading.Event()
        self.threads = ThreadPoolExecutor(1)

    def submit(self, work: Any, *arguments: Any) -> Any:
        def wait_and_work() -> Any:
            self.reached.set()
            assert self._opened.wait(20)
            return work(*arguments)

        return self.threads.submit(wait_and_work)

    def open(self) -> None:
        self._opened.set()

    async def until_reached(self, cluster: Cluster) -> None:
        while not self.reached.is_set():
            cluster.time.turn()
            await asyncio.sleep(0.001)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    gate = Gate()
    monkeypatch.setattr(appends, "UNPACKING", gate)
    yield gate
    gate.open()
    gate.threads.shutdown()


def large(value: bytes = LARGE, key: bytes | None = None, **producer: int) -> memoryview:
    return memoryview(build_batch([(key, value, (), 1000)], compression=4, **producer))


def appending(
    cluster: Cluster, records: Sequence[memoryview], acks: int = 1
) -> tuple[asyncio.Task[None], list[ProducePartitionResult]]:
    answer: list[ProducePartitionResult] = []
    manager = cluster.nodes[1].manager
    going_on = manager.appends.append_in_slices(acks, 5000, [(TP, batch) for batch in records], answer.extend)
    assert going_on is not None
    assert answer == []

    async def run(work: Coroutine[Any, Any, None]) -> None:
        await work

    return asyncio.get_running_loop().create_task(run(going_on)), answer


async def done(cluster: Cluster, task: asyncio.Task[None]) -> None:
    while not task.done():
        cluster.time.turn()
        await asyncio.sleep(0.001)
    await task


async def test_a_large_batch_does_not_hold_the_loop(cluster: Cluster, gate: Gate) -> None:
    await cluster.start_led(1)
    task, answer = appending(cluster, [large()])
    await gate.until_reached(cluster)
    assert [r.base_offset for r in cluster.produce(1, "small", acks=1)] == [0]
    gate.open()
    await done(cluster, task)
    assert [(r.error, r.base_offset) for r in answer] == [(ErrorCode.NONE, 1)]
    assert cluster.nodes[1].records() == ["small", LARGE.decode()]


def follow(cluster: Cluster) -> None:
    cluster.lead(2, 1, (1, 2))


def lead_again(cluster: Cluster) -> None:
    cluster.lead(2, 1, (1, 2))
    cluster.lead(1, 2, (1,))


def compact(cluster: Cluster) -> None:
    """A compacted topic accepts no record without a key."""
    log = cluster.nodes[1].log()
    log.config = log.config.with_overrides({"cleanup.policy": "compact"})


@pytest.mark.parametrize(
    ("meanwhile", "error", "epoch"),
    [
        (follow, ErrorCode.NOT_LEADER_OR_FOLLOWER, None),
        (lead_again, ErrorCode.NONE, 2),
        (compact, ErrorCode.INVALID_RECORD, None),
    ],
)
async def test_changes_while_the_batch_is_unpacked_count(
    cluster: Cluster, gate: Gate, meanwhile: Callable[[Cluster], None], error: ErrorCode, epoch: int | None
) -> None:
    """BUG-12. `epoch` is the leader epoch of the record; None: nothing is appended."""
    leader = await cluster.start_led(1, 2, isr=(1,))
    task, answer = appending(cluster, [large()])
    await gate.until_reached(cluster)
    meanwhile(cluster)
    gate.open()
    await done(cluster, task)
    assert [r.error for r in answer] == [error]
    assert len(leader.records()) == (epoch is not None)
    assert leader.log().leader_epochs.epoch_for_offset(0) == epoch or epoch is None


async def test_a_broken_large_batch_is_refused_and_the_next_batch_of_the_request_is_appended(cluster: Cluster) -> None:
    await cluster.start_led(1)
    broken = bytearray(large())
    broken[-1] ^= 1
    answer: list[ProducePartitionResult] = []
    small = memoryview(build_batch([(None, b"small", (), 1000)]))
    going_on = cluster.nodes[1].manager.appends.append_in_slices(
        1, 5000, [(TP, large()), (TP, memoryview(broken)), (TP, small)], answer.extend
    )
    assert going_on is not None
    await done(cluster, asyncio.ensure_future(going_on))
    assert [r.error for r in answer] == [ErrorCode.NONE, ErrorCode.CORRUPT_MESSAGE, ErrorCode.NONE]


@pytest.mark.parametrize("is_recorded", [False, True])
async def test_later_requests_of_the_connection_wait_for_a_batch_in_the_thread(
    cluster: Cluster, gate: Gate, is_recorded: bool
) -> None:
    """INV-20: an idempotent producer with two requests in flight; the second is small. If the load is recorded, a thread reads the keys for
    the compacted topic before."""
    await cluster.start_led(1)
    compact(cluster)
    blocks: list[bytes] = []
    recording = Recording(lambda block, *_: blocks.append(block)) if is_recorded else None
    context: Any = SimpleNamespace(
        replica_manager=cluster.nodes[1].manager,
        node_endpoints=lambda *_: (),
        recorder=SimpleNamespace(recording=recording),
        authorizer=None,
        quotas=quotas(),
        request_metrics=RequestMetrics(),
    )
    handler = RequestHandler(context)
    channel = RequestChannel(
        asyncio.get_running_loop(),
        handler.handle,
        max_requests=500,
        max_large_bytes=1 << 30,
        end_turn=handler.end_turn,
    )
    processor = Processor(channel, Limits(1 << 24, 10, 5.0, None), Clock(), lambda _: True, lambda _: None)
    connection, transport = ClientConnection(processor, "PLAINTEXT"), Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    second = build_batch([(b"key", b"2", (), 1000)], producer_id=7, producer_epoch=0, base_sequence=1)
    batches = [bytes(large(key=b"k", producer_id=7, producer_epoch=0, base_sequence=0)), second]
    receive(connection, transport, b"".join(map(request, range(2), batches)))
    await gate.until_reached(cluster)
    for _ in range(5):
        await asyncio.sleep(0)
    assert transport.written == b""
    gate.open()
    while len(transport.written) < 100:
        cluster.time.turn()
        await asyncio.sleep(0.001)
    assert cluster.nodes[1].records() == [LARGE.decode(), "2"]
    assert channel.large.bytes == 0
    if recording is not None:
        recording.flush()
        file = io.BytesIO(header_frame(Header("r", 1, 0, 0.0)) + b"".join(blocks))
        entries = [entry for block in RecordingReader(file).blocks() for entry in block]
        assert [(attributes, size) for *_, (attributes, size, _) in entries] == [(4, 1), (0, 3)]


def request(number: int, batch: bytes) -> bytes:
    partition = {"index": TP.partition, "records": batch}
    body = {
        "transactional_id": None,
        "acks": 1,
        "timeout": 5000,
        "topic_data": [{"name": TP.topic, "partition_data": [partition]}],
    }
    frame = messages.encode_request(ApiKey.PRODUCE, 9, number, "p", body)
    return len(frame).to_bytes(4, "big") + frame
