"""RPL-5: a workload file is read strictly; an error names the line and the key."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.replay.traces.schema import TraceError
from tools.replay.traces.workload import (
    EXAMPLE,
    NS_PER_S,
    Batching,
    Bursty,
    CatchUp,
    Constant,
    Keys,
    RecordSize,
    parse_workload,
    read_workload,
)

SMALL = """\
duration: 10s
topics:
  - {name: t, partitions: 3}
producers:
  - name: p
    topics: t
    rate: 120/min
    record_size: 1KiB
"""


def test_the_example() -> None:
    workload = parse_workload(EXAMPLE.read_text(), "example")
    shop, web, _ = workload.producers
    assert workload.topics == {"orders": 6, "clicks": 12}
    assert (shop.keys, shop.batching, shop.acks) == (Keys(10_000, 1.1), Batching(None, 5_000_000, 16 * 1024), -1)
    assert web.rate == Bursty(100, 3000, 8 * NS_PER_S, NS_PER_S)
    assert web.record_size == RecordSize("weights", (80, 6, 200, 3, 2000, 1))
    assert workload.consumers[2].catch_up == CatchUp(200_000, 20 * NS_PER_S, 5 * 1024 * 1024)


def test_what_is_not_said_has_a_default() -> None:
    workload = parse_workload(SMALL, "small")
    (producer,) = workload.producers
    assert (workload.seed, workload.consumers) == (0, ())
    assert (producer.rate, producer.record_size) == (Constant(2), RecordSize("constant", (1024,)))
    assert (producer.count, producer.keys, producer.compression, producer.acks) == (1, None, "none", -1)
    assert producer.batching == Batching(1, None, 16 * 1024)


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ("10s", "10", "w.yaml, line 1: duration is '10', not a duration such as 500ms, 30s or 1h30m"),
        ("10s", "-5s", "w.yaml, line 1: duration is '-5s', not a duration"),
        ("duration: 10s\n", "", "w.yaml, line 1: the workload lacks duration"),
        ("partitions: 3", "partition: 3", "w.yaml, line 3: topics[0].partition is not known; the keys here are name, partitions"),
        ("partitions: 3", "partitions: 0", "w.yaml, line 3: topics[0].partitions is 0, not from 1 to 100000"),
        ("partitions: 3", "partitions: 1.5", "w.yaml, line 3: topics[0].partitions is '1.5', not a whole number"),
        ("name: t", "name: a b", "w.yaml, line 3: topics[0].name is 'a b', which is not a valid name"),
        ("topics: t", "topics: [t, u]", "w.yaml, line 6: producers[0].topics[1] is 'u', which is not in topics; there are t"),
        ("120/min", "120/day", "w.yaml, line 7: producers[0].rate is '120/day', not a rate such as 500/s"),
        ("120/min", ".nan", "w.yaml, line 7: producers[0].rate is '.nan', not a rate"),
        ("120/min", "nan/s", "w.yaml, line 7: producers[0].rate is nan/s, not from 1e-06 to 100000000"),
        ("120/min", "{normal: 5/s}", "w.yaml, line 7: producers[0].rate must have one of the keys constant, poisson, "),
        ("120/min", "{diurnal: {mean: 5/s, peak: 11/s}}", "line 7: producers[0].rate.diurnal.peak is not from mean to 2 x mean (5 to 10"),
        ("1KiB", "1Kib", "w.yaml, line 8: producers[0].record_size is '1Kib', not a size such as 16KiB"),
        ("1KiB", "{uniform: {min: 5, max: 4}}", "w.yaml, line 8: producers[0].record_size.uniform.max is below min"),
        ("1KiB", "{weights: {1: 0}}", "w.yaml, line 8: producers[0].record_size.weights has no weight above 0"),
        ("1KiB", "1\n    batch: {}", "w.yaml, line 9: producers[0].batch lacks records or linger"),
        ("1KiB", "1\n    name: q", "w.yaml, line 9: producers[0].name is there twice"),
        ("1KiB", "1\nconsumers: {a: b}", "w.yaml, line 9: consumers must be a list"),
        ("1KiB", "1\nconsumers: [{name: c}]", "w.yaml, line 9: consumers[0] lacks topic"),
        ("1KiB", "[1", "w.yaml, line 9, column 1: not YAML: expected ',' or ']'"),
        (SMALL, "", "w.yaml is empty; `ottla replay trace make --example` prints an example"),
        (SMALL, "- a", "w.yaml, line 1: the workload must be a mapping"),
    ],
)  # fmt: skip
def test_an_error_names_the_line_and_the_key(old: str, new: str, error: str) -> None:
    assert old in SMALL
    with pytest.raises(TraceError) as raised:
        parse_workload(SMALL.replace(old, new, 1), "w.yaml")
    assert str(raised.value).startswith(error) or error in str(raised.value), str(raised.value)


def test_a_file_that_is_not_text_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "w.yaml").write_bytes(b"\xff\xfe\x00")
    for name in ("w.yaml", "missing.yaml"):
        with pytest.raises(TraceError, match=name):
            read_workload(tmp_path / name)
