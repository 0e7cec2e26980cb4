"""The routing table: which function serves which API.

A handler answers through the request, now or later, and returns None. A handler that must await returns a coroutine: the next
requests of the connection are handled after it. Versions are in `protocol.kafka.api_keys.SUPPORTED`.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from types import MappingProxyType
from typing import Any

from broker.apis.acls import acls
from broker.apis.add_offsets_to_txn import add_offsets_to_txn
from broker.apis.add_partitions_to_txn import add_partitions_to_txn
from broker.apis.alter_configs import alter_configs
from broker.apis.alter_partition_reassignments import alter_partition_reassignments
from broker.apis.alter_replica_log_dirs import alter_replica_log_dirs
from broker.apis.api_versions import api_versions
from broker.apis.consumer_groups import consumer_groups
from broker.apis.create_partitions import create_partitions
from broker.apis.create_topics import create_topics
from broker.apis.delegation_tokens import delegation_tokens
from broker.apis.delete_groups import delete_groups
from broker.apis.delete_records import delete_records
from broker.apis.delete_topics import delete_topics
from broker.apis.describe_cluster import describe_cluster
from broker.apis.describe_configs import describe_configs
from broker.apis.describe_groups import describe_groups
from broker.apis.describe_log_dirs import describe_log_dirs
from broker.apis.describe_producers import describe_producers
from broker.apis.describe_transactions import describe_transactions
from broker.apis.elect_leaders import elect_leaders
from broker.apis.end_txn import end_txn
from broker.apis.fetch import fetch
from broker.apis.find_coordinator import find_coordinator
from broker.apis.heartbeat import heartbeat
from broker.apis.incremental_alter_configs import incremental_alter_configs
from broker.apis.init_producer_id import init_producer_id
from broker.apis.join_group import join_group
from broker.apis.leave_group import leave_group
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
from broker.apis.sasl import sasl
from broker.apis.sync_group import sync_group
from broker.apis.txn_offset_commit import txn_offset_commit
from broker.apis.update_features import update_features
from broker.apis.write_txn_markers import write_txn_markers
from broker.network.request_channel import Request
from broker.requests.context import ApiContext
from protocol.kafka.api_keys import ApiKey

Handler = Callable[[ApiContext, Request], Coroutine[Any, Any, None] | None]

HANDLERS: Mapping[ApiKey, Handler] = MappingProxyType(
    {
        ApiKey.PRODUCE: produce,
        ApiKey.FETCH: fetch,
        ApiKey.LIST_OFFSETS: list_offsets,
        ApiKey.METADATA: metadata,
        ApiKey.OFFSET_COMMIT: offset_commit,
        ApiKey.OFFSET_FETCH: offset_fetch,
        ApiKey.FIND_COORDINATOR: find_coordinator,
        ApiKey.JOIN_GROUP: join_group,
        ApiKey.HEARTBEAT: heartbeat,
        ApiKey.LEAVE_GROUP: leave_group,
        ApiKey.SYNC_GROUP: sync_group,
        ApiKey.DESCRIBE_GROUPS: describe_groups,
        ApiKey.LIST_GROUPS: list_groups,
        ApiKey.SASL_HANDSHAKE: sasl,
        ApiKey.API_VERSIONS: api_versions,
        ApiKey.CREATE_TOPICS: create_topics,
        ApiKey.DELETE_TOPICS: delete_topics,
        ApiKey.DELETE_RECORDS: delete_records,
        ApiKey.INIT_PRODUCER_ID: init_producer_id,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: offset_for_leader_epoch,
        ApiKey.ADD_PARTITIONS_TO_TXN: add_partitions_to_txn,
        ApiKey.ADD_OFFSETS_TO_TXN: add_offsets_to_txn,
        ApiKey.END_TXN: end_txn,
        ApiKey.DESCRIBE_ACLS: acls,
        ApiKey.CREATE_ACLS: acls,
        ApiKey.DELETE_ACLS: acls,
        ApiKey.WRITE_TXN_MARKERS: write_txn_markers,
        ApiKey.TXN_OFFSET_COMMIT: txn_offset_commit,
        ApiKey.DESCRIBE_CONFIGS: describe_configs,
        ApiKey.ALTER_CONFIGS: alter_configs,
        ApiKey.ALTER_REPLICA_LOG_DIRS: alter_replica_log_dirs,
        ApiKey.DESCRIBE_LOG_DIRS: describe_log_dirs,
        ApiKey.SASL_AUTHENTICATE: sasl,
        ApiKey.CREATE_PARTITIONS: create_partitions,
        ApiKey.CREATE_DELEGATION_TOKEN: delegation_tokens,
        ApiKey.RENEW_DELEGATION_TOKEN: delegation_tokens,
        ApiKey.EXPIRE_DELEGATION_TOKEN: delegation_tokens,
        ApiKey.DESCRIBE_DELEGATION_TOKEN: delegation_tokens,
        ApiKey.DELETE_GROUPS: delete_groups,
        ApiKey.ELECT_LEADERS: elect_leaders,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: incremental_alter_configs,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: alter_partition_reassignments,
        ApiKey.LIST_PARTITION_REASSIGNMENTS: list_partition_reassignments,
        ApiKey.OFFSET_DELETE: offset_delete,
        ApiKey.UPDATE_FEATURES: update_features,
        ApiKey.DESCRIBE_CLUSTER: describe_cluster,
        ApiKey.DESCRIBE_PRODUCERS: describe_producers,
        ApiKey.DESCRIBE_TRANSACTIONS: describe_transactions,
        ApiKey.LIST_TRANSACTIONS: list_transactions,
        ApiKey.CONSUMER_GROUP_HEARTBEAT: consumer_groups,
        ApiKey.CONSUMER_GROUP_DESCRIBE: consumer_groups,
    }
)
