"""What must be true of a group that commits its offsets in the transactions of its outputs. Pure: from what is visible at rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from protocol.types import TopicPartition
from tools.sim.clients.history import ABORTED_TRANSACTION, Transaction
from tools.sim.policies import source_of

Offsets = Mapping[TopicPartition, int]


def unlike_offsets(
    visible: Mapping[TopicPartition, Sequence[tuple[int, str]]], outputs: Iterable[str], committed: Offsets
) -> Iterator[str]:
    """Each committed record before the committed offset has one output; what is behind it has none.

    `visible`: (offset, id) of the records that are left of each source. `outputs`: the ids that readers of committed records see.
    """
    found = Counter(filter(None, map(source_of, outputs)))
    for (tp, offset), times in found.items():
        if times > 1:
            yield f"{tp} at {offset} has {times} outputs"
        if offset >= committed.get(tp, 0):
            yield f"{tp} at {offset} has an output, and its group has committed {committed.get(tp, 0)} only"
    for tp, records in visible.items():
        for offset, record in records:
            if offset < committed.get(tp, 0) and (tp, offset) not in found:
                yield f"{record} of {tp} at {offset} has no output, and its group has committed {committed[tp]}"
                break


def unlike_transactions(
    fetched: Sequence[tuple[str, Offsets, int]], transactions: Sequence[Transaction], committed: Offsets
) -> Iterator[str]:
    """Each offset that a member was told is that of a transaction that had begun, and was not aborted. So is what is committed at rest."""
    for member, offsets, begun in (*fetched, ("the log", committed, len(transactions))):
        for tp, offset in offsets.items():
            told = [one for one in transactions[:begun] if one.offsets.get(tp) == offset]
            if offset > 0 and all(one.outcome == ABORTED_TRANSACTION for one in told):
                names = ", ".join(one.name for one in told) or "no transaction"
                yield f"{member} has {offset} as committed in {tp}, which {names} has committed: aborted, or not begun"
