"""One operation of a replay while it runs: a row of the trace, and what became of it (RPL-2)."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass, field

from protocol.types import TopicPartition

Read = tuple[str, int, int, int]
"""Topic, partition, the offset that was asked for, and the offset after the last record."""


@dataclass(slots=True, eq=False)
class Operation:
    """Times are nanoseconds since 1970 UTC by the replay's common clock; 0: not yet.

    `scheduled`: when it was due; in a closed loop, when it was sent. `ready`: when the loop gave it to its client; what is late until then,
    the generator has caused. After that it waits for a leader, a connection or the batches in flight before it. `sent`: when the first
    request with the operation left. `answered`: when the last answer was read; between them, the operation may have been sent again. A
    failed operation has an `error`. If no broker answered it, it also has no `answered`.
    """

    op: str
    """Of the trace: produce, fetch, offsets in a transaction, or the end of one."""
    request: int
    client: int
    """The number of the client in the replay; a producer's is that of its stamps."""
    topic: str
    partition: int
    records: int
    """Of a produce: in the batch. Of a fetch: received."""
    bytes: int
    """Size of the record batches."""
    scheduled: int
    trace_records: int = field(init=False)
    sent: int = 0
    answered: int = 0
    ready: int = 0
    unheard: int = 0
    """From when on the answer may have waited in the socket, because the loop stood still until `answered`; 0: the loop listened."""
    error: str | None = None
    leader: int = -1
    """The broker that was asked last."""
    offset: int = -1
    """Of a produce: the batch's base offset, -1 if it is not known. Of a fetch: where it started to read."""
    retries: int = 0

    # Of a produce:
    first_sequence: int = -1
    """The sequence in its first record's stamp."""
    acks: int | None = None
    transaction: int = -1
    """Of a batch, of offsets and of an end: which of the producer's transactions, counted from 0; -1: none."""
    compression: int = 0
    key_size: int = -1
    """Of each record's key; -1: no keys."""
    keys: Sequence[int] = ()
    """The hashes of the records' keys, or one for all."""
    is_compacted: bool = False
    """Whether the topic is: then the verdict needs the keys."""
    place: int = 0
    """Of the batch among those of its producer and partition."""
    batch: builtins.bytes | None = None
    sequence: int = -1
    """Kafka's base sequence."""

    # Of offsets in a transaction:
    group: str = ""

    # Of a fetch:
    min_bytes: int = 1
    max_wait_ms: int = 500
    max_bytes: int = 0
    behind: int | None = None
    read_committed: bool | None = None
    recorded_offset: int | None = None
    reads: list[Read] | None = None
    """What the answer brought, also of the client's other partitions."""

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def __post_init__(self) -> None:
        self.trace_records = self.records
