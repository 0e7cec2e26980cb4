"""Which rule hits a request, and what then happens."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from protocol.conversation.asked import Asked, plain
from protocol.conversation.leaders_before import LeadersBefore
from protocol.conversation.rule import Rule
from protocol.conversation.rule_book import Hit, RuleBook
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import RequestHeader, parse_request_header, response_header
from tools.cluster import readiness
from tools.faults import roles
from tools.faults.request_words import parse_request_fault

ORDERS = uuid.UUID(int=1)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def book(*lines: str, clock: Clock | None = None, **fields: Any) -> RuleBook:
    found = RuleBook(clock or Clock())
    found.add(Rule.from_json({**parse_request_fault(line).rule.to_json(), **fields}) for line in lines)
    return found


def produce(*partitions: tuple[str, int], client: str = "c", acks: int = 1, version: int = 9) -> Asked:
    topics: dict[str, list[dict[str, Any]]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append({"index": number, "records": b"records"})
    body = {
        "acks": acks,
        "timeout": 1000,
        "topic_data": [{"name": name, "partition_data": rows} for name, rows in topics.items()],
    }
    return asked(ApiKey.PRODUCE, version, body, client)


def fetch(session_epoch: int, *partitions: int, replica: int = -1) -> Asked:
    rows = [{"partition": each, "fetch_offset": 0, "partition_max_bytes": 100} for each in partitions]
    body = {
        "replica_state": {"replica_id": replica},
        "max_wait": 500,
        "min_bytes": 1,
        "session_id": 7 if session_epoch > 0 else 0,
        "session_epoch": session_epoch,
        "topics": [{"topic_id": ORDERS, "partitions": rows}] if rows else [],
        "forgotten_topics_data": [],
    }
    return asked(ApiKey.FETCH, 17, body)


def asked(api: ApiKey, version: int, body: dict[str, Any], client: str = "c", principal: str = "alice") -> Asked:
    frame = messages.encode_request(api, version, 3, client, body)
    return Asked(parse_request_header(frame), frame, {ORDERS: "orders"}.get, principal, "PLAINTEXT")


def heartbeat(client: str = "c", group: str = "g", version: int = 4) -> Asked:
    body = {"group_id": group, "generation_id": 1, "member_id": "m"}
    return asked(ApiKey.HEARTBEAT, version, body, client)


def answered(request: Asked, hit: Hit | None) -> Any:
    assert hit is not None
    assert hit.body is not None
    key, version = request.header.api_key, request.header.api_version
    return plain(messages.decode_response(key, version, response_header(key, version, 3) + hit.body)[1])


@pytest.mark.parametrize(
    ("line", "request_", "is_hit"),
    [
        ("drop heartbeat", heartbeat(), True),
        ("drop heartbeat", produce(("orders", 0)), False),
        ("drop everything", produce(("orders", 0)), True),
        ("drop heartbeat client c*", heartbeat("c1"), True),
        ("drop heartbeat client c*", heartbeat("d1"), False),
        ("drop heartbeat group g", heartbeat(group="g"), True),
        ("drop heartbeat group g", heartbeat(group="gg"), False),
        ("drop heartbeat principal alice", heartbeat(), True),
        ("drop heartbeat principal bob", heartbeat(), False),
        ("drop heartbeat principal User:alice", heartbeat(), True),
        ("drop heartbeat", heartbeat(roles.LOOKS_FOR_ROLES), False),
        ("drop heartbeat", heartbeat(readiness.CLIENT_ID), False),
        ("drop heartbeat of client ottla-*", heartbeat("ottla-faults"), True),
        ("drop heartbeat listener plaintext", heartbeat(), True),
        ("drop heartbeat listener INTERNAL", heartbeat(), False),
        ("drop heartbeat client c[1]*", heartbeat("c[1]-a"), True),
        ("drop heartbeat client c[1]", heartbeat("c1"), False),
        ("drop heartbeat versions 0-3", heartbeat(version=3), True),
        ("drop heartbeat versions 0-3", heartbeat(version=4), False),
        ("drop produce of orders-1", produce(("orders", 1)), True),
        ("drop produce of orders-1", produce(("orders", 0), ("others", 1)), False),
        ("drop produce of topic o*", produce(("orders", 3)), True),
        ("drop fetch of orders-1", fetch(0, 1), True),
        ("drop fetch", fetch(0, 1, replica=2), False),
        ("drop fetch of brokers", fetch(0, 1, replica=2), True),
        ("drop fetch of brokers", fetch(0, 1), False),
        ("answer heartbeat with FENCED_INSTANCE_ID", heartbeat(version=2), False),
        ("answer heartbeat with FENCED_INSTANCE_ID", heartbeat(version=3), True),
    ],
)
def test_a_rule_is_about_some_requests(line: str, request_: Asked, is_hit: bool) -> None:
    hit = book(line).hit(request_)
    assert (hit is not None and hit.rule is not None) is is_hit


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("once", "x......"),
        ("3 times", "xxx...."),
        ("the 2nd", ".x....."),
        ("every 3rd", "..x..x."),
        ("for 3s", "xxx...."),
    ],
)
def test_a_rule_has_limits(limit: str, expected: str) -> None:
    clock = Clock()
    rules = book(f"drop heartbeat {limit}", clock=clock)
    hits = ""
    for _ in expected:
        hits += "x" if rules.hit(heartbeat()) is not None else "."
        clock.now += 1
    assert hits == expected


def test_a_probability_is_the_seeds() -> None:
    def hits(seed: int) -> list[bool]:
        rules = book(f"drop heartbeat with probability 30% seed {seed}")
        return [rules.hit(heartbeat()) is not None for _ in range(400)]

    assert hits(1) == hits(1) != hits(2)
    assert 60 < sum(hits(1)) < 180


def test_brokers_hit_so_many_requests_together(tmp_path: Path) -> None:
    brokers = [book("drop heartbeat 4 times", claims=str(tmp_path)) for _ in range(3)]
    assert sum(each.hit(heartbeat()) is not None for _ in range(5) for each in brokers) == 4
    gone = book("drop heartbeat once", claims=str(tmp_path / "gone"))
    assert gone.hit(heartbeat()) is None


def test_the_oldest_rule_decides_and_is_replaced_by_its_id() -> None:
    rules = book("drop heartbeat once", "refuse connections")
    first, second = rules.hit(heartbeat()), rules.hit(heartbeat())
    assert first is not None
    assert first.drops
    assert second is not None
    assert second.closes
    rules.add([parse_request_fault("drop heartbeat once").rule])
    third = rules.hit(heartbeat())
    assert third is not None
    assert third.closes, "the other one is the youngest now"


def test_only_the_partitions_that_are_hit_get_the_error() -> None:
    request = produce(("orders", 0), ("orders", 1), ("others", 1))
    hit = book("answer produce of orders-1 with NOT_LEADER_OR_FOLLOWER").hit(request)
    assert hit is not None
    assert hit.frame is not None
    assert hit.change is not None
    rest = Asked(parse_request_header(hit.frame), hit.frame, request.name_of)
    assert [(each.topic, each.partition) for each in rest.named] == [("orders", 0), ("others", 1)]
    rows = [{"index": 0, "error_code": 0, "base_offset": 5, "record_errors": []}]
    done = {"responses": [{"name": "orders", "partition_responses": rows}]}
    frame = response_header(0, 9, 3) + messages.encode_response(0, 9, done)
    changed = hit.change.rewritten(0, 9, len(frame).to_bytes(4, "big") + frame)
    both = plain(messages.decode_response(0, 9, changed[4:])[1])["responses"][0]["partition_responses"]
    assert int.from_bytes(changed[:4], "big") == len(changed) - 4
    assert [(row["index"], row["error_code"], row["base_offset"]) for row in both] == [
        (0, 0, 5),
        (1, ErrorCode.NOT_LEADER_OR_FOLLOWER, -1),
    ]


def test_a_fetch_in_a_session_must_name_its_partitions_first() -> None:
    """KIP-227: otherwise nobody would know what it asks for."""
    rules = book("answer fetch of orders-1 with KAFKA_STORAGE_ERROR 2 times")
    incremental = fetch(4)
    asked_again = rules.hit(incremental)
    assert asked_again is not None
    assert asked_again.rule is None
    assert answered(incremental, asked_again)["error_code"] == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    whole = fetch(0, 1)
    assert (
        answered(whole, rules.hit(whole))["responses"][0]["partitions"][0]["error_code"]
        == ErrorCode.KAFKA_STORAGE_ERROR
    )
    other = rules.hit(fetch(0, 2))
    assert other is not None
    assert other.frame is not None, "no session begins while the rule is there"
    again = Asked(parse_request_header(other.frame), other.frame, whole.name_of)
    assert again.body is not None
    assert again.body["session_epoch"] == -1
    rules.hit(fetch(0, 1))
    assert rules.hit(fetch(4)) is None, "sessions go on when the rule can hit no more"
    assert rules.hit(fetch(0, 1)) is None


@pytest.mark.parametrize(("version", "is_of_broker"), [(3, False), (4, True), (5, True)])
def test_a_leader_that_asks_about_a_transaction_is_a_broker(version: int, is_of_broker: bool) -> None:
    """KIP-890: from v4 on, only brokers send AddPartitionsToTxn."""
    one = {"transactional_id": "t", "producer_id": 1, "producer_epoch": 0, "topics": [{"name": "a", "partitions": [0]}]}
    body = {"transactions": [{**one, "verify_only": True}]}
    if version == 3:
        body = {f"v3_and_below_{key}": value for key, value in one.items()}
    request = asked(ApiKey.ADD_PARTITIONS_TO_TXN, version, body)
    assert (book("drop add-partitions-to-txn of transactional-id t").hit(request) is None) is is_of_broker
    assert (book("drop everything of brokers").hit(request) is None) is not is_of_broker


def test_the_end_of_a_session_is_no_hit() -> None:
    """Otherwise `once` would end a session, and the error would never come."""
    rules = book("answer fetch with KAFKA_STORAGE_ERROR once")
    ended, whole = rules.hit(fetch(4)), fetch(0, 1)
    assert ended is not None
    assert ended.rule is None
    error = answered(whole, rules.hit(whole))["responses"][0]["partitions"][0]["error_code"]
    assert error == ErrorCode.KAFKA_STORAGE_ERROR


def test_metadata_is_stamped_and_outdated() -> None:
    clock = Clock()
    leaders = LeadersBefore()
    for now, leader in ((10.0, 1), (96.0, 2)):
        leaders.led(now, "orders", 0, leader, leader)
    partition = {"error_code": 0, "partition_index": 0, "leader_id": 2, "leader_epoch": 2}
    topic = {"error_code": 0, "name": "orders", "topic_id": ORDERS, "partitions": [partition]}
    body = {"throttle_time": 0, "brokers": [], "cluster_id": "x", "controller_id": 1, "topics": [topic]}
    frame = response_header(3, 12, 3) + messages.encode_response(3, 12, body)
    request = asked(ApiKey.METADATA, 12, {"topics": None, "include_topic_authorized_operations": False})

    def told(line: str) -> Any:
        rules = book(line, clock=clock)
        rules.leaders = leaders
        hit = rules.hit(request)
        assert hit is not None
        assert hit.change is not None
        changed = hit.change.rewritten(3, 12, len(frame).to_bytes(4, "big") + frame)
        return plain(messages.decode_response(3, 12, changed[4:])[1])["topics"][0]

    assert told("answer metadata with the leaders of 5s ago")["partitions"][0]["leader_id"] == 1
    assert told("answer metadata with the leaders of 2s ago")["partitions"][0]["leader_id"] == 2
    assert (
        told("answer metadata of topic orders with LEADER_NOT_AVAILABLE")["error_code"]
        == ErrorCode.LEADER_NOT_AVAILABLE
    )
    assert told("answer metadata of topic other with LEADER_NOT_AVAILABLE")["error_code"] == 0


def fetched(version: int, records: dict[int, bytes]) -> bytes:
    """An answer about `orders` with its length: partition -> its records."""
    rows = [
        {
            "partition_index": partition,
            "error_code": 0,
            "high_watermark": 9,
            "last_stable_offset": 9,
            "log_start_offset": 0,
            "aborted_transactions": None,
            "preferred_read_replica": -1,
            "records": of_partition,
        }
        for partition, of_partition in records.items()
    ]
    body = {
        "throttle_time": 0,
        "error_code": 0,
        "session_id": 0,
        "responses": [{"topic_id": ORDERS, "topic": "orders", "partitions": rows}],
    }
    frame = response_header(1, version, 3) + messages.encode_response(1, version, body)
    return len(frame).to_bytes(4, "big") + frame


def records_in(version: int, frame: bytes | bytearray) -> list[bytes]:
    rows = plain(messages.decode_response(1, version, frame[4:])[1])["responses"][0]["partitions"]
    return [row["records"] or b"" for row in rows]


BATCH = bytes(8) + (50).to_bytes(4, "big") + bytes(50)


@pytest.mark.parametrize("version", range(4, 18))
def test_only_an_answer_with_records_is_garbled_and_counts(version: int) -> None:
    """A consumer that waits gets many without."""
    rules = book("garble the answer to fetch of orders-1 once")
    rows = [{"partition": each, "fetch_offset": 0, "partition_max_bytes": 100} for each in (0, 1)]
    body = {
        "replica_id": -1,
        "replica_state": {"replica_id": -1},
        "max_wait": 500,
        "min_bytes": 1,
        "session_id": 0,
        "session_epoch": 0,
        "topics": [{"topic_id": ORDERS, "topic": "orders", "partitions": rows}],
        "forgotten_topics_data": [],
    }
    for answer, is_garbled in (
        (fetched(version, {1: b""}), False),
        (fetched(version, {0: BATCH}), False),
        (fetched(version, {0: BATCH, 1: BATCH}), True),
    ):
        hit = rules.hit(asked(ApiKey.FETCH, version, body))
        assert hit is not None
        assert hit.rule is None
        (change,) = hit.changes
        changed = change.rewritten(1, version, answer)
        assert (hit.late_rule is not None) is is_garbled
        assert (changed == answer) is not is_garbled
        assert [each.hits for each in rules.live] == [int(is_garbled)]
    other, garbled = records_in(version, changed)
    assert other == BATCH, "the other partition is as it was"
    assert sum((a ^ b).bit_count() for a, b in zip(garbled, BATCH, strict=True)) == 1
    assert rules.hit(asked(ApiKey.FETCH, version, body)) is None


def test_a_younger_rule_hits_beside_one_that_waits_for_records() -> None:
    rules = book("garble the answer to fetch of orders-1 every 2nd", "throttle fetch by 300ms")
    for number in range(4):
        hit = rules.hit(fetch(0, 1))
        assert hit is not None
        assert hit.rule is not None
        assert hit.rule.effect == "throttle"
        frame: bytes | bytearray = fetched(17, {1: BATCH})
        for change in hit.changes:
            frame = change.rewritten(1, 17, frame)
        assert plain(messages.decode_response(1, 17, frame[4:])[1])["throttle_time"] == 300
        assert (records_in(17, frame)[0] != BATCH) is (number % 2 == 1)


def test_no_session_begins_while_records_are_waited_for() -> None:
    hit = book("garble the answer to fetch of orders-1 once").hit(fetch(0, 1))
    assert hit is not None
    assert hit.frame is not None


def test_of_two_answers_at_once_one_is_garbled() -> None:
    rules = book("garble the answer to fetch once")
    hits = [rules.hit(fetch(0, 1)) for _ in range(2)]
    changed = [hit.changes[0].rewritten(1, 17, fetched(17, {1: BATCH})) for hit in hits if hit is not None]
    assert [records_in(17, frame)[0] != BATCH for frame in changed] == [True, False]


@pytest.mark.parametrize("of_quota", [0, 900])
@pytest.mark.parametrize(
    "key", [ApiKey.FETCH, ApiKey.HEARTBEAT, ApiKey.PRODUCE, ApiKey.API_VERSIONS, ApiKey.OFFSET_COMMIT]
)
def test_a_throttle_time_is_put_into_its_place(key: ApiKey, of_quota: int) -> None:
    """Whatever else the answer has, if the place is known: before its rows."""
    for version in messages.versions_with_schemas(key):
        at = messages.throttle_time_at(key, version)
        request = Asked(RequestHeader(key, version, 3, b"c", 9), b"\x00" * 12, {}.get)
        if at is None or at < 0:
            continue
        hit = book("throttle everything by 300ms").hit(request)
        assert hit is not None
        assert hit.change is not None
        head = response_header(key, version, 3)
        frame = head + b"x" * at + of_quota.to_bytes(4, "big") + b"whatever"
        changed = hit.change.rewritten(key, version, len(frame).to_bytes(4, "big") + frame)
        expected = head + b"x" * at + max(of_quota, 300).to_bytes(4, "big") + b"whatever"
        assert changed == len(expected).to_bytes(4, "big") + expected


def test_a_leader_that_is_down_has_its_address_in_metadata_that_is_out_of_date() -> None:
    """Otherwise clients would know at once that it leads no more."""
    leaders = LeadersBefore({1: ("host", 9092)}.get)
    for now, partition, leader in ((10.0, 0, 1), (11.0, 0, 2), (10.0, 1, 3)):
        leaders.led(now, "orders", partition, leader, leader)
    rows = [{"error_code": 0, "partition_index": number, "leader_id": 2, "leader_epoch": 9} for number in (0, 1)]
    two = {"node_id": 2, "host": "other", "port": 1, "rack": "r"}
    told = leaders.outdated({"brokers": [two], "topics": [{"name": "orders", "partitions": rows}]}, 10.5)
    assert [row["leader_id"] for row in told["topics"][0]["partitions"]] == [1, 3]
    assert told["brokers"] == [two, {"node_id": 1, "host": "host", "port": 9092, "rack": None}]


@pytest.mark.parametrize(("of_quota", "told"), [(0, 300), (200, 300), (900, 900)])
def test_the_longer_throttle_time_is_told(of_quota: int, told: int) -> None:
    """A quota mutes the connection for its own time."""
    hit = book("throttle heartbeat by 300ms").hit(heartbeat())
    assert hit is not None
    assert hit.change is not None
    body = messages.encode_response(12, 4, {"throttle_time": of_quota, "error_code": 0})
    frame = response_header(12, 4, 3) + body
    changed = hit.change.rewritten(12, 4, len(frame).to_bytes(4, "big") + frame)
    assert plain(messages.decode_response(12, 4, changed[4:])[1])["throttle_time"] == told


def list_groups(version: int) -> Asked:
    return asked(ApiKey.LIST_GROUPS, version, {"states_filter": [], "types_filter": []} if version == 5 else {})


@pytest.mark.parametrize(
    ("line", "without_effect", "then"),
    [
        ("throttle list-groups by 1s once", list_groups(0), list_groups(1)),
        ("lose the answer to produce once and cut", produce(("orders", 0), acks=0), produce(("orders", 0))),
        ("delay produce by 1s once", produce(("orders", 0), acks=0), produce(("orders", 0))),
        ("throttle produce by 1s once", produce(("orders", 0), acks=0), produce(("orders", 0))),
        (
            "cut the connection in the middle of the answer to produce once",
            produce(("orders", 0), acks=0),
            produce(("orders", 0)),
        ),
    ],
)
def test_a_request_without_such_an_answer_spends_no_rule(
    line: str, without_effect: Asked, then: Asked, tmp_path: Path
) -> None:
    rules = book(line, claims=str(tmp_path))
    assert rules.hit(without_effect) is None
    assert [(each.seen, each.hits) for each in rules.live] == [(0, 0)]
    assert rules.hit(then) is not None


@pytest.mark.parametrize("line", ["drop produce once", "drop produce once and cut"])
def test_a_produce_without_an_answer_can_be_dropped(line: str) -> None:
    assert book(line).hit(produce(("orders", 0), acks=0)) is not None


def test_a_request_that_cannot_be_read_is_not_hit() -> None:
    """Whoever serves it says so."""
    whole = produce(("orders", 0))
    broken = Asked(whole.header, bytes(whole.frame)[:-5], whole.name_of)
    assert book("answer produce with REQUEST_TIMED_OUT").hit(broken) is None
    assert book("answer produce of orders-0 with REQUEST_TIMED_OUT").hit(broken) is None


@pytest.mark.parametrize(("key", "version"), [(ApiKey.METADATA, 99), (999, 0)])
@pytest.mark.parametrize("line", ["throttle everything by 300ms", "delay everything of topic orders by 10ms"])
def test_what_has_no_schema_is_not_looked_into(key: int, version: int, line: str) -> None:
    request = Asked(RequestHeader(key, version, 3, b"c", 9), b"unreadable", {}.get)
    assert book(line).hit(request) is None
    assert request.has_answer
