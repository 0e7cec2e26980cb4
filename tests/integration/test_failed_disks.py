"""FLT-28 and FLT-29 on real file systems: a full volume, and EIO on write, fsync or read, under one of two log directories.

Leaders move, nothing acknowledged is lost, the broker and its other directory go on, and after the repair and a restart the
replicas come back by themselves.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from tests.support.faulty_disks import FailingCalls, small_volume, why_no_mounts
from tests.support.invariants import ZooKeeperView, eventually
from tests.support.load import BackgroundProducer, assert_nothing_lost, read_everything
from tests.support.wire import Wire
from tools.cluster.local_cluster import LocalCluster

pytestmark = pytest.mark.integration

PARTITIONS = 6
VICTIM = 2
VOLUME_BYTES = 8 << 20
PADDING = b"x" * 2000


@pytest.fixture
def faults(tmp_path: Path) -> FailingCalls:
    return FailingCalls(tmp_path)


@pytest.fixture
def cluster(tmp_path: Path, faults: FailingCalls, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalCluster]:
    """Three brokers; the victim has two log directories, `disk-a` and `disk-b`, the first a small volume of its own."""
    for reason in (why_no_mounts(tmp_path), faults.why_not()):
        if reason is not None:
            pytest.skip(reason)
    running = LocalCluster(tmp_path / "cluster")
    running.create(brokers=3, overrides={"auto.leader.rebalance.enable": "false"})
    give_two_directories(running, VICTIM)
    with small_volume(directories_of(running, VICTIM)[0], size_bytes=VOLUME_BYTES):
        try:
            for name, value in faults.environment.items():
                monkeypatch.setenv(name, value)
            running.start()
            yield running
        finally:
            faults.end()
            running.destroy()


def directories_of(cluster: LocalCluster, broker: int) -> list[Path]:
    return [cluster.broker_directory(broker) / name for name in ("disk-a", "disk-b")]


def give_two_directories(cluster: LocalCluster, broker: int) -> None:
    """Writes `log.dirs` anew, before the broker is started."""
    file = cluster.broker_directory(broker) / "server.properties"
    lines = [line for line in file.read_text().splitlines() if not line.startswith("log.dirs=")]
    directories = ",".join(map(str, directories_of(cluster, broker)))
    file.write_text("\n".join([*lines, f"log.dirs={directories}", ""]))


def make_topic(cluster: LocalCluster, *, leader: int | None = None, **config: str) -> str:
    """`leader` leads all partitions; None: each broker leads some."""
    name = f"disks-{uuid.uuid4().hex[:8]}"
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers})
    settings = {"min.insync.replicas": "2", **config}
    if leader is None:
        new = NewTopic(name, PARTITIONS, 3, config=settings)
    else:
        replicas = sorted(cluster.broker_ids, key=lambda broker: broker != leader)
        new = NewTopic(name, PARTITIONS, replica_assignment=[replicas] * PARTITIONS, config=settings)
    for future in admin.create_topics([new]).values():
        future.result(30)
    return name


def partitions_in(directory: Path, topic: str) -> set[int]:
    return {int(path.name.rpartition("-")[2]) for path in directory.glob(f"{topic}-*") if path.name[-1].isdigit()}


def describe(cluster: LocalCluster, broker: int) -> dict[str, tuple[int, set[tuple[str, int]]]]:
    """Directory -> (error, replicas), as DescribeLogDirs answers."""
    with Wire(cluster.port(broker)) as wire:
        answer = wire.call(ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": None})
    return {
        row.log_dir: (row.error_code, {(t.name, p.partition_index) for t in row.topics for p in t.partitions})
        for row in answer.results
    }


def offline_replicas(cluster: LocalCluster, asked: int, topic: str) -> dict[int, list[int]]:
    with Wire(cluster.port(asked)) as wire:
        answer = wire.call(ApiKey.METADATA, 9, {"topics": [{"name": topic}], "allow_auto_topic_creation": False})
    return {p.partition_index: sorted(p.offline_replicas) for p in answer.topics[0].partitions}


def assert_only_that_disk_is_gone(cluster: LocalCluster, zk: ZooKeeperView, topic: str, lost: set[int]) -> None:
    """Its replicas are offline and out of every ISR, the victim's others and its process are not."""
    disk, other = directories_of(cluster, VICTIM)

    def is_told() -> bool:
        states = zk.states(topic)
        return all((VICTIM in state.isr) == (number not in lost) for number, state in states.items())

    eventually(is_told, f"the victim in the ISR of all but {sorted(lost)}: {zk.states(topic)}")
    assert all(state.leader not in (-1, VICTIM) for number, state in zk.states(topic).items() if number in lost)
    for asked in cluster.broker_ids:
        wanted = {number: [VICTIM] if number in lost else [] for number in range(PARTITIONS)}
        eventually(lambda a=asked, w=wanted: offline_replicas(cluster, a, topic) == w, f"broker {asked} knows it")
    assert cluster.pid(VICTIM) is not None
    described = describe(cluster, VICTIM)
    assert described[str(disk)] == (ErrorCode.KAFKA_STORAGE_ERROR, set())
    assert described[str(other)] == (ErrorCode.NONE, {(topic, number) for number in set(range(PARTITIONS)) - lost})
    assert not zk.client.get_children("/log_dir_event_notification")


def assert_healed(cluster: LocalCluster, zk: ZooKeeperView, topic: str) -> None:
    eventually(lambda: all(len(s.isr) == 3 for s in zk.states(topic).values()), "every replica in sync again")
    for asked in cluster.broker_ids:
        eventually(lambda a=asked: not any(offline_replicas(cluster, a, topic).values()), f"broker {asked} knows it")


def test_flt_28_a_full_volume(cluster: LocalCluster, zk: ZooKeeperView, capsys: pytest.CaptureFixture[str]) -> None:
    """ENOSPC from a real file system, in the midst of acks=all load; then room is made and the broker restarted."""
    disk = directories_of(cluster, VICTIM)[0]
    topic = make_topic(cluster)
    with BackgroundProducer(cluster.bootstrap_servers, topic, PARTITIONS, PADDING) as producer:
        producer.wait_for_acks(500)
        lost = partitions_in(disk, topic)
        assert 0 < len(lost) < PARTITIONS, "the emptiest directory gets the next replica: some here, some there"
        fill(disk)
        eventually(lambda: describe(cluster, VICTIM)[str(disk)][0] == ErrorCode.KAFKA_STORAGE_ERROR, "it is full")
        producer.wait_for_acks(500)
        assert_only_that_disk_is_gone(cluster, zk, topic, lost)
        producer.wait_for_acks(500)
        acknowledged = producer.stop()
    assert acknowledged.failed == []

    cluster.stop_broker(VICTIM)
    (disk / "ballast").unlink()
    remount_larger(disk)
    cluster.start_broker(VICTIM)
    cluster.wait_ready()
    assert_healed(cluster, zk, topic)
    doubled = assert_nothing_lost(acknowledged, read_everything(cluster.bootstrap_servers, topic, PARTITIONS))
    with capsys.disabled():
        print(
            f"\n  FLT-28: {len(acknowledged.positions)} acknowledged, 0 lost, {doubled} doubled, "
            f"longest time without an acknowledgement {producer.longest_gap_s():.2f} s"
        )


def fill(disk: Path) -> None:
    with (disk / "ballast").open("wb", buffering=0) as ballast:
        try:
            for _ in itertools.repeat(None):
                ballast.write(b"\0" * 4096)
        except OSError:
            return


def remount_larger(disk: Path) -> None:
    import subprocess

    subprocess.run(["mount", "-o", f"remount,size={64 << 20}", str(disk)], check=True, capture_output=True)


@pytest.mark.parametrize("what", ["write", "fsync"])
def test_flt_29_eio(
    cluster: LocalCluster, zk: ZooKeeperView, faults: FailingCalls, what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """EIO below one directory. After a failed fsync nothing more is written or synced there, though the disk is well again."""
    disk, other = directories_of(cluster, VICTIM)
    settings = {"flush.messages": "50"} if what == "fsync" else {}
    topic = make_topic(cluster, **settings)
    with BackgroundProducer(cluster.bootstrap_servers, topic, PARTITIONS) as producer:
        producer.wait_for_acks(500)
        lost = partitions_in(disk, topic)
        assert 0 < len(lost) < PARTITIONS
        faults.begin(what, disk)
        eventually(lambda: describe(cluster, VICTIM)[str(disk)][0] == ErrorCode.KAFKA_STORAGE_ERROR, "it has failed")
        faults.end()
        sizes = {path: path.stat().st_size for path in disk.rglob("*") if path.is_file()}
        producer.wait_for_acks(500)
        assert_only_that_disk_is_gone(cluster, zk, topic, lost)
        assert {path: path.stat().st_size for path in disk.rglob("*") if path.is_file()} == sizes, "left alone"
        acknowledged = producer.stop()
    assert acknowledged.failed == []

    cluster.stop_broker(VICTIM)
    assert not (disk / ".kafka_cleanshutdown").exists()
    assert (other / ".kafka_cleanshutdown").exists()
    cluster.start_broker(VICTIM)
    cluster.wait_ready()
    assert_healed(cluster, zk, topic)
    doubled = assert_nothing_lost(acknowledged, read_everything(cluster.bootstrap_servers, topic, PARTITIONS))
    with capsys.disabled():
        print(
            f"\n  FLT-29, {what}: {len(acknowledged.positions)} acknowledged, 0 lost, {doubled} doubled, "
            f"longest time without an acknowledgement {producer.longest_gap_s():.2f} s"
        )


def test_flt_29_eio_on_read(
    cluster: LocalCluster, zk: ZooKeeperView, faults: FailingCalls, capsys: pytest.CaptureFixture[str]
) -> None:
    """A leader's disk that cannot be read any more: by followers and consumers, and then by the recovery after a crash.

    What cannot be read is no torn tail: nothing of it is cut, and once the disk is well again it is all there.
    """
    disk, other = directories_of(cluster, VICTIM)
    topic = make_topic(cluster, leader=VICTIM)
    with BackgroundProducer(cluster.bootstrap_servers, topic, PARTITIONS) as producer:
        producer.wait_for_acks(500)
        lost = partitions_in(disk, topic)
        assert 0 < len(lost) < PARTITIONS
        faults.begin("read", disk)
        eventually(lambda: describe(cluster, VICTIM)[str(disk)][0] == ErrorCode.KAFKA_STORAGE_ERROR, "it has failed")
        producer.wait_for_acks(500)
        assert_only_that_disk_is_gone(cluster, zk, topic, lost)
        cluster.kill(VICTIM)
        logs = {path: path.stat().st_size for path in disk.rglob("*.log")}
        cluster.start_broker(VICTIM)
        cluster.wait_ready()
        assert_only_that_disk_is_gone(cluster, zk, topic, lost)
        assert {path: path.stat().st_size for path in disk.rglob("*.log")} == logs, "left alone"
        assert partitions_in(other, topic) == set(range(PARTITIONS)) - lost
        producer.wait_for_acks(200)
        acknowledged = producer.stop()
    assert acknowledged.failed == []

    faults.end()
    cluster.stop_broker(VICTIM)
    cluster.start_broker(VICTIM)
    cluster.wait_ready()
    assert_healed(cluster, zk, topic)
    assert partitions_in(disk, topic) == lost
    doubled = assert_nothing_lost(acknowledged, read_everything(cluster.bootstrap_servers, topic, PARTITIONS))
    with capsys.disabled():
        print(
            f"\n  FLT-29, read: {len(acknowledged.positions)} acknowledged, 0 lost, {doubled} doubled, "
            f"longest time without an acknowledgement {producer.longest_gap_s():.2f} s"
        )


def test_a_broker_without_any_directory_left_stops_and_says_why(
    cluster: LocalCluster, zk: ZooKeeperView, faults: FailingCalls
) -> None:
    """LOG-6: it could serve nothing any more; others lead at once, since its session ends."""
    topic = make_topic(cluster)
    with BackgroundProducer(cluster.bootstrap_servers, topic, PARTITIONS) as producer:
        producer.wait_for_acks(200)
        faults.begin("write", cluster.broker_directory(VICTIM) / "disk-")  # both, and not its own log
        eventually(lambda: cluster.pid(VICTIM) is None, "the broker stopped")
        faults.end()
        producer.wait_for_acks(300)
        acknowledged = producer.stop()
    assert acknowledged.failed == []
    words = (cluster.broker_directory(VICTIM) / "server.log").read_text().splitlines()[-1]
    assert words.startswith("ottla broker: all log directories have failed (")
    assert all(state.leader not in (-1, VICTIM) for state in zk.states(topic).values())
    assert_nothing_lost(acknowledged, read_everything(cluster.bootstrap_servers, topic, PARTITIONS))


def test_a_directory_that_is_missing_at_start(cluster: LocalCluster, zk: ZooKeeperView, faults: FailingCalls) -> None:
    """KIP-112: the broker starts with the rest, and makes nothing anew of what lies in the missing one."""
    disk, other = directories_of(cluster, VICTIM)
    topic = make_topic(cluster)
    with BackgroundProducer(cluster.bootstrap_servers, topic, PARTITIONS) as producer:
        producer.wait_for_acks(300)
        acknowledged = producer.stop()
    eventually(lambda: all(len(s.isr) == 3 for s in zk.states(topic).values()), "all in sync")
    lost = partitions_in(disk, topic)
    cluster.stop_broker(VICTIM)
    faults.begin("write", disk)  # it cannot be written: the meta data and the checkpoints neither
    lock = disk / ".lock"
    lock.unlink()
    lock.mkdir()  # nor can it be locked
    cluster.start_broker(VICTIM)
    cluster.wait_ready()
    assert_only_that_disk_is_gone(cluster, zk, topic, lost)
    assert partitions_in(other, topic) == set(range(PARTITIONS)) - lost
    cluster.stop_broker(VICTIM)
    lock.rmdir()
    faults.end()
    cluster.start_broker(VICTIM)
    cluster.wait_ready()
    assert_healed(cluster, zk, topic)
    assert partitions_in(disk, topic) == lost
    assert_nothing_lost(acknowledged, read_everything(cluster.bootstrap_servers, topic, PARTITIONS))
