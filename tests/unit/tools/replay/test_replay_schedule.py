"""Which partition, task and moment an operation gets."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.replay.schedule import busiest_partition, due_after_s, partition_of, partitions_of_reader, spread


def test_partitions_by_key_and_in_turn() -> None:
    assert partition_of(b"UA", 7, 6) == zlib.crc32(b"UA") % 6 == 4
    assert [partition_of(None, event, 3) for event in range(4)] == [0, 1, 2, 0]
    assert partition_of(b"", 5, 3) == 2


@pytest.mark.parametrize(
    ("time_us", "speed", "due"), [(0, 1, 0), (1_000_000, 1, 1), (86_400_000_000, 1440, 60), (500_000, 0.5, 1)]
)
def test_gaps_are_divided_by_the_speed(time_us: int, speed: float, due: float) -> None:
    assert due_after_s(1_357_000_000_000_000 + time_us, 1_357_000_000_000_000, speed) == pytest.approx(due)


def test_clients_are_spread_evenly_and_stay_whole() -> None:
    weights = {"UA": 10, "AA": 6, "B6": 5, "DL": 4, "US": 1}
    assert spread(weights, 1) == dict.fromkeys(weights, 0)
    assert spread(weights, 2) == {"UA": 0, "AA": 1, "B6": 1, "DL": 0, "US": 1}


@given(st.dictionaries(st.text(max_size=3), st.integers(1, 100), min_size=1, max_size=20), st.integers(1, 6))
def test_no_task_has_more_than_a_client_too_much(weights: dict[str, int], task_count: int) -> None:
    chosen = spread(weights, task_count)
    load = [sum(weights[name] for name in weights if chosen[name] == task) for task in range(task_count)]
    assert sum(load) == sum(weights.values())
    assert max(load) - min(load) <= max(weights.values())


@given(st.integers(1, 8), st.integers(1, 30))
def test_every_partition_has_one_reader(readers: int, partitions: int) -> None:
    assigned = [
        partition for reader in range(readers) for partition in partitions_of_reader(reader, readers, partitions)
    ]
    assert sorted(assigned) == list(range(partitions))
    for reader in range(readers):
        assert all(partition % readers == reader for partition in partitions_of_reader(reader, readers, partitions))


def test_the_busiest_partition() -> None:
    assert busiest_partition({b"UA": 5, b"AA": 3, b"WN": 3}, 6) == 3
