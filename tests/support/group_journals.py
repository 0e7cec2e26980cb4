"""What the members of a group have seen (`group_chaos_member`), what is in `__consumer_offsets`, and whether that is right.

INV-23: a commit that was acknowledged is in the log, in the generation of its member, and nothing goes back. INV-24: in one generation
each partition has one owner, in a group of the new kind at any time, and what members were told is what the log has. What was committed
is not delivered again. The rest is judged by the members' reports: `reports_of`.
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

from broker.groups.consumer_group.assignors.problem import IdPartition, Owned
from broker.groups.consumer_group.member import ConsumerMember
from broker.groups.consumer_group.messages import AssignmentChanged, Change, EpochChanged
from broker.groups.group.messages import GroupMetadata
from broker.groups.offsets_topic.consumer_group_records import ConsumerKey, ConsumerKeyKind, decode
from broker.groups.offsets_topic.records import GroupKey, OffsetKey, decode_group_value, decode_key, decode_offset_value
from protocol.kafka.record_batch import decode_records, iter_batches
from tools.judge.reports import ASSIGNED, COMMITTED, CONSUMED, LEFT, REVOKED, Report

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
            at = line["at"] - began
            if line["what"] in ("assigned", "revoked", "lost"):
                event = ASSIGNED if line["what"] == "assigned" else REVOKED
                found += [
                    Report(event, topic, p, group=group, line=journal.name, at=at, member=journal.name)
                    for p in line["partitions"]
                ]
            elif line["what"] == "closed":
                found.append(Report(LEFT, group=group, line=journal.name, at=at, member=journal.name))
            elif line["what"] == "processed":
                p = line["partition"]
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

    Of a group of the new kind, `generation` is its epoch, and `holds` has what each member may read, or has not given up. `owners` has the
    members that held a partition while the group had this epoch: one after the other.
    """

    owners: dict[int, dict[int, set[str]]] = field(default_factory=dict)
    commits: list[tuple[int, int, int]] = field(default_factory=list)
    generation: int = 0
    holds: dict[str, Owned] = field(default_factory=dict)
    is_of_the_new_kind: bool = False

    def add_group(self, group: GroupMetadata, topic: str) -> None:
        """INV-24, of what was stored."""
        assert group.generation >= self.generation, f"generation {group.generation} after {self.generation}"
        self.generation = group.generation
        for member in group.members:
            for partition in assigned_partitions(member.assignment, topic):
                owners = self.owners.setdefault(group.generation, {}).setdefault(partition, {member.member_id})
                assert owners == {member.member_id}, (
                    f"generation {group.generation}: partition {partition} is {owners}'s and {member.member_id}'s"
                )

    def add_change(self, change: Change | None, member_id: str) -> None:
        """Of a group of the new kind. None: the member is gone."""
        self.is_of_the_new_kind = True
        match change:
            case EpochChanged(int(epoch)):
                assert epoch > self.generation, f"epoch {epoch} after {self.generation}"
                self.generation = epoch
            case AssignmentChanged(_, ConsumerMember() as member):
                self.holds[member_id] = member.held
            case None:
                self.holds.pop(member_id, None)

    def check_holders(self) -> None:
        """INV-24, of what was stored in one batch. Partitions of several topics are told apart here, but not in `owners`."""
        holders: dict[IdPartition, str] = {}
        for member_id, partitions in self.holds.items():
            for partition in partitions:
                other = holders.setdefault(partition, member_id)
                assert other == member_id, (
                    f"epoch {self.generation}: partition {partition[1]} is {other}'s and {member_id}'s"
                )
                self.owners.setdefault(self.generation, {}).setdefault(partition[1], set()).add(member_id)


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
                changed = set()
                for record in decode_records(data, position):
                    key = decode_key(record.key)
                    if isinstance(key, ConsumerKey):
                        if record.value is not None or key.kind is ConsumerKeyKind.ASSIGNMENT:
                            change = None if record.value is None else decode(key, record.value)
                            logs[key.group_id].add_change(change, key.name)
                            changed.add(key.group_id)
                    elif isinstance(key, GroupKey) and record.value is not None:
                        logs[key.group_id].add_group(decode_group_value(record.value), topic)
                    elif isinstance(key, OffsetKey) and key.topic == topic:
                        assert record.value is not None, f"a tombstone for {key}"
                        log = logs[key.group_id]
                        log.commits.append((log.generation, key.partition, decode_offset_value(record.value).offset))
                for group in changed:
                    logs[group].check_holders()
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
    if log.is_of_the_new_kind:  # a commit has its member's epoch, which may be behind the group's
        stored_at_all = {(partition, offset) for _, partition, offset in stored}
        for journal in journals:
            for line, offsets in journal.commits():
                lost = offsets.items() - stored_at_all
                assert not lost, f"{journal.name}: the log has no commit of {lost}: {line}"
        return
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


def assert_one_owner(log: GroupLog, journals: Iterable[JournalFile]) -> None:
    """INV-24: whoever was told of a partition is its owner in the log."""
    in_any: dict[int, set[str]] = defaultdict(set)
    for owners in log.owners.values():
        for partition, members in owners.items():
            in_any[partition] |= members
    for journal in journals:
        for line in journal.lines:
            if line["what"] == "assigned" and line["generation"] >= 0:
                owners = in_any if log.is_of_the_new_kind else log.owners.get(line["generation"], {})
                wrong = {p: owners.get(p) for p in line["partitions"] if line["member"] not in owners.get(p, ())}
                assert not wrong, f"{journal.name}: was told {line}, the log has other owners: {wrong}"


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
