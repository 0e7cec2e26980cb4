"""A broker's znode: kept against deletions at any moment, and against another live process with the same id (STA-4, BUG-7, BUG-17)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from broker.cluster import registration
from broker.cluster.registration import BrokerIdInUse, ClusterIdUnreadable, Registration, cluster_id
from broker.process.event_log import EventLog
from protocol.types import BrokerInfo, Endpoint
from protocol.zk.session import ConnectionLoss, NoNode, SessionState, SetOp, Stat, WatchCallback
from protocol.zk.znodes import BrokerIdZNode, ClusterIdZNode
from tests.support.fake_time import FakeTime
from tests.support.memory_zookeeper import MemorySession, MemoryZooKeeper

PATH = BrokerIdZNode.path(1)


class Session(MemorySession):
    """`after_exists` is called once, when the answer of `exists` has arrived and is not handled yet. `fail_exists`: the answer is lost.

    `turns` of the loop pass before each request is sent.
    """

    session_timeout_ms = 6000
    after_exists: Callable[[], None] | None = None
    fail_exists = False
    turns = 1

    async def _turn(self) -> None:
        for _ in range(self.turns):
            await super()._turn()

    async def exists(self, path: str, watch: WatchCallback | None = None) -> Stat | None:
        if self.fail_exists:
            self.fail_exists = False
            self.change_state(SessionState.SUSPENDED)
            raise ConnectionLoss(path)
        stat = await super().exists(path, watch)
        what, self.after_exists = self.after_exists, None
        if what is not None:
            what()
        return stat


class Process:
    """The registration of a broker process."""

    def __init__(self, server: MemoryZooKeeper, port: int = 9) -> None:
        self.session = Session(server)
        self.lost: list[str] = []
        self.epochs: list[int] = []
        self.ended: list[BrokerIdInUse] = []
        broker = BrokerInfo(1, -1, (Endpoint("PLAINTEXT", "broker.invalid", port),))
        time = FakeTime()
        self.registration = Registration(
            self.session,  # type: ignore[arg-type]
            broker,
            time,
            EventLog(None, time),
            self.lost.append,
            self._registered,
            self.ended.append,
        )

    async def _registered(self, epoch: int) -> None:
        self.epochs.append(epoch)

    @property
    def is_registered(self) -> bool:
        node = self.session.server.nodes.get(PATH)
        return node is not None and (node.owner, node.czxid) == (self.session.session_id, self.registration.epoch)


@pytest.fixture
def server() -> MemoryZooKeeper:
    server = MemoryZooKeeper()
    server.ensure("/brokers/ids")
    return server


async def turns(count: int = 100) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def delete(server: MemoryZooKeeper) -> None:
    """The controller, or a person, deletes the broker's node."""
    server.remove(PATH)


@pytest.fixture(autouse=True)
def it_tries_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "RETRY_S", 0)


async def test_the_broker_registers_again_when_its_node_is_deleted(server: MemoryZooKeeper) -> None:
    process = Process(server)
    await process.registration.start()
    for count in (1, 2):
        delete(server)
        await turns()
        assert process.is_registered
        assert (len(process.lost), len(process.epochs)) == (count, count + 1)


@pytest.mark.parametrize("when", ["the first registration", "another one", "a look after a change"])
async def test_a_watch_that_fires_before_the_answer_is_handled_is_not_missed(
    server: MemoryZooKeeper, when: str
) -> None:
    process = Process(server)

    def deleted_meanwhile() -> None:
        process.session.after_exists = lambda: delete(server)

    if when == "the first registration":
        deleted_meanwhile()
    await process.registration.start()
    if when == "another one":
        deleted_meanwhile()
        delete(server)
    if when == "a look after a change":
        deleted_meanwhile()
        server.apply(SetOp(PATH, server.nodes[PATH].data), 0)
    await turns()
    assert process.is_registered
    delete(server)
    await turns()
    assert process.is_registered, "it still watches"


async def test_a_watch_that_could_not_be_set_is_set_after_reconnecting(server: MemoryZooKeeper) -> None:
    """A change used up the one-shot watch, and the next one could not be set."""
    process = Process(server)
    await process.registration.start()
    process.session.fail_exists = True
    server.apply(SetOp(PATH, server.nodes[PATH].data), 0)
    await turns()
    process.session.change_state(SessionState.CONNECTED)
    await turns()
    delete(server)
    await turns()
    assert process.is_registered


async def test_the_node_of_an_earlier_life_is_replaced(server: MemoryZooKeeper) -> None:
    killed, successor = Process(server), Process(server)
    await killed.registration.start()
    killed.registration.stop_watching()
    await successor.registration.start()
    await turns()
    assert successor.is_registered
    assert successor.ended == []


async def test_a_node_that_appears_while_an_earlier_lifes_is_replaced_is_waited_for(
    server: MemoryZooKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed, elsewhere, successor = Process(server), Process(server, port=10), Process(server)
    await killed.registration.start()
    killed.registration.stop_watching()
    probed = asyncio.Event()

    async def nobody_answers(_: object) -> None:
        probed.set()

    async def expired(_: str) -> Any:
        """The earlier life's session ends just before its node is read again, and another broker takes the id."""
        delete(server)
        await elsewhere.registration.start()
        elsewhere.registration.stop_watching()
        monkeypatch.undo()
        monkeypatch.setattr(registration, "RETRY_S", 0)
        monkeypatch.setattr(registration, "_first_that_answers", nobody_answers)
        raise NoNode(PATH)

    replace = successor.registration._replace_earlier_life

    async def replace_too_late(*arguments: Any) -> None:
        monkeypatch.setattr(successor.session, "get", expired)
        await replace(*arguments)

    monkeypatch.setattr(successor.registration, "_replace_earlier_life", replace_too_late)
    starting = asyncio.create_task(successor.registration.start())
    await probed.wait()
    assert elsewhere.is_registered
    delete(server)
    await starting
    assert successor.is_registered


@pytest.mark.parametrize("turns_of_the_first", [1, 3, 50])
@pytest.mark.parametrize("turns_of_the_second", [1, 3, 50])
@pytest.mark.parametrize("is_late", [False, True])
async def test_the_second_of_two_live_processes_with_one_id_and_one_address_ends(
    server: MemoryZooKeeper, is_late: bool, turns_of_the_first: int, turns_of_the_second: int
) -> None:
    """Without this rule each would replace the other's node for ever. `is_late`: the first learns of it when the second is registered.

    Either may be slower than the other: who was there first goes on all the same.
    """
    first, second = Process(server), Process(server)
    first.session.turns, second.session.turns = turns_of_the_first, turns_of_the_second
    await first.registration.start()
    if is_late:
        first.session.state = SessionState.SUSPENDED
    try:
        await second.registration.start()
    except BrokerIdInUse as error:
        second.ended.append(error)
    if is_late:
        first.session.change_state(SessionState.CONNECTED)
    await turns(1000)
    assert first.is_registered
    assert first.ended == []
    (error,) = second.ended
    assert "broker id 1" in str(error)
    assert "broker.invalid:9" in str(error)
    assert f"0x{first.session.session_id:x}" in str(error)
    writes = len(server.writes)
    await turns(1000)
    assert len(server.writes) == writes, "it is quiet"


@pytest.mark.parametrize(
    "text", ['{"id":"a\\nbroker.id=9"}', '{"id":""}', '{"id":7}', "{", '{"id":"\\ud800"}', '{"id":"' + "x" * 300 + '"}']
)
async def test_a_bad_cluster_id_is_reported_in_one_line(server: MemoryZooKeeper, text: str) -> None:
    """The id becomes a line of `meta.properties`."""
    server.ensure(ClusterIdZNode.PATH, text.encode())
    with pytest.raises(ClusterIdUnreadable) as refused:
        await cluster_id(MemorySession(server))  # type: ignore[arg-type]
    assert str(refused.value).isprintable()
