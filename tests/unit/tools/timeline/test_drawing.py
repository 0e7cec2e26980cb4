"""Bands of the page: which faults last from when until when (OBS-1)."""

from __future__ import annotations

from typing import Any

import pytest

from tools.timeline.drawing import Drawing
from tools.timeline.merging import Event

END_S = 9.0


def fault(at_s: float, kind: str, **fields: Any) -> Event:
    return Event(at_s * 1000, None, kind, fields)


def broken(at_s: float, links: str, broker: int | None = 2) -> Event:
    return fault(at_s, "links_broken", broker=broker, links=links)


@pytest.mark.parametrize(
    ("events", "bands"),
    [
        (
            [broken(1, "from peers"), fault(3, "links_joined", broker=2, links="from peers")],
            [(2, 1, 3, "links broken from peers")],
        ),
        (
            [broken(1, "from peers one-way in"), fault(3, "links_joined", broker=2, links="from peers")],
            [(2, 1, END_S, "links broken from peers one-way in")],
        ),
        (
            [broken(1, "a"), broken(2, "b"), broken(2, "b", 3), fault(4, "links_joined", broker=2, links=None)],
            [(2, 1, 4, "links broken a"), (2, 2, 4, "links broken b"), (3, 2, END_S, "links broken b")],
        ),
        (
            [broken(1, "a", None), broken(2, "b"), fault(4, "links_started")],
            [(None, 1, 4, "links broken a"), (2, 2, 4, "links broken b")],
        ),
        (
            [fault(1, "disk_filled", broker=3), fault(2, "cluster_started"), fault(5, "disk_emptied", broker=3)],
            [(3, 1, 5, "disk full")],
        ),
        (
            [fault(1, "zookeeper_paused"), fault(2, "zookeeper_killed"), fault(5, "zookeeper_started")],
            [(None, 1, 2, "paused"), (None, 2, 5, "killed")],
        ),
        (
            [fault(1, "zookeeper_killed"), broken(2, "a"), fault(5, "cluster_started")],
            [(None, 1, 5, "killed"), (2, 2, 5, "links broken a")],
        ),
        ([broken(1, "a", "two"), fault(1, "disk_filled", broker=[3])], []),  # type: ignore[arg-type]
    ],
)
def test_faults_are_bands(events: list[Event], bands: list[tuple[int | None, float, float, str]]) -> None:
    drawing = Drawing(0.0)
    for event in events:
        drawing.add(event)
    harms = drawing.to_json(0.0, END_S * 1000, [], None)["harms"]
    assert [(band["broker"], band["t"], band["until"], band["what"]) for band in harms] == bands


def test_a_deleted_topic_has_no_roles() -> None:
    def elected(at_s: float, *rows: list[Any]) -> Event:
        return Event(at_s * 1000, 1, "leader_elected", {"partitions": list(rows)})

    drawing = Drawing(0.0)
    for event in (
        elected(0, ["a-0", 1, 0, [1], 0], ["b-0", 1, 0, [1], 0]),
        Event(1000, 1, "topics_deleted", {"topics": ["a", "b"]}),
        elected(2, ["a-0", 1, 0, [1], 0]),
    ):
        drawing.add_earlier(event) if event.at_ms < 2000 else drawing.add(event)
    partitions = drawing.to_json(1500, END_S * 1000, [], None)["partitions"]
    assert {name: found["states"] for name, found in partitions.items()} == {
        "a-0": [[1.5, -1, 0, ()], [2.0, 1, 0, (1,)]]
    }
