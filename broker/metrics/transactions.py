"""Transactional ids that this broker coordinates: kafka.coordinator.transaction TransactionMarkerChannelManager."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from broker.process.exposition import GAUGE, single
from broker.transactions.coordinator import TransactionCoordinator
from broker.transactions.states import PREPARED, TransactionState


def transaction_section(coordinator: TransactionCoordinator) -> Iterator[str]:
    states: Counter[TransactionState] = Counter()
    for held in coordinator.transactions:
        states[held.transaction.state] += 1
        yield ""
    yield from single(
        "kafka_coordinator_transaction_transactionmarkerchannelmanager_unknowndestinationqueuesize",
        GAUGE,
        "Markers that wait for a leader, or to be sent again",
        coordinator.waiting_markers,
    )
    ids = sum(states.values())
    ongoing = states[TransactionState.ONGOING]
    ending = sum(states[state] for state in PREPARED)
    size = coordinator.transactions.bytes
    yield from single("ottla_transactional_ids", GAUGE, "Transactional ids that this broker coordinates", ids)
    yield from single("ottla_transactions_ongoing", GAUGE, "Transactions that are open", ongoing)
    yield from single("ottla_transactions_ending", GAUGE, "Transactions whose markers are being written", ending)
    yield from single(
        "ottla_transaction_memory_bytes", GAUGE, "Approximate memory of these ids (transaction.memory.max.bytes)", size
    )
