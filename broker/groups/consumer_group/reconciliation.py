"""The next step of a member towards its target (Kafka's CurrentAssignmentBuilder, KIP-848). Pure.

**No partition has two owners.** A member first gives up what is no longer in its target, and says so by a heartbeat that does not name it
any more; only then is it free for the member whose target it is in.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from broker.groups.consumer_group.assignors.problem import NOTHING, IdPartition, Owned
from broker.groups.consumer_group.member import ConsumerMember, MemberState


def next_step(
    member: ConsumerMember,
    target_epoch: int,
    target: Owned,
    holders: Mapping[IdPartition, str],
    owned: Owned | None,
) -> ConsumerMember:
    """The member after its heartbeat. `holders`: partition -> the member that holds it. `owned`: what the member says that it reads; None:
    it did not say."""
    if member.state is MemberState.STABLE and member.epoch == target_epoch:
        return member
    epoch = member.epoch
    if member.state is MemberState.UNREVOKED_PARTITIONS:
        if owned is None or owned & member.revoking:
            return member
        epoch += 1  # an older heartbeat, in which it still has them, is refused
    kept = member.assigned & target
    lost = member.assigned - target
    if lost and (owned is None or owned & lost):
        return replace(member.at_epoch(epoch), state=MemberState.UNREVOKED_PARTITIONS, assigned=kept, revoking=lost)
    wanted = target - kept
    free = wanted.difference(holders) | (wanted & member.revoking)
    state = MemberState.STABLE if len(free) == len(wanted) else MemberState.UNRELEASED_PARTITIONS
    return replace(member.at_epoch(target_epoch), state=state, assigned=kept | free, revoking=NOTHING)
