"""FLT-28 and FLT-29 on real file systems: a full volume, and EIO on write, fsync or read, under one of two log directories.

Leaders move, nothing acknowledged is lost, the broker and its other directory go on, and after the repair and a restart the
replicas come back by themselves.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from tests.support.background_load import BackgroundProducer, assert_all_read_back
from tests.support.faulty_disks import FailingCalls, small_volume, why_no_mounts
from tests.support.invariants import ZooKeeperView, eventually
from tests.support.thorough import thorough
from tests.support.topics import new_topic
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

PARTITIONS = 6
ALL = set(range(PARTITIONS))
VICTIM = 2
DISKS = ("disk-a", "disk-b")


@pytest.fixture
def faults(tmp_path: Path) -> FailingCalls:
    return FailingCalls(tmp_path)


@pytest.fixture
def cluster(tmp_path: Path, faults: FailingCalls, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """Three brokers; the victim has two log directories, the first is a small volume of its own."""
    for reason in (why_no_mounts(tmp_path), faults.why_not()):
        if reason is not None:
            pytest.skip(reason)
    running = LocalCluster(tmp_path / "cluster")
    running.create(brokers=3, overrides={"auto.leader.rebalance.enable": "false"})
    home = running.broker_directory(VICTIM)
    with (home / "server.properties").open("a") as file:
        file.write(f"log.dirs={home}/{DISKS[0]},{home}/{DISKS[1]}\n")  # the last line of a key counts
    with small_volume(home / DISKS[0], size_bytes=8 << 20):
        try:
            for name, value in faults.environment.items():
                monkeypatch.setenv(name, value)
            running.start()
            yield running
        finally:
            faults.end()
            running.destroy()


class Disks:
    """The victim's two directories: `bad`, which fails, and `good`, and what a topic has in them."""

    def __init__(self, cluster: LocalCluster, zk: ZooKeeperView, topic: str) -> None:
        self.cluster = cluster
        self.zk = zk
        self.topic = topic
        self.bad, self.good = (cluster.broker_directory(VICTIM) / name for name in DISKS)
        self.lost = self.partitions_in(self.bad)
        assert 0 < len(self.lost) < PARTITIONS, "the emptiest directory gets the next replica: some here, some there"

    def partitions_in(self, directory: Path) -> set[int]:
        found = (path.name.rpartition("-")[2] for path in directory.glob(f"{self.topic}-*"))
        return {int(number) for number in found if number.isdigit()}

    def described(self, directory: Path) -> tuple[int, set[int]]:
        """(error, partitions), as DescribeLogDirs answers."""
        with Wire(self.cluster.port(VICTIM)) as wire:
            answer = wire.call(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None})
        (row,) = [row for row in answer.results if row.log_dir == str(directory)]
        return row.error_code, {p.partition_index for topic in row.topics for p in topic.partitions}

    def offline_replicas(self, asked: int) -> dict[int, list[int]]:
        with Wire(self.cluster.port(asked)) as wire:
            body = {"topics": [{"name": self.topic}], "allow_auto_topic_creation": False}
            (topic,) = wire.call(ApiKey.METADATA, 9, body).topics
        return {p.partition_index: sorted(p.offline_replicas) for p in topic.partitions}

    def wait_for_failure(self) -> None:
        eventually(lambda: self.described(self.bad)[0] == ErrorCode.KAFKA_STORAGE_ERROR, "the directory has failed")

    def assert_only_the_bad_one_is_offline(self) -> None:
        """Its replicas are offline and out of every ISR; the victim's other replicas and its process are not."""

        def has_left_the_isr() -> bool:
            states = self.zk.states(self.topic).items()
            return all((VICTIM in state.isr) == (number not in self.lost) for number, state in states)

        eventually(has_left_the_isr, f"the victim in the ISR of all but {sorted(self.lost)}")
        assert all(self.zk.state(self.topic, number).leader not in (-1, VICTIM) for number in self.lost)
        wanted = {number: [VICTIM] if number in self.lost else [] for number in ALL}
        for asked in self.cluster.broker_ids:
            eventually(lambda a=asked: self.offline_replicas(a) == wanted, f"broker {asked} knows it")
        assert self.cluster.pid(VICTIM) is not None
        assert self.described(self.bad) == (ErrorCode.KAFKA_STORAGE_ERROR, set())
        assert self.described(self.good) == (ErrorCode.NONE, ALL - self.lost)
        assert not self.zk.client.get_children("/log_dir_event_notification")

    def assert_healed(self) -> None:
        def all_in_sync() -> bool:
            return all(len(state.isr) == 3 for state in self.zk.states(self.topic).values())

        eventually(all_in_sync, "every replica in sync again")
        for asked in self.cluster.broker_ids:
            eventually(lambda a=asked: not any(self.offline_replicas(a).values()), f"broker {asked} knows it")
        assert self.partitions_in(self.bad) == self.lost


def start(cluster: LocalCluster) -> None:
    cluster.start_broker(VICTIM)
    cluster.wait_ready()


@pytest.mark.parametrize("what", ["full", thorough("write"), "fsync", thorough("read")])
def test_a_disk_fails_under_load(cluster: LocalCluster, zk: ZooKeeperView, faults: FailingCalls, what: str) -> None:
    """FLT-28 (full), FLT-29 (EIO).

    After a failed fsync nothing more is written or synced there, though the disk is well again. A leader's disk that cannot be
    read fails followers, consumers, and the recovery after a crash. What cannot be read is no torn tail: nothing of it is cut.
    """
    servers = cluster.bootstrap_servers
    config = {"min_insync_replicas": "2"} | ({"flush_messages": "50"} if what == "fsync" else {})
    leaders_first = [[VICTIM, 1, 3]] * PARTITIONS if what == "read" else None
    topic = new_topic(servers, PARTITIONS, 3, assignment=leaders_first, **config)
    padding = b"x" * 2000 if what == "full" else b""
    with BackgroundProducer(servers, topic, PARTITIONS, padding) as producer:
        producer.wait_for_acks(500)
        disks = Disks(cluster, zk, topic)
        if what == "full":
            fill(disks.bad)
        else:
            faults.begin(what, disks.bad)
        disks.wait_for_failure()
        if what != "read":
            faults.end()
        pattern = "*.log" if what == "read" else "*"  # a restart writes no segment, but other files
        sizes = sizes_below(disks.bad, pattern)
        producer.wait_for_acks(500)
        disks.assert_only_the_bad_one_is_offline()
        if what == "read":
            cluster.kill(VICTIM)
            start(cluster)
            disks.assert_only_the_bad_one_is_offline()
            assert disks.partitions_in(disks.good) == ALL - disks.lost, "no replica of the failed one is made there"
        assert sizes_below(disks.bad, pattern) == sizes, "left alone"
        producer.wait_for_acks(500)

    faults.end()
    cluster.stop_broker(VICTIM)
    assert not (disks.bad / ".kafka_cleanshutdown").exists()
    assert (disks.good / ".kafka_cleanshutdown").exists()
    if what == "full":
        (disks.bad / "ballast").unlink()
        subprocess.run(["mount", "-o", f"remount,size={64 << 20}", str(disks.bad)], check=True, capture_output=True)
    start(cluster)
    disks.assert_healed()
    assert_all_read_back(producer)


def fill(disk: Path) -> None:
    with (disk / "ballast").open("wb", buffering=0) as ballast, contextlib.suppress(OSError):
        while True:
            ballast.write(b"\0" * 4096)


def sizes_below(directory: Path, pattern: str) -> dict[Path, int]:
    return {path: path.stat().st_size for path in directory.rglob(pattern) if path.is_file()}


def test_a_broker_whose_directories_all_failed_stops_and_logs_why(
    cluster: LocalCluster, zk: ZooKeeperView, faults: FailingCalls
) -> None:
    """LOG-6: it could not serve anything. It closes its session, so others lead at once."""
    topic = new_topic(cluster.bootstrap_servers, PARTITIONS, 3, min_insync_replicas="2")
    with BackgroundProducer(cluster.bootstrap_servers, topic, PARTITIONS) as producer:
        producer.wait_for_acks(200)
        faults.begin("write", cluster.broker_directory(VICTIM) / "disk-")  # both, and not its own log
        eventually(lambda: cluster.pid(VICTIM) is None, "the broker stopped")
        faults.end()
        producer.wait_for_acks(300)
    words = (cluster.broker_directory(VICTIM) / "server.log").read_text().splitlines()[-1]
    assert words.startswith("ottla broker: all log directories have failed (")
    assert all(state.leader not in (-1, VICTIM) for state in zk.states(topic).values())
    assert_all_read_back(producer)


def test_a_broker_starts_without_an_unusable_directory(
    cluster: LocalCluster, zk: ZooKeeperView, faults: FailingCalls
) -> None:
    """KIP-112: the broker starts with its other directories, and creates no second replica of those in the unusable one."""
    topic = new_topic(cluster.bootstrap_servers, PARTITIONS, 3, min_insync_replicas="2")
    with BackgroundProducer(cluster.bootstrap_servers, topic, PARTITIONS) as producer:
        producer.wait_for_acks(300)
    disks = Disks(cluster, zk, topic)
    disks.assert_healed()
    cluster.stop_broker(VICTIM)
    faults.begin("write", disks.bad)  # neither meta.properties nor the checkpoints can be written
    lock = disks.bad / ".lock"
    lock.unlink()
    lock.mkdir()  # and the directory cannot be locked
    start(cluster)
    disks.assert_only_the_bad_one_is_offline()
    assert disks.partitions_in(disks.good) == ALL - disks.lost
    cluster.stop_broker(VICTIM)
    lock.rmdir()
    faults.end()
    start(cluster)
    disks.assert_healed()
    assert_all_read_back(producer)
