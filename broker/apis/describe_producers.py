"""DescribeProducers (API 61), v0: the idempotent producers that a replica's log knows (KIP-664).

Every replica answers, not only the leader: `kafka-transactions find-hanging --broker-id` asks a broker about all of its partitions. A
partition that is named twice is answered once.
"""

from __future__ import annotations

import itertools
from typing import Any

from broker.network.request_channel import Request
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.steps import Further, Steps, respond_in_steps
from broker.storage.producers.producer_state import ProducerEntry
from protocol.acls import Operation
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import messages
from protocol.topic_names import is_valid_topic_name
from protocol.types import TopicPartition


def describe_producers(context: ApiContext, request: Request) -> Further:
    return respond_in_steps(context, request, _answer(context, request))


def _answer(context: ApiContext, request: Request) -> Steps:
    header = request.header
    body = yield from messages.decoding(header.api_key, header.api_version, request.frame, header.body_offset)
    asked: dict[str, dict[int, None]] = {}
    for topic in body.topics:
        asked.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
        yield
    topics = (
        {"name": name, "partitions": (_describe(context, request, TopicPartition(name, number)) for number in numbers)}
        for name, numbers in asked.items()
    )
    answer = {"throttle_time": 0, "topics": topics}
    return (yield from messages.encoding(header.api_key, header.api_version, answer))


def _describe(context: ApiContext, request: Request, tp: TopicPartition) -> dict[str, Any]:
    try:
        if not is_valid_topic_name(tp.topic):
            raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, "illegal topic name")
        if not rights.on_topic(context, request, Operation.READ, tp.topic):
            raise KafkaError(ErrorCode.TOPIC_AUTHORIZATION_FAILED, "")
        log = context.replica_manager.partitions.find(tp).any_log()
    except KafkaError as error:
        return {
            "partition_index": tp.partition,
            "error_code": int(error.code),
            "error_message": error.message or error.code.name,
            "active_producers": [],
        }
    rows = itertools.starmap(_row, list(log.producers.state.producers.items()))
    return {"partition_index": tp.partition, "error_code": 0, "error_message": None, "active_producers": rows}


def _row(producer_id: int, entry: ProducerEntry) -> dict[str, int]:
    return {
        "producer_id": producer_id,
        "producer_epoch": entry.epoch,
        "last_sequence": entry.last_sequence,
        "last_timestamp": entry.last_timestamp,
        "coordinator_epoch": entry.coordinator_epoch,
        "current_txn_start_offset": entry.transaction_first_offset,
    }
