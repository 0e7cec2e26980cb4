"""What must hold after every step of the protocol model: INV-1, 2, 4, 5, 6, 7, 11, 13, 19.

After an unclean election or a power loss, INV-1, INV-2, INV-6 and INV-13 are no longer checked, since committed records may be lost.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from controller.decisions.leader_election import is_unclean
from protocol.types import NO_LEADER, LeaderAndIsr

if TYPE_CHECKING:
    from tests.sim.model_broker import ModelBroker
    from tests.sim.model_log import Node


class Violation(AssertionError):
    """An invariant does not hold."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant


class ModelChecks:
    """`committed` are the records that were below some leader's HW; the brokers are all, running or not."""

    def __init__(self, brokers: Sequence[ModelBroker]) -> None:
        self.brokers = brokers
        self.committed: list[Node] = []
        self.acknowledged_up_to: dict[int, int] = {}
        self.is_clean = True
        self._leaders: dict[int, tuple[int, int]] = {}
        self._marks: dict[tuple[int, int], int] = {}
        self._controller_epochs: dict[tuple[int, int], int] = {}

    # -- ZooKeeper ------------------------------------------------------------------------------------------------

    def state_written(self, before: LeaderAndIsr | None, after: LeaderAndIsr) -> None:
        """INV-4, INV-7."""
        if not after.isr:
            raise Violation("INV-4", f"the ISR is empty: {after}")
        if after.leader != NO_LEADER and after.leader not in after.isr:
            raise Violation("INV-4", f"the leader is not in the ISR: {after}")
        if before is None:
            return
        if after.leader_epoch < before.leader_epoch or after.controller_epoch < before.controller_epoch:
            raise Violation("INV-7", f"an epoch goes back: {before} -> {after}")
        if is_unclean(before, after):
            self.is_clean = False
        elif len(before.isr) == 1 and before.isr[0] not in after.isr:
            raise Violation("INV-4", f"the last member of the ISR is removed: {before} -> {after}")

    def joined(self, leader: ModelBroker, newcomer: ModelBroker, needed: int) -> None:
        """INV-13: ZooKeeper has the newcomer in the ISR. `needed`: the leader's HW and its epoch's start, whichever is more."""
        if not newcomer.has_prefix(leader.nodes, needed):
            raise Violation(
                "INV-13",
                f"{newcomer.id} joins the ISR with {len(newcomer.nodes)} records, not the leader's first {needed}",
            )

    # -- a broker -------------------------------------------------------------------------------------------------

    def leads(self, broker: ModelBroker) -> None:
        """Became leader: INV-1, INV-7."""
        epoch = broker.partition.leader_epoch
        first = self._leaders.setdefault(epoch, (broker.id, broker.disk_id))
        if first != (broker.id, broker.disk_id):
            raise Violation("INV-7", f"{first[0]} and {broker.id} both lead epoch {epoch}")
        end = max((end for acked_in, end in self.acknowledged_up_to.items() if acked_in < epoch), default=0)
        if self.is_clean and not broker.has_prefix(self.committed, end):
            raise Violation(
                "INV-1", f"{broker.id} leads epoch {epoch} without what was acknowledged up to {end}: {_end(broker)}"
            )

    def leader_moved_mark(self, leader: ModelBroker) -> None:
        """The new HW commits the records below it."""
        self.committed += leader.nodes[len(self.committed) : leader.partition.high_watermark]

    def acknowledged(self, broker: ModelBroker, end: int, record: Node) -> None:
        """A producer with acks=all was told that its record, the last below `end`, is safe."""
        if self.is_clean and (len(self.committed) < end or self.committed[end - 1] is not record):
            raise Violation("INV-1", f"{broker.id} acknowledges {record} at {end - 1}, which is not committed there")
        epoch = broker.partition.leader_epoch
        self.acknowledged_up_to[epoch] = max(self.acknowledged_up_to.get(epoch, 0), end)

    @property
    def acknowledged_end(self) -> int:
        return max(self.acknowledged_up_to.values(), default=0)

    def was_cut(self, broker: ModelBroker, before: Sequence[Node], end: int) -> None:
        """INV-19: never below where the log agrees with the leader's."""
        leader = next((b for b in self.brokers if b.id == broker.partition.leader), None)
        epoch = broker.partition.leader_epoch
        if leader is None or not leader.is_leader_of(epoch):
            return  # the answer is older than its leader's fall; what it led is cut by now, perhaps
        if end < len(before) and end < len(leader.nodes) and before[end] is leader.nodes[end]:
            raise Violation("INV-19", f"{broker.id} cuts to {end}, but agrees with {leader.id} there")

    def after_step(self, state: LeaderAndIsr) -> None:
        """INV-2, INV-5, INV-6, INV-11, INV-19 for what the brokers have now."""
        for broker in self.brokers:
            broker.is_emptied = broker.is_emptied and broker.id in state.isr
            if broker.is_running and broker.partition.log is not None:
                self._check_marks(broker)
                self._check_epochs(broker)
                if broker.partition.role is broker.LEADER and self.is_clean:
                    self._check_strong_isr(broker, state)

    def _check_marks(self, broker: ModelBroker) -> None:
        partition = broker.partition
        mark, nodes = partition.high_watermark, broker.nodes
        if not 0 <= mark <= len(nodes):
            raise Violation("INV-11", f"{broker.id}: HW {mark}, LEO {len(nodes)}")
        is_leader = partition.role is broker.LEADER
        if is_leader:
            key = (broker.life, partition.leader_epoch)
            if mark < self._marks.get(key, 0):
                raise Violation("INV-11", f"{broker.id}: HW {self._marks[key]} -> {mark} in epoch {key[1]}")
            self._marks[key] = mark
        if not self.is_clean or not mark:
            return
        if mark > len(self.committed) or nodes[mark - 1] is not self.committed[mark - 1]:
            raise Violation("INV-6", f"{broker.id} has other records below its HW {mark} than were committed there")

    def _check_strong_isr(self, leader: ModelBroker, state: LeaderAndIsr) -> None:
        mark, nodes = leader.partition.high_watermark, leader.nodes
        for member in self.brokers:
            if member.id in state.isr and not member.is_emptied and not member.has_prefix(nodes, mark):
                raise Violation("INV-2", f"{member.id} is in the ISR without what is below {leader.id}'s HW {mark}")

    def _check_epochs(self, broker: ModelBroker) -> None:
        """Checks the two newest entries; older ones were checked earlier."""
        log = broker.log
        epochs = log.leader_epochs
        if log.nodes and epochs.epoch_for_offset(len(log.nodes) - 1) != log.nodes[-1].epoch:
            raise Violation("INV-19", f"{broker.id}: {epochs.entries} are not the epochs of {_end(broker)}")
        starts, numbers = epochs._starts[-2:], epochs._epochs[-2:]
        if len(starts) == 2 and (numbers[0] >= numbers[1] or starts[0] > starts[1]):
            raise Violation("INV-19", f"{broker.id}: {epochs.entries} do not increase")

    # -- the end --------------------------------------------------------------------------------------------------

    def quiet(self, state: LeaderAndIsr) -> None:
        """After all faults are healed and all requests delivered: INV-1, INV-5, and every broker is back (INV-27)."""
        first = self.brokers[0]
        for broker in self.brokers:
            if broker.nodes[-1:] != first.nodes[-1:] or len(broker.nodes) != len(first.nodes):
                raise Violation("INV-5", f"{first.id} and {broker.id} differ in the end: {_end(first)}, {_end(broker)}")
            if broker.log.leader_epochs.latest_epoch() > state.leader_epoch:
                raise Violation(
                    "INV-19", f"{broker.id} has an epoch that nobody leads: {broker.log.leader_epochs.entries}"
                )
            if broker.partition.high_watermark != len(broker.nodes):
                raise Violation("INV-27", f"{broker.id}: the HW stays at {broker.partition.high_watermark}")
        if set(state.isr) != {broker.id for broker in self.brokers}:
            raise Violation("INV-27", f"not everybody is back in the ISR: {state}")
        if self.is_clean and not first.has_prefix(self.committed, self.acknowledged_end):
            raise Violation("INV-1", "an acknowledged record is not in the final logs")
        for left, right in itertools.pairwise(first.nodes):
            if left.epoch > right.epoch:
                raise Violation("INV-5", f"epochs go back: {left}, {right}")


def _end(broker: ModelBroker) -> str:
    """The end of its log, for a message."""
    return f"{broker.nodes[-5:]} at {len(broker.nodes)}"
