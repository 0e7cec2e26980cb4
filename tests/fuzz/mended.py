"""Inputs that once did harm. `make test` replays them, and the fuzzer starts with them."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import msgpack

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.record_batch import build_batch
from tests.fuzz.decoders import turns
from tests.fuzz.sealing import packed

ROWS = [(b"k", b"v", (), 1000)]
_FAR = struct.pack(">qq", 2**63 - 1, 2**63 - 1)


def _with(batch: bytes, at: int, data: bytes) -> bytes:
    return batch[:at] + data + batch[at + len(data) :]


def _control(*body: object) -> bytes:
    return b"\0\0\0\1" + msgpack.packb(body)


def _request(key: ApiKey, version: int, body: bytes) -> bytes:
    """`version`: above the oldest that is served."""
    return bytes((turns.KEYS.index(key), version)) + body


MENDED: Mapping[str, Sequence[bytes]] = {
    # A null array where there must be one: kio takes it, and the API that goes through it raised TypeError.
    "broker": [
        packed([_request(ApiKey.CREATE_TOPICS, 0, b"\xff\xff\xff\xff\0\0\0\5\0")]),
        packed([_request(ApiKey.DELETE_GROUPS, 0, b"\xff\xff\xff\xff")]),
        packed([_request(ApiKey.DELETE_GROUPS, 2, b"\0\0")]),
        packed([_request(ApiKey.OFFSET_DELETE, 0, b"\0\1g\xff\xff\xff\xff")]),
    ],
    # A null in a varint of two bytes: the second was taken for the next field.
    "request-offset_fetch": [b"\6\2t\x80\0\1\0"],
    # An error code that nobody knows: ValueError at the follower, which held up all partitions of that leader.
    "answer-fetch": [b"\0" + struct.pack(">ihi", 0, -26752, 9) + b"\1\0"],
    # Compressions 5 to 7: IndexError out of `decompress`.
    "batches": [
        b"\1" + packed([_with(build_batch(ROWS), 21, struct.pack(">h", attributes)) for attributes in (5, 6, 7)])
    ],
    "cleaned-batches": [
        packed([_with(build_batch(ROWS), 21, struct.pack(">h", 5))]),
        # Timestamps that leave 64 bits: struct.error, and the log was not compacted any more.
        packed([_with(build_batch([(b"k", None, (), 0), (b"l", b"v", (), 5)]), 27, _FAR)]),
    ],
    # Offsets beyond 64 bits: OverflowError after the bytes were in the file.
    "fetched-batches": [
        b"\2" + packed([_with(build_batch(ROWS), 0, struct.pack(">q", 2**63 - 1))]),
        # The first batch of an empty segment begins more than 2^31 offsets later: no index entry can say so.
        b"\2" + packed([_with(build_batch(ROWS), 0, struct.pack(">q", 2**40))] * 6),
    ],
    # A batch too far from its segment's base: struct.error ended the broker's start.
    "log": [
        b"\0"
        + packed([*[b"\0" + build_batch(ROWS)] * 3, b"\0" + _with(build_batch(ROWS), 23, struct.pack(">i", 2**31 - 1))])
    ],
    # A number of thousands of digits: ValueError, with a traceback.
    "reassignment-file": [b'{"version":1,"partitions":[{"topic":"t","partition":' + b"9" * 5000 + b"}]}"],
    # A datagram from any process ended the replay's progress.
    "progress": [b'{"task":[]}', b'{"task":1,"sent":"x"}', b"[" * 20_000],
    # The header says 2 GB, and that much memory was allocated.
    "inspected-directory": [packed([b"\0" + _with(build_batch(ROWS), 8, struct.pack(">i", 2**31 - 20))])],
    # NaN and other types for numbers, a path for a topic.
    "control-request": [
        _control(1, float("nan"), 7, 100, [], {}, [], False, [], 0),
        _control(4, None, []),
        _control(3, 1, 7, 100, [["../../x", 0, 1, True]], {}, 0),
        _control(3, 1, 7, 100, [[["t"], {}, None, True]], 5, 0),
        # One of the two readers accepts it, the other refuses it.
        b"\0\0\0\0\x9a\x01\x07d\x91\x94\xa7../../x\0\x01\xc3\x80\0\x90\xc2\x90\0",
    ],
    # No numbers in Kafka.
    "setting": [
        (26).to_bytes(2, "big") + b"1_0",
        (27).to_bytes(2, "big") + "\u0661".encode(),
        (41).to_bytes(2, "big") + b"nan",
        (42).to_bytes(2, "big") + b"9" * 400,
    ],
    # Two thousand elements in each array: turns of up to 100 ms.
    "broker-repeated": [seed for decoder in turns.decoders()[1:] for seed in decoder.seeds()],
    # Nine bytes that stand for 120,000, in 240 pieces: 7,346 lines, all of them for the pieces.
    "connection": [b"\x03\x00\x01c*!\xea`" + bytes(8), b"\x07\x00\x01C*!\xea`@"],
    # The smallest pieces of the longest stream.
    "client-connection": [b"\x00\x00\x01C*!\xff\xff*!\xff\xff"],
}
