"""The keys of a produced batch as a recording has them: their size together, and a hash of each (RPL-5). Pure.

Only batches for compacted topics are looked at, because a replay needs their keys: compaction keeps the newest record of each. That takes
about as long as the check of the records, and unpacks a compressed batch a second time.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b

from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.record_batch import HEADER_SIZE, parse_header, unpacked
from protocol.kafka.record_checks import delta_and_key
from protocol.recording import KEY_HASH_SIZE
from protocol.types import Buffer

BYTES_AT_ONCE = 64 * 1024
RECORDS_AT_ONCE = 1_000
UNPACKED_AT_ONCE = 1024 * 1024
"""Limits of what is read on the loop for one request."""
RECORDS_MAX = 100_000
UNPACKED_MAX = 8 * 1024 * 1024
"""Limits of all batches of one request whose keys are recorded."""

Keys = tuple[int, bytes]


def keys_at_once(batches: Mapping[int, Buffer], secret: bytes) -> dict[int, Keys] | None:
    """The keys of the batches of one request; None if a thread must call `keys_of_all`."""
    if sum(map(len, batches.values())) > BYTES_AT_ONCE:
        return None
    found = _within(batches, secret, RECORDS_AT_ONCE, UNPACKED_AT_ONCE)
    return found if len(found) == len(batches) else None


def keys_of_all(batches: Mapping[int, Buffer], secret: bytes) -> dict[int, Keys]:
    """The keys of the batches of one request, up to the first batch that is invalid or exceeds a limit."""
    return _within(batches, secret, RECORDS_MAX, UNPACKED_MAX)


def _within(batches: Mapping[int, Buffer], secret: bytes, records_left: int, unpacked_left: int) -> dict[int, Keys]:
    found: dict[int, Keys] = {}
    for at, batch in batches.items():
        read = _keys_of(batch, secret, records_left, unpacked_left)
        if read is None:
            break
        found[at], records, size = read
        records_left -= records
        unpacked_left -= size
    return found


def _keys_of(batch: Buffer, secret: bytes, records_max: int, unpacked_max: int) -> tuple[Keys, int, int] | None:
    """The keys of a batch, its number of records, and how many bytes it unpacks to (0 if it is not compressed). None if it is invalid or
    too large. With `secret`, nobody who lacks it can find a key by trying."""
    try:
        header = parse_header(batch)
        count = header.record_count
        if not 0 < count <= records_max:
            return None
        data, at, unpacked_size = batch, HEADER_SIZE, 0
        if header.compression:
            data, at = unpacked(batch, 0, header, size_max=unpacked_max, too_large=ErrorCode.MESSAGE_TOO_LARGE), 0
            unpacked_size = len(data)
        size = 0
        hashes = []
        for _ in range(count):
            _, begin, end, at = delta_and_key(data, at)
            size += end - begin
            hashes.append(blake2b(data[begin:end], digest_size=KEY_HASH_SIZE, key=secret).digest())
    except (KafkaError, IndexError):
        return None
    return (size, b"".join(hashes)), count, unpacked_size
