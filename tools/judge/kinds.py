"""The kinds of findings: what can be wrong with a record or a commit (docs/VERDICT.md has an example of each). Pure."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

LOST, MOVED, DUPLICATES, REORDERED = "lost", "moved", "duplicates", "reordered"
UNSEEN, VANISHED = "unseen", "vanished"
COMMITS_BACK, COMMITS_AHEAD = "commits-back", "commits-ahead"
TORN, UNDONE, REVIVED = "torn", "undone", "revived"
ABORTED_READ, EARLY_READ, UNFENCED = "aborted-read", "early-read", "unfenced"
ABORTED_OFFSETS, UNPROCESSED, PROCESSED_TWICE = "aborted-offsets", "unprocessed", "processed-twice"
READ_CYCLE, WRITE_CYCLE = "read-cycle", "write-cycle"
LSO_STUCK, OPEN_TXN = "lso-stuck", "open"
OWNED_TWICE, UNOWNED = "owned-twice", "unowned"
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
        TORN: "a transaction that is committed in a part of its partitions only",
        UNDONE: "a transaction that was reported as committed, and is aborted in the log",
        REVIVED: "a transaction that is committed in the log, although its program aborted it, or never asked for the commit",
        ABORTED_READ: "a record of an aborted transaction that a reader of committed records got",
        EARLY_READ: "read as committed before its transaction was committed",
        UNFENCED: "written with an older epoch than the log has of its producer: a zombie that was not fenced",
        ABORTED_OFFSETS: "the group goes on where only an aborted transaction has committed",
        UNPROCESSED: "the group goes on behind it, but every transaction that read it was aborted",
        PROCESSED_TWICE: "read by the same group in several committed transactions",
        READ_CYCLE: "committed transactions that read from each other in a circle",
        LSO_STUCK: "a transaction that nobody ends: readers of committed records wait behind it",
        OWNED_TWICE: "a partition that a member got while another member of the group had it",
        UNOWNED: "a partition that no member of the group had for longer than the session time-out",
        UNRECOVERED: "a partition that was not served again until the end",
        READ_AGAIN: "consumed more than once by the same group",
        UNREAD: "not read yet at the end, but the group will",
        REFUSED: "the producer was told that the record failed",
        UNANSWERED: "produced, and neither acknowledged nor failed",
        OPEN_TXN: "a transaction that has not ended yet: its time-out will end it",
        WRITE_CYCLE: "committed transactions that wrote behind each other in a circle",
    }
)
"""Kind -> what one of it is."""
HARMLESS = frozenset({READ_AGAIN, UNREAD, REFUSED, UNANSWERED, OPEN_TXN, WRITE_CYCLE})
"""What Kafka allows to happen to a correct client: reported, but no failure unless it is forbidden."""
