"""A consumer over its quota gets an empty answer, and later everything (KIP-219): with a session, without one, and when one begins."""

from __future__ import annotations

from broker.replication.fetching.fetch_reads import FetchParams
from broker.replication.fetching.fetch_session import FetchedTopics
from broker.replication.fetching.session_cache import FINAL_EPOCH
from protocol.errors import ErrorCode
from protocol.kafka.fetch_codec import FetchRequest, FetchRequestPartition
from tests.support.replica_cluster import TP, Cluster, values_of


class Consumer:
    """Fetches from broker 1; `is_throttled` says what the next answers are."""

    def __init__(self, cluster: Cluster) -> None:
        self.fetches = cluster.nodes[1].manager.fetches
        self.is_throttled = False
        self.sizes: list[int] = []
        self.answers: list[tuple[int, list[str] | None]] = []
        self.errors: list[ErrorCode] = []

    def throttle(self, size: int) -> int:
        self.sizes.append(size)
        return 1000 if self.is_throttled else 0

    def fetch(
        self, session_id: int, epoch: int, offset: int | None = 0, max_wait_ms: int = 0
    ) -> tuple[int, list[str] | None]:
        """The session id of the answer, and the values in it; None: without the partition. `offset` None: the session has it."""
        topics = [] if offset is None else [("t", [FetchRequestPartition(TP.partition, 0, offset, -1, 0, 2**20)])]
        params = FetchParams(-1, -1, max_wait_ms, 1, 2**20, listener="PLAINTEXT", throttle=self.throttle)
        request = FetchRequest(*params[:6], session_id, epoch, topics, ())
        self.fetches.fetch(params, request, self.respond, uses_topic_ids=False)
        return self.answers[-1] if self.answers else (0, None)

    def respond(self, error: ErrorCode, session_id: int, topics: FetchedTopics) -> None:
        self.errors.append(error)
        found = [data for _, partitions in topics for data in partitions]
        self.answers.append((session_id, values_of(found[0]) if found else None))


async def started(cluster: Cluster) -> Consumer:
    await cluster.start_led(1)
    cluster.produce(1, "a", acks=1)
    return Consumer(cluster)


async def test_without_a_session(cluster: Cluster) -> None:
    consumer = await started(cluster)
    consumer.is_throttled = True
    assert consumer.fetch(0, FINAL_EPOCH) == (0, None)
    assert consumer.sizes[-1] > len("a")
    consumer.is_throttled = False
    assert consumer.fetch(0, FINAL_EPOCH) == (0, ["a"])


async def test_a_session_that_would_begin_does_not(cluster: Cluster) -> None:
    """As in Kafka: the client lists its partitions once more."""
    consumer = await started(cluster)
    consumer.is_throttled = True
    assert consumer.fetch(0, 0) == (0, None)
    assert len(consumer.fetches._sessions) == 0
    consumer.is_throttled = False
    session_id, values = consumer.fetch(0, 0)
    assert session_id > 0
    assert values == ["a"]


async def test_a_session_keeps_what_is_news(cluster: Cluster) -> None:
    consumer = await started(cluster)
    session_id, _ = consumer.fetch(0, 0)
    consumer.fetch(session_id, 1, 1)
    cluster.produce(1, "b", acks=1)
    consumer.is_throttled = True
    for epoch in (2, 3):
        assert consumer.fetch(session_id, epoch, None) == (session_id, None)
    consumer.is_throttled = False
    assert consumer.fetch(session_id, 4, None) == (session_id, ["b"])


async def test_a_session_that_does_not_exist_is_paid_for(cluster: Cluster) -> None:
    """As in Kafka, who is over a quota hears nothing of the error, and begins a new session because there is none."""
    consumer = await started(cluster)
    assert consumer.fetch(4711, 5) == (0, None)
    consumer.is_throttled = True
    assert consumer.fetch(4711, 5) == (0, None)
    assert consumer.sizes == [0, 0]
    assert consumer.errors == [ErrorCode.FETCH_SESSION_ID_NOT_FOUND, ErrorCode.NONE]


async def test_a_parked_fetch_that_is_throttled(cluster: Cluster) -> None:
    consumer = await started(cluster)
    session_id, _ = consumer.fetch(0, 0)
    consumer.fetch(session_id, 1, 1, max_wait_ms=5000)
    count = len(consumer.answers)
    consumer.is_throttled = True
    cluster.produce(1, "b", acks=1)
    cluster.time.turn()
    assert consumer.answers[count:] == [(session_id, None)]
    consumer.is_throttled = False
    assert consumer.fetch(session_id, 2, None) == (session_id, ["b"])
