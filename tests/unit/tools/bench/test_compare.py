"""`ottla bench compare`: ratios, tables, the drawing, what Kafka's tools print, and where its jars are."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from uuid import UUID
from xml.etree import ElementTree

import pytest

from tests.support.cli import ottla
from tools.bench import profile_command
from tools.bench.closed_loop.request_plan import batch, fetch_frame, produce_frame
from tools.bench.compare import drawing, printing
from tools.bench.compare.clusters import KAFKA
from tools.bench.compare.perf_tools import read_consumed, read_produced
from tools.bench.compare.results import COMPILED, OURS, Comparison, Figure, Resources, Spread
from tools.bench.compare.rows import LIBRDKAFKA, ROWS, chosen
from tools.bench.real_kafka import jars
from tools.bench.real_kafka.jars import KafkaJars, NoKafka, find_jars
from tools.cluster.processes import ClusterError

PRODUCED = (
    "100000 records sent, 19996.0 records/sec (3.81 MB/sec), 800.0 ms avg latency, 900.0 ms max latency.\n"
    "360000 records sent, 80123.456 records/sec (15.28 MB/sec), 12.34 ms avg latency, 250.00 ms max latency, "
    "10 ms 50th, 20 ms 95th, 30 ms 99th, 40 ms 99.9th.\n"
)
CONSUMED = (
    "start.time, end.time, data.consumed.in.MB, MB.sec, data.consumed.in.nMsg, nMsg.sec, "
    "rebalance.time.ms, fetch.time.ms, fetch.MB.sec, fetch.nMsg.sec\n"
    "2026-11-24 00:30:01:200, 2026-11-24 00:30:03:200, 100.0, 50.0, 524288, 262144.0, 1000, 1000, 80.0, 524288.0\n"
)


def comparison() -> Comparison:
    """Two rows in three rounds: ratios 2, 4, 3 and 0.5; one p99."""
    small, large = chosen(["produce-20x1-100b", "fetch-1m"])
    found = Comparison(
        [small, large], KAFKA, {"machine": "2 < 3 processors", "rounds": "3 of 1 s", OURS: "plain Python"}
    )
    for rate in (20_000, 40_000, 30_000):
        found.add(KAFKA, small, Figure(10_000, 4.0, 0.5))
        found.add(OURS, small, Figure(rate, 1.0, 0.25))
        found.add(COMPILED, small, Figure(2 * rate, 1.0, 0.25))
        found.add(KAFKA, large, Figure(2400.0, None, None))
        found.add(OURS, large, Figure(1200.0, None, None))
        found.add(COMPILED, large, Figure(2400.0, None, None))
    ours = [Resources(1.0, 45_000_000, 100)] * 3
    found.resources = {KAFKA: [Resources(5.0, 900_000_000, 200)] * 3, OURS: ours, COMPILED: ours}
    return found


def test_a_ratio_is_the_median_of_the_rounds_with_its_spread() -> None:
    found = comparison()
    small, large = found.rows
    assert found.ratio(small) == Spread(3, 2, 4)
    assert found.ratio(small, cluster=COMPILED) == Spread(6, 4, 8)
    assert found.ratio(small, "p99_ms") == Spread(0.25, 0.25, 0.25)
    assert found.is_met(small)  # 2x, 0.3x
    assert found.ratio(large) == Spread(0.5, 0.5, 0.5)
    assert found.ratio(large, "p99_ms") is None
    assert not found.is_met(large)


def test_a_slow_p99_misses_the_goal() -> None:
    found = comparison()
    row = found.rows[0]
    found.figures[OURS][row.key] = [Figure(30_000, 3.0, None)] * 3
    assert not found.is_met(row)


def test_the_tables_say_ratio_and_goal() -> None:
    text = printing.text(comparison())
    for part in ("10 k/s", "3.00 (2.00..4.00)  6.00 ", "1.3x, missed", "900 MB", "0.05 (0.05..0.05)"):
        assert part in text
    rows = [line for line in printing.markdown(comparison()).splitlines() if line.startswith("|")]
    assert len({line.count("|") for line in rows}) == 1


def test_a_table_takes_the_place_of_the_one_in_a_page(tmp_path: Path) -> None:
    page = tmp_path / "PERFORMANCE.md"
    page.write_text(f"begin\n{printing.PAGE_BEGIN}\nold\n\n{printing.PAGE_END}end\n")
    printing.write_into(page, "new\n")
    assert page.read_text() == f"begin\n{printing.PAGE_BEGIN}\nnew\n\n{printing.PAGE_END}end\n"


def test_the_json_has_every_round() -> None:
    found = json.loads(json.dumps(printing.as_json(comparison())))
    small, large = found["rows"]
    assert [round_["rate"] for round_ in small["figures"][OURS]] == [20_000, 40_000, 30_000]
    assert large["p99_ratio"] is None
    assert len(found["resources"][OURS]) == 3


def test_the_drawing_is_one_file_with_a_bar_for_each_row() -> None:
    svg = drawing.svg(comparison())
    root = ElementTree.fromstring(svg)
    bars = [one for one in root.iter("{http://www.w3.org/2000/svg}rect") if one.get("class") in ("bar", "behind")]
    assert [bar.get("class") for bar in bars] == ["bar", "behind"]
    assert float(bars[0].get("width", "")) > float(bars[1].get("width", "")) > 1
    assert "href" not in svg
    assert "2 &lt; 3 processors" in svg


def test_rows_are_chosen_by_their_keys_in_the_order_of_the_table() -> None:
    assert [row.key for row in chosen(["fetch-1m", "produce-1x1-100b"])] == ["produce-1x1-100b", "fetch-1m"]
    assert chosen([]) == list(ROWS)
    assert len({row.key for row in ROWS}) == len(ROWS)


def test_the_newest_versions_have_the_bytes_of_those_that_librdkafka_sends() -> None:
    """So the rows of librdkafka stand for franz-go and the Java client, too."""
    key, empty = UUID(int=1), batch(100, 1, 0)
    produces = [produce_frame([("t", 0)], 1, empty, version) for version in (LIBRDKAFKA.produce, 11)]
    fetches = [fetch_frame("t", 0, 100, version, key).data for version in (LIBRDKAFKA.fetch, 17)]
    for frames in (produces, fetches):
        assert len({frame[:6] + frame[8:] for frame in frames}) == 1
        assert len(set(frames)) == 2


@pytest.mark.parametrize("command", ["compare --rows", "profile --load"])
def test_an_unknown_row_is_one_clear_line(command: str) -> None:
    done = ottla(f"bench {command} produce-1x1")
    assert done.exit_code == 2
    assert "'produce-1x1' is no row: choose from produce-1x1-100b," in done.stderr


def test_what_kafkas_tools_print_is_read() -> None:
    produced = read_produced(PRODUCED)
    assert (produced.records, produced.records_per_s, produced.p99_ms) == (360_000, 80123.456, 30)
    consumed = read_consumed("WARN something\n" + CONSUMED)
    assert (consumed.bytes, consumed.bytes_per_s) == (100 * 1024**2, 80 * 1024**2)


@pytest.mark.parametrize("read", [read_produced, read_consumed])
def test_a_tool_that_prints_no_result_is_an_error_with_its_last_line(read: object) -> None:
    assert callable(read)
    with pytest.raises(ClusterError, match=r"no result: org\.apache\.kafka: no broker"):
        read("header\norg.apache.kafka: no broker\n\n")


def test_the_jars_of_a_distribution(tmp_path: Path) -> None:
    with pytest.raises(NoKafka, match="no directory libs"):
        find_jars(tmp_path)
    (tmp_path / "libs").mkdir()
    with pytest.raises(NoKafka, match=r"no jar of Kafka's server"):
        find_jars(tmp_path)
    (tmp_path / "libs" / "kafka_2.13-3.9.1.jar").touch()
    found = find_jars(tmp_path)
    assert (found, found.version, found.needs_zookeeper) == (KafkaJars(tmp_path / "libs"), "3.9.1", True)
    (tmp_path / "libs" / "kafka_2.13-3.9.1.jar").rename(tmp_path / "libs" / "kafka_2.13-4.1.1.jar")
    assert not found.needs_zookeeper


def test_without_maven_a_user_reads_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "SOURCE_TREE", tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    done = ottla("bench compare --rounds 1")
    assert done.exit_code == 1
    assert (
        done.stderr
        == "Error: no Kafka to compare with: name a distribution with --kafka-home, or install Maven and a JDK\n"
    )


def test_without_py_spy_a_user_reads_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ClusterError, match=r"pip install 'ottla\[profile\]'"):
        profile_command.find_py_spy()
