"""ZooKeeper watches that put an event into the controller's queue, and do nothing else (CTL-3).

A new controller sets them while it reads the cluster (CTL-2). A watch fires once; the reaction's own read sets the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from controller.events import (
    AssignmentChanged,
    BrokersChanged,
    Elect,
    Event,
    IsrsChanged,
    LogDirsFailed,
    PreferredElectionRequested,
    ReassignmentsRequested,
    TopicDeletionsRequested,
    TopicsChanged,
)
from protocol.zk.session import WatchEvent


@dataclass(frozen=True, slots=True)
class ZnodeWatch:
    """Posts `event`. The session treats equal watches on a node as one."""

    post: Callable[[Event], None]
    event: Event

    def __call__(self, _: WatchEvent) -> None:
        self.post(self.event)


@dataclass(frozen=True, slots=True)
class TopicWatch:
    """Posts AssignmentChanged for the topic whose node changed."""

    post: Callable[[Event], None]

    def __call__(self, event: WatchEvent) -> None:
        self.post(AssignmentChanged(event.path.rpartition("/")[2]))


class ZkWatches:
    """All watches of a controller."""

    def __init__(self, post: Callable[[Event], None]) -> None:
        self.controller = ZnodeWatch(post, Elect())
        self.reassignments = ZnodeWatch(post, ReassignmentsRequested())
        self.preferred_election = ZnodeWatch(post, PreferredElectionRequested())
        self.topics = ZnodeWatch(post, TopicsChanged())
        self.topic = TopicWatch(post)
        self.topic_deletions = ZnodeWatch(post, TopicDeletionsRequested())
        self.brokers = ZnodeWatch(post, BrokersChanged())
        self.isr_changes = ZnodeWatch(post, IsrsChanged())
        self.log_dir_events = ZnodeWatch(post, LogDirsFailed())
