"""Who leads (CTL-5, CTL-6, CTL-12, STA-2; Kafka's Election and PartitionLeaderElectionAlgorithms). Pure.

Each function takes what is known of one partition and gives the state to write: leader epoch one higher, the znode
version to write over kept; or None when nothing is to be written.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from protocol.types import NO_LEADER, LeaderAndIsr


def first_leader(replicas: Sequence[int], live: Collection[int], controller_epoch: int) -> LeaderAndIsr | None:
    """CTL-6: leader and ISR of a new partition; None while none of its replicas lives."""
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
    """CTL-5: the leader is gone. None when there was no leader before and there is none now.

    The first live replica in the order of the assignment that is in the ISR; the new ISR is the live part of it. With
    none: any live replica alone, if unclean election is allowed (INV-18), else no leader, and the ISR stays (INV-4).
    """
    for replica in replicas:
        if replica in live and replica in state.isr:
            return _next(state, replica, tuple(member for member in state.isr if member in live), controller_epoch)
    if unclean_allowed:
        for replica in replicas:
            if replica in live:
                return _next(state, replica, (replica,), controller_epoch)
    if state.leader == NO_LEADER:
        return None
    return _next(state, NO_LEADER, state.isr, controller_epoch)


def is_unclean(before: LeaderAndIsr, after: LeaderAndIsr) -> bool:
    """True when the new leader was not in the ISR: what only the old ISR had is lost."""
    return after.leader != NO_LEADER and after.leader not in before.isr


def without_replicas(state: LeaderAndIsr, gone: Collection[int], controller_epoch: int) -> LeaderAndIsr | None:
    """Followers on dead or stopping brokers leave the ISR; never the leader, and none while there is no leader (INV-4)."""
    if state.leader == NO_LEADER:
        return None
    isr = tuple(member for member in state.isr if member not in gone or member == state.leader)
    return _next(state, state.leader, isr, controller_epoch) if isr and isr != state.isr else None


def after_unseen_bounces(
    state: LeaderAndIsr,
    replicas: Sequence[int],
    live: Collection[int],
    bounced: Collection[int],
    answering: Collection[int],
    controller_epoch: int,
) -> LeaderAndIsr | None:
    """CTL-5 at the beginning of a term: `bounced` registered again after the state was written. They have perhaps lost records.

    1. As long as a member lives that did not bounce, the bounced leave the ISR, as after a bounce that was seen. If the
       leader is one of them, such a member leads. It has to be one of `answering`, which have answered this controller:
       a session outlives its process, and after a crash of the whole cluster those that are not back yet look steady.
       To give the partition to them alone would take it offline when their sessions end.
    2. Without such a member (the whole cluster was restarted) nobody is better than the others. The ISR keeps all its live
       members: one less would cost availability, below `min.insync.replicas` also that of writes. A bounced leader
       leads on, but in a new epoch: the others truncate to what it still has, and no record that it lost shares
       epoch and offset with another (INV-5).

    None when nothing is to be written, or when the ordinary election is to decide: nobody leads, or the leader is dead and
    all who could follow it have bounced.
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
    """STA-2: the leader is about to stop. None when no other member of the ISR can take over: it leads to the end."""
    leader = next((r for r in replicas if r in live and r in state.isr and r not in stopping), None)
    if leader is None:
        return None
    isr = tuple(member for member in state.isr if member not in stopping)
    return _next(state, leader, isr, controller_epoch)


def preferred(
    state: LeaderAndIsr, replicas: Sequence[int], live: Collection[int], controller_epoch: int
) -> LeaderAndIsr | None:
    """CTL-12: the first replica leads, if it lives, is in the ISR and does not lead already."""
    wanted = replicas[0] if replicas else NO_LEADER
    if wanted == state.leader or wanted not in live or wanted not in state.isr:
        return None
    return _next(state, wanted, state.isr, controller_epoch)


def among(
    state: LeaderAndIsr, replicas: Sequence[int], live: Collection[int], controller_epoch: int
) -> LeaderAndIsr | None:
    """CTL-10: the partition is to have no replicas but these. The leader stays if it is one of them, the others leave the ISR.

    None when nobody would be in the ISR any more, or nobody could lead though there is a leader now (INV-4, INV-18).
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
    """The same leader and ISR in a new epoch: so that brokers take what else is told with it (BUG-6)."""
    return _next(state, state.leader, state.isr, controller_epoch)


def _next(state: LeaderAndIsr, leader: int, isr: tuple[int, ...], controller_epoch: int) -> LeaderAndIsr:
    return LeaderAndIsr(leader, state.leader_epoch + 1, isr, controller_epoch, state.zk_version)
