"""`ottla topic create|list|describe|alter|delete`: options, tables and wording of Kafka's tool, for any Kafka cluster."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from protocol.numbers import whole_number
from protocol.types import Assignment, TopicPartition
from tools.admin.completion import complete_topics
from tools.admin.config_values import TOPICS, ChangeError, Entity, merge_changes
from tools.admin.connection import connect, connection_options, print_json
from tools.admin.leaderless import causes
from tools.admin.naming import Where
from tools.admin.topic_names import topic_argument, topic_if_any
from tools.admin.topic_views import (
    PartitionFilter,
    TopicView,
    describe_json,
    describe_lines,
    header_line,
    partition_json,
    partition_line,
    partition_predicate,
    select_topics,
    with_moves,
)
from tools.failures import AdminError, TopicExists, errors_in_one_line
from tools.numbers import IntRange
from tools.terminal import echo

if TYPE_CHECKING:
    from tools.admin.kafka_admin import KafkaAdmin

FILTER_NAMES = (*(kind.value for kind in PartitionFilter), "--topics-with-overrides")
Command = TypeVar("Command", bound=Callable[..., object])


def partition_filter(kind: PartitionFilter, which: str) -> Callable[[Command], Command]:
    """The option of one filter; `which` says what it selects."""
    text = f"show only partitions {which}"
    return click.option(kind.value, "filters", flag_value=kind, multiple=True, help=text)


@click.group()
def topic() -> None:
    """Create, list, describe, alter and delete topics."""


@topic.command()
@topic_argument
@click.option("--partitions", type=IntRange(min=1), help="default: the brokers' num.partitions")
@click.option("--replication-factor", type=IntRange(1, 32767), help="default: the brokers' default.replication.factor")
@click.option("--replica-assignment", metavar="1:2:3,2:3:1,...", help="broker ids of each partition, the leader first")
@click.option("--config", "configs", multiple=True, metavar="KEY=VALUE", help="a topic config; may be repeated")
@click.option("--if-not-exists", is_flag=True, help="succeed if the topic exists")
@connection_options
def create(
    topic_name: str | None,
    topic_option: str | None,
    partitions: int | None,
    replication_factor: int | None,
    replica_assignment: str | None,
    configs: Sequence[str],
    if_not_exists: bool,
    where: Where,
    output: str,
) -> None:
    """Create a topic."""
    name = topic_if_any(topic_name, topic_option)
    if name is None:
        raise click.UsageError("missing topic name.")
    assignment = None if replica_assignment is None else parse_replica_assignment(replica_assignment)
    if assignment is not None and (partitions is not None or replication_factor is not None):
        raise click.UsageError("--replica-assignment cannot be combined with --partitions or --replication-factor.")
    overrides = parse_configs(configs)
    created = True
    with errors_in_one_line():
        admin = connect(where)
        admin.cluster()
        try:
            admin.create_topic(
                name,
                partitions=partitions,
                replication_factor=replication_factor,
                replica_assignment=assignment,
                configs=overrides,
            )
        except TopicExists:
            if not if_not_exists:
                raise
            created = False
    if output == "json":
        print_json({"topic": name, "created": created})
    else:
        echo(f"Created topic {name}." if created else f"Topic {name} already exists.")


@topic.command("list")
@topic_argument
@click.option("--exclude-internal", is_flag=True, help="leave out internal topics")
@connection_options
def list_topics(
    topic_name: str | None,
    topic_option: str | None,
    exclude_internal: bool,
    where: Where,
    output: str,
) -> None:
    """List topics: all, or those that a regular expression matches."""
    patterns = _patterns(topic_if_any(topic_name, topic_option))
    with errors_in_one_line():
        counts = connect(where).cluster().partition_counts
    names = _select(counts, patterns, exclude_internal)
    if output == "json":
        print_json([{"topic": name, "partition_count": counts[name]} for name in names])
    else:
        for name in names:
            echo(name)


@topic.command()
@topic_argument
@partition_filter(PartitionFilter.UNDER_REPLICATED, "with a replica that is not in sync")
@partition_filter(PartitionFilter.UNAVAILABLE, "without a live leader: no reads, no writes")
@partition_filter(
    PartitionFilter.UNDER_MIN_ISR, "with fewer replicas in sync than min.insync.replicas: no writes with acks=all"
)
@partition_filter(
    PartitionFilter.AT_MIN_ISR,
    "with exactly min.insync.replicas in sync: no writes with acks=all if one more replica fails",
)
@click.option("--topics-with-overrides", is_flag=True, help="show only topics with their own configs, one line each")
@click.option("--exclude-internal", is_flag=True, help="leave out internal topics")
@click.option("--if-exists", is_flag=True, help="succeed if the topic does not exist")
@connection_options
def describe(
    topic_name: str | None,
    topic_option: str | None,
    filters: Sequence[PartitionFilter],
    topics_with_overrides: bool,
    exclude_internal: bool,
    if_exists: bool,
    where: Where,
    output: str,
) -> None:
    """Describe topics: all, or those that a regular expression matches."""
    if len(filters) + topics_with_overrides > 1:
        raise click.UsageError(f"use only one of {', '.join(FILTER_NAMES)}.")
    patterns = _patterns(topic_if_any(topic_name, topic_option))
    with errors_in_one_line():
        admin = connect(where)
        cluster = admin.cluster()
        names = _select(cluster.partition_counts, patterns, exclude_internal)
        if patterns and not names and not if_exists:
            raise AdminError(f"topic {','.join(patterns)!r} does not exist; `ottla topic list` shows the topics")
        moves = _moves(admin)
        views = [with_moves(view, moves) for view in admin.describe_topics(names)]
        shown = {TopicPartition(view.topic, row.partition): row for view in views for row in view.partitions}
        why = causes(shown, cluster.live_brokers, admin)
    if topics_with_overrides:
        _print_overridden(views, output)
    elif filters:
        _print_partitions(views, filters[0], cluster.live_brokers, output)
    elif output == "json":
        print_json([describe_json(view, why) for view in views])
    else:
        for view in views:
            for line in describe_lines(view, why):
                echo(line)


@topic.command()
@topic_argument
@click.option("--partitions", type=IntRange(min=1), help="the new count, above the current one")
@click.option(
    "--replica-assignment",
    metavar="1:2:3,2:3:1,...",
    help="broker ids of each partition, old and new, the leader first",
)
@click.option("--config", "configs", multiple=True, metavar="KEY=VALUE", help="a config to set; may be repeated")
@click.option("--delete-config", "removals", multiple=True, metavar="KEY", help="a config to remove; may be repeated")
@click.option("--if-exists", is_flag=True, help="succeed if the topic does not exist")
@connection_options
def alter(
    topic_name: str | None,
    topic_option: str | None,
    partitions: int | None,
    replica_assignment: str | None,
    configs: Sequence[str],
    removals: Sequence[str],
    if_exists: bool,
    where: Where,
    output: str,
) -> None:
    """Add partitions to a topic, or change its configs."""
    name = topic_if_any(topic_name, topic_option)
    if name is None:
        raise click.UsageError("missing topic name.")
    assignment = None if replica_assignment is None else parse_replica_assignment(replica_assignment)
    total = partitions if partitions is not None else None if assignment is None else len(assignment)
    if total is not None and assignment is not None and total != len(assignment):
        raise click.UsageError(f"--replica-assignment has {len(assignment)} partitions, --partitions is {total}.")
    try:
        changes = merge_changes(parse_configs(configs), removals)
    except ChangeError as problem:
        raise click.UsageError(f"{problem}.") from None
    if total is None and not changes:
        raise click.UsageError(
            "nothing to change: use --partitions, --replica-assignment, --config or --delete-config."
        )
    with errors_in_one_line():
        admin = connect(where)
        present = admin.cluster().partition_counts.get(name)
        if present is None and not if_exists:
            raise AdminError(f"topic {name!r} does not exist; `ottla topic list` shows the topics")
        if present is not None:
            check_partition_count(name, present, total)
            # Config changes come first, because they can be undone: added partitions cannot be removed.
            if changes:
                admin.alter_configs(Entity(TOPICS, name), changes)
            if total is not None:
                admin.create_partitions(name, total, None if assignment is None else assignment[present:])
    if output == "json":
        count = present if total is None else total
        print_json({"topic": name, "altered": present is not None, "partition_count": present and count})
    else:
        echo(f"Altered topic {name}." if present is not None else f"Topic {name} does not exist.")


@topic.command()
@click.argument("topic_names", nargs=-1, metavar="TOPIC...", shell_complete=complete_topics)
@click.option(
    "--topic",
    "topic_options",
    multiple=True,
    metavar="TOPIC[,TOPIC...]",
    help="a topic (Kafka's form); may be repeated",
    shell_complete=complete_topics,
)
@click.option("--if-exists", is_flag=True, help="succeed if the topic does not exist")
@connection_options
def delete(
    topic_names: Sequence[str],
    topic_options: Sequence[str],
    if_exists: bool,
    where: Where,
    output: str,
) -> None:
    """Delete topics with all their records. If one cannot be deleted, the others still are."""
    given = (name for text in (*topic_names, *topic_options) for name in text.split(","))
    names = list(dict.fromkeys(name for name in given if name))
    if not names:
        raise click.UsageError("missing topic names.")
    deleted: list[str] = []
    missing: list[str] = []
    failures: list[str] = []
    with errors_in_one_line():
        admin = connect(where)
        admin.cluster()
        for name in names:
            try:
                (deleted if admin.delete_topic(name) else missing).append(name)
            except AdminError as problem:
                failures.append(str(problem))
        if output == "json":
            print_json({"deleted": deleted, "missing": missing, "failures": failures})
        else:
            for name in deleted:
                echo(f"Deleted topic {name}.")
            for name in missing if if_exists else ():
                echo(f"Topic {name} does not exist.")
        if missing and not if_exists:
            failures.append(f"topic {', '.join(missing)} does not exist; `ottla topic list` shows the topics")
        if failures:
            raise AdminError("; ".join(failures))


def check_partition_count(topic: str, present: int, total: int | None) -> None:
    """Checks that the count grows: partitions cannot be removed. Raises AdminError."""
    if total is not None and total <= present:
        verb = "already has" if total == present else "has"
        raise AdminError(
            f"topic {topic!r} {verb} {present} partitions and cannot get fewer: use --partitions of at least "
            f"{present + 1}"
        )


def parse_replica_assignment(text: str) -> list[list[int]]:
    """`1:2:3,2:3:1` -> [[1, 2, 3], [2, 3, 1]]. Raises UsageError for duplicate or unequal replicas, as Kafka does."""
    try:
        assignment = [[whole_number(broker_id) for broker_id in replicas.split(":")] for replicas in text.split(",")]
    except ValueError:
        raise click.UsageError(f"--replica-assignment {text!r}: expected broker ids like 1:2:3,2:3:1.") from None
    for partition, replicas in enumerate(assignment):
        if len(set(replicas)) != len(replicas):
            raise click.UsageError(f"--replica-assignment: partition {partition} names a broker twice.")
        if len(replicas) != len(assignment[0]):
            raise click.UsageError(
                f"--replica-assignment: partition {partition} has {len(replicas)} replicas, partition 0 has "
                f"{len(assignment[0])}: all need the same number."
            )
    return assignment


def parse_configs(pairs: Sequence[str]) -> dict[str, str]:
    """`["k=v", ...]` -> {k: v}. Raises UsageError for a pair without key or `=`."""
    configs = {}
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key.strip():
            raise click.UsageError(f"--config {pair!r}: expected KEY=VALUE.")
        configs[key.strip()] = value.strip()
    return configs


def _patterns(text: str | None) -> list[str]:
    """Parses Kafka's comma-separated list of regular expressions. Raises UsageError for an invalid one."""
    patterns = [pattern for pattern in (text or "").split(",") if pattern]
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as problem:
            raise click.UsageError(f"topic {pattern!r} is not a regular expression: {problem}.") from None
    return patterns


def _select(names: Any, patterns: Sequence[str], exclude_internal: bool) -> list[str]:
    return select_topics(names, patterns, exclude_internal=exclude_internal)


def _moves(admin: KafkaAdmin) -> Mapping[TopicPartition, Assignment]:
    """The reassignments in progress; empty if the cluster does not answer, for example without a controller."""
    try:
        return admin.reassignments(patience_s=0)
    except AdminError:
        return {}


def _print_overridden(views: Sequence[TopicView], output: str) -> None:
    _require_configs(views, "--topics-with-overrides")
    overridden = [view for view in views if view.has_overrides]
    if output == "json":
        print_json([{**describe_json(view, {}), "partitions": []} for view in overridden])
        return
    for view in overridden:
        echo(header_line(view))


def _print_partitions(views: Sequence[TopicView], kind: PartitionFilter, live: frozenset[int], output: str) -> None:
    """Prints only the partitions that match the filter, without header lines, as Kafka does."""
    if kind.needs_configs:
        _require_configs(views, kind.value)
    matches = partition_predicate(kind, live)
    found = [(view, partition) for view in views for partition in view.partitions if matches(view, partition)]
    if output == "json":
        print_json([{"topic": view.topic, **partition_json(partition)} for view, partition in found])
        return
    for view, partition in found:
        echo(partition_line(view, partition))


def _require_configs(views: Sequence[TopicView], option: str) -> None:
    if any(view.configs is None for view in views):
        raise click.ClickException(
            f"{option} needs topic configs, but this cluster does not support DescribeConfigs; leave the option out"
        )
