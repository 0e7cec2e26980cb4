"""Epoch arithmetic (KIP-101, INV-19, BUG-15), by table and against a naive model."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.storage.leader_epochs import LeaderEpochCache

ENTRIES = [(0, 0), (2, 10), (5, 30)]
END = 40


@pytest.mark.parametrize(
    ("entries", "epoch", "answer"),
    [
        (ENTRIES, -1, (-1, -1)),
        (ENTRIES, 0, (0, 10)),
        (ENTRIES, 1, (0, 10)),
        (ENTRIES, 2, (2, 30)),
        (ENTRIES, 4, (2, 30)),
        (ENTRIES, 5, (5, 40)),
        (ENTRIES, 6, (-1, -1)),
        ([(4, 10), (6, 12)], 2, (2, 10)),  # below the first epoch: its start
        ([], 0, (-1, -1)),
    ],
)
def test_end_offset_as_kafka_answers_it(entries: list[tuple[int, int]], epoch: int, answer: tuple[int, int]) -> None:
    assert LeaderEpochCache(entries).end_offset_for(epoch, END) == answer


@pytest.mark.parametrize(
    ("epoch", "start", "entries"),
    [
        (6, 40, [*ENTRIES, (6, 40)]),
        (6, 30, [(0, 0), (2, 10), (6, 30)]),
        (6, 0, [(6, 0)]),
        (5, 50, ENTRIES),
        (4, 50, ENTRIES),
    ],
    ids=["new", "at the start of an empty one", "before all", "known", "older"],
)
def test_assign(epoch: int, start: int, entries: list[tuple[int, int]]) -> None:
    cache = LeaderEpochCache(ENTRIES)
    cache.assign(epoch, start)
    assert cache.entries == entries


@pytest.mark.parametrize(
    ("truncate", "offset", "entries"),
    [
        (LeaderEpochCache.truncate_from_end, 31, ENTRIES),
        (LeaderEpochCache.truncate_from_end, 30, ENTRIES[:2]),
        (LeaderEpochCache.truncate_from_end, 11, ENTRIES[:2]),
        (LeaderEpochCache.truncate_from_end, 0, []),
        (LeaderEpochCache.truncate_from_start, 0, ENTRIES),
        (LeaderEpochCache.truncate_from_start, 5, [(0, 5), (2, 10), (5, 30)]),
        (LeaderEpochCache.truncate_from_start, 10, [(2, 10), (5, 30)]),
        (LeaderEpochCache.truncate_from_start, 99, [(5, 99)]),
    ],
)
def test_truncate(
    truncate: Callable[[LeaderEpochCache, int], None], offset: int, entries: list[tuple[int, int]]
) -> None:
    cache = LeaderEpochCache(ENTRIES)
    truncate(cache, offset)
    assert cache.entries == entries


def test_only_what_changed_is_written() -> None:
    cache = LeaderEpochCache([])
    told = []
    for change in (
        lambda: cache.assign(1, 0),
        lambda: cache.assign(1, 5),
        lambda: cache.truncate_from_end(9),
        lambda: cache.truncate_from_start(0),
        cache.clear,
        cache.clear,
    ):
        cache.is_changed = False
        change()
        told.append(cache.is_changed)
    assert told == [True, False, False, False, True, False]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), max_size=12), st.integers(0, 30))
def test_agrees_with_an_epoch_for_each_record(appends: list[tuple[int, int]], cut: int) -> None:
    """Each append raises the epoch and adds some records. The naive model is a list with the epoch of each record."""
    cache, model, epoch = LeaderEpochCache(), list[int](), 0
    for rise, records in appends:
        epoch += rise
        cache.assign(epoch, len(model))
        model += [epoch] * records
    assert cache.latest_epoch() == (epoch if appends else -1)
    del model[cut:]
    cache.truncate_from_end(len(model))
    assert [cache.epoch_for_offset(offset) for offset in range(len(model))] == model
    entries = cache.entries
    assert entries == sorted(set(entries))
    for asked in range(epoch + 2):
        found, end = cache.end_offset_for(asked, len(model))
        if found >= 0 and found in model:
            assert end == len([e for e in model if e <= asked])
