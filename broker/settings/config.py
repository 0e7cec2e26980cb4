"""Typed settings of a broker and of a topic, under Kafka's keys.

An attribute's name is the Kafka key with `_` for `.`: `replica_lag_time_max_ms` is `replica.lag.time.max.ms`.
`broker.settings.config_sources` reads the settings from files, environment and flags.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache, cached_property, lru_cache
from types import MappingProxyType
from typing import Any

from broker.settings.password_encoder import CBC, CIPHERS, ITERATIONS_MAX, KEY_FACTORIES, KEY_LENGTHS
from protocol.kafka.api_keys import ApiLevel
from protocol.numbers import BLANKS, decimal_number, is_plain_number, whole_number
from protocol.plain_text import shortened

SHORT_MAX = 2**15 - 1
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
SHOWN_MAX = 200
"""Maximum characters of a wrong value in its error message."""


BROKER_KEY_OF: Mapping[str, str] = MappingProxyType(
    {
        "cleanup.policy": "log.cleanup.policy",
        "compression.gzip.level": "compression.gzip.level",
        "compression.lz4.level": "compression.lz4.level",
        "compression.type": "compression.type",
        "compression.zstd.level": "compression.zstd.level",
        "delete.retention.ms": "log.cleaner.delete.retention.ms",
        "file.delete.delay.ms": "log.segment.delete.delay.ms",
        "flush.messages": "log.flush.interval.messages",
        "flush.ms": "log.flush.interval.ms",
        "index.interval.bytes": "log.index.interval.bytes",
        "local.retention.bytes": "log.local.retention.bytes",
        "local.retention.ms": "log.local.retention.ms",
        "max.message.bytes": "message.max.bytes",
        "message.downconversion.enable": "log.message.downconversion.enable",
        "message.format.version": "log.message.format.version",
        "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
        "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
        "message.timestamp.difference.max.ms": "log.message.timestamp.difference.max.ms",
        "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
        "message.timestamp.type": "log.message.timestamp.type",
        "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
        "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
        "min.insync.replicas": "min.insync.replicas",
        "preallocate": "log.preallocate",
        "retention.bytes": "log.retention.bytes",
        "retention.ms": "log.retention.ms",
        "segment.bytes": "log.segment.bytes",
        "segment.index.bytes": "log.index.size.max.bytes",
        "segment.jitter.ms": "log.roll.jitter.ms",
        "segment.ms": "log.roll.ms",
        "unclean.leader.election.enable": "unclean.leader.election.enable",
    }
)
"""Topic key -> the broker's key that it overrides."""

EVERY_REPLICA = "*"
HOST = re.compile(r"[0-9a-zA-Z%._:-]+")
"""As `Utils.validHostPattern` in Kafka."""


class ConfigError(ValueError):
    """An invalid setting. The message has the key, the value and what is allowed."""


VALUE_LENGTH_MAX = 128 * 1024
"""Maximum characters of a value: a list of throttled replicas has several thousand partitions."""
SHORT_LIST_MAX = 1024
"""Maximum characters of a short list of replicas. A parsed list takes twenty times its bytes, so few longer lists are cached."""


def _shown(text: str) -> str:
    """A wrong value, shortened for its error message."""
    return shortened(repr(text), SHOWN_MAX)


def throttled_replicas(text: str) -> frozenset[tuple[int, int]] | None:
    """The (partition, broker) pairs of a list `partition:broker,...`; None for `*`, all replicas. Raises ConfigError."""
    return _in_short_list(text) if len(text) <= SHORT_LIST_MAX else _in_long_list(text)


@lru_cache(maxsize=4096)
def _in_short_list(text: str) -> frozenset[tuple[int, int]] | None:
    return _in_list(text)


@lru_cache(maxsize=64)
def _in_long_list(text: str) -> frozenset[tuple[int, int]] | None:
    return _in_list(text)


def _in_list(text: str) -> frozenset[tuple[int, int]] | None:
    items = [item.strip() for item in text.split(",") if item.strip()]
    if items == [EVERY_REPLICA]:
        return None
    pairs = [item.split(":") for item in items]
    if not all(len(pair) == 2 and all(map(is_plain_number, pair)) for pair in pairs):
        raise ConfigError(f"{_shown(text)}: expected * or partition:broker,partition:broker,...")
    return frozenset((int(partition), int(broker)) for partition, broker in pairs)


_NEWEST_IV = {
    **dict.fromkeys(("0.8.0", "0.8.1", "0.8.2", "0.9.0"), -1),
    **{"0.10.0": 1, "0.10.1": 2, "0.10.2": 0, "0.11.0": 2, "1.0": 0, "1.1": 0, "2.0": 1, "2.1": 2, "2.2": 1, "2.3": 1},
    **{"2.4": 1, "2.5": 0, "2.6": 0, "2.7": 2, "2.8": 1, "3.0": 1, "3.1": 0, "3.2": 0, "3.3": 3, "3.4": 0, "3.5": 2},
    **{"3.6": 2, "3.7": 4, "3.8": 0, "3.9": 0},
}
"""Kafka's releases, each with the `n` of its newest version `<release>-IV<n>`; -1 for a release without IV versions."""


def message_format_version(text: str) -> None:
    """Raises ConfigError unless the text is a version of Kafka up to 3.9 (MetadataVersion.fromVersionString)."""
    parts = text.split(".")
    release, _, step = ".".join(parts[: 3 if text.startswith("0.") else 2]).partition("-IV")
    newest = _NEWEST_IV.get(release)
    if newest is None or (step and not (is_plain_number(step) and int(step) <= newest)):
        raise ConfigError(f"{_shown(text)}: expected a version of Kafka, for example 3.0-IV1 or 2.8")


def connections_of_hosts(text: str) -> dict[str, int]:
    """Host -> number, of a list `host:number,...`; the host of an IPv6 address has colons, too. Raises ConfigError."""
    found = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        host, colon, number = (part.strip() for part in item.rpartition(":"))
        if not (colon and HOST.fullmatch(host) and is_plain_number(number) and int(number) <= INT_MAX):
            raise ConfigError(f"{_shown(item)}: expected host:number,host:number,...")
        found[host] = int(number)
    return found


def gzip_level(text: str) -> None:
    if (level := whole_number(text)) != -1 and not 1 <= level <= 9:
        raise ConfigError(f"{text!r}: expected 1 to 9, or -1 for gzip's own default")


def recording_id(text: str) -> None:
    """The id becomes part of a file's name."""
    if text and not (len(text) <= 64 and all(char.isascii() and (char.isalnum() or char in "-_") for char in text)):
        raise ConfigError(f"{_shown(text)}: expected at most 64 letters, digits, - and _")


def no_remote_storage(text: str) -> None:
    if text.lower() == "true":
        raise ConfigError("true: tiered storage is not supported")


RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"


def replica_selector(text: str) -> None:
    """Kafka loads any class of this name. ottla has Kafka's one, and runs no Java."""
    if text not in ("", RACK_AWARE_SELECTOR):
        raise ConfigError(f"{_shown(text)}: expected nothing, or {RACK_AWARE_SELECTOR}")


ACL_AUTHORIZER = "kafka.security.authorizer.AclAuthorizer"


def authorizer_class(text: str) -> None:
    """Kafka loads any class of this name. ottla has Kafka's one for ZooKeeper mode, and runs no Java."""
    if text not in ("", ACL_AUTHORIZER):
        raise ConfigError(f"{_shown(text)}: expected nothing (no rights are checked), or {ACL_AUTHORIZER}")


def super_users_in(text: str) -> frozenset[str]:
    """The principals in a list such as `User:admin;User:CN=broker,O=example`. Raises ConfigError."""
    users = frozenset(user.strip() for user in text.split(";") if user.strip())
    for user in users:
        kind, colon, name = user.partition(":")
        if not (kind and colon and name):
            raise ConfigError(f"{_shown(user)}: expected principals such as User:admin, separated by semicolons")
    return users


def key_length(text: str) -> None:
    """Of AES, the only kind of cipher for passwords here."""
    if whole_number(text) not in KEY_LENGTHS:
        raise ConfigError(f"{text!r}: expected {', '.join(map(str, KEY_LENGTHS))}")


def setting(
    default: Any,
    *,
    minimum: int | None = None,
    maximum: int | None = None,
    choices: tuple[str, ...] | None = None,
    is_list: bool = False,
    is_secret: bool = False,
    check: Callable[[str], Any] | None = None,
    doc: str = "",
) -> Any:
    """A dataclass field with the limits that `parse_value` checks.

    For a list (texts separated by commas), `choices` apply to each item. `check` gets the text and raises ConfigError.
    A value that `is_secret` is never shown.
    """
    metadata = {
        "minimum": minimum,
        "maximum": maximum,
        "choices": choices,
        "is_list": is_list,
        "is_secret": is_secret,
        "check": check,
        "doc": doc,
    }
    if isinstance(default, list | dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata, repr=not is_secret)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The settings in `server.properties`. Defaults are Kafka 3.9's if the key is Kafka's."""

    # identity and addresses
    broker_id: int = setting(-1, minimum=-1, maximum=INT_MAX, doc="id of this broker, unique in the cluster")
    broker_rack: str = setting("", doc="rack of this broker")
    zookeeper_connect: str = setting("", doc="host:port[,host:port...][/chroot]")
    zookeeper_digest_user: str = setting(
        "", doc="as whom this broker logs in at ZooKeeper, by digest; empty: as nobody"
    )
    zookeeper_digest_password: str = setting("", is_secret=True, doc="the password of zookeeper.digest.user")
    zookeeper_sasl_jaas_config: str = setting(
        "", is_secret=True, doc="ottla's own: as whom this broker logs in at ZooKeeper by SASL: a DigestLoginModule"
    )
    zookeeper_set_acl: bool = setting(
        False, doc="whether only as whom brokers log in may change new nodes, and read those with secrets"
    )
    zookeeper_ssl_client_enable: bool = setting(False, doc="whether ZooKeeper is reached by TLS")
    zookeeper_clientCnxnSocket: str = setting(
        "", doc="a class of ZooKeeper's client; for TLS, Kafka needs org.apache.zookeeper.ClientCnxnSocketNetty"
    )
    zookeeper_ssl_keystore_type: str = setting("", doc="PEM or PKCS12; empty: the end of the file's name says it")
    zookeeper_ssl_keystore_location: str = setting("", doc="file of the key and the certificate for ZooKeeper")
    zookeeper_ssl_keystore_password: str = setting(
        "", is_secret=True, doc="password of a store of type PKCS12, or of the key in PEM"
    )
    zookeeper_ssl_truststore_type: str = setting("", doc="PEM or PKCS12; empty: the end of the file's name says it")
    zookeeper_ssl_truststore_location: str = setting(
        "", doc="file of the certificates that ZooKeeper's may lead to; none: those of this machine"
    )
    zookeeper_ssl_truststore_password: str = setting("", is_secret=True, doc="password of a store of type PKCS12")
    zookeeper_ssl_protocol: str = setting("TLSv1.2", doc="TLSv1.2 or TLSv1.3")
    zookeeper_ssl_enabled_protocols: str = setting(
        "", choices=("TLSv1.2", "TLSv1.3"), is_list=True, doc="one or both; empty: that of zookeeper.ssl.protocol"
    )
    zookeeper_ssl_cipher_suites: str = setting(
        "", is_list=True, doc="by the names of Java or of OpenSSL; empty: the default ones"
    )
    zookeeper_ssl_endpoint_identification_algorithm: str = setting(
        "HTTPS", doc="HTTPS: ZooKeeper's certificate must name its host; empty: it need not"
    )
    zookeeper_ssl_crl_enable: bool = setting(False, doc="revoked certificates are not known: it can only be false")
    zookeeper_ssl_ocsp_enable: bool = setting(False, doc="revoked certificates are not known: it can only be false")
    zookeeper_session_timeout_ms: int = setting(18000, minimum=100, maximum=INT_MAX)
    zookeeper_connection_timeout_ms: int = setting(18000, minimum=100, maximum=INT_MAX)
    listeners: str = setting("PLAINTEXT://:9092", doc="NAME://host:port[,NAME://host:port...]")
    advertised_listeners: str = setting("", doc="addresses that clients get; default: listeners")
    listener_security_protocol_map: str = setting(
        "PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT,SASL_SSL:SASL_SSL", doc="NAME:PROTOCOL[,...]"
    )
    security_inter_broker_protocol: str = setting(
        "PLAINTEXT",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
        doc="brokers use the first listener with this protocol, unless inter.broker.listener.name names one",
    )
    inter_broker_listener_name: str = setting(
        "", doc="listener for followers' fetches; default: the first that is not the control plane's"
    )
    control_plane_listener_name: str = setting(
        "", doc="listener for the control RPC; default: CONTROLLER, created on a free port if missing"
    )

    # TLS; `listener.name.<listener>.` before one of these keys sets it for one listener
    ssl_keystore_type: str = setting("JKS", doc="PEM or PKCS12: what has this broker's key and certificate")
    ssl_keystore_location: str = setting("", doc="file of the key and its certificates")
    ssl_keystore_password: str = setting("", is_secret=True, doc="password of a store of type PKCS12")
    ssl_keystore_key: str = setting("", is_secret=True, doc="the private key as PEM, in place of a file")
    ssl_keystore_certificate_chain: str = setting(
        "", is_secret=True, doc="the certificate as PEM, and those between it and its authority, in place of a file"
    )
    ssl_key_password: str = setting("", is_secret=True, doc="password of the private key")
    ssl_truststore_type: str = setting("JKS", doc="PEM or PKCS12: what has the trusted certificates")
    ssl_truststore_location: str = setting("", doc="file of the trusted certificates; none: those of this machine")
    ssl_truststore_password: str = setting("", is_secret=True, doc="password of a store of type PKCS12")
    ssl_truststore_certificates: str = setting(
        "", is_secret=True, doc="the trusted certificates as PEM, in place of a file"
    )
    ssl_client_auth: str = setting(
        "none", choices=("none", "requested", "required"), doc="whether clients show a certificate"
    )
    ssl_enabled_protocols: str = setting("TLSv1.2,TLSv1.3", choices=("TLSv1.2", "TLSv1.3"), is_list=True)
    ssl_cipher_suites: str = setting(
        "", is_list=True, doc="by the names of Java or of OpenSSL; empty: the default ones"
    )
    ssl_endpoint_identification_algorithm: str = setting(
        "https", doc="https: the certificate of another broker must name its host; empty: it need not"
    )
    ssl_principal_mapping_rules: str = setting(
        "DEFAULT",
        doc="how the subject of a client's certificate becomes its name: DEFAULT, RULE:pattern/replacement/[LU]",
    )
    ssl_allow_dn_changes: bool = setting(
        False, doc="whether a new certificate may have another subject, when the settings change while the broker runs"
    )
    ssl_allow_san_changes: bool = setting(
        False, doc="whether a new certificate may lack names that the present one has, likewise"
    )
    ssl_of_listeners: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """The settings above of single listeners: their keys with the prefix."""

    # dynamic settings of the type PASSWORD, in ZooKeeper
    password_encoder_secret: str = setting(
        "", is_secret=True, doc="the secret by which dynamic passwords of this broker are encrypted in ZooKeeper"
    )
    password_encoder_old_secret: str = setting(
        "", is_secret=True, doc="the secret before: what is encrypted by it is encrypted anew when the broker starts"
    )
    password_encoder_keyfactory_algorithm: str = setting(
        "", choices=("", *KEY_FACTORIES), doc="how the key follows from the secret; empty: PBKDF2WithHmacSHA512"
    )
    password_encoder_cipher_algorithm: str = setting(CBC, choices=CIPHERS, doc="how dynamic passwords are encrypted")
    password_encoder_key_length: int = setting(
        128, minimum=8, maximum=INT_MAX, check=key_length, doc="of the key, in bits"
    )
    password_encoder_iterations: int = setting(
        4096, minimum=1024, maximum=ITERATIONS_MAX, doc="how often the key is computed on; more takes longer"
    )

    # SASL; the prefix sets these for one listener
    sasl_enabled_mechanisms: str = setting(
        "GSSAPI",
        is_list=True,
        doc="PLAIN, SCRAM-SHA-256, SCRAM-SHA-512, OAUTHBEARER, or several; Kafka's default is not supported",
    )
    sasl_server_max_receive_size: int = setting(
        524288, minimum=0, maximum=INT_MAX, doc="limit in bytes of a request before the login; here at most 16384"
    )
    connections_max_reauth_ms: int = setting(
        0, minimum=0, doc="time in ms after which a client must log in again; 0: never"
    )
    sasl_oauthbearer_jwks_endpoint_url: str = setting(
        "", doc="file or address of the public keys by which signed tokens are checked"
    )
    sasl_oauthbearer_jwks_endpoint_refresh_ms: int = setting(
        3_600_000, minimum=1000, doc="how often the keys are fetched again, in ms"
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_ms: int = setting(
        100, minimum=1, doc="the first pause after a fetch that failed, in ms; each further one is twice as long"
    )
    sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms: int = setting(
        10_000, minimum=1, doc="the longest pause after fetches that failed, in ms"
    )
    sasl_oauthbearer_expected_audience: str = setting(
        "", is_list=True, doc="a token must be for one of these (aud); empty: it must be for nobody in particular"
    )
    sasl_oauthbearer_expected_issuer: str = setting("", doc="who must have issued a token (iss); empty: anybody")
    sasl_oauthbearer_scope_claim_name: str = setting("scope", doc="the claim with the scope of a token")
    sasl_oauthbearer_sub_claim_name: str = setting("sub", doc="the claim with the user's name")
    sasl_oauthbearer_clock_skew_seconds: int = setting(
        30, minimum=0, maximum=INT_MAX, doc="by how much the clocks of the issuer and of this broker may differ"
    )
    sasl_oauthbearer_token_endpoint_url: str = setting("", doc="file of the token with which this broker logs in")
    # of all listeners
    sasl_mechanism_inter_broker_protocol: str = setting("GSSAPI", doc="how brokers log in at each other")
    connection_failed_authentication_delay_ms: int = setting(
        100, minimum=0, maximum=INT_MAX, doc="how long the answer to a failed login is delayed, in ms"
    )
    sasl_of_listeners: Mapping[str, int | str] = field(default_factory=dict, repr=False)
    """The settings above of single listeners: their keys with the prefix."""
    jaas: Mapping[str, str] = field(default_factory=dict, repr=False)
    """`[listener.name.<listener>.]<mechanism>.sasl.jaas.config`: a login module, and users with their passwords."""
    sasl_handlers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """`[listener.name.<listener>.]oauthbearer.sasl.{server,login}.callback.handler.class`: a class of Kafka."""

    # delegation tokens
    delegation_token_secret_key: str = setting(
        "",
        is_secret=True,
        doc="the secret of all brokers from which the passwords of tokens follow; empty: there are none",
    )
    delegation_token_master_key: str = setting("", is_secret=True, doc="an old name of delegation.token.secret.key")
    delegation_token_max_lifetime_ms: int = setting(604_800_000, minimum=1, doc="no token counts longer, in ms")
    delegation_token_expiry_time_ms: int = setting(
        86_400_000, minimum=1, doc="how long a token counts until it is renewed, in ms"
    )
    delegation_token_expiry_check_interval_ms: int = setting(
        3_600_000, minimum=1, doc="how often the controller removes expired tokens, in ms"
    )

    # rights
    authorizer_class_name: str = setting(
        "",
        check=authorizer_class,
        doc=f"{ACL_AUTHORIZER}: rights are checked by the ACLs in ZooKeeper; empty: none are",
    )
    super_users: str = setting(
        "", check=super_users_in, doc="principals who may do everything, such as User:admin;User:CN=broker"
    )
    allow_everyone_if_no_acl_found: bool = setting(
        False, doc="whether everybody may do everything with a resource that has no ACL"
    )

    # the log
    log_dirs: str = setting("", doc="comma-separated directories; must be set")
    log_segment_bytes: int = setting(1024**3, minimum=14, maximum=INT_MAX)
    log_roll_ms: int = setting(7 * 24 * 3600 * 1000, minimum=1)
    log_roll_jitter_ms: int = setting(0, minimum=0)
    log_index_size_max_bytes: int = setting(10 * 1024**2, minimum=4, maximum=INT_MAX)
    log_index_interval_bytes: int = setting(4096, minimum=0, maximum=INT_MAX)
    log_retention_ms: int = setting(7 * 24 * 3600 * 1000, minimum=-1)
    log_retention_bytes: int = setting(-1, minimum=-1)
    log_retention_check_interval_ms: int = setting(
        300_000, minimum=1, doc="how often to look for old segments, in ms; less than 1000 acts as 1000"
    )
    log_cleanup_policy: str = setting("delete", choices=("delete", "compact"), is_list=True)
    log_message_timestamp_after_max_ms: int = setting(LONG_MAX, minimum=0)
    log_message_timestamp_before_max_ms: int = setting(LONG_MAX, minimum=0)
    log_message_timestamp_difference_max_ms: int = setting(LONG_MAX, minimum=0)
    log_message_timestamp_type: str = setting("CreateTime", choices=("CreateTime", "LogAppendTime"))
    log_flush_interval_messages: int = setting(LONG_MAX, minimum=1)
    log_flush_interval_ms: int = setting(LONG_MAX, minimum=0)
    producer_id_expiration_ms: int = setting(
        86_400_000,
        minimum=1,
        maximum=INT_MAX,
        doc="time in ms after which an idempotent producer that writes nothing is removed",
    )
    producer_id_expiration_check_interval_ms: int = setting(600_000, minimum=1)
    log_flush_offset_checkpoint_interval_ms: int = setting(60000, minimum=0, maximum=INT_MAX)
    log_flush_start_offset_checkpoint_interval_ms: int = setting(60000, minimum=0, maximum=INT_MAX)
    message_max_bytes: int = setting(1048588, minimum=0, maximum=INT_MAX)
    log_segment_delete_delay_ms: int = setting(60000, minimum=0)
    log_preallocate: bool = setting(False)
    log_message_downconversion_enable: bool = setting(True)
    log_message_format_version: str = setting("3.0-IV1", check=message_format_version)
    log_local_retention_ms: int = setting(-2, minimum=-2)
    log_local_retention_bytes: int = setting(-2, minimum=-2)

    # compaction
    log_cleaner_enable: bool = setting(True, doc="Whether to compact topics with cleanup.policy=compact.")
    log_cleaner_threads: int = setting(
        1, minimum=0, maximum=INT_MAX, doc="0 disables compaction. One log is compacted at a time."
    )
    log_cleaner_dedupe_buffer_size: int = setting(
        128 * 1024**2, minimum=1024, doc="bytes for the keys of the part of a log that is compacted in one pass"
    )
    log_cleaner_io_buffer_size: int = setting(524288, minimum=0, maximum=INT_MAX, doc="Without effect here.")
    log_cleaner_io_buffer_load_factor: float = setting(
        0.9, minimum=0, maximum=1, doc="share of log.cleaner.dedupe.buffer.size to fill"
    )
    log_cleaner_io_max_bytes_per_second: float = setting(
        1.7976931348623157e308, minimum=0, doc="limit in bytes/s for reads and writes of compaction"
    )
    log_cleaner_backoff_ms: int = setting(15000, minimum=0, doc="pause in ms when no log needs compaction")
    log_cleaner_min_cleanable_ratio: float = setting(0.5, minimum=0, maximum=1)
    log_cleaner_delete_retention_ms: int = setting(86400000, minimum=0)
    log_cleaner_min_compaction_lag_ms: int = setting(0, minimum=0)
    log_cleaner_max_compaction_lag_ms: int = setting(LONG_MAX, minimum=1)

    # topics
    auto_create_topics_enable: bool = setting(True)
    delete_topic_enable: bool = setting(True)
    telemetry_max_bytes: int = setting(
        1024**2, minimum=1, maximum=INT_MAX, doc="limit in bytes of the metrics that a client pushes at once"
    )
    max_request_partition_size_limit: int = setting(
        2000, minimum=1, maximum=INT_MAX, doc="limit of partitions in an answer to DescribeTopicPartitions"
    )
    max_broker_partitions: int = setting(
        20_000,
        minimum=1,
        maximum=INT_MAX,
        doc="ottla's own (KIP-578): limit of replicas for each live broker; above it no topics or partitions are created",
    )
    num_partitions: int = setting(1, minimum=1, maximum=INT_MAX)
    default_replication_factor: int = setting(1, minimum=1, maximum=INT_MAX)
    min_insync_replicas: int = setting(1, minimum=1, maximum=INT_MAX)
    unclean_leader_election_enable: bool = setting(False)
    compression_type: str = setting("producer", choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"))
    compression_gzip_level: int = setting(-1, maximum=9, check=gzip_level)
    compression_lz4_level: int = setting(9, minimum=1, maximum=17)
    compression_zstd_level: int = setting(3, minimum=-131072, maximum=22)

    # replication
    replica_selector_class: str = setting(
        "",
        check=replica_selector,
        doc="Which replica the leader names to a consumer with a rack (KIP-392): none, or Kafka's RackAwareReplicaSelector.",
    )
    replica_lag_time_max_ms: int = setting(30000, minimum=1)
    replica_fetch_max_bytes: int = setting(1024**2, minimum=0, maximum=INT_MAX)
    replica_fetch_response_max_bytes: int = setting(10 * 1024**2, minimum=0, maximum=INT_MAX)
    replica_fetch_min_bytes: int = setting(1, minimum=0, maximum=INT_MAX)
    replica_fetch_wait_max_ms: int = setting(
        500,
        minimum=0,
        maximum=INT_MAX,
        doc="how long a follower's fetch waits for records, in ms; more than 1000 acts as 1000",
    )
    replica_fetch_backoff_ms: int = setting(1000, minimum=0, maximum=INT_MAX)
    replica_socket_timeout_ms: int = setting(30000, minimum=1, maximum=INT_MAX)
    replica_high_watermark_checkpoint_interval_ms: int = setting(5000, minimum=1)
    num_replica_fetchers: int = setting(
        1,
        minimum=1,
        maximum=INT_MAX,
        doc="fetchers for each leader; a change applies to partitions followed from then on",
    )
    leader_replication_throttled_rate: int = setting(
        LONG_MAX, minimum=0, doc="limit in bytes/s to throttled followers that are not in sync"
    )
    follower_replication_throttled_rate: int = setting(
        LONG_MAX, minimum=0, doc="limit in bytes/s to throttled replicas on this broker that are not in sync"
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = setting(
        LONG_MAX, minimum=0, doc="limit in bytes/s of moves between log directories"
    )
    replication_quota_window_num: int = setting(11, minimum=1, maximum=INT_MAX, doc="samples of a throttle's window")
    replication_quota_window_size_seconds: int = setting(
        1, minimum=1, maximum=INT_MAX, doc="seconds of one sample of a throttle's window"
    )
    alter_log_dirs_replication_quota_window_num: int = setting(11, minimum=1, maximum=INT_MAX)
    alter_log_dirs_replication_quota_window_size_seconds: int = setting(1, minimum=1, maximum=INT_MAX)
    quota_window_num: int = setting(11, minimum=1, maximum=INT_MAX, doc="samples of the window of a client's quota")
    quota_window_size_seconds: int = setting(
        1, minimum=1, maximum=INT_MAX, doc="seconds of one sample of the window of a client's quota"
    )
    controller_quota_window_num: int = setting(
        11, minimum=1, maximum=INT_MAX, doc="samples of the window of controller_mutation_rate"
    )
    controller_quota_window_size_seconds: int = setting(
        1, minimum=1, maximum=INT_MAX, doc="seconds of one sample of the window of controller_mutation_rate"
    )

    # groups
    group_min_session_timeout_ms: int = setting(6000, minimum=0, maximum=INT_MAX)
    group_max_session_timeout_ms: int = setting(1_800_000, minimum=0, maximum=INT_MAX)
    group_initial_rebalance_delay_ms: int = setting(
        3000, minimum=0, maximum=INT_MAX, doc="how long the first rebalance of an empty group waits for more members"
    )
    group_max_size: int = setting(INT_MAX, minimum=1, maximum=INT_MAX)
    group_consumer_session_timeout_ms: int = setting(
        45_000,
        minimum=1,
        maximum=INT_MAX,
        doc="groups of the new kind: a member that was not heard of for so long is removed",
    )
    group_consumer_heartbeat_interval_ms: int = setting(
        5_000, minimum=1, maximum=INT_MAX, doc="groups of the new kind: how often their members send a heartbeat, in ms"
    )
    group_consumer_min_session_timeout_ms: int = setting(
        45_000, minimum=1, maximum=INT_MAX, doc="the least that a group may have of its own"
    )
    group_consumer_max_session_timeout_ms: int = setting(
        60_000, minimum=1, maximum=INT_MAX, doc="the most that a group may have of its own"
    )
    group_consumer_min_heartbeat_interval_ms: int = setting(
        5_000, minimum=1, maximum=INT_MAX, doc="the least that a group may have of its own"
    )
    group_consumer_max_heartbeat_interval_ms: int = setting(
        15_000, minimum=1, maximum=INT_MAX, doc="the most that a group may have of its own"
    )
    group_consumer_regex_refresh_interval_ms: int = setting(
        600_000,
        minimum=10_000,
        maximum=INT_MAX,
        doc="groups of the new kind: a regular expression is matched again after that time, as its member may see other topics by then",
    )
    group_consumer_max_size: int = setting(
        INT_MAX, minimum=1, maximum=INT_MAX, doc="members of a group of the new kind"
    )
    group_consumer_assignors: str = setting(
        "uniform,range",
        choices=("uniform", "range"),
        is_list=True,
        doc="how a group of the new kind may share out its partitions; the first is used if no member asks for one",
    )
    group_consumer_migration_policy: str = setting(
        "bidirectional",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
        doc="whether a group that has members may become one of the other kind",
    )
    group_memory_max_bytes: int = setting(
        512 * 1024**2,
        minimum=0,
        doc="ottla's own: memory limit in bytes for the groups coordinated here; above it new members and offsets are refused",
    )
    offset_metadata_max_bytes: int = setting(
        4096, minimum=0, maximum=INT_MAX, doc="limit of a commit's metadata, in characters as in Kafka"
    )
    offsets_commit_timeout_ms: int = setting(
        5000, minimum=1, maximum=INT_MAX, doc="how long a commit waits for all in-sync replicas, in ms"
    )
    offsets_load_buffer_size: int = setting(
        5 * 1024**2, minimum=1, maximum=INT_MAX, doc="bytes to read at a time when groups are loaded"
    )
    offsets_retention_minutes: int = setting(
        7 * 24 * 60, minimum=1, maximum=INT_MAX, doc="how long to keep offsets that no member uses, in minutes"
    )
    offsets_retention_check_interval_ms: int = setting(600_000, minimum=1)
    offsets_topic_num_partitions: int = setting(
        50, minimum=1, maximum=INT_MAX, doc="partitions of __consumer_offsets; do not change it once the topic exists"
    )
    offsets_topic_replication_factor: int = setting(3, minimum=1, maximum=SHORT_MAX)
    offsets_topic_segment_bytes: int = setting(100 * 1024**2, minimum=14, maximum=INT_MAX)
    offsets_topic_compression_codec: int = setting(
        0, minimum=0, maximum=4, doc="0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd"
    )

    # transactions
    transactional_id_expiration_ms: int = setting(
        604_800_000, minimum=1, maximum=INT_MAX, doc="how long an unused transactional id is kept, in ms"
    )
    transaction_max_timeout_ms: int = setting(
        900_000, minimum=1, maximum=INT_MAX, doc="the longest time-out of a transaction, in ms"
    )
    transaction_memory_max_bytes: int = setting(
        256 * 1024**2,
        minimum=0,
        doc="ottla's own: memory limit in bytes for the transactional ids coordinated here; above it new ids and partitions are refused",
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = setting(
        10_000, minimum=1, maximum=INT_MAX, doc="how often transactions that took too long are aborted, in ms"
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = setting(
        3_600_000, minimum=1, maximum=INT_MAX, doc="how often expired transactional ids are removed, in ms"
    )
    transaction_state_log_load_buffer_size: int = setting(
        5 * 1024**2, minimum=1, maximum=INT_MAX, doc="bytes to read at a time when transactional ids are loaded"
    )
    transaction_partition_verification_enable: bool = setting(
        True, doc="whether the coordinator is asked before the first batch of a transaction is appended"
    )
    transaction_state_log_num_partitions: int = setting(50, minimum=1, maximum=INT_MAX)
    transaction_state_log_replication_factor: int = setting(3, minimum=1, maximum=SHORT_MAX)
    transaction_state_log_min_isr: int = setting(2, minimum=1, maximum=INT_MAX)
    transaction_state_log_segment_bytes: int = setting(100 * 1024**2, minimum=14, maximum=INT_MAX)

    # metrics
    metrics_listener: str = setting("", doc="ottla's own: host:port for Prometheus metrics over HTTP; empty: none")
    metrics_max_partitions: int = setting(
        10_000,
        minimum=0,
        maximum=INT_MAX,
        doc="ottla's own: with more replicas here, the metrics page has no series of single partitions",
    )

    # the recorder of clients' load, for `ottla replay record`
    recorder_id: str = setting(
        "", check=recording_id, doc="ottla's own: name of the recording whose files are kept; empty: none"
    )
    recorder_enable: bool = setting(False, doc="ottla's own: whether the recording recorder.id grows")
    recorder_max_bytes: int = setting(
        1024**3, minimum=1024**2, doc="ottla's own: limit in bytes of a recording's files on this broker"
    )
    recorder_topics: str = setting("", is_list=True, doc="ottla's own: topics to record; empty: all")
    recorder_client_salt: str = setting(
        "", doc="ottla's own: client ids are recorded as hashes with this salt; empty: as they are"
    )

    # threads
    num_network_threads: int = setting(
        3,
        minimum=1,
        maximum=INT_MAX,
        doc="processors of a listener, fixed at its start; all run on the broker's one loop",
    )
    num_io_threads: int = setting(8, minimum=1, maximum=INT_MAX, doc="Without effect here.")
    background_threads: int = setting(10, minimum=1, maximum=INT_MAX, doc="Without effect here.")
    num_recovery_threads_per_data_dir: int = setting(1, minimum=1, maximum=INT_MAX, doc="Without effect here.")

    # network
    socket_request_max_bytes: int = setting(100 * 1024**2, minimum=1, maximum=INT_MAX)
    queued_max_requests: int = setting(500, minimum=1, maximum=INT_MAX)
    queued_max_request_bytes: int = setting(256 * 1024**2, minimum=-1)
    queued_max_response_bytes: int = setting(
        256 * 1024**2,
        minimum=-1,
        doc="ottla's own: limit in bytes of answers that clients have not read yet, on all connections; -1: no limit",
    )
    socket_response_timeout_ms: int = setting(
        60000, minimum=1, doc="ottla's own: how long a client may read nothing of a waiting answer, in ms"
    )
    connections_max_idle_ms: int = setting(600000, minimum=-1)
    max_connections: int = setting(INT_MAX, minimum=0, maximum=INT_MAX)
    max_connections_per_ip: int = setting(INT_MAX, minimum=0, maximum=INT_MAX)
    max_connections_per_ip_overrides: str = setting(
        "",
        check=connections_of_hosts,
        doc="max.connections.per.ip of single hosts: host:number[,host:number...], by address or name",
    )
    max_connection_creation_rate: int = setting(
        INT_MAX, minimum=0, maximum=INT_MAX, doc="how many connections are accepted in each second; further ones wait"
    )
    limits_of_listeners: Mapping[str, int] = field(default_factory=dict, repr=False)
    """`listener.name.<listener>.max.connection.creation.rate`, by that key."""
    max_in_flight_requests_per_connection: int = setting(
        100, minimum=1, doc="ottla's own: limit of pipelined requests on one connection"
    )
    socket_frame_timeout_ms: int = setting(
        60000, minimum=1, doc="ottla's own: time limit for an incomplete frame, in ms (BAD-4)"
    )
    request_timeout_ms: int = setting(
        30000,
        minimum=1,
        maximum=INT_MAX,
        doc="how long other brokers may take to write or verify a transaction, and a marker to be replicated, in ms",
    )
    max_incremental_fetch_session_cache_slots: int = setting(1000, minimum=0, maximum=INT_MAX)
    max_incremental_fetch_session_cache_partitions: int = setting(
        200_000,
        minimum=0,
        maximum=INT_MAX,
        doc="ottla's own: limit of partitions in the fetch sessions of all consumers together",
    )
    fetch_max_bytes: int = setting(55 * 1024**2, minimum=1024, maximum=INT_MAX)

    # controller
    controller_socket_timeout_ms: int = setting(30000, minimum=1, maximum=INT_MAX)
    auto_leader_rebalance_enable: bool = setting(True)
    leader_imbalance_check_interval_seconds: int = setting(300, minimum=1)
    leader_imbalance_per_broker_percentage: int = setting(10, minimum=0, maximum=INT_MAX)
    broker_fast_failure_detection: bool = setting(
        True,
        doc="ottla's own: whether a broker counts as dead when its control listener refuses connections, not only when its session ends",
    )
    broker_fault_injection: bool = setting(
        False,
        doc="ottla's own: whether the owner of the process can break single requests of clients, by a socket beside its settings",
    )
    broker_api_level: str = setting(
        ApiLevel.KAFKA_4.value,
        choices=tuple(level.value for level in ApiLevel),
        doc="ottla's own: whose APIs and versions clients get: 3.9, those of Kafka 3.9; 4, those of Kafka 4",
    )
    broker_stop_timeout_ms: int = setting(
        25_000,
        minimum=1000,
        maximum=INT_MAX,
        doc="ottla's own: time limit of a stop, in ms; logs that are not flushed by then are recovered at the next start",
    )
    controlled_shutdown_enable: bool = setting(True)
    controlled_shutdown_max_retries: int = setting(3, minimum=0, maximum=INT_MAX)
    controlled_shutdown_retry_backoff_ms: int = setting(5000, minimum=0)

    @property
    def log_directories(self) -> tuple[str, ...]:
        """The paths in `log.dirs`."""
        return tuple(part.strip() for part in self.log_dirs.split(",") if part.strip())

    def topic_defaults(self) -> TopicConfig:
        """The settings of a topic without overrides on this broker."""
        values = {attribute(key): getattr(self, attribute(broker_key)) for key, broker_key in BROKER_KEY_OF.items()}
        return TopicConfig(**values)


@dataclass(frozen=True, kw_only=True)
class TopicConfig:
    """A topic's settings: the broker's defaults, then `/config/topics/<topic>`."""

    cleanup_policy: str = setting(
        "delete",
        choices=("delete", "compact"),
        is_list=True,
        doc="What to do with old segments: delete them, compact them, both, or neither (an empty list).",
    )
    compression_type: str = setting(
        "producer",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
        doc="The compression of stored batches; `producer` keeps the producer's.",
    )
    compression_gzip_level: int = setting(
        -1,
        maximum=9,
        check=gzip_level,
        doc="The level of gzip if compression.type is gzip: 1 to 9; -1: its default.",
    )
    compression_lz4_level: int = setting(
        9, minimum=1, maximum=17, doc="The level of lz4 if compression.type is lz4; 9 is the fastest."
    )
    compression_zstd_level: int = setting(
        3, minimum=-131072, maximum=22, doc="The level of zstd if compression.type is zstd."
    )
    delete_retention_ms: int = setting(
        86400000, minimum=0, doc="How long to keep a tombstone in a compacted log, in ms."
    )
    file_delete_delay_ms: int = setting(60000, minimum=0, doc="Without effect here: deleted files are removed at once.")
    flush_messages: int = setting(
        LONG_MAX,
        minimum=1,
        doc="Number of new records after which a log is synced to the disk, before they are acknowledged.",
    )
    flush_ms: int = setting(LONG_MAX, minimum=0, doc="Time in ms after which new records are synced to the disk.")
    follower_replication_throttled_replicas: str = setting(
        "",
        is_list=True,
        check=throttled_replicas,
        doc="Replicas that are throttled while they catch up, at the follower: partition:broker,... or *.",
    )
    index_interval_bytes: int = setting(
        4096, minimum=0, maximum=INT_MAX, doc="Number of bytes between two entries of the offset index."
    )
    leader_replication_throttled_replicas: str = setting(
        "",
        is_list=True,
        check=throttled_replicas,
        doc="Replicas whose followers are throttled while they catch up, at the leader: partition:broker,... or *.",
    )
    local_retention_bytes: int = setting(-2, minimum=-2, doc="Without effect here: there is no tiered storage.")
    local_retention_ms: int = setting(-2, minimum=-2, doc="Without effect here: there is no tiered storage.")
    max_compaction_lag_ms: int = setting(LONG_MAX, minimum=1, doc="Time in ms after which a record must be compacted.")
    max_message_bytes: int = setting(
        1048588, minimum=0, maximum=INT_MAX, doc="The largest accepted record batch, in bytes."
    )
    message_downconversion_enable: bool = setting(True, doc="Without effect here: older formats are not supported.")
    message_format_version: str = setting(
        "3.0-IV1", check=message_format_version, doc="Without effect here, as in Kafka since 3.0: the format is v2."
    )
    message_timestamp_after_max_ms: int = setting(
        LONG_MAX, minimum=0, doc="Limit in ms by which a record's time may be ahead of the broker's."
    )
    message_timestamp_before_max_ms: int = setting(
        LONG_MAX, minimum=0, doc="Limit in ms by which a record's time may be behind the broker's."
    )
    message_timestamp_difference_max_ms: int = setting(
        LONG_MAX,
        minimum=0,
        doc="Old limit in ms for each direction whose setting (message.timestamp.before or after.max.ms) is not set.",
    )
    message_timestamp_type: str = setting(
        "CreateTime",
        choices=("CreateTime", "LogAppendTime"),
        doc="Whether a record keeps its producer's time or gets the time of its append.",
    )
    min_cleanable_dirty_ratio: float = setting(
        0.5, minimum=0, maximum=1, doc="The share of uncompacted bytes above which a log is compacted."
    )
    min_compaction_lag_ms: int = setting(0, minimum=0, doc="Minimum time in ms before a record is compacted.")
    min_insync_replicas: int = setting(
        1, minimum=1, maximum=INT_MAX, doc="The number of in-sync replicas that a produce with acks=all needs."
    )
    preallocate: bool = setting(False, doc="Without effect here: files grow as they are written.")
    remote_log_copy_disable: bool = setting(
        False, check=no_remote_storage, doc="Without effect here: only false, because there is no tiered storage."
    )
    remote_log_delete_on_disable: bool = setting(
        False, check=no_remote_storage, doc="Without effect here: only false, because there is no tiered storage."
    )
    remote_storage_enable: bool = setting(
        False, check=no_remote_storage, doc="Without effect here: only false, because there is no tiered storage."
    )
    retention_bytes: int = setting(
        -1, minimum=-1, doc="The size in bytes up to which a partition keeps old segments; -1: no limit."
    )
    retention_ms: int = setting(7 * 24 * 3600 * 1000, minimum=-1, doc="How long to keep records, in ms; -1: for ever.")
    segment_bytes: int = setting(
        1024**3, minimum=14, maximum=INT_MAX, doc="The size in bytes at which a new segment starts."
    )
    segment_index_bytes: int = setting(
        10 * 1024**2, minimum=4, maximum=INT_MAX, doc="The size in bytes of an index at which a new segment starts."
    )
    segment_jitter_ms: int = setting(
        0, minimum=0, doc="Each partition rolls earlier than segment.ms, by a constant time below this limit in ms."
    )
    segment_ms: int = setting(7 * 24 * 3600 * 1000, minimum=1, doc="The age in ms at which a new segment starts.")
    unclean_leader_election_enable: bool = setting(
        False,
        doc="Whether a replica that is not in sync may lead if no other is live. Acknowledged records may be lost.",
    )

    def check_together(self) -> None:
        """Checks combinations of settings (LogConfig.validateValues). Raises ConfigError."""
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise ConfigError(
                f"min.compaction.lag.ms={self.min_compaction_lag_ms} is more than "
                f"max.compaction.lag.ms={self.max_compaction_lag_ms}"
            )

    @property
    def timestamp_before_max_ms(self) -> int:
        """Like LogConfig.getMessageTimestampBeforeMaxMs: the old setting applies if the new one is not set."""
        before = self.message_timestamp_before_max_ms
        return before if before != LONG_MAX else self.message_timestamp_difference_max_ms

    @property
    def timestamp_after_max_ms(self) -> int:
        """Like LogConfig.getMessageTimestampAfterMaxMs: the old setting applies if the new one is not set."""
        after = self.message_timestamp_after_max_ms
        return after if after != LONG_MAX else self.message_timestamp_difference_max_ms

    @cached_property
    def looks_at_each_record(self) -> bool:
        """True if the checks of a produced batch must decode each record."""
        return (
            "compact" in self.cleanup_policy
            or self.timestamp_after_max_ms != LONG_MAX
            or self.timestamp_before_max_ms != LONG_MAX
        )

    @cached_property
    def takes_plain_batches(self) -> bool:
        """True if an uncompressed batch of a client is appended as it is, once its records are known to be whole."""
        return (
            not self.looks_at_each_record
            and self.compression_type in ("producer", "uncompressed")
            and self.message_timestamp_type == "CreateTime"
        )

    def with_overrides(self, overrides: Mapping[str, str]) -> TopicConfig:
        """These settings with a topic's overrides (Kafka keys, text values). Raises ConfigError for an unknown key or invalid value."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        known = settings_of(TopicConfig)
        for key, text in overrides.items():
            if key not in known:
                raise ConfigError(f"unknown topic config {key!r}; the known ones are {', '.join(sorted(known))}")
            values[attribute(key)] = parse_value(TopicConfig, key, text)
        return TopicConfig(**values)


def attribute(key: str) -> str:
    """The attribute of a Kafka key."""
    return key.replace(".", "_")


@cache
def settings_of(config: type) -> Mapping[str, Any]:
    """Kafka key -> dataclass field, of BrokerConfig or TopicConfig."""
    return MappingProxyType({f.name.replace("_", "."): f for f in fields(config) if f.metadata})


LISTENER_PREFIX = "listener.name."


SASL_OF_LISTENERS = (
    "connections.max.reauth.ms",
    "sasl.enabled.mechanisms",
    "sasl.server.max.receive.size",
    *(name.replace("_", ".") for name in BrokerConfig.__annotations__ if name.startswith("sasl_oauthbearer_")),
)
"""Settings of SASL that may have the prefix. The first and the last may also have the name of a mechanism behind the prefix."""
JAAS_KEY = re.compile(
    r"(listener\.name\..+\.)?(plain|scram-sha-256|scram-sha-512|oauthbearer)\.sasl\.jaas\.config", re.IGNORECASE
)
"""The keys of `BrokerConfig.jaas`."""
HANDLER_KEY = re.compile(
    r"(listener\.name\..+\.)?oauthbearer\.sasl\.(server|login)\.callback\.handler\.class", re.IGNORECASE
)
"""The keys of `BrokerConfig.sasl_handlers`."""


MAX_CONNECTION_CREATION_RATE = "max.connection.creation.rate"
MAX_CONNECTIONS = "max.connections"
LIMITS_OF_LISTENERS = frozenset({MAX_CONNECTION_CREATION_RATE, MAX_CONNECTIONS})
"""Settings that may have the prefix, and may change while the broker runs."""


TLS_OF_LISTENERS = frozenset(
    {
        "ssl.key.password",
        "ssl.keystore.certificate.chain",
        "ssl.keystore.key",
        "ssl.keystore.location",
        "ssl.keystore.password",
        "ssl.keystore.type",
        "ssl.truststore.certificates",
        "ssl.truststore.location",
        "ssl.truststore.password",
        "ssl.truststore.type",
    }
)
"""Settings of TLS that may change while the broker runs, with the prefix, for one broker (`SslConfigs.RECONFIGURABLE_CONFIGS`)."""


def key_of_all(key: str) -> str:
    """`ssl.keystore.location` for `listener.name.internal.ssl.keystore.location`; other keys as they are."""
    if key.startswith(LISTENER_PREFIX):
        name, _, rest = key[len(LISTENER_PREFIX) :].partition(".")
        if name and rest in LIMITS_OF_LISTENERS:
            return rest
        name, dot, rest = key[len(LISTENER_PREFIX) :].partition(".ssl.")
        if name and dot and f"ssl.{rest}" in settings_of(BrokerConfig):
            return f"ssl.{rest}"
        for of_all in SASL_OF_LISTENERS:
            if key.endswith(f".{of_all}"):
                return of_all
    return key


def key_of_listener(listener: str, key: str) -> str:
    """The setting of one listener in the place of that of all."""
    return f"{LISTENER_PREFIX}{listener.lower()}.{key}"


def limit_of_listener(config: BrokerConfig, listener: str, key: str) -> int:
    """The value of one of LIMITS_OF_LISTENERS for a listener: its own, or that of all."""
    of_all: int = getattr(config, attribute(key))
    return config.limits_of_listeners.get(key_of_listener(listener, key), of_all)


def own_limits_of_listeners(config: BrokerConfig, listeners: Iterable[str], key: str) -> dict[str, int]:
    """The listeners of these that have one of LIMITS_OF_LISTENERS of their own, with its value."""
    own = {name: config.limits_of_listeners.get(key_of_listener(name, key)) for name in listeners}
    return {name: limit for name, limit in own.items() if limit is not None}


def is_limit_of_listener(key: str) -> bool:
    """Whether this is one of LIMITS_OF_LISTENERS, with the prefix."""
    return key not in LIMITS_OF_LISTENERS and key_of_all(key) in LIMITS_OF_LISTENERS


def is_tls_of_listener(key: str) -> bool:
    """Whether this is one of TLS_OF_LISTENERS, with the prefix."""
    return key not in TLS_OF_LISTENERS and key_of_all(key) in TLS_OF_LISTENERS


def is_secret(key: str) -> bool:
    """Whether the value of this broker setting must not be shown."""
    spec = settings_of(BrokerConfig).get(key_of_all(key))
    if JAAS_KEY.fullmatch(key):
        return True
    return spec is not None and bool(spec.metadata["is_secret"])


def parse_value(config: type, key: str, text: str) -> int | float | bool | str:
    """`text` as the type of `key`, within its limits. Raises ConfigError with the key, the value and what is allowed."""
    spec = settings_of(config)[key]
    if len(text) > VALUE_LENGTH_MAX:
        raise ConfigError(f"{key}: a value of {len(text)} characters; the limit is {VALUE_LENGTH_MAX}")
    text = text.strip(BLANKS)
    kind = spec.type
    value: int | float | bool | str
    if kind == "bool":
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{key}={_shown(text)}: expected true or false")
        value = text.lower() == "true"
    elif kind in ("int", "float"):
        try:
            value = whole_number(text) if kind == "int" else decimal_number(text)
        except ValueError as error:
            raise ConfigError(f"{key}={_shown(text)}: {error}") from None
        minimum, maximum = spec.metadata["minimum"], spec.metadata["maximum"]
        if kind == "int":  # a setting without limits is a Java long
            minimum = -LONG_MAX - 1 if minimum is None else minimum
            maximum = LONG_MAX if maximum is None else maximum
        if (minimum is not None and value < minimum) or (maximum is not None and value > maximum):
            limits = f"of at least {minimum}" if maximum in (None, LONG_MAX) else f"from {minimum} to {maximum}"
            raise ConfigError(f"{key}={_shown(text)}: expected a number {limits}")
    else:
        value = _parse_text(spec, key, text)
    check = spec.metadata["check"]
    if check is not None:
        try:
            check(text)
        except ConfigError as error:
            raise ConfigError(f"{key}={error}") from None
    return value


def parse_broker_value(key: str, text: str) -> Any:
    """As `parse_value`, of a setting of the broker, with or without the prefix of a listener."""
    of_all = key_of_all(key)
    try:
        return parse_value(BrokerConfig, of_all, text)
    except ConfigError as error:
        raise ConfigError(f"{key.removesuffix(of_all)}{error}") from None


def _parse_text(spec: Any, key: str, text: str) -> str:
    choices = spec.metadata["choices"]
    items = [item.strip() for item in text.split(",") if item.strip()] if spec.metadata["is_list"] else [text]
    if choices is not None and any(item not in choices for item in items):
        raise ConfigError(f"{key}={_shown(text)}: expected one of {', '.join(choices)}")
    return ",".join(items)
