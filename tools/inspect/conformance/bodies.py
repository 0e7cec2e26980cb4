"""A well-formed request of each API: it names topics and groups of its scene only. Pure.

A body has the fields of all versions, by kio's names; `complete` leaves out those that a version does not have, and adds the others.
Requests that change a cluster beyond the scene's own topics and groups only validate, or are not here: NEVER_SENT says why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING
from types import MappingProxyType
from typing import Any

from protocol.kafka import by_schema
from protocol.kafka.api_keys import ApiKey
from tools.inspect.conformance.scene import Scene, Where, batch

Body = dict[str, Any]

TIMEOUT_MS = 20_000
TOPIC, BROKER = 2, 4
"""Types of configuration resources."""
DESCRIBE_QUORUM = 55
TELEMETRY_SUBSCRIPTIONS, PUSH_TELEMETRY, LIST_CLIENT_METRICS, DESCRIBE_TOPIC_PARTITIONS = 71, 72, 74, 75

NEVER_SENT: Mapping[int, str] = MappingProxyType(
    {
        4: "LeaderAndIsr changes leaders",
        5: "StopReplica deletes replicas",
        6: "UpdateMetadata changes what a broker knows of the cluster",
        7: "ControlledShutdown takes a broker's leaderships away",
        27: "WriteTxnMarkers, from anybody but a coordinator, writes markers of no transaction",
        52: "Vote is a request between controllers",
        53: "BeginQuorumEpoch is a request between controllers",
        54: "EndQuorumEpoch is a request between controllers",
        56: "AlterPartition changes ISRs",
        57: "UpdateFeatures cannot be undone",
        58: "Envelope carries requests between brokers",
        59: "FetchSnapshot is a request between controllers",
        62: "BrokerRegistration registers a broker",
        63: "BrokerHeartbeat speaks for a broker",
        64: "UnregisterBroker removes a broker",
        67: "AllocateProducerIds takes a block of producer ids",
        70: "ControllerRegistration registers a controller",
        73: "AssignReplicasToDirs speaks for a broker",
        80: "AddRaftVoter changes the quorum",
        81: "RemoveRaftVoter changes the quorum",
        82: "UpdateRaftVoter changes the quorum",
    }
)
"""APIs of which no request is sent, with the reason. Their versions are compared."""


def _topic_rows(scene: Scene, name: str, partition: Body, **more: Any) -> list[Body]:
    """A topic with one partition, under the field names of all APIs."""
    row = {"partition_index": 0, "partition": 0, "index": 0, **partition}
    topic = {"name": name, "topic": name, "topic_id": scene.topic_ids.get(name), "partitions": [row]}
    return [{**topic, "partition_data": [row], **more}]


def _numbered(name: str, *partitions: int) -> list[Body]:
    return [{"name": name, "topic": name, "partitions": [*partitions], "partition_indexes": [*partitions]}]


def _produce(scene: Scene) -> Body:
    rows = _topic_rows(scene, scene.scratch, {"records": batch(1)})
    return {"transactional_id": None, "acks": -1, "timeout": TIMEOUT_MS, "topic_data": rows}


def _fetch(scene: Scene) -> Body:
    partition = {
        "current_leader_epoch": -1,
        "fetch_offset": 0,
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1_000_000,
    }
    return {
        "replica_id": -1,
        "max_wait": 50,
        "min_bytes": 1,
        "max_bytes": 10_000_000,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": -1,
        "topics": _topic_rows(scene, scene.topic, partition),
        "forgotten_topics_data": [],
    }


def _list_offsets(scene: Scene) -> Body:
    rows = _topic_rows(scene, scene.topic, {"current_leader_epoch": -1, "timestamp": -1})
    return {"replica_id": -1, "isolation_level": 0, "topics": rows, "timeout": TIMEOUT_MS}


def _metadata(scene: Scene) -> Body:
    return {"topics": [{"name": scene.topic, "topic_id": None}], "allow_auto_topic_creation": False}


def _offset_commit(scene: Scene) -> Body:
    return {
        "group_id": scene.group,
        "generation_id": -1,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "retention_time_ms": -1,
        "topics": _topic_rows(scene, scene.topic, commit_row(3, 0)),
    }


def _offset_fetch(scene: Scene) -> Body:
    topics = [{**_numbered(scene.topic, 0, 1)[0], "topic_id": scene.topic_ids.get(scene.topic)}]
    group = {"group_id": scene.group, "member_id": None, "member_epoch": -1, "topics": topics}
    return {**group, "groups": [group], "require_stable": False}


def _join_group(scene: Scene) -> Body:
    return {
        "group_id": scene.fresh,
        "session_timeout": 6_000,
        "rebalance_timeout": 6_000,
        "member_id": "",
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": b""}],
        "reason": None,
    }


def _member(scene: Scene) -> Body:
    """Somebody who is not a member of the group."""
    return {
        "group_id": scene.group,
        "generation_id": 1,
        "member_id": scene.unknown,
        "group_instance_id": None,
        "protocol_type": "consumer",
        "protocol_name": "range",
        "assignments": [{"member_id": scene.unknown, "assignment": b"a"}],
        "members": [{"member_id": scene.unknown, "group_instance_id": None, "reason": None}],
    }


def _create_topics(scene: Scene) -> Body:
    topic = {
        "name": scene.fresh,
        "num_partitions": 2,
        "replication_factor": 1,
        "assignments": [],
        "configs": [{"name": "retention.ms", "value": "-1"}],
    }
    return {"topics": [topic], "timeout": TIMEOUT_MS, "validate_only": False}


def _delete_topics(scene: Scene) -> Body:
    return {
        "topics": [{"name": scene.fresh, "topic_id": None}],
        "topic_names": [scene.fresh],
        "timeout": TIMEOUT_MS,
    }


def commit_row(offset: int, epoch: int = -1) -> Body:
    """Partition 0, in OffsetCommit and TxnOffsetCommit."""
    return {
        "partition_index": 0,
        "committed_offset": offset,
        "committed_leader_epoch": epoch,
        "committed_metadata": "m",
    }


def _stranger(scene: Scene) -> Body:
    """A producer that the coordinator does not know."""
    return {"transactional_id": scene.transactional_id, "producer_id": 12_345, "producer_epoch": 0}


def _transaction(scene: Scene) -> Body:
    return {**_offset_commit(scene), **_stranger(scene), "committed": True}


def _add_partitions_to_txn(scene: Scene) -> Body:
    return partitions_to_add(_stranger(scene), _numbered(scene.scratch, 0))


def partitions_to_add(producer: Body, topics: list[Body]) -> Body:
    """AddPartitionsToTxn: `producer` has the transactional id, the producer id and the epoch."""
    one = {**producer, "topics": topics}
    return {
        **one,
        "transactions": [{**one, "verify_only": False}],
        **{f"v3_and_below_{name}": value for name, value in one.items()},
    }


def _acl(scene: Scene) -> Body:
    names = {"resource_name": scene.topic, "principal": f"User:{scene.run}", "host": "*"}
    row = {"resource_type": TOPIC, "resource_pattern_type": 3, "operation": 3, "permission_type": 3, **names}
    filters = {f"{name}_filter": value for name, value in row.items() if name not in ("operation", "permission_type")}
    found = {**row, **filters, "pattern_type_filter": 3}
    return {**found, "creations": [found], "filters": [found]}


def _configs(scene: Scene) -> Body:
    change = {"name": "retention.ms", "config_operation": 0, "value": "86400000"}
    resource = {
        "resource_type": TOPIC,
        "resource_name": scene.scratch,
        "configuration_keys": ["retention.ms", "cleanup.policy"],
        "configs": [change],
    }
    return {
        "resources": [resource],
        "include_synonyms": True,
        "include_documentation": True,
        "validate_only": False,
    }


def _create_partitions(scene: Scene) -> Body:
    topic = {"name": scene.scratch, "count": 3, "assignments": [{"broker_ids": [scene.home]}]}
    return {"topics": [topic], "timeout": TIMEOUT_MS, "validate_only": True}


def _reassignments(scene: Scene) -> Body:
    return {
        "timeout": TIMEOUT_MS,
        "allow_replication_factor_change": True,
        "topics": _topic_rows(scene, scene.scratch, {"replicas": [scene.home]}, partition_indexes=[0]),
    }


def _leader_epoch(scene: Scene) -> Body:
    return {
        "replica_id": -1,
        "topics": _topic_rows(scene, scene.topic, {"current_leader_epoch": -1, "leader_epoch": 0}),
    }


def _quotas(scene: Scene) -> Body:
    entity = {"entity_type": "client-id", "entity_name": scene.run}
    return {
        "components": [{"entity_type": "client-id", "match_type": 0, "match": scene.run}],
        "strict": False,
        "entries": [{"entity": [entity], "ops": [{"key": "producer_byte_rate", "value": 1e9, "remove": False}]}],
        "validate_only": True,
    }


def _scram(scene: Scene) -> Body:
    return {
        "users": [{"name": scene.run}],
        "deletions": [{"name": scene.run, "mechanism": 1}],
        "upsertions": [],
    }


def _tokens(scene: Scene) -> Body:
    return {
        "owner_principal_type": None,
        "owner_principal_name": None,
        "renewers": [],
        "max_lifetime": 1_000,
        "hmac": scene.run.encode(),
        "renew_period": 1_000,
        "expiry_time_period": 1_000,
        "owners": [{"principal_type": "User", "principal_name": scene.run}],
    }


def _consumer_group(scene: Scene) -> Body:
    return {
        "group_id": scene.fresh,
        "group_ids": [scene.group],
        "member_id": "",
        "member_epoch": 0,
        "rebalance_timeout": 6_000,
        "subscribed_topic_names": [scene.topic],
        "topic_partitions": [],
    }


Builder = Callable[[Scene], Body]

WELL_FORMED: Mapping[int, tuple[Where, Builder]] = MappingProxyType(
    {
        ApiKey.PRODUCE: (Where.HOME, _produce),
        ApiKey.FETCH: (Where.HOME, _fetch),
        ApiKey.LIST_OFFSETS: (Where.HOME, _list_offsets),
        ApiKey.METADATA: (Where.HOME, _metadata),
        ApiKey.OFFSET_COMMIT: (Where.GROUP, _offset_commit),
        ApiKey.OFFSET_FETCH: (Where.GROUP, _offset_fetch),
        ApiKey.FIND_COORDINATOR: (
            Where.HOME,
            lambda scene: {"key": scene.group, "key_type": 0, "coordinator_keys": [scene.group]},
        ),
        ApiKey.JOIN_GROUP: (Where.GROUP, _join_group),
        ApiKey.HEARTBEAT: (Where.GROUP, _member),
        ApiKey.LEAVE_GROUP: (Where.GROUP, _member),
        ApiKey.SYNC_GROUP: (Where.GROUP, _member),
        ApiKey.DESCRIBE_GROUPS: (Where.GROUP, lambda scene: {"groups": [scene.group, scene.unknown]}),
        ApiKey.LIST_GROUPS: (Where.GROUP, lambda scene: {"states_filter": ["Empty"], "types_filter": ["classic"]}),
        ApiKey.SASL_HANDSHAKE: (Where.HOME, lambda scene: {"mechanism": "PLAIN"}),
        ApiKey.API_VERSIONS: (
            Where.HOME,
            lambda scene: {"client_software_name": "ottla-inspect", "client_software_version": "1.0"},
        ),
        ApiKey.CREATE_TOPICS: (Where.CONTROLLER, _create_topics),
        ApiKey.DELETE_TOPICS: (Where.CONTROLLER, _delete_topics),
        ApiKey.DELETE_RECORDS: (
            Where.HOME,
            lambda scene: {"topics": _topic_rows(scene, scene.scratch, {"offset": 0}), "timeout": TIMEOUT_MS},
        ),
        ApiKey.INIT_PRODUCER_ID: (
            Where.TRANSACTION,
            lambda scene: {"transactional_id": None, "transaction_timeout": 60_000},
        ),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: (Where.HOME, _leader_epoch),
        ApiKey.ADD_PARTITIONS_TO_TXN: (Where.TRANSACTION, _add_partitions_to_txn),
        ApiKey.ADD_OFFSETS_TO_TXN: (Where.TRANSACTION, _transaction),
        ApiKey.END_TXN: (Where.TRANSACTION, _transaction),
        ApiKey.TXN_OFFSET_COMMIT: (Where.GROUP, _transaction),
        ApiKey.DESCRIBE_ACLS: (Where.HOME, _acl),
        ApiKey.CREATE_ACLS: (Where.CONTROLLER, _acl),
        ApiKey.DELETE_ACLS: (Where.CONTROLLER, _acl),
        ApiKey.DESCRIBE_CONFIGS: (Where.HOME, _configs),
        ApiKey.ALTER_CONFIGS: (Where.HOME, _configs),
        ApiKey.ALTER_REPLICA_LOG_DIRS: (
            Where.HOME,
            lambda scene: {"dirs": [{"path": f"/{scene.run}", "topics": _numbered(scene.scratch, 0)}]},
        ),
        ApiKey.DESCRIBE_LOG_DIRS: (Where.HOME, lambda scene: {"topics": _numbered(scene.topic, 0)}),
        ApiKey.SASL_AUTHENTICATE: (Where.HOME, lambda scene: {"auth_bytes": b"\0user\0password"}),
        ApiKey.CREATE_PARTITIONS: (Where.CONTROLLER, _create_partitions),
        ApiKey.CREATE_DELEGATION_TOKEN: (Where.CONTROLLER, _tokens),
        ApiKey.RENEW_DELEGATION_TOKEN: (Where.CONTROLLER, _tokens),
        ApiKey.EXPIRE_DELEGATION_TOKEN: (Where.CONTROLLER, _tokens),
        ApiKey.DESCRIBE_DELEGATION_TOKEN: (Where.HOME, _tokens),
        ApiKey.DELETE_GROUPS: (Where.GROUP, lambda scene: {"groups_names": [scene.unknown]}),
        ApiKey.ELECT_LEADERS: (
            Where.CONTROLLER,
            lambda scene: {
                "election_type": 0,
                "topic_partitions": _numbered(scene.scratch, 0),
                "timeout": TIMEOUT_MS,
            },
        ),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: (Where.HOME, _configs),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: (Where.CONTROLLER, _reassignments),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: (Where.CONTROLLER, _reassignments),
        ApiKey.OFFSET_DELETE: (
            Where.GROUP,
            lambda scene: {"group_id": scene.group, "topics": _topic_rows(scene, scene.scratch, {})},
        ),
        ApiKey.DESCRIBE_CLIENT_QUOTAS: (Where.HOME, _quotas),
        ApiKey.ALTER_CLIENT_QUOTAS: (Where.CONTROLLER, _quotas),
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (Where.HOME, _scram),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (Where.CONTROLLER, _scram),
        DESCRIBE_QUORUM: (
            Where.CONTROLLER,
            lambda scene: {"topics": [{"topic_name": scene.topic, "partitions": [{"partition_index": 0}]}]},
        ),
        ApiKey.DESCRIBE_CLUSTER: (Where.HOME, lambda scene: {"endpoint_type": 1}),
        ApiKey.DESCRIBE_PRODUCERS: (Where.HOME, lambda scene: {"topics": _numbered(scene.topic, 0)}),
        ApiKey.DESCRIBE_TRANSACTIONS: (Where.TRANSACTION, lambda scene: {"transactional_ids": [scene.unknown]}),
        ApiKey.LIST_TRANSACTIONS: (
            Where.TRANSACTION,
            lambda scene: {"state_filters": ["Ongoing"], "producer_id_filters": [], "duration_filter": -1},
        ),
        ApiKey.CONSUMER_GROUP_HEARTBEAT: (Where.GROUP, _consumer_group),
        ApiKey.CONSUMER_GROUP_DESCRIBE: (Where.GROUP, _consumer_group),
        TELEMETRY_SUBSCRIPTIONS: (Where.HOME, lambda scene: {}),
        PUSH_TELEMETRY: (Where.HOME, lambda scene: {}),
        LIST_CLIENT_METRICS: (Where.HOME, lambda scene: {}),
        DESCRIBE_TOPIC_PARTITIONS: (Where.HOME, lambda scene: {"topics": [{"name": scene.topic}]}),
    }
)
"""API key -> (the broker that serves it, the body)."""


def complete(schema: Any, given: Mapping[str, Any]) -> Body:
    """A body with every field of `schema`: from `given`, else its default, else zero or nothing. Raises no error for more fields."""
    body: Body = {}
    for field in by_schema.fields_of(schema):
        if field.name in given:
            value = given[field.name]
            if field.element is not None and value is not None:
                rows = [complete(field.element, row) for row in (value if field.is_array else [value])]
                value = rows if field.is_array else rows[0]
            elif value is None and not field.is_nullable and field.kafka_type == "string":
                value = ""  # an earlier version, which has no null here
            body[field.name] = value
        elif field.tag is None:
            body[field.name] = _nothing(field)
    return body


def _nothing(field: Any) -> Any:
    if field.default is not MISSING:
        return field.default
    if field.is_array:
        return None if field.is_nullable else []
    if field.element is not None:
        return None if field.is_nullable else complete(field.element, {})
    if field.kafka_type == "string":
        return None if field.is_nullable else ""
    if field.kafka_type in ("bytes", "records"):
        return None if field.is_nullable else b""
    return None if field.kafka_type == "uuid" else 0
