"""`ottla bench produce|consume|end-to-end|groups|many-topics|many-connections`: loads for any Kafka address."""

from __future__ import annotations

import contextlib
import functools
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click

from tools.admin.connection import connection_options, print_json
from tools.admin.naming import Where
from tools.bench.closed_loop.api_versions import FETCH_VERSION, FETCH_VERSIONS, PRODUCE_VERSION, PRODUCE_VERSIONS
from tools.bench.closed_loop.measurement import Measurement
from tools.bench.closed_loop.measurement_output import ProgressLine, as_json, as_lines
from tools.failures import errors_in_one_line
from tools.interrupts import termination_as_interrupt
from tools.numbers import FloatRange, IntRange
from tools.terminal import echo, echo_lines

if TYPE_CHECKING:
    from tools.bench.closed_loop.target import Target
    from tools.bench.closed_loop.topic_load import Load

Command = TypeVar("Command", bound=Callable[..., None])
Client = Literal["raw", "librdkafka"]
ACKS = {"1": 1, "all": -1}


@dataclass(frozen=True, slots=True)
class Run:
    """What all loads share. `topic` is an existing one; None: a topic of the run's own."""

    bootstrap_server: str
    command_config: Path | None
    output: str
    seconds: float
    warm_up_s: float
    topic: str | None = None
    partitions: int = 1
    replication_factor: int = 1

    @property
    def target(self) -> Target:
        from tools.bench.closed_loop.target import Target  # imported when needed, so that `--help` is fast

        return Target.of(self.bootstrap_server, self.command_config)

    @contextlib.contextmanager
    def topics(self, count: int = 1) -> Iterator[list[str]]:
        """The given topic, or new ones."""
        from tools.bench.closed_loop.target import own_topics

        if self.topic is not None:
            yield [self.topic]
            return
        with own_topics(self.target, count, self.partitions, self.replication_factor) as topics:
            yield topics


@dataclass(frozen=True, slots=True)
class Requests:
    """The requests of a load, as the options of the same names say; a command without one of them has its default."""

    client: Client = "raw"
    connections: int = 1
    in_flight: int = 1
    record_size: int = 100
    batch_size: int | None = None
    acks: str = "all"
    api_version: int | None = None

    @property
    def records(self) -> int:
        """Records in a batch."""
        return max(1, (self.batch_size or 1) // max(self.record_size, 1))

    def check_client(self, *only_raw: str) -> None:
        """Raises UsageError if librdkafka gets one of these options, which only raw requests have."""
        for name in only_raw:
            if self.client == "librdkafka" and getattr(self, name) != getattr(Requests(), name):
                raise click.UsageError(f"--{name.replace('_', '-')} is for --client raw: librdkafka decides it itself.")


def run_options(seconds: float = 10.0) -> Callable[[Command], Command]:
    """`--seconds` and `--warm-up-seconds`, and those of all commands that ask a cluster.

    The command gets its options as `run` and `requests`, and those that only it has by their names.
    """
    of_requests = {field.name for field in fields(Requests)}

    def decorate(command: Command) -> Command:
        @functools.wraps(command)
        def with_run(*, where: Where, output: str, seconds: float, warm_up_s: float, **options: Any) -> None:
            topic, partitions, replicas = (
                options.pop(name, None) for name in ("topic", "partitions", "replication_factor")
            )
            if topic is not None and (partitions is not None or replicas is not None):
                raise click.UsageError(
                    "--partitions and --replication-factor are for a created topic: leave out --topic."
                )
            requests = Requests(**{name: options.pop(name) for name in of_requests & options.keys()})
            with errors_in_one_line():
                address = where.servers()
            shape = topic, partitions or 1, replicas or 1
            run = Run(address, where.command_config, output, seconds, warm_up_s, *shape)
            command(run=run, requests=requests, **options)

        decorated: Any = with_run
        for option in (
            click.option(
                "--warm-up-seconds",
                "warm_up_s",
                type=FloatRange(min=0, max=3600),
                default=1.0,
                show_default=True,
                help="time before it, which is not counted",
            ),
            click.option(
                "--seconds",
                type=FloatRange(min=0.1, max=86_400),
                default=seconds,
                show_default=True,
                help="measured time",
            ),
        ):
            decorated = option(decorated)
        return connection_options(decorated)  # type: ignore[no-any-return]

    return decorate


def topic_options(command: Command) -> Command:
    """`--topic`, or the shape of the topic that is created."""
    for option in (
        replication_factor_option,
        click.option("--partitions", type=IntRange(1, 10_000), help="partitions of the created topic  [default: 1]"),
        click.option(
            "--topic", metavar="TOPIC", help="an existing topic; default: one is created, and deleted at the end"
        ),
    ):
        command = option(command)
    return command


replication_factor_option = click.option(
    "--replication-factor", type=IntRange(1, 1000), help="replicas of each created partition  [default: 1]"
)
acks_option = click.option(
    "--acks", type=click.Choice(list(ACKS)), default="all", show_default=True, help="required acknowledgements"
)
connections_option = click.option(
    "--connections", type=IntRange(1, 100_000), default=1, show_default=True, help="connections (librdkafka: clients)"
)
in_flight_option = click.option(
    "--in-flight", type=IntRange(1, 1000), default=1, show_default=True, help="unanswered requests of each connection"
)
record_size_option = click.option(
    "--record-size", type=IntRange(0, 100_000_000), default=100, show_default=True, help="bytes of a record's value"
)
batch_size_option = click.option(
    "--batch-size",
    type=IntRange(1, 100_000_000),
    help="bytes of the values in a batch  [default: one record]",
)
client_option = click.option(
    "--client",
    type=click.Choice(["raw", "librdkafka"]),
    default="raw",
    show_default=True,
    help="requests that are encoded already, or an application's client",
)


def api_version_option(versions: range, default: int) -> Callable[[Command], Command]:
    """`--api-version` of raw requests: clients of different ages send different ones."""
    return click.option(
        "--api-version",
        type=IntRange(versions[0], versions[-1]),
        help=f"version of the requests  [default: {default}]",
    )


@click.command("produce")
@client_option
@api_version_option(PRODUCE_VERSIONS, PRODUCE_VERSION)
@connections_option
@in_flight_option
@record_size_option
@batch_size_option
@acks_option
@topic_options
@run_options()
def produce_command(run: Run, requests: Requests) -> None:
    """Produce as fast as the cluster acknowledges.

    A connection sends to the partitions of one leader in turns. With librdkafka, batches are the client's own, and a request is a record.
    """
    requests.check_client("in_flight", "batch_size", "api_version")
    _measure_load(run, _load(run, "produce", requests), 0)


@click.command("consume")
@client_option
@api_version_option(FETCH_VERSIONS, FETCH_VERSION)
@connections_option
@in_flight_option
@record_size_option
@batch_size_option
@click.option(
    "--fetch-size",
    type=IntRange(1, 500_000_000),
    default=1024 * 1024,
    show_default=True,
    help="bytes of an answer at most",
)
@click.option(
    "--fill-bytes",
    type=IntRange(1),
    default=128 * 1024 * 1024,
    show_default=True,
    help="bytes of the values in a created topic",
)
@topic_options
@run_options()
def consume_command(run: Run, requests: Requests, fetch_size: int, fill_bytes: int) -> None:
    """Read a topic from its log start to its end, again and again.

    A connection reads one partition. A created topic is filled before, with records of --record-size in batches of --batch-size.
    """
    requests.check_client("in_flight", "api_version")
    requests = replace(requests, batch_size=requests.batch_size or 16 * 1024)
    _measure_load(run, replace(_load(run, "consume", requests), fetch_bytes=fetch_size), fill_bytes)


@click.command("end-to-end")
@client_option
@click.option(
    "--connections",
    type=IntRange(1, 10_000),
    default=1,
    show_default=True,
    help="pairs of a producer and a consumer, each with its own partition",
)
@in_flight_option
@record_size_option
@batch_size_option
@acks_option
@click.option("--topic", metavar="TOPIC", help="an existing topic; default: one is created, and deleted at the end")
@replication_factor_option
@run_options()
def end_to_end_command(run: Run, requests: Requests) -> None:
    """Measure from the moment a record is sent until its consumer, whose fetch waits, has it.

    A producer sends the next batch when an earlier one was acknowledged and received.
    """
    requests.check_client("in_flight", "batch_size", "connections")
    connections, acks = requests.connections, ACKS[requests.acks]
    run = replace(run, partitions=connections)
    with errors_in_one_line(), termination_as_interrupt(), ProgressLine() as progress, run.topics() as (name,):
        from tools.bench.closed_loop.generate import generate
        from tools.bench.closed_loop.measurement import BenchError
        from tools.bench.closed_loop.target import check_replicas, partitions_of
        from tools.bench.closed_loop.topic_load import end_to_end_plan

        check_replicas(run.target, name, acks)
        partitions = partitions_of(run.target, [name])
        if len(partitions) < connections:
            raise BenchError(f"topic {name!r} has {len(partitions)} partitions: use --connections {len(partitions)}")
        if requests.client == "librdkafka":
            from tools.bench.closed_loop.librdkafka_load import end_to_end

            window = run.warm_up_s, run.seconds
            measured = end_to_end(run.target, partitions[0], requests.record_size, acks, window, progress)
        else:
            load = _load(run, "produce", requests)
            plan = end_to_end_plan(load, partitions[:connections], run.warm_up_s, run.seconds)
            measured = generate(plan, run.target, progress, _note)
    shape = {name: getattr(requests, name) for name in ("client", "connections", "in_flight", "record_size", "acks")}
    _print(run, "end-to-end", shape, measured, "batches")


@click.command("groups")
@click.option("--groups", type=IntRange(1, 10_000), default=1, show_default=True, help="groups")
@click.option("--members", type=IntRange(1, 10_000), default=50, show_default=True, help="members of each group")
@click.option(
    "--rebalances", type=IntRange(0, 10_000), default=10, show_default=True, help="rebalances after the first one"
)
@replication_factor_option
@run_options()
def groups_command(run: Run, requests: Requests, groups: int, members: int, rebalances: int) -> None:
    """Measure rebalances, in which all members join again at once, then commits: one in flight for each member.

    The members commit to a topic of one partition, which is created, and deleted at the end. There is no warm-up.
    """
    _ = requests
    with errors_in_one_line(), termination_as_interrupt(), ProgressLine() as progress, run.topics() as (name,):
        from tools.bench.closed_loop.group_load import GroupLoad, measure_groups
        from tools.bench.closed_loop.target import partitions_of

        partitions_of(run.target, [name])
        progress.say("the groups rebalance")
        result = measure_groups(run.target, GroupLoad(groups, members, rebalances, name, run.seconds), progress)
    times = sorted(result.rebalances_s)
    if run.output == "json":
        shape = {"groups": groups, "members": members}
        seconds = {"first_s": result.first_s, "rebalances_s": result.rebalances_s}
        print_json({"bench": "groups", **shape, **seconds, "commits": as_json(result.commits)})
        return
    echo(f"groups: {groups} of {members} members")
    echo(f"  {'first join':<12} {result.first_s:>14.3f} s, with the broker's group.initial.rebalance.delay.ms")
    if times:
        echo(
            f"  {'rebalance':<12} {statistics.median(times):>14.3f} s in the median of {len(times)}, max {times[-1]:.3f} s"
        )
    echo_lines(as_lines(result.commits, "commits"))


@click.command("many-topics")
@click.option("--topics", "topic_count", type=IntRange(1, 10_000), default=100, show_default=True, help="topics")
@click.option("--partitions", type=IntRange(1, 10_000), default=1, show_default=True, help="partitions of each")
@click.option(
    "--partitions-per-request",
    type=IntRange(1, 10_000),
    default=10,
    show_default=True,
    help="partitions to which one request has a batch",
)
@connections_option
@in_flight_option
@record_size_option
@batch_size_option
@acks_option
@replication_factor_option
@run_options()
def many_topics_command(run: Run, requests: Requests, topic_count: int, partitions_per_request: int) -> None:
    """Produce to many topics, which are created, and deleted at the end. Each request has batches for several partitions."""
    load = _load(run, "produce", requests)
    with (
        errors_in_one_line(),
        termination_as_interrupt(),
        ProgressLine() as progress,
        _said(run.topics(topic_count), progress) as names,
    ):
        from tools.bench.closed_loop.generate import generate
        from tools.bench.closed_loop.target import check_replicas, partitions_of
        from tools.bench.closed_loop.topic_load import produce_plan

        check_replicas(run.target, names[0], load.acks)
        found = partitions_of(run.target, names)
        plan = produce_plan(load, found, run.warm_up_s, run.seconds, partitions_per_request)
        measured = generate(plan, run.target, progress, _note)
    shape = {"topics": topic_count, "partitions_per_request": partitions_per_request}
    _print(run, "many-topics", shape | _shape(load), measured)


@click.command("many-connections")
@click.option("--idle", type=IntRange(1, 100_000), default=1000, show_default=True, help="connections that say nothing")
@click.option("--rounds", type=IntRange(1, 1000), default=3, show_default=True, help="rounds, without and with them")
@in_flight_option
@record_size_option
@batch_size_option
@acks_option
@replication_factor_option
@run_options(seconds=5.0)
def many_connections_command(run: Run, requests: Requests, idle: int, rounds: int) -> None:
    """Produce over one connection, without and with idle connections to the same broker, in turns."""
    load = _load(run, "produce", requests)
    without: list[Measurement] = []
    beside: list[Measurement] = []
    with errors_in_one_line(), termination_as_interrupt(), run.topics() as (name,):
        from tools.bench.closed_loop.generate import generate
        from tools.bench.closed_loop.request_plan import PlannedConnection
        from tools.bench.closed_loop.target import check_replicas, partitions_of
        from tools.bench.closed_loop.topic_load import produce_plan

        check_replicas(run.target, name, load.acks)
        busy = produce_plan(load, partitions_of(run.target, [name]), run.warm_up_s, run.seconds)
        idle_ones = [PlannedConnection("idle", busy.connections[0].address)] * idle
        crowded = replace(busy, connections=[*busy.connections, *idle_ones])
        for number in range(rounds):
            for plan, found in ((busy, without), (crowded, beside)):
                with ProgressLine(f"round {number + 1}, {len(plan.connections) - 1} idle connections: ") as progress:
                    found.append(generate(plan, run.target, progress, _note))
    ratios = [b.requests / b.seconds / (a.requests / a.seconds) for a, b in zip(without, beside, strict=True)]
    if run.output == "json":
        rows = {"without": [as_json(one) for one in without], "beside": [as_json(one) for one in beside]}
        print_json({"bench": "many-connections", "idle": idle, **_shape(load), "ratios": ratios, **rows})
        return
    for title, found in (("without idle connections", without), (f"beside {idle} idle connections", beside)):
        echo(f"{title}, the median of {len(found)} rounds:")
        echo_lines(as_lines(sorted(found, key=lambda one: one.requests / one.seconds)[len(found) // 2]))
    echo(f"ratio of the rates: {statistics.median(ratios):.3f}, from {min(ratios):.3f} to {max(ratios):.3f}")


COMMANDS: Sequence[click.Command] = (
    produce_command,
    consume_command,
    end_to_end_command,
    groups_command,
    many_topics_command,
    many_connections_command,
)


def _load(run: Run, kind: Literal["produce", "consume"], requests: Requests) -> Load:
    from tools.bench.closed_loop.topic_load import Load

    return Load(
        kind=kind,
        client=requests.client,
        connections=requests.connections,
        in_flight=requests.in_flight,
        record_bytes=requests.record_size,
        records_per_batch=requests.records,
        acks=ACKS[requests.acks] if kind == "produce" else -1,
        replication_factor=run.replication_factor,
        partitions=run.partitions,
        api_version=requests.api_version,
    )


def _measure_load(run: Run, load: Load, fill_bytes: int) -> None:
    from tools.bench.closed_loop.topic_load import bench_topic, measure

    with errors_in_one_line(), termination_as_interrupt(), ProgressLine() as progress:
        progress.say("the topic is prepared")
        with contextlib.ExitStack() as stack:
            topic = run.topic or stack.enter_context(
                bench_topic(load, run.bootstrap_server, run.command_config, fill_bytes)
            )
            measured = measure(
                load,
                run.bootstrap_server,
                topic,
                run.seconds,
                run.warm_up_s,
                command_config=run.command_config,
                on_progress=progress,
                on_note=_note,
            )
    what = {"produce": "records", "consume": "calls"}[load.kind] if load.client == "librdkafka" else "requests"
    _print(run, load.kind, _shape(load) | ({"topic": run.topic} if run.topic else {}), measured, what)


def _shape(load: Load) -> dict[str, Any]:
    """What was measured, without what does not belong to the load's kind."""
    shape = asdict(load)
    for key in ("kind", *(("fetch_bytes",) if load.kind == "produce" else ("acks",))):
        del shape[key]
    if load.client == "raw":
        shape["api_version"] = load.version
    else:
        del shape["api_version"]
    return shape


def _print(run: Run, bench: str, shape: dict[str, Any], measured: Measurement, what: str = "requests") -> None:
    if run.output == "json":
        print_json({"bench": bench, **shape, **as_json(measured)})
        return
    words = (f"{key.replace('_', ' ')} {value}" for key, value in shape.items())
    echo(f"{bench}: {', '.join(words)}; {measured.seconds:.1f} s")
    echo_lines(as_lines(measured, what))


def _note(text: str) -> None:
    echo(text, err=True)


@contextlib.contextmanager
def _said(topics: contextlib.AbstractContextManager[list[str]], progress: ProgressLine) -> Iterator[list[str]]:
    """Shows that the topics are created and deleted, which takes long if they are many."""
    progress.say("the topics are created")
    with topics as names:
        yield names
        progress.say("the topics are deleted")
