"""Requests about consumer groups, in addition to `KafkaAdmin`'s: they return plain values."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeVar

from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.consumer_protocol import assigned
from protocol.kafka.framing import MalformedRequest
from protocol.topic_names import OFFSETS_TOPIC
from protocol.types import TopicPartition
from tools.admin.cluster_view import NodeView
from tools.admin.kafka_admin import (
    NO_ANSWER,
    NOT_NAMED,
    REQUEST_TIMEOUT_S,
    RETRY_PAUSE_S,
    UNNAMED,
    KafkaAdmin,
    Outcome,
    by_topic,
    outcome,
    reason,
    refusal,
    rows_of,
)
from tools.failures import AdminError, NotServed
from tools.groups.group_views import DEAD, CommittedView, GroupView, ListedGroup, MemberView
from tools.wire.cluster_requests import ANY_BROKER, Question, check

UNKNOWN = "Unknown"
CONSUMER = "consumer"
EARLIEST, LATEST = -2, -1
STATES_SINCE, TYPES_SINCE = 4, 5
"""The versions of ListGroups since which it filters by state and by type."""
ATTEMPT_TIMEOUT_S = 6.0
"""Time limit of one attempt: the next one looks coordinators and leaders up again."""
MOVING = frozenset(
    {
        *NO_ANSWER,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
    }
)
"""Errors that a retry may resolve: a coordinator or leader has moved, or is loading."""

COORDINATOR_ADVICE: Mapping[int, str] = {
    **dict.fromkeys(NO_ANSWER, "is its coordinator up? See `ottla cluster health`"),
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: "its coordinator is still loading its groups: try again",
    ErrorCode.NOT_COORDINATOR: "its coordinator is moving: try again; see `ottla cluster health`",
    ErrorCode.COORDINATOR_NOT_AVAILABLE: "are there enough brokers for __consumer_offsets? See `ottla cluster health`",
    ErrorCode.GROUP_ID_NOT_FOUND: "`ottla group list` shows the groups",
    ErrorCode.INVALID_GROUP_ID: "the name must not be empty",
    ErrorCode.NON_EMPTY_GROUP: "stop its consumers first: see `ottla group describe --members`",
    ErrorCode.UNKNOWN_MEMBER_ID: "a consumer has joined in the meantime: stop it first",
    ErrorCode.REBALANCE_IN_PROGRESS: "consumers have joined in the meantime: stop them first",
}
RESET_ADVICE = {
    **COORDINATOR_ADVICE,
    ErrorCode.REQUEST_TIMED_OUT: "they may still be reset: see `ottla group describe`",
    ErrorCode.NETWORK_EXCEPTION: "they may still be reset: see `ottla group describe`",
}

Key = TypeVar("Key")


class KafkaGroups(KafkaAdmin):
    """Requests about one cluster's groups, each with a time limit. Requests are retried while coordinators or leaders move."""

    def list_groups(
        self, states: Collection[str] = (), types: Collection[str] = (), *, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> tuple[list[ListedGroup], list[str]]:
        """The consumer groups of those states and types (empty: of all), in order, and the reasons why groups may be missing.

        Raises AdminError.
        """
        body = {"states_filter": list(states), "types_filter": list(types)}
        since = TYPES_SINCE if types else STATES_SINCE if states else 0
        deadline = time.monotonic() + timeout_s
        while True:
            cluster = self.cluster()
            questions = {
                node.id: Question(node.id, ApiKey.LIST_GROUPS, body, version_min=since) for node in cluster.nodes
            }
            answers = self._ask_all("the groups cannot be listed", questions, attempt_s=ATTEMPT_TIMEOUT_S)
            # Between a coordinator's death and the election of the next one, no broker lists its groups.
            before = {view.partition: view.leader for view in cluster.topics.get(OFFSETS_TOPIC, ())}
            after = {view.partition: view.leader for view in self.cluster().topics.get(OFFSETS_TOPIC, ())}
            unsettled = [number for number, leader in after.items() if leader is None or before.get(number) != leader]
            problems = [answer for answer in answers.values() if isinstance(answer, KafkaError)]
            is_over = time.monotonic() + RETRY_PAUSE_S >= deadline
            if is_over or not (unsettled or any(problem.code in MOVING for problem in problems)):
                break
            time.sleep(RETRY_PAUSE_S)
        groups = [
            _listed(row)
            for answer in answers.values()
            if not isinstance(answer, KafkaError)
            for row in answer.groups
            if row.protocol_type in ("", CONSUMER)
        ]
        words = [reason(problem) for problem in problems]
        words += [f"{OFFSETS_TOPIC}-{number} has no leader, or its leader keeps changing" for number in unsettled]
        return sorted(groups, key=lambda group: group.group), words

    def describe_groups(self, groups: Iterable[str]) -> list[GroupView]:
        """The groups, in the given order; one that does not exist is Dead. Raises AdminError."""
        names = list(dict.fromkeys(groups))
        rows = dict(
            _single(self._of_groups(ApiKey.DESCRIBE_GROUPS, {name: {"groups": [name]} for name in names}), "groups")
        )
        # DescribeGroups does not know the groups of KIP-848: to it, they are dead.
        dead = {name: {"group_ids": [name]} for name, row in rows.items() if getattr(row, "group_state", "") == DEAD}
        with contextlib.suppress(NotServed):
            others = _single(self._of_groups(ApiKey.CONSUMER_GROUP_DESCRIBE, dead), "groups")
            rows |= {name: row for name, row in others if _problem(row) is None}
        nodes = self._of_groups(ApiKey.FIND_COORDINATOR, {name: {"key": name, "key_type": 0} for name in names})
        views = []
        for name, row in rows.items():
            if problem := _problem(row) or _problem(nodes[name]):
                raise refusal(f"group {name!r} cannot be described", problem, COORDINATOR_ADVICE)
            node = NodeView(nodes[name].node_id, nodes[name].host, nodes[name].port)
            views.append(_group_view(name, row, node))
        return views

    def committed_offsets(self, groups: Iterable[str]) -> dict[str, dict[TopicPartition, CommittedView]]:
        """Group -> partition -> committed offset; empty for a group that does not exist. Raises AdminError."""
        bodies = {name: {"group_id": name, "topics": None, "require_stable": False} for name in groups}
        found: dict[str, dict[TopicPartition, CommittedView]] = {}
        for name, answer in self._of_groups(ApiKey.OFFSET_FETCH, bodies).items():
            if isinstance(answer, KafkaError):
                raise refusal(f"the offsets of group {name!r} cannot be fetched", answer, COORDINATOR_ADVICE)
            found[name] = {tp: _committed(row) for tp, row in rows_of(answer.topics) if row.committed_offset >= 0}
        return found

    def earliest_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The log start offset of each partition with a leader. Raises AdminError."""
        return self.offsets_at(partitions, EARLIEST)

    def latest_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The high watermark of each partition with a leader. Raises AdminError."""
        return self.offsets_at(partitions, LATEST)

    def offsets_at(self, partitions: Collection[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
        """The offset of the first record at or after the time, for each partition with a leader; -1: no record is that recent.

        Raises AdminError.
        """
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        offsets: dict[TopicPartition, int] = {}
        refused: dict[TopicPartition, KafkaError] = {}
        waiting = set(partitions)
        while True:
            failed = self._add_offsets(sorted(waiting), time_ms, offsets)
            waiting = {tp for tp, problem in failed.items() if problem.code in MOVING}
            refused |= {tp: problem for tp, problem in failed.items() if tp not in waiting}
            if not waiting or time.monotonic() + RETRY_PAUSE_S >= deadline:
                break
            time.sleep(RETRY_PAUSE_S)
        for tp, problem in (refused | failed).items():
            if problem.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise refusal(f"the offsets of {tp} cannot be listed", problem)
        return offsets

    def _add_offsets(
        self, partitions: Collection[TopicPartition], time_ms: int, offsets: dict[TopicPartition, int]
    ) -> dict[TopicPartition, KafkaError]:
        """Asks the leaders once. Returns the partitions for which one refuses."""
        if not partitions:
            return {}
        known = self.cluster().partitions()
        led: dict[int, list[TopicPartition]] = {}
        for tp in partitions:
            if tp in known and (leader := known[tp].leader) is not None:
                led.setdefault(leader, []).append(tp)
        questions = {}
        for leader, of_leader in led.items():
            topics = by_topic(of_leader, lambda tp: {"partition_index": tp.partition, "timestamp": time_ms})
            body = {"replica_id": -1, "isolation_level": 0, "topics": topics}
            questions[leader] = Question(leader, ApiKey.LIST_OFFSETS, body)
        failed: dict[TopicPartition, KafkaError] = {}
        answers = self._ask_all("the offsets cannot be listed", questions, attempt_s=ATTEMPT_TIMEOUT_S)
        for leader, answer in answers.items():
            if isinstance(answer, KafkaError):
                failed |= dict.fromkeys(led[leader], answer)
                continue
            for tp, row in rows_of(answer.topics):
                if problem := _problem(row):
                    failed[tp] = problem
                else:
                    offsets[tp] = row.offset
        return failed

    def alter_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits the offsets for the group, which must not have members. Raises AdminError."""
        if not offsets:
            return
        what = f"the offsets of group {group!r} were not reset"
        topics = by_topic(
            offsets,
            lambda tp: {"partition_index": tp.partition, "committed_offset": offsets[tp], "committed_metadata": ""},
        )
        body = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "topics": topics}
        answer = self._of_groups(ApiKey.OFFSET_COMMIT, {group: body})[group]
        if isinstance(answer, KafkaError):
            raise refusal(what, answer, RESET_ADVICE)
        named = {tp: _problem(row) for tp, row in rows_of(answer.topics)}
        failed = {tp: problem for tp in offsets if (problem := named.get(tp, UNNAMED))}
        if len(failed) == len(offsets):
            raise refusal(what, next(iter(failed.values())), RESET_ADVICE)
        if failed:
            reasons = "; ".join(f"{tp}: {reason(problem)}" for tp, problem in failed.items())
            raise AdminError(f"some offsets of group {group!r} were not reset: {reasons}")

    def delete_groups(self, groups: Collection[str]) -> dict[str, str | None]:
        """Group -> the reason why it was not deleted, or None."""
        earlier: dict[str, list[Any]] = {}
        answers = self._of_groups(ApiKey.DELETE_GROUPS, {name: {"groups_names": [name]} for name in groups}, earlier)
        outcomes: dict[str, str | None] = {}
        for group, row in _single(answers, "results"):
            problem = _problem(row)
            is_gone = problem is not None and problem.code is ErrorCode.GROUP_ID_NOT_FOUND
            if problem is None or (is_gone and group in earlier):
                outcomes[group] = None  # also if an earlier request deleted it, whose answer was lost or an error
            else:
                outcomes[group] = str(refusal(f"group {group!r} could not be deleted", problem, COORDINATOR_ADVICE))
        return outcomes

    def delete_group_offsets(self, group: str, partitions: Collection[TopicPartition]) -> dict[TopicPartition, Outcome]:
        """Partition -> None if the group has no offset there now. Raises NotServed, AdminError."""
        topics = by_topic(partitions, lambda tp: {"partition_index": tp.partition})
        answer = self._of_groups(ApiKey.OFFSET_DELETE, {group: {"group_id": group, "topics": topics}})[group]
        if isinstance(answer, KafkaError):
            raise refusal(f"the offsets of group {group!r} were not deleted", answer, COORDINATOR_ADVICE)
        return dict.fromkeys(partitions, NOT_NAMED) | {tp: outcome(row) for tp, row in rows_of(answer.topics)}

    def _of_groups(
        self, api_key: ApiKey, bodies: Mapping[str, Mapping[str, Any]], earlier: dict[str, list[Any]] | None = None
    ) -> dict[str, Any]:
        """Group -> its coordinator's answer to its body, or a KafkaError."""
        any_broker = api_key is ApiKey.FIND_COORDINATOR
        questions = {name: Question(ANY_BROKER if any_broker else name, api_key, body) for name, body in bodies.items()}
        what = "the coordinators cannot be asked"
        return self._ask_all(what, questions, MOVING, attempt_s=ATTEMPT_TIMEOUT_S, earlier=earlier)


def _single(answers: Mapping[str, Any], field: str) -> Iterable[tuple[str, Any]]:
    """The only row of each answer, or the KafkaError."""
    for name, answer in answers.items():
        rows = [answer] if isinstance(answer, KafkaError) else getattr(answer, field)
        yield name, rows[0] if rows else UNNAMED


def _problem(row: Any) -> KafkaError | None:
    """The error of an answer, or of a part of it; `row` may be a KafkaError itself."""
    if isinstance(row, KafkaError):
        return row
    try:
        check(row)
    except KafkaError as problem:
        return problem
    return None


def _listed(row: Any) -> ListedGroup:
    return ListedGroup(
        group=row.group_id,
        type=getattr(row, "group_type", "").capitalize() or UNKNOWN,
        state=getattr(row, "group_state", "") or UNKNOWN,
        is_simple=not row.protocol_type,
    )


def _committed(row: Any) -> CommittedView:
    epoch = getattr(row, "committed_leader_epoch", -1)
    return CommittedView(row.committed_offset, None if epoch < 0 else epoch, row.metadata or "")


def _group_view(name: str, row: Any, coordinator: NodeView) -> GroupView:
    """`row`: of DescribeGroups, or of ConsumerGroupDescribe."""
    is_classic = hasattr(row, "protocol_data")
    members = sorted(
        map(_classic_member if is_classic else _member, row.members), key=lambda member: member.consumer_id
    )
    if is_classic:
        return GroupView(name, row.group_state, row.protocol_data, coordinator, tuple(members))
    epochs = {"epoch": row.group_epoch, "target_epoch": row.assignment_epoch}
    return GroupView(name, row.group_state, row.assignor_name, coordinator, tuple(members), **epochs)


def _classic_member(row: Any) -> MemberView:
    assignment = tuple(sorted(_assignment(row.member_assignment)))
    return MemberView(
        row.member_id, getattr(row, "group_instance_id", None), row.client_id, row.client_host, assignment
    )


def _member(row: Any) -> MemberView:
    """Of a group of the new kind."""
    has, target = (_partitions(assignment) for assignment in (row.assignment, row.target_assignment))
    return MemberView(row.member_id, row.instance_id, row.client_id, row.client_host, has, row.member_epoch, target)


def _partitions(assignment: Any) -> tuple[TopicPartition, ...]:
    """In order."""
    topics = assignment.topic_partitions
    return tuple(sorted(TopicPartition(topic.topic_name, number) for topic in topics for number in topic.partitions))


def _assignment(data: bytes) -> list[TopicPartition]:
    """The partitions of a ConsumerProtocolAssignment; none if it is something else."""
    try:
        return assigned(data)
    except MalformedRequest:
        return []
