"""`ottla inspect log` and `verify`, over directories that the broker's storage wrote."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from broker.settings.config import TopicConfig
from broker.storage.disk.filesystem import FileSystem
from broker.storage.log_manager import LogManager
from protocol.kafka.record_batch import build_batch
from protocol.types import TopicPartition
from tests.support.cli import ottla
from tests.support.fake_time import FakeTime
from tests.support.logs import produced

TP = TopicPartition("orders", 0)
TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAWA"
SMALL = TopicConfig(segment_bytes=600, index_interval_bytes=150, retention_ms=-1)
FIRST, SECOND = "00000000000000000000", "00000000000000000010"


async def write(path: Path, *, batches: int = 20, is_clean: bool = True, later: int | None = None) -> None:
    """`later`: the batch with another timestamp."""
    manager = LogManager([str(path)], SMALL, FileSystem(), FakeTime())
    await manager.start()
    manager.log_directories.ensure_meta(1, "cluster")
    log = manager.get_or_create(TP, TOPIC_ID, {})
    for number in range(batches):
        log.append_as_leader(
            produced(5, 2 * number, timestamp=1_000 + 10 * number + (number == later)), 1 + number // 7
        )
    await log.flush()
    await manager.checkpoints.write_recovery_points()
    await manager.checkpoints.write_high_watermarks({TP: log.log_end_offset}.get)
    if is_clean:
        await manager.shutdown()
    else:
        log.close()


@pytest.fixture
def log_dir(tmp_path: Path) -> Path:
    asyncio.run(write(tmp_path / "a"))
    return tmp_path / "a"


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x10
    path.write_bytes(data)


def findings(*arguments: Path) -> list[dict[str, str]]:
    result = ottla(f"inspect verify --format json {' '.join(map(str, arguments))}")
    told: list[dict[str, str]] = json.loads(result.stdout)["findings"]
    assert result.exit_code == (1 if told else 0)
    return told


def test_log_prints_segments_batches_epochs_and_producers(log_dir: Path) -> None:
    result = ottla(f"inspect log {log_dir}/orders-0")
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert lines[0] == f"{log_dir}/orders-0: topic id {TOPIC_ID}, 4 segments"
    assert lines[2].startswith(f"{FIRST}.log: ")
    columns = "POSITION OFFSETS COUNT BYTES EPOCH TIMESTAMP CODEC PRODUCER SEQUENCE FLAGS"
    assert lines[3].split() == columns.split()
    assert lines[4].split() == ["0", "0-1", "2", "97", "1", "1970-01-01T00:00:01.001Z", "none", "5/0", "0"]
    epochs = lines.index("Leader epochs:")
    rows = [line.split() for line in lines[epochs + 1 : epochs + 5]]
    assert rows == [["EPOCH", "START"], ["1", "0"], ["2", "14"], ["3", "28"]]
    at = lines.index("Producers below offset 40:")
    assert lines[at + 2].split()[:4] == ["5", "0", "31", "31"]


def test_log_as_json_with_records_from_an_offset(log_dir: Path) -> None:
    result = ottla(f"inspect log --format json --records --from-offset 37 {log_dir}/orders-0")
    (content,) = json.loads(result.stdout)
    (segment,) = content["segments"]
    assert [batch["base_offset"] for batch in segment["batches"]] == [36, 38]
    assert [record["offset"] for record in segment["batches"][0]["records"]] == [36, 37]
    assert segment["batches"][0]["records"][0]["key"] == "k"
    assert segment["damage"] is None
    assert content["leader_epochs"][-1] == {"epoch": 3, "start_offset": 28}


def test_log_shows_all_headers_of_one_name(log_dir: Path) -> None:
    path = log_dir / "orders-0" / f"{FIRST}.log"
    path.write_bytes(build_batch([(b"k", b"v", (("hop", b"a"), ("hop", None)), 0)]))
    result = ottla(f"inspect log --format json --records {path}")
    assert json.loads(result.stdout)[0]["batches"][0]["records"][0]["headers"] == [
        {"key": "hop", "value": "a"},
        {"key": "hop", "value": None},
    ]
    assert ottla(f"inspect log --records {path}").stdout.splitlines()[-1].endswith("v  headers hop=a, hop=null")


def test_log_of_one_file_shows_damage(log_dir: Path) -> None:
    path = log_dir / "orders-0" / f"{FIRST}.log"
    flip(path, 97 + 70)
    with path.open("ab") as file:
        file.write(b"rest")
    lines = ottla(f"inspect log {path}").stdout.splitlines()
    assert lines[3].endswith("CRC IS WRONG")
    assert lines[-1].endswith("4 bytes are not a batch")


def test_log_names_the_partitions_of_a_log_directory(log_dir: Path) -> None:
    assert "it has orders-0: use one of them" in ottla(f"inspect log {log_dir}").output
    assert "is not a partition's directory" in ottla(f"inspect log {log_dir}/meta.properties").output


@pytest.mark.parametrize("is_clean", [True, False])
def test_verify_finds_nothing_in_a_good_directory(tmp_path: Path, is_clean: bool) -> None:
    asyncio.run(write(tmp_path / "b", is_clean=is_clean))
    result = ottla(f"inspect verify {tmp_path}/b")
    assert result.exit_code == 0, result.output
    assert result.stdout == "1 logs, 20 batches, 0 partitions compared between replicas: 0 findings\n"


@pytest.mark.parametrize(
    ("name", "position", "problem"),
    [
        (f"{FIRST}.log", 97 + 80, "the CRC does not match"),
        (f"{FIRST}.log", 97 + 7, "found offsets "),
        (f"{FIRST}.log", 97 + 16, "not a batch of format 2"),
        (f"{FIRST}.index", 7, "no batch starts at position"),
        (f"{FIRST}.timeindex", 6, "not in order"),
        (f"{'12'.zfill(20)}.snapshot", 14, "CRC"),
        ("leader-epoch-checkpoint", 4, "follows epoch"),
        ("leader-epoch-checkpoint", 10, "it has epoch"),
        ("partition.metadata", 4, "topic_id"),
        ("../recovery-point-offset-checkpoint", 0, "does not start with version 0"),
        ("../replication-offset-checkpoint", -3, "the log ends at 40"),
        ("../meta.properties", 3, "broker.id"),
    ],
)
def test_verify_names_what_is_wrong(log_dir: Path, name: str, position: int, problem: str) -> None:
    path = (log_dir / "orders-0" / name).resolve()
    if name.endswith("replication-offset-checkpoint"):
        path.write_text("0\n1\norders 0 99\n")
    elif name == "leader-epoch-checkpoint":
        path.write_text("0\n3\n1 0\n1 14\n3 28\n" if position == 4 else "0\n3\n1 0\n2 16\n3 28\n")
    elif name == "partition.metadata":
        path.write_text("version: 0\ntopic_id: short")
    elif name == "../meta.properties":
        path.write_text("broker.id=x\nversion=0\n")
    else:
        flip(path, position)
    found = findings(log_dir)
    assert any(problem in one["problem"] for one in found), found
    assert Path(found[0]["file"]).name == path.name
    assert found[0]["advice"]


def test_verify_of_a_torn_tail(tmp_path: Path) -> None:
    """A torn tail is normal after an unclean stop, and a finding after a clean one."""
    asyncio.run(write(tmp_path / "b", is_clean=False))
    last = max((tmp_path / "b" / "orders-0").glob("*.log"))
    last.write_bytes(last.read_bytes() + b"\0" * 100)
    assert findings(tmp_path / "b") == []
    (tmp_path / "b" / ".kafka_cleanshutdown").touch()
    (found,) = findings(tmp_path / "b")
    assert found["problem"] == "zeros"


def test_verify_of_a_lost_tail(tmp_path: Path) -> None:
    """After an unclean stop the indexes may name more than the log has; after a clean stop that is a finding."""
    asyncio.run(write(tmp_path / "b", batches=23, is_clean=False))
    last = max((tmp_path / "b" / "orders-0").glob("*.log"))
    last.write_bytes(last.read_bytes()[:97])
    (tmp_path / "b" / ".lock").unlink()  # this process has it still
    for checkpoint in (tmp_path / "b").glob("*-checkpoint"):
        checkpoint.unlink()
    assert findings(tmp_path / "b") == []
    (tmp_path / "b" / ".kafka_cleanshutdown").touch()
    assert any("the batches end at 97" in found["problem"] for found in findings(tmp_path / "b"))


def test_verify_compares_the_committed_batches_of_replicas(tmp_path: Path, log_dir: Path) -> None:
    other = tmp_path / "b"
    shutil.copytree(log_dir, other)
    assert findings(log_dir, other) == []
    asyncio.run(write(tmp_path / "longer", batches=25))
    (tmp_path / "longer" / "replication-offset-checkpoint").unlink()
    assert findings(log_dir, tmp_path / "longer") == []
    shutil.rmtree(other)

    asyncio.run(write(other, later=12))
    (found,) = findings(log_dir / "orders-0", other / "orders-0")
    assert found["where"].startswith("offset 24, position ")
    assert "another batch" in found["problem"]


def test_verify_of_a_run_directory(tmp_path: Path, log_dir: Path) -> None:
    for number in (1, 2):
        broker = tmp_path / "run" / f"broker-{number}"
        broker.mkdir(parents=True)
        (broker / "server.properties").write_text(f"broker.id={number}\nlog.dirs={broker}/data\n")
        shutil.copytree(log_dir, broker / "data")
    result = ottla(f"inspect verify --cluster {tmp_path}/run")
    assert result.stdout == "2 logs, 40 batches, 1 partitions compared between replicas: 0 findings\n"
