"""KafkaPythonAdmin fetches a group's offsets: it retries with a new client while the coordinator moves or loads."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kafka import TopicPartition as ClientTopicPartition
from kafka.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    GroupAuthorizationFailedError,
    KafkaConnectionError,
    NotCoordinatorError,
    UnsupportedVersionError,
)
from kafka.structs import OffsetAndMetadata

from protocol.types import TopicPartition
from tests.support.fake_time import time_of
from tools.admin import kafka_python_admin
from tools.admin.failures import AdminError, NotServed
from tools.admin.kafka_python_admin import KafkaPythonAdmin

MOVING = (NotCoordinatorError, CoordinatorLoadInProgressError, CoordinatorNotAvailableError, KafkaConnectionError)
OFFSETS = {
    ClientTopicPartition("t", 0): OffsetAndMetadata(5, "note", 3),
    ClientTopicPartition("t", 1): OffsetAndMetadata(6, None, -1),
    ClientTopicPartition("t", 2): OffsetAndMetadata(-1, "", -1),
}

Make = Callable[[list[Any]], tuple[KafkaPythonAdmin, list[str]]]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    return time_of(monkeypatch, kafka_python_admin)


@pytest.fixture
def make(clock: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> Make:
    """An adapter that gets the answers in turn (the last one repeats), and the log of what its clients did."""

    def made(answers: list[Any]) -> tuple[KafkaPythonAdmin, list[str]]:
        done: list[str] = []

        def list_group_offsets(groups: list[str]) -> Any:
            answer = answers.pop(0) if len(answers) > 1 else answers[0]
            done.append("asked")
            if isinstance(answer, type):
                raise answer("no")
            return dict.fromkeys(groups, answer)

        client = SimpleNamespace(list_group_offsets=list_group_offsets, close=lambda: done.append("closed"))
        monkeypatch.setattr(KafkaPythonAdmin, "_connected", lambda _: client)
        return KafkaPythonAdmin("127.0.0.1:1"), done

    return made


@pytest.mark.parametrize("moving", MOVING)
def test_a_coordinator_that_moves_is_looked_up_again(make: Make, moving: type[Exception]) -> None:
    admin, done = make([moving, moving, OFFSETS])
    assert admin.group_offsets("g") == {
        TopicPartition("t", 0): (5, 3, "note"),
        TopicPartition("t", 1): (6, None, ""),
    }
    assert done == ["asked", "closed", "asked", "closed", "asked"]


@pytest.mark.parametrize("moving", MOVING)
def test_retries_end_after_half_a_minute(make: Make, clock: SimpleNamespace, moving: type[Exception]) -> None:
    admin, _ = make([moving])
    with pytest.raises(AdminError, match=r"the offsets of group 'g' cannot be fetched: .*ottla cluster health"):
        admin.group_offsets("g")
    assert 29 <= clock.now <= 31


@pytest.mark.parametrize(
    ("refusal", "raised"), [(GroupAuthorizationFailedError, AdminError), (UnsupportedVersionError, NotServed)]
)
def test_a_refusal_is_not_retried(make: Make, refusal: type[Exception], raised: type[AdminError]) -> None:
    admin, done = make([refusal])
    with pytest.raises(raised):
        admin.group_offsets("g")
    assert done == ["asked"]
