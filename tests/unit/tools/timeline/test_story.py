"""Events become lines that say what happened (OBS-1)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tools.timeline import words
from tools.timeline.merging import Event
from tools.timeline.sentences import SENTENCES, Known, sentences
from tools.timeline.story import Filter, Story, last_incident, told


def event(at_ms: float, broker: int | None, kind: str, /, **fields: Any) -> Event:
    return Event(at_ms, broker, kind, {"time_ms": at_ms, "kind": kind, **fields})


def taken(*rows: list[Any], refused: tuple[list[str], ...] = ()) -> dict[str, Any]:
    return {"controller": 1, "controller_epoch": 2, "number": 3, "taken": list(rows), "refused": list(refused)}


def text_of(*events: Event, wanted: Filter | None = None) -> list[tuple[str, str, str]]:
    return [(line.who, line.text, line.rule) for line in Story(wanted).lines(events)]


@pytest.mark.parametrize(
    ("names", "more", "text"),
    [
        (["orders-0"], 0, "orders-0"),
        (["t-10", "t-9"], 0, "2 partitions: t-9, t-10"),
        ([f"t-{n}" for n in range(12)], 0, "12 partitions: t-0, t-1, t-2, t-3, t-4, t-5, ..."),
        (["__consumer_offsets-1", "t-0", "__consumer_offsets-2"], 0, "3 partitions: t-0, 2 of __consumer_offsets"),
        (["__consumer_offsets-1", "__consumer_offsets-2"], 0, "2 partitions of __consumer_offsets"),
        (["t-0"], 5999, "6,000 partitions: t-0"),
        ([], 0, "0 partitions"),
    ],
)
def test_partitions_are_named(names: list[str], more: int, text: str) -> None:
    assert words.partitions(names, more) == text


def test_a_broker_says_once_what_it_does_to_many_partitions() -> None:
    rows = [["orders-0", 2, 1, [2, 3], 50, 50], ["orders-1", 3, 1, [3, 2], 9, 9], ["orders-3", 2, 1, [2, 3], 7, 7]]
    assert text_of(event(0, 2, "leader_and_isr", **taken(*rows))) == [
        (
            "broker 2",
            (
                "becomes the leader of 2 partitions: orders-0, orders-3: starts the leader epoch at its log end offset, "
                "and serves producers from now on"
            ),
            "LAI-4",
        ),
        ("broker 2", "becomes a follower of broker 3 in orders-1", "LAI-4"),
    ]


def test_events_that_follow_closely_become_one_line_and_later_ones_do_not() -> None:
    changes = [
        event(at, 2, "isr_change", partition=f"t-{n}", outcome="COMMITTED", isr=[2, 1], isr_before=[2])
        for n, at in enumerate((0, 50, 100, 500))
    ]
    lines = list(Story().lines(changes))
    assert [(line.at_ms, line.partitions) for line in lines] == [(0, ["t-0", "t-1", "t-2"]), (500, ["t-3"])]


@pytest.mark.parametrize(
    ("kind", "fields", "text", "rule"),
    [
        (
            "isr_change",
            {"partition": "t-0", "outcome": "COMMITTED", "isr": [1], "isr_before": [1, 2]},
            "removes broker 2 from the ISR of t-0, which has not caught up for too long: the ISR is 1",
            "REP-3",
        ),
        (
            "isr_change",
            {"partition": "t-0", "outcome": "REFUSED", "isr": [1, 2], "isr_before": [1]},
            "cannot add broker 2 to the ISR of t-0: the follower died or was started again since it fetched",
            "INV-14",
        ),
        (
            "control_refused",
            {"request": "LeaderAndIsr", "controller": 3, "controller_epoch": 4, "known_epoch": 5},
            "refuses LeaderAndIsr of broker 3: its controller epoch 4 is older than 5",
            "LAI-1",
        ),
        ("from_another_release", {"x": 1}, "from_another_release: x=1", ""),
    ],
)
def test_sentences(kind: str, fields: dict[str, Any], text: str, rule: str) -> None:
    assert [(said, of) for _, said, of in text_of(event(0, 1, kind, **fields))] == [(text, rule)]


def links(others: list[Any], *effects: str, **more: Any) -> dict[str, Any]:
    row = {"broker": 2, "others": others, "direction": "both", "effects": effects, "only_control": False}
    return {**row, "effects": list(effects), **more}


LEADER = "leader of t-0"
LEADS = ", which is the controller and leads t-0"


@pytest.mark.parametrize(
    ("kind", "fields", "text", "rule", "is_trigger"),
    [
        ("broker_killed", {"broker": 1}, "kill the process of broker 1", "FLT-1", True),
        ("broker_killed", {"broker": 2}, f"kill the process of broker 2{LEADS}", "FLT-4", True),
        (
            "broker_session_ended",
            {"broker": 2, "role": "controller"},
            f"end the ZooKeeper session of broker 2 (controller){LEADS}",
            "FLT-20",
            True,
        ),
        ("broker_started", {"broker": 2, "role": LEADER}, "start broker 2", "RUN-1", False),
        ("disk_emptied", {"broker": 3}, "empty the disk of broker 3, which was filled", "FLT-28", False),
        (
            "links_broken",
            links([1, 3, "zookeeper"], role=LEADER),
            "cut the links of broker 2 (leader of t-0) to brokers 1 and 3 and ZooKeeper. Broker 2 is the controller and leads t-0",
            "FLT-10",
            True,
        ),
        (
            "links_broken",
            links([1], broker=3, direction="in"),
            "cut the links of broker 3 to broker 1, one way: it hears nothing",
            "FLT-12",
            True,
        ),
        (
            "links_broken",
            links([1, 2], broker=3, only_control=True),
            "cut the links of broker 3 to brokers 1 and 2, for control requests only",
            "FLT-11",
            True,
        ),
        (
            "links_broken",
            links([1], "delay 100ms", "throttle 3000000bit", broker=3),
            "delay by 100ms, throttle to 3000000bit per second: the links of broker 3 to broker 1",
            "FLT-17",
            True,
        ),
        (
            "links_broken",
            links(["zookeeper"], "half", broker=3),
            "reset connections half-way through a message: the links of broker 3 to ZooKeeper",
            "FLT-18",
            True,
        ),
        (
            "links_joined",
            {"broker": 2, "links": "from peers one-way in"},
            "heal broker 2: join the links that were broken from peers one-way in",
            "FAU-2",
            False,
        ),
        ("links_joined", {"broker": None, "links": None}, "heal ZooKeeper: join all its broken links", "FAU-2", False),
        ("zookeeper_killed", {}, "kill ZooKeeper", "FLT-21", True),
    ],
)
def test_faults_are_told(kind: str, fields: dict[str, Any], text: str, rule: str, is_trigger: bool) -> None:
    """FAU-1: who was hit, the role that named it, and what was cut from whom."""
    before = [
        event(0, 2, "controller_elected", controller_epoch=1),
        event(1, 2, "leader_elected", reason="new partition", partitions=[["t-0", 2, 0, [2, 3], 0]]),
    ]
    *_, line = Story().lines([*before, event(2, None, kind, **fields)])
    assert (line.who, line.text, line.rule, line.is_trigger) == ("you", text, rule, is_trigger)


@pytest.mark.parametrize(("broker", "is_wanted"), [(2, True), (3, True), (1, False)])
def test_a_cut_is_about_both_ends(broker: int, is_wanted: bool) -> None:
    cut = event(0, None, "links_broken", **links([3]))
    assert bool(list(Story(Filter(broker=broker)).lines([cut]))) is is_wanted


def test_an_election_is_told_from_a_smaller_isr() -> None:
    before = event(
        0, 1, "leader_elected", reason="new partition", partitions=[["t-0", 3, 0, [3, 2], 0], ["t-1", 2, 0, [2, 3], 0]]
    )
    after = event(
        900, 1, "leader_elected", reason="broker failure", partitions=[["t-0", 2, 1, [2], 1], ["t-1", 2, 1, [2], 1]]
    )
    assert [text for _, text, _ in text_of(before, after)[2:]] == [
        "elects broker 2 as leader of t-0: the ISR is 2 (broker failure)",
        "removes broker 3 from the ISR of t-1, led by broker 2, in a new leader epoch (broker failure)",
    ]


def test_only_the_first_move_of_a_high_watermark_is_told() -> None:
    samples = [
        event(at, 2, "high_watermarks", partitions=[["t-0", 1, hw, 60]], more=0)
        for at, hw in ((1, 50), (100, 55), (1100, 60))
    ]
    lines = list(Story().lines([event(0, 2, "leader_and_isr", **taken(["t-0", 2, 1, [2], 52, 50])), *samples]))
    assert [line.at_ms for line in lines if line.kind == "high_watermarks"] == [100]


@pytest.mark.parametrize("end", ["topics_deleted", "topics_gone", None])
def test_a_topic_made_again_is_another_topic(end: str | None) -> None:
    """Its leader, ISR and high watermark are its own, also if no log has the end of the first one (None)."""

    def life(at: float, leader: int, isr: list[int], high_watermark: int) -> list[Event]:
        return [
            event(at, 1, "leader_elected", reason="new partition", partitions=[["t-0", leader, 0, isr, 0]]),
            event(at + 1, leader, "leader_and_isr", **taken(["t-0", leader, 0, isr, 0, 0])),
            event(at + 2, leader, "high_watermarks", partitions=[["t-0", 0, high_watermark, high_watermark]], more=0),
            event(at + 3, leader, "stop_replica", controller=1, partitions=[["t-0", 0, True]], refused=[]),
        ]

    first = [*life(0, 2, [2, 3], 50), *([event(10, 1, end, topics=["t"])] if end else [])]
    second = life(5000, 2, [2], 7)
    told_of_first = [text for _, text, _ in text_of(*first)][:4]
    assert [text for _, text, _ in text_of(*first, *second)][-4:] == [
        "elects broker 2 as leader of t-0: the ISR is 2 (new partition)",
        *told_of_first[1:],
    ]


def test_a_broker_leads_nothing_of_a_deleted_topic_nor_what_it_stopped() -> None:
    story = text_of(
        event(
            0, 1, "leader_elected", reason="new partition", partitions=[["a-b-0", 3, 0, [3], 0], ["a-0", 3, 0, [3], 0]]
        ),
        event(1, 3, "leader_and_isr", **taken(["a-b-0", 3, 0, [3], 0, 0])),
        event(2, 3, "stop_replica", controller=1, partitions=[["a-b-0", 0, False]], refused=[]),
        event(3, 1, "topics_deleted", topics=["a"]),
        event(4, None, "broker_killed", broker=3),
        event(5000, 3, "leader_and_isr", **taken(["a-b-0", 3, 1, [3], 0, 0])),
    )
    assert [text.split(":")[0] for _, text, _ in story[-2:]] == [
        "kill the process of broker 3, which leads a-b-0",
        "becomes the leader of a-b-0",
    ]


def test_filters() -> None:
    events = [
        event(0, None, "broker_killed", broker=3),
        event(1, 1, "leader_and_isr", **taken(["a-0", 1, 1, [1], 0, 0], ["b-0", 1, 1, [1], 0, 0])),
        event(2, 2, "fetcher_started", leader=1, index=0),
    ]
    of_topic = list(Story(Filter(topic="b")).lines(events))
    assert [(line.who, line.partitions) for line in of_topic] == [("you", []), ("broker 1", ["b-0"]), ("broker 2", [])]
    assert [line.who for line in Story(Filter(broker=2)).lines(events)] == ["broker 2"]
    assert [line.who for line in Story(Filter(broker=3)).lines(events)] == ["you"]


def test_the_last_incident_begins_with_its_first_failure_and_a_stopped_cluster_is_none() -> None:
    kinds = [
        (0, "broker_killed"),
        (60_000, "broker_killed"),
        (62_000, "broker_paused"),
        (90_000, "cluster_stopping"),
        (90_010, "broker_stopped"),
    ]
    lines = list(Story().lines([event(at, None, kind, broker=1) for at, kind in kinds]))
    found, _ = last_incident(lines)
    assert found is not None
    assert found.at_ms == 60_000
    assert last_incident(Story().lines([event(0, 1, "controller_known", controller=2)])) == (None, None)


def test_lines_are_broken_for_a_terminal() -> None:
    lines = list(Story().lines([event(1132, 2, "truncation", partition="orders-0", from_offset=61, to_offset=51)]))
    assert told(lines, 1000) == [
        "   +0.132 s  broker 2      cuts its log of orders-0 from offset 61 to 51: the leader does not have these records  [REP-6]"
    ]
    broken = told(lines, 1000, 80)
    assert len(broken) == 2
    assert all(len(line) <= 80 for line in broken)
    assert broken[1].startswith(" " * 27 + "leader")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
NAMES = [
    "broker",
    "partition",
    "partitions",
    "taken",
    "refused",
    "first",
    "isr",
    "isr_before",
    "outcome",
    "step",
    "brokers",
    "error",
]
FIELDS = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=6)


@given(st.sampled_from(sorted(SENTENCES)), FIELDS, st.none() | st.integers(0, 3))
def test_a_damaged_line_is_told_as_it_is(kind: str, fields: dict[str, Any], broker: int | None) -> None:
    """It never ends the command."""
    damaged = event(0, broker, kind, **fields)
    sentences(damaged, Known())
    lines = list(Story().lines([damaged]))
    assert all(isinstance(text, str) for text in told(lines, 0))


def test_a_line_is_told_before_all_events_are_read() -> None:
    """A log of any size: what can take no more events leaves the memory."""
    read = 0

    def endless() -> Iterator[Event]:
        nonlocal read
        while True:
            read += 1
            yield event(100.0 * read, 1, "truncation", partition=f"t-{read}", from_offset=read, to_offset=0)

    story = Story()
    lines = list(itertools.islice(story.lines(endless()), 500))
    assert len({line.text for line in lines}) == 500
    assert read < 520
