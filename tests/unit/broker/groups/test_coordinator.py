"""The coordinator, while its broker leads: INV-23, INV-24, BAD-32, BAD-33, CLI-2."""

from __future__ import annotations

import pytest

from broker.groups.group.messages import LeavingMember
from protocol.errors import ErrorCode
from tests.support.group_cluster import GROUP, READ, SESSION_MS, Answers, GroupCluster, turns


async def test_an_answer_waits_for_the_followers(pair: GroupCluster) -> None:
    """INV-23, BUG-25: commits and assignments are acknowledged, and shown, when they are replicated."""
    first = pair.commit(1, 10)
    await pair.settle()
    assert first == [ErrorCode.NONE]
    second = pair.commit(1, 11)
    await turns()
    assert (second, pair.position(1)) == ([], 10)
    assert pair.position(1, stable=True) is ErrorCode.UNSTABLE_OFFSET_COMMIT
    await pair.settle()
    assert second == [ErrorCode.NONE]
    assert pair.position(1) == pair.position(1, stable=True) == 11
    pair.start_group(1)
    synced = pair.sync(1, "m", 1, {"m": b"mine"})
    await turns()
    assert (synced, pair.coordinators[1].describe(GROUP).state) == ([], "CompletingRebalance")
    await pair.settle()
    assert [(answer.error, answer.assignment) for answer in synced] == [(ErrorCode.NONE, b"mine")]


async def test_a_commit_that_cannot_be_written_is_no_longer_pending(served: GroupCluster) -> None:
    """Otherwise OffsetFetch would answer UNSTABLE_OFFSET_COMMIT until the coordinator moves."""
    assert served.commit(1, 10, metadata="x" * 4096) == [ErrorCode.NONE]
    assert served.commit(1, 11, metadata="x" * 4097) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert served.commit(1, 2**63) == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert served.position(1, stable=True) == 10
    assert served.commit(1, 2**63, group="new") == [ErrorCode.UNKNOWN_SERVER_ERROR]
    assert served.coordinators[1].describe("new").state == "Dead"


async def test_a_commit_that_cannot_be_replicated_is_refused_and_not_shown(cluster: GroupCluster) -> None:
    """INV-17, INV-23: there are fewer than min.insync.replicas, or the followers are too slow."""
    await cluster.start_serving(1, 2, overrides={"min.insync.replicas": "2"})
    cluster.commit(1, 10)
    await cluster.settle()
    slow = cluster.commit(1, 11)
    cluster.pass_time(5.1)
    assert (slow, cluster.position(1)) == ([ErrorCode.REQUEST_TIMED_OUT], 10)
    cluster.lead_groups(1, 1, (1,), replicas=(1, 2))
    assert cluster.commit(1, 12) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert cluster.position(1) == 10


async def test_requests_for_unknown_groups_and_illegal_requests_are_refused(served: GroupCluster) -> None:
    """BAD-32, BAD-33."""
    coordinator = served.coordinators[1]
    assert served.heartbeat(1, "m", 1) is ErrorCode.UNKNOWN_MEMBER_ID
    assert served.sync(1, "m", 1)[0].error is ErrorCode.UNKNOWN_MEMBER_ID
    assert served.join(1, "m")[0].error is ErrorCode.UNKNOWN_MEMBER_ID
    assert served.join(1, session_timeout_ms=5)[0].error is ErrorCode.INVALID_SESSION_TIMEOUT
    assert served.join(1, group="")[0].error is ErrorCode.INVALID_GROUP_ID
    assert served.join(1, protocols=())[0].error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert served.heartbeat(1, "m", 1, group="") is ErrorCode.INVALID_GROUP_ID
    assert served.commit(1, 5, generation=3) == [ErrorCode.ILLEGAL_GENERATION]
    left: Answers = []
    coordinator.leave(GROUP, [LeavingMember("m", None)], lambda *answer: left.append(answer))
    assert left == [(ErrorCode.NONE, [ErrorCode.UNKNOWN_MEMBER_ID])]
    deleted: Answers = []
    coordinator.delete_offsets(GROUP, [READ], lambda *answer: deleted.append(answer))
    assert deleted == [(ErrorCode.GROUP_ID_NOT_FOUND, {})]
    coordinator.delete_groups([GROUP], deleted.append)
    assert deleted[1:] == [{GROUP: ErrorCode.GROUP_ID_NOT_FOUND}]
    assert coordinator.describe(GROUP).state == "Dead"
    assert served.position(1) is None
    assert coordinator.committed_partitions(GROUP) == (ErrorCode.NONE, {})
    assert served.listed(1) == []


@pytest.mark.parametrize(
    ("group_id", "error"),
    [
        ("", ErrorCode.NONE),
        ("x" * 10_000, ErrorCode.NONE),
        ("x" * 32_767, ErrorCode.NONE),
        ("x" * 32_768, ErrorCode.INVALID_GROUP_ID),
        ("\N{GRINNING FACE}" * 8_192, ErrorCode.INVALID_GROUP_ID),
    ],
    ids=["empty", "long", "the longest", "too long", "too long in UTF-8"],
)
async def test_group_ids_of_every_length(served: GroupCluster, group_id: str, error: ErrorCode) -> None:
    """BAD-33, for commits of non-members, which may have the empty group id."""
    assert served.commit(1, 7, group=group_id) == [error]
    assert served.position(1, group=group_id) == (error or 7)


async def test_an_unused_member_id_leaves_no_group_behind(served: GroupCluster) -> None:
    """KIP-394: the client gets MEMBER_ID_REQUIRED, and does not join again."""
    assert served.join(1, needs_member_id=True)[0].error is ErrorCode.MEMBER_ID_REQUIRED
    assert len(served.listed(1)) == 1
    served.pass_time(SESSION_MS / 1000 + 0.5)
    assert served.listed(1) == []


async def test_groups_are_listed_by_state_and_type(served: GroupCluster) -> None:
    await served.start_stable_group(1)
    served.commit(1, 1, group="simple")

    def names(states: set[str], types: set[str]) -> set[str]:
        return {listing.group_id for listing in served.listed(1, states, types)}

    assert names(set(), set()) == {GROUP, "simple"}
    assert names({"stable"}, set()) == {GROUP}
    assert names({"Empty", "Dead"}, {"Classic"}) == {"simple"}
    assert names(set(), {"consumer"}) == set()


async def test_time_in_which_the_process_stood_still_does_not_count_against_sessions(served: GroupCluster) -> None:
    """FLT-5: heartbeats could not arrive. Requests are refused until ZooKeeper confirms the session (FLT-6)."""
    await served.start_stable_group(1)
    served.commit(1, 5, "m", 1)
    served.pass_time(8)
    coordinator = served.coordinators[1]
    served.time.advance(60)
    assert served.heartbeat(1, "m", 1) is ErrorCode.NOT_COORDINATOR
    assert served.commit(1, 6, "m", 1) == [ErrorCode.NOT_COORDINATOR]
    assert served.position(1) is ErrorCode.NOT_COORDINATOR
    assert served.join(1)[0].error is ErrorCode.NOT_COORDINATOR
    assert served.sync(1, "m", 1)[0].error is ErrorCode.NOT_COORDINATOR
    assert coordinator.describe(GROUP).error is ErrorCode.NOT_COORDINATOR
    assert coordinator.list_groups(frozenset(), frozenset())[0] is ErrorCode.COORDINATOR_NOT_AVAILABLE
    answered: Answers = []
    coordinator.leave(GROUP, [LeavingMember("m", None)], lambda *answer: answered.append(answer[0]))
    coordinator.delete_offsets(GROUP, [READ], lambda *answer: answered.append(answer[0]))
    coordinator.delete_groups([GROUP], lambda errors: answered.append(errors[GROUP]))
    assert answered == [ErrorCode.NOT_COORDINATOR] * 3
    assert await served.nodes[1].lease.confirm(_Session(served.nodes[1].epoch))
    served.pass_time(1)
    assert served.heartbeat(1, "m", 1) is ErrorCode.NONE
    assert served.position(1) == 5
    served.pass_time(SESSION_MS / 1000 + 0.5)
    assert served.heartbeat(1, "m", 1) is ErrorCode.UNKNOWN_MEMBER_ID


class _Session:
    def __init__(self, session_id: int) -> None:
        self.session_id = session_id

    async def heartbeat(self) -> None:
        return None
