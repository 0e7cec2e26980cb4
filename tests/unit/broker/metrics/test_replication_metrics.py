"""The sections of topics and partitions: their numbers, and how long each piece of them takes."""

from __future__ import annotations

import time

from prometheus_client.parser import text_string_to_metric_families

from broker.metrics.replication import replica_section, topic_section
from broker.process.topic_stats import BrokerTopicStats
from protocol.kafka.record_batch import TRANSACTIONAL_BIT
from tests.support.replica_cluster import TP, Cluster

PIECE_MAX_S = 0.005
TOPICS = 6_000


def test_no_piece_of_many_topics_takes_long() -> None:
    """NET-4: while the metrics thread computes, it holds the interpreter. CPU time, so that other processes do not count."""
    stats = BrokerTopicStats()
    for number in range(TOPICS):
        stats.replica_added(f"topic-{number}").messages_in += number
    stats.replica_added("removed").messages_in += 1
    stats.replica_removed("removed")
    texts, longest, began = [], 0.0, time.thread_time()
    for text in topic_section(stats):
        longest = max(longest, time.thread_time() - began)
        texts.append(text)
        began = time.thread_time()
    assert longest < PIECE_MAX_S
    families = {found.name: found for found in text_string_to_metric_families("".join(texts))}
    samples = families["kafka_server_brokertopicmetrics_messagesin"].samples
    assert len(samples) == 1 + TOPICS
    assert [sample.value for sample in samples if not sample.labels] == [1 + sum(range(TOPICS))]


async def test_partitions_are_counted_and_have_series_up_to_the_limit(cluster: Cluster) -> None:
    """`metrics.max.partitions`; a follower has no series of `kafka_cluster_partition`."""
    await cluster.start_led(1, 2, 3, isr=(1, 2))

    def page(broker: int, partitions_max: int) -> dict[str, list[float]]:
        text = "".join(replica_section(cluster.nodes[broker].manager, partitions_max))
        return {found.name: [s.value for s in found.samples] for found in text_string_to_metric_families(text)}

    leader, follower = page(1, -1), page(2, 1)
    assert leader["kafka_server_replicamanager_leadercount"] == [1]
    assert leader["kafka_server_replicamanager_underreplicatedpartitions"] == [1]
    assert leader["kafka_cluster_partition_replicascount"] == [3]
    assert leader["kafka_cluster_partition_insyncreplicascount"] == [2]
    assert follower["kafka_server_replicamanager_leadercount"] == [0]
    assert (follower["kafka_log_log_logendoffset"], follower["kafka_cluster_partition_replicascount"]) == ([0], [])
    without_series = page(1, 0)
    assert without_series["kafka_server_replicamanager_partitioncount"] == [1]
    assert "kafka_log_log_logendoffset" not in without_series


async def test_how_far_back_readers_of_committed_records_are(cluster: Cluster) -> None:
    """Kafka's LastStableOffsetLag: counted from the first transaction without a replicated marker. Looking changes nothing."""
    await cluster.start_led(1, 2, isr=(1, 2))

    def lag() -> float:
        text = "".join(replica_section(cluster.nodes[1].manager, -1))
        families = {found.name: found.samples for found in text_string_to_metric_families(text)}
        (sample,) = families["kafka_cluster_partition_laststableoffsetlag"]
        partition = cluster.nodes[1].partition(TP)
        assert sample.value == partition.high_watermark - partition.last_stable_offset()
        return sample.value

    cluster.produce(1, "plain")
    transaction = {"producer_id": 7, "producer_epoch": 0, "attributes": TRANSACTIONAL_BIT}
    cluster.produce(1, "a", "b", base_sequence=0, **transaction)
    assert lag() == 0, "nothing is replicated"
    await cluster.settle()
    cluster.produce(1, "plain")
    await cluster.settle()
    assert lag() == 3
    cluster.end_transaction(1, 7, is_commit=True)
    assert lag() == 3, "the marker is not replicated"
    await cluster.settle()
    assert lag() == 0
