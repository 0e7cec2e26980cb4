"""Which fetcher copies which partition: at most `num.replica.fetchers` for each leader (Kafka's ReplicaFetcherManager)."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable

from broker.process.event_log import EventLog
from broker.replication.following.followed_partitions import FollowedPartition
from broker.replication.following.replica_fetcher import ReplicaFetcher
from protocol.types import TopicPartition

FetcherFactory = Callable[[int, str], ReplicaFetcher]
"""(leader id, name) -> a fetcher that has not been started."""


class FetcherManager:
    """Creates a fetcher when its first partition is added, and closes it when it has no partitions left (LAI-5)."""

    def __init__(self, make_fetcher: FetcherFactory, fetchers_per_leader: int, events: EventLog) -> None:
        self._make_fetcher = make_fetcher
        self.fetchers_per_leader = fetchers_per_leader
        """May change. It takes effect for partitions that are added later."""
        self._events = events
        self._fetchers: dict[tuple[int, int], ReplicaFetcher] = {}
        self._fetcher_of: dict[TopicPartition, ReplicaFetcher] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._is_stopping = False

    def __len__(self) -> int:
        return len(self._fetchers)

    def fetchers(self) -> tuple[ReplicaFetcher, ...]:
        return tuple(self._fetchers.values())

    def add(self, leader: int, followed: FollowedPartition) -> None:
        """From now on the partition is copied from that leader only. A broker that is stopping adds nothing (LAI-4)."""
        tp = followed.partition.tp
        self.remove(tp)
        if self._is_stopping:
            return
        index = zlib.crc32(str(tp).encode()) % self.fetchers_per_leader
        fetcher = self._fetchers.get((leader, index))
        if fetcher is None:
            fetcher = self._fetchers[leader, index] = self._make_fetcher(leader, f"fetcher-{leader}-{index}")
            fetcher.start()
            self._events.write("fetcher_started", leader=leader, index=index)
        self._fetcher_of[tp] = fetcher
        fetcher.add(followed)

    def remove(self, tp: TopicPartition) -> None:
        fetcher = self._fetcher_of.pop(tp, None)
        if fetcher is not None:
            fetcher.remove(tp)

    def more_claimable(self, tp: TopicPartition) -> None:
        """A flush of the partition's log has ended (`Log.claimable_end`)."""
        fetcher = self._fetcher_of.get(tp)
        if fetcher is not None:
            fetcher.more_claimable()

    def close_idle(self) -> None:
        """Starts to close the fetchers without partitions. Does not wait until they are closed."""
        for (leader, index), fetcher in list(self._fetchers.items()):
            if len(fetcher) == 0:
                del self._fetchers[leader, index]
                self._events.write("fetcher_stopped", leader=leader, index=index)
                task = asyncio.get_running_loop().create_task(fetcher.close())
                self._closing.add(task)
                task.add_done_callback(self._closing.discard)

    def add_no_more(self) -> None:
        """The broker is stopping: `add` adds nothing from now on. Fetchers continue with their partitions until these are removed."""
        self._is_stopping = True

    async def close(self) -> None:
        self._is_stopping = True
        fetchers, self._fetchers = list(self._fetchers.values()), {}
        self._fetcher_of = {}
        await asyncio.gather(*(fetcher.close() for fetcher in fetchers), *self._closing, return_exceptions=True)
