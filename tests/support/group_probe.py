"""A client that commits all the time and finds the coordinator as fast as possible: it measures how long there was none."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator

from broker.coordination.ownership import partition_for
from protocol.kafka.api_keys import ApiKey
from tests.support.group_journals import longest_gap
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

EVERY_S = 0.02
ANSWER_TIMEOUT_S = 0.7


class CoordinatorProbe:
    """Commits for a group of its own, without members, that the coordinator of `group` coordinates too."""

    def __init__(self, cluster: LocalCluster, group: str, partitions: int, topic: str) -> None:
        wanted = partition_for(group, partitions)
        names = (f"probe-of-{group}-{number}" for number in itertools.count())
        self.group = next(name for name in names if partition_for(name, partitions) == wanted)
        self.times: list[float] = []
        """Of acknowledged commits, on the monotonic clock."""
        self._cluster = cluster
        self._topic = topic
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=self.group, daemon=True)

    def __enter__(self) -> CoordinatorProbe:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(30)

    def has_committed(self) -> bool:
        """Just now."""
        return bool(self.times) and self.times[-1] > time.monotonic() - 10 * EVERY_S

    def longest_gap(self, begun: float, ended: float) -> float:
        """Seconds; see `MemberProcess.longest_gap`."""
        return longest_gap(list(self.times), begun, ended)

    def _run(self) -> None:
        brokers = itertools.cycle(self._cluster.broker_ids)
        numbers = itertools.count(1)
        while not self._stopping.is_set():
            try:
                coordinator = self._find(next(brokers))
                if coordinator is not None:
                    self._commit(coordinator, numbers)
            except OSError:
                pass  # the broker is dead, or stands still
            self._stopping.wait(EVERY_S)

    def _find(self, broker: int) -> int | None:
        """The coordinator's port in that broker's view."""
        with Wire(self._cluster.port(broker), timeout_s=ANSWER_TIMEOUT_S) as wire:
            answer = wire.call(ApiKey.FIND_COORDINATOR, 3, {"key": self.group, "key_type": 0})
        return None if answer.error_code else int(answer.port)

    def _commit(self, port: int, numbers: Iterator[int]) -> None:
        """Commits until a commit is refused."""
        with Wire(port, timeout_s=ANSWER_TIMEOUT_S) as wire:
            error = 0
            while not error and not self._stopping.is_set():
                answer = wire.call(ApiKey.OFFSET_COMMIT, 8, self._body(next(numbers)))
                error = max(row.error_code for topic in answer.topics for row in topic.partitions)
                if not error:
                    self.times.append(time.monotonic())
                    self._stopping.wait(EVERY_S)

    def _body(self, offset: int) -> dict[str, object]:
        row = {
            "partition_index": 0,
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        return {
            "group_id": self.group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "retention_time": -1,
            "topics": [{"name": self._topic, "partitions": [row]}],
        }
