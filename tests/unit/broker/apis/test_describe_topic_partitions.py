"""DescribeTopicPartitions (API 75): the pages of topics aa, bb and cc, with 3, 2 and 4 partitions. A Kafka 4.1.1 answers the same."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from broker.authorization.authorizer import Authorizer
from broker.requests.metadata_topics import MetadataTopics
from protocol.acls import Operation, ResourceType
from protocol.errors import ErrorCode
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.metadata_codec import OPERATIONS_NOT_ASKED, TOPIC_OPERATIONS
from protocol.rpc.messages import UpdateMetadataRequest
from protocol.topic_ids import topic_id_text
from protocol.types import BrokerInfo, Endpoint, Principal
from tests.support.api_world import World, state

SIZES = {"aa": 3, "bb": 2, "cc": 4}
Cursor = tuple[str, int]
NONE, UNKNOWN = ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
REFUSED = ErrorCode.INVALID_REQUEST
ALL = [("aa", NONE, [0, 1, 2]), ("bb", NONE, [0, 1]), ("cc", NONE, [0, 1, 2, 3])]


@pytest.fixture
def world() -> World:
    world = World(max_request_partition_size_limit=8)
    world.forget()
    states = [state(name, number, 1, (1, 2)) for name, size in SIZES.items() for number in range(size)]
    world.update(states, **{name: uuid.UUID(int=at) for at, name in enumerate(SIZES, 5)})
    world.context.metadata_topics = MetadataTopics(world.metadata, frozenset, ())
    return world


async def ask(world: World, topics: Sequence[str], limit: int = 2000, cursor: Cursor | None = None) -> Any:
    asked = None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]}
    rows = [{"name": name} for name in topics]
    body = {"topics": rows, "response_partition_limit": limit, "cursor": asked}
    return await world.call(ApiKey.DESCRIBE_TOPIC_PARTITIONS, 0, body)


@pytest.mark.parametrize(
    ("topics", "limit", "cursor", "answer", "following"),
    [
        (["bb", "aa", "bb"], 2000, None, ALL[:2], None),
        (["bb", "aa"], 2, None, [("aa", NONE, [0, 1])], ("aa", 2)),
        (["bb", "aa"], 3, None, ALL[:1], ("bb", 0)),
        (["bb", "aa"], 4, None, [*ALL[:1], ("bb", NONE, [0])], ("bb", 1)),
        (["bb", "aa"], 0, None, [("aa", NONE, [0])], ("aa", 1)),
        (["bb", "aa"], -1, None, [("aa", NONE, [0])], ("aa", 1)),
        (["bb", "aa"], 2000, ("aa", 1), [("aa", NONE, [1, 2]), ALL[1]], None),
        (["bb", "aa"], 1, ("aa", 1), [("aa", NONE, [1])], ("aa", 2)),
        (["bb", "aa"], 2000, ("bb", 0), ALL[1:2], None),
        (["bb", "aa"], 2000, ("aa", 9), [("aa", NONE, []), ALL[1]], None),
        (["bb", "aa"], 2000, ("aa", -1), [("bb", REFUSED, []), ("aa", REFUSED, [])], None),
        (["bb", "aa"], 2000, ("ab", 0), [("bb", REFUSED, []), ("aa", REFUSED, [])], None),
        (["bb"], 2000, ("", 0), [("bb", REFUSED, [])], None),
        (["nope", "aa"], 2000, None, [ALL[0], ("nope", UNKNOWN, [])], None),
        (["nope", "aa", "zz"], 2000, ("nope", 3), [("nope", UNKNOWN, []), ("zz", UNKNOWN, [])], None),
        (["aa", "nope", "zz"], 3, None, ALL[:1], ("nope", 0)),
        (["no/pe"], 3, None, [("no/pe", ErrorCode.INVALID_TOPIC_EXCEPTION, [])], None),
        ([], 2000, ("ab", 1), ALL[1:], None),
        ([], 2000, None, [*ALL[:2], ("cc", NONE, [0, 1, 2])], ("cc", 3)),  # max.request.partition.size.limit
    ],
)
async def test_a_page(
    world: World,
    topics: list[str],
    limit: int,
    cursor: Cursor | None,
    answer: list[tuple[str, ErrorCode, list[int]]],
    following: Cursor | None,
) -> None:
    found = await ask(world, topics, limit, cursor)
    rows = [(row.name, row.error_code, [p.partition_index for p in row.partitions]) for row in found.topics]
    assert rows == answer
    after = found.next_cursor
    assert (after and (after.topic_name, after.partition_index)) == following


async def test_the_pages_are_whole_together(world: World) -> None:
    found: list[tuple[str, int]] = []
    cursor: Cursor | None = None
    while True:
        page = await ask(world, [], 2, cursor)
        found += [(row.name, partition.partition_index) for row in page.topics for partition in row.partitions]
        if page.next_cursor is None:
            break
        cursor = page.next_cursor.topic_name, page.next_cursor.partition_index
    assert found == [(name, number) for name, size in SIZES.items() for number in range(size)]


async def test_a_partition(world: World) -> None:
    world.context.metadata_topics = MetadataTopics(world.metadata, lambda: frozenset({3}), ())
    states = (state("aa", 0, 2, (2, 1), epoch=7), state("aa", 1, 3, (3, 2)))
    brokers = tuple(BrokerInfo(number, number, (Endpoint("PLAINTEXT", "h", 9092),)) for number in (2, 3))
    world.metadata.update(UpdateMetadataRequest(1, 1, 1, states, {"aa": topic_id_text(uuid.UUID(int=5))}, brokers))
    (topic,) = (await ask(world, ["aa"])).topics
    assert (topic.topic_id, topic.topic_authorized_operations) == (uuid.UUID(int=5), TOPIC_OPERATIONS)
    first, second = topic.partitions[:2]
    assert (first.leader_id, first.leader_epoch, first.replica_nodes, first.isr_nodes) == (2, 7, (2, 1), (2, 1))
    assert (first.eligible_leader_replicas, first.last_known_elr, first.offline_replicas) == ((), (), (1,))
    assert (second.leader_id, second.error_code) == (-1, NONE), "its leader has just died"


class Hides(Authorizer):
    """The topic bb."""

    def allows(self, principal: Principal, address: str, operation: Operation, kind: ResourceType, name: str) -> bool:
        return name != "bb"


async def test_a_hidden_topic(world: World) -> None:
    """It is left out if all are asked for. If it is named, it comes last, and nothing is told of it."""
    world.context.authorizer = Hides(frozenset(), allow_if_none=False)
    assert [row.name for row in (await ask(world, [])).topics] == ["aa", "cc"]
    *_, hidden = (await ask(world, ["bb", "cc"])).topics
    assert (hidden.name, hidden.error_code) == ("bb", ErrorCode.TOPIC_AUTHORIZATION_FAILED)
    assert (hidden.topic_id, hidden.partitions, hidden.topic_authorized_operations) == (None, (), OPERATIONS_NOT_ASKED)
