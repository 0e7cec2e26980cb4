"""A reassignment is completed, at whatever step the controller dies (CTL-10, CTL-2, INV-4, INV-25, FLT-35).

Every multi that a reassignment persists, and every answer to a StopReplica(delete), is a moment for the controller to die:
before it is applied, or after it is applied and before anybody has heard. It dies as a broker without a replica (5), and as
the leader of the partition (1).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from protocol.errors import ErrorCode
from protocol.types import TopicPartition
from tests.support.memory_cluster import MemoryCluster, scenario
from tests.support.moving_replicas import Steps, ask, catch_up, check_finished, let_in, request
from tests.support.persisted_steps import MOMENTS, at_multi, at_stop, depose_controller, kill_controller, lose_answers
from tests.support.thorough import first_in_quick_run

TP = TopicPartition("t", 0)
TP2 = TopicPartition("u", 0)
BYSTANDER = 5


@dataclass(frozen=True)
class History:
    """`play` requests moves that end in `finals`. Undisturbed, they need these multis and this number of StopReplica requests."""

    play: Callable[[MemoryCluster], Awaitable[None]]
    finals: dict[TopicPartition, tuple[int, ...]]
    multis: tuple[str, ...]
    stops: int


async def by_znode(cluster: MemoryCluster) -> None:
    request(cluster, {TP: (3, 2), TP2: (3, 4)})
    await catch_up(cluster)


async def by_api(cluster: MemoryCluster) -> None:
    assert set((await ask(cluster, {TP: (3, 4)})).values()) == {ErrorCode.NONE}
    await catch_up(cluster)


async def fewer(cluster: MemoryCluster) -> None:
    assert await ask(cluster, {TP: (2,)}) == {TP: ErrorCode.NONE}
    await catch_up(cluster)


async def other_order(cluster: MemoryCluster) -> None:
    request(cluster, {TP: (2, 1)})
    await catch_up(cluster)


async def cancelled(cluster: MemoryCluster) -> None:
    """3 is in sync already, 4 is not. If the request is repeated after a controller's death, there may be nothing left to cancel."""
    await ask(cluster, {TP: (3, 4, 1)})
    await cluster.settle()
    let_in(cluster, but=(4,))
    await cluster.settle()
    assert set(await _until_answered(cluster, None)) <= {ErrorCode.NONE, ErrorCode.NO_REASSIGNMENT_IN_PROGRESS}
    await catch_up(cluster)


async def another_target(cluster: MemoryCluster) -> None:
    """The first target's 3 is in sync already when the target changes to 4."""
    await ask(cluster, {TP: (3, 4, 1)})
    await cluster.settle()
    let_in(cluster, but=(4,))
    await cluster.settle()
    assert set(await _until_answered(cluster, (4, 2))) == {ErrorCode.NONE}
    await catch_up(cluster)


async def _until_answered(cluster: MemoryCluster, target: tuple[int, ...] | None) -> list[ErrorCode]:
    for broker_id in target or ():
        if broker_id not in cluster.running:
            await cluster.start(broker_id)
    return list((await ask(cluster, {TP: target})).values())


HISTORIES = {
    "by znode": History(
        by_znode,
        {TP: (3, 2), TP2: (3, 4)},
        ("topic", "topic", "state", "state", "topic", "request", "topic", "request"),
        2,
    ),
    "by API": History(by_api, {TP: (3, 4)}, ("topic", "state", "state", "topic"), 2),
    "fewer": History(fewer, {TP: (2,)}, ("topic", "state", "state", "topic"), 1),
    "other order": History(other_order, {TP: (2, 1)}, ("topic", "state", "request"), 0),
    "cancelled": History(cancelled, {TP: (1, 2)}, ("topic", "state", "state", "topic"), 2),
    "another target": History(another_target, {TP: (4, 2)}, ("topic", "state", "state", "topic", "state", "topic"), 2),
}


def moments(what: str) -> list[tuple[str, int, str]]:
    return [
        (name, index, moment)
        for name, history in HISTORIES.items()
        for index in range(len(history.multis) if what == "multis" else history.stops)
        for moment in MOMENTS
    ]


def finished_after(
    name: str, disturb: Callable[[MemoryCluster, Steps], None], first: int = BYSTANDER
) -> tuple[int, Steps]:
    """(controller epoch at the end, what was observed)"""
    history = HISTORIES[name]
    seen: list[Steps] = []
    epochs: list[int] = []

    async def play(cluster: MemoryCluster) -> None:
        await cluster.create_topic("t", {0: (1, 2)})
        if TP2 in history.finals:
            await cluster.create_topic("u", {0: (1, 2)})
        steps = Steps(cluster)
        seen.append(steps)
        disturb(cluster, steps)
        await history.play(cluster)
        for broker_id in (1, 2, 3, 4, BYSTANDER):
            if broker_id not in cluster.running:
                await cluster.start(broker_id)
        await catch_up(cluster)
        check_finished(cluster, history.finals)
        steps.check_states()
        epochs.append(cluster.controller_epoch)

    others = [broker for broker in (BYSTANDER, 1, 2, 3, 4) if broker != first]
    scenario(play, first, *others)
    return epochs[0], seen[0]


@pytest.mark.parametrize("name", HISTORIES)
def test_the_steps_of_an_undisturbed_move(name: str) -> None:
    _, steps = finished_after(name, lambda cluster, steps: None)
    assert tuple(steps.multis) == HISTORIES[name].multis
    assert len(steps.stops) == HISTORIES[name].stops
    assert all(stop.leader_epoch >= 0 for _, request in steps.stops for stop in request.partitions), "BUG-20"


@pytest.mark.parametrize("first", first_in_quick_run([BYSTANDER, 1]))
@pytest.mark.parametrize(("name", "step", "moment"), moments("multis"))
def test_the_controller_dies_at_a_persisted_step(name: str, step: int, moment: str, first: int) -> None:
    controller_epoch, _ = finished_after(name, at_multi(step, moment, kill_controller), first)
    assert controller_epoch == 2


@pytest.mark.parametrize(("name", "step", "moment"), moments("multis"))
def test_two_controllers_die_one_after_the_other(name: str, step: int, moment: str) -> None:
    """Both at the same kind of step."""

    def disturb(cluster: MemoryCluster, steps: Steps) -> None:
        deaths: list[int] = []

        def act(index: int, when: str) -> None:
            is_due = index >= step if not deaths else index > deaths[-1]
            if when == moment and is_due and len(deaths) < 2 and len(cluster.running) > 3:
                deaths.append(index)
                kill_controller(cluster)

        steps.at_multi = act

    finished_after(name, disturb)


@pytest.mark.parametrize("first", first_in_quick_run([BYSTANDER, 1]))
@pytest.mark.parametrize(("name", "answer", "moment"), moments("stops"))
def test_the_controller_dies_at_an_answer(name: str, answer: int, moment: str, first: int) -> None:
    """Steps 8 and 9: the request is lost with the controller, or the replica is deleted and the answer is lost."""
    finished_after(name, at_stop(answer, moment, kill_controller), first)


@pytest.mark.parametrize("broker_id", first_in_quick_run([1, 2, 3, 4]))
@pytest.mark.parametrize(("name", "step", "moment"), moments("multis"))
def test_a_broker_of_the_move_dies_at_a_persisted_step(name: str, step: int, moment: str, broker_id: int) -> None:
    """FLT-35: the broker leads, is removed, stays or is added. It is back before the end."""
    finished_after(name, at_multi(step, moment, lambda cluster: cluster.crash(broker_id)))


@pytest.mark.parametrize(
    ("name", "step"), [(name, step) for name, step, moment in moments("multis") if moment == "before"]
)
def test_an_answer_of_zookeeper_is_lost_at_each_step(name: str, step: int) -> None:
    """BUG-5: an applied write is found, and not repeated."""
    controller_epoch, steps = finished_after(name, at_multi(step, "before", lose_answers))
    assert controller_epoch == 1
    assert tuple(steps.multis) == HISTORIES[name].multis


@pytest.mark.parametrize("name", HISTORIES)
def test_a_deposed_controller_writes_nothing(name: str) -> None:
    """INV-9, FLT-7: another controller is elected just before its write."""
    finished_after(name, at_multi(1, "before", depose_controller))
