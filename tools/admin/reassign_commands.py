"""`ottla reassign generate|execute|verify|cancel|list`: the files, options and output of Kafka's tool, plus progress."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TypeVar

import click

from protocol.numbers import whole_number
from protocol.types import Assignment, TopicPartition
from tools.admin.cluster_view import ClusterView
from tools.admin.completion import complete_brokers
from tools.admin.connection import connect, connection_options, print_json
from tools.admin.input_files import STDIN, read_file, source_name
from tools.admin.naming import Where
from tools.admin.reassign_directories import DirectoryMoves
from tools.admin.reassign_plan import (
    Directories,
    Plan,
    PlanError,
    batches,
    check_plan,
    original_replicas,
    parse_directories,
    parse_plan,
    parse_topics,
    partitions_text,
    plan_json,
    plan_text,
    propose,
)
from tools.admin.reassign_report import batch_line, print_event, watching
from tools.admin.reassign_run import FAILED, Cleared, MoveOutcome, Reassignments, progress_json
from tools.admin.reassign_throttles import moves
from tools.admin.topic_views import ids_text
from tools.failures import INTERRUPTED, AdminError, errors_in_one_line
from tools.numbers import IntRange
from tools.terminal import echo, echo_lines

Command = TypeVar("Command", bound=Callable[..., None])


def plan_option(command: Command) -> Command:
    return click.option(
        "--reassignment-json-file",
        "file",
        required=True,
        metavar="FILE",
        help="the target replicas, as generate prints them; - is standard input",
    )(command)


def preserve_option(command: Command) -> Command:
    return click.option("--preserve-throttles", is_flag=True, help="keep the throttles")(command)


@click.group()
def reassign() -> None:
    """Move replicas to other brokers."""


@reassign.command()
@click.option(
    "--topics-to-move-json-file",
    "file",
    required=True,
    metavar="FILE",
    help='{"version":1,"topics":[{"topic":"orders"}]}; - is standard input',
)
@click.option(
    "--broker-list",
    required=True,
    metavar="1,2,3",
    help="the brokers that get the replicas",
    shell_complete=complete_brokers,
)
@click.option("--disable-rack-aware", is_flag=True, help="ignore racks")
@connection_options
def generate(
    file: str,
    broker_list: str,
    disable_rack_aware: bool,
    where: Where,
    output: str,
) -> None:
    """Propose a placement of topics on brokers. Changes nothing."""
    brokers = parse_broker_list(broker_list)
    with plan_errors():
        topics = parse_topics(read_file(file), source_name(file))
        admin = connect(where)
        cluster = admin.cluster()
        for topic in topics:
            if topic not in cluster.topics:
                raise AdminError(f"topic {topic!r} does not exist; `ottla topic list` shows the topics")
        racks = {node.id: node.rack for node in cluster.nodes}
        strangers = [broker for broker in brokers if broker not in racks]
        if strangers:
            raise AdminError(
                f"broker {ids_text(strangers)} is not live; --broker-list can name {ids_text(sorted(racks))}"
            )
        current = {
            TopicPartition(topic, view.partition): view.replicas for topic in topics for view in cluster.topics[topic]
        }
        proposed = propose(
            current,
            [(broker, racks[broker]) for broker in brokers],
            {topic: random.randrange(len(brokers)) for topic in topics},
            rack_aware=not disable_rack_aware,
        )
    if output == "json":
        print_json({"current": plan_json(current), "proposed": plan_json(proposed)})
    else:
        echo_lines(["Current partition replica assignment", plan_text(current), ""])
        echo_lines(["Proposed partition reassignment configuration", plan_text(proposed)])


@reassign.command()
@plan_option
@click.option("--throttle", type=IntRange(min=1), metavar="BYTES/S", help="limit for each broker")
@click.option(
    "--replica-alter-log-dirs-throttle",
    "directory_throttle",
    type=IntRange(min=1),
    metavar="BYTES/S",
    help="limit for each broker's moves between its log directories",
)
@click.option(
    "--additional", is_flag=True, help="add to the reassignments in progress; --throttle then applies to those too"
)
@click.option("--batch", type=IntRange(min=1), metavar="N", help="move N partitions at a time, and wait for each batch")
@click.option("--watch", is_flag=True, help="show progress until all moves are done, then remove the throttles")
@preserve_option
@connection_options
def execute(
    file: str,
    throttle: int | None,
    directory_throttle: int | None,
    additional: bool,
    batch: int | None,
    watch: bool,
    preserve_throttles: bool,
    where: Where,
    output: str,
) -> None:
    """Start the moves in a file. With --watch or --batch, wait until they are done."""
    with plan_errors(), connected(where) as reassignments:
        text = read_file(file)
        plan = parse_plan(text, source_name(file))
        directories = parse_directories(text, source_name(file))
        cluster = reassignments.admin.cluster()
        views = cluster.partitions()
        under_way = reassignments.admin.reassignments()
        if under_way and not additional:
            raise AdminError(
                f"{len(under_way)} partitions are already being reassigned (`ottla reassign list`): wait, cancel them, "
                "or use --additional to add these; --throttle then applies to all"
            )
        todo = check_plan(plan, views, cluster.live_brokers, under_way, may_be_done=bool(directories))
        is_watched = watch or batch is not None
        if directory_throttle is not None:
            movers = {replica.broker for replica in directories}
            reassignments.set_directory_throttle(movers, directory_throttle, cluster.live_brokers)
        directory_moves = DirectoryMoves(reassignments.admin)
        directory_moves.announce(directories)
        originals = {partition: original_replicas(views[partition], under_way.get(partition)) for partition in plan}
        if output == "text":
            echo_lines(["Current partition replica assignment", "", plan_text(originals), ""])
            echo("Save this to use as the --reassignment-json-file option during rollback")
        if throttle is not None:
            reassignments.set_throttles(moves(todo, originals, under_way), throttle, cluster.live_brokers)
        if output == "text":
            _echo_throttles(throttle, directory_throttle, is_watched=is_watched)
        refused: dict[TopicPartition, str] = {}
        outcomes: Sequence[MoveOutcome] = ()
        if is_watched and todo:
            # Moves between directories start next and need the throttles.
            keep_throttles = preserve_throttles or bool(directories)
            refused, outcomes = _execute_and_watch(reassignments, todo, originals, batch, file, keep_throttles, output)
        elif todo:
            refused = _execute(reassignments, todo, originals, throttle, under_way, output, brokers_too=not directories)
        # What was refused ends the command with an error, but only after all that was accepted is done and the throttles are removed.
        reasons = list(refused.values())
        there_will_be = {
            replica: target
            for replica, target in directories.items()
            if replica.partition not in refused or replica.broker in originals[replica.partition]
        }
        if there_will_be:
            reasons += _move_directories(directory_moves, there_will_be, output, is_watched=is_watched)
        if directories and is_watched:
            cleared = _clear(reassignments, plan, reassignments.admin.reassignments(), preserve_throttles)
            if output == "json":
                print_event("throttles", **_cleared_json(cleared))
            else:
                _echo_cleared(cleared)
        if reasons:
            raise AdminError(f"not started: {'; '.join(reasons)}")
        _exit_if_failed(outcomes)


def _echo_throttles(throttle: int | None, directory_throttle: int | None, *, is_watched: bool) -> None:
    """Prints Kafka's text."""
    if (throttle, directory_throttle) != (None, None) and not is_watched:
        echo("Warning: run `ottla reassign verify` when all moves are done: it removes the throttle.")
    if throttle is not None:
        echo(f"The inter-broker throttle limit was set to {throttle} B/s")
    if directory_throttle is not None:
        echo(f"The replica-alter-dir throttle limit was set to {directory_throttle} B/s")


def _move_directories(
    directory_moves: DirectoryMoves, directories: Directories, output: str, *, is_watched: bool
) -> list[str]:
    """Returns why replicas were refused."""
    refused = directory_moves.start(directories)
    started = {replica: target for replica, target in directories.items() if replica not in refused}
    outcomes = directory_moves.wait(started) if is_watched else directory_moves.outcomes(started)
    if output == "json":
        rows = [outcome.as_json() for outcome in outcomes]
        print_event("log_dirs", replicas=rows, refused={str(replica): why for replica, why in refused.items()})
    elif started:
        echo(f"Successfully started log directory moves for: {', '.join(map(str, started))}")
        for outcome in outcomes if is_watched else ():
            echo(outcome.sentence)
    return list(refused.values())


def _execute(
    reassignments: Reassignments,
    todo: Plan,
    originals: Mapping[TopicPartition, tuple[int, ...]],
    throttle: int | None,
    under_way: Mapping[TopicPartition, Assignment],
    output: str,
    *,
    brokers_too: bool,
) -> dict[TopicPartition, str]:
    """Starts the moves; returns the refused partitions with reasons.

    If all are refused, removes the throttles again, with `brokers_too` also those of the brokers.
    """
    refused = reassignments.start(todo)
    started = [partition for partition in todo if partition not in refused]
    if not started and not under_way and throttle is not None:
        reassignments.clear_throttles((partition.topic for partition in todo), brokers_too=brokers_too)
    if output == "json":
        print_json(
            {
                "current": plan_json(originals),
                "started": [str(partition) for partition in started],
                "refused": {str(partition): reason for partition, reason in refused.items()},
                "throttle": throttle,
            }
        )
    elif started:
        echo(batch_line(1, 1, started))
    return refused


def _execute_and_watch(
    reassignments: Reassignments,
    todo: Plan,
    originals: Mapping[TopicPartition, tuple[int, ...]],
    batch: int | None,
    file: str,
    keep_throttles: bool,
    output: str,
) -> tuple[dict[TopicPartition, str], Sequence[MoveOutcome]]:
    """Returns the refused partitions with reasons, and how all moves ended."""
    if output == "json":
        print_event("planned", current=plan_json(originals), todo=plan_json(todo))
    try:
        with watching(output) as report:
            refused = reassignments.run(batches(todo, batch), originals, report)
        outcomes, under_way = reassignments.outcomes(todo)
    except KeyboardInterrupt:
        again = "FILE" if file == STDIN else file
        later = "" if batch is None else " Later batches were not started: run the same execute again to start them."
        echo(
            f"\nThe move continues without this command.{later} `ottla reassign list` shows it; "
            f"`ottla reassign verify --reassignment-json-file {again}` also shows it, and removes the throttles at the end.",
            err=True,
        )
        sys.exit(INTERRUPTED)
    cleared = _clear(reassignments, todo, under_way, keep_throttles)
    if output == "json":
        print_event("finished", partitions=[outcome.as_json() for outcome in outcomes], **_cleared_json(cleared))
    else:
        _echo_outcomes(outcomes)
        _echo_cleared(cleared)
    return refused, outcomes


@reassign.command()
@plan_option
@preserve_option
@connection_options
def verify(file: str, preserve_throttles: bool, where: Where, output: str) -> None:
    """Show the state of the moves in a file. When nothing moves any more, remove the throttles."""
    with plan_errors(), connected(where) as reassignments:
        text = read_file(file)
        plan = parse_plan(text, source_name(file))
        outcomes, under_way = reassignments.outcomes(plan)
        directories = parse_directories(text, source_name(file))
        moved = DirectoryMoves(reassignments.admin).outcomes(directories)
        is_moving = any(outcome.is_under_way for outcome in moved)
        cleared = Cleared() if is_moving else _clear(reassignments, plan, under_way, preserve_throttles)
        if output == "json":
            replicas = {"replicas": [outcome.as_json() for outcome in moved]} if moved else {}
            rows = [outcome.as_json() for outcome in outcomes]
            print_json({"partitions": rows, **replicas, **_cleared_json(cleared)})
        else:
            echo("Status of partition reassignment:")
            _echo_outcomes(outcomes)
            for outcome in moved:
                echo(outcome.sentence)
            _echo_cleared(cleared)
        _exit_if_failed(outcomes)
        lost = [outcome for outcome in moved if not outcome.is_done and not outcome.is_under_way]
        if lost:
            raise AdminError(
                f"{len(lost)} of {len(moved)} replicas are not in the log directory named in the file and are not moving: "
                "run execute again, or correct the file"
            )


@reassign.command()
@plan_option
@preserve_option
@connection_options
def cancel(file: str, preserve_throttles: bool, where: Where, output: str) -> None:
    """Cancel the moves in a file that are not done; those partitions get their original replicas back."""
    with plan_errors(), connected(where) as reassignments:
        plan = parse_plan(read_file(file), source_name(file))
        before = reassignments.admin.reassignments()
        active = [partition for partition in plan if partition in before]
        answers = reassignments.admin.alter_reassignments(dict.fromkeys(active)) if active else {}
        refused = {partition: reason for partition, reason in answers.items() if reason is not None}
        cancelled = [partition for partition in active if partition not in refused]
        under_way = reassignments.admin.reassignments()
        left = {partition: move for partition, move in under_way.items() if partition not in cancelled}
        cleared = _clear(reassignments, plan, left, preserve_throttles)
        if output == "json":
            print_json({"cancelled": [str(partition) for partition in cancelled], **_cleared_json(cleared)})
        elif cancelled:
            echo(f"Successfully cancelled partition reassignments for: {partitions_text(cancelled)}")
        elif not active:
            echo("None of the specified partition reassignments are active.")
        if output == "text":
            _echo_cleared(cleared)
        _raise_refused(refused, "not cancelled")


@reassign.command("list")
@connection_options
def list_moves(where: Where, output: str) -> None:
    """List the reassignments in progress and how far they are."""
    with plan_errors(), connected(where) as reassignments:
        under_way = reassignments.admin.reassignments()
        cluster: ClusterView = reassignments.admin.cluster()
        progress = reassignments.progress(under_way, cluster)
    if output == "json":
        print_json(
            [
                {
                    "topic": partition.topic,
                    "partition": partition.partition,
                    "replicas": list(move.replicas),
                    "adding_replicas": list(move.adding),
                    "removing_replicas": list(move.removing),
                    **progress_json(progress.get(partition)),
                }
                for partition, move in under_way.items()
            ]
        )
        return
    if not under_way:
        echo("No partition reassignments found.")
        return
    echo("Current partition reassignments:")
    for partition, move in under_way.items():
        adding = f" adding: {ids_text(move.adding)}." if move.adding else ""
        removing = f" removing: {ids_text(move.removing)}." if move.removing else ""
        how_far = f" {progress[partition]}" if partition in progress else ""
        echo(f"{partition}: replicas: {ids_text(move.replicas)}.{adding}{removing}{how_far}")


def parse_broker_list(text: str) -> list[int]:
    """Parses `0,1,2`. Raises UsageError for a text that is not an id, and for an id given twice."""
    try:
        brokers = [whole_number(broker) for broker in text.split(",")]
    except ValueError:
        raise click.UsageError(f"--broker-list {text!r}: expected broker ids like 1,2,3.") from None
    if len(set(brokers)) != len(brokers):
        raise click.UsageError(f"--broker-list {text!r} names a broker twice.")
    return brokers


@contextmanager
def connected(where: Where) -> Iterator[Reassignments]:
    yield Reassignments(connect(where))


@contextmanager
def plan_errors() -> Iterator[None]:
    with errors_in_one_line():
        try:
            yield
        except PlanError as problem:
            raise AdminError(str(problem)) from None


def _clear(
    reassignments: Reassignments,
    plan: Plan,
    under_way: Mapping[TopicPartition, Assignment],
    preserve_throttles: bool,
) -> Cleared:
    """Removes throttles once nothing moves in the whole cluster, as Kafka's tool does: any move may need the brokers' rates."""
    if preserve_throttles or under_way:
        return Cleared()
    return reassignments.clear_throttles(partition.topic for partition in plan)


def _cleared_json(cleared: Cleared) -> dict[str, object]:
    return {"throttles_removed": {"topics": list(cleared.topics), "brokers": list(cleared.brokers)}}


def _echo_cleared(cleared: Cleared) -> None:
    if cleared.brokers:
        echo(f"Clearing broker-level throttles on brokers {ids_text(cleared.brokers)}")
    if cleared.topics:
        echo(f"Clearing topic-level throttles on topics {','.join(cleared.topics)}")
    if cleared.unreachable:
        echo(
            f"Warning: brokers {ids_text(cleared.unreachable)} did not answer: run verify again when they are up, so that "
            "their throttles are removed",
            err=True,
        )


def _echo_outcomes(outcomes: Sequence[MoveOutcome]) -> None:
    for outcome in outcomes:
        echo(outcome.sentence)


def _raise_refused(refused: Mapping[TopicPartition, str], outcome: str = "not started") -> None:
    if refused:
        raise AdminError(f"{outcome}: {'; '.join(refused.values())}")


def _exit_if_failed(outcomes: Sequence[MoveOutcome]) -> None:
    """Prints one line on stderr that says what to do, and exits with 1."""
    failed = [outcome.partition for outcome in outcomes if outcome.state == FAILED]
    if failed:
        raise AdminError(
            f"{len(failed)} of {len(outcomes)} partitions do not have the replicas in the file and are not moving: "
            "run execute again, or correct the file"
        )
