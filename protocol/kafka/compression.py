"""Compression of the records in a batch: gzip, snappy, lz4, zstd, as in Kafka's clients. Pure."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from typing import Any

import cramjam

from protocol.errors import ErrorCode, KafkaError

COMPRESSIONS = ("none", "gzip", "snappy", "lz4", "zstd")
"""The names, indexed by the number in a batch's attributes."""
ZSTD = COMPRESSIONS.index("zstd")

_INT = struct.Struct(">i")
_SNAPPY_JAVA_MAGIC = b"\x82SNAPPY\x00"
_TARGET_IS_FULL = "failed to write whole buffer"
_STREAMS = {1: cramjam.gzip, 3: cramjam.lz4, 4: cramjam.zstd}
_BROKEN = (cramjam.DecompressionError, struct.error, ValueError, KeyError)

SNAPPY_RATIO_MAX = 64
"""Upper limit of unpacked bytes per byte of snappy: an instruction to copy at most 64 bytes takes two or three bytes."""
BLOCKS_OF_ANY_SIZE = 64
"""Number of blocks of a snappy-java stream whose size is not checked."""
BLOCK_BYTES_MEAN_MIN = 512
"""Minimum mean size of the unpacked blocks, if there are more. snappy-java writes blocks of 32 KiB, and of at least 1 KiB."""


class _UnpacksToTooMuch(Exception):
    """The content is larger than the caller accepts."""


DEFAULT_LEVELS = (0, -1, 0, 9, 3)
"""Kafka's default levels. gzip -1 and zstd 3 are the defaults of these formats; lz4 9 means its fastest mode."""


def compress(payload: bytes, compression: int, level: int | None = None) -> bytes:
    """`level` None means Kafka's default."""
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
            # Independent blocks: Kafka's Java reader supports no others.
            compressor = cramjam.lz4.Compressor(level=level, block_linked=False)
            compressor.compress(payload)
            return bytes(compressor.finish())
        case 4:
            return bytes(cramjam.zstd.compress(payload, level=DEFAULT_LEVELS[4] if level is None else level))
    raise ValueError(f"unknown compression {compression}")


def decompress(payload: bytes, compression: int, size_max: int, too_large: ErrorCode) -> bytes:
    """The records' bytes. snappy is either raw or in snappy-java's format (a 16-byte header, then blocks: int32 size, raw snappy).

    Raises KafkaError: CORRUPT_MESSAGE for a broken payload or an unknown compression (BAD-21), `too_large` for a payload that
    unpacks to more than `size_max` bytes. Such a payload is never unpacked beyond that size (BAD-22).
    """
    _check_known(compression)
    if compression == 0:
        return payload
    try:
        if compression == 2:
            return _decompress_snappy(payload, size_max)
        return _decompress_stream(_STREAMS[compression], payload, size_max)
    except _UnpacksToTooMuch as error:
        raise _too_large(compression, error, too_large) from None
    except _BROKEN as error:
        raise _corrupt(compression, error) from None


def decompress_large(payload: bytes, compression: int, size_max: int, too_large: ErrorCode) -> memoryview:
    """Like `decompress`, but for a thread: nearly all of the work runs without the interpreter's lock.

    The target has `size_max` bytes. The system allocates them page by page, so a small payload uses little memory.
    """
    _check_known(compression)
    if compression == 0:
        return memoryview(payload)
    try:
        target = memoryview(mmap.mmap(-1, size_max))
        if compression == 2:
            return target[: _snappy_into(payload, target)]
        return target[: int(_STREAMS[compression].decompress_into(payload, target))]
    except _UnpacksToTooMuch as error:
        raise _too_large(compression, error, too_large) from None
    except _BROKEN as error:
        if _TARGET_IS_FULL in str(error):
            raise _too_large(compression, _UnpacksToTooMuch(_more_than(size_max)), too_large) from None
        raise _corrupt(compression, error) from None


def _check_known(compression: int) -> None:
    if compression >= len(COMPRESSIONS):
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"unknown compression {compression}")


def _too_large(compression: int, error: Exception, code: ErrorCode) -> KafkaError:
    return KafkaError(code, f"{COMPRESSIONS[compression]} payload: {error}")


def _corrupt(compression: int, error: Exception) -> KafkaError:
    return KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{COMPRESSIONS[compression]} payload does not unpack: {error}")


def _decompress_snappy(payload: bytes, size_max: int) -> bytes:
    if not payload.startswith(_SNAPPY_JAVA_MAGIC):
        _check_snappy_size(payload, size_max)
        return bytes(cramjam.snappy.decompress_raw(payload))
    out = bytearray()
    for count, block in enumerate(_xerial_blocks(payload)):
        _check_snappy_size(block, size_max - len(out))
        out += bytes(cramjam.snappy.decompress_raw(block))
        _check_blocks(count, len(out))
    return bytes(out)


def _snappy_into(payload: bytes, target: memoryview) -> int:
    """Returns the number of bytes written."""
    if not payload.startswith(_SNAPPY_JAVA_MAGIC):
        _check_snappy_size(payload, len(target))
        return int(cramjam.snappy.decompress_raw_into(payload, target))
    at = 0
    for count, block in enumerate(_xerial_blocks(payload)):
        _check_snappy_size(block, len(target) - at)
        at += int(cramjam.snappy.decompress_raw_into(block, target[at:]))
        _check_blocks(count, at)
    return at


def _xerial_blocks(payload: bytes) -> Iterator[bytes]:
    """The blocks of snappy-java's stream."""
    at = 16
    while at < len(payload):
        (size,) = _INT.unpack_from(payload, at)
        if not 0 < size <= len(payload) - at - 4:
            raise ValueError(f"a block of {size} bytes in {len(payload) - at - 4}")
        yield payload[at + 4 : at + 4 + size]
        at += 4 + size


def _check_blocks(count: int, size: int) -> None:
    """Refuses too many small blocks: each costs about a microsecond, and a megabyte could contain 200,000 of them."""
    if count >= BLOCKS_OF_ANY_SIZE and size < count * BLOCK_BYTES_MEAN_MIN:
        raise ValueError(f"{count} blocks of {size} bytes in all")


def _check_snappy_size(block: bytes, size_max: int) -> None:
    """Refuses an announced size above `size_max`, and one that is impossible: no byte of a block unpacks to more than 64."""
    size = int(cramjam.snappy.decompress_raw_len(block))
    if size > size_max:
        raise _UnpacksToTooMuch(_more_than(size_max))
    if size > SNAPPY_RATIO_MAX * len(block):
        raise ValueError(f"{len(block)} bytes cannot unpack to {size}")


def _decompress_stream(module: Any, payload: bytes, size_max: int) -> bytes:
    """Unpacks into a buffer, which grows until the content fits or exceeds `size_max`."""
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
        raise _UnpacksToTooMuch(_more_than(size_max))


def _more_than(size_max: int) -> str:
    return f"it unpacks to more than {size_max} bytes"
