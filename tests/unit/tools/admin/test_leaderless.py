"""Why a partition has no leader, in words."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from protocol.types import TopicPartition
from tools.admin.leaderless import causes
from tools.admin.reassign_plan import Replica
from tools.admin.topic_views import PartitionView
from tools.failures import AdminError

T0 = TopicPartition("t", 0)
ELECT = (
    ". Bring back a member that has the records, or accept the loss: "
    "ottla elect --election-type unclean --topic t --partition 0"
)


class Directories:
    """`holding`: the brokers that have a log; None: no broker answers."""

    def __init__(self, holding: Collection[int] | None) -> None:
        self._holding = holding
        self.asked: list[Replica] = []

    def replicas_without_log(self, replicas: Collection[Replica]) -> set[Replica]:
        self.asked += replicas
        if self._holding is None:
            raise AdminError("nobody")
        return {replica for replica in replicas if replica.broker not in self._holding}


@pytest.mark.parametrize(
    ("live", "holding", "says"),
    [
        ([3], [], "no leader (ISR 1,2): broker 1 is down; broker 2 is down"),
        (
            [1, 3],
            [],
            "no leader (ISR 1,2): broker 1 has no log of it: its disk was emptied, replaced or has failed; "
            "broker 2 is down" + ELECT,
        ),
        ([1, 3], [1], "no leader (ISR 1,2): broker 2 is down"),
        ([1, 2, 3], [1, 2], "no leader (ISR 1,2): a leader may be elected soon"),
        ([1, 3], None, "no leader (ISR 1,2): broker 2 is down"),
    ],
)
def test_causes(live: list[int], holding: list[int] | None, says: str) -> None:
    admin: Any = Directories(holding)
    views = {T0: PartitionView(0, None, (1, 2, 3), (1, 2)), TopicPartition("t", 1): PartitionView(1, 3, (3,), (3,))}
    assert causes(views, live, admin) == {T0: says}
    assert [replica.broker for replica in admin.asked] == [broker for broker in (1, 2) if broker in live]
