"""The markers that end a transaction in a partition's log: control batches with one record (Kafka's EndTransactionMarker). Pure.

    batch    attributes: transactional and control; producer id and epoch of the transaction; no sequence
    key      int16 version (0), int16 type (0: abort, 1: commit)
    value    int16 version (0), int32 epoch of the transaction coordinator

Readers ignore fields after these, and records with an unknown type, as newer versions may add them.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.record_batch import CONTROL_BIT, TRANSACTIONAL_BIT, build_batch, decode_records
from protocol.types import Buffer

ABORT, COMMIT = 0, 1
_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")


class Marker(NamedTuple):
    """How a transaction ended, and the epoch of the coordinator that ended it: that of its partition of `__transaction_state`."""

    is_commit: bool
    coordinator_epoch: int


def marker_batch(producer_id: int, producer_epoch: int, marker: Marker, timestamp_ms: int) -> bytes:
    """The batch to append. Its base offset and leader epoch are assigned by the append."""
    key = _KEY.pack(0, COMMIT if marker.is_commit else ABORT)
    value = _VALUE.pack(0, marker.coordinator_epoch)
    return build_batch(
        [(key, value, (), timestamp_ms)],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        attributes=TRANSACTIONAL_BIT | CONTROL_BIT,
    )


def parse_marker(batch: Buffer, position: int = 0) -> Marker | None:
    """The marker in a whole control batch. None: compaction removed its record, or it is another kind of control record.

    Raises KafkaError(CORRUPT_MESSAGE) for broken bytes.
    """
    records = decode_records(batch, position)
    if not records:
        return None
    key, value = records[0].key or b"", records[0].value or b""
    if len(key) < _KEY.size:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE, f"the key of a control record has {len(key)} bytes, not {_KEY.size}"
        )
    kind = _KEY.unpack_from(key)[1]
    if kind not in (ABORT, COMMIT):
        return None
    if len(value) < _VALUE.size:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"the value of a marker has {len(value)} bytes, not {_VALUE.size}")
    return Marker(kind == COMMIT, _VALUE.unpack_from(value)[1])


def marker_in(batch: Buffer, position: int = 0) -> Marker | None:
    """As `parse_marker`, for a control batch that is in a log or comes from a leader: None also for broken bytes."""
    try:
        return parse_marker(batch, position)
    except KafkaError:
        return None
