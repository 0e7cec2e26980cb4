"""Consumer groups as plain values, and Kafka's tables of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from protocol.plain_text import escaped
from protocol.types import TopicPartition
from tools.admin.cluster_view import NodeView

MISSING = "-"
"""What Kafka prints for an unknown value."""

DEAD = "Dead"
EMPTY = "Empty"
REBALANCING = frozenset({"PreparingRebalance", "CompletingRebalance", "Assigning", "Reconciling"})
STATES = ("PreparingRebalance", "CompletingRebalance", "Stable", "Dead", "Empty", "Assigning", "Reconciling")
"""The last two are of groups of the new kind (KIP-848)."""
TYPES = ("Classic", "Consumer")

NAME_WIDTH = 15
"""The minimum width of a column of names; Kafka widens it to the longest."""


@dataclass(frozen=True, slots=True)
class ListedGroup:
    """A group from ListGroups; `state` and `type` are Kafka's words (see STATES and TYPES)."""

    group: str
    type: str
    state: str
    is_simple: bool
    """The group never had a member: its offsets were only committed from outside."""


@dataclass(frozen=True, slots=True)
class MemberView:
    """A member and its assignment, in order. `epoch`, `target`: in a group of the new kind, where the member is, and what it is to get."""

    consumer_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]
    epoch: int | None = None
    target: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group from DescribeGroups, or ConsumerGroupDescribe; one that does not exist is Dead.

    `epoch`, `target_epoch`: of a group of the new kind.
    """

    group: str
    state: str
    assignor: str
    coordinator: NodeView | None
    members: tuple[MemberView, ...]
    epoch: int | None = None
    target_epoch: int | None = None

    @property
    def type(self) -> str:
        return "Classic" if self.epoch is None else "Consumer"


@dataclass(frozen=True, slots=True)
class CommittedView:
    """A committed offset."""

    offset: int
    leader_epoch: int | None = None
    metadata: str | None = None


@dataclass(frozen=True, slots=True)
class OffsetRow:
    """A line of `group describe`: a partition that is assigned, has a committed offset, or both."""

    group: str
    topic: str
    partition: int
    leader_epoch: int | None
    current_offset: int | None
    log_end_offset: int | None
    consumer_id: str | None
    host: str | None
    client_id: str | None

    @property
    def lag(self) -> int | None:
        if self.current_offset is None or self.log_end_offset is None:
            return None
        return self.log_end_offset - self.current_offset


def offset_rows(
    group: GroupView,
    committed: Mapping[TopicPartition, CommittedView],
    end_offsets: Mapping[TopicPartition, int],
) -> list[OffsetRow]:
    """Kafka's order: members with the most partitions first, then partitions without a member."""
    owners: list[tuple[MemberView | None, Sequence[TopicPartition]]] = [
        (member, member.assignment)
        for member in sorted(group.members, key=lambda member: (-len(member.assignment), member.consumer_id))
    ]
    assigned = {partition for member in group.members for partition in member.assignment}
    owners.append((None, sorted(set(committed) - assigned)))
    rows = []
    for member, partitions in owners:
        for partition in partitions:
            offset = committed.get(partition)
            rows.append(
                OffsetRow(
                    group=group.group,
                    topic=partition.topic,
                    partition=partition.partition,
                    leader_epoch=None if offset is None else offset.leader_epoch,
                    current_offset=None if offset is None else offset.offset,
                    log_end_offset=end_offsets.get(partition),
                    consumer_id=None if member is None else member.consumer_id,
                    host=None if member is None else member.host,
                    client_id=None if member is None else member.client_id,
                )
            )
    return rows


def remark(group: GroupView) -> str | None:
    """What Kafka prints on stderr about a group that is not stable."""
    if group.state == EMPTY:
        return f"Consumer group '{group.group}' has no active members."
    if group.state in REBALANCING:
        return f"Warning: Consumer group '{group.group}' is rebalancing."
    return None


def table(header: Sequence[str], rows: Sequence[Sequence[object]], widths: Sequence[int]) -> Iterator[str]:
    """Left-aligned columns of at least `widths` characters, one space between them; None and empty text are printed as `-`."""
    lines = [header, *([MISSING if value in (None, "") else escaped(str(value)) for value in row] for row in rows)]
    fitted = [max(least, *(len(line[column]) for line in lines)) for column, least in enumerate(widths)]
    for line in lines:
        yield " ".join(f"{value:<{width}}" for value, width in zip(line, fitted, strict=True)).rstrip()


def list_lines(groups: Sequence[ListedGroup], *, with_type: bool, with_state: bool) -> Iterator[str]:
    """The names alone, or Kafka's table with the requested columns."""
    if not with_type and not with_state:
        yield from (group.group for group in groups)
        return
    header = ["GROUP", *(["TYPE"] if with_type else []), *(["STATE"] if with_state else [])]
    rows = [
        [group.group, *([group.type] if with_type else []), *([group.state] if with_state else [])] for group in groups
    ]
    yield from table(header, rows, [25] + [20] * (len(header) - 1))


def offset_lines(rows: Sequence[OffsetRow], *, verbose: bool) -> Iterator[str]:
    """Kafka's table of offsets and lag; `verbose` adds LEADER-EPOCH, as in Kafka 4."""
    header = ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG", "CONSUMER-ID", "HOST"]
    header.append("CLIENT-ID")
    widths = [NAME_WIDTH, NAME_WIDTH, 10, 15, 15, 15, NAME_WIDTH, NAME_WIDTH, 0]
    lines = []
    for row in rows:
        line: list[object] = [row.group, row.topic, row.partition, row.current_offset, row.log_end_offset, row.lag]
        line += [row.consumer_id, row.host, row.client_id]
        if verbose:
            line.insert(3, row.leader_epoch)
        lines.append(line)
    if verbose:
        header.insert(3, "LEADER-EPOCH")
        widths.insert(3, 15)
    yield from table(header, lines, widths)


def member_lines(group: GroupView, *, verbose: bool) -> Iterator[str]:
    """Kafka's table of members; instance ids only if there are any, assignments only with `verbose`.

    Of a group of the new kind, there are two assignments, as in Kafka 4: what a member has, and what it is to get.
    """
    with_instances = any(member.instance_id for member in group.members)
    header = ["GROUP", "CONSUMER-ID", "HOST", "CLIENT-ID", "#PARTITIONS"]
    widths = [NAME_WIDTH] * 5
    lines = []
    for member in group.members:
        line: list[object] = [group.group, member.consumer_id, member.host, member.client_id, len(member.assignment)]
        if with_instances:
            line.insert(2, member.instance_id)
        if verbose and group.epoch is None:
            line.append(assignment_text(member.assignment))
        elif verbose:
            line += [
                member.epoch,
                assignment_text(member.assignment),
                group.target_epoch,
                assignment_text(member.target),
            ]
        lines.append(line)
    if with_instances:
        header.insert(2, "GROUP-INSTANCE-ID")
        widths.insert(2, 17)
    if verbose and group.epoch is None:
        header.append("ASSIGNMENT")
        widths.append(0)
    elif verbose:
        header += ["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT"]
        widths += [NAME_WIDTH, NAME_WIDTH, NAME_WIDTH, 0]
    yield from table(header, lines, widths)


def state_lines(group: GroupView, *, verbose: bool) -> Iterator[str]:
    """Kafka's table of one group's state; `verbose` adds the epochs, as in Kafka 4."""
    header = ["GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "#MEMBERS"]
    widths = [25, 25, 20, 15, 0]
    node = group.coordinator
    coordinator = None if node is None else f"{node.host}:{node.port}  ({node.id})"
    row: list[object] = [group.group, coordinator, group.assignor, group.state, len(group.members)]
    if verbose:
        header[4:4] = ["GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH"]
        row[4:4] = [group.epoch, group.target_epoch]
        widths[4:4] = [15, 25]
    yield from table(header, [row], widths)


def assignment_text(partitions: Sequence[TopicPartition]) -> str:
    """`orders(0,1), clicks(2)`, topics in order."""
    return ", ".join(f"{topic}({','.join(map(str, numbers))})" for topic, numbers in _by_topic(partitions).items())


def listed_json(group: ListedGroup) -> dict[str, Any]:
    """`{group, type, state, is_simple}`."""
    return asdict(group)


def row_json(row: OffsetRow) -> dict[str, Any]:
    """The row's fields without the group, and its lag; null if unknown."""
    fields = {**asdict(row), "lag": row.lag}
    del fields["group"]
    return fields


def group_json(group: GroupView) -> dict[str, Any]:
    """`{group, type, state, assignment_strategy, coordinator (its broker id), members: [{..., assignment: {topic: [partition]}}]}`.

    A group of the new kind also has `epoch` and `target_epoch`, and each of its members `epoch` and `target`.
    """
    epochs = {} if group.epoch is None else {"epoch": group.epoch, "target_epoch": group.target_epoch}
    return {
        "group": group.group,
        "type": group.type,
        "state": group.state,
        **epochs,
        "assignment_strategy": group.assignor or None,
        "coordinator": None if group.coordinator is None else group.coordinator.id,
        "members": [_member_json(member) for member in group.members],
    }


def _member_json(member: MemberView) -> dict[str, Any]:
    of_new_kind = {} if member.epoch is None else {"epoch": member.epoch, "target": _by_topic(member.target)}
    return {
        "consumer_id": member.consumer_id,
        "group_instance_id": member.instance_id,
        "client_id": member.client_id,
        "host": member.host,
        "assignment": _by_topic(member.assignment),
        **of_new_kind,
    }


def _by_topic(partitions: Sequence[TopicPartition]) -> dict[str, list[int]]:
    """Topic -> its partitions, in order."""
    topics: dict[str, list[int]] = {}
    for partition in sorted(partitions):
        topics.setdefault(partition.topic, []).append(partition.partition)
    return topics
