"""DescribeCluster (API 60), v0 and v1: the live brokers on the request's listener, the cluster id, the controller."""

from __future__ import annotations

from broker.network.request_channel import Request
from broker.requests.context import ApiContext
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey

ENDPOINT_TYPE_SINCE = 1
BROKERS = 1
CONTROLLERS = 2


def describe_cluster(context: ApiContext, request: Request) -> None:
    header = request.header
    version = header.api_version
    body = messages.decode_request(ApiKey.DESCRIBE_CLUSTER, version, request.frame, header.body_offset)
    listener = request.connection.listener
    error, message, rows = ErrorCode.NONE, None, []
    if version >= ENDPOINT_TYPE_SINCE and body.endpoint_type != BROKERS:
        is_known = body.endpoint_type == CONTROLLERS
        error = ErrorCode.MISMATCHED_ENDPOINT_TYPE if is_known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        message = "a broker of a ZooKeeper cluster can only describe brokers"
    else:
        for broker in context.metadata.brokers():
            endpoint = broker.endpoint(listener)
            if endpoint is not None:
                rows.append({"broker_id": broker.id, "host": endpoint.host, "port": endpoint.port, "rack": broker.rack})
    response = {
        "throttle_time": 0,
        "error_code": int(error),
        "error_message": message,
        "cluster_id": context.cluster_id,
        "controller_id": context.metadata.controller_id,
        "brokers": rows,
    }
    request.respond_small(messages.encode_response(ApiKey.DESCRIBE_CLUSTER, version, response))
