"""ISR changes that leaders announced (CTL-13): read again, and told to every broker's metadata cache."""

from __future__ import annotations

from controller.events import IsrsChanged
from controller.term import Term


async def on_isr_changes(term: Term) -> None:
    """Reads the notifications and the states they name, tells all brokers, and removes the notifications."""
    paths, partitions = await term.store.isr_changes(term.watch(IsrsChanged()))
    if not paths:
        return
    states = await term.store.states([tp for tp in partitions if tp in term.cluster.leadership])
    announcement = term.announcement()
    for tp, state in states.items():
        if state.leader_epoch >= term.cluster.leadership[tp].leader_epoch:
            term.cluster.set_leadership(tp, state)
    announcement.metadata(states)
    term.announce(announcement)
    await term.store.delete(paths)
