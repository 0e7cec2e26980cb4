"""Decides who leads (CTL-5, CTL-6, CTL-12, STA-2; Kafka's Election and PartitionLeaderElectionAlgorithms). Pure.

Each election returns the state to write for one partition, or None if nothing is to be written. The new state has the next leader
epoch, and the znode version of the old state, which the write must find.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache

from protocol.types import NO_LEADER, LeaderAndIsr, TopicPartition

KEPT_MAX = 16_384
"""Number of decisions to keep. A broker hosts thousands of partitions, with the same few replicas and ISRs."""


def first_leader(replicas: Sequence[int], live: Collection[int], controller_epoch: int) -> LeaderAndIsr | None:
    """CTL-6: leader and ISR of a new partition; None while none of its replicas is live."""
    alive = tuple(replica for replica in replicas if replica in live)
    return LeaderAndIsr(alive[0], 0, alive, controller_epoch) if alive else None


def after_failure(
    state: LeaderAndIsr,
    replicas: Sequence[int],
    live: Collection[int],
    controller_epoch: int,
    *,
    unclean_allowed: bool,
) -> LeaderAndIsr | None:
    """CTL-5: elects a leader after the failure of the old one. None if there was no leader before and there is none now.

    The new leader is the first live replica, in the order of the assignment, that is in the ISR. The new ISR is the live part of the old.
    If no member of the ISR is live, the first live replica leads alone if unclean election is allowed (INV-18). Otherwise there is no
    leader, and the ISR stays (INV-4).
    """
    leader, leader_epoch, isr, _, zk_version = state
    elected, staying = _successor(tuple(replicas), isr, frozenset(live))
    if elected != NO_LEADER:
        return LeaderAndIsr(elected, leader_epoch + 1, staying, controller_epoch, zk_version)
    if unclean_allowed:
        for replica in replicas:
            if replica in live:
                return _next(state, replica, (replica,), controller_epoch)
    if leader == NO_LEADER:
        return None
    return _next(state, NO_LEADER, isr, controller_epoch)


def each_after_failure(
    rows: Iterable[tuple[TopicPartition, LeaderAndIsr, tuple[int, ...]]], live: frozenset[int], controller_epoch: int
) -> dict[TopicPartition, LeaderAndIsr]:
    """`after_failure` for many partitions: (partition, state, replicas). Leaves out those of which no member of the ISR is live."""
    elected = {}
    for tp, (_, leader_epoch, isr, _, zk_version), replicas in rows:
        leader, staying = _successor(replicas, isr, live)
        if leader != NO_LEADER:
            elected[tp] = LeaderAndIsr(leader, leader_epoch + 1, staying, controller_epoch, zk_version)
    return elected


@lru_cache(maxsize=KEPT_MAX)
def _successor(replicas: tuple[int, ...], isr: tuple[int, ...], live: frozenset[int]) -> tuple[int, tuple[int, ...]]:
    """(the first live replica in the ISR, or -1; the live part of the ISR)"""
    staying = tuple(member for member in isr if member in live)
    return next((replica for replica in replicas if replica in staying), NO_LEADER), staying


def is_unclean(before: LeaderAndIsr, after: LeaderAndIsr) -> bool:
    """Whether the new leader was not in the ISR, so that records that only the old ISR had are lost."""
    return after.leader != NO_LEADER and after.leader not in before.isr


def without_replicas(state: LeaderAndIsr, gone: Collection[int], controller_epoch: int) -> LeaderAndIsr | None:
    """Removes the replicas in `gone`, except the leader, from the ISR. None if nothing changes, or if there is no leader (INV-4)."""
    leader, leader_epoch, isr, _, zk_version = state
    if leader == NO_LEADER:
        return None
    staying = _staying(isr, leader, frozenset(gone))
    return LeaderAndIsr(leader, leader_epoch + 1, staying, controller_epoch, zk_version) if staying else None


def each_without_replicas(
    rows: Iterable[tuple[TopicPartition, LeaderAndIsr]], gone: frozenset[int], controller_epoch: int
) -> dict[TopicPartition, LeaderAndIsr]:
    """`without_replicas` for many partitions. Leaves out those of which nothing changes."""
    changed = {}
    for tp, (leader, leader_epoch, isr, _, zk_version) in rows:
        staying = _staying(isr, leader, gone)
        if staying and leader != NO_LEADER:
            changed[tp] = LeaderAndIsr(leader, leader_epoch + 1, staying, controller_epoch, zk_version)
    return changed


@lru_cache(maxsize=KEPT_MAX)
def _staying(isr: tuple[int, ...], leader: int, gone: frozenset[int]) -> tuple[int, ...]:
    """The ISR without the replicas in `gone`, except the leader; empty if that is the same ISR."""
    staying = tuple(member for member in isr if member not in gone or member == leader)
    return staying if staying != isr else ()


def after_unseen_bounces(
    state: LeaderAndIsr,
    replicas: Sequence[int],
    live: Collection[int],
    bounced: Collection[int],
    answering: Collection[int],
    controller_epoch: int,
) -> LeaderAndIsr | None:
    """CTL-5 at the start of a term: `bounced` registered again after the state was written, and may have lost records.

    1. If a live member of the ISR did not bounce and has answered this controller (`answering`), the bounced members leave the ISR, as
       after a bounce that was seen. If the leader bounced, such a member leads. The answer is required because a session outlives its
       process: after a crash of the whole cluster, brokers that are not back yet seem not to have bounced. If only they were left in
       the ISR, the partition would go offline when their sessions end.
    2. Without such a member (the whole cluster was restarted) no member is better than the others. The ISR keeps all its live members:
       a smaller ISR would cost availability, and below `min.insync.replicas` also writes. A bounced leader keeps leading, but in a new
       epoch: its followers truncate to its log, and no record that it lost shares epoch and offset with another record (INV-5).

    None if nothing is to be written, or if the ordinary election must decide: there is no leader, or the leader is dead and no possible
    successor fulfils 1.
    """
    if state.leader == NO_LEADER:
        return None
    staying = tuple(member for member in state.isr if member in live and member not in bounced)
    steady = [replica for replica in replicas if replica in staying and replica in answering]
    if state.leader in staying:
        return _next(state, state.leader, staying, controller_epoch) if steady and staying != state.isr else None
    if steady:
        return _next(state, steady[0], staying, controller_epoch)
    if state.leader not in live:
        return None
    return _next(state, state.leader, tuple(member for member in state.isr if member in live), controller_epoch)


def before_shutdown(
    state: LeaderAndIsr,
    replicas: Sequence[int],
    live: Collection[int],
    stopping: Collection[int],
    controller_epoch: int,
) -> LeaderAndIsr | None:
    """STA-2: the leader is about to stop. None if no other member of the ISR can take over; the leader then leads until it stops."""
    leader = next((r for r in replicas if r in live and r in state.isr and r not in stopping), None)
    if leader is None:
        return None
    isr = tuple(member for member in state.isr if member not in stopping)
    return _next(state, leader, isr, controller_epoch)


def preferred(
    state: LeaderAndIsr, replicas: Sequence[int], live: Collection[int], controller_epoch: int
) -> LeaderAndIsr | None:
    """CTL-12: the first replica becomes leader. None if it is the leader already, is not live, or is not in the ISR."""
    wanted = replicas[0] if replicas else NO_LEADER
    if wanted == state.leader or wanted not in live or wanted not in state.isr:
        return None
    return _next(state, wanted, state.isr, controller_epoch)


def among(
    state: LeaderAndIsr, replicas: Sequence[int], live: Collection[int], controller_epoch: int
) -> LeaderAndIsr | None:
    """CTL-10: restricts the partition to these replicas. The leader stays if it is one of them. All other replicas leave the ISR.

    None if the ISR would become empty, or if there is a leader now and there would be none (INV-4, INV-18).
    """
    isr = tuple(member for member in state.isr if member in replicas)
    if not isr:
        return None
    if state.leader in replicas:
        return _next(state, state.leader, isr, controller_epoch)
    leader = next((replica for replica in replicas if replica in live and replica in isr), NO_LEADER)
    if leader == NO_LEADER and state.leader != NO_LEADER:
        return None
    return _next(state, leader, isr, controller_epoch)


def unchanged(state: LeaderAndIsr, controller_epoch: int) -> LeaderAndIsr:
    """The same leader and ISR in a new epoch, so that brokers accept the other contents of the request (BUG-6)."""
    return _next(state, state.leader, state.isr, controller_epoch)


def _next(state: LeaderAndIsr, leader: int, isr: tuple[int, ...], controller_epoch: int) -> LeaderAndIsr:
    return LeaderAndIsr(leader, state.leader_epoch + 1, isr, controller_epoch, state.zk_version)
