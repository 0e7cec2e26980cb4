"""Requests of the admin commands to one cluster: they return plain values, and raise AdminErrors of one line with the broker's reason."""

from __future__ import annotations

import asyncio
import secrets
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from protocol.acls import (
    Acl,
    AclFilter,
    Operation,
    Pattern,
    PatternFilter,
    PatternType,
    Permission,
    ResourceType,
    Word,
)
from protocol.errors import ErrorCode, KafkaError, error_name
from protocol.kafka.api_keys import ApiKey
from protocol.scram import HASHES, salted_password
from protocol.topic_ids import topic_id_text
from protocol.types import Assignment, TopicPartition
from tools.admin.bootstrap import addresses_of, no_answer
from tools.admin.client_settings import read_command_config
from tools.admin.cluster_view import ClusterView, NodeView
from tools.admin.config_values import (
    BROKERS,
    CLIENT_METRICS,
    GROUPS,
    TOPICS,
    ConfigSynonym,
    ConfigValue,
    Entity,
)
from tools.admin.reassign_plan import Place, Replica
from tools.admin.topic_views import PartitionView, TopicView
from tools.failures import AdminError, NotServed, TopicExists
from tools.wire.client import Client
from tools.wire.client_properties import BadClientProperties, read_security
from tools.wire.cluster_requests import (
    ANY_BROKER,
    CONTROLLER,
    ClusterRequests,
    Question,
    Unsupported,
    check,
    error_codes,
)
from tools.wire.cluster_view import Unreachable
from tools.wire.connection import AccessRefused

CLIENT = "ottla-admin"
CONNECT_TIMEOUT_S = 5.0
REQUEST_TIMEOUT_S = 30.0
RETRY_PAUSE_S = 0.2
RESTART_S = 10.0
"""How long a change of configs is tried again while the broker does not answer; it may be starting."""

RESOURCES: Mapping[str, int] = {TOPICS: 2, BROKERS: 4, CLIENT_METRICS: 16, GROUPS: 32}
"""Kafka's numbers of the kinds of entities that have configs."""
RESOURCE_TYPES_SINCE = 1
"""The first version of ListConfigResources that lists more than subscriptions to clients' metrics (KIP-1142)."""
SET, DELETE = 0, 1
PREFERRED_ELECTION, UNCLEAN_ELECTION = 0, 1
SOURCES = (
    "UNKNOWN",
    "DYNAMIC_TOPIC_CONFIG",
    "DYNAMIC_BROKER_CONFIG",
    "DYNAMIC_DEFAULT_BROKER_CONFIG",
    "STATIC_BROKER_CONFIG",
    "DEFAULT_CONFIG",
    "DYNAMIC_BROKER_LOGGER_CONFIG",
    "DYNAMIC_CLIENT_METRICS_CONFIG",
    "DYNAMIC_GROUP_CONFIG",
)
"""Kafka's names of the numbers in `config_source`."""

SCRAM: Mapping[int, str] = MappingProxyType(dict(enumerate(HASHES, 1)))
"""Kafka's numbers of the mechanisms."""
NOT_CARRIED_OUT = frozenset({ErrorCode.NOT_CONTROLLER, ErrorCode.BROKER_NOT_AVAILABLE})
"""After these, any request may be sent again."""
UNKNOWN_OUTCOME = frozenset({ErrorCode.NETWORK_EXCEPTION, ErrorCode.REQUEST_TIMED_OUT})
NO_ANSWER = NOT_CARRIED_OUT | UNKNOWN_OUTCOME
"""After these, a request that does no harm when it is carried out twice may be sent again."""

TEXTS: Mapping[int, str] = MappingProxyType(
    {
        ErrorCode.NOT_CONTROLLER: "no controller is elected",
        ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "Deleting offsets of a topic is forbidden while the consumer group is actively "
        "subscribed to it",
        ErrorCode.NON_EMPTY_GROUP: "The group is not empty",
        ErrorCode.GROUP_ID_NOT_FOUND: "The group id does not exist",
        ErrorCode.LOG_DIR_NOT_FOUND: "The broker does not have this log directory",
        ErrorCode.REPLICA_NOT_AVAILABLE: "The broker does not have this replica",
        ErrorCode.NO_REASSIGNMENT_IN_PROGRESS: "No partition reassignment is in progress",
    }
)
"""For answers without a text."""
HEALTH = "see `ottla cluster health`"
CREATE_ADVICE: Mapping[int, str] = {
    ErrorCode.INVALID_PARTITIONS: "--partitions must be at least 1",
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: "check --replica-assignment against the brokers' ids",
    ErrorCode.INVALID_CONFIG: "correct --config",
    ErrorCode.INVALID_TOPIC_EXCEPTION: "choose another name",
    ErrorCode.REQUEST_TIMED_OUT: "it may still be created: see `ottla topic describe`",
    ErrorCode.NETWORK_EXCEPTION: "it may still be created: see `ottla topic describe`",
}
DELETE_ADVICE: Mapping[int, str] = {
    ErrorCode.REQUEST_TIMED_OUT: "it may still be deleted: see `ottla topic list`",
    ErrorCode.NETWORK_EXCEPTION: "it may still be deleted: see `ottla topic list`",
    ErrorCode.TOPIC_DELETION_DISABLED: "the brokers' delete.topic.enable is false",
}
PARTITIONS_ADVICE: Mapping[int, str] = {
    ErrorCode.INVALID_PARTITIONS: "--partitions must be above the current count",
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: "check --replica-assignment against the brokers' ids",
    ErrorCode.REASSIGNMENT_IN_PROGRESS: "wait for the reassignment: see `ottla reassign list`",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "`ottla topic list` shows the topics",
    **dict.fromkeys(UNKNOWN_OUTCOME, "they may still be added: see `ottla topic describe`"),
}
CONFIG_ADVICE: Mapping[int, str] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "`ottla topic list` shows the topics",
    **dict.fromkeys(NO_ANSWER, "is the broker up? See `ottla cluster health`"),
}
ALTER_ADVICE: Mapping[int, str] = {
    **CONFIG_ADVICE,
    **dict.fromkeys(UNKNOWN_OUTCOME, "they may still be changed: see `ottla config describe`"),
}
REASSIGN_ADVICE: Mapping[int, str] = dict.fromkeys(
    UNKNOWN_OUTCOME, "they may still be changed: see `ottla reassign list`"
)
ELECT_ADVICE: Mapping[int, str] = dict.fromkeys(
    UNKNOWN_OUTCOME, "leaders may still be elected: see `ottla topic describe`"
)

Key = TypeVar("Key")
Row = TypeVar("Row")
Outcome = tuple[str, str] | None
"""None, or the name of the error code and the reason."""
UNNAMED = KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, "the broker's answer does not name it")
"""In the place of a row that an answer lacks."""
NOT_NAMED: Outcome = (UNNAMED.code.name, UNNAMED.message)
NOT_MOVING = ErrorCode.NO_REASSIGNMENT_IN_PROGRESS.name


class Refused(AdminError):
    """A request failed with this error code."""

    def __init__(self, code: ErrorCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class KafkaAdmin:
    """Each request looks the brokers up and has connections of its own: it may come from any thread without an event loop."""

    def __init__(
        self,
        bootstrap_servers: str,
        command_config: Path | None = None,
        *,
        properties: Mapping[str, str] = MappingProxyType({}),
        connect_timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> None:
        """Does not connect yet. `properties` count more than the file's. Raises AdminError for a bad address or property."""
        self._bootstrap_servers = bootstrap_servers
        self._connect_timeout_s = connect_timeout_s
        name = {**read_command_config(command_config), **properties}.get("client.id", CLIENT)
        try:
            self._client = Client(name, read_security(command_config, list(properties.items()), ignores_others=True))
            self._bootstrap = list(addresses_of(bootstrap_servers))
        except (BadClientProperties, ValueError) as problem:
            raise AdminError(str(problem)) from None

    def cluster(self) -> ClusterView:
        """One broker's Metadata. Raises AdminError if no broker answers in time."""
        answer = self._ask("the cluster cannot be described", _metadata(None), NO_ANSWER)
        nodes = (NodeView(node.node_id, node.host, node.port, node.rack) for node in answer.brokers)
        return ClusterView(
            controller=answer.controller_id if answer.controller_id >= 0 else None,
            nodes=tuple(sorted(nodes, key=lambda node: node.id)),
            topics={
                topic.name: _partitions(topic) for topic in sorted(answer.topics, key=lambda topic: str(topic.name))
            },
        )

    # topics

    def create_topic(
        self,
        topic: str,
        *,
        partitions: int | None = None,
        replication_factor: int | None = None,
        replica_assignment: Sequence[Sequence[int]] | None = None,
        configs: Mapping[str, str] | None = None,
    ) -> None:
        """Creates one topic; None means the brokers' default. Raises TopicExists, AdminError."""
        assignments = [
            {"partition_index": number, "broker_ids": replicas}
            for number, replicas in enumerate(replica_assignment or ())
        ]
        request = {
            "name": topic,
            "num_partitions": -1 if partitions is None else partitions,
            "replication_factor": -1 if replication_factor is None else replication_factor,
            "assignments": assignments,
            "configs": [{"name": key, "value": value} for key, value in (configs or {}).items()],
        }
        question = Question(CONTROLLER, ApiKey.CREATE_TOPICS, {"topics": [request], **_IN_TIME})
        try:
            self._change(f"topic {topic!r} was not created", question, "topics", CREATE_ADVICE)
        except Refused as problem:
            if problem.code is ErrorCode.TOPIC_ALREADY_EXISTS:
                raise TopicExists(
                    f"topic {topic!r} already exists; see `ottla topic describe {topic}`, or --if-not-exists"
                ) from None
            if problem.code is ErrorCode.INVALID_REPLICATION_FACTOR:
                brokers = len(self.cluster().live_brokers)
                raise AdminError(f"{problem}; use --replication-factor 1 to {brokers}, or start more brokers") from None
            raise

    def delete_topic(self, topic: str) -> bool:
        """Returns False if the topic does not exist. Raises AdminError."""
        question = Question(CONTROLLER, ApiKey.DELETE_TOPICS, {"topic_names": [topic], **_IN_TIME})
        try:
            self._change(f"topic {topic!r} was not deleted", question, "responses", DELETE_ADVICE)
        except Refused as problem:
            if problem.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return False
            raise
        return True

    def create_partitions(self, topic: str, total: int, added: Sequence[Sequence[int]] | None = None) -> None:
        """Grows the topic to `total` partitions; `added` has the replicas of each new one. Raises AdminError."""
        assignments = None if added is None else [{"broker_ids": brokers} for brokers in added]
        request = {"name": topic, "count": total, "assignments": assignments}
        question = Question(CONTROLLER, ApiKey.CREATE_PARTITIONS, {"topics": [request], **_IN_TIME})
        self._change(f"no partitions were added to topic {topic!r}", question, "results", PARTITIONS_ADVICE)

    def describe_topics(self, topics: Iterable[str]) -> list[TopicView]:
        """The topics that still exist, with configs if the cluster supports DescribeConfigs. Raises AdminError."""
        names = sorted(topics)
        if not names:
            return []
        configs: Mapping[Entity, Mapping[str, ConfigValue]] | None
        try:
            configs = self.describe_configs([Entity(TOPICS, name) for name in names])
        except NotServed:
            configs = None
        views = []
        for row in self._ask("the topics cannot be described", _metadata(names), NO_ANSWER).topics:
            if row.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                continue  # deleted after it was listed
            _check(f"topic {row.name!r} cannot be described", row)
            own = None if configs is None else configs[Entity(TOPICS, row.name)]
            topic_id = topic_id_text(getattr(row, "topic_id", None) or uuid.UUID(int=0))
            views.append(TopicView(row.name, topic_id, _partitions(row), own))
        return sorted(views, key=lambda view: view.topic)

    # configs

    def describe_configs(self, entities: Sequence[Entity]) -> dict[Entity, dict[str, ConfigValue]]:
        """All configs of each entity, by key. An entity that does not exist appears to have none. Raises NotServed, AdminError."""
        what = "configs cannot be described"
        by_broker: dict[int, list[Entity]] = {}
        for entity in entities:
            by_broker.setdefault(_who_knows(entity), []).append(entity)
        questions = {}
        for broker, asked in by_broker.items():
            resources = [_resource(entity) | {"configuration_keys": None} for entity in asked]
            body = {"resources": resources, "include_synonyms": True, "include_documentation": False}
            questions[broker] = Question(broker, ApiKey.DESCRIBE_CONFIGS, body)
        found: dict[Entity, dict[str, ConfigValue]] = {key: {} for key in entities}
        for broker, answer in self._ask_all(what, questions).items():
            rows = _given(what, answer, CONFIG_ADVICE).results
            for entity, row in zip(by_broker[broker], only(what, rows, len(by_broker[broker])), strict=True):
                if row.error_code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    _check(what, row)
                    found[entity] = {
                        each.name: _config_value(each) for each in sorted(row.configs, key=lambda c: c.name)
                    }
        return found

    def alter_configs(self, entity: Entity, changes: Mapping[str, str | None]) -> None:
        """Sets each key, or removes it (None); other keys stay. Raises AdminError."""
        configs = [
            {"name": key, "config_operation": DELETE if value is None else SET, "value": value}
            for key, value in changes.items()
        ]
        body = {"resources": [_resource(entity) | {"configs": configs}], "validate_only": False}
        question = Question(_who_knows(entity), ApiKey.INCREMENTAL_ALTER_CONFIGS, body)
        what = f"configs of {entity} were not changed"
        self._change(what, question, "responses", ALTER_ADVICE, NO_ANSWER, RESTART_S)

    def configured(self, kind: str) -> list[str]:
        """The names of the groups, or of the subscriptions to clients' metrics, that have configs. Raises NotServed, AdminError."""
        needed = 0 if kind == CLIENT_METRICS else RESOURCE_TYPES_SINCE
        question = Question(
            ANY_BROKER, ApiKey.LIST_CONFIG_RESOURCES, {"resource_types": [RESOURCES[kind]]}, version_min=needed
        )
        what = f"the {kind} with configs cannot be listed"
        rows = self._ask(what, question, NO_ANSWER).config_resources
        return sorted(row.resource_name for row in rows)

    # reassignments and elections

    def reassignments(self, patience_s: float = REQUEST_TIMEOUT_S) -> dict[TopicPartition, Assignment]:
        """The reassignments in progress, in order. Retries for `patience_s` without a controller. Raises NotServed, AdminError."""
        question = Question(CONTROLLER, ApiKey.LIST_PARTITION_REASSIGNMENTS, {"topics": None, **_IN_TIME})
        answer = self._ask("the reassignments cannot be listed", question, NO_ANSWER, patience_s)
        return {
            partition: Assignment(tuple(row.replicas), tuple(row.adding_replicas), tuple(row.removing_replicas))
            for partition, row in sorted(rows_of(answer.topics), key=lambda found: found[0])
        }

    def alter_reassignments(
        self, targets: Mapping[TopicPartition, Sequence[int] | None]
    ) -> dict[TopicPartition, str | None]:
        """Starts each move, or cancels it (None). Partition -> the reason for a refusal, else None. Raises AdminError."""
        topics = by_topic(targets, lambda tp: {"partition_index": tp.partition, "replicas": targets[tp]})
        question = Question(CONTROLLER, ApiKey.ALTER_PARTITION_REASSIGNMENTS, {"topics": topics, **_IN_TIME})
        what = "the reassignments were not changed"
        earlier: dict[None, list[Any]] = {}
        answer = _given(what, self._ask_all(what, {None: question}, NO_ANSWER, earlier=earlier)[None], REASSIGN_ADVICE)
        outcomes: dict[TopicPartition, Outcome] = dict.fromkeys(targets, NOT_NAMED)
        outcomes.update((partition, outcome(row)) for partition, row in rows_of(answer.responses))
        for tp, refused in outcomes.items():
            # An earlier request has cancelled it, or may have.
            is_unneeded = targets.get(tp, ()) is None and refused is not None and refused[0] == NOT_MOVING
            if is_unneeded and any(_may_have_moved(before, tp) for before in earlier.get(None, ())):
                outcomes[tp] = None
        return {tp: f"{tp}: {refused[1]}" if (refused := outcomes[tp]) else None for tp in targets}

    def elect_leaders(
        self, *, unclean: bool, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, Outcome]:
        """Partition -> None for a new leader. `partitions` None means all. Raises NotServed, AdminError."""
        body = {
            "election_type": UNCLEAN_ELECTION if unclean else PREFERRED_ELECTION,
            "topic_partitions": None if partitions is None else by_topic(partitions, name="topic"),
            **_IN_TIME,
        }
        question = Question(CONTROLLER, ApiKey.ELECT_LEADERS, body)
        what = "no leader was elected"
        earlier: dict[None, list[Any]] = {}
        answer = self._ask_all(what, {None: question}, NO_ANSWER, earlier=earlier)[None]
        answers = [one for one in (answer, *reversed(earlier.get(None, []))) if not isinstance(one, KafkaError)]
        answer = answers[0] if answers else _given(what, answer, ELECT_ADVICE)
        outcomes: dict[TopicPartition, Outcome] = dict.fromkeys(partitions or (), NOT_NAMED)
        for each in answers:
            for topic in each.replica_election_results:
                for row in topic.partition_result:
                    tp = TopicPartition(topic.topic, row.partition_id)
                    if each is answer or row.error_code == ErrorCode.NONE:  # elected by an earlier request
                        outcomes[tp] = outcome(row)
        return outcomes

    # ACLs

    def describe_acls(self, patterns: PatternFilter, rules: AclFilter) -> list[tuple[Pattern, Acl]]:
        """The ACLs that both filters choose, in order. Raises NotServed, AdminError."""
        what = "the ACLs cannot be listed"
        question = Question(ANY_BROKER, ApiKey.DESCRIBE_ACLS, _filter(patterns, rules))
        answer = self._ask(what, question, NO_ANSWER)
        return sorted(
            (pattern, _acl(row))
            for resource in answer.resources
            for pattern in (_pattern(resource),)
            for row in resource.acls
        )

    def create_acls(self, acls: Sequence[tuple[Pattern, Acl]]) -> None:
        """Adds ACLs. To add one that is there changes nothing. Raises NotServed, AdminError."""
        what = "the ACLs were not added"
        rows = [
            {
                "resource_type": int(pattern.resource_type),
                "resource_name": pattern.name,
                "resource_pattern_type": int(pattern.pattern_type),
                "principal": rule.principal,
                "host": rule.host,
                "operation": int(rule.operation),
                "permission_type": int(rule.permission),
            }
            for pattern, rule in acls
        ]
        answer = self._ask(what, Question(ANY_BROKER, ApiKey.CREATE_ACLS, {"creations": rows}), NO_ANSWER)
        for (pattern, _), row in zip(acls, only(what, answer.results, len(acls)), strict=True):
            _check(f"an ACL of {pattern} was not added", row)

    def delete_acls(self, filters: Sequence[tuple[PatternFilter, AclFilter]]) -> list[tuple[Pattern, Acl]]:
        """Removes the ACLs that any of the filters choose, and returns them. Raises NotServed, AdminError."""
        what = "the ACLs were not removed"
        rows = [_filter(patterns, rules) for patterns, rules in filters]
        answer = self._ask(what, Question(ANY_BROKER, ApiKey.DELETE_ACLS, {"filters": rows}), NOT_CARRIED_OUT)
        removed = []
        for result in only(what, answer.filter_results, len(filters)):
            _check(what, result)
            for row in result.matching_acls:
                pattern = _pattern(row)
                _check(f"an ACL of {pattern} was not removed", row)
                removed.append((pattern, _acl(row)))
        return sorted(removed)

    # users

    def scram_users(self) -> dict[str, dict[str, int]]:
        """User -> mechanism -> iterations, of all who can log in by SCRAM. Raises NotServed, AdminError."""
        what = "the users cannot be listed"
        question = Question(ANY_BROKER, ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, {"users": None})
        answer = self._ask(what, question, NO_ANSWER)
        return {
            str(row.user): {
                SCRAM.get(one.mechanism, f"mechanism {one.mechanism}"): one.iterations for one in row.credential_infos
            }
            for row in answer.results
        }

    def set_password(self, user: str, mechanism: str, iterations: int, password: str) -> None:
        """The password itself is not sent. Raises NotServed, AdminError."""
        salt = secrets.token_bytes(20)
        salted = salted_password(HASHES[mechanism], password, salt, iterations)
        change = {
            "name": user,
            "mechanism": _number(mechanism),
            "iterations": iterations,
            "salt": salt,
            "salted_password": salted,
        }
        self._alter_user(f"user {user!r} was not changed", {"deletions": (), "upsertions": (change,)})

    def delete_passwords(self, user: str, mechanisms: Sequence[str]) -> None:
        """Raises NotServed, AdminError."""
        rows = [{"name": user, "mechanism": _number(mechanism)} for mechanism in mechanisms]
        self._alter_user(f"user {user!r} was not deleted", {"deletions": rows, "upsertions": ()})

    def _alter_user(self, what: str, body: Mapping[str, Any]) -> None:
        answer = self._ask(what, Question(CONTROLLER, ApiKey.ALTER_USER_SCRAM_CREDENTIALS, body), NOT_CARRIED_OUT)
        for row in only(what, answer.results, 1):
            _check(what, row)

    # quotas

    def quotas(
        self, wanted: Mapping[str, Any], *, is_strict: bool
    ) -> list[tuple[dict[str, str | None], dict[str, float]]]:
        """(entity, its quotas), sorted. `wanted`: the kind of entity -> its name; None: the default; ...: all of the kind. Strict: entities
        of no other kinds. Raises NotServed, AdminError."""
        components = [
            {
                "entity_type": kind,
                "match_type": 2 if name is ... else 1 if name is None else 0,
                "match": name if isinstance(name, str) else None,
            }
            for kind, name in wanted.items()
        ]
        what = "the quotas cannot be listed"
        body = {"components": components, "strict": is_strict}
        answer = self._ask(what, Question(ANY_BROKER, ApiKey.DESCRIBE_CLIENT_QUOTAS, body), NO_ANSWER)
        _check(what, answer)
        found = [
            ({part.entity_type: part.entity_name for part in row.entity}, {one.key: one.value for one in row.values})
            for row in answer.entries or ()
        ]
        return sorted(
            found, key=lambda one: [(kind, name is None, name or "") for kind, name in sorted(one[0].items())]
        )

    def alter_quotas(self, entity: Mapping[str, str | None], changes: Mapping[str, float | None]) -> None:
        """`changes`: quota -> its value; None: it is removed. Raises NotServed, AdminError."""
        row = {
            "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()],
            "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in changes.items()],
        }
        what = "the quotas were not changed"
        body = {"entries": (row,), "validate_only": False}
        answer = self._ask(what, Question(ANY_BROKER, ApiKey.ALTER_CLIENT_QUOTAS, body), NO_ANSWER)
        for found in only(what, answer.entries, 1):
            _check(what, found)

    # log directories

    def replica_sizes(
        self, brokers: Collection[int], partitions: Collection[TopicPartition]
    ) -> dict[tuple[int, TopicPartition], int]:
        """(broker, partition) -> bytes of that replica, for each broker that answers. Raises NotServed, AdminError."""
        return {
            (broker, partition): row.partition_size
            for broker, directories in self._directories(dict.fromkeys(brokers, partitions)).items()
            for directory in directories
            for partition, row in rows_of(directory.topics)
            if not row.is_future_key
        }

    def log_directories(self, replicas: Collection[Replica]) -> dict[Replica, Place]:
        """The directory of each replica, without those of brokers that do not answer. Raises NotServed."""
        return self._places(replicas)[0]

    def replicas_without_log(self, replicas: Collection[Replica]) -> set[Replica]:
        """The replicas whose broker answers but has no log of them. Raises NotServed."""
        found, answered = self._places(replicas)
        return {replica for replica in replicas if replica.broker in answered and replica not in found}

    def alter_log_directories(self, targets: Mapping[Replica, str]) -> dict[Replica, Outcome]:
        """Replica -> None if its move started or is not needed. Raises NotServed, AdminError."""
        what = "the log directories were not changed"
        moves: dict[int, dict[str, list[TopicPartition]]] = {}
        for replica, target in targets.items():
            moves.setdefault(replica.broker, {}).setdefault(target, []).append(replica.partition)
        questions = {}
        for broker, of_broker in moves.items():
            dirs = [{"path": target, "topics": by_topic(partitions)} for target, partitions in of_broker.items()]
            questions[broker] = Question(broker, ApiKey.ALTER_REPLICA_LOG_DIRS, {"dirs": dirs})
        outcomes: dict[Replica, Outcome] = dict.fromkeys(targets, NOT_NAMED)
        for broker, answer in self._ask_all(what, questions).items():
            for topic in _given(what, answer).results:
                for row in topic.partitions:
                    outcomes[Replica(TopicPartition(topic.topic_name, row.partition_index), broker)] = outcome(row)
        return outcomes

    def _places(self, replicas: Collection[Replica]) -> tuple[dict[Replica, Place], set[int]]:
        """The directory of each replica, and the brokers that answered."""
        wanted: dict[int, list[TopicPartition]] = {}
        for replica in replicas:
            wanted.setdefault(replica.broker, []).append(replica.partition)
        found = self._directories(wanted)
        places: dict[Replica, Place] = {}
        for broker, directories in found.items():
            for directory in directories:
                for partition, row in rows_of(directory.topics):
                    replica = Replica(partition, broker)
                    end = "future" if row.is_future_key else "current"
                    places[replica] = places.get(replica, Place())._replace(**{end: directory.log_dir})
        return places, set(found)

    def _directories(self, wanted: Mapping[int, Collection[TopicPartition]]) -> dict[int, Any]:
        """Broker -> its log directories, for each broker that answers."""
        questions = {
            broker: Question(broker, ApiKey.DESCRIBE_LOG_DIRS, {"topics": by_topic(partitions, name="topic")})
            for broker, partitions in wanted.items()
        }
        answers = self._ask_all("the log directories cannot be read", questions)
        return {broker: found.results for broker, found in answers.items() if not isinstance(found, KafkaError)}

    # sending

    def _change(
        self,
        what: str,
        question: Question,
        rows: str,
        advice: Mapping[int, str],
        retried: Collection[ErrorCode] = NOT_CARRIED_OUT,
        patience_s: float = REQUEST_TIMEOUT_S,
    ) -> None:
        """A request about one thing: `rows` is the answer's field with its outcome. Raises Refused, AdminError."""
        (row,) = only(what, getattr(self._ask(what, question, retried, patience_s, advice), rows), 1)
        _check(what, row, advice)

    def _ask(
        self,
        what: str,
        question: Question,
        retried: Collection[ErrorCode] = (),
        patience_s: float = REQUEST_TIMEOUT_S,
        advice: Mapping[int, str] = MappingProxyType({}),
    ) -> Any:
        """Raises Refused, AdminError: `what` has failed, the reason, and the advice for its error code."""
        return _given(what, self._ask_all(what, {None: question}, retried, patience_s)[None], advice)

    def _ask_all(
        self,
        what: str,
        questions: Mapping[Key, Question],
        retried: Collection[ErrorCode] = (),
        patience_s: float = REQUEST_TIMEOUT_S,
        attempt_s: float = REQUEST_TIMEOUT_S,
        earlier: dict[Key, list[Any]] | None = None,
    ) -> dict[Key, Any]:
        """Each question's answer, or a KafkaError. Those with an error code of `retried` are asked again until `patience_s` is over.

        Every attempt, of at most `attempt_s`, looks brokers and coordinators up. `earlier` gets the answers after which a question was
        asked again.

        Raises NotServed, and AdminError if no broker answers.
        """
        deadline = time.monotonic() + patience_s
        waiting = dict(questions)
        answers: dict[Key, Any] = {}
        while waiting:
            for key in waiting.keys() & answers.keys():
                if earlier is not None:
                    earlier.setdefault(key, []).append(answers[key])
            answers |= self._attempt(what, waiting, attempt_s)
            waiting = {key: questions[key] for key in waiting if not set(retried).isdisjoint(_codes(answers[key]))}
            if time.monotonic() + RETRY_PAUSE_S >= deadline:
                break
            if waiting:
                time.sleep(RETRY_PAUSE_S)
        return {key: answers[key] for key in questions}

    def _attempt(self, what: str, questions: Mapping[Key, Question], attempt_s: float) -> dict[Key, Any]:
        async def attempt() -> dict[Key, Any]:
            async with ClusterRequests(self._client, self._bootstrap, self._connect_timeout_s, attempt_s) as requests:
                self._bootstrap = requests.bootstrap

                async def answer(question: Question) -> Any:
                    try:
                        return await requests.ask(question)
                    except KafkaError as problem:
                        return problem

                return dict(zip(questions, await asyncio.gather(*map(answer, questions.values())), strict=True))

        began = time.monotonic()
        try:
            return asyncio.run(attempt())
        except Unsupported:
            raise NotServed(f"{what}: this cluster does not support that request") from None
        except AccessRefused as problem:
            raise AdminError(f"cannot connect to {self._bootstrap_servers}: {problem}") from None
        except Unreachable:
            raise AdminError(no_answer(self._bootstrap_servers, time.monotonic() - began)) from None


_IN_TIME: Mapping[str, Any] = MappingProxyType({"timeout": int(REQUEST_TIMEOUT_S * 1000), "validate_only": False})


def refusal(what: str, problem: KafkaError, advice: Mapping[int, str] = MappingProxyType({})) -> Refused:
    """What failed, the broker's reason, and what to do."""
    hint = advice.get(problem.code, HEALTH if problem.code in NO_ANSWER else "")
    return Refused(problem.code, f"{what}: {reason(problem)}" + (f"; {hint}" if hint else ""))


def reason(problem: KafkaError) -> str:
    """In one line: the broker's text, else one for the code."""
    said = problem.message or TEXTS.get(problem.code) or problem.code.name.replace("_", " ").lower()
    return " ".join(said.split()).rstrip(".")


def _number(mechanism: str) -> int:
    return next(number for number, name in SCRAM.items() if name == mechanism)


def _filter(patterns: PatternFilter, rules: AclFilter) -> dict[str, Any]:
    return {
        "resource_type_filter": int(patterns.resource_type),
        "resource_name_filter": patterns.name,
        "pattern_type_filter": int(patterns.pattern_type),
        "principal_filter": rules.principal,
        "host_filter": rules.host,
        "operation": int(rules.operation),
        "permission_type": int(rules.permission),
    }


def _pattern(row: Any) -> Pattern:
    return Pattern(_word(ResourceType, row.resource_type), str(row.resource_name), _word(PatternType, row.pattern_type))


def _acl(row: Any) -> Acl:
    return Acl(
        str(row.principal), str(row.host), _word(Operation, row.operation), _word(Permission, row.permission_type)
    )


def _word(kind: type[Word], number: int) -> Word:
    """UNKNOWN for the number of a newer Kafka."""
    known = {word.value: word for word in kind}
    return known.get(number, known[0])


def outcome(row: Any) -> Outcome:
    try:
        check(row)
    except KafkaError as problem:
        return error_name(row.error_code), reason(problem)
    return None


def by_topic(
    partitions: Iterable[TopicPartition],
    row: Callable[[TopicPartition], Any] = lambda tp: tp.partition,
    name: str = "name",
) -> list[dict[str, Any]]:
    """The topics of a request, with a row for each partition."""
    topics: dict[str, list[Any]] = {}
    for partition in partitions:
        topics.setdefault(partition.topic, []).append(row(partition))
    return [{name: topic, "partitions": rows} for topic, rows in topics.items()]


def rows_of(topics: Iterable[Any]) -> list[tuple[TopicPartition, Any]]:
    """The partitions of an answer, with their rows."""
    return [(TopicPartition(topic.name, row.partition_index), row) for topic in topics for row in topic.partitions]


def _given(what: str, answer: Any, advice: Mapping[int, str] = MappingProxyType({})) -> Any:
    """The answer. Raises Refused if it is a KafkaError."""
    if isinstance(answer, KafkaError):
        raise refusal(what, answer, advice)
    return answer


def _check(what: str, row: Any, advice: Mapping[int, str] = MappingProxyType({})) -> None:
    """Raises Refused for an error code of the row."""
    try:
        check(row)
    except KafkaError as problem:
        raise refusal(what, problem, advice) from None


def only(what: str, rows: Sequence[Any], count: int) -> Sequence[Any]:
    """The rows of an answer. Raises AdminError if they are not as many as were asked for."""
    if len(rows) != count:
        raise AdminError(f"{what}: the broker's answer has {len(rows)} rows, not {count}")
    return rows


def _may_have_moved(answer: Any, partition: TopicPartition) -> bool:
    """Whether a request with this answer may have changed the partition's reassignment."""
    if isinstance(answer, KafkaError):
        return answer.code in UNKNOWN_OUTCOME
    codes = [int(row.error_code) for found, row in rows_of(answer.responses) if found == partition]
    return not codes or codes[0] in (ErrorCode.NONE, *UNKNOWN_OUTCOME)


def _codes(answer: Any) -> Iterable[int]:
    return [answer.code] if isinstance(answer, KafkaError) else error_codes(answer)


def _metadata(topics: Sequence[str] | None) -> Question:
    asked = None if topics is None else [{"name": topic, "topic_id": None} for topic in topics]
    return Question(ANY_BROKER, ApiKey.METADATA, {"topics": asked, "allow_auto_topic_creation": False})


def _who_knows(entity: Entity) -> int:
    """The broker to ask about the entity's configs."""
    return int(entity.name) if entity.kind == BROKERS and entity.name else ANY_BROKER


def _resource(entity: Entity) -> dict[str, Any]:
    return {"resource_type": RESOURCES[entity.kind], "resource_name": entity.name}


def _partitions(topic: Any) -> tuple[PartitionView, ...]:
    """The partitions of a topic in Metadata, in order."""
    return tuple(
        PartitionView(
            row.partition_index,
            None if row.leader_id < 0 else row.leader_id,
            tuple(row.replica_nodes),
            tuple(row.isr_nodes),
        )
        for row in sorted(topic.partitions, key=lambda row: row.partition_index)
    )


def _config_value(row: Any) -> ConfigValue:
    synonyms = tuple(ConfigSynonym(each.name, each.value, _source(each.source)) for each in row.synonyms)
    return ConfigValue(row.value, _source(row.config_source), row.read_only, row.is_sensitive, synonyms)


def _source(number: int) -> str:
    return SOURCES[number] if 0 <= number < len(SOURCES) else SOURCES[0]
