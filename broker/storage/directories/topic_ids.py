"""The topic that a log belongs to: `partition.metadata` in its directory (KIP-516), and what is believed of it.

    version: 0
    topic_id: <22 characters>

A topic that is deleted and made again under its name has another id, and its old records must not come back (FLT-36). But the
file has no CRC, and one flipped bit in it must not cost the log that it stands beside (FLT-27). Two topics' random ids differ
in dozens of bits, so a file that differs in one bit from what it should be is that file, damaged: it is written again. Kafka
takes the whole log directory offline for a file that it cannot read, and refuses the partition for any other id.
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
"""What a power loss leaves where a file's data was not synced."""


def decode(data: bytes) -> str | None:
    """The id; None for what is no such file."""
    for line in data.decode(errors="replace").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "topic_id" and _TOPIC_ID.fullmatch(value.strip()):
            return value.strip()
    return None


def encode(topic_id: str) -> bytes:
    return f"version: 0\ntopic_id: {topic_id}".encode()


def can_be(data: bytes, topic_id: str) -> bool:
    """True when the file says that id, but for one bit; also when a power loss left so little of it that it says none."""
    if decode(data) == topic_id:
        return True
    written = data.rstrip(_NEVER_WRITTEN)
    expected = encode(topic_id)
    return sum((a ^ b).bit_count() for a, b in zip(written, expected, strict=False)) <= FLIPPED_BITS_MAX


def read(filesystem: FileSystem, directory: str) -> str | None:
    """The id of the log there; None when there is none, or none that can be read."""
    data = filesystem.read_file(f"{directory}/{PARTITION_METADATA}")
    if data is None:
        return None
    found = decode(data)
    if found is None:
        log.warning("%s/%s is broken: it tells no topic id", directory, PARTITION_METADATA)
    return found


def write(filesystem: FileSystem, directory: str, topic_id: str) -> None:
    """Not synced: the first flush of the log does it."""
    filesystem.write_atomically(f"{directory}/{PARTITION_METADATA}", encode(topic_id), sync=False)


def write_new(filesystem: FileSystem, directory: str, topic_id: str) -> None:
    """`write` for a directory that has just been made."""
    filesystem.write_new(f"{directory}/{PARTITION_METADATA}", encode(topic_id))


def is_of(filesystem: FileSystem, found: Log, topic_id: str) -> bool:
    """Whether the log can be that topic's: its file says so, says nothing, or has one wrong bit. Raises OSError."""
    if found.topic_id == topic_id:
        return True
    data = filesystem.read_file(f"{found.directory}/{PARTITION_METADATA}")
    return data is None or can_be(data, topic_id)


def adopt(filesystem: FileSystem, found: Log, topic_id: str) -> None:
    """Writes the id of a log that has none, or a damaged one; another topic's stays what it is. Raises OSError."""
    if found.topic_id == topic_id or not is_of(filesystem, found, topic_id):
        return
    if found.topic_id is not None:
        log.warning("%s: topic id %s has a flipped bit: it is %s", found.directory, found.topic_id, topic_id)
    write(filesystem, found.directory, topic_id)
    found.topic_id = topic_id
