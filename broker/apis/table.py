"""The routing table: which function serves which API.

A handler answers through the request, now or later, and returns None. A handler that must await returns a coroutine: the next
requests of the connection are handled after it. Versions are in `protocol.kafka.api_keys.SUPPORTED`.

Each row also has the handler's guard: the rights that it asks for with an authorizer, as KafkaApis does (`broker/requests/rights.py`).
Which of them a request needs depends on what it names; the handlers say so. `tests/unit/broker/apis/test_guards.py` compares the rows
with what the handlers ask.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from broker.apis.acls import acls
from broker.apis.add_offsets_to_txn import add_offsets_to_txn
from broker.apis.add_partitions_to_txn import add_partitions_to_txn
from broker.apis.alter_configs import alter_configs
from broker.apis.alter_partition_reassignments import alter_partition_reassignments
from broker.apis.alter_replica_log_dirs import alter_replica_log_dirs
from broker.apis.api_versions import api_versions
from broker.apis.client_quotas import alter_client_quotas, describe_client_quotas
from broker.apis.consumer_group_describe import consumer_group_describe
from broker.apis.consumer_group_heartbeat import consumer_group_heartbeat
from broker.apis.coordinated import Handler, by_group_coordinator, by_transaction_coordinator
from broker.apis.create_partitions import create_partitions
from broker.apis.create_topics import create_topics
from broker.apis.delegation_tokens import (
    create_delegation_token,
    describe_delegation_token,
    expire_delegation_token,
    renew_delegation_token,
)
from broker.apis.delete_groups import delete_groups
from broker.apis.delete_records import delete_records
from broker.apis.delete_topics import delete_topics
from broker.apis.describe_cluster import describe_cluster
from broker.apis.describe_configs import describe_configs
from broker.apis.describe_groups import describe_groups
from broker.apis.describe_log_dirs import describe_log_dirs
from broker.apis.describe_producers import describe_producers
from broker.apis.describe_topic_partitions import describe_topic_partitions
from broker.apis.describe_transactions import describe_transactions
from broker.apis.elect_leaders import elect_leaders
from broker.apis.end_txn import end_txn
from broker.apis.fetch import fetch
from broker.apis.find_coordinator import find_coordinator
from broker.apis.get_telemetry_subscriptions import get_telemetry_subscriptions
from broker.apis.heartbeat import heartbeat
from broker.apis.incremental_alter_configs import incremental_alter_configs
from broker.apis.init_producer_id import init_producer_id
from broker.apis.join_group import join_group
from broker.apis.leave_group import leave_group
from broker.apis.list_config_resources import list_config_resources
from broker.apis.list_groups import list_groups
from broker.apis.list_offsets import list_offsets
from broker.apis.list_partition_reassignments import list_partition_reassignments
from broker.apis.list_transactions import list_transactions
from broker.apis.metadata import metadata
from broker.apis.offset_commit import offset_commit
from broker.apis.offset_delete import offset_delete
from broker.apis.offset_fetch import offset_fetch
from broker.apis.offset_for_leader_epoch import offset_for_leader_epoch
from broker.apis.produce import produce
from broker.apis.push_telemetry import push_telemetry
from broker.apis.sasl import sasl
from broker.apis.scram_credentials import alter_user_scram_credentials, describe_user_scram_credentials
from broker.apis.sync_group import sync_group
from broker.apis.txn_offset_commit import txn_offset_commit
from broker.apis.update_features import update_features
from broker.apis.write_txn_markers import write_txn_markers
from protocol.acls import Operation, ResourceType
from protocol.kafka.api_keys import ApiKey

Right = tuple[Operation, ResourceType]


class Route(NamedTuple):
    """`rights`: all that the handler may ask for."""

    handler: Handler
    rights: tuple[Right, ...]


ALTER = Operation.ALTER
ALTER_CONFIGS = Operation.ALTER_CONFIGS
CLUSTER_ACTION = Operation.CLUSTER_ACTION
CREATE = Operation.CREATE
CREATE_TOKENS = Operation.CREATE_TOKENS
DELETE = Operation.DELETE
DESCRIBE = Operation.DESCRIBE
DESCRIBE_CONFIGS = Operation.DESCRIBE_CONFIGS
DESCRIBE_TOKENS = Operation.DESCRIBE_TOKENS
IDEMPOTENT_WRITE = Operation.IDEMPOTENT_WRITE
READ = Operation.READ
WRITE = Operation.WRITE
TOPIC = ResourceType.TOPIC
GROUP = ResourceType.GROUP
CLUSTER = ResourceType.CLUSTER
TRANSACTIONAL_ID = ResourceType.TRANSACTIONAL_ID
DELEGATION_TOKEN = ResourceType.DELEGATION_TOKEN
USER = ResourceType.USER

NOTHING: tuple[Right, ...] = ()
"""Anybody may send the request: it is about the connection itself, decides by its content, or is never allowed here."""

ROUTES: Mapping[ApiKey, Route] = MappingProxyType(
    {
        ApiKey.PRODUCE: Route(
            produce,
            (
                (WRITE, TOPIC),
                (WRITE, TRANSACTIONAL_ID),
            ),
        ),
        ApiKey.FETCH: Route(
            fetch,
            (
                (READ, TOPIC),
                (CLUSTER_ACTION, CLUSTER),
            ),
        ),
        ApiKey.LIST_OFFSETS: Route(list_offsets, ((DESCRIBE, TOPIC),)),
        ApiKey.METADATA: Route(
            metadata,
            (
                (DESCRIBE, TOPIC),
                (CREATE, TOPIC),
                (CREATE, CLUSTER),
                (DESCRIBE, CLUSTER),
            ),
        ),
        ApiKey.OFFSET_COMMIT: Route(
            offset_commit,
            (
                (READ, GROUP),
                (READ, TOPIC),
            ),
        ),
        ApiKey.OFFSET_FETCH: Route(
            by_group_coordinator(offset_fetch),
            (
                (DESCRIBE, GROUP),
                (DESCRIBE, TOPIC),
            ),
        ),
        ApiKey.FIND_COORDINATOR: Route(
            find_coordinator,
            (
                (DESCRIBE, GROUP),
                (DESCRIBE, TRANSACTIONAL_ID),
            ),
        ),
        ApiKey.JOIN_GROUP: Route(by_group_coordinator(join_group), ((READ, GROUP),)),
        ApiKey.HEARTBEAT: Route(by_group_coordinator(heartbeat), ((READ, GROUP),)),
        ApiKey.LEAVE_GROUP: Route(leave_group, ((READ, GROUP),)),
        ApiKey.SYNC_GROUP: Route(by_group_coordinator(sync_group), ((READ, GROUP),)),
        ApiKey.DESCRIBE_GROUPS: Route(describe_groups, ((DESCRIBE, GROUP),)),
        ApiKey.LIST_GROUPS: Route(
            list_groups,
            (
                (DESCRIBE, CLUSTER),
                (DESCRIBE, GROUP),
            ),
        ),
        ApiKey.SASL_HANDSHAKE: Route(sasl, NOTHING),
        ApiKey.API_VERSIONS: Route(api_versions, NOTHING),
        ApiKey.CREATE_TOPICS: Route(
            create_topics,
            (
                (CREATE, CLUSTER),
                (CREATE, TOPIC),
                (DESCRIBE_CONFIGS, TOPIC),
            ),
        ),
        ApiKey.DELETE_TOPICS: Route(
            delete_topics,
            (
                (DELETE, TOPIC),
                (DESCRIBE, TOPIC),
            ),
        ),
        ApiKey.DELETE_RECORDS: Route(delete_records, ((DELETE, TOPIC),)),
        ApiKey.INIT_PRODUCER_ID: Route(
            by_transaction_coordinator(init_producer_id),
            (
                (WRITE, TRANSACTIONAL_ID),
                (IDEMPOTENT_WRITE, CLUSTER),
                (WRITE, TOPIC),
            ),
        ),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: Route(
            offset_for_leader_epoch,
            (
                (CLUSTER_ACTION, CLUSTER),
                (DESCRIBE, TOPIC),
            ),
        ),
        ApiKey.ADD_PARTITIONS_TO_TXN: Route(
            by_transaction_coordinator(add_partitions_to_txn),
            (
                (WRITE, TRANSACTIONAL_ID),
                (WRITE, TOPIC),
                (CLUSTER_ACTION, CLUSTER),
            ),
        ),
        ApiKey.ADD_OFFSETS_TO_TXN: Route(
            by_transaction_coordinator(add_offsets_to_txn),
            (
                (WRITE, TRANSACTIONAL_ID),
                (READ, GROUP),
            ),
        ),
        ApiKey.END_TXN: Route(by_transaction_coordinator(end_txn), ((WRITE, TRANSACTIONAL_ID),)),
        ApiKey.DESCRIBE_ACLS: Route(acls, ((DESCRIBE, CLUSTER),)),
        ApiKey.CREATE_ACLS: Route(acls, ((ALTER, CLUSTER),)),
        ApiKey.DELETE_ACLS: Route(acls, ((ALTER, CLUSTER),)),
        ApiKey.WRITE_TXN_MARKERS: Route(
            write_txn_markers,
            (
                (ALTER, CLUSTER),
                (CLUSTER_ACTION, CLUSTER),
            ),
        ),
        ApiKey.TXN_OFFSET_COMMIT: Route(
            txn_offset_commit,
            (
                (WRITE, TRANSACTIONAL_ID),
                (READ, GROUP),
                (READ, TOPIC),
            ),
        ),
        ApiKey.DESCRIBE_CONFIGS: Route(
            describe_configs,
            (
                (DESCRIBE_CONFIGS, TOPIC),
                (DESCRIBE_CONFIGS, GROUP),
                (DESCRIBE_CONFIGS, CLUSTER),
            ),
        ),
        ApiKey.ALTER_CONFIGS: Route(
            alter_configs,
            (
                (ALTER_CONFIGS, TOPIC),
                (ALTER_CONFIGS, GROUP),
                (ALTER_CONFIGS, CLUSTER),
            ),
        ),
        ApiKey.ALTER_REPLICA_LOG_DIRS: Route(alter_replica_log_dirs, ((ALTER, CLUSTER),)),
        ApiKey.DESCRIBE_LOG_DIRS: Route(describe_log_dirs, ((DESCRIBE, CLUSTER),)),
        ApiKey.SASL_AUTHENTICATE: Route(sasl, NOTHING),
        ApiKey.CREATE_PARTITIONS: Route(create_partitions, ((ALTER, TOPIC),)),
        ApiKey.CREATE_DELEGATION_TOKEN: Route(create_delegation_token, ((CREATE_TOKENS, USER),)),
        ApiKey.RENEW_DELEGATION_TOKEN: Route(renew_delegation_token, NOTHING),
        ApiKey.EXPIRE_DELEGATION_TOKEN: Route(expire_delegation_token, NOTHING),
        ApiKey.DESCRIBE_DELEGATION_TOKEN: Route(
            describe_delegation_token, ((DESCRIBE, DELEGATION_TOKEN), (DESCRIBE_TOKENS, USER))
        ),
        ApiKey.DELETE_GROUPS: Route(delete_groups, ((DELETE, GROUP),)),
        ApiKey.ELECT_LEADERS: Route(elect_leaders, ((ALTER, CLUSTER),)),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: Route(
            incremental_alter_configs,
            (
                (ALTER_CONFIGS, TOPIC),
                (ALTER_CONFIGS, GROUP),
                (ALTER_CONFIGS, CLUSTER),
            ),
        ),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: Route(alter_partition_reassignments, ((ALTER, CLUSTER),)),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: Route(list_partition_reassignments, ((DESCRIBE, CLUSTER),)),
        ApiKey.OFFSET_DELETE: Route(
            offset_delete,
            (
                (DELETE, GROUP),
                (READ, TOPIC),
            ),
        ),
        ApiKey.DESCRIBE_CLIENT_QUOTAS: Route(describe_client_quotas, ((DESCRIBE_CONFIGS, CLUSTER),)),
        ApiKey.ALTER_CLIENT_QUOTAS: Route(alter_client_quotas, ((ALTER_CONFIGS, CLUSTER),)),
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: Route(describe_user_scram_credentials, ((DESCRIBE, CLUSTER),)),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: Route(alter_user_scram_credentials, ((ALTER, CLUSTER),)),
        ApiKey.UPDATE_FEATURES: Route(update_features, ((ALTER, CLUSTER),)),
        ApiKey.DESCRIBE_CLUSTER: Route(describe_cluster, ((DESCRIBE, CLUSTER),)),
        ApiKey.DESCRIBE_PRODUCERS: Route(describe_producers, ((READ, TOPIC),)),
        ApiKey.DESCRIBE_TRANSACTIONS: Route(
            describe_transactions,
            (
                (DESCRIBE, TRANSACTIONAL_ID),
                (DESCRIBE, TOPIC),
            ),
        ),
        ApiKey.LIST_TRANSACTIONS: Route(list_transactions, ((DESCRIBE, TRANSACTIONAL_ID),)),
        ApiKey.CONSUMER_GROUP_HEARTBEAT: Route(
            by_group_coordinator(consumer_group_heartbeat),
            (
                (READ, GROUP),
                (DESCRIBE, TOPIC),
            ),
        ),
        ApiKey.CONSUMER_GROUP_DESCRIBE: Route(consumer_group_describe, ((DESCRIBE, GROUP),)),
        ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: Route(get_telemetry_subscriptions, NOTHING),
        ApiKey.PUSH_TELEMETRY: Route(push_telemetry, NOTHING),
        ApiKey.LIST_CONFIG_RESOURCES: Route(list_config_resources, ((DESCRIBE_CONFIGS, CLUSTER),)),
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: Route(describe_topic_partitions, ((DESCRIBE, TOPIC),)),
    }
)

HANDLERS: Mapping[ApiKey, Handler] = MappingProxyType({key: route.handler for key, route in ROUTES.items()})
