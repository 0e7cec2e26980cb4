"""What is read back of transactions: those that began before the run, or are decided and not finished, and those with deleted records."""

from __future__ import annotations

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from ottla.records import id_finder
from tests.conftest import ClusterFactory
from tests.support.cli import ottla
from tests.support.topics import new_topic
from tools.cluster.local_cluster import LocalCluster
from tools.judge.judgement import judge
from tools.judge.logs import Outcome, PartitionLog
from tools.judge.reports import ACKED, CONSUMED, Report
from tools.judge.tables import Tables
from tools.verify.control_records import MARKERS_TIMEOUT_S, with_transactions
from tools.verify.reading import read_back, read_ends
from tools.wire.security import PLAINTEXT

pytestmark = pytest.mark.integration
CLIENT_TIMEOUT_S = 60


def transactional(servers: str, name: str) -> Producer:
    """In a transaction."""
    producer = Producer({"bootstrap.servers": servers, "transactional.id": name, "transaction.timeout.ms": 600_000})
    producer.init_transactions(CLIENT_TIMEOUT_S)
    producer.begin_transaction()
    return producer


def write(producer: Producer, topic: str, *keys: str) -> None:
    for key in keys:
        producer.produce(topic, key=key)
    assert producer.flush(CLIENT_TIMEOUT_S) == 0


def test_a_program_waits_behind_a_transaction_that_began_before_it(shared_cluster: LocalCluster) -> None:
    servers = shared_cluster.bootstrap_servers
    topic = new_topic(servers)
    settings = {"bootstrap.servers": servers}
    other = transactional(servers, topic)
    write(other, topic, "other")
    ends = read_ends(settings)
    write(Producer(settings), topic, "own")
    reports = [
        Report(ACKED, topic, 0, 1, "own"),
        Report(CONSUMED, topic, 0, 0, "other", f"dirty-{topic}", order=1, isolation="read_uncommitted"),
        Report("committed", topic, 0, 0, group=f"clean-{topic}", order=2),
    ]
    logs, positions, incomplete = read_back(settings, [reports[0], reports[2]], ends, id_finder("key"))
    assert incomplete == []
    (open_,) = logs[topic, 0].open
    assert (open_.first_offset, open_.transactional_id, open_.is_stuck) == (0, topic, False)
    judged = judge(Tables.of([reports[0], reports[2]]), logs, positions, is_finished=True)
    assert {each.kind for each in judged.findings} == {"unread", "open", "commits-back"}
    other.abort_transaction(CLIENT_TIMEOUT_S)
    logs, _, incomplete = read_back(settings, reports, ends, id_finder("key"))
    assert incomplete == []
    assert (logs[topic, 0].open, logs[topic, 0].outcome(0)) == ([], Outcome.ABORTED)


def test_what_is_deleted_while_it_is_read_is_not_judged(shared_cluster: LocalCluster) -> None:
    servers = shared_cluster.bootstrap_servers
    topic = new_topic(servers)
    producer = transactional(servers, topic)
    write(producer, topic, "a", "b", "c")
    producer.abort_transaction(CLIENT_TIMEOUT_S)
    read = {(topic, 0): PartitionLog(0, 4, {0: "a", 1: "b", 2: "c"})}
    admin = AdminClient({"bootstrap.servers": servers})
    deleted = admin.delete_records([TopicPartition(topic, 0, 2)])
    assert all(future.result(CLIENT_TIMEOUT_S).low_watermark == 2 for future in deleted.values())
    log = with_transactions(servers, PLAINTEXT, read)[topic, 0]
    assert (log.start, log.ids, log.outcome(2)) == (2, {2: "c"}, Outcome.ABORTED)


@pytest.mark.thorough
def test_a_decided_transaction_is_waited_for(new_cluster: ClusterFactory) -> None:
    """Its control records come late."""
    cluster = new_cluster(brokers=3)
    servers = cluster.bootstrap_servers
    topic = new_topic(servers, assignment=[[1], [2], [3]])
    producer = transactional(servers, topic)
    for partition in range(3):
        producer.produce(topic, key=f"{partition}", partition=partition)
    assert producer.flush(CLIENT_TIMEOUT_S) == 0
    lasts_s = MARKERS_TIMEOUT_S + 2
    done = ottla(f"fault drop write-txn-markers and cut of brokers for {lasts_s:g}s --dir {cluster.directory}")
    assert done.exit_code == 0, done.output
    producer.commit_transaction(CLIENT_TIMEOUT_S)
    read = {(topic, partition): PartitionLog(0, 2, {0: f"{partition}"}) for partition in range(3)}
    logs = with_transactions(servers, PLAINTEXT, read)
    assert [log.outcome(0) for log in logs.values()] == 3 * [Outcome.COMMITTED]
