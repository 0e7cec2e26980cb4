"""Each client of tests/clients/clients.py with each feature, against three brokers. docs/CLIENTS.md has the protocol and the results.

A feature is tested with all clients side by side, so that one killed broker serves all of them; the test of a cell reports
what came of it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.record_batch import iter_batches
from tests.clients.cell import Cell
from tests.clients.clients import CLIENTS, FEATURES, SASL_AUTHENTICATION_FAILED, Client
from tests.clients.conftest import Matrix
from tests.clients.peers import COMMITTED, UNCOMMITTED, Outgoing, Record
from tests.clients.program import Line, Program
from tests.clients.secured import DESCRIBED, HIDDEN, LOGINS, SESSION_S, WRONG_PASSWORD
from tests.support.invariants import eventually
from tests.support.wire import Wire

pytestmark = pytest.mark.integration

COUNT = 100
PADDING = 300 * "x"
"""Clients compress a batch only if that makes it smaller."""
FIRST_TIMESTAMP_MS = 1000 * (int(time.time()) - 24 * 3600) + 123
"""Of yesterday: retention would delete much older records."""
PAUSE_MS = 20
ACKS_BEFORE_KILL = 30
LEADER = 1
"""Leads the partitions that are written to and read while it is killed."""
ADMIN_ACTIONS = [
    "create_topics",
    "describe_topics",
    "create_partitions",
    "alter_configs",
    "describe_configs",
    "list_topics",
    "list_groups",
    "delete_topics",
]
CHANGED_RETENTION_MS = "7200000"
PASSWORDS = {"TLS and PLAIN": ("PLAIN", "PLAIN"), "TLS and SCRAM": ("SCRAM-SHA-256", "SCRAM-SHA-512")}
"""Feature -> the mechanisms by which its producer and its reader log in."""
PAUSES_MS = (50, 200, 800)
"""Between two of COUNT records, so that a producer takes longer than a login by a token counts; the later ones if its start was slow."""
NOT_AGAIN = "it does not log in again (KIP-368)"
DENIED_WITHIN_S = 30.0
"""With the start of a JVM. Clients try again for longer, such as for `max.block.ms`, when they do not know an error."""


@pytest.mark.timeout(900)  # the first test of a feature waits for all clients
@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
@pytest.mark.parametrize("feature", FEATURES)
def test_client(matrix: Matrix, feature: str, client: Client) -> None:
    matrix.report(feature, client, PLAYS[feature])


def numbered(word: str, count: int = COUNT) -> list[str]:
    return [f"{word} {number}" for number in range(count)]


# produce


def check_acknowledged(lines: Sequence[Line], records: Sequence[Record], values: Sequence[str]) -> None:
    """Every value is acknowledged once, and is where the acknowledgement says."""
    acknowledged = {line["acked"]: (line["partition"], line["offset"]) for line in lines if "acked" in line}
    assert sorted(acknowledged) == sorted(values)
    assert {record.value: (record.partition, record.offset) for record in records} == acknowledged


def produce(cell: Cell, **settings: Any) -> str:
    """The records are in the log once, in order, with their keys, and the batches have the compression. -> the topic"""
    topic = cell.topic()
    values = [f"value {number} {PADDING}" for number in range(COUNT)]
    keys = numbered("key")
    lines = cell.start_producer(topic, values, keys=keys, **settings).result()
    records = cell.read_until(topic, lambda found: len(found) >= COUNT, what=f"{COUNT} records")
    check_acknowledged(lines, records, values)
    assert [(record.key, record.value) for record in records] == list(zip(keys, values, strict=True))
    return topic


def play_compression(cell: Cell) -> None:
    topic = produce(cell, compression=cell.feature)
    assert codecs_in_log(cell, topic) == {cell.feature}, "the codec of every batch in the log"


def codecs_in_log(cell: Cell, topic: str) -> set[str]:
    """Of the batches of partition 0, on the disk of one of its replicas."""
    (directory,) = cell.cluster.log_directories(LEADER)
    names = ("none", "gzip", "snappy", "lz4", "zstd")
    found = set()
    for segment in (directory / f"{topic}-0").glob("*.log"):
        found |= {names[batch.attributes & 7] for _, batch in iter_batches(memoryview(segment.read_bytes()))}
    return found


def play_acks(cell: Cell) -> None:
    """acks=1 and acks=0. With acks=0, no broker says which offset a record has."""
    produce(cell, acks="1")
    topic = cell.topic()
    values = numbered("unacknowledged")
    cell.start_producer(topic, values, acks="0").result()
    records = cell.read_until(topic, lambda found: len(found) >= COUNT, what=f"{COUNT} records written with acks=0")
    assert [record.value for record in records] == values


def play_idempotent(cell: Cell) -> None:
    """LOG-5, KIP-664: the leader knows the producer by its id, and the last sequence."""
    topic = produce(cell, idempotent=True)
    with Wire(cell.cluster.port(LEADER)) as wire:
        body = {"topics": [{"name": topic, "partition_indexes": [0]}]}
        (answer,) = wire.call(ApiKey.DESCRIBE_PRODUCERS, 0, body).topics
    (partition,) = answer.partitions
    assert partition.error_code == ErrorCode.NONE
    assert [producer.last_sequence for producer in partition.active_producers] == [COUNT - 1]


# consume


def check_read(lines: Sequence[Line], expected: Sequence[Record]) -> None:
    """The program has printed exactly these records, after it was ready."""
    assert "ready" in lines[0]
    read = [
        Record(line["partition"], line["offset"], line["key"], line["value"], line["timestamp_ms"])
        for line in lines[1:]
    ]
    assert read == list(expected)


def written_topic(cell: Cell) -> tuple[str, list[Record]]:
    """A topic with records in two partitions, and the records of partition 0, which are a second apart."""
    topic = cell.topic(partitions=2)
    outgoing = [
        Outgoing(f"value {number}", number % 2, f"key {number}", FIRST_TIMESTAMP_MS + 500 * number)
        for number in range(2 * COUNT)
    ]
    cell.peer.write(cell.cluster.bootstrap_servers, topic, outgoing)
    in_partition_0 = [record for record in outgoing if record.partition == 0]
    return topic, [
        Record(0, offset, sent.key, sent.value, sent.timestamp_ms or 0) for offset, sent in enumerate(in_partition_0)
    ]


def play_earliest(cell: Cell) -> None:
    topic, records = written_topic(cell)
    check_read(cell.start_reader(topic, "earliest", COUNT, UNCOMMITTED).result(), records)


def play_latest(cell: Cell) -> None:
    """Reads what is written after its start, and nothing older."""
    topic, _ = written_topic(cell)
    reader = cell.start_reader(topic, "latest", COUNT)
    reader.wait_for_count("ready", 1)
    later = numbered("later")
    cell.write(topic, later)
    read = [(line["offset"], line["value"]) for line in reader.result() if "value" in line]
    assert read == list(enumerate(later, COUNT))


def play_offset(cell: Cell) -> None:
    topic, records = written_topic(cell)
    check_read(cell.start_reader(topic, {"offset": 40}, COUNT - 40).result(), records[40:])


def play_time(cell: Cell) -> None:
    """From the first record whose timestamp is not before the given time."""
    topic, records = written_topic(cell)
    between = records[59].timestamp_ms + 1
    check_read(cell.start_reader(topic, {"timestamp_ms": between}, COUNT - 60).result(), records[60:])


def play_committed(cell: Cell) -> None:
    """TXN: with read_committed, the reader skips an aborted transaction between two committed ones."""
    topic = cell.topic()
    expected = []
    for number, is_aborted in enumerate((False, True, False)):
        values = numbered(f"transaction {number}, value", 20)
        outgoing = [Outgoing(value) for value in values]
        cell.peer.write(cell.cluster.bootstrap_servers, topic, outgoing, is_aborted)
        expected += [] if is_aborted else values
    lines = cell.start_reader(topic, "earliest", len(expected), COMMITTED).result()
    assert [line["value"] for line in lines if "value" in line] == expected


# groups


def share(member: Program) -> list[int]:
    """The current assignment."""
    return sorted((member.values("assigned") or [[]])[-1])


def committed_offsets(cell: Cell, group: str, topic: str) -> dict[int, int]:
    """Partition -> the next offset, as the cluster has it."""
    admin = AdminClient({"bootstrap.servers": cell.cluster.bootstrap_servers, "log_level": 2})
    (future,) = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
    return {at.partition: at.offset for at in future.result(30).topic_partitions if at.topic == topic}


def wait_until_committed(cell: Cell, group: str, topic: str, records: int) -> None:
    """Until the committed offsets are behind all records."""
    eventually(lambda: sum(committed_offsets(cell, group, topic).values()) == records, f"{records} records committed")


def play_rebalance(cell: Cell, **kind: str) -> str:
    """A second member joins, shares the partitions and leaves. Each record is read, and all offsets are committed. -> the group

    `kind`: "protocol" of a group of the new kind.
    """
    partitions = 4
    topic = cell.topic(partitions)
    group = f"{cell.name}-{topic}"
    every = list(range(partitions))
    first = cell.start("group", topic=topic, group=group, **kind)
    first.wait_for(lambda: share(first) == every, "it had all partitions")
    expected = numbered("alone")
    cell.write(topic, expected, partitions)
    first.wait_for(lambda: set(first.values("value")) >= set(expected), "it read all records")
    second = cell.start("group", topic=topic, group=group, **kind)
    second.wait_for(lambda: share(second), "the second member had a share")
    first.wait_for(lambda: share(first) and sorted(share(first) + share(second)) == every, "the members had all shares")
    shared = numbered("shared")
    cell.write(topic, shared, partitions)
    for member in (first, second):
        mine = {value for number, value in enumerate(shared) if number % partitions in share(member)}
        member.wait_for(lambda m=member, v=mine: set(m.values("value")) >= v, "it read all records of its share")
    second.end()
    first.wait_for(lambda: share(first) == every, "it had all partitions again")
    last = numbered("alone again")
    cell.write(topic, last, partitions)
    first.wait_for(lambda: set(first.values("value")) >= set(last), "it read all records")
    wait_until_committed(cell, group, topic, 3 * COUNT)
    first.end()
    read = set(first.values("value")) | set(second.values("value"))
    assert read == {*expected, *shared, *last}
    return group


def play_new_groups(cell: Cell) -> None:
    """The same in a group of the new kind (KIP-848). Its epoch, at least of a member that came and went, says that it is one."""
    group = play_rebalance(cell, protocol="consumer")
    body = {"group_ids": [group], "include_authorized_operations": False}
    states = {}
    for broker in cell.cluster.broker_ids:
        with Wire(cell.cluster.port(broker)) as wire:
            (answer,) = wire.call(ApiKey.CONSUMER_GROUP_DESCRIBE, 1, body).groups
        if answer.error_code == ErrorCode.NONE:
            states[answer.group_state] = answer.group_epoch
    assert list(states) == ["Empty"], "one broker coordinates the group, from which all members have left"
    assert states["Empty"] >= 3


def play_resume(cell: Cell) -> None:
    """A member commits and is killed. The next one continues at the commit: no record twice, and none left out."""
    topic = cell.topic()
    group = f"{cell.name}-{topic}"
    before, after = numbered("before"), numbered("after")
    cell.write(topic, before)
    first = cell.start("group", topic=topic, group=group)
    first.wait_for_count("value", COUNT)
    wait_until_committed(cell, group, topic, COUNT)
    assert first.values("value") == before
    first.kill()
    cell.write(topic, after)
    second = cell.start("group", topic=topic, group=group)
    second.wait_for_count("value", COUNT)
    wait_until_committed(cell, group, topic, 2 * COUNT)
    second.end()
    assert second.values("value") == after


# transactions


def play_transactions(cell: Cell) -> None:
    """A committed, an aborted, and again a committed transaction of one transactional id."""
    topic = cell.topic()
    committed, everything = [], []
    for number, end in enumerate(("commit", "abort", "commit")):
        values = numbered(f"{end} {number}, value", 20)
        request = {"topic": topic, "transactional_id": f"{cell.name}-{topic}", "values": values}
        program = cell.start("transact", **request, end=end)
        program.result()
        assert sorted(program.values("acked")) == sorted(values)
        assert program.values("ended") == [end]
        everything += values
        committed += values if end == "commit" else []
    cell.read_until(topic, lambda found: len(found) >= len(committed), what="the committed records")
    assert [record.value for record in cell.read(topic)] == committed
    assert [record.value for record in cell.read(topic, isolation=UNCOMMITTED)] == everything


def play_exactly_once(cell: Cell) -> None:
    """TXN: the pipeline writes one record for each that it reads, although a broker is killed in the middle."""
    partitions = 2
    source, sink = cell.topic(partitions, LEADER), cell.topic(partitions, LEADER)
    request = {
        "source": source,
        "sink": sink,
        "group": f"{cell.name}-{source}",
        "transactional_id": f"{cell.name}-{source}",
    }
    values = numbered("before the kill")
    cell.write(source, values, partitions)
    pipeline = cell.start("pipeline", **request)
    pipeline.wait_for_count("committed", 1)
    during = numbered("during the kill")
    cell.write(source, during, partitions)
    cell.kill_a_broker()
    after = numbered("after the kill")
    cell.write(source, after, partitions)
    expected = [f"processed {value}" for value in (*values, *during, *after)]
    cell.read_until(
        sink,
        lambda found: len({record.value for record in found}) >= len(expected) or len(found) > len(expected),
        partitions=partitions,
        what=f"{len(expected)} records in the sink; {pipeline.shown()}",
    )
    pipeline.end()
    counts = Counter(record.value for record in cell.read(sink, partitions))
    assert counts == Counter(expected)


# admin


def play_admin(cell: Cell) -> None:
    """What the client has of ADMIN_ACTIONS, in this order. The topic is gone at the end, if it can delete topics."""
    topic = f"admin-{cell.topic()}"
    lines = cell.start("admin", topic=topic).result()
    saw = {line["did"]: str(line.get("saw")) for line in lines if "did" in line}
    assert list(saw) == [action for action in ADMIN_ACTIONS if action in saw]
    missing = [action for action in ADMIN_ACTIONS if action not in saw]
    cell.note = f"without {', '.join(missing)}" if missing else ""
    assert saw, "no action"
    if {"create_topics", "list_topics"} <= set(saw):
        assert topic in saw["list_topics"]
    if {"alter_configs", "describe_configs"} <= set(saw):
        assert CHANGED_RETENTION_MS in saw["describe_configs"]
    if "delete_topics" in saw:
        admin = AdminClient({"bootstrap.servers": cell.cluster.bootstrap_servers, "log_level": 2})
        eventually(lambda: topic not in admin.list_topics(timeout=30).topics, f"{topic} is deleted")


# failover


def play_failover(cell: Cell) -> None:
    """The leader is killed: every acknowledged record is read back, and a reader continues.

    The producer is idempotent if the client has such; then each record is there once.
    """
    written, read = cell.topic(first_leader=LEADER), cell.topic(first_leader=LEADER)
    values = numbered("value", 2 * COUNT)
    before, after = numbered("before the kill"), numbered("after the kill")
    is_idempotent = "idempotent" not in cell.client.lacks
    producer = cell.start_producer(written, values, pause_ms=PAUSE_MS, idempotent=is_idempotent)
    reader = cell.start_reader(read, "earliest", 2 * COUNT)
    cell.write(read, before)
    reader.wait_for_count("value", COUNT)
    producer.wait_for_count("acked", ACKS_BEFORE_KILL)
    cell.kill_a_broker()
    cell.write(read, after)
    producer.result()
    acknowledged = producer.values("acked")
    assert sorted(acknowledged) == sorted(values)
    counts = Counter(record.value for record in cell.read(written))
    assert set(counts) == set(values)
    if is_idempotent:
        assert set(counts.values()) == {1}
    reader.result()
    assert reader.values("value") == before + after


# TLS, SASL, ACLs


def write_and_read(cell: Cell, writes: dict[str, Any], reads: dict[str, Any]) -> None:
    """A producer and a reader, each with a connection of its own."""
    topic = cell.topic()
    values = numbered("value")
    lines = cell.start_producer(topic, values, **writes).result()
    records = cell.read(topic)
    check_acknowledged(lines, records, values)
    check_read(cell.start_reader(topic, "earliest", COUNT, **reads).result(), records)


def play_password(cell: Cell) -> None:
    """CLI-5: a producer and a reader log in, each by one of the mechanisms in turn, over TLS that checks the broker's certificate."""
    assert cell.secured is not None
    writes, reads = (cell.secured.by_password(mechanism) for mechanism in PASSWORDS[cell.feature])
    write_and_read(cell, writes, reads)


def play_mutual_tls(cell: Cell) -> None:
    """CLI-5: a certificate in the place of a login. The broker demands it, and the ACLs name the user of its subject."""
    assert cell.secured is not None
    mine = cell.secured.by_certificate()
    write_and_read(cell, mine, mine)


def play_oauthbearer(cell: Cell) -> None:
    """CLI-5, KIP-368: a token logs in, and again when the time of the login is over. A wrong one is refused."""
    assert cell.secured is not None
    client, tokens = cell.client, cell.secured.tokens
    is_odd = CLIENTS.index(client) % 2  # brokers answer alike to both, so half of the clients shows each
    guess = cell.start("login", **cell.secured.by_token(tokens.expired if is_odd else tokens.forged))
    mine, values = cell.secured.by_token(tokens.valid), numbered("value")
    for pause_ms in PAUSES_MS:
        topic = cell.topic(first_leader=LEADER)
        lines, logged_in_again = write_for_longer_than_a_login(cell, topic, values, pause_ms)
        records = cell.read(topic)
        check_acknowledged(lines, records, values)
        if logged_in_again is not None:
            break
    assert logged_in_again == client.logs_in_again
    check_read(cell.start_reader(topic, "earliest", COUNT, **mine).result(), records)
    guess.result()
    assert guess.values("refused") == [client.refused_token]
    notes = guess.values("note")
    if client.refused_token != SASL_AUTHENTICATION_FAILED:
        notes.append(f"a refused token is '{client.refused_token}'")
    if not client.logs_in_again:
        notes.append(NOT_AGAIN)
    cell.note = "; ".join(notes)


def write_for_longer_than_a_login(
    cell: Cell, topic: str, values: Sequence[str], pause_ms: int
) -> tuple[list[Line], bool | None]:
    """-> the lines of a producer, and whether all its connections to the leader have outlived their first login.

    None: it was done before that time, because its start took most of the pauses between the values.
    """
    assert cell.secured is not None
    ports, token = cell.secured.ports[LOGINS], cell.secured.tokens.valid
    # It writes to the leader only, so it begins at another broker: no connection to the leader is left unused.
    login = {**cell.secured.by_token(token), "bootstrap": f"127.0.0.1:{ports[LEADER + 1]}"}
    producer = cell.start_producer(topic, values, pause_ms=pause_ms, **login)
    producer.wait_for_count("acked", 1)
    first = producer.connections_to(ports[LEADER])
    over_at = time.monotonic() + SESSION_S + 0.5  # an acknowledgement takes a moment to get here
    written = 0

    def is_enough() -> bool:
        """Two records are written after the first login."""
        nonlocal written
        acknowledged = sum("acked" in line for line in producer.lines)
        if time.monotonic() < over_at:
            written = acknowledged
        return acknowledged >= min(written + 2, len(values))

    producer.wait_for(is_enough, "it wrote more")
    later = producer.connections_to(ports[LEADER])
    lines = producer.result()
    return lines, None if written + 2 > len(values) else first == first & later


def play_denied(cell: Cell) -> None:
    """CLI-5: what is denied is the client's own error, at once, and other topics go on; so is a wrong password."""
    assert cell.secured is not None
    topic = cell.topic()
    before, after = numbered("before", 5), numbered("after", 5)
    guess = cell.start("login", **cell.secured.by_password("PLAIN", WRONG_PASSWORD))
    request = {"topic": topic, "denied": [HIDDEN, DESCRIBED], "group": cell.name, "before": before, "after": after}
    program = cell.start("denied", **cell.secured.by_password("PLAIN"), **request)
    refused = {(line["refused"], line["to"], line["topic"]) for line in program.result() if "refused" in line}
    error = "TOPIC_AUTHORIZATION_FAILED"
    assert refused == {(error, to, denied) for to in ("write", "read") for denied in (HIDDEN, DESCRIBED)}
    assert sorted(program.values("acked")) == sorted(before + after)
    assert program.values("value") == before + after
    guess.result()
    assert guess.values("refused") == [SASL_AUTHENTICATION_FAILED]
    assert max(guess.longest_wait_s(), program.longest_wait_s()) < DENIED_WITHIN_S
    cell.note = "; ".join(guess.values("note") + program.values("note"))


PLAYS: dict[str, Callable[[Cell], None]] = {
    **dict.fromkeys(("none", "gzip", "snappy", "lz4", "zstd"), play_compression),
    "acks": play_acks,
    "idempotent": play_idempotent,
    "earliest": play_earliest,
    "latest": play_latest,
    "offset": play_offset,
    "time": play_time,
    "committed": play_committed,
    "rebalance": play_rebalance,
    "resume": play_resume,
    "new groups": play_new_groups,
    "transactions": play_transactions,
    "exactly once": play_exactly_once,
    "admin": play_admin,
    "failover": play_failover,
    **dict.fromkeys(PASSWORDS, play_password),
    "OAUTHBEARER": play_oauthbearer,
    "mutual TLS": play_mutual_tls,
    "denied": play_denied,
}
