"""Faults in single requests (docs/FAULTS.md) are felt by librdkafka, Java's client and franz-go, and lose and double nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.cell import Cell, closing
from tests.clients.clients import CLIENTS, Client
from tests.clients.peers import Outgoing
from tests.clients.program import LIMIT_S, Line, Program
from tests.support.invariants import eventually
from tests.support.request_faults import READS, WRITES
from tools.cluster.local_cluster import LocalCluster
from tools.faults.processes import ProcessCluster
from tools.faults.request_hits import request_hits
from tools.faults.script import Faulted
from tools.faults.words import Words, parse_words

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

COUNT = 20
VALUES = [f"value {number}" for number in range(COUNT)]
SILENT = ("drop", "lose")
BEGINS = (
    "lose the answer to init-producer-id once and cut",
    "cut the connection in the middle of the answer to init-producer-id once",
    "drop init-producer-id once and cut",
    "answer init-producer-id with CONCURRENT_TRANSACTIONS 2 times",
    "lose the answer to end-txn once and cut",
)
THREE = [client for client in CLIENTS if client.name in ("confluent-kafka", "franz-go", "Java client, newest")]


@pytest.fixture
def cell(request: pytest.FixtureRequest, clients_cluster: LocalCluster, tmp_path: Path) -> Iterator[Cell]:
    client: Client = request.param
    reason = client.why_not()
    if reason is not None:
        pytest.skip(f"{client.name}: {reason}")
    with closing(Cell("request faults", client, clients_cluster, tmp_path)) as found:
        yield found


def lines_under(faulted: Faulted, cell: Cell, words: Words, program: Program) -> list[Line]:
    """What the program printed, which the rule has hit. A connection that it silences is silent until the heal."""
    eventually(lambda: request_hits(cell.cluster.directory)[str(words)] > 0, f"a request is hit by {words}", LIMIT_S)
    if words.verb in SILENT:
        faulted.heal_all()
    lines = program.result()
    faulted.heal_all()
    return lines


@pytest.mark.parametrize("cell", THREE, ids=lambda client: client.name, indirect=True)
def test_a_producer_feels_each_fault(cell: Cell) -> None:
    faulted = Faulted(ProcessCluster(cell.cluster), ())
    for line in (*WRITES, "answer init-producer-id with COORDINATOR_LOAD_IN_PROGRESS once"):
        topic = cell.topic()
        words = parse_words(line.format(topic=topic))
        rows, _ = faulted.carry_out(words)
        assert [row.error for row in rows] == ["", "", ""]
        lines = lines_under(faulted, cell, words, cell.start_producer(topic, VALUES, idempotent=True))
        assert sorted(each["acked"] for each in lines if "acked" in each) == sorted(VALUES), line
        assert [record.value for record in cell.read(topic)] == VALUES, line


@pytest.mark.parametrize(
    "client", [client for client in THREE if client.name != "franz-go"], ids=lambda client: client.name
)
def test_a_transactional_producer_begins_although_an_answer_is_lost(
    client: Client, cluster_at_level_4: LocalCluster, tmp_path: Path
) -> None:
    """TXN-2, of transaction version 2 where the client has it: it asks again for its epoch, or for the end of its transaction.

    franz-go gives up: it takes a connection that ends without a first answer for one that needs SASL.
    """
    if (reason := client.why_not()) is not None:
        pytest.skip(f"{client.name}: {reason}")
    faulted = Faulted(ProcessCluster(cluster_at_level_4), ())
    with closing(Cell("begin", client, cluster_at_level_4, tmp_path)) as cell:
        topic = cell.topic()
        request = {"topic": topic, "transactional_id": f"{cell.name}-{topic}", "end": "commit"}
        committed = []
        for number, line in enumerate(BEGINS):
            words = parse_words(line)
            faulted.carry_out(words)
            values = [f"transaction {number}, {value}" for value in VALUES]
            program = cell.start("transact", **request, values=values)
            assert {"ended": "commit"} in lines_under(faulted, cell, words, program), line
            committed += values
            assert [record.value for record in cell.read(topic)] == committed, line


@pytest.mark.parametrize("cell", THREE, ids=lambda client: client.name, indirect=True)
def test_a_consumer_feels_each_fault(cell: Cell) -> None:
    faulted = Faulted(ProcessCluster(cell.cluster), ())
    for line in (*READS, "answer list-offsets of topic {topic} with LEADER_NOT_AVAILABLE once"):
        topic = cell.topic()
        cell.peer.write(cell.cluster.bootstrap_servers, topic, [Outgoing(value, 0, "key") for value in VALUES])
        words = parse_words(line.format(topic=topic))
        faulted.carry_out(words)
        lines = lines_under(faulted, cell, words, cell.start_reader(topic, "earliest", COUNT))
        assert [each["value"] for each in lines[1:]] == VALUES, line


@pytest.mark.parametrize("cell", THREE, ids=lambda client: client.name, indirect=True)
def test_a_producer_connects_again_when_its_idle_connections_are_closed(cell: Cell) -> None:
    cluster = ProcessCluster(cell.cluster)
    leader = cell.cluster.broker_ids[0]
    _, port = cluster.address(leader)
    producer = cell.start_producer(cell.topic(first_leader=leader), VALUES, pause_ms=300)
    producer.wait_for_count("acked", 3)
    before = producer.connections_to(port)
    rows, _ = Faulted(cluster, ()).carry_out(parse_words("close idle connections now"))
    assert [row.error for row in rows] == ["", "", ""]
    producer.wait_for_count("acked", COUNT - 3)
    assert before
    assert before != producer.connections_to(port)
    assert sorted(each["acked"] for each in producer.result()) == sorted(VALUES)


@pytest.mark.parametrize("cell", THREE, ids=lambda client: client.name, indirect=True)
def test_a_consumer_sees_garbled_records_by_their_checksum(cell: Cell) -> None:
    """Java's client ends with an error, which names the record; the others fetch again. Nobody takes the record for a right one."""
    faulted = Faulted(ProcessCluster(cell.cluster), ())
    topic = cell.topic()
    cell.peer.write(cell.cluster.bootstrap_servers, topic, [Outgoing(value, 0, "key") for value in VALUES])
    words = parse_words(f"garble the answer to fetch of topic {topic} once")
    faulted.carry_out(words)
    reader = cell.start_reader(topic, "earliest", COUNT)
    if cell.client.language == "Java":
        with pytest.raises(AssertionError, match=r"CorruptRecordException|is corrupt|is invalid"):
            reader.result()
        assert set(reader.values("value")) <= set(VALUES)
        reader = cell.start_reader(topic, "earliest", COUNT)
    assert [each["value"] for each in reader.result()[1:]] == VALUES
    assert request_hits(cell.cluster.directory)[str(words)] == 1
    faulted.heal_all()
