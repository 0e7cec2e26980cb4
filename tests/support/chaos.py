"""Seeded chaos: rounds of faults of every kind under idempotent load (INV-1, 5, 6, 20, 27; FLT-1, 5, 6, 8 to 12, 15, 17 to 20, 28).

    python -m tests.support.chaos --seed 7 --rounds 100 --directory DIR
    python -m tests.support.chaos --seed 7 --idle-partitions 2000       (as many partitions more, each with a record)
    python -m tests.support.chaos --seed 7 --kinds bounce,deaf          (only these; the rest: `ottla fault run --kinds list`)

The schedule and the faults are those of `ottla fault run --random`, on a cluster with links, and as root with a small disk for a broker.
The whole schedule follows from the seed: which fault, for which broker, how long, and what is waited for before the next one.
Only "the controller" and how far the load has come are not known before. A run fails, with its seed, when the verdict has a finding
(docs/VERDICT.md), when a producer gave up its id or epoch, or came to a stand, when a broker ended by itself, or when the replicas are
not equal at the end. It prints the verdict, with what each fault cost.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import re
import shutil
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewTopic

from protocol.kafka.record_batch import iter_batches
from tests.support.background_load import BackgroundProducer, assert_clean, client_of
from tests.support.faulty_disks import small_volume, why_no_mounts
from tests.support.injected import healed
from tests.support.invariants import Compared, ZooKeeperView, assert_healed, eventually, replica_directory
from tests.support.topics import create_topics, fill
from tools.cluster import log_parts
from tools.cluster.local_cluster import LocalCluster
from tools.faults.processes import ProcessCluster
from tools.faults.reporting_clients import PROMPT, READER, Load
from tools.faults.roles import PartitionView, Roles
from tools.faults.rounds import Rounds, why_not
from tools.faults.schedule import Kind, all_kinds, schedule
from tools.faults.script import DoneFault, Faulted
from tools.judge.lines import lines_of
from tools.judge.reports import CONSUMED, Report
from tools.judge.verdict import Client, Fault, Verdict

SESSION_S = 3.0
SETTINGS = {
    "zookeeper.session.timeout.ms": str(int(1000 * SESSION_S)),
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "offsets.topic.num.partitions": "4",
    # A broker that starts while ZooKeeper is away waits for it: on a busy machine, a JVM takes half a minute to start.
    "zookeeper.connection.timeout.ms": "120000",
}
BROKERS = 4
TOPICS = {"chaos-one": 1, "chaos-three": 3, "chaos-small-segments": 4}
TOPIC_SETTINGS = {"chaos-small-segments": {"segment.bytes": "100000", "index.interval.bytes": "500"}}
STALLED_S = 120.0
IDLE_PARTITIONS_OF_A_TOPIC = 500
FEW_ACKS = 20

BEYOND_S = (1.3 * SESSION_S, 1.3 * SESSION_S + 1)
KINDS = all_kinds(SESSION_S)
CONVERGED_S = 30.0
"""How soon after the last fault everything is led and in sync, on a machine that is not busy."""
GROUP = "chaos-group"
"""Its coordinator is a victim; it has no members."""
SMALL_DISK = 4
"""The broker that can have a full disk."""
SMALL_DISK_BYTES = 512 << 20
DISK_IS_FULL = re.compile(r"log directory \S+ (failed: \[Errno 28\]|is offline from now on)")
"""The errors that a broker must report when its disk is full."""
RECORDS_PER_S = 700
"""Of each topic, if a disk is small: it must not be full by itself."""


class BackgroundReader:
    """Reads a topic of a load from its start during the faults, and reports what it has consumed, as a group that commits nothing."""

    def __init__(self, load: Load, began: float) -> None:
        """`began`: see `Load`."""
        self.reports: list[Report] = []
        self._load, self._began = load, began
        self._read: set[tuple[int, int]] = set()
        settings = {"bootstrap.servers": load.bootstrap_servers, "auto.offset.reset": "earliest", **READER, **PROMPT}
        self._consumer = Consumer(settings)
        self._consumer.assign([TopicPartition(load.topic, partition, 0) for partition in range(load.partitions)])
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"reader of {load.topic}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(30)
        self._consumer.close()

    def has_read(self, count: int) -> bool:
        """Whether it has read that many records."""
        return len(self._read) >= count

    def _run(self) -> None:
        topic = self._load.topic
        while not self._stopping.is_set():
            for message in self._consumer.consume(1000, timeout=0.2):
                if message.error() is None:
                    id_, at = self._load.id_of(message), time.monotonic() - self._began
                    report = Report(CONSUMED, topic, message.partition(), message.offset(), id_, "reader", at=at)
                    self.reports.append(report)
                    self._read.add((message.partition(), message.offset()))


@dataclass
class Outcome:
    """For printing: what a run that found nothing wrong did."""

    seed: int
    kinds: Counter[str] = field(default_factory=Counter)
    verdict: Verdict | None = None
    seconds: float = 0.0
    converged_s: float = 0.0

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.kinds.most_common())
        title = (
            f"seed {self.seed}: {self.kinds.total()} rounds in {self.seconds:.0f} s ({kinds}); "
            f"in sync {self.converged_s:.1f} s after the last"
        )
        return "\n".join([title, *(lines_of(self.verdict) if self.verdict is not None else ())])


class FaultLog:
    """The faults of a run with their times, for its verdict. `began`: the monotonic time at which the run began."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.faults: list[Fault] = []

    def now(self) -> float:
        """Seconds since the run began."""
        return time.monotonic() - self.began

    def faulted(self, cluster: ProcessCluster) -> Faulted:
        return Faulted(cluster, (), time.monotonic_ns)

    def add(self, done: DoneFault) -> None:
        """A fault that `faulted` has tried; it is printed."""
        print(f"    {done}", flush=True)
        at = done.at_ns / 1e9 - self.began
        self.faults.append(Fault(done.verb, done.role, done.broker, at, done.partitions, done.error))

    def add_now(self, verb: str, role: str, broker: int | None = None) -> None:
        """A fault that begins at this moment."""
        self.faults.append(Fault(verb, role, broker, self.now(), ()))


@contextmanager
def chaos_cluster(directory: Path, settings: Mapping[str, str] = SETTINGS) -> Iterator[LocalCluster]:
    """Destroyed in the end. If something fails, its processes are killed and its files are kept."""
    cluster = LocalCluster(directory)
    disk = ExitStack()
    try:
        cluster.create(brokers=BROKERS, overrides=settings, links=True)
        if why_no_mounts(cluster.directory) is None:
            (data,) = cluster.log_directories(SMALL_DISK)
            disk.enter_context(small_volume(data, size_bytes=SMALL_DISK_BYTES))
        cluster.start()
        yield cluster
    except BaseException:
        for process in cluster.running():
            process.kill()
        if SMALL_DISK in cluster.broker_ids and (data := cluster.log_directories(SMALL_DISK)[0]).is_mount():
            shutil.copytree(data, data.with_name("data-of-small-disk"))
            disk.close()
        print(f"FAILED; everything is kept in {directory}", flush=True)
        raise
    cluster.destroy()
    disk.close()


def run(cluster: LocalCluster, seed: int, rounds: int, kinds: Mapping[str, Kind] = KINDS) -> Outcome:
    """Makes the topics on a running cluster, and then `rounds` faults. Raises AssertionError, ClusterError, TimeoutError."""
    print(f"chaos: seed {seed}, {rounds} rounds", flush=True)
    log = FaultLog()
    outcome = Outcome(seed)
    victims = ProcessCluster(cluster)
    roles = Roles(victims)
    topics = [NewTopic(name, count, 3, config=TOPIC_SETTINGS.get(name, {})) for name, count in TOPICS.items()]
    create_topics(cluster.bootstrap_servers, *topics)
    partitions = [f"{name}-{number}" for name, count in TOPICS.items() for number in range(count)]
    kinds = {name: kind for name, kind in kinds.items() if why_not(kind, victims, partitions, [GROUP]) is None}
    rate = RECORDS_PER_S if any(kind.action == "fill-disk" for kind in kinds.values()) else None
    play = Rounds(victims, log.faulted(victims), partitions, [GROUP], log.add).play
    with healed(victims), ExitStack() as stack:
        producers = [
            stack.enter_context(producer_of(cluster, name, count, rate, log.began)) for name, count in TOPICS.items()
        ]
        readers = [stack.enter_context(BackgroundReader(producer, log.began)) for producer in producers]
        wait_for_acks(producers)
        for fault in schedule(seed, rounds, cluster.broker_ids, kinds):
            if fault.kind.action == "fill-disk":
                fault = replace(fault, order=(SMALL_DISK, *(b for b in fault.order if b != SMALL_DISK)))
            print(f"{time.strftime('%T')} {fault}", flush=True)
            play(fault)
            outcome.kinds[fault.name] += 1
            if fault.then == "acknowledgements":
                wait_for_acks(producers)
            elif fault.then == "full ISRs":
                wait_in_sync(roles, TOPICS)
            assert_all_run(cluster)
            for producer in producers:
                assert_none_failed(producer)
        over = time.monotonic()
        cluster.wait_ready()
        wait_in_sync(roles, TOPICS)
        outcome.converged_s = time.monotonic() - over
        wait_for_acks(producers)
        for producer in producers:
            producer.stop()
        loads = list(zip(producers, readers, strict=True))
        eventually(lambda: all(reader.has_read(load.sent) for load, reader in loads), "all is read", STALLED_S)
        end = log.now()
        with closing(ZooKeeperView(cluster.zookeeper_connect)) as zk:
            clients = [_judged(cluster, zk, *load, end) for load in loads]
        outcome.verdict = assert_clean(clients, log.faults, end=end)
    assert_no_tracebacks(cluster)
    outcome.seconds = log.now()
    return outcome


def producer_of(
    cluster: LocalCluster, topic: str, partitions: int, records_per_s: float | None, began: float
) -> BackgroundProducer:
    """Idempotent, five requests in flight, batches of some records; a record is never given up during a run.

    What librdkafka says of its id, its sequences and its retries is in a log beside the brokers.
    """
    logger = logging.getLogger(f"{cluster.directory}/{topic}")
    logger.propagate = False
    logger.setLevel(logging.DEBUG)
    handler = logging.FileHandler(cluster.directory / f"producer-of-{topic}.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    logger.addHandler(handler)
    return BackgroundProducer(
        cluster.bootstrap_servers,
        topic,
        partitions,
        bytes(50),
        idempotent=True,
        records_per_s=records_per_s,
        began=began,
        linger_ms=5,
        message_timeout_ms=600_000,
        request_timeout_ms=10_000,
        batch_size=50_000,  # below segment.bytes: what waited through an outage would make batches of a megabyte
        debug="eos",
        logger=logger,
    )


def wait_for_acks(producers: Iterable[BackgroundProducer]) -> None:
    for producer in producers:
        producer.wait_for_acks(FEW_ACKS, STALLED_S)


def wait_in_sync(roles: Roles, topics: Iterable[str]) -> None:
    def out_of_sync() -> dict[str, dict[int, PartitionView]]:
        views = {topic: roles.partitions(topic) for topic in topics}
        missing = {t: {p: view for p, view in of.items() if not view.is_in_sync()} for t, of in views.items()}
        return {topic: some for topic, some in missing.items() if some or not views[topic]}

    eventually(lambda: Compared(out_of_sync(), {}), "full ISRs", STALLED_S)


def assert_all_run(cluster: LocalCluster) -> None:
    ended = [broker for broker in cluster.broker_ids if cluster.pid(broker) is None]
    assert not ended, f"brokers {ended} ended by themselves"


def assert_none_failed(producer: BackgroundProducer) -> None:
    failed = producer.failed
    assert not failed, f"{producer.topic}: {len(failed)} records failed: {Counter(failed).most_common(3)}"


def _judged(
    cluster: LocalCluster, zk: ZooKeeperView, producer: BackgroundProducer, reader: BackgroundReader, end: float
) -> Client:
    """INV-1, 5, 6, 15, 20, 27, and that the producer never took another id or epoch."""
    topic = producer.topic
    assert_healed(cluster, zk, topic)
    client, logs = client_of(producer, end, lambda _: reader.reports, is_finished=True)
    assert sum(len(log.ids) for log in logs.values()) == producer.sent
    for partition in range(producer.partitions):
        assert_sequences_are_contiguous(replica_directory(cluster, zk.state(topic, partition).leader, topic, partition))
    return client


def assert_sequences_are_contiguous(replica: Path) -> None:
    """INV-20: one producer in its first epoch wrote this log, and its batches follow one another without a gap."""
    headers = [
        header
        for segment in sorted(replica.glob("*.log"))
        for _, header in iter_batches(memoryview(segment.read_bytes()))
    ]
    assert len({header.producer_id for header in headers}) == 1, "the producer took another id"
    assert {header.producer_epoch for header in headers} == {0}, "the producer took another epoch"
    for before, after in itertools.pairwise(headers):
        assert after.base_sequence == before.base_sequence + before.last_offset_delta + 1, (before, after)


def assert_no_tracebacks(cluster: LocalCluster) -> None:
    found = [
        f"broker {broker}: {line}"
        for broker in cluster.broker_ids
        for text in log_parts.LogReader(cluster.broker_directory(broker) / "server.log").new_lines()
        for line in [text.decode(errors="replace").rstrip("\n")]
        if line.lstrip().startswith("Traceback") or (" ERROR " in line and DISK_IS_FULL.search(line) is None)
    ]
    assert found == []


def main(
    prog: str,
    doc: str | None,
    kinds: Mapping[str, Kind],
    settings: Mapping[str, str],
    run_on: Callable[[LocalCluster, int, int, Mapping[str, Kind]], Outcome],
) -> None:
    """What `python -m` does with a module of chaos."""
    options = argparse.ArgumentParser(prog=f"python -m tests.support.{prog}", description=(doc or "").splitlines()[0])
    options.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options.add_argument("--rounds", type=int, default=30)
    options.add_argument("--kinds", help="the faults, separated by commas; default: all", default=",".join(kinds))
    options.add_argument("--idle-partitions", type=int, default=0, help="beside those that are written to")
    options.add_argument("--directory", type=Path, help="kept when the run fails; default: a temporary one")
    chosen = options.parse_args()
    directory = chosen.directory or Path(tempfile.mkdtemp(prefix="chaos-"))
    with chaos_cluster(directory / f"seed-{chosen.seed}", settings) as cluster:
        add_idle_partitions(cluster, chosen.idle_partitions)
        outcome = run_on(cluster, chosen.seed, chosen.rounds, {name: kinds[name] for name in chosen.kinds.split(",")})
        print(outcome)
        if outcome.converged_s > CONVERGED_S:
            raise SystemExit(f"in sync only after {outcome.converged_s:.1f} s, and not {CONVERGED_S:g} s")


def add_idle_partitions(cluster: LocalCluster, count: int) -> None:
    """Topics of up to 500 partitions, three replicas and a record in each: whatever happens to brokers happens to these too."""
    for number, at in enumerate(range(0, count, IDLE_PARTITIONS_OF_A_TOPIC)):
        topic, size = f"idle-{number}", min(IDLE_PARTITIONS_OF_A_TOPIC, count - at)
        create_topics(cluster.bootstrap_servers, NewTopic(topic, size, 3))
        fill(cluster.bootstrap_servers, topic, ["idle"] * size, size)


if __name__ == "__main__":
    main("chaos", __doc__, KINDS, SETTINGS, run)
