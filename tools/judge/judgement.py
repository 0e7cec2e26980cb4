"""Compares what a program reported with what the logs hold in the end. Pure.

A record is found again by its id. Records that the program did not report are of others, and are not judged.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tools.judge.kinds import (
    COMMITS_AHEAD,
    COMMITS_BACK,
    DUPLICATES,
    LOST,
    MOVED,
    READ_AGAIN,
    REFUSED,
    REORDERED,
    UNANSWERED,
    UNREAD,
    UNSEEN,
    VANISHED,
)
from tools.judge.reports import ACKED, COMMITTED, CONSUMED, FAILED, PRODUCED, Report

Place = tuple[str, int]
"""(topic, partition)"""


@dataclass(frozen=True, slots=True)
class PartitionLog:
    """What can be read of a partition: offset -> id of the record.

    `start` is the first offset that was read: what is below it is not judged. `is_whole`: it was read to its end; if not,
    nothing is said about what is not in it. Records below `own_start` were there before the program, which may have used the same ids in
    an earlier run: they are never its own.
    """

    start: int
    end: int
    ids: Mapping[int, str]
    is_whole: bool = True
    own_start: int = 0

    @property
    def has_deleted(self) -> bool:
        """Whether records of the program were deleted since."""
        return self.start > self.own_start


Logs = Mapping[Place, PartitionLog]
Positions = Mapping[tuple[str, str, int], int]
"""(group, topic, partition) -> the offset that the cluster holds as committed in the end, or NO_POSITION."""
NO_POSITION = -1
NO_LOG = PartitionLog(0, 0, {})


@dataclass(frozen=True, slots=True)
class Finding:
    """One record or one commit that is not as it should be. `line`: of the report that shows it; `at`: when it was read."""

    kind: str
    at: float
    line: str
    topic: str
    partition: int | None
    offset: int | None
    id: str
    words: str


@dataclass
class Judged:
    """`problems`: why reports cannot be judged, a line each. `expired`: acknowledged records that the log has deleted since."""

    findings: list[Finding] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    expired: int = 0


@dataclass
class Tables:
    """The reports of one program, sorted by what they say. All keep the order of the lines."""

    produced: dict[tuple[str, str], list[Report]] = field(default_factory=lambda: defaultdict(list))
    """By (topic, id)."""
    acked: dict[tuple[str, str], Report] = field(default_factory=dict)
    """By (topic, id): the last one."""
    failed: dict[tuple[str, str], Report] = field(default_factory=dict)
    consumed: dict[tuple[str, str, int], list[Report]] = field(default_factory=lambda: defaultdict(list))
    """By (group, topic, partition); so `committed`."""
    committed: dict[tuple[str, str, int], list[Report]] = field(default_factory=lambda: defaultdict(list))
    problems: list[str] = field(default_factory=list)

    @staticmethod
    def of(reports: Iterable[Report]) -> Tables:
        tables = Tables()
        for report in reports:
            tables._add(report)
        return tables

    def _add(self, report: Report) -> None:
        record = (report.topic, report.id)
        if report.event == PRODUCED:
            earlier = self.produced[record]
            if earlier and record not in self.failed:
                self._not_unique(report, earlier[-1])
            earlier.append(report)
        elif report.event == ACKED:
            if record in self.acked and len(self.produced.get(record, ())) < 2:
                self._not_unique(report, self.acked[record])
            self.acked[record] = report
        elif report.event == FAILED:
            self.failed[record] = report
        elif report.event == CONSUMED:
            self.consumed[report.group, report.topic, report.partition or 0].append(report)
        elif report.event == COMMITTED:
            self.committed[report.group, report.topic, report.partition or 0].append(report)

    def _not_unique(self, report: Report, earlier: Report) -> None:
        self.problems.append(
            f"line {report.line}: the id {report.id!r} of topic {report.topic} was {report.event} before, in line "
            f"{earlier.line}; each record needs an id of its own"
        )

    def readers(self, topic: str) -> set[str]:
        """The groups that report about a topic."""
        return {group for group, of, _ in (*self.consumed, *self.committed) if of == topic}


def judge(tables: Tables, logs: Logs, positions: Positions, *, is_finished: bool) -> Judged:
    """`is_finished`: the program ended by itself, as one that is done. Then what its groups have not read is unseen, not unread."""
    judged = Judged(problems=list(tables.problems))
    where = places_by_id(logs)
    if (misnamed := _misnamed(tables, logs, where)) is not None:
        judged.problems.append(misnamed)
        return judged
    for found in (
        _acknowledged(tables, logs, where, judged),
        _duplicates(tables, where),
        _reordered(tables, logs),
        _unseen(tables, logs, where, positions, is_finished),
        _vanished(tables, logs),
        _read_again(tables),
        _commits_back(tables, positions),
        _commits_ahead(tables, logs),
        _unacknowledged(tables),
    ):
        judged.findings += found
    return judged


def places_by_id(logs: Logs) -> dict[tuple[str, str], list[tuple[int, int]]]:
    """(topic, id) -> (partition, offset) of its copies since the start of the program, in order."""
    where: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for (topic, partition), log in sorted(logs.items()):
        for offset, id_ in sorted(log.ids.items()):
            if offset >= log.own_start:
                where[topic, id_].append((partition, offset))
    return dict(where)


def _misnamed(tables: Tables, logs: Logs, where: Mapping[tuple[str, str], object]) -> str | None:
    """Reported ids that are in no record at all, while there are records at the acknowledged offsets: `--id` is wrong."""
    if any(record in where for record in (*tables.acked, *tables.produced)):
        return None
    for report in tables.acked.values():
        found = logs.get((report.topic, report.partition or 0), NO_LOG).ids.get(
            -1 if report.offset is None else report.offset
        )
        if found is not None:
            return (
                f"no reported id is the id of a record in the log: line {report.line} says {report.id!r}, and the record at "
                f"{report.topic}-{report.partition}@{report.offset} has {found!r}; --id says where records have their id"
            )
    return None


def _acknowledged(
    tables: Tables, logs: Logs, where: Mapping[tuple[str, str], Sequence[tuple[int, int]]], judged: Judged
) -> Iterator[Finding]:
    deleted = _deleted_without_offset(tables, logs)
    for record, report in tables.acked.items():
        log = logs.get((report.topic, report.partition or 0), NO_LOG)
        offset, copies = report.offset, where.get(record, ())
        if offset is None:
            if report.partition in {partition for partition, _ in copies}:
                continue
            if record in deleted:
                judged.expired += 1
            elif log.is_whole:
                yield _finding(LOST, report, "acknowledged without an offset; nowhere in its partition")
            continue
        if offset < log.start:
            judged.expired += 1
            continue
        found = log.ids.get(offset)
        if found == report.id or (found is None and not log.is_whole):
            continue
        instead = f"there is {found!r}" if found is not None else _nothing(log, offset)
        if copies:
            places = ", ".join(f"{report.topic}-{partition}@{at}" for partition, at in copies)
            yield _finding(MOVED, report, f"{instead}; the record is at {places}")
        else:
            yield _finding(LOST, report, instead)


def _deleted_without_offset(tables: Tables, logs: Logs) -> set[tuple[str, str]]:
    """Records whose offset is not known, but that of the next one of their partition: it was deleted, or is the first that is left."""
    deleted = set()
    following: dict[Place, int] = {}
    for record, report in reversed(tables.acked.items()):
        place = (report.topic, report.partition or 0)
        if report.offset is not None:
            following[place] = report.offset
        elif place in following and following[place] <= (log := logs.get(place, NO_LOG)).start and log.has_deleted:
            deleted.add(record)
    return deleted


def _nothing(log: PartitionLog, offset: int) -> str:
    return f"the log ends at {log.end}" if offset >= log.end else "there is no record at this offset"


def _duplicates(tables: Tables, where: Mapping[tuple[str, str], Sequence[tuple[int, int]]]) -> Iterator[Finding]:
    for record in dict.fromkeys((*tables.produced, *tables.acked)):
        copies = where.get(record, ())
        if len(copies) < 2:
            continue
        report = tables.acked.get(record) or tables.produced[record][-1]
        first = copies[0]
        again = " (the program produced it again after a failure)" if len(tables.produced.get(record, ())) > 1 else ""
        for partition, offset in copies[1:]:
            words = f"also at {report.topic}-{first[0]}@{first[1]}{again}"
            yield _finding(DUPLICATES, report, words, partition, offset)


def _reordered(tables: Tables, logs: Logs) -> Iterator[Finding]:
    """The first copies must be in the order in which a producer produced them. What it produced again has no order."""
    numbers = {
        record: (number, found[0]) for number, (record, found) in enumerate(tables.produced.items()) if len(found) == 1
    }
    for (topic, partition), log in sorted(logs.items()):
        last: dict[str, tuple[int, int, str]] = {}
        seen: set[str] = set()
        for offset, id_ in sorted(log.ids.items()):
            known = numbers.get((topic, id_)) if offset >= log.own_start else None
            if known is None or id_ in seen:
                continue
            seen.add(id_)
            number, report = known
            before = last.get(report.producer)
            if before is not None and number < before[0]:
                yield _finding(REORDERED, report, f"behind {before[2]!r} at offset {before[1]}", partition, offset)
            else:
                last[report.producer] = (number, offset, id_)


def _unseen(
    tables: Tables,
    logs: Logs,
    where: Mapping[tuple[str, str], Sequence[tuple[int, int]]],
    positions: Positions,
    is_finished: bool,
) -> Iterator[Finding]:
    readers: dict[str, set[str]] = {}
    seen: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for (group, topic, partition), reports in tables.consumed.items():
        own_start = logs.get((topic, partition), NO_LOG).own_start
        seen[group] |= {(topic, report.id) for report in reports if (report.offset or 0) >= own_start}
    for record, report in tables.acked.items():
        if record not in where:
            continue
        if report.topic not in readers:
            readers[report.topic] = tables.readers(report.topic)
        for group in sorted(readers[report.topic]):
            if record in seen[group]:
                continue
            partition, offset = where[record][0]
            position = _position(tables, positions, (group, report.topic, partition))
            if is_finished or (position is not None and offset < position):
                end = "has not committed" if position is None else f"goes on at offset {position}"
                yield _finding(UNSEEN, report, f"group {group} {end}", partition, offset)
            else:
                yield _finding(UNREAD, report, f"group {group}", partition, offset)


def _position(tables: Tables, positions: Positions, key: tuple[str, str, int]) -> int | None:
    """Where a group goes on: by the cluster, else by its last commit, else behind the last record that it consumed."""
    if positions.get(key, NO_POSITION) != NO_POSITION:
        return positions[key]
    if tables.committed.get(key):
        return tables.committed[key][-1].offset
    consumed = tables.consumed.get(key)
    return max((report.offset or 0) + 1 for report in consumed) if consumed else None


def _vanished(tables: Tables, logs: Logs) -> Iterator[Finding]:
    for (group, topic, partition), reports in tables.consumed.items():
        log = logs.get((topic, partition), NO_LOG)
        for report in reports:
            offset = report.offset or 0
            found = log.ids.get(offset)
            if offset < log.start or found == report.id or (found is None and not log.is_whole):
                continue
            instead = f"there is {found!r}" if found is not None else _nothing(log, offset)
            yield _finding(VANISHED, report, f"group {group} read it; {instead}")


def _read_again(tables: Tables) -> Iterator[Finding]:
    for (group, _, _), reports in tables.consumed.items():
        first: dict[int, Report] = {}
        for report in reports:
            earlier = first.setdefault(report.offset or 0, report)
            if earlier is not report:
                yield _finding(READ_AGAIN, report, f"group {group}, first in line {earlier.line}")


def _commits_back(tables: Tables, positions: Positions) -> Iterator[Finding]:
    for key, reports in tables.committed.items():
        highest = reports[0]
        for report in reports:
            if (report.offset or 0) < (highest.offset or 0):
                words = f"group {key[0]} committed {highest.offset} before, in line {highest.line}"
                yield _finding(COMMITS_BACK, report, words)
            highest = report
        position = positions.get(key)
        last = reports[-1]
        if position is not None and position < (last.offset or 0):
            held = "no offset" if position == NO_POSITION else position
            words = f"group {key[0]}: acknowledged, but the cluster holds {held} in the end"
            yield _finding(COMMITS_BACK, last, words)


def _commits_ahead(tables: Tables, logs: Logs) -> Iterator[Finding]:
    """Each record once, at the first commit that is beyond it.

    Records that the program did not produce count from the first that the group consumed: where it started is not known.
    """
    for key, commits in tables.committed.items():
        group, topic, partition = key
        log = logs.get((topic, partition), NO_LOG)
        offsets = sorted(log.ids)
        consumed = {report.offset: report for report in reversed(tables.consumed.get(key, ()))}
        first_consumed = min((offset or 0 for offset in consumed), default=None)
        checked = 0
        for commit in commits:
            until = bisect_left(offsets, commit.offset or 0)
            for offset in offsets[checked:until]:
                id_ = log.ids[offset]
                is_own = offset >= log.own_start and ((topic, id_) in tables.acked or (topic, id_) in tables.produced)
                if not is_own and (first_consumed is None or offset < first_consumed):
                    continue
                report = consumed.get(offset)
                if report is not None and report.order < commit.order:
                    continue
                later = "never reported as consumed" if report is None else f"consumed later, in line {report.line}"
                words = f"group {group} committed {commit.offset}; {later}"
                yield Finding(COMMITS_AHEAD, commit.at, commit.line, topic, partition, offset, id_, words)
            checked = max(checked, until)


def _unacknowledged(tables: Tables) -> Iterator[Finding]:
    for record, report in tables.failed.items():
        if record not in tables.acked:
            yield _finding(REFUSED, report, "")
    for record, reports in tables.produced.items():
        if record not in tables.acked and record not in tables.failed:
            yield _finding(UNANSWERED, reports[-1], "")


def _finding(kind: str, report: Report, words: str, partition: int | None = None, offset: int | None = None) -> Finding:
    return Finding(
        kind,
        report.at,
        report.line,
        report.topic,
        report.partition if partition is None else partition,
        report.offset if offset is None else offset,
        report.id,
        words,
    )
