"""AddOffsetsToTxn (API 25), v0 to v4: adds the group's partition of `__consumer_offsets` to a transaction (TXN-1).

TxnOffsetCommit follows at the coordinator of the group. PRODUCER_FENCED is INVALID_PRODUCER_EPOCH before v2.
While the partition does not exist, the answer is COORDINATOR_NOT_AVAILABLE, which clients retry; the first request creates the topic.
(Kafka adds a partition that does not exist, perhaps not the one that the group gets.)
"""

from __future__ import annotations

from broker.network.request_channel import Request
from broker.requests import rights
from broker.requests.context import ApiContext
from broker.requests.producer_errors import respond_with_error
from broker.requests.steps import Further
from broker.transactions.transaction import ProducerIdAndEpoch
from protocol.acls import Operation
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.topic_names import OFFSETS_TOPIC
from protocol.types import TopicPartition


def add_offsets_to_txn(context: ApiContext, request: Request) -> Further:
    header = request.header
    body = messages.decode_request(ApiKey.ADD_OFFSETS_TO_TXN, header.api_version, request.frame, header.body_offset)
    if not rights.on_transactional_id(context, request, Operation.WRITE, str(body.transactional_id)):
        respond_with_error(request, ApiKey.ADD_OFFSETS_TO_TXN, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)
        return None
    if not rights.on_group(context, request, Operation.READ, str(body.group_id)):
        respond_with_error(request, ApiKey.ADD_OFFSETS_TO_TXN, ErrorCode.GROUP_AUTHORIZATION_FAILED)
        return None
    tp = TopicPartition(OFFSETS_TOPIC, context.groups.partition_of(str(body.group_id)))
    if context.metadata.partition(tp) is None:
        return _make_topic_and_refuse(context, request)
    producer = ProducerIdAndEpoch(int(body.producer_id), int(body.producer_epoch))
    context.transactions.add_partitions(
        str(body.transactional_id),
        producer,
        (tp,),
        lambda error: respond_with_error(request, ApiKey.ADD_OFFSETS_TO_TXN, error),
    )
    return None


async def _make_topic_and_refuse(context: ApiContext, request: Request) -> None:
    if not context.metadata.partitions_of(OFFSETS_TOPIC):
        await context.topic_admin.create_automatically([OFFSETS_TOPIC])
    respond_with_error(request, ApiKey.ADD_OFFSETS_TO_TXN, ErrorCode.COORDINATOR_NOT_AVAILABLE)
