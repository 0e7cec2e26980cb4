"""DescribeCluster (API 60), v0 to v2: the live brokers on the request's listener, the cluster id, the controller.

No broker is fenced (v2, KIP-1073): of brokers that are not live, a ZooKeeper cluster knows nothing.
"""

from __future__ import annotations

from broker.network.request_channel import Request
from broker.requests import rights
from broker.requests.context import ApiContext
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.metadata_codec import CLUSTER_OPERATIONS, OPERATIONS_NOT_ASKED

ENDPOINT_TYPE_SINCE = 1
BROKERS = 1
CONTROLLERS = 2
NO_CONTROLLER = -1


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
                address = {"host": endpoint.host, "port": endpoint.port, "rack": broker.rack}
                rows.append({"broker_id": broker.id, **address, "is_fenced": False})
    response = {
        "throttle_time": 0,
        "error_code": int(error),
        "error_message": message,
        "cluster_id": "" if error else context.cluster_id,
        "controller_id": NO_CONTROLLER if error else context.metadata.controller_id,
        "brokers": rows,
        "cluster_authorized_operations": rights.operations_on_cluster(context, request, CLUSTER_OPERATIONS)
        if body.include_cluster_authorized_operations and not error
        else OPERATIONS_NOT_ASKED,
    }
    request.respond_small(messages.encode_response(ApiKey.DESCRIBE_CLUSTER, version, response))
