"""Paths and contents of Kafka's znodes (FMT-2), as `kafka.zk.ZkData` writes and reads them. Pure.

Encoders return the bytes to store, with keys in the order of Kafka 3.9. Decoders raise ValueError with a reason for invalid content,
which a person, a broken tool or an attacker may have written. Decoded values fit into every message that repeats them: numbers are in
range, names are legal, texts are short and can be encoded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from protocol.topic_ids import TOPIC_ID, topic_id_uuid
from protocol.topic_names import INT_MAX, is_valid_topic_name, number_of, shown
from protocol.types import NO_LEADER, Assignment, BrokerInfo, Endpoint, LeaderAndIsr, TopicPartition
from protocol.zk.operations import CreateOp

PERSISTENT_PATHS = (
    "/consumers",
    "/brokers/ids",
    "/brokers/topics",
    "/config/changes",
    "/admin/delete_topics",
    "/brokers/seqid",
    "/isr_change_notification",
    "/latest_producer_id_block",
    "/log_dir_event_notification",
    "/config/topics",
    "/config/clients",
    "/config/users",
    "/config/brokers",
    "/config/ips",
    "/config/client-metrics",
    "/config/groups",
    "/cluster",
)
"""The first broker that starts creates these nodes (Kafka's ZkData.PersistentZkPaths)."""


SHARED_VALUES_MAX = 65_536
"""Number of different assignments, and of different ISRs, in the caches. Most of a hundred thousand partitions share a few."""


REPLICAS_MAX = 1024
"""Limit of a partition's replicas and of its ISR. The brokers refuse control requests with more (`protocol.rpc.parsing`)."""
BROKER_BYTES_MAX = 8192
"""Limit of the content of `/brokers/ids/<id>`, which control requests to all brokers repeat."""
ENDPOINT_MAX = 1024
RACK_MAX = 1024
"""Characters. Every Metadata response repeats the rack, and limits a text to 32,767 bytes."""
PORT_MAX = 65_535
_HOST = re.compile(r"(?=.{1,255}\Z)[A-Za-z0-9_:%-]{1,63}(\.[A-Za-z0-9_:%-]{1,63})*\.?")


def _encode(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _decode(data: bytes) -> dict[str, Any]:
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError("not JSON: nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None  # or a number with more digits than Python parses
    if not isinstance(value, dict):
        raise ValueError(f"expected a JSON object, found {type(value).__name__}")
    return value


def _integer(value: Any, what: str, minimum: int = 0) -> int:
    """`value` as a whole number from `minimum` to 2^31-1."""
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= INT_MAX:
        raise ValueError(f"{what} must be a whole number from {minimum} to {INT_MAX}, found {_shown(value)}")
    return value


def _integers(value: Any, what: str, minimum: int = 0) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise ValueError(f"{what} must be a list of broker ids, found {_shown(value)}")
    return tuple(_integer(v, what, minimum) for v in value)


def _replicas(value: Any, what: str) -> tuple[int, ...]:
    """`value` as broker ids, few enough for a control request."""
    replicas = _integers(value, what)
    if len(replicas) > REPLICAS_MAX:
        raise ValueError(f"{what}: {len(replicas)} broker ids, but the limit is {REPLICAS_MAX}")
    return replicas


def _text(value: Any, what: str, length_max: int) -> str:
    """`value` as a text that UTF-8 can encode: JSON escapes can contain halves of surrogate pairs."""
    if not isinstance(value, str) or len(value) > length_max:
        raise ValueError(f"{what} must be a text of at most {length_max} characters, found {_shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} is not a text: {_shown(value)}") from None
    return value


def _shown(value: Any) -> str:
    """A value of any kind and size, for a log line."""
    if isinstance(value, int) and value.bit_length() > 128:  # Python refuses to print very large numbers
        return f"a number of {value.bit_length()} bits"
    return shown(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"


class BrokerIdZNode:
    """`/brokers/ids/<id>`, ephemeral, version 5. Its czxid is the broker epoch (STA-3)."""

    PARENT = "/brokers/ids"

    @staticmethod
    def path(broker_id: int) -> str:
        return f"/brokers/ids/{broker_id}"

    @staticmethod
    def encode(broker: BrokerInfo, timestamp_ms: int) -> bytes:
        plaintext = next((e for e in broker.endpoints if e.security_protocol == "PLAINTEXT"), None)
        return _encode(
            {
                "features": {},
                "listener_security_protocol_map": {e.listener: e.security_protocol for e in broker.endpoints},
                "endpoints": [str(e) for e in broker.endpoints],
                "jmx_port": -1,
                "port": plaintext.port if plaintext else -1,
                "host": plaintext.host if plaintext else None,
                "version": 5,
                "timestamp": str(timestamp_ms),
                **({"rack": broker.rack} if broker.rack else {}),
            }
        )

    @staticmethod
    def decode(broker_id: int, data: bytes, epoch: int) -> BrokerInfo:
        """`epoch` is the znode's czxid."""
        if len(data) > BROKER_BYTES_MAX:
            raise ValueError(f"{len(data)} bytes: the limit is {BROKER_BYTES_MAX}")
        value = _decode(data)
        protocols = value.get("listener_security_protocol_map", {})
        texts = value.get("endpoints")
        if not isinstance(texts, list) or not isinstance(protocols, dict):
            raise ValueError("endpoints must be a list, listener_security_protocol_map an object")
        rack = value.get("rack")
        endpoints = tuple(parse_endpoint(_text(text, "an endpoint", ENDPOINT_MAX), protocols) for text in texts)
        if len({endpoint.listener for endpoint in endpoints}) < len(endpoints):
            raise ValueError("a listener has two endpoints")
        return BrokerInfo(
            broker_id,
            epoch,
            endpoints,
            _text(rack, "rack", RACK_MAX) if rack is not None else None,
        )

    @staticmethod
    def broker_ids(names: Iterable[str]) -> list[int]:
        """The ids among the names below PARENT, in ascending order. Other names are not brokers."""
        return sorted(broker for broker in map(number_of, names) if broker is not None)


def parse_endpoint(text: str, protocols: Mapping[str, str]) -> Endpoint:
    """The endpoint in `NAME://host:port`; an IPv6 address is in brackets. Raises ValueError."""
    listener, separator, address = text.partition("://")
    host, colon, port = address.rpartition(":")
    host = host.strip("[]")
    number = number_of(port)
    if not separator or not colon or number is None:
        raise ValueError(f"{shown(text)} is not NAME://host:port")
    # With a name that no resolver accepts, each attempt to connect would raise an unexpected kind of error.
    if number > PORT_MAX or not _HOST.fullmatch(host):
        raise ValueError(f"{shown(text)} is not an address to connect to")
    return Endpoint(listener, host, number, _text(protocols.get(listener, listener), "a protocol", ENDPOINT_MAX))


class TopicZNode:
    """`/brokers/topics/<topic>`, version 3: the assignment of all partitions, and the topic's id."""

    PARENT = "/brokers/topics"

    @staticmethod
    def path(topic: str) -> str:
        return f"/brokers/topics/{topic}"

    @staticmethod
    def encode(topic_id: str | None, assignment: Mapping[int, Assignment]) -> bytes:
        ordered = sorted(assignment.items())
        return _encode(
            {
                "partitions": {str(p): list(a.replicas) for p, a in ordered},
                **({"topic_id": topic_id} if topic_id is not None else {}),
                "adding_replicas": {str(p): list(a.adding) for p, a in ordered if a.adding},
                "removing_replicas": {str(p): list(a.removing) for p, a in ordered if a.removing},
                "version": 3 if topic_id is not None else 2,
            }
        )

    @staticmethod
    def decode(data: bytes) -> tuple[str | None, dict[int, Assignment]]:
        """(topic id as text, or None before version 3; partition -> assignment). Equal assignments are usually one object."""
        return _quickly_decoded_topic(data) or TopicZNode.decode_carefully(data)

    @staticmethod
    def decode_carefully(data: bytes) -> tuple[str | None, dict[int, Assignment]]:
        """Like `decode`, with all checks. `decode` calls it for unusual content."""
        value = _decode(data)
        tables = [value.get(name) or {} for name in ("partitions", "adding_replicas", "removing_replicas")]
        if not all(isinstance(table, dict) for table in tables):
            raise ValueError("partitions, adding_replicas and removing_replicas must be objects")
        partitions, adding, removing = tables
        topic_id = value.get("topic_id")
        if topic_id is not None:
            topic_id_uuid(str(topic_id))
        assignment = {}
        for text, replicas in partitions.items():
            partition = number_of(text)
            if partition is None:
                raise ValueError(f"{shown(text)} is not a partition number")
            assignment[partition] = Assignment(
                _replicas(replicas, f"replicas of {text}"),
                _replicas(adding.get(text, []), f"adding_replicas of {text}"),
                _replicas(removing.get(text, []), f"removing_replicas of {text}"),
            )
        return (None if topic_id is None else str(topic_id)), assignment


def _quickly_decoded_topic(data: bytes) -> tuple[str | None, dict[int, Assignment]] | None:
    """`TopicZNode.decode` for the form that Kafka and ottla write without a reassignment; None for any other content."""
    if b"true" in data or b"false" in data or b"\0" in data:
        return None  # true and false would pass as 1 and 0; UTF-16 has zero bytes
    try:
        value = json.loads(data, parse_float=str)
        partitions = value["partitions"]
        if value.get("adding_replicas") or value.get("removing_replicas"):
            return None
        topic_id = value.get("topic_id")
        if topic_id is not None and (type(topic_id) is not str or not TOPIC_ID.fullmatch(topic_id)):
            return None
        assignment = {}
        for text, replicas in partitions.items():
            if type(replicas) is not list or not _PARTITION.fullmatch(text):
                return None
            assignment[int(text)] = _plain_assignment(tuple(replicas))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return topic_id, assignment


_PARTITION = re.compile(r"0|[1-9][0-9]{0,8}")
"""A partition number of at most nine digits. `decode_carefully` handles larger ones."""


@lru_cache(maxsize=SHARED_VALUES_MAX)
def _plain_assignment(replicas: tuple[Any, ...]) -> Assignment:
    """Raises TypeError if `replicas` are not broker ids or are too many."""
    if len(replicas) > REPLICAS_MAX or any(
        type(replica) is not int or not 0 <= replica <= INT_MAX for replica in replicas
    ):
        raise TypeError
    return Assignment(replicas)


_NUMBER = rb"(-1|[1-9][0-9]{0,8}|0)"
_STATE = re.compile(
    rb'\{"controller_epoch":%b,"leader":%b,"version":1,"leader_epoch":%b,"isr":\[([-0-9,]*)\]\}'
    % (_NUMBER, _NUMBER, _NUMBER)
)
"""A state in the form that Kafka and ottla write."""
_NUMBERS = re.compile(rb"%b(?:,%b)*" % (_NUMBER, _NUMBER))


@lru_cache(maxsize=SHARED_VALUES_MAX)
def _numbers(text: bytes) -> tuple[int, ...]:
    """The numbers in a text such as `1,2,3`. Raises ValueError if they are not valid JSON, negative, or too many."""
    if text and not _NUMBERS.fullmatch(text):
        raise ValueError
    numbers = tuple(map(int, text.split(b","))) if text else ()
    if min(numbers, default=0) < 0 or len(numbers) > REPLICAS_MAX:
        raise ValueError
    return numbers


class PartitionStateZNode:
    """`/brokers/topics/<topic>/partitions/<p>/state`: leader, epochs and ISR. Every write is conditional on its version."""

    @staticmethod
    def path(partition: TopicPartition) -> str:
        topic, number = partition
        return f"/brokers/topics/{topic}/partitions/{number}/state"

    @staticmethod
    def paths(partitions: Iterable[TopicPartition]) -> list[str]:
        """The path of each partition's state."""
        return [f"/brokers/topics/{topic}/partitions/{number}/state" for topic, number in partitions]

    @staticmethod
    def parents(partition: TopicPartition) -> tuple[str, str]:
        """The two nodes between the topic's node and the state's node."""
        base = f"/brokers/topics/{partition.topic}/partitions"
        return base, f"{base}/{partition.partition}"

    @staticmethod
    def encode(state: LeaderAndIsr) -> bytes:
        (encoded,) = PartitionStateZNode.encode_each((state,))
        return encoded

    @staticmethod
    def encode_each(states: Iterable[LeaderAndIsr]) -> list[bytes]:
        """The content of each state's node. Most states of a controller's write differ only in the leader epoch."""
        around_epoch: dict[tuple[int, int, tuple[int, ...]], tuple[bytes, bytes]] = {}
        encoded = []
        for leader, leader_epoch, isr, controller_epoch, _ in states:
            others = controller_epoch, leader, isr
            around = around_epoch.get(others)
            if around is None:
                before = b'{"controller_epoch":%d,"leader":%d,"version":1,"leader_epoch":' % (controller_epoch, leader)
                around = around_epoch[others] = before, b',"isr":[%b]}' % ",".join(map(str, isr)).encode()
            encoded.append(b"%b%d%b" % (around[0], leader_epoch, around[1]))
        return encoded

    @staticmethod
    def decode(data: bytes, version: int) -> LeaderAndIsr:
        """`version` is the version of the znode. Equal ISRs are usually one object."""
        found = _STATE.fullmatch(data)
        if found is None:
            return PartitionStateZNode.decode_carefully(data, version)
        controller_epoch, leader, leader_epoch, isr = found.groups()
        try:
            members = _numbers(isr)
        except ValueError:
            return PartitionStateZNode.decode_carefully(data, version)
        state = LeaderAndIsr(int(leader), int(leader_epoch), members, int(controller_epoch), version)
        return state if state[1] >= 0 <= state[3] else PartitionStateZNode.decode_carefully(data, version)

    @staticmethod
    def decode_carefully(data: bytes, version: int) -> LeaderAndIsr:
        """Like `decode`, with all checks. `decode` calls it for unusual content."""
        value = _decode(data)
        return LeaderAndIsr(
            _integer(value.get("leader"), "leader", NO_LEADER),
            _integer(value.get("leader_epoch"), "leader_epoch"),
            _replicas(value.get("isr"), "isr"),
            _integer(value.get("controller_epoch"), "controller_epoch"),
            version,
        )


class ControllerZNode:
    """`/controller`, ephemeral: the id of the controller (CTL-1)."""

    PATH = "/controller"

    @staticmethod
    def encode(broker_id: int, timestamp_ms: int) -> bytes:
        return _encode({"version": 1, "brokerid": broker_id, "timestamp": str(timestamp_ms)})

    @staticmethod
    def decode(data: bytes) -> int:
        return _integer(_decode(data).get("brokerid"), "brokerid")


class ControllerEpochZNode:
    """`/controller_epoch`: a plain number. The version of the znode fences every write of the controller (INV-9)."""

    PATH = "/controller_epoch"

    @staticmethod
    def encode(epoch: int) -> bytes:
        return str(epoch).encode()

    @staticmethod
    def decode(data: bytes) -> int:
        epoch = number_of(data[:40].decode("latin-1"))
        if epoch is None or epoch == INT_MAX:
            raise ValueError(f"{data[:40]!r} is not a controller epoch")
        return epoch


class ConfigZNode:
    """`/config/<kind>/<name>`, kind `topics`, `brokers`, `users`, `clients` or `ips`: overrides as text.

    The entity of a user together with a client id has the name `<user>/clients/<client id>` (`of_both`).
    """

    @staticmethod
    def parent(kind: str) -> str:
        return f"/config/{kind}"

    @staticmethod
    def is_entity_name(name: str) -> bool:
        """Whether a node may have the name: one that Kafka has sanitized, or `<default>`. Some others are not even paths."""
        return ENTITY_NAME.fullmatch(name) is not None and name not in (".", "..")

    @staticmethod
    def path(kind: str, name: str) -> str:
        return f"/config/{kind}/{name}"

    @staticmethod
    def decode_entity(data: bytes) -> dict[str, str]:
        """Of a user, client id or address. A node without content was made as the parent of others, as that of a user with client ids."""
        return ConfigZNode.decode(data) if data else {}

    @staticmethod
    def of_both(user: str, client_id: str) -> str:
        """The name of a user together with a client id, of their names."""
        return f"{user}/clients/{client_id}"

    @staticmethod
    def encode(config: Mapping[str, str]) -> bytes:
        return _encode({"version": 1, "config": dict(config)})

    @staticmethod
    def decode(data: bytes) -> dict[str, str]:
        config = _decode(data).get("config", {})
        if not isinstance(config, dict):
            raise ValueError("config must be an object")
        if any(isinstance(value, dict | list) for value in config.values()):
            raise ValueError("a setting must be a text")
        return {
            _text(key, "a key", CONFIG_TEXT_MAX): _text(str(value), "a value", CONFIG_TEXT_MAX)
            for key, value in config.items()
        }


ENTITY_NAME = re.compile(r"[A-Za-z0-9.*_%+~-]+|<default>")
CONFIG_TEXT_MAX = 32_767
"""Characters of a key or value: the limit of a text in a DescribeConfigs response."""


class ConfigChangeZNode:
    """`/config/changes/config_change_<seq>`: names the overrides that brokers must read again."""

    PARENT = "/config/changes"
    PATH_PREFIX = "/config/changes/config_change_"

    @staticmethod
    def encode(entity_path: str) -> bytes:
        """`entity_path` is for example `topics/orders`."""
        return _encode({"version": 2, "entity_path": entity_path})

    @staticmethod
    def announcement(entity_path: str) -> CreateOp:
        """What tells all brokers."""
        return CreateOp(ConfigChangeZNode.PATH_PREFIX, ConfigChangeZNode.encode(entity_path), sequence=True)

    @staticmethod
    def decode(data: bytes) -> str:
        path = _decode(data).get("entity_path")
        return _text(path, "entity_path", CONFIG_TEXT_MAX)


class IsrChangeZNode:
    """`/isr_change_notification/isr_change_<seq>`: partitions whose leader changed the ISR (REP-3, CTL-13)."""

    PARENT = "/isr_change_notification"
    PATH_PREFIX = "/isr_change_notification/isr_change_"

    @staticmethod
    def encode(partitions: Iterable[TopicPartition]) -> bytes:
        return _encode({"version": 1, "partitions": [{"topic": p.topic, "partition": p.partition} for p in partitions]})

    @staticmethod
    def decode(data: bytes) -> tuple[TopicPartition, ...]:
        return _partition_list(_decode(data))


class LogDirEventZNode:
    """`/log_dir_event_notification/log_dir_event_<seq>`: a log directory of that broker failed (LOG-6)."""

    PARENT = "/log_dir_event_notification"
    PATH_PREFIX = "/log_dir_event_notification/log_dir_event_"
    FAILURE = 1

    @staticmethod
    def encode(broker_id: int) -> bytes:
        return _encode({"version": 1, "broker": broker_id, "event": LogDirEventZNode.FAILURE})

    @staticmethod
    def decode(data: bytes) -> int:
        """The id of the broker, which the controller then asks for details."""
        return _integer(_decode(data).get("broker"), "broker")


def _partition_list(value: Mapping[str, Any]) -> tuple[TopicPartition, ...]:
    """The value's `partitions`: a list of objects with `topic` and `partition`."""
    rows = value.get("partitions", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("partitions must be a list of objects")
    for row in rows:
        if not is_valid_topic_name(row.get("topic")):
            raise ValueError(f"{_shown(row.get('topic'))} is not a legal topic name")
    return tuple(TopicPartition(row["topic"], _integer(row.get("partition"), "partition")) for row in rows)


class DeleteTopicZNode:
    """`/admin/delete_topics/<topic>`: a request to delete (CTL-9)."""

    PARENT = "/admin/delete_topics"

    @staticmethod
    def path(topic: str) -> str:
        return f"/admin/delete_topics/{topic}"


class ReassignPartitionsZNode:
    """`/admin/reassign_partitions`: the requested moves, in Kafka's reassignment JSON (CTL-11)."""

    PATH = "/admin/reassign_partitions"

    @staticmethod
    def encode(targets: Mapping[TopicPartition, tuple[int, ...]]) -> bytes:
        rows = [{"topic": p.topic, "partition": p.partition, "replicas": list(r)} for p, r in targets.items()]
        return _encode({"version": 1, "partitions": rows})

    @staticmethod
    def decode(data: bytes) -> dict[TopicPartition, tuple[int, ...]]:
        return dict(ReassignPartitionsZNode.decode_rows(data))

    @staticmethod
    def decode_rows(data: bytes) -> list[tuple[TopicPartition, tuple[int, ...]]]:
        """The rows as written: a partition may be repeated, and replicas may be any numbers of 32 bits."""
        value = _decode(data)
        partitions = _partition_list(value)
        return [
            (p, _integers(row.get("replicas"), f"replicas of {p}", -INT_MAX))
            for p, row in zip(partitions, value.get("partitions", []), strict=True)
        ]


class PreferredElectionZNode:
    """`/admin/preferred_replica_election`: partitions whose first replica is to lead (CTL-12)."""

    PATH = "/admin/preferred_replica_election"

    @staticmethod
    def encode(partitions: Iterable[TopicPartition]) -> bytes:
        return IsrChangeZNode.encode(partitions)

    @staticmethod
    def decode(data: bytes) -> tuple[TopicPartition, ...]:
        return _partition_list(_decode(data))


PRODUCER_ID_MAX = 2**63 - 1
PRODUCER_ID_DIGITS = 19


class ProducerIdBlockZNode:
    """`/latest_producer_id_block`, version 1: the last allocated block of producer ids. Empty before the first allocation."""

    PATH = "/latest_producer_id_block"

    @staticmethod
    def encode(broker_id: int, first: int, last: int) -> bytes:
        return _encode({"version": 1, "broker": broker_id, "block_start": str(first), "block_end": str(last)})

    @staticmethod
    def decode(data: bytes) -> int:
        """The last id of the block; -1 if no block was allocated yet."""
        if not data:
            return -1
        value = _decode(data)
        text = str(value.get("block_end"))
        if not text.isascii() or not text.isdigit() or len(text) > PRODUCER_ID_DIGITS or int(text) > PRODUCER_ID_MAX:
            raise ValueError(f"block_end {shown(text)} is not a producer id")
        return int(text)


class ClusterIdZNode:
    """`/cluster/id`: chosen by the first broker that starts, and never changed."""

    PATH = "/cluster/id"

    @staticmethod
    def encode(cluster_id: str) -> bytes:
        return _encode({"version": "1", "id": cluster_id})

    @staticmethod
    def decode(data: bytes) -> str:
        cluster_id = _decode(data).get("id")
        if not isinstance(cluster_id, str) or not _CLUSTER_ID.fullmatch(cluster_id):
            raise ValueError(
                f"id must be 1 to 249 printable ASCII characters without blanks, found {_shown(cluster_id)}"
            )
        return cluster_id


_CLUSTER_ID = re.compile(r"[!-~]{1,249}")
"""A cluster id that fits into a line of `meta.properties`."""
