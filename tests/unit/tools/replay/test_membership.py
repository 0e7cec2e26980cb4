"""A member of a replayed group against a coordinator whose answers the test scripts: what it does after each error (RPL-2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from protocol.errors import ErrorCode
from protocol.kafka import messages
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import parse_request_header
from tools.replay.load import membership
from tools.replay.load.background import Background
from tools.replay.load.membership import VERSIONS, Groups
from tools.wire.cluster_view import ClusterView

FIND, JOIN, SYNC, BEAT, COMMIT, LEAVE = (key.name for key in VERSIONS)
TOPIC = "t"
LOST = -2
"""The connection ends instead of an answer."""


class Coordinator:
    """One member's coordinator; as ClusterView, and as the connection to it."""

    def __init__(self) -> None:
        self.is_open = False
        self.generation = 0
        self.errors: list[int] = []
        """Of the next heartbeats."""
        self.asked: list[tuple[str, str]] = []
        """(API, member id)"""
        self.committed: dict[int, int] = {}
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

    def address(self, broker: int) -> tuple[str, int]:
        return "h", 1

    async def connect(self, broker: int, on_end: object) -> Coordinator:
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
        self._note(key, request.member_id)
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
                self.committed = {int(row.partition_index): int(row.committed_offset) for row in topic.partitions}
                rows = [{"partition_index": partition, "error_code": 0} for partition in self.committed]
                return {"topics": [{"name": topic.name, "partitions": rows}]}
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
    for name in ("HEARTBEAT_S", "RETRY_S", "CLAIM_PAUSE_S"):
        monkeypatch.setattr(membership, name, 0.01)


def play(work: Callable[[Coordinator, Groups, membership.Membership], Any]) -> None:
    """`work` gets a member that has read partition 0 up to offset 7, and partition 1 up to 8."""

    async def run() -> None:
        coordinator, background = Coordinator(), Background()
        groups = Groups(cast(ClusterView, coordinator), background, "replay-")
        offsets = {(TOPIC, 0): 7, (TOPIC, 1): 8}
        member = groups.join("g", "c", lambda asked: {key: offsets[key] for key in asked}, lambda lost: None)
        member.reads((TOPIC, 0), 1)
        await coordinator.until([FIND, JOIN, SYNC, BEAT])
        await work(coordinator, groups, member)
        await groups.leave()
        assert not background.failed.done()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("error", "then", "id_of_join"),
    [
        (ErrorCode.UNKNOWN_MEMBER_ID, [JOIN, SYNC, BEAT], ""),
        (ErrorCode.ILLEGAL_GENERATION, [JOIN, SYNC, BEAT], "m1"),
        (ErrorCode.REBALANCE_IN_PROGRESS, [COMMIT, JOIN, SYNC, BEAT], "m1"),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, [BEAT, BEAT], None),
        (ErrorCode.NOT_COORDINATOR, [FIND, BEAT, BEAT], None),
        (LOST, [FIND, BEAT, BEAT], None),
    ],
)
def test_after_an_error_the_member_does_what_a_consumer_does(
    error: int, then: list[str], id_of_join: str | None
) -> None:
    async def work(coordinator: Coordinator, groups: Groups, member: membership.Membership) -> None:
        coordinator.asked.clear()
        coordinator.errors = [error]
        await coordinator.until([BEAT, *then])
        joins = [member_id for name, member_id in coordinator.asked[: len(then)] if name == JOIN]
        assert joins == ([] if id_of_join is None else [id_of_join])

    play(work)


def test_a_member_claims_what_it_reads_and_leaves_with_its_offsets_committed() -> None:
    async def work(coordinator: Coordinator, groups: Groups, member: membership.Membership) -> None:
        coordinator.asked.clear()
        member.reads((TOPIC, 0), 2)
        member.reads((TOPIC, 1), 2)
        await coordinator.until_asked(SYNC)
        assert coordinator.committed == {0: 7}, "the positions are committed before the group changes"
        await coordinator.until_asked(BEAT)
        await groups.leave()
        assert coordinator.committed == {0: 7, 1: 8}
        assert [name for name, _ in coordinator.asked[-2:]] == [COMMIT, LEAVE]
        assert not coordinator.is_open

    play(work)
