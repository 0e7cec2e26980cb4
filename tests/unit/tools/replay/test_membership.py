"""Members of replayed groups against a coordinator whose answers the test scripts: what they do after each error (RPL-2)."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Collection, Mapping
from typing import Any, NamedTuple, cast

import pytest

from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import parse_request_header, response_header
from protocol.types import TopicPartition
from tools.group_protocols import CLASSIC, CONSUMER, GROUP_PROTOCOLS
from tools.replay.load import classic_membership, membership
from tools.replay.load.background import Background
from tools.replay.load.groups import Groups
from tools.wire.cluster_view import ClusterView

FIND, READ, COMMIT = ApiKey.FIND_COORDINATOR.name, ApiKey.OFFSET_FETCH.name, ApiKey.OFFSET_COMMIT.name
JOIN, SYNC, LEAVE = ApiKey.JOIN_GROUP.name, ApiKey.SYNC_GROUP.name, ApiKey.LEAVE_GROUP.name
BEAT, NAMES = ApiKey.HEARTBEAT.name, ApiKey.METADATA.name
NEW_BEAT, NEW_JOIN, NEW_LEAVE = "a heartbeat", "a heartbeat that joins", "a heartbeat that leaves"
"""Of the consumer protocol."""
TOPIC, TOPIC_ID = "t", uuid.UUID(int=7)
RUN = 0xABC
ENTERED = {
    CLASSIC: [FIND, JOIN, SYNC, READ, COMMIT, BEAT],
    CONSUMER: [FIND, NEW_JOIN, NAMES, READ, NEW_BEAT, COMMIT, NEW_BEAT],
}
"""What a new member asks; by the consumer protocol, its second heartbeat says what it owns."""
AGAIN = {CLASSIC: [JOIN, SYNC, READ, COMMIT, BEAT], CONSUMER: [NEW_JOIN, READ, NEW_BEAT, COMMIT, NEW_BEAT]}
"""What it asks when it joins again."""
LEFT = {CLASSIC: LEAVE, CONSUMER: NEW_LEAVE}
BOTH = {TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)}
LOST = -2
"""The connection ends instead of an answer."""


class Said(NamedTuple):
    """By a heartbeat of the consumer protocol. None: not said. `owned`: partitions."""

    epoch: int
    topics: set[str] | None
    owned: set[int] | None


class Coordinator:
    """One member's coordinator; as ClusterView, as its client, and as the connection to it."""

    def __init__(self) -> None:
        self.is_open = False
        self.generation = 0
        self.now_ns = 0
        self.errors: list[int] = []
        """Of the next heartbeats."""
        self.commit_errors: list[int] = []
        self.shares = {0, 1}
        """What the member may read, by the consumer protocol. The epoch rises with `share`."""
        self.said: list[Said] = []
        self.epochs: list[int] = []
        """Of the commits."""
        self.topic_id, self.known_id = TOPIC_ID, TOPIC_ID
        """What the coordinator assigns, and what the other brokers know."""
        self._given: set[int] | None = None
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

    def share(self, *partitions: int) -> None:
        """Gives the member these partitions with its next heartbeat, in a new epoch."""
        self.shares, self.generation = set(partitions), self.generation + 1

    async def until_asked(self, name: str) -> None:
        """Waits for the next request of that name."""
        async with asyncio.timeout(30):
            seen = len(self.asked)
            while name not in [api for api, _ in self.asked[seen:]]:
                self._news.clear()
                await self._news.wait()

    # As ClusterView:

    async def ask_any(self, key: ApiKey, version: int, body: dict[str, Any]) -> Any:
        self._note(key.name, "")
        answer = {"throttle_time": 0, "error_code": 0, "error_message": None, "node_id": 1, "host": "h", "port": 1}
        if key == ApiKey.METADATA:
            topic = {"error_code": 0, "name": TOPIC, "topic_id": self.known_id, "is_internal": False, "partitions": []}
            answer |= {"brokers": [], "cluster_id": None, "controller_id": 1, "topics": [topic]}
        return messages.decode_response(
            key, version, memoryview(response_header(key, version, 0) + messages.encode_response(key, version, answer))
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
        name, member = key.name, getattr(request, "member_id", "")
        if key == ApiKey.CONSUMER_GROUP_HEARTBEAT:
            name = {0: NEW_JOIN, -1: NEW_LEAVE}.get(request.member_epoch, NEW_BEAT)
        self._note(name, member)
        answer = {"throttle_time": 0, "error_code": 0, **self._answer(key, request)}
        return memoryview(response_header(key, version, 0) + messages.encode_response(key, version, answer))

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
                self.epochs.append(int(request.generation_id_or_member_epoch))
                error = self.commit_errors.pop(0) if self.commit_errors else 0
                self.generation += error == ErrorCode.STALE_MEMBER_EPOCH
                (topic,) = request.topics
                committed = {
                    int(row.partition_index): (int(row.committed_offset), row.committed_metadata)
                    for row in topic.partitions
                }
                self.committed |= {} if error else committed
                rows = [{"partition_index": partition, "error_code": error} for partition in committed]
                return {"topics": [{"name": topic.name, "partitions": rows}]}
            case ApiKey.OFFSET_FETCH:
                rows = [
                    {"partition_index": partition, "committed_offset": offset, "committed_leader_epoch": -1}
                    | {"metadata": metadata, "error_code": 0}
                    for partition, (offset, metadata) in self.committed.items()
                ]
                topics = [{"name": TOPIC, "partitions": rows}]
                return {"topics": topics, "groups": [{"group_id": "", "topics": topics, "error_code": 0}]}
            case ApiKey.HEARTBEAT:
                return {"error_code": self._error()}
            case ApiKey.CONSUMER_GROUP_HEARTBEAT:
                return self._beat(request)
        return {}

    def _beat(self, request: Any) -> dict[str, Any]:
        topics, rows = request.subscribed_topic_names, request.topic_partitions
        owned = None if rows is None else {int(number) for row in rows for number in row.partitions}
        self.said.append(Said(request.member_epoch, None if topics is None else set(topics), owned))
        error = self._error()
        shares: dict[str, Any] | None = None
        if not request.member_epoch:
            self.generation += 1
            self._given = None
        if not error and self._given != self.shares:
            self._given = self.shares
            rows = [{"topic_id": self.topic_id, "partitions": sorted(self.shares)}] if self.shares else []
            shares = {"topic_partitions": rows}
        who = {"error_message": None, "member_id": request.member_id, "member_epoch": self.generation}
        return {"error_code": error, **who, "heartbeat_interval": 50, "assignment": shares}

    def _error(self) -> int:
        error = self.errors.pop(0) if self.errors else 0
        if error == LOST:
            self.close()
            raise ConnectionResetError
        return error

    def _note(self, name: str, member: str) -> None:
        self.asked.append((name, member))
        self._news.set()


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(classic_membership, "HEARTBEAT_S", 0.01)
    monkeypatch.setattr(membership, "RETRY_S", 0.01)


class Reader:
    """Has read each partition that it is given up to 7."""

    def __init__(self) -> None:
        self.owned: set[TopicPartition] | None = None
        self.starts: dict[TopicPartition, int] = {}
        self.pauses = 0

    def offsets(self) -> dict[TopicPartition, int]:
        return dict.fromkeys(self.owned or (), 7)

    def revoke(self) -> None:
        self.owned = None
        self.pauses += 1

    def release(self, partitions: Collection[TopicPartition]) -> None:
        assert self.owned is not None
        assert self.owned >= set(partitions)
        self.owned -= set(partitions)

    async def assign(self, partitions: Collection[TopicPartition], offsets: Mapping[TopicPartition, int]) -> None:
        self.owned, self.starts = set(partitions), dict(offsets)


def play(work: Callable[[Coordinator, Groups, membership.Membership, Reader], Any], protocol: str = CLASSIC) -> None:
    """`work` gets a member that owns both partitions."""

    async def run() -> None:
        coordinator, background, reader = Coordinator(), Background(), Reader()
        coordinator.committed = {0: (3, "of another replay"), 1: (4, f"{RUN:08x}")}
        view = cast(ClusterView, coordinator)
        groups = Groups(view, background, "replay-", RUN, lambda: coordinator.now_ns, protocol)
        member = groups.join("g", "c", reader)
        member.expect(TOPIC, 0)
        await coordinator.until(ENTERED[protocol])
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
def test_after_an_error_a_classic_member_does_what_a_consumer_does(
    error: int, then: list[str], id_of_join: str | None
) -> None:
    async def work(coordinator: Coordinator, groups: Groups, member: membership.Membership, reader: Reader) -> None:
        coordinator.asked.clear()
        coordinator.errors = [error]
        await coordinator.until([BEAT, *then])
        joins = [member_id for name, member_id in coordinator.asked[: len(then)] if name == JOIN]
        assert joins == ([] if id_of_join is None else [id_of_join])

    play(work)


@pytest.mark.parametrize(
    ("error", "then"),
    [
        (ErrorCode.UNKNOWN_MEMBER_ID, AGAIN[CONSUMER]),
        (ErrorCode.FENCED_MEMBER_EPOCH, AGAIN[CONSUMER]),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [NEW_BEAT, NEW_BEAT]),
        (ErrorCode.NOT_COORDINATOR, [FIND, NEW_BEAT, NEW_BEAT]),
        (LOST, [FIND, NEW_BEAT, NEW_BEAT]),
    ],
)
def test_after_an_error_a_member_of_the_consumer_protocol_does_what_a_consumer_does(
    error: int, then: list[str]
) -> None:
    async def work(coordinator: Coordinator, groups: Groups, member: membership.Membership, reader: Reader) -> None:
        epoch, rejoins = coordinator.generation, NEW_JOIN in then
        coordinator.asked.clear()
        coordinator.said.clear()
        coordinator.errors = [error]
        await coordinator.until([NEW_BEAT, *then])
        owned: set[int] = set() if rejoins else {0, 1}
        assert coordinator.said[1] == Said(0 if rejoins else epoch, {TOPIC}, owned), "it says all again"
        assert reader.pauses == rejoins, "it reads on unless it is no member any more"
        assert {member_id for name, member_id in coordinator.asked if name == NEW_BEAT} == {
            member_id for name, member_id in coordinator.asked if name in (NEW_JOIN, NEW_BEAT)
        }, "it keeps its id"

    play(work, CONSUMER)


def test_a_member_of_the_consumer_protocol_reads_on_in_what_it_keeps() -> None:
    """It commits what it gives up before it says so, and says at once what it has given up and taken."""

    async def work(coordinator: Coordinator, groups: Groups, member: membership.Membership, reader: Reader) -> None:
        kept, moved = TopicPartition(TOPIC, 0), TopicPartition(TOPIC, 1)
        assert coordinator.said[:2] == [Said(0, {TOPIC}, set()), Said(1, None, {0, 1})]
        joins = member.figures.joins
        coordinator.committed.clear()
        coordinator.asked.clear()
        coordinator.share(0)
        await coordinator.until([NEW_BEAT, COMMIT, NEW_BEAT])
        assert reader.owned == {kept}
        assert coordinator.committed[1] == (7, f"{RUN:08x}")
        assert coordinator.said[4] == Said(2, None, {0})
        coordinator.asked.clear()
        coordinator.share(0, 1)
        await coordinator.until([NEW_BEAT, READ, NEW_BEAT])
        assert (reader.owned, reader.starts) == ({kept, moved}, {moved: 7})
        assert coordinator.said[-1] == Said(3, None, {0, 1})
        assert reader.pauses == 0
        assert (member.figures.joins - joins, member.figures.rebalances) == (2, 2)

    play(work, CONSUMER)


def test_a_topic_that_was_made_again_is_read_when_the_brokers_know_it() -> None:
    async def work(coordinator: Coordinator, groups: Groups, member: membership.Membership, reader: Reader) -> None:
        joins = member.figures.joins
        coordinator.asked.clear()
        coordinator.topic_id = uuid.UUID(int=8)
        coordinator.share(0)
        await coordinator.until([NEW_BEAT, COMMIT, NEW_BEAT, NAMES, NEW_BEAT, NAMES])
        assert reader.owned == set()
        assert member.figures.joins == joins + 1
        coordinator.known_id = coordinator.topic_id
        await coordinator.until_asked(READ)
        await coordinator.until_asked(NEW_BEAT)
        assert reader.owned == {TopicPartition(TOPIC, 0)}
        assert member.figures.joins == joins + 2

    play(work, CONSUMER)


def test_a_commit_with_an_old_epoch_is_sent_again_with_the_new_one() -> None:
    """The answer to a heartbeat was lost, so the member has an older epoch than the coordinator. It gives up nothing without a commit."""

    async def work(coordinator: Coordinator, groups: Groups, member: membership.Membership, reader: Reader) -> None:
        for log in (coordinator.asked, coordinator.epochs, coordinator.said):
            log.clear()
        coordinator.commit_errors = [ErrorCode.STALE_MEMBER_EPOCH]
        coordinator.share(1)
        await coordinator.until([NEW_BEAT, COMMIT, NEW_BEAT, COMMIT, NEW_BEAT])
        assert coordinator.epochs == [2, 3]
        assert [said.owned for said in coordinator.said[:3]] == [None, None, {1}]
        assert member.figures.failed_commits == 1

    play(work, CONSUMER)


@pytest.mark.parametrize("protocol", GROUP_PROTOCOLS)
def test_a_member_reads_on_where_its_own_replay_has_committed_and_leaves_with_its_offsets_committed(
    protocol: str,
) -> None:
    async def work(coordinator: Coordinator, groups: Groups, member: membership.Membership, reader: Reader) -> None:
        assert reader.owned == BOTH
        assert reader.starts == {TopicPartition(TOPIC, 1): 4}, "another replay's commit does not count"
        await groups.leave()
        assert coordinator.committed == {0: (7, f"{RUN:08x}"), 1: (7, f"{RUN:08x}")}
        assert [name for name, _ in coordinator.asked[-2:]] == [COMMIT, LEFT[protocol]]
        assert not coordinator.is_open

    play(work, protocol)


@pytest.mark.parametrize("protocol", GROUP_PROTOCOLS)
def test_an_idle_member_leaves_and_joins_again_when_it_has_something_to_fetch(protocol: str) -> None:
    async def work(coordinator: Coordinator, groups: Groups, member: membership.Membership, reader: Reader) -> None:
        coordinator.now_ns = membership.IDLE_NS + 1
        await coordinator.until_asked(LEFT[protocol])
        await asyncio.sleep(0.05)
        assert reader.owned is None
        coordinator.asked.clear()
        member.expect(TOPIC, coordinator.now_ns)
        await coordinator.until(AGAIN[protocol])
        assert reader.owned is not None

    play(work, protocol)


def test_what_was_read_is_kept_as_ranges() -> None:
    async def work(coordinator: Coordinator, groups: Groups, member: membership.Membership, reader: Reader) -> None:
        place = TopicPartition(TOPIC, 0)
        for first, end in ((5, 9), (9, 12), (12, -1), (20, 21)):
            member.note_read({place: first}, {place: end}, max(end - first, 0), 1_000_000)
        assert member.figures.ranges == {"t-0": [[5, 12], [20, 21]]}
        assert (member.figures.read, member.figures.longest_overdue_s) == (8, 0.001)

    play(work)
