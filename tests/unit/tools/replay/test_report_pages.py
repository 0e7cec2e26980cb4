"""The pages of a run and of a comparison, JUnit XML and Markdown (RPL-3): whole, escaped, without anything to fetch."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.support import report_data
from tools.pages import charts, units
from tools.replay.pages.checks import (
    comparison_checks,
    comparison_markdown,
    junit,
    run_checks,
    run_markdown,
)
from tools.replay.pages.comparison_page import comparison_page
from tools.replay.pages.run_charts import together
from tools.replay.pages.run_page import run_page

VOID = {"meta", "br", "img", "line", "circle", "input", "link"}
PAGES = {
    "good": run_page(report_data.plan(), report_data.analysis(), report_data.verdict()),
    "bad": run_page(report_data.plan(), report_data.bad_analysis(), report_data.bad_verdict()),
    "comparison": comparison_page(report_data.comparison()),
}


class Parsed(HTMLParser):
    """The elements of a page; fails if they are not nested."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.scripts: list[str] = []
        self.styles = ""
        self.feed(page)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        match self.open[-1:]:
            case ["script"]:
                self.scripts[-1] += data
            case ["style"]:
                self.styles += data
            case _:
                self.text += data

    @property
    def charts(self) -> list[dict[str, Any]]:
        """What the page's script draws."""
        (at,) = [
            at
            for at, (_, attributes) in enumerate(element for element in self.elements if element[0] == "script")
            if attributes.get("id") == "charts"
        ]
        return list(json.loads(self.scripts[at]))


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_a_page_is_whole_and_fetches_nothing(page: str) -> None:
    parsed = Parsed(page)
    assert len(page.encode()) < 3_000_000
    assert not {"img", "link", "iframe", "object", "embed", "base"} & {tag for tag, _ in parsed.elements}
    assert not [attributes for _, attributes in parsed.elements if {"src", "href", "srcset"} & attributes.keys()]
    assert "@import" not in parsed.styles
    assert "url(" not in parsed.styles
    policies = [attributes["content"] for _, attributes in parsed.elements if attributes.get("http-equiv")]
    assert [str(policy).split(";")[0] for policy in policies] == ["default-src 'none'"]
    drawn = [attributes["data-chart"] for _, attributes in parsed.elements if "data-chart" in attributes]
    assert drawn == [chart["id"] for chart in parsed.charts]


def test_a_run_page_has_the_data() -> None:
    parsed, run = Parsed(PAGES["good"]), report_data.analysis()
    for text in (
        "0 lost",
        "All 576,000 acknowledged records",
        "2.28 s",
        "11.8 ms",
        "departures-2",
        "radar",
        "Replay of flights.trace",
    ):
        assert text in parsed.text
    by_id = {chart["id"]: chart for chart in parsed.charts}
    assert {view["name"] for view in by_id["throughput"]["views"]} >= {"by op", "by topic", "by broker", "by client"}
    slowest = by_id["latency"]["views"][0]["lines"][0]
    assert slowest["values"] == pytest.approx([row["max_ms"] for row in run["over_time"]], rel=1e-5)
    assert [mark["label"] for mark in by_id["latency"]["marks"]] == ["kill broker 1", "restart broker 1"]
    assert [(span["begin"], span["end"]) for span in by_id["latency"]["spans"]] == [(20.02, 22.3)]
    assert by_id["outages"]["views"][0]["categories"] == ["departures-2", "departures-0", "arrivals-1", "arrivals-0"]
    assert "ramp" not in by_id
    assert "ramp" in {chart["id"] for chart in Parsed(PAGES["bad"]).charts}


def test_the_intervals_in_which_the_generator_was_the_limit_are_marked_on_every_chart_in_time() -> None:
    run = report_data.analysis()
    for second in (7, 8, 30):
        run["over_time"][second]["limited"] = True
    charts = Parsed(run_page(report_data.plan(), run, report_data.verdict())).charts
    marked = {chart["id"]: [(band["begin"], band["end"]) for band in chart["bands"]] for chart in charts}
    in_time = {chart["id"] for chart in charts if chart["kind"] in ("time", "spans")}
    assert in_time >= {"throughput", "latency", "outages", "lateness", "lag"}
    assert marked == {name: [(7, 9), (30, 31)] if name in in_time else [] for name in marked}


def test_a_closed_loop_is_called_so_and_has_no_lateness() -> None:
    plan, run = report_data.plan() | {"speeds": []}, report_data.analysis() | {"loop": "closed"}
    parsed = Parsed(run_page(plan, run, report_data.verdict()))
    assert "as fast as possible, a closed loop" in parsed.text
    assert "from the sent time, in a closed loop" in parsed.text
    assert "from the scheduled time" not in parsed.text
    assert "lateness" not in {chart["id"] for chart in parsed.charts}


def test_names_from_outside_are_text() -> None:
    parsed = Parsed(PAGES["bad"])
    assert len(parsed.scripts) == 4
    topic = next(name for name in (line["name"] for line in parsed.charts[0]["views"][1]["lines"]) if "img" in name)
    assert topic.startswith("</script><img")
    assert topic in parsed.text


def test_a_comparison_page_has_the_data() -> None:
    parsed = Parsed(PAGES["comparison"])
    for text in ("9 of 16 checks failed", "produce.p99: 11.8 ms became 20.1 ms (+70 %)", "A: ottla-1", "B: kafka-4"):
        assert text in parsed.text
    colours = {
        line["name"]: line["colour"] for chart in parsed.charts for view in chart["views"] for line in view["lines"]
    }
    assert colours == {
        f"{side}: {name}-{at}": colour
        for side, name, colour in (("A", "ottla", "blue"), ("B", "kafka", "orange"))
        for at in range(1, 5)
    }
    assert sum(tag == "svg" for tag, _ in parsed.elements) == len(report_data.comparison()["rows"])


TOTALS = report_data.analysis()["totals"]
REFUSED = {"totals": TOTALS | {"produce": TOTALS["produce"] | {"acknowledged": 0}}}
INCOMPLETE = {"totals": {**report_data.analysis()["totals"], "not_done": 5}}


@pytest.mark.parametrize(
    ("change", "verdict", "state", "words"),
    [
        ({}, report_data.verdict(), "good", "0 lost"),
        ({}, report_data.verdict(lost=1), "bad", "1 lost"),
        ({}, report_data.verdict(reordered=2), "bad", "0 lost, 2 reordered"),
        ({}, report_data.verdict(unseen=9), "warning", "Not all was verified"),
        (INCOMPLETE, report_data.verdict(), "warning", "Not all was verified"),
        ({"problem": "a task was lost"}, report_data.verdict(), "bad", "0 lost, but not all went well"),
        ({}, None, "warning", "Not known whether anything was lost"),
        (REFUSED, report_data.verdict(acknowledged=0), "bad", "Nothing was acknowledged"),
    ],
)
def test_the_verdict_is_on_top(change: dict[str, Any], verdict: dict[str, Any] | None, state: str, words: str) -> None:
    page = run_page(report_data.plan(), {**report_data.analysis(), **change}, verdict)
    found = re.search(r'class="banner (\w+)".*?<h2>(.*?)</h2>', page, re.DOTALL)
    assert found is not None
    assert found[1] == state
    assert found[2].startswith(words)


def test_a_run_that_measured_nothing_has_a_page() -> None:
    empty = report_data.analysis()
    for key in (
        "distribution",
        "by_topic",
        "by_broker",
        "by_client",
        "by_partition",
        "outages",
        "faults",
        "lag",
        "tasks",
    ):
        empty[key] = []
    empty["latency_ms"] = {op: {"scheduled": None, "sent": None} for op in ("produce", "fetch")}
    empty["lateness_ms"], empty["skew"], empty["series"] = None, {}, {}
    empty["over_time"] = [{**dict.fromkeys(row, 0), "p50_ms": None, "max_ms": None} for row in empty["over_time"]]
    assert Parsed(run_page(report_data.plan(), empty, None)).charts
    assert "not read back" in run_markdown(empty, None)


def test_junit_has_a_case_for_each_check() -> None:
    checks = run_checks(report_data.bad_analysis(), report_data.bad_verdict())
    suite = ElementTree.fromstring(junit("ottla.replay", checks, 60.0))[0]
    failed = [case.get("name") for case in suite if case.find("failure") is not None]
    assert failed == ["lost", "duplicated", "errors", "whole"]
    assert [case.get("name") for case in suite if case.find("error") is not None] == ["not done"]
    assert (suite.get("failures"), suite.get("errors")) == ("4", "1")
    assert "offset 19200" in "".join(suite.itertext())
    assert suite.get("tests") == str(len(suite)) == "13"
    unread = ElementTree.fromstring(junit("s", run_checks(report_data.analysis(), None)))[0]
    assert (unread.get("failures"), unread.get("errors")) == ("0", "8")
    worse = ElementTree.fromstring(junit("c", comparison_checks(report_data.comparison())))[0]
    assert [case.get("name") for case in worse if case.find("failure") is not None] == [
        *(f"{op}.{point}" for op in ("produce", "fetch", "end_to_end") for point in ("p50", "p99", "p999")),
    ]


def test_junit_says_what_xml_cannot() -> None:
    bad = report_data.bad_analysis()
    bad["problem"] = "lost \x00 \ud800 <x>"
    suite = ElementTree.fromstring(junit("s", run_checks(bad, None)))[0]
    assert suite[-1][0].get("message") == "lost \ufffd \ufffd <x>"


def test_markdown_is_text() -> None:
    summary = run_markdown(report_data.bad_analysis(), report_data.bad_verdict())
    assert summary.startswith("## ❌ replay: lost, duplicated, errors, whole\n")
    assert "<img" not in summary
    assert "departures-0@70, departures-0@82" in summary
    assert run_markdown(report_data.analysis(), report_data.verdict()).startswith("## ✅ replay")
    compared = comparison_markdown(report_data.comparison())
    assert re.search(r"\| produce.p50 \| 2.21 ms \| 3.75 ms \| \+70 % \| .+ to .+ \| worse \|\n", compared)
    widths = {line.replace("\\|", "").count("|") for line in summary.split("\n\n")[1].splitlines()}
    assert widths == {3}


def test_files_are_written_whole(tmp_path: Path) -> None:
    report_data.main(tmp_path)
    for name in ("good", "bad", "comparison"):
        assert {"report.html", "junit.xml", "summary.md"} <= {file.name for file in (tmp_path / name).iterdir()}


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (units.count(1234567), "1,234,567"),
        (units.milliseconds(0.1234), "0.123 ms"),
        (units.milliseconds(2300), "2.30 s"),
        (units.milliseconds(None), "–"),
        (units.scaled(4_990_000, "B/s"), "4.99 MB/s"),
        (units.scaled(999_999, "B"), "1.00 MB"),
        (units.scaled(0, "B"), "0 B"),
        (units.quantity(123456, "records/s"), "123 k records/s"),
        (units.quantity(3, ""), "3"),
        (units.quantity(12345, "records"), "12,345 records"),
        (units.percent(-0.5), "−50 %"),
    ],
)
def test_units(shown: str, words: str) -> None:
    assert shown == words


def test_outages_at_the_same_time_are_one_band() -> None:
    spans = [charts.Span(5, 6), charts.Span(1, 3), charts.Span(2, 4), charts.Span(2, 3)]
    assert together(spans) == [charts.Span(1, 4), charts.Span(5, 6)]
