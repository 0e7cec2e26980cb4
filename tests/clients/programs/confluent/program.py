"""confluent-kafka: the Python binding of librdkafka."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from tests.clients.programs.python_program import (
    Request,
    did,
    encoded,
    librdkafka_connection,
    run,
    say,
    say_failed,
    say_login,
    say_record,
    say_refused,
    starting_again_if_hung,
    stdin_closed,
    stdin_lines,
)

CALL_TIMEOUT_S = 5.0
LONG_S = 60.0
TOKEN_S = 600.0
"""For how long librdkafka believes in a token, whatever is in it."""
POLL_S = 0.1
MOST = 50
MEMBER = {"auto.offset.reset": "earliest", "enable.auto.commit": False}
CLASSIC_MEMBER = {"session.timeout.ms": 6000, "heartbeat.interval.ms": 1000}
"""Of a group of the new kind, the broker has these settings."""


def connection(request: Request) -> dict[str, Any]:
    """Settings for a cluster, and for the login there."""
    settings: dict[str, Any] = dict(librdkafka_connection(request))
    if settings.get("sasl.mechanism") == "OAUTHBEARER":
        token = Path(request["security"]["token"])
        settings["oauth_cb"] = lambda _: (token.read_text(), time.time() + TOKEN_S)
    return settings


def say_acked(error: KafkaError | None, message: Message) -> None:
    if error is not None:
        print(f"{message.value()!r}: {error}", file=sys.stderr)
        os._exit(1)
    say(acked=message.value().decode(), partition=message.partition(), offset=message.offset())


def produce(request: Request) -> None:
    producer = Producer(
        {
            **connection(request),
            "acks": request["acks"],
            "compression.type": request["compression"],
            "enable.idempotence": request["idempotent"],
            "linger.ms": 5,
        }
    )
    for number, value in enumerate(request["values"]):
        key = request["keys"][number] if request["keys"] else None
        producer.produce(request["topic"], value.encode(), encoded(key), on_delivery=say_acked)
        time.sleep(request["pause_ms"] / 1000)
        producer.poll(0)
    producer.flush()


def say_delivered(error: KafkaError | None, message: Message) -> None:
    if error is not None:
        say_failed(message.value().decode(), error)
    else:
        say_acked(None, message)


def write(request: Request) -> None:
    producer = Producer({**connection(request), "enable.idempotence": request["idempotent"], "linger.ms": 5})
    is_done = threading.Event()

    def tell() -> None:
        while not is_done.is_set():
            producer.poll(POLL_S)

    telling = threading.Thread(target=tell)
    telling.start()
    for value in stdin_lines():
        try:
            producer.produce(request["topic"], value.encode(), on_delivery=say_delivered)
        except KafkaException as problem:
            say_failed(value, problem)
    producer.flush()
    is_done.set()
    telling.join()


def consume(request: Request) -> None:
    consumer = Consumer(
        {
            **connection(request),
            "group.id": "unused",
            "enable.auto.commit": False,
            "check.crcs": True,
            "isolation.level": request["isolation"],
        }
    )
    at = TopicPartition(request["topic"], request["partition"])
    match request["from"]:
        case "earliest":
            at.offset = OFFSET_BEGINNING
        case "latest":
            at.offset = consumer.get_watermark_offsets(at, LONG_S)[1]
        case {"offset": offset}:
            at.offset = offset
        case {"timestamp_ms": timestamp_ms}:
            at.offset = timestamp_ms
            (at,) = consumer.offsets_for_times([at], LONG_S)
    consumer.assign([at])
    say(ready=True)
    left = request["count"]
    while left:
        for message in consumer.consume(left, POLL_S):
            if has_record(message):
                left -= 1
                timestamp_ms = message.timestamp()[1]
                say_record(message.partition(), message.offset(), message.key(), message.value(), timestamp_ms)
    consumer.close()


def has_record(message: Message) -> bool:
    """False for an error from which librdkafka recovers by itself; raises KafkaException for others."""
    error = message.error()
    if error is None:
        return True
    print(error, file=sys.stderr)
    if error.fatal():
        raise KafkaException(error)
    return False


def member(request: Request, topic: str, settings: dict[str, Any]) -> Consumer:
    """A consumer that is subscribed to the topic, and says its assignments. Those of a group of the new kind are told as changes."""
    mine: set[int] = set()

    def changed(added: list[TopicPartition], removed: list[TopicPartition]) -> None:
        mine.update(at.partition for at in added)
        mine.difference_update(at.partition for at in removed)
        say(assigned=sorted(mine))

    protocol = request.get("protocol", "classic")
    kind = CLASSIC_MEMBER if protocol == "classic" else {"group.protocol": protocol}
    consumer = Consumer({**connection(request), "group.id": request["group"], **MEMBER, **kind, **settings})
    consumer.subscribe(
        [topic],
        on_assign=lambda _, partitions: changed(partitions, []),
        on_revoke=lambda _, partitions: changed([], partitions),
    )
    return consumer


def group(request: Request) -> None:
    closed = stdin_closed()
    consumer = member(request, request["topic"], {})
    while not closed.is_set():
        messages = [message for message in consumer.consume(MOST, POLL_S) if has_record(message)]
        for message in messages:
            say(value=message.value().decode(), partition=message.partition(), offset=message.offset())
        if messages:
            commit(consumer)
    consumer.close()


def commit(consumer: Consumer) -> None:
    try:
        done = consumer.commit(asynchronous=False)
    except KafkaException as problem:  # the next commit has these offsets, too
        print(problem, file=sys.stderr)
    else:
        say(committed={str(at.partition): at.offset for at in done})


def insist(call: Callable[[], Any]) -> None:
    """Calls again after a retriable error. Raises KafkaException for other errors.

    librdkafka 2.16 may never return from send_offsets_to_transaction if the coordinator of the group moves meanwhile: its issues
    5456 and 5511.
    """
    while True:
        try:
            with starting_again_if_hung("tests.clients.programs.confluent.program"):
                call()
            return
        except KafkaException as problem:
            print(problem, file=sys.stderr)
            if not problem.args[0].retriable():
                raise


def transactional(request: Request) -> Producer:
    producer = Producer(
        {
            **connection(request),
            "transactional.id": request["transactional_id"],
            "transaction.timeout.ms": 10_000,
            "linger.ms": 2,
        }
    )
    insist(lambda: producer.init_transactions(CALL_TIMEOUT_S))
    return producer


def transact(request: Request) -> None:
    producer = transactional(request)
    producer.begin_transaction()
    place = {"partition": request["partition"]} if "partition" in request else {}
    for value in request["values"]:
        producer.produce(request["topic"], value.encode(), on_delivery=say_acked, **place)
    producer.flush()
    end = producer.commit_transaction if request["end"] == "commit" else producer.abort_transaction
    insist(lambda: end(CALL_TIMEOUT_S))
    say(ended=request["end"])


def pipeline(request: Request) -> None:
    """As librdkafka asks of an application: retries, or aborts and continues at the committed offsets, or replaces the producer."""
    closed = stdin_closed()
    consumer = member(request, request["source"], {"isolation.level": "read_committed"})
    producer = transactional(request)
    while not closed.is_set():
        messages = [message for message in consumer.consume(MOST, POLL_S) if has_record(message)]
        if not messages:
            continue
        try:
            process(request["sink"], messages, producer, consumer)
            say(committed=len(messages))
        except KafkaException as problem:
            print(problem, file=sys.stderr)
            if problem.args[0].txn_requires_abort() and aborted(producer):
                pass
            elif problem.args[0].fatal() or problem.args[0].txn_requires_abort():
                producer = transactional(request)
            else:
                raise
            seek_to_committed(consumer)
    consumer.close()


def process(sink: str, messages: list[Message], producer: Producer, consumer: Consumer) -> None:
    producer.begin_transaction()
    for message in messages:
        producer.produce(sink, b"processed " + message.value(), partition=message.partition())
    positions = consumer.position(consumer.assignment())
    metadata = consumer.consumer_group_metadata()
    insist(lambda: producer.send_offsets_to_transaction(positions, metadata, CALL_TIMEOUT_S))
    insist(lambda: producer.commit_transaction(CALL_TIMEOUT_S))


def aborted(producer: Producer) -> bool:
    try:
        insist(lambda: producer.abort_transaction(CALL_TIMEOUT_S))
    except KafkaException as problem:
        print(problem, file=sys.stderr)
        return False
    return True


def seek_to_committed(consumer: Consumer) -> None:
    for at in consumer.committed(consumer.assignment(), LONG_S):
        consumer.seek(TopicPartition(at.topic, at.partition, max(at.offset, 0)))


def admin(request: Request) -> None:
    client = AdminClient(connection(request))
    topic = request["topic"]
    configs = {"retention.ms": "3600000"}
    client.create_topics([NewTopic(topic, 2, 3, config=configs)], operation_timeout=LONG_S)[topic].result()
    did("create_topics", topic)
    did("describe_topics", partitions_of(client, topic, 2))
    client.create_partitions([NewPartitions(topic, 4)], operation_timeout=LONG_S)[topic].result()
    did("create_partitions", partitions_of(client, topic, 4))
    change = ConfigEntry("retention.ms", "7200000", incremental_operation=AlterConfigOpType.SET)
    (altered,) = client.incremental_alter_configs(
        [ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[change])]
    ).values()
    altered.result()
    did("alter_configs", {"retention.ms": "7200000"})
    (described,) = client.describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    did("describe_configs", {"retention.ms": described.result()["retention.ms"].value})
    did("list_topics", sorted(client.list_topics(timeout=LONG_S).topics))
    did("list_groups", [found.group_id for found in client.list_consumer_groups().result().valid])
    client.delete_topics([topic], operation_timeout=LONG_S)[topic].result()
    did("delete_topics", topic)


def partitions_of(client: AdminClient, topic: str, expected: int) -> dict[int, list[int]]:
    """Partition -> replicas. A broker may know a change a little later than the controller."""
    while True:
        found = client.list_topics(topic, LONG_S).topics[topic].partitions
        if len(found) == expected:
            return {number: partition.replicas for number, partition in found.items()}
        time.sleep(POLL_S)


def login(request: Request) -> None:
    """librdkafka tries a failed login again without an end, and reports each failure as an event."""
    errors: list[KafkaError] = []
    client = AdminClient({**connection(request), "error_cb": errors.append})
    while True:
        try:
            client.list_topics(timeout=POLL_S)
        except KafkaException as problem:
            errors.append(problem.args[0])
            client.poll(0)
        else:
            say_login(None)
            return
        for error in errors:
            if error.code() == KafkaError._AUTHENTICATION:
                say_login("SASL_AUTHENTICATION_FAILED", error)
                return


def denied(request: Request) -> None:
    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is None:
            say_acked(error, message)
        else:
            say_refused(error.name(), to="write", topic=message.topic(), saw=error)

    producer = Producer(connection(request))
    topic, others = request["topic"], request["denied"]
    for name, values in (
        (topic, request["before"]),
        *((other, ["denied"]) for other in others),
        (topic, request["after"]),
    ):
        for value in values:
            producer.produce(name, value.encode(), on_delivery=delivered)
        producer.flush()
    consumer = Consumer({**connection(request), "group.id": request["group"], **MEMBER})
    consumer.subscribe([*others, topic])
    unread, unrefused = len(request["before"]) + len(request["after"]), set(others)
    while unread or unrefused:
        for message in consumer.consume(MOST, POLL_S):
            error = message.error()
            if error is None:
                unread -= 1
                say_record(
                    message.partition(), message.offset(), message.key(), message.value(), message.timestamp()[1]
                )
            else:
                if message.topic() in unrefused:
                    say_refused(error.name(), to="read", topic=message.topic(), saw=error)
                unrefused.discard(message.topic())
    consumer.close()


if __name__ == "__main__":
    sys.exit(run(globals()))
