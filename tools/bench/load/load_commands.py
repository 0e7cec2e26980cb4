"""`ottla bench produce|consume|end-to-end|groups|many-topics|many-connections`: loads for any Kafka address."""

from __future__ import annotations

import contextlib
import signal
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast

import click

from tools.admin.connection import connection_options, errors_in_one_line, print_json
from tools.admin.naming import Where
from tools.bench.load.outcome import Measurement
from tools.bench.load.report import ProgressLine, as_json, as_lines
from tools.numbers import FloatRange, IntRange
from tools.terminal import echo, echo_lines

if TYPE_CHECKING:
    from tools.bench.load.cluster import Target
    from tools.bench.load.measure import Load

Command = TypeVar("Command", bound=Callable[..., None])
Client = Literal["raw", "librdkafka"]
ACKS = {"1": 1, "all": -1}
MANY_CONNECTIONS_IN_FLIGHT = 5


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
        from tools.bench.load.cluster import Target  # imported when needed, so that `--help` is fast

        return Target.of(self.bootstrap_server, self.command_config)

    @contextlib.contextmanager
    def topics(self, count: int = 1) -> Iterator[list[str]]:
        """The given topic, or new ones."""
        from tools.bench.load.cluster import own_topics

        if self.topic is not None:
            yield [self.topic]
            return
        with own_topics(self.target, count, self.partitions, self.replication_factor) as topics:
            yield topics


def run_options(seconds: float = 10.0) -> Callable[[Command], Command]:
    """`--seconds` and `--warm-up-seconds`, and those of all commands that ask a cluster."""

    def decorate(command: Command) -> Command:
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
            command = option(command)
        return connection_options(command)

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


@click.command("produce")
@client_option
@connections_option
@in_flight_option
@record_size_option
@batch_size_option
@acks_option
@topic_options
@run_options()
def produce_command(
    client: str,
    connections: int,
    in_flight: int,
    record_size: int,
    batch_size: int | None,
    acks: str,
    topic: str | None,
    partitions: int | None,
    replication_factor: int | None,
    **of_run: Any,
) -> None:
    """Produce as fast as the cluster acknowledges.

    A connection sends to the partitions of one leader in turns. With librdkafka, batches are the client's own, and a request is a record.
    """
    run = _run(topic, partitions, replication_factor, **of_run)
    _check_client(client, in_flight=(in_flight, 1), batch_size=(batch_size, None))
    load = _load(
        run, "produce", client, connections, in_flight, record_size, _records(batch_size, record_size), ACKS[acks]
    )
    _measure_load(run, load, 0)


@click.command("consume")
@client_option
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
def consume_command(
    client: str,
    connections: int,
    in_flight: int,
    record_size: int,
    batch_size: int | None,
    fetch_size: int,
    fill_bytes: int,
    topic: str | None,
    partitions: int | None,
    replication_factor: int | None,
    **of_run: Any,
) -> None:
    """Read a topic from its log start to its end, again and again.

    A connection reads one partition. A created topic is filled before, with records of --record-size in batches of --batch-size.
    """
    run = _run(topic, partitions, replication_factor, **of_run)
    _check_client(client, in_flight=(in_flight, 1))
    records = _records(batch_size or 16 * 1024, record_size)
    load = _load(run, "consume", client, connections, in_flight, record_size, records, -1)
    _measure_load(run, replace(load, fetch_bytes=fetch_size), fill_bytes)


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
def end_to_end_command(
    client: str,
    connections: int,
    in_flight: int,
    record_size: int,
    batch_size: int | None,
    acks: str,
    topic: str | None,
    replication_factor: int | None,
    **of_run: Any,
) -> None:
    """Measure from the moment a record is sent until its consumer, whose fetch waits, has it.

    A producer sends the next batch when an earlier one was acknowledged and received.
    """
    run = _run(topic, None if topic is not None else connections, replication_factor, **of_run)
    _check_client(client, in_flight=(in_flight, 1), batch_size=(batch_size, None), connections=(connections, 1))
    records = _records(batch_size, record_size)
    with errors_in_one_line(), _terminable(), ProgressLine() as progress, run.topics() as (name,):
        from tools.bench.load.cluster import check_replicas, partitions_of
        from tools.bench.load.end_to_end import end_to_end_plan
        from tools.bench.load.generate import generate
        from tools.bench.load.outcome import BenchError

        check_replicas(run.target, name, ACKS[acks])
        partitions = partitions_of(run.target, [name])
        if len(partitions) < connections:
            raise BenchError(f"topic {name!r} has {len(partitions)} partitions: use --connections {len(partitions)}")
        if client == "librdkafka":
            from tools.bench.load.librdkafka_end_to_end import end_to_end

            window = run.warm_up_s, run.seconds
            measured = end_to_end(run.target, partitions[0], record_size, ACKS[acks], window, progress)
        else:
            plan = end_to_end_plan(
                partitions[:connections], in_flight, record_size, records, ACKS[acks], run.warm_up_s, run.seconds
            )
            measured = generate(plan, run.target, progress, _note)
    shape = {"client": client, "connections": connections, "in_flight": in_flight, "record_size": record_size}
    _print(run, "end-to-end", shape | {"acks": acks}, measured, "batches")


@click.command("groups")
@click.option("--groups", type=IntRange(1, 10_000), default=1, show_default=True, help="groups")
@click.option("--members", type=IntRange(1, 10_000), default=50, show_default=True, help="members of each group")
@click.option(
    "--rebalances", type=IntRange(0, 10_000), default=10, show_default=True, help="rebalances after the first one"
)
@replication_factor_option
@run_options()
def groups_command(groups: int, members: int, rebalances: int, replication_factor: int | None, **of_run: Any) -> None:
    """Measure rebalances, in which all members join again at once, then commits: one in flight for each member.

    The members commit to a topic of one partition, which is created, and deleted at the end. There is no warm-up.
    """
    run = _run(None, 1, replication_factor, **of_run)
    with errors_in_one_line(), _terminable(), ProgressLine() as progress, run.topics() as (name,):
        from tools.bench.load.cluster import partitions_of
        from tools.bench.load.groups import GroupLoad, measure_groups

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
def many_topics_command(
    topic_count: int,
    partitions: int,
    partitions_per_request: int,
    connections: int,
    in_flight: int,
    record_size: int,
    batch_size: int | None,
    acks: str,
    replication_factor: int | None,
    **of_run: Any,
) -> None:
    """Produce to many topics, which are created, and deleted at the end. Each request has batches for several partitions."""
    run = _run(None, partitions, replication_factor, **of_run)
    records = _records(batch_size, record_size)
    load = _load(run, "produce", "raw", connections, in_flight, record_size, records, ACKS[acks])
    with (
        errors_in_one_line(),
        _terminable(),
        ProgressLine() as progress,
        _said(run.topics(topic_count), progress) as names,
    ):
        from tools.bench.load.cluster import check_replicas, partitions_of
        from tools.bench.load.generate import generate
        from tools.bench.load.measure import produce_plan

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
def many_connections_command(
    idle: int,
    rounds: int,
    in_flight: int,
    record_size: int,
    batch_size: int | None,
    acks: str,
    replication_factor: int | None,
    **of_run: Any,
) -> None:
    """Produce over one connection, without and with idle connections to the same broker, in turns."""
    run = _run(None, 1, replication_factor, **of_run)
    load = _load(run, "produce", "raw", 1, in_flight, record_size, _records(batch_size, record_size), ACKS[acks])
    without: list[Measurement] = []
    beside: list[Measurement] = []
    with errors_in_one_line(), _terminable(), run.topics() as (name,):
        from tools.bench.load.cluster import check_replicas, partitions_of
        from tools.bench.load.generate import generate
        from tools.bench.load.measure import produce_plan
        from tools.bench.load.plan import PlannedConnection

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


def _run(
    topic: str | None,
    partitions: int | None,
    replication_factor: int | None,
    *,
    where: Where,
    output: str,
    seconds: float,
    warm_up_s: float,
) -> Run:
    if topic is not None and (partitions is not None or replication_factor is not None):
        raise click.UsageError("--partitions and --replication-factor are for a created topic: leave out --topic.")
    with errors_in_one_line():
        address = where.servers()
    shape = topic, partitions or 1, replication_factor or 1
    return Run(address, where.command_config, output, seconds, warm_up_s, *shape)


def _check_client(client: str, **options: tuple[int | None, int | None]) -> None:
    """`options`: (value, default) of those that only raw requests have."""
    for name, (value, default) in options.items():
        if client == "librdkafka" and value != default:
            raise click.UsageError(f"--{name.replace('_', '-')} is for --client raw: librdkafka decides it itself.")


def _records(batch_size: int | None, record_size: int) -> int:
    """Records in a batch."""
    return max(1, (batch_size or 1) // max(record_size, 1))


def _load(
    run: Run,
    kind: Literal["produce", "consume"],
    client: str,
    connections: int,
    in_flight: int,
    record_bytes: int,
    records_per_batch: int,
    acks: int,
) -> Load:
    from tools.bench.load.measure import Load

    return Load(
        name=kind,
        kind=kind,
        client=cast(Client, client),
        connections=connections,
        in_flight=in_flight,
        record_bytes=record_bytes,
        records_per_batch=records_per_batch,
        acks=acks,
        replication_factor=run.replication_factor,
        partitions=run.partitions,
    )


def _measure_load(run: Run, load: Load, fill_bytes: int) -> None:
    from tools.bench.load.measure import bench_topic, measure

    with errors_in_one_line(), _terminable(), ProgressLine() as progress:
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
    for key in ("name", "kind", *(("fetch_bytes",) if load.kind == "produce" else ("acks",))):
        del shape[key]
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


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """Inside, SIGTERM is as Ctrl-C: what was created is deleted. The second signal ends that, too."""

    def interrupt(_: int, __: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
