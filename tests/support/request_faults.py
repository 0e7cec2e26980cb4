"""Faults in single requests that a client must survive, in words: `{topic}` is what it writes to or reads from."""

from __future__ import annotations

WRITES = (
    "answer produce of topic {topic} with NOT_LEADER_OR_FOLLOWER 2 times",
    "answer metadata of topic {topic} with LEADER_NOT_AVAILABLE 2 times",
    "answer metadata with the leaders of 1s ago 2 times",
    "lose the answer to produce of topic {topic} once and cut",
    "lose the answer to produce of topic {topic} once",
    "drop produce of topic {topic} once",
    "delay produce of topic {topic} by 300ms +-50ms 3 times",
    "cut the connection in the middle of the answer to produce of topic {topic} once",
    "throttle produce of topic {topic} by 200ms 2 times",
    "refuse connections once",
)
READS = (
    "answer fetch of {topic}-0 with NOT_LEADER_OR_FOLLOWER 2 times",
    "drop fetch of topic {topic} once",
    "cut the connection in the middle of the answer to fetch of topic {topic} once",
)
