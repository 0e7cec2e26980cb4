"""RPL-5: the records of a batch follow from the base offsets of the batches around it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tools.replay.traces.base_offsets import UNKNOWN, Batch, PartitionBatches


def settled(batches: list[tuple[str, int, int, int]], end: int) -> dict[str, int]:
    """`batches`: name, size, time of the append, base offset."""
    partition = PartitionBatches()
    done = []
    for name, size, appended, base_offset in batches:
        done += partition.add(Batch(name, size, appended, is_marker=name == "marker"), base_offset)
    return {batch.row: records for batch, records in [*done, *partition.finish(end)]}


def test_gaps_between_base_offsets() -> None:
    assert settled([("b", 100, 2, 5), ("a", 100, 1, 0), ("c", 100, 3, 7)], end=9) == {"a": 5, "b": 2, "c": 2}
    assert settled([("a", 100, 1, 0)], end=UNKNOWN) == {"a": UNKNOWN}
    assert settled([("a", 100, 1, 0), ("again", 100, 2, 0), ("b", 100, 3, 4)], end=5) == {"a": 4, "again": 4, "b": 1}


def test_batches_without_an_offset_share_a_gap_by_size() -> None:
    """A log of acks 0: 100 bytes of payload beside 300, and what came before the first known offset."""
    known = [("a", 161, 10, 0), ("c", 161, 30, 40)]
    assert settled([*known, ("zero", 361, 20, UNKNOWN), ("first", 100, 1, UNKNOWN)], end=41) == {
        "a": 10,
        "zero": 30,
        "c": 1,
        "first": UNKNOWN,
    }


def test_a_marker_of_a_transaction_takes_one_offset() -> None:
    assert settled([("a", 100, 1, 0), ("marker", 0, 2, UNKNOWN), ("b", 100, 3, 6)], end=7) == {
        "a": 5,
        "marker": 1,
        "b": 1,
    }


@given(st.lists(st.integers(1, 50), min_size=1, max_size=500), st.randoms())
def test_any_log_that_is_nearly_in_order_gives_the_records_back(counts: list[int], random: object) -> None:
    offsets = [sum(counts[:number]) for number in range(len(counts))]
    order = sorted(range(len(counts)), key=lambda number: number + random.uniform(0, 20))  # type: ignore[attr-defined]
    found = settled([(str(number), 100, number, offsets[number]) for number in order], end=sum(counts))
    assert [found[str(number)] for number in range(len(counts))] == counts
