"""Kafka's API keys, and the versions of each API that ottla serves at each level (`broker.api.level`).

At level 3.9, the versions range from the oldest in Kafka 4 (KIP-896, also kio's oldest) to the newest in Kafka 3.9.1. A few are older,
for clients that do not ask for ApiVersions: `earlier_schemas` has their messages. At level 4, they are among those of Kafka 4.1.1 in
KRaft mode, and ListOffsets v11, which is Kafka 4.2's.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, StrEnum
from types import MappingProxyType
from typing import NamedTuple


class ApiKey(IntEnum):
    """The first field of every request."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    GET_TELEMETRY_SUBSCRIPTIONS = 71
    PUSH_TELEMETRY = 72
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75


class ApiLevel(StrEnum):
    """Whose APIs and versions a broker serves to clients: a value of `broker.api.level`."""

    KAFKA_3_9 = "3.9"
    KAFKA_4 = "4"


class VersionRange(NamedTuple):
    """Both ends are included."""

    min: int
    max: int


_VERSIONS: Mapping[ApiKey, tuple[tuple[int, int] | None, tuple[int, int] | None]] = MappingProxyType(
    {
        ApiKey.PRODUCE: ((3, 11), (3, 13)),
        ApiKey.FETCH: ((4, 17), (4, 18)),
        ApiKey.LIST_OFFSETS: ((0, 9), (1, 11)),
        ApiKey.METADATA: ((0, 12), (0, 13)),
        ApiKey.OFFSET_COMMIT: ((1, 9), (2, 10)),
        ApiKey.OFFSET_FETCH: ((1, 9), (1, 10)),
        ApiKey.FIND_COORDINATOR: ((0, 6), (0, 6)),
        ApiKey.JOIN_GROUP: ((0, 9), (0, 9)),
        ApiKey.HEARTBEAT: ((0, 4), (0, 4)),
        ApiKey.LEAVE_GROUP: ((0, 5), (0, 5)),
        ApiKey.SYNC_GROUP: ((0, 5), (0, 5)),
        ApiKey.DESCRIBE_GROUPS: ((0, 5), (0, 6)),
        ApiKey.LIST_GROUPS: ((0, 5), (0, 5)),
        ApiKey.SASL_HANDSHAKE: ((0, 1), (0, 1)),
        ApiKey.API_VERSIONS: ((0, 4), (0, 4)),
        ApiKey.CREATE_TOPICS: ((0, 7), (2, 7)),
        ApiKey.DELETE_TOPICS: ((0, 6), (1, 6)),
        ApiKey.DELETE_RECORDS: ((0, 2), (0, 2)),
        ApiKey.INIT_PRODUCER_ID: ((0, 5), (0, 6)),
        ApiKey.OFFSET_FOR_LEADER_EPOCH: ((2, 4), (2, 4)),
        ApiKey.ADD_PARTITIONS_TO_TXN: ((0, 5), (0, 5)),
        ApiKey.ADD_OFFSETS_TO_TXN: ((0, 4), (0, 4)),
        ApiKey.END_TXN: ((0, 4), (0, 5)),
        ApiKey.DESCRIBE_ACLS: ((1, 3), (1, 3)),
        ApiKey.CREATE_ACLS: ((1, 3), (1, 3)),
        ApiKey.DELETE_ACLS: ((1, 3), (1, 3)),
        ApiKey.WRITE_TXN_MARKERS: ((1, 1), (1, 1)),
        ApiKey.TXN_OFFSET_COMMIT: ((0, 4), (0, 5)),
        ApiKey.DESCRIBE_CONFIGS: ((1, 4), (1, 4)),
        ApiKey.ALTER_CONFIGS: ((0, 2), (0, 2)),
        ApiKey.ALTER_REPLICA_LOG_DIRS: ((1, 2), (1, 2)),
        ApiKey.DESCRIBE_LOG_DIRS: ((1, 4), (1, 4)),
        ApiKey.SASL_AUTHENTICATE: ((0, 2), (0, 2)),
        ApiKey.CREATE_PARTITIONS: ((0, 3), (0, 3)),
        ApiKey.CREATE_DELEGATION_TOKEN: ((1, 3), (1, 3)),
        ApiKey.RENEW_DELEGATION_TOKEN: ((1, 2), (1, 2)),
        ApiKey.EXPIRE_DELEGATION_TOKEN: ((1, 2), (1, 2)),
        ApiKey.DESCRIBE_DELEGATION_TOKEN: ((1, 3), (1, 3)),
        ApiKey.DELETE_GROUPS: ((0, 2), (0, 2)),
        ApiKey.ELECT_LEADERS: ((0, 2), (0, 2)),
        ApiKey.INCREMENTAL_ALTER_CONFIGS: ((0, 1), (0, 1)),
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: ((0, 0), (0, 1)),
        ApiKey.LIST_PARTITION_REASSIGNMENTS: ((0, 0), (0, 0)),
        ApiKey.OFFSET_DELETE: ((0, 0), (0, 0)),
        ApiKey.DESCRIBE_CLIENT_QUOTAS: ((0, 1), (0, 1)),
        ApiKey.ALTER_CLIENT_QUOTAS: ((0, 1), (0, 1)),
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: ((0, 0), (0, 0)),
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: ((0, 0), (0, 0)),
        ApiKey.UPDATE_FEATURES: ((0, 1), (0, 2)),
        ApiKey.DESCRIBE_CLUSTER: ((0, 1), (0, 2)),
        ApiKey.DESCRIBE_PRODUCERS: ((0, 0), (0, 0)),
        ApiKey.DESCRIBE_TRANSACTIONS: ((0, 0), (0, 0)),
        ApiKey.LIST_TRANSACTIONS: ((0, 1), (0, 2)),
        ApiKey.CONSUMER_GROUP_HEARTBEAT: ((0, 0), (0, 1)),
        ApiKey.CONSUMER_GROUP_DESCRIBE: ((0, 0), (0, 1)),
        ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: (None, (0, 0)),
        ApiKey.PUSH_TELEMETRY: (None, (0, 0)),
        ApiKey.LIST_CONFIG_RESOURCES: (None, (0, 1)),
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: (None, (0, 0)),
    }
)
"""(oldest, newest) at level 3.9, and at level 4. None: the level does not have the API."""


def _at_level(column: int) -> Mapping[ApiKey, VersionRange]:
    cells = ((key, row[column]) for key, row in _VERSIONS.items())
    return MappingProxyType({key: VersionRange(*versions) for key, versions in cells if versions is not None})


SERVED: Mapping[ApiLevel, Mapping[ApiKey, VersionRange]] = MappingProxyType(
    {level: _at_level(column) for column, level in enumerate(ApiLevel)}
)
"""The versions that ottla serves at each level."""


_OF_BROKERS: Mapping[ApiKey, VersionRange] = MappingProxyType({ApiKey.WRITE_TXN_MARKERS: VersionRange(1, 2)})
"""Versions that brokers send to each other, at every level: two brokers may have different ones while the level changes."""


def _at_any_level(key: ApiKey) -> VersionRange:
    found = [served[key] for served in (*SERVED.values(), _OF_BROKERS) if key in served]
    return VersionRange(min(versions.min for versions in found), max(versions.max for versions in found))


SUPPORTED: Mapping[ApiKey, VersionRange] = MappingProxyType({key: _at_any_level(key) for key in _VERSIONS})
"""The versions that ottla can serve, each at one level at least, or to brokers."""

ADVERTISED: Mapping[ApiLevel, Mapping[ApiKey, VersionRange]] = MappingProxyType(
    {
        level: MappingProxyType({**served, ApiKey.PRODUCE: VersionRange(0, served[ApiKey.PRODUCE].max)})
        for level, served in SERVED.items()
    }
)
"""The versions in the ApiVersions response of a level: those that are served, and Produce v0 to v2. librdkafka 2.6 compresses with gzip,
snappy or lz4 only if Produce v0 is advertised, and Kafka 4 advertises it for the same reason (KAFKA-18659)."""

ANSWERED: Mapping[ApiLevel, Mapping[ApiKey, VersionRange]] = MappingProxyType(
    {
        ApiLevel.KAFKA_3_9: MappingProxyType(
            {
                **ADVERTISED[ApiLevel.KAFKA_3_9],
                **_OF_BROKERS,
                ApiKey.FETCH: VersionRange(0, SERVED[ApiLevel.KAFKA_3_9][ApiKey.FETCH].max),
            }
        ),
        ApiLevel.KAFKA_4: MappingProxyType({**SERVED[ApiLevel.KAFKA_4], **_OF_BROKERS}),
    }
)
"""The versions that are answered. At level 3.9: those in the ApiVersions response, of which Produce v0 to v2 get
UNSUPPORTED_FOR_MESSAGE_FORMAT; and Fetch v0 to v3, which get UNSUPPORTED_VERSION for each partition, as from a Kafka that may not convert
records. A client that asks for ApiVersions must not choose them; one that does not ask reads why it gets no records. At level 4, as in
Kafka 4, only what is served is answered, and at both levels WriteTxnMarkers v2, by which no client asks."""

FIRST_FLEXIBLE: Mapping[int, int] = MappingProxyType(
    {
        ApiKey.PRODUCE: 9,
        ApiKey.FETCH: 12,
        ApiKey.LIST_OFFSETS: 6,
        ApiKey.METADATA: 9,
        ApiKey.OFFSET_COMMIT: 8,
        ApiKey.OFFSET_FETCH: 6,
        ApiKey.FIND_COORDINATOR: 3,
        ApiKey.JOIN_GROUP: 6,
        ApiKey.HEARTBEAT: 4,
        ApiKey.LEAVE_GROUP: 4,
        ApiKey.SYNC_GROUP: 4,
        ApiKey.DESCRIBE_GROUPS: 5,
        ApiKey.LIST_GROUPS: 3,
        ApiKey.SASL_HANDSHAKE: 2,  # no flexible version yet
        ApiKey.API_VERSIONS: 3,
        ApiKey.CREATE_TOPICS: 5,
        ApiKey.DELETE_TOPICS: 4,
        ApiKey.DELETE_RECORDS: 2,
        ApiKey.INIT_PRODUCER_ID: 2,
        ApiKey.OFFSET_FOR_LEADER_EPOCH: 4,
        ApiKey.ADD_PARTITIONS_TO_TXN: 3,
        ApiKey.ADD_OFFSETS_TO_TXN: 3,
        ApiKey.END_TXN: 3,
        ApiKey.DESCRIBE_ACLS: 2,
        ApiKey.CREATE_ACLS: 2,
        ApiKey.DELETE_ACLS: 2,
        ApiKey.WRITE_TXN_MARKERS: 1,
        ApiKey.TXN_OFFSET_COMMIT: 3,
        ApiKey.DESCRIBE_CONFIGS: 4,
        ApiKey.ALTER_CONFIGS: 2,
        ApiKey.ALTER_REPLICA_LOG_DIRS: 2,
        ApiKey.DESCRIBE_LOG_DIRS: 2,
        ApiKey.SASL_AUTHENTICATE: 2,
        ApiKey.CREATE_PARTITIONS: 2,
        ApiKey.CREATE_DELEGATION_TOKEN: 2,
        ApiKey.RENEW_DELEGATION_TOKEN: 2,
        ApiKey.EXPIRE_DELEGATION_TOKEN: 2,
        ApiKey.DESCRIBE_DELEGATION_TOKEN: 2,
        ApiKey.DELETE_GROUPS: 2,
        ApiKey.ELECT_LEADERS: 2,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: 1,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: 0,
        ApiKey.LIST_PARTITION_REASSIGNMENTS: 0,
        ApiKey.OFFSET_DELETE: 1,  # no flexible version yet
        ApiKey.DESCRIBE_CLIENT_QUOTAS: 1,
        ApiKey.ALTER_CLIENT_QUOTAS: 1,
        ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: 0,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: 0,
        ApiKey.UPDATE_FEATURES: 0,
        ApiKey.DESCRIBE_CLUSTER: 0,
        ApiKey.DESCRIBE_PRODUCERS: 0,
        ApiKey.DESCRIBE_TRANSACTIONS: 0,
        ApiKey.LIST_TRANSACTIONS: 0,
        ApiKey.CONSUMER_GROUP_HEARTBEAT: 0,
        ApiKey.CONSUMER_GROUP_DESCRIBE: 0,
        ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: 0,
        ApiKey.PUSH_TELEMETRY: 0,
        ApiKey.LIST_CONFIG_RESOURCES: 0,
        ApiKey.DESCRIBE_TOPIC_PARTITIONS: 0,
    }
)
"""The first version with tagged fields and compact lengths (KIP-482), which also decides the header's version."""
