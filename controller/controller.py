"""The controller of one broker process: it waits, is elected, reacts to events, and resigns (CTL-1..3).

waiting --/controller is free, won--> in office --/controller is another's, fenced, session expired, own error--> waiting

ZooKeeper watches, timers and requests only put events into one queue, which is processed one event at a time, in order (CTL-3). A
reaction that finds another controller in office (ControllerMoved) ends the term at once. All its writes were fenced by the epoch, and
it announced nothing that was not written (INV-9).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, Protocol

from controller import controller_election
from controller.announcements import ControllerRequest
from controller.broker_channels import BrokerChannels
from controller.cluster_state import ClusterState
from controller.cluster_store import ClusterStore, ControllerMoved
from controller.controller_watch import ControllerWatch
from controller.event_log import EventLog
from controller.event_queue import EventQueue
from controller.events import (
    AssignmentChanged,
    BrokerFoundDead,
    BrokersChanged,
    ControlledShutdownRequested,
    Elect,
    ElectionsRequested,
    Event,
    IsrsChanged,
    LogDirsFailed,
    LogsMissing,
    PreferredElectionRequested,
    ReassignmentsAltered,
    ReassignmentsRequested,
    RebalanceDue,
    ReplicasDeleted,
    ReplicasFailed,
    TopicDeletionsRequested,
    TopicIdsReported,
    TopicsChanged,
    UncleanElectionsAllowed,
)
from controller.reactions import (
    broker_changes,
    dead_processes,
    disk_failures,
    elections_by_request,
    failover,
    isr_changes,
    leader_elections,
    reassignments,
    topic_changes,
    topic_deletions,
    topic_ids,
)
from controller.stats import ControllerStats
from controller.term import PARTITIONS_IN_AN_EVENT, ControllerSettings, Term
from controller.tickets import Tickets
from controller.zk_watches import ZkWatches
from protocol.errors import ErrorCode, KafkaError
from protocol.failure_detection.connection_watch import Closable, ConnectionWatch, WatchConnection
from protocol.failure_detection.evidence import Judgements
from protocol.network_client import NetworkClient
from protocol.rpc.client import ControlClient
from protocol.rpc.messages import (
    ControlledShutdownRequest,
    ControlResponse,
    LeaderAndIsrRequest,
    PartitionError,
    StopReplicaRequest,
)
from protocol.types import Address, Assignment, BrokerInfo, TopicPartition
from protocol.zk.session import ConnectionLoss, SessionExpired, ZkError, ZooKeeperSession

log = logging.getLogger(__name__)

__all__ = ["Controller", "ControllerSettings"]

RETRY_S = 0.1
RETRY_S_MAX = 5.0
EPOCH_RETRY_S = 0.5
REPLICA_NOT_AVAILABLE = ErrorCode.REPLICA_NOT_AVAILABLE
SHUTDOWN_ANSWER_DELAY_S_MAX = 1.0
"""How long the answer to a controlled shutdown waits, at most, for the answers to the LeaderAndIsr requests."""


class ControllerClock(Protocol):
    """The part of the broker's clock that the controller needs."""

    def monotonic(self) -> float: ...

    def wall_ms(self) -> int: ...


class Controller:
    """Runs in every broker process, and is active in one. Call `start` after the broker is registered."""

    def __init__(
        self,
        settings: ControllerSettings,
        zk: ZooKeeperSession,
        network_client: NetworkClient,
        clock: ControllerClock,
        events: EventLog,
        watch_connection: WatchConnection = ConnectionWatch,
    ) -> None:
        self.controller_id: int | None = None
        self.on_controller_changed: Callable[[int | None], None] = lambda controller_id: None
        self._settings = settings
        self._zk = zk
        self._client = ControlClient(network_client)
        self._clock = clock
        self._events = events
        self._queue = EventQueue(clock.monotonic)
        self.stats = ControllerStats(clock.monotonic)
        self._watches = ZkWatches(self._queue.post)
        self._has_session = True
        self._term: Term | None = None
        self._failures = 0
        self._epoch_is_unreadable = False
        self._main: asyncio.Task[None] | None = None
        self._may_hold_office = False
        """Whether `/controller` may be of this session: an election began, and was not lost."""
        self._rebalancer: asyncio.Task[None] | None = None
        self._tickets = Tickets()
        self._replies: set[asyncio.Task[None]] = set()
        self._judgements = Judgements()
        self._watch_connection = watch_connection if settings.fast_failure_detection else None
        self._controller_watch = ControllerWatch(
            zk, settings.control_listener, self._judgements, events, self._watch_connection
        )

    @property
    def is_active(self) -> bool:
        """Whether this process is the controller, as far as it knows."""
        return self._term is not None

    @property
    def epoch(self) -> int:
        """The controller epoch of the current term, 0 if not active."""
        return self._term.cluster.epoch if self._term else 0

    @property
    def cluster(self) -> ClusterState | None:
        """The cluster as the active controller sees it; None if this is not the active one. For the metrics, which only read."""
        term = self._term
        return term.cluster if term is not None else None

    @property
    def queued_events(self) -> int:
        return len(self._queue)

    @property
    def queued_requests(self) -> dict[int, int]:
        """Broker id -> control requests that it has not answered."""
        term = self._term
        return term.channels.queue_sizes() if term is not None else {}

    # -- from outside ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Tries to become controller, and tries again whenever `/controller` changes."""
        self._queue.post(Elect())
        self._main = asyncio.get_running_loop().create_task(self._run(), name="controller")

    async def stop(self) -> None:
        """Resigns, and removes `/controller` at once if ZooKeeper is reachable. If it is cancelled, the next call does the rest."""
        self._resign("stopped")
        self._controller_watch.look_at(None)
        tasks = [*self._replies, *([self._main] if self._main is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._main = None
        self._resign("stopped")  # an election may have been won just now
        if self._may_hold_office:
            await self._leave_office()

    def on_session_expired(self) -> None:
        """Ends the term and drops the queue, because the ZooKeeper session is over (STA-4, BUG-7)."""
        self._has_session = False
        self._queue.clear()
        self._controller_watch.look_at(None)
        self._may_hold_office = False
        self._resign("the ZooKeeper session expired")
        self._set_controller(None)

    def on_session_restored(self) -> None:
        """There is a session again, and the broker is registered in it."""
        self._has_session = True
        self._queue.post(Elect())

    async def controlled_shutdown(self, request: ControlledShutdownRequest) -> ControlResponse:
        """Moves the leaderships of a broker that stops (STA-2). Returns the replicated partitions that it still leads, or an error:

        NOT_CONTROLLER, BROKER_NOT_AVAILABLE (not registered), STALE_BROKER_EPOCH (an earlier life of the broker).
        """
        try:
            response: ControlResponse = await self._ask(lambda ticket: ControlledShutdownRequested(request, ticket))
        except KafkaError as error:
            return ControlResponse(error.code)
        return response

    async def elect_leaders(
        self, unclean: bool, partitions: Collection[TopicPartition] | None
    ) -> dict[TopicPartition, KafkaError | None]:
        """Elects leaders by request (CTL-12). If `partitions` is None, all are checked, and only those that needed an election returned.

        The result of a partition is None if it has a new leader, else an error: ELECTION_NOT_NEEDED, PREFERRED_LEADER_NOT_AVAILABLE,
        ELIGIBLE_LEADERS_NOT_AVAILABLE, UNKNOWN_TOPIC_OR_PARTITION, INVALID_TOPIC_EXCEPTION (being deleted). Raises
        KafkaError(NOT_CONTROLLER).
        """
        wanted = None if partitions is None else frozenset(partitions)
        elected: dict[TopicPartition, KafkaError | None] = await self._ask(
            lambda ticket: ElectionsRequested(unclean, wanted, ticket)
        )
        return elected

    async def alter_reassignments(
        self, targets: Mapping[TopicPartition, tuple[int, ...] | None], *, may_change_factor: bool = True
    ) -> dict[TopicPartition, KafkaError | None]:
        """Starts moves to these replicas (CTL-10, CTL-11). Target None cancels a move. The result is None if accepted, else an error:

        INVALID_REPLICA_ASSIGNMENT, UNKNOWN_TOPIC_OR_PARTITION, NO_REASSIGNMENT_IN_PROGRESS, and unless `may_change_factor`
        INVALID_REPLICATION_FACTOR. Raises KafkaError(NOT_CONTROLLER).
        """
        wanted = tuple(targets.items())
        results: dict[TopicPartition, KafkaError | None] = await self._ask(
            lambda ticket: ReassignmentsAltered(wanted, may_change_factor, ticket)
        )
        return results

    def reassignments(self) -> dict[TopicPartition, Assignment]:
        """The moves in progress. Raises KafkaError(NOT_CONTROLLER)."""
        if self._term is None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "this broker is not the controller")
        cluster = self._term.cluster
        return {tp: cluster.move_of(tp) for tp in sorted(cluster.reassigning)}

    def unclean_elections_allowed(self, topic: str) -> None:
        """Tries to elect leaders for the topic's offline partitions: its own setting now allows unclean elections."""
        self._queue.post(UncleanElectionsAllowed(topic))

    def set_unclean_election_default(self, is_allowed: bool) -> None:
        """Changes, while the broker runs, the default for topics without their own setting."""
        before, self._settings = self._settings, replace(self._settings, unclean_leader_election_enable=is_allowed)
        if self._term is not None:
            self._term.settings = self._settings
        if is_allowed and not before.unclean_leader_election_enable:
            self._queue.post(UncleanElectionsAllowed(None))

    async def _ask(self, event: Callable[[int], Event]) -> Any:
        """Posts the event that `event` makes from a new ticket, and waits for the reaction's answer.

        Raises KafkaError: NOT_CONTROLLER if this is not the controller or ceases to be it, else the reaction's own.
        """
        if self._term is None:
            raise KafkaError(ErrorCode.NOT_CONTROLLER, "this broker is not the controller")
        ticket, answer = self._tickets.issue()
        self._queue.post(event(ticket))
        return await answer

    # -- the queue ------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            event = await self._queue.next()
            try:
                with self.stats.handling(event, self._queue.waited_s):
                    await self._handle(event)
                self._failures = 0
                self._epoch_is_unreadable = False
            except ControllerMoved as moved:
                self._resign(str(moved))
                self._elect_again()
            except (ConnectionLoss, SessionExpired) as error:
                # Only from an election: the store of a term waits for the connection.
                log.info("%s is waiting for ZooKeeper: %s", type(event).__name__, error)
                await asyncio.sleep(RETRY_S)
                self._elect_again()
            except controller_election.EpochUnreadable as error:
                if not self._epoch_is_unreadable:
                    log.error("%s", error)
                self._epoch_is_unreadable = True
                await asyncio.sleep(EPOCH_RETRY_S)
                self._elect_again()
            except Exception:
                # The boundary of the controller's task: one bad event must not end it. The next term loads everything again.
                log.exception("the controller failed to process %s", event)
                self._resign("an error of its own")
                await self._leave_office()
                await asyncio.sleep(min(RETRY_S * 2**self._failures, RETRY_S_MAX))
                self._failures += 1
                self._elect_again()

    def _elect_again(self) -> None:
        """Posts another election. After an expiry, `on_session_restored` posts it, once the broker is registered again."""
        if self._has_session:
            self._queue.post(Elect())

    async def _handle(self, event: Event) -> None:
        """The routing table. Without a term, only an election has an effect."""
        if isinstance(event, Elect):
            await self._elect()
            return
        term = self._term
        if term is None:
            return
        watches = self._watches
        match event:
            case BrokerFoundDead(broker_id, broker_epoch):
                await dead_processes.on_broker_found_dead(term, broker_id, broker_epoch, self._judgements)
            case BrokersChanged():
                await broker_changes.compare_brokers(term, await term.store.brokers(watches.brokers))
                await topic_ids.resume(term)
            case TopicsChanged():
                moving = frozenset(term.cluster.reassigning)
                await topic_changes.compare_topics(term, await term.store.topic_names(watches.topics))
                await reassignments.on_topics_changed(term, moving)
            case AssignmentChanged(topic):
                moving = frozenset(term.cluster.reassigning)
                await topic_changes.reload_topic(term, topic)
                await reassignments.on_topics_changed(term, moving)
            case TopicDeletionsRequested():
                await topic_deletions.on_deletions_requested(term)
            case ReplicasDeleted():
                answers = term.answered_deletions(event)
                await topic_deletions.on_replicas_deleted(term, event.broker, answers)
                await reassignments.on_replicas_deleted(term, event.broker, answers)
            case ReassignmentsRequested():
                await reassignments.on_requested(term)
            case ReassignmentsAltered(targets, may_change_factor, ticket):
                altered = await reassignments.alter(term, dict(targets), may_change_factor=may_change_factor)
                self._tickets.answer(ticket, altered)
            case ElectionsRequested(unclean, partitions, ticket):
                self._tickets.answer(ticket, await elections_by_request.elect(term, partitions, unclean=unclean))
            case UncleanElectionsAllowed(topic):
                await leader_elections.on_unclean_elections_allowed(term, topic)
            case IsrsChanged():
                await isr_changes.on_isr_changes(term)
                await topic_ids.resume(term)
            case LogDirsFailed():
                await disk_failures.on_log_dirs_failed(term)
            case ReplicasFailed(broker_id, broker_epoch, failed):
                await disk_failures.on_replicas_failed(term, broker_id, broker_epoch, failed)
                await topic_ids.resume(term)
            case LogsMissing(broker_id, broker_epoch, missing):
                await disk_failures.on_logs_missing(term, broker_id, broker_epoch, missing)
                await topic_ids.resume(term)
            case TopicIdsReported(broker_id, broker_epoch, known):
                await topic_ids.on_reported(term, broker_id, broker_epoch, known)
            case PreferredElectionRequested():
                requested = await term.store.preferred_election(watches.preferred_election)
                await leader_elections.on_preferred_election(term, requested)
            case RebalanceDue():
                await leader_elections.rebalance(term)
            case ControlledShutdownRequested(request, ticket):
                await self._controlled_shutdown(term, request, ticket)
                await topic_ids.resume(term)

    # -- terms ----------------------------------------------------------------------------------------------------

    async def _elect(self) -> None:
        session_id = self._zk.session_id
        self._may_hold_office = True
        outcome = await controller_election.elect(
            self._zk, self._settings.broker_id, self._clock.wall_ms, self._watches.controller
        )
        if session_id != self._zk.session_id:
            self._elect_again()  # the result is from a session that has ended
            return
        if isinstance(outcome, controller_election.Lost):
            self._may_hold_office = False
            self._resign(f"broker {outcome.controller_id} is the controller")
            self._set_controller(outcome.controller_id)
            self._controller_watch.look_at(outcome.controller_id)
            return
        if outcome.epoch == self.epoch:
            return  # the watch fired for our own node
        self._resign("elected again")
        self._set_controller(self._settings.broker_id)
        self._controller_watch.look_at(None)
        await self._begin_term(outcome)

    async def _begin_term(self, won: controller_election.Won) -> None:
        log.info("broker %d is elected controller, epoch %d", self._settings.broker_id, won.epoch)
        self._events.write("controller_elected", controller_epoch=won.epoch, epoch_version=won.epoch_version)
        term = Term(
            self._settings,
            ClusterState(epoch=won.epoch),
            ClusterStore(self._zk, won.epoch_version, self._events),
            BrokerChannels(
                self._client, self._settings.control_listener, self._on_answer, self._watch_broker, self._events
            ),
            self._watches,
            self._events,
            self.stats,
        )
        self._term = term
        await failover.take_office(term)
        if self._settings.auto_leader_rebalance_enable and self._term is term:
            self._rebalancer = asyncio.get_running_loop().create_task(self._rebalance_regularly())

    def _resign(self, reason: str) -> None:
        term, self._term = self._term, None
        if term is None:
            return
        log.info("controller %d, epoch %d, resigns: %s", self._settings.broker_id, term.cluster.epoch, reason)
        self._events.write("controller_resigned", controller_epoch=term.cluster.epoch, reason=reason)
        term.close()
        if self._rebalancer is not None:
            self._rebalancer.cancel()
            self._rebalancer = None
        self._tickets.refuse_all()
        self._set_controller(None)

    async def _leave_office(self) -> None:
        """Removes our own `/controller`, so that another broker can be elected."""
        with contextlib.suppress(ZkError):
            await controller_election.leave_office(self._zk)
            self._may_hold_office = False

    def _set_controller(self, controller_id: int | None) -> None:
        if controller_id != self.controller_id:
            self._events.write("controller_known", controller=controller_id)
            self.controller_id = controller_id
            self.on_controller_changed(controller_id)

    def _watch_broker(self, broker: BrokerInfo, address: Address) -> Closable | None:
        """Watches the broker's process (CTL-16), unless it is this process."""
        if self._watch_connection is None or broker.id == self._settings.broker_id:
            return None
        return self._watch_connection(address, lambda: self._queue.post(BrokerFoundDead(broker.id, broker.epoch)))

    async def _rebalance_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._settings.leader_imbalance_check_interval_seconds)
            self._queue.post(RebalanceDue())

    # -- requests and answers -------------------------------------------------------------------------------------

    async def _controlled_shutdown(self, term: Term, request: ControlledShutdownRequest, ticket: int) -> None:
        broker = term.cluster.brokers.get(request.broker_id)
        if broker is None:
            self._tickets.answer(ticket, ControlResponse(ErrorCode.BROKER_NOT_AVAILABLE))
            return
        if broker.epoch != request.broker_epoch:
            self._tickets.answer(ticket, ControlResponse(ErrorCode.STALE_BROKER_EPOCH))
            return
        remaining, announcement = await broker_changes.on_controlled_shutdown(term, request.broker_id)
        answers = await term.announce(announcement)
        response = ControlResponse(
            ErrorCode.NONE, tuple(PartitionError(tp.topic, tp.partition, ErrorCode.NONE) for tp in remaining)
        )

        async def reply() -> None:
            # Waits outside the queue: a new leader that does not answer must not block the controller.
            if answers:
                await asyncio.wait(answers, timeout=SHUTDOWN_ANSWER_DELAY_S_MAX)
            self._tickets.answer(ticket, response)

        task = asyncio.get_running_loop().create_task(reply())
        self._replies.add(task)
        task.add_done_callback(self._replies.discard)

    def _on_answer(self, broker: int, request: ControllerRequest, response: ControlResponse) -> None:
        """Posts the events that a broker's answer requires, and logs its other errors. A refused request is not repeated.

        A full LeaderAndIsr repeats states that most brokers already have, so STALE_CONTROLLER_EPOCH for a partition is not logged.
        """
        if isinstance(request, StopReplicaRequest):
            self._post_deletions(broker, request, response)
        not_logged: Collection[ErrorCode] = ()
        if isinstance(request, LeaderAndIsrRequest):
            self._post_failed_replicas(broker, request, response)
            if response.topic_ids:
                self._queue.post(TopicIdsReported(broker, request.broker_epoch, tuple(response.topic_ids.items())))
            stale = (ErrorCode.STALE_CONTROLLER_EPOCH,) if request.is_full else ()
            not_logged = (ErrorCode.KAFKA_STORAGE_ERROR, REPLICA_NOT_AVAILABLE, *stale)
        refused = [
            [f"{error.topic}-{error.partition}", ErrorCode(error.error).name]
            for error in response.partitions
            if error.error not in not_logged
        ]
        if response.error is not ErrorCode.NONE or refused:
            kind = type(request).__name__
            log.warning("broker %d refused a %s: %s %s", broker, kind, response.error.name, refused[:10])
            self._events.write(
                "control_request_refused",
                broker=broker,
                request=kind,
                error=response.error.name,
                partitions=refused[:PARTITIONS_IN_AN_EVENT],
                more=len(refused[PARTITIONS_IN_AN_EVENT:]),
            )

    def _post_failed_replicas(self, broker: int, request: LeaderAndIsrRequest, response: ControlResponse) -> None:
        """Posts failed replicas (LOG-6) and missing logs (FLT-33) as events."""
        failed = tuple(
            TopicPartition(row.topic, row.partition)
            for row in response.partitions
            if row.error == ErrorCode.KAFKA_STORAGE_ERROR
        )
        if failed:
            self._queue.post(ReplicasFailed(broker, request.broker_epoch, failed))
        lost = {(row.topic, row.partition) for row in response.partitions if row.error == REPLICA_NOT_AVAILABLE}
        if lost:
            missing = tuple((s.topic_partition, s.leader_epoch) for s in request.partitions if s[:2] in lost)
            self._queue.post(LogsMissing(broker, request.broker_epoch, missing))

    def _post_deletions(self, broker: int, request: StopReplicaRequest, response: ControlResponse) -> None:
        """Posts the results of a StopReplica(delete) as an event (CTL-9, CTL-10)."""
        errors = {TopicPartition(row.topic, row.partition): ErrorCode(row.error) for row in response.partitions}
        results = tuple(
            (stop.topic_partition, response.error or errors.get(stop.topic_partition, ErrorCode.NONE))
            for stop in request.partitions
            if stop.delete
        )
        if results:
            self._queue.post(ReplicasDeleted(broker, request.controller_epoch, request.number, results))
