"""What the event log says of transactions (RUN-3): how they ended, and their moves to another coordinator."""

from __future__ import annotations

from collections.abc import Callable

from broker.process.event_log import EventLog, LimitedEvents
from broker.transactions.held_transactions import HeldTransaction, TransactionsPartition
from broker.transactions.states import PREPARED
from broker.transactions.transaction import Change
from protocol.topic_names import TRANSACTION_STATE_TOPIC
from protocol.types import TopicPartition


class TransactionEvents:
    """Clients can end transactions at any rate, so these events are limited."""

    def __init__(self, events: EventLog, monotonic: Callable[[], float]) -> None:
        self._events = events
        self._limited = LimitedEvents(events, monotonic)
        self._monotonic = monotonic

    def decided(self, held: HeldTransaction, change: Change) -> None:
        """PrepareCommit or PrepareAbort is replicated."""
        metadata = change.metadata
        self._limited.write(
            "transaction_decided",
            transactional_id=held.transactional_id,
            producer_id=metadata.producer_id,
            producer_epoch=metadata.producer_epoch,
            state=metadata.state.value,
            cause=change.cause.value,
            partitions=len(metadata.partitions),
        )

    def completed(self, held: HeldTransaction, change: Change) -> None:
        """CompleteCommit or CompleteAbort is replicated."""
        self._limited.write(
            "transaction_completed",
            transactional_id=held.transactional_id,
            producer_id=change.metadata.producer_id,
            state=change.metadata.state.value,
            ms=round((self._monotonic() - held.ended_at) * 1000, 1),
        )

    def loaded(self, owned: TransactionsPartition) -> None:
        """Partitions without transactional ids are left out: most of the fifty have none."""
        self._write("transactions_loaded", owned)

    def lost(self, owned: TransactionsPartition) -> None:
        """Called before the ids are removed."""
        self._write("transactions_given_up", owned)

    def _write(self, kind: str, owned: TransactionsPartition) -> None:
        if not owned.transactions:
            return
        self._events.write(
            kind,
            partition=str(TopicPartition(TRANSACTION_STATE_TOPIC, owned.number)),
            leader_epoch=owned.leader_epoch,
            transactional_ids=len(owned.transactions),
            ending=sum(held.transaction.state in PREPARED for held in owned.transactions.values()),
        )
