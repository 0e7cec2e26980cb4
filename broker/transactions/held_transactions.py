"""The transactional ids that this broker coordinates, and the partitions of `__transaction_state` that make it their coordinator."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from sys import getsizeof

from broker.coordination.ownership import OwnedPartition
from broker.purgatory import TimerHandle
from broker.transactions.states import TransactionVersion
from broker.transactions.transaction import ProducerIdAndEpoch, Transaction
from protocol.errors import ErrorCode
from protocol.types import TopicPartition

ID_BYTES = 1_500
"""Approximate memory of a transactional id without its partitions."""
PARTITION_BYTES = 200
"""Approximate memory of a partition in a transaction, with the topic's name, also while its record is written."""


class TransactionsPartition(OwnedPartition):
    """A partition of `__transaction_state` that this broker leads. Its leader epoch is the epoch of the coordinator in markers."""

    __slots__ = ("transactions",)

    def __init__(self, number: int, leader_epoch: int) -> None:
        super().__init__(number, leader_epoch)
        self.transactions: dict[str, HeldTransaction] = {}


@dataclass(frozen=True, slots=True, eq=False)
class Addition:
    """Partitions to add to a transaction of the id, by a producer of that transaction version."""

    producer: ProducerIdAndEpoch
    partitions: Collection[TopicPartition]
    version: TransactionVersion
    respond: Callable[[ErrorCode], None]


class HeldTransaction:
    """A transactional id. When the partition is lost or the id removed, `is_held` becomes false: nothing may act for it then."""

    __slots__ = ("_waiting", "counted_bytes", "ended_at", "is_removed", "owner", "transaction", "transactional_id")

    def __init__(self, transactional_id: str, owner: TransactionsPartition, transaction: Transaction) -> None:
        self.transactional_id = transactional_id
        self.owner = owner
        self.transaction = transaction
        self.is_removed = False
        self.counted_bytes = 0
        self.ended_at = 0.0
        """When the markers were first sent, in seconds of the monotonic clock."""
        self._waiting: dict[Addition, TimerHandle] = {}
        """With the timer that ends the wait."""

    @property
    def is_held(self) -> bool:
        """False from the moment on at which the partition is lost: the ids of a large partition are removed later, in steps."""
        return not self.is_removed and self.owner.is_owned

    @property
    def waiting(self) -> Collection[Addition]:
        """Those that wait until a change is recorded, or the current transaction is complete."""
        return self._waiting.keys()

    def wait(self, addition: Addition, timer: TimerHandle) -> None:
        self._waiting[addition] = timer

    def wait_no_more(self, addition: Addition) -> bool:
        """False: it was taken before."""
        return self._waiting.pop(addition, None) is not None

    def take_waiting(self) -> list[Addition]:
        """All that wait. Their waits end. Those of one producer become one, which answers all of them."""
        merged: dict[tuple[ProducerIdAndEpoch, TransactionVersion], list[Addition]] = {}
        for addition, timer in self._waiting.items():
            timer.cancel()
            merged.setdefault((addition.producer, addition.version), []).append(addition)
        self._waiting.clear()
        return [_together(additions) for additions in merged.values()]


def _together(additions: Sequence[Addition]) -> Addition:
    if len(additions) == 1:
        return additions[0]

    def respond(error: ErrorCode) -> None:
        for addition in additions:
            addition.respond(error)

    every = frozenset(tp for addition in additions for tp in addition.partitions)
    return Addition(additions[0].producer, every, additions[0].version, respond)


class HeldTransactions:
    """The loaded transactional ids of all partitions that this broker leads. Those of a lost partition are in it until they are
    removed, and are not found any more."""

    def __init__(self) -> None:
        self._held: dict[str, HeldTransaction] = {}
        self.bytes = 0
        """Approximate memory (`transaction.memory.max.bytes`)."""

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[HeldTransaction]:
        """Iterates over those of a snapshot that are still held."""
        return (held for held in list(self._held.values()) if held.is_held)

    def get(self, transactional_id: str) -> HeldTransaction | None:
        held = self._held.get(transactional_id)
        return held if held is not None and held.owner.is_owned else None

    def owner_of(self, transactional_id: str) -> TransactionsPartition | None:
        held = self.get(transactional_id)
        return None if held is None else held.owner

    def add(self, held: HeldTransaction) -> None:
        self._held[held.transactional_id] = held.owner.transactions[held.transactional_id] = held
        self.count(held)

    def count(self, held: HeldTransaction) -> None:
        """Updates `bytes` after the partitions of the transaction may have changed."""
        size = 0
        if held.is_held:
            partitions = len(held.transaction.current.partitions)
            size = ID_BYTES + getsizeof(held.transactional_id) + PARTITION_BYTES * partitions
        self.bytes += size - held.counted_bytes
        held.counted_bytes = size

    def remove(self, held: HeldTransaction) -> None:
        held.is_removed = True
        if self._held.get(held.transactional_id) is held:
            del self._held[held.transactional_id]
        held.owner.transactions.pop(held.transactional_id, None)
        self.count(held)
