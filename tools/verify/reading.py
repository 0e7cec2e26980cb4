"""What the cluster holds in the end: the ids of the records in the logs (read_uncommitted), and the groups' committed offsets."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tools.admin.failures import AdminError
from tools.admin.kafka_admin import error_text
from tools.faults.load import READER, watermarks
from tools.verify.judgement import NO_POSITION, PartitionLog, Place
from tools.verify.reports import Report

SLACK_RECORDS = 10_000
"""So far below the lowest reported offset a log is read, too: copies of records whose first answer was lost may be there."""
READ_TIMEOUT_S = 60.0
"""A partition of which nothing arrives for so long is not read to its end."""
ANSWER_TIMEOUT_S = 10.0
COMMITTED_TIMEOUT_S = 30.0
RETRY_PAUSE_S = 0.2

Settings = Mapping[str, Any]
IdOf = Callable[[Any], str]


class BadId(ValueError):
    """`--id` is none of the forms that are known."""


def id_finder(where: str) -> IdOf:
    """The function that finds a record's id: in its `key`, its `value`, `header:NAME`, or `value:FIELD` (JSON). Raises BadId."""
    kind, _, name = where.partition(":")
    if where == "key":
        return lambda message: _text(message.key())
    if where == "value":
        return lambda message: _text(message.value())
    if kind == "header" and name:
        return lambda message: next((_text(value) for key, value in message.headers() or () if key == name), "")
    if kind == "value" and name:
        return lambda message: _field(message.value(), name)
    raise BadId(f"{where!r} is not key, value, header:NAME or value:FIELD")


def _text(value: bytes | str | None) -> str:
    return (value.decode(errors="backslashreplace") if isinstance(value, bytes) else value or "").strip()


def _field(value: bytes | None, name: str) -> str:
    try:
        found = json.loads(value or b"null")
    except ValueError:
        return ""
    return "" if not isinstance(found, dict) or found.get(name) is None else str(found[name]).strip()


def lowest_offsets(reports: Iterable[Report]) -> dict[str, dict[int, int]]:
    """Topic -> partition -> the lowest offset that was reported."""
    lowest: dict[str, dict[int, int]] = {}
    for report in reports:
        partitions = lowest.setdefault(report.topic, {})
        if report.partition is not None and report.offset is not None:
            partitions[report.partition] = min(report.offset, partitions.get(report.partition, report.offset))
    return lowest


def read_logs(settings: Settings, wanted: Mapping[str, Mapping[int, int]], id_of: IdOf) -> dict[Place, PartitionLog]:
    """Every partition of these topics, from somewhat below the given offsets to the high watermark. A topic that does not exist
    has none. Partitions that cannot be read are not whole. Raises AdminError if the cluster does not answer."""
    consumer = Consumer(
        {
            **READER,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            **settings,
            "isolation.level": "read_uncommitted",
        }
    )
    try:
        ranges: dict[Place, tuple[int, int]] = {}
        unreadable: set[Place] = set()
        for topic, lowest in wanted.items():
            for partition in _partitions(consumer, topic):
                try:
                    low, high = watermarks(consumer, TopicPartition(topic, partition))
                except KafkaException:
                    unreadable.add((topic, partition))
                    continue
                begin = min(max(lowest.get(partition, high) - SLACK_RECORDS, low), high)
                ranges[topic, partition] = (begin, high)
        ids, unread = _read(consumer, ranges, id_of)
    except KafkaException as problem:
        raise AdminError(f"the logs cannot be read back: {error_text(problem)}") from None
    finally:
        consumer.close()
    logs = {
        place: PartitionLog(begin, high, ids.get(place, {}), place not in unread)
        for place, (begin, high) in ranges.items()
    }
    return logs | {place: PartitionLog(0, 0, {}, False) for place in unreadable}


def _partitions(consumer: Consumer, topic: str) -> list[int]:
    """Asks again while the topic has no partitions: a broker that has just started does not know it yet."""
    deadline = time.monotonic() + ANSWER_TIMEOUT_S
    while True:
        try:
            found = consumer.list_topics(topic, timeout=ANSWER_TIMEOUT_S).topics[topic]
            if found.partitions or time.monotonic() > deadline:
                return sorted(found.partitions)
        except KafkaException:
            if time.monotonic() > deadline + ANSWER_TIMEOUT_S:
                raise
        time.sleep(RETRY_PAUSE_S)


def _read(
    consumer: Consumer, ranges: Mapping[Place, tuple[int, int]], id_of: IdOf
) -> tuple[dict[Place, dict[int, str]], set[Place]]:
    """The ids by place and offset, and the places that were not read to their end."""
    missing = {place for place, (begin, high) in ranges.items() if high > begin}
    consumer.assign([TopicPartition(*place, ranges[place][0]) for place in sorted(missing)])
    ids: dict[Place, dict[int, str]] = {place: {} for place in missing}
    deadline = time.monotonic() + READ_TIMEOUT_S
    while missing and time.monotonic() < deadline:
        for message in consumer.consume(1000, timeout=0.5):
            place = (message.topic(), message.partition())
            if message.error() is not None:
                if message.error().code() == KafkaError._PARTITION_EOF:
                    missing.discard(place)
                elif message.error().code() == KafkaError._AUTO_OFFSET_RESET and place in missing:
                    # The log was cut or deleted meanwhile: it is read from where it begins now.
                    low, _ = watermarks(consumer, TopicPartition(*place))
                    consumer.seek(TopicPartition(*place, low))
                continue
            ids[place][message.offset()] = id_of(message)
            deadline = time.monotonic() + READ_TIMEOUT_S
            if message.offset() + 1 >= ranges[place][1]:
                missing.discard(place)
    return ids, missing


def read_positions(
    settings: Settings, groups: Mapping[str, Sequence[Place]]
) -> tuple[dict[tuple[str, str, int], int], list[str]]:
    """(group, topic, partition) -> the committed offset, or NO_POSITION; and the groups that could not be asked, with why."""
    positions: dict[tuple[str, str, int], int] = {}
    problems = []
    for group, places in sorted(groups.items()):
        consumer = Consumer({**READER, **settings, "group.id": group})
        deadline = time.monotonic() + COMMITTED_TIMEOUT_S
        try:
            while True:
                try:
                    found = consumer.committed([TopicPartition(*place) for place in places], timeout=ANSWER_TIMEOUT_S)
                    bad = next((each.error for each in found if each.error is not None), None)
                    if bad is not None:
                        raise KafkaException(bad)
                    break
                except KafkaException as problem:
                    if time.monotonic() > deadline:
                        problems.append(f"the committed offsets of group {group} are unknown: {error_text(problem)}")
                        found = []
                        break
                    time.sleep(RETRY_PAUSE_S)
        finally:
            consumer.close()
        positions |= {
            (group, each.topic, each.partition): each.offset if each.offset >= 0 else NO_POSITION for each in found
        }
    return positions, problems
