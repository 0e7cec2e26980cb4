"""`ottla group list|describe|reset-offsets|delete|delete-offsets`: Kafka's columns and text, for any Kafka cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

import click

from protocol.types import TopicPartition
from tools.admin.completion import complete_topics
from tools.admin.connection import connection_options, print_json
from tools.admin.naming import Where
from tools.failures import AdminError, errors_in_one_line
from tools.groups.group_selection import all_groups_option, connect_groups, every_group, group_options, named_groups
from tools.groups.group_views import (
    DEAD,
    STATES,
    TYPES,
    GroupView,
    OffsetRow,
    group_json,
    list_lines,
    listed_json,
    member_lines,
    offset_lines,
    offset_rows,
    remark,
    row_json,
    state_lines,
    table,
)
from tools.groups.reset_offsets_command import reset_offsets
from tools.groups.reset_plan import parse_selection, select_partitions
from tools.terminal import echo

if TYPE_CHECKING:
    from tools.groups.kafka_groups import KafkaGroups

ALL = "all"
SEE_LIST = "; `ottla group list` shows the groups"
OFFSETS, MEMBERS, STATE = "--offsets", "--members", "--state"


@click.group()
def group() -> None:
    """List, describe, reset and delete consumer groups."""


group.add_command(reset_offsets)


@group.command("list")
@click.option(
    "--state",
    "states",
    is_flag=False,
    flag_value=ALL,
    metavar="[STATE,...]",
    help="show states; with values, list only groups in these states",
)
@click.option(
    "--type",
    "types",
    is_flag=False,
    flag_value=ALL,
    metavar="[TYPE,...]",
    help="show types; with values, list only groups of these types",
)
@connection_options
def list_groups(states: str | None, types: str | None, where: Where, output: str) -> None:
    """List the consumer groups: all, or those of some states or types."""
    wanted_states, wanted_types = _words(states, STATES, "--state"), _words(types, TYPES, "--type")
    with errors_in_one_line():
        client = connect_groups(where)
        groups, problems = client.list_groups(wanted_states, wanted_types)
        if output == "json":
            print_json([listed_json(found) for found in groups])
        else:
            _print(list_lines(groups, with_type=types is not None, with_state=states is not None))
        if problems:
            raise AdminError(f"groups may be missing, because not all brokers answered: {'; '.join(problems)}")


@group.command()
@group_options
@all_groups_option
@click.option(
    "--offsets", "parts", flag_value=OFFSETS, multiple=True, help="show offsets and lag of each partition (default)"
)
@click.option("--members", "parts", flag_value=MEMBERS, multiple=True, help="show the members")
@click.option(
    "--state", "parts", flag_value=STATE, multiple=True, help="show the state, the coordinator and the assignor"
)
@click.option("--verbose", is_flag=True, help="show more columns: assignments, epochs")
@connection_options
def describe(
    group_names: Sequence[str],
    group_options: Sequence[str],
    all_groups: bool,
    parts: Sequence[str],
    verbose: bool,
    where: Where,
    output: str,
) -> None:
    """Describe groups: their offsets and lag, their members, or their state."""
    names = named_groups(group_names, group_options, all_groups=all_groups)
    if len(set(parts)) > 1:
        raise click.UsageError(f"use only one of {OFFSETS}, {MEMBERS} and {STATE}.")
    part = parts[0] if parts else OFFSETS
    with errors_in_one_line():
        client = connect_groups(where)
        described = client.describe_groups(every_group(client) if all_groups else names)
        present = [view for view in described if view.state != DEAD]
        rows = _offset_rows(client, present) if part == OFFSETS else {}
        if output == "json":
            print_json([_description_json(view, part, rows.get(view.group, [])) for view in present])
        else:
            _print_groups(present, part, rows, verbose=verbose)
        missing = [view.group for view in described if view.state == DEAD]
        if missing and not all_groups:
            raise AdminError("; ".join(f"Consumer group '{name}' does not exist" for name in missing) + SEE_LIST)


@group.command()
@group_options
@all_groups_option
@connection_options
def delete(
    group_names: Sequence[str],
    group_options: Sequence[str],
    all_groups: bool,
    where: Where,
    output: str,
) -> None:
    """Delete groups without members, with their offsets. If one cannot be deleted, the others still are."""
    names = named_groups(group_names, group_options, all_groups=all_groups)
    with errors_in_one_line():
        client = connect_groups(where)
        outcomes = client.delete_groups(every_group(client) if all_groups else names)
        deleted = [name for name, problem in outcomes.items() if problem is None]
        failures = [problem for problem in outcomes.values() if problem is not None]
        if output == "json":
            print_json({"deleted": deleted, "failures": failures})
        elif deleted:
            quoted = ", ".join(f"'{name}'" for name in deleted)
            echo(f"Deletion of requested consumer groups ({quoted}) was successful.")
        if failures:
            raise AdminError("; ".join(failures))


@group.command("delete-offsets")
@group_options
@click.option(
    "--topic",
    "topics",
    multiple=True,
    required=True,
    metavar="TOPIC[:0,1,...]",
    help="a topic, or some of its partitions; may be repeated",
    shell_complete=complete_topics,
)
@connection_options
def delete_offsets(
    group_names: Sequence[str],
    group_options: Sequence[str],
    topics: Sequence[str],
    where: Where,
    output: str,
) -> None:
    """Delete a group's committed offsets of topics to which no member is subscribed."""
    if len({*group_names, *group_options}) != 1:
        raise click.UsageError("give exactly one group.")
    (name,) = named_groups(group_names, group_options)
    with errors_in_one_line():
        selections = [parse_selection(topic) for topic in topics]
        client = connect_groups(where)
        counts = client.cluster().partition_counts
        # The topic may have been deleted: its offsets can be deleted all the same.
        for partition in client.committed_offsets([name])[name]:
            counts[partition.topic] = max(counts.get(partition.topic, 0), partition.partition + 1)
        partitions = sorted(select_partitions(selections, counts))
        outcomes = client.delete_group_offsets(name, partitions)
        _print_deletions(name, outcomes, output)
        failed: dict[str, list[str]] = {}
        for partition, outcome in sorted(outcomes.items()):
            if outcome is not None:
                failed.setdefault(outcome[1].rstrip("."), []).append(str(partition))
        if failed:
            reasons = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in failed.items())
            raise AdminError(f"some offsets of group {name!r} were not deleted: {reasons}")


def _print_deletions(name: str, outcomes: dict[TopicPartition, tuple[str, str] | None], output: str) -> None:
    if output == "json":
        statuses = [
            {"topic": partition.topic, "partition": partition.partition, "error": outcome and outcome[0]}
            for partition, outcome in sorted(outcomes.items())
        ]
        print_json({"group": name, "partitions": statuses})
        return
    rows = [
        (partition.topic, partition.partition, "Successful" if outcome is None else f"Error: {outcome[1]}")
        for partition, outcome in sorted(outcomes.items())
    ]
    _print(table(["TOPIC", "PARTITION", "STATUS"], rows, [30, 15, 15]))


def _offset_rows(client: KafkaGroups, groups: Sequence[GroupView]) -> dict[str, list[OffsetRow]]:
    """Group -> its rows. The log ends are fetched after the committed offsets: the other order could make a lag negative."""
    committed = client.committed_offsets([view.group for view in groups])
    partitions = {partition for offsets in committed.values() for partition in offsets}
    partitions |= {partition for view in groups for member in view.members for partition in member.assignment}
    ends = client.latest_offsets(partitions) if partitions else {}
    return {view.group: offset_rows(view, committed[view.group], ends) for view in groups}


def _description_json(view: GroupView, part: str, rows: Sequence[OffsetRow]) -> dict[str, object]:
    """The group with its state and members, and its `offsets` if they were requested."""
    described = group_json(view)
    if part == OFFSETS:
        described["offsets"] = [row_json(row) for row in rows]
    return described


def _print_groups(groups: Sequence[GroupView], part: str, rows: dict[str, list[OffsetRow]], *, verbose: bool) -> None:
    """One table per group, separated by empty lines."""
    for index, view in enumerate(groups):
        if index:
            echo()
        said = remark(view)
        if said is not None:
            echo(said, err=True)
        if part == OFFSETS:
            _print(offset_lines(rows[view.group], verbose=verbose))
        elif part == MEMBERS:
            _print(member_lines(view, verbose=verbose))
        else:
            _print(state_lines(view, verbose=verbose))


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        echo(line)


def _words(text: str | None, known: Sequence[str], option: str) -> list[str]:
    """Parses Kafka's comma-separated words in any case; an empty list means all. Raises UsageError."""
    if text is None or text == ALL:
        return []
    by_lower: dict[str, str] = {word.lower(): word for word in known}
    words = [word.strip().lower() for word in text.split(",")]
    for word in words:
        if word not in by_lower:
            raise click.UsageError(f"{option} {word!r} is unknown: use {', '.join(known)}.")
    return [by_lower[word] for word in words]
