"""Judges a history at rest, from the disks, ZooKeeper's tree and what the clients were told. Each problem names its rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from protocol.types import Assignment, LeaderAndIsr, TopicPartition
from tools.judge.judgement import judge
from tools.judge.kinds import HARMLESS
from tools.judge.logs import PartitionLog
from tools.judge.tables import Tables
from tools.sim.clients.history import (
    ABORTED_TRANSACTION,
    COMMITTED_TRANSACTION,
    UNKNOWN_TRANSACTION,
    History,
    Transaction,
)
from tools.sim.exactly_once import unlike_offsets, unlike_transactions
from tools.sim.policies import KEEPS_ALL, Policy, outdated, unlike_what_is_left
from tools.sim.truth import (
    Replica,
    StoredBatch,
    Visible,
    assignments_in,
    log_of,
    replicas_on,
    states_in,
    unfinished_on,
    visible_in,
)
from tools.sim.world.nodes import BrokerNode
from tools.sim.world.zookeeper_tree import ZooKeeperTree

FINDINGS_SHOWN = 10
FIRST_GENERATION = 1
NO_REPLICA = Replica()
LOG_TOPICS = ("__consumer_offsets", "__transaction_state")


class Processed(NamedTuple):
    """The partitions of the load to which a group writes what it has read from the others."""

    group: str
    outputs: Sequence[TopicPartition]


@dataclass
class Scene:
    """What is there at one moment. `replicas`: broker -> partition -> what is on its disk. `committed`: (group, partition) -> offset.

    `unfinished`: broker -> copies of moves between its log directories that have not ended.
    """

    states: Mapping[TopicPartition, LeaderAndIsr]
    assignments: Mapping[TopicPartition, Assignment]
    replicas: Mapping[int, Mapping[TopicPartition, Replica]]
    committed: Mapping[tuple[str, TopicPartition], int] = field(default_factory=dict)
    unfinished: Mapping[int, Sequence[str]] = field(default_factory=dict)

    @staticmethod
    def of(tree: ZooKeeperTree, nodes: Sequence[BrokerNode]) -> Scene:
        """Raises TornLog."""
        return Scene(
            states_in(tree),
            assignments_in(tree),
            {node.id: replicas_on(node.disk) for node in nodes},
            unfinished={node.id: unfinished_on(node.disk) for node in nodes},
        )

    def batches(self, broker: int, tp: TopicPartition) -> Sequence[StoredBatch]:
        return self.replicas[broker].get(tp, NO_REPLICA).batches

    def end(self, broker: int, tp: TopicPartition) -> int:
        """0 if nobody leads."""
        return self.replicas[broker].get(tp, NO_REPLICA).end if broker in self.replicas else 0

    def leaders_end(self, tp: TopicPartition) -> int:
        return self.end(self.states[tp].leader, tp) if tp in self.states else 0

    def log(self, tp: TopicPartition) -> Sequence[StoredBatch]:
        """The leader's."""
        state = self.states.get(tp)
        return self.batches(state.leader, tp) if state is not None and state.leader in self.replicas else ()

    def start(self, tp: TopicPartition) -> int:
        """The log start offset: the furthest of all replicas.

        Segments do not begin at the same offsets everywhere. A follower keeps one whose first records the leader has deleted.
        """
        found = [replicas[tp] for replicas in self.replicas.values() if tp in replicas]
        return max((replica.start for replica in found), default=0)

    def kept(self, tp: TopicPartition) -> dict[int, str]:
        """The ids of records, by their offsets, that all replicas have. Others may have been compacted away where a reader has read."""
        replicas = [replicas[tp] for replicas in self.replicas.values() if tp in replicas]
        found = [{offset for batch in replica.batches for offset in batch.ids} for replica in replicas]
        of_all = set.intersection(*found) if found else set()
        return {offset: record for batch in self.log(tp) for offset, record in batch.ids.items() if offset in of_all}


def unrest(scene: Scene) -> str:
    """What the cluster still has to do (INV-27, INV-25, LOG-6); empty if nothing."""
    for tp, assignment in sorted(scene.assignments.items()):
        state = scene.states.get(tp)
        if assignment.adding or assignment.removing:
            return f"{tp} is still moving: {assignment}"
        if state is None:
            return f"{tp} has no state"
        if state.leader not in assignment.replicas or set(state.isr) != set(assignment.replicas):
            return f"{tp} of {assignment.replicas} has leader {state.leader} and ISR {state.isr}"
        missing = [broker for broker in assignment.replicas if tp not in scene.replicas[broker]]
        if missing:
            return f"brokers {missing} have no replica of {tp}"
        ends = {broker: scene.end(broker, tp) for broker in assignment.replicas}
        if len(set(ends.values())) > 1:
            return f"the replicas of {tp} end at {ends}"
        if open_by := visible_in(scene.log(tp)).open:
            return f"transactions of producers {open_by} in {tp} have not ended"
    for broker, replicas in scene.replicas.items():
        for tp in replicas:
            assigned = scene.assignments.get(tp)
            if assigned is None or broker not in assigned.replicas:
                return f"broker {broker} still has a replica of {tp}, which is assigned to {assigned}"
    for broker, copies in scene.unfinished.items():
        if copies:
            return f"broker {broker} still has {', '.join(copies)}: a move between log directories has not ended"
    return ""


def problems_of(
    scene: Scene,
    history: History,
    partitions: Sequence[TopicPartition],
    policies: Mapping[str, Policy],
    processed: Processed | None = None,
) -> Iterator[str]:
    """Every rule that was broken. `partitions`: those of the load. `policies`: of topics from which records are removed."""
    policy = {tp: policies.get(tp.topic, KEEPS_ALL) for tp in (*partitions, *scene.assignments)}
    for tp in scene.assignments:
        replicas = {broker: scene.batches(broker, tp) for broker in scene.replicas}
        yield from unlike_records(tp, replicas) if policy[tp].compacts else unlike(tp, replicas)
    for tp in partitions:
        for broker in scene.assignments[tp].replicas if tp in scene.assignments else ():
            batches = scene.batches(broker, tp)
            if not policy[tp].compacts:
                yield from with_holes(
                    broker, tp, batches, scene.replicas[broker][tp].start if policy[tp].deletes and batches else 0
                )
    kept = {tp: scene.kept(tp) for tp in partitions if policy[tp].compacts}
    logs = {
        (tp.topic, tp.partition): PartitionLog(0, scene.leaders_end(tp), kept[tp], is_whole=False)
        if tp in kept
        else log_of(scene.log(tp), scene.start(tp) if policy[tp].deletes else 0, scene.leaders_end(tp))
        for tp in partitions
    }
    judged = judge(Tables.of(history.reports), logs, {}, is_finished=False)
    yield from judged.problems
    harmful = [finding for finding in judged.findings if finding.kind not in HARMLESS]
    for finding in harmful[:FINDINGS_SHOWN]:
        yield f"{finding.kind}: {finding.id} in {finding.topic}-{finding.partition} at {finding.offset}: {finding.words}"
    visible = {tp: visible_in(scene.log(tp)) for tp in partitions}
    for transaction in history.transactions:
        yield from torn(transaction, visible, [tp for tp in transaction.ids if policy[tp].keeps_all])
    aborted = history.aborted_records()
    for (reader, tp), seen in history.read_committed.items():
        if policy[tp].keeps_all:
            yield from unlike_visible(reader, tp, seen, visible[tp])
        else:
            start = scene.start(tp) if policy[tp].deletes else 0
            left = [row for row in visible[tp].records if row[0] >= start and (tp not in kept or row[0] in kept[tp])]
            yield from unlike_what_is_left(reader, tp, seen, left, aborted)
    for tp in partitions:
        if policy[tp].compacts:
            acked = history.acknowledged_in(tp)
            yield from outdated(tp, acked, visible[tp].records, forgets=policy[tp].forgets)
    yield from owned_twice(history)
    if processed is not None:
        told = {tp: offset for (group, tp), offset in scene.committed.items() if group == processed.group}
        outputs = [record for tp in processed.outputs for _, record in visible[tp].records]
        sources = {
            tp: [row for row in found.records if tp not in kept or row[0] in kept[tp]]
            for tp, found in visible.items()
            if tp not in processed.outputs
        }
        yield from islice(unlike_offsets(sources, outputs, told), FINDINGS_SHOWN)
        yield from islice(unlike_transactions(history.fetched, history.transactions, told), FINDINGS_SHOWN)


def unlike(tp: TopicPartition, replicas: Mapping[int, Sequence[StoredBatch]]) -> Iterator[str]:
    """INV-5, INV-6: the same offset is the same batch on every replica."""
    by_offset: dict[int, tuple[int, StoredBatch]] = {}
    for broker, batches in replicas.items():
        for batch in batches:
            first_broker, first = by_offset.setdefault(batch.base_offset, (broker, batch))
            if (first.last_offset, first.leader_epoch, first.crc) != (batch.last_offset, batch.leader_epoch, batch.crc):
                yield f"INV-5: {tp} at {batch.base_offset} is not the same on brokers {first_broker} and {broker}"
                return


def unlike_records(tp: TopicPartition, replicas: Mapping[int, Sequence[StoredBatch]]) -> Iterator[str]:
    """INV-5, INV-6: as `unlike`, for a log that each replica compacts for itself: the same offset is the same record."""
    by_offset: dict[int, tuple[int, tuple[int, str]]] = {}
    for broker, batches in replicas.items():
        for batch in batches:
            for offset, record in batch.ids.items():
                first_broker, first = by_offset.setdefault(offset, (broker, (batch.leader_epoch, record)))
                if first != (batch.leader_epoch, record):
                    yield f"INV-5: {tp} at {offset} is not the same on brokers {first_broker} and {broker}"
                    return


def with_holes(broker: int, tp: TopicPartition, batches: Sequence[StoredBatch], start: int = 0) -> Iterator[str]:
    """INV-5: a replica has every offset, from the first one to its end."""
    expected = start
    for batch in batches:
        if batch.base_offset != expected:
            yield f"INV-5: {tp} on broker {broker} has {batch.base_offset} where {expected} is next"
            return
        expected = batch.last_offset + 1


def torn(
    transaction: Transaction, visible: Mapping[TopicPartition, Visible], kept: Sequence[TopicPartition]
) -> Iterator[str]:
    """A transaction is visible as a whole, or not at all; and as its producer was told. `kept`: partitions that keep all records."""
    seen = {tp: {record for _, record in found.records} for tp, found in visible.items()}
    ids = [(tp, record) for tp in kept for record in transaction.ids[tp]]
    shown = [record for tp, record in ids if record in seen[tp]]
    anywhere = [record for tp, records in transaction.ids.items() for record in records if record in seen[tp]]
    for tp, records in transaction.ids.items():
        mine = set(records)
        found = [record for _, record in visible[tp].records if record in mine]
        if found != [record for record in records if record in seen[tp]]:
            yield f"{transaction.name} is in {tp} as {found}: doubled, or in another order than it was sent"
    if transaction.outcome == COMMITTED_TRANSACTION and len(shown) < len(ids):
        missing = next(record for tp, record in ids if record not in seen[tp])
        yield f"{transaction.name} was committed, and {len(ids) - len(shown)} of its records are not there, such as {missing}"
    elif transaction.outcome == ABORTED_TRANSACTION and anywhere:
        yield f"{transaction.name} was aborted, and {len(anywhere)} of its records are visible, such as {anywhere[0]}"
    elif transaction.outcome == UNKNOWN_TRANSACTION and shown and len(shown) < len(ids):
        yield f"{transaction.name} is torn: {len(shown)} of its {len(ids)} records are visible"


def unlike_visible(reader: str, tp: TopicPartition, seen: Sequence[tuple[int, str]], visible: Visible) -> Iterator[str]:
    """A reader of committed records gets exactly those, in order, up to where it has read."""
    expected = visible.records[: len(seen)]
    if list(seen) != expected:
        at = next((n for n, (a, b) in enumerate(zip(seen, expected, strict=False)) if a != b), len(expected))
        wanted = expected[at] if at < len(expected) else None
        yield f"{reader} read {seen[at]} of {tp} as committed, where {wanted} comes next"


def owned_twice(history: History) -> Iterator[str]:
    """INV-24: in one generation, a partition has one owner.

    A group that has emptied begins anew with generation 1 if it was removed with the topics of its offsets, or if its next member speaks
    the other protocol. Its first generations may end before anybody owns something: so a new member in an earlier generation begins it.
    """
    owners: dict[tuple[str, int, TopicPartition], str] = {}
    members: set[str] = set()
    newest: dict[str, int] = {}
    for owned in history.owned:
        is_earlier = owned.generation < newest.get(owned.group, FIRST_GENERATION)
        if (is_earlier or owned.generation == FIRST_GENERATION) and owned.member not in members:
            owners = {owning: member for owning, member in owners.items() if owning[0] != owned.group}
            newest[owned.group] = owned.generation
        newest[owned.group] = max(newest.get(owned.group, 0), owned.generation)
        members.add(owned.member)
        for tp in owned.partitions:
            other = owners.setdefault((owned.group, owned.generation, tp), owned.member)
            if other != owned.member:
                yield f"INV-24: {tp} is owned by {other} and {owned.member} in generation {owned.generation} of {owned.group}"
