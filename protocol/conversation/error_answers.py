"""The answer that says an error, made from the request: it names what the request names, and has the error in each row. Pure.

A request may be hit in some of its rows only. Then it is split: the rest is done, and its answer gets the rows with the error.
"""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING
from types import MappingProxyType
from typing import Any

from protocol.conversation.asked import (
    PARTITION_NUMBERS,
    PARTITION_ROWS,
    TOPIC_NAMES,
    TOPIC_ROWS,
    NameOf,
    Plain,
    partition_of,
    rows_of,
    topic_of,
)
from protocol.errors import ErrorCode
from protocol.kafka import fetch_codec, messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.by_schema import fields_of

SPLIT = frozenset(
    {
        ApiKey.PRODUCE,
        ApiKey.FETCH,
        ApiKey.LIST_OFFSETS,
        ApiKey.OFFSET_COMMIT,
        ApiKey.TXN_OFFSET_COMMIT,
        ApiKey.OFFSET_FOR_LEADER_EPOCH,
        ApiKey.DELETE_RECORDS,
    }
)
"""The APIs whose partitions have nothing to do with each other."""
STAMPED = frozenset({ApiKey.METADATA})
"""The work is done, and the rows of its answer get the error: what else is in it, such as the brokers, is needed by clients."""
AT_THE_TOP = frozenset(
    {
        ApiKey.OFFSET_FETCH,
        ApiKey.JOIN_GROUP,
        ApiKey.HEARTBEAT,
        ApiKey.LEAVE_GROUP,
        ApiKey.SYNC_GROUP,
        ApiKey.LIST_GROUPS,
        ApiKey.INIT_PRODUCER_ID,
        ApiKey.ADD_OFFSETS_TO_TXN,
        ApiKey.END_TXN,
        ApiKey.CONSUMER_GROUP_HEARTBEAT,
    }
)
"""The error is that of the whole request, or of a group in it; in the other APIs it is that of the innermost rows."""
OF_PARTITIONS = frozenset({ErrorCode.UNSTABLE_OFFSET_COMMIT, ErrorCode.UNKNOWN_TOPIC_ID})
"""Errors of an OffsetFetch that are those of partitions."""
OF_SESSIONS = frozenset(
    {
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    }
)
"""Errors of a whole Fetch."""

_ASKED_AS: Mapping[str, Sequence[str]] = MappingProxyType(
    {
        "responses": ("topic_data", "topics", "topic_names"),
        "topics": ("topics",),
        "results": ("groups_names", "topics", "resources"),
        "topic_results": ("topics",),
        "results_by_topic_v3_and_below": ("v3_and_below_topics",),
        "results_by_transaction": ("transactions",),
        "partition_responses": ("partition_data",),
        "partitions": ("partitions", "partition_indexes"),
        "results_by_partition": ("partitions",),
        "groups": ("groups", "group_ids"),
        "coordinators": ("coordinator_keys",),
        "members": ("members",),
    }
)
"""An array of an answer -> the array of the request that it answers."""
_SAME = (TOPIC_NAMES, PARTITION_NUMBERS, ("group_id", "key", *TOPIC_NAMES))
"""Fields with one meaning under several names."""
_UNKNOWN = ("offset", "epoch", "watermark", "node", "port", "leader", "generation", "timestamp", "producer_id", "time")
"""Numbers with such names are -1 if nothing is known."""
_ERROR = "error_code"


def body_with(api_key: int, version: int, asked: Mapping[str, Any], error: ErrorCode) -> bytes:
    """The body of the answer to this request that has the error."""
    schema = messages.response_schema(api_key, version)
    return messages.encode_response(api_key, version, _mirror(schema, asked, _Where(api_key, error)))


def fetch_body_with(version: int, asked: fetch_codec.FetchRequest, error: ErrorCode) -> bytes:
    """The same of a Fetch, written fast: it may name thousands of partitions."""
    of_all = error in OF_SESSIONS
    topics = [
        (key, [fetch_codec.FetchPartitionData(row.partition, int(error)) for row in rows])
        for key, rows in (() if of_all else asked.topics)
    ]
    return b"".join(fetch_codec.encode_response(version, 0, int(error) if of_all else 0, asked.session_id, topics))


def is_outermost(api_key: int, error: ErrorCode) -> bool:
    """Whether the error is that of the whole request, or of a group in it. The answer has no rows then."""
    return error in OF_SESSIONS or (api_key in AT_THE_TOP and error not in OF_PARTITIONS)


class _Where:
    """Which of the error fields of an answer get the error."""

    def __init__(self, api_key: int, error: ErrorCode) -> None:
        self.error = error
        self._is_outermost = is_outermost(api_key, error)

    def takes(self, schema: Any) -> bool:
        """Whether the error belongs to this entity, and not to those in its arrays."""
        return self._is_outermost or not any(
            field.is_array and field.name in _ASKED_AS and _has_error(field.element) for field in fields_of(schema)
        )

    def within(self, schema: Any) -> _Where:
        """For the entities in the arrays of this one."""
        if not self._is_outermost or not _has_own_error(schema):
            return self
        return _NOWHERE


def _has_own_error(schema: Any) -> bool:
    return any(field.kafka_type == _ERROR for field in fields_of(schema))


def _has_error(element: Any) -> bool:
    return element is not None and (
        _has_own_error(element) or any(_has_error(field.element) for field in fields_of(element) if field.is_array)
    )


_NOWHERE = _Where(-1, ErrorCode.NONE)


def _mirror(schema: Any, asked: Mapping[str, Any], where: _Where) -> Plain:
    found: Plain = {}
    takes = where.takes(schema)
    for field in fields_of(schema):
        if field.kafka_type == _ERROR and not field.is_array:
            found[field.name] = int(where.error if takes else ErrorCode.NONE)
        elif field.is_array:
            found[field.name] = _mirrored_rows(field, asked, where.within(schema))
        elif field.name in asked and field.element is None and not _is_unknown(field.name):
            found[field.name] = asked[field.name]
        else:
            found[field.name] = _like(field.name, asked, _blank(field))
    return found


def _like(name: str, asked: Mapping[str, Any], blank: Any) -> Any:
    for same in _SAME:
        if name in same:
            return next((asked[other] for other in same if other in asked), blank)
    return blank


def _mirrored_rows(field: Any, asked: Mapping[str, Any], where: _Where) -> list[Any] | None:
    if where is _NOWHERE or not _has_error(field.element):
        return None if field.is_nullable else []
    rows = rows_of(asked, _ASKED_AS.get(field.name, ()))
    mirrored = []
    for row in rows[1] if rows is not None else ():
        if not isinstance(row, Mapping):
            row = _as_row(field.element, row)
        mirrored.append(_mirror(field.element, row, where))
    return mirrored


def _as_row(element: Any, value: Any) -> Plain:
    """A name or a number in an array stands for an element that has only this."""
    kind = "string" if isinstance(value, str) else "int32"
    keys = (*TOPIC_NAMES, "group_id", "key") if kind == "string" else PARTITION_NUMBERS
    name = next(field.name for field in fields_of(element) if field.name in keys)
    return {name: value}


def _blank(field: Any) -> Any:
    """What Kafka has in a field of an answer with an error."""
    if field.default is not MISSING:
        return 0 if isinstance(field.default, datetime.timedelta) else _plain_default(field.default)
    if field.element is not None:
        return {inner.name: _blank(inner) for inner in fields_of(field.element)}
    kind = field.kafka_type
    if kind in ("bytes", "records"):
        return b""
    if kind == "string":
        return None if field.is_nullable else ""
    if kind == "bool":
        return False
    if kind == "uuid" or kind.startswith("datetime"):
        return None
    return -1 if _is_unknown(field.name) and not kind.startswith("timedelta") else 0


def _is_unknown(name: str) -> bool:
    return any(word in name for word in _UNKNOWN)


def _plain_default(default: Any) -> Any:
    names = getattr(type(default), "__dataclass_fields__", None)
    return {name: _plain_default(getattr(default, name)) for name in names} if names else default


# -- some rows of a request -----------------------------------------------------------------------------------------------


Matches = Callable[[str, int], bool]
"""(topic, partition) -> is it hit?"""


def split(body: Mapping[str, Any], name_of: NameOf, matches: Matches) -> tuple[Plain, Plain]:
    """(the request with only the partitions that are hit, the request with the others). Either may have no rows."""
    found = rows_of(body, TOPIC_ROWS)
    if found is None:
        return {**body}, {**body}
    name, topics = found
    hit, rest = [], []
    for topic_row in topics:
        topic = topic_of(topic_row, name_of)
        partitions = rows_of(topic_row, PARTITION_ROWS)
        if topic is None or partitions is None:
            rest.append(topic_row)
            continue
        key, rows = partitions
        those: list[Any] = []
        others: list[Any] = []
        for row in rows:
            (those if matches(topic, partition_of(row) or 0) else others).append(row)
        hit += [{**topic_row, key: those}] if those else []
        rest += [{**topic_row, key: others}] if others else []
    return {**body, name: hit}, {**body, name: rest}


def has_rows(body: Mapping[str, Any]) -> bool:
    return rows_of(body, TOPIC_ROWS) is not None


def merged(answer: Plain, more: Mapping[str, Any]) -> Plain:
    """The answer with the rows of another one to the same API and version."""
    name = next((name for name in TOPIC_ROWS if name in answer), None)
    if name is None:
        return answer
    topics = list(answer[name])
    for row in more[name]:
        key = {each: row[each] for each in (*TOPIC_NAMES, "topic_id") if each in row}
        at = next((i for i, other in enumerate(topics) if all(other[each] == row[each] for each in key)), None)
        if at is None:
            topics.append(row)
        else:
            inner = next(name for name in PARTITION_ROWS if name in row)
            topics[at] = {**topics[at], inner: [*topics[at][inner], *row[inner]]}
    return {**answer, name: topics}


def stamped(answer: Plain, error: ErrorCode, is_hit: Callable[[str], bool]) -> Plain:
    """An answer of STAMPED whose topics that are hit have the error, and no partitions."""
    rows = []
    for row in answer["topics"]:
        if is_hit(row["name"] or ""):
            row = {**row, _ERROR: int(error), "partitions": []}
        rows.append(row)
    return {**answer, "topics": rows}
