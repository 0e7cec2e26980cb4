"""`ottla bench scale`: a cluster with many partitions, through its main events, under a steady load.

Three real brokers and a real ZooKeeper; each partition has a replica on each broker. Three small topics, each on two of the
brokers, carry a steady load of librdkafka with acks=all. When a broker dies, the topic without a replica there is *untouched*.

A phase reports its duration, the load's p99 on untouched partitions, the longest turn of any broker's loop with its call
(NET-4: 50 ms), and the brokers' processor time, memory and open files.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka.admin import AdminClient, NewTopic
from prometheus_client.parser import text_string_to_metric_families

from tools.cluster import forks
from tools.cluster.local_cluster import LocalCluster
from tools.cluster.log_parts import LogReader, events_of
from tools.cluster.ownership import own_servers

BROKERS = (1, 2, 3)
PARTITIONS_PER_TOPIC = 1000
LOAD_PARTITIONS = 6
BASELINE_S = 5.0
IDLE_S = 20.0
SETTLE_S = 15.0
SAMPLED_OF_A_TOPIC = 30
"""How many partitions of each thousand are written to immediately after a kill; writing to all would be a load of its own. They form
a separate topic beside each large topic, so that the client that writes to them does not know the other partitions."""
POLL_S = 0.1
TIMEOUT_S = 300.0
MIB = 1024**2
BROKER_SETTINGS = {
    "zookeeper.session.timeout.ms": "6000",
    "replica.lag.time.max.ms": "10000",
    "auto.leader.rebalance.enable": "false",
}


@dataclass
class Phase:
    """The results of one phase."""

    name: str
    partitions: int
    seconds: dict[str, float] = field(default_factory=dict)
    untouched_p99_ms: float | None = None
    longest_turn_ms: float | None = None
    held_by: str = ""
    cpu_percent: float | None = None
    """CPU use of the busiest broker, in percent of one core."""
    memory_mib: float | None = None
    descriptors: int | None = None


class ScaleLoadProcess:
    """The load's process and its answers."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tools.bench.scale.scale_load", bootstrap_servers],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, line: str) -> Any:
        self.send(line)
        return self.answer()

    def send(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the load's process has ended")
        return json.loads(line)

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class LoopTurns:
    """The longest turn of the brokers' loops, per phase: from the metrics below 50 ms, from the event logs above."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._counts: dict[int, dict[float, float]] = {}
        self._readers: dict[int, LogReader] = {}

    def look(self) -> tuple[float, str]:
        """The longest turn since the last call, in ms, and the code that ran. Without an event: its bucket's upper bound, and ""."""
        bounds = [self._bucket_ms(broker) for broker in self._cluster.broker_ids]
        logged = [
            (ms, f"broker {broker}: {stack}") for broker in self._cluster.broker_ids for ms, stack in self._held(broker)
        ]
        return max(logged, default=(max(bounds), ""))

    def _bucket_ms(self, broker: int) -> float:
        counts = self._scrape(broker)
        before = self._counts.get(broker, {})
        if any(counts.get(bound, 0) < count for bound, count in before.items()):
            before = {}  # the broker was restarted
        self._counts[broker] = counts
        new = {bound: count - before.get(bound, 0) for bound, count in counts.items()}
        total = max(new.values(), default=0)
        return 1000 * min((bound for bound, count in new.items() if count == total), default=0.0)

    def _scrape(self, broker: int) -> dict[float, float]:
        listener = self._cluster.broker_directory(broker) / "server.properties"
        address = [line for line in listener.read_text().splitlines() if line.startswith("metrics.listener=")]
        try:
            with urllib.request.urlopen(f"http://{address[0].partition('=')[2]}/metrics", timeout=10) as page:
                text = page.read().decode()
        except OSError:
            return {}
        return {
            float(sample.labels["le"]): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "ottla_loop_turn_seconds_bucket"
        }

    def _held(self, broker: int) -> Iterator[tuple[float, str]]:
        if broker not in self._readers:
            self._readers[broker] = LogReader(self._cluster.broker_directory(broker) / "events.jsonl")
        for line in self._readers[broker].new_lines():
            if b'"loop_held"' in line:
                row = json.loads(line)
                yield row["ms"], " < ".join(row["stack"])


class ScaleBench:
    """One size. `run` yields each phase when it ends."""

    def __init__(self, cluster: LocalCluster, partitions: int, say: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._partitions = partitions
        self._say = say
        self._turns = LoopTurns(cluster)
        self._load: ScaleLoadProcess | None = None
        self._admin_client: AdminClient | None = None
        sizes = [min(PARTITIONS_PER_TOPIC, partitions - at) for at in range(0, partitions, PARTITIONS_PER_TOPIC)]
        self._sample = {f"scale-{number:03d}-s": min(SAMPLED_OF_A_TOPIC, size) for number, size in enumerate(sizes)}
        self._topics = self._sample | {
            f"scale-{number:03d}": size - SAMPLED_OF_A_TOPIC
            for number, size in enumerate(sizes)
            if size > SAMPLED_OF_A_TOPIC
        }
        self._load_topics = {
            f"load-without-{broker}": [other for other in BROKERS if other != broker] for broker in BROKERS
        }

    def run(self) -> Iterator[Phase]:
        """Needs an empty running cluster; leaves it running and empty."""
        try:
            yield from self._phases()
        finally:
            if self._load is not None:
                self._load.close()

    def _phases(self) -> Iterator[Phase]:
        self._begin_load()
        with self._phase("steady load, before") as phase:
            time.sleep(BASELINE_S)
        yield phase
        with self._phase("create") as phase:
            phase.seconds["done"] = self._timed(self._create)
        yield phase
        with self._phase("fill: a record to each") as phase:
            phase.seconds["done"] = _written(self._running_load.ask(f"each {','.join(self._topics)}"))
        yield phase
        with self._phase("steady load, with all") as phase:
            time.sleep(BASELINE_S)
        yield phase
        yield from self._kill_and_return()
        yield from self._roll()
        self._end_load()
        time.sleep(SETTLE_S)
        with self._phase("idle") as phase:
            self._idle(phase)
        yield phase
        yield from self._stop_and_start()
        self._begin_load()
        with self._phase("delete") as phase:
            phase.seconds["done"] = self._timed(self._delete)
        yield phase

    # -- phases -----------------------------------------------------------------------------------------------------

    def _kill_and_return(self) -> Iterator[Phase]:
        victim = next(broker for broker in BROKERS if broker != self._controller())
        sample = ",".join(self._sample)
        self._running_load.ask(f"ready {sample}")
        with self._phase(f"kill {victim}", stopped=victim) as phase:
            begin = time.monotonic()
            self._cluster.kill(victim)
            self._running_load.send(f"each {sample}")
            phase.seconds["all led"] = self._until(self._all_led) - begin
            phase.seconds[f"{sum(self._sample.values())} written"] = _written(self._running_load.answer())
        yield phase
        with self._phase("a record to each again") as phase:
            phase.seconds["done"] = _written(self._running_load.ask(f"each {','.join(self._topics)}"))
        yield phase
        with self._phase(f"return of {victim}", stopped=victim) as phase:
            phase.seconds["ISRs full"] = self._timed(lambda: self._start_one(victim))
        yield phase

    def _roll(self) -> Iterator[Phase]:
        for broker in BROKERS:
            with self._phase(f"roll {broker}", stopped=broker) as phase:
                phase.seconds["stopped"] = self._timed(lambda gone=broker: self._cluster.stop_broker(gone, TIMEOUT_S))  # type: ignore[misc]
                phase.seconds["ISRs full"] = self._timed(lambda back=broker: self._start_one(back))  # type: ignore[misc]
            yield phase

    def _idle(self, phase: Phase) -> None:
        brokers = self._running()
        for broker in brokers:
            broker.cpu_percent()  # counts from here
        time.sleep(IDLE_S)
        phase.cpu_percent = max(broker.cpu_percent() for broker in brokers)

    def _stop_and_start(self) -> Iterator[Phase]:
        with self._phase("stop of all") as phase:
            phase.seconds["done"] = self._timed(lambda: self._cluster.stop(TIMEOUT_S))
        yield phase
        forks.end_owned()  # so that the start imports what a broker needs, as that of a user does
        with self._phase("start after a clean stop") as phase:
            phase.seconds["serving"] = self._timed(lambda: self._cluster.start(TIMEOUT_S))
            phase.seconds["ISRs full"] = phase.seconds["serving"] + self._timed(lambda: self._until(self._all_in_sync))
            phase.seconds["logs opened"] = self._log_opening_s()
        yield phase
        for broker in BROKERS:
            self._cluster.kill(broker)
        forks.end_owned()
        with self._phase("start after SIGKILL of all") as phase:
            begin = time.monotonic()
            for broker in BROKERS:
                self._cluster.start_broker(broker)
            phase.seconds["ISRs full"] = self._until(self._all_in_sync) - begin
            phase.seconds["logs opened"] = self._log_opening_s()
        yield phase

    @contextmanager
    def _phase(self, name: str, stopped: int | None = None) -> Iterator[Phase]:
        """Measures a phase. `stopped` is the broker that it kills or stops: load on that broker is not counted. None: all load is."""
        self._say(f"{self._partitions} partitions: {name}")
        phase = Phase(name, self._partitions)
        self._turns.look()
        begin = time.monotonic()
        yield phase
        brokers = self._running()
        if self._load is not None:
            rows: Mapping[str, Sequence[float]] = self._running_load.ask(f"since {begin}")
            of_interest = self._load_topics if stopped is None else (f"load-without-{stopped}",)
            latencies = sorted(seconds for topic in of_interest for seconds in rows.get(topic, ()))
            if latencies:
                phase.untouched_p99_ms = 1000 * latencies[int(0.99 * (len(latencies) - 1))]
        phase.longest_turn_ms, phase.held_by = self._turns.look()
        if brokers:
            phase.memory_mib = max(broker.memory_info().rss for broker in brokers) / MIB
            phase.descriptors = max(broker.num_fds() for broker in brokers)

    # -- the load ---------------------------------------------------------------------------------------------------

    def _begin_load(self) -> None:
        admin = self._admin()
        existing = admin.list_topics(timeout=30).topics
        missing = [
            NewTopic(topic, LOAD_PARTITIONS, replica_assignment=[hosts, hosts[::-1]] * (LOAD_PARTITIONS // 2))
            for topic, hosts in self._load_topics.items()
            if topic not in existing
        ]
        for future in admin.create_topics(missing).values() if missing else ():
            future.result(30)
        self._load = ScaleLoadProcess(self._cluster.bootstrap_servers)
        self._running_load.ask(f"steady {','.join(self._load_topics)}")

    def _end_load(self) -> None:
        assert self._load is not None
        self._load.close()
        self._load = None

    @property
    def _running_load(self) -> ScaleLoadProcess:
        assert self._load is not None
        return self._load

    # -- the cluster ------------------------------------------------------------------------------------------------

    def _running(self) -> list[psutil.Process]:
        """The brokers' processes."""
        pids = [self._cluster.pid(broker) for broker in BROKERS]
        return [psutil.Process(pid) for pid in pids if pid is not None]

    def _data(self, broker: int) -> Path:
        return self._cluster.broker_directory(broker) / "data"

    def _admin(self) -> AdminClient:
        """One client for all requests: a new one would fetch the metadata of everything first."""
        if self._admin_client is None:
            self._admin_client = AdminClient({"bootstrap.servers": self._cluster.bootstrap_servers, "log_level": 0})
        return self._admin_client

    def _controller(self) -> int:
        return int(self._admin().list_topics(timeout=30).controller_id)

    def _create(self) -> None:
        admin = self._admin()
        for topic, size in self._topics.items():
            futures = admin.create_topics(
                [NewTopic(topic, size, replication_factor=len(BROKERS))], request_timeout=TIMEOUT_S
            )
            futures[topic].result()
        self._until(self._all_in_sync)

    def _delete(self) -> None:
        for future in self._admin().delete_topics(list(self._topics), request_timeout=TIMEOUT_S).values():
            future.result()
        self._until(lambda: not any("scale-" in name for broker in BROKERS for name in os.listdir(self._data(broker))))

    def _start_one(self, broker: int) -> None:
        self._cluster.start_broker(broker)
        self._until(self._all_in_sync)

    def _all_led(self) -> bool:
        return all(partition.leader >= 0 for partition in self._described())

    def _all_in_sync(self) -> bool:
        described = self._described()
        return len(described) >= self._partitions and all(
            partition.leader >= 0 and len(partition.isrs) == len(partition.replicas) for partition in described
        )

    def _described(self) -> list[Any]:
        try:
            topics = self._admin().list_topics(timeout=30).topics
        except Exception as error:  # noqa: BLE001  # librdkafka's error: no broker answers yet
            self._say(f"  {error}")
            return []
        return [partition for topic in topics.values() for partition in topic.partitions.values()]

    def _until(self, check: Callable[[], bool]) -> float:
        deadline = time.monotonic() + TIMEOUT_S
        while not check():
            if time.monotonic() > deadline:
                raise TimeoutError(f"not done after {TIMEOUT_S:g} s")
            time.sleep(POLL_S)
        return time.monotonic()

    @staticmethod
    def _timed(work: Callable[[], object]) -> float:
        begin = time.monotonic()
        work()
        return time.monotonic() - begin

    def _log_opening_s(self) -> float:
        """The longest time that a broker took to open its logs, from its event log."""
        opened = [
            [row["seconds"] for row in events_of(path) if row["kind"] == "logs_opened"]
            for path in (self._cluster.broker_directory(broker) / "events.jsonl" for broker in BROKERS)
        ]
        return float(max(seconds[-1] for seconds in opened))


def _written(answer: Mapping[str, Any]) -> float:
    """Seconds until all records were acknowledged. Raises RuntimeError."""
    if answer["failed"]:
        raise RuntimeError(f"{answer['failed']} records failed: {answer['why']}")
    return float(answer["all_s"])


def table(phases: Sequence[Phase]) -> list[tuple[str, ...]]:
    """The rows for `aligned`."""
    rows: list[tuple[str, ...]] = [
        ("PARTITIONS", "PHASE", "SECONDS", "UNTOUCHED P99", "LONGEST TURN", "MEMORY", "FILES", "HELD BY")
    ]
    for phase in phases:
        seconds = ", ".join(f"{name} {value:.1f}" for name, value in phase.seconds.items())
        if phase.cpu_percent is not None:
            seconds = f"{phase.cpu_percent:.1f} % of a core"
        rows.append(
            (
                str(phase.partitions),
                phase.name,
                seconds or "-",
                _ms(phase.untouched_p99_ms),
                _ms(phase.longest_turn_ms),
                f"{phase.memory_mib:.0f} MiB" if phase.memory_mib is not None else "-",
                str(phase.descriptors or "-"),
                phase.held_by or "-",
            )
        )
    return rows


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f} ms"


def run(directory: Path, sizes: Sequence[int], say: Callable[[str], None]) -> Iterator[Phase]:
    """All phases of all sizes; each size has its own cluster. Raises ClusterError, TimeoutError."""
    own_servers()
    for partitions in sizes:
        cluster = LocalCluster(directory / f"partitions-{partitions}")
        try:
            cluster.create(brokers=len(BROKERS), overrides=BROKER_SETTINGS)
            cluster.start()
            yield from ScaleBench(cluster, partitions, say).run()
        finally:
            cluster.destroy()
            shutil.rmtree(directory / f"partitions-{partitions}", ignore_errors=True)
