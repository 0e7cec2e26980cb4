"""CTL-2: each step of taking office, in its order, seen from ZooKeeper and from the brokers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from controller.reactions import failover
from protocol.rpc.messages import LeaderAndIsrRequest, UpdateMetadataRequest
from protocol.types import NO_LEADER, LeaderAndIsr, TopicPartition
from protocol.zk.session import CreateOp, SetOp
from protocol.zk.znodes import (
    BrokerIdZNode,
    ControllerEpochZNode,
    ControllerZNode,
    IsrChangeZNode,
    PartitionStateZNode,
    PreferredElectionZNode,
    ReassignPartitionsZNode,
    TopicZNode,
)
from tests.support.memory_cluster import MemoryCluster, on_cluster, scenario

SUCCESSOR = 2


class Journal:
    """What the next controller reads, watches, writes and sends, in order: (verb, path or kind of request)."""

    def __init__(self, cluster: MemoryCluster) -> None:
        self.lines: list[tuple[str, str]] = []
        session = cluster.sessions[SUCCESSOR]
        for name in ("get", "exists", "children"):
            self._record_reads(session, name)
        before = session.before_multi

        def write(ops: Any) -> None:
            self.lines += [("write", op.path) for op in ops if isinstance(op, CreateOp | SetOp)]
            before(ops)

        session.before_multi = write
        get_many = session.get_many

        async def read_many(paths: Any, watch: Any = None) -> Any:
            self.lines += [("watch" if watch is not None else "read", path) for path in paths]
            return await get_many(paths, watch)

        session.get_many = read_many  # type: ignore[method-assign]
        for broker_id, broker in cluster.running.items():
            self._record_requests(broker_id, broker)

    def _record_reads(self, session: Any, name: str) -> None:
        original = getattr(session, name)

        async def recorded(path: str, watch: Any = None) -> Any:
            self.lines.append(("watch" if watch is not None else "read", path))
            return await original(path, watch)

        setattr(session, name, recorded)

    def _record_requests(self, broker_id: int, broker: Any) -> None:
        original = broker.handle

        def handle(request: Any) -> Any:
            self.lines.append(("send", f"{type(request).__name__} to {broker_id}"))
            return original(request)

        broker.handle = handle

    def first(self, verb: str, what: str) -> int:
        return self.lines.index((verb, what))

    def last(self, verb: str, what: str) -> int:
        return len(self.lines) - 1 - self.lines[::-1].index((verb, what))

    def sent(self, kind: type) -> list[int]:
        return [i for i, (verb, what) in enumerate(self.lines) if verb == "send" and what.startswith(kind.__name__)]


def takeover(
    check: Callable[[MemoryCluster, Journal], None],
    meanwhile: Callable[[MemoryCluster], None] = lambda _: None,
    **settings: Any,
) -> None:
    """Broker 1 is the controller and dies, broker 2 takes over; `meanwhile` happens while nobody is controller."""

    async def play(cluster: MemoryCluster) -> None:
        await cluster.create_topic("t", {0: (3, 2), 1: (2, 3), 2: (1, 3)})
        journal = Journal(cluster)
        cluster.crash(1)
        meanwhile(cluster)
        await cluster.settle()
        assert cluster.controller == SUCCESSOR
        check(cluster, journal)

    started: Callable[[MemoryCluster], Awaitable[None]] = play
    scenario(started, 1, 2, 3, **settings)


def test_step_1_the_epoch_is_raised_in_the_multi_that_wins() -> None:
    """INV-9: before anything is watched, read or sent."""

    def check(cluster: MemoryCluster, journal: Journal) -> None:
        assert cluster.controller_epoch == 2
        won = journal.first("write", ControllerZNode.PATH)
        assert journal.lines[won + 1] == ("write", ControllerEpochZNode.PATH)
        before = {what for verb, what in journal.lines[:won] if verb != "send"}
        assert before <= {ControllerZNode.PATH, ControllerEpochZNode.PATH}

    takeover(check)


def test_step_2_watches_come_in_kafkas_order_and_before_the_states_are_read() -> None:
    def check(_: MemoryCluster, journal: Journal) -> None:
        order = [ReassignPartitionsZNode.PATH, PreferredElectionZNode.PATH, TopicZNode.PARENT, BrokerIdZNode.PARENT]
        watched = [journal.first("watch", path) for path in order]
        assert watched == sorted(watched)
        states = journal.first("read", PartitionStateZNode.path(TopicPartition("t", 0)))
        assert max(watched) < states, "a change after the read fires a watch"
        assert journal.first("watch", IsrChangeZNode.PARENT) < states, "or is announced"
        assert journal.first("watch", TopicZNode.path("t")) < states

    takeover(check)


def test_step_3_the_whole_context_is_read_before_anything_is_sent() -> None:
    def check(_: MemoryCluster, journal: Journal) -> None:
        sent = min(journal.sent(UpdateMetadataRequest))
        for partition in range(3):
            assert journal.first("read", PartitionStateZNode.path(TopicPartition("t", partition))) < sent
        for broker in (2, 3):
            assert journal.first("read", BrokerIdZNode.path(broker)) < sent

    takeover(check)


def test_step_4_every_live_broker_gets_the_whole_metadata_first() -> None:
    def check(cluster: MemoryCluster, journal: Journal) -> None:
        for broker in (2, 3):
            first = next(what for verb, what in journal.lines if verb == "send" and what.endswith(f"to {broker}"))
            assert first == f"UpdateMetadataRequest to {broker}"
            request = next(r for r in cluster.running[broker].requests if r.controller_epoch == 2)
            assert isinstance(request, UpdateMetadataRequest)
            assert request.is_full
            assert {state.topic_partition for state in request.partitions} == {
                TopicPartition("t", partition) for partition in range(3)
            }

    takeover(check)


def test_step_5_the_state_machines_make_good_what_happened_meanwhile() -> None:
    """A topic that was made, and the leader that died with its controller, while nobody was in office."""

    def meanwhile(cluster: MemoryCluster) -> None:
        cluster.put_topic("new", {0: (3, 2)})

    def check(cluster: MemoryCluster, _: Journal) -> None:
        assert cluster.state("new") == LeaderAndIsr(3, 0, (3, 2), 2, 0)
        assert cluster.state("t", 2) == LeaderAndIsr(3, 1, (3,), 2, 1)

    takeover(check, meanwhile)


def test_step_6_a_preferred_election_under_way_is_resumed() -> None:
    """Reassignments and deletions have tests of their own: each of their persisted steps is a point to resume at."""

    def meanwhile(cluster: MemoryCluster) -> None:
        cluster.server.ensure(PreferredElectionZNode.PATH, PreferredElectionZNode.encode([TopicPartition("t", 0)]))

    async def play(cluster: MemoryCluster) -> None:
        await cluster.create_topic("t", {0: (3, 2)})
        await cluster.bounce(3)
        cluster.leader_writes_isr("t", 0, (2, 3))
        await cluster.settle()
        assert cluster.state("t").leader == 2
        cluster.crash(1)
        meanwhile(cluster)
        await cluster.settle()
        assert cluster.state("t").leader == 3
        assert PreferredElectionZNode.PATH not in cluster.server.nodes

    scenario(play)


def test_step_7_every_partitions_leadership_goes_to_the_live_brokers() -> None:
    def check(cluster: MemoryCluster, _: Journal) -> None:
        hosted = {2: {0, 1}, 3: {0, 1, 2}}
        for broker, partitions in hosted.items():
            full = next(
                request
                for request in cluster.running[broker].requests
                if isinstance(request, LeaderAndIsrRequest) and request.controller_epoch == 2
            )
            assert full.is_full
            assert {state.partition for state in full.partitions} == partitions

    takeover(check)


@on_cluster(leader_imbalance_check_interval_seconds=0.01)
async def test_step_8_the_rebalance_begins(cluster: MemoryCluster) -> None:
    """CTL-12: broker 3 is back in the ISR, and gets its preferred leadership from the new controller."""
    await cluster.create_topic("t", {0: (3, 2)})
    await cluster.bounce(3)
    cluster.leader_writes_isr("t", 0, (2, 3))
    await cluster.settle()
    cluster.crash(1)
    await cluster.until(lambda: cluster.state("t").leader == 3)


async def unseen(cluster: MemoryCluster, *bounced: int) -> None:
    """These die and come back, and with the controller, broker 4, dies whoever could have seen it."""
    cluster.crash(4)
    for broker in bounced:
        cluster.crash(broker)
    for broker in bounced:
        await cluster.launch(broker)
    await cluster.settle()
    assert cluster.controller_epoch == 2


@pytest.mark.parametrize(
    ("isr", "bounced", "expected"),
    [
        ((1, 2, 3), (1,), LeaderAndIsr(2, 1, (2, 3), 2, 2)),
        ((1,), (1,), LeaderAndIsr(1, 1, (1,), 2, 2)),
        ((1, 2, 3), (2,), LeaderAndIsr(1, 1, (1, 3), 2, 2)),
        ((1, 2), (3,), LeaderAndIsr(1, 0, (1, 2), 1, 1)),
        ((1, 2, 3), (1, 2), LeaderAndIsr(3, 1, (3,), 2, 2)),
        ((1, 2), (1, 2), LeaderAndIsr(1, 1, (1, 2), 2, 2)),
        ((1, 2, 3), (), LeaderAndIsr(1, 0, (1, 2, 3), 1, 1)),
    ],
    ids=["leader", "lone leader", "follower", "out of the ISR", "leader and follower", "all", "nobody"],
)
@on_cluster(4, 1, 2, 3)
async def test_bounces_before_the_term(
    cluster: MemoryCluster, isr: tuple[int, ...], bounced: tuple[int, ...], expected: LeaderAndIsr
) -> None:
    """CTL-5, INV-5, FLT-23: the registration is newer than the state."""
    await cluster.create_topic("t", {0: (1, 2, 3)})
    cluster.leader_writes_isr("t", 0, isr)
    await cluster.settle()
    await unseen(cluster, *bounced)
    assert cluster.state("t") == expected


@on_cluster(4, 1, 2, 3)
async def test_a_state_without_a_leader_is_an_ordinary_election(cluster: MemoryCluster) -> None:
    """Both members of the ISR died, and were seen: they registered after the state was written, and may lead."""
    await cluster.create_topic("t", {0: (1, 2)})
    cluster.crash(1)
    cluster.crash(2)
    await cluster.settle()
    assert cluster.state("t").leader == NO_LEADER
    isr = cluster.state("t").isr
    cluster.crash(4)
    await cluster.start(*isr)
    state = cluster.state("t")
    assert (state.leader, state.leader_epoch, state.isr) == (isr[0], 2, isr)


@on_cluster(4, 1, 2, 3)
async def test_after_a_bounce_that_was_seen_nothing_is_written(cluster: MemoryCluster) -> None:
    """The state was written after the broker was back: by its failover, and by the leader that let it in again."""
    await cluster.create_topic("t", {0: (1, 2, 3)})
    for broker in (1, 2, 3):
        await cluster.bounce(broker)
        cluster.leader_writes_isr("t", 0, (*cluster.state("t").isr, broker))
        await cluster.settle()
    before = cluster.state("t")
    assert len(before.isr) == 3
    cluster.crash(4)
    await cluster.settle()
    assert cluster.state("t") == before


def test_a_bounced_leader_does_not_make_way_for_the_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """All crash; one is back, the sessions of the others live on for a while (FLT-22). It goes on leading."""
    monkeypatch.setattr(failover, "ANSWERED_WITHIN_S", 0.02)

    async def play(cluster: MemoryCluster) -> None:
        await cluster.create_topic("t", {0: (1, 2, 3)})
        lingering = [await cluster.end_process(broker) for broker in (2, 3)]
        await unseen(cluster, 1)
        await cluster.until(lambda: cluster.state("t").leader_epoch)
        assert cluster.state("t") == LeaderAndIsr(1, 1, (1, 2, 3), 2, 1)
        for session in lingering:
            session.expire()
        await cluster.settle()
        assert (cluster.state("t").leader, cluster.state("t").isr) == (1, (1,))

    scenario(play, 4, 1, 2, 3)
