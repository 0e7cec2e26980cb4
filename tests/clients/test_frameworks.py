"""Kafka Streams and Kafka Connect, unmodified, on three brokers, while a broker and the framework's own process are killed."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.clients import results
from tests.clients.cell import Cell, closing
from tests.clients.clients import Client
from tests.clients.conftest import is_in_sync
from tests.clients.connect import Worker
from tests.clients.java import FRAMEWORKS, PROGRAMS, JavaProgram
from tests.clients.peers import Record
from tests.clients.program import Program
from tests.support.invariants import eventually
from tests.support.thorough import release
from tools.cluster.local_cluster import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

LEADER = 2
"""Leads the topics of the test while it is killed."""
PARTITIONS = 2
LINES = 300
MANY_LINES = 3000
SOME = 50
WORDS = ("ananas", "banana", "cherry", "date", "elderberry", "fig", "grape")
WORDS_OF_A_LINE = 3
LIMIT_S = 120.0
WORD_COUNT = JavaProgram(PROGRAMS / "frameworks" / "WordCount.java", FRAMEWORKS)
STREAMS = Client(
    "Kafka Streams",
    "Java",
    version=lambda: FRAMEWORKS.version("kafka-streams"),
    command=WORD_COUNT.command,
    missing=WORD_COUNT.missing,
)
CONNECT = Client(
    "Kafka Connect",
    "Java",
    version=lambda: FRAMEWORKS.version("connect-runtime"),
    command=lambda: [],  # a `Worker` runs it
    missing=FRAMEWORKS.missing,
)


@contextlib.contextmanager
def recorded(framework: Client, feature: str, cluster: LocalCluster, directory: Path) -> Iterator[Cell]:
    """Records what comes of the test; skips it without the framework; starts a killed broker again."""
    with results.recording_framework(framework, feature):
        try:
            with closing(Cell(feature, framework, cluster, directory)) as cell:
                yield cell
        finally:
            if cluster.pid(LEADER) is None:
                cluster.restart_broker(LEADER)
                eventually(lambda: is_in_sync(cluster), "all replicas are in sync after the restart", LIMIT_S)


def wait_for(check: Callable[[], bool], what: str, shown: Callable[[], str]) -> None:
    """Waits until `check` is true; if it does not become true, fails with what the framework said."""
    try:
        eventually(check, what, LIMIT_S)
    except AssertionError as late:
        raise AssertionError(f"{late}\n{shown()}") from None


def wait_until_written(cell: Cell, topic: str, partitions: int, before: int, shown: Callable[[], str]) -> None:
    """Until the topic has some records more than `before`: the framework is at work, and has much left to do."""
    wait_for(lambda: end_of(cell, topic, partitions) > before + SOME, f"{SOME} more records in {topic}", shown)


def end_of(cell: Cell, topic: str, partitions: int) -> int:
    """The sum of the latest offsets. Offsets of transactions that are still open count."""
    admin = AdminClient({"bootstrap.servers": cell.cluster.bootstrap_servers, "log_level": 2})
    wanted = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(partitions)}
    found: int = sum(future.result(LIMIT_S).offset for future in admin.list_offsets(wanted).values())
    return found


# Kafka Streams


def lines_of_words(first: int, count: int) -> list[str]:
    """Lines of WORDS_OF_A_LINE words; `first` is the number of the first line."""
    return [
        " ".join(WORDS[(line * line + 3 * word) % len(WORDS)] for word in range(WORDS_OF_A_LINE))
        for line in range(first, first + count)
    ]


def start_word_count(cell: Cell, source: str, sink: str) -> Program:
    return cell.start(
        "run",
        source=source,
        sink=sink,
        application=f"words-{source}",
        guarantee=cell.feature,
        state=str(cell.directory / "state"),
    )


def counts_of_words(records: Sequence[Record]) -> dict[str, list[int]]:
    """Word -> its counts, in the order of the log. All records of a word are in one partition."""
    found = defaultdict(list)
    for record in records:
        assert record.key is not None
        found[record.key].append(int(record.value))
    return found


def wait_for_counts(cell: Cell, program: Program, sink: str, lines: Sequence[str]) -> None:
    """Until every word has been counted as often as it is in the lines."""
    expected = Counter(" ".join(lines).split())

    def is_counted() -> bool:
        counts = counts_of_words(cell.read(sink, PARTITIONS))
        return all((counts[word] or [0])[-1] >= count for word, count in expected.items())

    wait_for(is_counted, f"the words of {len(lines)} lines are counted", program.shown)


@pytest.mark.parametrize("guarantee", [release("at_least_once"), "exactly_once_v2"])
def test_streams_count_words(clients_cluster: LocalCluster, tmp_path: Path, guarantee: str) -> None:
    """A broker is killed, and then the application, each while it counts. TXN: exactly_once_v2 writes each count of a word once."""
    with recorded(STREAMS, guarantee, clients_cluster, tmp_path) as cell:
        source, sink = cell.topic(PARTITIONS, LEADER), cell.topic(PARTITIONS, LEADER)
        lines: list[str] = []

        def write(count: int) -> None:
            added = lines_of_words(len(lines), count)
            cell.write(source, added, PARTITIONS)
            lines.extend(added)

        def write_until_some_are_counted() -> None:
            before = end_of(cell, sink, PARTITIONS)
            write(MANY_LINES)
            wait_until_written(cell, sink, PARTITIONS, before, first.shown)

        write(LINES)
        first = start_word_count(cell, source, sink)
        wait_for_counts(cell, first, sink, lines)

        write_until_some_are_counted()
        clients_cluster.kill(LEADER)
        write(LINES)
        wait_for_counts(cell, first, sink, lines)

        write_until_some_are_counted()
        first.kill()
        second = start_word_count(cell, source, sink)
        wait_for_counts(cell, second, sink, lines)
        second.end()

        counts = counts_of_words(cell.read(sink, PARTITIONS))
        expected = Counter(" ".join(lines).split())
        if guarantee == "exactly_once_v2":
            assert counts == {word: list(range(1, count + 1)) for word, count in expected.items()}
        else:
            assert {word for word, found in counts.items() if found[-1] >= expected[word]} == set(expected)


# Kafka Connect


def append(file: Path, first: int, count: int = LINES) -> list[str]:
    lines = [f"line {number}" for number in range(first, first + count)]
    with file.open("a") as end:
        end.write("".join(f"{line}\n" for line in lines))
    return lines


@pytest.mark.parametrize("feature", [release("at least once"), "exactly once source"])
def test_connect_copies_a_file(clients_cluster: LocalCluster, tmp_path: Path, feature: str) -> None:
    """From a file to a topic, and from there to a file. A broker is killed, and then the worker, each while it copies."""
    with recorded(CONNECT, feature, clients_cluster, tmp_path) as cell, contextlib.ExitStack() as stack:
        topic = cell.topic(first_leader=LEADER)
        source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
        is_exactly_once = feature == "exactly once source"
        settings: dict[str, str] = {
            "bootstrap.servers": clients_cluster.bootstrap_servers,
            "consumer.isolation.level": "read_committed",
            "exactly.once.source.support": "enabled" if is_exactly_once else "disabled",
        }
        worker = Worker(tmp_path, f"connect-{topic}", settings)
        stack.callback(worker.kill)

        def wait_until_copied(lines: Sequence[str]) -> None:
            def is_copied() -> bool:
                return sink.exists() and set(sink.read_text().splitlines()) >= set(lines)

            wait_for(is_copied, f"{len(lines)} lines are in the sink's file", worker.shown)

        lines: list[str] = []

        def append_until_some_are_written() -> None:
            before = end_of(cell, topic, 1)
            lines.extend(append(source, len(lines), MANY_LINES))
            wait_until_written(cell, topic, 1, before, worker.shown)

        lines += append(source, 0)
        worker.start()
        worker.create("source", {"connector.class": "FileStreamSource", "file": str(source), "topic": topic})
        worker.create("sink", {"connector.class": "FileStreamSink", "file": str(sink), "topics": topic})
        wait_until_copied(lines)

        append_until_some_are_written()
        clients_cluster.kill(LEADER)
        lines += append(source, len(lines))
        wait_until_copied(lines)

        append_until_some_are_written()
        worker.kill()
        lines += append(source, len(lines))
        worker.start()
        wait_until_copied(lines)
        for connector in ("source", "sink"):
            worker.wait_until_running(connector)
            worker.delete(connector)
        eventually(lambda: worker.connectors() == [], "both connectors are deleted", LIMIT_S)
        worker.stop()

        values = [record.value for record in cell.read(topic)]
        if is_exactly_once:
            assert values == lines
        else:
            assert list(dict.fromkeys(values)) == lines, "the first copies are in order"
        assert set(sink.read_text().splitlines()) == set(lines)
