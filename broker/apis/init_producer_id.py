"""InitProducerId (API 22), v0 to v5: an id and epoch 0 for an idempotent producer (LOG-5).

Without a transactional id the answer is always a new id, even for a producer that sends its old id and epoch (KIP-360, v3), as in
Kafka 3.9: such a producer raises its epoch itself. An id without an epoch, or an epoch without an id, gets INVALID_REQUEST.
Transactions are not supported: a transactional id also gets INVALID_REQUEST, which no client retries.
"""

from __future__ import annotations

import logging

from broker.network.request_channel import Request
from broker.requests.context import ApiContext
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey

log = logging.getLogger(__name__)

OLD_ID_SINCE = 3
NO_ID = -1
FIRST_EPOCH = 0


async def init_producer_id(context: ApiContext, request: Request) -> None:
    header = request.header
    version = header.api_version
    body = messages.decode_request(ApiKey.INIT_PRODUCER_ID, version, request.frame, header.body_offset)
    answer = {"throttle_time": 0, "error_code": 0, "producer_id": NO_ID, "producer_epoch": NO_ID}
    try:
        if body.transactional_id is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "transactions are not supported")
        if version >= OLD_ID_SINCE and (body.producer_id == NO_ID) != (body.producer_epoch == NO_ID):
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a producer id and a producer epoch must be sent together")
        answer["producer_id"] = await context.producer_ids.next_id()
        answer["producer_epoch"] = FIRST_EPOCH
    except KafkaError as error:
        log.info("%s refused: %s", request, error)
        answer["error_code"] = int(error.code)
    request.respond_small(messages.encode_response(ApiKey.INIT_PRODUCER_ID, version, answer))
