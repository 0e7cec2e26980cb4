"""Records that the kernel sends from their file are those of their own partition, whatever happens to other files in the same turn."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, asynccontextmanager, closing, contextmanager
from pathlib import Path

import pytest

from broker.network.file_sender import FileSender
from broker.settings.config import TopicConfig
from broker.storage.disk.filesystem import FileSystem
from broker.storage.log import Log
from broker.storage.log_manager import LogManager
from broker.storage.segment import SENT_FROM_FILE
from protocol.errors import ErrorCode
from protocol.kafka.framing import StoredBytes
from protocol.types import TopicPartition
from tests.support.fake_time import FakeTime
from tests.support.logs import batch, everything, failures_of, log_of
from tests.support.refusals import refused
from tests.unit.broker.storage.disk.test_without_descriptors import all_descriptors_taken

SIZE = 2 * SENT_FROM_FILE


class CachedDisk(FileSystem):
    """All is in the page cache; this machine's kernel need not be able to say so."""

    def is_cached(self, fd: int, size: int, position: int) -> bool:
        return True


@pytest.fixture
def manager(tmp_path: Path) -> AbstractAsyncContextManager[LogManager]:
    """Partitions 0 and 2 are in one directory, 1 and 3 in another. Their files are synced and closed."""

    @asynccontextmanager
    async def running() -> AsyncIterator[LogManager]:
        disk = CachedDisk()
        found = LogManager([str(tmp_path / name) for name in "ab"], TopicConfig(), disk, FakeTime())
        failures_of(found)
        await found.start()
        for number in range(4):
            log = found.get_or_create(TopicPartition("orders", number), None, {})
            log.append_as_leader(batch(1, size=SIZE, mark=number), 0)
            await log.flush()
        await asyncio.sleep(0)
        rest(found)
        yield found
        await asyncio.sleep(0)
        rest(found)
        assert len(disk.in_use) == 0, "no file is kept open any more"
        await found.shutdown()

    return running()


def rest(manager: LogManager) -> None:
    for log in manager.logs():
        log.segments[0].rest()


def partition(manager: LogManager, number: int) -> Log:
    return log_of(manager, TopicPartition("orders", number))


def stored(log: Log) -> StoredBytes:
    found = log.read(0, 2**30, log.log_end_offset, True, may_be_stored=True).stored
    assert found is not None
    return found


def content(log: Log) -> bytes:
    return Path(log.segments[0].path).read_bytes()


@contextmanager
def opened_often(log: Log) -> Iterator[None]:
    """The numbers that are free now are those of its file."""
    with ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(Path(log.segments[0].path).open("rb"))
        yield


def is_of(data: bytes, log: Log) -> bool:
    return bool(data) and content(log).startswith(data)


def sent(part: StoredBytes) -> bytes:
    """What a client gets of it: as much as its socket takes."""
    ours, client = socket.socketpair()
    with ours, client:
        ours.setblocking(False)
        sender = FileSender(os.dup(ours.fileno()))
        count = sender.send([part])
        with closing(sender._socket):
            return client.recv(count, socket.MSG_WAITALL) if count else b""


async def test_a_file_of_an_answer_stays_open_while_other_partitions_are_read(manager: LogManager) -> None:
    """Without a free descriptor, the second read closes another file. If that were the first one, it would get its number."""
    first, second, unused = (partition(manager, number) for number in range(3))
    one = stored(first)
    with all_descriptors_taken(), refused(ErrorCode.KAFKA_STORAGE_ERROR):
        stored(second)
    assert is_of(sent(one), first)
    everything(unused)
    with all_descriptors_taken():
        two = stored(second)
    assert unused.segments[0]._fd is None
    assert is_of(sent(one), first)
    assert is_of(sent(two), second)
    assert manager.offline_dirs == ()


async def test_a_directory_that_fails_while_an_answer_is_made(manager: LogManager) -> None:
    """Its files are closed, and what is opened next gets their numbers."""
    first, second = partition(manager, 0), partition(manager, 1)
    one = stored(first)
    manager.fail_directory(first.log_dir)
    with opened_often(second):
        assert is_of(sent(one), first)
        assert one.read(10) == content(first)[10:]
    await asyncio.sleep(0)
    assert not first.segments[0]._pins
    assert first.segments[0]._fd is None


async def test_a_part_that_is_kept_for_too_long_sends_nothing_else(manager: LogManager) -> None:
    first, second = partition(manager, 0), partition(manager, 1)
    one = stored(first)
    await asyncio.sleep(0)
    rest(manager)
    with opened_often(second):
        assert is_of(sent(one), first)
    rest(manager)
    manager.fail_directory(first.log_dir)
    with opened_often(second):
        assert sent(one) == b""
        with refused(ErrorCode.KAFKA_STORAGE_ERROR):
            one.read()
