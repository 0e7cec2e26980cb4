"""What is wrong with the transactions that a program reported: by its lines, and by the control records in the logs. Pure.

The rules are those of exactly-once in Kafka (KIP-98, KIP-447): all records and offsets of a transaction count, or none; readers of
committed records see them after the commit only; a producer that was replaced is fenced. Cycles are those of Adya's G1c and G0, as Elle
looks for them. Kafka lets transactions interleave in a partition, so a cycle with writes only is no failure.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from tools.judge.cycles import cycles_in
from tools.judge.findings import Finding, finding
from tools.judge.kinds import (
    ABORTED_OFFSETS,
    ABORTED_READ,
    EARLY_READ,
    LOST,
    LSO_STUCK,
    OPEN_TXN,
    PROCESSED_TWICE,
    READ_CYCLE,
    REVIVED,
    TORN,
    UNDONE,
    UNFENCED,
    UNPROCESSED,
    WRITE_CYCLE,
)
from tools.judge.logs import NO_LOG, NO_POSITION, Logs, OpenTransaction, Outcome, Positions
from tools.judge.outcomes import Copies, Ended
from tools.judge.reports import READ_UNCOMMITTED, Report
from tools.judge.tables import Tables, Transaction

Owners = Mapping[tuple[str, int, int], str]
"""(topic, partition, offset) -> the transaction of that record."""


def judge_transactions(
    tables: Tables, logs: Logs, where: Copies, positions: Positions, ended: Mapping[str, Ended]
) -> Iterator[Finding]:
    """`ended`: of `outcomes_of`."""
    owners = {place[:3]: name for name, each in ended.items() for place in each.records}
    asks = any(one.committing for one in tables.transactions.values())
    for each in ended.values():
        yield from _unlike_told(each, asks=asks)
        yield from _not_there(each, tables, logs, where, owners)
        yield from _torn_offsets(each, positions)
    yield from _read_too_early(tables, logs, owners)
    yield from _unfenced(logs)
    yield from _aborted_offsets(tables, positions, ended)
    yield from _processed(tables, positions, ended)
    yield from _cycles(logs, owners, ended)
    yield from _open(logs, owners, ended)


def _unlike_told(each: Ended, *, asks: bool) -> Iterator[Finding]:
    """One finding for a transaction that is torn, or has another end than its program said. `asks`: the program reports `committing`."""
    told, outcomes = each.told, each.outcomes
    if Outcome.COMMITTED in outcomes and len(outcomes) > 1:
        others = ", ".join(
            f"{outcome.value} in {topic}-{partition}@{offset}"
            for (topic, partition, offset), outcome in _first_of_each(each).items()
        )
        yield _about(TORN, each, Outcome.COMMITTED, f"transaction {told.name} is {others}", is_other=True)
    elif told.is_committed and outcomes == {Outcome.ABORTED}:
        yield _about(UNDONE, each, Outcome.ABORTED, f"transaction {told.name}")
    elif told.is_aborted and outcomes == {Outcome.COMMITTED}:
        yield _about(REVIVED, each, Outcome.COMMITTED, f"transaction {told.name} was reported as aborted")
    elif asks and told.committing is None and told.ended is None and outcomes == {Outcome.COMMITTED}:
        words = f"nobody had asked for the commit of transaction {told.name}"
        yield _about(REVIVED, each, Outcome.COMMITTED, words)


def _first_of_each(each: Ended) -> dict[tuple[str, int, int], Outcome]:
    """The first record of each outcome."""
    first: dict[Outcome, tuple[str, int, int]] = {}
    for place, outcome in sorted(each.records.items()):
        first.setdefault(outcome, place[:3])
    return {place: outcome for outcome, place in first.items()}


def _about(kind: str, each: Ended, outcome: Outcome, words: str, *, is_other: bool = False) -> Finding:
    """Of the first record with that outcome, or with any other."""
    topic, partition, offset, id_ = min(
        place for place, found in each.records.items() if (found is outcome) != is_other
    )
    last = each.told.ended or each.told.last
    assert last is not None
    return Finding(kind, last.at, last.line, topic, partition, offset, id_, words)


def _not_there(each: Ended, tables: Tables, logs: Logs, where: Copies, owners: Owners) -> Iterator[Finding]:
    """The answer to a commit acknowledges all records of the transaction: each has a copy that is its own, or may be.

    A copy of another transaction, as when the record was produced before in one that was aborted, is none of this one.
    """
    told = each.told
    if not told.is_committed:
        return
    own = {(topic, id_) for topic, _, _, id_ in each.records}
    failed = {(report.topic, report.id) for report in told.failed}
    for record, report in {(report.topic, report.id): report for report in (*told.acked, *told.produced)}.items():
        if record in own or record in failed or _has_failed(report, tables) or _is_judged(report, tables, where):
            continue
        topic, copies = record[0], where.get(record, ())
        if any(
            (topic, *copy) not in owners and logs[topic, copy[0]].outcome(copy[1]) is not Outcome.ABORTED
            for copy in copies
        ):
            continue
        if all(log.is_whole and not log.has_deleted for (of, _), log in logs.items() if of == topic):
            nowhere = "only in another transaction, or in one that was aborted" if copies else "nowhere in its topic"
            yield finding(LOST, report, f"its transaction {told.name} was committed; {nowhere}")


def _has_failed(produced: Report, tables: Tables) -> bool:
    """Whether a report that names no transaction says so."""
    failed = tables.failed.get((produced.topic, produced.id))
    return failed is not None and not failed.txn and failed.order > produced.order


def _is_judged(report: Report, tables: Tables, where: Copies) -> bool:
    """Whether the acknowledgement of the record in this transaction is judged by itself."""
    record = (report.topic, report.id)
    acked = tables.acked.get(record)
    if acked is None or (acked.txn != report.txn if acked.txn else acked.order < report.order):
        return False
    return acked.offset is not None or acked.partition not in {partition for partition, _ in where.get(record, ())}


def _torn_offsets(each: Ended, positions: Positions) -> Iterator[Finding]:
    """Of a transaction whose program does not know its end. If it does, the offsets count as its commits."""
    if each.told.ended is not None or each.outcomes != {Outcome.COMMITTED}:
        return
    for sent in each.told.sent:
        position = positions.get((sent.group, sent.topic, sent.partition or 0))
        if position is not None and position < (sent.offset or 0):
            held = "no offset" if position == NO_POSITION else position
            words = f"the records of transaction {each.told.name} are committed, and group {sent.group} has {held}"
            yield finding(TORN, sent, words)


def _read_too_early(tables: Tables, logs: Logs, owners: Owners) -> Iterator[Finding]:
    for (group, topic, partition), reports in tables.consumed.items():
        log = logs.get((topic, partition), NO_LOG)
        for report in reports:
            offset = report.offset or 0
            if report.isolation == READ_UNCOMMITTED or log.ids.get(offset) != report.id:
                continue
            name = owners.get((topic, partition, offset), "")
            who = f"group {group} read it" + (f"; transaction {name}" if name else "")
            outcome = log.outcome(offset)
            if outcome is Outcome.ABORTED:
                yield finding(ABORTED_READ, report, who)
            elif outcome is Outcome.OPEN:
                yield finding(EARLY_READ, report, f"{who}, which has not ended" if name else who)
            elif name and (before := asked_to_commit(tables.transactions[name])) and report.order < before.order:
                yield finding(EARLY_READ, report, f"{who} was still going on in line {before.line}")


def asked_to_commit(told: Transaction) -> Report | None:
    """The last line that comes before the commit: `committing`, or what is written or sent before it."""
    if told.committing is not None:
        return told.committing
    return max((*told.produced, *told.sent), key=lambda report: report.order, default=None)


def _unfenced(logs: Logs) -> Iterator[Finding]:
    for (topic, partition), log in sorted(logs.items()):
        for each in log.unfenced:
            words = f"producer id {each.producer_id} wrote with epoch {each.epoch}, after epoch {each.newer}"
            yield Finding(UNFENCED, 0.0, "", topic, partition, each.offset, log.ids.get(each.offset, ""), words)


def _aborted_offsets(tables: Tables, positions: Positions, ended: Mapping[str, Ended]) -> Iterator[Finding]:
    senders: dict[tuple[str, str, int, int], list[Report]] = defaultdict(list)
    for told in tables.transactions.values():
        for sent in told.sent:
            senders[sent.group, sent.topic, sent.partition or 0, sent.offset or 0].append(sent)
    for key, position in positions.items():
        found = senders.get((*key, position), ())
        by_others = any(commit.offset == position for commit in tables.committed.get(key, ()))
        if found and not by_others and all(ended[sent.txn].outcome is Outcome.ABORTED for sent in found):
            words = f"group {key[0]} has the offset of transaction {found[-1].txn}, which was aborted"
            yield finding(ABORTED_OFFSETS, found[-1], words)


def _processed(tables: Tables, positions: Positions, ended: Mapping[str, Ended]) -> Iterator[Finding]:
    """Each record that a group reads in transactions counts in one that is committed."""
    for key, reports in tables.consumed.items():
        by_offset: dict[int, list[Report]] = defaultdict(list)
        for report in reports:
            by_offset[report.offset or 0].append(report)
        for offset, some in by_offset.items():
            if not all(report.txn for report in some):
                continue
            last = some[-1]
            outcomes = {report.txn: ended[report.txn].outcome for report in some}
            committed = [name for name, outcome in outcomes.items() if outcome is Outcome.COMMITTED]
            if len(committed) > 1:
                words = f"group {key[0]}, in the transactions {' and '.join(committed)}"
                yield finding(PROCESSED_TWICE, last, words)
            elif set(outcomes.values()) == {Outcome.ABORTED} and positions.get(key, NO_POSITION) > offset:
                words = f"group {key[0]} goes on at {positions[key]}, and transaction {last.txn} was aborted"
                yield finding(UNPROCESSED, last, words)


def _cycles(logs: Logs, owners: Owners, ended: Mapping[str, Ended]) -> Iterator[Finding]:
    """Of what readers of committed records read: others may read from a transaction that goes on, so also in a circle."""
    reads: dict[str, set[str]] = defaultdict(set)
    for name, each in ended.items():
        if each.outcome is not Outcome.COMMITTED:
            continue
        for report in each.told.consumed:
            if report.isolation == READ_UNCOMMITTED:
                continue
            writer = owners.get((report.topic, report.partition or 0, report.offset or 0))
            if writer is not None and ended[writer].outcome is Outcome.COMMITTED:
                reads[writer].add(name)
    for cycle in cycles_in(reads):
        words = f"{' -> '.join([*cycle, cycle[0]])}: each one read what the one before wrote"
        yield _of_transaction(READ_CYCLE, ended[cycle[0]].told, words)
    both = {name: set(targets) for name, targets in reads.items()}
    last: dict[tuple[str, int], str] = {}
    for (topic, partition, offset), name in sorted(owners.items()):
        if logs[topic, partition].outcome(offset) is not Outcome.COMMITTED:
            continue
        before = last.get((topic, partition), name)
        if before != name:
            both.setdefault(before, set()).add(name)
        last[topic, partition] = name
    for cycle in cycles_in(both):
        pairs = zip(cycle, [*cycle[1:], cycle[0]], strict=True)
        if not all(to in reads[name] for name, to in pairs):
            words = f"{' -> '.join([*cycle, cycle[0]])}: each one wrote behind the one before, or read what it wrote"
            yield _of_transaction(WRITE_CYCLE, ended[cycle[0]].told, words)


def _of_transaction(kind: str, told: Transaction, words: str) -> Finding:
    last = told.ended or told.last
    assert last is not None
    first: Report = next(iter((*told.produced, *told.consumed)), last)
    return Finding(kind, last.at, last.line, first.topic, first.partition, first.offset, first.id, words)


def _open(logs: Logs, owners: Owners, ended: Mapping[str, Ended]) -> Iterator[Finding]:
    for (topic, partition), log in sorted(logs.items()):
        for each in log.open:
            name = owners.get((topic, partition, each.first_offset), "")
            told = ended[name].told if name else None
            is_decided = told is not None and told.ended is not None
            kind = LSO_STUCK if each.is_stuck or is_decided else OPEN_TXN
            at, line = (told.last.at, told.last.line) if told is not None and told.last is not None else (0.0, "")
            id_ = log.ids.get(each.first_offset, "")
            yield Finding(kind, at, line, topic, partition, each.first_offset, id_, _holder(each, told))


def _holder(each: OpenTransaction, told: Transaction | None) -> str:
    """`producer id 4000 with the transactional id billing-1 holds the last stable offset (transaction t7, reported as committed): ...`."""
    own_id = told.begun.transactional_id if told is not None and told.begun is not None else ""
    known: Sequence[str] = [name for name in (each.transactional_id or own_id,) if name]
    who = f"producer id {each.producer_id}" + "".join(f" with the transactional id {name}" for name in known)
    said = ""
    if told is not None:
        end = told.ended
        said = f" (transaction {told.name}" + (f", reported by {end.event}" if end is not None else "") + ")"
    return f"{who} holds the last stable offset{said}" + (f": {each.words}" if each.words else "")
