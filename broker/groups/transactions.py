"""Offsets within transactions (KIP-98, KIP-447, KIP-890): verified before they are appended, and ended when a marker is replicated.

    TxnOffsetCommit -> `verification` -> append: pending -> marker replicated: `completed` -> committed, or dropped

The order in the log decides, as for every commit (`group/offsets.py`): a coordinator that loads the partition finds the same offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from broker.coordination.time_slices import SlicedWork
from broker.groups.group.messages import TransactionalProducer
from broker.groups.held_groups import GroupsPartition, HeldGroup
from broker.groups.offsets_topic.writer import COMMIT_ERRORS
from broker.groups.open_transactions import EndedTransaction
from broker.replication.appending.transaction_verification import TransactionVerifier
from protocol.errors import ErrorCode
from protocol.topic_names import OFFSETS_TOPIC
from protocol.types import TopicPartition

log = logging.getLogger(__name__)


class GroupTransactions:
    """Calls `ended(held)` after offsets of a transaction have become the group's, or were dropped."""

    def __init__(self, sliced: SlicedWork, ended: Callable[[HeldGroup], None]) -> None:
        self._sliced = sliced
        self._ended = ended
        self.find_verifier: Callable[[], TransactionVerifier | None] = lambda: None
        """Whom to ask now. None: commits are not verified (`transaction.partition.verification.enable`)."""

    # -- verification -------------------------------------------------------------------------------------------------

    def is_verified(self, owned: GroupsPartition, producer: TransactionalProducer) -> bool:
        return self.find_verifier() is None or owned.transactions.is_verified(
            producer.producer_id, producer.producer_epoch
        )

    def verification(
        self, owned: GroupsPartition, producer: TransactionalProducer
    ) -> Coroutine[Any, Any, ErrorCode] | None:
        """The steps of a verification, to be awaited; None: nothing is to be verified. NONE means that commits are accepted from then
        on; other errors are for the committer (COMMIT_ERRORS)."""
        verifier = self.find_verifier()
        if verifier is None or self.is_verified(owned, producer):
            return None
        return self._verify(verifier, owned, producer)

    async def _verify(
        self, verifier: TransactionVerifier, owned: GroupsPartition, producer: TransactionalProducer
    ) -> ErrorCode:
        tp = TopicPartition(OFFSETS_TOPIC, owned.number)
        transactional_id, producer_id, producer_epoch = producer
        verification = owned.transactions.begin_verification(producer_id, producer_epoch)
        error = ErrorCode.UNKNOWN_SERVER_ERROR
        try:
            answers = await verifier.verify(transactional_id, producer_id, producer_epoch, [tp])
            error = answers.get(tp, ErrorCode.UNKNOWN_SERVER_ERROR)
        finally:
            owned.transactions.end_verification(verification, is_confirmed=error is ErrorCode.NONE)
        if not owned.is_owned:
            return ErrorCode.NOT_COORDINATOR
        if error is ErrorCode.NONE and not verification.is_valid:
            # The transaction has ended meanwhile. A commit would start another one, which nobody ends.
            return ErrorCode.INVALID_TXN_STATE
        return COMMIT_ERRORS.get(error, error)

    # -- the end of a transaction -------------------------------------------------------------------------------------

    def completed(self, owned: GroupsPartition, ended: EndedTransaction) -> None:
        """The marker is below the high watermark of the partition. While the partition is being loaded, the marker is noted: the log
        may have been read before it was appended."""
        if owned.is_loaded:
            self._sliced.for_each(self._steps(owned, ended), _nothing)
        else:
            owned.transactions.ended_early(ended)

    def loaded(self, owned: GroupsPartition) -> None:
        """The partition was loaded: ends the transactions whose markers were replicated meanwhile."""
        for ended in owned.transactions.take_ended_early():
            self.completed(owned, ended)

    def _steps(self, owned: GroupsPartition, ended: EndedTransaction) -> Iterator[None]:
        """Other requests may be served after each step. Each offset has its own place in the log, so they cannot change the outcome."""
        producer_id = ended.producer_id
        for group_id in owned.transactions.groups_of(producer_id):
            held = owned.groups.get(group_id)
            if held is None:
                owned.transactions.discard(producer_id, group_id)
                continue
            for _ in held.offsets.ending(producer_id, ended.marker_offset, is_commit=ended.is_commit):
                yield
            if not held.offsets.has_transaction(producer_id):
                owned.transactions.discard(producer_id, group_id)
            if held.is_held:
                self._ended(held)
            yield


def _nothing(_: None) -> None:
    """The steps do the work."""
