"""The text format, as Prometheus' own parser reads it, and the pauses while the page is made."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from broker.process import exposition
from broker.process.exposition import COUNTER, GAUGE, LOOK_EVERY, PIECE_S, family, labels, paced, times_ms
from protocol.time_histogram import TimeHistogram


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=20), st.integers(0, 2**70))
def test_any_label_and_number_is_read_back(label: str, value: int) -> None:
    page = "".join(family("some_total", COUNTER, "help", [(labels(topic=label, partition=3), value)]))
    (found,) = text_string_to_metric_families(page)
    (sample,) = found.samples
    assert (found.type, sample.name) == ("counter", "some_total")
    assert (sample.labels, float(sample.value)) == ({"topic": label, "partition": "3"}, float(value))


def test_families_are_written_metric_by_metric() -> None:
    count = 3 * exposition.LINES_IN_A_TEXT + 1
    families = exposition.Families([("one", GAUGE, "first"), ("two_total", COUNTER, "second")])
    for number in range(count):
        families.add(labels(number=number), (number, 2 * number))
    one, two = text_string_to_metric_families("".join(families.written()))
    assert [(s.labels["number"], s.value) for s in one.samples] == [(str(n), n) for n in range(count)]
    assert [(s.name, s.value) for s in two.samples] == [("two_total", 2 * n) for n in range(count)]


def test_times_are_a_summary_in_milliseconds() -> None:
    one, two = TimeHistogram(), TimeHistogram()
    one.add(0.25, 0.0)
    two.add(0.75, 0.0, weight=3)
    page = "".join(
        times_ms(
            "some_ms", "help", [({"request": "Fetch"}, [one, two]), ({"request": "Other"}, [TimeHistogram()])], 0.0
        )
    )
    (found,) = text_string_to_metric_families(page)
    values = {(s.name, s.labels["request"], s.labels.get("quantile")): s.value for s in found.samples}
    assert found.type == "summary"
    assert (values["some_ms_sum", "Fetch", None], values["some_ms_count", "Fetch", None]) == (2500, 4)
    assert values["some_ms", "Fetch", "0.99"] == pytest.approx(750, rel=0.2)
    assert math.isnan(values["some_ms", "Other", "0.50"])


def test_the_page_pauses_between_pieces_and_an_error_ends_only_its_section(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    pauses: list[float] = []

    def slow() -> Iterator[str]:
        nonlocal now
        for number in range(10 * LOOK_EVERY):
            now += PIECE_S / LOOK_EVERY
            yield f"slow {number}\n"

    def broken() -> Iterator[str]:
        yield "broken 1\n"
        raise RuntimeError("dictionary changed size during iteration")

    with caplog.at_level(logging.ERROR, exposition.__name__):
        pieces = list(
            paced([broken, slow, lambda: family("last", GAUGE, "help", [("", 1)])], pauses.append, lambda: now)
        )
    text = b"".join(pieces).decode()
    assert 8 <= len(pauses) <= 10
    assert len(pieces) == len(pauses) + 1
    assert text.startswith("broken 1\nslow 0\n")
    assert text.endswith("last 1\n")
    assert "a part of the metrics page failed" in caplog.text
