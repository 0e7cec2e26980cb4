"""The ids and keys of records, what compaction and retention may remove, and what must be there all the same. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import NamedTuple
from zlib import crc32

from protocol.types import TopicPartition

KEYS = 20
TOMBSTONES_ONE_OF = 6
ID = "id"
"""The header in which a tombstone has its id."""
LONG_MS = 86_400_000
"""No history lasts so long."""


class Policy(NamedTuple):
    """Of a topic. Compaction keeps the newest record of each key, retention the records from some offset on.

    `has_tombstones`: producers delete keys. `forgets`: tombstones are removed within a history.
    """

    compacts: bool = False
    deletes: bool = False
    has_tombstones: bool = False
    forgets: bool = False

    @property
    def keeps_all(self) -> bool:
        return not (self.compacts or self.deletes)


KEEPS_ALL = Policy()
COMPACTS = Policy(compacts=True)


def policy_of(configs: Mapping[str, str]) -> Policy:
    """That of a topic with these settings."""
    if "compact" in configs.get("cleanup.policy", ""):
        kept_ms = configs.get("delete.retention.ms")
        return COMPACTS._replace(has_tombstones=kept_ms is not None, forgets=int(kept_ms or LONG_MS) < LONG_MS)
    return Policy(deletes="retention.bytes" in configs or "retention.ms" in configs)


def id_of(text: bytes) -> str:
    """The id of a record of the load: its text up to the first blank."""
    return text.partition(b" ")[0].decode(errors="replace")


def text_of(value: bytes | None, headers: Iterable[tuple[str, bytes | None]]) -> bytes:
    """What begins with the record's id: its value, or of a tombstone its header."""
    return bytes(value if value is not None else dict(headers).get(ID) or b"")


def is_tombstone(record: str) -> bool:
    """Whether the record with that id deletes its key, in a topic with tombstones. Only idempotent producers do that."""
    return record.startswith("producer") and crc32(record.encode()) // KEYS % TOMBSTONES_ONE_OF == 0


def key_of(record: str) -> bytes:
    """The key of the record with that id."""
    return f"key{crc32(record.encode()) % KEYS}".encode()


def output_of(source: TopicPartition, offset: int, output: TopicPartition, transaction: str) -> str:
    """The id of the record that a transaction writes for the one at that offset."""
    return f"{transaction}-{output.topic}-{output.partition}-of-{source.topic}-{source.partition}-{offset}"


def source_of(record: str) -> tuple[TopicPartition, int] | None:
    """Where the record was of which that one is the output; None if it is none."""
    _, of, source = record.partition("-of-")
    if not of:
        return None
    topic, partition, offset = source.rsplit("-", 2)
    return TopicPartition(topic, int(partition)), int(offset)


def outdated(
    tp: TopicPartition,
    acked: Sequence[tuple[int | None, str]],
    visible: Sequence[tuple[int, str]],
    *,
    forgets: bool = False,
) -> Iterator[str]:
    """A compacted log has the newest of all records with a key: of each acknowledged record, or of one behind it.

    `acked`: (offset, if it is known, and id). `visible`: what a reader of committed records gets, in order. `forgets`: tombstones need
    not be there, nor what is before them.
    """
    newest = {key_of(record): float(offset) for offset, record in visible}
    there = {record for _, record in visible}
    for offset, record in acked:
        if forgets and is_tombstone(record):
            there.add(record)
            key = key_of(record)
            newest[key] = max(newest.get(key, -1), inf if offset is None else offset)
    for offset, record in acked:
        last = newest.get(key_of(record), -1)
        if record not in there and last <= (-1 if offset is None else offset):
            yield f"{record} of {tp} at {offset} is not there, and no newer record with its key"


def unlike_what_is_left(
    reader: str,
    tp: TopicPartition,
    seen: Sequence[tuple[int, str]],
    visible: Sequence[tuple[int, str]],
    aborted: Collection[str],
) -> Iterator[str]:
    """A reader of a log from which records are removed has read, in order, all that is left up to its position, and nothing aborted."""
    offsets = [offset for offset, _ in seen]
    if offsets != sorted(set(offsets)):
        yield f"{reader} read {tp} out of order"
    left = dict(visible)
    ids = dict(seen)
    end = offsets[-1] if offsets else -1
    wrong = [(offset, record) for offset, record in seen if left.get(offset, record) != record or record in aborted]
    wrong += [(offset, record) for offset, record in visible if offset <= end and offset not in ids]
    for offset, record in wrong[:1]:
        yield f"{reader} read {ids.get(offset)} of {tp} at {offset} as committed; {record} is there or was aborted"
