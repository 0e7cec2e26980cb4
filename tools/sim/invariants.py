"""Rules that must hold at every moment, looked at when something happens: a write to ZooKeeper, an acknowledgement.

The truth is on the simulated disks and in ZooKeeper's tree. Brokers are asked only for what is nowhere else: their high watermarks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial

from broker.replication.partition import Partition, Role
from broker.transactions.states import TransactionState
from protocol.kafka.record_batch import crc_is_valid, parse_header
from protocol.types import NO_LEADER, Assignment, LeaderAndIsr, TopicPartition
from protocol.zk.znodes import BrokerIdZNode, ControllerEpochZNode, PartitionStateZNode, TopicZNode
from tools.sim.truth import (
    LOG_DIRECTORY,
    LOG_NAME,
    STATE_PATH,
    TOPIC_PATH,
    TornLog,
    committed_in,
    copies_of,
    headers_in,
    segments_on,
    transactions_in,
    whole_part,
)
from tools.sim.world.nodes import BrokerNode
from tools.sim.world.zookeeper_tree import CREATED, DELETED, ZooKeeperTree

BatchKey = tuple[int, int, int]
"""Producer id, its epoch, and the first sequence number: they name a batch."""

OWN_BYTES = slice(16, 61)
"""Of a batch: from the magic to the number of records. A broker writes the 16 bytes before."""
EPOCH_BYTES = 4
"""The last of the bytes before: the leader's epoch."""


class Invariants:
    """`broken` is told each rule that was broken. `removing`: topics from which compaction or retention removes records.

    `syncs`: each batch is on the disk before a replica claims it.
    """

    def __init__(
        self,
        tree: ZooKeeperTree,
        nodes: Mapping[int, BrokerNode],
        broken: Callable[[str], None],
        *,
        min_insync: int,
        removing: Collection[str] = (),
        syncs: bool = False,
    ) -> None:
        self._tree = tree
        self._nodes = nodes
        self._broken = broken
        self._min_insync = min_insync
        self._removing = removing
        self._syncs = syncs
        self._states: dict[TopicPartition, LeaderAndIsr] = {}
        self._assignments: dict[TopicPartition, Assignment] = {}
        self._were_in_sync: dict[TopicPartition, set[int]] = {}
        """Who has been in the ISR since the last change of the assignment."""
        self._controller_epoch = 0
        self._acked: dict[TopicPartition, dict[BatchKey, None]] = {}
        self._committed: set[tuple[TopicPartition, bytes]] = set()
        """Batches that clients have seen."""
        self._high_watermarks: dict[tuple[str, TopicPartition, int], int] = {}
        self._led_by: dict[tuple[TopicPartition, int], str] = {}
        """(partition, leader epoch) -> the process that acknowledges."""
        self._known: dict[tuple[str, TopicPartition], tuple[int, int]] = {}
        """(process, partition) -> the epochs of the controller and of the leader in its metadata."""
        self._emptied: set[tuple[TopicPartition, int]] = set()
        """Members of ISRs whose disks were replaced. They may not lead, and leave the ISR when they notice."""
        self._had: set[tuple[TopicPartition, int]] = set()
        """They, until they join again: what is acknowledged late was on the old disk when it was committed."""
        self._let_go: dict[tuple[TopicPartition, int], Sequence[bytes]] = {}
        """What replicas had when they left the ISR, until they join again. A move that a person changes deletes them at once, and what is
        acknowledged late was there when it was committed."""
        self._replaced: dict[int, int] = {}
        """Broker -> the last of its lives before its disk was replaced."""

    # -- ZooKeeper ----------------------------------------------------------------------------------------------------

    def changed(self, event: str, path: str) -> None:
        """A node of the tree was created, written or removed."""
        match = STATE_PATH.fullmatch(path)
        if match:
            tp = TopicPartition(match[1], int(match[2]))
            if event == DELETED:
                self._states.pop(tp, None)
            else:
                node = self._tree.nodes[path]
                self._state_written(tp, PartitionStateZNode.decode(node.data, node.version), is_new=event == CREATED)
        elif path == ControllerEpochZNode.PATH and event != DELETED:
            epoch = ControllerEpochZNode.decode(self._tree.nodes[path].data)
            if epoch < self._controller_epoch:
                self._broken(f"INV-7: the controller epoch went from {self._controller_epoch} to {epoch}")
            self._controller_epoch = epoch
        elif (topic := TOPIC_PATH.fullmatch(path)) and event != DELETED:
            for number, assignment in TopicZNode.decode(self._tree.nodes[path].data)[1].items():
                self._assigned(TopicPartition(topic[1], number), assignment)

    def _assigned(self, tp: TopicPartition, new: Assignment) -> None:
        """INV-25: a move ends when its new replicas are in the ISR."""
        old = self._assignments.get(tp)
        self._assignments[tp] = new
        if old is None or old == new:
            return
        if not new.adding:
            outside = set(old.adding) & set(new.replicas) - self._were_in_sync.get(tp, set())
            if outside:
                self._broken(
                    f"INV-25: the move of {tp} has ended, and {outside} have not been in the ISR: {old} became {new}"
                )
        state = self._states.get(tp)
        self._were_in_sync[tp] = set(state.isr) if state is not None else set()

    def _state_written(self, tp: TopicPartition, new: LeaderAndIsr, *, is_new: bool) -> None:
        old = self._states.get(tp)
        self._states[tp] = new
        self._were_in_sync.setdefault(tp, set()).update(new.isr)
        had_emptied = any((tp, broker) in self._emptied for broker in self._nodes) or self._lacks_a_log(tp, old)
        self._emptied -= {(tp, broker) for broker in self._nodes if broker not in new.isr}
        if old is not None:
            for broker, node in self._nodes.items():
                if broker in old.isr and broker not in new.isr:
                    self._let_go[tp, broker] = [bytes(segment) for segment in segments_on(node.disk, tp)]
            for broker in new.isr:
                self._let_go.pop((tp, broker), None)
            self._had -= {(tp, broker) for broker in new.isr if broker not in old.isr}
            self._emptied |= {(tp, broker) for broker in new.isr if broker not in old.isr and self._is_away(broker)}
        broken = partial(_tell, self._broken, tp, old, new)
        if not new.isr:
            broken("INV-4", "the ISR is empty")
        if new.leader not in (NO_LEADER, *new.isr):
            broken("INV-4", "the leader is not in the ISR")
        if (old is None or new.leader_epoch > old.leader_epoch) and new.controller_epoch < self._controller_epoch:
            broken("INV-9", f"a controller that epoch {self._controller_epoch} has replaced wrote the state")
        if is_new or old is None:
            return
        if new.leader_epoch < old.leader_epoch or new.controller_epoch < old.controller_epoch:
            broken("INV-7", "an epoch went back")
        elif new.leader_epoch == old.leader_epoch and new.leader != old.leader:
            broken("INV-7", "two leaders in one epoch")
        elif new.leader_epoch > old.leader_epoch and not set(new.isr) <= set(old.isr) and not had_emptied:
            broken("INV-18", "a controller took a replica into the ISR")
        for broker in new.isr:
            if (tp, broker) in self._emptied:
                continue
            if broker not in old.isr or (broker == new.leader != old.leader):
                # One that is elected while it is away, and registered, cuts its torn end off when it starts.
                self._check_has_all(
                    tp,
                    broker,
                    "leads" if broker == new.leader else "joined the ISR",
                    is_torn_allowed=not self._nodes[broker].is_ready,
                )
                if not had_emptied:  # then the ISR before that leader's election counts
                    self._check_registration(tp, broker, is_new=broker not in old.isr)

    def _lacks_a_log(self, tp: TopicPartition, state: LeaderAndIsr | None) -> bool:
        """Whether a member of the ISR has no log: it could not make it, for lack of descriptors, and then lost power."""
        members = [self._nodes[broker] for broker in state.isr if broker in self._nodes] if state is not None else []
        return any(not segments_on(node.disk, tp) for node in members)

    def _is_away(self, broker: int) -> bool:
        """Since its disk was replaced. One that is registered by its last life may join by a fetch that was still on its way."""
        if broker not in self._replaced or self._nodes[broker].lives > self._replaced[broker] + 1:
            return False
        session, found = self._nodes[broker].session, self._tree.nodes.get(BrokerIdZNode.path(broker))
        return session is None or found is None or found.owner != session.session_id

    def _check_registration(self, tp: TopicPartition, broker: int, *, is_new: bool) -> None:
        """INV-14: a broker that serves is in ZooKeeper by its own session (BUG-17)."""
        node, found = self._nodes[broker], self._tree.nodes.get(BrokerIdZNode.path(broker))
        session = node.session.session_id if node.session is not None and node.is_ready else 0
        if session and found is not None and found.owner != session:
            self._broken(f"INV-14: broker {broker} is in the ISR of {tp}, and its znode is of an earlier session")
        if is_new and found is None:
            self._broken(f"INV-14: broker {broker} joined the ISR of {tp}, and is not registered")

    def _check_has_all(self, tp: TopicPartition, broker: int, why: str, *, is_torn_allowed: bool = False) -> None:
        """INV-1: every acknowledged batch is in the log of that replica."""
        if self._acked.get(tp) and tp.topic not in self._removing:
            segments = segments_on(self._nodes[broker].disk, tp)
            self._check_segments(tp, broker, segments, why, is_torn_allowed=is_torn_allowed)

    def _check_segments(
        self, tp: TopicPartition, broker: int, segments: Iterable[bytearray], why: str, *, is_torn_allowed: bool = False
    ) -> None:
        keys = set()
        try:
            for segment in segments:
                for _, header in headers_in(bytes(segment)):
                    keys.add((header.producer_id, header.producer_epoch, header.base_sequence))
        except TornLog as torn:
            if not is_torn_allowed:
                self._broken(f"INV-21: broker {broker} {why} of {tp} with {torn}")
                return
        missing = next((key for key in self._acked[tp] if key not in keys), None)
        if missing is not None:
            self._broken(f"INV-1: broker {broker} {why} of {tp}, without the acknowledged batch {_words(missing)}")

    # -- acknowledgements ---------------------------------------------------------------------------------------------

    def acknowledged(self, tp: TopicPartition, batch: bytes) -> None:
        """INV-1, INV-11, INV-17: a producer with acks=all was told that the batch is in the log."""
        header = parse_header(batch)
        key = (header.producer_id, header.producer_epoch, header.base_sequence)
        self._acked.setdefault(tp, {})[key] = None
        state = self._states.get(tp)
        if state is None:
            return
        what = f"batch {_words(key)} of {tp} was acknowledged"
        having = self._check_replicas(tp, state, batch, f"INV-1: {what}")
        let_go = [
            broker
            for broker in self._nodes
            if broker not in having and _epoch_of(batch[OWN_BYTES], self._let_go.get((tp, broker), ())) is not None
        ]
        if len(having) + len(let_go) < self._min_insync:
            self._broken(f"INV-17: {what}, and only brokers {having} have it: min.insync.replicas={self._min_insync}")
        self._look_at_leader(tp, state)
        self._look_at_metadata(tp)

    def read(self, tp: TopicPartition, batch: bytes) -> None:
        """INV-2, INV-15: a reader got the batch, so it is below the high watermark: all of the ISR have it.

        One that was acknowledged, or read before, is not looked for again.
        """
        state = self._states.get(tp)
        if state is not None and (tp, batch[OWN_BYTES]) not in self._committed:
            self._check_replicas(tp, state, batch, f"INV-15: offset {parse_header(batch).base_offset} of {tp} was read")

    def _check_replicas(self, tp: TopicPartition, state: LeaderAndIsr, batch: bytes, what: str) -> Sequence[int]:
        """The brokers that have the batch. All of the ISR must, and it is the same: one that was sent again may be in another epoch."""
        if tp.topic in self._removing:
            return tuple(self._nodes)
        own_bytes = batch[OWN_BYTES]
        self._committed.add((tp, own_bytes))
        epochs = {broker: _epoch_of(own_bytes, segments_on(node.disk, tp)) for broker, node in self._nodes.items()}
        gone = self._emptied | self._had
        having = [broker for broker, epoch in epochs.items() if epoch is not None or (tp, broker) in gone]
        for broker in state.isr:
            if broker not in having:
                self._broken(f"{what}, and broker {broker} of the ISR {state.isr} does not have it")
        in_isr = {epochs[broker] for broker in state.isr if epochs[broker] is not None}
        if len(in_isr) > 1:
            self._broken(f"INV-2: {what}, and the ISR {state.isr} has it in the epochs {in_isr}")
        newest = max((epoch for epoch in epochs.values() if epoch is not None), default=0)
        if newest > state.leader_epoch:
            self._broken(f"{what}, appended in epoch {newest}: ZooKeeper has {state}")
        return having

    # -- coordinators -------------------------------------------------------------------------------------------------

    def commit_acknowledged(self, log: TopicPartition, group: str, tp: TopicPartition, offset: int) -> None:
        """INV-23: an offset is on every replica in sync when its commit is acknowledged. `log`: the coordinator's partition."""
        for broker in self._in_sync(log):
            found = committed_in(self._whole_segments(broker, log)).get((group, tp), -1)
            if found < offset:
                self._broken(
                    f"INV-23: offset {offset} of {tp} is committed for {group}, and broker {broker} of the ISR has {found}"
                )

    def decision_told(self, log: TopicPartition, transactional_id: str, instance: tuple[int, int]) -> None:
        """TXN-1: the decision about a transaction is on every replica in sync when the producer is told of it."""
        producer_id, epoch = instance
        for broker in self._in_sync(log):
            found = transactions_in(self._whole_segments(broker, log)).get(transactional_id)
            producer = None if found is None else found.producer
            is_later = producer is not None and (producer.producer_id != producer_id or producer.epoch > epoch)
            if found is None or (not is_later and found.state is TransactionState.ONGOING):
                self._broken(
                    f"TXN-1: the transaction of {transactional_id} has ended in epoch {epoch}, and broker {broker} of the ISR has {found}"
                )

    def _whole_segments(self, broker: int, log: TopicPartition) -> Sequence[bytes]:
        return [whole_part(bytes(segment)) for segment in segments_on(self._nodes[broker].disk, log)]

    def _in_sync(self, log: TopicPartition) -> Sequence[int]:
        """The ISR, of a log from which nothing is removed."""
        state = self._states.get(log)
        if state is None or log.topic in self._removing:
            return ()
        return [broker for broker in state.isr if (log, broker) not in self._emptied]

    # -- disks --------------------------------------------------------------------------------------------------------

    def log_is_cut(self, broker: int, path: str, content: bytearray, size: int) -> None:
        """INV-1, INV-19: a member of the ISR never cuts away what was acknowledged."""
        match = LOG_NAME.fullmatch(path)
        if match is None:
            return
        tp = TopicPartition(match["topic"], int(match["partition"]))
        state, acked = self._states.get(tp), self._acked.get(tp)
        if state is None or not acked or broker not in state.isr:
            return
        try:
            data = bytes(content[size:])
            for position, header in headers_in(data):
                if not crc_is_valid(data, position, header):
                    return  # torn by a power loss: zeros are the producer 0 and its sequence 0
                key = (header.producer_id, header.producer_epoch, header.base_sequence)
                if key in acked:
                    self._broken(
                        f"INV-1: broker {broker} of the ISR {state.isr} of {tp} cuts its log at {header.base_offset}: "
                        f"away goes the acknowledged batch {_words(key)}"
                    )
                    return
        except TornLog:
            return  # a write that has failed half-way

    def log_goes(self, broker: int, path: str) -> None:
        """BUG-20: the log of a member of the ISR is not removed, unless a whole copy takes its place (LOG-6)."""
        match = LOG_DIRECTORY.fullmatch(path)
        if match is None:
            return
        tp = TopicPartition(match["topic"], int(match["partition"]))
        state = self._states.get(tp)
        if state is None or broker not in state.isr or not self._acked.get(tp):
            return
        copies = copies_of(self._nodes[broker].disk, tp) if broker in self._nodes else []
        copy = next((copy for copy in copies if copy.is_complete and copy.path != path), None)
        if copy is None:
            self._broken(f"BUG-20: broker {broker} of the ISR {state.isr} of {tp} removes its log")
        elif tp.topic not in self._removing:
            self._check_segments(tp, broker, copy.segments.values(), f"replaces its log by {copy.path}")

    def power_was_lost(self, broker: int) -> None:
        """INV-1: what was acknowledged is on the disk of each member of the ISR, and not only in its page cache."""
        for tp, state in self._states.items():
            is_moving = len(copies_of(self._nodes[broker].disk, tp)) > 1
            if self._syncs and broker in state.isr and (tp, broker) not in self._emptied and not is_moving:
                self._check_has_all(tp, broker, "lost its power, as a member of the ISR", is_torn_allowed=True)

    def disk_is_empty(self, broker: int) -> None:
        """It was replaced (FLT-33)."""
        if broker in self._nodes:
            self._replaced[broker] = self._nodes[broker].lives
        emptied = {(tp, broker) for tp, state in self._states.items() if broker in state.isr}
        self._emptied |= emptied
        self._had |= emptied

    def may_lose(self, broker: int, path: str) -> bool:
        """Whether a sync of that file may lose what it fails to write.

        Not if no other process is in the ISR: acknowledged records would be lost, here as in Kafka.
        """
        match = LOG_NAME.fullmatch(path)
        state = None if match is None else self._states.get(TopicPartition(match["topic"], int(match["partition"])))
        return (
            state is None
            or broker not in state.isr
            or any(self._nodes[other].is_running for other in state.isr if other != broker)
        )

    def left_to_a_person(self) -> list[TopicPartition]:
        """The partitions whose ISR has only replaced disks: no broker leads them, and only a person may elect another replica (FLT-33)."""
        return [
            tp
            for tp, state in self._states.items()
            if state.leader == NO_LEADER and all((tp, broker) in self._emptied for broker in state.isr)
        ]

    # -- brokers ------------------------------------------------------------------------------------------------------

    def _look_at_metadata(self, tp: TopicPartition) -> None:
        """INV-8: no broker obeys a controller that it knows to be replaced, nor takes an older state for a newer one."""
        for node in self._nodes.values():
            if node.loop is None or node.broker is None:
                continue
            metadata = node.broker._metadata
            known = metadata.partition(tp)
            if known is None:
                continue
            now = (metadata.controller_epoch, known.leader_epoch)
            before = self._known.get((node.loop.name, tp), now)
            if now[0] < before[0] or now[1] < before[1]:
                self._broken(
                    f"INV-8: broker {node.id} knew {tp} with (controller epoch, leader epoch) {before}, and now {now}"
                )
            self._known[node.loop.name, tp] = now

    def _look_at_leader(self, tp: TopicPartition, state: LeaderAndIsr) -> None:
        """INV-7: an epoch is led by one process. INV-11: its high watermark does not go back."""
        node = self._nodes.get(state.leader)
        found = node.broker._replicas.partitions.get(tp) if node is not None and node.broker is not None else None
        if node is None or node.loop is None or not isinstance(found, Partition) or found.role is not Role.LEADER:
            return
        leads = self._led_by.setdefault((tp, found.leader_epoch), node.loop.name)
        if leads != node.loop.name:
            self._broken(f"INV-7: {leads} and {node.loop.name} lead {tp} in one epoch, {found.leader_epoch}")
        key = (node.loop.name, tp, found.leader_epoch)
        before = self._high_watermarks.get(key, 0)
        if found.high_watermark < before:
            self._broken(
                f"INV-11: the high watermark of {tp} went from {before} to {found.high_watermark} on its leader"
            )
        self._high_watermarks[key] = found.high_watermark


def _tell(
    broken: Callable[[str], None],
    tp: TopicPartition,
    old: LeaderAndIsr | None,
    new: LeaderAndIsr,
    rule: str,
    what: str,
) -> None:
    broken(f"{rule}: {what} of {tp}: {old} became {new}")


def _epoch_of(own_bytes: bytes, segments: Sequence[bytes | bytearray]) -> int | None:
    """In which leader epoch the batch was appended; None if it is not there. Looks from the end on: nearly always it is there."""
    for segment in reversed(segments):
        found = segment.rfind(own_bytes)
        if found >= 0:
            return int.from_bytes(segment[found - EPOCH_BYTES : found])
    return None


def _words(key: BatchKey) -> str:
    return f"of producer {key[0]}, epoch {key[1]}, sequence {key[2]}"
