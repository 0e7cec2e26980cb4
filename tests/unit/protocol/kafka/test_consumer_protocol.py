"""What members tell each other survives the wire, also in later versions; anything else is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.kafka.consumer_protocol import assigned, assignment, subscribed, subscription
from protocol.kafka.framing import MalformedRequest
from protocol.types import TopicPartition
from tests.support.group_scripts import subscription as plain_subscription

PARTITIONS = st.sets(st.builds(TopicPartition, st.sampled_from(["t", "orders", "t-2"]), st.integers(0, 5)))


@given(PARTITIONS)
def test_topics_and_partitions_survive_the_wire(partitions: set[TopicPartition]) -> None:
    topics = sorted({topic for topic, _ in partitions})
    assert subscription(topics) == plain_subscription(*topics)
    later = b"\0\1" + subscription(topics, b"data")[2:] + b"more"
    assert list(subscribed(subscription(topics))) == list(subscribed(later)) == topics
    assert set(assigned(assignment(partitions))) == partitions


def test_a_member_that_is_given_nothing_has_no_partitions() -> None:
    assert assigned(b"") == []


@given(PARTITIONS, st.integers(1, 200))
def test_what_is_cut_off_is_refused(partitions: set[TopicPartition], size: int) -> None:
    data = assignment(partitions)
    if size < len(data):
        with pytest.raises(MalformedRequest):
            assigned(data[:size])
