"""Are the records of a batch what its header says? A walk over their lengths that builds nothing. Pure.

    record = varint length | attributes | varint timestamp delta | varint offset delta
           | varint key length, key | varint value length, value | varint header count, headers

varints are zigzag: an even number 2n is n, an odd one negative. About 0.45 us a record.
"""

from __future__ import annotations

from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.record_batch import Buffer

RECORD_BYTES_MIN = 7
"""Each of the fields above as one byte."""
VARINT_BYTES_MAX = 10
LOWEST_DELTA = -(2**63)
TAIL_BYTES = 2048
PLACES_TRIED = 8
"""How often the last record's offset delta may be met before it, in its own bytes."""


def check_records(data: Buffer, at: int, record_count: int, checked: int) -> int:
    """`data` has from `at` to its end `record_count` records, whose offset deltas count up from 0.

    The first `checked` of them are looked at, and that nothing follows the last only if that are all. Returns the largest
    timestamp delta (ms) of those that were looked at. Raises KafkaError(INVALID_RECORD) for what no consumer could read
    (BAD-12, 13, 18).
    """
    end = len(data)
    if record_count * RECORD_BYTES_MIN > end - at:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"{end - at} bytes do not hold {record_count} records")
    newest = LOWEST_DELTA
    try:
        for delta in range(min(record_count, checked)):
            # Numbers of one and two bytes are read here: a call for each would cost the double.
            size = data[at]
            if size < 0x80:
                at += 1
            elif (more := data[at + 1]) < 0x80:
                size = size & 0x7F | more << 7
                at += 2
            else:
                size, at = _raw_varint(data, at)
            after = at + (size >> 1)
            if size & 1 or after > end:
                raise KafkaError(ErrorCode.INVALID_RECORD, f"record {delta} does not fit its batch")
            at += 1
            time = data[at]
            if time < 0x80:
                at += 1
            else:
                time, at = _raw_varint(data, at)
            time = time >> 1 ^ -(time & 1)
            if time > newest:
                newest = time
            number = data[at]
            if number < 0x80:
                at += 1
            else:
                number, at = _raw_varint(data, at)
            if number != delta + delta:
                raise KafkaError(ErrorCode.INVALID_RECORD, f"record {delta} does not have offset delta {delta}")
            for _ in (0, 1):  # key, value
                size = data[at]
                if size < 0x80:
                    at += 1
                elif (more := data[at + 1]) < 0x80:
                    size = size & 0x7F | more << 7
                    at += 2
                else:
                    size, at = _raw_varint(data, at)
                if not size & 1:
                    at += size >> 1
                elif size != 1:
                    raise KafkaError(ErrorCode.INVALID_RECORD, f"record {delta} has a field of negative length")
            count = data[at]
            at += 1
            if count:
                at = _check_headers(data, at - 1, after, delta)
            if at != after:
                raise KafkaError(ErrorCode.INVALID_RECORD, f"record {delta} has not the length of its fields")
    except IndexError:
        raise KafkaError(ErrorCode.INVALID_RECORD, "the batch ends inside a record") from None
    if at != end and record_count <= checked:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"{end - at} bytes after the last record")
    return newest


def last_timestamp_delta(data: Buffer, record_count: int) -> int | None:
    """The timestamp delta (ms) of the last of some records, found from the end of `data`: about 1 us.

    That record has the offset delta `record_count` - 1, and its length reaches to the end. None when no such place is found in
    the last 2 KiB. What only looks like a record, inside the last one's value, may be taken for it.
    """
    tail = bytes(data[-TAIL_BYTES:])
    number = _zigzag(record_count - 1)
    place = size = len(tail)
    for _ in range(PLACES_TRIED):
        place = tail.rfind(number, 0, place)
        at = place - 1
        while at > 0 and tail[at - 1] >= 0x80:
            at -= 1
        if at < 2:
            return None
        # The attributes, which are 0, come before the timestamp delta, and before them the length.
        if (
            tail[place - 1] < 0x80
            and place - at <= VARINT_BYTES_MAX
            and tail[at - 1] == 0
            and tail.endswith(_zigzag(size - at + 1), 0, at - 1)
        ):
            time = _raw_varint(tail, at)[0]
            return time >> 1 ^ -(time & 1)
    return None


def _zigzag(number: int) -> bytes:
    """The varint of a number that is not negative."""
    rest = number << 1
    if rest < 0x80:
        return bytes((rest,))
    if rest < 0x4000:
        return bytes((rest & 0x7F | 0x80, rest >> 7))
    out = bytearray()
    while rest >= 0x80:
        out.append(rest & 0x7F | 0x80)
        rest >>= 7
    out.append(rest)
    return bytes(out)


def _check_headers(data: Buffer, at: int, after: int, delta: int) -> int:
    """The end of the headers whose count is at `at`; a name is there, a value may be null."""
    count, at = _raw_varint(data, at)
    if count & 1 or count >> 1 > after - at:
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
    """(the number, still zigzag; what follows it). Raises IndexError at the end of the data."""
    value = 0
    for shift in range(0, 7 * VARINT_BYTES_MAX, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise KafkaError(ErrorCode.INVALID_RECORD, f"a number of more than {VARINT_BYTES_MAX} bytes")
