"""Compares what a program reported with what the logs hold in the end. Pure.

A record is found again by its id. Records that the program did not report are of others, and are not judged.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tools.judge.findings import Finding, finding
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
from tools.judge.logs import (
    NO_LOG,
    NO_POSITION,
    Logs,
    Outcome,
    PartitionLog,
    Place,
    Positions,
    committed_places,
    places_by_id,
)
from tools.judge.outcomes import Copies, Ended, outcomes_of
from tools.judge.ownership import UNOWNED_S, judge_ownership
from tools.judge.reports import Report
from tools.judge.tables import Tables
from tools.judge.transactions import asked_to_commit, judge_transactions


@dataclass
class Judged:
    """`problems`: why reports cannot be judged, a line each. `expired`: acknowledged records that the log has deleted since."""

    findings: list[Finding] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    expired: int = 0


def judge(
    tables: Tables, logs: Logs, positions: Positions, *, is_finished: bool, unowned_s: float = UNOWNED_S
) -> Judged:
    """`is_finished`: the program ended by itself, as one that is done. Then what its groups have not read is unseen, not unread.

    `unowned_s`: see `judge_ownership`.
    """
    judged = Judged(problems=list(tables.problems))
    where = places_by_id(logs)
    if (misnamed := _misnamed(tables, logs, where)) is not None:
        judged.problems.append(misnamed)
        return judged
    ended = outcomes_of(tables, logs, where)
    committed = committed_places(where, logs)
    for found in (
        _acknowledged(tables, logs, where, judged),
        _duplicates(tables, committed),
        _reordered(tables, logs),
        _unseen(tables, logs, committed, positions, ended, is_finished),
        _vanished(tables, logs),
        _read_again(tables, ended),
        _commits_back(tables, positions),
        _commits_ahead(tables, logs),
        _unacknowledged(tables),
        judge_transactions(tables, logs, where, positions, ended),
        judge_ownership(tables.of_members, unowned_s),
    ):
        judged.findings += found
    return judged


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


def _acknowledged(tables: Tables, logs: Logs, where: Copies, judged: Judged) -> Iterator[Finding]:
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
                yield finding(LOST, report, "acknowledged without an offset; nowhere in its partition")
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
            yield finding(MOVED, report, f"{instead}; the record is at {places}")
        else:
            yield finding(LOST, report, instead)


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


def _duplicates(tables: Tables, where: Copies) -> Iterator[Finding]:
    for record in dict.fromkeys((*tables.produced, *tables.acked)):
        copies = where.get(record, ())
        if len(copies) < 2:
            continue
        report = tables.acked.get(record) or tables.produced[record][-1]
        first = copies[0]
        produced = tables.produced.get(record, ())
        in_another = any(each.txn for each in produced)
        reason = "in another transaction" if in_another else "after a failure"
        again = f" (the program produced it again {reason})" if len(produced) > 1 else ""
        for partition, offset in copies[1:]:
            words = f"also at {report.topic}-{first[0]}@{first[1]}{again}"
            yield finding(DUPLICATES, report, words, partition, offset)


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
                yield finding(REORDERED, report, f"behind {before[2]!r} at offset {before[1]}", partition, offset)
            else:
                last[report.producer] = (number, offset, id_)


def _unseen(
    tables: Tables,
    logs: Logs,
    where: Copies,
    positions: Positions,
    ended: Mapping[str, Ended],
    is_finished: bool,
) -> Iterator[Finding]:
    """What was read in a transaction that was aborted must be read again; if the group goes on behind it, it is `unprocessed`."""
    readers: dict[str, set[str]] = {}
    seen: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for key, reports in tables.consumed.items():
        group, topic, partition = key
        log = logs.get((topic, partition), NO_LOG)
        for report in reports:
            offset = report.offset or 0
            if offset < log.own_start or (log.outcome(offset) is Outcome.ABORTED and log.ids.get(offset) == report.id):
                continue
            if report.txn and ended[report.txn].outcome is Outcome.ABORTED and positions.get(key, offset + 1) <= offset:
                continue
            seen[group].add((topic, report.id))
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
            can_be_read = offset < logs[report.topic, partition].stable_end
            if (is_finished and can_be_read) or (position is not None and offset < position):
                end = "has not committed" if position is None else f"goes on at offset {position}"
                yield finding(UNSEEN, report, f"group {group} {end}", partition, offset)
            else:
                yield finding(UNREAD, report, f"group {group}", partition, offset)


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
            yield finding(VANISHED, report, f"group {group} read it; {instead}")


def _read_again(tables: Tables, ended: Mapping[str, Ended]) -> Iterator[Finding]:
    """What was read in a transaction that was aborted must be read again."""
    for (group, _, _), reports in tables.consumed.items():
        first: dict[int, Report] = {}
        for report in reports:
            if report.txn and ended[report.txn].outcome is Outcome.ABORTED:
                continue
            earlier = first.setdefault(report.offset or 0, report)
            if earlier is not report:
                yield finding(READ_AGAIN, report, f"group {group}, first in line {earlier.line}")


def _commits_back(tables: Tables, positions: Positions) -> Iterator[Finding]:
    """Of commits in transactions the order is known if one was asked for after the answer to the other."""
    for key, reports in tables.committed.items():
        last = reports[0]
        for report in reports:
            if (report.offset or 0) < (last.offset or 0):
                if report.txn and _asked_at(tables, report) < last.order:
                    continue
                words = f"group {key[0]} committed {last.offset} before, in line {last.line}"
                yield finding(COMMITS_BACK, report, words)
            last = report
        position = positions.get(key)
        if position is not None and position < (last.offset or 0):
            held = "no offset" if position == NO_POSITION else position
            words = f"group {key[0]}: acknowledged, but the cluster holds {held} in the end"
            yield finding(COMMITS_BACK, last, words)


def _asked_at(tables: Tables, commit: Report) -> int:
    """The number of the report behind which the transaction of this commit can have been committed."""
    asked = asked_to_commit(tables.transactions[commit.txn])
    return commit.order if asked is None else asked.order


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
                if log.outcome(offset) is not Outcome.COMMITTED:
                    continue  # readers of committed records do not get it
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
            yield finding(REFUSED, report, "")
    for record, reports in tables.produced.items():
        if record not in tables.acked and record not in tables.failed:
            yield finding(UNANSWERED, reports[-1], "")
