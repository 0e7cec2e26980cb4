"""Compares the committed batches of a partition's replicas (REP-7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from protocol.types import TopicPartition
from tools.inspect.disk_checks import FOLLOWER_COPIES, Finding, LogFacts

EARLIER_TOPIC = (
    "the topic was created again: the broker sets the earlier log aside once the controller names the new id"
)


def compare(replicas: Mapping[TopicPartition, Sequence[LogFacts]]) -> tuple[list[Finding], int]:
    """The first difference of each pair, and the number of partitions compared."""
    findings: list[Finding] = []
    compared = 0
    for tp, facts in sorted(replicas.items()):
        if len(facts) < 2:
            continue
        compared += 1
        first = max(facts, key=lambda one: one.end_offset)
        findings += [
            finding
            for other in facts
            if other is not first and (finding := _difference(tp, first, other, committed(facts))) is not None
        ]
    return findings, compared


def committed(facts: Sequence[LogFacts]) -> int:
    """The offset up to which all replicas must be equal: the smallest LEO, or the highest checkpointed HW if that is lower."""
    marks = [one.high_watermark for one in facts if one.high_watermark is not None]
    end = min(one.end_offset for one in facts)
    return min(end, max(marks)) if marks else end


def _difference(tp: TopicPartition, one: LogFacts, other: LogFacts, end: int) -> Finding | None:
    if one.topic_id is not None and other.topic_id is not None and one.topic_id != other.topic_id:
        problem = f"topic id {other.topic_id}, in {one.directory} {one.topic_id}"
        return Finding(str(other.directory), str(tp), problem, EARLIER_TOPIC)
    start = max(one.start_offset, other.start_offset)
    is_compacted = one.has_holes or other.has_holes
    offsets = sorted(base for base in one.digests.keys() | other.digests.keys() if start <= base < end)
    for base in offsets:
        mine, theirs = one.digests.get(base), other.digests.get(base)
        if mine is None or theirs is None:
            if is_compacted:
                continue  # the cleaners of two brokers run at different times
            has, lacks = (one, other) if theirs is None else (other, one)
            *_, name, position = has.digests[base]
            problem = f"no batch starts there, but one does in {has.directory}/{name} at position {position}"
            return Finding(str(lacks.directory), f"offset {base}", problem, FOLLOWER_COPIES)
        if mine[:3] != theirs[:3] and not (is_compacted and mine[1] == theirs[1]):
            there = f"{one.directory}/{mine[3]}, position {mine[4]}"
            problem = f"{_digest_text(theirs)}; another batch in {there}: {_digest_text(mine)}"
            return Finding(
                f"{other.directory}/{theirs[3]}", f"offset {base}, position {theirs[4]}", problem, FOLLOWER_COPIES
            )
    return None


def _digest_text(digest: tuple[int, int, int, str, int]) -> str:
    return f"offsets to {digest[0]}, epoch {digest[1]}, CRC {digest[2]:08x}"
