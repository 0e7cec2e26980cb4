"""Correct CRCs and lengths: without them, no input would pass the first check."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence

from fastcrc.crc32 import iscsi as crc32c

from protocol.kafka.record_batch import CRC_START, HEADER_SIZE, LOG_OVERHEAD, MAGIC

Row = tuple[bytes | None, bytes | None, tuple[()], int]
_LENGTH = struct.Struct(">H")


def partition_of(data: bytes, made: Callable[[Sequence[Row]], bytes]) -> bytes:
    """A flag, then batches that are sealed; with the flag each part is a key or a value, of which a batch is `made`."""
    parts = parts_of(data[1:])
    if not (data[:1] and data[0] & 1):
        return b"".join(map(sealed_batch, parts))
    rows = [(key or None, value or None, (), 1000) for key, value in zip(parts[::2], parts[1::2], strict=False)]
    return made(rows) if rows else b""


def sealed_batch(data: bytes) -> bytes:
    """Any bytes as a batch of format 2 with the right length and CRC; the other fields are the input's."""
    batch = bytearray(data.ljust(HEADER_SIZE, b"\0"))
    struct.pack_into(">i", batch, 8, len(batch) - LOG_OVERHEAD)
    batch[16] = MAGIC
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[CRC_START:])))
    return bytes(batch)


def packed(parts: Iterable[bytes]) -> bytes:
    """What `parts_of` takes apart."""
    return b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def parts_of(data: bytes) -> list[bytes]:
    """Any bytes, as parts with a length before each; the last may be cut."""
    parts = []
    at = 0
    while at + 2 <= len(data):
        (size,) = _LENGTH.unpack_from(data, at)
        parts.append(data[at + 2 : at + 2 + size])
        at += 2 + size
    return parts


def sealed_producer_snapshot(data: bytes) -> bytes:
    """Version, CRC and count of Kafka's `.snapshot` for entries of 46 bytes."""
    body = struct.pack(">i", len(data) // 46) + data[: len(data) // 46 * 46]
    return struct.pack(">hI", 1, crc32c(body)) + body
