"""A member of a replayed group against a coordinator whose answers the test scripts: what it does after each error (RPL-2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

import pytest

from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import parse_request_header
from protocol.types import TopicPartition
from tools.replay.load import membership
from tools.replay.load.background import Background
from tools.replay.load.membership import Groups
from tools.wire.cluster_view import ClusterView
from tools.wire.group_member import VERSIONS

FIND, JOIN, SYNC, BEAT, READ, COMMIT, LEAVE = (key.name for key in VERSIONS)
TOPIC = "t"
RUN = 0xABC
ENTERED = [FIND, JOIN, SYNC, READ, COMMIT, BEAT]
"""What a new member asks."""
LOST = -2
"""The connection ends instead of an answer."""


class Coordinator:
    """One member's coordinator; as ClusterView, as its client, and as the connection to it."""

    def __init__(self) -> None:
        self.is_open = False
        self.generation = 0
        self.now_ns = 0
        self.errors: list[int] = []
        """Of the next heartbeats."""
        self.asked: list[tuple[str, str]] = []
        """(API, member id)"""
        self.committed: dict[int, tuple[int, str]] = {}
        """Partition -> offset and metadata."""
        self.client = self
        self._news = asyncio.Event()
        self._members = 0

    async def until(self, names: list[str]) -> None:
        """Waits until these requests came, one after the other, and nothing else since `asked` was emptied."""
        async with asyncio.timeout(30):
            while len(self.asked) < len(names):
                self._news.clear()
                await self._news.wait()
        assert [name for name, _ in self.asked[: len(names)]] == names

    async def until_asked(self, name: str) -> None:
        """Waits for the next request of that name."""
        async with asyncio.timeout(30):
            seen = len(self.asked)
            while name not in [api for api, _ in self.asked[seen:]]:
                self._news.clear()
                await self._news.wait()

    # As ClusterView:

    async def ask_any(self, key: ApiKey, version: int, body: dict[str, Any]) -> Any:
        self._note(key, "")
        answer = {"throttle_time": 0, "error_code": 0, "error_message": None, "node_id": 1, "host": "h", "port": 1}
        return messages.decode_response(
            key, version, memoryview(bytes(4) + messages.encode_response(key, version, answer))
        )[1]

    def partitions(self, topic: str) -> int:
        return 2

    async def connect(self, address: object, on_end: object) -> Coordinator:
        self.is_open = True
        return self

    # As BrokerConnection:

    def close(self) -> None:
        self.is_open = False

    async def ask(self, frame: bytes, timeout_s: float) -> memoryview:
        payload = memoryview(frame)[4:]
        header = parse_request_header(payload)
        key, version = ApiKey(header.api_key), header.api_version
        request = messages.decode_request(key, version, payload, header.body_offset)
        self._note(key, getattr(request, "member_id", ""))
        answer = {"throttle_time": 0, "error_code": 0, **self._answer(key, request)}
        return memoryview(bytes(4) + messages.encode_response(key, version, answer))

    def _answer(self, key: ApiKey, request: Any) -> dict[str, Any]:
        match key:
            case ApiKey.JOIN_GROUP:
                self.generation += 1
                self._members += not request.member_id
                member = request.member_id or f"m{self._members}"
                (offered,) = request.protocols
                members = [{"member_id": member, "metadata": offered.metadata}]
                who = {"leader": member, "member_id": member, "members": members}
                return {"generation_id": self.generation, "protocol_name": offered.name, **who}
            case ApiKey.SYNC_GROUP:
                (assigned,) = request.assignments
                return {"assignment": assigned.assignment}
            case ApiKey.OFFSET_COMMIT:
                (topic,) = request.topics
                self.committed = {
                    int(row.partition_index): (int(row.committed_offset), row.committed_metadata)
                    for row in topic.partitions
                }
                rows = [{"partition_index": partition, "error_code": 0} for partition in self.committed]
                return {"topics": [{"name": topic.name, "partitions": rows}]}
            case ApiKey.OFFSET_FETCH:
                rows = [
                    {"partition_index": partition, "committed_offset": offset, "committed_leader_epoch": -1}
                    | {"metadata": metadata, "error_code": 0}
                    for partition, (offset, metadata) in self.committed.items()
                ]
                return {"topics": [{"name": TOPIC, "partitions": rows}]}
            case ApiKey.HEARTBEAT:
                error = self.errors.pop(0) if self.errors else 0
                if error == LOST:
                    self.close()
                    raise ConnectionResetError
                return {"error_code": error}
        return {}

    def _note(self, key: ApiKey, member: str) -> None:
        self.asked.append((key.name, member))
        self._news.set()


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEARTBEAT_S", "RETRY_S"):
        monkeypatch.setattr(membership, name, 0.01)


class Reader:
    """Has read each partition that it is given up to 7."""

    def __init__(self) -> None:
        self.owned: set[TopicPartition] | None = None
        self.starts: dict[TopicPartition, int] = {}

    def offsets(self) -> dict[TopicPartition, int]:
        return dict.fromkeys(self.owned or (), 7)

    def revoke(self) -> None:
        self.owned = None

    async def assign(self, partitions: Collection[TopicPartition], offsets: Mapping[TopicPartition, int]) -> None:
        self.owned, self.starts = set(partitions), dict(offsets)


def play(work: Callable[[Coordinator, Groups, membership.Membership, Reader], Any]) -> None:
    """`work` gets a member that owns both partitions."""

    async def run() -> None:
        coordinator, background, reader = Coordinator(), Background(), Reader()
        coordinator.committed = {0: (3, "of another replay"), 1: (4, f"{RUN:08x}")}
        groups = Groups(cast(ClusterView, coordinator), background, "replay-", RUN, lambda: coordinator.now_ns)
        member = groups.join("g", "c", reader)
        member.expect(TOPIC, 0)
        await coordinator.until(ENTERED)
        await work(coordinator, groups, member, reader)
        await groups.leave()
        assert not background.failed.done()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("error", "then", "id_of_join"),
    [
        (ErrorCode.UNKNOWN_MEMBER_ID, [JOIN, SYNC, READ, COMMIT, BEAT], ""),
        (ErrorCode.ILLEGAL_GENERATION, [JOIN, SYNC, READ, COMMIT, BEAT], "m1"),
        (ErrorCode.REBALANCE_IN_PROGRESS, [COMMIT, JOIN, SYNC, READ, COMMIT, BEAT], "m1"),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [BEAT, BEAT], None),
        (ErrorCode.NOT_COORDINATOR, [FIND, BEAT, BEAT], None),
        (LOST, [FIND, BEAT, BEAT], None),
    ],
)
def test_after_an_error_the_member_does_what_a_consumer_does(
    error: int, then: list[str], id_of_join: str | None
) -> None:
    async def work(coordinator: Coordinator, groups: Groups, member: membership.Membership, reader: Reader) -> None:
        coordinator.asked.clear()
        coordinator.errors = [error]
        await coordinator.until([BEAT, *then])
        joins = [member_id for name, member_id in coordinator.asked[: len(then)] if name == JOIN]
        assert joins == ([] if id_of_join is None else [id_of_join])

    play(work)


def test_a_member_reads_on_where_its_own_replay_has_committed_and_leaves_with_its_offsets_committed() -> None:
    async def work(coordinator: Coordinator, groups: Groups, member: membership.Membership, reader: Reader) -> None:
        assert reader.owned == {TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)}
        assert reader.starts == {TopicPartition(TOPIC, 1): 4}, "another replay's commit does not count"
        await groups.leave()
        assert coordinator.committed == {0: (7, f"{RUN:08x}"), 1: (7, f"{RUN:08x}")}
        assert [name for name, _ in coordinator.asked[-2:]] == [COMMIT, LEAVE]
        assert not coordinator.is_open

    play(work)


def test_an_idle_member_leaves_and_joins_again_when_it_has_something_to_fetch() -> None:
    async def work(coordinator: Coordinator, groups: Groups, member: membership.Membership, reader: Reader) -> None:
        coordinator.now_ns = membership.IDLE_NS + 1
        await coordinator.until_asked(LEAVE)
        await asyncio.sleep(0.05)
        assert reader.owned is None
        coordinator.asked.clear()
        member.expect(TOPIC, coordinator.now_ns)
        await coordinator.until([JOIN, SYNC, READ, COMMIT, BEAT])
        assert reader.owned is not None

    play(work)


def test_what_was_read_is_kept_as_ranges() -> None:
    async def work(coordinator: Coordinator, groups: Groups, member: membership.Membership, reader: Reader) -> None:
        place = TopicPartition(TOPIC, 0)
        for first, end in ((5, 9), (9, 12), (12, -1), (20, 21)):
            member.note_read({place: first}, {place: end}, max(end - first, 0), 1_000_000)
        assert member.figures.ranges == {"t-0": [[5, 12], [20, 21]]}
        assert (member.figures.read, member.figures.longest_overdue_s) == (8, 0.001)

    play(work)
