"""`ottla group reset-offsets`: shows the new offsets of a group, and sets them with `--execute`."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from protocol.types import TopicPartition
from tools.admin.completion import complete_topics
from tools.admin.connection import connection_options, print_json
from tools.admin.input_files import read_file, source_name
from tools.admin.naming import Where
from tools.failures import AdminError, errors_in_one_line
from tools.groups.group_selection import all_groups_option, connect_groups, every_group, group_options, named_groups
from tools.groups.group_views import DEAD, EMPTY
from tools.groups.reset_plan import (
    LogOffsets,
    ResetPlan,
    ResetRow,
    Target,
    TopicSelection,
    export_text,
    parse_reset_file,
    parse_selection,
    plan_reset,
    reset_json,
    reset_lines,
    select_partitions,
)
from tools.numbers import IntRange
from tools.points_in_time import NoTime, parse_datetime_ms, parse_duration_ms
from tools.terminal import echo, echo_data

if TYPE_CHECKING:
    from tools.groups.kafka_groups import KafkaGroups

DRY_RUN = "Nothing was changed; --execute sets these offsets."
Command = Callable[..., Any]
RESETTABLE = frozenset({EMPTY, DEAD})


@dataclass(frozen=True, slots=True)
class Request:
    """The target, and the partitions to reset (no `selections`: those with a committed offset)."""

    target: Target
    wanted: int | str | None
    """The offset, the shift, or the time in milliseconds since 1970; for FILE, its name."""
    selections: tuple[TopicSelection, ...]


def target_option(target: Target, **settings: Any) -> Callable[[Command], Command]:
    """The command takes all of these options in one parameter, `targets`: target -> value, of those that were given."""

    def add(context: click.Context, _: click.Parameter, value: Any) -> None:
        targets = context.params.setdefault("targets", {})
        if value not in (None, False):
            targets[target] = value

    return click.option(target.value, expose_value=False, callback=add, **settings)


@click.command("reset-offsets")
@group_options
@all_groups_option
@click.option(
    "--topic",
    "topics",
    multiple=True,
    metavar="TOPIC[:0,1,...]",
    help="a topic, or some of its partitions; may be repeated",
    shell_complete=complete_topics,
)
@click.option("--all-topics", is_flag=True, help="all partitions with a committed offset")
@target_option(Target.EARLIEST, is_flag=True, help="to the first existing record")
@target_option(Target.LATEST, is_flag=True, help="to the end of the log")
@target_option(Target.CURRENT, is_flag=True, help="to the committed offset, or the end if there is none")
@target_option(Target.OFFSET, type=IntRange(min=0), metavar="OFFSET", help="to this offset")
@target_option(Target.SHIFT, type=IntRange(), metavar="NUMBER", help="this many records forward; back if negative")
@target_option(
    Target.DATETIME,
    metavar="TIME",
    help="to the first record at or after this time, such as 2026-11-21T10:15:00.000 (UTC, or with +01:00)",
)
@target_option(
    Target.DURATION,
    metavar="DURATION",
    help="to the first record of the last period of this length, such as P1DT2H30M or 1d2h30m",
)
@target_option(
    Target.FILE, metavar="FILE", help="to the offsets in a csv file, as --export prints it; - is standard input"
)
@click.option("--dry-run", is_flag=True, help="show the new offsets without setting them (the default)")
@click.option("--execute", is_flag=True, help="set the offsets")
@click.option("--export", is_flag=True, help="print csv for --from-file")
@connection_options
def reset_offsets(
    group_names: Sequence[str],
    group_options: Sequence[str],
    all_groups: bool,
    topics: Sequence[str],
    all_topics: bool,
    targets: Mapping[Target, int | str],
    dry_run: bool,
    execute: bool,
    export: bool,
    where: Where,
    output: str,
) -> None:
    """Set the committed offsets of groups without members. Shows them first; --execute sets them.

    A group that does not exist is created.
    """
    names = named_groups(group_names, group_options, all_groups=all_groups)
    if dry_run and execute:
        raise click.UsageError("--dry-run and --execute cannot be used together.")
    if export and output == "json":
        raise click.UsageError("--export prints csv and cannot be combined with --format json.")
    target, wanted = _one_target(targets)
    scopes = bool(topics) + all_topics + (target is Target.FILE)
    if scopes != 1:
        raise click.UsageError("use exactly one of --topic, --all-topics and --from-file.")
    with errors_in_one_line():
        request = Request(target, wanted, tuple(parse_selection(topic) for topic in topics))
        client = connect_groups(where)
        chosen = every_group(client) if all_groups else names
        plans, failures = _plans(client, chosen, request)
        for plan in plans:
            for warning in plan.warnings:
                echo(f"Warning: {warning}", err=True)
        done = _execute(client, plans, failures) if execute else plans
        rows = [row for plan in done for row in plan.rows]
        _print_rows(rows, output, export=export, with_group=len(chosen) > 1 or all_groups, executed=execute)
        if failures:
            raise AdminError("; ".join(failures))


def _one_target(given: Mapping[Target, int | str]) -> tuple[Target, int | str | None]:
    """The target option and its value; a time or duration is parsed into a time in milliseconds. Raises UsageError."""
    if len(given) != 1:
        raise click.UsageError(f"use exactly one of {', '.join(target.value for target in Target)}.")
    ((target, value),) = given.items()
    if target in (Target.EARLIEST, Target.LATEST, Target.CURRENT):
        return target, None
    try:
        if target is Target.DATETIME:
            return target, parse_datetime_ms(str(value))
        if target is Target.DURATION:
            return target, max(0, int(time.time() * 1000) - parse_duration_ms(str(value)))
    except NoTime as problem:
        raise click.UsageError(f"{target.value}: {problem}.") from None
    return target, value


def _plans(client: KafkaGroups, names: Sequence[str], request: Request) -> tuple[list[ResetPlan], list[str]]:
    """The plan of each group that can be reset, and the reasons why others cannot. Raises AdminError."""
    counts = client.cluster().partition_counts
    selected = select_partitions(request.selections, counts)
    from_file = _offsets_from_file(request, names, counts)
    active = {view.group: view.state for view in client.describe_groups(names) if view.state not in RESETTABLE}
    failures = [
        f"Assignments can only be reset if the group '{name}' is inactive, but the current state is {state}; "
        "stop its consumers first"
        for name, state in active.items()
    ]
    idle = [name for name in names if name not in active]
    committed = {
        name: {partition: view.offset for partition, view in offsets.items()}
        for name, offsets in client.committed_offsets(idle).items()
    }
    partitions: dict[str, Collection[TopicPartition]] = {}
    for name in idle:
        try:
            partitions[name] = _partitions(name, request, selected, committed[name], from_file.get(name, {}))
        except AdminError as problem:
            failures.append(str(problem))
    logs = _log_offsets(client, {partition for found in partitions.values() for partition in found}, request)
    plans = []
    for name in partitions:
        wanted = from_file[name] if request.target is Target.FILE else request.wanted
        assert not isinstance(wanted, str)
        try:
            plans.append(plan_reset(name, partitions[name], request.target, wanted, committed[name], logs))
        except AdminError as problem:
            failures.append(str(problem))
    return plans, failures


def _offsets_from_file(
    request: Request, names: Sequence[str], counts: Mapping[str, int]
) -> dict[str, dict[TopicPartition, int]]:
    """Group -> partition -> offset; empty for other targets. Raises AdminError."""
    if request.target is not Target.FILE:
        return {}
    file = str(request.wanted)
    offsets = parse_reset_file(read_file(file), source_name(file), names)
    for partition in sorted({partition for found in offsets.values() for partition in found}):
        select_partitions([TopicSelection(partition.topic, (partition.partition,))], counts)
    return offsets


def _partitions(
    name: str,
    request: Request,
    selected: Sequence[TopicPartition],
    committed: Collection[TopicPartition],
    from_file: Collection[TopicPartition],
) -> Collection[TopicPartition]:
    """The partitions of this group to reset. Raises AdminError if there are none."""
    if request.target is Target.FILE:
        return from_file
    if selected:
        return selected
    if not committed:
        raise AdminError(f"group {name!r} has no committed offsets: choose topics with --topic")
    return committed


def _log_offsets(client: KafkaGroups, partitions: Collection[TopicPartition], request: Request) -> LogOffsets:
    """The log ends, which show the partitions with a leader, and the other offsets that the target needs."""
    latest = client.latest_offsets(partitions)
    if request.target in (Target.DATETIME, Target.DURATION):
        assert isinstance(request.wanted, int)
        at_time = client.offsets_at(partitions, request.wanted)
        # A leader may disappear between the two requests.
        return LogOffsets(
            latest={partition: end for partition, end in latest.items() if partition in at_time},
            at_time={partition: offset for partition, offset in at_time.items() if offset >= 0},
        )
    if request.target in (Target.LATEST, Target.CURRENT):
        return LogOffsets(latest=latest)
    earliest = client.earliest_offsets(partitions)
    return LogOffsets(earliest, {partition: end for partition, end in latest.items() if partition in earliest})


def _execute(client: KafkaGroups, plans: Sequence[ResetPlan], failures: list[str]) -> list[ResetPlan]:
    """The plans that were carried out; reasons for the others are added to `failures`."""
    done = []
    for plan in plans:
        offsets = {TopicPartition(row.topic, row.partition): row.new_offset for row in plan.rows}
        try:
            client.alter_offsets(plan.group, offsets)
        except AdminError as problem:
            failures.append(str(problem))
        else:
            done.append(plan)
    return done


def _print_rows(rows: Sequence[ResetRow], output: str, *, export: bool, with_group: bool, executed: bool) -> None:
    if export:
        echo_data(export_text(rows, with_group=with_group))
    elif output == "json":
        print_json({"executed": executed, "offsets": [reset_json(row) for row in rows]})
    elif rows:
        for line in reset_lines(rows):
            echo(line)
    if rows and not executed:
        echo(DRY_RUN, err=True)
