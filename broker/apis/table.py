"""The one routing table: which function serves which API, at a glance.

A handler answers through the request, now or later, and returns None; one that has to await returns a coroutine, and the
requests that follow on its connection wait for it. Versions are `protocol.kafka.api_keys.SUPPORTED`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any

from broker.apis.api_versions import api_versions
from broker.apis.context import ApiContext
from broker.apis.create_topics import create_topics
from broker.apis.describe_cluster import describe_cluster
from broker.apis.fetch import fetch
from broker.apis.list_offsets import list_offsets
from broker.apis.metadata import metadata
from broker.apis.offset_for_leader_epoch import offset_for_leader_epoch
from broker.apis.produce import produce
from broker.network.request_channel import Request
from protocol.kafka.api_keys import ApiKey

Handler = Callable[[ApiContext, Request], Coroutine[Any, Any, None] | None]

HANDLERS: Mapping[ApiKey, Handler] = MappingProxyType(
    {
        ApiKey.PRODUCE: produce,
        ApiKey.FETCH: fetch,
        ApiKey.LIST_OFFSETS: list_offsets,
        ApiKey.METADATA: metadata,
        ApiKey.API_VERSIONS: api_versions,
        ApiKey.CREATE_TOPICS: create_topics,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch,
        ApiKey.DESCRIBE_CLUSTER: describe_cluster,
    }
)
