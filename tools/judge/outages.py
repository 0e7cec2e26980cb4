"""For how long partitions were not written and not read, and what each fault cost. Pure.

An **outage** is a window in which at least one record waited and none was served: for writes, produced and not acknowledged;
for reads, acknowledged and not consumed. It starts at the previous answer or, if nothing was waiting then, when the oldest
waiting record began to wait. It ends with the next answer, or when the last waiting record fails.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tools.judge.logs import NO_LOG, Logs, Outcome, places_by_id
from tools.judge.reports import ACKED, COMMITTED_TXN, Report
from tools.judge.tables import Tables

SHOWN_S = 0.1
"""A shorter window is no outage: a busy machine has such windows without any fault."""
UNRECOVERED_S = 1.0
"""A window that is open at the end and at least this long is a partition that did not recover."""
IN_FLIGHT_S = 0.2
"""An outage may begin so long before its fault: with the last answer, or with a record that was in flight."""
NEXT_S = 0.5
"""So soon after a fault, or after the end of one of its outages, the next outage begins that belongs to it."""


ANY_PARTITION = -1
"""Of records without an answer whose partition is not known."""


class Wait(NamedTuple):
    """A record that waits from `since` on, in seconds. `until` is None if it still waits; `is_served`: not if it failed."""

    since: float
    until: float | None
    is_served: bool = True


@dataclass(frozen=True, slots=True)
class Outage:
    """`group`: whose reads; empty for writes. `is_open`: it lasted until the end."""

    topic: str
    partition: int
    group: str
    began: float
    ended: float
    is_open: bool

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    @property
    def name(self) -> str:
        partition = "" if self.partition == ANY_PARTITION else f"-{self.partition}"
        return f"{self.topic}{partition}" + (f" for {self.group}" if self.group else "")


@dataclass(frozen=True, slots=True)
class Cost:
    """What a fault cost. `recovered_s`: from the fault until the last outage had ended; None if one did not end; 0 without any."""

    writes_s: float
    reads_s: float
    recovered_s: float | None
    outages: tuple[Outage, ...]
    """The longest one of each partition, the longest first."""


def windows(waits: Iterable[Wait], end: float) -> list[tuple[float, float, bool]]:
    """(from, to, whether it is open) of all windows without an answer. One that no answer ends is open, and lasts until `end`."""
    began, failed, served = 0, 1, 2
    events = []
    for wait in _until_overtaken(waits):
        if wait.until is not None and wait.until < wait.since:
            continue  # it was served before it was known to wait
        events.append((wait.since, began))
        if wait.until is not None:
            events.append((wait.until, served if wait.is_served else failed))
    found, waiting, since = [], 0, 0.0
    for at, what in sorted(events):
        if what == began:
            since = at if not waiting else since
            waiting += 1
            continue
        waiting -= 1
        if what == served or not waiting:
            found.append((since, at, False))
            since = at
    if waiting and since < end:
        found.append((since, end, True))
    return found


def _until_overtaken(waits: Iterable[Wait]) -> list[Wait]:
    """A record without an answer waits until one that began to wait later is served: then it is lost or skipped, and no longer late."""
    found = []
    overtaken: float | None = None
    for wait in sorted(waits, key=lambda wait: wait.since, reverse=True):
        if wait.until is None and overtaken is not None:
            found.append(Wait(wait.since, max(overtaken, wait.since), False))
            continue
        found.append(wait)
        if wait.until is not None and wait.is_served:
            overtaken = wait.until if overtaken is None else min(overtaken, wait.until)
    return found


def outages_of(tables: Tables, logs: Logs, end: float) -> list[Outage]:
    """Of at least SHOWN_S, in the order of their begin. `end`: when the program was asked to stop, or ended."""
    found = [
        Outage(topic, partition, group, began, ended, is_open)
        for (topic, partition, group), waits in {**_writes(tables, logs), **_reads(tables, logs)}.items()
        for began, ended, is_open in windows(waits, end)
        if ended - began >= SHOWN_S and (is_open or partition != ANY_PARTITION)
    ]
    return sorted(found, key=lambda outage: (outage.began, outage.topic, outage.partition, outage.group))


def _writes(tables: Tables, logs: Logs) -> Mapping[tuple[str, int, str], list[Wait]]:
    """A topic without `produced` reports: the next record waits from an acknowledgement on."""
    waits: dict[tuple[str, int, str], list[Wait]] = defaultdict(list)
    where = places_by_id(logs)
    for (topic, id_), reports in tables.produced.items():
        record = (topic, id_)
        acked, failed, first = tables.acked.get(record), tables.failed.get(record), reports[0]
        last = acked or failed
        if last is None and (told := tables.transactions.get(reports[-1].txn)) is not None:
            last = told.ended  # the answer to a commit acknowledges all records of the transaction
        partition = next(
            (report.partition for report in (acked, first) if report and report.partition is not None), None
        )
        if partition is None:
            partition = where[record][0][0] if record in where else None
        wait = Wait(first.at, last.at if last else None, last is not None and last.event in (ACKED, COMMITTED_TXN))
        waits[topic, ANY_PARTITION if partition is None else partition, ""].append(wait)
    for topic in {topic for topic, partition, _ in waits if partition == ANY_PARTITION}:
        # An answer in any partition serves them: that is all that is known.
        served = [
            wait for (of, _, _), some in waits.items() if of == topic for wait in some if wait.is_served and wait.until
        ]
        waits[topic, ANY_PARTITION, ""] += served
    previous: dict[tuple[str, int], float] = {}
    for record, report in tables.acked.items():
        if record not in tables.produced:
            place = (report.topic, report.partition or 0)
            waits[*place, ""].append(Wait(previous.get(place, report.at), report.at))
            previous[place] = report.at
    return waits


def _reads(tables: Tables, logs: Logs) -> Mapping[tuple[str, int, str], list[Wait]]:
    """Of acknowledged records, for each group that reports about their topic. In a transaction, they wait from its commit on."""
    waits: dict[tuple[str, int, str], list[Wait]] = defaultdict(list)
    first: dict[tuple[str, str, str], float] = {}
    for (group, topic, _), reports in tables.consumed.items():
        for report in reports:
            first.setdefault((group, topic, report.id), report.at)
    where = places_by_id(logs)
    readers = {topic: tables.readers(topic) for topic in {topic for topic, _ in tables.acked}}
    for (topic, id_), report in tables.acked.items():
        since = _readable_at(tables, logs, where, report)
        if since is None:
            continue
        for group in readers[topic]:
            waits[topic, report.partition or 0, group].append(Wait(since, first.get((group, topic, id_))))
    return waits


def _readable_at(
    tables: Tables, logs: Logs, where: Mapping[tuple[str, str], Sequence[tuple[int, int]]], acked: Report
) -> float | None:
    """When a group could get the record; None: never, as its transaction is aborted or has no end."""
    partition, offset = acked.partition or 0, acked.offset
    log = logs.get((acked.topic, partition), NO_LOG)
    if offset is None:
        copies = [at for of, at in where.get((acked.topic, acked.id), ()) if of == partition]
        if not copies:
            return acked.at
        offset = next((at for at in copies if log.outcome(at) is Outcome.COMMITTED), copies[0])
    place = (acked.topic, partition, offset)
    if log.outcome(offset) is not Outcome.COMMITTED:
        return None
    name = tables.by_place.get(place)
    if name is None:
        return acked.at
    told = tables.transactions[name]
    end = told.ended or told.last
    return acked.at if end is None else max(acked.at, end.at)


def cost_of(outages: Sequence[Outage], at: float, until: float, took_s: float = 0.0) -> Cost:
    """Of a fault that began at `at`, from `outages` in the order of their begin. `until`: the next fault, or the end. `took_s`: until the
    fault was carried out.

    An outage is the fault's if it begins before `until`, and within NEXT_S after the fault was carried out, or after the end of another
    one of its outages.
    """
    mine: list[Outage] = []
    covered = at + took_s
    for outage in outages:
        if at - IN_FLIGHT_S <= outage.began < until - IN_FLIGHT_S and outage.began <= covered + NEXT_S:
            mine.append(outage)
            covered = max(covered, outage.ended)
    longest: dict[str, Outage] = {}
    for outage in mine:
        known = longest.get(outage.name)
        if known is None or outage.seconds > known.seconds:
            longest[outage.name] = outage
    return Cost(
        writes_s=max((outage.seconds for outage in mine if not outage.group), default=0.0),
        reads_s=max((outage.seconds for outage in mine if outage.group), default=0.0),
        recovered_s=None if any(is_unrecovered(outage) for outage in mine) else covered - at if mine else 0.0,
        outages=tuple(sorted(longest.values(), key=lambda outage: -outage.seconds)),
    )


def is_unrecovered(outage: Outage) -> bool:
    return outage.is_open and outage.seconds >= UNRECOVERED_S
