"""What the members of a group have seen (`group_chaos_member`), what is in `__consumer_offsets`, and whether that is right.

INV-23: a commit that was acknowledged is in the log, in the generation of its member, and nothing goes back. INV-24: in one generation
each partition has one owner, and what members were told is what the log has. What was committed is not delivered again. The rest is
judged by the members' reports: `reports_of`.
"""

from __future__ import annotations

import json
import struct
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from broker.groups.group.messages import GroupMetadata
from broker.groups.offsets_topic.records import GroupKey, OffsetKey, decode_group_value, decode_key, decode_offset_value
from protocol.kafka.record_batch import decode_records, iter_batches
from tools.judge.reports import COMMITTED, CONSUMED, Report

Line = dict[str, Any]


class JournalFile:
    """Of one process; may be read while it is written."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.stem
        self.lines: list[Line] = []
        self._read_to = 0

    def read(self) -> list[Line]:
        """The new lines, which are among `lines` from now on."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self._read_to)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._read_to += len(whole)
        new = [json.loads(line) for line in whole.splitlines()]
        self.lines += new
        return new

    def commits(self) -> Iterator[tuple[Line, dict[int, int]]]:
        """Those that were acknowledged, with their offsets."""
        for line in self.lines:
            if line["what"] == "committed":
                yield line, offsets_of(line)


def reports_of(
    journals: Iterable[JournalFile], group: str, topic: str, ids: Mapping[tuple[int, int], str], began: float
) -> list[Report]:
    """What members have processed and committed, in order. `ids`: (partition, offset) -> id of the record. `began`: of the times.

    A commit has the time of its request: a member may stand still before it notes the answer, and others commit meanwhile.
    """
    found: list[Report] = []
    for journal in journals:
        for line in journal.lines:
            if line["what"] == "processed":
                p, at = line["partition"], line["at"] - began
                found += [
                    Report(CONSUMED, topic, p, offset, ids.get((p, offset), ""), group, line=journal.name, at=at)
                    for offset in range(line["first"], line["last"] + 1)
                ]
        for line, offsets in journal.commits():
            found += [
                Report(COMMITTED, topic, p, offset, group=group, line=journal.name, at=line["since"] - began)
                for p, offset in offsets.items()
            ]
    found.sort(key=lambda report: report.at)
    return [replace(report, order=order) for order, report in enumerate(found)]


def offsets_of(line: Line) -> dict[int, int]:
    return {int(partition): offset for partition, offset in line["offsets"].items()}


class Acknowledged:
    """Of one group: partition -> its highest acknowledged commit, as its members' journals tell it so far."""

    def __init__(self) -> None:
        self.offsets: dict[int, int] = {}
        self._seen: dict[str, int] = {}
        """The name of a journal -> how many of its lines are in `offsets`."""

    def read(self, journals: Iterable[JournalFile]) -> dict[int, int]:
        """A copy of what was acknowledged before this call. Fails with what a member says that it met."""
        for journal in journals:
            journal.read()
            for line in journal.lines[self._seen.get(journal.name, 0) :]:
                assert line["what"] != "failed", f"{journal.name}: {line['error']}"
                if line["what"] == "committed":
                    for partition, offset in offsets_of(line).items():
                        self.offsets[partition] = max(offset, self.offsets.get(partition, 0))
            self._seen[journal.name] = len(journal.lines)
        return dict(self.offsets)


# -- the log --------------------------------------------------------------------------------------------------------------


@dataclass
class GroupLog:
    """A group in `__consumer_offsets`, which was never compacted, in the log's order.

    `owners`: generation -> partition -> member. `commits`: (generation when it came to the log, partition, offset).
    """

    owners: dict[int, dict[int, str]] = field(default_factory=dict)
    commits: list[tuple[int, int, int]] = field(default_factory=list)
    generation: int = 0

    def add_group(self, group: GroupMetadata, topic: str) -> None:
        """INV-24, of what was stored."""
        assert group.generation >= self.generation, f"generation {group.generation} after {self.generation}"
        self.generation = group.generation
        for member in group.members:
            for partition in assigned_partitions(member.assignment, topic):
                owner = self.owners.setdefault(group.generation, {}).setdefault(partition, member.member_id)
                assert owner == member.member_id, (
                    f"generation {group.generation}: partition {partition} is {owner}'s and {member.member_id}'s"
                )


def assigned_partitions(assignment: bytes, topic: str) -> list[int]:
    """Of Kafka's ConsumerProtocolAssignment: version INT16 | topics: name STRING, partitions INT32[] | ..."""
    if not assignment:
        return []
    found: list[int] = []
    (count,) = struct.unpack_from(">i", assignment, 2)
    at = 6
    for _ in range(count):
        (size,) = struct.unpack_from(">h", assignment, at)
        name = assignment[at + 2 : at + 2 + size].decode()
        at += 2 + size
        (length,) = struct.unpack_from(">i", assignment, at)
        if name == topic:
            found += struct.unpack_from(f">{length}i", assignment, at + 4)
        at += 4 + 4 * length
    return found


def read_group_logs(replicas: Iterable[Path], topic: str) -> Mapping[str, GroupLog]:
    """Group -> what these replicas, one of each partition, have of it."""
    logs: dict[str, GroupLog] = defaultdict(GroupLog)
    for replica in replicas:
        for segment in sorted(replica.glob("*.log")):
            data = memoryview(segment.read_bytes())
            for position, _ in iter_batches(data):
                for record in decode_records(data, position):
                    key = decode_key(record.key)
                    if isinstance(key, GroupKey) and record.value is not None:
                        logs[key.group_id].add_group(decode_group_value(record.value), topic)
                    elif isinstance(key, OffsetKey) and key.topic == topic:
                        assert record.value is not None, f"a tombstone for {key}"
                        log = logs[key.group_id]
                        log.commits.append((log.generation, key.partition, decode_offset_value(record.value).offset))
    return logs


# -- what must be true ----------------------------------------------------------------------------------------------------


def assert_commits_are_in_the_log(log: GroupLog, journals: Iterable[JournalFile]) -> None:
    """INV-23."""
    last: dict[int, int] = {}
    for generation, partition, offset in log.commits:
        before = last.get(partition, 0)
        assert offset >= before, f"partition {partition}, generation {generation}: {offset} was stored after {before}"
        last[partition] = offset
    stored = set(log.commits)
    generations = sorted({generation for generation, *_ in log.commits} | set(log.owners))
    for journal in journals:
        for line, offsets in journal.commits():
            first, end = line["generations"]
            # A generation whose assignment was never stored counts for the one before it.
            begin = bisect_right(generations, first) - 1
            possible = generations[max(begin, 0) : bisect_right(generations, end) if end >= 0 else None]
            for partition, offset in offsets.items():
                assert any((generation, partition, offset) in stored for generation in possible), (
                    f"{journal.name}: the log has no commit of {offset} for partition {partition} in {possible}: {line}"
                )


def assert_one_owner(log: GroupLog, journals: Iterable[JournalFile]) -> int:
    """INV-24: whoever was told of a partition is its owner in the log. Returns how many generations there were."""
    for journal in journals:
        for line in journal.lines:
            if line["what"] == "assigned" and line["generation"] >= 0:
                owners = log.owners.get(line["generation"], {})
                wrong = {p: owners.get(p) for p in line["partitions"] if owners.get(p) != line["member"]}
                assert not wrong, f"{journal.name}: was told {line}, the log has other owners: {wrong}"
    return len(log.owners)


def assert_nothing_again(journals: Iterable[JournalFile]) -> None:
    """From one assignment of a partition on, a member gets all records in order, beginning at or after what was committed before."""
    journals = list(journals)
    history: dict[int, list[tuple[float, int]]] = defaultdict(list)
    for journal in journals:
        for line, offsets in journal.commits():
            for partition, offset in offsets.items():
                history[partition].append((line["at"], offset))
    for journal in journals:
        expected: dict[int, int | None] = {}
        floors: dict[int, int] = {}
        for line in journal.lines:
            if line["what"] == "assigned":
                for p in line["partitions"]:
                    expected[p] = None
                    floors[p] = max((offset for at, offset in history[p] if at < line["at"]), default=0)
            elif line["what"] == "processed":
                p, first, last = line["partition"], line["first"], line["last"]
                assert p in floors, f"{journal.name}: not its own: {line}"
                assert first >= floors[p], f"{journal.name}: {floors[p]} was committed before it was assigned: {line}"
                assert expected[p] in (None, first), f"{journal.name}: expected {expected[p]}: {line}"
                expected[p] = last + 1
            elif line["what"] in ("revoked", "lost"):
                for p in line["partitions"]:
                    floors.pop(p, None)
