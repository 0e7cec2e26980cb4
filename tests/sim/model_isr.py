"""The leaders' writes of the ISR in the protocol model (REP-3): the steps of `broker.replication.isr_updates`, one at a time.

Between any two of them the controller may write, the broker may die, or its session end; the write may fail, or be applied and
its answer lost (BUG-2, BUG-5).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from broker.replication.isr_updates import IsrOutcome, IsrProposal, IsrResult
from protocol.types import LeaderAndIsr
from tests.sim.model_broker import ModelBroker
from tests.sim.model_checks import ModelChecks
from tests.sim.model_controller import ModelZooKeeper


@dataclass(eq=False)
class IsrWrite:
    """A proposal on its way to ZooKeeper.

    `needed` is what a newcomer must have (INV-13). `stats` are the registered lives, read before the write. `must_read` is set after
    a conflict and, without `stats`, after a write whose answer was lost.
    """

    broker: ModelBroker
    life: int
    proposal: IsrProposal
    needed: int
    stats: dict[int, int] | None = None
    outcome: IsrOutcome | None = None
    state: LeaderAndIsr | None = None
    must_read: bool = False


class ModelIsrWrites:
    """The proposals of all brokers."""

    def __init__(
        self, dice: random.Random, brokers: Sequence[ModelBroker], zookeeper: ModelZooKeeper, checks: ModelChecks
    ) -> None:
        self._dice, self._brokers, self._zookeeper, self._checks = dice, brokers, zookeeper, checks
        self._writes: list[IsrWrite] = []

    def collect(self) -> None:
        """Takes the proposals of the leaders in this step."""
        for broker in self._brokers:
            while broker.proposals:
                proposal = broker.proposals.pop(0)
                needed = max(broker.partition.high_watermark, broker.partition.epoch_start_offset)
                self._writes.append(IsrWrite(broker, broker.life, proposal, needed))

    def go_on(self) -> bool:
        """Takes a proposal one piece further. False: it cannot continue now."""
        if not self._writes:
            return False
        write = self._writes[int(self._dice.random() * len(self._writes))]
        broker = write.broker
        if not broker.is_running or broker.life != write.life:
            return self._go_on_for_the_dead(write)
        if broker.is_paused or self._zookeeper.registered.get(broker.id) != broker.life:
            return False
        if write.outcome is not None:
            self._writes.remove(write)
            self._answer(write)
        elif write.must_read:
            self._read_again(write)
        elif not write.proposal.is_wanted():
            self._writes.remove(write)
        elif write.stats is None:
            write.stats = dict(self._zookeeper.registered)
            if any(write.stats.get(broker) != life for broker, life in write.proposal.newcomers.items()):
                write.outcome = IsrOutcome.REFUSED
        else:
            self._write(write)
        return True

    def _go_on_for_the_dead(self, write: IsrWrite) -> bool:
        """A request that the broker sent before may still arrive while its session lives."""
        self._writes.remove(write)
        if write.stats is not None and write.outcome is None and not write.must_read and self._dice.random() < 0.5:
            if self._zookeeper.registered.get(write.broker.id) == write.life:
                self._try_write(write)
            return True
        return False

    def _write(self, write: IsrWrite) -> None:
        """Applies the write or not, and delivers the answer or not."""
        luck = self._dice.random()
        if luck < 0.1:
            write.must_read, write.stats = True, None
            return
        written = self._try_write(write)
        if luck < 0.25:
            write.must_read, write.stats = True, None
        elif written is None:
            write.must_read = True
        else:
            write.outcome, write.state = IsrOutcome.COMMITTED, written

    def _try_write(self, write: IsrWrite) -> LeaderAndIsr | None:
        proposal = write.proposal
        if any(broker not in self._zookeeper.registered for broker in proposal.newcomers):
            return None
        written = self._zookeeper.write(proposal.state, proposal.state.zk_version)
        if written is not None and write.broker.is_running:
            for broker, life in proposal.newcomers.items():
                newcomer = self._brokers[broker - 1]
                if self._checks.is_clean and newcomer.life == life:
                    self._checks.joined(write.broker, newcomer, write.needed)
        return written

    def _read_again(self, write: IsrWrite) -> None:
        """IsrUpdates._read_again: after a conflict (`stats` is there), or when nobody knows."""
        state, mine = self._zookeeper.state, write.proposal.state
        assert state is not None
        is_untouched = write.stats is None and state.zk_version == mine.zk_version
        write.must_read = False
        if (state.leader, state.leader_epoch) != (mine.leader, mine.leader_epoch):
            write.outcome, write.state = IsrOutcome.CONFLICT, mine
        elif is_untouched:
            return
        else:
            write.outcome, write.state = IsrOutcome.COMMITTED, state

    def _answer(self, write: IsrWrite) -> None:
        assert write.outcome is not None
        registered = self._zookeeper.registered
        doubtful = tuple(broker for broker, life in write.proposal.newcomers.items() if registered.get(broker) != life)
        if write.proposal.is_wanted():
            state = write.state or write.proposal.state
            write.proposal.on_result(IsrResult(write.outcome, state, doubtful))
