"""DescribeProducers (API 61), v0: the idempotent producers that the leader of a partition knows (KIP-664)."""

from __future__ import annotations

from typing import Any

from broker.apis.context import ApiContext
from broker.network.request_channel import Request
from broker.storage.producer_state import ProducerEntry
from protocol.errors import KafkaError
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.types import TopicPartition


def describe_producers(context: ApiContext, request: Request) -> None:
    header = request.header
    version = header.api_version
    body = messages.decode_request(ApiKey.DESCRIBE_PRODUCERS, version, request.frame, header.body_offset)
    topics = [
        {
            "name": topic.name,
            "partitions": [
                _describe(context, TopicPartition(topic.name, number)) for number in topic.partition_indexes
            ],
        }
        for topic in body.topics
    ]
    response = {"throttle_time": 0, "topics": topics}
    request.respond_small(messages.encode_response(ApiKey.DESCRIBE_PRODUCERS, version, response))


def _describe(context: ApiContext, tp: TopicPartition) -> dict[str, Any]:
    try:
        log = context.replica_manager.partitions.find(tp).leader_log()
    except KafkaError as error:
        return {
            "partition_index": tp.partition,
            "error_code": int(error.code),
            "error_message": error.message or None,
            "active_producers": [],
        }
    rows = [_row(producer_id, entry) for producer_id, entry in log.producers.state.producers.items()]
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
