"""How the records of a batch are compressed: gzip, snappy, lz4, zstd, as Kafka's clients do it. Pure."""

from __future__ import annotations

import struct
from typing import Any

import cramjam

from protocol.errors import ErrorCode, KafkaError

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
"""By their number in a batch's attributes."""

_INT = struct.Struct(">i")
_SNAPPY_JAVA_MAGIC = b"\x82SNAPPY\x00"
_TARGET_IS_FULL = "failed to write whole buffer"


class _UnpacksToTooMuch(Exception):
    """Of a size that the caller does not want to hold."""


DEFAULT_LEVELS = (0, -1, 0, 9, 3)
"""Kafka's, by compression: gzip's own default; lz4 as fast as it can; zstd's own default. The first and snappy have none."""


def compress(payload: bytes, compression: int, level: int | None = None) -> bytes:
    """`level` None: Kafka's default."""
    if level == DEFAULT_LEVELS[compression]:
        level = None
    match compression:
        case 0:
            return payload
        case 1:
            return bytes(cramjam.gzip.compress(payload, level=level))
        case 2:
            return bytes(cramjam.snappy.compress_raw(payload))
        case 3:
            # Independent blocks: Kafka's Java reader knows no others.
            compressor = cramjam.lz4.Compressor(level=level, block_linked=False)
            compressor.compress(payload)
            return bytes(compressor.finish())
        case 4:
            return bytes(cramjam.zstd.compress(payload, level=DEFAULT_LEVELS[4] if level is None else level))
    raise ValueError(f"unknown compression {compression}")


def decompress(payload: bytes, compression: int, size_max: int, too_large: ErrorCode) -> bytes:
    """The records' bytes. snappy comes raw or in snappy-java's chunks (16-byte header, then int32 size + raw block).

    Raises KafkaError: CORRUPT_MESSAGE for a payload that is broken or of an unknown compression (BAD-21), `too_large` for
    one that unpacks to more than `size_max` bytes, which are never held (BAD-22).
    """
    if compression == 0:
        return payload
    if compression >= len(COMPRESSIONS):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"unknown compression {compression}")
    try:
        if compression == 2:
            return _decompress_snappy(payload, size_max)
        module = {1: cramjam.gzip, 3: cramjam.lz4, 4: cramjam.zstd}[compression]
        return _decompress_stream(module, payload, size_max)
    except _UnpacksToTooMuch as error:
        raise KafkaError(too_large, f"{COMPRESSIONS[compression]} payload: {error}") from None
    except (cramjam.DecompressionError, struct.error, ValueError, KeyError) as error:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"{COMPRESSIONS[compression]} payload does not unpack: {error}"
        ) from None


def _decompress_snappy(payload: bytes, size_max: int) -> bytes:
    if not payload.startswith(_SNAPPY_JAVA_MAGIC):
        _check_size(int(cramjam.snappy.decompress_raw_len(payload)), size_max)
        return bytes(cramjam.snappy.decompress_raw(payload))
    out = bytearray()
    at = 16
    while at < len(payload):
        (size,) = _INT.unpack_from(payload, at)
        if size < 0:
            raise ValueError(f"a block of {size} bytes")
        block = payload[at + 4 : at + 4 + size]
        _check_size(len(out) + int(cramjam.snappy.decompress_raw_len(block)), size_max)
        out += bytes(cramjam.snappy.decompress_raw(block))
        at += 4 + size
    return bytes(out)


def _decompress_stream(module: Any, payload: bytes, size_max: int) -> bytes:
    """Unpacks into a buffer that grows until it fits or the limit is passed."""
    size = max(4096, len(payload) * 8)
    while True:
        target = bytearray(min(size, size_max))
        try:
            written = int(module.decompress_into(payload, target))
        except cramjam.DecompressionError as error:
            if _TARGET_IS_FULL not in str(error):
                raise
            _check_size(len(target) + 1, size_max)
            size *= 4
        else:
            return bytes(memoryview(target)[:written])


def _check_size(size: int, size_max: int) -> None:
    if size > size_max:
        raise _UnpacksToTooMuch(f"it unpacks to more than {size_max} bytes")
