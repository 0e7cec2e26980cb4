"""The topic that a log belongs to: `partition.metadata` in its directory (KIP-516), which may be damaged.

    version: 0
    topic_id: <22 characters>

A topic that is deleted and created again has another id, and its old records must not come back (FLT-36). The file has no CRC,
but one flipped bit in it must not cost the log (FLT-27). The random ids of two topics differ in dozens of bits, so a file that
differs from the expected one in a single bit is damaged, and is written again. Kafka takes the whole log directory offline for a
file that it cannot read, and refuses the partition for any other id.
"""

from __future__ import annotations

import logging
import re

from broker.storage.disk.filesystem import FileSystem
from broker.storage.log import Log
from broker.storage.log_types import PARTITION_METADATA

log = logging.getLogger(__name__)

FLIPPED_BITS_MAX = 1

_TOPIC_ID = re.compile(r"[A-Za-z0-9_-]{22}")
_NEVER_WRITTEN = b"\0"
"""The bytes that a power loss leaves where a file's data was not synced."""


def decode(data: bytes) -> str | None:
    """The topic id, None if the data contains none."""
    for line in data.decode(errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "topic_id" and _TOPIC_ID.fullmatch(value.strip()):
            return value.strip()
    return None


def encode(topic_id: str) -> bytes:
    return f"version: 0\ntopic_id: {topic_id}".encode()


def can_be(data: bytes, topic_id: str) -> bool:
    """True when the file has that id, with at most one wrong bit. Bytes that a power loss removed at the end do not count."""
    if decode(data) == topic_id:
        return True
    written = data.rstrip(_NEVER_WRITTEN)
    expected = encode(topic_id)
    return sum((a ^ b).bit_count() for a, b in zip(written, expected, strict=False)) <= FLIPPED_BITS_MAX


def read(filesystem: FileSystem, directory: str) -> str | None:
    """The topic id of the log in the directory, None if it is missing or unreadable."""
    data = filesystem.read_file(f"{directory}/{PARTITION_METADATA}")
    if data is None:
        return None
    found = decode(data)
    if found is None:
        log.warning("%s/%s is broken: it has no topic id", directory, PARTITION_METADATA)
    return found


def write(filesystem: FileSystem, directory: str, topic_id: str) -> None:
    """Writes the file without a sync: the log's first flush syncs it."""
    filesystem.write_atomically(f"{directory}/{PARTITION_METADATA}", encode(topic_id), sync=False)


def write_new(filesystem: FileSystem, directory: str, topic_id: str) -> None:
    """`write` for a directory that has just been made."""
    filesystem.write_new(f"{directory}/{PARTITION_METADATA}", encode(topic_id))


def is_of(filesystem: FileSystem, found: Log, topic_id: str) -> bool:
    """Whether the log can be that topic's: the file has its id, has one wrong bit, or is missing. Raises OSError."""
    if found.topic_id == topic_id:
        return True
    data = filesystem.read_file(f"{found.directory}/{PARTITION_METADATA}")
    return data is None or can_be(data, topic_id)


def adopt(filesystem: FileSystem, found: Log, topic_id: str) -> None:
    """Writes the id of a log that has none, or a damaged one. Does nothing if the log belongs to another topic. Raises OSError."""
    if found.topic_id == topic_id or not is_of(filesystem, found, topic_id):
        return
    if found.topic_id is not None:
        log.warning("%s: topic id %s has a flipped bit: it is %s", found.directory, found.topic_id, topic_id)
    write(filesystem, found.directory, topic_id)
    found.topic_id = topic_id
