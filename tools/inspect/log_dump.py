"""The contents of a partition's files, as text and as JSON: `ottla inspect log`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from protocol.errors import KafkaError
from protocol.kafka.record_batch import BatchHeader, decode_records
from tools.cluster.tables import aligned
from tools.inspect import disk_files
from tools.inspect.disk_files import BadFile, Damage, StoredBatch

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
COLUMNS = ("POSITION", "OFFSETS", "COUNT", "BYTES", "EPOCH", "TIMESTAMP", "CODEC", "PRODUCER", "SEQUENCE", "FLAGS")
MARKERS = {0: "abort", 1: "commit"}
VALUE_CHARACTERS = 120
_TIME_MAX = 253_402_300_799_999
"""The last millisecond of the year 9999: `datetime` has no later times."""


def time_text(timestamp_ms: int) -> str:
    if not 0 <= timestamp_ms <= _TIME_MAX:
        return str(timestamp_ms)
    return (
        datetime.fromtimestamp(timestamp_ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{timestamp_ms % 1000:03d}Z"
    )


def flags_of(header: BatchHeader) -> list[str]:
    return [
        name
        for name, is_set in (
            ("transactional", header.is_transactional),
            ("control", header.is_control),
            ("log-append-time", header.is_log_append_time),
            ("delete-horizon", header.delete_horizon_ms is not None),
        )
        if is_set
    ]


def _marker(found: StoredBatch) -> list[str]:
    """The transaction markers in a control batch."""
    if not found.header.is_control:
        return []
    try:
        keys = [record.key or b"" for record in decode_records(found.data)]
    except KafkaError:
        return []
    return [MARKERS.get(int.from_bytes(key[2:4], "big"), "other marker") for key in keys]


# -- reading: plain values, as in the JSON -------------------------------------------------------------------------------


def directory_content(directory: Path, *, records: bool, from_offset: int) -> dict[str, Any]:
    """`{directory, topic_id, segments, leader_epochs, producer_snapshots}`; an unreadable file is `{error}`."""
    files = disk_files.segment_files(directory)
    bases = [base for base, suffixes in files.items() if "log" in suffixes]
    shown = [
        base
        for base, following in itertools.zip_longest(bases, bases[1:])
        if following is None or following > from_offset
    ]
    return {
        "directory": str(directory),
        "topic_id": _or_error(lambda: disk_files.topic_id(directory)),
        "segments": [
            segment_content(_named(directory, base, "log"), records=records, from_offset=from_offset) for base in shown
        ],
        "leader_epochs": _or_error(
            lambda: [
                {"epoch": epoch, "start_offset": start} for epoch, start in disk_files.leader_epochs(directory) or ()
            ]
        ),
        "producer_snapshots": {
            str(base): _or_error(lambda base=base: _snapshot(directory, base))
            for base, suffixes in files.items()
            if "snapshot" in suffixes and base >= from_offset
        },
    }


def _snapshot(directory: Path, base: int) -> list[dict[str, int]]:
    rows = disk_files.producer_snapshot(_named(directory, base, "snapshot")) or ()
    return [row._asdict() for row in rows]


def _named(directory: Path, base: int, suffix: str) -> Path:
    return directory / f"{base:020d}.{suffix}"


def _or_error(read: Any) -> Any:
    try:
        return read()
    except BadFile as error:
        return {"error": str(error)}


def segment_content(path: Path, *, records: bool, from_offset: int) -> dict[str, Any]:
    """`{file, base_offset, size, batches, damage, index, time_index, aborted_transactions}`. Raises OSError."""
    base = int(path.stem)
    batches: list[dict[str, Any]] = []
    damage = None
    end = 0
    for found in disk_files.batches(path):
        if isinstance(found, Damage):
            damage = {"position": found.position, "reason": found.reason}
        else:
            end = found.position + len(found.data)
            if found.header.last_offset >= from_offset:
                batches.append(_batch(found, records=records))
    return {
        "file": path.name,
        "base_offset": base,
        "size": max(end, path.stat().st_size),
        "batches": batches,
        "damage": damage,
        "index": _or_error(lambda: disk_files.offset_index(path.with_suffix(".index"), base)),
        "time_index": _or_error(lambda: disk_files.time_index(path.with_suffix(".timeindex"), base)),
        "aborted_transactions": _or_error(
            lambda: [row._asdict() for row in disk_files.transaction_index(path.with_suffix(".txnindex")) or ()]
        ),
    }


def _batch(found: StoredBatch, *, records: bool) -> dict[str, Any]:
    header = found.header
    content = {
        "position": found.position,
        "base_offset": header.base_offset,
        "last_offset": header.last_offset,
        "count": header.record_count,
        "size": header.size_in_bytes,
        "leader_epoch": header.partition_leader_epoch,
        "timestamp": header.max_timestamp,
        "codec": CODECS[header.compression] if header.compression < len(CODECS) else str(header.compression),
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "base_sequence": header.base_sequence,
        "flags": [*flags_of(header), *_marker(found)],
        "crc_is_valid": found.is_intact,
    }
    if records:
        content["records"] = _records(found)
    return content


def _records(found: StoredBatch) -> Any:
    try:
        decoded = decode_records(found.data)
    except KafkaError as error:
        return {"error": str(error)}
    return [
        {
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": text_of(record.key),
            "value": text_of(record.value),
            "headers": [{"key": name, "value": text_of(value)} for name, value in record.headers],
        }
        for record in decoded
    ]


def text_of(data: bytes | None) -> str | None:
    """UTF-8 unchanged, other bytes as `\\x..`."""
    return None if data is None else data.decode("utf-8", errors="backslashreplace")


# -- for people ---------------------------------------------------------------------------------------------------------


def directory_lines(content: dict[str, Any]) -> Iterator[str]:
    segments = content["segments"]
    yield f"{content['directory']}: topic id {_plain(content['topic_id'])}, {len(segments)} segments"
    for segment in segments:
        yield ""
        yield from segment_lines(segment)
    yield ""
    yield "Leader epochs:"
    yield from _table(("EPOCH", "START"), content["leader_epochs"], ("epoch", "start_offset"))
    for offset, rows in content["producer_snapshots"].items():
        yield ""
        yield f"Producers below offset {offset}:"
        names = ("producer_id", "epoch", "last_sequence", "last_offset", "timestamp", "transaction_first_offset")
        yield from _table(("PRODUCER", "EPOCH", "LAST SEQUENCE", "LAST OFFSET", "TIMESTAMP", "OPEN SINCE"), rows, names)


def _plain(value: Any) -> str:
    return f"unreadable ({value['error']})" if isinstance(value, dict) else str(value or "none")


def _table(heads: Sequence[str], rows: Any, names: Sequence[str]) -> Iterator[str]:
    if isinstance(rows, dict):
        yield f"  unreadable: {rows['error']}"
    elif not rows:
        yield "  none"
    else:
        table = [heads, *([time_text(row[n]) if n == "timestamp" else str(row[n]) for n in names] for row in rows)]
        yield from (f"  {line}" for line in aligned(table))


def segment_lines(segment: dict[str, Any]) -> Iterator[str]:
    indexes = ", ".join(
        f"{name} {_count(segment[key])}" for name, key in (("index", "index"), ("time index", "time_index"))
    )
    yield f"{segment['file']}: {segment['size']} bytes, {len(segment['batches'])} batches shown; {indexes}"
    table = [COLUMNS, *(_row(batch) for batch in segment["batches"])]
    for line, batch in zip(aligned(table), [None, *segment["batches"]], strict=True):
        yield f"  {line}"
        if batch is not None and "records" in batch:
            yield from _record_lines(batch["records"])
    aborted = segment["aborted_transactions"]
    if isinstance(aborted, dict):
        yield f"  aborted transactions: unreadable ({aborted['error']})"
    for row in aborted if isinstance(aborted, list) else ():
        yield f"  aborted: producer {row['producer_id']}, offsets {row['first_offset']}-{row['last_offset']}"
    if segment["damage"]:
        yield f"  position {segment['damage']['position']}: {segment['damage']['reason']}"


def _count(entries: Any) -> str:
    if isinstance(entries, dict):
        return f"unreadable ({entries['error']})"
    if entries is None:
        return "missing"
    return f"{len(entries)} entries" + (f" up to {entries[-1][0]}@{entries[-1][1]}" if entries else "")


def _row(batch: dict[str, Any]) -> tuple[str, ...]:
    producer = "-" if batch["producer_id"] < 0 else f"{batch['producer_id']}/{batch['producer_epoch']}"
    sequence = "-" if batch["base_sequence"] < 0 else str(batch["base_sequence"])
    flags = [*batch["flags"], *([] if batch["crc_is_valid"] else ["CRC IS WRONG"])]
    return (
        str(batch["position"]),
        f"{batch['base_offset']}-{batch['last_offset']}",
        str(batch["count"]),
        str(batch["size"]),
        str(batch["leader_epoch"]),
        time_text(batch["timestamp"]),
        batch["codec"],
        producer,
        sequence,
        ", ".join(flags),
    )


def _record_lines(records: Any) -> Iterator[str]:
    if isinstance(records, dict):
        yield f"    unreadable: {records['error']}"
        return
    for record in records:
        named = ", ".join(f"{_short(header['key'])}={_short(header['value'])}" for header in record["headers"])
        headers = f"  headers {named}" if named else ""
        yield f"    {record['offset']}  {time_text(record['timestamp'])}  {_short(record['key'])}  {_short(record['value'])}{headers}"


def _short(text: str | None) -> str:
    if text is None:
        return "null"
    shown = text if len(text) <= VALUE_CHARACTERS else f"{text[:VALUE_CHARACTERS]}... ({len(text)} characters)"
    return shown.encode("unicode_escape").decode()
