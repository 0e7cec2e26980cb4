"""Kafka Streams and Kafka Connect, unmodified, on three brokers, while a broker and the framework's own process are killed."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.clients.connect import Worker
from tests.clients.frameworks import (
    EXACTLY_ONCE,
    LEADER,
    LIMIT_S,
    OF_KAFKA_3_9,
    OF_KAFKA_4,
    PARTITIONS,
    Frameworks,
    assert_counted_once,
    counts_of_words,
    end_of,
    lines_of_words,
    recorded,
    start_word_count,
    wait_for,
    wait_for_counts,
    wait_until_written,
)
from tests.support.invariants import eventually
from tests.support.thorough import release
from tools.cluster.local_cluster import LocalCluster

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

LINES = 300
MANY_LINES = 3000


@pytest.fixture(params=[OF_KAFKA_3_9, OF_KAFKA_4], ids=["3.9", "4"])
def frameworks(request: pytest.FixtureRequest) -> Frameworks:
    found: Frameworks = request.param
    return found


@pytest.fixture
def cluster(request: pytest.FixtureRequest, frameworks: Frameworks) -> LocalCluster:
    """Brokers of the level of the frameworks."""
    found: LocalCluster = request.getfixturevalue(frameworks.cluster)
    return found


@pytest.mark.parametrize("guarantee", [release("at_least_once"), EXACTLY_ONCE])
def test_streams_count_words(frameworks: Frameworks, cluster: LocalCluster, tmp_path: Path, guarantee: str) -> None:
    """A broker is killed, and then the application, each while it counts. TXN: exactly_once_v2 writes each count of a word once."""
    with recorded(frameworks.streams, guarantee, cluster, tmp_path) as cell:
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
        cluster.kill(LEADER)
        write(LINES)
        wait_for_counts(cell, first, sink, lines)

        write_until_some_are_counted()
        first.kill()
        second = start_word_count(cell, source, sink)
        wait_for_counts(cell, second, sink, lines)
        second.end()

        records = cell.read(sink, PARTITIONS)
        if guarantee == EXACTLY_ONCE:
            assert_counted_once(records, lines)
        else:
            counts, expected = counts_of_words(records), Counter(" ".join(lines).split())
            assert {word for word, found in counts.items() if found[-1] >= expected[word]} == set(expected)


# Kafka Connect


def append(file: Path, first: int, count: int = LINES) -> list[str]:
    lines = [f"line {number}" for number in range(first, first + count)]
    with file.open("a") as end:
        end.write("".join(f"{line}\n" for line in lines))
    return lines


@pytest.mark.parametrize("feature", [release("at least once"), "exactly once source"])
def test_connect_copies_a_file(frameworks: Frameworks, cluster: LocalCluster, tmp_path: Path, feature: str) -> None:
    """From a file to a topic, and from there to a file. A broker is killed, and then the worker, each while it copies."""
    with recorded(frameworks.connect, feature, cluster, tmp_path) as cell, contextlib.ExitStack() as stack:
        topic = cell.topic(first_leader=LEADER)
        source, sink = tmp_path / "source.txt", tmp_path / "sink.txt"
        is_exactly_once = feature == "exactly once source"
        settings: dict[str, str] = {
            "bootstrap.servers": cluster.bootstrap_servers,
            "consumer.isolation.level": "read_committed",
            "exactly.once.source.support": "enabled" if is_exactly_once else "disabled",
        }
        worker = Worker(frameworks.jars, tmp_path, f"connect-{topic}", settings)
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
        cluster.kill(LEADER)
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
