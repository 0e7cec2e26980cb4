"""ACLs on a ZooKeeper in memory: read, followed, changed by several brokers at once, whatever happens to the session."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from broker.authorization import acl_store
from broker.authorization.acl_store import AclStore, CannotChangeAcls
from broker.authorization.authorizer import Authorizer
from broker.process import announcements
from broker.process.event_log import EventLog
from protocol.acls import Acl, Operation, Pattern, PatternType, Permission, ResourceType
from protocol.types import ANONYMOUS
from protocol.zk import acl_znodes
from tests.support.fake_time import FakeTime
from tests.support.killed_writers import Killed, killed_at_each_write
from tests.support.memory_zookeeper import MemorySession, MemoryZooKeeper

ORDERS = Pattern(ResourceType.TOPIC, "orders")
TEAM = Pattern(ResourceType.TOPIC, "team-", PatternType.PREFIXED)
READ = Acl("User:*", "*", Operation.READ, Permission.ALLOW)
WRITE = Acl("User:*", "*", Operation.WRITE, Permission.ALLOW)
TURNS = 60


class Broker:
    def __init__(self, server: MemoryZooKeeper, time: FakeTime) -> None:
        self.session = MemorySession(server)
        self.authorizer = Authorizer(frozenset(), allow_if_none=False)
        zk: Any = self.session
        self.store = AclStore(self.authorizer, zk, time, EventLog(None, time))

    def may(self, operation: Operation, topic: str = "orders") -> bool:
        return self.authorizer.allows(ANONYMOUS, "10.0.0.1", operation, ResourceType.TOPIC, topic)

    async def add(self, pattern: Pattern, *acls: Acl) -> None:
        await self.store.change(pattern, lambda before: before | set(acls), 1.0)

    async def remove(self, pattern: Pattern, *acls: Acl) -> None:
        await self.store.change(pattern, lambda before: before - set(acls), 1.0)


class World:
    """Two brokers that follow the ACLs."""

    def __init__(self) -> None:
        self.server = MemoryZooKeeper()
        self.time = FakeTime(0.0)
        self.brokers = [Broker(self.server, self.time) for _ in range(2)]

    def changes(self) -> int:
        return sum(len(self.server.children(parent)) for parent in acl_znodes.CHANGES.values())


def run(scenario: Callable[[World], Coroutine[Any, Any, None]], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (acl_store, announcements):
        monkeypatch.setattr(module, "RETRY_S", 0.0)

    async def all_of_it() -> None:
        world = World()
        for broker in world.brokers:
            await broker.store.start()
        tasks = [asyncio.create_task(broker.store.run()) for broker in world.brokers]
        try:
            await scenario(world)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(all_of_it())


async def turns() -> None:
    for _ in range(TURNS):
        await asyncio.sleep(0)


def test_a_change_counts_here_at_once_and_elsewhere_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        one, other = world.brokers
        await one.add(ORDERS, READ)
        assert one.may(Operation.READ)
        await one.add(TEAM, WRITE)
        await turns()
        assert other.may(Operation.READ)
        assert other.may(Operation.WRITE, "team-orders")
        assert acl_znodes.decode(world.server.nodes["/kafka-acl/Topic/orders"].data) == {READ}
        await other.remove(ORDERS, READ)
        assert "/kafka-acl/Topic/orders" not in world.server.nodes
        await turns()
        assert not one.may(Operation.READ)
        assert world.changes() == 3
        await one.remove(ORDERS, READ)
        assert world.changes() == 3, "a change that changes nothing is not announced"

    run(scenario, monkeypatch)


def test_brokers_that_change_the_same_node_lose_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        one, other = world.brokers
        acls = [Acl(f"User:{number}", "*", Operation.READ, Permission.ALLOW) for number in range(6)]
        await asyncio.gather(*(broker.add(ORDERS, acl) for acl in acls for broker in (one, other)))
        assert acl_znodes.decode(world.server.nodes["/kafka-acl/Topic/orders"].data) == set(acls)

    run(scenario, monkeypatch)


def test_a_node_that_always_changes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        one, other = world.brokers
        await one.add(ORDERS, READ)
        path = acl_znodes.path_of(ORDERS)
        other.session.before_multi = lambda ops: world.server.ensure(path, world.server.nodes[path].data)
        with pytest.raises(CannotChangeAcls, match="Topic:LITERAL:orders"):
            await other.add(ORDERS, WRITE)

    run(scenario, monkeypatch)


def test_a_lost_answer_is_found_out_and_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        one, other = world.brokers
        one.session.lose_answers = 1
        await one.add(ORDERS, READ)
        assert one.may(Operation.READ)
        await turns()
        assert other.may(Operation.READ)

    run(scenario, monkeypatch)


@pytest.mark.parametrize("change", ["first", "more", "fewer", "none"])
async def test_a_change_by_a_broker_that_dies_is_known_to_all_or_not_made(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcements, "RETRY_S", 0.0)

    async def attempt(arm: Callable[[MemorySession], None]) -> None:
        world = World()
        one, other = world.brokers
        for broker in world.brokers:
            await broker.store.start()
        if change != "first":
            await one.add(ORDERS, READ, *[WRITE] * (change == "fewer"))
        following = asyncio.create_task(other.store.run())
        arm(one.session)
        with contextlib.suppress(Killed):
            if change in ("first", "more"):
                await one.add(ORDERS, WRITE)
            else:
                await one.remove(ORDERS, READ)
        await turns()
        node = world.server.nodes.get(acl_znodes.path_of(ORDERS))
        stored = acl_znodes.decode(node.data) if node is not None else frozenset()
        assert other.authorizer.index.patterns().get(ORDERS, frozenset()) == stored
        following.cancel()

    assert await killed_at_each_write(attempt) == 2, "before and after the only write"


def test_acls_that_a_broker_of_kafka_has_written_without_a_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """It died before it announced them. Whoever makes them again lets all know."""

    async def scenario(world: World) -> None:
        one, other = world.brokers
        world.server.ensure(acl_znodes.path_of(ORDERS), acl_znodes.encode((READ,)))
        await turns()
        assert not other.may(Operation.READ)
        await one.add(ORDERS, READ)
        await turns()
        assert other.may(Operation.READ)

    run(scenario, monkeypatch)


def test_a_new_session_reads_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(world: World) -> None:
        one, other = world.brokers
        await one.add(ORDERS, READ)
        await turns()
        other.session.expire()
        await one.remove(ORDERS, READ)
        await one.add(TEAM, READ)
        world.server.remove(next(f"/kafka-acl-changes/{name}" for name in world.server.children("/kafka-acl-changes")))
        assert other.may(Operation.READ), "what was read last counts while ZooKeeper is away"
        other.session.renew()
        await turns()
        assert not other.may(Operation.READ)
        assert other.may(Operation.READ, "team-1")

    run(scenario, monkeypatch)


def test_what_cannot_be_read_leaves_the_earlier_acls(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: World) -> None:
        one, other = world.brokers
        await one.add(ORDERS, READ)
        await turns()
        with caplog.at_level(logging.WARNING):
            world.server.ensure("/kafka-acl/Topic/orders", b"{")
            world.server.ensure("/kafka-acl-changes/acl_changes_9999999998", b"TOPIC:orders")
            world.server.ensure("/kafka-acl-changes/acl_changes_9999999999", b"\xff")
            await turns()
        assert other.may(Operation.READ)
        assert "the ACLs of 'Topic:LITERAL:orders' cannot be read" in caplog.text
        assert "acl_changes_9999999999' cannot be read" in caplog.text
        world.server.ensure("/kafka-acl/Unheard", b"")
        third = Broker(world.server, world.time)
        await third.store.start()
        assert not third.may(Operation.READ)
        assert "'Unheard' is not a type of resources" in caplog.text

    run(scenario, monkeypatch)


def test_what_could_never_be_read_denies_everything(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(world: World) -> None:
        one, _ = world.brokers
        await one.add(Pattern(ResourceType.TOPIC, "*"), READ)
        world.server.ensure("/kafka-acl/Topic/orders", b"{")
        third = Broker(world.server, world.time)
        with caplog.at_level(logging.WARNING):
            await third.store.start()
        assert not third.may(Operation.READ)
        assert third.may(Operation.READ, "others")
        assert "cannot be read, everything is denied" in caplog.text
        world.server.ensure("/kafka-acl/Topic/orders", acl_znodes.encode((WRITE,)))
        world.server.ensure("/kafka-acl-changes/acl_changes_9999999998", b"TOPIC:orders")
        await third.store.start()
        assert third.may(Operation.READ)

    run(scenario, monkeypatch)


def test_thousands_of_acls_of_one_pattern_take_no_long_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are decoded and encoded in threads, and the loop goes on meanwhile."""
    in_threads: list[str] = []
    for name in ("decode", "encode"):
        work = getattr(acl_znodes, name)

        def noted(argument: Any, name: str = name, work: Callable[[Any], Any] = work) -> Any:
            if len(argument) > 1000:
                assert threading.current_thread() is not threading.main_thread()
                in_threads.append(name)
            return work(argument)

        monkeypatch.setattr(acl_znodes, name, noted)

    async def scenario(world: World) -> None:
        one, other = world.brokers
        many = [Acl(f"User:{number}", "*", Operation.READ, Permission.ALLOW) for number in range(1200)]
        await one.add(ORDERS, *many)
        await one.remove(ORDERS, many[0])
        async with asyncio.timeout(10):
            while len(other.authorizer.index) != len(many) - 1:  # noqa: ASYNC110  a thread works meanwhile
                await asyncio.sleep(0.001)
        assert {"decode", "encode"} == set(in_threads)

    run(scenario, monkeypatch)
