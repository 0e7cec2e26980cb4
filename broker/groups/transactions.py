"""Offsets within transactions (KIP-98, KIP-447, KIP-890): verified before they are appended, and ended when a marker is replicated.

    TxnOffsetCommit -> `verification` -> append: pending -> marker replicated: `completed` -> committed, or dropped

The order in the log decides, as for every commit (`group/offsets.py`): a coordinator that loads the partition finds the same offsets.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any

from broker.groups.group.messages import TransactionalProducer
from broker.groups.held_groups import GroupsPartition, HeldGroup
from broker.groups.offsets_topic.writer import COMMIT_ERRORS
from broker.groups.open_transactions import EndedTransaction
from broker.process.loop_budget import SlicedWork
from broker.replication.appending.transaction_verification import TransactionVerification, Verification
from protocol.errors import ErrorCode
from protocol.types import TopicPartition

log = logging.getLogger(__name__)


class GroupTransactions:
    """Calls `ended(held)` after offsets of a transaction have become the group's, or were dropped."""

    def __init__(
        self, sliced: SlicedWork, verification: TransactionVerification, ended: Callable[[HeldGroup], None]
    ) -> None:
        self._sliced = sliced
        self._verification = verification
        self._ended = ended

    # -- verification -------------------------------------------------------------------------------------------------

    def error_of_commit(self, owned: GroupsPartition, producer: TransactionalProducer) -> ErrorCode:
        """NONE: the commit is in the transaction. Otherwise a marker came between the verification and the commit."""
        return self._verification.error_of_commit(
            owned.tp, producer.producer_id, producer.producer_epoch, adds=producer.adds
        )

    def verification(
        self, owned: GroupsPartition, producer: TransactionalProducer
    ) -> Coroutine[Any, Any, ErrorCode] | None:
        """The steps of a verification, to be awaited; None: nothing is to be verified. NONE means that commits are accepted from then
        on; other errors are for the committer (COMMIT_ERRORS). For a producer that `adds`, the partition is added to its transaction."""
        verification = self._verification.of_commit(
            owned.tp, producer.producer_id, producer.producer_epoch, adds=producer.adds
        )
        if verification is None or not verification.is_needed:
            return None
        return self._verify(verification, owned, producer.transactional_id)

    @staticmethod
    async def _verify(verification: Verification, owned: GroupsPartition, transactional_id: str) -> ErrorCode:
        await verification.ask(transactional_id)
        if not owned.is_owned:
            return ErrorCode.NOT_COORDINATOR
        error = verification.outcome(owned.tp)
        return COMMIT_ERRORS.get(error, error)

    # -- the end of a transaction -------------------------------------------------------------------------------------

    def completed(self, owned: GroupsPartition, ended: EndedTransaction) -> None:
        """The marker is below the high watermark of the partition. While the partition is being loaded, the marker is noted: the log
        may have been read before it was appended."""
        if not owned.is_loaded:
            owned.transactions.ended_early(ended)
        elif owned.transactions.begin_to_end(ended):
            self._sliced.run(self._steps(owned, ended))

    def before_later_offsets(self, held: HeldGroup, producer_id: int, partitions: Iterable[TopicPartition]) -> None:
        """A commit of the producer in these partitions is in effect next. Its earlier transactions may still be ending, in steps: they
        end in these partitions now, since only the producer's latest offset of each is kept."""
        for ended in held.owner.transactions.ending(producer_id):
            for tp in partitions:
                held.offsets.end(producer_id, tp, ended.marker_offset, is_commit=ended.is_commit)

    def loaded(self, owned: GroupsPartition) -> None:
        """The partition was loaded: ends the transactions whose markers were replicated meanwhile."""
        for ended in owned.transactions.take_ended_early():
            self.completed(owned, ended)

    def _steps(self, owned: GroupsPartition, first: EndedTransaction) -> Iterator[None]:
        """Ends this transaction, and those of the same producer that end meanwhile, in the order of their markers: a later marker
        would decide about the offsets of an earlier transaction.

        Other requests may be served after each step. Each offset has its own place in the log, so they cannot change the outcome, if
        they call `before_later_offsets`.
        """
        producer_id = first.producer_id
        try:
            ended: EndedTransaction | None = first
            while ended is not None:
                yield from self._ending(owned, ended)
                ended = owned.transactions.ended(producer_id)
        except Exception:
            owned.transactions.end_no_more(producer_id)
            raise

    def _ending(self, owned: GroupsPartition, ended: EndedTransaction) -> Iterator[None]:
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
