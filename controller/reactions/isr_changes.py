"""Reads the states whose ISR a leader changed, and sends them to every broker's metadata cache (CTL-13)."""

from __future__ import annotations

from controller.reactions import reassignments
from controller.reactions.leader_elections import take_out_of_isr
from controller.term import Term

PARTITIONS_IN_AN_EVENT = 20
"""Partitions that an event names."""


async def on_isr_changes(term: Term) -> None:
    """Reads the notifications and the states that they name, sends the states to all brokers, and removes the notifications.

    A leader may have added a broker just when it died or its disk failed. Such a broker is removed from the ISR again (INV-14).
    """
    cluster = term.cluster
    paths, named = await term.store.isr_changes(term.watches.isr_changes)
    if not paths:
        return
    changed = term.adopt(await term.store.states([tp for tp in named if tp in cluster.leadership]))
    first = [str(tp) for tp in changed[:PARTITIONS_IN_AN_EVENT]]
    term.events.write("isr_changes_announced", partitions=len(changed), first=first)
    announcement = term.announcement()
    announcement.metadata(changed)
    dead = {member for tp in changed for member in cluster.leadership[tp].isr} - cluster.brokers.keys()
    if dead or not cluster.failed_replicas.keys().isdisjoint(changed):
        await take_out_of_isr(term, changed, dead, announcement, reason="dead member in the ISR", reads=False)
    await term.announce(announcement)
    await reassignments.resume(term, changed)
    await term.store.delete(paths)
