"""What must be true of the records of exactly-once pipelines, also when some were deleted on purpose. Pure (TXN-1, TXN-4, INV-23).

Each record of the input must be in the output once, and in the side output once. Two things may be missing:
- records that DeleteRecords took from the input before a worker read them. A worker says what it skipped;
- records of the side output in transactions that began before it was last made again, or cut at its end: they may have been in it.

Nothing may ever be there twice, and the side output has only what the output has: both are written in the same transaction.

A second group reads a fleeting input, which is deleted and made again, and writes to the same outputs. Its positions mean a topic by its
name, so offsets of the old topic may be committed for the new one, and its last records may be read again before they are gone. Only the
records of the last topic, which was never deleted, are judged: none of them is there twice.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tests.support.group_journals import Line
from tests.support.pipeline_readers import Place

EXAMPLES_MAX = 5
FLEETING_MARK = b"f"
"""How the records of the fleeting input begin. The number of the topic follows, and a colon."""


@dataclass(frozen=True)
class Evidence:
    """`output` and `side`: the committed records that were ever seen there, by place; `side` for each time that the topic was made.

    `starts` and `ends` are of the input's partitions: records before the start were deleted at some time. `disturbed_until`: the side
    output was not made again or cut after that time. `lines`: of the workers' journals.
    """

    starts: Mapping[int, int]
    ends: Mapping[int, int]
    output: Mapping[Place, bytes]
    side: Sequence[Mapping[Place, bytes]]
    disturbed_until: float
    lines: Collection[Line]
    fleeting_last: bytes = b""
    """How the records of the last fleeting input begin. Those of the earlier ones are not judged."""

    def problems(self) -> list[str]:
        """A line each."""
        output, fleeting = self._parted([self.output])
        side, fleeting_side = self._parted(self.side)
        everything = {(p, offset) for p, end in self.ends.items() for offset in range(end)}
        committed = set(self._committed(since=float("-inf")))
        read_later = {place for place in everything if place[1] >= self.starts[place[0]]}
        wanted = named(read_later | committed)
        checks = {
            "records of the input are not in the output": wanted - output.keys(),
            "records are in the output twice": _doubled(output),
            "records of the output are of no input": output.keys() - named(everything),
            "records are in the side output twice": _doubled(side),
            "records are in the side output, but not in the output": side.keys() - output.keys(),
            "committed records are not in the side output": named(self._committed(self.disturbed_until)) - side.keys(),
            "skipped records were not deleted": self._skipped_in_vain(),
            "records of the fleeting input are in the output twice": _doubled(fleeting),
            "records of the fleeting input are in the side output twice": _doubled(fleeting_side),
        }
        return [_some(what, found) for what, found in checks.items() if found]

    def _parted(self, topics: Iterable[Mapping[Place, bytes]]) -> tuple[Counter[bytes], Counter[bytes]]:
        """The records of the input's places, and those of the last fleeting input."""
        values = [value for records in topics for value in records.values()]
        lasting = Counter(value for value in values if not value.startswith(FLEETING_MARK))
        return lasting, Counter(
            value for value in values if self.fleeting_last and value.startswith(self.fleeting_last)
        )

    def _committed(self, since: float) -> Iterable[Place]:
        """What was read in the transactions that were acknowledged, and that began after this time."""
        for line in self.lines:
            if line["what"] == "committed" and line["since"] > since:
                for partition, ranges in line["places"].items():
                    for first, last in ranges:
                        yield from ((int(partition), offset) for offset in range(first, last + 1))

    def _skipped_in_vain(self) -> set[bytes]:
        return {
            b"%d@%d to %d" % (line["partition"], line["from"], line["to"])
            for line in self.lines
            if line["what"] == "skipped" and line["to"] > self.starts[line["partition"]]
        }


def named(places: Iterable[Place]) -> set[bytes]:
    """As the workers write them."""
    return {b"%d@%d" % place for place in places}


def parsed(value: bytes) -> Place:
    """The place that a worker wrote."""
    partition, offset = value.split(b"@")
    return int(partition), int(offset)


def _doubled(copies: Counter[bytes]) -> set[bytes]:
    return {value for value, count in copies.items() if count > 1}


def _some(what: str, found: Collection[bytes]) -> str:
    return f"{len(found)} {what}: {b', '.join(sorted(found)[:EXAMPLES_MAX]).decode()}"
