"""The ids and keys of records, what compaction and retention may remove, and what must be there all the same. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import NamedTuple
from zlib import crc32

from protocol.types import TopicPartition

KEYS = 20


class Policy(NamedTuple):
    """Of a topic. Compaction keeps the newest record of each key, retention the records from some offset on."""

    compacts: bool = False
    deletes: bool = False

    @property
    def keeps_all(self) -> bool:
        return not (self.compacts or self.deletes)


KEEPS_ALL = Policy()
COMPACTS = Policy(compacts=True)


def policy_of(configs: Mapping[str, str]) -> Policy:
    """That of a topic with these settings."""
    if "compact" in configs.get("cleanup.policy", ""):
        return COMPACTS
    return Policy(deletes="retention.bytes" in configs or "retention.ms" in configs)


def id_of(value: bytes) -> str:
    """The id of a record of the load: its value up to the first blank."""
    return value.partition(b" ")[0].decode(errors="replace")


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
    tp: TopicPartition, acked: Sequence[tuple[int | None, str]], visible: Sequence[tuple[int, str]]
) -> Iterator[str]:
    """A compacted log has the newest of all records with a key: of each acknowledged record, or of one behind it.

    `acked`: (offset, if it is known, and id). `visible`: what a reader of committed records gets, in order.
    """
    newest = {key_of(record): offset for offset, record in visible}
    there = {record for _, record in visible}
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
