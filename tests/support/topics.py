"""Helpers of nearly every test of a running cluster: make a topic, change settings, write a batch."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from protocol.kafka.api_keys import ApiKey
from tests.support.wire import Wire

TIMEOUT_S = 30.0


def create_topics(bootstrap_servers: str, *topics: NewTopic) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 2})
    for made in admin.create_topics(list(topics)).values():
        made.result(TIMEOUT_S)


def new_topic(
    bootstrap_servers: str,
    partitions: int = 1,
    replicas: int = 1,
    *,
    assignment: Sequence[Sequence[int]] | None = None,
    **config: str,
) -> str:
    """A topic with a name of its own; with `assignment`, the replicas of each partition are these. `_` stands for `.`."""
    name = f"topic-{uuid.uuid4().hex[:8]}"
    settings = {key.replace("_", "."): value for key, value in config.items()}
    if assignment is None:
        topic = NewTopic(name, partitions, replicas, config=settings)
    else:
        rows = [list(row) for row in assignment]
        topic = NewTopic(name, len(rows), replica_assignment=rows, config=settings)
    create_topics(bootstrap_servers, topic)
    return name


def fill(bootstrap_servers: str, topic: str, values: Iterable[str | bytes], partitions: int = 1) -> None:
    """Writes the values to the partitions in turn. Returns when all replicas in sync have them."""
    write(Producer({"bootstrap.servers": bootstrap_servers, "acks": "all", "linger.ms": 5}), topic, values, partitions)


def write(
    producer: Producer, topic: str, values: Iterable[str | bytes], partitions: int = 1, timeout_s: float = TIMEOUT_S
) -> None:
    """Writes the values to the partitions in turn. Returns when all are acknowledged."""
    failures: list[Any] = []
    for number, value in enumerate(values):
        producer.produce(
            topic,
            value,
            partition=number % partitions,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(timeout_s) == 0
    assert failures == []


def set_configs(bootstrap_servers: str, kind: ResourceType, name: str, values: Mapping[str, str | None]) -> None:
    """Sets settings of a topic or a broker; None resets one."""
    set_or_reset = {False: AlterConfigOpType.SET, True: AlterConfigOpType.DELETE}
    entries = [
        ConfigEntry(key, value, incremental_operation=set_or_reset[value is None]) for key, value in values.items()
    ]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    admin.incremental_alter_configs([resource])[resource].result(TIMEOUT_S)


def produce_body(topic: str, batch: bytes | None, acks: int = -1, partitions: Sequence[int] = (0,)) -> dict[str, Any]:
    """The batch for each of the partitions."""
    data = [{"name": topic, "partition_data": [{"index": number, "records": batch} for number in partitions]}]
    return {"transactional_id": None, "acks": acks, "timeout": 10_000, "topic_data": data}


def produce_batch(wire: Wire, topic: str, batch: bytes | None, acks: int = -1, version: int = 9) -> Any:
    """Sends the batch to partition 0. Returns its answer."""
    answer = wire.call(ApiKey.PRODUCE, version, produce_body(topic, batch, acks))
    return answer.responses[0].partition_responses[0]


def fetch_body(
    topic: str, offset: int = 0, *, max_wait_ms: int = 0, min_bytes: int = 1, bytes_max: int
) -> dict[str, Any]:
    """Of a consumer that wants partition 0, without a session: v0 to v12."""
    partition = {
        "partition": 0,
        "current_leader_epoch": -1,
        "fetch_offset": offset,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": bytes_max,
    }
    return {
        "replica_id": -1,
        "max_wait": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": bytes_max,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [partition]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def end_offset(wire: Wire, topic: str) -> int:
    """Of partition 0, as a consumer is told of it: the high watermark."""
    asked = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    body = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": topic, "partitions": [asked]}]}
    return int(wire.call(ApiKey.LIST_OFFSETS, 5, body).topics[0].partitions[0].offset)


def init_producer_id(wire: Wire, transactional_id: str | None = None) -> Any:
    """The answer for a producer that has no id yet."""
    ask = {"transactional_id": transactional_id, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    return wire.call(ApiKey.INIT_PRODUCER_ID, 4, ask)
