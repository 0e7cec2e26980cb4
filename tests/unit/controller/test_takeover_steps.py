"""CTL-2: each step at the start of a term, in order, as ZooKeeper and the brokers see it."""

from __future__ import annotations

from typing import Any

import pytest

from controller.reactions import failover
from protocol.rpc.messages import LeaderAndIsrRequest, UpdateMetadataRequest
from protocol.types import LeaderAndIsr, TopicPartition
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
from tests.support.memory_cluster import MemoryCluster, on_cluster

SUCCESSOR = 2
STEP_KINDS = ("controller_elected", "controller_step")


class Journal:
    """The reads, watches, writes and requests of the next controller, in order: (verb, path or kind of request)."""

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

    def sent(self, kind: type) -> list[int]:
        return [i for i, (verb, what) in enumerate(self.lines) if verb == "send" and what.startswith(kind.__name__)]


async def took_over(cluster: MemoryCluster) -> Journal:
    """Broker 1, the controller, dies, and broker 2 is elected. The topic `new` is created in between."""
    await cluster.create_topic("t", {0: (3, 2), 1: (2, 3), 2: (1, 3)})
    journal = Journal(cluster)
    cluster.crash(1)
    cluster.put_topic("new", {0: (3, 2)})
    await cluster.settle()
    assert (cluster.controller, cluster.controller_epoch) == (SUCCESSOR, 2)
    return journal


async def test_steps_1_to_3_the_epoch_the_watches_and_the_reads(cluster: MemoryCluster) -> None:
    """INV-9: the multi that wins raises the epoch. Each watch is set before or with the read whose changes it reports."""
    journal = await took_over(cluster)
    won = journal.first("write", ControllerZNode.PATH)
    assert journal.lines[won + 1] == ("write", ControllerEpochZNode.PATH)
    before = {what for verb, what in journal.lines[:won] if verb != "send"}
    assert before <= {ControllerZNode.PATH, ControllerEpochZNode.PATH}
    order = [ReassignPartitionsZNode.PATH, PreferredElectionZNode.PATH, TopicZNode.PARENT, BrokerIdZNode.PARENT]
    watched = [journal.first("watch", path) for path in order]
    assert watched == sorted(watched), "in Kafka's order"
    states = [journal.first("read", PartitionStateZNode.path(TopicPartition("t", p))) for p in range(3)]
    for path in (*order, IsrChangeZNode.PARENT, TopicZNode.path("t")):
        assert journal.first("watch", path) < min(states)
    sent = min(journal.sent(UpdateMetadataRequest))
    assert max(states) < sent
    assert all(journal.first("read", BrokerIdZNode.path(broker)) < sent for broker in (2, 3))


async def test_steps_4_to_7_all_brokers_get_everything(cluster: MemoryCluster) -> None:
    """First the whole metadata, then the results of earlier events: a topic was created, and a leader died."""
    journal = await took_over(cluster)
    for broker, partitions in ((2, {0, 1}), (3, {0, 1, 2})):
        first = next(what for verb, what in journal.lines if verb == "send" and what.endswith(f"to {broker}"))
        assert first == f"UpdateMetadataRequest to {broker}"
        requests = [r for r in cluster.running[broker].requests if r.controller_epoch == 2]
        metadata = requests[0]
        assert isinstance(metadata, UpdateMetadataRequest)
        assert metadata.is_full
        assert {s.partition for s in metadata.partitions if s.topic == "t"} == {0, 1, 2}
        full = next(r for r in requests if isinstance(r, LeaderAndIsrRequest))
        assert full.is_full
        assert {state.partition for state in full.partitions if state.topic == "t"} == partitions
    assert cluster.state("new") == LeaderAndIsr(3, 0, (3, 2), 2, 0)
    assert cluster.state("t", 2) == LeaderAndIsr(3, 1, (3,), 2, 1)


async def test_step_6_a_requested_preferred_election_is_held(cluster: MemoryCluster) -> None:
    """Reassignments and deletions have their own tests, because they can resume at each of their steps."""
    await cluster.create_topic("t", {0: (3, 2)})
    await cluster.bounce(3)
    cluster.leader_writes_isr("t", 0, (2, 3))
    await cluster.settle()
    assert cluster.state("t").leader == 2
    cluster.crash(1)
    cluster.server.ensure(PreferredElectionZNode.PATH, PreferredElectionZNode.encode([TopicPartition("t", 0)]))
    await cluster.settle()
    assert cluster.state("t").leader == 3
    assert PreferredElectionZNode.PATH not in cluster.server.nodes


@on_cluster(leader_imbalance_check_interval_seconds=0.01)
async def test_step_8_the_rebalancing_starts(cluster: MemoryCluster) -> None:
    """CTL-12: broker 3 is back in the ISR, and the new controller makes it the leader of the partition that prefers it."""
    await cluster.create_topic("t", {0: (3, 2)})
    await cluster.bounce(3)
    cluster.leader_writes_isr("t", 0, (2, 3))
    await cluster.settle()
    cluster.crash(1)
    await cluster.until(lambda: cluster.state("t").leader == 3)


async def unseen(cluster: MemoryCluster, *bounced: int) -> None:
    """These brokers die and come back. The controller, broker 4, dies too, so no controller sees it."""
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
        ((1, 2), (1, 2), LeaderAndIsr(1, 1, (1, 2), 2, 2)),
        ((1, 2, 3), (), LeaderAndIsr(1, 0, (1, 2, 3), 1, 1)),
    ],
    ids=["leader", "all", "nobody"],
)
@on_cluster(4, 1, 2, 3)
async def test_bounces_before_the_term(
    cluster: MemoryCluster, isr: tuple[int, ...], bounced: tuple[int, ...], expected: LeaderAndIsr
) -> None:
    """CTL-5, INV-5, FLT-23: the registrations are newer than the state."""
    await cluster.create_topic("t", {0: (1, 2, 3)})
    cluster.leader_writes_isr("t", 0, isr)
    await cluster.settle()
    await unseen(cluster, *bounced)
    assert cluster.state("t") == expected


@on_cluster(4, 1, 2, 3)
async def test_a_bounced_leader_is_not_replaced_by_a_dead_broker(
    cluster: MemoryCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All brokers crash. One is back and keeps leading, although the sessions of the others have not expired yet (FLT-22)."""
    monkeypatch.setattr(failover, "ANSWERED_WITHIN_S", 0.02)
    await cluster.create_topic("t", {0: (1, 2, 3)})
    lingering = [await cluster.end_process(broker) for broker in (2, 3)]
    await unseen(cluster, 1)
    await cluster.until(lambda: cluster.state("t").leader_epoch)
    assert cluster.state("t") == LeaderAndIsr(1, 1, (1, 2, 3), 2, 1)
    for session in lingering:
        session.expire()
    await cluster.settle()
    assert (cluster.state("t").leader, cluster.state("t").isr) == (1, (1,))


async def test_each_step_is_in_the_event_log(cluster: MemoryCluster) -> None:
    """RUN-3, OBS-1: a reader of the timeline can name each step, and finds the requests of steps 4 and 6 beside them."""
    await took_over(cluster)
    rows = [(kind, fields) for kind, fields in cluster.events.rows if fields.get("controller_epoch") == 2]
    told = [fields["step"] if kind == "controller_step" else 1 for kind, fields in rows if kind in STEP_KINDS]
    assert told == [1, 2, 3, 4, 5, 6, 7]
    steps = {fields["step"]: fields for kind, fields in rows if kind == "controller_step"}
    assert steps[3]["brokers"] == [2, 3]
    assert steps[3]["topics"] == 2
    assert steps[5]["waiting_for_leader"] == 2, "t-2, whose leader died, and new-0"
    sent = [fields for kind, fields in rows if kind == "control_request_sent"]
    answered = [fields for kind, fields in rows if kind == "control_request_answered"]
    joined = {(fields["broker"], fields["number"]) for fields in sent}
    assert joined == {(fields["broker"], fields["number"]) for fields in answered}
    assert {fields["request"] for fields in sent} == {"UpdateMetadata", "LeaderAndIsr"}


async def test_each_write_to_zookeeper_is_in_the_event_log(cluster: MemoryCluster) -> None:
    """INV-9: path, expected version and outcome."""
    await took_over(cluster)
    path = PartitionStateZNode.path(TopicPartition("t", 2))
    writes = [fields for fields in cluster.events.of("zookeeper_write") if ["set", path, 0] in fields["first"]]
    assert [(fields["operations"], fields["outcome"]) for fields in writes] == [(1, "written")]
