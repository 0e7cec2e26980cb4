"""Schemas of messages that are older than kio's: Kafka 4 has removed these versions (KIP-896), and kio with it.

They are dataclasses as kio generates them, so that `by_schema` and kio itself read and write them. A version that has the
same fields as kio's oldest uses kio's schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields, make_dataclass
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import protocol.kafka.kio_without_hypothesis  # isort: skip  # noqa: F401
import kio.index
from kio.schema.errors import ErrorCode
from kio.schema.request_header.v1.header import RequestHeader
from kio.schema.response_header.v0.header import ResponseHeader
from kio.static.constants import EntityType
from kio.static.primitive import i16, i32, i32Timedelta, i64

from protocol.kafka.api_keys import ApiKey

KIOS_OLDEST: Mapping[int, int] = MappingProxyType(
    {
        ApiKey.FETCH: 4,
        ApiKey.LIST_OFFSETS: 1,
        ApiKey.OFFSET_COMMIT: 2,
        ApiKey.CREATE_TOPICS: 2,
        ApiKey.DELETE_TOPICS: 1,
    }
)
"""The APIs of this module, with the first version that kio has. All versions before it are here, but OffsetCommit v0."""

_HINTS: Mapping[str, Any] = MappingProxyType(
    {
        "bool": bool,
        "int16": i16,
        "int32": i32,
        "int64": i64,
        "string": str,
        "error_code": ErrorCode,
        "timedelta_i32": i32Timedelta,
    }
)


class Schemas(NamedTuple):
    request: Any
    response: Any


def has_schemas(api_key: int, version: int) -> bool:
    """Whether `schemas` has this version."""
    oldest = 1 if api_key == ApiKey.OFFSET_COMMIT else 0
    return oldest <= version < KIOS_OLDEST.get(api_key, 0)


@cache
def schemas(api_key: int, version: int) -> Schemas:
    """The schemas of a version for which `has_schemas` is true."""
    return {
        ApiKey.FETCH: _fetch,
        ApiKey.LIST_OFFSETS: _list_offsets,
        ApiKey.OFFSET_COMMIT: _offset_commit,
        ApiKey.CREATE_TOPICS: _create_topics,
        ApiKey.DELETE_TOPICS: _delete_topics,
    }[ApiKey(api_key)](version)


class _Version(NamedTuple):
    """Makes the entities of one message."""

    api_key: ApiKey
    version: int
    kind: EntityType
    header: Any

    def entity(self, name: str, kind: EntityType = EntityType.nested, /, **hints: Any) -> Any:
        """A dataclass with these fields: the name of a Kafka type, `?` behind it if it may be null; or a list with an entity or type."""
        plan = []
        for field_name, given in hints.items():
            element = given[0] if isinstance(given, list) else given
            kafka_type = element.removesuffix("?") if isinstance(element, str) else None
            hint = element if kafka_type is None else bytes if kafka_type == "records" else _HINTS[kafka_type]
            if isinstance(given, list):
                hint = tuple[hint, ...]  # type: ignore[valid-type]
            elif isinstance(element, str) and element.endswith("?"):
                hint = hint | None
            plan.append((field_name, hint, field(metadata={"kafka_type": kafka_type} if kafka_type else {})))
        namespace = {
            "__module__": __name__,
            "__type__": kind,
            "__version__": i16(self.version),
            "__flexible__": False,
            "__api_key__": i16(self.api_key),
            "__header_schema__": self.header,
        }
        return make_dataclass(name, plan, namespace=namespace, frozen=True, kw_only=True)

    def message(self, **hints: Any) -> Any:
        name = "".join(word.capitalize() for word in self.api_key.name.split("_"))
        return self.entity(f"{name}{self.kind.name.capitalize()}", self.kind, **hints)


def _request(api_key: ApiKey, version: int) -> _Version:
    return _Version(api_key, version, EntityType.request, RequestHeader)


def _response(api_key: ApiKey, version: int) -> _Version:
    return _Version(api_key, version, EntityType.response, ResponseHeader)


def _throttle(*, is_there: bool) -> dict[str, str]:
    return {"throttle_time": "timedelta_i32"} if is_there else {}


def _fetch(version: int) -> Schemas:
    """v1 throttle time, v3 the largest answer. v2 and v3 differ in what records may be."""
    asked, answered = _request(ApiKey.FETCH, version), _response(ApiKey.FETCH, version)
    row = asked.entity("FetchPartition", partition="int32", fetch_offset="int64", partition_max_bytes="int32")
    topic = asked.entity("FetchTopic", topic="string", partitions=[row])
    most = {"max_bytes": "int32"} if version >= 3 else {}
    request = asked.message(replica_id="int32", max_wait="timedelta_i32", min_bytes="int32", **most, topics=[topic])
    data = answered.entity(
        "PartitionData", partition_index="int32", error_code="error_code", high_watermark="int64", records="records?"
    )
    found = answered.entity("FetchableTopicResponse", topic="string", partitions=[data])
    return Schemas(request, answered.message(**_throttle(is_there=version >= 1), responses=[found]))


def _list_offsets(version: int) -> Schemas:
    """v0: several offsets for each partition."""
    asked, answered = _request(ApiKey.LIST_OFFSETS, version), _response(ApiKey.LIST_OFFSETS, version)
    row = asked.entity("ListOffsetsPartition", partition_index="int32", timestamp="int64", max_num_offsets="int32")
    topic = asked.entity("ListOffsetsTopic", name="string", partitions=[row])
    data = answered.entity(
        "ListOffsetsPartitionResponse", partition_index="int32", error_code="error_code", old_style_offsets=["int64"]
    )
    found = answered.entity("ListOffsetsTopicResponse", name="string", partitions=[data])
    return Schemas(asked.message(replica_id="int32", topics=[topic]), answered.message(topics=[found]))


def _offset_commit(version: int) -> Schemas:
    """v1: a commit time for each partition, and no retention time."""
    asked = _request(ApiKey.OFFSET_COMMIT, version)
    row = asked.entity(
        "OffsetCommitRequestPartition",
        partition_index="int32",
        committed_offset="int64",
        commit_timestamp="int64",
        committed_metadata="string?",
    )
    topic = asked.entity("OffsetCommitRequestTopic", name="string", partitions=[row])
    request = asked.message(
        group_id="string", generation_id_or_member_epoch="int32", member_id="string", topics=[topic]
    )
    return Schemas(request, kio.index.load_response_schema(ApiKey.OFFSET_COMMIT, 2))


def _create_topics(version: int) -> Schemas:
    """v1 validates only, and gives a reason; v2 has a throttle time."""
    oldest = kio.index.load_request_schema(ApiKey.CREATE_TOPICS, 2)
    asked, answered = _request(ApiKey.CREATE_TOPICS, version), _response(ApiKey.CREATE_TOPICS, version)
    request = oldest
    if version < 1:
        topics: Any = next(each.type for each in fields(oldest) if each.name == "topics")
        request = asked.message(topics=[topics.__args__[0]], timeout="timedelta_i32")
    reason = {"error_message": "string?"} if version >= 1 else {}
    result = answered.entity("CreatableTopicResult", name="string", error_code="error_code", **reason)
    return Schemas(request, answered.message(topics=[result]))


def _delete_topics(version: int) -> Schemas:
    """v1 has a throttle time."""
    answered = _response(ApiKey.DELETE_TOPICS, version)
    result = answered.entity("DeletableTopicResult", name="string", error_code="error_code")
    return Schemas(kio.index.load_request_schema(ApiKey.DELETE_TOPICS, 1), answered.message(responses=[result]))
