"""aiokafka: a client for asyncio."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, ConsumerRebalanceListener
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient, NewPartitions, NewTopic
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import (
    KafkaConnectionError,
    KafkaError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
)
from aiokafka.helpers import create_ssl_context
from aiokafka.structs import TopicPartition

from tests.clients.programs.python_program import (
    ONLY_LOGGED,
    VERBS,
    Logged,
    Request,
    did,
    encoded,
    only_classic_groups,
    run,
    say,
    say_failed,
    say_login_by,
    say_record,
    say_refused,
    stdin_closed,
    stdin_lines,
)

POLL_MS = 100
MOST = 50
"""A commit is refused, because another member has the partitions by now."""

Records = list[Any]


def connection(request: Request) -> dict[str, Any]:
    """Settings for a cluster, and for the login there."""
    settings: dict[str, Any] = {"bootstrap_servers": request["bootstrap"]}
    if "security" not in request:
        return settings
    security = request["security"]
    own = security.get("certificate")
    settings["ssl_context"] = create_ssl_context(cafile=security["authority"], certfile=own, keyfile=own)
    if own is not None:
        return {**settings, "security_protocol": "SSL"}
    settings |= {"security_protocol": "SASL_SSL", "sasl_mechanism": security["mechanism"]}
    if "token" in security:
        return {**settings, "sasl_oauth_token_provider": TokenFile(security["token"])}
    return {**settings, "sasl_plain_username": security["user"], "sasl_plain_password": security["password"]}


class TokenFile(AbstractTokenProvider):  # type: ignore[misc]
    """A token for each login."""

    def __init__(self, file: str) -> None:
        self._file = Path(file)

    async def token(self) -> str:
        return self._file.read_text()


async def say_acked(value: str, delivery: Awaitable[Any]) -> None:
    at = await delivery
    # With acks=0 there is no answer that names the place.
    say(acked=value, partition=-1 if at is None else at.partition, offset=-1 if at is None else at.offset)


async def send_all(producer: AIOKafkaProducer, request: Request, **place: int) -> None:
    async with asyncio.TaskGroup() as tasks:
        for number, value in enumerate(request["values"]):
            key = encoded(request["keys"][number]) if request.get("keys") else None
            delivery = await producer.send(request["topic"], value.encode(), key, **place)
            tasks.create_task(say_acked(value, delivery))
            await asyncio.sleep(request.get("pause_ms", 0) / 1000)


async def produce(request: Request) -> None:
    async with AIOKafkaProducer(
        **connection(request),
        acks=request["acks"] if request["acks"] == "all" else int(request["acks"]),
        compression_type=None if request["compression"] == "none" else request["compression"],
        enable_idempotence=request["idempotent"],
        linger_ms=5,
    ) as producer:
        await send_all(producer, request)


async def say_delivered(value: str, delivery: Awaitable[Any]) -> None:
    try:
        await say_acked(value, delivery)
    except KafkaError as problem:
        say_failed(value, repr(problem))


async def write(request: Request) -> None:
    idempotent = request["idempotent"]
    producer = AIOKafkaProducer(**connection(request), acks="all", enable_idempotence=idempotent, linger_ms=5)
    async with producer, asyncio.TaskGroup() as tasks:
        lines = stdin_lines()
        while (value := await asyncio.to_thread(next, lines, None)) is not None:
            try:
                tasks.create_task(say_delivered(value, await producer.send(request["topic"], value.encode())))
            except KafkaError as problem:
                say_failed(value, repr(problem))


async def consume(request: Request) -> None:
    place = TopicPartition(request["topic"], request["partition"])
    async with AIOKafkaConsumer(
        **connection(request),
        group_id=None,
        enable_auto_commit=False,
        isolation_level=request["isolation"],
    ) as consumer:
        consumer.assign([place])
        match request["from"]:
            case "earliest":
                await consumer.seek_to_beginning(place)
            case "latest":
                await consumer.seek_to_end(place)
            case {"offset": offset}:
                consumer.seek(place, offset)
            case {"timestamp_ms": timestamp_ms}:
                found = await consumer.offsets_for_times({place: timestamp_ms})
                consumer.seek(place, found[place].offset)
        await consumer.position(place)
        say(ready=True)
        for _ in range(request["count"]):
            record = await consumer.getone()
            say_record(record.partition, record.offset, record.key, record.value, record.timestamp)


class Assignments(ConsumerRebalanceListener):  # type: ignore[misc]
    """Says the whole assignment when it changes."""

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        say(assigned=[])

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        say(assigned=sorted(place.partition for place in assigned))


def member(request: Request, topic: str, **settings: Any) -> AIOKafkaConsumer:
    consumer = AIOKafkaConsumer(
        **connection(request),
        group_id=request["group"],
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=6000,
        heartbeat_interval_ms=1000,
        **settings,
    )
    consumer.subscribe([topic], listener=Assignments())
    return consumer


async def read(consumer: AIOKafkaConsumer) -> Records:
    found = await consumer.getmany(timeout_ms=POLL_MS, max_records=MOST)
    return [record for records in found.values() for record in records]


def behind(records: Records) -> dict[TopicPartition, int]:
    """The offsets to commit once these records are processed."""
    return {TopicPartition(record.topic, record.partition): record.offset + 1 for record in records}


async def group(request: Request) -> None:
    only_classic_groups(request, "aiokafka")
    closed = stdin_closed()
    async with member(request, request["topic"]) as consumer:
        while not closed.is_set():
            records = await read(consumer)
            for record in records:
                say(value=record.value.decode(), partition=record.partition, offset=record.offset)
            if records:
                offsets = behind(records)
                try:
                    await consumer.commit(offsets)
                except KafkaError as problem:  # the next commit has these offsets, too
                    print(repr(problem), file=sys.stderr)
                else:
                    say(committed={str(place.partition): offset for place, offset in offsets.items()})


async def transactional(request: Request) -> AIOKafkaProducer:
    producer = AIOKafkaProducer(
        **connection(request),
        transactional_id=request["transactional_id"],
        transaction_timeout_ms=10_000,
        linger_ms=2,
    )
    await producer.start()
    return producer


async def transact(request: Request) -> None:
    producer = await transactional(request)
    await producer.begin_transaction()
    await send_all(producer, request, **({"partition": request["partition"]} if "partition" in request else {}))
    if request["end"] == "commit":
        await producer.commit_transaction()
    else:
        await producer.abort_transaction()
    say(ended=request["end"])
    await producer.stop()


async def pipeline(request: Request) -> None:
    """`transaction()` aborts after an error. If that fails, too, the producer is replaced. Then it continues at the committed offsets."""
    closed = stdin_closed()
    producer = await transactional(request)
    async with member(request, request["source"], isolation_level="read_committed") as consumer:
        while not closed.is_set():
            records = await read(consumer)
            if not records:
                continue
            try:
                async with producer.transaction():
                    for record in records:
                        await producer.send(request["sink"], b"processed " + record.value, partition=record.partition)
                    await producer.send_offsets_to_transaction(behind(records), request["group"])
                say(committed=len(records))
            except KafkaError as problem:
                print(repr(problem), file=sys.stderr)
                await producer.stop()
                producer = await transactional(request)
                for place in consumer.assignment():
                    consumer.seek(place, await consumer.committed(place) or 0)
    await producer.stop()


async def admin(request: Request) -> None:
    client = AIOKafkaAdminClient(**connection(request))
    await client.start()
    topic = request["topic"]
    await client.create_topics([NewTopic(topic, 2, 3, topic_configs={"retention.ms": "3600000"})])
    did("create_topics", topic)
    did("describe_topics", await partitions_of(client, topic, 2))
    await client.create_partitions({topic: NewPartitions(4)})
    did("create_partitions", await partitions_of(client, topic, 4))
    await client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "7200000"})])
    did("alter_configs", {"retention.ms": "7200000"})
    did("describe_configs", str(await client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])))
    did("list_topics", sorted(await client.list_topics()))
    did("list_groups", str(await client.list_consumer_groups()))
    await client.delete_topics([topic])
    did("delete_topics", topic)
    await client.close()


async def partitions_of(client: AIOKafkaAdminClient, topic: str, expected: int) -> dict[int, Any]:
    """Partition -> replicas. A broker may know a change a little later than the controller."""
    while True:
        (found,) = await client.describe_topics([topic])
        partitions = found["partitions"]
        if len(partitions) == expected:
            return {partition["partition"]: partition["replicas"] for partition in partitions}
        await asyncio.sleep(POLL_MS / 1000)


def login(request: Request) -> None:
    async def connect() -> None:
        producer = AIOKafkaProducer(**connection(request))
        try:
            await producer.start()
        finally:
            await producer.stop()

    say_login_by(lambda: asyncio.run(connect()), Logged("aiokafka", SaslAuthenticationFailed), KafkaConnectionError)


async def denied(request: Request) -> None:
    topic, others = request["topic"], request["denied"]
    async with AIOKafkaProducer(**connection(request)) as producer:
        await send_all(producer, {"topic": topic, "values": request["before"]})
        for other in others:
            try:
                await producer.send_and_wait(other, b"denied")
            except TopicAuthorizationFailedError as problem:
                say_refused("TOPIC_AUTHORIZATION_FAILED", to="write", topic=other, saw=repr(problem))
        await send_all(producer, {"topic": topic, "values": request["after"]})
    logged = Logged("aiokafka.cluster", str)
    settings = {"group_id": None, "enable_auto_commit": False, "auto_offset_reset": "earliest"}
    async with AIOKafkaConsumer(**connection(request), **settings) as consumer:
        consumer.assign([TopicPartition(name, 0) for name in (*others, topic)])
        left, unrefused = len(request["before"]) + len(request["after"]), set(others)
        while left or unrefused:
            try:
                records = await read(consumer)
            except TopicAuthorizationFailedError as problem:
                for name in unrefused & set(problem.args):
                    say_refused("TOPIC_AUTHORIZATION_FAILED", to="read", topic=name, saw=repr(problem))
                unrefused -= set(problem.args)
            else:
                left -= len(records)
                for record in records:
                    say_record(record.partition, record.offset, record.key, record.value, record.timestamp)
            for name in unrefused & set(logged.found):
                say_refused("TOPIC_AUTHORIZATION_FAILED", to="read", topic=name, saw=logged.found, note=ONLY_LOGGED)
            unrefused -= set(logged.found)


def in_a_loop(verb: Callable[[Request], Any]) -> Callable[[Request], None]:
    return lambda request: asyncio.run(verb(request))


if __name__ == "__main__":
    sys.exit(run({**{verb: in_a_loop(globals()[verb]) for verb in VERBS}, "login": login}))
