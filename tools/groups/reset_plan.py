"""Computes a group's new offsets from the committed offsets and the logs. Pure."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

from protocol.numbers import is_plain_number
from protocol.types import TopicPartition
from tools.failures import AdminError
from tools.groups.group_views import table

OFFSET_MAX = 2**63 - 1


class Target(Enum):
    """Kafka's targets; the value is the option."""

    EARLIEST = "--to-earliest"
    LATEST = "--to-latest"
    CURRENT = "--to-current"
    OFFSET = "--to-offset"
    SHIFT = "--shift-by"
    DATETIME = "--to-datetime"
    DURATION = "--by-duration"
    FILE = "--from-file"


@dataclass(frozen=True, slots=True)
class LogOffsets:
    """Offsets from the partitions' leaders; a partition without a leader is in none of the fields.

    `at_time` has only the partitions with a record at or after the requested time.
    """

    earliest: Mapping[TopicPartition, int] = field(default_factory=dict)
    latest: Mapping[TopicPartition, int] = field(default_factory=dict)
    at_time: Mapping[TopicPartition, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ResetRow:
    """One partition's new offset."""

    group: str
    topic: str
    partition: int
    new_offset: int
    current_offset: int | None


@dataclass(frozen=True, slots=True)
class ResetPlan:
    """The new offsets of one group, in order, with warnings for the user."""

    group: str
    rows: tuple[ResetRow, ...]
    warnings: tuple[str, ...] = ()


def plan_reset(
    group: str,
    partitions: Iterable[TopicPartition],
    target: Target,
    wanted: int | Mapping[TopicPartition, int] | None,
    committed: Mapping[TopicPartition, int],
    logs: LogOffsets,
) -> ResetPlan:
    """`wanted` is the offset, the shift, or for FILE the offset of each partition. Raises AdminError."""
    rows, warnings = [], []
    for partition in sorted(set(partitions)):
        latest = logs.latest.get(partition)
        if latest is None:
            raise AdminError(
                f"group {group!r} was not reset: partition {partition} has no leader; "
                f"see `ottla topic describe {partition.topic}`"
            )
        current = committed.get(partition)
        match target, wanted:
            case Target.EARLIEST, _:
                new = logs.earliest[partition]
            case Target.LATEST, _:
                new = latest
            case Target.CURRENT, _:
                new = latest if current is None else current
            case ((Target.DATETIME | Target.DURATION), _):
                # As in Kafka: the log end, if no record is that recent.
                new = logs.at_time.get(partition, latest)
            case Target.SHIFT, int(shift):
                if current is None:
                    raise AdminError(
                        f"group {group!r} was not reset: it has no committed offset to shift for partition {partition}; "
                        "leave the partition out, or use --to-offset"
                    )
                new, warning = clamp(partition, current + shift, logs.earliest[partition], latest)
                warnings += warning
            case Target.OFFSET, int(offset):
                new, warning = clamp(partition, offset, logs.earliest[partition], latest)
                warnings += warning
            case Target.FILE, Mapping() as offsets:
                new, warning = clamp(partition, offsets[partition], logs.earliest[partition], latest)
                warnings += warning
            case _:
                raise AssertionError(f"{target} of {wanted!r}")
        rows.append(ResetRow(group, partition.topic, partition.partition, new, current))
    return ResetPlan(group, tuple(rows), tuple(warnings))


def clamp(partition: TopicPartition, offset: int, earliest: int, latest: int) -> tuple[int, list[str]]:
    """The nearest offset in the log, with Kafka's warning if it differs."""
    if offset > latest:
        return latest, [_clamp_warning(partition, offset, "higher than latest", latest)]
    if offset < earliest:
        return earliest, [_clamp_warning(partition, offset, "lower than earliest", earliest)]
    return offset, []


def _clamp_warning(partition: TopicPartition, offset: int, relation: str, value: int) -> str:
    return f"New offset ({offset}) is {relation} offset for topic partition {partition}. Value will be set to {value}"


@dataclass(frozen=True, slots=True)
class TopicSelection:
    """`t` or `t:0,1`; `partitions` is None for all partitions of the topic."""

    topic: str
    partitions: tuple[int, ...] | None = None


def parse_selection(text: str) -> TopicSelection:
    """Parses `t` or `t:0,1`. Raises AdminError, which says how to write a selection."""
    topic, colon, numbers = text.partition(":")
    try:
        partitions = tuple(dict.fromkeys(_number(number) for number in numbers.split(","))) if colon else None
    except ValueError:
        partitions = ()
    if not topic or partitions == ():
        raise AdminError(f"--topic {text!r}: expected TOPIC, or TOPIC:0,1 for some of its partitions")
    return TopicSelection(topic, partitions)


def select_partitions(selections: Iterable[TopicSelection], counts: Mapping[str, int]) -> list[TopicPartition]:
    """The selected partitions, each once; `counts` is topic -> number of partitions. Raises AdminError."""
    found: dict[TopicPartition, None] = {}
    for selection in selections:
        count = counts.get(selection.topic)
        if count is None:
            raise AdminError(f"topic {selection.topic!r} does not exist; `ottla topic list` shows the topics")
        for partition in range(count) if selection.partitions is None else selection.partitions:
            if partition >= count:
                raise AdminError(f"topic {selection.topic!r} has no partition {partition}, only 0 to {count - 1}")
            found[TopicPartition(selection.topic, partition)] = None
    return list(found)


def parse_reset_file(text: str, source: str, groups: Sequence[str]) -> dict[str, dict[TopicPartition, int]]:
    """Parses Kafka's csv, as `--export` writes it: `topic,partition,offset`; with several groups, the group comes first.

    Group -> partition -> offset; groups that are not in `groups` are skipped. Raises AdminError with the line's number.
    """
    offsets: dict[str, dict[TopicPartition, int]] = {group: {} for group in groups}
    reader = csv.reader(io.StringIO(text))
    try:
        for fields in reader:
            where = f"{source}, line {reader.line_num}"
            if not any(field.strip() for field in fields):
                continue
            if len(fields) == 3 and len(groups) != 1:
                raise AdminError(f"{where}: expected GROUP,TOPIC,PARTITION,OFFSET, because there are several groups")
            if len(fields) not in (3, 4):
                raise AdminError(f"{where}: expected TOPIC,PARTITION,OFFSET or GROUP,TOPIC,PARTITION,OFFSET")
            group, topic, partition, offset = [groups[0], *fields] if len(fields) == 3 else fields
            try:
                key, value = TopicPartition(topic.strip(), _number(partition)), _number(offset)
            except ValueError:
                raise AdminError(f"{where}: partition and offset must be numbers of at least 0") from None
            if group.strip() not in offsets:
                continue
            if key in offsets[group.strip()]:
                raise AdminError(f"{where}: partition {key} is listed twice")
            offsets[group.strip()][key] = value
    except csv.Error as problem:
        raise AdminError(f"{source}, line {reader.line_num}: not csv: {problem}") from None
    if not any(offsets.values()):
        raise AdminError(f"{source} has no offsets of {', '.join(map(repr, groups))}")
    return offsets


def _number(text: str) -> int:
    """Raises ValueError for anything but digits, and for a number too large for an offset."""
    text = text.strip()
    if not is_plain_number(text) or len(text) > 19 or int(text) > OFFSET_MAX:
        raise ValueError(text)
    return int(text)


def reset_lines(rows: Sequence[ResetRow]) -> Iterator[str]:
    """Kafka's table, with the current offset as the last column."""
    header = ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET", "CURRENT-OFFSET"]
    lines = [[row.group, row.topic, row.partition, row.new_offset, row.current_offset] for row in rows]
    yield from table(header, lines, [30, 30, 10, 15, 0])


def export_text(rows: Sequence[ResetRow], *, with_group: bool) -> str:
    """The text for `--from-file`, with a newline after each line."""
    output = io.StringIO()
    writer = csv.writer(output, lineterminator="\n")
    for row in rows:
        writer.writerow([*([row.group] if with_group else []), row.topic, row.partition, row.new_offset])
    return output.getvalue()


def reset_json(row: ResetRow) -> dict[str, Any]:
    """`{group, topic, partition, new_offset, current_offset}`."""
    return asdict(row)
