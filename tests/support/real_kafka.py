"""A real Kafka to compare with: the jars that `make kafka` fetches, a JVM with them, and clusters of its brokers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import pytest

from tests.support.cli import Cli
from tools.bench.real_kafka import running
from tools.bench.real_kafka.jars import POM, QUICK_START, SOURCE_TREE, STAMP, KafkaJars, fetched_jars
from tools.cluster.ports import LOCAL_HOST

__all__ = ["FETCHED", "HOST", "JARS", "POM", "PROGRAMS", "QUICK_START", "REPOSITORY"]

REPOSITORY = Path(__file__).resolve().parents[2]
FETCHED = SOURCE_TREE / STAMP
JARS = KafkaJars(SOURCE_TREE / "libs")
PROGRAMS = REPOSITORY / "tests" / "kafka"
HOST = LOCAL_HOST


def skip_without_kafka(*, kraft: bool = False) -> KafkaJars:
    """The jars; without them, skips the test that runs, or all tests of a fixture."""
    jars = fetched_jars(kraft=kraft)
    if jars is None:
        pytest.skip("no real Kafka to compare with: run `make kafka`, which needs Maven and a JDK")
    return jars


def java_command(*arguments: str, logs: Literal["tool", "silent"] = "tool") -> list[str]:
    """A JVM that runs a class of Kafka's, or a source file that uses them."""
    return JARS.command(*arguments, logs=logs)


@contextlib.contextmanager
def running_kafka(
    directory: Path,
    brokers: int = 3,
    overrides: Mapping[str, str] | None = None,
    listeners: Mapping[str, Sequence[int]] = MappingProxyType({}),
) -> Iterator[Cli]:
    """A Kafka whose brokers have the ids from 0, and its ZooKeeper; `tools/bench/real_kafka/running.py` has the arguments."""
    with running.running_kafka(directory, JARS, brokers, overrides, listeners) as kafka:
        yield Cli(kafka.addresses[0], list(kafka.addresses), kafka.zookeeper)
