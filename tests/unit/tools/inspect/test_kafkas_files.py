"""Files that only a real Kafka writes: transactions, indexes padded with zeros, its lock."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from broker.storage.producers import producer_snapshots
from broker.storage.producers.producer_state import ProducerState
from protocol.kafka.record_batch import BatchHeader, build_batch, parse_header
from tests.support.cli import ottla
from tests.support.compaction_workloads import ABORTED, MARKER_KEY, MARKER_VALUE
from tools.inspect import disk_files

FIRST = "0" * 20
PRODUCER = 7
TRANSACTIONAL, CONTROL = 0x10, 0x20
TEN_MB = 10 * 1024 * 1024
LOCKED = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""


def data_batch(offset: int, sequence: int) -> bytes:
    records = [(b"k", b"v", (), 1_000 + offset), (b"l", b"v", (), 1_000 + offset)]
    return build_batch(
        records,
        base_offset=offset,
        leader_epoch=0,
        producer_id=PRODUCER,
        producer_epoch=0,
        base_sequence=sequence,
        attributes=TRANSACTIONAL,
    )


def marker(offset: int, kind: int) -> bytes:
    return build_batch(
        [(MARKER_KEY.pack(0, kind), MARKER_VALUE.pack(0, 0), (), 1_000 + offset)],
        base_offset=offset,
        leader_epoch=0,
        producer_id=PRODUCER,
        producer_epoch=0,
        attributes=TRANSACTIONAL | CONTROL,
    )


def write_log(directory: Path, batches: list[bytes], snapshot_of: list[bytes] | None = None) -> None:
    """One segment, and the snapshot of a clean stop after these batches."""
    directory.mkdir(parents=True)
    (directory / f"{FIRST}.log").write_bytes(b"".join(batches))
    state = ProducerState(0)
    header: BatchHeader | None = None
    for batch in snapshot_of or batches:
        header = parse_header(batch)
        state.append(header, header.base_offset)
    assert header is not None
    snapshot = producer_snapshots.file_name(header.next_offset)
    (directory / snapshot).write_bytes(producer_snapshots.encode(state))


TWO_TRANSACTIONS = [data_batch(0, 0), marker(2, 0), data_batch(3, 2), marker(5, 1)]


def test_transactions_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "t-0"
    write_log(path, TWO_TRANSACTIONS)
    (path / f"{FIRST}.txnindex").write_bytes(ABORTED.pack(0, PRODUCER, 0, 2, 3))
    assert ottla(f"inspect verify {path}").exit_code == 0
    lines = ottla(f"inspect log {path}").stdout.splitlines()
    flags = [line.rpartition("transactional")[2] for line in lines if "transactional" in line]
    assert flags == ["", ", control, abort", "", ", control, commit"]
    assert "  aborted: producer 7, offsets 0-2" in lines
    (content,) = json.loads(ottla(f"inspect log --format json {path}").stdout)
    aborted = content["segments"][0]["aborted_transactions"]
    assert aborted == [{"producer_id": PRODUCER, "first_offset": 0, "last_offset": 2, "last_stable_offset": 3}]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (ABORTED.pack(0, PRODUCER, 0, 3, 3), "there is no marker of producer 7"),
        (ABORTED.pack(0, PRODUCER + 1, 0, 2, 3), "there is no marker of producer 8"),
        (ABORTED.pack(0, PRODUCER, 4, 2, 3), "after it"),
        (ABORTED.pack(1, PRODUCER, 0, 2, 3), "version 0"),
        (b"torn", "not a multiple of"),
    ],
)
def test_a_wrong_transaction_index_is_found(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "t-0"
    write_log(path, TWO_TRANSACTIONS)
    (path / f"{FIRST}.txnindex").write_bytes(content)
    result = ottla(f"inspect verify {path}")
    assert result.exit_code == 1
    assert problem in result.stdout


def test_a_snapshot_may_name_a_batch_that_compaction_removed(tmp_path: Path) -> None:
    """It is a finding if that offset belongs to another batch, or if the log has a later batch of the producer."""
    first, second, third = data_batch(0, 0), data_batch(2, 2), data_batch(4, 4)
    write_log(tmp_path / "taken-0", [first, third], [first, second])
    assert ottla(f"inspect verify {tmp_path}/taken-0").stdout.endswith(": 0 findings\n")
    of_another = build_batch([(b"k", b"v", (), 1_000)] * 2, base_offset=2, leader_epoch=0)
    write_log(tmp_path / "wrong-0", [first, of_another, third], [first, second])
    assert "it has sequence 3 at offset 3" in ottla(f"inspect verify {tmp_path}/wrong-0").stdout
    write_log(tmp_path / "old-0", [first, second, third], [first, data_batch(4, 6)])
    assert "it has sequence 7 at offset 5" in ottla(f"inspect verify {tmp_path}/old-0").stdout


def test_zeros_at_the_end_of_an_index_are_no_entries(tmp_path: Path) -> None:
    """Kafka makes the active segment's indexes 10 MB long, and cuts them when it rolls or stops."""
    path = tmp_path / "index"
    path.write_bytes(bytes(TEN_MB))
    assert disk_files.offset_index(path, 5) == []
    path.write_bytes(bytes(TEN_MB // 12 * 12))
    assert disk_files.time_index(path, 5) == []
    path.write_bytes(bytes([0, 0, 0, 1, 0, 0, 2, 0]) + bytes(TEN_MB))
    assert disk_files.offset_index(path, 5) == [(6, 512)]


def test_the_lock_of_a_running_kafka_is_seen(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    assert not disk_files.is_in_use(tmp_path)
    command = [sys.executable, "-c", LOCKED, str(tmp_path / ".lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "locked\n"
        assert disk_files.is_in_use(tmp_path)
        other.stdin.close()
    assert not disk_files.is_in_use(tmp_path)


def test_a_checkpoint_that_kafka_created_empty(tmp_path: Path) -> None:
    write_log(tmp_path / "t-0", TWO_TRANSACTIONS)
    for name in (disk_files.CLEANED, disk_files.RECOVERY_POINTS, disk_files.HIGH_WATERMARKS, disk_files.LOG_STARTS):
        (tmp_path / name).touch()
    assert ottla(f"inspect verify {tmp_path}").exit_code == 0
    (tmp_path / disk_files.CLEANED).write_bytes(b"0\n2\nt 0 5\n")
    assert "expected 2 rows, found 1" in ottla(f"inspect verify {tmp_path}").stdout


def test_a_partition_that_was_just_created(tmp_path: Path) -> None:
    (tmp_path / "t-0").mkdir()
    assert ottla(f"inspect verify {tmp_path}").stdout.startswith("1 logs, 0 batches")
    (tmp_path / "t-0" / f"{FIRST}.index").touch()
    assert "there is no log" in ottla(f"inspect verify {tmp_path}").stdout
    assert "0 segments" in ottla(f"inspect log {tmp_path}/t-0").stdout
