"""The files of a plausible run, made by hand: 60 s, 3 brokers, 6 partitions, the leader of three killed at 20 s, back at 35 s.

`python -m tests.support.report_data DIRECTORY` writes a run, a bad run and a comparison with their pages, to look at.
"""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path
from typing import Any

from tests.support.replay_runs import a_plan
from tools.replay.pages.checks import write_comparison_checks, write_run_checks
from tools.replay.pages.comparison_page import comparison_page
from tools.replay.pages.run_page import run_page
from tools.replay.run.comparison import Run, compare

SECONDS, KILLED, BACK, OUT_S = 60, 20.0, 35.0, 2.3
TOPICS = ("departures", "arrivals")
CLIENTS = ("gate", "tower", "radar")
OPS = ("produce", "fetch")
NAMES = ("p50", "p90", "p95", "p99", "p999", "p9999", "max")


def percentiles(*values: float) -> dict[str, float]:
    return dict(zip(NAMES, values, strict=True))


def over_time(chance: random.Random, slow: float = 1.0) -> list[dict[str, Any]]:
    rows = []
    for second in range(SECONDS):
        due = 800 + int(150 * math.sin(second / 9)) + chance.randrange(40)
        is_out = KILLED <= second < KILLED + OUT_S
        acknowledged = due // 2 if is_out else due + (350 if second == math.ceil(KILLED + OUT_S) else 0)
        p50 = slow * chance.uniform(1.8, 2.6)
        worst = 1000 * slow * (KILLED + OUT_S - second) if is_out else slow * chance.uniform(18, 60)
        rows.append(
            {
                "second": second, "due": due, "acknowledged": acknowledged,
                "failed": 3 if second == 21 else 0, "records": acknowledged * 12, "bytes": acknowledged * 6200,
                "fetched_records": acknowledged * 24, "fetched_bytes": acknowledged * 12400, "p50_ms": p50,
                "p99_ms": worst * 0.95 if is_out else slow * chance.uniform(7, 13), "max_ms": worst,
                "late_p99_ms": chance.uniform(0.2, 1.4), "ready_p99_ms": 0.2, "limited": False,
            }
        )  # fmt: skip
    return rows


def distribution(slow: float = 1.0) -> list[dict[str, Any]]:
    rows = []
    for step in range(81):
        quantile = 1 - 10 ** (-step / 20)
        base = 1.2 * slow + 1.6 * slow * step / 20
        tail = 2300 * slow / (1 + math.exp(-6 * (step / 20 - 2.6)))
        rows.append(
            {
                "quantile": quantile, "produce_scheduled_ms": base + tail, "produce_sent_ms": base + tail * 0.7,
                "fetch_scheduled_ms": 3 * base + tail * 0.1,
            }
        )  # fmt: skip
    return [*rows, {"quantile": 1, "produce_scheduled_ms": 2301, "produce_sent_ms": 1600, "fetch_scheduled_ms": 380}]


def analysis(slow: float = 1.0, seed: int = 1) -> dict[str, Any]:
    """`slow`: factor of the latencies."""
    chance = random.Random(seed)
    rows = over_time(chance, slow)
    produced = sum(row["bytes"] for row in rows)

    def shares(names: tuple[str, ...], *parts: float) -> dict[str, list[float]]:
        return {
            name: [row["bytes"] * 3 * part * chance.uniform(0.9, 1.1) for row in rows]
            for name, part in zip(names, parts, strict=True)
        }

    def load(part: float, op: str, **name: Any) -> dict[str, Any]:
        factor = 1 if op == "produce" else 2
        return {
            **name, "op": op, "operations": int(48_000 * part), "failed": 0, "records": int(576_000 * part * factor),
            "bytes": int(produced * part * factor), "p50_ms": 2.2 * slow, "p99_ms": 11.5 * slow,
        }  # fmt: skip

    out = [
        {
            "topic": topic, "partition": partition, "from_second": KILLED + 0.02, "to_second": KILLED + OUT_S * length,
            "seconds": OUT_S * length - 0.02, "delayed": int(310 * length),
        }
        for topic, partition, length in (("departures", 0, 1.0), ("departures", 2, 0.93), ("arrivals", 1, 0.97), ("arrivals", 0, 0.4))
    ]  # fmt: skip
    return {
        "began_ns": 1_760_000_000_000_000_000, "seconds": float(SECONDS), "interval_s": 1,
        "totals": {
            "operations": 96_000, "not_done": 0,
            "produce": {
                "operations": 48_000, "acknowledged": 48_000, "failed": 0, "records": 576_000, "sent_records": 576_000, "bytes": produced,
                "per_second": 800.0, "records_per_second": 9600.0, "bytes_per_second": produced / SECONDS,
            },
            "fetch": {
                "operations": 48_000, "answered": 48_000, "failed": 0, "records": 1_152_000, "bytes": 2 * produced,
                "per_second": 800.0, "records_per_second": 19_200.0, "bytes_per_second": 2 * produced / SECONDS,
            },
        },
        "latency_ms": {
            "produce": {
                "scheduled": percentiles(*(slow * ms for ms in (2.2, 5.1, 7.4, 11.8, 2010, 2260, 2301))),
                "sent": percentiles(*(slow * ms for ms in (2.1, 4.9, 7.0, 11.0, 1410, 1580, 1600))),
            },
            "fetch": {
                "scheduled": percentiles(*(slow * ms for ms in (6.0, 21, 30, 61, 240, 350, 380))),
                "sent": percentiles(*(slow * ms for ms in (5.9, 20, 29, 60, 238, 349, 379))),
            },
        },
        "lateness_ms": percentiles(0.11, 0.3, 0.5, 1.1, 3.2, 4.8, 6.1),
        "loop": "open",
        "generator": {
            "is_limited": False, "limited": 0, "intervals": SECONDS, "late_ms": percentiles(0.1, 0.2, 0.4, 0.9, 2.0, 3.0, 4.0),
            "cpu": {"brokers": 0.91, "generator": 0.42, "spark": None},
        },
        "end_to_end": {
            "records": 576_000, "unread": 0, "drained_s": 0.12, "ms": percentiles(*(slow * ms for ms in (5, 12, 19, 33, 2100, 2300, 2400))),
        },
        "distribution": distribution(slow),
        "over_time": [{**row, "failed": 0} for row in rows],
        "by_topic": [load(part, op, topic=name) for name, part in zip(TOPICS, (0.7, 0.3), strict=True) for op in OPS],
        "by_broker": [load(part, op, broker=at) for at, part in enumerate((0.41, 0.24, 0.35), start=1) for op in OPS],
        "by_client": [load(part, op, client=name) for name, part in zip(CLIENTS, (0.5, 0.3, 0.2), strict=True) for op in OPS],
        "by_partition": [
            load(part, op, topic=topic, partition=partition)
            for topic, share in zip(TOPICS, (0.7, 0.3), strict=True)
            for partition, part in enumerate((share * 0.5, share * 0.3, share * 0.2))
            for op in OPS
        ],
        "series": {
            "op": shares(OPS, 1 / 3, 2 / 3), "topic": shares(TOPICS, 0.7, 0.3),
            "broker": shares(("1", "2", "3"), 0.41, 0.24, 0.35), "client": shares((*CLIENTS, "others"), 0.45, 0.3, 0.2, 0.05),
        },
        "errors": [],
        "outages": out,
        "faults": [
            {
                "verb": "kill", "role": "leader of departures-0", "broker": 1, "second": KILLED, "error": None,
                "outages": [{**{key: one[key] for key in ("topic", "partition", "seconds")}, "led": one["seconds"] > 1} for one in out],
                "outage_s": OUT_S - 0.02, "delayed": 1023, "normal_after_s": 3.1,
            },
            {
                "verb": "restart", "role": "it", "broker": 1, "second": BACK, "error": None, "outages": [], "outage_s": 0.0,
                "delayed": 0, "normal_after_s": 0.4,
            },
        ],
        "lag": [
            {"second": second, "topic": topic, "records": records}
            for second in range(SECONDS)
            for topic, records in (("departures", 9000 if 20 <= second < 24 else 300 + second), ("arrivals", 120))
        ],
        "groups": [
            {
                "group": "ottla-replay-boards", "members": 3, "joins": 9, "rebalances": 2, "commits": 34, "failed_commits": 1,
                "read": 143_000, "read_again": 120, "skipped": 0, "longest_overdue_s": 0.3,
                "longest_without_heartbeat_s": 2.6, "longest_without_commit_s": 7.1, "error": "",
            },
        ],
        "skew": {"brokers": {"max_over_mean": 1.23, "largest": 1}, "partitions": {"max_over_mean": 2.1, "largest": "departures-0"}},
        "ramp": [], "knee": None,
        "tasks": [
            {
                "task": task, "expected": 24_000, "done": 24_000, "last_second": 59.9, "clock_offset_ms": 0.02 * task,
                "clock_uncertainty_ms": 0.05,
            }
            for task in range(4)
        ],
        "problem": None,
    }  # fmt: skip


RAMP = [
    {
        "step": at, "speed": speed, "offered_per_second": 800.0 * speed, "achieved_per_second": min(800.0 * speed, 7400.0),
        "p99_ms": 8.0 + 0.4 * speed + (1500 if speed > 9 else 0), "late_p99_ms": 0.6 + 0.1 * speed,
    }
    for at, speed in enumerate((1.0, 2.0, 4.0, 6.0, 8.0, 9.0, 11.0))
]  # fmt: skip


def verdict(**counts: int) -> dict[str, Any]:
    good = {
        "acknowledged": 576_000,
        "found": 576_000,
        "lost": 0,
        "duplicated": 0,
        "reordered": 0,
        "corrupted": 0,
        "unseen": 0,
    }
    kinds = ("lost", "duplicated", "reordered", "corrupted", "unread", "elsewhere")
    return {**good, "elsewhere": 0, **counts, "evidence": {kind: [] for kind in kinds}}


def bad_analysis() -> dict[str, Any]:
    """Errors, operations that were not done, a ramp, a name that would end the page's script."""
    hostile = "</script><img src=x onerror=\"document.title='taken'\">"
    bad = analysis()
    bad["totals"]["produce"]["failed"], bad["totals"]["not_done"] = 41, 1200
    bad["errors"] = [
        {"op": "produce", "error": "NOT_ENOUGH_REPLICAS", "operations": 38, "first_second": 20.1, "last_second": 22.4},
        {"op": "produce", "error": hostile, "operations": 3, "first_second": 21.0, "last_second": 21.2},
    ]
    bad["over_time"][20]["failed"], bad["over_time"][21]["failed"] = 28, 13
    bad["ramp"], bad["knee"] = RAMP, {"speed": 9.0, "per_second": 7200.0}
    bad["tasks"][2]["expected"], bad["tasks"][3]["done"] = None, 22_800
    bad["problem"] = "an executor was lost; the operations of task 3 after 57 s were not done"
    for key in ("by_topic", "by_partition", "outages", "lag"):
        for row in bad[key]:
            row["topic"] = row["topic"].replace("arrivals", hostile)
    bad["series"]["topic"][hostile] = bad["series"]["topic"].pop("arrivals")
    bad["by_client"][0]["client"] = hostile
    return bad


def bad_verdict() -> dict[str, Any]:
    bad = verdict(lost=3, duplicated=12)
    places = [{"topic": "departures", "partition": 0, "offset": offset} for offset in (70, 82)]
    bad["evidence"]["lost"] = [
        {
            "producer": 7,
            "sequence": 40 + at,
            "topic": "departures",
            "partition": 0,
            "offset": 19_200 + at,
            "client": "gate",
        }
        for at in range(3)
    ]
    bad["evidence"]["duplicated"] = [
        {"producer": 9, "first_sequence": 24, "records": 12, "copies": 2, "places": places}
    ]
    return bad


def plan() -> dict[str, Any]:
    return {"trace": "somewhere/flights.trace", "bootstrap_servers": "127.0.0.1:9092", "speeds": [60.0], "tasks": 4}


def comparison() -> dict[str, Any]:
    """Four runs a side, of which those of B are slower."""

    def side(name: str, address: str, slow: float) -> list[Run]:
        return [
            Run(
                Path("runs") / f"{name}-{at}",
                a_plan(Path(), bootstrap_servers=address, speeds=[60.0]),
                analysis(slow * noise, seed=at),
                verdict(),
            )
            for at, noise in enumerate((1.0, 1.01, 0.98, 1.02), start=1)
        ]

    return compare(side("ottla", "127.0.0.1:9092", 1.0), side("kafka", "127.0.0.1:19092", 1.7), 0.05)


def main(directory: Path) -> None:
    for name, of, judged in (("good", analysis(), verdict()), ("bad", bad_analysis(), bad_verdict())):
        (directory / name).mkdir(parents=True)
        (directory / name / "report.html").write_text(run_page(plan(), of, judged))
        write_run_checks(directory / name, of, judged)
    (directory / "comparison").mkdir()
    (directory / "comparison" / "report.html").write_text(comparison_page(comparison()))
    write_comparison_checks(directory / "comparison", comparison())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
