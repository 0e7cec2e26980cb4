"""Reassignments in Kafka's JSON format: parse, write, propose and check them. Pure.

A plan maps each partition to its target replicas, the preferred leader first.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from protocol.replica_placement import PlacementError, place
from protocol.types import Assignment, TopicPartition
from tools.admin.topic_views import PartitionView, ids_text

Plan = dict[TopicPartition, tuple[int, ...]]

VERSION = 1
ANY_LOG_DIRECTORY = "any"
PROBLEMS_SHOWN_MAX = 3


class Replica(NamedTuple):
    """A partition on one broker."""

    partition: TopicPartition
    broker: int

    def __str__(self) -> str:
        return f"{self.partition}-{self.broker}"


class Place(NamedTuple):
    """The directory of a replica, and the one that receives a copy; None if there is none."""

    current: str | None = None
    future: str | None = None


Directories = dict[Replica, str]


class PlanError(ValueError):
    """A file or plan that cannot be carried out; the message says where and why."""


def parse_plan(text: str, source: str) -> Plan:
    """Parses a `--reassignment-json-file`, in its order. Raises PlanError that starts with `source` and says where."""
    return {partition: replicas for partition, replicas, _ in plan_rows(text, source)}


def plan_rows(text: str, source: str) -> list[tuple[TopicPartition, tuple[int, ...], tuple[str, ...]]]:
    """Parses a `--reassignment-json-file`: (partition, replicas, for each replica its log directory or `any`). Raises PlanError."""
    rows = _rows(text, source, "partitions", '{"topic": "orders", "partition": 0, "replicas": [1, 2, 3]}')
    found: dict[TopicPartition, tuple[tuple[int, ...], tuple[str, ...]]] = {}
    for index, row in enumerate(rows):
        where = f"{source}: partitions[{index}]"
        partition = TopicPartition(_text(row, "topic", where), _number(row, "partition", where))
        replicas = _replicas(row, f"{where} ({partition})")
        if partition in found:
            raise PlanError(f"{where}: {partition} is listed twice")
        found[partition] = replicas, _log_directories(row.get("log_dirs"), replicas, f"{where} ({partition})")
    return [(partition, replicas, directories) for partition, (replicas, directories) in found.items()]


def parse_directories(text: str, source: str) -> Directories:
    """The replicas for which the file names a directory. Raises PlanError."""
    return {
        Replica(partition, broker): directory
        for partition, replicas, directories in plan_rows(text, source)
        for broker, directory in zip(replicas, directories, strict=True)
        if directory != ANY_LOG_DIRECTORY
    }


def parse_topics(text: str, source: str) -> list[str]:
    """Parses a `--topics-to-move-json-file`. Raises PlanError that starts with `source` and says where."""
    rows = _rows(text, source, "topics", '{"topic": "orders"}')
    topics = [_text(row, "topic", f"{source}: topics[{index}]") for index, row in enumerate(rows)]
    for topic in topics:
        if topics.count(topic) > 1:
            raise PlanError(f"{source}: topic {topic} is listed twice")
    return topics


def parse_partitions(text: str, source: str) -> list[TopicPartition]:
    """Parses an election's `--path-to-json-file`. Raises PlanError that starts with `source` and says where."""
    rows = _rows(text, source, "partitions", '{"topic": "orders", "partition": 0}')
    partitions = []
    for index, row in enumerate(rows):
        where = f"{source}: partitions[{index}]"
        partition = TopicPartition(_text(row, "topic", where), _number(row, "partition", where))
        if partition in partitions:
            raise PlanError(f"{where}: {partition} is listed twice")
        partitions.append(partition)
    return partitions


def plan_json(plan: Mapping[TopicPartition, Sequence[int]]) -> dict[str, Any]:
    """The JSON value of a `--reassignment-json-file`."""
    return {
        "version": VERSION,
        "partitions": [
            {
                "topic": partition.topic,
                "partition": partition.partition,
                "replicas": list(replicas),
                "log_dirs": [ANY_LOG_DIRECTORY] * len(replicas),
            }
            for partition, replicas in plan.items()
        ],
    }


def plan_text(plan: Mapping[TopicPartition, Sequence[int]]) -> str:
    """The plan in one line, as Kafka's tool prints it."""
    return json.dumps(plan_json(plan), separators=(",", ":"))


def _rows(text: str, source: str, name: str, example: str) -> list[dict[str, Any]]:
    """The objects in the list `name`, which must not be empty."""
    try:
        value = json.loads(text)
    except json.JSONDecodeError as problem:
        raise PlanError(f"{source}: line {problem.lineno}, column {problem.colno}: not JSON: {problem.msg}") from None
    except RecursionError:
        raise PlanError(f"{source}: not JSON: nested too deeply") from None
    except ValueError as problem:  # a number of thousands of digits
        raise PlanError(f"{source}: not JSON: {problem}") from None
    form = f'expected {{"version": 1, "{name}": [{example}, ...]}}'
    if not isinstance(value, dict):
        raise PlanError(f"{source}: {form}")
    version = value.get("version", VERSION)
    if version != VERSION or isinstance(version, bool):
        raise PlanError(f"{source}: unknown version {json.dumps(version)}: use {VERSION}")
    rows = value.get(name)
    if not isinstance(rows, list):
        raise PlanError(f"{source}: {form}")
    if not rows:
        raise PlanError(f"{source}: the list of {name} is empty")
    for index, row in enumerate(rows):
        if not isinstance(row, dict):
            raise PlanError(f"{source}: {name}[{index}] is not an object: expected {example}")
    return rows


def _text(row: Mapping[str, Any], key: str, where: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value:
        raise PlanError(f"{where}: {key} must be a name, found {json.dumps(value)}")
    return value


def _number(row: Mapping[str, Any], key: str, where: str) -> int:
    value = row.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise PlanError(f"{where}: {key} must be a whole number of at least 0, found {json.dumps(value)}")
    return value


def _replicas(row: Mapping[str, Any], where: str) -> tuple[int, ...]:
    replicas = row.get("replicas")
    if not isinstance(replicas, list) or not replicas:
        raise PlanError(f"{where}: replicas must be a list of broker ids, found {json.dumps(replicas)}")
    for broker in replicas:
        if isinstance(broker, bool) or not isinstance(broker, int) or broker < 0:
            raise PlanError(f"{where}: {json.dumps(broker)} is not a broker id")
        if replicas.count(broker) > 1:
            raise PlanError(f"{where}: broker {broker} is listed twice in the replicas {ids_text(replicas)}")
    return tuple(replicas)


def _log_directories(value: Any, replicas: Sequence[int], where: str) -> tuple[str, ...]:
    if value is None:
        return (ANY_LOG_DIRECTORY,) * len(replicas)
    if not isinstance(value, list) or len(value) != len(replicas):
        raise PlanError(f"{where}: log_dirs must have one entry for each of the {len(replicas)} replicas")
    for directory in value:
        if not isinstance(directory, str) or (directory != ANY_LOG_DIRECTORY and not directory.startswith("/")):
            raise PlanError(f'{where}: {json.dumps(directory)} in log_dirs is neither "any" nor an absolute path')
    return tuple(value)


def propose(
    current: Mapping[TopicPartition, Sequence[int]],
    brokers: Sequence[tuple[int, str | None]],
    starts: Mapping[str, int],
    *,
    rack_aware: bool = True,
) -> Plan:
    """Places each topic of `current` on `brokers`, (id, rack), and keeps its replication factor.

    `starts` has the `start_index` and `shift` of `place` for each topic. Raises PlanError if only some brokers have a rack, and if
    there are too few brokers.
    """
    racks = {rack for _, rack in brokers}
    if rack_aware and None in racks and len(racks) > 1:
        without = ids_text(sorted(broker for broker, rack in brokers if rack is None))
        raise PlanError(f"brokers {without} have no rack, but others do: use --disable-rack-aware to ignore racks")
    usable = list(brokers) if rack_aware else [(broker, None) for broker, _ in brokers]
    plan: Plan = {}
    for topic in dict.fromkeys(partition.topic for partition in current):
        numbers = sorted(partition.partition for partition in current if partition.topic == topic)
        factor = len(current[TopicPartition(topic, numbers[0])])
        start = starts[topic]
        try:
            placed = place(usable, numbers[-1] + 1, factor, start_index=start, shift=start)
        except PlacementError as problem:
            raise PlanError(f"topic {topic}: {problem}: name more brokers in --broker-list") from None
        plan |= {TopicPartition(topic, number): placed[number] for number in numbers}
    return plan


def original_replicas(partition: PartitionView, under_way: Assignment | None) -> tuple[int, ...]:
    """The replicas without those that a reassignment is adding: the target of a rollback."""
    adding = () if under_way is None else under_way.adding
    return tuple(broker for broker in partition.replicas if broker not in adding)


def check_plan(
    plan: Mapping[TopicPartition, Sequence[int]],
    partitions: Mapping[TopicPartition, PartitionView],
    live_brokers: Collection[int],
    under_way: Mapping[TopicPartition, Assignment],
    *,
    may_be_done: bool = False,
) -> Plan:
    """The part of the plan that is not done yet. A new replica must be on a live broker; an existing one may stay on a dead broker.

    Raises PlanError for an impossible move, and, unless `may_be_done`, if nothing is left to do.
    """
    known_topics = {partition.topic for partition in partitions}
    known_brokers = {broker for view in partitions.values() for broker in view.replicas} | set(live_brokers)
    problems: list[str] = []
    for partition, replicas in plan.items():
        view = partitions.get(partition)
        if partition.topic not in known_topics:
            problems.append(f"topic {partition.topic} does not exist")
        elif view is None:
            problems.append(f"{partition} does not exist")
        else:
            for broker in replicas:
                if broker not in known_brokers:
                    problems.append(f"{partition}: broker {broker} is unknown (live: {ids_text(sorted(live_brokers))})")
                elif broker not in live_brokers and broker not in view.replicas:
                    problems.append(f"{partition}: broker {broker} is down and cannot get a replica")
    if problems:
        raise PlanError(_shortened(list(dict.fromkeys(problems))))
    todo = {
        partition: tuple(replicas)
        for partition, replicas in plan.items()
        if partition in under_way or partitions[partition].replicas != tuple(replicas)
    }
    if not todo and not may_be_done:
        raise PlanError("the partitions already have these replicas: nothing to move")
    return todo


def _shortened(problems: Sequence[str]) -> str:
    more = len(problems) - PROBLEMS_SHOWN_MAX
    return "; ".join(problems[:PROBLEMS_SHOWN_MAX]) + (f"; and {more} more" if more > 0 else "")


def batches(plan: Mapping[TopicPartition, tuple[int, ...]], size: int | None) -> list[Plan]:
    """The plan in its order, `size` partitions at a time; one batch without a size."""
    rows = list(plan.items())
    step = max(len(rows), 1) if size is None else size
    return [dict(rows[start : start + step]) for start in range(0, len(rows), step)]


def partitions_text(partitions: Iterable[TopicPartition]) -> str:
    """`orders-0,orders-1`."""
    return ",".join(str(partition) for partition in partitions)
