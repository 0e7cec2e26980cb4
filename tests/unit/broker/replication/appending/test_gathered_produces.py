"""Small produces that are appended together are answered, and stored, as if each had come alone."""

from __future__ import annotations

import asyncio
import tempfile
import uuid
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.apis import gathered_produces
from broker.network.connection import ClientConnection, Limits
from broker.network.processor import Processor
from broker.network.request_channel import RequestChannel
from broker.network.request_metrics import RequestMetrics
from broker.quotas.client_quotas import Quotas
from broker.replication.partition import Role
from broker.request_handler import RequestHandler
from broker.storage.log_types import AppendOrigin
from protocol.errors import ErrorCode
from protocol.kafka import messages, produce_codec
from protocol.kafka.api_keys import ApiKey, ApiLevel
from protocol.kafka.framing import HEAD_SIZE
from protocol.kafka.record_batch import build_batch
from protocol.topic_ids import topic_id_text, topic_id_uuid
from tests.support.api_world import quotas
from tests.support.held_syncs import held_syncs
from tests.support.replica_cluster import TOPIC_ID, TP, Cluster
from tests.support.turns import Turns
from tests.unit.broker.network.test_processor import Transport, receive
from tools.sim.world.disk import MemoryDisk

CONNECTIONS = 3
Step = tuple[str, Any]


class Served:
    """A leader with one follower, and clients, whose requests have each of `versions` in turn.

    `is_gathering` False: every request takes the way of those that are not gathered."""

    def __init__(self, cluster: Cluster, *, is_gathering: bool = True, versions: range = range(9, 13)) -> None:
        self.cluster = cluster
        self._versions = versions
        self._is_gathering = is_gathering
        self._epoch = 0
        self._number = 0
        context: Any = SimpleNamespace(
            replica_manager=cluster.nodes[1].manager,
            node_endpoints=lambda *_: (),
            recorder=SimpleNamespace(recording=None),
            authorizer=None,
            quotas=quotas(),
        )
        self.quotas: Quotas = context.quotas
        self.turns = Turns()
        metrics = RequestMetrics()
        metrics.by_key[ApiKey.PRODUCE].until_timed = 1_000_000  # a request that is timed is not gathered with others
        handler = RequestHandler(context, metrics, ApiLevel.KAFKA_4)
        channel = RequestChannel(
            self.turns,
            handler.handle,
            max_requests=500,
            max_large_bytes=-1,
            monotonic=cluster.time.monotonic,  # one turn takes all requests, however busy the machine is
            end_turn=handler.end_turn,
        )
        clock: Any = cluster.time
        processor = Processor(channel, Limits(1 << 20, 100, 5.0, None), clock, lambda _: True, lambda _: None)
        self.clients = [(ClientConnection(processor, "PLAINTEXT"), Transport()) for _ in range(CONNECTIONS)]
        for connection, transport in self.clients:
            connection.connection_made(transport)  # type: ignore[arg-type]

    def send(self, requests: Iterable[tuple[int, int, bytes]]) -> None:
        """(connection, acks, batch) of each: they arrive in one turn."""
        for client, acks, batch in requests:
            self._number += 1
            version = self._versions[self._number % len(self._versions)]
            receive(*self.clients[client], produce(version, self._number, acks, batch))
        with patch.object(gathered_produces, "FRAME_MAX", gathered_produces.FRAME_MAX if self._is_gathering else -1):
            self.turns.run()
        self.cluster.time.turn()

    async def take(self, step: Step) -> None:
        kind, value = step
        log = self.cluster.nodes[1].log()
        if kind == "send":
            self.send(value)
        elif kind == "replicate":
            await self.replicate()
        elif kind == "configure":
            log.config = log.config.with_overrides(value)
        elif kind == "lead":
            self._epoch += 1
            self.cluster.lead(value[0], self._epoch, value)
        else:
            self.cluster.pass_time(value)
        self.cluster.time.turn()

    async def replicate(self) -> None:
        """The follower fetches twice: the second fetch tells the leader what it has."""
        await self.cluster.replicate(2 if self.cluster.nodes[1].partition().role is Role.LEADER else 1, rounds=2)
        self.cluster.time.turn()
        self.turns.run()

    def written(self) -> list[bytes]:
        return [transport.written + b"closed" * transport.is_closed for _, transport in self.clients]

    def stored(self) -> bytes:
        log = self.cluster.nodes[1].log()
        return b"".join(map(bytes, log.read(0, 1 << 20, log.log_end_offset, True).records))


def produce(
    version: int,
    number: int,
    acks: int,
    batch: bytes,
    timeout_ms: int = 5000,
    client_id: str | None = "p",
    topic_id: str = TOPIC_ID,
) -> bytes:
    body = {
        "transactional_id": None,
        "acks": acks,
        "timeout": timeout_ms,
        "topic_data": [
            {
                "name": TP.topic,
                "topic_id": topic_id_uuid(topic_id),
                "partition_data": [{"index": TP.partition, "records": batch}],
            }
        ],
    }
    frame = messages.encode_request(ApiKey.PRODUCE, version, number, client_id, body)
    return len(frame).to_bytes(4, "big") + frame


def batch_of(producer: int, epoch: int, sequence: int, count: int, flaw: str) -> bytes:
    """Of no producer if `producer` is 0. `flaw`: what is unusual or wrong about the batch."""
    names = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence} if producer else {}
    records = [(None, b"%d" % at, (), 1000 + at) for at in range(count)]
    batch = build_batch(records, compression=1 if flaw == "gzip" else 0, **names)
    if flaw == "crc":
        batch = batch[:-1] + bytes((batch[-1] ^ 1,))
    elif flaw == "short":
        batch = batch[:-1]
    return batch


BATCHES = st.builds(
    batch_of,
    st.sampled_from((0, 0, 7, 8)),
    st.sampled_from((0, 0, 0, 1)),
    st.integers(0, 6),
    st.integers(1, 2),
    st.sampled_from(("", "", "", "", "gzip", "crc", "short")),
)
REQUESTS = st.tuples(st.integers(0, CONNECTIONS - 1), st.sampled_from((1, 1, -1, -1, 0, 2)), BATCHES)
STEPS: st.SearchStrategy[list[Step]] = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.lists(REQUESTS, min_size=1, max_size=8)),
        st.tuples(st.just("send"), st.lists(REQUESTS, min_size=1, max_size=8)),
        st.tuples(st.just("replicate"), st.none()),
        st.tuples(st.just("lead"), st.sampled_from(((1,), (1, 2), (2, 1)))),
        st.tuples(st.just("time"), st.sampled_from((0.1, 6.0))),
        st.tuples(
            st.just("configure"),
            st.sampled_from(
                (
                    {"min.insync.replicas": "2"},
                    {"message.timestamp.type": "LogAppendTime"},
                    {"compression.type": "gzip"},
                    {"max.message.bytes": "80"},
                    {"segment.bytes": "1048576"},
                )
            ),
        ),
    ),
    max_size=8,
)


async def outcome(steps: list[Step], *, is_gathering: bool) -> tuple[list[bytes], bytes]:
    """What the clients got, and what is in the log, at the end."""
    with tempfile.TemporaryDirectory() as directory:
        cluster = Cluster(Path(directory))
        await cluster.start_led(1, 2)
        served = Served(cluster, is_gathering=is_gathering, versions=range(3, 14))
        for step in steps:
            await served.take(step)
        await served.replicate()
        cluster.pass_time(10.0)
        found = served.written(), served.stored()
        cluster.close()
        return found


@pytest.mark.usefixtures("fetchers_are_driven_by_hand")
@given(STEPS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_together_is_like_one_after_the_other(steps: list[Step]) -> None:
    assert asyncio.run(outcome(steps, is_gathering=True)) == asyncio.run(outcome(steps, is_gathering=False))


@pytest.fixture
def served(pair: Cluster) -> Served:
    return Served(pair)


def plain(*numbers: int, acks: int = 1) -> list[tuple[int, int, bytes]]:
    """A batch of one record from each of these connections."""
    return [(number, acks, batch_of(0, 0, 0, 1, "")) for number in numbers]


async def test_the_batches_of_a_turn_are_one_write(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = served.cluster.nodes[1].log().files.disk
    writes: list[int] = []
    write = disk.write
    monkeypatch.setattr(disk, "write", lambda fd, parts, at: (writes.append(len(parts)), write(fd, parts, at)))
    served.send(plain(0, 1, 2, 0, 1))
    assert writes == [10]
    assert [len(data) for data in served.written()] == [2 * 52, 2 * 52, 52]


async def test_a_refused_batch_concerns_its_producer_and_partition_only(
    served: Served, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are gathered as before. A coordinator does not send its refused batches again, so they are not waited for."""
    appends, segment = cluster.nodes[1].manager.appends, cluster.nodes[1].log().segments[-1]
    batch = memoryview(batch_of(7, 0, 0, 1, ""))
    other = TP._replace(partition=1)
    appends.append(1, 5000, [(other, batch)], lambda _: None)
    with monkeypatch.context() as suspect:
        suspect.setattr(appends, "_is_suspect", lambda: True)
        appends.append(1, 5000, [(TP, batch)], lambda _: None)
        coordinators = memoryview(batch_of(8, 0, 0, 1, ""))
        appends.append(1, 5000, [(TP, coordinators)], lambda _: None, origin=AppendOrigin.COORDINATOR)
    writes: list[int] = []
    write = segment._filesystem.write
    monkeypatch.setattr(
        segment._filesystem, "write", lambda fd, parts, at: (writes.append(len(parts)), write(fd, parts, at))
    )
    behind = (2, 1, batch_of(7, 0, 1, 1, ""))
    served.send([*plain(0, 1), behind, *plain(0, 1), (1, 1, batch_of(8, 0, 1, 1, ""))])
    assert writes == [4, 6]
    served.send([*plain(0), (2, 1, bytes(batch)), behind])
    assert writes == [4, 6, 2, 2, 2]


async def test_large_batches_count_until_they_are_appended(served: Served) -> None:
    channel = served.clients[0][0]._channel
    batch = build_batch([(None, bytes(100_000), (), 1000)])
    append, at_append = gathered_produces.GatheredProduces._append, []

    def appending(gathered: Any, *arguments: Any) -> None:
        at_append.append((len(arguments[1]), channel.large.bytes > 200_000))
        append(gathered, *arguments)

    with patch.object(gathered_produces.GatheredProduces, "_append", appending):
        served.send([(0, 1, batch), (1, -1, batch)])
    assert at_append == [(2, True)]
    assert channel.large.bytes == 0
    await served.replicate()
    assert [len(written) > 0 for written in served.written()] == [True, True, False]
    assert served.stored().count(bytes(100_000)) == 2


@pytest.mark.parametrize("is_failing", [False, True])
async def test_all_are_answered_when_the_last_of_them_is_flushed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, is_failing: bool
) -> None:
    """`flush.messages`. Or they are refused when the flush has failed."""
    syncs, disk = held_syncs(monkeypatch), MemoryDisk()
    cluster.filesystem = lambda broker: disk
    await cluster.start_led(1, overrides={"flush.messages": "1"})
    served = Served(cluster)
    served.send([*plain(0, 1), *plain(2, acks=-1)])
    served.send(plain(1))
    assert served.written() == [b""] * 3
    if is_failing:
        disk.fail("sync")
    await syncs.end_all()
    cluster.time.turn()
    served.turns.run()
    assert [len(data) // 52 for data in served.written()] == [1, 2, 1]
    errors = {int.from_bytes(data[17:19], "big") for data in served.written()}
    assert errors == {ErrorCode.KAFKA_STORAGE_ERROR if is_failing else ErrorCode.NONE}


async def test_a_full_disk_refuses_each_of_them(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    log = served.cluster.nodes[1].log()
    monkeypatch.setattr(log.files.disk, "write", fail)
    served.send(plain(0, 1))
    for data in served.written()[:2]:
        assert int.from_bytes(data[17:19], "big") == ErrorCode.KAFKA_STORAGE_ERROR
    assert log.log_end_offset == 0


@pytest.mark.parametrize("version", [3, 9, 13])
@pytest.mark.parametrize("client_id", [None, "", "p", "p" * (HEAD_SIZE - 20), "p" * HEAD_SIZE, "p" * 2000])
async def test_a_batch_is_appended_alone_wherever_it_begins(
    served: Served, client_id: str | None, version: int
) -> None:
    """The second one is a duplicate, so it goes the way alone. Its answer also has the time of the batch."""
    connection, transport = served.clients[0]
    batch = batch_of(7, 0, 0, 1, "")
    for number in 0, 0:
        receive(connection, transport, produce(version, number, 1, batch, client_id=client_id))
    served.turns.run()
    half = len(transport.written) // 2
    first, second = transport.written[:half], transport.written[half:]
    assert first
    assert second == first.replace(b"\xff" * 8, (1000).to_bytes(8, "big"))
    assert served.cluster.nodes[1].log().log_end_offset == 1


async def test_an_id_is_that_of_the_log(served: Served) -> None:
    """KIP-516: also when the topic was created again, and when requests that name it came in the same turn."""
    connection, transport = served.clients[0]
    partition = served.cluster.nodes[1].partition()
    other = topic_id_text(uuid.UUID(int=78))

    def send(*requests: tuple[int, str]) -> list[int]:
        """(version, topic id) of each; their error codes."""
        for version, topic_id in requests:
            batch = batch_of(0, 0, 0, 1, "")
            receive(connection, transport, produce(version, version, 1, batch, topic_id=topic_id))
        served.turns.run()
        codes, at, data = [], 0, bytes(transport.written)
        while at < len(data):
            size = int.from_bytes(data[at : at + 4], "big")
            version = int.from_bytes(data[at + 4 : at + 8], "big")
            _, answer = messages.decode_response(ApiKey.PRODUCE, version, data[at + 4 : at + 4 + size])
            (topic,) = answer.responses
            codes.append(int(topic.partition_responses[0].error_code))
            if version >= produce_codec.TOPIC_IDS_SINCE:
                assert topic_id_text(topic.topic_id) in (TOPIC_ID, other)
            at += 4 + size
        transport.written = b""
        return codes

    unknown = ErrorCode.UNKNOWN_TOPIC_ID
    assert send((13, TOPIC_ID), (13, other), (13, TOPIC_ID)) == [0, unknown, 0]
    partition.topic_id = other
    served.cluster.nodes[1].manager.partitions._new_topics[topic_id_uuid(other)] = TP.topic
    assert send((12, TOPIC_ID), (13, TOPIC_ID), (12, TOPIC_ID), (13, other), (13, TOPIC_ID)) == [
        0,
        unknown,
        0,
        0,
        unknown,
    ]
    assert send((13, TOPIC_ID), (13, other)) == [unknown, 0]


async def test_a_bug_ends_only_the_connections_of_these_requests(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    appends = served.cluster.nodes[1].manager.appends
    monkeypatch.setattr(appends, "append_plain", lambda *_, **__: 1 // 0)
    served.send(plain(0, 1))
    assert [data.endswith(b"closed") for data in served.written()] == [True, True, False]


@pytest.mark.parametrize("acks", [1, -1])
@pytest.mark.parametrize("version", range(3, 14))
async def test_a_throttled_producer_is_told_how_long(
    pair: Cluster, version: int, acks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same in both ways. Each answer that follows has a longer time, because more was produced."""
    muted: list[int] = []
    monkeypatch.setattr(ClientConnection, "mute", lambda _, milliseconds: muted.append(milliseconds))
    for is_gathering in (True, False):
        served = Served(pair, is_gathering=is_gathering, versions=range(version, version + 1))
        served.quotas.changed({"clients/p": {"producer_byte_rate": "10"}})
        served.send(plain(0, 0, 0, acks=acks))
        await served.replicate()
        answers = served.written()[0]
        size = len(answers) // 3
        times = [
            messages.milliseconds(messages.decode_response(0, version, answers[at + 4 : at + size])[1].throttle_time)
            for at in range(0, len(answers), size)
        ]
        assert [ms for ms in times if ms] == muted[-len([ms for ms in times if ms]) :]
        assert times == sorted(times)
        assert 15_000 < times[-1] < 40_000
    assert muted[: len(muted) // 2] == muted[len(muted) // 2 :]


async def test_a_producer_without_acks_has_to_wait_too(pair: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not told so, but its connection is muted. The time of its requests costs it nothing, as in Kafka."""
    muted: list[int] = []
    monkeypatch.setattr(ClientConnection, "mute", lambda _, milliseconds: muted.append(milliseconds))
    served = Served(pair)
    served.quotas.changed({"clients/p": {"producer_byte_rate": "10", "request_percentage": "0"}})
    served.send(plain(0, 0, 0, acks=0))
    assert served.written()[0] == b""
    assert len(muted) == 2
    assert muted[0] < muted[1]
    assert muted[1] != 1000


async def test_the_time_of_gathered_requests_is_shared(pair: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each pays for its part of the write."""
    muted: list[int] = []
    monkeypatch.setattr(ClientConnection, "mute", lambda _, milliseconds: muted.append(milliseconds))
    served = Served(pair)
    served.quotas.changed({"clients/p": {"request_percentage": "10"}})
    append, now = pair.nodes[1].manager.appends.append_plain, 0.0

    def slow(*arguments: Any, **options: Any) -> Any:
        nonlocal now
        now += 1.05
        return append(*arguments, **options)

    monkeypatch.setattr(pair.nodes[1].manager.appends, "append_plain", slow)
    served.quotas.monotonic = lambda: now
    served.send(plain(0, 1, 2))
    assert muted == [500], "the third one is over the quota: 3 * 0.35 s of 10 s are 10.5 %"
