"""Placement (CTL-7): Kafka's own examples, and rules for every cluster."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.replica_placement import PlacementError, place

FIVE = [(broker, None) for broker in range(5)]

KAFKAS_EXAMPLE = ["012", "123", "234", "340", "401", "023", "134", "240", "301", "412"]
"""The table in the documentation of Kafka's AdminUtilsTest and AdminRackAwareTest."""
RACKS = {0: "rack1", 1: "rack3", 2: "rack3", 3: "rack2", 4: "rack2", 5: "rack1"}
RACKS_ALTERNATE = ["031", "315", "154", "542", "420", "203", "042"]
"""Brokers 0, 3, 1, 5, 4, 2: one of each rack by turn, as in Kafka's getRackAlternatedBrokerList."""


@pytest.mark.parametrize(
    ("brokers", "expected"),
    [(FIVE, KAFKAS_EXAMPLE), (list(RACKS.items()), RACKS_ALTERNATE), ([(7, None)], ["7", "7", "7"])],
)
def test_examples(brokers: list[tuple[int, str | None]], expected: list[str]) -> None:
    placed = place(brokers, len(expected), len(expected[0]))
    assert placed == {number: tuple(map(int, replicas)) for number, replicas in enumerate(expected)}


@pytest.mark.parametrize(
    ("partitions", "first_partition", "start", "shift", "expected"),
    [
        (1, 0, 3, 0, {0: (3, 4)}),
        (1, 0, 4, 2, {0: (4, 2)}),
        (2, 4, 1, 0, {4: (0, 1), 5: (1, 3)}),
        (0, 0, 0, 0, {}),
    ],
)
def test_the_start_index_and_the_shift_move_the_placement(
    partitions: int, first_partition: int, start: int, shift: int, expected: dict[int, tuple[int, ...]]
) -> None:
    placed = place(FIVE, partitions, 2, start_index=start, shift=shift, first_partition=first_partition)
    assert placed == expected


@pytest.mark.parametrize("factor", [0, -1, 6])
def test_an_impossible_replication_factor_is_refused(factor: int) -> None:
    with pytest.raises(PlacementError, match=f"replication factor {factor} "):
        place(FIVE, 1, factor)


clusters = st.dictionaries(st.integers(0, 50), st.sampled_from("abcd"), min_size=1, max_size=9)


@given(data=st.data(), racks=clusters, partitions=st.integers(0, 30), rack_aware=st.booleans())
def test_replicas_leaders_and_racks_are_spread_evenly(
    data: st.DataObject, racks: dict[int, str], partitions: int, rack_aware: bool
) -> None:
    """All replicas are on different brokers, on as many racks as possible, and leaders are spread evenly."""
    factor = data.draw(st.integers(1, len(racks)))
    start, shift = data.draw(st.integers(0, 100)), data.draw(st.integers(0, 100))
    brokers = [(broker, rack if rack_aware else None) for broker, rack in racks.items()]
    placed = place(brokers, partitions, factor, start_index=start, shift=shift)
    assert list(placed) == list(range(partitions))
    for replicas in placed.values():
        assert len(replicas) == len(set(replicas)) == factor
        assert set(replicas) <= racks.keys()
        if rack_aware:
            assert len({racks[replica] for replica in replicas}) == min(factor, len(set(racks.values())))
    leaders = Counter(replicas[0] for replicas in placed.values())
    if partitions:
        assert max(leaders.values()) <= -(-partitions // len(racks))


@given(racks=clusters, some_without=st.data())
def test_racks_are_ignored_if_a_broker_has_none(racks: dict[int, str], some_without: st.DataObject) -> None:
    without = some_without.draw(st.sampled_from(sorted(racks)))
    brokers = [(broker, None if broker == without else rack) for broker, rack in racks.items()]
    plain = [(broker, None) for broker in racks]
    assert place(brokers, 5, 1, start_index=2) == place(plain, 5, 1, start_index=2)
