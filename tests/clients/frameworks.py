"""Kafka Streams and Kafka Connect of two releases, and what their tests share: a count of words, and waiting for them."""

from __future__ import annotations

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec

from tests.clients import java, results
from tests.clients.cell import Cell, closing
from tests.clients.clients import Client
from tests.clients.conftest import is_in_sync
from tests.clients.peers import SHORT, Record
from tests.clients.program import Program
from tests.support.invariants import eventually
from tools.cluster.local_cluster import LocalCluster
from tools.faults.faults import heal
from tools.faults.processes import ProcessCluster

LEADER = 2
"""Leads the topics of a test while it is killed."""
PARTITIONS = 2
SOME = 50
WORDS = ("ananas", "banana", "cherry", "date", "elderberry", "fig", "grape")
WORDS_OF_A_LINE = 3
LIMIT_S = 120.0
EXACTLY_ONCE = "exactly_once_v2"
NO_SETTINGS: Mapping[str, str] = {}


@dataclass(frozen=True, eq=False, slots=True)
class Frameworks:
    """Of one release. `cluster`: the fixture with brokers of the same level."""

    jars: java.Jars
    cluster: str
    streams: Client
    connect: Client

    @classmethod
    def of(cls, jars: java.Jars, cluster: str, suffix: str = "") -> Frameworks:
        """`suffix`: of the names in docs/CLIENTS.md."""
        words = java.JavaProgram(java.PROGRAMS / "frameworks" / "WordCount.java", jars)
        streams = Client(
            f"Kafka Streams{suffix}",
            "Java",
            version=lambda: jars.version("kafka-streams"),
            command=words.command,
            missing=words.missing,
        )
        connect = Client(
            f"Kafka Connect{suffix}",
            "Java",
            version=lambda: jars.version("connect-runtime"),
            command=lambda: [],  # a `Worker` runs it
            missing=jars.missing,
        )
        return cls(jars, cluster, streams, connect)


OF_KAFKA_3_9 = Frameworks.of(java.FRAMEWORKS, "cluster_at_level_3_9")
OF_KAFKA_4 = Frameworks.of(java.FRAMEWORKS_OF_KAFKA_4, "cluster_at_level_4", ", newest")


@contextlib.contextmanager
def recorded(framework: Client, feature: str, cluster: LocalCluster, directory: Path) -> Iterator[Cell]:
    """Records what comes of the test; skips it without the framework; undoes every fault, also of a test that failed."""
    with results.recording_framework(framework, feature):
        try:
            with closing(Cell(feature, framework, cluster, directory)) as cell:
                yield cell
        finally:
            heal(ProcessCluster(cluster))
            cluster.wait_ready()
            eventually(lambda: is_in_sync(cluster), "all replicas are in sync after the test", LIMIT_S)


def wait_for(check: Callable[[], bool], what: str, shown: Callable[[], str]) -> None:
    """Waits until `check` is true; if it does not become true, fails with what the framework said."""
    try:
        eventually(check, what, LIMIT_S)
    except AssertionError as late:
        raise AssertionError(f"{late}\n{shown()}") from None


def wait_until_written(cell: Cell, topic: str, partitions: int, before: int, shown: Callable[[], str]) -> None:
    """Until the topic has some records more than `before`: the framework is at work, and has much left to do."""
    wait_for(lambda: end_of(cell, topic, partitions) > before + SOME, f"{SOME} more records in {topic}", shown)


def end_of(cell: Cell, topic: str, partitions: int, isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED) -> int:
    """The sum of the latest offsets, with READ_COMMITTED up to the first open transaction. Waits for leaders that are not paused."""
    wanted = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(partitions)}

    def offsets() -> list[int]:
        # A new one each time: it never forgets a leader that has died.
        admin = AdminClient({"bootstrap.servers": cell.cluster.bootstrap_servers, **SHORT, "log_level": 2})
        try:
            found = admin.list_offsets(wanted, isolation_level=isolation)
            return [future.result(LIMIT_S).offset for future in found.values()]
        except KafkaException:
            return []

    return sum(eventually(offsets, f"the leaders of {topic} say their latest offsets", LIMIT_S))


def lines_of_words(first: int, count: int) -> list[str]:
    """Lines of WORDS_OF_A_LINE words; `first` is the number of the first line."""
    return [
        " ".join(WORDS[(line * line + 3 * word) % len(WORDS)] for word in range(WORDS_OF_A_LINE))
        for line in range(first, first + count)
    ]


def application_of(source: str) -> str:
    """Also its group."""
    return f"words-{source}"


def start_word_count(
    cell: Cell, source: str, sink: str, guarantee: str = EXACTLY_ONCE, settings: Mapping[str, str] = NO_SETTINGS
) -> Program:
    return cell.start(
        "run",
        source=source,
        sink=sink,
        application=application_of(source),
        guarantee=guarantee,
        state=str(cell.directory / "state"),
        settings=dict(settings),
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


def assert_counted_once(records: Sequence[Record], lines: Sequence[str]) -> None:
    """Each count of each word is there once, in order."""
    expected = Counter(" ".join(lines).split())
    assert counts_of_words(records) == {word: list(range(1, count + 1)) for word, count in expected.items()}
