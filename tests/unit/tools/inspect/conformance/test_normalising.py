"""What two clusters may answer differently is the same after normalising, and nothing else is."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from tools.inspect.conformance.comparing import ABSENT, Difference, differences
from tools.inspect.conformance.normalising import Normaliser
from tools.inspect.conformance.scene import batch

RUNS = ("conform-r", "conform-s")
HOMES = (1, 7)


def normalised(side: int, api_key: int, version: int, body: dict[str, Any]) -> Any:
    data = bytes(4) + (b"\x00" if messages.request_schema(api_key, version).__flexible__ else b"")
    entity = messages.decode_response(api_key, version, data + messages.encode_response(api_key, version, body))[1]
    return Normaliser(RUNS[side], HOMES[side], {HOMES[side], 30 + side}).answer_alone(entity)


def metadata(side: int, **topic: Any) -> dict[str, Any]:
    """One topic, as one of two clusters describes it that behave alike."""
    home, other = HOMES[side], 30 + side
    partition = {
        "error_code": 0,
        "partition_index": 0,
        "leader_id": home,
        "leader_epoch": 0,
        "replica_nodes": [home, other],
        "isr_nodes": [home],
        "offline_replicas": [],
    }
    row = {
        "error_code": 0,
        "name": f"{RUNS[side]}-topic",
        "topic_id": uuid.UUID(int=5 + side),
        "is_internal": False,
        "partitions": [partition],
        "topic_authorized_operations": -(2**31),
    }
    foreign = {**row, "name": f"others-{side}"}
    return {
        "throttle_time": side,
        "brokers": [{"node_id": home, "host": f"host-{side}", "port": 9000 + side, "rack": None}],
        "cluster_id": f"cluster-{side}",
        "controller_id": other,
        "topics": [{**row, **topic}, foreign],
    }


def test_ids_names_and_addresses_of_clusters_are_no_difference() -> None:
    ours, theirs = (normalised(side, ApiKey.METADATA, 12, metadata(side)) for side in (0, 1))
    assert list(differences(ours, theirs)) == []
    assert [topic["name"] for topic in ours["topics"]] == ["{run}-topic"]
    assert ours["topics"][0]["partitions"][0]["replica_nodes"] == ["<home>", "<other>"]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"error_code": 3}, Difference("topics[{run}-topic].error_code", "NONE", "UNKNOWN_TOPIC_OR_PARTITION")),
        ({"topic_id": None}, Difference("topics[{run}-topic].topic_id", "<id 1>", "<zero>")),
        ({"is_internal": True}, Difference("topics[{run}-topic].is_internal", False, True)),
    ],
)
def test_other_fields_are(change: dict[str, Any], found: Difference) -> None:
    ours = normalised(0, ApiKey.METADATA, 12, metadata(0))
    assert list(differences(ours, normalised(1, ApiKey.METADATA, 12, metadata(1, **change)))) == [found]


def test_records_are_compared_one_by_one() -> None:
    def fetched(side: int, count: int) -> Any:
        row = {
            "partition_index": 0,
            "error_code": 0,
            "high_watermark": 5,
            "last_stable_offset": 5,
            "log_start_offset": 0,
            "aborted_transactions": None,
            "preferred_read_replica": -1,
            "records": batch(count),
        }
        topic = {"topic": f"{RUNS[side]}-topic", "partitions": [row]}
        body = {"throttle_time": 0, "error_code": 0, "session_id": 0, "responses": [topic]}
        return normalised(side, ApiKey.FETCH, 11, body)

    assert list(differences(fetched(0, 3), fetched(1, 3))) == []
    paths = {one.path for one in differences(fetched(0, 3), fetched(1, 4))}
    where = "responses[{run}-topic].partitions[0].records[row]"
    assert f"{where}.last_offset" in paths


def test_a_member_keeps_its_label_in_a_history() -> None:
    def described(member: str) -> Any:
        row = {
            "member_id": member,
            "group_instance_id": None,
            "client_id": "c",
            "client_host": "/127.0.0.1",
            "member_metadata": b"",
            "member_assignment": b"",
        }
        group = {
            "error_code": 0,
            "group_id": "conform-r-group",
            "group_state": "Stable",
            "protocol_type": "consumer",
            "protocol_data": "range",
            "members": [row],
            "authorized_operations": 0,
        }
        body = messages.encode_response(ApiKey.DESCRIBE_GROUPS, 5, {"throttle_time": 0, "groups": [group]})
        return messages.decode_response(ApiKey.DESCRIBE_GROUPS, 5, bytes(5) + body)[1]

    normaliser = Normaliser(RUNS[0], 1, {1})
    labels = [
        normaliser.answer(described(member))["groups"][0]["members"][0]["member_id"]
        for member in ("c-1", "c-2", "c-1", f"conform-r-{uuid.uuid4()}", "conform-r-none")
    ]
    assert labels == ["<member 1>", "<member 2>", "<member 1>", "<member 3>", "{run}-none"]


@pytest.mark.parametrize(
    ("ours", "theirs", "found"),
    [
        ({"a": 1}, {"a": 1}, []),
        ({"a": 1}, {"a": 2}, [("a", 1, 2)]),
        ({"a": None}, {}, [("a", None, ABSENT)]),
        ({"a": False}, {"a": 0}, [("a", False, 0)]),
        ({"a": float("nan")}, {"a": float("nan")}, []),
        ("<closed>", {"a": 1}, [("answer", "<closed>", {"a": 1})]),
        ([{"name": "x", "v": 1}, {"name": "y"}], [{"name": "y"}, {"name": "x", "v": 2}], [("[x].v", 1, 2)]),
        ([{"name": "x"}], [], [("[x]", {"name": "x"}, ABSENT)]),
        ([{"name": "x"}, {"name": "x"}], [{"name": "x"}], [("[x #2]", {"name": "x"}, ABSENT)]),
        ({"r": [1, 2]}, {"r": [2, 1]}, [("r", [1, 2], [2, 1])]),
        # What follows from an error is not told, and a message where the reference has none is no harm.
        ({"error_code": "NONE", "a": 1}, {"error_code": "X", "a": 2}, [("error_code", "NONE", "X")]),
        ({"error_message": None}, {"error_message": "<given>"}, []),
        ({"error_message": "<given>"}, {"error_message": None}, [("error_message", "<given>", None)]),
    ],
)
def test_differences(ours: Any, theirs: Any, found: list[tuple[str, Any, Any]]) -> None:
    assert [tuple(one) for one in differences(ours, theirs)] == found


def test_every_error_has_its_name() -> None:
    body = {"throttle_time": 0, "error_code": int(ErrorCode.SECURITY_DISABLED), "error_message": "m", "resources": []}
    assert normalised(0, ApiKey.DESCRIBE_ACLS, 3, body) == {
        "error_code": "SECURITY_DISABLED",
        "error_message": "<given>",
        "resources": [],
    }


def test_offsets_without_a_group_are_anybodys() -> None:
    """OffsetCommit takes the empty group: whoever committed to it, it is listed."""

    def listed(*groups: str) -> dict[str, Any]:
        rows = [{"group_id": group, "protocol_type": ""} for group in groups]
        return {"error_code": 0, "groups": rows}

    ours, theirs = (
        normalised(side, ApiKey.LIST_GROUPS, 0, listed(*groups))
        for side, groups in enumerate((["conform-r-group"], ["conform-s-group", ""]))
    )
    assert list(differences(ours, theirs)) == []
    assert len(ours["groups"]) == 1
