"""Typed settings of a broker and of a topic, under Kafka's keys.

An attribute's name is the Kafka key with `_` for `.`: `replica_lag_time_max_ms` is `replica.lag.time.max.ms`.
Reading them from files, environment and flags is `broker.config_sources`' work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class ConfigError(ValueError):
    """A value that is not allowed; the message names key, value and what is allowed."""


def setting(
    default: Any,
    *,
    minimum: int | None = None,
    maximum: int | None = None,
    choices: tuple[str, ...] | None = None,
    doc: str = "",
) -> Any:
    """A dataclass field with the limits that `parse_value` checks."""
    metadata = {"minimum": minimum, "maximum": maximum, "choices": choices, "doc": doc}
    if isinstance(default, list | dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """What `server.properties` says. Defaults are Kafka 3.9's where the key is Kafka's."""

    # who and where
    broker_id: int = setting(-1, minimum=-1, maximum=INT_MAX, doc="id of this broker, unique in the cluster")
    broker_rack: str = setting("", doc="rack of this broker")
    zookeeper_connect: str = setting("", doc="host:port[,host:port...][/chroot]")
    zookeeper_session_timeout_ms: int = setting(18000, minimum=100)
    zookeeper_connection_timeout_ms: int = setting(18000, minimum=100)
    listeners: str = setting("PLAINTEXT://:9092", doc="NAME://host:port[,NAME://host:port...]")
    advertised_listeners: str = setting("", doc="what clients are told; default: listeners")
    listener_security_protocol_map: str = setting("PLAINTEXT:PLAINTEXT", doc="NAME:PROTOCOL[,...]")
    inter_broker_listener_name: str = setting(
        "", doc="of the followers' fetches; default: the first that is not the control plane's"
    )
    control_plane_listener_name: str = setting(
        "", doc="of the control RPC; default: CONTROLLER, made on a free port if missing"
    )

    # the log
    log_dirs: str = setting("/tmp/ottla-logs", doc="comma-separated directories")
    log_segment_bytes: int = setting(1024**3, minimum=14, maximum=INT_MAX)
    log_roll_ms: int = setting(7 * 24 * 3600 * 1000, minimum=1)
    log_roll_jitter_ms: int = setting(0, minimum=0)
    log_index_size_max_bytes: int = setting(10 * 1024**2, minimum=4, maximum=INT_MAX)
    log_index_interval_bytes: int = setting(4096, minimum=0, maximum=INT_MAX)
    log_retention_ms: int = setting(7 * 24 * 3600 * 1000, minimum=-1)
    log_retention_bytes: int = setting(-1, minimum=-1)
    log_cleanup_policy: str = setting("delete", choices=("delete", "compact", "compact,delete", "delete,compact"))
    log_message_timestamp_type: str = setting("CreateTime", choices=("CreateTime", "LogAppendTime"))
    log_flush_interval_messages: int = setting(LONG_MAX, minimum=1)
    log_flush_interval_ms: int = setting(LONG_MAX, minimum=0)
    log_flush_offset_checkpoint_interval_ms: int = setting(60000, minimum=0)
    log_flush_start_offset_checkpoint_interval_ms: int = setting(60000, minimum=0)
    message_max_bytes: int = setting(1048588, minimum=0, maximum=INT_MAX)

    # topics
    auto_create_topics_enable: bool = setting(True)
    delete_topic_enable: bool = setting(True)
    num_partitions: int = setting(1, minimum=1, maximum=INT_MAX)
    default_replication_factor: int = setting(1, minimum=1, maximum=32767)
    min_insync_replicas: int = setting(1, minimum=1, maximum=INT_MAX)
    unclean_leader_election_enable: bool = setting(False)
    compression_type: str = setting("producer", choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"))

    # replication
    replica_lag_time_max_ms: int = setting(30000, minimum=1)
    replica_fetch_max_bytes: int = setting(1024**2, minimum=0, maximum=INT_MAX)
    replica_fetch_response_max_bytes: int = setting(10 * 1024**2, minimum=0, maximum=INT_MAX)
    replica_fetch_min_bytes: int = setting(1, minimum=0, maximum=INT_MAX)
    replica_fetch_wait_max_ms: int = setting(500, minimum=0, maximum=INT_MAX)
    replica_fetch_backoff_ms: int = setting(1000, minimum=0, maximum=INT_MAX)
    replica_socket_timeout_ms: int = setting(30000, minimum=1, maximum=INT_MAX)
    replica_high_watermark_checkpoint_interval_ms: int = setting(5000, minimum=1)
    num_replica_fetchers: int = setting(1, minimum=1, maximum=INT_MAX)

    # network
    num_network_threads: int = setting(
        3, minimum=1, maximum=INT_MAX, doc="processors of a listener; all run on the broker's one loop"
    )
    socket_request_max_bytes: int = setting(100 * 1024**2, minimum=1, maximum=INT_MAX)
    queued_max_requests: int = setting(500, minimum=1, maximum=INT_MAX)
    queued_max_request_bytes: int = setting(256 * 1024**2, minimum=-1)
    connections_max_idle_ms: int = setting(600000, minimum=-1)
    max_connections: int = setting(INT_MAX, minimum=0, maximum=INT_MAX)
    max_connections_per_ip: int = setting(INT_MAX, minimum=0, maximum=INT_MAX)
    max_in_flight_requests_per_connection: int = setting(
        100, minimum=1, doc="ottla's own: pipelined requests of one connection"
    )
    socket_frame_timeout_ms: int = setting(
        60000, minimum=1, doc="ottla's own: how long a begun frame may take to arrive (BAD-4)"
    )
    request_timeout_ms: int = setting(30000, minimum=1, maximum=INT_MAX)
    max_incremental_fetch_session_cache_slots: int = setting(1000, minimum=0, maximum=INT_MAX)
    fetch_max_bytes: int = setting(55 * 1024**2, minimum=1024, maximum=INT_MAX)

    # controller
    controller_socket_timeout_ms: int = setting(30000, minimum=1, maximum=INT_MAX)
    auto_leader_rebalance_enable: bool = setting(True)
    leader_imbalance_check_interval_seconds: int = setting(300, minimum=1)
    leader_imbalance_per_broker_percentage: int = setting(10, minimum=0)
    controlled_shutdown_enable: bool = setting(True)
    controlled_shutdown_max_retries: int = setting(3, minimum=0)
    controlled_shutdown_retry_backoff_ms: int = setting(5000, minimum=0)

    @property
    def log_directories(self) -> tuple[str, ...]:
        """`log.dirs`, split."""
        return tuple(part.strip() for part in self.log_dirs.split(",") if part.strip())

    def topic_defaults(self) -> TopicConfig:
        """What a topic without overrides has on this broker."""
        return TopicConfig(
            cleanup_policy=self.log_cleanup_policy,
            compression_type=self.compression_type,
            flush_messages=self.log_flush_interval_messages,
            flush_ms=self.log_flush_interval_ms,
            index_interval_bytes=self.log_index_interval_bytes,
            max_message_bytes=self.message_max_bytes,
            message_timestamp_type=self.log_message_timestamp_type,
            min_insync_replicas=self.min_insync_replicas,
            retention_bytes=self.log_retention_bytes,
            retention_ms=self.log_retention_ms,
            segment_bytes=self.log_segment_bytes,
            segment_index_bytes=self.log_index_size_max_bytes,
            segment_jitter_ms=self.log_roll_jitter_ms,
            segment_ms=self.log_roll_ms,
            unclean_leader_election_enable=self.unclean_leader_election_enable,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """A topic's settings: the broker's defaults, then `/config/topics/<topic>`."""

    cleanup_policy: str = setting("delete", choices=("delete", "compact", "compact,delete", "delete,compact"))
    compression_type: str = setting("producer", choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"))
    delete_retention_ms: int = setting(86400000, minimum=0)
    file_delete_delay_ms: int = setting(60000, minimum=0)
    flush_messages: int = setting(LONG_MAX, minimum=1)
    flush_ms: int = setting(LONG_MAX, minimum=0)
    index_interval_bytes: int = setting(4096, minimum=0, maximum=INT_MAX)
    max_compaction_lag_ms: int = setting(LONG_MAX, minimum=1)
    max_message_bytes: int = setting(1048588, minimum=0, maximum=INT_MAX)
    message_timestamp_type: str = setting("CreateTime", choices=("CreateTime", "LogAppendTime"))
    min_cleanable_dirty_ratio: float = setting(0.5, minimum=0, maximum=1)
    min_compaction_lag_ms: int = setting(0, minimum=0)
    min_insync_replicas: int = setting(1, minimum=1, maximum=INT_MAX)
    preallocate: bool = setting(False)
    retention_bytes: int = setting(-1, minimum=-1)
    retention_ms: int = setting(7 * 24 * 3600 * 1000, minimum=-1)
    segment_bytes: int = setting(1024**3, minimum=14, maximum=INT_MAX)
    segment_index_bytes: int = setting(10 * 1024**2, minimum=4, maximum=INT_MAX)
    segment_jitter_ms: int = setting(0, minimum=0)
    segment_ms: int = setting(7 * 24 * 3600 * 1000, minimum=1)
    unclean_leader_election_enable: bool = setting(False)

    def with_overrides(self, overrides: Mapping[str, str]) -> TopicConfig:
        """These settings with a topic's own (Kafka keys, text values). Raises ConfigError for an unknown key or a bad value."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        known = settings_of(TopicConfig)
        for key, text in overrides.items():
            if key not in known:
                raise ConfigError(f"unknown topic config {key!r}; known are {', '.join(sorted(known))}")
            values[key.replace(".", "_")] = parse_value(TopicConfig, key, text)
        return TopicConfig(**values)


def settings_of(config: type) -> dict[str, Any]:
    """Kafka key -> dataclass field, of BrokerConfig or TopicConfig."""
    return {f.name.replace("_", "."): f for f in fields(config)}


def parse_value(config: type, key: str, text: str) -> int | float | bool | str:
    """`text` as the type of `key`, inside its limits. Raises ConfigError that names key, value and what is allowed."""
    spec = settings_of(config)[key]
    text = text.strip()
    kind = spec.type
    value: int | float | bool | str
    if kind == "bool":
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{key}={text!r}: allowed are true and false")
        value = text.lower() == "true"
    elif kind in ("int", "float"):
        try:
            value = int(text) if kind == "int" else float(text)
        except ValueError:
            raise ConfigError(f"{key}={text!r}: a {'whole number' if kind == 'int' else 'number'} is needed") from None
        minimum, maximum = spec.metadata["minimum"], spec.metadata["maximum"]
        if (minimum is not None and value < minimum) or (maximum is not None and value > maximum):
            limits = f"from {minimum}" if maximum is None else f"from {minimum} to {maximum}"
            raise ConfigError(f"{key}={text!r}: allowed is a number {limits}")
    else:
        value = text
        choices = spec.metadata["choices"]
        if choices is not None and value not in choices:
            raise ConfigError(f"{key}={text!r}: allowed are {', '.join(choices)}")
    return value
