"""Moves partitions to other replicas (CTL-10, INV-25; Kafka's onPartitionReassignment). A move can resume at every step.

OAR are the original replicas, RAR those of the target, AR all assigned replicas. `/brokers/topics/<topic>` with its adding and removing
replicas is the only stored state. Together with the ISR it shows the next controller where to continue.

0.  If all of RAR are in the ISR, continue at 5, even if the move was only just requested.
1.  AR in ZooKeeper = RAR + OAR, with RAR - OAR as adding and OAR - RAR as removing. From now on the move is in progress.
2.  Leader epoch + 1, LeaderAndIsr to all of AR: the leader accepts the new followers into the ISR.
3.  RAR - OAR to NewReplica, announced in the same request.
4.  Wait until the ISR contains RAR. Leaders announce changes of their ISRs.
5.  RAR to OnlineReplica.
6.  AR = RAR in memory: no other replica is announced or elected from now on.
7.  If the leader is not in RAR, a member of RAR is elected; else the leader continues in a new leader epoch.
8.  OAR - RAR to OfflineReplica: they leave the ISR, in the same write as 7.
9.  OAR - RAR to NonExistentReplica: one StopReplica stops them and deletes their logs, and live brokers confirm it. Dead brokers are
    not waited for: when such a broker is back, the log is not among its replicas and is removed (LAI-6).
10. AR in ZooKeeper = RAR.
11. The move is removed from `/admin/reassign_partitions`, and the node with its last move.
12. UpdateMetadata to all brokers.
13. A waiting deletion of the topic continues.

Another target during a move, or a cancellation (target OAR), starts at 1 again. Replicas that only the dropped target has leave the
ISR before step 1 is written, in a new leader epoch, so that no leader can add them again. Afterwards they are deleted. The request is
refused if no other replica in the ISR could lead, because records would be lost (as in KRaft).

If a controller dies after 1, the next one repeats steps 2 and 3 for every incomplete move: a leader in the same epoch would not accept
the new replicas. If it dies after 7, the move is complete, and the next controller continues at 5.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from controller.announcements import Announcement
from controller.assignment_store import remove_requested_moves, requested_moves, write_assignments
from controller.decisions import leader_election, reassignment
from controller.reactions import topic_deletions
from controller.reactions.leader_elections import bring_online
from controller.replica_status import ReplicaStatus
from controller.term import Term
from protocol.errors import ErrorCode, KafkaError
from protocol.types import NO_LEADER, Assignment, LeaderAndIsr, TopicPartition
from protocol.zk.znodes import ReassignPartitionsZNode

log = logging.getLogger(__name__)

Targets = Mapping[TopicPartition, tuple[int, ...] | None]
"""Partition -> its new replicas, or None to cancel its move."""

Results = dict[TopicPartition, KafkaError | None]
"""Partition -> None if its move is in progress or done, else the reason why it is refused."""


# -- requests ---------------------------------------------------------------------------------------------------------


async def alter(term: Term, targets: Targets, *, may_change_factor: bool = True) -> Results:
    """Handles a request through the API. It replaces a request for the same partition in `/admin/reassign_partitions`."""
    plans, results = _plan(term, targets, may_change_factor=may_change_factor)
    results.update(dict.fromkeys(plans))
    changes = {tp: new for tp, new in plans.items() if new != term.cluster.move_of(tp)}
    if plans:
        await remove_requested_moves(term.store, lambda tp, _: tp in plans)
    results.update(await _begin(term, changes))
    await resume(term, changes)
    return results


def _plan(
    term: Term, targets: Targets, *, may_change_factor: bool = True
) -> tuple[dict[TopicPartition, Assignment], Results]:
    """(new assignments of the partitions that may move, errors of the others)"""
    cluster = term.cluster
    plans: dict[TopicPartition, Assignment] = {}
    refused: Results = {}
    for tp, target in targets.items():
        is_being_deleted = tp.topic in cluster.topics_to_delete
        try:
            plans[tp] = reassignment.plan(
                tp,
                cluster.move_of(tp),
                target,
                cluster.live,
                is_being_deleted=is_being_deleted,
                may_change_factor=may_change_factor,
            )
        except KafkaError as error:
            refused[tp] = error
    return plans, refused


async def on_requested(term: Term) -> None:
    """Handles `/admin/reassign_partitions` when it was written, or at the start of a term. Removes refused entries (CTL-11)."""
    found = await requested_moves(term.store, term.watches.reassignments)
    if found is None:
        return
    try:
        rows = ReassignPartitionsZNode.decode_rows(found[0])
    except ValueError as error:
        log.error("%s is not readable and is removed: %s", ReassignPartitionsZNode.PATH, error)
        term.events.write("reassignments_refused", reason=f"not readable: {error}")
        rows = []
    refused = await _take_rows(term, rows)
    for tp, refusal in refused.items():
        log.warning("%s: the requested reassignment is refused: %s", tp, refusal.message)
        term.events.write("reassignment_refused", partition=str(tp), error=refusal.code.name, reason=refusal.message)
    if refused or not rows:
        refused_rows = {row for row in rows if row[0] in refused}
        await remove_requested_moves(term.store, lambda tp, target: (tp, target) in refused_rows)
    await resume(term)


async def _take_rows(
    term: Term, rows: Sequence[tuple[TopicPartition, tuple[int, ...]]]
) -> dict[TopicPartition, KafkaError]:
    """Starts the new moves in the rows. Returns the errors of the refused ones."""
    cluster = term.cluster
    refused: dict[TopicPartition, KafkaError] = {}
    targets: dict[TopicPartition, tuple[int, ...]] = {}
    for tp, target in rows:
        current = cluster.move_of(tp)
        if tp in targets or tp in refused:
            refused[tp] = _refusal(f"{tp} is named more than once")
        elif tp in cluster.reassigning and reassignment.target_of(current) == target:
            continue  # in progress
        elif target and current.replicas == target and tp not in cluster.reassigning:
            refused[tp] = _refusal(f"{tp} already has the replicas {list(target)}")
        else:
            targets[tp] = target
    plans, faulty = _plan(term, {tp: target for tp, target in targets.items() if tp not in refused})
    begun = await _begin(term, plans)
    return refused | {tp: error for tp, error in (faulty | begun).items() if error is not None}


def _refusal(reason: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason)


# -- steps 1 to 3 -----------------------------------------------------------------------------------------------------


async def _begin(term: Term, plans: Mapping[TopicPartition, Assignment]) -> Results:
    """Persists the new assignments and announces them. Returns the result of each: None, or the error."""
    if not plans:
        return {}
    cluster = term.cluster
    results: Results = dict.fromkeys(plans)
    # The raised epochs are announced after all writes. Until then no leader can change an ISR whose epoch is raised here.
    renewed = await _release_dropped(term, plans, results)
    wanted = {tp: new for tp, new in plans.items() if results[tp] is None}
    failed = await write_assignments(term.store, wanted, cluster.topic_ids)
    announcement = term.announcement()
    begun: dict[TopicPartition, list[int]] = {}
    for tp, new in wanted.items():
        if tp.topic in failed:
            results[tp] = KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, failed[tp.topic])
        else:
            _step(term, tp, 1, f"AR = {list(new.replicas)}", adding=list(new.adding), removing=list(new.removing))
            begun[tp] = _apply(term, tp, new, announcement)
    await _renew(term, [tp for tp in begun if tp not in renewed], announcement)
    announcement.leadership(renewed)
    for tp, made in begun.items():
        _announce_new(term, tp, made, announcement)
    await term.announce(announcement)
    # For another order of the same replicas, or a cancellation, there is nothing to wait for.
    await _after_last_write(term, {tp: plans[tp].replicas for tp in begun if not reassignment.is_under_way(plans[tp])})
    return results


async def _release_dropped(
    term: Term, plans: Mapping[TopicPartition, Assignment], results: Results
) -> set[TopicPartition]:
    """Removes replicas that only a dropped target has from the ISRs. Returns the partitions whose leader epoch this raised.

    Adds a refusal to `results` for each partition where this is not possible.
    """
    cluster = term.cluster
    dropping = [
        tp
        for tp, new in plans.items()
        if tp in cluster.leadership and reassignment.no_longer_needed(cluster.move_of(tp), new)
    ]
    if not dropping:
        return set()

    def without_dropped(tp: TopicPartition, state: LeaderAndIsr) -> LeaderAndIsr | None:
        return leader_election.among(state, plans[tp].replicas, cluster.with_disk(tp, cluster.live), cluster.epoch)

    released = await term.change(dropping, without_dropped, term.announcement(), reason="reassignment changed")
    for tp in dropping:
        if tp not in released:
            isr = list(cluster.leadership[tp].isr)
            results[tp] = _refusal(
                f"{tp}: none of its in-sync replicas {isr} that are live would remain in {list(plans[tp].replicas)}: "
                "that would require an unclean leader election"
            )
    return released


def _apply(term: Term, tp: TopicPartition, new: Assignment, announcement: Announcement) -> list[int]:
    """Applies a written assignment; replicas that only a dropped target had are deleted. Returns the replicas to create."""
    cluster = term.cluster
    for replica in reassignment.no_longer_needed(cluster.move_of(tp), new):
        announcement.stop(replica, tp, delete=True)
    return cluster.begin_move(tp, new)


def _announce_new(term: Term, tp: TopicPartition, replicas: Sequence[int], announcement: Announcement) -> None:
    """Step 3."""
    if replicas and tp in term.cluster.leadership:
        announcement.new_replicas(tp, replicas)
        _step(term, tp, 3, f"{list(replicas)} are new replicas")


async def _renew(term: Term, partitions: Collection[TopicPartition], announcement: Announcement) -> None:
    """Step 2. A partition that never had a leader, because none of its replicas was live, may now get its first leader."""
    cluster = term.cluster

    def again(_: TopicPartition, state: LeaderAndIsr) -> LeaderAndIsr:
        return leader_election.unchanged(state, cluster.epoch)

    for tp in sorted(await term.change(partitions, again, announcement, reason="reassignment")):
        _step(term, tp, 2, f"leader epoch {cluster.leadership[tp].leader_epoch}, LeaderAndIsr to all of AR")
    never_led = [tp for tp in partitions if tp not in cluster.leadership]
    await bring_online(term, never_led, announcement, reason="reassignment")


async def take_over(term: Term, announcement: Announcement) -> None:
    """CTL-2: announces incomplete moves again, in a new epoch. Call `resume` afterwards."""
    cluster = term.cluster
    incomplete = [tp for tp in sorted(cluster.reassigning) if not _is_complete(term, tp)]
    if not incomplete:
        return
    log.info("reassignments taken over: %s", ", ".join(map(str, incomplete[:10])))
    await _renew(term, incomplete, announcement)
    for tp in incomplete:
        isr = cluster.leadership[tp].isr if tp in cluster.leadership else ()
        _announce_new(
            term, tp, [replica for replica in cluster.assignment(tp).adding if replica not in isr], announcement
        )


# -- steps 4 to 9 -----------------------------------------------------------------------------------------------------


async def resume(term: Term, partitions: Iterable[TopicPartition] | None = None) -> None:
    """Continues every move that can continue now, of these partitions or of all (None)."""
    cluster = term.cluster
    if not cluster.reassigning:
        return
    wanted = sorted(cluster.reassigning) if partitions is None else partitions
    looked_at = [tp for tp in wanted if tp in cluster.reassigning]
    await _hand_over(term, [tp for tp in looked_at if tp not in cluster.handed_over and _is_complete(term, tp)])
    await _finish(term, [tp for tp in looked_at if tp in cluster.handed_over and not cluster.deletions_awaited(tp)])


def _is_complete(term: Term, tp: TopicPartition) -> bool:
    """Step 0."""
    state = term.cluster.leadership.get(tp)
    return state is not None and reassignment.is_complete(term.cluster.assignment(tp), state.isr)


async def _hand_over(term: Term, complete: Collection[TopicPartition]) -> None:
    """Steps 5 to 9. The move keeps waiting if the ISR has shrunk by the time of the write, or if nobody in RAR could lead."""
    if not complete:
        return
    cluster = term.cluster

    def lead_among_target(tp: TopicPartition, state: LeaderAndIsr) -> LeaderAndIsr | None:
        assignment = cluster.assignment(tp)
        if not reassignment.is_complete(assignment, state.isr):
            return None
        able = cluster.with_disk(tp, cluster.live)
        new = leader_election.among(state, reassignment.target_of(assignment), able, cluster.epoch)
        return new if new is not None and new.leader != NO_LEADER else None

    handed_over = await term.change(complete, lead_among_target, term.announcement(), reason="reassigned")
    announcement = term.announcement()
    for tp in sorted(handed_over):
        target = reassignment.target_of(cluster.assignment(tp))
        state = cluster.leadership[tp]
        _step(term, tp, 5, f"{list(target)} are in sync")
        to_delete = cluster.hand_over(tp, Assignment(target))
        _step(term, tp, 6, f"AR = {list(target)} in memory")
        _step(term, tp, 7, f"{state.leader} leads in epoch {state.leader_epoch}")
        for replica in to_delete:
            announcement.stop(replica, tp, delete=True)
        if removed := sorted(cluster.move_of(tp).removing):
            _step(term, tp, 8, f"{removed} are out of the ISR")
            _step(term, tp, 9, f"{to_delete} delete their logs")
    announcement.leadership(handed_over)
    await term.announce(announcement)


async def on_replicas_deleted(term: Term, broker: int, answers: Iterable[tuple[TopicPartition, ErrorCode]]) -> None:
    """Handles the answers to step 9. A broker that could not delete is logged and not waited for; a person must delete its log."""
    cluster = term.cluster
    answered = [(tp, error) for tp, error in answers if broker in cluster.deletions_awaited(tp)]
    for tp, error in answered:
        if error is ErrorCode.NONE:
            cluster.move_replica(tp, broker, ReplicaStatus.DELETION_SUCCESSFUL)
            cluster.move_replica(tp, broker, ReplicaStatus.NON_EXISTENT)
        else:
            log.error("%s: broker %d could not delete its replica: %s", tp, broker, error.name)
            cluster.forget_replica(tp, broker)
        _step(term, tp, 9, f"{broker} answered {error.name}")
    if answered:
        await resume(term, [tp for tp, _ in answered])


# -- steps 10 to 13 ---------------------------------------------------------------------------------------------------


async def _finish(term: Term, partitions: Collection[TopicPartition]) -> None:
    """Step 10. If the topic's node is missing or not readable, the next event tries again."""
    if not partitions:
        return
    cluster = term.cluster
    targets = {tp: cluster.assignment(tp) for tp in partitions}
    failed = await write_assignments(term.store, targets, cluster.topic_ids)
    finished = {tp: new.replicas for tp, new in targets.items() if tp.topic not in failed}
    for tp, replicas in finished.items():
        cluster.end_move(tp)
        _step(term, tp, 10, f"AR = {list(replicas)}")
    await _after_last_write(term, finished)


async def _after_last_write(term: Term, finished: Mapping[TopicPartition, tuple[int, ...]]) -> None:
    """Steps 11 to 13."""
    cluster = term.cluster
    if not finished:
        return
    await remove_requested_moves(term.store, _is_one_of(finished))
    announcement = term.announcement()
    announcement.metadata(finished)
    await term.announce(announcement)
    for tp in finished:
        _step(term, tp, 11, f"out of {ReassignPartitionsZNode.PATH}")
        _step(term, tp, 12, "UpdateMetadata to all")
    log.info("reassigned: %s", ", ".join(f"{tp} to {list(replicas)}" for tp, replicas in finished.items()))
    if not cluster.topics_to_delete.isdisjoint(tp.topic for tp in finished):
        for tp in finished:
            _step(term, tp, 13, "deletions of topics continue")
        await topic_deletions.resume(term)


def _is_one_of(
    finished: Mapping[TopicPartition, tuple[int, ...]],
) -> Callable[[TopicPartition, tuple[int, ...]], bool]:
    return lambda tp, target: finished.get(tp) == target


async def on_topics_changed(term: Term, before: Collection[TopicPartition]) -> None:
    """Handles created and removed topics. `before` are the partitions that moved before: the moves of removed topics are forgotten."""
    gone = {tp for tp in before if tp.topic not in term.cluster.topics}
    if gone:
        await remove_requested_moves(term.store, lambda tp, _: tp in gone)
    await resume(term)


def _step(term: Term, tp: TopicPartition, step: int, what: str, **fields: object) -> None:
    """Writes a step to the event log (RUN-3)."""
    term.events.write("reassignment_step", partition=str(tp), step=step, what=what, **fields)
