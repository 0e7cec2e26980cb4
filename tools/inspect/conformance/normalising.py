"""What two clusters may answer differently though they behave alike: ids, times, ports, sizes of disks, words of error messages. Pure.

`Normaliser.answer` makes a plain value of an answer: dicts, lists, texts, numbers. Values that a cluster chooses are replaced by what they
have in common: `<home>` for the id of the broker that was asked, `<id 1>` for the first topic id, `<member 2>` for the second member id.
The same value gets the same label in all answers of a cluster, so a comparison sees whether two answers name the same member.
"""

from __future__ import annotations

import datetime
import enum
import re
import uuid
from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.messages import milliseconds
from protocol.kafka.record_batch import decode_records, iter_batches
from tools.inspect.conformance.scene import RUN

Plain = Any
"""A dict, list, text, number, bool or None."""

DROPPED = frozenset(("throttle_time", "log_dir", "total_bytes", "usable_bytes", "client_host", "api_keys"))
"""Load and disks. `api_keys` is compared on its own, once."""
CHOSEN = frozenset(("node_id", "controller_id"))
"""The ids of coordinators and controllers: any broker may be one."""
NODES = frozenset(
    (
        "broker_id",
        "leader_id",
        "leader",
        "replica_nodes",
        "isr_nodes",
        "offline_replicas",
        "replicas",
        "adding_replicas",
        "removing_replicas",
        "preferred_read_replica",
    )
)
PRESENT = frozenset(("cluster_id", "host", "documentation", "error_message"))
"""Fields of which only matters whether they are null, empty or neither."""
LABELLED: Mapping[str, str] = {
    "topic_id": "id",
    "member_id": "member",
    "leader": "member",
    "producer_id": "producer",
    "session_id": "session",
}
TIMES = frozenset(("log_append_time", "last_timestamp", "transaction_start_time"))
"""Times of a cluster's clock. Times of records are those that the scene sent."""
LISTED = frozenset(("topics", "groups", "results", "responses", "transaction_states"))
"""Arrays that may list what other clients made. Rows whose name is neither the run's nor internal are left out."""
NAMES = ("name", "topic", "group_id", "transactional_id")
INTERNAL = ("__consumer_offsets", "__transaction_state", "__cluster_metadata")
APPENDED = frozenset(("base_offset", "low_watermark", "partition_size"))
"""What depends on the number of batches that were appended before."""
ZERO_ID = uuid.UUID(int=0)
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_CASE = re.compile(re.escape(RUN) + r"-case-\d+")
_LONG = re.compile(r"(?<=x)x{20,}")


class Normaliser:
    """Of the answers of one cluster. `run` is the prefix of its names, `home` the id of the broker that was asked.

    `topic_ids`: name of a topic -> its id, for topics that both clusters have. It may grow.
    """

    def __init__(
        self, run: str, home: int, brokers: Collection[int], topic_ids: Mapping[str, uuid.UUID] = MappingProxyType({})
    ) -> None:
        self._topic_ids = topic_ids
        self._run = run
        self._home = home
        self._brokers = brokers
        self._labels: dict[tuple[str, str], str] = {}

    def answer(self, entity: Any) -> Plain:
        """An answer as kio reads it."""
        return self._value("", entity)

    def answer_alone(self, entity: Any) -> Plain:
        """Like `answer`, for one that stands alone: its labels start again, and how often something was appended before is nothing."""
        self.begin()
        return _without_appends(self.answer(entity))

    def begin(self) -> None:
        """The labels start again: what comes is a history of its own."""
        self._labels.clear()

    def text(self, value: str) -> str:
        value = _LONG.sub("...", value.replace(self._run, RUN))
        return _CASE.sub(f"{RUN}-case", value)

    def _value(self, name: str, value: Any) -> Plain:
        if names := field_names(value):
            return self._row(value, names)
        if isinstance(value, tuple | list):
            rows = [self._value(name, row) for row in value if not (name in LISTED and self._is_foreign(row))]
            return sorted(rows, key=_sort_key) if rows and isinstance(rows[0], dict) else rows
        if name == "error_code":
            return _error_name(value)
        if name in PRESENT:
            return value if not value else "<given>"
        if isinstance(value, str):
            label = LABELLED.get(name)
            is_given = self._run not in value or _UUID.search(value)
            return self._label(label, value) if label and value and is_given else self.text(value)
        if name == "topic_id":
            return "<zero>" if value in (None, ZERO_ID) else self._topic_id(value)
        if isinstance(value, datetime.timedelta | datetime.datetime):
            value = milliseconds(value)
        if name == "records":
            return None if value is None else self._records(bytes(value))
        if isinstance(value, bytes | bytearray | memoryview):
            return self.text(bytes(value).decode("latin-1"))
        if isinstance(value, bool) or value is None or isinstance(value, float):
            return value
        if isinstance(value, uuid.UUID):
            return str(value)
        if isinstance(value, int | enum.IntEnum):
            return self._number(name, int(value))
        return str(value)

    def _topic_id(self, value: uuid.UUID) -> str:
        name = next((name for name, known in self._topic_ids.items() if known == value), None)
        return self._label("id", str(value)) if name is None else f"<id of {self.text(name)}>"

    def _row(self, entity: Any, names: Sequence[str]) -> dict[str, Plain]:
        plain = {name: self._value(name, getattr(entity, name)) for name in names if name not in DROPPED}
        if plain.get("resource_type") == 4 and isinstance(plain.get("configs"), list):
            # A broker's settings are its administrator's. The answer is compared in the settings that both have.
            plain["configs"] = [_without_value(row) for row in plain["configs"]]
        if plain.get("resource_name") == str(self._home):
            plain["resource_name"] = "<home>"
        return plain

    def _number(self, name: str, value: int) -> Plain:
        if name in CHOSEN and value in self._brokers:
            return "<broker>"
        if name in NODES:
            if value == self._home:
                return "<home>"
            return "<other>" if value in self._brokers else value
        if name in TIMES and value > 0:
            return "<time>"
        if name == "port" and value > 0:
            return "<port>"
        if name in LABELLED and (value > 0 or (value == 0 and name == "producer_id")):
            return self._label(LABELLED[name], str(value))
        return value

    def _label(self, kind: str, value: str) -> str:
        number = sum(known == kind for known, _ in self._labels) + 1
        return self._labels.setdefault((kind, value), f"<{kind} {number}>")

    def _is_foreign(self, row: Any) -> bool:
        if getattr(row, "group_id", None) == "" and not hasattr(row, "error_code"):
            return True  # offsets without a group, of anybody
        for name in NAMES:
            found = getattr(row, name, None)
            if isinstance(found, str) and found:
                is_listed = not hasattr(row, "error_code") or getattr(row, "is_internal", False)
                if is_listed and (found in INTERNAL or _CASE.search(found.replace(self._run, RUN))):
                    return True  # what earlier cases left, and how large it is
                return self._run not in found and found not in INTERNAL
        return False

    def _records(self, data: bytes) -> Plain:
        """Batches with their records; what is broken or cut is told by its size."""
        batches: list[Plain] = []
        end = 0
        try:
            for position, header in iter_batches(data):
                end = position + header.size_in_bytes
                if end > len(data):
                    batches.append("<a batch that is cut>")
                    break
                row = {
                    "base_offset": header.base_offset,
                    "last_offset": header.last_offset,
                    "partition_leader_epoch": header.partition_leader_epoch,
                    "attributes": header.attributes,
                    "max_timestamp": header.max_timestamp,
                    "producer_id": self._number("producer_id", header.producer_id),
                    "producer_epoch": header.producer_epoch,
                    "base_sequence": header.base_sequence,
                }
                if not header.is_control:
                    row["records"] = [self._record(record) for record in decode_records(data, position)]
                batches.append(row)
        except (KafkaError, ValueError) as error:
            batches.append(f"<unreadable: {type(error).__name__}>")
        return batches

    def _record(self, record: Any) -> Plain:
        return [
            record.offset,
            record.timestamp,
            None if record.key is None else self.text(bytes(record.key).decode("latin-1")),
            None if record.value is None else self.text(bytes(record.value[:100]).decode("latin-1")),
        ]


def field_names(value: Any) -> Sequence[str]:
    """The field names of an entity; empty for other values."""
    return getattr(value, "_fields", ())


def _without_appends(plain: Plain) -> Plain:
    if isinstance(plain, list):
        return [_without_appends(row) for row in plain]
    if not isinstance(plain, dict):
        return plain
    return {
        name: "<offset>" if name in APPENDED and isinstance(value, int) and value >= 0 else _without_appends(value)
        for name, value in plain.items()
    }


def _without_value(row: dict[str, Plain]) -> dict[str, Plain]:
    return {name: value for name, value in row.items() if name in ("name", "config_type", "is_sensitive")}


def _error_name(value: Any) -> str:
    code = int(value)
    return ErrorCode(code).name if code in ErrorCode._value2member_map_ else f"error {code}"


def _sort_key(row: Mapping[str, Plain]) -> list[str]:
    """The order of rows is not part of an answer: brokers keep them in hash maps."""
    return [f"{row.get(name)!r:>12}" for name in IDENTITY if name in row]


IDENTITY = (
    "name",
    "topic",
    "topic_id",
    "partition_index",
    "partition",
    "partition_id",
    "index",
    "key",
    "group_id",
    "resource_type",
    "resource_name",
    "node_id",
    "broker_id",
    "member_id",
    "transactional_id",
    "user",
    "username",
)
"""Fields that tell which row of an array is meant."""
