"""Replicas that move between the log directories of a broker while they are served (LOG-6, KIP-113)."""

from __future__ import annotations

import asyncio
import errno
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from broker.replication.log_dirs import replica_moves
from broker.replication.partition import Role
from broker.storage.directories.future_logs import REPLACES_CURRENT
from broker.storage.log import SEGMENTS_CUT_AT_ONCE, AppendInfo, Log, ReadResult
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.record_batch import build_batch, decode_records
from protocol.types import TopicPartition
from tests.support.held_syncs import held_syncs, turns
from tests.support.logs import check, everything, split
from tests.support.replica_cluster import TP, Cluster, Node, values_of


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_moves, "COPY_BYTES", 300)
    monkeypatch.setattr(replica_moves, "LAST_BYTES_MAX", 600)


@pytest.fixture
def cluster(cluster: Cluster) -> Cluster:
    cluster.disks = 2
    return cluster


def directories(node: Node) -> tuple[str, str]:
    """(where the log is, the other one)."""
    log = node.logs.get(TP)
    assert log is not None
    (other,) = [path for path in node.logs.directories if path != log.log_dir]
    return log.log_dir, other


async def moved(node: Node, directory: str) -> None:
    async with asyncio.timeout(10):
        await node.manager.moves.done()
    assert directories(node)[0] == directory


def remains(directory: str) -> list[str]:
    """What the partition has there."""
    return sorted(path.name for path in Path(directory).iterdir() if path.name.startswith(str(TP)))


def error_of(move: Callable[[], None]) -> ErrorCode:
    with pytest.raises(KafkaError) as refused:
        move()
    return refused.value.code


async def test_a_leader_moves_under_load(cluster: Cluster) -> None:
    """It is served during the move. Records written meanwhile are kept, and the high watermark does not change."""
    node = await cluster.start_led(1)
    wanted = [f"v{number}" for number in range(60)]
    for value in wanted[:40]:
        cluster.produce(1, value)
    source, target = directories(node)
    node.manager.moves.move(TP, target)
    for value in wanted[40:]:
        assert cluster.produce(1, value)[0].error == ErrorCode.NONE
        await asyncio.sleep(0)
    await moved(node, target)
    assert node.records() == wanted
    assert node.partition().high_watermark == 60
    assert node.partition().role is Role.LEADER
    assert cluster.produce(1, "after")[0].base_offset == 60
    assert values_of(cluster.consume(1, 59)[0])[-2:] == ["v59", "after"]
    assert remains(source) == []
    assert remains(target) == ["t-0"]
    assert "t 0 60" in (Path(target) / "replication-offset-checkpoint").read_text()


async def test_a_follower_moves_and_is_cut_meanwhile(pair: Cluster) -> None:
    """A truncation of the log truncates the copy too: records that another leader replaced do not return (REP-6)."""
    pair.produce(1, *(f"v{number}" for number in range(10)))
    await pair.settle()
    pair.produce(2, "x")
    node = pair.nodes[2]
    _, target = directories(node)
    log = node.log()
    future = node.logs.make_future(TP, target)
    future.append_as_follower(memoryview(b"".join(map(bytes, log.read(0, 2**20, 10, True).records))))
    node.partition().truncate(0)
    assert future.log_end_offset == 0
    node.manager.moves.wake()
    await moved(node, target)
    await pair.settle()
    assert node.records() == pair.nodes[1].records()


async def test_a_log_that_is_cut_and_grows_again_during_a_cold_read(
    pair: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """BUG-12: records that were read for the copy's earlier end would leave a hole in the copy."""
    for number in range(20):
        pair.produce(1, f"v{number}")
    await pair.settle()
    node = pair.nodes[2]
    _, target = directories(node)
    log = node.log()
    future = node.logs.make_future(TP, target)
    read_cold = Log.read_cold
    reads = 0

    async def cut_in_between(read: Log, *args: Any, **kwargs: Any) -> ReadResult:
        nonlocal reads
        reads += 1
        if reads == 2:
            data = b"".join(map(bytes, log.read(0, 2**20, 20, True).records))
            node.partition().truncate(0)
            log.append_as_follower(memoryview(data))
        return await read_cold(read, *args, **kwargs)

    monkeypatch.setattr(Log, "read_cold", cut_in_between)
    node.manager.moves.wake()
    await moved(node, target)
    assert reads > 2
    assert future.segments[0].base_offset == 0
    assert [header.base_offset for header in check(future)] == list(range(20))
    assert node.records() == pair.nodes[1].records()


async def copied(cluster: Cluster) -> tuple[Node, Log]:
    """A follower, and a whole copy of its log, which has many segments."""
    await cluster.start_led(1, 2, overrides={"segment.bytes": "160"})
    for number in range(60):
        cluster.produce(1, f"v{number}", producer_id=7, producer_epoch=0, base_sequence=number)
        await cluster.replicate(2)
    node = cluster.nodes[2]
    copy = node.logs.make_future(TP, directories(node)[1])
    for one in split(everything(node.log())):
        copy.append_as_follower(memoryview(one))
    assert len(copy.segments) > 5 * SEGMENTS_CUT_AT_ONCE
    return node, copy


def values(log: Log) -> list[str]:
    """Of all records, in all segments."""
    return [(record.value or b"").decode() for one in split(everything(log)) for record in decode_records(one)]


def in_pauses(node: Node, act: Callable[[int], object]) -> None:
    """Calls it with the number of each pause of work on a log, from 1."""
    numbers = itertools.count(1)

    async def pause() -> None:
        act(next(numbers))
        await asyncio.sleep(0)

    node.logs.upkeep.pause = pause


@pytest.mark.parametrize("offset", [0, 5, 31])
async def test_a_copy_of_many_segments_is_cut_in_parts(cluster: Cluster, offset: int) -> None:
    """NET-4. It does not count as a copy before, even if the log has grown to the same end."""
    node, copy = await copied(cluster)
    segments = [len(copy.segments)]
    in_pauses(node, lambda number: segments.append(len(copy.segments)))
    node.partition().truncate(offset)
    assert len(copy.segments) == segments[0]
    for number in range(offset, 60):
        node.log().append_as_leader(build_batch([(None, b"other %d" % number, (), number)]), 1)
    node.manager.moves.wake()
    await moved(node, copy.log_dir)
    assert values(node.log()) == [*(f"v{n}" for n in range(offset)), *(f"other {n}" for n in range(offset, 60))]
    check(copy)
    assert max(before - after for before, after in itertools.pairwise(segments)) == SEGMENTS_CUT_AT_ONCE


def cut_further(node: Node) -> None:
    node.partition().truncate(max(node.log().log_end_offset - 1, 0))


def empty(node: Node) -> None:
    node.partition().restart_at(100)


def lose_what_the_copy_lacks(node: Node) -> None:
    """Retention overtakes the copy."""
    node.log().append_as_leader(build_batch([(None, b"last", (), 0)]), 1)
    node.log().increment_log_start(node.log().log_end_offset)


def call_off(node: Node) -> None:
    node.manager.moves.move(TP, node.log().log_dir)


@pytest.mark.parametrize("change", [cut_further, empty, lose_what_the_copy_lacks, call_off])
@pytest.mark.parametrize("at", [1, 2, 6])
async def test_the_log_changes_while_its_copy_is_cut(cluster: Cluster, change: Callable[[Node], None], at: int) -> None:
    node, copy = await copied(cluster)
    source = node.log().log_dir
    in_pauses(node, lambda number: change(node) if number == at else None)
    node.partition().truncate(5)
    node.log().append_as_leader(build_batch([(None, b"other", (), 0)]), 1)
    node.manager.moves.wake()
    await moved(node, source if change is call_off else copy.log_dir)
    node.log().append_as_leader(build_batch([(None, b"later", (), 0)]), 1)
    check(node.log())
    expected = {
        cut_further: [*(f"v{number}" for number in range(5))],
        call_off: [*(f"v{n}" for n in range(5)), "other"],
    }
    assert values(node.log())[:-1] == expected.get(change, [])


async def test_refused_moves(cluster: Cluster) -> None:
    await cluster.start(1)
    node = cluster.nodes[1]
    moves = node.manager.moves
    second = node.logs.directories[1]
    assert error_of(lambda: moves.move(TP, "/nowhere")) is ErrorCode.LOG_DIR_NOT_FOUND
    assert error_of(lambda: moves.move(TopicPartition("t" * 230, 0), second)) is ErrorCode.INVALID_TOPIC_EXCEPTION
    assert error_of(lambda: moves.move(TP, second)) is ErrorCode.REPLICA_NOT_AVAILABLE
    cluster.lead(1, 0, (1,))
    source, other = directories(node)
    assert source == second, "remembered"
    moves.move(TP, source)  # there already
    assert len(node.logs.futures) == 0
    node.manager.failures.directory_failed(other)
    assert error_of(lambda: moves.move(TP, other)) is ErrorCode.KAFKA_STORAGE_ERROR


async def test_a_move_back_cancels_a_move(cluster: Cluster) -> None:
    node = await cluster.start_led(1)
    cluster.produce(1, "a")
    source, target = directories(node)
    node.manager.moves.move(TP, target)
    node.manager.moves.move(TP, source)
    assert len(node.logs.futures) == 0
    await asyncio.sleep(0.01)
    assert directories(node)[0] == source
    assert node.records() == ["a"]


async def test_a_throttled_move_waits_and_is_shown(cluster: Cluster) -> None:
    """With `replica.alter.log.dirs.io.max.bytes.per.second` 0, nothing is copied. With a higher rate, the move continues."""
    node = await cluster.start_led(1)
    cluster.produce(1, "a")
    _, target = directories(node)
    node.manager._move_throttle.rate = 0
    node.manager.moves.move(TP, target)
    for _ in range(50):
        await asyncio.sleep(0)
    future = node.logs.futures.get(TP)
    assert future is not None
    assert future.log_end_offset == 0
    node.manager._move_throttle.rate = 2**62
    node.manager.moves.wake()
    await moved(node, target)


async def test_a_move_continues_after_a_restart(cluster: Cluster) -> None:
    """The topic's settings stay, although the start has opened the copy without them."""
    kept = {"retention.ms": "-1"}
    node = await cluster.start_led(1, overrides=kept)
    cluster.produce(1, "a", "b")
    _, target = directories(node)
    node.manager._move_throttle.rate = 0
    node.manager.moves.move(TP, target)
    await node.manager.moves.close()
    cluster.kill(1)
    node = await cluster.start_broker(1)
    assert node.logs.futures.get(TP) is not None
    cluster.lead(1, 1, (1,), is_new=False, overrides=kept)
    await moved(node, target)
    assert node.records() == ["a", "b"]
    assert (node.log().overrides, node.log().config.retention_ms) == (kept, -1)


async def test_a_failure_of_the_target_disk_ends_the_move(cluster: Cluster) -> None:
    """The replica is served where it is."""
    node = await cluster.start_led(1)
    cluster.produce(1, "a")
    source, target = directories(node)
    reported: list[bool] = []
    node.manager.failures.on_failure = lambda: reported.append(True)
    write = node.logs._filesystem.write_atomically

    def broken(path: str, data: bytes, *, sync: bool = True) -> None:
        if path.startswith(target):
            raise OSError(errno.EIO, path)
        write(path, data, sync=sync)

    node.manager.moves.move(TP, target)
    node.logs._filesystem.write_atomically = broken  # type: ignore[method-assign]
    async with asyncio.timeout(10):
        await node.manager.moves.done()
    assert reported == [True]
    assert node.logs.offline_dirs == (target,)
    assert cluster.produce(1, "b")[0].error == ErrorCode.NONE
    assert directories(node)[0] == source
    assert node.records() == ["a", "b"]


def left_of_move(source: str, target: str) -> tuple[list[str], bool]:
    """(what the partition has in the old place, whether the log still has the mark of a copy)."""
    return remains(source), (Path(target) / str(TP) / REPLACES_CURRENT).exists()


@pytest.mark.parametrize(("number", "is_finished"), [(errno.EMFILE, True), (errno.EIO, False)])
async def test_the_old_log_stays_until_the_new_one_is_safe(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, number: int, is_finished: bool
) -> None:
    """The checkpoint fails once. If it is not tried again, the log keeps its mark, and after a move back and a power loss two logs may have
    it. If the new place has failed, the next start decides."""
    monkeypatch.setattr(replica_moves, "PAUSE_S_MAX", 0.001)
    node = await cluster.start_led(1)
    cluster.produce(1, "a")
    source, target = directories(node)
    failures = [OSError(number, "checkpoint")]
    checkpoint = node.manager.moves._checkpoint

    async def failing_once() -> None:
        if failures:
            raise node.logs.reported(target, failures.pop())
        await checkpoint()

    monkeypatch.setattr(node.manager.moves, "_checkpoint", failing_once)
    node.manager.moves.move(TP, target)
    async with asyncio.timeout(10):
        await node.manager.moves.done()
    left, is_marked = left_of_move(source, target)
    assert (len(left), is_marked) == ((0, False) if is_finished else (1, True))
    assert (node.logs.get(TP) is not None) is is_finished


@pytest.mark.parametrize(("number", "times"), [(errno.ENOMEM, 3), (errno.EIO, 1)])
async def test_a_move_that_cannot_be_given_up_now_does_not_end_the_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, number: int, times: int
) -> None:
    """The copy cannot be written, and cannot be removed either. After a temporary error it is removed later."""
    monkeypatch.setattr(replica_moves, "PAUSE_S_MAX", 0.001)
    node = await cluster.start_led(1)
    cluster.produce(1, "a")
    source, target = directories(node)
    refusals = [OSError(number, "rename")] * times
    rename = node.logs._filesystem.rename

    def refused(records: memoryview) -> AppendInfo:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE)

    def refuse(old: str, new: str) -> None:
        if old.endswith("-future") and refusals:
            raise refusals.pop()
        rename(old, new)

    node.logs._filesystem.rename = refuse  # type: ignore[method-assign]
    node.manager.moves.move(TP, target)
    copy = node.logs.futures.get(TP)
    assert copy is not None
    copy.append_as_follower = refused  # type: ignore[method-assign]
    async with asyncio.timeout(10):
        await node.manager.moves.done()
    assert len(node.logs.futures) == 0
    assert refusals == []
    assert node.logs.offline_dirs == ((target,) if number == errno.EIO else ())
    assert directories(node)[0] == source


async def test_a_replica_that_may_be_on_an_offline_disk_is_not_created_again(cluster: Cluster) -> None:
    """KIP-112: except one that the controller calls new."""
    await cluster.start(1)
    node = cluster.nodes[1]
    node.manager.failures.directory_failed(node.logs.directories[0])
    answer = cluster.lead(1, 3, (1,), is_new=False)[1]
    assert [row.error for row in answer.partitions] == [ErrorCode.KAFKA_STORAGE_ERROR]
    assert node.logs.get(TP) is None
    assert cluster.produce(1, "a")[0].error == ErrorCode.KAFKA_STORAGE_ERROR
    again = cluster.lead(1, 3, (1,), is_new=False)[1]
    assert [row.error for row in again.partitions] == [ErrorCode.KAFKA_STORAGE_ERROR], "also in the same epoch"


async def test_when_the_last_disk_fails_the_broker_stops(cluster: Cluster) -> None:
    """LOG-6: each failure is reported once."""
    await cluster.start(1)
    node = cluster.nodes[1]
    reported: list[str] = []
    node.manager.failures.on_failure = lambda: reported.append("one")
    node.manager.failures.on_all_failed = lambda: reported.append("all")
    first, second = node.logs.directories
    for path in (first, first, second, second):
        node.manager.failures.directory_failed(path)
    assert reported == ["one", "all"]


async def test_a_log_that_is_flushed_all_the_time_moves(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """`flush.messages`, and records in each turn. What was synced in the old place is synced in the new one; producers are answered."""
    held_syncs(monkeypatch).are_held = False
    node = await cluster.start_led(1, overrides={"flush.messages": "1"})
    answers = [cluster.produce(1, "a", acks=acks) for acks in (1, -1)]
    futures = node.logs.futures
    declare = futures.declare_complete
    declared: list[Log] = []

    def declare_complete(future: Log) -> None:
        declare(future)
        declared.append(future)
        assert len(declared) < 9, "it moves never"
        answers.append(cluster.produce(1, f"v{len(declared)}", acks=1))
        with pytest.raises(StopIteration):
            node.log().flush().send(None)

    monkeypatch.setattr(futures, "declare_complete", declare_complete)
    _, target = directories(node)
    node.manager.moves.move(TP, target)
    while node.log().log_dir != target:
        answers.append(cluster.produce(1, "b", acks=1))
        await asyncio.sleep(0)
    answers.append(cluster.produce(1, "after", acks=1))
    await moved(node, target)
    await turns()
    cluster.time.turn()
    assert [[result.error for result in answer] for answer in answers] == [[ErrorCode.NONE]] * len(answers)
    assert len(node.records()) == len(answers)
    assert (node.log().recovery_point, node.log().owes_flush) == (len(answers), False)
