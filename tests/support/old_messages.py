"""Messages of the formats v0 and v1, which Kafka wrote before 0.11."""

from __future__ import annotations

import struct
import zlib


def message(magic: int, offset: int, value: bytes, *, attributes: int = 0) -> bytes:
    """A message with the key `k`."""
    timestamp = struct.pack(">q", 1000) if magic else b""
    body = struct.pack(">bb", magic, attributes) + timestamp + struct.pack(">i", 1) + b"k"
    body += struct.pack(">i", len(value)) + value
    body = struct.pack(">I", zlib.crc32(body)) + body
    return struct.pack(">qi", offset, len(body)) + body


def messages(magic: int, count: int = 3) -> bytes:
    """A message set, with the offsets from 0."""
    return b"".join(message(magic, offset, b"value") for offset in range(count))
