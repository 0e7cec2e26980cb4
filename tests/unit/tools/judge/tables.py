"""Reports and logs for tests, written down shortly."""

from __future__ import annotations

from dataclasses import replace

from tools.judge.logs import Logs, PartitionLog
from tools.judge.reports import Report, parse

TOPIC = "t"
SHORT = {
    "produced": "produced topic=t id={}",
    "acked": "acked topic=t partition={} offset={} id={}",
    "failed": "failed topic=t id={}",
    "consumed": "consumed group=g topic=t partition={} offset={} id={}",
    "committed": "committed group=g topic=t partition={} offset={}",
    "assigned": "assigned group=g member={} topic=t partition={}",
    "revoked": "revoked group=g member={} topic=t partition={}",
    "left": "left group=g member={}",
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


def log_of(text: str) -> Logs:
    """`log_of("ab c")`: partition 0 has the records a and b, partition 1 has c. A `-` is an offset without a record.

    A partition may begin with its log start, `5:ab`, and ends with `?` if it was not read to its end.
    """
    logs = {}
    for partition, written in enumerate(text.split()):
        start, _, ids = written.rstrip("?").rpartition(":")
        first = int(start or 0)
        found = {first + number: id_ for number, id_ in enumerate(ids) if id_ != "-"}
        logs[TOPIC, partition] = PartitionLog(first, first + len(ids), found, not written.endswith("?"))
    return logs
