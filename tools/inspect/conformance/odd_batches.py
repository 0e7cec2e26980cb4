"""Batches of records that a broker may refuse: the special requests of Produce. Pure."""

from __future__ import annotations

import struct
from typing import Any

from fastcrc.crc32 import iscsi

from protocol.kafka.record_batch import build_batch
from tools.inspect.conformance.scene import FIRST_TIME_MS, batch

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4


def odd_batches() -> dict[str, bytes]:
    """What is odd -> the bytes of a partition's records."""
    one = batch(1)
    return {
        "wrong CRC": _patched(70, b"\x01"),
        "base offset 5": _patched(0, b"\0\0\0\0\0\0\0\5"),
        "magic 1": _patched(16, b"\1"),
        "magic 3": _patched(16, b"\3"),
        "length beyond the records": _patched(8, b"\0\0\1\0"),
        "length below a batch": _patched(8, b"\0\0\0\5"),
        "two batches": one + one,
        "a byte after the batch": one + b"\0",
        "zeros after the batch": one + bytes(20),
        "half a batch after the batch": one + one[:40],
        "record with offset delta 1": _sealed(64, b"\2"),
        "record with a key of length -2": _sealed(65, b"\3", _one_record(None)),
        "LogAppendTime of a producer": _sealed(21, b"\0\x08"),
        "producer epoch -1": batch(1, producer_id=78, producer_epoch=-1, base_sequence=0),
        "control batch": _sealed(21, b"\0\x20"),
        "transactional batch without a transaction": _sealed(21, b"\0\x10"),
        "unknown compression": _sealed(21, b"\0\7"),
        "unknown attribute": _sealed(21, b"\x01\0"),
        "gzip that is no gzip": _sealed(21, b"\0\1"),
        "count of records too large": _sealed(57, b"\0\0\0\5"),
        "count of records 0": _sealed(57, b"\0\0\0\0"),
        "negative last offset": _sealed(23, b"\xff\xff\xff\xff"),
        "gzip": _one_record(compression=GZIP),
        "snappy": _one_record(compression=SNAPPY),
        "lz4": _one_record(compression=LZ4),
        "zstd": _one_record(compression=ZSTD),
        "null key and value": _one_record(None, None),
        "negative timestamp": _one_record(timestamp=-5),
        "timestamp far ahead": _one_record(timestamp=4_000_000_000_000),
        "producer id without a sequence": batch(1, producer_id=7, producer_epoch=0),
        "sequence without a producer id": batch(1, base_sequence=0),
        "sequence that starts at 7": batch(1, producer_id=77, producer_epoch=0, base_sequence=7),
        "batch above max.message.bytes": _one_record(value=b"x" * 2_000_000),
    }


def _patched(at: int, data: bytes, whole: bytes = b"") -> bytes:
    """A batch with these bytes at `at`, and so with a wrong CRC if they are in its sum."""
    made = bytearray(whole or batch(1))
    made[at : at + len(data)] = data
    return bytes(made)


def _sealed(at: int, data: bytes, whole: bytes = b"") -> bytes:
    """Like `_patched`, with the right CRC."""
    made = _patched(at, data, whole)
    return _patched(17, struct.pack(">I", iscsi(memoryview(made)[21:])), made)


def _one_record(
    key: bytes | None = b"k", value: bytes | None = b"v", timestamp: int = FIRST_TIME_MS, **more: Any
) -> bytes:
    return build_batch([(key, value, (), timestamp)], **more)
