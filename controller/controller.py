"""The controller of one broker process: waits, is elected, reacts, resigns (CTL-1..3).

Everything that happens is an event in one queue, handled one at a time in order (CTL-3). ZooKeeper watches, timers and
requests only put events there. A reaction that finds another controller in office (ControllerMoved) ends the term at once:
all it has written was fenced by the epoch, and what it has not written was not announced (INV-9).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Protocol

from controller import election
from controller.broker_channels import BrokerChannels
from controller.cluster_state import ClusterState
from controller.cluster_store import ClusterStore, ControllerMoved
from controller.events import (
    AssignmentChanged,
    BrokersChanged,
    ControlledShutdownRequested,
    Elect,
    Event,
    IsrsChanged,
    PreferredElectionRequested,
    RebalanceDue,
    SessionExpired,
    TopicsChanged,
)
from controller.partition_states import PartitionState
from controller.reactions import broker_changes, isr_changes, leader_elections, topic_changes
from controller.replica_states import ReplicaState
from controller.term import ControllerSettings, EventLog, Term
from protocol.errors import ErrorCode
from protocol.network_client import NetworkClient
from protocol.rpc.client import ControlClient
from protocol.rpc.messages import (
    ControlledShutdownRequest,
    ControlResponse,
    LeaderAndIsrRequest,
    PartitionError,
    StopReplicaRequest,
    UpdateMetadataRequest,
)
from protocol.types import TopicPartition
from protocol.zk.session import ConnectionLoss, SessionState, WatchEvent, ZkError, ZooKeeperSession
from protocol.zk.session import SessionExpired as ZkSessionExpired
from protocol.zk.znodes import PreferredElectionZNode, TopicZNode

log = logging.getLogger(__name__)

RETRY_S = 0.1
NEW_LEADERS_TOLD_S = 1.0
"""How long a controlled shutdown waits for the new leaders to have heard before it is answered."""

__all__ = ["Controller", "ControllerSettings"]


class WallClock(Protocol):
    """The part of the broker's clock that the controller needs."""

    def wall_ms(self) -> int: ...


class Controller:
    """One per broker process, active in one of them. `start` after the broker is registered."""

    def __init__(
        self,
        settings: ControllerSettings,
        zk: ZooKeeperSession,
        network_client: NetworkClient,
        clock: WallClock,
        events: EventLog,
    ) -> None:
        self.controller_id: int | None = None
        self.on_controller_changed: Callable[[int | None], None] = lambda controller_id: None
        self._settings = settings
        self._zk = zk
        self._client = ControlClient(network_client)
        self._clock = clock
        self._events = events
        self._queue: asyncio.Queue[Event] = asyncio.Queue()
        self._term: Term | None = None
        self._timers: list[asyncio.Task[None]] = []
        self._tickets: dict[int, asyncio.Future[ControlResponse]] = {}
        self._last_ticket = 0
        self._main: asyncio.Task[None] | None = None
        self._replies: set[asyncio.Task[None]] = set()

    @property
    def is_active(self) -> bool:
        """True while this is the controller, as far as it knows."""
        return self._term is not None

    @property
    def epoch(self) -> int:
        """The controller epoch of the current term, 0 when not active."""
        return self._term.cluster.epoch if self._term else 0

    # -- from outside ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Tries to become controller, and waits for the office to become free otherwise."""
        self._post(Elect())
        self._main = asyncio.get_running_loop().create_task(self._run(), name="controller")

    async def stop(self) -> None:
        """Resigns. `/controller` goes with the session."""
        if self._main is not None:
            self._main.cancel()
            await asyncio.gather(self._main, *self._replies, return_exceptions=True)
        self._resign("stopped")

    def on_session_expired(self) -> None:
        """The ZooKeeper session is over: the term ends now, not when the queue gets there (STA-4, BUG-7)."""
        while not self._queue.empty():
            self._refuse(self._queue.get_nowait())
        self._post(SessionExpired())

    def on_session_restored(self) -> None:
        """There is a session again, and the broker is registered in it."""
        self._post(Elect())

    async def controlled_shutdown(self, request: ControlledShutdownRequest) -> ControlResponse:
        """STA-2. NOT_CONTROLLER when this is not the controller; else the partitions that the broker still leads."""
        if self._term is None:
            return ControlResponse(ErrorCode.NOT_CONTROLLER)
        self._last_ticket += 1
        answer: asyncio.Future[ControlResponse] = asyncio.get_running_loop().create_future()
        self._tickets[self._last_ticket] = answer
        self._post(ControlledShutdownRequested(request, self._last_ticket))
        return await answer

    # -- the queue ------------------------------------------------------------------------------------------------

    def _post(self, event: Event) -> None:
        self._queue.put_nowait(event)

    async def _run(self) -> None:
        while True:
            event = await self._queue.get()
            try:
                await self._handle(event)
            except ControllerMoved as moved:
                self._resign(str(moved))
                self._refuse(event)
                self._post(Elect())
            except (ConnectionLoss, ZkSessionExpired) as error:
                log.info("%s waits for ZooKeeper: %s", type(event).__name__, error)
                self._refuse(event)
                await self._try_again(event)
            except Exception:
                # The boundary of the controller's task: one bad event must not end it. The next election starts afresh.
                log.exception("the controller failed at %s and resigns", event)
                self._refuse(event)
                self._resign("an error of its own")
                await self._leave_office()
                await asyncio.sleep(RETRY_S)
                self._post(Elect())

    async def _try_again(self, event: Event) -> None:
        """An election whose outcome is not known is looked at again when there is a connection; the rest is lost with it."""
        await asyncio.sleep(RETRY_S)
        if isinstance(event, Elect) and self._zk.state not in (SessionState.EXPIRED, SessionState.CLOSED):
            self._post(event)

    async def _leave_office(self) -> None:
        """Removes our own `/controller`, so that somebody can be elected."""
        with contextlib.suppress(ZkError):
            found = await self._zk.exists("/controller")
            if found is not None and found.ephemeral_owner == self._zk.session_id:
                await self._zk.delete("/controller", found.version)

    async def _handle(self, event: Event) -> None:
        """The routing table."""
        if isinstance(event, SessionExpired):
            self._resign("the ZooKeeper session expired")
            return
        if isinstance(event, Elect):
            await self._elect()
            return
        term = self._term
        if term is None:
            self._refuse(event)
            return
        match event:
            case BrokersChanged():
                await broker_changes.compare_brokers(term, await term.store.brokers(term.watch(BrokersChanged())))
            case TopicsChanged():
                names = await term.store.children(TopicZNode.PARENT, term.watch(TopicsChanged()))
                await topic_changes.compare_topics(term, names)
            case AssignmentChanged(topic):
                await topic_changes.take_assignments(term, await topic_changes.load_topics(term, [topic]))
            case IsrsChanged():
                await isr_changes.on_isr_changes(term)
            case PreferredElectionRequested():
                await self._preferred_election(term)
            case RebalanceDue():
                await leader_elections.rebalance(term)
            case ControlledShutdownRequested(request, ticket):
                await self._controlled_shutdown(term, request, ticket)

    def _refuse(self, event: Event) -> None:
        if isinstance(event, ControlledShutdownRequested):
            self._answer(event.ticket, ControlResponse(ErrorCode.NOT_CONTROLLER))

    def _answer(self, ticket: int, response: ControlResponse) -> None:
        waiter = self._tickets.pop(ticket, None)
        if waiter is not None and not waiter.done():
            waiter.set_result(response)

    # -- terms ----------------------------------------------------------------------------------------------------

    async def _elect(self) -> None:
        def on_watch(_: WatchEvent) -> None:
            self._post(Elect())

        outcome = await election.elect(self._zk, self._settings.broker_id, self._clock.wall_ms, on_watch)
        if isinstance(outcome, election.Lost):
            if self._term is not None:
                self._resign(f"broker {outcome.controller_id} is the controller")
            self._set_controller(outcome.controller_id)
            return
        if self._term is not None and self._term.cluster.epoch == outcome.epoch:
            return  # the watch told of our own node
        self._resign("elected again")
        self._set_controller(self._settings.broker_id)
        await self._take_office(outcome)

    def _set_controller(self, controller_id: int | None) -> None:
        if controller_id != self.controller_id:
            self.controller_id = controller_id
            self.on_controller_changed(controller_id)

    def _resign(self, reason: str) -> None:
        term, self._term = self._term, None
        if term is None:
            return
        log.info("controller %d, epoch %d, resigns: %s", self._settings.broker_id, term.cluster.epoch, reason)
        self._events.write("controller_resigned", controller_epoch=term.cluster.epoch, reason=reason)
        term.channels.close()
        term.store.close()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
        for ticket in list(self._tickets):
            self._answer(ticket, ControlResponse(ErrorCode.NOT_CONTROLLER))
        self._set_controller(None)

    async def _take_office(self, won: election.Won) -> None:
        """CTL-2, onControllerFailover. The epoch is raised already, in the multi that won the election."""
        log.info("broker %d is controller, epoch %d", self._settings.broker_id, won.epoch)
        self._events.write("controller_elected", controller_epoch=won.epoch)
        cluster = ClusterState(epoch=won.epoch, epoch_version=won.epoch_version)
        store = ClusterStore(self._zk, won.epoch_version)
        channels = BrokerChannels(self._client, self._settings.control_listener, self._on_answer)
        term = Term(self._settings, cluster, store, channels, self._events, self._post)
        self._term = term
        # Watch, and with the same reads load the whole context: whatever changes after a read fires its watch.
        cluster.brokers.update(await store.brokers(term.watch(BrokersChanged())))
        names = await store.children(TopicZNode.PARENT, term.watch(TopicsChanged()))
        for topic, (topic_id, assignment) in (await topic_changes.load_topics(term, names)).items():
            cluster.set_assignment(topic, topic_id, assignment)
        states = await store.states(list(cluster.partitions()))
        for tp, state in states.items():
            cluster.set_leadership(tp, state)
        for broker in cluster.brokers.values():
            channels.add(broker)
        # All live brokers learn the whole cluster before anybody is told to follow anybody.
        metadata = term.announcement()
        metadata.full_metadata(cluster.brokers)
        term.announce(metadata)
        self._start_state_machines(cluster)
        # Every partition's leadership, with the epochs that ZooKeeper has; then what must change.
        leadership = term.announcement()
        leadership.full_leadership(cluster.brokers)
        term.announce(leadership)
        await leader_elections.bring_online(term, cluster.waiting_for_leader(), reason="controller failover")
        await self._repair_isrs(term)
        await isr_changes.on_isr_changes(term)
        await self._preferred_election(term)
        if self._settings.auto_leader_rebalance_enable:
            self._timers.append(asyncio.get_running_loop().create_task(self._rebalance_regularly()))

    def _start_state_machines(self, cluster: ClusterState) -> None:
        """CTL-4: the states follow from what ZooKeeper has."""
        for tp in cluster.partitions():
            cluster.move_partition(tp, PartitionState.NEW)
            state = cluster.leadership.get(tp)
            for replica in cluster.assignment(tp).replicas:
                cluster.move_replica(tp, replica, ReplicaState.NEW)
                if state is not None:
                    online = replica in cluster.brokers
                    cluster.move_replica(tp, replica, ReplicaState.ONLINE if online else ReplicaState.OFFLINE)
            if state is not None:
                online = state.leader in cluster.brokers
                cluster.move_partition(tp, PartitionState.ONLINE if online else PartitionState.OFFLINE)

    async def _repair_isrs(self, term: Term) -> None:
        """Followers that died while nobody was controller leave the ISR now, as they would have then (CTL-5)."""
        cluster = term.cluster
        dead = {member for state in cluster.leadership.values() for member in state.isr} - cluster.brokers.keys()
        if not dead:
            return
        announcement = term.announcement()
        concerned: set[TopicPartition] = {tp for tp, state in cluster.leadership.items() if dead & set(state.isr)}
        await broker_changes.take_out_of_isr(term, concerned, dead, announcement, reason="controller failover")
        term.announce(announcement)

    async def _rebalance_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._settings.leader_imbalance_check_interval_seconds)
            self._post(RebalanceDue())

    async def _preferred_election(self, term: Term) -> None:
        partitions = await term.store.preferred_election(term.watch(PreferredElectionRequested()))
        if partitions is None:
            return
        unknown = [str(tp) for tp in partitions if tp not in term.cluster.leadership]
        if unknown:
            log.warning("preferred election: unknown partitions left out: %s", ", ".join(unknown))
        await leader_elections.elect_preferred(term, partitions, reason="preferred election")
        await term.store.delete([PreferredElectionZNode.PATH])

    async def _controlled_shutdown(self, term: Term, request: ControlledShutdownRequest, ticket: int) -> None:
        broker = term.cluster.brokers.get(request.broker_id)
        if broker is None:
            self._answer(ticket, ControlResponse(ErrorCode.BROKER_NOT_AVAILABLE))
            return
        if broker.epoch != request.broker_epoch:
            self._answer(ticket, ControlResponse(ErrorCode.STALE_BROKER_EPOCH))
            return
        remaining, announcement = await broker_changes.on_controlled_shutdown(term, request.broker_id)
        told = term.announce(announcement)
        response = ControlResponse(
            ErrorCode.NONE, tuple(PartitionError(tp.topic, tp.partition, ErrorCode.NONE) for tp in remaining)
        )

        async def reply() -> None:
            # Not in the queue: a new leader that does not answer must not hold up the controller.
            if told:
                await asyncio.wait(told, timeout=NEW_LEADERS_TOLD_S)
            self._answer(ticket, response)

        task = asyncio.get_running_loop().create_task(reply())
        self._replies.add(task)
        task.add_done_callback(self._replies.discard)

    def _on_answer(
        self,
        broker: int,
        request: LeaderAndIsrRequest | UpdateMetadataRequest | StopReplicaRequest,
        response: ControlResponse,
    ) -> None:
        """A broker's answer: errors are told in the timeline. The remedy is always a later epoch, never a repetition."""
        if response.error is ErrorCode.NONE and not response.partitions:
            return
        refused = [_named_error(error) for error in response.partitions]
        self._events.write(
            "control_request_refused",
            broker=broker,
            request=type(request).__name__,
            error=response.error.name,
            partitions=refused,
        )


def _named_error(error: PartitionError) -> list[str]:
    """[partition, error name]"""
    return [f"{error.topic}-{error.partition}", ErrorCode(error.error).name]
