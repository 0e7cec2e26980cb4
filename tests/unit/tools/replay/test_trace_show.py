"""The figures of a trace."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.small_traces import fetch, produce, written
from tools.replay.traces.show import BARS_WIDE, bars, duration, lines, overview

ROWS = [
    produce(100, 0, records=3),
    produce(100, 0, partition=1, records=2),
    produce(100, 0, topic="u", partition=-1, key_hash=1, acks=1, compression="lz4"),
    fetch(900, 1),
    fetch(1500, 2, client="other", records=0, bytes=0),
    produce(1600, 3, client="other", transactional=True),
    fetch(2100, 4),
]


def test_the_figures(tmp_path: Path) -> None:
    seen = overview(written(tmp_path / "t", ROWS))
    assert (seen["rows"], seen["requests"], seen["duration_s"], seen["partitions"]) == (7, 5, 2.0, {"t": 2})
    assert seen["start"] == "2023-11-14T22:13:20.000000Z"
    assert seen["busiest_second"] == {"second": 0, "requests": 2}
    assert seen["busiest_client"] == {"client": "app", "share": pytest.approx(3 / 7)}
    assert (
        "client app: 43% of the rows. A client is in one task of a replay: more than 3 --tasks would wait for it"
        in "".join(lines(seen))
    )
    loads = {(load.pop("topic"), load.pop("op")): load for load in seen["loads"]}
    assert loads["t", "produce"] == {
        **{"requests": 2, "records": 6, "bytes": 300, "clients": 2, "partitions": 2, "groups": []},
        **{"requests_per_s": 1.0, "records_per_s": 3.0, "bytes_per_s": 150.0},
        **{"compression": {"none": 3}, "acks": {"-1": 3}, "transactional_rows": 1},
    }
    assert loads["t", "fetch"] | {"requests": 3, "clients": 2, "groups": ["g"], "acks": {}} == loads["t", "fetch"]
    assert loads["u", "produce"]["partitions"] == 0
    over_time = seen["requests_over_time"]
    assert {op: (len(counts), sum(counts)) for op, counts in over_time.items()} == {
        "produce": (BARS_WIDE, 2),
        "fetch": (BARS_WIDE, 3),
    }
    assert (over_time["produce"][0], over_time["fetch"][-1]) == (1, 1)


def test_a_trace_of_one_row_has_no_rates(tmp_path: Path) -> None:
    seen = overview(written(tmp_path / "t", [produce(0, 0)]))
    assert seen["loads"][0]["requests_per_s"] is None
    assert any(line.startswith("t      produce  1         -") for line in lines(seen))


def test_bars() -> None:
    assert bars([0, 1, 4, 8]) == " ▂▅█"
    assert bars([0, 0]) == "  "


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0s"), (0.25, "250ms"), (1.5, "1.5s"), (60, "1m"), (3725, "1h2m5s"), (90061, "1d1h1m")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text
