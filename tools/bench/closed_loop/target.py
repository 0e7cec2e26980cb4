"""What a load needs of a cluster: leaders and offsets of its topic, and a topic of its own, filled if it is to be read."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from protocol.errors import error_name
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import MalformedRequest
from protocol.types import Address, TopicPartition
from tools.admin.bootstrap import addresses_of
from tools.admin.connection import connect
from tools.admin.naming import Where
from tools.bench.closed_loop.load import TOPIC_IDS_SINCE
from tools.bench.closed_loop.measurement import BenchError
from tools.bench.closed_loop.request_plan import CLIENT_ID, PRODUCE_TIMEOUT_MS, batch
from tools.failures import AdminError
from tools.wire import frames
from tools.wire.client import Client
from tools.wire.client_properties import BadClientProperties, read_security
from tools.wire.cluster_view import METADATA_VERSION, ClusterView, Unreachable
from tools.wire.offsets import EARLIEST, offsets_at
from tools.wire.security import PLAINTEXT, Security

TOPIC_IDS_METADATA_VERSION = 10
OWN_PREFIX = "ottla-bench-"
REQUESTS_AT_ONCE = 16
READY_TIMEOUT_S = 15.0
"""How long a topic that was just created may need until its leaders answer."""
RETRY_S = 0.05
ANSWER_TIMEOUT_S = 30.0
FILL_IN_FLIGHT_BYTES = 8_000_000


@dataclass(frozen=True, slots=True)
class Partition:
    """One partition that takes part in a load: its leader's numeric address, its log start and its high watermark."""

    topic: str
    index: int
    leader: Address
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster, and how to connect to it."""

    bootstrap_server: str
    command_config: Path | None = None
    security: Security = field(default=PLAINTEXT)

    @classmethod
    def of(cls, bootstrap_server: str, command_config: Path | None) -> Target:
        """Reads the properties file. Raises BenchError."""
        if command_config is None:
            return cls(bootstrap_server)
        try:
            return cls(bootstrap_server, command_config, read_security(command_config, ignores_others=True))
        except BadClientProperties as problem:
            raise BenchError(str(problem)) from None


def partitions_of(target: Target, topics: Sequence[str]) -> list[Partition]:
    """All partitions of the topics, in order, once all their leaders answer for them. Raises BenchError."""
    try:
        return asyncio.run(_partitions(target, topics))
    except Unreachable as problem:
        raise BenchError(str(problem)) from None


def topic_id_of(target: Target, topic: str) -> UUID:
    """Raises BenchError if the cluster is too old to give its topics ids."""

    async def ask() -> UUID:
        view = await _view(target, [topic])
        body = {"topics": [{"topic_id": None, "name": topic}], "allow_auto_topic_creation": False}
        (found,) = (await view.ask_any(ApiKey.METADATA, TOPIC_IDS_METADATA_VERSION, body)).topics
        if found.topic_id is None:
            raise BenchError(f"topic {topic!r} has no id: use an --api-version below {TOPIC_IDS_SINCE}")
        return UUID(str(found.topic_id))

    try:
        return asyncio.run(ask())
    except Unreachable as problem:
        raise BenchError(str(problem)) from None


def check_replicas(target: Target, topic: str, acks: int) -> None:
    """Raises BenchError if acks=all cannot be answered, because too few replicas are in sync."""
    if acks != -1:
        return
    for view in connect(Where(target.bootstrap_server, given_config=target.command_config)).describe_topics([topic]):
        wanted = view.min_insync_replicas if view.configs else 1
        for partition in view.partitions:
            if len(partition.isr) < wanted:
                raise BenchError(
                    f"acks=all needs {wanted} replicas in sync (min.insync.replicas of topic {topic!r}), "
                    f"but partition {partition.partition} has {len(partition.isr)} of {len(partition.replicas)}"
                )


@contextlib.contextmanager
def own_topics(
    target: Target, count: int, partitions: int, replication_factor: int, configs: Mapping[str, str] | None = None
) -> Iterator[list[str]]:
    """New topics for one measurement, which all brokers know. They are deleted at the end, whatever ends it.

    Raises AdminError, BenchError.
    """
    admin = connect(Where(target.bootstrap_server, given_config=target.command_config))
    admin.cluster()  # says so at once when no broker answers
    run = uuid.uuid4().hex[:8]
    names = [f"{OWN_PREFIX}{run}" if count == 1 else f"{OWN_PREFIX}{run}-{number:05d}" for number in range(count)]
    begun: set[str] = set()

    def create(name: str) -> None:
        begun.add(name)
        try:
            admin.create_topic(name, partitions=partitions, replication_factor=replication_factor, configs=configs)
        except AdminError:
            begun.discard(name)
            raise

    def delete(name: str) -> None:
        with contextlib.suppress(AdminError):
            admin.delete_topic(name)

    try:
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as threads:
            for created in [threads.submit(create, name) for name in names]:
                created.result()
        try:
            asyncio.run(_wait_until_known(target, names, partitions))
        except Unreachable as problem:
            raise BenchError(str(problem)) from None
        yield names
    finally:
        with ThreadPoolExecutor(REQUESTS_AT_ONCE) as threads:
            list(threads.map(delete, sorted(begun)))


def fill(target: Target, topic: str, record_bytes: int, records_per_batch: int, total_bytes: int) -> None:
    """Appends batches to all partitions until they have `total_bytes` of values together. Raises BenchError."""
    partitions = partitions_of(target, [topic])
    batch_bytes = max(record_bytes * records_per_batch, 1)
    count = -(-total_bytes // (batch_bytes * len(partitions)))
    records = batch(record_bytes, records_per_batch, int(time.time() * 1000))

    async def fill_one(view: ClusterView, partition: Partition) -> None:
        to_one = {topic.encode(): [(partition.index, records)]}
        frame = frames.produce_frame(CLIENT_ID.encode(), -1, PRODUCE_TIMEOUT_MS, to_one)
        connection = await view.connect(view.leader(TopicPartition(topic, partition.index)), lambda _: None)
        at_once = max(1, FILL_IN_FLIGHT_BYTES // (batch_bytes * len(partitions)))
        try:
            for first in range(0, count, at_once):
                asked = [connection.ask(frame, ANSWER_TIMEOUT_S) for _ in range(min(at_once, count - first))]
                for answer in await asyncio.gather(*asked):
                    (produced,) = frames.produced(answer)
                    if produced.error:
                        raise BenchError(f"topic {topic!r} cannot be filled: {error_name(produced.error)}")
        finally:
            connection.close()

    async def fill_all() -> None:
        view = await _view(target, [topic])
        await asyncio.gather(*(fill_one(view, partition) for partition in partitions))

    try:
        asyncio.run(fill_all())
    except (Unreachable, OSError, MalformedRequest) as problem:
        raise BenchError(f"topic {topic!r} cannot be filled: {problem or type(problem).__name__}") from None


async def _wait_until_known(target: Target, topics: Sequence[str], partitions: int) -> None:
    """Waits until each broker that answers knows the leaders of all partitions of the new topics. Raises Unreachable, BenchError.

    The controller tells one broker after the other. Until it has told the leader, a real Kafka refuses a Produce request there with
    UNKNOWN_TOPIC_OR_PARTITION, although the leader answers ListOffsets already.
    """
    view = await _view(target, topics)
    body = {"topics": [{"name": topic} for topic in topics], "allow_auto_topic_creation": False}
    wanted = partitions * len(topics)
    deadline = time.monotonic() + READY_TIMEOUT_S
    for broker in (await view.ask_any(ApiKey.METADATA, METADATA_VERSION, body)).brokers:
        address = str(broker.host), int(broker.port)
        while True:
            try:
                answer = await view.client.ask(address, ApiKey.METADATA, METADATA_VERSION, body)
            except (OSError, MalformedRequest):
                break  # a broker that has just ended leads nothing
            known = sum(1 for topic in answer.topics for partition in topic.partitions if int(partition.leader_id) >= 0)
            if known == wanted:
                break
            if time.monotonic() > deadline:
                raise BenchError(
                    f"broker {broker.node_id} knows the leaders of {known} of {wanted} new partitions after {READY_TIMEOUT_S:g} s"
                )
            await asyncio.sleep(RETRY_S)


async def _view(target: Target, topics: Sequence[str]) -> ClusterView:
    """Raises Unreachable, BenchError."""
    try:
        addresses = addresses_of(target.bootstrap_server)
    except ValueError as problem:
        raise BenchError(f"--bootstrap-server: {problem}") from None
    view = ClusterView(Client(CLIENT_ID, target.security), addresses, topics)
    await view.start()
    return view


async def _partitions(target: Target, topics: Sequence[str]) -> list[Partition]:
    deadline = time.monotonic() + READY_TIMEOUT_S
    view = await _view(target, topics)
    for topic in topics:
        # A topic that was just created may not be known to each broker yet.
        while not view.partitions(topic):
            if time.monotonic() > deadline or not topic.startswith(OWN_PREFIX):
                raise BenchError(
                    f"topic {topic!r} does not exist; without --topic, a topic is created for the measurement"
                )
            await asyncio.sleep(RETRY_S)
            await view.start()
    wanted = [TopicPartition(topic, index) for topic in topics for index in range(view.partitions(topic))]
    found: dict[TopicPartition, Partition] = {}
    while len(found) < len(wanted):
        of_leaders: dict[int, list[TopicPartition]] = {}
        for partition in wanted:
            if partition not in found:
                of_leaders.setdefault(view.leader(partition), []).append(partition)
        for broker, of_leader in of_leaders.items():
            if (address := view.address(broker)) is not None:
                with contextlib.suppress(OSError, MalformedRequest):
                    starts = await offsets_at(view.client, address, of_leader, EARLIEST)
                    ends = await offsets_at(view.client, address, of_leader)
                    for place in starts.keys() & ends.keys():
                        found[place] = Partition(*place, await _numeric(address), starts[place], ends[place])
        if len(found) < len(wanted):
            if time.monotonic() > deadline:
                topic, index = next(partition for partition in wanted if partition not in found)
                raise BenchError(f"partition {index} of topic {topic!r} has no leader that answers")
            await asyncio.sleep(RETRY_S)
            await view.start()
    return [found[partition] for partition in wanted]


async def _numeric(address: Address) -> Address:
    """Raises OSError."""
    found = await asyncio.get_running_loop().getaddrinfo(*address, type=socket.SOCK_STREAM)
    return str(found[0][4][0]), int(found[0][4][1])
