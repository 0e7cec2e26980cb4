"""What a request names: topics with their partitions, groups, transactional ids. Pure.

Messages are *plain* here: nested dicts with the schemas' field names, as `messages` writes them, with times in milliseconds.
"""

from __future__ import annotations

import datetime
import struct
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from protocol.kafka import fetch_codec, messages
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.kafka.framing import MalformedRequest, RequestHeader, is_flexible
from protocol.kafka.wire import SHORT, read_nullable_string
from protocol.types import Buffer

Plain = dict[str, Any]
TOPIC_ROWS = ("topic_data", "topics", "topic_names", "responses", "results", "v3_and_below_topics")
"""The names of arrays of topics, in requests and answers."""
PARTITION_ROWS = ("partition_data", "partitions", "partition_indexes", "partition_responses")
TOPIC_NAMES = ("name", "topic")
PARTITION_NUMBERS = ("partition_index", "partition", "index")
WITHIN = ("groups", "transactions")
"""Arrays whose elements have topics of their own."""
NO_ACKS = 0
FIRST_WITH_TRANSACTIONS = 3
"""The version of Produce from which on a transactional id stands before `acks`."""
READ_FAST = range(4, SUPPORTED[ApiKey.FETCH].max + 1)
"""The versions of Fetch that `fetch_codec` reads."""
NO_SESSION_ID, NO_SESSION = 0, -1
"""The id and the epoch of a Fetch that names all its partitions, and begins no session (KIP-227)."""
FIRST_WITH_SESSIONS, FIRST_WITHOUT_REPLICA_ID = 7, 15
"""Versions of Fetch."""
SESSION_AT = 17
"""Where the session is in the body of a Fetch that begins with a replica id."""
_SESSION = struct.Struct(">ii")
LAST_OF_CLIENTS = 3
"""The last version of AddPartitionsToTxn that clients send; the next ones are for brokers (KIP-890)."""
GROUP_KEY, TRANSACTION_KEY = 0, 1
"""Key types of FindCoordinator."""


class Named(NamedTuple):
    """`partition` None: the whole topic."""

    topic: str
    partition: int | None


NameOf = Callable[[uuid.UUID], str | None]
"""The name of the topic with this id; None: unknown."""


def plain(value: Any) -> Any:
    """An entity that `messages` has read, as it writes one."""
    if isinstance(value, tuple):
        if hasattr(value, "_fields"):
            return {name: plain(each) for name, each in zip(value._fields, value, strict=True)}
        return [plain(each) for each in value]
    if isinstance(value, datetime.timedelta | datetime.datetime):
        return messages.milliseconds(value)
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else value


def topic_of(row: Mapping[str, Any], name_of: NameOf) -> str | None:
    """The topic of an element of TOPIC_ROWS; None: only its id is there, and nobody knows it."""
    for key in TOPIC_NAMES:
        if row.get(key):
            return str(row[key])
    topic_id = row.get("topic_id")
    return name_of(topic_id) if isinstance(topic_id, uuid.UUID) else None


def partition_of(row: Any) -> int | None:
    """The number of an element of PARTITION_ROWS, which may be the number itself."""
    if isinstance(row, int):
        return row
    return next((row[key] for key in PARTITION_NUMBERS if key in row), None) if isinstance(row, Mapping) else None


def rows_of(body: Mapping[str, Any], names: Sequence[str]) -> tuple[str, list[Any]] | None:
    """The first of these arrays that the message has: its name and its elements."""
    return next(((name, list(body[name])) for name in names if body.get(name)), None)


def outside_of_sessions(body: Plain) -> Plain:
    """A Fetch that begins no session."""
    return {**body, "session_id": NO_SESSION_ID, "session_epoch": NO_SESSION} if "session_epoch" in body else body


def has_answer(header: RequestHeader, payload: Buffer) -> bool:
    """False for a Produce with acks=0. `payload`: the frame behind its length. Raises MalformedRequest."""
    if header.api_key != ApiKey.PRODUCE:
        return True
    at = header.body_offset
    if header.api_version >= FIRST_WITH_TRANSACTIONS:
        _, at = read_nullable_string(payload, at, is_flexible(header.api_key, header.api_version))
    if at + SHORT.size > len(payload):
        raise MalformedRequest("a Produce request ends before its acks")
    return bool(SHORT.unpack_from(payload, at)[0] != NO_ACKS)


class Asked:
    """A request, as rules look at it. It is decoded when that is needed first."""

    def __init__(
        self, header: RequestHeader, frame: Buffer, name_of: NameOf, principal: str = "", listener: str = ""
    ) -> None:
        """`frame`: what follows the length. `principal`, `listener`: empty where nobody knows them."""
        self.header = header
        self.frame = frame
        self.name_of = name_of
        self.principal = principal
        self.listener = listener

    @cached_property
    def is_known(self) -> bool:
        """Whether there are schemas for it."""
        return self.header.api_version in messages.versions_with_schemas(self.header.api_key)

    @cached_property
    def has_answer(self) -> bool:
        """False: it is a Produce with acks=0."""
        try:
            return has_answer(self.header, self.frame)
        except MalformedRequest:
            return True  # whoever serves it says so

    @cached_property
    def body(self) -> Plain | None:
        """None: it cannot be read, and whoever serves it will say so."""
        header = self.header
        if not self.is_known:
            return None
        try:
            entity = messages.decode_request(header.api_key, header.api_version, self.frame, header.body_offset)
        except (MalformedRequest, KeyError, ValueError):
            return None
        found: Plain = plain(entity)
        return found

    @cached_property
    def fetch(self) -> fetch_codec.FetchRequest | None:
        """A Fetch, read fast: it may name thousands of partitions. None: it is none, or cannot be read so."""
        header = self.header
        if header.api_key != ApiKey.FETCH or header.api_version not in READ_FAST:
            return None
        try:
            return fetch_codec.decode_request(header.api_version, self.frame, header.body_offset)
        except MalformedRequest:
            return None

    def without_session(self) -> bytes | None:
        """The frame of a Fetch that names all its partitions, and begins no session; None: it cannot be read."""
        if self.fetch is None:
            if self.body is None:
                return None
            header = self.header
            body = outside_of_sessions(self.body)
            return messages.encode_request(
                header.api_key, header.api_version, header.correlation_id, header.client_id, body
            )
        frame, version = bytearray(self.frame), self.header.api_version
        if version >= FIRST_WITH_SESSIONS:
            at = self.header.body_offset + (SESSION_AT if version < FIRST_WITHOUT_REPLICA_ID else SESSION_AT - 4)
            _SESSION.pack_into(frame, at, NO_SESSION_ID, NO_SESSION)
        return bytes(frame)

    @cached_property
    def session_epoch(self) -> int:
        """Of a Fetch. 0: it begins a session, above: it goes on with one and names the partitions that have changed; -1: there is none."""
        if self.fetch is not None:
            return self.fetch.session_epoch
        return int((self.body or {}).get("session_epoch", NO_SESSION))

    @cached_property
    def is_of_broker(self) -> bool:
        """Whether another broker sends it: a follower, a transaction coordinator, or a leader that asks one about a transaction."""
        key = self.header.api_key
        if key == ApiKey.WRITE_TXN_MARKERS:
            return True
        if key == ApiKey.ADD_PARTITIONS_TO_TXN:
            return self.header.api_version > LAST_OF_CLIENTS
        if self.fetch is not None:
            return self.fetch.replica_id >= 0
        if key not in (ApiKey.FETCH, ApiKey.OFFSET_FOR_LEADER_EPOCH, ApiKey.LIST_OFFSETS) or self.body is None:
            return False
        state = self.body.get("replica_state") or {}
        return bool(self.body.get("replica_id", -1) >= 0 or state.get("replica_id", -1) >= 0)

    @cached_property
    def named(self) -> Sequence[Named]:
        """Every topic, or every partition where there are some."""
        if self.fetch is not None:
            return [
                Named(topic, partition.partition)
                for key, partitions in self.fetch.topics
                if (topic := key if isinstance(key, str) else self.name_of(key)) is not None
                for partition in partitions
            ]
        return list(self._named(self.body)) if self.body is not None else ()

    @cached_property
    def topics(self) -> Mapping[str, frozenset[int | None]]:
        """Topic -> its partitions that are named; None among them: the whole topic."""
        found: dict[str, set[int | None]] = {}
        for topic, partition in self.named:
            found.setdefault(topic, set()).add(partition)
        return {topic: frozenset(partitions) for topic, partitions in found.items()}

    def _named(self, body: Mapping[str, Any]) -> Iterator[Named]:
        for within in WITHIN:
            for row in body.get(within) or ():
                if isinstance(row, Mapping):
                    yield from self._named(row)
        found = rows_of(body, TOPIC_ROWS)
        for row in found[1] if found is not None else ():
            topic = row if isinstance(row, str) else topic_of(row, self.name_of)
            if topic is None:
                continue
            partitions = rows_of(row, PARTITION_ROWS) if isinstance(row, Mapping) else None
            if partitions is None:
                yield Named(topic, None)
            else:
                for partition in partitions[1]:
                    yield Named(topic, partition_of(partition))

    @cached_property
    def groups(self) -> frozenset[str]:
        body = self.body or {}
        found = [body.get("group_id"), *self._keys(GROUP_KEY)]
        for name in ("groups", "groups_names", "group_ids"):
            found += [row.get("group_id") if isinstance(row, Mapping) else row for row in body.get(name) or ()]
        return frozenset(filter(None, found))

    @cached_property
    def transactional_ids(self) -> frozenset[str]:
        body = self.body or {}
        found = [body.get("transactional_id"), *self._keys(TRANSACTION_KEY)]
        found += [row.get("transactional_id") for row in body.get("transactions") or () if isinstance(row, Mapping)]
        found += [body.get("v3_and_below_transactional_id")]
        return frozenset(filter(None, found))

    def _keys(self, key_type: int) -> Sequence[str]:
        body = self.body or {}
        if self.header.api_key != ApiKey.FIND_COORDINATOR or body.get("key_type", GROUP_KEY) != key_type:
            return ()
        return [body.get("key", ""), *(body.get("coordinator_keys") or ())]
