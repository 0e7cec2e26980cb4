"""Seeded chaos: rounds of kill, bounce, pause and restart under idempotent load (INV-1, 5, 6, 20, 27; FLT-1, 5, 6, 8).

    python -m tests.support.chaos --seed 7 --rounds 100 --directory DIR
    python -m tests.support.chaos --seed 7 --idle-partitions 2000       (as many partitions more, each with a record)

The whole schedule follows from the seed: which fault, for which broker, how long, and what is waited for before the next one.
Only "the controller" and how far the load has come are not known before. A run fails, with its seed, when a record is
lost, twice or out of order, when a reader was given what is not in the log in the end, when a producer failed, gave up
its id or epoch, or came to a stand, when a broker ended by itself, or when the replicas are not equal at the end.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from protocol.kafka.record_batch import iter_batches
from tests.support.invariants import ZooKeeperView, assert_healed, eventually, replica_directory
from tests.support.load import BackgroundProducer
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.log_parts import lines_of
from tools.faults.load import BackgroundReader, log_of, read_everything
from tools.faults.verdict import Verdict

SESSION_S = 3.0
SETTINGS = {
    "zookeeper.session.timeout.ms": str(int(1000 * SESSION_S)),
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
}
BROKERS = 4
TOPICS = {"chaos-one": 1, "chaos-three": 3, "chaos-small-segments": 4}
TOPIC_SETTINGS = {"chaos-small-segments": {"segment.bytes": "100000", "index.interval.bytes": "500"}}
STALLED_S = 60.0
IDLE_PARTITIONS_OF_A_TOPIC = 500
FEW_ACKS = 20

WEIGHTS = {
    "bounce": 6,
    "pause briefly": 5,
    "stop and start": 3,
    "kill the controller": 3,
    "restart two": 2,
    "restart all": 1,
    "kill beyond the session": 1,
    "pause beyond the session": 1,
    "pause the controller": 1,
}
"""Kind of fault -> how often beside the one time that each has in any case."""


@dataclass(frozen=True)
class Round:
    """`victims`: of the first as many as the fault needs. `share`: 0..1 of its longest time. `then`: waited for before the next."""

    number: int
    kind: str
    victims: tuple[int, ...]
    share: float
    then: str

    def __str__(self) -> str:
        return f"round {self.number}: {self.kind}, brokers in order {self.victims}, {self.share:.2f}, then {self.then}"


def schedule(
    seed: int, rounds: int, brokers: Sequence[int], kinds: Sequence[str], weights: Mapping[str, int] = WEIGHTS
) -> list[Round]:
    """Each kind once, if there are rounds enough, and the rest by weight, shuffled."""
    rng = random.Random(seed)
    bag = [*kinds, *rng.choices(kinds, [weights[kind] for kind in kinds], k=max(0, rounds - len(kinds)))]
    rng.shuffle(bag)
    return [
        Round(
            number,
            kind,
            tuple(rng.sample(list(brokers), len(brokers))),
            rng.random(),
            rng.choices(["nothing", "acknowledgements", "full ISRs"], [3, 5, 2])[0],
        )
        for number, kind in enumerate(bag[:rounds], 1)
    ]


class Faults:
    """What is done to a cluster of processes. After each fault every broker runs, or is starting."""

    def __init__(self, cluster: LocalCluster, zk: ZooKeeperView) -> None:
        self.cluster = cluster
        self.zk = zk

    def inject(self, fault: Round) -> None:
        first, second, *_ = fault.victims
        beyond = 1.3 * SESSION_S + fault.share
        actions: dict[str, Callable[[], None]] = {
            "bounce": lambda: self._kill([first], 0.5 * fault.share),
            "pause briefly": lambda: self._pause(first, 0.6 * SESSION_S * fault.share),
            "stop and start": lambda: self._stop(first, fault.share),
            "kill the controller": lambda: self._kill([self._controller(first)], fault.share),
            "restart two": lambda: self._kill([first, second], fault.share),
            "restart all": lambda: self._kill(list(fault.victims), fault.share),
            "kill beyond the session": lambda: self._kill([first], beyond),
            "pause beyond the session": lambda: self._pause(first, beyond),
            "pause the controller": lambda: self._pause(self._controller(first), beyond),
        }
        actions[fault.kind]()

    def _controller(self, otherwise: int) -> int:
        return self.zk.controller() or otherwise

    def _kill(self, brokers: Sequence[int], seconds: float) -> None:
        for broker in brokers:
            self.cluster.kill(broker)
        time.sleep(seconds)
        for broker in brokers:
            self.cluster.start_broker(broker)

    def _stop(self, broker: int, seconds: float) -> None:
        self.cluster.stop_broker(broker)
        time.sleep(seconds)
        self.cluster.start_broker(broker)

    def _pause(self, broker: int, seconds: float) -> None:
        self.cluster.pause(broker)
        try:
            time.sleep(seconds)
        finally:
            self.cluster.resume(broker)


@dataclass
class Outcome:
    """For printing: what a run that found nothing wrong did."""

    seed: int
    kinds: Counter[str] = field(default_factory=Counter)
    records: Verdict = field(default_factory=Verdict)
    read_meanwhile: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.kinds.most_common())
        return (
            f"seed {self.seed}: {self.kinds.total()} rounds in {self.seconds:.0f} s ({kinds}); {self.records}; "
            f"{self.read_meanwhile} records read meanwhile"
        )


@contextmanager
def chaos_cluster(directory: Path, settings: Mapping[str, str] = SETTINGS) -> Iterator[LocalCluster]:
    cluster = LocalCluster(directory)
    try:
        cluster.create(brokers=BROKERS, overrides=settings)
        cluster.start()
        yield cluster
    finally:
        cluster.destroy()


def make_topics(cluster: LocalCluster) -> None:
    topics = [NewTopic(name, count, 3, config=TOPIC_SETTINGS.get(name, {})) for name, count in TOPICS.items()]
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    for future in admin.create_topics(topics).values():
        future.result(30)


def run(cluster: LocalCluster, seed: int, rounds: int, kinds: Sequence[str] = tuple(WEIGHTS)) -> Outcome:
    """Makes the topics on a running cluster, and then `rounds` faults. Raises AssertionError, ClusterError."""
    print(f"chaos: seed {seed}, {rounds} rounds", flush=True)
    began = time.monotonic()
    make_topics(cluster)
    zk = ZooKeeperView(cluster.zookeeper_connect)
    try:
        with ExitStack() as stack:
            producers = {name: stack.enter_context(producer_of(cluster, name, count)) for name, count in TOPICS.items()}
            readers = {
                name: stack.enter_context(BackgroundReader(cluster.bootstrap_servers, name, count))
                for name, count in TOPICS.items()
            }
            for producer in producers.values():
                producer.wait_for_acks(FEW_ACKS)
            outcome = Outcome(seed)
            for fault in schedule(seed, rounds, cluster.broker_ids, kinds):
                print(f"{time.strftime('%T')} {fault}", flush=True)
                Faults(cluster, zk).inject(fault)
                outcome.kinds[fault.kind] += 1
                _wait(fault.then, cluster, zk, producers)
                assert_all_run(cluster)
                for producer in producers.values():
                    assert_none_failed(producer)
            cluster.wait_ready()
            for producer in producers.values():
                producer.wait_for_acks(FEW_ACKS, STALLED_S)
            for producer in producers.values():
                producer.stop()
            for name, producer in producers.items():
                outcome.records += _verdict(cluster, zk, producer, readers[name])
        outcome.read_meanwhile = sum(len(reader.values) for reader in readers.values())
        outcome.seconds = time.monotonic() - began
        return outcome
    finally:
        zk.close()


def producer_of(
    cluster: LocalCluster, topic: str, partitions: int, records_per_s: float | None = None
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
        linger_ms=5,
        message_timeout_ms=600_000,
        request_timeout_ms=10_000,
        batch_size=50_000,  # below segment.bytes: what waited through an outage would make batches of a megabyte
        debug="eos",
        logger=logger,
    )


def _wait(what: str, cluster: LocalCluster, zk: ZooKeeperView, producers: dict[str, BackgroundProducer]) -> None:
    if what == "acknowledgements":
        for producer in producers.values():
            producer.wait_for_acks(FEW_ACKS, STALLED_S)
    elif what == "full ISRs":

        def is_full() -> bool:
            return all(len(state.isr) == 3 for topic in TOPICS for state in zk.states(topic).values())

        eventually(is_full, "full ISRs", STALLED_S)


def assert_all_run(cluster: LocalCluster) -> None:
    ended = [broker for broker in cluster.broker_ids if cluster.pid(broker) is None]
    assert not ended, f"brokers {ended} ended by themselves"


def assert_none_failed(producer: BackgroundProducer) -> None:
    failed = producer.journal.failed
    assert not failed, f"{producer.topic}: {len(failed)} records failed: {Counter(failed).most_common(3)}"


def _verdict(
    cluster: LocalCluster, zk: ZooKeeperView, producer: BackgroundProducer, reader: BackgroundReader
) -> Verdict:
    """INV-1, 5, 6, 15, 20, 27, and that the producer never took another id or epoch."""
    topic = producer.topic
    assert_healed(cluster, zk, topic)
    log = log_of(read_everything(cluster.bootstrap_servers, topic, producer.partitions))
    verdict = Verdict.of(producer.journal, log)
    assert verdict.problems(once_and_in_order=True) == [], topic
    assert len(log) == producer.journal.sent
    assert reader.misread(log) == {}, topic
    for partition in range(producer.partitions):
        assert_sequences_are_contiguous(replica_directory(cluster, zk.state(topic, partition).leader, topic, partition))
    return verdict


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


def tracebacks(cluster: LocalCluster) -> list[str]:
    """Of the brokers' logs, the lines that begin a traceback or an error."""
    return [
        f"broker {broker}: {line}"
        for broker in cluster.broker_ids
        for line in lines_of(cluster.broker_directory(broker) / "server.log")
        if line.lstrip().startswith("Traceback") or " ERROR " in line
    ]


def command(
    prog: str,
    doc: str | None,
    weights: Mapping[str, int],
    settings: Mapping[str, str],
    run_on: Callable[[LocalCluster, int, int, list[str]], None],
) -> int:
    """What `python -m` does with a module of chaos; `run_on` gets a started cluster, the seed, the rounds and the faults' kinds."""
    options = argparse.ArgumentParser(prog=f"python -m tests.support.{prog}", description=(doc or "").splitlines()[0])
    options.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    options.add_argument("--rounds", type=int, default=30)
    options.add_argument("--kinds", help="the faults, separated by commas; default: all", default=",".join(weights))
    options.add_argument("--idle-partitions", type=int, default=0, help="beside those that are written to")
    options.add_argument("--directory", type=Path, help="kept when the run fails; default: a temporary one")
    chosen = options.parse_args()
    directory = chosen.directory or Path(tempfile.mkdtemp(prefix="chaos-"))
    cluster = LocalCluster(directory / f"seed-{chosen.seed}")
    try:
        cluster.create(brokers=BROKERS, overrides=settings)
        cluster.start()
        add_idle_partitions(cluster, chosen.idle_partitions)
        run_on(cluster, chosen.seed, chosen.rounds, chosen.kinds.split(","))
    except BaseException:
        for process in cluster.running():
            process.kill()
        print(f"{prog}: seed {chosen.seed} FAILED; everything is kept in {cluster.directory}", flush=True)
        raise
    cluster.destroy()
    return 0


def add_idle_partitions(cluster: LocalCluster, count: int) -> None:
    """Topics of up to 500 partitions, three replicas and a record in each: whatever happens to brokers happens to these too."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "acks": "all"})
    failed: list[Any] = []
    for number, at in enumerate(range(0, count, IDLE_PARTITIONS_OF_A_TOPIC)):
        topic, size = f"idle-{number}", min(IDLE_PARTITIONS_OF_A_TOPIC, count - at)
        admin.create_topics([NewTopic(topic, size, 3)], request_timeout=STALLED_S)[topic].result()
        for partition in range(size):
            producer.produce(
                topic, b"idle", partition=partition, on_delivery=lambda e, _: failed.append(e) if e else None
            )
    assert producer.flush(STALLED_S) == 0
    assert not failed, failed[:3]


def _run_on(cluster: LocalCluster, seed: int, rounds: int, kinds: list[str]) -> None:
    print(run(cluster, seed, rounds, kinds))
    for line in tracebacks(cluster):
        print(line)


if __name__ == "__main__":
    sys.exit(command("chaos", __doc__, WEIGHTS, SETTINGS, _run_on))
