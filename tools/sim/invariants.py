"""Rules that must hold at every moment, looked at when something happens: a write to ZooKeeper, an acknowledgement.

The truth is on the simulated disks and in ZooKeeper's tree. Brokers are asked only for what is nowhere else: their high watermarks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial

from broker.replication.partition import Partition, Role
from protocol.kafka.record_batch import parse_header
from protocol.types import NO_LEADER, LeaderAndIsr, TopicPartition
from protocol.zk.znodes import ControllerEpochZNode, PartitionStateZNode
from tools.sim.truth import STATE_PATH, TornLog, headers_in, segments_on
from tools.sim.world.nodes import BrokerNode
from tools.sim.world.zookeeper_tree import CREATED, DELETED, ZooKeeperTree

BatchKey = tuple[int, int, int]
"""Producer id, its epoch, and the first sequence number: they name a batch."""

OWN_BYTES = slice(16, 61)
"""Of a batch: from the magic to the number of records. A broker writes the 16 bytes before."""
END_BYTES = 50_000


class Invariants:
    """`broken` is told each rule that was broken. `removing`: topics from which compaction or retention removes records."""

    def __init__(
        self,
        tree: ZooKeeperTree,
        nodes: Mapping[int, BrokerNode],
        broken: Callable[[str], None],
        *,
        min_insync: int,
        removing: Collection[str] = (),
    ) -> None:
        self._tree = tree
        self._nodes = nodes
        self._broken = broken
        self._min_insync = min_insync
        self._removing = removing
        self._states: dict[TopicPartition, LeaderAndIsr] = {}
        self._controller_epoch = 0
        self._acked: dict[TopicPartition, list[BatchKey]] = {}
        self._committed: set[tuple[TopicPartition, bytes]] = set()
        """Batches that clients have seen."""
        self._high_watermarks: dict[tuple[str, TopicPartition, int], int] = {}

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

    def _state_written(self, tp: TopicPartition, new: LeaderAndIsr, *, is_new: bool) -> None:
        old = self._states.get(tp)
        self._states[tp] = new
        broken = partial(_tell, self._broken, tp, old, new)
        if not new.isr:
            broken("INV-4", "the ISR is empty")
        if new.leader not in (NO_LEADER, *new.isr):
            broken("INV-4", "the leader is not in the ISR")
        if is_new or old is None:
            return
        if new.leader_epoch < old.leader_epoch or new.controller_epoch < old.controller_epoch:
            broken("INV-7", "an epoch went back")
        elif new.leader_epoch == old.leader_epoch and new.leader != old.leader:
            broken("INV-7", "two leaders in one epoch")
        elif new.leader_epoch > old.leader_epoch and not set(new.isr) <= set(old.isr):
            broken("INV-18", "a controller took a replica into the ISR")
        for broker in new.isr:
            if broker not in old.isr or (broker == new.leader != old.leader):
                self._check_has_all(tp, broker, "leads" if broker == new.leader else "joined the ISR")

    def _check_has_all(self, tp: TopicPartition, broker: int, why: str) -> None:
        """INV-1: every acknowledged batch is in the log of that replica."""
        acked = self._acked.get(tp)
        if not acked or tp.topic in self._removing:
            return
        try:
            keys = {
                (header.producer_id, header.producer_epoch, header.base_sequence)
                for segment in segments_on(self._nodes[broker].disk, tp)
                for _, header in headers_in(bytes(segment))
            }
        except TornLog as torn:
            self._broken(f"INV-21: broker {broker} {why} of {tp} with {torn}")
            return
        missing = next((key for key in acked if key not in keys), None)
        if missing is not None:
            self._broken(f"INV-1: broker {broker} {why} of {tp} without the acknowledged batch {_words(missing)}")

    # -- acknowledgements ---------------------------------------------------------------------------------------------

    def acknowledged(self, tp: TopicPartition, batch: bytes) -> None:
        """INV-1, INV-11, INV-17: a producer with acks=all was told that the batch is in the log."""
        header = parse_header(batch)
        key = (header.producer_id, header.producer_epoch, header.base_sequence)
        self._acked.setdefault(tp, []).append(key)
        state = self._states.get(tp)
        if state is None:
            return
        what = f"batch {_words(key)} of {tp} was acknowledged"
        having = self._check_replicas(tp, state, batch, f"INV-1: {what}")
        if len(having) < self._min_insync:
            self._broken(f"INV-17: {what}, and only brokers {having} have it: min.insync.replicas={self._min_insync}")
        self._look_at_high_watermark(tp, state)

    def read(self, tp: TopicPartition, batch: bytes) -> None:
        """INV-2, INV-15: a reader got the batch, so it is below the high watermark: all of the ISR have it.

        One that was acknowledged, or read before, is not looked for again.
        """
        state = self._states.get(tp)
        if state is not None and (tp, batch[OWN_BYTES]) not in self._committed:
            self._check_replicas(tp, state, batch, f"INV-15: offset {parse_header(batch).base_offset} of {tp} was read")

    def _check_replicas(self, tp: TopicPartition, state: LeaderAndIsr, batch: bytes, what: str) -> Sequence[int]:
        """The brokers that have the batch. All of the ISR must."""
        if tp.topic in self._removing:
            return tuple(self._nodes)
        own_bytes = batch[OWN_BYTES]
        self._committed.add((tp, own_bytes))
        having = [
            broker
            for broker, node in self._nodes.items()
            if any(_has(segment, own_bytes) for segment in reversed(segments_on(node.disk, tp)))
        ]
        for broker in state.isr:
            if broker not in having:
                self._broken(f"{what}, and broker {broker} of the ISR {state.isr} does not have it")
        return having

    def _look_at_high_watermark(self, tp: TopicPartition, state: LeaderAndIsr) -> None:
        node = self._nodes.get(state.leader)
        found = node.broker._replicas.partitions.get(tp) if node is not None and node.broker is not None else None
        if node is None or node.loop is None or not isinstance(found, Partition) or found.role is not Role.LEADER:
            return
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


def _has(segment: bytearray, own_bytes: bytes) -> bool:
    """Looks at the end first: nearly always the batch is there."""
    end = segment.find(own_bytes, max(0, len(segment) - END_BYTES))
    return end >= 0 or own_bytes in segment


def _words(key: BatchKey) -> str:
    return f"of producer {key[0]}, epoch {key[1]}, sequence {key[2]}"
