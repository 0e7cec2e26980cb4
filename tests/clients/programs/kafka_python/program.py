"""kafka-python: a client in pure Python, blocking."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, NewPartitions, NewTopic
from kafka.errors import (
    KafkaError,
    KafkaTimeoutError,
    SaslAuthenticationFailedError,
    TopicAuthorizationFailedError,
)
from kafka.net.sasl.oauth import AbstractTokenProvider
from kafka.structs import OffsetAndMetadata

from tests.clients.programs.python_program import (
    ONLY_LOGGED,
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
    starting_again_if_hung,
    stdin_closed,
    stdin_lines,
)

POLL_MS = 100
MEMBER_POLL_MS = 1000
"""kafka-python 3.0.12 may forget a rejoin that takes longer than `poll`: once the leader has assigned, `need_rejoin` is false, so the next
`poll` does not take the result, and sends no heartbeats."""
BOOTSTRAP_TIMEOUT_MS, BOOTSTRAPS_S = 2000, 25.0
"""The time limit of one try, and of all."""
MOST = 50
LONG_S = 60.0
"""A commit is refused, because another member has the partitions by now."""

Records = list[Any]


def connection(request: Request) -> dict[str, Any]:
    """Settings for a cluster, and for the login there."""
    settings: dict[str, Any] = {"bootstrap_servers": str(request["bootstrap"]).split(",")}
    if "security" not in request:
        return settings
    security = request["security"]
    settings["ssl_cafile"] = security["authority"]
    if "certificate" in security:
        own = security["certificate"]
        return {**settings, "security_protocol": "SSL", "ssl_certfile": own, "ssl_keyfile": own}
    settings |= {"security_protocol": "SASL_SSL", "sasl_mechanism": security["mechanism"]}
    if "token" in security:
        return {**settings, "sasl_oauth_token_provider": TokenFile(security["token"])}
    return {**settings, "sasl_plain_username": security["user"], "sasl_plain_password": security["password"]}


class TokenFile(AbstractTokenProvider):  # type: ignore[misc]
    """A token for each login."""

    def __init__(self, file: str) -> None:
        self._file = Path(file)

    def token(self) -> str:
        return self._file.read_text()


def send_all(producer: KafkaProducer, request: Request, **place: int) -> None:
    """Sends the values, and says the acknowledgements in the order in which they come."""
    futures = []
    for number, value in enumerate(request["values"]):
        key = encoded(request["keys"][number]) if request.get("keys") else None
        future = producer.send(request["topic"], value.encode(), key, **place)
        future.add_callback(lambda at, value=value: say(acked=value, partition=at.partition, offset=at.offset))
        futures.append(future)
        time.sleep(request.get("pause_ms", 0) / 1000)
    for future in futures:
        future.get(LONG_S)


def produce(request: Request) -> None:
    producer = KafkaProducer(
        **connection(request),
        acks=request["acks"] if request["acks"] == "all" else int(request["acks"]),
        compression_type=None if request["compression"] == "none" else request["compression"],
        enable_idempotence=request["idempotent"],
        linger_ms=5,
    )
    send_all(producer, request)
    producer.close()


def write(request: Request) -> None:
    producer = KafkaProducer(**connection(request), acks="all", enable_idempotence=request["idempotent"], linger_ms=5)
    for value in stdin_lines():
        try:
            future = producer.send(request["topic"], value.encode())
        except KafkaError as problem:
            say_failed(value, repr(problem))
            continue
        future.add_callback(lambda at, value=value: say(acked=value, partition=at.partition, offset=at.offset))
        future.add_errback(lambda problem, value=value: say_failed(value, repr(problem)))
    producer.close()


def consume(request: Request) -> None:
    consumer = KafkaConsumer(
        **connection(request),
        group_id=None,
        enable_auto_commit=False,
        isolation_level=request["isolation"],
    )
    place = TopicPartition(request["topic"], request["partition"])
    consumer.assign([place])
    match request["from"]:
        case "earliest":
            consumer.seek_to_beginning(place)
        case "latest":
            consumer.seek_to_end(place)
        case {"offset": offset}:
            consumer.seek(place, offset)
        case {"timestamp_ms": timestamp_ms}:
            consumer.seek(place, consumer.offsets_for_times({place: timestamp_ms})[place].offset)
    consumer.position(place)
    say(ready=True)
    left = request["count"]
    while left:
        for record in consumer.poll(POLL_MS, max_records=left).get(place, []):
            left -= 1
            say_record(record.partition, record.offset, record.key, record.value, record.timestamp)
    consumer.close()


class Assignments(ConsumerRebalanceListener):  # type: ignore[misc]
    """Says the whole assignment when it changes."""

    def __init__(self) -> None:
        self._mine: set[int] = set()

    def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        self._mine -= {place.partition for place in revoked}
        say(assigned=sorted(self._mine))

    def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._mine |= {place.partition for place in assigned}
        say(assigned=sorted(self._mine))


def member(request: Request, topic: str, **settings: Any) -> KafkaConsumer:
    consumer = KafkaConsumer(
        **connection(request),
        group_id=request["group"],
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        session_timeout_ms=6000,
        heartbeat_interval_ms=1000,
        **settings,
    )
    # Without metadata, the first assignment is empty, and a rejoin follows.
    consumer.partitions_for_topic(topic)
    consumer.subscribe([topic], listener=Assignments())
    return consumer


def read(consumer: KafkaConsumer) -> Records:
    found = consumer.poll(MEMBER_POLL_MS, max_records=MOST)
    return [record for records in found.values() for record in records]


def behind(records: Records) -> dict[TopicPartition, OffsetAndMetadata]:
    """The offsets to commit once these records are processed."""
    return {TopicPartition(r.topic, r.partition): OffsetAndMetadata(r.offset + 1, "", -1) for r in records}


def group(request: Request) -> None:
    only_classic_groups(request, "kafka-python")
    closed = stdin_closed()
    consumer = member(request, request["topic"])
    while not closed.is_set():
        records = read(consumer)
        for record in records:
            say(value=record.value.decode(), partition=record.partition, offset=record.offset)
        if records:
            offsets = behind(records)
            try:
                consumer.commit(offsets)
            except KafkaError as problem:  # the next commit has these offsets, too
                print(repr(problem), file=sys.stderr)
            else:
                say(committed={str(place.partition): at.offset for place, at in offsets.items()})
    consumer.close()


def transactional(request: Request) -> KafkaProducer:
    producer = KafkaProducer(
        **connection(request),
        transactional_id=request["transactional_id"],
        transaction_timeout_ms=10_000,
        linger_ms=2,
    )
    producer.init_transactions()
    return producer


def transact(request: Request) -> None:
    producer = transactional(request)
    producer.begin_transaction()
    send_all(producer, request, **({"partition": request["partition"]} if "partition" in request else {}))
    if request["end"] == "commit":
        producer.commit_transaction()
    else:
        producer.abort_transaction()
    say(ended=request["end"])
    producer.close()


def pipeline(request: Request) -> None:
    """After an error, aborts, or replaces the producer if that fails, too; then continues at the committed offsets.

    kafka-python 3.0.12 loses the request that it is about to send when the coordinator refuses the connection
    (`Sender._maybe_send_pending_request`), and waits for its answer without an end.
    """
    closed = stdin_closed()
    consumer = member(request, request["source"], isolation_level="read_committed")
    producer = transactional(request)
    while not closed.is_set():
        records = read(consumer)
        if not records:
            continue
        with starting_again_if_hung("tests.clients.programs.kafka_python.program"):
            try:
                process(request["sink"], records, producer, consumer)
                say(committed=len(records))
            except KafkaError as problem:
                print(repr(problem), file=sys.stderr)
                if not aborted(producer):
                    producer.close(timeout=1)
                    producer = transactional(request)
                for place in consumer.assignment():
                    consumer.seek(place, consumer.committed(place) or 0)
    consumer.close()
    producer.close()


def process(sink: str, records: Records, producer: KafkaProducer, consumer: KafkaConsumer) -> None:
    producer.begin_transaction()
    futures = [producer.send(sink, b"processed " + record.value, partition=record.partition) for record in records]
    producer.send_offsets_to_transaction(behind(records), consumer.group_metadata())
    for future in futures:
        future.get(LONG_S)
    producer.commit_transaction()


def aborted(producer: KafkaProducer) -> bool:
    try:
        producer.abort_transaction()
    except KafkaError as problem:
        print(f"abort: {problem!r}", file=sys.stderr)
        return False
    return True


def admin(request: Request) -> None:
    client = KafkaAdminClient(**connection(request))
    topic = request["topic"]
    client.create_topics([NewTopic(topic, 2, 3, topic_configs={"retention.ms": "3600000"})])
    did("create_topics", topic)
    did("describe_topics", partitions_of(client, topic, 2))
    client.create_partitions({topic: NewPartitions(4)})
    did("create_partitions", partitions_of(client, topic, 4))
    client.alter_configs([ConfigResource(ConfigResourceType.TOPIC, topic, {"retention.ms": "7200000"})])
    did("alter_configs", {"retention.ms": "7200000"})
    described = client.describe_configs([ConfigResource(ConfigResourceType.TOPIC, topic)])
    did("describe_configs", str(described))
    did("list_topics", sorted(client.list_topics()))
    did("list_groups", str(client.list_groups()))
    client.delete_topics([topic])
    did("delete_topics", topic)
    client.close()


def partitions_of(client: KafkaAdminClient, topic: str, expected: int) -> dict[int, Any]:
    """Partition -> replicas. A broker may know a change a little later than the controller."""
    while True:
        (found,) = client.describe_topics([topic])
        partitions = found["partitions"]
        if len(partitions) == expected:
            return {partition["partition_index"]: partition["replica_nodes"] for partition in partitions}
        time.sleep(POLL_MS / 1000)


def login(request: Request) -> None:
    """It tries a wrong password again, for 30 s by default. Here it is asked several times, each time for a shorter while.

    kafka-python 3.0.12 drops what it has read together with the end of a connection (`_sock_recv`), which nine of ten answers to a wrong
    password are. A new producer tries at once, an old one after longer and longer pauses.
    """
    settings = {**connection(request), "bootstrap_timeout_ms": BOOTSTRAP_TIMEOUT_MS}
    ends = time.monotonic() + BOOTSTRAPS_S
    logged = Logged("kafka", SaslAuthenticationFailedError)

    def connect() -> None:
        while True:
            try:
                KafkaProducer(**settings).close()
                return
            except KafkaTimeoutError:
                if logged.found or time.monotonic() > ends:
                    raise

    say_login_by(connect, logged, KafkaTimeoutError)


def denied(request: Request) -> None:
    """An idempotent producer of kafka-python 3.0.12 takes TOPIC_AUTHORIZATION_FAILED for fatal, and sends nothing more."""
    producer = KafkaProducer(**connection(request), enable_idempotence=False)
    topic, others = request["topic"], request["denied"]
    send_all(producer, {"topic": topic, "values": request["before"]})
    for other in others:
        try:
            producer.send(other, b"denied").get(LONG_S)
        except TopicAuthorizationFailedError as problem:
            say_refused("TOPIC_AUTHORIZATION_FAILED", to="write", topic=other, saw=repr(problem))
    send_all(producer, {"topic": topic, "values": request["after"]})
    producer.close()
    logged = Logged("kafka.cluster", str)
    settings = {"group_id": None, "enable_auto_commit": False, "auto_offset_reset": "earliest"}
    consumer = KafkaConsumer(**connection(request), **settings)
    consumer.assign([TopicPartition(name, 0) for name in (*others, topic)])
    left, unrefused = len(request["before"]) + len(request["after"]), set(others)
    while left or unrefused:
        try:
            records = read(consumer)
        except TopicAuthorizationFailedError as problem:
            (names,) = problem.args
            for name in unrefused & set(names):
                say_refused("TOPIC_AUTHORIZATION_FAILED", to="read", topic=name, saw=repr(problem))
            unrefused -= set(names)
        else:
            left -= len(records)
            for record in records:
                say_record(record.partition, record.offset, record.key, record.value, record.timestamp)
        for name in unrefused & set(logged.found):
            say_refused("TOPIC_AUTHORIZATION_FAILED", to="read", topic=name, saw=logged.found, note=ONLY_LOGGED)
        unrefused -= set(logged.found)
    consumer.close()


if __name__ == "__main__":
    sys.exit(run(globals()))
