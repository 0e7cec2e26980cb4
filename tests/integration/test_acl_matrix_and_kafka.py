"""A matrix of ACLs (operation, permission, pattern, principal) gives the same answers as a real Kafka with AclAuthorizer.

Each ACL is added alone, then every request that its type of resource guards is sent to one broker of each kind, as `User:ANONYMOUS`. Error
codes and authorized operations are compared. What has no ACL is allowed to everybody.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from protocol.acls import CLUSTER_NAME, OPERATIONS_OF, Operation, PatternType, Permission, ResourceType
from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from tests.conftest import CALM, ClusterFactory
from tests.support.invariants import eventually
from tests.support.logs import batch
from tests.support.real_kafka import running_kafka, skip_without_kafka
from tests.support.wire import Wire

pytestmark = [pytest.mark.integration, pytest.mark.kafka, pytest.mark.timeout(900)]

SETTINGS = {
    **CALM,
    "authorizer.class.name": "kafka.security.authorizer.AclAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
}
TOPIC, GROUP, CLUSTER, TX = (
    ResourceType.TOPIC,
    ResourceType.GROUP,
    ResourceType.CLUSTER,
    ResourceType.TRANSACTIONAL_ID,
)
NAMES = {TOPIC: "t-a", GROUP: "g-a", TX: "x-a", CLUSTER: CLUSTER_NAME}
PREFIXES = {TOPIC: "t-", GROUP: "g-", TX: "x-"}
PRINCIPALS = ("User:ANONYMOUS", "User:*", "User:bob")
PERMISSIONS = (Permission.ALLOW, Permission.DENY)
NOT_SETTLED = {
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.LEADER_NOT_AVAILABLE,
}

Ask = tuple[ApiKey, int, Mapping[str, Any]]
Findings = list[tuple[str, int]]


class Rule(NamedTuple):
    kind: ResourceType
    name: str
    pattern_type: PatternType
    principal: str
    operation: Operation
    permission: Permission

    def created(self) -> dict[str, Any]:
        return {
            "resource_type": int(self.kind),
            "resource_name": self.name,
            "resource_pattern_type": int(self.pattern_type),
            "principal": self.principal,
            "host": "*",
            "operation": int(self.operation),
            "permission_type": int(self.permission),
        }

    def filtered(self) -> dict[str, Any]:
        return {
            "resource_type_filter": int(self.kind),
            "resource_name_filter": self.name,
            "pattern_type_filter": int(self.pattern_type),
            "principal_filter": self.principal,
            "host_filter": "*",
            "operation": int(self.operation),
            "permission_type": int(self.permission),
        }


GO_ON = [
    Rule(CLUSTER, CLUSTER_NAME, PatternType.LITERAL, "User:ANONYMOUS", operation, Permission.ALLOW)
    for operation in (Operation.ALTER, Operation.CLUSTER_ACTION)
]
"""Without these, an ACL of the cluster would end the test, and the brokers' own requests."""


def rules_of(kind: ResourceType) -> Iterator[Rule]:
    operations = (Operation.ALL, *OPERATIONS_OF[kind])
    patterns = [(NAMES[kind], PatternType.LITERAL)]
    if kind in PREFIXES:
        patterns += [(PREFIXES[kind], PatternType.PREFIXED), ("*", PatternType.LITERAL)]
    for operation, permission, (name, pattern_type), principal in itertools.product(
        operations, PERMISSIONS, patterns, PRINCIPALS
    ):
        ends_the_test = permission is Permission.DENY and operation in (
            Operation.ALL,
            Operation.ALTER,
            Operation.CLUSTER_ACTION,
        )
        if kind is not CLUSTER or not ends_the_test:
            yield Rule(kind, name, pattern_type, principal, operation, permission)


def partitions(name: str, **fields: Any) -> list[dict[str, Any]]:
    return [{"name": name, "topic": name, "partitions": [fields], "partition_indexes": [0]}]


def asked_of(kind: ResourceType, records: bytes) -> list[Ask]:
    topic, group, tx = NAMES[TOPIC], NAMES[GROUP], NAMES[TX]
    listed = {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}
    produced = [{"name": topic, "partition_data": [{"index": 0, "records": records}]}]
    fetched = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1}
    fetch = {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1000,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": partitions(topic, **fetched, log_start_offset=-1, partition_max_bytes=1000),
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    committed = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": None}
    grown = {"name": topic, "count": 5, "assignments": None}
    member = {"group_id": group, "member_id": "m", "group_instance_id": None}
    altered = {"resource_type": 4, "resource_name": "", "configs": []}
    nobody = Rule(TOPIC, "none", PatternType.LITERAL, "User:nobody", Operation.READ, Permission.ALLOW)
    configs = {"configuration_keys": ["retention.ms"]}
    of_broker = {"resource_type": 4, "resource_name": "", **configs}
    described = {"include_synonyms": False, "include_documentation": False}
    new_topic = {"num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    creation = {"topics": [{"name": "t-new", **new_topic}], "timeout": 5000, "validate_only": True}
    init = {"transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    metadata = {
        "allow_auto_topic_creation": False,
        "include_cluster_authorized_operations": True,
        "include_topic_authorized_operations": True,
    }
    whole: dict[ResourceType, list[Ask]] = {
        TOPIC: [
            (ApiKey.METADATA, 8, {**metadata, "topics": [{"name": topic}]}),
            (ApiKey.METADATA, 8, {**metadata, "topics": [{"name": "t-missing"}]}),
            (ApiKey.METADATA, 8, {**metadata, "topics": None}),
            (ApiKey.PRODUCE, 9, {"transactional_id": None, "acks": 1, "timeout": 5000, "topic_data": produced}),
            (ApiKey.FETCH, 11, fetch),
            (ApiKey.LIST_OFFSETS, 4, {"replica_id": -1, "isolation_level": 0, "topics": partitions(topic, **listed)}),
            (
                ApiKey.DESCRIBE_CONFIGS,
                4,
                {"resources": [{"resource_type": 2, "resource_name": topic, **configs}], **described},
            ),
            (
                ApiKey.CREATE_PARTITIONS,
                1,
                {"topics": [grown], "timeout": 5000, "validate_only": True},
            ),
            (ApiKey.CREATE_TOPICS, 7, creation),
            (
                ApiKey.DELETE_RECORDS,
                2,
                {"topics": [{"name": topic, "partitions": [{"partition_index": 0, "offset": 0}]}], "timeout": 5000},
            ),
            (ApiKey.INIT_PRODUCER_ID, 4, {"transactional_id": None, **init}),
            (ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": partitions(topic)}),
            (ApiKey.OFFSET_FETCH, 7, {"group_id": "free", "topics": partitions(topic), "require_stable": False}),
        ],
        GROUP: [
            (ApiKey.FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [group, "free"]}),
            (ApiKey.HEARTBEAT, 4, {**member, "generation_id": 1}),
            (ApiKey.LEAVE_GROUP, 4, {"group_id": group, "members": []}),
            (ApiKey.DESCRIBE_GROUPS, 5, {"groups": [group], "include_authorized_operations": True}),
            (ApiKey.DELETE_GROUPS, 2, {"groups_names": [group]}),
            (ApiKey.LIST_GROUPS, 4, {"states_filter": []}),
            (ApiKey.OFFSET_FETCH, 7, {"group_id": group, "topics": None, "require_stable": False}),
            (
                ApiKey.OFFSET_COMMIT,
                8,
                {
                    "group_id": group,
                    "generation_id_or_member_epoch": 7,
                    "member_id": "m",
                    "group_instance_id": None,
                    "topics": partitions(topic, **committed),
                },
            ),
            (
                ApiKey.OFFSET_DELETE,
                0,
                {"group_id": group, "topics": [{"name": topic, "partitions": [{"partition_index": 0}]}]},
            ),
        ],
        TX: [
            (ApiKey.FIND_COORDINATOR, 4, {"key_type": 1, "coordinator_keys": [tx]}),
            (ApiKey.INIT_PRODUCER_ID, 4, {"transactional_id": tx, **init}),
            (ApiKey.END_TXN, 3, {"transactional_id": tx, "producer_id": 99999, "producer_epoch": 0, "committed": True}),
            (
                ApiKey.ADD_OFFSETS_TO_TXN,
                3,
                {"transactional_id": tx, "producer_id": 99999, "producer_epoch": 0, "group_id": "free"},
            ),
            (ApiKey.DESCRIBE_TRANSACTIONS, 0, {"transactional_ids": [tx]}),
        ],
        CLUSTER: [
            (ApiKey.METADATA, 8, {**metadata, "topics": []}),
            (ApiKey.DESCRIBE_CLUSTER, 0, {"include_cluster_authorized_operations": True}),
            (ApiKey.DESCRIBE_LOG_DIRS, 4, {"topics": []}),
            (ApiKey.CREATE_TOPICS, 7, creation),
            (ApiKey.LIST_PARTITION_REASSIGNMENTS, 0, {"timeout": 5000, "topics": []}),
            (ApiKey.ALTER_PARTITION_REASSIGNMENTS, 0, {"timeout": 5000, "topics": []}),
            (ApiKey.DESCRIBE_CONFIGS, 4, {"resources": [of_broker], **described}),
            (
                ApiKey.INCREMENTAL_ALTER_CONFIGS,
                1,
                {"resources": [altered], "validate_only": True},
            ),
            (ApiKey.LIST_GROUPS, 4, {"states_filter": []}),
            (ApiKey.INIT_PRODUCER_ID, 4, {"transactional_id": None, **init}),
            (ApiKey.DESCRIBE_ACLS, 3, nobody.filtered()),
        ],
    }
    return whole[kind]


class Broker:
    """One broker of a cluster of its own."""

    def __init__(self, port: int, stack: ExitStack) -> None:
        self._port = port
        self._wire = stack.enter_context(Wire(port))
        self.records = batch(1, timestamp=int(time.time() * 1000))

    def prepare(self) -> None:
        topic = {"name": NAMES[TOPIC], "num_partitions": 2, "replication_factor": 1, "assignments": [], "configs": []}
        self.ask((ApiKey.CREATE_TOPICS, 4, {"topics": [topic], "timeout": 10_000, "validate_only": False}))
        for kind in (GROUP, TX, TOPIC):
            eventually(lambda kind=kind: not self._unsettled(kind), f"all can be asked of {kind.name}", 60)

    def _unsettled(self, kind: ResourceType) -> bool:
        return any(code in NOT_SETTLED for asked in asked_of(kind, self.records) for _, code in self.ask(asked))

    def ask(self, asked: Ask) -> Findings:
        found = findings(self._wire.call(*asked))
        return sorted(found) if asked[0] is ApiKey.METADATA else found  # topics are in any order

    def ask_alone(self, asked: Ask) -> Findings | str:
        """On a connection of its own; "closed" if the broker closes it."""
        with Wire(self._port) as wire:
            try:
                return findings(wire.call(*asked))
            except ConnectionError:
                return "closed"

    def add(self, rules: Sequence[Rule]) -> None:
        found = self.ask((ApiKey.CREATE_ACLS, 3, {"creations": [rule.created() for rule in rules]}))
        assert {code for _, code in found} == {0}, found

    def remove(self, rules: Sequence[Rule]) -> None:
        answer = self._wire.call(ApiKey.DELETE_ACLS, 3, {"filters": [rule.filtered() for rule in rules]})
        assert [len(result.matching_acls) for result in answer.filter_results] == [1] * len(rules)


def findings(value: Any, name: str = "") -> Findings:
    """The error codes and authorized operations of an answer, in order; and how many groups or topics it names."""
    if name.endswith(("error_code", "authorized_operations")):
        return [(name, int(value))]
    fields = getattr(value, "_fields", None)
    if fields is not None:
        return [found for field in fields for found in findings(getattr(value, field), field)]
    if isinstance(value, list | tuple):
        return [found for inner in value for found in findings(inner)]
    return []


@pytest.fixture(scope="module")
def brokers(
    tmp_path_factory: pytest.TempPathFactory, new_module_cluster: ClusterFactory
) -> Iterator[tuple[Broker, Broker]]:
    """Ours, and Kafka's."""
    skip_without_kafka()
    directory: Path = tmp_path_factory.mktemp("kafka-with-acls")
    cluster = new_module_cluster(brokers=1, overrides={**SETTINGS, "broker.api.level": "3.9"})
    with ExitStack() as stack:
        kafka = stack.enter_context(running_kafka(directory, brokers=1, overrides=SETTINGS))
        ours = Broker(cluster.port(cluster.broker_ids[0]), stack)
        theirs = Broker(int(kafka.bootstrap_servers.rpartition(":")[2]), stack)
        for broker in (ours, theirs):
            broker.prepare()
        yield ours, theirs


@pytest.mark.parametrize("kind", [TOPIC, GROUP, TX, CLUSTER], ids=lambda kind: kind.name)
def test_each_acl_has_the_effect_that_it_has_in_kafka(brokers: tuple[Broker, Broker], kind: ResourceType) -> None:
    differences = []
    count = 0
    for rule in rules_of(kind):
        added = [rule, *(GO_ON if kind is CLUSTER else ())]
        added = list(dict.fromkeys(added))
        for broker in brokers:
            broker.add(added)
        for asked in asked_of(kind, brokers[0].records):
            ours, theirs = (broker.ask(asked) for broker in brokers)
            count += 1
            if ours != theirs:
                said = f"{rule.permission.name} {rule.operation.name} on {rule.name} to {rule.principal}"
                differences.append(f"{said}: {asked[0].name}: ours {ours}, Kafka's {theirs}")
        for broker in brokers:
            broker.remove(added)
    print(f"{kind.name}: {count} answers compared, {len(differences)} differ")
    assert not differences, "\n".join(differences[:40])


GOOD = Rule(TOPIC, "checked", PatternType.LITERAL, "User:bob", Operation.READ, Permission.ALLOW).created()


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"resource_type": int(CLUSTER), "operation": int(Operation.ALTER)},
        {"resource_name": ""},
        {"resource_name": "a/b"},
        {"principal": "bob"},
        {"resource_type": 1},
        {"resource_pattern_type": int(PatternType.MATCH)},
        {"operation": 1},
        {"permission_type": 1},
        {"resource_type": 0},
        {"operation": 99},
    ],
    ids=str,
)
def test_wrong_acls_are_refused_as_by_kafka(brokers: tuple[Broker, Broker], wrong: dict[str, Any]) -> None:
    ours, theirs = (broker.ask_alone((ApiKey.CREATE_ACLS, 3, {"creations": [{**GOOD, **wrong}]})) for broker in brokers)
    if theirs == [("error_code", int(ErrorCode.UNKNOWN_SERVER_ERROR))]:
        assert ours == [("error_code", int(ErrorCode.INVALID_REQUEST))], "Kafka fails; we say what is wrong"
    else:
        assert ours == theirs
