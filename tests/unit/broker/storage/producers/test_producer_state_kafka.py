"""Real Kafka's ProducerStateManager is asked the same questions (LOG-5, FMT-3): it answers the same, and reads our snapshots."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.storage.producers.producer_snapshots import decode, encode, file_name, newest_first, offset_of
from broker.storage.producers.producer_state import SEQUENCE_MAX, ProducerState
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.control_records import Marker
from protocol.kafka.record_batch import CONTROL_BIT, TRANSACTIONAL_BIT, BatchHeader
from tests.support.kafka_tools import KafkaTools
from tests.support.real_kafka import java_command, skip_without_kafka

ORACLE = Path(__file__).with_name("ProducerStateOracle.java")
STEPS = 6000
ERRORS = {
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "OutOfOrderSequenceException",
    ErrorCode.INVALID_PRODUCER_EPOCH: "InvalidProducerEpochException",
    ErrorCode.INVALID_TXN_STATE: "InvalidTxnStateException",
    ErrorCode.TRANSACTION_COORDINATOR_FENCED: "TransactionCoordinatorFencedException",
}

pytestmark = pytest.mark.kafka


class Oracle:
    """The Java process, one question and one answer at a time."""

    def __init__(self, directory: Path) -> None:
        command = java_command(str(ORACLE), str(directory), logs="silent")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, *words: object) -> str:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer.endswith("\n"), "the oracle has ended"
        return answer.strip()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=30)


@pytest.fixture
def oracle(tmp_path: Path) -> Iterator[Oracle]:
    skip_without_kafka()
    directory = tmp_path / "kafka"
    directory.mkdir()
    found = Oracle(directory)
    yield found
    found.close()


def dump(state: ProducerState, batches_per_producer: int = 5) -> str:
    texts = []
    for producer_id, entry in sorted(state.producers.items()):
        kept = entry.batches[-batches_per_producer:]
        parts = [f"{b.last_sequence},{b.last_offset},{b.offset_delta}" for b in kept]
        numbers = (
            producer_id,
            entry.epoch,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.transaction_first_offset,
        )
        texts.append(":".join([*map(str, numbers), *parts]))
    return " ".join(texts)


Written = tuple[BatchHeader, Marker | None]


def words_of(batch: BatchHeader, marker: Marker | None) -> tuple[object, ...]:
    """A batch as the oracle reads it."""
    if marker is not None:
        kind = "commit" if marker.is_commit else "abort"
        return batch.producer_id, batch.producer_epoch, marker.coordinator_epoch, 0, batch.max_timestamp, kind
    kind = "transactional" if batch.is_transactional else "plain"
    numbers = batch.producer_id, batch.producer_epoch, batch.base_sequence, batch.record_count, batch.max_timestamp
    return *numbers, kind


class Log:
    """Our state and the batches behind it, and Kafka's state of the same."""

    def __init__(self, oracle: Oracle, dice: random.Random, snapshots: Path) -> None:
        self.oracle = oracle
        self.dice = dice
        self.snapshots = snapshots
        self.state = ProducerState()
        self.batches: list[Written] = []
        self.high_watermark = 0

    def random_batch(self) -> BatchHeader:
        """Mostly one that goes on; else a replay, or anything."""
        dice = self.dice
        producer_id = dice.randrange(4)
        entry = self.state.producers.get(producer_id)
        epoch, sequence = dice.randrange(3), dice.choice([0, 0, 1, 5, SEQUENCE_MAX - 1, SEQUENCE_MAX])
        is_open = entry is not None and entry.transaction_first_offset >= 0
        attributes = TRANSACTIONAL_BIT if dice.random() < (0.95 if is_open else 0.4) else 0
        kind = dice.random()
        repeated = [batch for batch, marker in self.batches[-12:] if marker is None]
        if kind < 0.25 and repeated:
            return dice.choice(repeated)
        if kind < 0.9 and entry is not None:
            following = 0 if entry.last_sequence == SEQUENCE_MAX else entry.last_sequence + 1
            epoch, sequence = (entry.epoch, following) if kind < 0.85 else (entry.epoch + 1, 0)
        count, timestamp = dice.randrange(1, 4), dice.randrange(1000)
        return BatchHeader(
            0, 100, 0, 2, 0, attributes, count - 1, timestamp, timestamp, producer_id, epoch, sequence, count
        )

    def random_copy(self) -> tuple[str, BatchHeader]:
        """A batch that is not checked, or not by its sequence. A leader accepts only transactional ones in a transaction."""
        batch = self.random_batch()
        if self.dice.random() < 0.3:
            return "coordinator", batch._replace(base_sequence=0, attributes=TRANSACTIONAL_BIT)
        entry = self.state.producers.get(batch.producer_id)
        is_open = entry is not None and entry.transaction_first_offset >= 0
        return "copy", batch._replace(attributes=TRANSACTIONAL_BIT if is_open else batch.attributes)

    def random_marker(self) -> Written:
        """Mostly one that is not fenced."""
        dice = self.dice
        producer_id, timestamp = dice.randrange(4), dice.randrange(1000)
        entry = self.state.producers.get(producer_id)
        epoch, coordinator_epoch = (entry.epoch, entry.coordinator_epoch) if entry else (0, 0)
        if dice.random() < 0.3:
            epoch, coordinator_epoch = max(epoch + dice.choice((-1, 0, 1)), 0), coordinator_epoch + dice.choice((-1, 1))
        attributes = TRANSACTIONAL_BIT | CONTROL_BIT
        batch = BatchHeader(0, 100, 0, 2, 0, attributes, 0, timestamp, timestamp, producer_id, epoch, -1, 1)
        return batch, Marker(dice.random() < 0.5, max(coordinator_epoch, 0))

    def write(self, origin: str, batch: BatchHeader, marker: Marker | None = None) -> None:
        answer = self.oracle.ask(origin, *words_of(batch, marker))
        if batch.is_transactional and answer.startswith("duplicate") and self._has_ended(batch, answer):
            answer = "error OutOfOrderSequenceException"  # the one difference: see `producer_state`
        assert answer == self._own_answer(origin, batch, marker)

    def _has_ended(self, batch: BatchHeader, duplicate: str) -> bool:
        """Whether the kept batch that Kafka's answer names belongs to an ended transaction."""
        first_open = self.state.producers[batch.producer_id].transaction_first_offset
        return first_open < 0 or int(duplicate.split()[1]) < first_open

    def _own_answer(self, origin: str, batch: BatchHeader, marker: Marker | None) -> str:
        duplicate = None
        try:
            if origin == "client":
                duplicate = self.state.check(batch)
            elif origin == "coordinator":
                self.state.check_coordinated(batch, marker)
        except KafkaError as error:
            return f"error {ERRORS[error.code]}"
        if duplicate is not None:
            return f"duplicate {duplicate.first_offset} {duplicate.last_offset}"
        offset = self.state.end_offset
        self.batches.append((batch._replace(base_offset=offset), marker))
        ended = self.state.append(batch, offset, marker)
        return f"ok {offset}" + (f" ends {ended.first_offset} {ended.last_stable_offset}" if ended else "")

    def replicate(self) -> None:
        """The high watermark moves, and both say up to where all is stable."""
        self.high_watermark = max(self.high_watermark, self.state.end_offset - self.dice.randrange(4))
        assert self.oracle.ask("replicated", self.high_watermark) == "ok"
        first = self.state.first_unstable(self.high_watermark)
        assert self.oracle.ask("unstable") == f"ok {-1 if first is None else first}"

    def snapshot(self) -> None:
        (self.snapshots / file_name(self.state.end_offset)).write_bytes(encode(self.state))
        assert self.oracle.ask("snapshot") == "ok"

    def cut(self) -> None:
        """Both rebuild; Kafka is given what its snapshot does not have."""
        if not self.batches:
            return
        del self.batches[-self.dice.randrange(1, min(len(self.batches), 12) + 1) :]
        end = self.batches[-1][0].next_offset if self.batches else 0
        self.high_watermark = end
        assert self.oracle.ask("cut", end) == "ok"
        from_offset = int(self.oracle.ask("end").split()[1])
        for batch, marker in self.batches:
            if batch.base_offset >= from_offset:
                self.oracle.ask("copy", *words_of(batch, marker))
        for path in self.snapshots.iterdir():
            if (offset_of(path.name) or 0) > end:
                path.unlink()
        if not self.state.truncate(end):
            self._rebuild(end)
        # Kafka's state is only as good as its snapshot, so the two are compared by each producer's last batch.
        self.state = self._as_kafka(from_offset)
        assert self.oracle.ask("dump") == dump(self.state)
        self.replicate()

    def _rebuild(self, end: int) -> None:
        offsets = [offset for path in self.snapshots.iterdir() if (offset := offset_of(path.name)) is not None]
        for offset in newest_first(offsets, first_offset=0, log_end_offset=end):
            self.state = decode((self.snapshots / file_name(offset)).read_bytes(), offset)
            break
        for batch, marker in self.batches:
            if batch.base_offset >= self.state.end_offset:
                self.state.append(batch, batch.base_offset, marker)
        assert self.state.end_offset == end

    def _as_kafka(self, from_offset: int) -> ProducerState:
        """What is left of ours when each snapshot has one batch per producer only."""
        state = ProducerState()
        for batch, marker in self.batches:
            if batch.base_offset == from_offset and from_offset > 0:
                _keep_last(state)
            state.append(batch, batch.base_offset, marker)
        if from_offset == state.end_offset and from_offset > 0:
            _keep_last(state)
        assert state.end_offset == self.state.end_offset
        assert state.ongoing == self.state.ongoing
        return state


def _keep_last(state: ProducerState) -> None:
    for entry in state.producers.values():
        entry.batches = entry.batches[-1:]


def test_kafka_answers_the_same(oracle: Oracle, tmp_path: Path) -> None:
    """INV-20, LOG-7: every answer, and the whole state, over a random history with transactions, replicas' copies, snapshots and cuts."""
    snapshots = tmp_path / "ours"
    snapshots.mkdir()
    log = Log(oracle, random.Random(20), snapshots)
    for _ in range(STEPS):
        kind = log.dice.random()
        if kind < 0.7:
            log.write("client", log.random_batch())
        elif kind < 0.85:
            log.write(log.dice.choice(["coordinator", "coordinator", "copy"]), *log.random_marker())
        elif kind < 0.9:
            log.replicate()
        elif kind < 0.95:
            log.write(*log.random_copy())
        elif kind < 0.98:
            log.snapshot()
        else:
            log.cut()
        assert oracle.ask("dump") == dump(log.state)
    assert len(log.batches) > STEPS / 4


def test_kafka_reads_our_snapshot_and_we_read_kafkas(oracle: Oracle, tmp_path: Path) -> None:
    """FMT-3. If a producer has several entries, Kafka keeps the last one."""
    ours = tmp_path / "ours"
    ours.mkdir()
    log = Log(oracle, random.Random(21), ours)
    for _ in range(300):
        log.write("client", log.random_batch())
    log.snapshot()
    name = file_name(log.state.end_offset)
    kafkas = (tmp_path / "kafka" / name).read_bytes()
    assert dump(decode(kafkas, log.state.end_offset)) == dump(log.state, batches_per_producer=1)
    last_of = {part.split(":")[0]: part for part in oracle.ask("load", ours / name).split(" ")}
    assert " ".join(last_of.values()) == dump(log.state, batches_per_producer=1)
    dumped = KafkaTools().dump([ours / name])
    assert dumped.count("producerId: ") == sum(len(entry.batches) for entry in log.state.producers.values())
    for producer_id, entry in log.state.producers.items():
        assert f"producerId: {producer_id} producerEpoch: {entry.epoch} " in dumped
