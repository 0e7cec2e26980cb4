"""What a broker does when the disk under one of its log directories fails (LOG-6, FLT-28, FLT-29).

1. The directory is offline until the next start: nothing is read, written or synced there again, even if the disk works again.
   Data that a failed fsync did not write is lost, and a second fsync would report success.
2. Its replicas are offline: producers, consumers and followers get KAFKA_STORAGE_ERROR and ask another broker, its fetchers stop,
   and its leaders propose no ISR changes.
3. The controller is notified and elects other leaders. Replicas in other directories continue.
4. When no directory is left, the broker stops, because it could serve nothing but would look alive.

An error that says nothing about the disk (`disk_errors`) affects at most one partition. A passing error, such as a lack of file
descriptors, fails only its request: producers, consumers and followers retry, and a log that could not be created is created
later. An error of one path, such as a name that is too long, takes only that partition offline.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from broker.process.event_log import EventLog
from broker.replication.following.fetcher_manager import FetcherManager
from broker.replication.hosted_partitions import HostedPartitions
from broker.replication.partition import Partition, Role
from broker.storage.listeners import DirectoryListener
from broker.storage.log_manager import LogManager
from protocol.types import TopicPartition

log = logging.getLogger(__name__)

PARTITIONS_IN_AN_EVENT = 500
"""Partitions that an event names."""


class DirectoryFailures(DirectoryListener):
    """Storage reports each failure here before it raises the error, so the replica is offline when its caller handles the error.

    `on_failure` is called for each directory or replica that fails, `on_all_failed` when no directory is left.
    """

    def __init__(
        self,
        log_manager: LogManager,
        hosted: HostedPartitions,
        fetchers: FetcherManager,
        leadership_changed: Callable[[TopicPartition], None],
        events: EventLog,
        on_failure: Callable[[], None],
        on_all_failed: Callable[[], None],
    ) -> None:
        self.on_failure = on_failure
        self.on_all_failed = on_all_failed
        self._log_manager = log_manager
        self._hosted = hosted
        self._fetchers = fetchers
        self._leadership_changed = leadership_changed
        self._events = events

    def replica_failed(self, tp: TopicPartition) -> None:
        partition = self._hosted.find_or_make(tp)
        if partition.role is not Role.OFFLINE:
            self._take_offline(partition)
            self.on_failure()

    def directory_failed(self, directory: str, tp: TopicPartition | None = None) -> None:
        """Steps 1 to 4. Steps 3 and 4 only for the first report of the directory.

        `tp` is taken offline too: it has no log now, and must not get an empty log in another directory.
        """
        if tp is not None:
            self._take_offline(self._hosted.find_or_make(tp))
        is_new = self._log_manager.fail_directory(directory)
        gone = [p for p in self._hosted if p.log is not None and p.log.log_dir == directory]
        if is_new:
            named = [str(p.tp) for p in gone[:PARTITIONS_IN_AN_EVENT]]
            more = len(gone) - len(named)
            self._events.write("log_dir_failed", directory=directory, partitions=named, more=more)
        for partition in gone:
            self._take_offline(partition)
        if not is_new:
            return
        if set(self._log_manager.offline_dirs) < set(self._log_manager.directories):
            self.on_failure()
        else:
            log.critical("all log directories have failed")
            self.on_all_failed()

    def _take_offline(self, partition: Partition) -> None:
        self._fetchers.remove(partition.tp)
        partition.stop(Role.OFFLINE)
        self._leadership_changed(partition.tp)
