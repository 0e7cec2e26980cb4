"""One replay, from its checks to its verdict, against any Kafka-compatible cluster."""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import click
import pyarrow.compute

from protocol.types import TopicPartition
from tools.admin.bootstrap import addresses_of
from tools.admin.config_values import TOPICS, Entity
from tools.admin.kafka_admin import KafkaAdmin
from tools.failures import NotServed
from tools.faults.script import FaultRun
from tools.group_protocols import CLASSIC, CONSUMER
from tools.interrupts import Interrupted, interruption_was_handled
from tools.replay.load import fetching
from tools.replay.places import Place, named
from tools.replay.run.access import write_access
from tools.replay.run.control import ControlServer
from tools.replay.run.cpu_meter import CpuMeter
from tools.replay.run.exports import LiveMetrics
from tools.replay.run.masters import host_towards, is_local
from tools.replay.run.open_places import Places
from tools.replay.run.outcome import read_verdict
from tools.replay.run.plan import CLIENTS_KNOWN_MAX, Asked, OutputDirectory, Plan, ReplayError, write_json
from tools.replay.run.progress import ProgressLine
from tools.replay.run.spark_process import SparkProcess, SparkSettings
from tools.replay.traces.check import SINCE_1970, have_other_keys, is_since_1970
from tools.replay.traces.schema import ENDS, FETCH, KEYS, OFFSETS, PRODUCE, Trace, TraceError
from tools.replay.traces.show import HOT_SHARE
from tools.wire.client import Client
from tools.wire.cluster_view import ClusterView
from tools.wire.consumer_member import why_no_consumer_protocol
from tools.wire.security import PLAINTEXT, Security

LEADER_TIMEOUT_S = 30.0
HOT_OPERATIONS_MIN = 10_000
IDS = ("client", "transactional_id")
"""Columns that name a transactional producer."""
TURN_S = 0.1

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options(Asked):
    """What a replay is asked to do."""

    trace: Place
    topics: Mapping[str, str] = field(default_factory=dict)
    """Of the trace -> of the cluster, where the names differ."""
    create_topics: bool = False
    replication_factor: int | None = None
    master: str | None = None
    """As Spark names it. None: Spark runs in the job's process."""
    control_host: str | None = None
    """The address at which the executors reach this machine. None: the one towards the master."""
    event_log: Path | None = None
    prometheus_file: Path | None = None
    """Where the progress is written in Prometheus' text format while the replay runs."""
    spark_settings: Sequence[str] = ()
    """Each `key=value`."""
    security: Security = PLAINTEXT
    broker_pids: Callable[[], Iterable[int]] | None = None
    """The processes of the brokers, if they run on this machine."""


@dataclass(frozen=True, slots=True)
class TraceFacts:
    """What a replay must know about a trace. `seconds`: from its start to its last row."""

    rows: int
    seconds: float
    partitions: dict[str, int]
    """Topic -> the number of partitions that it needs at least: the highest partition plus one, 0 if only key hashes decide."""
    recorded: dict[str, int]
    """Topic -> the number of partitions in the cluster that the trace comes from, if that is known."""
    digest: str = ""
    """Of the trace's files, in their order."""
    transactional: int = 0
    """Produces that were part of a transaction of which the trace does not know the end."""
    offsets: int = 0
    offsets_left_out: int = 0
    """Offsets in transactions, and those of them of which the trace does not know the end."""
    keyless: Mapping[str, int] = field(default_factory=dict)
    """Topic -> produces of records without keys, or of which the trace does not know whether they had any."""
    busiest: tuple[str, int] = ("", 0)
    """The client with the most operations, and their number."""
    clients: Mapping[str, int] = field(default_factory=dict)
    """Client -> its operations; empty if there are more than CLIENTS_KNOWN_MAX."""
    has_ends: bool = True
    """Whether transactions end in the trace."""
    has_groups: bool = True
    """Whether clients fetch as members of consumer groups."""
    columns: Sequence[str] = ()


def facts_of(trace: Trace) -> TraceFacts:
    """Reads a trace's topics, partitions, clients and last time. Raises TraceError."""
    groups = ["op", *IDS, "topic"]
    keyed = [name for name in KEYS.names if name in trace.names]
    columns = ["time_ns", *groups, "group", "partition", "transactional", "acks", "compression", "records", *keyed]
    sums = [("op", "count"), ("partition", "max"), ("transactional", "sum"), ("group", "count")]
    sums += [("key_bytes", "count")] if keyed else []
    transactional: Counter[tuple[str, str]] = Counter()
    of_offsets: Counter[tuple[str, str]] = Counter()
    ended: set[tuple[str, str]] = set()
    partitions: dict[str, int] = {}
    keyless: Counter[str] = Counter()
    clients: Counter[str] = Counter()
    last_ns = 0
    is_wrong = has_groups = False
    for batch in trace.batches(columns):
        if not last_ns and is_since_1970(first_ns := batch["time_ns"][0].as_py()):
            raise TraceError(f"{trace.path}: its first time_ns, {first_ns}, {SINCE_1970}")
        last_ns = max(last_ns, pyarrow.compute.max(batch["time_ns"]).as_py())
        table = pyarrow.Table.from_batches([batch])
        check_produces(trace, table.filter(pyarrow.compute.equal(table["op"], PRODUCE)))
        for row in table.group_by(groups).aggregate(sums).to_pylist():
            op, topic, count, producer = row["op"], row["topic"], row["op_count"], (row["client"], row[IDS[1]])
            clients[row["client"]] += count
            if topic:
                partitions[topic] = max(partitions.get(topic, 0), row["partition_max"] + 1)
            if op == PRODUCE:
                transactional[producer] += row["transactional_sum"] or 0
                keyless[topic] += count - row.get("key_bytes_count", 0)
            elif op == OFFSETS:
                of_offsets[producer] += count
                is_wrong |= producer[1] is None or row["group_count"] < count
            elif op in ENDS:
                ended.add(producer)
                is_wrong |= producer[1] is None
            elif op == FETCH:
                has_groups |= row["group_count"] > 0
            else:
                is_wrong = True
        if is_wrong:
            raise TraceError(
                f"{trace.path} has rows of no known op, or ends or offsets of no transaction: `ottla replay trace check` names them"
            )
    if not partitions:
        raise TraceError(f"{trace.path} has no produce and no fetch, only ends of transactions")
    (busiest,) = clients.most_common(1)
    return TraceFacts(
        rows=trace.rows,
        seconds=last_ns / 1e9,
        partitions=partitions,
        recorded=dict(trace.info.topics),
        digest=digest_of(trace.files),
        transactional=sum(count for names, count in transactional.items() if names not in ended),
        offsets=of_offsets.total(),
        offsets_left_out=sum(count for names, count in of_offsets.items() if names not in ended),
        keyless=+keyless,
        busiest=busiest,
        clients=dict(sorted(clients.items())) if len(clients) <= CLIENTS_KNOWN_MAX else {},
        has_ends=bool(ended),
        has_groups=has_groups,
        columns=trace.names,
    )


def check_produces(trace: Trace, produces: pyarrow.Table) -> None:
    """Raises TraceError for what no task could send. `trace check` names the rows."""
    wrong = {name: produces[name].null_count for name in ("acks", "compression")} | {
        "records": pyarrow.compute.sum(pyarrow.compute.less(produces["records"], 1)).as_py() or 0
    }
    if "keys" in produces.schema.names:
        wrong["keys"] = pyarrow.compute.sum(have_other_keys(produces)).as_py() or 0
    if found := [name for name, count in wrong.items() if count]:
        raise TraceError(
            f"{trace.path} has produces that cannot be sent, by their {', '.join(found)}: `ottla replay trace check` names the rows"
        )


def changes_of(facts: TraceFacts, topics: Mapping[str, str], compacted: Collection[str]) -> list[str]:
    """What of the trace is replayed otherwise, in words. `topics`: of the trace -> of the cluster."""
    changes = []
    if facts.transactional:
        changes.append(
            f"{facts.transactional:,} produces of transactions are sent without a transaction: the trace does not know its end"
        )
    if facts.offsets_left_out:
        changes.append(
            f"{facts.offsets_left_out:,} offsets in transactions are left out: the trace does not know how these ended"
        )
    changes += [
        f"topic {target} is compacted, and {facts.keyless[topic]:,} produces of the trace have no keys: the records of each get a key"
        for topic, target in topics.items()
        if target in compacted and facts.keyless.get(topic)
    ]
    return changes


def hot_client(facts: TraceFacts, options: Options) -> str | None:
    """A warning if one client has more of the load than a task should have."""
    name, operations = facts.busiest
    share = operations / facts.rows / options.clients
    if options.tasks < 2 or share <= HOT_SHARE / options.tasks or operations < HOT_OPERATIONS_MIN:
        return None
    return (
        f"client {name} has {share:.0%} of the operations: it is one task, so one core sends them. If operations are late, "
        "replay at a lower --speed, or use --clients"
    )


def compacted_topics(options: Options, topics: Collection[str]) -> list[str]:
    """Those that compaction may remove records from; none if the cluster does not say. Raises AdminError."""
    admin = KafkaAdmin(options.bootstrap_servers, properties=options.security.librdkafka_properties())
    try:
        found = admin.describe_configs([Entity(TOPICS, topic) for topic in topics])
    except NotServed:
        return []
    policies = {entity.name: configs.get("cleanup.policy") for entity, configs in found.items()}
    return sorted(topic for topic, policy in policies.items() if policy and "compact" in (policy.value or ""))


def digest_of(files: Iterable[Path]) -> str:
    """Differs if the content of a file does."""
    whole = hashlib.blake2b(digest_size=8)
    for path in files:
        with path.open("rb") as file:
            whole.update(hashlib.file_digest(file, "blake2b").digest())
    return whole.hexdigest()


def new_plan(options: Options, facts: TraceFacts, place: Place, control: str) -> Plan:
    """Checks the cluster's address and its topics, and creates topics if asked. Raises ReplayError, AdminError, Unreachable.

    `facts`: of the trace. `place`: of the results.
    """
    unknown = sorted(set(options.topics) - set(facts.partitions))
    if unknown:
        known = ", ".join(sorted(facts.partitions))
        raise ReplayError(f"--map-topic: the trace has no topic {unknown[0]!r}; it has {known}")
    topics = {topic: options.topics.get(topic, topic) for topic in sorted(facts.partitions)}
    if options.groups and facts.has_groups and options.group_protocol == CONSUMER:
        check_consumer_protocol(options.bootstrap_servers, options.security)
    created = create_topics(options, facts, topics) if options.create_topics else {}
    offsets = end_offsets(options.bootstrap_servers, options.security, sorted(set(topics.values())), created)
    for topic, target in topics.items():
        check_partitions(topic, target, facts.partitions[topic], len(offsets[target]))
    compacted = compacted_topics(options, set(topics.values()))
    if warning := hot_client(facts, options):
        click.echo(f"Warning: {warning}", err=True)
    return Plan(
        run=secrets.randbits(32),
        trace=named(options.trace),
        directory=named(place),
        topics=topics,
        partitions={topic: len(ends) for topic, ends in offsets.items()},
        start_offsets=offsets,
        control=control,
        trace_rows=facts.rows - (facts.offsets_left_out if options.groups else facts.offsets),
        trace_seconds=facts.seconds,
        trace_hash=facts.digest,
        trace_columns=list(facts.columns),
        trace_clients=dict(facts.clients),
        trace_has_ends=facts.has_ends,
        compacted=compacted,
        changes=changes_of(facts, topics, compacted),
        security_protocol=options.security.protocol,
        **{each.name: getattr(options, each.name) for each in fields(Asked)},
    )


class Replay:
    """A replay that has been checked and is ready to run."""

    def __init__(self, options: Options, facts: TraceFacts, output: OutputDirectory) -> None:
        """Checks the addresses and the topics. Raises as `new_plan`. `facts`: of the trace."""
        self.options = options
        self.output = output
        host = options.control_host or host_towards(options.master)
        try:
            self.control = ControlServer(output.path, host)
        except OSError as problem:
            raise ReplayError(f"--control-host {host}: {problem}; use an address of this machine") from None
        self.plan = new_plan(options, facts, output.place, self.control.address)
        configuration = tuple(options.spark_settings)
        self._settings = SparkSettings(options.master, host, options.event_log, configuration, self.plan.operations)
        self.job = SparkProcess(self.output, ["replay", "verdict", "analysis"], self._settings)
        measured: dict[str, Callable[[], Iterable[int]]] = (
            {"job": lambda: self.job.pids()} if is_local(options.master) else {}
        )
        if options.broker_pids is not None:
            measured["brokers"] = options.broker_pids
        self._cpu = CpuMeter(measured)
        self._faults_written = 0
        self._stop_after_s: float | None = None
        self.was_interrupted = False
        """Whether a person ended the sending."""

    def warm_up(self, seconds: float) -> None:
        """Sends the first seconds of the load. Nothing is read back or analysed. Raises ReplayError."""
        self.job = SparkProcess(self.output, ["replay"], self._settings)
        self._stop_after_s = seconds
        self._carry_out(None, judges_after_interrupt=False)

    def run(self, faults: FaultRun | None = None, *, judges_after_interrupt: bool = False) -> dict[str, Any]:
        """Runs the replay, shows its progress, carries out the faults. Returns the verdict.

        `judges_after_interrupt`: the first Ctrl-C ends the sending, and the verdict is on the operations that were sent.
        """
        self._carry_out(faults, judges_after_interrupt)
        return read_verdict(self.output)

    def _carry_out(self, faults: FaultRun | None, judges_after_interrupt: bool) -> None:
        prepare(self.output, self.plan, self.options.security)
        for change in self.plan.changes:
            click.echo(f"Changed: {change}")
        click.echo("Starting Spark ...")
        self.job.start()
        path = self.options.prometheus_file
        metrics = None if path is None else LiveMetrics(path, self.control)
        line = ProgressLine(self.plan, self.control, metrics)
        with self.control:
            while self._goes_on(faults, line, judges_after_interrupt):
                pass
        line.end()
        self.job.check()

    def _goes_on(self, faults: FaultRun | None, line: ProgressLine, judges_after_interrupt: bool) -> bool:
        try:
            goes_on = self.job.is_running(TURN_S)
            started = self.control.totals().started_ns
            second = (self.control.clock.now_ns() - started) / 1e9 if started else 0.0
            if self._stop_after_s is not None and second > self._stop_after_s and not self.control.is_stopping:
                self.control.stop()
            if started and self.control.is_watched and self._cpu.sample():
                write_json(self.output.cpu, self._cpu.cores())
            if started and faults is not None:
                faults.step(second)
                done = list(faults.done)  # another thread adds to it
                if len(done) != self._faults_written:
                    write_json(self.output.faults, [fault.to_row() for fault in done])
                    self._faults_written = len(done)
            line.show()
        except Interrupted:
            if not judges_after_interrupt or self.control.is_stopping:
                raise
            interruption_was_handled()
            self.was_interrupted = True
            click.echo("\nStopping: what was sent is judged. Another Ctrl-C ends everything at once.", err=True)
            self.control.stop()
            return True
        return goes_on


def check_partitions(topic: str, target: str, needed: int, found: int) -> None:
    """Raises ReplayError if the topic has too few partitions for the trace."""
    if not found:
        raise ReplayError(
            f"topic {target!r} does not exist; create it, or use --create-topics, or --map-topic {topic}=OTHER"
        )
    if needed > found:
        raise ReplayError(
            f"the trace has partition {needed - 1} of {topic}, but topic {target!r} has {found} partitions; "
            f"use --map-topic {topic}=OTHER with a topic that has {needed}"
        )


def create_topics(options: Options, facts: TraceFacts, topics: Mapping[str, str]) -> dict[str, int]:
    """Creates the topics that do not exist, with the trace's numbers of partitions, which it returns. Raises ReplayError, AdminError,
    Unreachable."""
    created = {}
    check_access(options.bootstrap_servers, options.security)
    admin = KafkaAdmin(options.bootstrap_servers, properties=options.security.librdkafka_properties())
    existing = admin.cluster().partition_counts
    for topic, target in topics.items():
        if target not in existing and target not in created:
            partitions = max(facts.recorded.get(topic, 1), facts.partitions[topic], 1)
            admin.create_topic(target, partitions=partitions, replication_factor=options.replication_factor)
            created[target] = partitions
    return created


def end_offsets(
    bootstrap_servers: str, security: Security, topics: list[str], created: Mapping[str, int] = MappingProxyType({})
) -> dict[str, list[int]]:
    """Topic -> the high watermark of each partition; [] for a topic that does not exist. Raises ReplayError, Unreachable.

    Waits until each partition has a leader, for at most LEADER_TIMEOUT_S. `created`: topics that a broker may not know yet, with
    their partitions.
    """

    async def ends_of(view: ClusterView) -> dict[str, list[int]]:
        await view.start()
        counts = {topic: created.get(topic) or view.partitions(topic) for topic in topics}
        wanted = {TopicPartition(topic, number) for topic, count in counts.items() for number in range(count)}
        ends = await fetching.end_offsets(view, wanted, LEADER_TIMEOUT_S)
        if missing := wanted - ends.keys():
            topic, number = min(missing)
            raise ReplayError(f"partition {topic}-{number} has no leader that answers within {LEADER_TIMEOUT_S:g} s")
        return {
            topic: [ends[TopicPartition(topic, number)] for number in range(count)] for topic, count in counts.items()
        }

    return ask(bootstrap_servers, security, topics, ends_of)


def check_access(bootstrap_servers: str, security: Security) -> None:
    """Raises Unreachable if no broker answers, or if TLS or SASL fails: a client library only says that nobody answers."""

    async def is_open(view: ClusterView) -> None:
        await view.start()

    ask(bootstrap_servers, security, [], is_open)


def check_consumer_protocol(bootstrap_servers: str, security: Security) -> None:
    """Raises ReplayError if the cluster has no consumer groups of KIP-848. Raises Unreachable."""
    if problem := ask(bootstrap_servers, security, [], why_no_consumer_protocol):
        raise ReplayError(f"--group-protocol {CONSUMER}: {problem}; replay with --group-protocol {CLASSIC}")


def ask(
    bootstrap_servers: str,
    security: Security,
    topics: Iterable[str],
    question: Callable[[ClusterView], Coroutine[Any, Any, Answer]],
) -> Answer:
    """What `question` returns for a view of the topics. Raises ReplayError, Unreachable."""
    try:
        addresses = addresses_of(bootstrap_servers)
    except ValueError as problem:
        raise ReplayError(f"--bootstrap-server: {problem}") from None
    return asyncio.run(question(ClusterView(Client(fetching.CLIENT, security), addresses, list(topics))))


def prepare(output: OutputDirectory, plan: Plan, security: Security) -> None:
    """Writes what the job needs, in the place of an earlier replay's files. Raises ReplayError if there are another program's."""
    output.path.mkdir(parents=True, exist_ok=True)
    Places().clear(output.path)
    output.write_plan(plan)
    write_json(output.faults, [])
    write_access(output, security)


def say_fault(text: object) -> None:
    """Prints a fault above the line of progress."""
    click.echo(f"\r\x1b[K  {text}" if sys.stderr.isatty() else f"  {text}")
