"""A trace of what was written to topics: from any Kafka over the network, or from copied segment files (RPL-5).

Each record batch becomes a produce. A log knows when, how large, how compressed, how many records and in which transaction state a batch
was, and the records' keys, of which the trace keeps sizes and hashes. It does not know the client id, the acks, or what was read:
a client is a producer id, or a partition if the producer had none; the acks are all.

The batches of a producer id up to a marker in their partition are parts of one transaction. Its markers in several partitions are told from
those of the next one by their times (`ends_of`).
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Any

import pyarrow

from protocol.errors import ErrorCode, KafkaError, error_name
from protocol.kafka.control_records import marker_in
from protocol.kafka.framing import MalformedRequest
from protocol.kafka.record_batch import crc_is_valid, decode_records, iter_batches
from protocol.types import Address, Buffer, TopicPartition
from tools.replay.load import fetching
from tools.replay.traces.key_hashes import mean_key_size
from tools.replay.traces.schema import (
    ABORT,
    ABSENT,
    COMMIT,
    COMPRESSIONS,
    FIELDS,
    PRODUCE,
    TraceError,
    TraceInfo,
    TraceWriter,
)
from tools.wire import frames
from tools.wire.client import Client
from tools.wire.cluster_view import ClusterView, Unreachable
from tools.wire.offsets import EARLIEST
from tools.wire.security import Security

FETCH_BYTES = 4 * 1024 * 1024
TIMEOUT_S = 30.0
MILLISECOND_NS = 1_000_000
ROWS_AT_ONCE = 64 * 1024

Row = dict[str, Any]


def import_topics(
    addresses: Sequence[Address], security: Security, topics: Sequence[str], out: Path
) -> tuple[int, dict[str, int]]:
    """Reads the topics from their log starts to their high watermarks. Returns the number of rows, and of partitions by topic.

    Raises TraceError.
    """
    try:
        rows, partitions = asyncio.run(_read_topics(addresses, security, topics))
    except (Unreachable, OSError, MalformedRequest) as problem:
        raise TraceError(f"the topics cannot be read: {problem}") from None
    return _write(rows, f"topics {', '.join(topics)}", partitions, out), partitions


def import_segments(files: Sequence[Path], out: Path) -> tuple[int, dict[str, int]]:
    """Reads segments whose directories have Kafka's names, such as `orders-0/00000000000000000000.log`. Raises TraceError, OSError."""
    rows: list[Row] = []
    partitions: dict[str, int] = {}
    for file in sorted(files):
        topic, dash, number = file.absolute().parent.name.rpartition("-")
        if not dash or not number.isdecimal():
            raise TraceError(f"{file}: its directory is not TOPIC-PARTITION, such as orders-0")
        partitions[topic] = max(partitions.get(topic, 0), int(number) + 1)
        if not file.stat().st_size:
            continue
        content = file.read_bytes()
        rows += rows_of(content, topic, int(number), 0, str(file))
        whole = max((position + header.size_in_bytes for position, header in iter_batches(content)), default=0)
        if whole < len(content):
            raise TraceError(f"{file} ends inside a batch, at {whole} of {len(content)} bytes: copy it again")
    return _write(rows, f"segments of {', '.join(partitions)}", partitions, out), partitions


def rows_of(records: Buffer, topic: str, partition: int, first: int, where: str) -> Iterator[Row]:
    """A row for each batch of clients that ends at offset `first` or later. Raises TraceError.

    `time_ns` is since 1970, and `key_bytes` is of all keys together. A batch without a time has that of the batch before it.
    A marker is a row, too, which `ends_of` takes.
    """
    time_ms = 0
    try:
        for position, header in iter_batches(records):
            if header.next_offset <= first:
                continue
            if not crc_is_valid(records, position, header):
                raise TraceError(f"{where}: {topic}-{partition}: the batch at offset {header.base_offset} is damaged")
            time_ms = header.base_timestamp if header.base_timestamp >= 0 else time_ms
            name = f"producer-{header.producer_id}" if header.producer_id >= 0 else f"{topic}-{partition}"
            if header.is_control:
                if (marker := marker_in(records, position)) is not None:
                    end = {"op": COMMIT if marker.is_commit else ABORT, "client": name, "transactional_id": name}
                    yield end | {"time_ns": time_ms * MILLISECOND_NS, "topic": topic, "partition": partition}
                continue
            hashes, size = _keys(records, position)
            yield {
                "op": PRODUCE,
                "time_ns": time_ms * MILLISECOND_NS,
                "client": name,
                "topic": topic,
                "partition": partition,
                "records": header.record_count,
                "bytes": header.size_in_bytes,
                "compression": COMPRESSIONS[header.compression],
                "transactional": header.is_transactional,
                "transactional_id": name if header.is_transactional else None,
                "key_bytes": size,
                "keys": hashes,
            }
    except (KafkaError, IndexError) as problem:
        raise TraceError(f"{where}: {topic}-{partition}: a batch cannot be read: {problem}") from None


def ends_of(rows: Iterable[Row]) -> list[Row]:
    """The rows of batches, and one for the end of each transaction. `rows` have the order of the log in each partition.

    An end is due with the last batch of its transaction: a marker may be written after the next transaction has begun. Markers belong
    together if they say the same, are of different partitions, and batches of the later one were there before the earlier one was written.
    """
    found: list[Row] = []
    open_batches: dict[tuple[str, str, int], list[int]] = {}
    markers: dict[str, list[tuple[int, Row, int, int]]] = {}
    for row in rows:
        place = row["client"], row["topic"], row["partition"]
        if row["op"] == PRODUCE:
            found.append(row)
            if row["transactional"]:
                open_batches.setdefault(place, []).append(row["time_ns"])
        elif times := open_batches.pop(place, None):
            markers.setdefault(row["client"], []).append((row["time_ns"], row, min(times), max(times)))
    for of_client in markers.values():
        written_ns, end, places = 0, Row(), set[tuple[str, int]]()
        for at_ns, row, first_ns, last_ns in sorted(of_client, key=itemgetter(0)):
            place_of = row["topic"], row["partition"]
            if not end or row["op"] != end["op"] or place_of in places or first_ns > written_ns:
                written_ns, places = at_ns, set()
                end = row | {"topic": "", "partition": 0, "records": 0, "bytes": 0, "keys": None, "time_ns": last_ns}
                found.append(end)
            places.add(place_of)
            end["time_ns"] = max(end["time_ns"], last_ns)
    return found


def _keys(records: Buffer, position: int) -> tuple[list[int] | None, int]:
    """The hashes of a batch's keys, None if no record has one, and the bytes of all keys."""
    keys = [record.key for record in decode_records(records, position)]
    if not any(key is not None for key in keys):
        return None, 0
    hashes = [int.from_bytes(hashlib.blake2b(key or b"", digest_size=8).digest(), "big", signed=True) for key in keys]
    return hashes, sum(len(key or b"") for key in keys)


def _key_size(rows: Sequence[Row]) -> int:
    return mean_key_size(sum(row["key_bytes"] for row in rows), sum(len(row["keys"] or ()) for row in rows))


async def _read_topics(
    addresses: Sequence[Address], security: Security, topics: Sequence[str]
) -> tuple[list[Row], dict[str, int]]:
    view = ClusterView(Client(fetching.CLIENT, security), tuple(addresses), list(topics))
    await view.start()
    counts = {topic: view.partitions(topic) for topic in topics}
    if missing := [topic for topic, count in counts.items() if not count]:
        raise TraceError(f"topic {missing[0]!r} does not exist")
    wanted = [TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)]
    starts = await fetching.end_offsets(view, wanted, TIMEOUT_S, EARLIEST)
    ends = await fetching.end_offsets(view, wanted, TIMEOUT_S)
    rows: list[Row] = []
    for partition in wanted:
        if partition not in starts or partition not in ends:
            raise TraceError(
                f"{partition.topic}-{partition.partition} has no leader that answers within {TIMEOUT_S:g} s"
            )
        rows += [row async for row in _read_partition(view, partition, starts[partition], ends[partition])]
    view.close()
    return rows, counts


async def _read_partition(view: ClusterView, partition: TopicPartition, at: int, end: int) -> AsyncIterator[Row]:
    connection = await view.connect(view.leader(partition), lambda _: None)
    try:
        while at < end:
            asked = {partition.topic: [(partition.partition, at)]}
            frame = frames.fetch_frame(fetching.CLIENT, 500, 1, FETCH_BYTES, FETCH_BYTES, asked)
            response = frames.fetched(await connection.ask(frame, TIMEOUT_S))
            data = response.topics[0][1][0] if response.topics else None
            code = response.error or (data.error if data is not None else ErrorCode.UNKNOWN_SERVER_ERROR)
            if code or data is None:
                raise TraceError(f"{partition.topic}-{partition.partition} cannot be read at {at}: {error_name(code)}")
            following = at
            for buffer in data.records:
                for row in rows_of(buffer, *partition, at, "the broker's answer"):
                    yield row
                following = max([following, *(header.next_offset for _, header in iter_batches(buffer))])
            if following == at:
                return  # only what was deleted since, or what compaction has removed, is left
            at = following
    finally:
        connection.close()


def _write(rows: list[Row], source: str, partitions: dict[str, int], out: Path) -> int:
    if not rows:
        raise TraceError(f"{source}: there is no record, so {out} was not written")
    rows = sorted(ends_of(rows), key=itemgetter("time_ns"))
    start = rows[0]["time_ns"]
    sizes = {topic: _key_size([row for row in rows if row["topic"] == topic]) for topic in partitions}
    acks = {PRODUCE: ABSENT[PRODUCE]["acks"]}
    with TraceWriter(out, TraceInfo(start, source, partitions)) as writer:
        for begin in range(0, len(rows), ROWS_AT_ONCE):
            part = [
                row
                | {
                    "acks": acks.get(row["op"]),
                    "time_ns": row["time_ns"] - start,
                    "request": begin + at,
                    "key_bytes": None if row["keys"] is None else sizes[row["topic"]],
                }
                for at, row in enumerate(rows[begin : begin + ROWS_AT_ONCE])
            ]
            writer.write(pyarrow.Table.from_pylist(part, schema=pyarrow.schema(list(FIELDS.values()))))
    return len(rows)
