"""RPL-5: the trace of a workload has the rates, sizes, keys and fetches that the workload says, and is the same each time."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy
import pyarrow
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.random import SeedSequence

from tools.replay.traces.arrivals import arrivals
from tools.replay.traces.key_hashes import key_hashes
from tools.replay.traces.schema import SCHEMA, Trace, TraceError
from tools.replay.traces.source_commands import make
from tools.replay.traces.synthesis import rows_of
from tools.replay.traces.workload import EXAMPLE, NS_PER_S, Bursty, Constant, Diurnal, Poisson, Rate, parse_workload

MINUTE = 60 * NS_PER_S


def made(text: str) -> pyarrow.Table:
    return pyarrow.concat_tables(rows_of(parse_workload(text, "test")))


def producer(more: str = "", name: str = "p", rate: str = "100/s", size: str = "100") -> str:
    return f"  - {{name: {name}, topics: t, rate: {rate}, record_size: {size}{more}}}\n"


def workload(producers: str, consumers: str = "", duration: str = "60s", partitions: int = 4) -> str:
    text = f"duration: {duration}\nseed: 7\ntopics: [{{name: t, partitions: {partitions}}}]\nproducers:\n{producers}"
    return text + (f"consumers:\n{consumers}" if consumers else "")


def of_op(table: pyarrow.Table, op: str) -> list[dict[str, Any]]:
    return [row for row in table.to_pylist() if row["op"] == op]


def times_of(rate: Rate, duration_ns: int = 10 * MINUTE) -> numpy.ndarray[Any, Any]:
    times = numpy.concatenate(list(arrivals(rate, SeedSequence(3), duration_ns)))
    assert (numpy.diff(times) >= 0).all()
    assert ((times >= 0) & (times < duration_ns)).all()
    return times


def dispersion(times: numpy.ndarray[Any, Any]) -> float:
    """Variance by mean of the counts per second: 0 if constant, 1 for a Poisson process, above 1 if bursty."""
    counts = numpy.bincount(times // NS_PER_S)
    return float(counts.var() / counts.mean())


def test_rates_and_how_the_records_cluster() -> None:
    constant, poisson = times_of(Constant(50)), times_of(Poisson(50))
    assert (len(constant), dispersion(constant)) == (50 * 600, pytest.approx(0, abs=0.01))
    assert (len(poisson), dispersion(poisson)) == (pytest.approx(50 * 600, rel=0.03), pytest.approx(1, abs=0.2))
    bursty = times_of(Bursty(10, 500, 4 * NS_PER_S, NS_PER_S))
    assert dispersion(bursty) > 50
    assert len(bursty) == pytest.approx((10 * 4 + 500) / 5 * 600, rel=0.3)
    silent = times_of(Bursty(0, 500, 4 * NS_PER_S, NS_PER_S))
    assert (numpy.bincount(silent // NS_PER_S) == 0).mean() > 0.4


def test_a_diurnal_rate_has_its_peak_in_the_middle_of_the_period() -> None:
    quarters = numpy.bincount(times_of(Diurnal(100, 180, 10 * MINUTE)) * 4 // (10 * MINUTE))
    assert quarters.sum() == pytest.approx(60_000, rel=0.03)
    mean_of_middle = 100 + 80 * 2 / numpy.pi
    assert quarters[1:3].sum() / 300 == pytest.approx(mean_of_middle, rel=0.03)


def test_zipf_keys() -> None:
    table = made(workload(producer(", keys: {zipf: {keys: 1000, exponent: 1.2}}", rate="500/s")))
    hashes = table["key_hash"].to_numpy()
    weights = numpy.arange(1, 1001) ** -1.2
    for number, key_hash in enumerate(key_hashes(pyarrow.array(["1", "2", "3"]), "murmur2").to_pylist()):
        share = (hashes == key_hash).mean()
        assert share == pytest.approx(weights[number] / weights.sum(), rel=0.1)
    assert set(table["partition"].to_pylist()) == {-1}


@pytest.mark.parametrize(
    ("size", "mean", "least", "most"),
    [
        ("250", 250, 250, 250),
        ("{uniform: {min: 100, max: 300}}", 200, 100, 300),
        ("{normal: {mean: 500, deviation: 50}}", 500, 250, 750),
        ("{lognormal: {median: 100, sigma: 0.5, max: 1KiB}}", 100 * numpy.exp(0.125), 5, 1024),
        ("{weights: {10: 9, 1000: 1}}", 109, 10, 1000),
    ],
)
def test_sizes_of_records(size: str, mean: float, least: int, most: int) -> None:
    sizes = made(workload(producer(size=size)))["bytes"].to_numpy() - 61
    assert sizes.mean() == pytest.approx(mean, rel=0.05)
    assert (sizes.min() >= least, sizes.max() <= most) == (True, True)


def test_batches_leave_when_they_are_full_or_have_lingered() -> None:
    by_count = made(workload(producer(", batch: {records: 10}", rate="1000/s")))
    assert set(by_count["records"].to_pylist()[:-1]) == {10}
    by_time = made(workload(producer(", batch: {linger: 20ms}", rate="1000/s")))
    assert set(by_time["records"].to_pylist()[:-1]) == {21}
    by_bytes = made(workload(producer(", batch: {linger: 1s, bytes: 1KiB}, compression_ratio: 0.5", rate="1000/s")))
    assert set(zip(by_bytes["records"].to_pylist()[:-1], by_bytes["bytes"].to_pylist()[:-1], strict=True)) == {
        (10, 561)
    }
    for table in (by_count, by_time, by_bytes):
        assert sum(table["records"].to_pylist()) == 60_000
        assert set(table["partition"].to_pylist()) == {0, 1, 2, 3}


def test_the_same_file_gives_the_same_rows_and_another_producer_changes_no_others() -> None:
    one = made(workload(producer(rate="{poisson: 90/s}")))
    assert one.equals(made(workload(producer(rate="{poisson: 90/s}"))))
    other = producer(name="other", rate="{bursty: {calm: 1/s, burst: 900/s, mean_calm: 1s, mean_burst: 1s}}")
    both = made(workload(other + producer(rate="{poisson: 90/s}")))
    of_p = both.filter(pyarrow.compute.equal(both["client"], "p-0"))
    assert of_p.drop_columns(["request"]).equals(one.drop_columns(["request"]))
    assert not made(workload(producer(rate="{poisson: 90/s}")).replace("seed: 7", "seed: 8")).equals(one)


def test_a_group_reads_every_record_once_and_readers_without_a_group_read_all() -> None:
    consumers = "  - {name: g, topic: t, group: g, count: 3, fan_out: 2}\n  - {name: all, topic: t, count: 2}\n"
    table = made(workload(producer(", batch: {linger: 5ms}", rate="{poisson: 300/s}"), consumers))
    produced = sum(row["records"] for row in of_op(table, "produce"))
    fetches = of_op(table, "fetch")
    for names, groups in (
        (["g-0-0", "g-0-1", "g-0-2"], {"g-0"}),
        (["g-1-0", "g-1-1", "g-1-2"], {"g-1"}),
        (["all-0"], {None}),
    ):
        mine = [row for row in fetches if row["client"] in names]
        assert produced - 20 <= sum(row["records"] for row in mine) <= produced
        assert {row["group"] for row in mine} == groups
    mine = [row for row in fetches if row["client"] == "all-1"]
    for partition in range(4):
        places = [(row["offset"], row["records"]) for row in mine if row["partition"] == partition and row["records"]]
        assert all(offset + count == after for (offset, count), (after, _) in itertools.pairwise(places))


def test_a_fetch_waits_for_min_bytes_or_the_longest_wait() -> None:
    quiet = made(workload(producer(rate="1/min"), "  - {name: c, topic: t, max_wait: 100ms}\n"))
    times = [row["time_ns"] for row in of_op(quiet, "fetch")]
    assert numpy.median(numpy.diff(times)) == 101_000_000, "the wait and the turnaround"
    busy = made(workload(producer(rate="1000/s"), "  - {name: c, topic: t, min_bytes: 1610}\n", partitions=1))
    assert {row["records"] for row in of_op(busy, "fetch")[1:]} == {10}


def test_a_reader_catches_up_at_its_rate_and_reads_on() -> None:
    consumers = "  - {name: c, topic: t, max_bytes: 16100, catch_up: {behind: 5000, from: 20s, rate: 161000/s}}\n"
    fetches = of_op(made(workload(producer(rate="200/s"), consumers, partitions=1)), "fetch")
    first = fetches[:3]
    assert [(row["time_ns"] // 10**6, row["records"], row["bytes"]) for row in first] == [
        (20_000 + 100 * number, 100, 16_100) for number in range(3)
    ]
    assert [row["behind"] for row in first] == [5000, 4900, 4800]
    offsets = [(row["offset"], row["records"]) for row in fetches if row["offset"] is not None]
    assert all(offset + count == after for (offset, count), (after, _) in itertools.pairwise(offsets))
    assert sum(row["records"] for row in fetches) == pytest.approx(5000 + 200 * 40, abs=3)
    assert fetches[-1]["behind"] < 3


def test_a_reader_that_never_catches_up_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tools.replay.traces.made_fetches.BEHIND_MAX", 10_000)
    consumers = "  - {name: c, topic: t, max_bytes: 161, catch_up: {behind: 5, rate: 161/s}}\n"
    with pytest.raises(TraceError, match="consumer c is"):
        made(workload(producer(rate="1000/s"), consumers))


RATES = st.sampled_from(["3/s", "{poisson: 40/s}", "{diurnal: {mean: 30/s, peak: 60/s, period: 3s}}", "2000/s"])
BATCHES = st.sampled_from(
    ["", ", batch: {records: 3}", ", batch: {linger: 30ms}", ", batch: {records: 7, linger: 0s, bytes: 300}"]
)
KEYS = st.sampled_from(["", ", keys: {uniform: {keys: 10}}", ", keys: {zipf: {keys: 50, exponent: 1}}"])
READS = st.sampled_from(
    ["", ", group: g", ", min_bytes: 500", ", max_bytes: 300", ", catch_up: {behind: 77, from: 1s}"]
)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(RATES, BATCHES, KEYS), min_size=1, max_size=3), st.lists(READS, max_size=3), st.integers(1, 5)
)
def test_rows_are_sorted_and_valid(producers: list[tuple[str, str, str]], reads: list[str], partitions: int) -> None:
    text = workload(
        "".join(producer(batch + keys, f"p{number}", rate) for number, (rate, batch, keys) in enumerate(producers)),
        "".join(f"  - {{name: c{number}, topic: t, max_wait: 200ms{read}}}\n" for number, read in enumerate(reads)),
        "3s",
        partitions,
    )
    table = made(text)
    assert table.schema == SCHEMA
    table.validate(full=True)
    times, requests = table["time_ns"].to_numpy(), table["request"].to_numpy()
    assert (numpy.diff(times) >= 0).all()
    assert set(numpy.diff(requests, prepend=-1)) <= {0, 1}
    by_request: dict[int, set[tuple[Any, ...]]] = {}
    for row in table.to_pylist():
        by_request.setdefault(row["request"], set()).add((row["time_ns"], row["client"], row["op"]))
        is_produce = row["op"] == "produce"
        assert (row["compression"] is not None) == is_produce == (row["min_bytes"] is None)
        assert row["partition"] < partitions
        assert (row["partition"] == -1) == (row["key_hash"] is not None)
        assert (row["records"] > 0) == (row["bytes"] > 0)
    assert all(len(rows) == 1 for rows in by_request.values())


def test_the_command(tmp_path: Path) -> None:
    example = CliRunner().invoke(make, ["--example"])
    assert example.output == EXAMPLE.read_text()
    file = tmp_path / "w.yaml"
    file.write_text(workload(producer()))
    for name, seed in (("a", []), ("b", []), ("c", ["--seed", "9"])):
        result = CliRunner().invoke(make, [str(file), "--out", str(tmp_path / name), *seed])
        assert result.exit_code == 0, result.output
    a, b, c = (list(Trace(tmp_path / name).batches()) for name in "abc")
    assert a == b != c
    file.write_text("duration: x\n")
    result = CliRunner().invoke(make, [str(file), "--out", str(tmp_path / "d")])
    assert (result.exit_code, "line 1" in result.output) == (1, True)
    assert not (tmp_path / "d").exists()
