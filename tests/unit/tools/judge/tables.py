"""Reports and logs for tests, written down shortly."""

from __future__ import annotations

from dataclasses import replace

from tools.judge.judgement import Logs, PartitionLog
from tools.judge.reports import Report, parse

TOPIC = "t"
SHORT = {
    "produced": "produced topic=t id={}",
    "acked": "acked topic=t partition={} offset={} id={}",
    "failed": "failed topic=t id={}",
    "consumed": "consumed group=g topic=t partition={} offset={} id={}",
    "committed": "committed group=g topic=t partition={} offset={}",
}


def reports_of(text: str, seconds_apart: float = 1.0) -> list[Report]:
    """`acked 0 17 a; consumed 0 17 a; committed 0 18`: one report each second, of topic `t` and group `g`."""
    found = []
    for number, part in enumerate(filter(None, map(str.strip, text.split(";")))):
        event, *values = part.split(" ")
        report = parse(f"@ottla {SHORT[event].format(*values)}", str(number + 1), number)
        assert report is not None
        found.append(replace(report, at=number * seconds_apart))
    return found


def log_of(*partitions: str, start: int = 0, is_whole: bool = True) -> Logs:
    """`log_of("ab", "c")`: partition 0 has the records a and b, partition 1 has c. A `-` is an offset without a record."""
    return {
        (TOPIC, partition): PartitionLog(
            start,
            start + len(ids),
            {start + offset: id_ for offset, id_ in enumerate(ids) if id_ != "-"},
            is_whole,
        )
        for partition, ids in enumerate(partitions)
    }
