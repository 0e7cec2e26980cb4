"""What the console makes of what brokers say, and what it sends when something changes."""

from __future__ import annotations

import asyncio
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.console.feed import LINES_MAX, Feed
from tools.console.metrics import read_page, since
from tools.console.state import (
    BrokerState,
    Rates,
    Seen,
    alive_by,
    answering,
    best_to_ask,
    broker_state,
    brokers_section,
    changed,
    controller_of,
    counts,
    group_lags,
    merged,
)

ALL = frozenset({1, 2, 3})


def seen(
    connected: bool | None = True,
    brokers: frozenset[int] | None = ALL,
    controller: int = 2,
    *,
    silent: bool = False,
    paused: bool = False,
) -> Seen:
    view = None if brokers is None else (brokers, controller)
    return Seen("h:1", connected, silent, paused, view)


@pytest.mark.parametrize(
    ("one", "alive", "state"),
    [
        (seen(None, None), ALL, BrokerState.UNKNOWN),
        (seen(False), ALL, BrokerState.DOWN),
        (seen(False, silent=True, paused=True), ALL, BrokerState.DOWN),
        (seen(silent=True, paused=True), ALL, BrokerState.PAUSED),
        (seen(silent=True), ALL, BrokerState.SILENT),
        (seen(), frozenset({2, 3}), BrokerState.CUT_OFF),
        (seen(), None, BrokerState.RUNNING),
        (seen(), ALL, BrokerState.RUNNING),
    ],
)
def test_the_state_of_a_broker(one: Seen, alive: frozenset[int] | None, state: BrokerState) -> None:
    assert broker_state(1, one, alive) is state


BUT_1 = frozenset({2, 3})


@pytest.mark.parametrize(
    ("brokers", "controller", "alive", "asked"),
    [
        ({1: seen(), 2: seen(), 3: seen()}, 2, ALL, 2),
        ({1: seen(), 2: seen(False), 3: seen()}, None, ALL, 1),
        # 1 is cut off: it still believes in itself.
        ({1: seen(controller=1), 2: seen(brokers=BUT_1), 3: seen(brokers=BUT_1)}, 2, BUT_1, 2),
        # The controller does not answer.
        ({1: seen(), 2: seen(silent=True), 3: seen()}, 2, ALL, 1),
        ({1: seen(controller=-1), 2: seen(controller=-1)}, None, ALL, 1),
        # 1 is cut off, and nobody knows a controller.
        ({1: seen(controller=-1), 2: seen(brokers=BUT_1, controller=-1), 3: seen(brokers=BUT_1, controller=-1)}, None, BUT_1, 2),
        ({1: seen(False), 2: seen(None, None)}, None, None, None),
        ({}, None, None, None),
    ],
)  # fmt: skip
def test_whom_to_believe(
    brokers: dict[int, Seen], controller: int | None, alive: frozenset[int] | None, asked: int | None
) -> None:
    assert controller_of(brokers) == controller
    assert alive_by(brokers) == alive
    assert best_to_ask(brokers) == asked
    assert asked is None or asked in answering(brokers)


def test_brokers_and_counts() -> None:
    partitions = {
        "t-0": (1, 4, (1, 2), (1, 2)),
        "t-1": (2, 1, (2, 1), (2,)),
        "my-topic-0": (-1, 0, (3,), (3,)),
        "moving-0": (1, 0, (1, 3), (1,)),
        "late-0": (3, 0, (3, 1), (3, 1)),
    }
    rows = brokers_section({1: seen(), 2: seen(), 3: seen(False)}, partitions)
    assert {broker: (row["state"], row["leads"], row["replicas"]) for broker, row in rows.items()} == {
        "1": ("running", 2, 4), "2": ("running", 1, 2), "3": ("down", 1, 3),
    }  # fmt: skip
    assert counts(partitions, [3], {"moving-0": {"adding": [3], "removing": []}}) == {
        "topics": 4, "partitions": 5, "leaderless": 2, "under_replicated": 1,
    }  # fmt: skip


def test_the_lag_of_a_partition_is_that_of_the_last_group() -> None:
    committed = {"a": {"t-0": 5, "t-1": 7}, "b": {"t-0": 9, "gone-0": 1}, "c": {}}
    assert group_lags(committed, {"t-0": 10, "t-1": 6}) == (
        {"a": (5, 2), "b": (1, 2), "c": (0, 0)},
        {"t-0": 5, "t-1": 0},
    )


def test_rates_count_what_is_known_at_both_times() -> None:
    rates = Rates()
    assert rates.of(10.0, {"t-0": 100}) is None
    assert rates.of(12.0, {"t-0": 120, "new-0": 1000}) == 10.0
    assert rates.of(13.0, {"new-0": 1000}) == 0.0, "the leader of t-0 does not answer"
    assert rates.of(14.0, {"t-0": 150, "new-0": 1001}) == 31.0
    assert rates.of(15.0, {"t-0": 0, "new-0": 1001}) == 0.0, "the topic was made anew"


SECTION = st.dictionaries(st.sampled_from("abcde"), st.integers(0, 2))


@given(st.lists(SECTION, min_size=2))
def test_changes_make_the_next_state_also_when_they_are_merged(states: list[dict[str, int]]) -> None:
    waiting: dict[str, dict[str, object]] = {}
    for before, after in itertools.pairwise(states):
        merged(waiting, {"s": changed(before, after)})
    result = {**states[0], **waiting["s"]}
    assert {name: value for name, value in result.items() if value is not None} == states[-1]
    assert changed(states[-1], states[-1]) == {}


def test_a_page_gets_everything_first_and_then_what_is_new() -> None:
    async def scene() -> list[dict[str, object]]:
        feed, got = Feed(), []
        feed.set("offsets", {"t-0": 1, "t-1": 1})
        feed.add_lines([{"text": str(number)} for number in range(LINES_MAX + 5)])
        page = feed.open()
        got.append(json.loads(await page.next()))
        feed.set("offsets", {"t-0": 2, "t-1": 1})
        feed.set("offsets", {"t-0": 3})
        feed.add_point({"records": 1.5})
        got.append(json.loads(await page.next()))
        feed.set("offsets", {"t-0": 3})
        feed.close(page)
        return got

    first, second = asyncio.run(scene())
    assert first["whole"] is True
    assert first["change"]["offsets"] == {"t-0": 1, "t-1": 1}  # type: ignore[index]
    assert [line["text"] for line in first["lines"]][:1] == ["5"]  # type: ignore[attr-defined]
    assert second == {"change": {"offsets": {"t-0": 3, "t-1": None}}, "points": [{"records": 1.5}]}


PAGE = """# TYPE kafka_server_brokertopicmetrics_bytesin_total counter
kafka_server_brokertopicmetrics_bytesin_total 1000
kafka_server_brokertopicmetrics_bytesin_total{topic="t"} 900
kafka_server_brokertopicmetrics_bytesout_total 50
kafka_network_requestmetrics_totaltimems{request="Produce",quantile="0.50"} NaN
kafka_network_requestmetrics_totaltimems_sum{request="Produce"} 30
kafka_network_requestmetrics_totaltimems_count{request="Produce"} 10
kafka_network_requestmetrics_totaltimems_count{request="Metadata"} 99
"""


def test_a_metrics_page() -> None:
    assert read_page(PAGE) == {"bytes_in": (1000, 1000), "bytes_out": (50, 50), "produce": (30, 10)}
    assert read_page("<html>") == {}


@pytest.mark.parametrize(
    ("later", "point"),
    [
        ({"1": {"bytes_in": (1200, 1200), "produce": (90, 20)}}, {"bytes_in": 100.0, "produce_ms": 6.0}),
        ({"1": {"bytes_in": (1000, 1000), "produce": (30, 10)}}, {"bytes_in": 0.0, "produce_ms": None}),
        ({"1": {"bytes_in": (5, 5), "produce": (1, 1)}}, {}),  # it has restarted
        ({"2": {"bytes_in": (5, 5)}}, {}),
    ],
)
def test_between_two_readings(later: dict[str, dict[str, tuple[float, float]]], point: dict[str, object]) -> None:
    assert since({"1": {"bytes_in": (1000, 1000), "produce": (30, 10)}}, later, 2.0) == point
