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
from protocol.kafka.record_batch import BatchHeader
from tests.support.kafka_tools import KafkaTools
from tests.support.real_kafka import java_command, skip_without_kafka

ORACLE = Path(__file__).with_name("ProducerStateOracle.java")
STEPS = 6000
ERRORS = {
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER: "OutOfOrderSequenceException",
    ErrorCode.INVALID_PRODUCER_EPOCH: "InvalidProducerEpochException",
}

pytestmark = pytest.mark.kafka


class Oracle:
    """The Java process, one question and one answer at a time."""

    def __init__(self, directory: Path) -> None:
        command = java_command(str(ORACLE), str(directory), heap="-Xmx256m", log_settings="silent")
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
        texts.append(":".join([str(producer_id), str(entry.epoch), str(entry.last_timestamp), *parts]))
    return " ".join(texts)


class Log:
    """Our state and the batches behind it, and Kafka's state of the same."""

    def __init__(self, oracle: Oracle, dice: random.Random, snapshots: Path) -> None:
        self.oracle = oracle
        self.dice = dice
        self.snapshots = snapshots
        self.state = ProducerState()
        self.batches: list[BatchHeader] = []

    def random_batch(self) -> BatchHeader:
        """Mostly one that goes on; else a replay, or anything."""
        dice = self.dice
        producer_id = dice.randrange(4)
        entry = self.state.producers.get(producer_id)
        epoch, sequence = dice.randrange(3), dice.choice([0, 0, 1, 5, SEQUENCE_MAX - 1, SEQUENCE_MAX])
        kind = dice.random()
        if kind < 0.25 and self.batches:
            return dice.choice(self.batches[-12:])
        if kind < 0.9 and entry is not None:
            following = 0 if entry.last_sequence == SEQUENCE_MAX else entry.last_sequence + 1
            epoch, sequence = (entry.epoch, following) if kind < 0.85 else (entry.epoch + 1, 0)
        count, timestamp = dice.randrange(1, 4), dice.randrange(1000)
        return BatchHeader(0, 100, 0, 2, 0, 0, count - 1, timestamp, timestamp, producer_id, epoch, sequence, count)

    def write(self, origin: str, batch: BatchHeader) -> None:
        answer = self.oracle.ask(
            origin,
            batch.producer_id,
            batch.producer_epoch,
            batch.base_sequence,
            batch.record_count,
            batch.max_timestamp,
        )
        assert answer == self._own_answer(origin, batch)

    def _own_answer(self, origin: str, batch: BatchHeader) -> str:
        try:
            duplicate = self.state.check(batch) if origin == "client" else None
        except KafkaError as error:
            return f"error {ERRORS[error.code]}"
        if duplicate is not None:
            return f"duplicate {duplicate.first_offset} {duplicate.last_offset}"
        offset = self.state.end_offset
        self.batches.append(batch._replace(base_offset=offset))
        self.state.append(batch, offset)
        return f"ok {offset}"

    def snapshot(self) -> None:
        (self.snapshots / file_name(self.state.end_offset)).write_bytes(encode(self.state))
        assert self.oracle.ask("snapshot") == "ok"

    def cut(self) -> None:
        """Both rebuild; Kafka is given what its snapshot does not have."""
        if not self.batches:
            return
        del self.batches[-self.dice.randrange(1, min(len(self.batches), 12) + 1) :]
        end = self.batches[-1].next_offset if self.batches else 0
        assert self.oracle.ask("cut", end) == "ok"
        from_offset = int(self.oracle.ask("end").split()[1])
        for batch in self.batches:
            if batch.base_offset >= from_offset:
                self.oracle.ask("copy", *batch[9:13], batch.max_timestamp)
        for path in self.snapshots.iterdir():
            if (offset_of(path.name) or 0) > end:
                path.unlink()
        if not self.state.truncate(end):
            self._rebuild(end)
        # Kafka's state is only as good as its snapshot, so the two are compared by each producer's last batch.
        self.state = self._as_kafka(from_offset)
        assert self.oracle.ask("dump") == dump(self.state)

    def _rebuild(self, end: int) -> None:
        offsets = [offset for path in self.snapshots.iterdir() if (offset := offset_of(path.name)) is not None]
        for offset in newest_first(offsets, first_offset=0, log_end_offset=end):
            self.state = decode((self.snapshots / file_name(offset)).read_bytes(), offset)
            break
        for batch in self.batches:
            if batch.base_offset >= self.state.end_offset:
                self.state.append(batch, batch.base_offset)
        assert self.state.end_offset == end

    def _as_kafka(self, from_offset: int) -> ProducerState:
        """What is left of ours when each snapshot has one batch per producer only."""
        state = ProducerState()
        for batch in self.batches:
            if batch.base_offset == from_offset and from_offset > 0:
                _keep_last(state)
            state.append(batch, batch.base_offset)
        if from_offset == state.end_offset and from_offset > 0:
            _keep_last(state)
        assert state.end_offset == self.state.end_offset
        return state


def _keep_last(state: ProducerState) -> None:
    for entry in state.producers.values():
        entry.batches = entry.batches[-1:]


def test_kafka_answers_the_same(oracle: Oracle, tmp_path: Path) -> None:
    """INV-20: every answer, and the whole state, over a random history with replicas' copies, snapshots and cuts."""
    snapshots = tmp_path / "ours"
    snapshots.mkdir()
    log = Log(oracle, random.Random(20), snapshots)
    for _ in range(STEPS):
        kind = log.dice.random()
        if kind < 0.9:
            log.write("client", log.random_batch())
        elif kind < 0.95:
            log.write("copy", log.random_batch())
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
