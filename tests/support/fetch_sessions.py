"""A client's end of an incremental fetch session, driven step by step on a `replica_cluster`."""

from __future__ import annotations

from broker.replication.fetching.fetch_reads import FetchParams
from broker.replication.fetching.fetch_session import FetchedTopics, FetchSession
from broker.replication.fetching.fetches import Fetches
from broker.replication.fetching.session_cache import FINAL_EPOCH
from protocol.errors import ErrorCode
from protocol.kafka.fetch_codec import FetchPartitionData, FetchRequest, FetchRequestPartition
from tests.support.replica_cluster import TP, Cluster


class SessionOf:
    """A client with a session of one partition at a broker: a follower, or (-1) a consumer, which may have a rack."""

    def __init__(self, cluster: Cluster, replica: int, *, at: int = 1, rack: str | None = None) -> None:
        self.cluster = cluster
        self.replica = replica
        self.rack = rack
        self.fetches: Fetches = cluster.nodes[at].manager.fetches
        self.offset = 0
        self.id = 0
        self.next_epoch = 0
        self.answers: list[list[FetchPartitionData]] = []

    @property
    def session(self) -> FetchSession:
        """The broker's end."""
        return self.fetches._sessions._sessions[self.id or next(iter(self.fetches._sessions._sessions))]

    @property
    def is_awake(self) -> bool:
        return list(self.session.awake) == list(self.session.partitions.values())

    def fetch(
        self, *, max_wait_ms: int = 500, to: int | None = None, life: int | None = None, is_last: bool = False
    ) -> None:
        """The next request of the session; `to`: with another offset; `life`: with another broker epoch."""
        self.offset = self.offset if to is None else to
        topics = [("t", [FetchRequestPartition(TP.partition, 0, self.offset, -1, 0, 2**20)])]
        if (to is None and self.next_epoch) or is_last:
            topics = []
        epoch = life or (self.cluster.nodes[self.replica].epoch if self.replica >= 0 else -1)
        params = FetchParams(self.replica, epoch, max_wait_ms, 1, 2**20, rack_id=self.rack, listener="PLAINTEXT")
        session = (self.id, FINAL_EPOCH if is_last else self.next_epoch)
        self.fetches.fetch(params, FetchRequest(*params[:6], *session, topics, ()), self.respond, uses_topic_ids=False)
        self.id = self.id or self.session.id
        self.next_epoch += 1

    def respond(self, error: ErrorCode, session_id: int, topics: FetchedTopics) -> None:
        assert not error
        self.answers.append([data for _, found in topics for data in found])

    def rest(self) -> None:
        """Fetches until there is no news."""
        self.fetch(max_wait_ms=0)
        assert not self.is_awake
        assert self.session.resting == 1

    def not_looked_at(self) -> None:
        """For an hour, only an event wakes a partition."""
        self.session._looked_at = self.cluster.time.monotonic() + 3600
