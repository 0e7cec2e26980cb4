"""Records of groups of the new kind that were not written by this version of the broker, or are broken."""

from __future__ import annotations

import uuid

import pytest

from broker.groups.consumer_group.assignors.problem import IdPartition
from broker.groups.consumer_group.consumer_group import ConsumerGroup
from broker.groups.consumer_group.member import ClassicProtocols, ConsumerMember, MemberState
from broker.groups.consumer_group.messages import (
    AssignmentChanged,
    Change,
    ConsumerGroupSettings,
    EpochChanged,
    MemberChanged,
    RegexResolved,
    TargetChanged,
    TargetEpochChanged,
)
from broker.groups.group.messages import Protocol
from broker.groups.offsets_topic.consumer_group_records import encode
from broker.groups.offsets_topic.image import OffsetsImage
from protocol.kafka.record_batch import build_batch

TOPIC = uuid.UUID(int=1).bytes
ZERO, ONE = IdPartition(TOPIC, 0), IdPartition(TOPIC, 1)
MEMBER = ConsumerMember(
    "m",
    instance_id="i",
    topics=frozenset({"t"}),
    regex="t.*",
    epoch=2,
    state=MemberState.UNREVOKED_PARTITIONS,
    assigned=frozenset({ZERO}),
    revoking=frozenset({ONE}),
    classic=ClassicProtocols(5, (Protocol("range", b"data"),)),
)
CHANGES: tuple[Change, ...] = (
    MemberChanged("m", MEMBER),
    EpochChanged(2, 77),
    TargetChanged("m", MEMBER.held),
    TargetEpochChanged(2),
    AssignmentChanged("m", MEMBER),
    RegexResolved("t.*", MEMBER.topics),
)


def read(key: bytes, value: bytes | None) -> OffsetsImage:
    image = OffsetsImage()
    for _ in image.steps(build_batch([(key, value, (), 1_000)])):
        pass
    return image


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: type(change).__name__)
def test_a_record_that_ends_too_early_is_skipped(change: Change) -> None:
    """Wherever it ends: a log with such a record is loaded."""
    key, value = encode("g", change, 1_000)
    assert value is not None
    for size in range(len(value)):
        skipped = read(key, value[:size]).skipped
        assert set(skipped) <= {"records of consumer groups that cannot be read"}
        assert skipped or size > 2


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: type(change).__name__)
def test_a_value_of_another_version_is_skipped(change: Change) -> None:
    key, value = encode("g", change, 1_000)
    assert value is not None
    assert read(key, b"\0\1" + value[2:]).skipped == {"records of consumer groups of version 1": 1}


def test_a_partition_of_two_members_is_that_of_the_first() -> None:
    """No broker stores that, but a record that cannot be read may leave it."""
    both = [AssignmentChanged(name, ConsumerMember(name, assigned=frozenset({ZERO, ONE}))) for name in ("a", "b")]
    group = ConsumerGroup.restored("g", ConsumerGroupSettings(), [EpochChanged(1), *both], 0.0)
    assert [(member.member_id, len(member.held)) for member in group.members.values()] == [("a", 2), ("b", 0)]
