"""Special requests that changing one field does not produce, by API; those of groups are in tables.yaml. Pure."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from protocol.kafka.api_keys import ApiKey
from protocol.kafka.record_batch import build_batch
from tools.inspect.conformance.bodies import BROKER, Body
from tools.inspect.conformance.scene import FIRST_TIME_MS, Scene, batch

Change = Callable[[Scene, Body], Any]
"""Changes a body in place."""

GZIP, SNAPPY, LZ4, ZSTD = 1, 2, 3, 4
BROKER_LOGGER = 8


def _in_first(path: str, **values: Any) -> Change:
    """Sets fields of the element that `path` leads to: names of arrays, whose first element is meant, with dots between."""

    def change(scene: Scene, body: Body) -> None:
        place: Any = body
        for name in path.split(".") if path else ():
            place = place[name][0]
        for name, value in values.items():
            place[name] = value(scene) if callable(value) else value

    return change


def _records(make: Callable[[], bytes | None]) -> Change:
    return lambda scene, body: _in_first("topic_data.partition_data", records=make())(scene, body)


def _patched(at: int, data: bytes) -> Callable[[], bytes]:
    """A batch with these bytes at `at`, and so with a wrong CRC if they are in its sum."""

    def make() -> bytes:
        made = bytearray(batch(1))
        made[at : at + len(data)] = data
        return bytes(made)

    return make


def _sealed(at: int, data: bytes, whole: Callable[[], bytes] = lambda: batch(1)) -> Callable[[], bytes]:
    """Like `_patched`, with the right CRC; `whole` makes the batch."""

    def make() -> bytes:
        from fastcrc.crc32 import iscsi

        made = bytearray(whole())
        made[at : at + len(data)] = data
        made[17:21] = struct.pack(">I", iscsi(memoryview(made)[21:]))
        return bytes(made)

    return make


def _one_record(
    key: bytes | None = b"k", value: bytes | None = b"v", timestamp: int = FIRST_TIME_MS, **more: Any
) -> Callable[[], bytes]:
    return lambda: build_batch([(key, value, (), timestamp)], **more)


def _topic_named(name: Callable[[Scene], str]) -> Change:
    return _in_first("topics", name=name, topic=name)


def _config(name: str, value: str | None, operation: int = 0) -> Change:
    return _in_first("resources.configs", name=name, value=value, config_operation=operation)


def _with_configs(*configs: tuple[str, str | None]) -> Change:
    return _in_first("topics", configs=[{"name": name, "value": value} for name, value in configs])


def _brokers(scene: Scene, ids: list[int]) -> list[int]:
    """0 stands for the home broker."""
    return [scene.home if broker == 0 else broker for broker in ids]


def _assigned(*replicas: list[int], start: int = 0) -> Change:
    """Partitions from `start` with these replicas, where 0 stands for the home broker and other numbers for brokers that do not exist."""

    def change(scene: Scene, body: Body) -> None:
        rows = [{"partition_index": n, "broker_ids": _brokers(scene, ids)} for n, ids in enumerate(replicas, start)]
        _in_first("topics", assignments=rows, num_partitions=-1, replication_factor=-1)(scene, body)

    return change


def _moved(replicas: list[int] | None) -> Change:
    """Like `_assigned`, for the target of a reassignment."""

    def change(scene: Scene, body: Body) -> None:
        target = None if replicas is None else _brokers(scene, replicas)
        _in_first("topics.partitions", replicas=target)(scene, body)

    return change


def _both(*changes: Change) -> Change:
    def change(scene: Scene, body: Body) -> None:
        for one in changes:
            one(scene, body)

    return change


def _set(**values: Any) -> Change:
    return _in_first("", **values)


def _broker_configs(**values: Any) -> Change:
    return _in_first("resources", **{"resource_type": BROKER, "resource_name": lambda scene: str(scene.home), **values})


def _broker_change(name: str | None = None, setting: tuple[str, str] = ("log.cleaner.threads", "2")) -> Change:
    """A setting of a broker, the home broker if `name` is None: only validated."""
    named = {} if name is None else {"resource_name": name}
    return _both(_broker_configs(**named), _config(*setting), _set(validate_only=True))


_CONFIG_CHANGES: Mapping[str, Change] = {
    "unknown setting": _config("no.such.setting", "1"),
    "value that is no number": _config("retention.ms", "soon"),
    "value out of range": _config("min.insync.replicas", "0"),
    "unknown cleanup policy": _config("cleanup.policy", "shred"),
    "empty cleanup policy": _config("cleanup.policy", ""),
    "null value": _config("retention.ms", None),
    "unknown topic": _in_first("resources", resource_name=lambda scene: scene.unknown),
    "broker, only validated": _broker_change(),
    "broker, setting that needs a restart": _broker_change(setting=("broker.rack", "r")),
    "broker, unknown setting": _broker_change(setting=("no.such.setting", "1")),
    "broker that is not there": _broker_change("4711"),
    "broker whose id is no number": _broker_change("one"),
    "all brokers, only validated": _broker_change(""),
    "two resources, one unknown": lambda scene, body: body["resources"].append(
        {**body["resources"][0], "resource_name": scene.unknown}
    ),
    "same setting twice": lambda scene, body: body["resources"][0]["configs"].append(
        {"name": "retention.ms", "config_operation": 0, "value": "1000"}
    ),
    "no settings": _in_first("resources", configs=[]),
}


def _connection_rate(ip: str) -> Change:
    return _both(
        _in_first("entries.entity", entity_type="ip", entity_name=ip),
        _in_first("entries.ops", key="connection_creation_rate", value=100.0),
    )


EXTRA: Mapping[int, Mapping[str, Change]] = MappingProxyType(
    {
        ApiKey.PRODUCE: {
            "acks 0": _set(acks=0),
            "acks 1": _set(acks=1),
            "acks 2": _set(acks=2),
            "acks 0 with an error": _both(_set(acks=0), _in_first("topic_data.partition_data", index=99)),
            "to __consumer_offsets": _in_first("topic_data", name="__consumer_offsets"),
            "wrong CRC": _records(_patched(70, b"\x01")),
            "base offset 5": _records(_patched(0, b"\0\0\0\0\0\0\0\5")),
            "magic 1": _records(_patched(16, b"\1")),
            "magic 3": _records(_patched(16, b"\3")),
            "length beyond the records": _records(_patched(8, b"\0\0\1\0")),
            "length below a batch": _records(_patched(8, b"\0\0\0\5")),
            "two batches": _records(lambda: batch(1) + batch(1)),
            "a byte after the batch": _records(lambda: batch(1) + b"\0"),
            "zeros after the batch": _records(lambda: batch(1) + bytes(20)),
            "half a batch after the batch": _records(lambda: batch(1) + batch(1)[:40]),
            "record with offset delta 1": _records(_sealed(64, b"\2")),
            "record with a key of length -2": _records(_sealed(65, b"\3", _one_record(None))),
            "LogAppendTime of a producer": _records(_sealed(21, b"\0\x08")),
            "producer epoch -1": _records(lambda: batch(1, producer_id=78, producer_epoch=-1, base_sequence=0)),
            "control batch": _records(_sealed(21, b"\0\x20")),
            "transactional batch without a transaction": _records(_sealed(21, b"\0\x10")),
            "unknown compression": _records(_sealed(21, b"\0\7")),
            "unknown attribute": _records(_sealed(21, b"\x01\0")),
            "gzip that is no gzip": _records(_sealed(21, b"\0\1")),
            "count of records too large": _records(_sealed(57, b"\0\0\0\5")),
            "count of records 0": _records(_sealed(57, b"\0\0\0\0")),
            "negative last offset": _records(_sealed(23, b"\xff\xff\xff\xff")),
            "gzip": _records(lambda: _one_record(compression=GZIP)()),
            "snappy": _records(lambda: _one_record(compression=SNAPPY)()),
            "lz4": _records(lambda: _one_record(compression=LZ4)()),
            "zstd": _records(lambda: _one_record(compression=ZSTD)()),
            "null key and value": _records(_one_record(None, None)),
            "negative timestamp": _records(_one_record(timestamp=-5)),
            "timestamp far ahead": _records(_one_record(timestamp=4_000_000_000_000)),
            "producer id without a sequence": _records(lambda: batch(1, producer_id=7, producer_epoch=0)),
            "sequence without a producer id": _records(lambda: batch(1, base_sequence=0)),
            "sequence that starts at 7": _records(lambda: batch(1, producer_id=77, producer_epoch=0, base_sequence=7)),
            "batch above max.message.bytes": _records(_one_record(value=b"x" * 2_000_000)),
            "unknown transactional id": _set(transactional_id=lambda scene: scene.unknown),
        },
        ApiKey.FETCH: {
            "at the end": _in_first("topics.partitions", fetch_offset=5),
            "beyond the end": _in_first("topics.partitions", fetch_offset=6),
            "in the middle of a batch": _in_first("topics.partitions", fetch_offset=3),
            "of the empty partition": _in_first("topics.partitions", partition=1),
            "epoch of the leader": _in_first("topics.partitions", current_leader_epoch=0),
            "last epoch of the client": _in_first("topics.partitions", current_leader_epoch=0, last_fetched_epoch=0),
            "new session": _set(session_id=0, session_epoch=0),
            "unknown session": _set(session_id=123_456, session_epoch=1),
            "closed session": _set(session_id=123_456, session_epoch=-1),
            "read committed": _set(isolation_level=1),
            "forgotten topic without a session": _set(
                forgotten_topics_data=lambda scene: [
                    {"topic": scene.topic, "topic_id": scene.topic_ids.get(scene.topic), "partitions": [0]}
                ]
            ),
            "one byte": _set(max_bytes=1),
            "of __consumer_offsets": _in_first("topics", topic="__consumer_offsets"),
            "as a replica": _set(replica_id=4711, replica_state={"replica_id": 4711, "replica_epoch": 1}),
        },
        ApiKey.LIST_OFFSETS: {
            **{f"timestamp {time}": _in_first("topics.partitions", timestamp=time) for time in (-2, -3, -4, -5, -6)},
            "time of the third record": _in_first("topics.partitions", timestamp=FIRST_TIME_MS + 2_000),
            "time between two records": _in_first("topics.partitions", timestamp=FIRST_TIME_MS + 1_500),
            "time after the last record": _in_first("topics.partitions", timestamp=FIRST_TIME_MS + 100_000),
            "epoch of the leader": _in_first("topics.partitions", current_leader_epoch=0),
            "empty partition, earliest": _in_first("topics.partitions", partition_index=1, timestamp=-2),
            "empty partition, largest time": _in_first("topics.partitions", partition_index=1, timestamp=-3),
            "read committed": _set(isolation_level=1),
            "as a debugging consumer": _set(replica_id=-2),
        },
        ApiKey.METADATA: {
            "two topics, one unknown": lambda scene, body: body["topics"].append({"name": scene.unknown}),
            "operations of topics": _set(include_topic_authorized_operations=True),
            "operations of the cluster": _set(include_cluster_authorized_operations=True),
            "by topic id": _in_first("topics", name=None, topic_id=lambda scene: scene.topic_ids.get(scene.topic)),
            "unknown topic, to be made": _both(
                _in_first("topics", name=lambda scene: scene.fresh), _set(allow_auto_topic_creation=True)
            ),
        },
        ApiKey.OFFSET_FETCH: {
            "two groups": lambda scene, body: (
                body["groups"].append({**body["groups"][0], "group_id": scene.unknown}) if body.get("groups") else None
            ),
        },
        ApiKey.FIND_COORDINATOR: {
            "of a transaction": _set(key_type=1),
            "of a share group's partition": _set(
                key_type=2, key=lambda scene: f"{scene.run}:x:0", coordinator_keys=lambda scene: [f"{scene.run}:x:0"]
            ),
            "empty transactional id": _set(key_type=1, key="", coordinator_keys=[""]),
        },
        ApiKey.JOIN_GROUP: {
            "static member": _set(group_instance_id="i"),
            "protocol type that is not consumer": _set(protocol_type="connect"),
        },
        ApiKey.API_VERSIONS: {
            "name with a space": _set(client_software_name="a b"),
            "version with a slash": _set(client_software_version="1/2"),
            "name that ends with a dash": _set(client_software_name="a-"),
        },
        ApiKey.CREATE_TOPICS: {
            "only validated": _set(validate_only=True),
            "defaults of the broker": _in_first("topics", num_partitions=-1, replication_factor=-1),
            "existing": _topic_named(lambda scene: scene.topic),
            "differs by a dot from an existing one": _topic_named(lambda scene: scene.topic.replace("-", ".", 1)),
            "__consumer_offsets": _topic_named(lambda scene: "__consumer_offsets"),
            "__cluster_metadata": _both(_topic_named(lambda scene: "__cluster_metadata"), _set(validate_only=True)),
            "dot": _topic_named(lambda scene: "."),
            "249 characters": _topic_named(lambda scene: (scene.fresh + "x" * 249)[:249]),
            "assigned": _assigned([0], [0]),
            "assigned to one broker twice": _assigned([0, 0]),
            "assigned to nobody": _both(_assigned([]), _set(timeout=1_000)),
            "assigned to a negative broker": _both(_assigned([-1]), _set(validate_only=True)),
            "assigned, factors differ": _assigned([0], [0, 4711]),
            "assigned, and a number of partitions": _both(_assigned([0]), _in_first("topics", num_partitions=1)),
            "assigned, partitions do not start at 0": _assigned([0], start=1),
            "assigned, one partition twice": _both(
                _assigned([0]),
                lambda scene, body: body["topics"][0]["assignments"].extend(body["topics"][0]["assignments"]),
            ),
            "unknown setting": _with_configs(("no.such.setting", "1")),
            "value that is no number": _with_configs(("retention.ms", "soon")),
            "value out of range": _with_configs(("min.insync.replicas", "0")),
            "null value": _with_configs(("retention.ms", None)),
            "same setting twice": _with_configs(("retention.ms", "1000"), ("retention.ms", "2000")),
            "cleanup policies": _with_configs(("cleanup.policy", "compact,delete")),
            "spaces around a value": _with_configs(("retention.ms", " 1000 ")),
            "remote storage": _with_configs(("remote.storage.enable", "true")),
        },
        ApiKey.DELETE_TOPICS: {
            "unknown": _both(
                _in_first("topics", name=lambda scene: scene.unknown), _set(topic_names=["no-such-topic"])
            ),
            "name and id": _in_first("topics", topic_id=lambda scene: scene.topic_ids.get(scene.topic)),
        },
        ApiKey.DELETE_RECORDS: {
            "up to the end": _in_first("topics.partitions", offset=-1),
            "of the empty partition": _in_first("topics.partitions", partition_index=1, offset=0),
            "of __consumer_offsets": _both(
                _topic_named(lambda scene: "__consumer_offsets"), _in_first("topics.partitions", offset=0)
            ),
        },
        ApiKey.INIT_PRODUCER_ID: {
            "transactional": _set(transactional_id=lambda scene: scene.fresh),
            "empty transactional id": _set(transactional_id=""),
            "time-out of an hour": _set(transactional_id=lambda scene: scene.fresh, transaction_timeout=3_600_000),
            "time-out 0": _set(transactional_id=lambda scene: scene.fresh, transaction_timeout=0),
            "known id and epoch": _set(producer_id=5, producer_epoch=1),
        },
        ApiKey.OFFSET_FOR_LEADER_EPOCH: {
            "current epoch": _in_first("topics.partitions", current_leader_epoch=0),
            "a later epoch of the client": _in_first("topics.partitions", current_leader_epoch=7),
            "as a debugging consumer": _set(replica_id=-2),
        },
        ApiKey.DESCRIBE_CONFIGS: {
            "all of a topic": _in_first("resources", configuration_keys=None),
            "all of a topic with its own": _in_first(
                "resources", resource_name=lambda scene: scene.topic, configuration_keys=None
            ),
            "all of a broker": _broker_configs(configuration_keys=None),
            "one of a broker": _broker_configs(configuration_keys=["log.cleaner.threads", "no.such.setting"]),
            "of all brokers": _broker_configs(resource_name="", configuration_keys=None),
            "of a broker that is not there": _broker_configs(resource_name="4711"),
            "of a broker whose id is no number": _broker_configs(resource_name="one"),
            "of a logger": _in_first(
                "resources",
                resource_type=BROKER_LOGGER,
                resource_name=lambda scene: str(scene.home),
                configuration_keys=["no.such.logger"],
            ),
            "of client metrics": _in_first("resources", resource_type=16),
            "without synonyms": _set(include_synonyms=False, include_documentation=False),
        },
        ApiKey.ALTER_CONFIGS: _CONFIG_CHANGES,
        ApiKey.INCREMENTAL_ALTER_CONFIGS: {
            **_CONFIG_CHANGES,
            "delete": _config("retention.ms", None, 1),
            "delete what is not set": _config("segment.ms", None, 1),
            "append": _config("cleanup.policy", "compact", 2),
            "append to what is no list": _config("retention.ms", "5", 2),
            "subtract": _config("cleanup.policy", "compact", 3),
            "subtract what is not there": _config("cleanup.policy", "compact", 3),
        },
        ApiKey.DESCRIBE_LOG_DIRS: {"all": _set(topics=None), "no topics": _set(topics=[])},
        ApiKey.CREATE_PARTITIONS: {
            "without an assignment": _in_first("topics", assignments=None),
            "as many as there are": _in_first("topics", count=2, assignments=None),
            "fewer than there are": _in_first("topics", count=1, assignments=None),
            "too few assignments": _in_first("topics", count=4),
            "too many assignments": _in_first(
                "topics", assignments=lambda scene: [{"broker_ids": [scene.home]}, {"broker_ids": [scene.home]}]
            ),
            "one broker twice": _in_first("topics", assignments=lambda scene: [{"broker_ids": [scene.home] * 2}]),
            "unknown broker": _in_first("topics", assignments=[{"broker_ids": [4711]}]),
        },
        ApiKey.DELETE_GROUPS: {
            "two unknown": _set(groups_names=lambda scene: [scene.unknown, scene.fresh]),
        },
        ApiKey.ELECT_LEADERS: {
            "unclean": _set(election_type=1),
            "two partitions, one unknown": lambda scene, body: body["topic_partitions"][0]["partitions"].append(98),
        },
        ApiKey.ALTER_PARTITION_REASSIGNMENTS: {
            "cancel": _moved(None),
            "to nobody": _moved([]),
            "to one broker twice": _moved([0, 0]),
            "to an unknown broker": _moved([4711]),
            "to a negative broker": _moved([-1]),
        },
        ApiKey.LIST_PARTITION_REASSIGNMENTS: {"all": _set(topics=None)},
        ApiKey.DESCRIBE_CLIENT_QUOTAS: {
            "default entity": _in_first("components", match_type=1, match=None),
            "any entity": _in_first("components", match_type=2, match=None),
            "user": _in_first("components", entity_type="user"),
            "ip": _in_first("components", entity_type="ip", match="127.0.0.9"),
            "ip and user": lambda scene, body: body["components"].extend(
                [
                    {"entity_type": "ip", "match_type": 0, "match": "127.0.0.9"},
                    {"entity_type": "user", "match_type": 0, "match": scene.run},
                ]
            ),
            "unknown type": _in_first("components", entity_type="robot"),
            "same type twice": lambda scene, body: body["components"].append(body["components"][0]),
            "strict": _set(strict=True),
        },
        ApiKey.ALTER_CLIENT_QUOTAS: {
            "unknown key": _in_first("entries.ops", key="no_such_rate"),
            "negative": _in_first("entries.ops", value=-5.0),
            "remove": _in_first("entries.ops", remove=True, value=0.0),
            "unknown type": _in_first("entries.entity", entity_type="robot"),
            "ip": _connection_rate("127.0.0.9"),
            "ip that is none": _connection_rate("nowhere at all"),
            "fraction of a whole number": _in_first("entries.ops", key="connection_creation_rate", value=0.5),
        },
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS: {
            "unknown mechanism": _in_first("deletions", mechanism=9),
            "nobody": _in_first("deletions", name=""),
            "too few iterations": _set(
                deletions=[],
                upsertions=lambda scene: [
                    {
                        "name": scene.run,
                        "mechanism": 1,
                        "iterations": 10,
                        "salt": b"salt",
                        "salted_password": b"p",
                    }
                ],
            ),
            "same user twice": lambda scene, body: body["deletions"].append(body["deletions"][0]),
        },
    }
)
"""API key -> what is special -> the change of the well-formed body. A change that a version cannot say is left out."""
