"""Kafka Streams and Kafka Connect of Kafka 4 write exactly once, by transaction version 2 (KIP-890), while faults go on."""

from __future__ import annotations

import contextlib
import itertools
import re
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import ElectionType, IsolationLevel
from confluent_kafka.admin import AdminClient

from protocol.kafka.api_keys import ApiKey
from tests.clients.cell import Cell
from tests.clients.conftest import is_in_sync
from tests.clients.connect import Copying
from tests.clients.frameworks import (
    EXACTLY_ONCE,
    LEADER,
    OF_KAFKA_4,
    PARTITIONS,
    SOME,
    application_of,
    assert_counted_once,
    end_of,
    lines_of_words,
    recorded,
    start_word_count,
    wait_for,
    wait_for_counts,
    wait_until_written,
)
from tests.support.thorough import release
from tools.cluster.local_cluster import LocalCluster
from tools.faults.processes import ProcessCluster
from tools.faults.request_hits import request_hits
from tools.faults.script import Faulted
from tools.faults.words import parse_words
from tools.wire.client import ask

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3600)]

LINES = 100
STREAMS_FAULTS = (
    "kill leader of {sink}-0",
    "lose the answer to end-txn once and cut",
    "kill transaction-coordinator of {id}",
    "lose the answer to produce of topic {sink} once and cut",
    "pause leader of {sink}-0",
    "answer produce of topic {sink} with NOT_LEADER_OR_FOLLOWER 2 times",
    "cut the connection in the middle of the answer to end-txn once",
    "pause transaction-coordinator of {id}",
    "answer end-txn with COORDINATOR_NOT_AVAILABLE 2 times",
    "drop produce of topic {sink} once and cut",
    "drop end-txn once and cut",
    "lose the answer to add-partitions-to-txn of brokers once and cut",
    "lose the answer to txn-offset-commit once and cut",
    "kill coordinator of {group}",
    "answer txn-offset-commit with COORDINATOR_LOAD_IN_PROGRESS 2 times",
    "pause coordinator of {group}",
    "drop txn-offset-commit once and cut",
    "delay add-partitions-to-txn of brokers by 12s once",
    "answer end-txn with COORDINATOR_LOAD_IN_PROGRESS for 25s",
)
"""{sink}: the topic that is written to. {id}: the transactional id of a writer. {group}: of the application. A transaction of
Kafka Streams times out after 10 s, and the coordinator looks every 10 s: in the last two, its batch or its commit may come too late."""
CONNECT_FAULTS = (
    "kill leader of {sink}-0",
    "lose the answer to init-producer-id once and cut",
    "pause transaction-coordinator of {id}",
    "lose the answer to end-txn once and cut",
    "kill coordinator of {group}",
    "lose the answer to produce of topic {sink} once and cut",
    "answer init-producer-id with CONCURRENT_TRANSACTIONS 2 times",
    "lose the answer to offset-commit of group {readers} once and cut",
    "kill transaction-coordinator of {id}",
    "drop init-producer-id once and cut",
    "pause leader of {sink}-0",
    "answer end-txn with COORDINATOR_NOT_AVAILABLE 2 times",
    "answer produce of topic {sink} with NOT_LEADER_OR_FOLLOWER 2 times",
    "kill coordinator of {readers}",
    "cut the connection in the middle of the answer to end-txn once",
    "pause coordinator of {group}",
    "drop end-txn once and cut",
    "answer init-producer-id with COORDINATOR_LOAD_IN_PROGRESS 2 times",
    "answer offset-commit of group {readers} with COORDINATOR_LOAD_IN_PROGRESS 2 times",
    "drop produce of topic {sink} once and cut",
)
"""{sink}: the topic that is written to. {id}: the transactional id of the source's task. {group}: of the workers. {readers}: the
sink's."""
FEW = 8
"""Of CONNECT_FAULTS: one of each kind."""
REQUEST_TIMEOUT, ADMIN_TIMEOUT = "request.timeout.ms", "default.api.timeout.ms"
STREAMS_PATIENCE = {
    REQUEST_TIMEOUT: "5000",
    f"admin.{ADMIN_TIMEOUT}": "10000",
    "consumer.session.timeout.ms": "15000",
}
"""A paused broker never answers. The group's leader waits for its admin client while it assigns tasks (Kafka's StreamsPartitionAssignor),
by default for up to a minute, and sends no heartbeats meanwhile. After the time-out of its session the next member is the leader, and
waits in the same way. So these clients wait for less time, and their session is longer than that. Java's admin client looks for requests
without an answer only when the next API call times out."""
CONNECT_PATIENCE = {
    **{f"{client}{REQUEST_TIMEOUT}": "5000" for client in ("", "producer.", "consumer.", "admin.")},
    ADMIN_TIMEOUT: "10000",
}
LIST_TRANSACTIONS_VERSION = 0
ANSWER_TIMEOUT_S = 10.0


def nothing() -> None:
    pass


class Faults:
    """Carries faults out, one after the other, while records are written to the topic `sink`."""

    def __init__(
        self, cell: Cell, sink: str, partitions: int, shown: Callable[[], str], tend: Callable[[], None] = nothing
    ) -> None:
        """`shown`: what the framework said. `tend` does what an operator does, again and again."""
        self._cell = cell
        self._sink = sink
        self._partitions = partitions
        self._shown = shown
        self._tend = tend
        self._faulted = Faulted(ProcessCluster(cell.cluster), ())

    def happen(self, line: str, then: Callable[[], None]) -> None:
        """The fault while the framework is at work, until it has been felt and the framework goes on; then the heal. `then` gives the
        framework more work once the fault is there."""
        words = parse_words(line)
        if words.request is not None and words.request.rule.of_brokers:
            lead_as_preferred(self._cell.cluster)
        began_ms = time.time() * 1000
        rows, _ = self._faulted.carry_out(words)
        assert not any(row.error for row in rows), rows
        before = self._end()
        then()
        if words.request is not None:
            hits = lambda: request_hits(self._cell.cluster.directory, began_ms)[str(words)]  # noqa: E731
            self._wait_for(lambda: hits() > 0, f"a request is hit by {words}")
        self._wait_for(lambda: self._end() > before + SOME, f"transactions of {SOME} records have ended after {words}")
        self._faulted.heal_all()
        self._wait_for(lambda: is_in_sync(self._cell.cluster), f"all replicas are in sync after {words}")

    def _wait_for(self, check: Callable[[], bool], what: str) -> None:
        def checked() -> bool:
            self._tend()
            return check()

        wait_for(checked, what, self._shown)

    def _end(self) -> int:
        """The sum of the last stable offsets: transactions before these have ended."""
        return end_of(self._cell, self._sink, self._partitions, IsolationLevel.READ_COMMITTED)


def lead_as_preferred(cluster: LocalCluster) -> None:
    """After some kills one broker leads everything, and brokers have nothing to ask each other."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 2})
    admin.elect_leaders(ElectionType.PREFERRED).result(ANSWER_TIMEOUT_S)


def requests(cluster: LocalCluster, api: str) -> Counter[int]:
    """Version -> requests since the brokers started."""
    found: Counter[int] = Counter()
    line = re.compile(
        rf'^kafka_network_requestmetrics_requests_total{{request="{api}",version="(\d+)"}} (\S+)', re.MULTILINE
    )
    for broker in cluster.broker_ids:
        with urllib.request.urlopen(
            f"http://{cluster.metrics_address(broker)}/metrics", timeout=ANSWER_TIMEOUT_S
        ) as page:
            for version, count in line.findall(page.read().decode()):
                found[int(version)] += int(float(count))
    return found


def transactional_ids(cluster: LocalCluster, prefix: str) -> list[str]:
    """Those that a coordinator knows, sorted."""
    body = {"state_filters": [], "producer_id_filters": []}
    found = set()
    for broker in ProcessCluster(cluster).broker_ids:
        address = ProcessCluster(cluster).address(broker)
        answer = ask(address, ANSWER_TIMEOUT_S, ApiKey.LIST_TRANSACTIONS, LIST_TRANSACTIONS_VERSION, body)
        assert answer is not None, f"broker {broker} does not list transactions"
        found |= {str(state.transactional_id) for state in answer.transaction_states}
    return sorted(each for each in found if each.startswith(prefix))


def assert_version_2(cluster: LocalCluster, before: Counter[int]) -> None:
    """All transactions since `before` have ended by EndTxn v5: the answer to it has the next epoch."""
    assert set(requests(cluster, "EndTxn") - before) == {5}


@pytest.mark.parametrize("count", [len(STREAMS_FAULTS), release(100)])
def test_streams_count_words_once(cluster_at_level_4: LocalCluster, tmp_path: Path, count: int) -> None:
    feature = f"{EXACTLY_ONCE}, {count} faults"
    with recorded(OF_KAFKA_4.streams, feature, cluster_at_level_4, tmp_path) as cell:
        source, sink = cell.topic(PARTITIONS, LEADER), cell.topic(PARTITIONS, LEADER)
        application = application_of(source)
        lines: list[str] = []

        def write() -> None:
            added = lines_of_words(len(lines), LINES)
            cell.write(source, added, PARTITIONS)
            lines.extend(added)

        ended = requests(cluster_at_level_4, "EndTxn")
        write()
        program = start_word_count(cell, source, sink, settings=STREAMS_PATIENCE)
        wait_for_counts(cell, program, sink, lines)
        assert_version_2(cluster_at_level_4, ended)

        names = {"sink": sink, "group": application, "id": transactional_ids(cluster_at_level_4, application)[0]}
        faults = Faults(cell, sink, PARTITIONS, program.shown)
        for line in itertools.islice(itertools.cycle(STREAMS_FAULTS), count):
            before = end_of(cell, sink, PARTITIONS)
            write()
            wait_until_written(cell, sink, PARTITIONS, before, program.shown)
            faults.happen(line.format(**names), write)
        wait_for_counts(cell, program, sink, lines)
        program.end()
        assert_counted_once(cell.read(sink, PARTITIONS), lines)


def test_streams_say_that_groups_of_their_own_kind_are_not_served(
    cluster_at_level_4: LocalCluster, tmp_path: Path
) -> None:
    """KIP-1071, `group.protocol=streams`."""
    with recorded(OF_KAFKA_4.streams, "streams groups are refused", cluster_at_level_4, tmp_path) as cell:
        source, sink = cell.topic(PARTITIONS), cell.topic(PARTITIONS)
        program = start_word_count(cell, source, sink, settings={"group.protocol": "streams"})
        program.wait_for(lambda: "ERROR" in [line.get("state") for line in program.lines], "it gave up")
        assert "UnsupportedVersionException" in program.shown()


@pytest.mark.parametrize("count", [FEW, release(100)])
def test_connect_copies_lines_once(cluster_at_level_4: LocalCluster, tmp_path: Path, count: int) -> None:
    feature = f"exactly once source, {count} faults"
    with (
        recorded(OF_KAFKA_4.connect, feature, cluster_at_level_4, tmp_path) as cell,
        contextlib.ExitStack() as stack,
    ):
        topic = cell.topic(first_leader=LEADER)
        copying = Copying(cell, OF_KAFKA_4.jars, topic, is_exactly_once=True, **CONNECT_PATIENCE)
        stack.callback(copying.worker.kill)

        ended = requests(cluster_at_level_4, "EndTxn")
        copying.append(LINES)
        copying.start()
        copying.wait_until_copied()
        assert_version_2(cluster_at_level_4, ended)

        names = {
            "sink": topic,
            "group": copying.worker.name,
            "readers": copying.readers,
            "id": copying.transactional_id,
        }
        assert names["id"] in transactional_ids(cluster_at_level_4, copying.worker.name)
        faults = Faults(cell, topic, 1, copying.worker.shown, copying.tend)
        with copying.growing():
            for line in itertools.islice(itertools.cycle(CONNECT_FAULTS), count):
                begin_again = lambda: copying.worker.restart_task(copying.source)  # noqa: E731
                faults.happen(line.format(**names), begin_again if "init-producer-id" in line else nothing)
        copying.wait_until_copied()
        copying.stop()
        assert [record.value for record in cell.read(topic)] == copying.lines
        assert set(copying.copied()) == set(copying.lines)
