"""One cluster's group APIs by raw requests, and their answers in a form that is the same for every cluster."""

from __future__ import annotations

import re
import struct
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from tests.support.invariants import eventually
from tests.support.wire import Wire

MEMBER_ID = re.compile(r"(.*)-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
SESSION_MS = 600_000
UNLIKE = {"throttle_time", "error_message", "node_id", "host", "port", "leader_id", "replica_nodes", "isr_nodes"}
"""Fields that are different in each cluster."""

Row = dict[str, Any]


def subscription(*topics: str) -> bytes:
    """A consumer's metadata, version 0: its topics and no data of its own."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in topics)
    return struct.pack(">hi", 0, len(topics)) + names + struct.pack(">i", -1)


class GroupWire:
    """Connections to every broker of a cluster; topics `read` and `other` of two partitions; groups that stay as they are.

    `live` has one dynamic member, `static` one with the instance id `i`, both in generation 1, subscribed to `read`;
    `full` has two members, `idle` only offsets. All names begin with `prefix`, so that clusters can be used again.
    """

    def __init__(self, bootstrap_servers: str, brokers: int) -> None:
        self.prefix = f"g-{uuid.uuid4().hex[:8]}-"
        host, _, port = bootstrap_servers.split(",")[0].rpartition(":")
        with Wire(int(port), host) as wire:
            found = eventually(lambda: known_brokers(wire, brokers), "all brokers are known")
        self.wires = {broker.node_id: Wire(broker.port) for broker in found}
        self.any = next(iter(self.wires.values()))
        self._coordinators: dict[str, int] = {}
        self.read, self.other = self.create_topic("read"), self.create_topic("other")
        self.live, self.static, self.idle = (self.prefix + name for name in ("live", "static", "idle"))
        self.member = self.make_stable(self.live)
        self.static_member = self.make_stable(self.static, instance_id="i")
        self.make_full(self.prefix + "full")
        assert self.commit(self.idle, {0: 10, 1: 11}) == 0
        assert self.commit(self.idle, {0: 20}, self.other) == 0

    def __enter__(self) -> GroupWire:
        return self

    def __exit__(self, *_: object) -> None:
        for wire in self.wires.values():
            wire.socket.close()

    # -- asking -------------------------------------------------------------------------------------------------------

    def coordinator(self, group: str) -> int:
        """Once it has loaded the group."""
        if group not in self._coordinators:
            found = eventually(lambda: self._find_coordinator(group), f"{group[:40]} has a coordinator")
            self._coordinators[group] = found[0]
        return self._coordinators[group]

    def _find_coordinator(self, group: str) -> tuple[int] | None:
        answer = self.any.call(ApiKey.FIND_COORDINATOR, 3, {"key": group, "key_type": 0})
        assert answer.error_code in (0, 15), answer
        if answer.error_code:
            return None
        body = {"groups": [group], "include_authorized_operations": False}
        (described,) = self.wires[answer.node_id].call(ApiKey.DESCRIBE_GROUPS, 5, body).groups
        return None if described.error_code else (int(answer.node_id),)

    def at(self, group: str, api_key: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
        return self.wires[self.coordinator(group)].call(api_key, version, body)

    def elsewhere(self, group: str, api_key: ApiKey, version: int, body: Mapping[str, Any]) -> Any:
        coordinator = self.coordinator(group)
        other = next(broker for broker in self.wires if broker != coordinator)
        return self.wires[other].call(api_key, version, body)

    def list_groups(self, version: int, body: Mapping[str, Any]) -> Any:
        """What all brokers answer, as one plain answer.

        Without the group of the empty name, which may be of another test, and `new`, of which only refused joins came: Kafka keeps
        such a group, empty, until its next start.
        """
        answers = [self.plain(wire.call(ApiKey.LIST_GROUPS, version, body)) for wire in self.wires.values()]
        groups = [row for answer in answers for row in answer["groups"] if row["group_id"] not in ("", "new")]
        return {
            "error_code": max(answer["error_code"] for answer in answers),
            "groups": sorted(groups, key=repr),
        }

    # -- requests -----------------------------------------------------------------------------------------------------

    def name(self, name: str) -> str:
        """The group of this name; the empty name stays as it is."""
        return self.prefix + name if name else ""

    def as_member(self, group: str, member: str = "", **changes: Any) -> Row:
        """The fields of JoinGroup, SyncGroup and Heartbeat."""
        body = {
            "group_id": group,
            "generation_id": 1,
            "member_id": member,
            "group_instance_id": None,
            "session_timeout": SESSION_MS,
            "rebalance_timeout": 10_000,
            "protocol_type": "consumer",
            "protocol_name": "range",
            "protocols": [{"name": "range", "metadata": subscription(self.read)}],
            "assignments": [],
            "reason": None,
        }
        return body | changes

    def committing(
        self, group: str, offsets: Mapping[int, int], topic: str = "", metadata: str | None = "", **changes: Any
    ) -> Row:
        rows = [
            {
                "partition_index": partition,
                "commit_timestamp": -1,
                "committed_offset": offset,
                "committed_leader_epoch": 0,
                "committed_metadata": metadata,
            }
            for partition, offset in offsets.items()
        ]
        body = {
            "group_id": group,
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "retention_time": -1,
            "topics": [{"name": topic or self.read, "partitions": rows}],
        }
        return body | changes

    # -- groups as they are needed ------------------------------------------------------------------------------------

    def create_topic(self, name: str) -> str:
        topic = {
            "name": self.prefix + name,
            "num_partitions": 2,
            "replication_factor": 1,
            "assignments": [],
            "configs": [],
        }
        body = {"topics": [topic], "timeout": 20_000, "validate_only": False}
        found = [row for wire in self.wires.values() for row in wire.call(ApiKey.CREATE_TOPICS, 7, body).topics]
        assert 0 in {row.error_code for row in found}, found
        eventually(lambda: self._is_known_everywhere(self.prefix + name), f"{name} is known everywhere")
        return self.prefix + name

    def _is_known_everywhere(self, topic: str) -> bool:
        body = {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
        rows = [row for wire in self.wires.values() for row in wire.call(ApiKey.METADATA, 9, body).topics]
        return all(len(row.partitions) == 2 and all(p.leader_id >= 0 for p in row.partitions) for row in rows)

    def make_stable(self, group: str, instance_id: str | None = None) -> str:
        """A group of one member in generation 1; its member id."""
        answer = self.at(group, ApiKey.JOIN_GROUP, 9, self.as_member(group, group_instance_id=instance_id))
        if answer.error_code == 79:
            answer = self.at(group, ApiKey.JOIN_GROUP, 9, self.as_member(group, answer.member_id))
        assert (answer.error_code, answer.generation_id) == (0, 1), answer
        member = str(answer.member_id)
        body = self.as_member(group, member, assignments=[{"member_id": member, "assignment": b"all"}])
        assert self.at(group, ApiKey.SYNC_GROUP, 5, body).error_code == 0
        return member

    def make_full(self, group: str) -> None:
        """A group of two members, in generation 2."""
        first = self.make_stable(group)
        with Wire(self.wires[self.coordinator(group)].socket.getpeername()[1]) as wire:
            wire.send(ApiKey.JOIN_GROUP, 3, self.as_member(group))
            eventually(lambda: self.state(group) == "PreparingRebalance", f"{group} rebalances")
            joined = self.at(group, ApiKey.JOIN_GROUP, 9, self.as_member(group, first))
            assert (joined.error_code, joined.generation_id, joined.leader) == (0, 2, first), joined
            _, answer = messages.decode_response(ApiKey.JOIN_GROUP, 3, wire.receive_frame())
            for member in (first, answer.member_id):
                synced = self.at(group, ApiKey.SYNC_GROUP, 0, self.as_member(group, member, generation_id=2))
                assert synced.error_code == 0

    def state(self, group: str) -> str:
        body = {"groups": [group], "include_authorized_operations": False}
        return str(self.at(group, ApiKey.DESCRIBE_GROUPS, 5, body).groups[0].group_state)

    def commit(self, group: str, offsets: Mapping[int, int], topic: str = "") -> int:
        """The first error."""
        answer = self.at(group, ApiKey.OFFSET_COMMIT, 8, self.committing(group, offsets, topic))
        return max(row.error_code for topic_row in answer.topics for row in topic_row.partitions)

    # -- answers ------------------------------------------------------------------------------------------------------

    def plain(self, answer: Any) -> Any:
        """The answer as dicts and lists, without what no two clusters have in common; lists in an order of their own.

        Member ids are numbered, in the order of their first appearance in this answer; groups of others are left out.
        """
        return self._plain(answer, {})

    def _plain(self, value: Any, members: dict[str, str]) -> Any:
        if is_dataclass(value):
            found = {f.name: getattr(value, f.name) for f in fields(value) if f.name not in UNLIKE}
            return {name: self._plain(part, members) for name, part in found.items()}
        if isinstance(value, tuple | list):
            mine = [part for part in value if self._is_mine(part)]
            return sorted((self._plain(part, members) for part in mine), key=repr)
        if isinstance(value, str):
            match = MEMBER_ID.fullmatch(value)
            if match is not None:
                return members.setdefault(value, f"{match.group(1)}#{len(members)}")
            return value.replace(self.prefix, "").replace("x" * 1000, "X")
        if isinstance(value, bytes):
            return value.replace(self.prefix.encode(), b"")
        return int(value) if isinstance(value, int) and not isinstance(value, bool) else value

    def _is_mine(self, part: Any) -> bool:
        group = getattr(part, "group_id", self.prefix)
        return not group or group.startswith(self.prefix)


def known_brokers(wire: Wire, count: int) -> Sequence[Any]:
    """All of them, or none."""
    found: Sequence[Any] = wire.call(ApiKey.METADATA, 9, {"topics": []}).brokers
    return found if len(found) == count else ()


def errors_of(plain: Any) -> Iterator[int]:
    """All error codes in a plain answer, from the outside in."""
    if isinstance(plain, Mapping):
        for name, value in plain.items():
            if name == "error_code":
                yield value
            else:
                yield from errors_of(value)
    elif isinstance(plain, Sequence) and not isinstance(plain, str | bytes):
        for part in plain:
            yield from errors_of(part)
