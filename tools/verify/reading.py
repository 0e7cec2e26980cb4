"""What the cluster holds in the end: the ids of the records in the logs (read_uncommitted), the groups' committed offsets, transactions."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from ottla.records import IdOf
from protocol.topic_names import INTERNAL_TOPICS
from tools.clients.kafka_producer import list_topics
from tools.clients.librdkafka_errors import error_text
from tools.failures import AdminError
from tools.faults.reporting_clients import READER, watermarks
from tools.judge.logs import NO_POSITION, Logs, PartitionLog, Place, Positions
from tools.judge.reports import ACKED, COMMITTED, CONSUMED, SENT_OFFSETS, Report
from tools.verify.control_records import may_have_transactions, with_transactions
from tools.wire.security import PLAINTEXT, Security

READ_TIMEOUT_S = 60.0
"""A partition of which nothing arrives for so long is not read to its end."""
ANSWER_TIMEOUT_S = 10.0
COMMITTED_TIMEOUT_S = 30.0
RETRY_PAUSE_S = 0.2

Settings = Mapping[str, Any]


def read_ends(settings: Settings) -> dict[Place, int]:
    """The high watermark of every partition of the cluster that has a leader, but not of internal topics. Raises AdminError."""
    admin = AdminClient({**settings, "log_level": 2})
    topics = list_topics(admin, str(settings["bootstrap.servers"]), ANSWER_TIMEOUT_S)
    places = [
        (name, number) for name, topic in topics.items() if name not in INTERNAL_TOPICS for number in topic.partitions
    ]
    return _ends(admin, places)


def stable_ends(settings: Settings, places: Iterable[Place]) -> dict[Place, int]:
    """The last stable offsets, of the partitions that have a leader. Raises AdminError."""
    return _ends(AdminClient({**settings, "log_level": 2}), places, IsolationLevel.READ_COMMITTED)


def _ends(
    admin: AdminClient, places: Iterable[Place], isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED
) -> dict[Place, int]:
    """Where readers get nothing more. Raises AdminError."""
    try:
        asked = {TopicPartition(*place): OffsetSpec.latest() for place in places}
        futures = (
            admin.list_offsets(asked, isolation_level=isolation, request_timeout=ANSWER_TIMEOUT_S) if asked else {}
        )
    except KafkaException as problem:
        raise AdminError(f"the logs' ends cannot be read: {error_text(problem)}") from None
    ends = {}
    for place, future in futures.items():
        try:
            ends[place.topic, place.partition] = future.result().offset
        except KafkaException:
            continue  # without a leader: what was in it before the run counts as if the program had written it
    return ends


def lowest_offsets(reports: Iterable[Report], events: Collection[str]) -> dict[Place, int]:
    """The lowest offset that was reported of each partition, by these events."""
    lowest: dict[Place, int] = {}
    for report in reports:
        if report.event in events and report.partition is not None and report.offset is not None:
            place = (report.topic, report.partition)
            lowest[place] = min(report.offset, lowest.get(place, report.offset))
    return lowest


def read_logs(
    settings: Settings, reports: Sequence[Report], ends: Mapping[Place, int], id_of: IdOf
) -> dict[Place, PartitionLog]:
    """Every partition of the reported topics, from the lowest reported offset, or its end before the run, to the high watermark.

    `ends`: of the partitions that were there before the run. An acknowledgement below that end means that the log was cut since. A topic
    that does not exist has no partitions. Partitions that cannot be read are not whole. Raises AdminError if the cluster does not answer.
    """
    reported, acked = lowest_offsets(reports, (ACKED, CONSUMED)), lowest_offsets(reports, (ACKED,))
    consumer = Consumer(
        {
            **READER,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            **settings,
            "isolation.level": "read_uncommitted",
        }
    )
    own: dict[Place, int] = {}
    ranges: dict[Place, tuple[int, int]] = {}
    unreadable: dict[Place, str] = {}
    try:
        for topic in sorted({report.topic for report in reports if report.topic}):
            for partition in _partitions(consumer, topic):
                place = (topic, partition)
                try:
                    low, high = watermarks(consumer, TopicPartition(*place))
                except KafkaException as problem:
                    unreadable[place] = error_text(problem)
                    continue
                own[place] = min(ends.get(place, 0), acked.get(place, high), high)
                begin = min(own[place], reported.get(place, high))
                ranges[place] = (min(max(begin, low), high), high)
        ids, begins, unread = _read(consumer, ranges, id_of)
    except KafkaException as problem:
        raise AdminError(f"the logs cannot be read back: {error_text(problem)}") from None
    finally:
        consumer.close()
    logs = {
        place: PartitionLog(begins.get(place, begin), high, ids.get(place, {}), place not in unread, own[place])
        for place, (begin, high) in ranges.items()
    }
    return logs | {place: PartitionLog(0, 0, {}, False, problem=problem) for place, problem in unreadable.items()}


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
) -> tuple[dict[Place, dict[int, str]], dict[Place, int], set[Place]]:
    """The ids by place and offset, where logs begin that were deleted in part meanwhile, and the places that were not read to their end."""
    begins: dict[Place, int] = {}
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
                    if low > ranges[place][0]:
                        begins[place] = min(low, ranges[place][1])
                        ids[place] = {offset: id_ for offset, id_ in ids[place].items() if offset >= low}
                    consumer.seek(TopicPartition(*place, low))
                continue
            ids[place][message.offset()] = id_of(message)
            deadline = time.monotonic() + READ_TIMEOUT_S
            if message.offset() + 1 >= ranges[place][1]:
                missing.discard(place)
    return ids, begins, missing


def read_back(
    settings: Settings,
    reports: Sequence[Report],
    ends: Mapping[Place, int],
    id_of: IdOf,
    security: Security = PLAINTEXT,
) -> tuple[Logs, Positions, list[str]]:
    """The logs and the groups' positions that these reports are judged by; and what could not be read, a line each.

    `ends`: see `read_logs`. `security`: how to connect without librdkafka, for the control records. Raises AdminError.
    """
    logs: Logs = read_logs(settings, reports, ends, id_of)
    problems = []
    has_transactions = any(report.txn for report in reports)
    if has_transactions or may_have_transactions(logs, stable_ends(settings, logs)):
        try:
            logs = with_transactions(str(settings["bootstrap.servers"]), security, logs)
        except AdminError as problem:
            problems += [str(problem)] if has_transactions else []
    unread = sorted(
        f"{topic}-{partition}" + (f" ({log.problem})" if log.problem else "")
        for (topic, partition), log in logs.items()
        if not log.is_whole
    )
    positions, incomplete = read_positions(settings, reports)
    incomplete += problems
    if unread:
        incomplete.append(f"not read to the end, so not judged: {', '.join(unread)}")
    return logs, positions, incomplete


def read_positions(settings: Settings, reports: Iterable[Report]) -> tuple[dict[tuple[str, str, int], int], list[str]]:
    """(group, topic, partition) -> the committed offset, or NO_POSITION, of the groups that reported; who could not be asked, and why."""
    groups: dict[str, set[Place]] = {}
    for report in reports:
        if report.event in (CONSUMED, COMMITTED, SENT_OFFSETS):
            groups.setdefault(report.group, set()).add((report.topic, report.partition or 0))
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
