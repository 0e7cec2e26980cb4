"""The control plane's server: fencing, order, garbage (FMT-4, STA-3, LAI-1, INV-8, INV-17)."""

from __future__ import annotations

import asyncio
import dataclasses
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence

import pytest

from broker.control import leader_and_isr, pauses
from broker.control.listener import ControlListener
from broker.replication.partition import Role
from protocol.errors import ErrorCode
from protocol.rpc import framing
from protocol.rpc.messages import (
    ControlledShutdownRequest,
    ControlRequest,
    ControlResponse,
    LeaderAndIsrRequest,
    PartitionState,
    StopReplicaPartition,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from protocol.topic_ids import topic_id_text
from protocol.types import TopicPartition
from protocol.zk.session import ConnectionLoss
from tests.support.control_plane import CONTROLLER, STATE, TopicSettings, control_listener, requests
from tests.support.memory_cluster import Events
from tests.support.replica_cluster import TOPIC_ID, TP, Cluster, Node


@pytest.fixture(autouse=True)
def it_tries_again_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_and_isr, "RETRY_S", 0)


async def until(is_true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not is_true():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.001)


@pytest.fixture
def node(cluster: Cluster, runner: asyncio.Runner) -> Node:
    return runner.run(cluster.start_broker(1))


@pytest.fixture
def settings() -> TopicSettings:
    return TopicSettings()


@pytest.fixture
def listener(node: Node, settings: TopicSettings, runner: asyncio.Runner) -> Iterator[ControlListener]:
    async def start() -> ControlListener:
        return control_listener(node, settings)

    listener = runner.run(start())
    yield listener
    runner.run(listener.close())


async def seen_while(work: Awaitable[ControlResponse], look: Callable[[], int]) -> tuple[ControlResponse, list[int]]:
    """The answer, and the results of `look` in each turn of the loop until then."""
    task = asyncio.ensure_future(work)
    seen = []
    while not task.done():
        await asyncio.sleep(0)
        seen.append(look())
    return await task, seen


@pytest.mark.parametrize("kind", [0, 1, 2])
async def test_an_earlier_life_and_an_earlier_controller_are_refused(
    node: Node, listener: ControlListener, kind: int
) -> None:
    assert (await listener.handle(requests(node.epoch - 1)[kind])).error is ErrorCode.STALE_BROKER_EPOCH
    for controller_epoch, error in ((5, ErrorCode.NONE), (4, ErrorCode.STALE_CONTROLLER_EPOCH)):
        answer = await listener.handle(requests(node.epoch, controller_epoch)[kind])
        assert answer.error is error
    node.manager.step_down_all("test")
    assert (await listener.handle(requests(node.epoch, 6)[kind])).error is ErrorCode.STALE_BROKER_EPOCH
    assert (await listener.handle(requests(node.epoch + 1, 6)[kind])).error is ErrorCode.NONE


@pytest.mark.parametrize("kind", [0, 1, 2])
async def test_a_late_request_of_an_abandoned_connection_is_refused(
    node: Node, listener: ControlListener, kind: int
) -> None:
    """FLT-18, BUG-4: the controller has sent it again over another connection, and newer requests after it."""

    def numbered(kind: int, number: int, controller_epoch: int = 1) -> ControlRequest:
        request = requests(node.epoch, controller_epoch)[kind]
        assert not isinstance(request, ControlledShutdownRequest)
        return dataclasses.replace(request, number=number)

    async def error(request: ControlRequest) -> ErrorCode:
        return (await listener.handle(request)).error

    assert await error(numbered(0, 7)) is ErrorCode.NONE
    assert await error(numbered(1, 9)) is ErrorCode.NONE
    assert await error(numbered(kind, 8)) is ErrorCode.STALE_CONTROLLER_EPOCH
    assert await error(numbered(kind, 9)) is ErrorCode.NONE, "sent again, for its answer was lost"
    assert await error(numbered(kind, 1, controller_epoch=2)) is ErrorCode.NONE, (
        "each controller starts its numbers again"
    )


async def test_the_settings_of_a_topic_are_read_before_its_logs_are_opened(
    node: Node, settings: TopicSettings, listener: ControlListener
) -> None:
    """INV-17: the defaults are not used, even if ZooKeeper does not answer for a moment."""
    settings._failures = 1
    request = requests(node.epoch)[0]
    assert await listener.handle(request) == ControlResponse()
    assert node.manager.partitions.get(TP) is None
    await until(lambda: node.manager.partitions.get(TP) is not None)
    log = node.log()
    assert log.config.min_insync_replicas == 2
    asked = len(settings.asked)
    await listener.handle(request)
    assert len(settings.asked) == asked


OTHER = TopicPartition("other", 0)
OTHER_STATE = STATE._replace(topic=OTHER.topic)
IDS = {TP.topic: TOPIC_ID, OTHER.topic: topic_id_text(uuid.UUID(int=78))}


async def test_a_topic_whose_settings_cannot_be_read_does_not_delay_others(
    node: Node, settings: TopicSettings, listener: ControlListener
) -> None:
    """INV-17, CTL-15: other topics of the request, failovers and metadata are not delayed; the partition follows when it can."""
    settings.unreadable = TP.topic

    def request_of(*states: PartitionState) -> LeaderAndIsrRequest:
        return LeaderAndIsrRequest(9, 1, node.epoch, states, IDS)

    assert await listener.handle(request_of(STATE, OTHER_STATE)) == ControlResponse()
    assert node.partition(OTHER).role is Role.LEADER
    failover = OTHER_STATE._replace(leader_epoch=1, is_new=False)
    assert await listener.handle(request_of(STATE._replace(leader_epoch=1), failover)) == ControlResponse()
    assert (node.partition(OTHER).leader_epoch, node.manager.partitions.get(TP)) == (1, None)
    settings.unreadable = None
    await until(lambda: node.manager.partitions.get(TP) is not None)
    assert (node.partition().role, node.partition().leader_epoch) == (Role.LEADER, 1), "the newest request counts"


@pytest.mark.parametrize("reason", ["stopped", "another topic stopped", "session lost", "another controller"])
async def test_a_held_partition_is_dropped_when_its_request_is_outdated(
    node: Node, settings: TopicSettings, listener: ControlListener, reason: str
) -> None:
    settings.unreadable = TP.topic
    await listener.handle(requests(node.epoch)[0])
    stop = (StopReplicaPartition(TP.topic, 0, 5, True),)
    match reason:
        case "stopped":
            await listener.handle(StopReplicaRequest(9, 1, node.epoch, stop, {TP.topic: TOPIC_ID}))
        case "another topic stopped":
            await listener.handle(StopReplicaRequest(9, 1, node.epoch, stop, {TP.topic: IDS[OTHER.topic]}))
        case "session lost":
            node.manager.step_down_all("test")
        case "another controller":
            await listener.handle(requests(node.epoch, 2)[1])
    settings.unreadable = None
    await until(lambda: not listener._leader_and_isr._held)
    assert (node.manager.partitions.get(TP) is not None) is (reason == "another topic stopped")


async def test_a_missing_log_waits_until_its_age_can_be_read(node: Node) -> None:
    """FLT-33: the request has been answered by then, so the broker asks the controller for a LeaderAndIsr of everything."""
    node.logs.note_disks(node.epoch)
    can_be_read, asked = False, asyncio.Event()

    async def created(partitions: Sequence[TopicPartition]) -> Mapping[TopicPartition, int]:
        if not can_be_read:
            raise ConnectionLoss("test")
        return dict.fromkeys(partitions, node.epoch - 1)

    listener = control_listener(node, ask_for_everything=asked.set, load_created=created)
    request = LeaderAndIsrRequest(9, 1, node.epoch, (STATE._replace(leader_epoch=3, is_new=False),), IDS)
    assert await listener.handle(request) == ControlResponse()
    assert not asked.is_set()
    can_be_read = True
    async with asyncio.timeout(5):
        await asked.wait()
    assert node.logs.get(TP) is None
    (refused,) = (await listener.handle(request)).partitions
    assert refused.error == ErrorCode.REPLICA_NOT_AVAILABLE
    await listener.close()


@pytest.mark.parametrize("kind", [0, 1, 2])
async def test_a_request_before_the_registration_waits_for_it(node: Node, kind: int) -> None:
    """STA-3, INV-8: until then the broker does not know whether a request is for this life."""
    epoch, registered = -1, asyncio.Event()

    async def when_registered() -> None:
        await registered.wait()

    listener = control_listener(node, own_broker_epoch=lambda: epoch, when_registered=when_registered)
    late, right = (asyncio.create_task(listener.handle(requests(life)[kind])) for life in (50, 60))
    for _ in range(10):
        await asyncio.sleep(0)
    assert not late.done()
    assert not right.done()
    assert (node.manager.partitions.get(TP), node.metadata.topics()) == (None, ())
    epoch = 60
    registered.set()
    assert ((await late).error, (await right).error) == (ErrorCode.STALE_BROKER_EPOCH, ErrorCode.NONE)
    await listener.close()


async def test_frames_are_answered_in_order_and_garbage_closes_the_connection(
    node: Node, listener: ControlListener
) -> None:
    port = await listener.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    asked = [*requests(node.epoch), ControlledShutdownRequest(1, node.epoch)]
    writer.write(b"".join(framing.request_frame(100 + n, request) for n, request in enumerate(asked)))
    answers = []
    for _ in asked:
        length = int.from_bytes(await reader.readexactly(4), "big")
        answers.append(framing.parse_response(await reader.readexactly(length)))
    assert [correlation_id for correlation_id, _ in answers] == [100, 101, 102, 103]
    assert [a.error for _, a in answers] == [ErrorCode.NONE] * 3 + [ErrorCode.NOT_CONTROLLER]
    writer.close()
    for rubbish in (b"\xff" * 8, b"\x7f\xff\xff\xff", b"\0\0\0\5\0\0\0\1\x01", b"\0\0\0\6\0\0\0\1\x91\x63"):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(rubbish)
        assert await reader.read() == b""
        writer.close()


async def test_a_connection_is_trusted_after_a_request_that_was_carried_out(
    node: Node, listener: ControlListener
) -> None:
    """BAD-28: a lower controller epoch passes the confirmation, and is refused later. It proves nothing."""
    await listener.handle(requests(node.epoch, 5)[1])
    port = await listener.start("127.0.0.1", 0)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for controller_epoch, is_trusted in ((4, False), (5, True), (4, True)):
        writer.write(framing.request_frame(1, requests(node.epoch, controller_epoch)[1]))
        await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))
        (connection,) = listener._connections._connections
        assert connection.is_trusted is is_trusted
    writer.close()


def many(node: Node, count: int, *, is_full: bool = False) -> LeaderAndIsrRequest:
    states = tuple(STATE._replace(partition=partition, is_new=True) for partition in range(count))
    return LeaderAndIsrRequest(9, 1, node.epoch, states, {TP.topic: TOPIC_ID}, is_full=is_full)


@pytest.mark.usefixtures("a_pause_after_each_piece")
async def test_other_work_runs_while_a_large_request_is_applied(node: Node, listener: ControlListener) -> None:
    answer, seen = await seen_while(listener.handle(many(node, 100)), lambda: len(node.manager.partitions))
    assert len(set(seen)) > 3
    assert (answer, seen[-1]) == (ControlResponse(), 100)


@pytest.mark.usefixtures("a_pause_after_each_piece")
async def test_a_large_request_ends_all_fetches_of_the_old_epoch_before_it_starts_new_ones(
    node: Node, listener: ControlListener
) -> None:
    """LAI-4: a leader that is in the new epoch already would refuse fetches of the old epoch."""

    def followed(epoch: int) -> LeaderAndIsrRequest:
        request = many(node, 100)
        states = tuple(s._replace(leader=9, leader_epoch=epoch, isr=(9, node.id)) for s in request.partitions)
        return dataclasses.replace(request, partitions=tuple(s._replace(replicas=(9, node.id)) for s in states))

    await listener.handle(followed(0))
    (fetcher,) = node.manager.fetchers()
    assert len(fetcher) == 100
    _, seen = await seen_while(listener.handle(followed(1)), lambda: len(fetcher))
    assert (min(seen), seen[-1]) == (0, 100)


async def test_much_is_new_is_called_when_very_many_partitions_are_new(
    node: Node, listener: ControlListener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For the garbage collector, which would look through all of them in one turn of the loop."""
    monkeypatch.setattr(pauses, "PAUSES_UNTIL_MUCH_IS_NEW", 50)
    seen: list[int] = []

    def note() -> None:
        seen.append(len(node.manager.partitions))

    telling = control_listener(node, much_is_new=note)
    await telling.handle(many(node, 100))
    assert seen == [44, 94]  # the first pauses prepare


@pytest.mark.usefixtures("a_pause_after_each_piece")
async def test_other_work_runs_while_many_replicas_are_stopped(node: Node, listener: ControlListener) -> None:
    """10,000 deletions in one turn held the loop for a second."""
    await listener.handle(many(node, 100))
    stops = tuple(StopReplicaPartition(TP.topic, partition, -2, True) for partition in range(100))
    request = StopReplicaRequest(9, 1, node.epoch, stops, {TP.topic: TOPIC_ID})
    answer, seen = await seen_while(listener.handle(request), lambda: len(node.manager.partitions))
    assert len(set(seen)) > 3
    assert (answer, seen[-1]) == (ControlResponse(), 0)


@pytest.mark.usefixtures("a_pause_after_each_piece")
async def test_other_work_runs_during_a_large_metadata_update_and_sees_all_of_it_or_nothing(
    node: Node, listener: ControlListener
) -> None:
    states = tuple(STATE._replace(partition=partition) for partition in range(5000))
    request = UpdateMetadataRequest(9, 1, node.epoch, states, {TP.topic: TOPIC_ID}, ())
    _, seen = await seen_while(listener.handle(request), lambda: len(node.metadata.partitions_of(TP.topic)))
    assert set(seen) == {0, 5000}
    assert seen.count(0) > 1


@pytest.mark.usefixtures("a_pause_after_each_piece")
async def test_the_rest_of_a_large_request_is_dropped_when_the_brokers_life_ends(
    node: Node, listener: ControlListener
) -> None:
    """STA-4, BUG-7: the broker steps down from the partitions that were applied, and ignores the rest."""
    task = asyncio.create_task(listener.handle(many(node, 100)))
    while not node.manager.partitions:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0)
    node.manager.step_down_all("test")
    taken = len(node.manager.partitions)
    assert (await task).error is ErrorCode.STALE_BROKER_EPOCH
    assert 0 < taken == len(node.manager.partitions) < 100
    assert not any(partition.role is Role.LEADER for partition in node.manager.partitions)


@pytest.mark.usefixtures("a_pause_after_each_piece")
async def test_a_large_request_that_is_cancelled_in_a_pause_leaves_whole_partitions(
    node: Node, listener: ControlListener
) -> None:
    """As when the broker stops. The next request is carried out."""
    task = asyncio.create_task(listener.handle(many(node, 100)))
    while not node.manager.partitions:  # noqa: ASYNC110 - there is no event to wait for
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))
    assert task.cancelled()
    taken = len(node.manager.partitions)
    assert 0 < taken < 100
    assert all(partition.role is Role.LEADER for partition in node.manager.partitions)
    assert await listener.handle(many(node, 100, is_full=True)) == ControlResponse()
    assert len(node.manager.partitions) == 100


async def test_a_full_request_that_repeats_known_states_changes_nothing(node: Node, listener: ControlListener) -> None:
    """LAI-2: otherwise the full request of a new controller would get a hundred thousand errors."""
    await listener.handle(many(node, 30))
    assert len((await listener.handle(many(node, 30))).partitions) == 30
    assert await listener.handle(many(node, 30, is_full=True)) == ControlResponse()
    assert len(node.manager.partitions) == 30


def test_both_ends_of_a_request_are_joined_by_its_number(node: Node, runner: asyncio.Runner) -> None:
    """RUN-3: what the event log says of a request that is carried out, and of one that is refused."""
    events = Events()

    async def send() -> None:
        listener = control_listener(node, events=events)
        late, *_ = (dataclasses.replace(request, number=4) for request in requests(node.epoch))
        for request in (dataclasses.replace(late, number=5), late):
            await listener.handle(request)
        await listener.close()

    runner.run(send())
    about = {"request": "LeaderAndIsr", "controller": CONTROLLER, "controller_epoch": 1}
    assert events.rows == [
        ("control_request_received", {**about, "number": 5, "partitions": 1}),
        ("control_request_done", {**about, "number": 5, "error": "NONE", "refused_partitions": 0}),
        ("control_request_received", {**about, "number": 4, "partitions": 1}),
        ("control_request_done", {**about, "number": 4, "error": "STALE_CONTROLLER_EPOCH", "refused_partitions": 0}),
    ]
