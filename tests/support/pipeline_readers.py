"""What the chaos of pipelines reads while it runs, because deletions and compaction remove it before the end."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.control_records import marker_in
from protocol.kafka.record_batch import decode_records, iter_batches
from tests.support.journalled_member import HARMLESS
from tools.cluster.local_cluster import LocalCluster
from tools.faults.reporting_clients import MOVING, PROMPT, READER
from tools.faults.roles import Roles
from tools.wire.client import ask

Place = tuple[int, int]
"""(partition, offset)"""
FETCH_VERSION = 11
FETCH_BYTES = 1024 * 1024
FETCH_TIMEOUT_S = 2.0
POLL_S = 0.25
END_OF_PARTITION = KafkaError._PARTITION_EOF


class CommittedReader:
    """Reads a topic as readers of committed records do, from its start to `close`.

    `values`: place -> what it received for it; `times`: place -> when, in monotonic seconds.
    """

    def __init__(self, servers: str, topic: str, partitions: int) -> None:
        self.values: dict[Place, bytes] = {}
        self.times: dict[Place, float] = {}
        self.problems: list[str] = []
        """What must not happen to such a reader: two values for one place, or a position that is not there any more."""
        self.positions = dict.fromkeys(range(partitions), 0)
        """Partition -> the offset after the last record, or where the reader has found the end since then."""
        self._topic = topic
        self._consumer = Consumer(
            {
                "bootstrap.servers": servers,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "isolation.level": "read_committed",
                **READER,
                **PROMPT,
            }
        )
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"committed records of {topic}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(30)
        self._consumer.close()

    def wait_for(self, ends: Mapping[int, int], timeout_s: float) -> None:
        """Waits until everything before these ends is read. Raises TimeoutError."""
        deadline = time.monotonic() + timeout_s
        while missing := {p: (self.positions[p], end) for p, end in ends.items() if self.positions[p] < end}:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"{self._topic}: not read in {timeout_s:g} s; partition -> (read to, end): {missing}"
                )
            time.sleep(0.05)

    def _run(self) -> None:
        while not self._stopping.is_set():
            for message in self._consumer.consume(1000, timeout=0.2):
                self._take(message)

    def _take(self, message: Any) -> None:
        error = message.error()
        if error is None or error.code() == END_OF_PARTITION:
            partition, offset = message.partition(), message.offset()
            if error is None:
                self.times.setdefault((partition, offset), time.monotonic())
                before = self.values.setdefault((partition, offset), message.value())
                if before != message.value():
                    self.problems.append(f"{partition}@{offset} was {before!r}, then {message.value()!r}")
                offset += 1
            self.positions[partition] = max(offset, self.positions[partition])
        elif error.code() not in HARMLESS | MOVING:
            self.problems.append(str(error))


def read_to_end(
    servers: str, topic: str, partitions: int, timeout_s: float, isolation: str = "read_committed"
) -> tuple[dict[Place, bytes], bool]:
    """The records that are there now for such a reader, and whether these are all of them: the time may not be enough."""
    found: dict[Place, bytes] = {}
    unread = set(range(partitions))
    settings = {"auto.offset.reset": "earliest", "enable.partition.eof": True, "isolation.level": isolation}
    consumer = Consumer({"bootstrap.servers": servers, **READER, **PROMPT, **settings})
    deadline = time.monotonic() + timeout_s
    try:
        consumer.assign([TopicPartition(topic, partition, 0) for partition in unread])
        while unread and time.monotonic() < deadline:
            for message in consumer.consume(1000, timeout=0.2):
                error = message.error()
                if error is None:
                    found[message.partition(), message.offset()] = message.value()
                elif error.code() == END_OF_PARTITION:
                    unread.discard(message.partition())
    except KafkaException:
        pass  # a fault is under way: what was read counts
    finally:
        consumer.close()
    return found, not unread


class LogHistory:
    """All batches of a partition below its high watermark, also the markers, in order, from the start of the topic to `close`.

    `data` is as on disk, but nothing is compacted: a record is read long before the cleaner may take it (min.compaction.lag.ms).
    """

    def __init__(self, cluster: LocalCluster, roles: Roles, topic: str, partition: int) -> None:
        self.data = bytearray()
        self.next_offset = 0
        self.gaps: list[tuple[int, int]] = []
        """(expected offset, the offset that came). Not empty: this history is not whole, and proves nothing."""
        self._cluster, self._roles = cluster, roles
        self._topic, self._partition = topic, partition
        self._leader: int | None = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"history of {topic}-{partition}", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(30)

    def _run(self) -> None:
        while not self._stopping.wait(POLL_S):
            while self._fetch():
                continue

    def _fetch(self) -> bool:
        """True: there may be more."""
        leader, self._leader = self._leader, None
        if leader is None:
            leader = self._roles.leader(self._topic, self._partition)
        if leader is None:
            return False
        partition = {
            "partition": self._partition,
            "current_leader_epoch": -1,
            "fetch_offset": self.next_offset,
            "last_fetched_epoch": -1,
            "log_start_offset": -1,
            "partition_max_bytes": FETCH_BYTES,
        }
        body = {"replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": FETCH_BYTES, "isolation_level": 0}
        body |= {"session_id": 0, "session_epoch": -1, "forgotten_topics_data": [], "rack_id": ""}
        body |= {"topics": [{"topic": self._topic, "partitions": [partition]}]}
        address = ("127.0.0.1", self._cluster.port(leader))
        answer = ask(address, FETCH_TIMEOUT_S, ApiKey.FETCH, FETCH_VERSION, body)
        if answer is None or answer.error_code or not answer.responses:
            return False
        (answered,) = answer.responses[0].partitions
        if answered.error_code:
            return False
        self._leader = leader
        return bool(answered.records) and self._take(memoryview(bytes(answered.records)))

    def _take(self, records: memoryview) -> bool:
        before = self.next_offset
        for position, header in iter_batches(records):
            if header.next_offset <= self.next_offset:
                continue
            if header.base_offset != self.next_offset:
                self.gaps.append((self.next_offset, header.base_offset))
            self.data += records[position : position + header.size_in_bytes]
            self.next_offset = header.next_offset
        return self.next_offset > before


def latest_values(*segments: bytes | bytearray) -> dict[bytes, bytes]:
    """Key -> the value that counts, as a reader of committed records finds it in these segments of a log, without tombstones.

    Of two records the later one in the log counts; a transaction's records count if its commit marker is there.
    """
    found: dict[bytes, tuple[int, bytes | None]] = {}
    pending: dict[int, dict[bytes, tuple[int, bytes | None]]] = defaultdict(dict)
    for segment in segments:
        data = memoryview(segment)
        for position, header in iter_batches(data):
            if header.is_control:
                marker = marker_in(data, position)
                ended = pending.pop(header.producer_id, {}) if marker is not None else {}
                for key, (offset, value) in ended.items() if marker is not None and marker.is_commit else ():
                    if found.get(key, (-1, None))[0] < offset:
                        found[key] = offset, value
                continue
            target = pending[header.producer_id] if header.is_transactional else found
            for record in decode_records(data, position):
                target[record.key or b""] = record.offset, record.value
    return {key: value for key, (_, value) in found.items() if value is not None}
