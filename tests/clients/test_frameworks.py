"""Kafka Streams and Kafka Connect, unmodified, on three brokers, while a broker and the framework's own process are killed."""

from __future__ import annotations

import contextlib
from collections import Counter
from pathlib import Path

import pytest

from tests.clients.connect import Copying
from tests.clients.frameworks import (
    EXACTLY_ONCE,
    LEADER,
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
    wait_for_counts,
    wait_until_written,
)
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
        first = start_word_count(cell, source, sink, guarantee)
        wait_for_counts(cell, first, sink, lines)

        write_until_some_are_counted()
        cluster.kill(LEADER)
        write(LINES)
        wait_for_counts(cell, first, sink, lines)

        write_until_some_are_counted()
        first.kill()
        second = start_word_count(cell, source, sink, guarantee)
        wait_for_counts(cell, second, sink, lines)
        second.end()

        records = cell.read(sink, PARTITIONS)
        if guarantee == EXACTLY_ONCE:
            assert_counted_once(records, lines)
        else:
            counts, expected = counts_of_words(records), Counter(" ".join(lines).split())
            assert {word for word, found in counts.items() if found[-1] >= expected[word]} == set(expected)


# Kafka Connect


@pytest.mark.parametrize("feature", [release("at least once"), "exactly once source"])
def test_connect_copies_a_file(frameworks: Frameworks, cluster: LocalCluster, tmp_path: Path, feature: str) -> None:
    """From a file to a topic, and from there to a file. A broker is killed, and then the worker, each while it copies."""
    with recorded(frameworks.connect, feature, cluster, tmp_path) as cell, contextlib.ExitStack() as stack:
        topic = cell.topic(first_leader=LEADER)
        is_exactly_once = feature == "exactly once source"
        copying = Copying(cell, frameworks.jars, topic, is_exactly_once=is_exactly_once)
        stack.callback(copying.worker.kill)

        def append_until_some_are_written() -> None:
            before = end_of(cell, topic, 1)
            copying.append(MANY_LINES)
            wait_until_written(cell, topic, 1, before, copying.worker.shown)

        copying.append(LINES)
        copying.start()
        copying.wait_until_copied()

        append_until_some_are_written()
        cluster.kill(LEADER)
        copying.append(LINES)
        copying.wait_until_copied()

        append_until_some_are_written()
        copying.worker.kill()
        copying.append(LINES)
        copying.worker.start()
        copying.wait_until_copied()
        copying.stop()

        values = [record.value for record in cell.read(topic)]
        if is_exactly_once:
            assert values == copying.lines
        else:
            assert list(dict.fromkeys(values)) == copying.lines, "the first copies are in order"
        assert set(copying.copied()) == set(copying.lines)
