"""What a follower makes sure of before it appends what its leader sent (REP-9). Pure."""

from __future__ import annotations

from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.record_batch import BatchHeader, Buffer, crc_is_valid, iter_batches

BASE_OFFSET_MAX = 2**63 - 1 - 2**31
"""Whatever its last offset delta is, the offset after the batch is a number of 64 bits."""


def check(records: Buffer, expected: int) -> tuple[list[BatchHeader], int]:
    """(headers, bytes) of the whole batches, of which none begins before the offset `expected`.

    Raises KafkaError(CORRUPT_MESSAGE) for broken bytes, KafkaError(OFFSET_OUT_OF_RANGE) for a batch before `expected`.
    """
    headers: list[BatchHeader] = []
    end = 0
    for position, header in iter_batches(records):
        if header.base_offset < expected:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE, f"batch at {header.base_offset}, the log ends at {expected}"
            )
        if (
            header.last_offset_delta < 0
            or header.base_offset > BASE_OFFSET_MAX
            or not crc_is_valid(records, position, header)
        ):
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"batch at offset {header.base_offset} is broken")
        headers.append(header)
        expected = header.next_offset
        end = position + header.size_in_bytes
    return headers, end


def begin_inside(records: Buffer, start: int) -> int:
    """Where an empty log begins: at its `start`, or before it, at the begin of the first batch that holds it."""
    first = next(iter_batches(records), None)
    return first[1].base_offset if first and first[1].base_offset < start <= first[1].last_offset else start
