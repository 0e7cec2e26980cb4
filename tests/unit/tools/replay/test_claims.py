"""A replayed group's claims: they survive the wire, and each partition has the reader that came last (RPL-2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.kafka.framing import MalformedRequest
from tests.support.group_scripts import subscription as plain_subscription
from tools.replay.load.claims import (
    TopicPartition,
    assigned_by_claims,
    assignment,
    claims_of,
    partitions_of,
    subscription,
)

PARTITIONS = st.tuples(st.sampled_from(["t", "orders", "t-2"]), st.integers(0, 5))
CLAIMS = st.dictionaries(PARTITIONS, st.integers(0, 2**62))
GROUPS = st.dictionaries(st.sampled_from(["a", "b", "c", "d"]), CLAIMS)


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        ({}, {}),
        ({"a": {}}, {"a": []}),
        ({"a": {("t", 0): 5}, "b": {("t", 0): 6, ("t", 1): 1}}, {"a": [], "b": [("t", 0), ("t", 1)]}),
        ({"a": {("t", 0): 7}, "b": {("t", 0): 6}}, {"a": [("t", 0)], "b": []}),
        ({"a": {("t", 0): 5, ("u", 0): 5}, "b": {("t", 0): 5}}, {"a": [("u", 0)], "b": [("t", 0)]}),
    ],
)
def test_the_latest_claim_wins(
    claims: dict[str, dict[TopicPartition, int]], expected: dict[str, list[TopicPartition]]
) -> None:
    assert assigned_by_claims(claims) == expected


@given(GROUPS)
def test_each_claimed_partition_has_one_owner_and_no_other_claim_is_later(
    claims: dict[str, dict[TopicPartition, int]],
) -> None:
    assigned = assigned_by_claims(claims)
    assert assigned.keys() == claims.keys()
    owned = [partition for partitions in assigned.values() for partition in partitions]
    assert sorted(owned) == sorted(set().union(*claims.values()) if claims else [])
    for member, partitions in assigned.items():
        for partition in partitions:
            latest = max(of_member[partition] for of_member in claims.values() if partition in of_member)
            assert claims[member][partition] == latest


@given(CLAIMS)
def test_claims_and_assignments_survive_the_wire(claims: dict[TopicPartition, int]) -> None:
    topics = {topic for topic, _ in claims} | {"read before"}
    metadata = subscription(topics, claims)
    assert metadata.startswith(plain_subscription(*sorted(topics))[:-4])
    assert claims_of(metadata) == claims
    assert partitions_of(assignment(list(claims))) == claims.keys()


@pytest.mark.parametrize("metadata", [b"", b"\0", plain_subscription("t"), b"\0\1" + plain_subscription("t")[2:]])
def test_metadata_of_others_is_refused(metadata: bytes) -> None:
    with pytest.raises(MalformedRequest):
        claims_of(metadata)


@given(CLAIMS, st.integers(0, 400))
def test_metadata_that_is_cut_off_is_refused(claims: dict[TopicPartition, int], size: int) -> None:
    metadata = subscription(["t"], claims)
    if size < len(metadata):
        with pytest.raises(MalformedRequest):
            claims_of(metadata[:size])
