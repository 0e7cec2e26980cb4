"""The group APIs in every version: which fields of a request reach the coordinator, and which of its answer the client (CLI-2)."""

from __future__ import annotations

import asyncio
import struct
from typing import Any, cast

import pytest

from broker.apis import offset_fetch as offset_fetch_api
from broker.apis.join_group import join_group
from broker.groups.group.limits import CLIENT_ID_MAX
from broker.groups.group.messages import (
    CommittedOffset,
    DescribedMember,
    GroupDescription,
    GroupListing,
    JoinAnswer,
    JoinedMember,
    LeavingMember,
    Protocol,
    SyncAnswer,
    TransactionalProducer,
)
from broker.network.request_channel import Request
from broker.requests.long_answers import LongAnswers
from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import SUPPORTED, ApiKey
from protocol.kafka.framing import parse_request_header
from protocol.types import TopicPartition
from tests.support.api_world import OTHER_ID, T_ID, FakeConnection, SteppingClock, World, state, turns_until
from tests.support.fake_groups import FakeGroups

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
NOW_MS = 1_700_000_000_000
UNKNOWN_MEMBER = ErrorCode.UNKNOWN_MEMBER_ID
UNKNOWN_PARTITION = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
NOT_COORDINATOR = ErrorCode.NOT_COORDINATOR
NONE = ErrorCode.NONE


class FixedClock:
    monotonic = staticmethod(lambda: 0.0)
    wall_ms = staticmethod(lambda: NOW_MS)


class GroupWorld(World):
    """The topic `t` has partitions 0 and 1; the coordinator is a fake."""

    def __init__(self) -> None:
        super().__init__()
        self.groups = FakeGroups()
        self.context.groups = self.groups
        self.context.clock = FixedClock()

    async def ask(self, api_key: ApiKey, version: int, body: dict[str, Any], answer: Any) -> Any:
        self.groups.answer = answer
        return await self.call(api_key, version, body)


def versions(api_key: ApiKey) -> pytest.MarkDecorator:
    served = SUPPORTED[api_key]
    return pytest.mark.parametrize("version", range(served.min, served.max + 1))


@pytest.fixture
def world() -> GroupWorld:
    return GroupWorld()


@pytest.mark.parametrize("is_later", [False, True])
async def test_while_zookeeper_is_silent_the_coordinator_confirms_first_that_it_is_one(
    world: GroupWorld, is_later: bool
) -> None:
    """INV-23, also before an answer that comes later by itself."""
    world.groups.ownership.certain = False
    api_key = ApiKey.JOIN_GROUP if is_later else ApiKey.HEARTBEAT
    body = {"group_id": "g", "generation_id": 7, "member_id": "m-1", "group_instance_id": None}
    world.groups.answer = JoinAnswer(NONE, "m-1") if is_later else NOT_COORDINATOR
    connection, waiting = world.begin(api_key, 4, JOIN if is_later else body)
    assert waiting is not None
    assert world.groups.asked == []
    await waiting
    assert world.groups.ownership.confirmations == 1
    assert World.answer(connection, api_key, 4).error_code == (NONE if is_later else NOT_COORDINATOR)


# -- JoinGroup ------------------------------------------------------------------------------------------------------------

JOIN = {
    "group_id": "g",
    "session_timeout": 10_000,
    "rebalance_timeout": 60_000,
    "member_id": "m-1",
    "group_instance_id": "static",
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b"r"}, {"name": "roundrobin", "metadata": b"rr"}],
    "reason": "x" * 300,
}


async def test_a_join_waits_for_the_rebalance(world: GroupWorld) -> None:
    """BUG-26: the handler itself ends at once, and keeps no frame. A client id of 32 KB in 3,000 member ids took 92 MB."""
    world.groups.is_slow = True
    frame = memoryview(messages.encode_request(ApiKey.JOIN_GROUP, 9, 1, "c" * 32_000, JOIN))
    connection = FakeConnection()
    request = Request(cast(Any, connection), 0, parse_request_header(frame), frame, 0.0)
    assert join_group(world.context, request) is None
    (join,) = world.groups.asked
    assert (len(join.client_id), join.client_id[:3]) == (CLIENT_ID_MAX, "ccc")
    assert len(join.new_member_id) < 300
    assert (len(request.frame), connection.sent) == (0, b"")
    (respond,) = world.groups.waiting
    respond(JoinAnswer(NONE, "m-1"))
    assert b"m-1" in connection.sent


@versions(ApiKey.JOIN_GROUP)
async def test_join_request(world: GroupWorld, version: int) -> None:
    """The group decides about BAD-32. This test checks only what it gets."""
    await world.ask(ApiKey.JOIN_GROUP, version, JOIN, JoinAnswer(NONE))
    (join,) = world.groups.asked
    is_static = version >= 5
    assert (join.group_id, join.member_id, join.client_id, join.client_host) == ("g", "m-1", "test", "/127.0.0.1")
    assert join.protocol_type == "consumer"
    assert join.protocols == (Protocol("range", b"r"), Protocol("roundrobin", b"rr"))
    assert join.session_timeout_ms == 10_000
    assert join.rebalance_timeout_ms == (60_000 if version >= 1 else 10_000)
    assert join.instance_id == ("static" if is_static else None)
    assert join.new_member_id.startswith("static-" if is_static else "test-")
    assert len(join.new_member_id) > 36
    assert join.needs_member_id == (version == 4)
    assert join.can_skip_assignment == (version >= 9)
    assert join.reason == ("x" * 255 if version >= 8 else "")


@versions(ApiKey.JOIN_GROUP)
async def test_join_answer(world: GroupWorld, version: int) -> None:
    members = (JoinedMember("m-1", "static", b"r"), JoinedMember("m-2", None, b""))
    given = JoinAnswer(NONE, "m-1", 7, "consumer", "range", "m-1", True, members)
    answer = await world.ask(ApiKey.JOIN_GROUP, version, JOIN, given)
    assert (answer.error_code, answer.generation_id, answer.protocol_name) == (0, 7, "range")
    assert (answer.leader, answer.member_id) == ("m-1", "m-1")
    assert [(row.member_id, row.metadata) for row in answer.members] == [("m-1", b"r"), ("m-2", b"")]
    if version >= 5:
        assert [row.group_instance_id for row in answer.members] == ["static", None]
    if version >= 7:
        assert answer.protocol_type == "consumer"
    if version >= 9:
        assert answer.skip_assignment


# -- SyncGroup ------------------------------------------------------------------------------------------------------------

SYNC = {
    "group_id": "g",
    "generation_id": 7,
    "member_id": "m-1",
    "group_instance_id": "static",
    "protocol_type": "consumer",
    "protocol_name": "range",
    "assignments": [
        {"member_id": "m-1", "assignment": b"old"},
        {"member_id": "m-2", "assignment": b"b"},
        {"member_id": "m-1", "assignment": b"a"},
    ],
}


@versions(ApiKey.SYNC_GROUP)
async def test_sync(world: GroupWorld, version: int) -> None:
    answer = await world.ask(ApiKey.SYNC_GROUP, version, SYNC, SyncAnswer(NONE, b"a", "consumer", "range"))
    (sync,) = world.groups.asked
    assert (sync.group_id, sync.member_id, sync.generation) == ("g", "m-1", 7)
    assert sync.assignments == {"m-1": b"a", "m-2": b"b"}
    assert sync.instance_id == ("static" if version >= 3 else None)
    assert (sync.protocol_type, sync.protocol_name) == (("consumer", "range") if version >= 5 else (None, None))
    assert (answer.error_code, answer.assignment) == (0, b"a")
    if version >= 5:
        assert (answer.protocol_type, answer.protocol_name) == ("consumer", "range")


# -- Heartbeat and LeaveGroup ---------------------------------------------------------------------------------------------


def leave_body(version: int, count: int = 2) -> dict[str, Any]:
    rows = [{"member_id": f"m-{n}", "group_instance_id": None, "reason": "r" * 300} for n in range(1, count + 1)]
    return {"group_id": "g", "member_id": "m-1", "members": rows}


@versions(ApiKey.LEAVE_GROUP)
async def test_leave(world: GroupWorld, version: int) -> None:
    answer = await world.ask(
        ApiKey.LEAVE_GROUP, version, leave_body(version), [NONE, [UNKNOWN_MEMBER, NONE][: 1 if version < 3 else 2]]
    )
    ((group_id, members),) = world.groups.asked
    reason = "r" * 255 if version >= 5 else ""
    expected = [LeavingMember("m-1", None, reason), LeavingMember("m-2", None, reason)]
    assert (group_id, members) == ("g", expected if version >= 3 else expected[:1])
    if version >= 3:
        assert answer.error_code == 0
        assert [(row.member_id, row.error_code) for row in answer.members] == [("m-1", 25), ("m-2", 0)]
    else:
        assert answer.error_code == UNKNOWN_MEMBER
    answer = await world.ask(ApiKey.LEAVE_GROUP, version, leave_body(version), [NOT_COORDINATOR, []])
    assert (answer.error_code, getattr(answer, "members", ())) == (NOT_COORDINATOR, ())


# -- OffsetCommit ---------------------------------------------------------------------------------------------------------


def commit_row(partition: int, offset: int, commit_time_ms: int = -1) -> dict[str, Any]:
    return {
        "commit_timestamp": commit_time_ms,
        "partition_index": partition,
        "committed_offset": offset,
        "committed_leader_epoch": 3,
        "committed_metadata": None if partition else "meta",
    }


T, NOPE = {"name": "t", "topic_id": T_ID}, {"name": "nope", "topic_id": OTHER_ID}
"""A topic by its name and, for newer versions, by its id."""


def topic_name(topic: Any) -> str:
    return str(topic.name) if hasattr(topic, "name") else {T_ID: "t", OTHER_ID: "nope"}[topic.topic_id]


def commit_body(**changes: Any) -> dict[str, Any]:
    body: dict[str, Any] = {
        "group_id": "g",
        "generation_id_or_member_epoch": 7,
        "member_id": "m-1",
        "group_instance_id": "static",
        "retention_time": -1,
        "topics": [
            {**T, "partitions": [commit_row(0, 10), commit_row(1, 11), commit_row(99, 1)]},
            {**NOPE, "partitions": [commit_row(0, 1)]},
            {**T, "partitions": [commit_row(1, 12)]},
        ],
    }
    return body | changes


def commit_rows(answer: Any) -> dict[TopicPartition, int]:
    return {
        TopicPartition(topic_name(topic), row.partition_index): row.error_code
        for topic in answer.topics
        for row in topic.partitions
    }


@versions(ApiKey.OFFSET_COMMIT)
async def test_commit(world: GroupWorld, version: int) -> None:
    """Partitions that do not exist are refused, the others are committed. Of a partition named twice, the last offset counts."""
    errors = {T0: NONE, T1: ErrorCode.OFFSET_METADATA_TOO_LARGE}
    answer = await world.ask(ApiKey.OFFSET_COMMIT, version, commit_body(), errors)
    epoch = 3 if version >= 6 else -1
    offsets = {T0: CommittedOffset(10, epoch, "meta", NOW_MS), T1: CommittedOffset(12, epoch, "", NOW_MS)}
    assert world.groups.asked == [("g", "m-1", "static" if version >= 7 else None, 7, offsets)]
    assert world.groups.knows_epochs is (version >= 9)
    unknown = UNKNOWN_PARTITION if version < 10 else ErrorCode.UNKNOWN_TOPIC_ID
    nowhere = {TopicPartition("t", 99): UNKNOWN_PARTITION, TopicPartition("nope", 0): unknown}
    assert commit_rows(answer) == errors | nowhere


async def test_the_first_version_of_a_commit_has_a_time_for_each_offset(world: GroupWorld) -> None:
    """From which the broker's retention counts; -1 is now."""
    topics = [{"name": "t", "partitions": [commit_row(0, 10, 5_000), commit_row(1, 11)]}]
    await world.ask(ApiKey.OFFSET_COMMIT, 1, commit_body(topics=topics), {T0: NONE, T1: NONE})
    offsets = world.groups.asked[0][-1]
    assert [(offsets[tp].commit_timestamp_ms, offsets[tp].expire_timestamp_ms) for tp in (T0, T1)] == [
        (5_000, None),
        (NOW_MS, None),
    ]


@pytest.mark.parametrize(
    ("version", "retention_ms", "expires"),
    [
        (2, 5000, NOW_MS + 5000),
        (4, 5000, NOW_MS + 5000),
        (5, 5000, None),
        (4, -1, None),
        (2, 2**63 - 1, 2**63 - 1),
        (4, -(2**63), 0),
        (4, -1 - NOW_MS, 0),
    ],
)
async def test_a_commit_with_its_own_retention(
    world: GroupWorld, version: int, retention_ms: int, expires: int | None
) -> None:
    """The expiry is stored in 63 bits, and is at least 0: -1 would mean none."""
    world.groups.answer = {}
    any_ms = 1_234_567_890_123
    frame = messages.encode_request(ApiKey.OFFSET_COMMIT, version, 1, "test", commit_body(retention_time=any_ms))
    world.begin_frame(frame.replace(struct.pack(">q", any_ms), struct.pack(">q", retention_ms)))
    assert world.groups.asked[0][-1][T0].expire_timestamp_ms == expires


# -- OffsetFetch and OffsetDelete -----------------------------------------------------------------------------------------


def fetch_body(version: int, topics: list[dict[str, Any]] | None, *groups: str) -> dict[str, Any]:
    if version >= 8:
        return {"groups": [{"group_id": g, "topics": topics} for g in groups or ("g",)], "require_stable": True}
    return {"group_id": "g", "topics": topics, "require_stable": True}


def fetch_rows(topics: Any) -> dict[TopicPartition, tuple[int, str, int]]:
    return {
        TopicPartition(topic_name(topic), row.partition_index): (row.committed_offset, row.metadata, row.error_code)
        for topic in topics
        for row in topic.partitions
    }


BOTH = [{**T, "partition_indexes": [0, 1]}]
FOUND = {T0: CommittedOffset(10, 3, "meta", NOW_MS), T1: None}


@versions(ApiKey.OFFSET_FETCH)
async def test_fetch_offsets(world: GroupWorld, version: int) -> None:
    answer = await world.ask(ApiKey.OFFSET_FETCH, version, fetch_body(version, BOTH), (NONE, FOUND))
    assert world.groups.asked == [("g", [T0, T1], version >= 7)]
    group = answer.groups[0] if version >= 8 else answer
    assert fetch_rows(group.topics) == {T0: (10, "meta", 0), T1: (-1, "", 0)}
    if version >= 5:
        assert [row.committed_leader_epoch for row in group.topics[0].partitions] == [3, -1]
    if version >= 2:
        found = {T0: FOUND[T0]}
        answer = await world.ask(ApiKey.OFFSET_FETCH, version, fetch_body(version, None), (NONE, found))
        group = answer.groups[0] if version >= 8 else answer
        assert world.groups.asked[-1] == ("g", [T0], version >= 7)
        assert fetch_rows(group.topics) == {T0: (10, "meta", 0)}, "all offsets"


@versions(ApiKey.OFFSET_FETCH)
async def test_fetch_offsets_at_another_broker(world: GroupWorld, version: int) -> None:
    """v1 has the group's error in each partition."""
    answer = await world.ask(ApiKey.OFFSET_FETCH, version, fetch_body(version, BOTH), (NOT_COORDINATOR, {}))
    group = answer.groups[0] if version >= 8 else answer
    if version >= 2:
        assert (group.error_code, group.topics) == (NOT_COORDINATOR, ())
    else:
        assert fetch_rows(group.topics) == {T0: (-1, "", NOT_COORDINATOR), T1: (-1, "", NOT_COORDINATOR)}


@pytest.mark.parametrize("version", [1, 5, 8])
@pytest.mark.parametrize("loses_the_group", [False, True])
async def test_a_hundred_thousand_offsets_are_answered_in_steps(
    world: GroupWorld, version: int, loses_the_group: bool
) -> None:
    """NET-4. If the coordinator loses the group meanwhile, no offset is in the answer."""
    partitions = [TopicPartition(f"t{number % 100}", number // 100) for number in range(20_000)]
    topics = [{"name": f"t{topic}", "partition_indexes": list(range(200))} for topic in range(100)]
    found = {tp: CommittedOffset(7, 3, "", NOW_MS) for tp in partitions}
    world.context.long_answers = LongAnswers(SteppingClock().monotonic)
    body = fetch_body(version, topics)
    world.groups.answer = (NONE, found)
    connection, waiting = world.begin(ApiKey.OFFSET_FETCH, version, body)
    assert waiting is not None
    task = asyncio.get_running_loop().create_task(waiting)
    await asyncio.sleep(0)
    assert not connection.sent
    if loses_the_group:
        await turns_until(lambda: len(world.groups.asked) > 20)
        world.groups.answer = (NOT_COORDINATOR, {})
    await task
    answer = world.answer(connection, ApiKey.OFFSET_FETCH, version)
    group = answer.groups[0] if version >= 8 else answer
    rows = fetch_rows(group.topics)
    if not loses_the_group:
        assert rows == dict.fromkeys(partitions, (7, "", 0))
    elif version >= 2:
        assert (group.error_code, rows) == (NOT_COORDINATOR, {})
    else:
        assert rows == dict.fromkeys(partitions, (-1, "", NOT_COORDINATOR))


async def test_an_answer_to_a_closed_connection_is_not_finished(world: GroupWorld) -> None:
    world.context.long_answers = LongAnswers(SteppingClock().monotonic)
    world.groups.answer = (NONE, {})
    groups = [f"g{n}" for n in range(1000)]
    connection, waiting = world.begin(ApiKey.OFFSET_FETCH, 8, fetch_body(8, BOTH, *groups))
    assert waiting is not None
    connection.is_open = False
    await waiting
    assert not connection.sent
    assert len(world.groups.asked) < 1000


async def test_fetch_offsets_of_many_groups(world: GroupWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """KIP-709. A group that is named too often is refused."""
    monkeypatch.setattr(offset_fetch_api, "REPEATED_BYTES_MAX", 1)
    answer = await world.ask(ApiKey.OFFSET_FETCH, 8, fetch_body(8, BOTH, "g", "g", "g", "h"), (NONE, FOUND))
    assert [asked[0] for asked in world.groups.asked] == ["g", "g", "h"]
    assert [row.group_id for row in answer.groups] == ["g", "g", "g", "h"]
    assert [row.error_code for row in answer.groups] == [0, 0, ErrorCode.INVALID_REQUEST, 0]


DELETE_OFFSETS = {
    "group_id": "g",
    "topics": [
        {"name": "t", "partitions": [{"partition_index": n} for n in (0, 1, 99, 0)]},
        {"name": "nope", "partitions": [{"partition_index": 0}]},
    ],
}


async def test_delete_offsets(world: GroupWorld) -> None:
    errors = {T0: NONE, T1: ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC}
    answer = await world.ask(ApiKey.OFFSET_DELETE, 0, DELETE_OFFSETS, [NONE, errors])
    assert world.groups.asked == [("g", [T0, T1])]
    nowhere = {TopicPartition("t", 99): UNKNOWN_PARTITION, TopicPartition("nope", 0): UNKNOWN_PARTITION}
    assert (answer.error_code, commit_rows(answer)) == (0, errors | nowhere)
    answer = await world.ask(ApiKey.OFFSET_DELETE, 0, DELETE_OFFSETS, [ErrorCode.GROUP_ID_NOT_FOUND, {}])
    assert (answer.error_code, answer.topics) == (ErrorCode.GROUP_ID_NOT_FOUND, ())


# -- ListGroups, DescribeGroups, DeleteGroups -----------------------------------------------------------------------------


@versions(ApiKey.LIST_GROUPS)
async def test_list_groups(world: GroupWorld, version: int) -> None:
    given = (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [GroupListing("g", "consumer", "Stable")])
    body = {"states_filter": ["Stable"], "types_filter": ["classic"]}
    answer = await world.ask(ApiKey.LIST_GROUPS, version, body, given)
    states = frozenset({"Stable"}) if version >= 4 else frozenset()
    assert world.groups.asked == [(states, frozenset({"classic"}) if version >= 5 else frozenset())]
    (row,) = answer.groups
    assert (answer.error_code, row.group_id, row.protocol_type) == (14, "g", "consumer")
    assert getattr(row, "group_state", None) == ("Stable" if version >= 4 else None)
    assert getattr(row, "group_type", None) == ("classic" if version >= 5 else None)


@versions(ApiKey.DESCRIBE_GROUPS)
@pytest.mark.parametrize("asks_operations", [False, True])
async def test_describe_groups(world: GroupWorld, version: int, asks_operations: bool) -> None:
    member = DescribedMember("m-1", "static", "client", "/127.0.0.1", b"meta", b"assigned")
    given = GroupDescription(NONE, "g", "Stable", "consumer", "range", (member,))
    body = {"groups": ["g", "h"], "include_authorized_operations": asks_operations}
    answer = await world.ask(ApiKey.DESCRIBE_GROUPS, version, body, given)
    assert world.groups.asked == ["g", "h"]
    assert [row.group_id for row in answer.groups] == ["g", "h"]
    row = answer.groups[0]
    assert (row.error_code, row.group_state) == (0, "Stable")
    assert (row.protocol_type, row.protocol_data) == ("consumer", "range")
    (shown,) = row.members
    assert (shown.member_id, shown.client_id, shown.client_host) == ("m-1", "client", "/127.0.0.1")
    assert (shown.member_metadata, shown.member_assignment) == (b"meta", b"assigned")
    if version >= 3:
        assert (row.authorized_operations != -(2**31)) == asks_operations
    if version >= 4:
        assert shown.group_instance_id == "static"


# -- TxnOffsetCommit ------------------------------------------------------------------------------------------------------

PRODUCER = TransactionalProducer("tx", 9, 2)


def transactional_body(**changes: Any) -> dict[str, Any]:
    body = commit_body(transactional_id="tx", producer_id=9, producer_epoch=2, generation_id=7)
    return body | changes


@versions(ApiKey.TXN_OFFSET_COMMIT)
async def test_transactional_commit(world: GroupWorld, version: int) -> None:
    """Requests before v3 have neither member nor generation (KIP-447)."""
    errors = {T0: NONE, T1: ErrorCode.OFFSET_METADATA_TOO_LARGE}
    answer = await world.ask(ApiKey.TXN_OFFSET_COMMIT, version, transactional_body(), errors)
    epoch = 3 if version >= 2 else -1
    offsets = {T0: CommittedOffset(10, epoch, "meta", NOW_MS), T1: CommittedOffset(12, epoch, "", NOW_MS)}
    member = ("m-1", "static", 7) if version >= 3 else ("", None, -1)
    assert world.groups.asked == [("g", *member, offsets, PRODUCER._replace(adds=version >= 5))]
    nowhere = {TopicPartition("t", 99): UNKNOWN_PARTITION, TopicPartition("nope", 0): UNKNOWN_PARTITION}
    assert commit_rows(answer) == errors | nowhere


@pytest.mark.parametrize(
    ("version", "error", "told"),
    [
        (1, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (2, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS),
        (3, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE),
        (4, ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.TRANSACTION_ABORTABLE),
        (0, ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.INVALID_PRODUCER_EPOCH),
    ],
)
@pytest.mark.parametrize("is_of_verification", [True, False])
async def test_errors_of_a_transactional_commit_are_in_the_words_of_its_version(
    world: GroupWorld, version: int, error: ErrorCode, told: ErrorCode, is_of_verification: bool
) -> None:
    """A commit whose verification fails does not reach the group."""
    if is_of_verification:
        world.groups.verifies = error
    answer = await world.ask(ApiKey.TXN_OFFSET_COMMIT, version, transactional_body(), {T0: error, T1: error})
    nowhere = {TopicPartition("t", 99): UNKNOWN_PARTITION, TopicPartition("nope", 0): UNKNOWN_PARTITION}
    assert commit_rows(answer) == {T0: told, T1: told} | nowhere
    if is_of_verification:
        assert world.groups.asked == [("g", PRODUCER)]


async def test_a_topic_that_is_deleted_while_a_commit_is_verified_gets_no_offset(world: GroupWorld) -> None:
    """INV-23: nobody would remove it, and a topic that is made again would be read from there."""

    async def verified(*_: object) -> ErrorCode:
        world.forget("t")
        return NONE

    world.groups.verification = verified
    answer = await world.ask(ApiKey.TXN_OFFSET_COMMIT, 4, transactional_body(), {T0: NONE, T1: NONE})
    assert world.groups.asked == []
    assert set(commit_rows(answer).values()) == {UNKNOWN_PARTITION}


@pytest.mark.parametrize("change", [{"producer_id": -1}, {"producer_epoch": -1}])
async def test_a_transactional_commit_needs_a_producer(world: GroupWorld, change: dict[str, int]) -> None:
    answer = await world.ask(ApiKey.TXN_OFFSET_COMMIT, 4, transactional_body(**change), {})
    assert commit_rows(answer)[T0] == ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert world.groups.asked == []


# -- very many ------------------------------------------------------------------------------------------------------------


async def test_very_many_offsets_are_several_commits(world: GroupWorld) -> None:
    world.update([state("many", number, 1, (1,)) for number in range(2_500)])
    rows = [commit_row(number, number) for number in range(2_501)]
    world.groups.is_slow = True
    body = commit_body(topics=[{"name": "many", "partitions": rows}])
    connection, waiting = world.begin(ApiKey.OFFSET_COMMIT, 8, body)
    assert waiting is None
    for part in (range(1_000), range(1_000, 2_000), range(2_000, 2_500)):
        await turns_until(lambda: bool(world.groups.waiting))
        assert [tp.partition for tp in world.groups.asked[-1][4]] == list(part), "one after the other"
        world.groups.waiting.pop()({TopicPartition("many", n): NONE for n in part})
    await turns_until(lambda: bool(connection.sent))
    found = commit_rows(world.answer(connection, ApiKey.OFFSET_COMMIT, 8))
    assert found == {TopicPartition("many", n): 0 if n < 2_500 else UNKNOWN_PARTITION for n in range(2_501)}


async def test_a_topic_that_is_deleted_between_two_parts_gets_no_offset(world: GroupWorld) -> None:
    """INV-23. The part of the other topic is committed."""
    world.update([state("many", number, 1, (1,)) for number in range(2_000)])
    rows = [commit_row(number, number) for number in range(2_000)]
    world.groups.is_slow = True
    topics = [{"name": "many", "partitions": rows}, {"name": "t", "partitions": [commit_row(0, 1)]}]
    connection, _ = world.begin(ApiKey.OFFSET_COMMIT, 8, commit_body(topics=topics))
    await turns_until(lambda: bool(world.groups.waiting))
    world.forget("many")
    world.groups.waiting.pop()({TopicPartition("many", n): NONE for n in range(1_000)})
    await turns_until(lambda: bool(world.groups.waiting))
    assert list(world.groups.asked[-1][4]) == [T0]
    world.groups.waiting.pop()({T0: NONE})
    await turns_until(lambda: bool(connection.sent))
    found = commit_rows(world.answer(connection, ApiKey.OFFSET_COMMIT, 8))
    expected = {TopicPartition("many", n): 0 if n < 1_000 else UNKNOWN_PARTITION for n in range(2_000)}
    assert found == expected | {T0: 0}


@pytest.mark.parametrize("goes", [False, True])
async def test_very_many_offsets_are_deleted_in_parts(world: GroupWorld, goes: bool) -> None:
    """A group is removed with its last offset; then the later partitions have no offsets."""
    world.update([state("many", number, 1, (1,)) for number in range(1_200)])
    rows = [{"partition_index": n} for n in range(1_200)]
    world.groups.is_slow = True
    connection, _ = world.begin(
        ApiKey.OFFSET_DELETE, 0, {"group_id": "g", "topics": [{"name": "many", "partitions": rows}]}
    )
    for part in (range(500), range(500, 1_000), range(1_000, 1_200)):
        await turns_until(lambda: bool(world.groups.waiting))
        assert [tp.partition for tp in world.groups.asked[-1][1]] == list(part)
        respond = world.groups.waiting.pop()
        if goes and part.start:
            respond(ErrorCode.GROUP_ID_NOT_FOUND, {})
            break
        respond(NONE, {TopicPartition("many", n): NONE for n in part})
    await turns_until(lambda: bool(connection.sent))
    answer = world.answer(connection, ApiKey.OFFSET_DELETE, 0)
    assert answer.error_code == 0
    assert {row.partition_index: row.error_code for row in answer.topics[0].partitions} == dict.fromkeys(
        range(1_200), 0
    )


async def test_a_member_with_too_many_protocols_is_refused(world: GroupWorld) -> None:
    protocols = [{"name": f"p{n}", "metadata": b""} for n in range(33)]
    answer = await world.ask(ApiKey.JOIN_GROUP, 9, JOIN | {"protocols": protocols}, None)
    assert (answer.error_code, world.groups.asked) == (ErrorCode.INVALID_REQUEST, [])


async def test_members_leave_in_parts(world: GroupWorld) -> None:
    members = [{"member_id": f"m{n}", "group_instance_id": None, "reason": None} for n in range(120)]
    world.groups.answer = [NONE, [UNKNOWN_MEMBER] * 50]
    answer = await world.ask(ApiKey.LEAVE_GROUP, 5, {"group_id": "g", "members": members}, world.groups.answer)
    assert [len(asked[1]) for asked in world.groups.asked] == [50, 50, 20]
    assert [row.member_id for row in answer.members] == [f"m{n}" for n in range(120)]
    assert {row.error_code for row in answer.members} == {UNKNOWN_MEMBER}


@versions(ApiKey.LEAVE_GROUP)
async def test_the_answer_to_a_leave_waits_until_it_is_stored(world: GroupWorld, version: int) -> None:
    """As a group of the new kind stores it. The second part is known first, and its error is that of the group."""
    world.groups.is_slow = True
    parts = 1 if version < 3 else 2
    for group_error in (NONE, NOT_COORDINATOR):
        connection, _ = world.begin(ApiKey.LEAVE_GROUP, version, leave_body(version, count=60))
        await turns_until(lambda: len(world.groups.waiting) == parts)
        assert not connection.sent
        if version >= 3:
            world.groups.waiting.pop()(group_error, [NONE] * (10 if group_error == NONE else 0))
            assert not connection.sent
        own = NONE if version >= 3 else group_error
        world.groups.waiting.pop()(own, [UNKNOWN_MEMBER] * (1 if version < 3 else 50) if own == NONE else [])
        await turns_until(lambda: bool(connection.sent))  # noqa: B023 - it is called at once
        answer = world.answer(connection, ApiKey.LEAVE_GROUP, version)
        if version < 3:
            assert answer.error_code == (group_error or UNKNOWN_MEMBER)
        else:
            assert answer.error_code == group_error
            rows = [UNKNOWN_MEMBER] * 50 + [NONE] * 10 if group_error == NONE else []
            assert [row.error_code for row in answer.members] == rows


async def test_repeated_groups_are_described_again_up_to_a_limit(world: GroupWorld) -> None:
    body = {"groups": ["a", "b", "a"] + ["b"] * 5_000, "include_authorized_operations": False}
    answer = await world.ask(ApiKey.DESCRIBE_GROUPS, 5, body, GroupDescription(NONE, "x", "Empty"))
    found = [group.group_id for group in answer.groups]
    assert found[:4] == ["a", "b", "a", "b"]
    assert len(found) < 5_000
    assert world.groups.asked == ["a", "b"]
