"""Requests of confluent-kafka's AdminClient about consumer groups, in addition to `KafkaAdmin`'s: returns plain values."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future
from contextlib import closing
from typing import Any, TypeVar

from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    ConsumerGroupType,
    KafkaError,
    KafkaException,
)
from confluent_kafka import TopicPartition as ClientTopicPartition
from confluent_kafka.admin import OffsetSpec

from protocol.topic_names import OFFSETS_TOPIC
from protocol.types import TopicPartition
from tools.admin.cluster_view import NodeView
from tools.admin.kafka_admin import (
    NOT_SERVED,
    REQUEST_TIMEOUT_S,
    RETRY_PAUSE_S,
    KafkaAdmin,
    error_code,
    error_text,
    refusal,
)
from tools.admin.kafka_python_admin import KafkaPythonAdmin
from tools.failures import AdminError
from tools.groups.group_views import CommittedView, GroupView, ListedGroup, MemberView

STATE_NAMES: Mapping[Any, str] = {
    ConsumerGroupState.PREPARING_REBALANCING: "PreparingRebalance",
    ConsumerGroupState.COMPLETING_REBALANCING: "CompletingRebalance",
    ConsumerGroupState.STABLE: "Stable",
    ConsumerGroupState.DEAD: "Dead",
    ConsumerGroupState.EMPTY: "Empty",
}
TYPE_NAMES: Mapping[Any, str] = {ConsumerGroupType.CLASSIC: "Classic", ConsumerGroupType.CONSUMER: "Consumer"}
UNKNOWN = "Unknown"

ATTEMPT_TIMEOUT_S = 6.0
"""Time limit of one attempt: a client may keep waiting for a dead broker; the next attempt uses a new client."""
RETRIED = frozenset(
    {
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._WAIT_COORD,
    }
)
"""Errors that a retry may resolve: a coordinator or leader has moved, or is loading."""

COORDINATOR_ADVICE = {
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS: "its coordinator is still loading its groups: try again",
    KafkaError.NOT_COORDINATOR: "its coordinator is moving: try again; see `ottla cluster health`",
    KafkaError._TIMED_OUT: "is its coordinator up? See `ottla cluster health`",
    KafkaError._TIMED_OUT_QUEUE: "is its coordinator up? See `ottla cluster health`",
    KafkaError.COORDINATOR_NOT_AVAILABLE: "are there enough brokers for __consumer_offsets? See `ottla cluster health`",
    KafkaError.GROUP_ID_NOT_FOUND: "`ottla group list` shows the groups",
    KafkaError.INVALID_GROUP_ID: "the name must not be empty",
    KafkaError.NON_EMPTY_GROUP: "stop its consumers first: see `ottla group describe --members`",
    KafkaError.UNKNOWN_MEMBER_ID: "a consumer has joined in the meantime: stop it first",
    KafkaError.REBALANCE_IN_PROGRESS: "consumers have joined in the meantime: stop them first",
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
        filters: dict[str, Any] = {}
        if states:
            filters["states"] = {state for state, name in STATE_NAMES.items() if name in states}
        if types:
            filters["types"] = {kind for kind, name in TYPE_NAMES.items() if name in types}
        answer, unsettled = self._listed(filters, timeout_s)
        if isinstance(answer, KafkaException):
            raise refusal("the groups cannot be listed", answer, COORDINATOR_ADVICE)
        groups = [
            ListedGroup(
                group=listing.group_id,
                type=TYPE_NAMES.get(listing.type, UNKNOWN),
                state=STATE_NAMES.get(listing.state, UNKNOWN),
                is_simple=listing.is_simple_consumer_group,
            )
            for listing in answer.valid
        ]
        problems = _broker_problems(answer)
        if not groups and any(error_code(problem) in NOT_SERVED for problem in problems):
            raise refusal("the groups cannot be listed", problems[0], {})
        words = [error_text(problem) for problem in problems]
        words += [f"{partition} has no leader, or its leader keeps changing" for partition in unsettled]
        return sorted(groups, key=lambda group: group.group), words

    def _listed(self, filters: Mapping[str, Any], timeout_s: float) -> tuple[Any, list[TopicPartition]]:
        """The client's answer, and the partitions of `__consumer_offsets` whose groups may be missing from it."""
        deadline = time.monotonic() + timeout_s
        while True:
            before = self._coordinators()
            answer = self._answers(
                [None],
                lambda _, attempt_s: {None: self._client.list_consumer_groups(request_timeout=attempt_s, **filters)},
                deadline - time.monotonic(),
            )[None]
            # Between a coordinator's death and the election of the next one, no broker lists its groups.
            after = self._coordinators()
            unsettled = [
                partition for partition, leader in after.items() if leader is None or before.get(partition) != leader
            ]
            if not unsettled or time.monotonic() + RETRY_PAUSE_S >= deadline:
                return answer, unsettled
            time.sleep(RETRY_PAUSE_S)

    def _coordinators(self) -> dict[TopicPartition, int | None]:
        """The coordinators of all groups, by partition of `__consumer_offsets`."""
        partitions = self.cluster().topics.get(OFFSETS_TOPIC, ())
        return {TopicPartition(OFFSETS_TOPIC, view.partition): view.leader for view in partitions}

    def describe_groups(self, groups: Iterable[str]) -> list[GroupView]:
        """The groups, in the given order; one that does not exist is Dead. Raises AdminError."""
        names = list(dict.fromkeys(groups))
        if not names:
            return []
        answers = self._answers(
            names,
            lambda waiting, attempt_s: self._client.describe_consumer_groups(waiting, request_timeout=attempt_s),
        )
        views = []
        for name, answer in answers.items():
            if not isinstance(answer, KafkaException):
                views.append(_group_view(answer))
            elif error_code(answer) == KafkaError.GROUP_ID_NOT_FOUND:
                views.append(GroupView(name, "Dead", "", None, ()))
            else:
                raise refusal(f"group {name!r} cannot be described", answer, COORDINATOR_ADVICE)
        return views

    def committed_offsets(self, groups: Iterable[str]) -> dict[str, dict[TopicPartition, CommittedView]]:
        """Group -> partition -> committed offset; empty for a group that does not exist. Raises AdminError."""
        names = list(dict.fromkeys(groups))
        if not names:
            return {}
        # confluent-kafka may crash here: see `kafka_python_admin`.
        with closing(
            KafkaPythonAdmin(self._bootstrap_servers, self._command_config, answer_timeout_s=ATTEMPT_TIMEOUT_S)
        ) as admin:
            return {
                name: {
                    partition: CommittedView(*committed) for partition, committed in admin.group_offsets(name).items()
                }
                for name in names
            }

    def earliest_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The log start offset of each partition with a leader. Raises AdminError."""
        return self._offsets(partitions, OffsetSpec.earliest())

    def latest_offsets(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        """The high watermark of each partition with a leader. Raises AdminError."""
        return self._offsets(partitions, OffsetSpec.latest())

    def offsets_at(self, partitions: Collection[TopicPartition], time_ms: int) -> dict[TopicPartition, int]:
        """The offset of the first record at or after the time, for each partition with such a record. Raises AdminError."""
        return self._offsets(partitions, OffsetSpec.for_timestamp(time_ms))

    def _offsets(self, partitions: Collection[TopicPartition], spec: OffsetSpec) -> dict[TopicPartition, int]:
        def ask(waiting: list[TopicPartition], attempt_s: float) -> dict[TopicPartition, Future[Any]]:
            # A request about a partition without a leader would run until its timeout.
            led = {ClientTopicPartition(*partition): spec for partition in self._with_leader(waiting)}
            futures = self._client.list_offsets(led, request_timeout=attempt_s) if led else {}
            return {TopicPartition(key.topic, key.partition): future for key, future in futures.items()}

        offsets = {}
        for partition, answer in self._answers(sorted(set(partitions)), ask).items():
            if not isinstance(answer, KafkaException):
                if answer.offset >= 0:
                    offsets[partition] = answer.offset
            elif error_code(answer) not in (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION):
                raise refusal(f"the offsets of {partition} cannot be listed", answer, {})
        return offsets

    def _with_leader(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        known = self.cluster().partitions()
        return [
            partition
            for partition in sorted(set(partitions))
            if partition in known and known[partition].leader is not None
        ]

    def alter_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Commits the offsets for the group, which must not have members. Raises AdminError."""
        if not offsets:
            return
        request = ConsumerGroupTopicPartitions(
            group, [ClientTopicPartition(*partition, offset) for partition, offset in offsets.items()]
        )
        answer = self._answers(
            [group],
            lambda _, attempt_s: self._client.alter_consumer_group_offsets([request], request_timeout=attempt_s),
        )[group]
        if isinstance(answer, KafkaException):
            advice = COORDINATOR_ADVICE | {
                KafkaError._TIMED_OUT: "they may still be reset: see `ottla group describe`",
                KafkaError.REQUEST_TIMED_OUT: "they may still be reset: see `ottla group describe`",
            }
            raise refusal(f"the offsets of group {group!r} were not reset", answer, advice)
        failed = [found for found in answer.topic_partitions if found.error is not None]
        if failed:
            reasons = "; ".join(f"{found.topic}-{found.partition}: {found.error.str()}" for found in failed)
            raise AdminError(f"some offsets of group {group!r} were not reset: {reasons}")

    def delete_groups(self, groups: Collection[str]) -> dict[str, str | None]:
        """Group -> the reason why it was not deleted, or None."""
        asked: Counter[str] = Counter()

        def ask(waiting: list[str], attempt_s: float) -> dict[str, Future[Any]]:
            asked.update(waiting)
            return dict(self._client.delete_consumer_groups(waiting, request_timeout=attempt_s))

        outcomes: dict[str, str | None] = {}
        for group, answer in self._answers(list(dict.fromkeys(groups)), ask).items():
            if not isinstance(answer, KafkaException):
                outcomes[group] = None
            elif asked[group] > 1 and error_code(answer) == KafkaError.GROUP_ID_NOT_FOUND:
                outcomes[group] = None  # deleted by the previous request, whose answer was lost
            else:
                outcomes[group] = str(refusal(f"group {group!r} could not be deleted", answer, COORDINATOR_ADVICE))
        return outcomes

    def _answers(
        self,
        keys: Collection[Key],
        ask: Callable[[list[Key], float], Mapping[Key, Future[Any]]],
        timeout_s: float = REQUEST_TIMEOUT_S,
    ) -> dict[Key, Any]:
        """Key -> its answer, or a KafkaException instead; a key for which `ask` returns no future is left out.

        `ask` gets the keys without an answer and the seconds for this attempt. Answers in `RETRIED` are retried until `timeout_s` has
        passed, so requests must be safe to repeat.
        """
        deadline = time.monotonic() + timeout_s
        answers: dict[Key, Any] = {}
        waiting = list(keys)
        while True:
            attempt_s = min(ATTEMPT_TIMEOUT_S, max(deadline - time.monotonic(), RETRY_PAUSE_S))
            futures = ask(waiting, attempt_s)
            for key in waiting:
                answers.pop(key, None)
                if key in futures:
                    answers[key] = self._outcome(futures[key])
            waiting = [key for key in waiting if key in answers and not RETRIED.isdisjoint(_error_codes(answers[key]))]
            if not waiting or time.monotonic() + RETRY_PAUSE_S >= deadline:
                return {key: answers[key] for key in keys if key in answers}
            time.sleep(RETRY_PAUSE_S)
            self._connect_anew()

    def _outcome(self, future: Future[Any]) -> Any:
        try:
            return self._result(future)
        except KafkaException as problem:
            return problem


def _broker_problems(answer: Any) -> list[KafkaException]:
    """The errors in a list of groups, which the client returns as errors or as exceptions."""
    return [
        problem if isinstance(problem, KafkaException) else KafkaException(problem)
        for problem in getattr(answer, "errors", ())
    ]


def _error_codes(answer: Any) -> list[int]:
    """The codes in a KafkaException, of the brokers in a list of groups, or of the partitions in a commit's answer."""
    if isinstance(answer, KafkaException):
        return [error_code(answer)]
    failed = [error_code(problem) for problem in _broker_problems(answer)]
    partitions = getattr(answer, "topic_partitions", ())
    return failed + [partition.error.code() for partition in partitions if partition.error is not None]


def _group_view(description: Any) -> GroupView:
    coordinator = description.coordinator
    members = [
        MemberView(
            consumer_id=member.member_id,
            instance_id=member.group_instance_id,
            client_id=member.client_id,
            host=member.host,
            assignment=tuple(
                sorted(TopicPartition(found.topic, found.partition) for found in member.assignment.topic_partitions)
            ),
        )
        for member in description.members
    ]
    return GroupView(
        group=description.group_id,
        state=STATE_NAMES.get(description.state, UNKNOWN),
        assignor=description.partition_assignor or "",
        coordinator=NodeView(coordinator.id, coordinator.host, coordinator.port) if coordinator else None,
        members=tuple(sorted(members, key=lambda member: member.consumer_id)),
    )
