"""Rules that are removed from the running code, of which the model of the protocol knows nothing: only the simulation can miss them.

Each function of `PROMISES` patches one rule away. BUG ids are in docs/RULES.md; an `edge` was found in this project.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from broker.cluster.lease import LeadershipLease
from broker.cluster.registration import Registration
from broker.control.fencing import NewestRequest
from broker.coordination import appending
from broker.coordination.ownership import Ownership
from broker.groups.consumer_group import consumer_group
from broker.groups.consumer_group.consumer_group import ConsumerGroup
from broker.groups.consumer_group.members import ConsumerMembers
from broker.groups.group.group import Group
from broker.network.connection_state import AnswerOrder
from broker.replication import replica_state
from broker.replication.appending.refused_batches import RefusedBatches
from broker.replication.appending.transaction_verification import TransactionVerification
from broker.replication.isr_updates import IsrOutcome, IsrUpdates
from broker.replication.leadership_changes import TOPIC_DELETED_EPOCH, LeadershipChanges
from broker.replication.log_dirs.replica_moves import ReplicaMoves
from broker.replication.partition import Partition, Role
from broker.replication.replica_manager import ReplicaManager
from broker.replication.replica_state import FollowerState
from broker.request_handler import RequestHandler
from broker.storage import log
from broker.storage.directories.future_logs import FutureLogs
from broker.storage.directories.log_directory import CLEAN_SHUTDOWN, FUTURE_SUFFIX, LogDirectory
from broker.storage.leader_epochs import LeaderEpochCache
from broker.storage.log import Log, LogUnavailable
from broker.storage.producers import producer_state
from broker.storage.producers.log_producers import LogProducers
from broker.storage.producers.producer_state import ProducerState
from broker.storage.segment import Segment
from broker.storage.stored_records import StoredRecords
from broker.transactions.coordinator import TransactionCoordinator
from broker.transactions.markers import GONE, MarkerSender
from broker.transactions.transaction import Transaction
from controller.broker_channels import _Channel
from controller.cluster_store import ClusterStore
from controller.controller import Controller
from controller.decisions import leader_election, reassignment
from protocol.errors import ErrorCode, KafkaError
from protocol.kafka.api_keys import ApiKey
from protocol.kafka.framing import StoredBytes
from protocol.rpc.messages import ControlResponse
from protocol.types import NO_LEADER
from protocol.zk.operations import CheckOp, SetOp
from protocol.zk.znodes import BrokerIdZNode, PartitionStateZNode

Patch = pytest.MonkeyPatch
Removal = Callable[[Patch], None]
PROMISES: dict[str, Removal] = {}
ACKS_LEADER = 1
ANY_VERSION = -1


def promise(function: Removal) -> Removal:
    """Names the function in PROMISES."""
    PROMISES[function.__name__] = function
    return function


# -- classic bugs -----------------------------------------------------------------------------------------------------


@promise
def bug_4_control_requests_are_dropped(patch: Patch) -> None:
    """The controller gives up a request that it could not send, or that was not answered."""

    async def send(channel: Any, request: Any) -> ControlResponse:
        try:
            response: ControlResponse = await channel._client.send(channel._address, request)
        except (OSError, ValueError, TypeError):
            return ControlResponse(ErrorCode.NONE)
        return response

    patch.setattr(_Channel, "_send", send)


@promise
def bug_5_a_lost_answer_is_a_conflict(patch: Patch) -> None:
    """After a lost answer, a leader takes its own write of the ISR for the controller's, and waits for a new epoch."""

    async def read_again(updates: Any, proposals: Any, *, keep_untouched: bool) -> list[Any]:
        if keep_untouched:
            return list(proposals)
        await updates._finish_unwritten(proposals, IsrOutcome.CONFLICT)
        return []

    patch.setattr(IsrUpdates, "_read_again", read_again)


@promise
def bug_7_a_term_outlives_its_session(patch: Patch) -> None:
    """The end of the session ends neither the controller's term nor its queue, and no fence stops what it writes (BUG-8).

    Each alone is harmless: ZooKeeper refuses what an ended session writes, and the fence refuses a deposed controller's next session.
    """
    patch.setattr(Controller, "on_session_expired", lambda controller: None)
    patch.setattr(ClusterStore, "_check_term", lambda store: None)
    init = ClusterStore.__init__

    def without_fence(store: Any, zk: Any, epoch_version: int, events: Any = None) -> None:
        init(store, zk, epoch_version, events)
        store._fence = CheckOp(store._fence.path, ANY_VERSION)

    patch.setattr(ClusterStore, "__init__", without_fence)


@promise
def bug_8_brokers_obey_a_deposed_controller(patch: Patch) -> None:
    """Brokers do not compare the epochs of controllers, nor the numbers of requests."""
    patch.setattr(LeadershipChanges, "refuse_controller", lambda changes, controller, epoch, kind: None)
    patch.setattr(NewestRequest, "refusal", lambda newest, request: None)


@promise
def bug_11_repetitions_are_acknowledged_at_once(patch: Patch) -> None:
    """A batch that is sent again does not wait until the first copy is replicated."""
    append = Partition.append_as_leader

    def append_as_leader(partition: Partition, records: memoryview, **options: Any) -> Any:
        info = append(partition, records, **options)
        return info._replace(last_offset=-1) if info.size_bytes == 0 else info

    patch.setattr(Partition, "append_as_leader", append_as_leader)


@promise
def bug_17_a_node_of_an_earlier_session_is_taken_for_the_own(patch: Patch) -> None:
    """A broker that finds its znode does not ask whose session made it."""

    async def register(registration: Any) -> None:
        data = BrokerIdZNode.encode(registration._broker, registration._clock.wall_ms())
        while True:
            found = await registration._found()
            if found is None:
                await registration._zk.create(registration._path, data, ephemeral=True)
                continue
            registration._epoch = found[1].czxid
            if await registration._is_there() and registration._is_watched:
                break
        registration._is_registered = True
        await registration._registered(registration._epoch)

    patch.setattr(Registration, "_register", register)


@promise
def bug_18_the_marker_of_a_clean_stop_stays(patch: Patch) -> None:
    """It is there after a crash, too, and the logs are believed."""

    def take_clean_marker(directory: Any) -> None:
        directory.was_clean = directory._filesystem.exists(f"{directory.path}/{CLEAN_SHUTDOWN}")

    patch.setattr(LogDirectory, "take_clean_marker", take_clean_marker)


@promise
def bug_19_uncommitted_records_are_shown(patch: Patch) -> None:
    """A read ends at the log's end, and not at the high watermark that the answer names."""
    read = Log.read

    def to_the_end(
        log: Log, offset: int, max_bytes: int, max_offset: int, min_one: bool, committed: bool = False, **options: Any
    ) -> Any:
        limit = max_offset if committed else log.log_end_offset
        return read(log, offset, max_bytes, limit, min_one, committed, **options)

    patch.setattr(Log, "read", to_the_end)


@promise
def bug_20_late_stops_delete_replicas(patch: Patch) -> None:
    """StopReplica is carried out, whatever its leader epoch and topic id are, and in whatever order it comes."""
    stop = LeadershipChanges._stop

    def at_any_time(changes: Any, request: Any, topic_id: str | None) -> ErrorCode:
        return stop(changes, request._replace(leader_epoch=TOPIC_DELETED_EPOCH), None)

    patch.setattr(LeadershipChanges, "_stop", at_any_time)
    patch.setattr(NewestRequest, "refusal", lambda newest, request: None)


@promise
def bug_24_producers_are_not_cut_with_the_log(patch: Patch) -> None:
    """After a cut, the state of the producers has batches that are gone."""

    def cut(producers: Any, segments: Any, end_offset: int) -> None:
        producers._remove([offset for offset in producers._snapshots if offset > end_offset])

    patch.setattr(LogProducers, "cut", cut)


@promise
def bug_25_coordinators_answer_while_they_load(patch: Patch) -> None:
    """Groups and transactional ids are served before the log was read."""

    def check(ownership: Any, key: str) -> ErrorCode:
        owned = ownership.owner_of(key)
        return ErrorCode.NONE if owned is not None and ownership.may_act_for(owned) else ErrorCode.NOT_COORDINATOR

    patch.setattr(Ownership, "check", check)


@promise
def bug_25_coordinators_do_not_wait_for_replicas(patch: Patch) -> None:
    """Commits of offsets and decisions of transactions are acknowledged when the leader has them."""
    patch.setattr(appending, "ACKS_ALL", ACKS_LEADER)


@promise
def bug_21_an_epoch_is_known_before_its_log_is_open(patch: Patch) -> None:
    """A state that could not be carried out, since there was no descriptor for its log, is refused when it comes again."""
    take = LeadershipChanges._take

    def half(changes: Any, state: Any, topic_id: str | None, lookup: Any) -> ErrorCode:
        try:
            return take(changes, state, topic_id, lookup)
        except LogUnavailable:
            partition = changes._hosted.get(state.topic_partition)
            if partition is not None:
                partition.leader_epoch = state.leader_epoch
            raise

    patch.setattr(LeadershipChanges, "_take", half)


@promise
def bug_23_an_earlier_life_joins_the_isr(patch: Patch) -> None:
    """Nobody looks whether the broker that joins is still the one that has fetched."""

    def state_alone(updates: Any, proposal: Any, stats: Any) -> list[Any]:
        path = PartitionStateZNode.path(proposal.topic_partition)
        return [SetOp(path, PartitionStateZNode.encode(proposal.state), proposal.state.zk_version)]

    finish = IsrUpdates._finish
    patch.setattr(IsrUpdates, "_operations", state_alone)
    patch.setattr(IsrUpdates, "_finish", lambda *args: finish(*args[:4]))
    patch.setattr(Partition, "_is_current_life", lambda partition, replica, follower: True)


@promise
def bug_26_handlers_wait_for_acknowledgements(patch: Patch) -> None:
    """While a batch waits for its replicas, no other request of the broker is handled, such as their fetches."""
    handle = RequestHandler.handle

    def one_at_a_time(handler: Any, request: Any) -> None:
        waiting: deque[Any] = handler.__dict__.setdefault("waiting", deque())
        waiting.append(request)
        go_on(handler)

    def go_on(handler: Any) -> None:
        while handler.waiting and not handler.__dict__.get("is_busy"):
            request = handler.waiting.popleft()
            if request.header.api_key == ApiKey.PRODUCE:
                handler.is_busy = True
                request.connection.when_answered(
                    request.number, lambda: asyncio.get_running_loop().call_soon(free, handler)
                )
            handle(handler, request)

    def free(handler: Any) -> None:
        handler.is_busy = False
        go_on(handler)
        handler.end_turn()

    patch.setattr(RequestHandler, "handle", one_at_a_time)


# -- what was found here ----------------------------------------------------------------------------------------------


@promise
def edge_answers_go_out_as_they_are_made(patch: Patch) -> None:
    """An answer that is ready does not wait for one that is being made, such as a large one."""

    def answer(order: Any, number: int, parts: Sequence[Any]) -> Sequence[Any]:
        order.answered += 1
        return parts

    patch.setattr(AnswerOrder, "answer", answer)
    patch.setattr(AnswerOrder, "answer_in_turn", lambda order, number, make: answer(order, number, make()))


@promise
def edge_markers_wait_for_partitions_that_are_gone(patch: Patch) -> None:
    """A transaction never ends if a topic of it was made again with fewer partitions."""
    leader_of = MarkerSender._leader_of

    def of_existing(sender: Any, tp: Any, assigned: Mapping[str, Any]) -> int:
        found = leader_of(sender, tp, assigned)
        return NO_LEADER if found == GONE else found

    patch.setattr(MarkerSender, "_leader_of", of_existing)


@promise
def edge_an_offset_is_given_twice_after_an_error(patch: Patch) -> None:
    """The list of aborted transactions is read after the write of a marker. If that fails, the end of the log is where it was."""
    load = Segment.load_aborted

    def loading_first(work: Callable[..., Any]) -> Callable[..., Any]:
        def loaded(segment: Segment, *args: Any, **options: Any) -> Any:
            load(segment)
            return work(segment, *args, **options)

        return loaded

    patch.setattr(Segment, "load_aborted", lambda segment: None)
    for name in ("note_aborted", "collect_aborted", "prepare_cut"):
        patch.setattr(Segment, name, loading_first(getattr(Segment, name)))


# -- made up: replication ---------------------------------------------------------------------------------------------


@promise
def hw_the_slowest_member_does_not_count(patch: Patch) -> None:
    """The high watermark is where all but one of the ISR are."""

    def high_watermark(
        *, current: int, leader_end_offset: int, followers: Any, maximal_isr: Any, joining: Any = ()
    ) -> int:
        ends = sorted([leader_end_offset, *(followers[one].log_end_offset for one in maximal_isr if one in followers)])
        return max(current, ends[1] if len(ends) > 1 else ends[0])

    patch.setattr(replica_state, "high_watermark", high_watermark)


@promise
def hw_positions_of_an_earlier_epoch_count(patch: Patch) -> None:
    """What followers had when this broker last led still counts in a new epoch (INV-12)."""

    def start_epoch(state: Any, *, in_isr: bool, now: float) -> None:
        state.heartbeat = None
        state.caught_up_at = now

    patch.setattr(FollowerState, "start_epoch", start_epoch)
    make_follower = Partition.make_follower

    def remembering(partition: Partition, state: Any) -> None:
        followers = partition.followers
        make_follower(partition, state)
        partition.followers = followers

    patch.setattr(Partition, "make_follower", remembering)


@promise
def isr_too_small_for_acks_all(patch: Patch) -> None:
    """Nobody looks at min.insync.replicas (INV-17)."""
    append, plain = Partition.append_as_leader, Partition.append_plain

    def append_as_leader(partition: Partition, records: memoryview, **options: Any) -> Any:
        return append(partition, records, **{**options, "acks": ACKS_LEADER})

    def append_plain(partition: Partition, batches: Any, *, needs_all: bool, config: Any) -> Any:
        return plain(partition, batches, needs_all=False, config=config)

    def acknowledgement(partition: Any, required_offset: int, generation: int) -> ErrorCode | None:
        led = partition._still_led(generation)
        if isinstance(led, ErrorCode):
            return led
        return ErrorCode.NONE if partition.high_watermark >= required_offset else None

    patch.setattr(Partition, "append_as_leader", append_as_leader)
    patch.setattr(Partition, "append_plain", append_plain)
    patch.setattr(Partition, "acknowledgement", acknowledgement)


@promise
def elections_outside_of_the_isr(patch: Patch) -> None:
    """If no member of the ISR is live, any replica leads (INV-18)."""
    after_failure = leader_election.after_failure

    def unclean(state: Any, replicas: Any, live: Any, controller_epoch: int, *, unclean_allowed: bool) -> Any:
        return after_failure(state, replicas, live, controller_epoch, unclean_allowed=True)

    patch.setattr(leader_election, "after_failure", unclean)


@promise
def states_are_announced_that_were_not_written(patch: Patch) -> None:
    """The controller takes a state that it could not write for written."""

    async def sort_out(store: Any, unwritten: Any, culprits: Any, written: Any) -> list[Any]:
        for tp, wanted in (*unwritten, *culprits):
            written.done[tp] = wanted
        return []

    patch.setattr(ClusterStore, "_sort_out", sort_out)


@promise
def standstills_are_not_noticed(patch: Patch) -> None:
    """A process that was stopped goes on at once as if no time had passed (FLT-6), and asks for no proof that its session lives."""
    patch.setattr(LeadershipLease, "is_suspect", lambda lease: False)
    patch.setattr(LeadershipLease, "is_proven", lambda lease: True)


@promise
def leaders_outlive_their_session(patch: Patch) -> None:
    """A broker whose session ended leads on until a controller says otherwise (STA-4)."""
    patch.setattr(ReplicaManager, "step_down_all", lambda replicas, reason: None)


@promise
def epochs_are_not_cut_with_the_log(patch: Patch) -> None:
    """After a cut, the history of epochs has epochs of records that are gone."""
    patch.setattr(LeaderEpochCache, "truncate_from_end", lambda cache, end_offset: None)


@promise
def moves_end_before_the_copy_is_in_sync(patch: Patch) -> None:
    """A reassignment ends when one of the new replicas is in the ISR (INV-25)."""

    def is_complete(assignment: Any, isr: Any) -> bool:
        return bool(set(reassignment.target_of(assignment)) & set(isr))

    patch.setattr(reassignment, "is_complete", is_complete)


@promise
def followers_announce_what_is_not_synced(patch: Patch) -> None:
    """With flush.messages=1, a replica claims records before they are on its disk."""
    patch.setattr(Log, "owe_flush", lambda log, claimable_end: setattr(log, "claimable_end", log.log_end_offset))


@promise
def a_flush_without_a_sync(patch: Patch) -> None:
    """A flush counts as done, and the file was not synced."""
    patch.setattr(Segment, "sync", lambda segment: None)


@promise
def isr_written_after_the_acknowledgement(patch: Patch) -> None:
    """A proposed ISR counts for the high watermark at once, and again if ZooKeeper refuses it (order of write and announce)."""
    propose = Partition._propose

    def at_once(partition: Any, isr: tuple[int, ...], newcomers: dict[int, int]) -> None:
        propose(partition, isr, newcomers)
        partition.isr = isr
        partition.advance_high_watermark()

    patch.setattr(Partition, "_propose", at_once)


@promise
def copies_are_not_cut_with_the_log(patch: Patch) -> None:
    """A copy that moves to another log directory keeps what its log has cut off (LOG-6)."""
    patch.setattr(FutureLogs, "follow", lambda futures, current: None)


@promise
def copies_replace_a_log_that_has_grown(patch: Patch) -> None:
    """What was appended while the copy was synced is not copied before it takes the log's place (LOG-6)."""
    swap = FutureLogs.swap

    def without_the_rest(futures: Any, current: Any) -> Any:
        current.log_end_offset = futures.get(current.topic_partition).log_end_offset
        return swap(futures, current)

    patch.setattr(FutureLogs, "swap", without_the_rest)
    patch.setattr(ReplicaMoves, "_catch_up", lambda moves, current, future: moves._align(current, future))


@promise
def copies_replace_the_log_unsynced(patch: Patch) -> None:
    """A flush of a copy that moves to another log directory counts as done, and its files were not synced (LOG-6)."""
    sync = Segment.sync

    def unless_a_copy(segment: Any) -> None:
        if FUTURE_SUFFIX not in segment.path:
            sync(segment)

    patch.setattr(Segment, "sync", unless_a_copy)


# -- made up: producers and transactions ------------------------------------------------------------------------------


@promise
def batches_behind_a_refused_one_are_taken(patch: Patch) -> None:
    """A leader that does not know the producer takes its batch, whatever was refused before."""
    patch.setattr(RefusedBatches, "check", lambda *args: None)
    patch.setattr(RefusedBatches, "check_early", lambda *args: None)
    patch.setattr(Partition, "_undoubted", lambda partition, batches, producers: batches)


@promise
def only_the_last_batch_is_known(patch: Patch) -> None:
    """A repetition of an older batch of the last five is not recognised (INV-20)."""
    patch.setattr(producer_state, "BATCHES_KEPT", 1)


@promise
def old_epochs_of_producers_are_taken(patch: Patch) -> None:
    """A log does not fence a producer that another instance has replaced, and the coordinator is not asked."""
    check = ProducerState.check

    def without_fence(state: ProducerState, header: Any) -> Any:
        try:
            return check(state, header)
        except KafkaError as error:
            if error.code is ErrorCode.INVALID_PRODUCER_EPOCH:
                return None
            raise

    patch.setattr(ProducerState, "check", without_fence)
    _verify_nothing(patch)


def _verify_nothing(patch: Patch) -> None:
    """Partitions of transaction version 2 are added all the same."""
    of_batches = TransactionVerification.of_batches

    def only_added(verification: Any, entries: Any, *, adds: bool = False) -> Any:
        return of_batches(verification, entries, adds=True) if adds else None

    patch.setattr(TransactionVerification, "of_batches", only_added)


@promise
def late_batches_begin_transactions(patch: Patch) -> None:
    """The coordinator is not asked whether a batch's transaction is still open (KIP-890)."""
    _verify_nothing(patch)


@promise
def one_marker_too_few(patch: Patch) -> None:
    """A transaction counts as complete when all but one of its partitions have their marker."""
    marked = MarkerSender._marked

    def all_but_one(sender: Any, markers: Any, partitions: Any) -> None:
        unmarked = markers.held.transaction.unmarked
        marked(sender, markers, partitions)
        if len(unmarked) == 1 and partitions:
            marked(sender, markers, list(unmarked))

    patch.setattr(MarkerSender, "_marked", all_but_one)


@promise
def producers_whose_answer_was_lost_are_fenced(patch: Patch) -> None:
    """Who asks again how its transaction has ended does not get the next epoch (KIP-890)."""
    patch.setattr(Transaction, "_has_gone_on", lambda transaction, producer: False)


@promise
def open_transactions_are_shown(patch: Patch) -> None:
    """Readers of committed records read up to the high watermark."""
    patch.setattr(Log, "last_stable_offset", lambda log, high_watermark: high_watermark)
    patch.setattr(ProducerState, "first_unstable", lambda state, high_watermark: None)


@promise
def decisions_are_told_before_they_are_recorded(patch: Patch) -> None:
    """A producer is told that its transaction is committed before that is in the log."""
    end = TransactionCoordinator.end

    def told_at_once(coordinator: Any, transactional_id: str, producer: Any, is_commit: bool, respond: Any) -> None:
        answers: list[ErrorCode] = []
        end(coordinator, transactional_id, producer, is_commit, answers.append)
        respond(answers[0] if answers else ErrorCode.NONE)

    patch.setattr(TransactionCoordinator, "end", told_at_once)


@promise
def decided_transactions_are_left_to_the_first_coordinator(patch: Patch) -> None:
    """A coordinator that takes over does not send the markers that are missing."""
    loaded = TransactionCoordinator._partition_loaded

    def without_markers(coordinator: Any, owned: Any) -> None:
        send = coordinator._send_markers
        coordinator._send_markers = lambda held: None
        loaded(coordinator, owned)
        coordinator._timers.call_later(1.0, setattr, coordinator, "_send_markers", send)

    patch.setattr(TransactionCoordinator, "_partition_loaded", without_markers)


# -- made up: disks ---------------------------------------------------------------------------------------------------


@promise
def recovery_trusts_the_page_cache(patch: Patch) -> None:
    """Recovery takes what a failed sync has not written for durable, since Linux keeps it in memory (LOG-2)."""
    patch.setattr(Segment, "drop_cached", lambda segment: None)


@promise
def edge_descriptors_are_kept_while_files_close(patch: Patch) -> None:
    """Until its answer is sent, a file may be closed for another one, which gets its number."""

    class Unpinned(StoredRecords):
        __slots__ = ("_number",)

        def __init__(self, segment: Segment, position: int, size: int) -> None:
            StoredBytes.__init__(self, position, size)
            self._segment = segment
            self._number = segment.descriptor()

        def descriptor(self) -> int:
            return self._number

    patch.setattr(log, "StoredRecords", Unpinned)


# -- made up: groups --------------------------------------------------------------------------------------------------


@promise
def commits_of_old_generations_are_taken(patch: Patch) -> None:
    """A member that was put out of its group still commits (INV-24)."""
    patch.setattr(Group, "check_commit", lambda group, member_id, instance_id, generation, now_s: ErrorCode.NONE)


@promise
def commits_of_old_member_epochs_are_taken(patch: Patch) -> None:
    """A member of the new protocol commits with an epoch in which it had other partitions (KIP-848, INV-23)."""
    check_commit = ConsumerGroup.check_commit

    def of_any_epoch(group: Any, member_id: str, epoch: int, **options: Any) -> ErrorCode:
        return ErrorCode.NONE if member_id in group.members else check_commit(group, member_id, epoch, **options)

    patch.setattr(ConsumerGroup, "check_commit", of_any_epoch)


@promise
def partitions_are_given_before_they_are_free(patch: Patch) -> None:
    """A member gets all of its target at once, while others still read some of it (KIP-848, INV-24)."""
    next_step, init = consumer_group.next_step, ConsumerMembers.__init__

    class Shared(dict[Any, Any]):
        """Holders of partitions, of which the last one is known."""

        def __delitem__(self, partition: Any) -> None:
            self.pop(partition, None)

        def keys(self) -> Any:
            return frozenset()

    def sharing(members: Any) -> None:
        init(members)
        members.holders = Shared()

    def at_once(member: Any, target_epoch: int, target: Any, holders: Any, owned: Any) -> Any:
        return next_step(member, target_epoch, target, {}, owned)

    patch.setattr(ConsumerMembers, "__init__", sharing)
    patch.setattr(consumer_group, "next_step", at_once)


@promise
def replicas_that_lead_look_at_no_epoch(patch: Patch) -> None:
    """A leader is appended to in whatever role the broker has: it only looks whether it has a log."""

    def leader_log(partition: Any, current_leader_epoch: int = -1) -> Any:
        if partition.role is Role.OFFLINE or partition.log is None:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return partition.log

    patch.setattr(Partition, "leader_log", leader_log)
