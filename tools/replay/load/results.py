"""The rows that a replay writes: one for each operation (RPL-2), as Parquet files of the tasks.

Each task sends a file to the driver every few seconds, so the rows of a lost task stay.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pyarrow
import pyarrow.parquet

from tools.replay.load.operations import Operation

READS = pyarrow.list_(
    pyarrow.struct(
        [
            ("topic", pyarrow.string()),
            ("partition", pyarrow.int32()),
            ("begin", pyarrow.int64()),  # the offset that was asked for
            ("stop", pyarrow.int64()),  # the offset after the last record
        ]
    )
)
SCHEMA = pyarrow.schema(
    [
        pyarrow.field("request", pyarrow.int64(), nullable=False),  # of the trace; each of its rows is an operation
        pyarrow.field("op", pyarrow.string(), nullable=False),  # `produce`, `fetch`, `offsets`, `commit` or `abort`
        pyarrow.field("client", pyarrow.string(), nullable=False),
        # the number of the client in the replay, which its records carry
        pyarrow.field("producer", pyarrow.int64(), nullable=False),
        pyarrow.field("task", pyarrow.int32(), nullable=False),  # the Spark task
        pyarrow.field("topic", pyarrow.string(), nullable=False),  # of the cluster
        pyarrow.field("partition", pyarrow.int32(), nullable=False),
        # when it was due, in ns since 1970 UTC by the driver's clock, as the next four; of a closed loop: `sent`
        pyarrow.field("scheduled", pyarrow.int64(), nullable=False),
        pyarrow.field("ready", pyarrow.int64()),  # when the loop gave it to its client
        pyarrow.field("sent", pyarrow.int64()),  # when the first request with it left; null: never
        pyarrow.field("answered", pyarrow.int64()),  # when its last answer was read; null: never
        # the answer may have come at any time from here to `answered`, because the loop stood still; null: it listened
        pyarrow.field("unheard", pyarrow.int64()),
        pyarrow.field("records", pyarrow.int32(), nullable=False),  # sent; of a fetch: received
        pyarrow.field("bytes", pyarrow.int64(), nullable=False),  # of the record batches sent or received
        pyarrow.field("acks", pyarrow.int16()),  # of a produce
        pyarrow.field("error", pyarrow.string()),  # null: it succeeded
        pyarrow.field("leader", pyarrow.int32()),  # the broker that was asked last; null: none
        pyarrow.field("offset", pyarrow.int64()),  # of a produce: its base offset, if known; of a fetch: its start
        # of a produce: the sequence in its first record, counted by producer
        pyarrow.field("first_sequence", pyarrow.int64()),
        # of a produce, offsets, a commit or an abort: the producer's transactions, counted from 0; null: none
        pyarrow.field("transaction", pyarrow.int64()),
        # of a produce to a compacted topic: the size of each key, and their hashes, or one for all
        pyarrow.field("key_size", pyarrow.int32()),
        pyarrow.field("keys", pyarrow.list_(pyarrow.int64())),
        pyarrow.field("read_committed", pyarrow.bool_()),  # of a fetch
        pyarrow.field("retries", pyarrow.int32(), nullable=False),  # how often it was sent again
        pyarrow.field("reads", READS),  # of a fetch: what the answer brought, also of the client's other partitions
    ]
)
OPERATIONS, GENERATOR, GROUPS = "operations", "generator", "groups"
KINDS = (OPERATIONS, GENERATOR, GROUPS)
"""What a task sends: rows, in several files; what its loop measured, and what its groups did, in one file of JSON each."""


class ResultFiles:
    """The files of all tasks, in a directory for each kind."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: Counter[int] = Counter()
        """Task -> its files of operations."""

    def write(self, kind: str, task: int, content: bytes) -> None:
        """`kind`: one of KINDS. Raises OSError."""
        directory = self._directory / kind
        directory.mkdir(parents=True, exist_ok=True)
        name = f"task-{task:04}.json"
        if kind == OPERATIONS:
            name = f"task-{task:04}-{self._files[task]:06}.parquet"
            self._files[task] += 1
        partial = directory / f".{name}.partial"
        partial.write_bytes(content)
        os.replace(partial, directory / name)


def parquet_of(tables: Sequence[pyarrow.Table]) -> bytes:
    """The content of a file with the rows of the tables."""
    sink = pyarrow.BufferOutputStream()
    pyarrow.parquet.write_table(pyarrow.concat_tables(tables), sink, compression="zstd")
    return bytes(sink.getvalue())


CLIENT_BITS = 20
"""A client's number is the task's number, then this many bits for the client's place in the task. A stamp has 32 bits for both."""


UNKNOWN = dict.fromkeys(("ready", "sent", "answered", "unheard"), 0) | dict.fromkeys(
    ("leader", "offset", "first_sequence", "transaction"), -1
)
"""Field of an operation -> the value that is null in its row."""
SAME_NAME = [name for name in SCHEMA.names if name not in ("client", "producer", "task", "key_size", "keys")]


def table_of(operations: Sequence[Operation], clients: Sequence[str], task: int) -> pyarrow.Table:
    """The rows of these operations. `clients`: names by the lower 20 bits of a client's number."""
    place = (1 << CLIENT_BITS) - 1
    columns = {name: [getattr(operation, name) for operation in operations] for name in SAME_NAME}
    for name, unknown in UNKNOWN.items():
        columns[name] = [None if value == unknown else value for value in columns[name]]
    columns["producer"] = [operation.client for operation in operations]
    columns["client"] = [clients[number & place] for number in columns["producer"]]
    columns["task"] = [task] * len(operations)
    for name in ("key_size", "keys"):
        columns[name] = [getattr(operation, name) if operation.is_compacted else None for operation in operations]
    return pyarrow.table([pyarrow.array(columns[field.name], field.type) for field in SCHEMA], schema=SCHEMA)
