"""A partition's log of the protocol model: what of `broker.storage.log.Log` the replication needs, in memory.

Each batch is one record and one node. A node knows the node before it, so two logs that have the same node have the same
records up to there: comparing two prefixes is one `is`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from broker.settings.config import TopicConfig
from broker.storage.leader_epochs import LeaderEpochCache
from broker.storage.log_types import NOTHING, AppendInfo, AppendOrigin, ReadResult
from broker.storage.producers.producer_state import ProducerState
from tests.sim.model_checks import Violation


class Node:
    """A record, its leader epoch, and all before it."""

    __slots__ = ("epoch", "parent", "value")

    def __init__(self, parent: Node | None, epoch: int, value: int) -> None:
        self.parent = parent
        self.epoch = epoch
        self.value = value

    def __repr__(self) -> str:
        return f"{self.value}@{self.epoch}"


class Batches(bytes):
    """What a fetch answer carries: bytes as far as the fetcher sees, the nodes for the log."""

    nodes: list[Node]


class Producers:
    """Producers do not exist here, so there are no transactions."""

    state = ProducerState()


class ModelLog:
    """`nodes` and `epochs` are what an earlier life of the broker left on its disk."""

    log_dir = "disk"
    log_start_offset = 0
    appended_bytes = 0
    owes_flush = False
    topic_id: str | None

    def __init__(
        self, config: TopicConfig, topic_id: str, nodes: Iterable[Node] = (), epochs: Iterable[tuple[int, int]] = ()
    ) -> None:
        self.config = config
        self.topic_id = topic_id
        self.nodes = list(nodes)
        self.log_end_offset = len(self.nodes)
        self.leader_epochs = LeaderEpochCache(epochs)
        self.is_point_behind = False
        self.producers = Producers()
        self.on_cut: Callable[[list[Node], int], None] = _ignore

    @property
    def claimable_end(self) -> int:
        """No topic of the model has `flush.messages`."""
        return self.log_end_offset

    async def appendable(self) -> None:
        """A truncation needs no checkpoint here."""

    def append_as_leader(
        self,
        value: int,
        leader_epoch: int,
        allowance: object = None,
        accepted: object = None,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> AppendInfo:
        offset = self.log_end_offset
        self._add(Node(self.nodes[-1] if self.nodes else None, leader_epoch, value))
        return AppendInfo(offset, offset, -1, 0, -1, 1)

    def append_as_follower(self, records: memoryview) -> AppendInfo:
        batches = records.obj
        assert isinstance(batches, Batches)
        offset = self.log_end_offset
        for node in batches.nodes:
            if node.parent is not (self.nodes[-1] if self.nodes else None):
                raise Violation("INV-5", f"{node} is appended at {self.log_end_offset} after another prefix")
            self._add(node)
        return AppendInfo(offset, self.log_end_offset - 1, -1, 0, -1, len(batches))

    def _add(self, node: Node) -> None:
        self.nodes.append(node)
        if node.epoch > self.leader_epochs.latest_epoch():
            self.leader_epochs.assign(node.epoch, self.log_end_offset)
        self.log_end_offset += 1

    def last_stable_offset(self, high_watermark: int) -> int:
        return high_watermark

    def read(
        self,
        offset: int,
        max_bytes: int,
        max_offset: int,
        min_one_batch: bool,
        with_aborted: bool = False,
        *,
        may_be_stored: bool = False,
    ) -> ReadResult:
        nodes = self.nodes[offset : min(max_offset, offset + max_bytes)]
        if not nodes:
            return NOTHING
        batches = Batches(len(nodes))
        batches.nodes = nodes
        return ReadResult((batches,), len(nodes))

    def truncate_to(self, offset: int) -> None:
        if offset < self.log_end_offset:
            before, self.nodes = self.nodes, self.nodes[:offset]
            self.on_cut(before, offset)
            self.log_end_offset = offset
            self.leader_epochs.truncate_from_end(offset)

    def is_long_cut(self, offset: int) -> bool:
        return False

    def truncate_fully_and_start_at(self, offset: int) -> None:
        raise Violation("INV-19", f"a log that begins at 0 is emptied to begin at {offset}")

    def increment_log_start(self, offset: int) -> None:
        raise Violation("INV-11", f"nothing was deleted, but the log start moves to {offset}")


def _ignore(before: list[Node], end: int) -> None:
    """Nobody listens."""
