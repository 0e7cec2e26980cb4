"""The broker process: its state, its ZooKeeper session, its disks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from enum import IntEnum

from broker.process.exposition import COUNTER, GAUGE, family, labels, single, times_ms
from broker.storage.log_manager import LogManager
from protocol.zk.session import SessionState


class BrokerState(IntEnum):
    """Kafka's `BrokerState`, without those that a broker with ZooKeeper never has."""

    STARTING = 1
    RUNNING = 3
    PENDING_CONTROLLED_SHUTDOWN = 6
    SHUTTING_DOWN = 7


class SessionStats:
    """How often the ZooKeeper session changed its state."""

    def __init__(self) -> None:
        self.state = SessionState.CLOSED
        self.changes = dict.fromkeys(SessionState, 0)

    def changed(self, state: SessionState) -> None:
        self.state = state
        self.changes[state] += 1


def state_section(state: BrokerState) -> Iterator[str]:
    text = "1: starting, 3: running, 6: handing its leaderships over, 7: stopping"
    yield from single("kafka_server_kafkaserver_brokerstate", GAUGE, text, int(state))


def session_section(stats: SessionStats) -> Iterator[str]:
    for name, state, text in (
        ("syncconnects", SessionState.CONNECTED, "Connections to ZooKeeper that were made"),
        ("disconnects", SessionState.SUSPENDED, "Connections to ZooKeeper that were lost"),
        ("expires", SessionState.EXPIRED, "ZooKeeper sessions that expired"),
    ):
        metric = f"kafka_server_sessionexpirelistener_zookeeper{name}_total"
        yield from single(metric, COUNTER, text, stats.changes[state])
    yield from family(
        "ottla_zookeeper_session_state",
        GAUGE,
        "1 for the state of the ZooKeeper session, 0 for the others",
        [(labels(state=state.value), int(state is stats.state)) for state in SessionState],
    )


def disk_section(logs: LogManager) -> Iterator[str]:
    offline = frozenset(logs.log_directories.offline_paths)
    name = "kafka_log_logmanager"
    text = "Log directories whose disk failed"
    yield from single(f"{name}_offlinelogdirectorycount", GAUGE, text, len(offline))
    yield from family(
        f"{name}_logdirectoryoffline",
        GAUGE,
        "1 if the disk of the log directory failed",
        [(labels(logDirectory=path), int(path in offline)) for path in logs.log_directories.paths],
    )
    yield from times_ms(
        "kafka_log_logflushstats_logflushrateandtimems",
        "Time until a log is on the disk",
        (({}, [logs.upkeep.flush_times]),),
        time.monotonic(),
    )
    text = "Compacted logs that cannot be read and are not cleaned"
    uncleanable = Counter(log.log_dir for log in logs.logs() if log.is_uncleanable)
    yield from family(
        "kafka_log_logcleanermanager_uncleanable_partitions_count",
        GAUGE,
        text,
        [(labels(logDirectory=path), uncleanable[path]) for path in logs.log_directories.paths],
    )
