"""Checks that the records of a batch match its header, by walking over their lengths without building objects. Pure.

    record = varint length | attributes | varint timestamp delta | varint offset delta
           | varint key length, key | varint value length, value | varint header count, headers

varints are zigzag: an even number 2n stands for n, an odd number for a negative one. A check takes about 0.3 us per record.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Final

from protocol.errors import ErrorCode, KafkaError
from protocol.types import Buffer

STEP: Final = 1000
"""Records, or headers of records, between two pauses: about half a millisecond."""
HEADERS_MAX: Final = 10_000
"""Limit of headers in one record. There is one because a record is checked without a pause."""
RECORD_BYTES_MIN: Final = 7
"""The minimum size of a record: each of the fields above as one byte."""
VARINT_BYTES_MAX: Final = 10
LOWEST_DELTA: Final = -(2**63)


class TakesLong(Exception):
    """The check takes too long for one turn of the loop. The caller must use `checking_records`, or a thread."""


def check_records(data: Buffer, at: int, record_count: int) -> int:
    """Checks that `data` has `record_count` records from `at` to its end, with offset deltas that count up from 0.

    Returns the largest timestamp delta (ms). Raises KafkaError(INVALID_RECORD) for records that no consumer could read (BAD-12, 13,
    18), and TakesLong if the records have thousands of headers.
    """
    check_room(data, at, record_count)
    newest, at, reached = _walk(data, at, 0, record_count, LOWEST_DELTA)
    if reached < record_count:
        raise TakesLong
    _check_end(data, at)
    return newest


def checking_records(data: Buffer, at: int, record_count: int) -> Generator[None, None, int]:
    """Like `check_records`, with pauses in which other tasks can run."""
    check_room(data, at, record_count)
    newest, reached = LOWEST_DELTA, 0
    while reached < record_count:
        newest, at, reached = _walk(data, at, reached, min(reached + STEP, record_count), newest)
        yield
    _check_end(data, at)
    return newest


def times_and_keys(data: Buffer, at: int, record_count: int) -> Iterator[tuple[int, int, bool]]:
    """(offset delta, timestamp delta in ms, has a key) of each record. Raises KafkaError(INVALID_RECORD)."""
    try:
        for _ in range(record_count):
            size, at = _raw_varint(data, at)
            after = at + (size >> 1)
            time, at = _raw_varint(data, at + 1)
            number, at = _raw_varint(data, at)
            key_size = _raw_varint(data, at)[0]
            yield number >> 1 ^ -(number & 1), time >> 1 ^ -(time & 1), not key_size & 1
            at = after
    except IndexError:
        raise KafkaError(ErrorCode.INVALID_RECORD, "the batch ends inside a record") from None


def delta_and_key(data: Buffer, at: int) -> tuple[int, int, int, int]:
    """Of the record at `at`: its offset delta, where its key begins and ends (at the same place if there is none), and where the next is.

    Raises KafkaError(INVALID_RECORD), IndexError.
    """
    size, at = (data[at], at + 1) if data[at] < 0x80 else _raw_varint(data, at)
    after = at + (size >> 1)
    at += 1
    while data[at] >= 0x80:  # the timestamp
        at += 1
    delta, at = (data[at + 1], at + 2) if data[at + 1] < 0x80 else _raw_varint(data, at + 1)
    size, at = (data[at], at + 1) if data[at] < 0x80 else _raw_varint(data, at)
    end = at if size & 1 else at + (size >> 1)
    if end > after or after > len(data):
        raise KafkaError(ErrorCode.INVALID_RECORD, "a record does not fit its batch")
    return delta >> 1, at, end, after


def check_room(data: Buffer, at: int, record_count: int) -> None:
    """Raises KafkaError(INVALID_RECORD) if the bytes are too few for so many records."""
    if record_count * RECORD_BYTES_MIN > len(data) - at:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"{len(data) - at} bytes do not hold {record_count} records")


def _check_end(data: Buffer, at: int) -> None:
    if at != len(data):
        raise KafkaError(ErrorCode.INVALID_RECORD, f"{len(data) - at} bytes after the last record")


def _walk(data: Buffer, at: int, first: int, stop: int, newest: int) -> tuple[int, int, int]:
    """Checks the records `first` to `stop` - 1, or fewer if they have many headers.

    Returns the largest timestamp delta (`newest` included), the offset of the next record, and the number of the next record.
    """
    end = len(data)
    headers = 0
    delta = first - 1
    expected = 2 * first - 2
    newest *= 2  # like the numbers of the loop, which stay zigzag
    try:
        for delta in range(first, stop):
            # Written out for each field, with numbers of one or two bytes inline: calls and inner loops would double the time.
            expected += 2
            size = data[at]
            at += 1
            if size >= 0x80:
                if (more := data[at]) < 0x80:
                    size += (more << 7) - 0x80
                    at += 1
                else:
                    size, at = _raw_varint(data, at - 1)
            after = at + (size >> 1)
            if size & 1 or after > end:
                raise KafkaError(ErrorCode.INVALID_RECORD, f"record {delta} does not fit its batch")
            time = data[at + 1]  # after the attributes
            at += 2
            if time >= 0x80:
                if (more := data[at]) < 0x80:
                    time += (more << 7) - 0x80
                    at += 1
                else:
                    time, at = _raw_varint(data, at - 1)
            if time & 1:
                time = ~time
            if time > newest:
                newest = time
            number = data[at]
            at += 1
            if number >= 0x80:
                if (more := data[at]) < 0x80:
                    number += (more << 7) - 0x80
                    at += 1
                else:
                    number, at = _raw_varint(data, at - 1)
            if number != expected:
                raise KafkaError(ErrorCode.INVALID_RECORD, f"record {delta} does not have offset delta {delta}")
            size = data[at]  # of the key
            at += 1
            if size >= 0x80:
                if (more := data[at]) < 0x80:
                    size += (more << 7) - 0x80
                    at += 1
                else:
                    size, at = _raw_varint(data, at - 1)
            if not size & 1:
                at += size >> 1
            elif size != 1:
                raise KafkaError(ErrorCode.INVALID_RECORD, f"record {delta} has a key of negative length")
            size = data[at]  # of the value
            at += 1
            if size >= 0x80:
                if (more := data[at]) < 0x80:
                    size += (more << 7) - 0x80
                    at += 1
                else:
                    size, at = _raw_varint(data, at - 1)
            if not size & 1:
                at += size >> 1
            elif size != 1:
                raise KafkaError(ErrorCode.INVALID_RECORD, f"record {delta} has a value of negative length")
            count = data[at]
            at += 1
            if count:
                at = _check_headers(data, at - 1, after, delta)
                headers += count if count < 0x80 else STEP
            if at != after:
                raise KafkaError(ErrorCode.INVALID_RECORD, f"the length of record {delta} does not match its fields")
            if headers >= STEP:
                break
    except IndexError:
        raise KafkaError(ErrorCode.INVALID_RECORD, "the batch ends inside a record") from None
    return newest >> 1, at, delta + 1


def _check_headers(data: Buffer, at: int, after: int, delta: int) -> int:
    """The offset after the headers whose count is at `at`. A header must have a name; its value may be null."""
    count, at = _raw_varint(data, at)
    if count & 1 or count >> 1 > min(after - at, HEADERS_MAX):
        raise KafkaError(ErrorCode.INVALID_RECORD, f"record {delta} has an impossible number of headers")
    for _ in range(count >> 1):
        size, at = _raw_varint(data, at)
        if size & 1:
            raise KafkaError(ErrorCode.INVALID_RECORD, f"record {delta} has a header without a name")
        at += size >> 1
        size, at = _raw_varint(data, at)
        if not size & 1:
            at += size >> 1
        elif size != 1:
            raise KafkaError(ErrorCode.INVALID_RECORD, f"record {delta} has a header of negative length")
        if at > after:
            raise KafkaError(ErrorCode.INVALID_RECORD, f"a header of record {delta} does not fit it")
    return at


def _raw_varint(data: Buffer, at: int) -> tuple[int, int]:
    """(the number, still zigzag; the offset after it). Raises IndexError at the end of the data."""
    value = 0
    for shift in range(0, 7 * VARINT_BYTES_MAX, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise KafkaError(ErrorCode.INVALID_RECORD, f"a number of more than {VARINT_BYTES_MAX} bytes")
