"""What is appended, replicated and read: kafka.server BrokerTopicMetrics, ReplicaManager, FetcherLagMetrics and purgatories;
kafka.log Log; kafka.cluster Partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from broker.process.exposition import COUNTER, GAUGE, Families, escaped, family, labels, single
from broker.process.topic_stats import BrokerTopicStats, summed
from broker.purgatory import Purgatory
from broker.replication.following.replica_fetcher import FAILURES_IN_PASSING, ReplicaFetcher
from broker.replication.partition import IsrStats, Partition, Role
from broker.replication.replica_manager import ReplicaManager
from broker.storage.log import Log
from protocol.types import TopicPartition

TOPIC_TEXTS = (
    "Records appended by producers and by this broker's group coordinator",
    "Bytes of record batches appended by producers and by this broker's group coordinator",
    "Bytes of record batches read by consumers",
    "Partitions whose batch was refused for another reason than a wrong leader, a size limit, broken bytes or the disk",
    "Partitions whose fetch failed for another reason than a wrong leader, leader epoch, offset or the disk",
)
"""In the order of `topic_stats.COUNTS`."""
TOPIC_NAMES = tuple(
    f"kafka_server_brokertopicmetrics_{name}"
    for name in ("messagesin", "bytesin", "bytesout", "failedproducerequests", "failedfetchrequests")
)


def topic_section(stats: BrokerTopicStats) -> Iterator[str]:
    """Each metric has one sample for all topics, without a label, and one for each topic with a replica here."""
    total, topics = stats.read()
    by_topic = Families([(f"{name}_total", COUNTER, text) for name, text in zip(TOPIC_NAMES, TOPIC_TEXTS, strict=True)])
    for topic in topics:
        values = topic.values()
        total = summed(total, values)
        by_topic.add(labels(topic=topic.topic), values)
        yield ""
    by_topic.add("", total)
    yield from by_topic.written()
    for direction, value, text in (
        ("in", stats.replication_bytes_in, "Bytes of record batches copied from leaders"),
        ("out", stats.replication_bytes_out, "Bytes of record batches read by followers"),
    ):
        yield from single(f"kafka_server_brokertopicmetrics_replicationbytes{direction}_total", COUNTER, text, value)


class ReplicaRow(NamedTuple):
    """One replica, as it was when it was looked at. `isr`, `replicas` and `unstable` are 0 unless this broker leads the partition."""

    of: str
    role: Role
    replicas: int
    isr: int
    min_isr: int
    is_reassigning: bool
    log_start: int
    log_end: int
    size: int
    segments: int
    unstable: int
    """Offsets below the high watermark that readers of committed records do not get yet."""

    @property
    def is_led(self) -> bool:
        return self.role is Role.LEADER

    @property
    def is_under_replicated(self) -> bool:
        return self.isr < self.replicas

    @property
    def is_under_min_isr(self) -> bool:
        return self.is_led and self.isr < self.min_isr

    @property
    def is_at_min_isr(self) -> bool:
        return self.is_led and self.isr == self.min_isr


def row_of(partition: Partition) -> ReplicaRow:
    log, role = partition.log, partition.role
    is_led = role is Role.LEADER and log is not None
    of = f'{{topic="{escaped(partition.tp.topic)}",partition="{partition.tp.partition}"}}'
    if log is None:
        return ReplicaRow(of, role, 0, 0, 0, False, -1, -1, -1, 0, 0)
    return ReplicaRow(
        of,
        role,
        len(partition.replicas) if is_led else 0,
        len(partition.isr) if is_led else 0,
        log.config.min_insync_replicas,
        is_led and partition.is_reassigning,
        log.log_start_offset,
        log.log_end_offset,
        log.size,
        len(log.segments),
        _unstable(log, partition.high_watermark) if is_led else 0,
    )


def _unstable(log: Log, high_watermark: int) -> int:
    first = log.producers.state.look_for_unstable(high_watermark)
    return 0 if first is None else max(0, high_watermark - max(first, log.log_start_offset))


COUNTED: tuple[tuple[str, str, Callable[[ReplicaRow], bool]], ...] = (
    ("partitioncount", "Replicas on this broker", lambda row: True),
    ("leadercount", "Partitions that this broker leads", lambda row: row.is_led),
    ("offlinereplicacount", "Replicas whose log directory failed", lambda row: row.role is Role.OFFLINE),
    ("underreplicatedpartitions", "Led partitions with a replica out of sync", lambda row: row.is_under_replicated),
    ("underminisrpartitioncount", "Led partitions below min.insync.replicas", lambda row: row.is_under_min_isr),
    ("atminisrpartitioncount", "Led partitions with exactly min.insync.replicas", lambda row: row.is_at_min_isr),
    ("reassigningpartitions", "Led partitions that are being reassigned", lambda row: row.is_reassigning),
)
OF_A_LOG: tuple[tuple[str, str, Callable[[ReplicaRow], int]], ...] = (
    ("logstartoffset", "First offset of the log", lambda row: row.log_start),
    ("logendoffset", "Offset of the next record", lambda row: row.log_end),
    ("size", "Bytes of the log's segments", lambda row: row.size),
    ("numlogsegments", "Segments of the log", lambda row: row.segments),
)
OF_A_LEADER: tuple[tuple[str, str, Callable[[ReplicaRow], int]], ...] = (
    ("replicascount", "Replicas of a led partition", lambda row: row.replicas),
    ("insyncreplicascount", "Members of the ISR of a led partition", lambda row: row.isr),
    ("underreplicated", "1 if a replica of a led partition is out of sync", lambda row: row.is_under_replicated),
    ("underminisr", "1 if the ISR of a led partition is below min.insync.replicas", lambda row: row.is_under_min_isr),
    ("laststableoffsetlag", "High watermark less last stable offset, of a led partition", lambda row: row.unstable),
)


def replica_section(replicas: ReplicaManager, partitions_max: int) -> Iterator[str]:
    """Series of single partitions are left out if this broker has more than `partitions_max` replicas; -1: no limit."""
    counts = [0] * len(COUNTED)
    of_logs = Families([(f"kafka_log_log_{name}", GAUGE, text) for name, text, _ in OF_A_LOG])
    of_leaders = Families([(f"kafka_cluster_partition_{name}", GAUGE, text) for name, text, _ in OF_A_LEADER])
    has_series = not 0 <= partitions_max < len(replicas.partitions)
    for partition in replicas.partitions:
        row = row_of(partition)
        for at, (_, _, holds) in enumerate(COUNTED):
            counts[at] += holds(row)
        if has_series and row.segments:
            of_logs.add(row.of, (value_of(row) for _, _, value_of in OF_A_LOG))
            if row.is_led:
                of_leaders.add(row.of, (int(value_of(row)) for _, _, value_of in OF_A_LEADER))
        yield ""
    for (name, text, _), count in zip(COUNTED, counts, strict=True):
        yield from single(f"kafka_server_replicamanager_{name}", GAUGE, text, count)
    yield from _isr_changes(replicas.isr_stats)
    if has_series:
        yield from of_logs.written()
        yield from of_leaders.written()


def _isr_changes(stats: IsrStats) -> Iterator[str]:
    for name, text, value in (
        ("isrshrinks", "Times that a led partition's ISR lost a member, written by its leader", stats.shrinks),
        ("isrexpands", "Times that a led partition's ISR got a member", stats.expands),
        ("failedisrupdates", "ISR changes that were not written", stats.failed_updates),
    ):
        yield from single(f"kafka_server_replicamanager_{name}_total", COUNTER, text, value)


def fetcher_section(fetchers: Callable[[], tuple[ReplicaFetcher, ...]], partitions_max: int) -> Iterator[str]:
    """The clientId is that of Kafka's fetcher thread: ReplicaFetcherThread-<number>-<leader>."""
    name = "kafka_server_fetcherlagmetrics_consumerlag"
    text = "Records below the leader's high watermark that this follower lacks, as of its last fetch"
    lags = Families([(name, GAUGE, text)])
    largest = failed = count = 0
    for fetcher in fetchers():
        _, leader, number = fetcher.name.split("-")
        client_id = f"ReplicaFetcherThread-{number}-{leader}"
        for followed in fetcher.followed():
            yield ""
            log, tp = followed.log(), followed.partition.tp
            if log is None:
                continue
            lag = max(0, followed.leader_high_watermark - log.log_end_offset)
            largest = max(largest, lag)
            failed += followed.failures > FAILURES_IN_PASSING
            count += 1
            if not 0 <= partitions_max < count:
                lags.add(labels(clientId=client_id, topic=tp.topic, partition=tp.partition), (lag,))
    for name, text, value in (
        ("maxlag", "Largest kafka_server_fetcherlagmetrics_consumerlag", largest),
        ("failedpartitionscount", "Followed partitions that are set aside after repeated errors", failed),
    ):
        of = labels(clientId="Replica")
        yield from family(f"kafka_server_replicafetchermanager_{name}", GAUGE, text, ((of, value),))
    if not 0 <= partitions_max < count:
        yield from lags.written()


def purgatory_section(replicas: ReplicaManager) -> Iterator[str]:
    fetches = replicas.fetches.purgatories
    purgatories: dict[str, list[Purgatory[TopicPartition]]] = {
        "Produce": [replicas.produces, replicas.flushes],
        "Fetch": list(fetches.values()),
        "DeleteRecords": [replicas.record_deletions.purgatory],
    }
    for name, text, size in (
        ("purgatorysize", "Partitions that waiting requests watch", lambda purgatory: purgatory.watched),
        ("numdelayedoperations", "Requests that wait", len),
    ):
        samples = [(labels(delayedOperation=kind), sum(map(size, found))) for kind, found in purgatories.items()]
        yield from family(f"kafka_server_delayedoperationpurgatory_{name}", GAUGE, text, samples)
    yield from single(
        "kafka_server_delayedproducemetrics_expires_total",
        COUNTER,
        "Produce requests that were not replicated, or flushed, in time",
        replicas.produces.expired + replicas.flushes.expired,
    )
    yield from family(
        "kafka_server_delayedfetchmetrics_expires_total",
        COUNTER,
        "Fetches that were answered at the end of their time",
        [(labels(fetcherType=kind), found.expired) for kind, found in fetches.items()],
    )
