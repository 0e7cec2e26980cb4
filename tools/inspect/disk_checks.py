"""Checks the consistency of a log directory (INV-19, INV-21): `ottla inspect verify`.

A running broker writes during the check. Therefore checkpoints are read first, because logs only grow afterwards; an unfinished
last batch is not a finding; and findings are checked again (`settled`), so that only lasting ones are reported.
"""

from __future__ import annotations

import bisect
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from protocol.kafka.record_batch import BatchHeader
from protocol.types import TopicPartition
from tools.inspect import disk_files
from tools.inspect.disk_files import BadFile, Damage

LOOKS = 4
PAUSE_S = 0.5

TAIL = "the next start truncates it"
FOLLOWER_COPIES = (
    "move the partition's directory away while the broker is stopped: the next start copies it from the leader"
)
INDEX_REMOVED = "stop the broker and remove the file: the next start rebuilds it"
CHECKPOINT_REMOVED = "stop the broker and remove the file: the next start rebuilds it from the log"


class Finding(NamedTuple):
    """One line: where (file, offset or position), what is wrong, what to do."""

    file: str
    where: str
    problem: str
    advice: str

    def __str__(self) -> str:
        where = f", {self.where}" if self.where else ""
        return f"{self.file}{where}: {self.problem}; {self.advice}"


@dataclass
class LogFacts:
    """The facts of one replica for a comparison. `digests`: base offset -> (last offset, epoch, CRC field, file, position)."""

    directory: Path
    topic_id: str | None = None
    start_offset: int = 0
    end_offset: int = 0
    high_watermark: int | None = None
    has_holes: bool = False
    digests: dict[int, tuple[int, int, int, str, int]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)

    def add(self, file: str, where: str, problem: str, advice: str) -> None:
        self.findings.append(Finding(str(self.directory / file), where, problem, advice))


class Checkpoints(NamedTuple):
    """The checkpoints of one log directory, read before its logs."""

    recovery_points: Mapping[TopicPartition, int]
    high_watermarks: Mapping[TopicPartition, int]
    log_starts: Mapping[TopicPartition, int]
    is_running: bool
    was_clean: bool


def read_checkpoints(log_dir: Path) -> tuple[Checkpoints, list[Finding]]:
    """Raises OSError."""
    findings = []
    found: dict[str, dict[TopicPartition, int]] = {}
    names = (disk_files.RECOVERY_POINTS, disk_files.HIGH_WATERMARKS, disk_files.LOG_STARTS)
    for name in (*names, disk_files.CLEANED, disk_files.HOLES):
        try:
            found[name] = disk_files.offsets(log_dir / name)
        except BadFile as error:
            found[name] = {}
            findings.append(Finding(str(log_dir / name), "", str(error), CHECKPOINT_REMOVED))
    try:
        disk_files.meta(log_dir)
    except BadFile as error:
        advice = "restore it from the other log directories of this broker"
        findings.append(Finding(str(log_dir / disk_files.META), "", str(error), advice))
    was_clean = (log_dir / disk_files.CLEAN_SHUTDOWN).exists()
    points, marks, starts = (found[name] for name in names)
    return Checkpoints(points, marks, starts, disk_files.is_in_use(log_dir), was_clean), findings


def settled(
    log_dir: Path, directories: Mapping[TopicPartition, Path]
) -> tuple[dict[TopicPartition, LogFacts], list[Finding]]:
    """The facts of these partitions of a log directory; for a running broker, findings are checked again. Raises OSError."""
    known, findings = read_checkpoints(log_dir)
    facts = {tp: look(tp, path, known) for tp, path in directories.items()}
    for _ in range(LOOKS - 1):
        doubtful = [tp for tp, found in facts.items() if found.findings]
        if not known.is_running or not (doubtful or findings):
            break
        time.sleep(PAUSE_S)
        known, again = read_checkpoints(log_dir)
        findings = [finding for finding in again if finding in findings]
        for tp in doubtful:
            if not directories[tp].is_dir():
                del facts[tp]  # deleted in the meantime
                continue
            before = set(facts[tp].findings)
            facts[tp] = look(tp, directories[tp], known)
            facts[tp].findings = [finding for finding in facts[tp].findings if finding in before]
    return facts, findings


def look(tp: TopicPartition, directory: Path, known: Checkpoints) -> LogFacts:
    """The facts of one replica. Raises OSError, except for files that are removed meanwhile."""
    facts = LogFacts(directory)
    try:
        files = disk_files.segment_files(directory)
        _check_metadata(facts)
        epochs = _epochs(facts)
        scan = _Scan(facts, known, tp, epochs)
        bases = [base for base, suffixes in files.items() if "log" in suffixes]
        for base, following in itertools.zip_longest(bases, bases[1:]):
            scan.segment(base, following)
        scan.finish(bases[0] if bases else 0)
        for base, suffixes in files.items():
            _check_companions(facts, base, suffixes, scan)
    except FileNotFoundError:
        if directory.is_dir() and not known.is_running:
            raise
    return facts


def _check_metadata(facts: LogFacts) -> None:
    try:
        facts.topic_id = disk_files.topic_id(facts.directory)
    except BadFile as error:
        facts.add(
            disk_files.PARTITION_METADATA,
            "",
            str(error),
            "stop the broker and remove it: the controller sends the id again",
        )


def _epochs(facts: LogFacts) -> list[tuple[int, int]]:
    try:
        entries = disk_files.leader_epochs(facts.directory) or []
    except BadFile as error:
        facts.add(disk_files.LEADER_EPOCHS, "", str(error), CHECKPOINT_REMOVED)
        return []
    for (epoch, start), (next_epoch, next_start) in itertools.pairwise(entries):
        if next_epoch <= epoch or next_start < start:
            problem = f"epoch {next_epoch} at {next_start} follows epoch {epoch} at {start}"
            facts.add(disk_files.LEADER_EPOCHS, f"epoch {next_epoch}", problem, CHECKPOINT_REMOVED)
            return []
    return entries


class _Scan:
    """Checks the batches of a log, and collects what the checks of its other files need."""

    def __init__(self, facts: LogFacts, known: Checkpoints, tp: TopicPartition, epochs: list[tuple[int, int]]) -> None:
        self.positions: dict[int, dict[int, BatchHeader]] = {}
        self.last_of_producer: dict[int, list[tuple[int, int]]] = {}
        self._facts = facts
        self._known = known
        self._tp = tp
        self._epochs = epochs
        self._end = -1
        self._epoch = -1
        self._epoch_is_reported = False

    def segment(self, base: int, following: int | None) -> None:
        facts, name = self._facts, f"{base:020d}.log"
        placed = self.positions[base] = {}
        self._end = max(self._end, base) if self._end >= 0 else base
        for found in disk_files.batches(facts.directory / name):
            if isinstance(found, Damage):
                self._damage(name, found, following)
                break
            header, where = found.header, f"offset {found.header.base_offset}, position {found.position}"
            if not found.is_intact:
                facts.add(name, where, "the CRC does not match", FOLLOWER_COPIES)
            if header.base_offset < self._end or header.last_offset_delta < 0:
                problem = f"found offsets {header.base_offset} to {header.last_offset}, expected {self._end} or more"
                facts.add(name, where, problem, FOLLOWER_COPIES)
            if following is not None and header.last_offset >= following:
                facts.add(
                    name,
                    where,
                    f"it ends at {header.last_offset}, but the next segment starts at {following}",
                    FOLLOWER_COPIES,
                )
            if header.partition_leader_epoch < self._epoch:
                problem = f"leader epoch {header.partition_leader_epoch} after {self._epoch}"
                facts.add(name, where, problem, FOLLOWER_COPIES)
            self._note(header, found.position, name)
            placed[found.position] = header

    def _note(self, header: BatchHeader, position: int, name: str) -> None:
        facts = self._facts
        if facts.digests and header.base_offset > self._end:
            facts.has_holes = True
        self._end = max(self._end, header.next_offset)
        self._epoch = max(self._epoch, header.partition_leader_epoch)
        facts.digests[header.base_offset] = (
            header.last_offset,
            header.partition_leader_epoch,
            header.crc,
            name,
            position,
        )
        if header.producer_id >= 0 and not header.is_control:
            last = (header.base_sequence + header.last_offset_delta) & 0x7FFFFFFF
            self.last_of_producer.setdefault(header.producer_id, []).append((header.last_offset, last))
        at = bisect.bisect_right(self._epochs, header.base_offset, key=lambda entry: entry[1]) - 1
        is_wrong = at >= 0 and self._epochs[at][0] != header.partition_leader_epoch
        if is_wrong and self._epochs_are_known(header) and not self._epoch_is_reported:
            self._epoch_is_reported = True
            problem = f"it has epoch {self._epochs[at][0]}, but the batch has {header.partition_leader_epoch}"
            facts.add(disk_files.LEADER_EPOCHS, f"offset {header.base_offset}", problem, CHECKPOINT_REMOVED)

    def _epochs_are_known(self, header: BatchHeader) -> bool:
        """Whether the checkpoint must have the epoch of a batch: flushes and clean stops write it."""
        is_newest = header.partition_leader_epoch > self._epochs[-1][0]
        return not is_newest or self._known.was_clean or self._end <= self._known.recovery_points.get(self._tp, 0)

    def _damage(self, name: str, found: Damage, following: int | None) -> None:
        """Reports damage. An incomplete end is normal above the recovery point, unless the stop was clean."""
        below = self._end < self._known.recovery_points.get(self._tp, 0)
        if following is None and found.is_cut_off and not below and not self._known.was_clean:
            return
        advice = FOLLOWER_COPIES if following is not None or below else TAIL
        self._facts.add(name, f"position {found.position}", found.reason, advice)

    def may_be_torn(self, base: int) -> bool:
        """Whether an unclean stop may have lost the end of this segment but not of its indexes. The next start rebuilds those."""
        return base == max(self.positions) and not self._known.was_clean

    def holds(self, offset: int) -> bool:
        """Whether a batch has that offset; False if compaction removed it. Call it after all segments."""
        bases = list(self._facts.digests)
        at = bisect.bisect_right(bases, offset) - 1
        return at >= 0 and offset <= self._facts.digests[bases[at]][0]

    def finish(self, first_base: int) -> None:
        facts, tp = self._facts, self._tp
        facts.end_offset = max(self._end, 0)
        facts.start_offset = max(first_base, self._known.log_starts.get(tp, 0))
        facts.high_watermark = self._known.high_watermarks.get(tp)
        for name, offsets in (
            (disk_files.RECOVERY_POINTS, self._known.recovery_points),
            (disk_files.HIGH_WATERMARKS, self._known.high_watermarks),
            (disk_files.LOG_STARTS, self._known.log_starts),
        ):
            if offsets.get(tp, 0) > facts.end_offset:
                problem = f"it has {offsets[tp]}, but the log ends at {facts.end_offset}"
                advice = "records are lost here: the next start copies them from the leader; check the disk"
                facts.findings.append(Finding(str(facts.directory.parent / name), str(tp), problem, advice))
        # After an unclean stop the end of the log may be lost: the next start then truncates the epochs too.
        is_complete = self._known.was_clean or self._known.is_running
        if self._epochs and self._epochs[-1][1] > facts.end_offset and is_complete:
            problem = (
                f"epoch {self._epochs[-1][0]} starts at {self._epochs[-1][1]}, but the log ends at {facts.end_offset}"
            )
            facts.add(disk_files.LEADER_EPOCHS, "", problem, CHECKPOINT_REMOVED)


def _check_companions(facts: LogFacts, base: int, suffixes: set[str], scan: _Scan) -> None:
    """Checks the indexes and the snapshot of a base offset."""
    checks: dict[str, Callable[[], Iterator[tuple[str, str]]]] = {
        "index": lambda: _wrong_positions(facts.directory, base, scan),
        "timeindex": lambda: _wrong_times(facts.directory, base, scan),
        "txnindex": lambda: _wrong_aborted(facts.directory, base, scan.positions[base]),
        "snapshot": lambda: _wrong_producers(facts.directory, base, scan),
    }
    for suffix, wrong in checks.items():
        name = f"{base:020d}.{suffix}"
        if suffix not in suffixes:
            continue
        if suffix != "snapshot" and base not in scan.positions:
            facts.add(name, "", "there is no log file with that base offset", INDEX_REMOVED)
            continue
        # A start cannot notice that a list of aborted transactions is missing.
        advice = FOLLOWER_COPIES if suffix == "txnindex" else INDEX_REMOVED
        try:
            for where, problem in itertools.islice(wrong(), 1):
                facts.add(name, where, problem, advice)
        except BadFile as error:
            facts.add(name, "", str(error), advice)


def _wrong_positions(directory: Path, base: int, scan: _Scan) -> Iterator[tuple[str, str]]:
    placed = scan.positions[base]
    end = max((at + header.size_in_bytes for at, header in placed.items()), default=0)
    before = (base - 1, -1)
    for entry in disk_files.offset_index(directory / f"{base:020d}.index", base) or ():
        offset, position = entry
        if offset <= before[0] or position < before[1]:
            yield f"offset {offset}", f"position {position} after {before[0]}@{before[1]}: not in order"
        elif position < end and position not in placed:
            yield f"offset {offset}", f"no batch starts at position {position}"
        elif position in placed and placed[position].base_offset > offset:
            yield f"offset {offset}", f"the batch at position {position} starts at {placed[position].base_offset}"
        elif position >= end and placed and not scan.may_be_torn(base):
            yield f"offset {offset}", f"it has position {position}, but the batches end at {end}"
        before = entry


def _wrong_times(directory: Path, base: int, scan: _Scan) -> Iterator[tuple[str, str]]:
    headers = list(scan.positions[base].values())
    newest = list(itertools.accumulate((header.max_timestamp for header in headers), max))
    ends = [header.last_offset for header in headers]
    before = (-1, base - 1)
    for entry in disk_files.time_index(directory / f"{base:020d}.timeindex", base) or ():
        timestamp, offset = entry
        at = bisect.bisect_left(ends, offset)
        if timestamp < before[0] or offset < before[1]:
            yield f"offset {offset}", f"{timestamp} ms after {before[0]} ms at offset {before[1]}: not in order"
        elif at == len(ends) and scan.may_be_torn(base):
            pass
        elif at == len(ends):
            yield f"offset {offset}", f"the batches end at {ends[-1] if ends else base}"
        elif at and newest[at - 1] > timestamp:
            yield f"offset {offset}", f"{timestamp} ms, but a batch before it has {newest[at - 1]} ms"
        before = entry


def _wrong_aborted(directory: Path, base: int, placed: Mapping[int, BatchHeader]) -> Iterator[tuple[str, str]]:
    """Each entry must name an abort marker of the segment, and the start of its transaction."""
    markers = {header.base_offset: header.producer_id for header in placed.values() if header.is_control}
    for row in disk_files.transaction_index(directory / f"{base:020d}.txnindex") or ():
        where = f"offset {row.last_offset}"
        if markers.get(row.last_offset) != row.producer_id:
            yield where, f"there is no marker of producer {row.producer_id}"
        elif row.first_offset > row.last_offset:
            yield where, f"its transaction starts at {row.first_offset}, after it"


def _wrong_producers(directory: Path, base: int, scan: _Scan) -> Iterator[tuple[str, str]]:
    """Each producer's newest entry must name its last batch below the snapshot's offset, unless compaction removed that."""
    newest = {}
    for row in disk_files.producer_snapshot(directory / f"{base:020d}.snapshot") or ():
        if row.last_offset >= base:
            yield f"producer {row.producer_id}", f"its last offset {row.last_offset} is not below {base}"
        newest[row.producer_id] = row
    for producer_id, row in newest.items():
        batches = [batch for batch in scan.last_of_producer.get(producer_id, ()) if batch[0] < base]
        if not batches or row.last_offset < 0 or batches[-1] == (row.last_offset, row.last_sequence):
            continue
        if batches[-1][0] >= row.last_offset or scan.holds(row.last_offset):
            said = f"sequence {row.last_sequence} at offset {row.last_offset}"
            yield f"producer {producer_id}", f"it has {said}, but the log has {batches[-1][1]} at {batches[-1][0]}"
