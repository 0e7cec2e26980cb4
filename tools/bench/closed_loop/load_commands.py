"""`ottla bench produce|consume|end-to-end|groups`: loads for any Kafka address."""

from __future__ import annotations

import contextlib
import functools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from tools.admin.connection import connection_options, print_json
from tools.admin.naming import Where
from tools.bench.closed_loop.load import FETCH_VERSION, FETCH_VERSIONS, PRODUCE_VERSION, PRODUCE_VERSIONS, Load
from tools.bench.closed_loop.measurement_output import ProgressLine, as_json, as_lines
from tools.failures import errors_in_one_line
from tools.group_protocols import CLASSIC, GROUP_PROTOCOLS
from tools.interrupts import termination_as_interrupt
from tools.numbers import FloatRange, IntRange
from tools.terminal import echo, echo_lines

if TYPE_CHECKING:
    from tools.bench.closed_loop.target import Target

Command = TypeVar("Command", bound=Callable[..., None])
ACKS = {"1": 1, "all": -1}
PRODUCE_BATCH, CONSUME_BATCH = 1, 16 * 1024
ONLY_PRODUCE = ("acks", "partitions_per_request", "idle_connections")
LATENCIES_OF = {"produce": "records", "consume": "calls", "end-to-end": "batches"}
"""What the latencies of librdkafka are of; those of raw requests are of requests, and end to end of batches."""


@dataclass(frozen=True, slots=True)
class Run:
    """What all loads share."""

    where: Where
    output: str
    seconds: float
    warm_up_s: float

    @property
    def target(self) -> Target:
        """Raises BenchError, and what `Where.servers` raises."""
        from tools.bench.closed_loop.target import Target  # imported when needed, so that `--help` is fast

        return Target.of(self.where.servers(), self.where.command_config)


def options(*chosen: Any) -> Callable[[Command], Command]:
    """These options, then those of every load. The command gets its own by the names of `Load`'s fields, and the others as `run`."""

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def with_run(*, where: Where, output: str, seconds: float, warm_up_s: float, **of_load: Any) -> None:
            command(run=Run(where, output, seconds, warm_up_s), **of_load)

        decorated: Any = connection_options(with_run)
        for option in reversed((*chosen, *OF_EVERY_LOAD)):
            decorated = option(decorated)
        return decorated  # type: ignore[no-any-return]

    return decorate


def number(name: str, field: str, default: int | None, most: int, text: str, least: int = 1) -> Any:
    """An option that takes a whole number."""
    kind = IntRange(least, most)
    return click.option(name, field, type=kind, default=default, show_default=default is not None, help=text)


def client(*names: str) -> Any:
    text = "requests that are encoded already, or an application's client"
    return click.option("--client", type=click.Choice(names), default="raw", show_default=True, help=text)


def batch_size(default: int, text: str) -> Any:
    help_text = f"bytes of the values in a batch  [default: {text}]"
    return click.option("--batch-size", type=IntRange(1, 100_000_000), default=default, help=help_text)


def api_version(versions: range, default: int) -> Any:
    text = f"version of the raw requests  [default: {default}]"
    return number("--api-version", "api_version", None, versions[-1], text, versions[0])


OF_EVERY_LOAD = (
    click.option(
        "--seconds", type=FloatRange(min=0.1, max=86_400), default=10.0, show_default=True, help="measured time"
    ),
    click.option(
        "--warm-up-seconds", "warm_up_s", type=FloatRange(min=0, max=3600), default=1.0, show_default=True,
        help="time before it, which is not counted",
    ),
)  # fmt: skip
CLIENT = client("raw", "librdkafka")
ACKNOWLEDGED = click.option(
    "--acks", type=click.Choice(list(ACKS)), default="all", show_default=True, help="required acknowledgements",
    callback=lambda _context, _option, value: ACKS[value],
)  # fmt: skip
CONNECTIONS = number("--connections", "connections", 1, 100_000, "connections (librdkafka: clients)")
PAIRS = number(
    "--connections", "connections", 1, 10_000, "pairs of a producer and a consumer, each with its own partition"
)
IN_FLIGHT = number("--in-flight", "in_flight", 1, 1000, "unanswered requests of each connection")
RECORD_SIZE = number("--record-size", "record_bytes", 100, 100_000_000, "bytes of a record's value", 0)
FETCH_SIZE = number("--fetch-size", "fetch_bytes", 1024 * 1024, 500_000_000, "bytes of an answer at most")
FILL = number("--fill-bytes", "fill_bytes", 128 * 1024 * 1024, 1 << 40, "bytes of the values in each created topic")
TOPICS = number("--topics", "topics", 1, 10_000, "created topics")
PARTITIONS = number("--partitions", "partitions", 1, 10_000, "partitions of each created topic")
TOGETHER = number(
    "--partitions-per-request", "partitions_per_request", 1, 10_000, "partitions to which one request has a batch"
)
REPLICATION = number("--replication-factor", "replication_factor", 1, 1000, "replicas of each created partition")
IDLE = number("--idle-connections", "idle_connections", 0, 100_000, "connections beside them that say nothing", 0)
TOPIC = click.option(
    "--topic", metavar="TOPIC", help="an existing topic; default: topics are created, and deleted at the end"
)


@click.command("produce")
@options(
    CLIENT, api_version(PRODUCE_VERSIONS, PRODUCE_VERSION), CONNECTIONS, IDLE, IN_FLIGHT, RECORD_SIZE,
    batch_size(PRODUCE_BATCH, "one record"), ACKNOWLEDGED, TOPIC, TOPICS, PARTITIONS, TOGETHER, REPLICATION,
)  # fmt: skip
def produce_command(run: Run, topic: str | None, batch_size: int, **of_load: Any) -> None:
    """Produce as fast as the cluster acknowledges.

    A connection sends to the partitions of one leader in turns. With librdkafka, batches are the client's own, and a request is a record.
    """
    only_raw = "in_flight", "batch_size", "api_version", "topics", "partitions_per_request", "idle_connections"
    _measure_load(run, _load("produce", batch_size, of_load, only_raw), topic)


@click.command("consume")
@options(
    CLIENT, api_version(FETCH_VERSIONS, FETCH_VERSION), CONNECTIONS, IN_FLIGHT, RECORD_SIZE,
    batch_size(CONSUME_BATCH, "16 KiB"), FETCH_SIZE, FILL, TOPIC, PARTITIONS, REPLICATION,
)  # fmt: skip
def consume_command(run: Run, topic: str | None, batch_size: int, fill_bytes: int, **of_load: Any) -> None:
    """Read a topic from its log start to its end, again and again.

    A connection reads one partition. A created topic is filled before, with records of --record-size in batches of --batch-size.
    """
    _measure_load(run, _load("consume", batch_size, of_load, ("in_flight", "api_version")), topic, fill_bytes)


@click.command("end-to-end")
@options(
    CLIENT, PAIRS, IN_FLIGHT, RECORD_SIZE, batch_size(PRODUCE_BATCH, "one record"), ACKNOWLEDGED, TOPIC, REPLICATION,
)  # fmt: skip
def end_to_end_command(run: Run, topic: str | None, batch_size: int, **of_load: Any) -> None:
    """Measure from the moment a record is sent until its consumer, whose fetch waits, has it.

    A producer sends the next batch when an earlier one was acknowledged and received.
    """
    of_load["partitions"] = of_load["connections"]
    _measure_load(run, _load("end-to-end", batch_size, of_load, ("in_flight", "batch_size", "connections")), topic)


@click.command("groups")
@options(
    number("--groups", "groups", 1, 10_000, "groups"),
    number("--members", "members", 50, 10_000, "members of each group"),
    number("--rebalances", "rebalances", 10, 10_000, "rebalances after the first one", 0),
    click.option(
        "--group-protocol",
        "protocol",
        type=click.Choice(GROUP_PROTOCOLS),
        default=CLASSIC,
        show_default=True,
        help="Of the groups, as Kafka's group.protocol; `consumer` is that of KIP-848.",
    ),
    REPLICATION,
)
def groups_command(
    run: Run, groups: int, members: int, rebalances: int, protocol: str, replication_factor: int
) -> None:
    """Measure rebalances, then commits: one in flight for each member.

    In a rebalance of the classic protocol all members join again at once. In one of the consumer protocol a member leaves and comes
    back, and its partition with it: there is one for each member. The topic is created, and deleted at the end. There is no warm-up.
    """
    with errors_in_one_line(), termination_as_interrupt(), ProgressLine() as progress:
        from tools.bench.closed_loop.group_load import GroupLoad, measure_groups
        from tools.bench.closed_loop.target import own_topics, partitions_of

        target = run.target
        load = GroupLoad(groups, members, rebalances, "", run.seconds, protocol)
        with own_topics(target, 1, load.partitions, replication_factor) as topics:
            partitions_of(target, topics)
            progress.say("the groups rebalance")
            result = measure_groups(target, replace(load, topic=topics[0]), progress)
    times = sorted(result.rebalances_s)
    if run.output == "json":
        shape = {"groups": groups, "members": members, "group_protocol": protocol}
        seconds = {"first_s": result.first_s, "rebalances_s": result.rebalances_s}
        print_json({"bench": "groups", **shape, **seconds, "commits": as_json(result.commits)})
        return
    echo(f"groups: {groups} of {members} members by the {protocol} protocol")
    delay = ", with the broker's group.initial.rebalance.delay.ms" if protocol == CLASSIC else ""
    echo(f"  {'first join':<12} {result.first_s:>14.3f} s{delay}")
    if times:
        echo(
            f"  {'rebalance':<12} {statistics.median(times):>14.3f} s in the median of {len(times)}, max {times[-1]:.3f} s"
        )
    echo_lines(as_lines(result.commits, "commits"))


COMMANDS: Sequence[click.Command] = (produce_command, consume_command, end_to_end_command, groups_command)


def _load(kind: Any, batch_size: int, of_load: dict[str, Any], only_raw: Sequence[str]) -> Load:
    """Raises UsageError for options that do not go together."""
    for names, other, reason in (
        (only_raw, of_load["client"] == "librdkafka", "is for --client raw: librdkafka decides it itself."),
        (
            ("topics", "partitions", "replication_factor"),
            _is_given("topic"),
            "is for created topics: leave out --topic.",
        ),
    ):
        for name in names:
            if other and _is_given(name):
                raise click.UsageError(f"--{name.replace('_', '-')} {reason}")
    return Load(kind=kind, records_per_batch=max(1, batch_size // max(of_load["record_bytes"], 1)), **of_load)


def _is_given(name: str) -> bool:
    return click.get_current_context().get_parameter_source(name) is ParameterSource.COMMANDLINE


def _measure_load(run: Run, load: Load, topic: str | None, fill_bytes: int = 0) -> None:
    with errors_in_one_line(), termination_as_interrupt(), ProgressLine() as progress:
        from tools.bench.closed_loop.topic_load import bench_topics, measure

        target = run.target
        progress.say("the topics are prepared")
        with contextlib.ExitStack() as stack:
            topics = [topic] if topic else stack.enter_context(bench_topics(load, target, fill_bytes))
            measured = measure(load, target, topics, run.seconds, run.warm_up_s, progress)
            progress.say("the topics are deleted")
    shape = {name: value for name, value in asdict(load).items() if name != "kind"} | {"api_version": load.version}
    for name in ONLY_PRODUCE if load.kind == "consume" else ("fetch_bytes",):
        del shape[name]
    if load.client == "librdkafka":
        del shape["api_version"]
    if topic:
        shape["topic"] = topic
    if run.output == "json":
        print_json({"bench": load.kind, **shape, **as_json(measured)})
        return
    usual = asdict(Load(load.kind)) | {"client": None, "connections": None}
    words = (f"{name.replace('_', ' ')} {value}" for name, value in shape.items() if value != usual.get(name))
    echo(f"{load.kind}: {', '.join(words)}; {measured.seconds:.1f} s")
    is_raw = load.client == "raw" and load.kind != "end-to-end"
    echo_lines(as_lines(measured, "requests" if is_raw else LATENCIES_OF[load.kind]))
