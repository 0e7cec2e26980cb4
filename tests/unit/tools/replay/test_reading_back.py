"""RPL-6: a range of a partition is read once, through failures, or counts as unread."""

from __future__ import annotations

import pytest

from protocol.errors import ErrorCode, KafkaError
from tools.replay.run import reading_back
from tools.replay.run.reading_back import BelowTheLogStart, Reader
from tools.wire.cluster_view import Unreachable


class OpenConnection:
    is_open = True

    def close(self) -> None:
        pass


class ReaderOfBrokenAnswers(Reader):
    """The first answer has a batch and breaks off; the second one is whole."""

    answers = 0

    async def _connect(self, *_: object) -> OpenConnection:  # type: ignore[override]
        return OpenConnection()

    async def _fetch(self, *_: object) -> memoryview:
        return memoryview(b"")

    def _take(self, answer: memoryview, begin: int, at: int, stop: int) -> int:
        self._rows.append((at, 1, 0, stop - at, "intact"))
        self.answers += 1
        if self.answers == 1:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE)
        return stop


class ReaderOfDeletedRecords(Reader):
    """The log starts at offset 7."""

    async def _connect(self, *_: object) -> OpenConnection:  # type: ignore[override]
        return OpenConnection()

    async def _fetch(self, _connection: object, _topic: str, _partition: int, at: int) -> memoryview:
        return memoryview(bytes([at]))

    def _take(self, answer: memoryview, begin: int, at: int, stop: int) -> int:
        if answer[0] < 7:
            raise BelowTheLogStart
        self._rows.append((at, 1, at, stop - at, "intact"))
        return stop


class ReaderWithoutBrokers(Reader):
    async def _connect(self, *_: object) -> OpenConnection:  # type: ignore[override]
        raise Unreachable("no broker answers")


class ReaderBehindAnOpenTransaction(Reader):
    """The first answer has nothing, because a transaction is open; then the cluster has aborted it."""

    is_open = True

    async def _connect(self, *_: object) -> OpenConnection:  # type: ignore[override]
        return OpenConnection()

    async def _fetch(self, *_: object) -> memoryview:
        return memoryview(b"")

    def _take(self, answer: memoryview, begin: int, at: int, stop: int) -> int:
        if self.is_open:
            self.is_open = False
            return at
        self._rows.append((at, 1, at, stop - at, "intact"))
        return stop


def found(reader: Reader) -> list[tuple[int, int, str]]:
    rows = [row for batch in reader.read("t", 0, 5, 8) for row in batch.to_pylist()]
    return [(row["offset"], row["records"], row["kind"]) for row in rows]


def test_an_answer_that_is_read_again_counts_once() -> None:
    assert found(ReaderOfBrokenAnswers((), (), 1)) == [(5, 3, "intact")]


@pytest.mark.parametrize(
    ("log_start", "expected"),
    [
        (7, [(5, 2, "deleted"), (7, 1, "intact")]),
        (9, [(5, 3, "deleted")]),
        (5, [(5, 3, "unread")]),  # the log has been cut: not deleted
    ],
)
def test_what_was_deleted_since_is_left_out(
    monkeypatch: pytest.MonkeyPatch, log_start: int, expected: list[tuple[int, int, str]]
) -> None:
    async def start_offsets(*_: object) -> dict[tuple[str, int], int]:
        return {("t", 0): log_start}

    monkeypatch.setattr(reading_back, "READ_TIMEOUT_S", 0)
    monkeypatch.setattr(reading_back.fetching, "end_offsets", start_offsets)
    assert found(ReaderOfDeletedRecords((), (), 1)) == expected


def test_a_range_that_no_broker_serves_is_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_back, "READ_TIMEOUT_S", 0)
    assert found(ReaderWithoutBrokers((), (), 1)) == [(5, 3, "unread")]


def test_the_reader_waits_longer_for_the_end_of_an_open_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_back, "READ_TIMEOUT_S", 0)
    assert found(ReaderBehindAnOpenTransaction((), (), 1)) == [(5, 3, "intact")]
    monkeypatch.setattr(reading_back, "OPEN_TRANSACTION_S", 0)
    assert found(ReaderBehindAnOpenTransaction((), (), 1)) == [(5, 3, "unread")]
