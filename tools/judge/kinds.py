"""The kinds of findings: what can be wrong with a record or a commit (docs/VERDICT.md has an example of each). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

LOST, MOVED, DUPLICATES, REORDERED = "lost", "moved", "duplicates", "reordered"
UNSEEN, VANISHED = "unseen", "vanished"
COMMITS_BACK, COMMITS_AHEAD = "commits-back", "commits-ahead"
UNRECOVERED = "unrecovered"
READ_AGAIN, UNREAD, REFUSED, UNANSWERED = "read-again", "unread", "failed", "unanswered"

KINDS: Mapping[str, str] = MappingProxyType(
    {
        LOST: "acknowledged, but not in the log",
        MOVED: "in the log, but not at the offset that was acknowledged",
        DUPLICATES: "further copies of a record in the log",
        REORDERED: "behind a record that the same producer produced later",
        UNSEEN: "acknowledged and in the log, but the group never read it, and will not",
        VANISHED: "consumed, but not in the log",
        COMMITS_BACK: "a committed offset went back",
        COMMITS_AHEAD: "committed before it was reported as consumed: a crash in between skips it",
        UNRECOVERED: "a partition that was not served again until the end",
        READ_AGAIN: "consumed more than once by the same group",
        UNREAD: "not read yet at the end, but the group will",
        REFUSED: "the producer was told that the record failed",
        UNANSWERED: "produced, and neither acknowledged nor failed",
    }
)
"""Kind -> what one of it is."""
HARMLESS = frozenset({READ_AGAIN, UNREAD, REFUSED, UNANSWERED})
"""What Kafka allows to happen to a correct client: reported, but no failure unless it is forbidden."""
