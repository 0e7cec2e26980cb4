"""The states of a transactional id, and all transitions between them (Kafka's `TransactionState`). Pure.

A transaction ends in two steps. The decision is a record, PrepareCommit or PrepareAbort: when it is replicated, the transaction will be
committed or aborted, whoever coordinates it. Then a marker is written to each of its partitions, and CompleteCommit or CompleteAbort is
recorded.

| state          | InitProducerId                  | AddPartitions, AddOffsets | commit                 | abort                 |
|----------------|---------------------------------|---------------------------|------------------------|-----------------------|
| Empty          | next epoch: Empty               | Ongoing                   | invalid                | invalid               |
| Ongoing        | aborted, next epoch; concurrent | Ongoing                   | PrepareCommit          | PrepareAbort          |
| PrepareCommit  | concurrent                      | concurrent                | concurrent             | concurrent            |
| PrepareAbort   | concurrent                      | concurrent                | concurrent             | concurrent            |
| CompleteCommit | next epoch: Empty               | Ongoing                   | accepted, nothing to do| invalid               |
| CompleteAbort  | next epoch: Empty               | Ongoing                   | invalid                | accepted, nothing to do|

concurrent: CONCURRENT_TRANSACTIONS, which clients retry; invalid: INVALID_TXN_STATE. While a record is being written, each request is
concurrent. A transaction that takes longer than its time-out is aborted, and its producer is fenced by the next epoch. An id that is
not used expires in the states without a transaction.

In transaction version 2 (KIP-890, EndTxn v5) each end raises the epoch, so a repetition of EndTxn is known by the epoch before. An abort
in the current epoch is accepted without a transaction, too: it only raises the epoch.

| state          | commit   | its repetition | abort        | its repetition |
|----------------|----------|----------------|--------------|----------------|
| Empty          | invalid  | fenced         | PrepareAbort | fenced         |
| CompleteCommit | invalid  | accepted       | PrepareAbort | invalid        |
| CompleteAbort  | invalid  | fenced         | PrepareAbort | accepted       |

If the cluster loses version 2 in the middle of such a transaction, its producer aborts by an earlier EndTxn: that is accepted without a
transaction, too.

fenced: PRODUCER_FENCED. The commit of a transaction that the coordinator has aborted looks like a repetition.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, IntEnum
from types import MappingProxyType


class TransactionState(Enum):
    """The values are the names that clients see. `NUMBERS` has the numbers in the log."""

    EMPTY = "Empty"
    """The id has a producer id and an epoch, and no transaction."""
    ONGOING = "Ongoing"
    PREPARE_COMMIT = "PrepareCommit"
    """Decided: markers are being written."""
    PREPARE_ABORT = "PrepareAbort"
    COMPLETE_COMMIT = "CompleteCommit"
    """All markers are written."""
    COMPLETE_ABORT = "CompleteAbort"
    DEAD = "Dead"
    """The id has expired: its tombstone is being written. Never recorded."""
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    """A name that clients may filter by. Kafka has the state in memory only; here, the fence and PrepareAbort are one transition."""


class TransactionVersion(IntEnum):
    """How a client and the coordinator speak of transactions (Kafka's `TransactionVersion`, the feature `transaction.version`)."""

    TV_0 = 0
    """Clients before KIP-890, and all requests of versions before EndTxn v5, Produce v12 and TxnOffsetCommit v5."""
    TV_1 = 1
    """As TV_0, and records of `__transaction_state` are of version 1."""
    TV_2 = 2
    """Each end of a transaction raises the producer's epoch, and partitions are added when they are written to."""

    @property
    def raises_epoch(self) -> bool:
        return self >= TransactionVersion.TV_2


class Cause(Enum):
    """Why a state changes."""

    INITIALIZED = "a producer asked for its id and epoch"
    PARTITIONS_ADDED = "the producer added partitions, or a group's offsets"
    COMMITTED = "the producer committed"
    ABORTED = "the producer aborted"
    FENCED = "another producer started with the same transactional id"
    TIMED_OUT = "it took longer than its time-out"
    MARKED = "all markers are written"
    EXPIRED = "the id was not used for transactional.id.expiration.ms"


NUMBERS: Mapping[TransactionState, int] = MappingProxyType({state: n for n, state in enumerate(TransactionState)})

_EMPTY, _ONGOING, _PREPARE_COMMIT, _PREPARE_ABORT, _COMPLETE_COMMIT, _COMPLETE_ABORT, _DEAD, _ = TransactionState

TRANSITIONS: Mapping[tuple[TransactionState, Cause], TransactionState] = MappingProxyType(
    {
        (_EMPTY, Cause.INITIALIZED): _EMPTY,
        (_EMPTY, Cause.PARTITIONS_ADDED): _ONGOING,
        (_EMPTY, Cause.ABORTED): _PREPARE_ABORT,
        (_EMPTY, Cause.EXPIRED): _DEAD,
        #
        (_ONGOING, Cause.PARTITIONS_ADDED): _ONGOING,
        (_ONGOING, Cause.COMMITTED): _PREPARE_COMMIT,
        (_ONGOING, Cause.ABORTED): _PREPARE_ABORT,
        (_ONGOING, Cause.FENCED): _PREPARE_ABORT,
        (_ONGOING, Cause.TIMED_OUT): _PREPARE_ABORT,
        #
        (_PREPARE_COMMIT, Cause.MARKED): _COMPLETE_COMMIT,
        (_PREPARE_ABORT, Cause.MARKED): _COMPLETE_ABORT,
        #
        (_COMPLETE_COMMIT, Cause.INITIALIZED): _EMPTY,
        (_COMPLETE_COMMIT, Cause.PARTITIONS_ADDED): _ONGOING,
        (_COMPLETE_COMMIT, Cause.ABORTED): _PREPARE_ABORT,
        (_COMPLETE_COMMIT, Cause.EXPIRED): _DEAD,
        #
        (_COMPLETE_ABORT, Cause.INITIALIZED): _EMPTY,
        (_COMPLETE_ABORT, Cause.PARTITIONS_ADDED): _ONGOING,
        (_COMPLETE_ABORT, Cause.ABORTED): _PREPARE_ABORT,
        (_COMPLETE_ABORT, Cause.EXPIRED): _DEAD,
    }
)

PREPARED = frozenset((_PREPARE_COMMIT, _PREPARE_ABORT))
"""The states in which markers are being written."""
COMPLETED = frozenset((_COMPLETE_COMMIT, _COMPLETE_ABORT))


class IllegalTransition(AssertionError):
    """A bug: `TRANSITIONS` does not have the transition."""


def next_state(state: TransactionState, cause: Cause) -> TransactionState:
    try:
        return TRANSITIONS[state, cause]
    except KeyError:
        raise IllegalTransition(
            f"a transactional id in state {state.value} has no transition for: {cause.value}"
        ) from None
