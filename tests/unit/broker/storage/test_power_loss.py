"""Power lost at any call to the disk, several times in a row (INV-21, FLT-24, BUG-18).

What a log must keep is what was below its recovery point; what it may keep is what was ever appended there.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from broker.storage.log import Log
from protocol.kafka.record_batch import parse_header
from tests.support.busy_disk import run
from tests.support.logs import TP, batch, check, everything, fill, open_at, split, started
from tools.sim.world.disk import MemoryDisk, PowerLost

TOPIC_ID = "AAAAAAAAAAAAAAAAAAAAWA"

Batches = dict[int, bytes]
"""Base offset -> the batch there"""


def by_offset(log: Log, below: int) -> Batches:
    batches = {parse_header(one).base_offset: one for one in split(everything(log))}
    return {base: one for base, one in batches.items() if parse_header(one).next_offset <= below}


class Machine:
    """A broker's storage with one log, which crashes and comes back on what its disk kept."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.disk = MemoryDisk()
        self.epoch = 0
        self.mark = 0
        self.appended: set[tuple[int, bytes]] = set()
        self.safe: Batches = {}

    def start(self) -> None:
        self.manager = started(self.disk)
        self.manager.high_watermark_of = lambda tp: self.log.log_end_offset
        self.log = self.manager.get_or_create(TP, TOPIC_ID, {})
        self.epoch = max(self.epoch, self.log.leader_epochs.latest_epoch()) + 1
        self.look()

    def look(self) -> None:
        """What must be there is there, what is there was written, and everything agrees. Loses no power itself."""
        calls_left, self.disk.calls_left = self.disk.calls_left, None
        check(self.log)
        found = by_offset(self.log, self.log.log_end_offset)
        for base, one in self.safe.items():
            if base >= self.log.log_start_offset:
                assert found.get(base) == one, f"the batch at {base} was synced"
        assert set(found.items()) <= self.appended
        assert self.log.topic_id == TOPIC_ID
        self.safe |= by_offset(self.log, self.log.recovery_point)
        self.disk.calls_left = calls_left

    def do(self, kind: str, amount: int) -> None:
        log = self.log
        match kind:
            case "lead":
                self.epoch += 1
                log.leader_epochs.assign(self.epoch, log.log_end_offset)
            case "append":
                for _ in range(amount):
                    self.mark += 1
                    sent = batch(1 + self.mark % 2, mark=self.mark)
                    base = log.log_end_offset
                    stored = base.to_bytes(8, "big") + sent[8:12] + self.epoch.to_bytes(4, "big") + sent[16:]
                    self.appended.add((base, stored))
                    log.append_as_leader(sent, self.epoch)
            case "flush":
                run(log.flush())
            case "checkpoint":
                run(self.manager.checkpoints.write_recovery_points())
                run(self.manager.checkpoints.write_log_starts())
            case "truncate":
                target = max(log.log_end_offset - amount, log.log_start_offset)
                self.safe = {base: one for base, one in self.safe.items() if parse_header(one).next_offset <= target}
                log.truncate_to(target)
                # As the manager's `run` does at its next tick.
                run(self.manager.checkpoints.write_recovery_points())
            case "delete records":
                log.increment_log_start(min(log.log_start_offset + amount, log.log_end_offset))
            case "retention":
                run(self.manager.upkeep.delete_old_segments())
            case "restart":
                run(self.manager.shutdown())
                self.start()
        self.look()

    def live(self, deeds: list[tuple[str, int]], calls: int) -> None:
        """Starts, works, and stops at the latest after `calls` calls to the disk."""
        self.disk.calls_left = calls
        try:
            self.start()
            for kind, amount in deeds:
                self.do(kind, amount)
        except PowerLost:
            pass
        self.disk = self.disk.after_power_loss(self.random)


OFTEN = ["append"] * 3
SELDOM = ["flush", "checkpoint", "lead", "truncate", "restart", "delete records", "retention"]
deeds = st.tuples(st.sampled_from(OFTEN + SELDOM), st.integers(1, 9))
lives = st.lists(st.tuples(st.lists(deeds, max_size=12), st.integers(0, 400)), min_size=1, max_size=4)
FLUSHED = [("append", 3), ("lead", 0), ("append", 20), ("flush", 0), ("checkpoint", 0)]


@given(lives, st.integers(0, 2**32))
@settings(max_examples=75)
def test_what_was_synced_survives_and_the_rest_is_a_valid_prefix(
    lives: list[tuple[list[tuple[str, int]], int]], seed: int
) -> None:
    machine = Machine(Random(seed))
    for deeds, calls in lives:
        machine.live(deeds, calls)
    machine.start()


def test_the_epochs_and_the_topic_id_below_the_recovery_point_are_those_of_the_log() -> None:
    """The checkpoint was renamed into place but never synced: a flush must do that before it moves the recovery point."""
    for seed in range(30):
        machine = Machine(Random(seed))
        machine.start()
        for kind, amount in FLUSHED:
            machine.do(kind, amount)
        epochs = machine.log.leader_epochs.entries
        after = started(machine.disk.after_power_loss(machine.random)).get(TP)
        assert after is not None
        assert (after.topic_id, after.leader_epochs.entries) == (TOPIC_ID, epochs)


@pytest.mark.parametrize("cuts", [(-1,), (-2,), (-1, -2)], ids=str)
def test_a_segment_that_was_cut_and_comes_back_hides_no_lost_record(cuts: Sequence[int]) -> None:
    """The cut is at a segment's start, so appends continue in the one before. Only a flush makes the removal of a name lasting."""
    for seed in range(40):
        disk = MemoryDisk()
        log = open_at(disk)
        for count in (3, 3, 2) * 3:
            fill(log, 1, count=count)
        assert len(log.segments) == 3, "each has room for a record"
        run(log.flush())
        for start in [log.segments[number].base_offset for number in cuts]:
            log.truncate_to(start)
        fill(log, 5, epoch=2, count=1)
        after = disk.after_power_loss(Random(seed))
        again = open_at(after, recovery_point=log.recovery_point)
        assert again.log_end_offset >= log.recovery_point
        check(again)
