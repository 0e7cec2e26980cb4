"""One operation of a replay while it runs: a row of the trace, and what became of it (RPL-2)."""

from __future__ import annotations


class Operation:
    """Times are nanoseconds since 1970 UTC by the replay's common clock; 0: not yet.

    `sent`: when the first request with the operation left. `answered`: when the last answer came; between them, the operation may have
    been sent again. A failed operation has an `error`. If no broker answered it, it also has no `answered`.
    """

    __slots__ = (
        "acks",
        "answered",
        "batch",
        "behind",
        "bytes",
        "client",
        "compression",
        "error",
        "first_sequence",
        "group",
        "leader",
        "max_bytes",
        "max_wait_ms",
        "min_bytes",
        "offset",
        "op",
        "partition",
        "place",
        "recorded_offset",
        "records",
        "request",
        "retries",
        "scheduled",
        "sent",
        "sequence",
        "topic",
        "trace_records",
    )

    def __init__(
        self,
        op: str,
        request: int,
        client: int,
        topic: str,
        partition: int,
        records: int,
        size: int,
        scheduled: int,
    ) -> None:
        self.op = op
        self.request = request
        self.client = client
        """The number of the client in the replay; a producer's is that of its stamps."""
        self.topic = topic
        self.partition = partition
        self.records = records
        """Of a produce: in the batch. Of a fetch: received."""
        self.trace_records = records
        self.bytes = size
        """Size of the record batches."""
        self.scheduled = scheduled
        self.sent = 0
        self.answered = 0
        self.error: str | None = None
        self.leader = -1
        """The broker that was asked last."""
        self.offset = -1
        """Of a produce: the batch's base offset, -1 if it is not known. Of a fetch: where it started to read."""
        self.retries = 0
        self.first_sequence = -1
        """Of a produce: the sequence in its first record's stamp."""
        # Of a produce:
        self.acks: int | None = None
        self.compression = 0
        self.place = 0
        """Of the batch among those of its producer and partition."""
        self.batch: bytes | None = None
        self.sequence = -1  # Kafka's base sequence
        # Of a fetch:
        self.min_bytes = 1
        self.max_wait_ms = 500
        self.max_bytes = 0
        self.behind: int | None = None
        self.recorded_offset: int | None = None
        self.group: str | None = None
        """As the trace names it."""
