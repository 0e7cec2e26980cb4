"""What is announced on a ZooKeeper in memory is read, whatever the announcements contain and whatever happens to the session."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from broker.process import announcements
from broker.process.announcements import Announcements
from protocol.zk.session import ConnectionLoss, SessionState
from tests.support.fake_time import FakeTime
from tests.support.memory_zookeeper import MemorySession, MemoryZooKeeper

ONE, OTHER = "/changes", "/other-changes"
ALL = ["everything"]
TURNS = 50


class World:
    """A follower of two nodes. `read` has what it read, in order."""

    def __init__(self) -> None:
        self.server = MemoryZooKeeper()
        for parent in (ONE, OTHER):
            self.server.ensure(parent)
        self.session = MemorySession(self.server)
        self.time = FakeTime(0.0)
        self.read: list[Sequence[str]] = []
        self.failures: list[Exception] = []
        self.announcements = Announcements(
            self.session,  # type: ignore[arg-type]
            self.time,
            self,
            {ONE: bytes.decode, OTHER: lambda data: "other " + data.decode()},
            "things",
        )

    async def __aenter__(self) -> World:
        await self.announcements.start()
        assert self.read == [ALL]
        self.read.clear()
        self._task = asyncio.create_task(self.announcements.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def read_all(self) -> None:
        self._read(ALL)

    async def read_changed(self, entities: Sequence[str]) -> None:
        self._read(entities)

    def _read(self, entities: Sequence[str]) -> None:
        if self.failures:
            raise self.failures.pop()
        self.read.append(entities)

    def tell(self, entity: str, parent: str = ONE) -> None:
        self.server.create(f"{parent}/change_", entity.encode(), is_sequential=True)

    def changes(self, parent: str = ONE) -> list[str]:
        return sorted(self.server.children(parent))


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(announcements, "RETRY_S", 0)
    return World()


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def test_what_is_announced_is_read_once_and_in_order(world: World) -> None:
    for entity in ("b", "a", "b"):
        world.tell(entity)
    world.tell("c", OTHER)
    await turns()
    assert world.read == [["b", "a", "other c"]]
    world.tell("a")
    await turns()
    assert world.read[1:] == [["a"]]


async def test_a_new_session_reads_everything(world: World) -> None:
    """STA-4: a change without a watch is not missed, and the watch is set again."""
    world.session.expire()
    world.tell("a")
    world.server.remove(f"{ONE}/{world.changes()[0]}")  # purged long ago
    await turns()
    assert world.read == []
    world.session.renew()
    await turns()
    world.tell("b")
    await turns()
    assert world.read == [ALL, ["b"]]


async def test_a_broken_connection_delays_a_change_and_loses_none(world: World) -> None:
    world.tell("a")
    world.session.change_state(SessionState.SUSPENDED)
    await turns()
    assert world.read == []
    world.session.change_state(SessionState.CONNECTED)
    await turns()
    assert world.read == [["a"]]


@pytest.mark.parametrize("failure", [ConnectionLoss("lost"), ValueError("a bug")], ids=lambda one: type(one).__name__)
async def test_what_could_not_be_read_is_read_with_the_next_change(world: World, failure: Exception) -> None:
    world.failures.append(failure)
    world.tell("a")
    await turns()
    world.tell("b")
    await turns()
    assert [entity for read in world.read for entity in read] == ["a", "b"]
    world.session.expire()
    world.failures.append(failure)
    world.session.renew()
    await turns()
    world.read.clear()
    world.failures.append(failure)
    world.session.expire()
    world.session.renew()
    world.tell("c")
    await turns()
    world.tell("d")
    await turns()
    assert world.read[0] == ALL


async def test_an_announcement_that_cannot_be_read_does_not_hold_up_the_next(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        world.server.ensure(f"{ONE}/hand-made", b"\xff")
        world.server.create(f"{ONE}/change_", b"\xff", is_sequential=True)
        world.tell("a")
        await turns()
    assert world.read == [["a"]]
    assert "/changes/'hand-made' cannot be read" in caplog.text


@pytest.mark.parametrize(
    "name", ["change_9999999999", "change_" + "9" * 5000, "x", "change_²", "9" * 30], ids=lambda name: name[:20]
)
async def test_an_odd_name_does_not_hide_later_changes(world: World, name: str) -> None:
    """The largest sequence number, or a number that Python cannot read."""
    world.server.ensure(f"{ONE}/{name}", b"a")
    await turns()
    world.tell("b")
    await turns()
    assert world.read == [["a"], ["b"]]


async def test_old_announcements_are_removed_and_young_ones_stay(world: World) -> None:
    """The server in memory makes all nodes at time 0; Kafka keeps them for 15 minutes."""
    world.time.now = announcements.CHANGE_KEPT_MS / 1000
    world.tell("a")
    await turns()
    assert len(world.changes()) == 1
    world.time.now += 1
    world.tell("a", OTHER)
    await turns()
    assert world.changes() == world.changes(OTHER) == []


async def test_one_that_cannot_be_removed_does_not_prevent_the_removal_of_others(world: World) -> None:
    world.server.ensure(f"{ONE}/a/child")
    world.tell("a")
    world.time.advance(announcements.CHANGE_KEPT_MS / 1000 + 1)
    world.tell("b")
    await turns()
    assert world.changes() == ["a"]


async def test_the_oldest_of_too_many_are_removed_early(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client can create hundreds in a second, and after each, every broker lists all of them."""
    monkeypatch.setattr(announcements, "CHANGES_MAX", 5)
    last: list[str] = []
    for _ in range(20):
        world.tell("a")
        last = [*last, *world.changes()[-1:]][-5:]
        await turns()
    assert world.changes() == last
